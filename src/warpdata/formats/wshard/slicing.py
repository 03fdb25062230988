"""Cut an episode into steps [start, end) and join the cuts again, without reading what is not asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.residual import is_sign_bits, pack_residual, unpack_residual
from warpdata.formats.wshard.schema import ChannelRows, TensorSpec


class SlicedRows:
    """Rows [start, end) of another source."""

    def __init__(self, rows: ChannelRows, start: int, end: int) -> None:
        self.source = rows
        self._start = start
        self.spec = rows.spec
        self.length = end - start

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) counted from the start of the slice."""
        return self.source.rows(self._start + start, self._start + end)


class JoinedRows:
    """The rows of several chunks one after the other; each is opened when one of its rows is asked for."""

    is_stored = True

    def __init__(
        self, spec: TensorSpec, lengths: Sequence[int], opened: Callable[[int], ChannelRows]
    ) -> None:
        self.spec = spec
        self._starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self.length = int(self._starts[-1])
        self._opened = opened

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); a view where one source holds them all, else a copy."""
        if start >= end:
            return np.zeros((0, *self.spec.shape), self.spec.dtype.dtype)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, end, side="left"))
        parts = [self._part(index, start, end) for index in range(first, last)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, index: int, start: int, end: int) -> NDArray[Any]:
        low, high = int(self._starts[index]), int(self._starts[index + 1])
        source = self._opened(index)
        if source.spec != self.spec or source.length != high - low:
            raise CorruptLayoutError(f"chunk {index} does not hold the rows its list promises")
        return source.rows(max(start, low) - low, min(end, high) - low)


class JoinedBits:
    """Packed sign bits of several chunks as those of the whole, joined when asked for."""

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


def is_stored(rows: ChannelRows) -> bool:
    """Whether rows come from a file as they are: whoever wrote it decided what they hold."""
    return is_stored(rows.source) if isinstance(rows, SlicedRows) else getattr(rows, "is_stored", False)


def slice_episode(episode: WShardEpisode, start: int, end: int) -> WShardEpisode:
    """Steps [start, end) of an episode, lazily; channels with their own clock are cut at the same times."""
    # Where the episode lay in a longer one says nothing of where its parts lie in it.
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
    """One episode over its chunks; only the first chunk is opened until rows of others are asked for."""
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
    """Joins the channels of one name over all chunks; whoever opens them sees to it that all have the same."""

    def __init__(self, lengths: Sequence[int], opened: Callable[[int], WShardEpisode]) -> None:
        self._lengths = lengths
        self._opened = opened

    def channel(self, field: str, key: str, first: Channel) -> Channel:
        lengths, clock = self._lengths, None
        if first.clock_source is not None:
            # A channel with its own clock has as many rows per chunk as its chunk says.
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
