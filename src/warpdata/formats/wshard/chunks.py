"""Chunk lists: a long episode as several shards, described by one small shard of role 4."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.folders import FolderReader
from warpdata.bytekit.io.ranges import FileRangeReader, RangeReader, check_regular, open_source
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, StoreError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.reader import ShardReader, Source
from warpdata.formats.wshard.writer import ShardWriter

MAX_CHUNKS = 1_000_000
_HASH_STEP = 4 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One chunk of a chunk list; `timestep_range` is half-open."""

    chunk_index: int
    uri: str
    sha256: str
    timestep_range: tuple[int, int] | None
    length: int


@dataclass(frozen=True, slots=True)
class ChunkList:
    """What a chunk list file says: the chunks of one episode, in order."""

    episode_id: str
    env_id: str
    total_timesteps: int
    chunks: tuple[ChunkEntry, ...]
    path: Path | None = None
    folder: FolderReader | None = None
    """The folder of the chunks if it is not on this machine."""
    has_unordered_times: bool = False
    """True if the episode that was cut into chunks had times that stand still or go back."""

    @property
    def total_chunks(self) -> int:
        """How many chunks there are."""
        return len(self.chunks)

    def __fspath__(self) -> str:
        if self.path is None:
            raise TypeError("this chunk list was not read from or written to a file")
        return os.fspath(self.path)

    def chunk_path(self, entry: ChunkEntry) -> Path:
        """Where a chunk lies: beside the chunk list, never outside its folder."""
        check_uri(entry.uri, os.fspath(self.path or ""))
        return (self.path.parent if self.path else Path()) / entry.uri

    def chunk_bytes(self, entry: ChunkEntry) -> Path | RangeReader:
        """A chunk as something a shard can be opened from."""
        if self.folder is None:
            return self.chunk_path(entry)
        check_uri(entry.uri, self.folder.name)
        return self.folder.open(entry.uri)


def chunk_name(episode_id: str, index: int) -> str:
    """The file name of a chunk."""
    return f"{episode_id}_chunk_{index:04d}.wshard"


def list_name(episode_id: str) -> str:
    """The file name of a chunk list."""
    return f"{episode_id}_manifest.wshard"


def chunks_in(folder: Path, episode_id: str) -> list[Path]:
    """The files in a folder that have the names of chunks of this episode."""
    name = re.compile(re.escape(episode_id) + r"_chunk_[0-9]{4,}\.wshard")
    return sorted(path for path in folder.iterdir() if name.fullmatch(path.name))


def check_uri(uri: str, path: str) -> None:
    """Raise unless a chunk's URI stays inside the folder of its chunk list."""
    parts = uri.replace("\\", "/").split("/")
    if not uri or "\0" in uri or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise CorruptLayoutError(
            f"chunk {uri!r} would lie outside the folder", block=layout.META_CHUNK_LIST, path=path
        )


def claims_chunks(path: str | os.PathLike[str]) -> bool:
    """Whether a file on this machine says of itself that it is a chunk list; only its first bytes are looked at."""
    try:
        check_regular(path)
        with open(path, "rb", buffering=0) as file:
            start = file.read(layout.HEADER.size)
    except (OSError, StoreError):
        return False
    is_header = len(start) == layout.HEADER.size and start.startswith(layout.MAGIC)
    return is_header and layout.Header._make(layout.HEADER.unpack(start)).role == layout.ROLE_CHUNK_LIST


def read_chunk_list(source: Source | ShardReader, folder: FolderReader | None = None) -> ChunkList:
    """Read a chunk list file, written by us or by the existing Go and Python programs.

    `folder` is where its chunks are, if not beside it on this machine.
    """
    shard = source if isinstance(source, ShardReader) else ShardReader.open(source)
    if shard.role != layout.ROLE_CHUNK_LIST or layout.META_CHUNK_LIST not in shard:
        raise CorruptLayoutError("not a chunk list", path=shard.path)
    meta = shard.read_json(layout.META_CHUNK_LIST)
    try:
        chunks = [_entry(each) for each in _items(meta)]
        listed = ChunkList(
            _str(meta, "episode_id"),
            _str(meta, "env_id"),
            _int(meta, "total_timesteps"),
            tuple(sorted(chunks, key=lambda each: each.chunk_index)),
            Path(shard.path) if folder is None else None,
            folder,
            meta.get("unordered_times") is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptLayoutError(
            f"chunk list is malformed ({error})", block=layout.META_CHUNK_LIST, path=shard.path
        ) from None
    for each in listed.chunks:
        check_uri(each.uri, shard.path)
    return listed


def write_chunk_list(listed: ChunkList, path: str | os.PathLike[str], *, durable: bool = True) -> ChunkList:
    """Write a chunk list file and return the list with its path."""
    meta = {
        "episode_id": listed.episode_id,
        "env_id": listed.env_id,
        "total_chunks": listed.total_chunks,
        "total_timesteps": listed.total_timesteps,
        "chunks": [_entry_json(each, listed.total_chunks) for each in listed.chunks],
    }
    if listed.has_unordered_times:
        meta["unordered_times"] = True
    with commit_file(path, durable=durable) as out:
        writer = ShardWriter(out, [layout.META_CHUNK_LIST], role=layout.ROLE_CHUNK_LIST)
        writer.add_bytes(layout.META_CHUNK_LIST, dump_json(meta), layout.CONTENT_JSON)
        writer.finish()
    return replace(listed, path=Path(path))


def validate_chunk_continuity(
    listed: ChunkList, *, check_files: bool = False, check_channels: bool = True
) -> None:
    """Raise CorruptLayoutError unless the chunks continue each other.

    Indices, step ranges and lengths are checked on the list. With `check_channels` the chunks of a list with a path are
    opened: they must have the same ids, rate, metadata and channels, and times that go on from chunk to chunk.
    `check_files` compares the SHA-256 of every file too.
    """
    indices = [each.chunk_index for each in listed.chunks]
    if sorted(indices) != list(range(len(indices))):
        _fail(listed, f"chunk indices {indices[:20]} are not 0 to {len(indices) - 1}")
    position = 0
    for each in sorted(listed.chunks, key=lambda entry: entry.chunk_index):
        start, end = each.timestep_range or (position, position + each.length)
        if start != position:
            _fail(listed, f"chunk {each.chunk_index} begins at step {start}, {position} was expected")
        if end - start != each.length:
            _fail(listed, f"chunk {each.chunk_index} has {each.length} steps, its range {end - start}")
        position = end
    if position != listed.total_timesteps:
        _fail(listed, f"the chunks hold {position} steps, {listed.total_timesteps} were announced")
    if check_files:
        for each in listed.chunks:
            check_chunk_hash(listed, each)
    if check_channels and (listed.path is not None or listed.folder is not None):
        _check_chunks(listed)


def check_chunk_hash(listed: ChunkList, entry: ChunkEntry) -> None:
    """Raise unless the bytes of a chunk file have the SHA-256 of the list."""
    source = listed.chunk_bytes(entry)
    name = source if isinstance(source, Path) else source.name
    try:
        found = file_sha256(source)
    except BlobNotFoundError:
        raise BlobNotFoundError(f"chunk {entry.chunk_index} is missing", path=name) from None
    if found != entry.sha256:
        raise ChecksumError(f"chunk {entry.chunk_index} does not match its SHA-256", path=name)


def file_sha256(source: Source) -> str:
    """SHA-256 of a whole file, read in pieces."""
    state = RunningSha256()
    reader = FileRangeReader(source) if isinstance(source, str | os.PathLike) else open_source(source)
    try:
        for start in range(0, reader.size, _HASH_STEP):
            state.update(reader.read(start, min(start + _HASH_STEP, reader.size)))
    finally:
        reader.close()
    return state.hexdigest()


def _check_chunks(listed: ChunkList) -> None:
    """Compare the metadata and times of all chunks; only metadata and clocks are read."""
    first: dict[str, str] | None = None
    spans: dict[int, ClockSpans] = {}
    for entry in listed.chunks:
        with ShardReader.open(listed.chunk_bytes(entry)) as shard:
            chunk = load_wshard(shard)
            profile = chunk_profile(chunk)
            spans[entry.chunk_index] = clock_spans(chunk)
        first = first or profile
        if mismatch := profile_mismatch(first, profile):
            _fail(listed, f"chunk {entry.chunk_index} does not continue chunk 0: {mismatch}")
    if not listed.has_unordered_times and (mismatch := time_mismatch(spans)):
        _fail(listed, mismatch)


def chunk_profile(chunk: WShardEpisode) -> dict[str, str]:
    """Everything that must be the same in all chunks of an episode, as text by a name for messages."""
    rate = f"{chunk.timebase.tick_hz:g} Hz" if chunk.clock_source is None else "timestamps"
    profile = {"id": chunk.id, "env_id": chunk.env_id, "rate": rate}
    for name, channel in chunk.lanes():
        shape = ",".join(map(str, channel.row_shape))
        clock = " with its own clock" if channel.clock_source is not None else ""
        profile[f"channel {name!r}"] = f"{channel.dtype}[{shape}]{clock}"
    flags: dict[str, Channel | None] = {
        "rewards": chunk.rewards,
        "terminations": chunk.terminations,
        "truncations": chunk.truncations,
    }
    profile |= {name: str(flag.dtype) for name, flag in flags.items() if flag is not None}
    profile |= {f"metadata {key!r}": _json_text(value) for key, value in chunk.metadata.items()}
    profile |= {f"episode key {key!r}": _json_text(value) for key, value in chunk.about.items()}
    profile["models"] = _json_text(chunk.models)
    return profile


def _json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def profile_mismatch(expected: dict[str, str], actual: dict[str, str]) -> str:
    """The first difference between the profiles of two chunks, or an empty text."""
    for name in [*expected, *(name for name in actual if name not in expected)]:
        if expected.get(name) != actual.get(name):
            values = [f"{each.get(name, 'none'):.60}" for each in (expected, actual)]
            return f"{name}: expected {values[0]}, got {values[1]}"
    return ""


ClockSpans = dict[str, tuple[int, int]]
"""First and last timestamp by the name of the clock: one of the steps, and one per channel with its own clock."""


def clock_spans(chunk: WShardEpisode) -> ClockSpans:
    """First and last timestamp of every clock of a chunk that has rows."""
    clocks = {f"the clock of {name!r}": channel.clock_source for name, channel in chunk.lanes()}
    clocks["timestamps_ns"] = chunk.clock_source
    spans = {}
    for name, clock in clocks.items():
        if clock is not None and clock.length:
            times = clock.rows(0, clock.length)
            spans[name] = int(times[0]), int(times[-1])
    return spans


def time_mismatch(spans: Mapping[int, ClockSpans]) -> str:
    """Where the times of a chunk do not come after those of the chunks before it, or an empty text."""
    last: dict[str, tuple[int, int]] = {}
    for index in sorted(spans):
        for name, (start, end) in spans[index].items():
            before, latest = last.get(name, (index, start - 1))
            if start <= latest:
                return (
                    f"chunk {index} starts before chunk {before} ends: {name} starts at {start} ns, "
                    f"expected a time after {latest} ns"
                )
            last[name] = index, end
    return ""


def _fail(listed: ChunkList, fact: str) -> None:
    raise CorruptLayoutError(fact, block=layout.META_CHUNK_LIST, path=listed.path or listed.episode_id)


def _items(meta: dict[str, Any]) -> Iterable[dict[str, Any]]:
    chunks = meta.get("chunks", [])
    if not isinstance(chunks, list) or not all(isinstance(each, dict) for each in chunks):
        raise ValueError("chunks is not a list of objects")
    if len(chunks) > MAX_CHUNKS:
        raise ValueError(f"{len(chunks)} chunks are too many")
    return chunks


def _entry(each: dict[str, Any]) -> ChunkEntry:
    length = _int(each, "length_T")
    digest = _str(each, "sha256")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest[:70]!r} is no SHA-256")
    steps = each.get("timestep_range")
    return ChunkEntry(_int(each, "chunk_index"), _str(each, "uri"), digest, _steps(steps), length)


def _steps(value: Any) -> tuple[int, int] | None:
    """Chunk lists store the last step; in memory a range ends after it."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        raise ValueError("timestep_range is not a pair of steps")
    return value[0], value[1] + 1


def _entry_json(each: ChunkEntry, total: int) -> dict[str, Any]:
    start, end = each.timestep_range or (0, each.length)
    return {
        "chunk_index": each.chunk_index, "uri": each.uri, "sha256": each.sha256,
        "timestep_range": [start, end - 1], "length_T": each.length, "total_chunks": total,
    }  # fmt: skip


def _str(source: dict[str, Any], key: str) -> str:
    value = source.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")
    return value


def _int(source: dict[str, Any], key: str) -> int:
    value = source.get(key)
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{key} is not a count")
    return value
