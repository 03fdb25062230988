"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpdata.bytekit.ranges import RangeReader
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.formats.wshard.episode import WShardEpisode


def open_episode(source: str | os.PathLike[str] | RangeReader | ChunkList) -> WShardEpisode:
    """Open an episode, whether it is one shard or a chunk list; reads no more than header and metadata."""
    from warpdata.formats.wshard.chunked import ChunkedEpisodeReader
    from warpdata.formats.wshard.chunks import ChunkList, read_chunk_list
    from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
    from warpdata.formats.wshard.load import load_wshard
    from warpdata.formats.wshard.reader import ShardReader

    if isinstance(source, ChunkList):
        return ChunkedEpisodeReader(source).episode()
    shard = ShardReader.open(source)
    if shard.role == ROLE_CHUNK_LIST:
        return ChunkedEpisodeReader(read_chunk_list(shard)).episode()
    return load_wshard(shard)
