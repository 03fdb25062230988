"""A packed recording opened in place: rows, tables and videos inside a shard, or inside its chunks."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.ranges import BytesRangeReader, PartRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.episodes.sources.cameras import VideoSignal, signal_meta
from warpdata.episodes.sources.disk_episode import SimpleSignal
from warpdata.episodes.sources.shard_episode import DIRECTORY_BLOCK, BlockSignal, RaggedRows
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.documents import Description, restored_static
from warpdata.formats.wshard.chunks import ChunkList, validate_chunk_continuity
from warpdata.formats.wshard.layout import META_EPISODE, TIMESTAMPS_NS
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import BlockRows, read_numbers
from warpdata.formats.wshard.schema import TensorSpec, tensor_spec
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, StepClock

VERSION = 2
VIDEO_PREFIX = "video/"
_PLACES = ("video", "frames", "table", "block", "more", "offsets", "times")
_I64 = tensor_spec("i64")


def is_packed(shard: ShardReader) -> bool:
    """Whether a shard holds a packed recording."""
    return DIRECTORY_BLOCK in shard


def directory_of(about: bytes, blocks: Collection[str]) -> bytes:
    """The directory block without the signals whose blocks are not among these names."""
    directory = parse_json_object(about)
    kept = {}
    for name, entry in directory["signals"].items():
        needed = {str(entry[key]) for key in _PLACES if entry.get(key) is not None}
        if entry.get("block") is not None and entry.get("times") is None:
            needed.add(TIMESTAMPS_NS)
        if needed <= set(blocks):
            kept[name] = entry
    lost, meta = set(directory["signals"]) - set(kept), directory["meta"]
    if isinstance(meta.get("signals"), dict):
        meta["signals"] = {name: entry for name, entry in meta["signals"].items() if name not in lost}
    return dump_json({**directory, "meta": meta, "signals": kept})


class PackedSource(EpisodeSource):
    """A packed recording opened in place: the same names, signals, static items and metadata."""

    def __init__(self, shard: ShardReader) -> None:
        self.shard = shard
        about = shard.read_json(DIRECTORY_BLOCK)
        try:
            version = about.get("version")
            if version != VERSION:
                raise CorruptLayoutError(
                    f"a recording packed in version {version}",
                    block=DIRECTORY_BLOCK,
                    path=shard.path,
                    hint="Upgrade warpdata.",
                )
            static = {name: restored_static(value) for name, value in about["static"].items()}
            episode_id = str(about.get("id") or shard.read_json(META_EPISODE).get("episode_id"))
            entries = {}
            for name, entry in about["signals"].items():
                blocks = {key: str(entry[key]) for key in _PLACES if entry.get(key) is not None}
                description = Description.from_json(entry, shard.path)
                entries[str(name)] = (description, blocks, int(entry.get("count", 0)))
            signals = LazySignals(lambda: entries, lambda name: _open_signal(shard, name, *entries[name]))
            meta, clock = dict(about["meta"]), StepClock.from_json(about.get("steps"))
            super().__init__(episode_id, signals, static, meta, clock, shard.path)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise CorruptLayoutError(
                "the description of the recording is damaged", block=DIRECTORY_BLOCK, path=shard.path
            ) from None

    def stored_bytes(self) -> int:
        """The size of the shard."""
        return self.shard.size


def _open_signal(
    shard: ShardReader, name: str, description: Description, blocks: Mapping[str, str], count: int
) -> Signal:
    if "video" in blocks and "frames" in blocks:
        return VideoSignal(blocks["video"], blocks["frames"], folder=ShardFolder(shard), name=name)
    if "table" in blocks:  # events, or another writer's numbers
        return SimpleSignal(blocks["table"], folder=ShardFolder(shard), name=name)
    spec = TensorSpec(dtype_named(description.dtype), description.shape)
    parts: list[BlockRows] = []
    for key in ("block", "more"):
        if key in blocks:
            size = shard.block(blocks[key]).raw_size
            if size % spec.row_bytes:
                raise CorruptLayoutError(
                    f"{size} bytes are no rows of {spec}", block=blocks[key], path=shard.path
                )
            parts.append(BlockRows(shard, blocks[key], spec, size // spec.row_bytes))
    ragged = []
    if description.is_ragged:
        offsets = blocks.get("offsets", "")
        if not parts or not offsets or shard.block(offsets).raw_size != 8 * (count + 1):
            raise CorruptLayoutError(f"no offsets of {count} records", block=offsets, path=shard.path)
        ragged = [RaggedRows(parts[0], BlockRows(shard, offsets, _I64, count + 1))]
    rows = sum(part.length for part in ragged or parts)
    if rows != count:
        raise CorruptLayoutError(
            f"{rows} rows of {count} are there", block=blocks.get("block"), path=shard.path
        )
    times = BlockRows(shard, blocks.get("times", TIMESTAMPS_NS), _I64, rows)
    meta = signal_meta(description, name)
    return BlockSignal(name, meta, ragged or parts, partial(read_numbers, times), times)


class ShardFolder(Reopens):
    """The blocks of a shard as the files of a folder: of a video only the frames that are needed are read."""

    def __init__(self, shard: ShardReader) -> None:
        self.shard, self.name, self.is_local = shard, shard.path, shard.is_local

    def open(self, name: str) -> RangeReader:
        """The bytes of a block, checked; those of a video are checked by frame."""
        block, path = self.shard.block(name), f"{self.name}#{name}"
        if not name.startswith(VIDEO_PREFIX):
            return BytesRangeReader(self.shard.read(name), path)
        if block.codec != "none":
            raise CorruptLayoutError("video in a shard is never compressed again", block=name)
        return PartRangeReader(self.shard.range_reader, block.data_offset, block.disk_size, path)

    def exists(self, name: str) -> bool:
        """Whether there is a block of this name."""
        return name in self.shard

    def names(self) -> list[str]:
        """The names of all blocks."""
        return self.shard.names


class PackedChunks(EpisodeSource):
    """The packed chunks of a recording as one episode; a chunk is opened on first use of a signal."""

    def __init__(self, chunks: ChunkList) -> None:
        validate_chunk_continuity(chunks, check_channels=False)
        self.chunks = chunks
        self._first = self._open_chunk(0)
        signals = LazySignals(lambda: self._first.signals, self._open_signal)
        first = self._first
        place = first.place if chunks.path is None else os.fspath(chunks.path)
        super().__init__(chunks.episode_id, signals, first.static, first.meta, first.step_clock, place)

    def _open_chunk(self, index: int) -> PackedSource:
        entry = self.chunks.chunks[index]
        shard = ShardReader.open(self.chunks.chunk_bytes(entry))
        stated = shard.read_json(META_EPISODE)
        if stated.get("chunk_index") != entry.chunk_index or stated.get("length_T", 0) != entry.length:
            raise CorruptLayoutError(f"{entry.uri} is not chunk {entry.chunk_index} of its list")
        return PackedSource(shard)

    @cached_property
    def parts(self) -> list[PackedSource]:
        """Every chunk, opened."""
        parts = [self._first, *(self._open_chunk(index) for index in range(1, self.chunks.total_chunks))]
        for part, entry in zip(parts, self.chunks.chunks, strict=True):
            if list(part.signals) != list(self._first.signals):
                raise CorruptLayoutError(f"{entry.uri} has other signals than the first chunk of its list")
        return parts

    def _open_signal(self, name: str) -> Signal:
        signals = [part.signals[name] for part in self.parts]
        return signals[0] if len(signals) == 1 else JoinedSignal(signals)

    def stored_bytes(self) -> int:
        """What all chunks take."""
        return sum(part.stored_bytes() for part in self.parts)
