"""Shards as episodes: channels by step as signals, packed recordings, and the chunks of both as one episode."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, read_only, select_rows
from warpdata.bytekit.checksum import join_crc32c
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard.chunks import (
    ChunkedEpisodeReader,
    ChunkList,
    read_chunk_list,
    validate_chunk_continuity,
)
from warpdata.formats.wshard.episode import Channel, WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import DONE, REWARD, ROLE_CHUNK_LIST, TRUNCATED
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.residual import is_sign_bits
from warpdata.formats.wshard.rows import ArrayRows, BlockRows, ChannelRows, is_text, read_numbers
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta, SignalRole, as_kind, guess_role, numeric_kind
from warpdata.timeline.ragged import split_rows
from warpdata.timeline.signal import ClockedSignal, MappedRows, Signal
from warpdata.timeline.source import STEPS, EpisodeSource, LazySignals, StepClock, innermost

__all__ = [
    "ChunkList",
    "Episode",
    "BlockSignal",
    "ShardReader",
    "ShardSource",
    "WShardEpisode",
    "load_wshard",
]

DIRECTORY_BLOCK = "meta/directory"
"""Only a packed recording has this block; looking for it needs no parquet library."""


def episode_of_shard(shard: ShardReader, folder: Any = None) -> Episode:
    """The episode of a shard: by step, packed, or the chunks that its list names; they are in `folder`."""
    if shard.role == ROLE_CHUNK_LIST:
        return Episode(chunks_source(read_chunk_list(shard, folder)))
    if DIRECTORY_BLOCK not in shard:
        return Episode(ShardSource(load_wshard(shard), path=shard.path, size_bytes=shard.size))
    from warpdata.episodes.sources.packed import PackedSource  # loads the parquet library

    return Episode(PackedSource(shard))


def chunks_source(chunks: ChunkList) -> EpisodeSource:
    """The episode that the chunks of a list make up."""
    validate_chunk_continuity(chunks, check_channels=False)
    if chunks.chunks and DIRECTORY_BLOCK in ShardReader.open(chunks.chunk_bytes(chunks.chunks[0])):
        from warpdata.episodes.sources.packed import PackedChunks  # loads the parquet library

        return PackedChunks(chunks)
    return ShardSource.of_chunks(chunks)


def chunks_of(episode: Episode) -> ChunkList | None:
    """The chunk list behind an episode; None where it is in one piece."""
    chunks = getattr(innermost(episode.source), "chunks", None)
    return chunks if isinstance(chunks, ChunkList) else None


class RaggedRows:
    """Values of varying length in a shard: their rows end to end in one block, where each begins in another."""

    def __init__(self, rows: BlockRows, offsets: BlockRows) -> None:
        self._rows, self._places = rows, offsets
        self.length = offsets.length - 1
        self.is_far = rows.is_far

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first row of every value, and the number of rows."""
        offsets, block = read_numbers(self._places), self._places.block
        if offsets[0] != 0 or offsets[-1] != self._rows.length or (offsets[1:] < offsets[:-1]).any():
            raise CorruptLayoutError(
                f"the offsets are not those of {self._rows.length} rows",
                block=block,
                path=self._rows.shard.path,
            )
        return offsets

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Values [start, stop) as arrays."""
        offsets = self.offsets[start : stop + 1]
        return split_rows(self._rows.rows(int(offsets[0]), int(offsets[-1])), offsets - offsets[0])

    def bring(self, indices: NDArray[np.int64]) -> None:
        """Fetch the bytes of these values, if they are remote."""
        runs = [np.arange(self.offsets[at], self.offsets[at + 1]) for at in indices.tolist()]
        self._rows.bring(np.concatenate([np.empty(0, np.int64), *runs]))


class BlockSignal(Reopens, ClockedSignal):
    """A signal whose records are rows of one or several lazy sources; reads only the rows it needs."""

    def __init__(
        self,
        name: str,
        meta: SignalMeta,
        parts: Sequence[ChannelRows | RaggedRows],
        times: Callable[[], NDArray[np.int64]],
        times_rows: BlockRows | None = None,
    ) -> None:
        """`times` reads the times of all records, of which `parts` give the rows; `times_rows` is their block."""
        self.parts = parts
        self.times_rows = times_rows
        self._name = name
        self._meta = meta
        self._times = times
        self._starts = list(itertools.accumulate([part.length for part in parts], initial=0))
        self._ts: NDArray[np.int64] | None = None

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape, kind and role."""
        return self._meta

    def __len__(self) -> int:
        return self._starts[-1]

    def checksum(self) -> int | None:
        """CRC-32C of all values as the file states it; None where none is stored."""
        total = 0
        for part in self.parts:
            if not isinstance(part, BlockRows):
                return None
            total = join_crc32c(total, part.checksum(), part.length * part.spec.row_bytes)
        return total

    def _clock(self) -> NDArray[np.int64]:
        if self._ts is None:
            stamps = self._times()
            if len(stamps) != len(self):
                raise CorruptLayoutError(f"{len(stamps)} times for {len(self)} rows", block=self._name)
            if np.any(stamps[1:] <= stamps[:-1]):
                raise CorruptLayoutError(
                    "the times of the channel are not increasing",
                    block=self._name,
                    hint="Read it by step with wd.load_wshard(), or give it timestamps_ns that increase there.",
                )
            self._ts = read_only(stamps)
        return self._ts

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        """The values of records [start, stop)."""
        if len(self.parts) == 1:
            return self.parts[0].rows(start, stop)
        pieces = [
            part.rows(max(start - first, 0), min(stop - first, part.length))
            for part, first in zip(self.parts, self._starts, strict=False)
            if start < first + part.length and stop > first
        ]
        if not pieces:
            return np.empty((0, *self._meta.shape), self._meta.dtype)
        return np.concatenate(pieces)

    def _values_in(self, rows: range) -> NDArray[Any]:
        if rows.step != 1:
            return super()._values_in(rows)
        return read_only(self._read(rows.start, rows.stop))

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._read(0, 0)
        shape = (len(self), *self._meta.shape)
        itemsize = self._meta.dtype.itemsize if self._meta.rows is None else self.value_bytes()
        return read_only(select_rows(indices, shape, self._read, itemsize, self._bring))

    def _lengths(self) -> NDArray[np.int64]:
        return np.concatenate([np.diff(part.offsets) for part in self.parts if isinstance(part, RaggedRows)])

    # One block of numbers in a shard is read in place, or by whole frames of compressed data.

    def _block(self) -> BlockRows | None:
        part = self.parts[0] if len(self.parts) == 1 else None
        return part if isinstance(part, BlockRows) and not self._meta.is_object else None

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        block = self._block()
        values = None if block is None else block.rows_kept(indices)
        return self._values_at(indices) if values is None else values

    def _read_runs(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> bool:
        block = self._block()
        if block is not None:
            block.read_windows(starts, out, places)
        return block is not None

    def _in_memory(self) -> MappedRows | None:
        block = self._block()
        if block is not None:
            mapped = block.mapped_rows()
            return None if mapped is None else MappedRows(*mapped, block.shard.guard)
        part = self.parts[0] if len(self.parts) == 1 else None
        return MappedRows(part.array) if isinstance(part, ArrayRows) else None

    def _bring(self, indices: NDArray[np.int64]) -> None:
        for part, start in zip(self.parts, self._starts, strict=False):
            if isinstance(part, BlockRows | RaggedRows):
                part.bring(indices[(indices >= start) & (indices < start + part.length)] - start)

    def _is_far(self) -> bool:
        return any(isinstance(part, BlockRows | RaggedRows) and part.is_far for part in self.parts)


class ShardSource(EpisodeSource):
    """An episode by step in a shard, in its chunks, or filled by hand: every channel is a signal."""

    def __init__(
        self,
        tensors: WShardEpisode,
        *,
        chunks: ChunkList | None = None,
        path: str | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.tensors, self.chunks, self._size_bytes = tensors, chunks, size_bytes
        # Without this object in them: a cycle would keep the file open until the next garbage collection.
        blocks = cache(lambda: _channel_blocks(tensors))
        signals = LazySignals(blocks, lambda name: _open_signal(tensors, blocks()[name], chunks, name))
        env_id = {"env_id": tensors.env_id} if tensors.env_id else {}
        facts = {"id": tensors.id, "env_id": tensors.env_id, "length": tensors.length}
        # Everything of a step carries the time of the step.
        clock = StepClock(STEPS, "same", tensors.times_ns, tensors.length)
        if chunks is not None:
            self.reopen_by(ShardSource.of_chunks, chunks)
            path = None if chunks.path is None else os.fspath(chunks.path)
        super().__init__(
            tensors.id,
            signals,
            lambda: {**tensors.metadata, **env_id, **tensors.metadata},
            lambda: {**facts, **tensors.about},
            clock,
            path,
        )

    @classmethod
    def of_chunks(cls, chunks: ChunkList) -> ShardSource:
        """A chunked episode as one."""
        return cls(ChunkedEpisodeReader(chunks).episode(), chunks=chunks)

    def stored_bytes(self) -> int:
        """The size of the shard, or of all chunks; 0 in memory."""
        if self.chunks is None:
            return self._size_bytes
        files = (self.chunks.chunk_bytes(chunk) for chunk in self.chunks.chunks)
        return sum(file.stat().st_size if isinstance(file, Path) else file.size for file in files)


_FLAGS = {REWARD: "reward", DONE: "terminated", TRUNCATED: "truncated"}


def _channel_blocks(tensors: WShardEpisode) -> dict[str, str]:
    """The blocks of the channels of an episode by name.

    A channel goes by its id; by its block where an id stands in two lanes, and for what models made.
    """
    blocks: dict[str, str] = {}
    flags = {_FLAGS[block]: block for block, _ in tensors.flags()}
    for block, channel in tensors.lanes():
        lane, _, rest = block.partition("/")
        rows = channel.row_source
        # Bits packed over several steps have no time of their own.
        if lane == "residual" and is_sign_bits(rest, rows.spec):
            continue
        if rows.length == tensors.length or channel.clock_source is not None:
            is_plain = lane in ("signal", "action") and rest not in blocks and rest not in flags
            blocks[rest if is_plain else block] = block
    return blocks | flags


def _open_signal(tensors: WShardEpisode, block: str, chunks: ChunkList | None, name: str) -> Signal:
    channel = tensors.channel(block)
    about, names = channel.about, channel.about.get("names")
    clock = STEPS if channel.clock_source is None else None
    facts = (about.get("kind"), about.get("modality"), about.get("unit"), tuple(names) if names else None)
    try:
        meta = _signal_meta(channel.dtype, channel.row_shape, block, clock, facts)
    except TypeError:  # another program stored a list or an object there
        meta = _signal_meta.__wrapped__(channel.dtype, channel.row_shape, block, clock, facts)
    times = partial(_channel_times, tensors, channel)
    signal = BlockSignal(name, meta, [channel.row_source], times)
    if chunks is not None:
        signal.reopen_by(_signal_of_chunks, chunks, name)
    return signal


@lru_cache(maxsize=4096)
def _signal_meta(
    dtype: DType, shape: tuple[int, ...], block: str, clock: str | None, facts: tuple[Any, ...]
) -> SignalMeta:
    """What a channel holds, by the metadata of its shard; the files of a set share it."""
    kind, modality, unit, names = facts
    kind = "text" if is_text(dtype) else kind or ("image" if modality == "rgb" else numeric_kind(shape))
    is_seen = block.startswith("signal/")
    role = SignalRole("observation") if is_seen else guess_role(_FLAGS.get(block, block), "vector")
    return SignalMeta(dtype.dtype, shape, as_kind(kind), unit, names, *role, clock)


def _channel_times(tensors: WShardEpisode, channel: Channel) -> NDArray[np.int64]:
    own = channel.timestamps_ns
    return tensors.times_ns() if own is None else own


def _signal_of_chunks(chunks: ChunkList, name: str) -> Signal:
    return ShardSource.of_chunks(chunks).signals[name]
