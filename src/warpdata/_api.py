"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpdata.bytekit.ranges import RangeReader
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.timeline.episode import Episode

DIRECTORY_BLOCK = "meta/directory"
"""Only a packed episode directory has this block; looking for its name needs no parquet library."""


def open_episode(source: str | os.PathLike[str] | RangeReader | ChunkList) -> Episode:
    """Open an episode in time: a directory, one shard or a chunk list; signals are read lazily."""
    from warpdata.episodes.shard_episode import ShardEpisode
    from warpdata.formats.wshard.chunks import ChunkList, read_chunk_list
    from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
    from warpdata.formats.wshard.load import load_wshard
    from warpdata.formats.wshard.reader import ShardReader

    if isinstance(source, ChunkList):
        return ShardEpisode.of_chunks(source)
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):
        from warpdata.episodes.disk_episode import DiskEpisode

        return DiskEpisode(source)
    shard = ShardReader.open(source)
    if shard.role == ROLE_CHUNK_LIST:
        return ShardEpisode.of_chunks(read_chunk_list(shard))
    if DIRECTORY_BLOCK in shard:
        from warpdata.episodes.packed import PackedEpisode

        return PackedEpisode(shard)
    return ShardEpisode(load_wshard(shard))
