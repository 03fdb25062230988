"""Chunk lists: a long episode as several shards with one small shard of role 4 that lists them; cutting and joining."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.commit import (
    check_case_clash,
    check_free,
    commit_file,
    fold_name,
    map_os_errors,
    writable_path,
)
from warpdata.bytekit.io.files import FileRangeReader, check_regular, open_source
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import NoPickle, ThreadLock
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
from warpdata.formats.wshard.episode import Channel, WShardEpisode, load_wshard
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.residual import is_sign_bits, pack_residual, unpack_residual
from warpdata.formats.wshard.rows import ChannelRows, FunctionRows, JoinedRows, slice_rows
from warpdata.formats.wshard.save import CompressionChoice, ShardWriter, check_compat, save_wshard
from warpdata.formats.wshard.schema import count_of, tensor_spec, text_at

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


def chunks_in(folder: Path, episode_id: str) -> dict[int, Path]:
    """The files in a folder that have the names of chunks of this episode, by their number."""
    name = re.compile(re.escape(episode_id) + r"_chunk_([0-9]{4,})\.wshard")
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := name.fullmatch(path.name))]
    return dict(sorted(numbered))


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
        items = meta.get("chunks", [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError("chunks is not a list of objects")
        if len(items) > MAX_CHUNKS:
            raise ValueError(f"{len(items)} chunks are too many")
        listed = ChunkList(
            text_at(meta, "episode_id"),
            text_at(meta, "env_id"),
            count_of(meta.get("total_timesteps"), "total_timesteps"),
            tuple(sorted(map(_entry, items), key=lambda entry: entry.chunk_index)),
            Path(shard.path) if folder is None else None,
            folder,
            meta.get("unordered_times") is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptLayoutError(
            f"chunk list is malformed ({error})", block=layout.META_CHUNK_LIST, path=shard.path
        ) from None
    for entry in listed.chunks:
        check_uri(entry.uri, shard.path)
    return listed


def _entry(item: dict[str, Any]) -> ChunkEntry:
    digest, steps = text_at(item, "sha256"), item.get("timestep_range")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest[:70]!r} is no SHA-256")
    if steps is not None:
        if not isinstance(steps, list) or len(steps) != 2 or not all(type(step) is int for step in steps):
            raise ValueError("timestep_range is not a pair of steps")
        steps = steps[0], steps[1] + 1  # chunk lists store the last step; in memory a range ends after it
    index, length = (count_of(item.get(key), key) for key in ("chunk_index", "length_T"))
    return ChunkEntry(index, text_at(item, "uri"), digest, steps, length)


def write_chunk_list(listed: ChunkList, path: str | os.PathLike[str], *, durable: bool = True) -> ChunkList:
    """Write a chunk list file and return the list with its path."""
    chunks = [
        {
            "chunk_index": entry.chunk_index,
            "uri": entry.uri,
            "sha256": entry.sha256,
            "timestep_range": [start, end - 1],
            "length_T": entry.length,
            "total_chunks": listed.total_chunks,
        }
        for entry in listed.chunks
        for start, end in [entry.timestep_range or (0, entry.length)]
    ]
    meta = {
        "episode_id": listed.episode_id,
        "env_id": listed.env_id,
        "total_chunks": listed.total_chunks,
        "total_timesteps": listed.total_timesteps,
        "chunks": chunks,
    }
    if listed.has_unordered_times:
        meta["unordered_times"] = True
    with commit_file(path, durable=durable) as out:
        writer = ShardWriter(out, [layout.META_CHUNK_LIST], role=layout.ROLE_CHUNK_LIST)
        writer.add_bytes(layout.META_CHUNK_LIST, dump_json(meta), layout.CONTENT_JSON)
        writer.finish()
    return replace(listed, path=Path(path))


def validate_chunk_continuity(
    manifest: str | os.PathLike[str] | ChunkList, *, check_files: bool = False, check_channels: bool = True
) -> None:
    """Raise CorruptLayoutError unless the chunks continue each other.

    Indices, step ranges and lengths are checked on the list. With `check_channels` the chunks of a list with a path are
    opened: same ids, rate, metadata and channels, times that go on. `check_files` compares every SHA-256 too.
    """
    listed = manifest if isinstance(manifest, ChunkList) else read_chunk_list(manifest)
    indices = [entry.chunk_index for entry in listed.chunks]
    if sorted(indices) != list(range(len(indices))):
        _fail(listed, f"chunk indices {indices[:20]} are not 0 to {len(indices) - 1}")
    position = 0
    for entry in sorted(listed.chunks, key=lambda entry: entry.chunk_index):
        start, end = entry.timestep_range or (position, position + entry.length)
        if start != position:
            _fail(listed, f"chunk {entry.chunk_index} begins at step {start}, {position} was expected")
        if end - start != entry.length:
            _fail(listed, f"chunk {entry.chunk_index} has {entry.length} steps, its range {end - start}")
        position = end
    if position != listed.total_timesteps:
        _fail(listed, f"the chunks hold {position} steps, {listed.total_timesteps} were announced")
    if check_files:
        for entry in listed.chunks:
            check_chunk_hash(listed, entry)
    if check_channels and (listed.path is not None or listed.folder is not None):
        _check_chunks(listed)


def check_chunk_hash(listed: ChunkList, entry: ChunkEntry) -> None:
    """Raise unless the bytes of a chunk file have the SHA-256 of the list."""
    source = listed.chunk_bytes(entry)
    name = source if isinstance(source, Path) else source.name
    try:
        actual = file_sha256(source)
    except BlobNotFoundError:
        raise BlobNotFoundError(f"chunk {entry.chunk_index} is missing", path=name) from None
    if actual != entry.sha256:
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
    continuity = Continuity(has_unordered_times=listed.has_unordered_times)
    for entry in listed.chunks:
        with ShardReader.open(listed.chunk_bytes(entry)) as shard:
            if mismatch := continuity.mismatch(entry.chunk_index, load_wshard(shard)):
                _fail(listed, f"chunk {entry.chunk_index} does not continue the others: {mismatch}")
    if mismatch := continuity.overlap():
        _fail(listed, mismatch)


class Continuity:
    """Compares the chunks of an episode as they come: ids, rate, metadata, channels and the order of times."""

    def __init__(self, *, has_unordered_times: bool = False) -> None:
        self._has_unordered_times = has_unordered_times
        self._profile: dict[str, Any] = {}
        self._spans: dict[int, dict[str, tuple[int, int]]] = {}
        """By chunk, and by the name of a clock: its first and last timestamp."""

    def mismatch(self, index: int, chunk: WShardEpisode) -> str:
        """Why a chunk does not fit to those before it; empty if it does, and then it is one of them."""
        profile = chunk.describe()
        del profile["length"]
        profile["rate"] = f"{chunk.timebase.tick_hz:g} Hz" if chunk.clock_source is None else "timestamps"
        for name, channel in (*chunk.lanes(), *chunk.flags()):
            shape = ",".join(map(str, channel.row_shape))
            own = " with its own clock" if channel.clock_source is not None else ""
            profile[f"channel {name!r}"] = f"{channel.dtype}[{shape}]{own}"
        expected = self._profile if len(self._spans) > (index in self._spans) else profile
        for name in [*expected, *profile]:
            if expected.get(name) != profile.get(name):
                values = [f"{stated.get(name, 'none')!s:.60}" for stated in (expected, profile)]
                return f"{name}: expected {values[0]}, got {values[1]}"
        clocks = {f"the clock of {name!r}": channel.clock_source for name, channel in chunk.lanes()}
        clocks["timestamps_ns"] = chunk.clock_source
        spans = {}
        for name, clock in clocks.items():
            if not self._has_unordered_times and clock is not None and clock.length:
                times = clock.rows(0, clock.length)
                spans[name] = int(times[0]), int(times[-1])
        near = {at: self._spans[at] for at in (index - 1, index + 1) if at in self._spans}
        if fact := _find_overlap({**near, index: spans}):
            return fact
        self._profile, self._spans[index] = expected, spans
        return ""

    def overlap(self) -> str:
        """Where the times of all chunks that came do not increase, also across chunks without any; or an empty text."""
        return _find_overlap(self._spans)


def _find_overlap(spans: Mapping[int, dict[str, tuple[int, int]]]) -> str:
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


class ChunkedEpisodeWriter(NoPickle):
    """Writes the chunks of one episode into a folder; `finalize_manifest` ties them together.

    Chunks of this episode that are in the folder already are a ConflictError. With `overwrite` the numbers in the names
    of new chunks follow theirs, and they are removed once the new list has replaced the old one: at every moment there
    is a list whose chunks are all there, and an episode can be cut again while it is read.
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
        overwrite: bool = False,
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
        self._options: dict[str, Any] = {"compression": compression, "compat": check_compat(compat)}
        self._chunks: dict[int, ChunkEntry] = {}
        self._continuity = Continuity()
        self._turn = ThreadLock()
        self._has_unordered_times = False
        self._env_id = ""
        with map_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            there = {fold_name(name): name for name in os.listdir(self.folder)}
            for name in (list_name(episode_id), chunk_name(episode_id, 0)):
                check_case_clash(name, there, self.folder)
            older = chunks_in(self.folder, episode_id)
            for path in (self.manifest_path, *older.values()):
                writable_path(path)
                check_free(path, overwrite=overwrite)
            self._first_number = max(older, default=-1) + 1

    @property
    def manifest_path(self) -> Path:
        """Where the chunk list goes."""
        return self.folder / list_name(self.episode_id)

    def write_chunk(self, chunk: WShardEpisode) -> Path:
        """Write one chunk and return its path; without `chunk_index` it follows the one before it."""
        with self._turn:
            return self._write_chunk(chunk)

    def _write_chunk(self, chunk: WShardEpisode) -> Path:
        if self.manifest is not None:
            raise RecordingError("the chunk list was written already", path=self.manifest_path)
        index = len(self._chunks) if chunk.chunk_index is None else chunk.chunk_index
        if index in self._chunks:
            raise ConflictError(f"chunk {index} was written already", path=self.folder)
        if chunk.length > self.chunk_size_t:
            raise SchemaMismatchError(
                f"a chunk of {chunk.length} steps, at most {self.chunk_size_t} were announced"
            )
        if chunk.timestep_range is not None:
            start, end = chunk.timestep_range
        else:
            before = self._chunks.get(index - 1)
            known = None if before is None else before.timestep_range
            start = index * self.chunk_size_t if known is None else known[1]
            end = start + chunk.length
        if end - start != chunk.length:
            raise SchemaMismatchError(f"chunk {index} has {chunk.length} steps, its range {end - start}")
        if mismatch := self._continuity.mismatch(index, chunk):
            raise SchemaMismatchError(
                f"chunk {index} does not continue the others: {mismatch}",
                hint="Give all chunks of an episode the same ids, rate, metadata and channels, and increasing times.",
            )
        placed = copy.copy(chunk)
        placed.id, placed.chunk_index = self.episode_id, index
        placed.total_chunks = chunk.total_chunks if self._total_chunks is None else self._total_chunks
        # A range that names its last step cannot be empty.
        placed.timestep_range = (start, end) if chunk.length else None
        name = chunk_name(self.episode_id, self._first_number + index)
        save_wshard(placed, self.folder / name, **self._options)
        self._chunks[index] = ChunkEntry(index, name, "", (start, end), chunk.length)
        self._env_id = self._env_id or chunk.env_id
        return self.folder / name

    def write_episode_chunked(
        self, episode: WShardEpisode, *, progress: Callable[[int, int], None] | None = None
    ) -> list[Path]:
        """Cut a whole episode into chunks of `chunk_size_t` steps and write them all; returns their paths."""
        if self._chunks:
            raise RecordingError("chunks were written already", path=self.folder)
        starts = range(0, max(1, episode.length), self.chunk_size_t)  # one empty chunk keeps what is known
        self._total_chunks, self._env_id = len(starts), episode.env_id
        clocks = [episode.clock_source, *(channel.clock_source for _, channel in episode.lanes())]
        times = [clock.rows(0, clock.length) for clock in clocks if clock is not None]
        self._has_unordered_times = any((stamps[1:] <= stamps[:-1]).any() for stamps in times)
        self._continuity = Continuity(has_unordered_times=self._has_unordered_times)
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
        unordered = self._has_unordered_times
        listed = ChunkList(self.episode_id, self._env_id, total, entries, has_unordered_times=unordered)
        validate_chunk_continuity(listed, check_channels=False)  # each was compared when it was written
        if mismatch := self._continuity.overlap():
            raise SchemaMismatchError(mismatch, path=self.folder)
        self.manifest = write_chunk_list(listed, self.manifest_path)
        named = {entry.uri for entry in entries}
        for path in chunks_in(self.folder, self.episode_id).values():
            if path.name not in named and _is_chunk_of(path, self.episode_id):
                os.unlink(writable_path(path))  # of an older list
                path.unlink(missing_ok=True)
        return self.manifest

    def discard(self) -> None:
        """Remove the chunks that were written, unless the list names them; older ones stay as they are."""
        named: set[str] = set()
        with contextlib.suppress(WarpError):  # an error may have come after the list was written
            named = {entry.uri for entry in read_chunk_list(self.manifest_path).chunks}
        for entry in self._chunks.values():
            if entry.uri not in named:
                (self.folder / entry.uri).unlink(missing_ok=True)

    def _sealed(self, entry: ChunkEntry) -> ChunkEntry:
        """Write the number of chunks, known only now, into a chunk; its data is copied as stored."""
        path = self.folder / entry.uri
        with ShardReader.open(path) as shard:
            meta = shard.read_json(layout.META_EPISODE)
            if meta.get("total_chunks") != len(self._chunks):
                meta["total_chunks"] = len(self._chunks)
                with commit_file(path) as out:
                    writer = ShardWriter(out, shard.names, role=shard.role)
                    for name in shard.names:
                        if name == layout.META_EPISODE:
                            writer.add_bytes(name, dump_json(meta), layout.CONTENT_JSON)
                        else:
                            writer.add_stored(shard.block(name), shard.read_stored(name))
                    writer.finish()
        return replace(entry, sha256=file_sha256(path))


def _is_chunk_of(path: Path, episode_id: str) -> bool:
    try:
        with ShardReader.open(path) as shard:
            meta = shard.read_json(layout.META_EPISODE)
    except WarpError:  # what cannot be read is kept
        return False
    return meta.get("episode_id") == episode_id and "chunk_index" in meta


class ChunkedEpisodeReader:
    """Opens a chunk list: chunk by chunk, or as one episode that reads only the chunks it needs."""

    def __init__(self, manifest: str | os.PathLike[str] | ChunkList, *, verify: Verify = "block") -> None:
        self.manifest = manifest if isinstance(manifest, ChunkList) else read_chunk_list(manifest)
        self._verify = verify
        self._open: dict[int, WShardEpisode] = {}
        self._continuity = Continuity(has_unordered_times=True)  # times are read with the chunk that has them
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
            if mismatch := self._continuity.mismatch(index, chunk):
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
        lengths = [entry.length for entry in self.manifest.chunks]
        open_chunk = self._opened
        is_ordered = not self.manifest.has_unordered_times
        first = open_chunk(0)
        whole = first.map_channels(partial(_join_channel, lengths, open_chunk, is_ordered))
        whole.length = sum(lengths)
        whole.chunk_index = whole.total_chunks = whole.timestep_range = None
        if first.clock_source is not None:
            clock = JoinedRows(
                _I64, lengths, partial(_part, open_chunk, "", "clock_source"), increases=is_ordered
            )
            whole.set_clock(clock)
        whole.id = self.manifest.episode_id
        whole.env_id = self.manifest.env_id or whole.env_id
        return whole


def list_again(path: str | os.PathLike[str], stated: ChunkList | None) -> ChunkList:
    """A new list of the chunks that a damaged list names, or of those with their names, by their own metadata."""
    where = Path(path)
    if stated is None:
        named = list(chunks_in(where.parent, where.name.removesuffix(list_name(""))).values())
    else:
        named = [stated.chunk_path(entry) for entry in stated.chunks]
    chunks = [(file, load_wshard(file)) for file in named]
    entries = [
        ChunkEntry(chunk.chunk_index or 0, file.name, file_sha256(file), chunk.timestep_range, chunk.length)
        for file, chunk in chunks
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
    total = sum(entry.length for entry in entries)
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
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ChunkList:
    """Cut an episode into chunks of at most `steps` steps and write them with their chunk list."""
    require_kind("steps", steps, SupportsIndex, "a whole number of steps")
    if steps <= 0:
        raise ValueError(f"chunks need at least one step, not {steps}")
    writer = ChunkedEpisodeWriter(
        folder, episode.id, steps, compression=compression, compat=compat, overwrite=overwrite
    )
    try:
        writer.write_episode_chunked(episode, progress=progress)
    except BaseException:
        writer.discard()
        raise
    return writer.finalize_manifest()


_I64 = tensor_spec("i64")


def slice_episode(episode: WShardEpisode, start: int, end: int) -> WShardEpisode:
    """Steps [start, end) of an episode, lazily; channels with their own clock are cut at the same times."""
    times = episode.times_ns()
    low = times[start] if start else None
    high = times[end] if end < episode.length else None
    is_ordered = _never_fall(times)

    def cut(block: str, channel: Channel) -> Channel:
        first, last, clock = start, end, channel.clock_source
        lane, _, key = block.partition("/")
        if lane == "residual" and is_sign_bits(key, channel.row_source.spec):
            try:
                signs = unpack_residual(channel.data, episode.length)[start:end]
            except CorruptLayoutError as error:
                hint = "Store packed bits there, or call it something else."
                raise SchemaMismatchError(error.message, block=f"residual/{key}", hint=hint) from None
            return Channel(key, np.frombuffer(pack_residual(signs), np.uint8), about=channel.about)
        if clock is None and channel.length != episode.length:
            raise SchemaMismatchError("this residual cannot be cut by step", block=block)
        if clock is not None:
            stamps = clock.rows(0, clock.length)
            if (low is not None or high is not None) and not (is_ordered and _never_fall(stamps)):
                raise SchemaMismatchError(
                    "has a clock of its own, and cannot be cut by times that go back",
                    block=channel.name,
                    hint="Keep the episode in one file, or give it times that increase.",
                )
            first = 0 if low is None else int(np.searchsorted(stamps, low))
            last = clock.length if high is None else int(np.searchsorted(stamps, high))
            clock = slice_rows(clock, first, last)
        rows = slice_rows(channel.row_source, first, last)
        return Channel.over(channel.name, rows, clock=clock, about=channel.about)

    part = episode.map_channels(cut)
    part.length, part.timestep_range = end - start, (start, end)
    # The position of the episode in a longer one is not that of its parts.
    part.chunk_index = part.total_chunks = None
    part.blocks = dict(episode.blocks) if start == 0 else {}
    if (clock := episode.clock_source) is not None:
        part.set_clock(slice_rows(clock, start, end))
    return part


def _never_fall(stamps: NDArray[np.int64]) -> bool:
    return not bool(np.any(stamps[1:] < stamps[:-1]))


OpenChunk = Callable[[int], WShardEpisode]


def _join_channel(
    lengths: Sequence[int], open_chunk: OpenChunk, is_ordered: bool, block: str, first: Channel
) -> Channel:
    lane, _, key = block.partition("/")
    spec, clock = first.row_source.spec, None
    if lane == "residual" and is_sign_bits(key, spec):
        at, steps = next(((at, steps) for at, steps in enumerate(lengths) if steps), (0, 0))
        dims = open_chunk(at).channel(block).length // -(-steps // 8) if steps else 0
        read = partial(_join_bits, lengths, open_chunk, block)
        rows: ChannelRows = FunctionRows(spec, dims * -(-sum(lengths) // 8), read)
    else:
        if first.clock_source is not None:
            # A channel with its own clock has as many rows per chunk as its chunk states.
            lengths = [open_chunk(index).channel(block).length for index in range(len(lengths))]
            read_clock = partial(_part, open_chunk, block, "clock_source")
            clock = JoinedRows(_I64, lengths, read_clock, increases=is_ordered)
        rows = JoinedRows(spec, lengths, partial(_part, open_chunk, block, "row_source"))
    return Channel.over(first.name, rows, clock=clock, about=first.about)


def _part(open_chunk: OpenChunk, block: str, what: str, index: int) -> Any:
    """A source of rows of a chunk or of a channel of it; a function of the module, so that it can be pickled."""
    chunk = open_chunk(index)
    return getattr(chunk.channel(block) if block else chunk, what)


def _join_bits(
    lengths: Sequence[int], open_chunk: OpenChunk, block: str, start: int, end: int
) -> NDArray[Any]:
    """Packed sign bits of several chunks as those of the whole."""
    signs = [
        unpack_residual(open_chunk(index).channel(block).data, length)
        for index, length in enumerate(lengths)
        if length
    ]
    packed = pack_residual(np.concatenate(signs)) if signs else b""
    return np.frombuffer(packed, np.uint8)[start:end]
