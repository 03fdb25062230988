"""Write an episode as chunks with a chunk list, and open it again as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from warpdata.bytekit.commit import commit_file
from warpdata.errors import ConflictError, CorruptLayoutError, RecordingError, SchemaMismatchError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import (
    ChunkEntry,
    ChunkList,
    check_chunk_hash,
    file_sha256,
    read_chunk_list,
    validate_chunk_continuity,
    write_chunk_list,
)
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.reader import ShardReader, Verify
from warpdata.formats.wshard.restamp import restamp_episode
from warpdata.formats.wshard.save import CompressionChoice, save_wshard
from warpdata.formats.wshard.slicing import join_episodes, slice_episode


class ChunkedEpisodeWriter:
    """Writes the chunks of one episode into a folder; `finalize_manifest` ties them together."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        episode_id: str,
        chunk_size_t: int = 1000,
        *,
        total_chunks: int | None = None,
        compression: CompressionChoice = None,
    ) -> None:
        if chunk_size_t <= 0:
            raise ValueError(f"chunk_size_t must be positive, not {chunk_size_t}")
        if not episode_id or "/" in episode_id or episode_id.startswith("."):
            raise ValueError(f"{episode_id!r} cannot be part of a file name")
        self.folder = Path(folder)
        self.episode_id = episode_id
        self.chunk_size_t = chunk_size_t
        self.manifest: ChunkList | None = None
        self._total_chunks = total_chunks
        self._compression = compression
        self._chunks: dict[int, ChunkEntry] = {}
        self._env_id = ""
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def manifest_path(self) -> Path:
        """Where the chunk list goes."""
        return self.folder / f"{self.episode_id}_manifest.wshard"

    def write_chunk(self, chunk: WShardEpisode) -> Path:
        """Write one chunk; without `chunk_index` it follows the one before it."""
        index = len(self._chunks) if chunk.chunk_index is None else chunk.chunk_index
        if index in self._chunks:
            raise ConflictError(f"chunk {index} was written already", path=self.folder)
        if chunk.length > self.chunk_size_t:
            raise SchemaMismatchError(
                f"a chunk of {chunk.length} steps, at most {self.chunk_size_t} were announced"
            )
        start, end = chunk.timestep_range or self._range(index, chunk.length)
        if end - start != chunk.length:
            raise SchemaMismatchError(f"chunk {index} has {chunk.length} steps, its range {end - start}")
        total = chunk.total_chunks if self._total_chunks is None else self._total_chunks
        placed = replace(
            chunk, id=self.episode_id, chunk_index=index, total_chunks=total, timestep_range=(start, end)
        )
        path = self.folder / f"{self.episode_id}_chunk_{index:04d}.wshard"
        save_wshard(placed, path, self._compression)
        self._chunks[index] = ChunkEntry(index, path.name, "", (start, end), chunk.length)
        self._env_id = self._env_id or chunk.env_id
        return path

    def finalize_manifest(self) -> ChunkList:
        """Write the chunk list and return it; it knows its path and can be opened or validated."""
        if self.manifest is not None:
            raise RecordingError("the chunk list was written already", path=self.manifest_path)
        entries = tuple(self._sealed(self._chunks[index]) for index in sorted(self._chunks))
        total = sum(entry.length for entry in entries)
        listed = ChunkList(self.episode_id, self._env_id, total, entries, self.manifest_path)
        validate_chunk_continuity(listed)
        self.manifest = write_chunk_list(listed, self.manifest_path)
        return self.manifest

    def _range(self, index: int, length: int) -> tuple[int, int]:
        before = self._chunks.get(index - 1)
        if before is not None and before.timestep_range is not None:
            start = before.timestep_range[1]
        else:
            start = index * self.chunk_size_t
        return start, start + length

    def _sealed(self, entry: ChunkEntry) -> ChunkEntry:
        """Each chunk says how many there are, which is known only now; its data is copied as it is stored."""
        path = self.folder / entry.uri
        total = len(self._chunks)
        with ShardReader.open(path) as shard:
            if shard.read_json(layout.META_EPISODE).get("total_chunks") != total:
                with commit_file(path) as out:
                    restamp_episode(shard, out, {"total_chunks": total})
        return replace(entry, sha256=file_sha256(path))


class ChunkedEpisodeReader:
    """Opens a chunk list: chunk by chunk, or as one episode that reads only the chunks it needs."""

    def __init__(self, manifest: str | os.PathLike[str] | ChunkList, *, verify: Verify = "block") -> None:
        self.manifest = manifest if isinstance(manifest, ChunkList) else read_chunk_list(manifest)
        self._verify = verify
        self._open: dict[int, WShardEpisode] = {}
        validate_chunk_continuity(self.manifest)

    def __repr__(self) -> str:
        return f"<ChunkedEpisodeReader {self.manifest.episode_id!r}: {len(self)} chunks>"

    def __len__(self) -> int:
        return self.manifest.total_chunks

    def load_chunk(self, index: int) -> WShardEpisode:
        """One chunk, opened lazily and checked against what the list says of it."""
        if index not in self._open:
            entry = self.manifest.chunks[index]
            chunk = load_wshard(self.manifest.chunk_bytes(entry), verify=self._verify)
            if chunk.length != entry.length or chunk.chunk_index not in (None, entry.chunk_index):
                raise CorruptLayoutError(f"{entry.uri} is not chunk {entry.chunk_index} of its list")
            self._open[index] = chunk
        return self._open[index]

    def iter_chunks(self) -> Iterator[WShardEpisode]:
        """Every chunk in order, each checked against its SHA-256 first."""
        for index, entry in enumerate(self.manifest.chunks):
            check_chunk_hash(self.manifest, entry)
            yield self.load_chunk(index)

    def episode(self) -> WShardEpisode:
        """The whole episode as one."""
        if not self.manifest.chunks:
            return WShardEpisode(self.manifest.episode_id, self.manifest.env_id)
        whole = join_episodes([entry.length for entry in self.manifest.chunks], self.load_chunk)
        whole.id = self.manifest.episode_id
        whole.env_id = self.manifest.env_id or whole.env_id
        return whole


def chunk_episode(
    episode: WShardEpisode,
    folder: str | os.PathLike[str],
    steps: int,
    *,
    compression: CompressionChoice = None,
    progress: Callable[[int, int], None] | None = None,
) -> ChunkList:
    """Cut an episode into chunks of at most `steps` steps and write them with their chunk list."""
    if steps <= 0:
        raise ValueError(f"chunks need at least one step, not {steps}")
    starts = range(0, episode.length, steps)
    writer = ChunkedEpisodeWriter(
        folder, episode.id, steps, total_chunks=len(starts), compression=compression
    )
    for start in starts:
        end = min(start + steps, episode.length)
        writer.write_chunk(slice_episode(episode, start, end))
        if progress is not None:
            progress(end, episode.length)
    return writer.finalize_manifest()
