"""Which kind of source the bytes of an episode are."""

from __future__ import annotations

from typing import Any

from warpdata.episodes.sources.shard_episode import ShardSource
from warpdata.formats.wshard.chunks import ChunkList, read_chunk_list, validate_chunk_continuity
from warpdata.formats.wshard.episode import load_wshard
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import EpisodeSource, innermost

__all__ = ["ChunkList", "Episode", "ShardReader", "chunks_of", "chunks_source", "episode_of_shard"]

DIRECTORY_BLOCK = "meta/directory"
"""Only a packed recording has this block; looking for it needs no parquet library."""


def episode_of_shard(shard: ShardReader, folder: Any = None) -> Episode:
    """The episode of a shard: by step, packed, or the chunks that its list names; they are in `folder`."""
    return Episode(_source_of(shard, folder))


def _source_of(shard: ShardReader, folder: Any) -> EpisodeSource:
    if shard.role == ROLE_CHUNK_LIST:
        return chunks_source(read_chunk_list(shard, folder))
    if DIRECTORY_BLOCK not in shard:
        return ShardSource(load_wshard(shard), path=shard.path, size_bytes=shard.size)
    from warpdata.episodes.forms.packed import PackedSource  # brings the parquet library along

    return PackedSource(shard)


def chunks_source(chunks: ChunkList) -> EpisodeSource:
    """The episode that the chunks of a list make up."""
    validate_chunk_continuity(chunks, check_channels=False)
    if chunks.chunks and DIRECTORY_BLOCK in ShardReader.open(chunks.chunk_bytes(chunks.chunks[0])):
        from warpdata.episodes.forms.packed_chunks import PackedChunks  # brings the parquet library along

        return PackedChunks(chunks)
    return ShardSource.of_chunks(chunks)


def chunks_of(episode: Episode) -> ChunkList | None:
    """The chunk list behind an episode; None where it is in one piece."""
    found = getattr(innermost(episode.source), "chunks", None)
    return found if isinstance(found, ChunkList) else None
