"""Chunk lists: a long episode as several shards with one small shard of role 4 that lists them; cutting and joining."""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.commit import (
    TEMP_MARK,
    NewFile,
    check_case_clash,
    commit_file,
    fold_name,
    fsync_folder,
    map_os_errors,
    writable_path,
)
from warpdata.bytekit.io.files import FileRangeReader, check_regular, open_source
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import NoPickle
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    CorruptLayoutError,
    RecordingError,
    SchemaMismatchError,
    StoreError,
    WarpError,
    require_kind,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode, load_wshard
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.residual import is_sign_bits, pack_residual, unpack_residual
from warpdata.formats.wshard.rows import ChannelRows, JoinedRows, SlicedRows
from warpdata.formats.wshard.save import save_wshard
from warpdata.formats.wshard.schema import TensorSpec
from warpdata.formats.wshard.writer import CompressionChoice, ShardWriter, check_compat

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
    """The contents of a chunk list file: the chunks of one episode, in order."""

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
        """The path of a chunk: beside the chunk list, never outside its folder."""
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
            f"chunk {uri!r} would be outside the folder", block=layout.META_CHUNK_LIST, path=path
        )


def claims_chunks(path: str | os.PathLike[str]) -> bool:
    """Whether a local file has the header of a chunk list; only its first bytes are read."""
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


class ChunkedEpisodeWriter(NoPickle):
    """Writes the chunks of one episode into a folder; `finalize_manifest` ties them together.

    Where chunks of this episode are in the folder already, they stay as they are until `finalize_manifest` puts all new
    ones in their place: an episode can be cut again while it is read from its old chunks.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        episode_id: str,
        chunk_size_t: int = 1000,
        *,
        total_chunks: int | None = None,
        compression: CompressionChoice = None,
        compat: str = "default",
    ) -> None:
        require_kind("chunk_size_t", chunk_size_t, SupportsIndex, "a whole number of steps")
        require_kind("an episode's id", episode_id, str, "a text")
        if chunk_size_t <= 0:
            raise ValueError(f"chunk_size_t must be positive, not {chunk_size_t}")
        if not episode_id or "/" in episode_id or "\0" in episode_id or episode_id.startswith("."):
            raise ValueError(
                f"the episode id {episode_id!r} cannot be part of a file name: use one without '/' and a first '.'"
            )
        self.folder = Path(folder)
        self.episode_id = episode_id
        self.chunk_size_t = chunk_size_t
        self.manifest: ChunkList | None = None
        self._total_chunks = total_chunks
        self._compression = compression
        self._compat = check_compat(compat)
        self._chunks: dict[int, ChunkEntry] = {}
        self._profile: dict[str, str] = {}
        self._spans: dict[int, ClockSpans] = {}
        self._has_unordered_times = False
        self._env_id = ""
        with map_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            there = {fold_name(name): name for name in os.listdir(self.folder)}
            for name in (list_name(episode_id), chunk_name(episode_id, 0)):
                check_case_clash(name, there, self.folder)
            writable_path(self.manifest_path)
            is_new = not self.manifest_path.exists() and not chunks_in(self.folder, episode_id)
        self._stage = (
            self.folder if is_new else self.folder / f".{episode_id}{TEMP_MARK}{secrets.token_hex(6)}"
        )

    @property
    def manifest_path(self) -> Path:
        """Where the chunk list goes."""
        return self.folder / list_name(self.episode_id)

    def write_chunk(self, chunk: WShardEpisode) -> Path:
        """Write one chunk and return where it will be found; without `chunk_index` it follows the one before it."""
        if self.manifest is not None:
            raise RecordingError("the chunk list was written already", path=self.manifest_path)
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
        steps = (start, end) if chunk.length else None  # a range that names its last step cannot be empty
        spans = self._check_continuity(chunk, index)
        placed = copy.copy(chunk)
        placed.id, placed.chunk_index = self.episode_id, index
        placed.total_chunks, placed.timestep_range = total, steps
        name = chunk_name(self.episode_id, index)
        with map_os_errors(self.folder):
            _target(self.folder, name)
            self._stage.mkdir(exist_ok=True)
        save_wshard(placed, self._stage / name, self._compression, compat=self._compat)
        self._chunks[index] = ChunkEntry(index, name, "", (start, end), chunk.length)
        self._spans[index] = spans
        self._env_id = self._env_id or chunk.env_id
        return self.folder / name

    def write_episode_chunked(
        self, episode: WShardEpisode, *, progress: Callable[[int, int], None] | None = None
    ) -> list[Path]:
        """Cut a whole episode into chunks of `chunk_size_t` steps and write them all; returns where they are found."""
        if self._chunks:
            raise RecordingError("chunks were written already", path=self.folder)
        starts = range(0, max(1, episode.length), self.chunk_size_t)  # one empty chunk keeps what is known
        self._total_chunks, self._env_id = len(starts), episode.env_id
        clocks = [episode.clock_source, *(channel.clock_source for _, channel in episode.lanes())]
        self._has_unordered_times = not all(_increases(clock) for clock in clocks if clock is not None)
        paths = []
        for start in starts:
            end = min(start + self.chunk_size_t, episode.length)
            paths.append(self.write_chunk(slice_episode(episode, start, end)))
            if progress is not None:
                progress(end, episode.length)
        return paths

    def finalize_manifest(self) -> ChunkList:
        """Write the chunk list and return it; it knows its path and can be opened or validated."""
        if self.manifest is not None:
            raise RecordingError("the chunk list was written already", path=self.manifest_path)
        entries = tuple(self._sealed(self._chunks[index]) for index in sorted(self._chunks))
        total = sum(entry.length for entry in entries)
        listed = ChunkList(
            self.episode_id,
            self._env_id,
            total,
            entries,
            self.manifest_path,
            has_unordered_times=self._has_unordered_times,
        )
        validate_chunk_continuity(listed, check_channels=False)  # each was compared when it was written
        if not self._has_unordered_times and (mismatch := time_mismatch(self._spans)):
            raise SchemaMismatchError(mismatch, path=self.folder)
        with map_os_errors(self.folder):
            self._stage.mkdir(exist_ok=True)
        write_chunk_list(listed, self._stage / list_name(self.episode_id))
        if self._stage != self.folder:
            _move_into_place(listed, self._stage)
        _remove_stale(listed)
        self.manifest = listed
        return listed

    def discard(self) -> None:
        """Remove what was written to take the place of older chunks, which stay as they are."""
        is_moving = unfinished_cut(self.manifest_path) == Path(os.path.abspath(self._stage))
        if self.manifest is None and self._stage != self.folder and not is_moving:
            shutil.rmtree(self._stage, ignore_errors=True)

    def _check_continuity(self, chunk: WShardEpisode, index: int) -> ClockSpans:
        """Raise SchemaMismatchError unless a chunk fits to those written before; returns its first and last times."""
        profile, spans = chunk_profile(chunk), clock_spans(chunk)
        if not self._chunks:
            self._profile = profile
        mismatch = profile_mismatch(self._profile, profile)
        if not mismatch and not self._has_unordered_times:
            neighbours = {at: self._spans[at] for at in (index - 1, index + 1) if at in self._spans}
            mismatch = time_mismatch({**neighbours, index: spans})
        if mismatch:
            raise SchemaMismatchError(
                f"chunk {index} does not continue the chunks before it: {mismatch}",
                hint="Give all chunks of an episode the same ids, rate, metadata and channels, and increasing times.",
            )
        return spans

    def _range(self, index: int, length: int) -> tuple[int, int]:
        before = self._chunks.get(index - 1)
        if before is not None and before.timestep_range is not None:
            start = before.timestep_range[1]
        else:
            start = index * self.chunk_size_t
        return start, start + length

    def _sealed(self, entry: ChunkEntry) -> ChunkEntry:
        """Write the number of chunks, known only now, into a chunk; its data is copied as stored."""
        path = self._stage / entry.uri
        total = len(self._chunks)
        with ShardReader.open(path) as shard:
            if shard.read_json(layout.META_EPISODE).get("total_chunks") != total:
                with commit_file(path) as out:
                    _restamped(shard, out, {"total_chunks": total})
        return replace(entry, sha256=file_sha256(path))


def _increases(clock: ChannelRows) -> bool:
    times = clock.rows(0, clock.length)
    return bool((times[1:] > times[:-1]).all())


def unfinished_cut(path: str | os.PathLike[str]) -> Path | None:
    """The folder of new chunks whose move into place, with this list, was killed; or None.

    The new list is there and the old one is gone: each file is there or in its place already.
    """
    where = Path(os.path.abspath(path))
    episode_id = where.name.removesuffix(list_name(""))
    if where.exists() or where.name == episode_id or not where.parent.is_dir():
        return None
    begun = (each for each in where.parent.iterdir() if each.name.startswith(f".{episode_id}{TEMP_MARK}"))
    return next((each for each in sorted(begun) if (each / where.name).is_file()), None)


def unfinished_cuts(folder: Path) -> list[Path]:
    """The lists of all cuts in a folder that were killed while they were moved into place."""
    found = folder.glob(f".*{TEMP_MARK}*/*{list_name('')}")
    return sorted({folder / each.name for each in found if unfinished_cut(folder / each.name)})


def finish_cut(stage: Path, path: str | os.PathLike[str]) -> ChunkList:
    """Move the rest of a killed cut into place; files in place already must match the list."""
    where = Path(os.path.abspath(path))
    listed = replace(read_chunk_list(stage / where.name), path=where)
    for entry in listed.chunks:
        if not (stage / entry.uri).exists():
            check_chunk_hash(listed, entry)
    _move_into_place(listed, stage)
    _remove_stale(listed)
    return listed


def _move_into_place(listed: ChunkList, stage: Path) -> None:
    """Old list away, new chunks in, then the new list: no list ever names chunks of another cut.

    The new list is in `stage` from before the first step to the last, so that a killed move can be finished.
    """
    assert listed.path is not None
    folder, name = listed.path.parent, listed.path.name
    with map_os_errors(folder):
        targets = {uri: _target(folder, uri) for uri in [*(entry.uri for entry in listed.chunks), name]}
        if listed.path.exists():
            os.unlink(targets[name])
        for uri, target in targets.items():
            if uri == name:
                fsync_folder(folder)
            if (stage / uri).exists():
                os.replace(stage / uri, target)
        fsync_folder(folder)
        stage.rmdir()


def _target(folder: Path, name: str) -> str:
    """Where a file goes in the end: a link to a file is followed, anything else is refused."""
    target = writable_path(folder / name)
    if os.stat(os.path.dirname(target)).st_dev != os.stat(folder).st_dev:
        raise StoreError(
            "a link is there that leads to another file system", path=folder / name,
            hint="Remove the link, or write to another folder.",
        )  # fmt: skip
    return target


def _remove_stale(listed: ChunkList) -> None:
    """Chunks of this episode that an older, longer list named; what cannot be read is kept."""
    assert listed.path is not None
    named = {entry.uri for entry in listed.chunks}
    for path in chunks_in(listed.path.parent, listed.episode_id):
        if path.name not in named and _is_chunk_of(path, listed.episode_id):
            path.unlink()


def _is_chunk_of(path: Path, episode_id: str) -> bool:
    try:
        with ShardReader.open(path) as shard:
            meta = shard.read_json(layout.META_EPISODE)
    except WarpError:
        return False
    return meta.get("episode_id") == episode_id and "chunk_index" in meta


def _restamped(shard: ShardReader, out: NewFile, changes: Mapping[str, Any]) -> None:
    """Write `shard` again into `out` with these keys of `meta/episode` replaced; data is not recompressed."""
    writer = ShardWriter(out, shard.names, role=shard.role)
    for name in shard.names:
        if name == layout.META_EPISODE:
            meta = {**shard.read_json(name), **changes}
            writer.add_bytes(name, dump_json(meta), layout.CONTENT_JSON)
        else:
            writer.add_stored(shard.block(name), shard.stored(name))
    writer.finish()


class ChunkedEpisodeReader:
    """Opens a chunk list: chunk by chunk, or as one episode that reads only the chunks it needs."""

    def __init__(self, manifest: str | os.PathLike[str] | ChunkList, *, verify: Verify = "block") -> None:
        self.manifest = manifest if isinstance(manifest, ChunkList) else read_chunk_list(manifest)
        self._verify = verify
        self._open: dict[int, WShardEpisode] = {}
        self._profile: dict[str, str] = {}
        # Chunks are opened, and their channels compared, as they are needed.
        validate_chunk_continuity(self.manifest, check_channels=False)

    def __repr__(self) -> str:
        return f"<ChunkedEpisodeReader {self.manifest.episode_id!r}: {len(self)} chunks>"

    def __len__(self) -> int:
        return self.manifest.total_chunks

    def load_chunk(self, index: int) -> WShardEpisode:
        """One chunk, opened lazily and checked against its list entry; the caller may change it."""
        return self._opened(index).clone()

    def _opened(self, index: int) -> WShardEpisode:
        if index not in self._open:
            entry = self.manifest.chunks[index]
            chunk = load_wshard(self.manifest.chunk_bytes(entry), verify=self._verify)
            if chunk.length != entry.length or chunk.chunk_index not in (None, entry.chunk_index):
                raise CorruptLayoutError(f"{entry.uri} is not chunk {entry.chunk_index} of its list")
            profile = chunk_profile(chunk)
            self._profile = self._profile or profile
            if mismatch := profile_mismatch(self._profile, profile):
                raise CorruptLayoutError(
                    f"{entry.uri} does not continue the other chunks of its list: {mismatch}"
                )
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
        whole = join_episodes([entry.length for entry in self.manifest.chunks], self._opened)
        whole.id = self.manifest.episode_id
        whole.env_id = self.manifest.env_id or whole.env_id
        return whole


def list_again(path: str | os.PathLike[str], stated: ChunkList | None) -> ChunkList:
    """The list of the chunks that one which does not hold names, or of those that are called like them: what they say
    themselves."""
    where = Path(path)
    if stated is None:
        named = chunks_in(where.parent, where.name.removesuffix(list_name("")))
    else:
        named = [stated.chunk_path(each) for each in stated.chunks]
    chunks = [(each, load_wshard(each)) for each in named]
    entries = [
        ChunkEntry(chunk.chunk_index or 0, each.name, file_sha256(each), chunk.timestep_range, chunk.length)
        for each, chunk in chunks
    ]
    totals = {chunk.total_chunks for _, chunk in chunks} - {None}
    identities = {(chunk.id, chunk.env_id) for _, chunk in chunks}
    if len(identities) != 1 or totals - {len(chunks)}:
        raise CorruptLayoutError(
            f"the {len(chunks)} chunks beside the list are not all those of one episode", path=where,
            hint="Bring the chunks together that belong to it, and no others.",
        )  # fmt: skip
    in_order = tuple(sorted(entries, key=lambda entry: entry.chunk_index))
    unordered = stated is not None and stated.has_unordered_times
    total = sum(each.length for each in entries)
    listed = ChunkList(*identities.pop(), total, in_order, where, has_unordered_times=unordered)
    validate_chunk_continuity(listed)
    return listed


def chunk_episode(
    episode: WShardEpisode,
    folder: str | os.PathLike[str],
    steps: int,
    *,
    compression: CompressionChoice = None,
    compat: str = "default",
    progress: Callable[[int, int], None] | None = None,
) -> ChunkList:
    """Cut an episode into chunks of at most `steps` steps and write them with their chunk list."""
    require_kind("steps", steps, SupportsIndex, "a whole number of steps")
    if steps <= 0:
        raise ValueError(f"chunks need at least one step, not {steps}")
    writer = ChunkedEpisodeWriter(folder, episode.id, steps, compression=compression, compat=compat)
    try:
        writer.write_episode_chunked(episode, progress=progress)
    except BaseException:
        writer.discard()
        raise
    return writer.finalize_manifest()


class JoinedBits:
    """Packed sign bits of several chunks as those of the whole, joined on first use."""

    def __init__(self, lengths: Sequence[int], opened: Callable[[int], Channel]) -> None:
        self.spec = TensorSpec(dtype_named("u8"), ())
        first = next((index for index, length in enumerate(lengths) if length), None)
        dims = 0 if first is None else opened(first).length // -(-lengths[first] // 8)
        self.length = dims * -(-sum(lengths) // 8)
        self._lengths = lengths
        self._opened = opened
        self._whole: NDArray[np.uint8] | None = None

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Bytes [start, end) of the packed whole."""
        if self._whole is None:
            signs = [
                unpack_residual(self._opened(index).data, length)
                for index, length in enumerate(self._lengths)
                if length
            ]
            packed = pack_residual(np.concatenate(signs)) if signs else b""
            self._whole = np.frombuffer(packed, np.uint8)
        return self._whole[start:end]


def slice_episode(episode: WShardEpisode, start: int, end: int) -> WShardEpisode:
    """Steps [start, end) of an episode, lazily; channels with their own clock are cut at the same times."""
    # The position of the episode in a longer one is not that of its parts.
    cut = replace(
        episode, length=end - start, timestamps_ns=None, blocks={}, chunk_index=None, total_chunks=None,
        timestep_range=(start, end),
    )  # fmt: skip
    times = episode.times_ns()
    low = times[start] if start else None
    high = times[end] if end < episode.length else None
    is_ordered = _never_fall(times)
    for name in ("observations", "actions"):
        channels = getattr(episode, name).items()
        setattr(cut, name, {k: _cut(c, start, end, low, high, is_ordered) for k, c in channels})
    for name in ("omens", "uncerts"):
        lanes = getattr(episode, name).data
        setattr(cut, name, {key: _cut(each, start, end, None, None) for key, each in lanes.items()})
    lanes = episode.residuals.data
    cut.residuals = {k: _cut_residual(k, c, start, end, episode.length) for k, c in lanes.items()}  # type: ignore[assignment]
    for name in ("rewards", "terminations", "truncations"):
        flag = getattr(episode, name)
        setattr(cut, name, None if flag is None else _cut(flag, start, end, None, None))
    if (clock := episode.clock_source) is not None:
        cut.set_clock(SlicedRows(clock, start, end))
    if start == 0:
        cut.blocks = dict(episode.blocks)
    return cut


def _never_fall(stamps: NDArray[np.int64]) -> bool:
    return not bool(np.any(stamps[1:] < stamps[:-1]))


def _cut(
    channel: Channel, start: int, end: int, low_ns: Any, high_ns: Any, is_ordered: bool = True
) -> Channel:
    clock = channel.clock_source
    if clock is not None:
        stamps = clock.rows(0, clock.length)
        if (low_ns, high_ns) != (None, None) and not (is_ordered and _never_fall(stamps)):
            raise SchemaMismatchError(
                "has a clock of its own, and cannot be cut by times that go back",
                block=channel.name,
                hint="Keep the episode in one file, or give it times that increase.",
            )
        start = 0 if low_ns is None else int(np.searchsorted(stamps, low_ns))
        end = clock.length if high_ns is None else int(np.searchsorted(stamps, high_ns))
        clock = SlicedRows(clock, start, end)
    return Channel.over(
        channel.name, SlicedRows(channel.row_source, start, end), clock=clock, about=channel.about
    )


def _cut_residual(key: str, channel: Channel, start: int, end: int, length: int) -> Channel:
    if not is_sign_bits(key, channel.row_source.spec):
        if channel.length != length:
            raise SchemaMismatchError("this residual cannot be cut by step", block=f"residual/{key}")
        return _cut(channel, start, end, None, None)
    try:
        signs = unpack_residual(channel.data, length)[start:end]
    except CorruptLayoutError as error:
        hint = "Store packed bits there, or call it something else."
        raise SchemaMismatchError(error.message, block=f"residual/{key}", hint=hint) from None
    return Channel(key, np.frombuffer(pack_residual(signs), np.uint8), about=channel.about)


def join_episodes(lengths: Sequence[int], opened: Callable[[int], WShardEpisode]) -> WShardEpisode:
    """One episode over its chunks; only the first chunk is opened until rows of others are read."""
    first = opened(0)
    whole = replace(first, length=sum(lengths), chunk_index=None, total_chunks=None, timestep_range=None)
    join = _Join(lengths, opened)
    for name in ("observations", "actions", "omens", "uncerts"):
        lanes = getattr(first, name).data
        setattr(whole, name, {key: join.channel(name, key, each) for key, each in lanes.items()})
    whole.residuals = {key: join.residual(key, each) for key, each in first.residuals.data.items()}  # type: ignore[assignment]
    for name in ("rewards", "terminations", "truncations"):
        flag = getattr(first, name)
        setattr(whole, name, None if flag is None else join.flag(name, flag))
    if first.timestamps_ns is not None:
        whole.set_clock(JoinedRows(_I64, lengths, join.timestamps))
    return whole


class _Join:
    """Joins the channels of one name over all chunks, which have the same channels."""

    def __init__(self, lengths: Sequence[int], opened: Callable[[int], WShardEpisode]) -> None:
        self._lengths = lengths
        self._opened = opened

    def channel(self, field: str, key: str, first: Channel) -> Channel:
        lengths, clock = self._lengths, None
        if first.clock_source is not None:
            # A channel with its own clock has as many rows per chunk as its chunk states.
            lengths = [self.find(field, key, index).length for index in range(len(self._lengths))]
            clock = JoinedRows(_I64, lengths, partial(self.clock_rows, field, key))
        rows = JoinedRows(first.row_source.spec, lengths, partial(self.channel_rows, field, key))
        return Channel.over(key, rows, clock=clock, about=first.about)

    def residual(self, key: str, first: Channel) -> Channel:
        if not is_sign_bits(key, first.row_source.spec):
            return self.channel("residuals", key, first)
        bits = JoinedBits(self._lengths, partial(self.find, "residuals", key))
        return Channel.over(key, bits, about=first.about)

    def flag(self, field: str, first: Channel) -> Channel:
        rows = JoinedRows(first.row_source.spec, self._lengths, partial(self.flag_rows, field))
        return Channel.over(first.name, rows, about=first.about)

    # Where the rows of one chunk are; methods, so that what is joined can go to another process.

    def channel_rows(self, field: str, key: str, index: int) -> ChannelRows:
        return self.find(field, key, index).row_source

    def clock_rows(self, field: str, key: str, index: int) -> ChannelRows:
        clock = self.find(field, key, index).clock_source
        assert clock is not None
        return clock

    def flag_rows(self, field: str, index: int) -> ChannelRows:
        flag: Channel = getattr(self._opened(index), field)
        return flag.row_source

    def timestamps(self, index: int) -> ChannelRows:
        clock = self._opened(index).clock_source
        assert clock is not None
        return clock

    def find(self, field: str, key: str, index: int) -> Channel:
        found: Channel = getattr(self._opened(index), field).data[key]
        return found


_I64 = TensorSpec(dtype_named("i64"), ())
