"""A `.wshard` seen in time: channels as signals on the clock of their episode or on their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader, ChunkList
from warpdata.formats.wshard.episode import WShardEpisode, load_wshard
from warpdata.formats.wshard.residual import is_sign_bits
from warpdata.formats.wshard.rows import ArrayRows, BlockRows, ChannelRows, is_text
from warpdata.timeline.lazy_signals import LazySignals, ReadOnlyDict
from warpdata.timeline.memory import ClockedSignal
from warpdata.timeline.meta import SignalMeta, SignalRole, as_kind, guess_role, numeric_kind
from warpdata.timeline.signal import MappedRows, Signal
from warpdata.timeline.source import STEPS, EpisodeSource, StepClock

__all__ = ["ChannelSignal", "ShardSource", "WShardEpisode", "load_wshard"]


class ChannelSignal(ClockedSignal):
    """A channel of a shard, or of its chunks, as a signal; reads only the rows it needs."""

    def __init__(
        self,
        episode: WShardEpisode,
        channel: Channel,
        name: str,
        role: SignalRole,
        chunks: ChunkList | None = None,
    ) -> None:
        self._episode = episode
        self._chunks = chunks
        self._channel = channel
        self._name = name
        self._role = role
        self._ts: NDArray[np.int64] | None = None

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind from the metadata of the shard."""
        about, shape = self._channel.about, self._channel.row_shape
        kind = about.get("kind") or ("image" if about.get("modality") == "rgb" else numeric_kind(shape))
        kind = "text" if is_text(self._channel.dtype) else kind
        names = about.get("names")
        return SignalMeta(
            self._channel.dtype.dtype,
            shape,
            as_kind(kind),
            about.get("unit"),
            tuple(names) if names else None,
            self._role.role,
            self._role.of,
            self._role.model,
            STEPS if self._channel.clock_source is None else None,
        )

    @property
    def row_source(self) -> ChannelRows:
        """Where the rows come from."""
        return self._channel.row_source

    def __len__(self) -> int:
        return self._channel.length

    def _clock(self) -> NDArray[np.int64]:
        if self._ts is None:
            own = self._channel.timestamps_ns
            stamps = self._episode.times_ns() if own is None else own
            if len(stamps) != len(self):
                raise CorruptLayoutError(f"{len(stamps)} times for {len(self)} rows", block=self._name)
            if np.any(stamps[1:] <= stamps[:-1]):
                raise CorruptLayoutError(
                    "the times of the channel are not increasing", block=self._name,
                    hint="Read it by step with wd.load_wshard(), or give it timestamps_ns that increase there.",
                )  # fmt: skip
            self._ts = read_only(stamps)
        return self._ts

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._channel.row_shape), self._channel.dtype.dtype)
        if rows.step == 1:
            return read_only(self._channel.row_source.rows(rows.start, rows.stop))
        return read_only(self._channel[rows.start : rows[-1] + 1 : rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        return read_only(self._channel[indices])

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        rows = self._channel.row_source
        found = rows.rows_kept(indices) if isinstance(rows, BlockRows) and not self.meta.is_object else None
        return self._values_at(indices) if found is None else found

    def _in_memory(self) -> MappedRows | None:
        rows = self._channel.row_source
        if isinstance(rows, BlockRows) and not self.meta.is_object:
            found = rows.mapped_rows()
            return None if found is None else MappedRows(*found)
        return MappedRows(rows.array) if isinstance(rows, ArrayRows) else None

    def _bring(self, indices: NDArray[np.int64]) -> None:
        rows = self._channel.row_source
        if isinstance(rows, BlockRows):
            rows.bring(indices)

    def _gives_runs(self) -> bool:
        return isinstance(self._channel.row_source, BlockRows)

    def _is_far(self) -> bool:
        rows = self._channel.row_source
        return isinstance(rows, BlockRows) and rows.is_far

    def _runs_into(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
        rows = self._channel.row_source
        if isinstance(rows, BlockRows):
            rows.read_windows(starts, out, places)
        else:
            super()._runs_into(starts, out, places)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._chunks is not None:
            return (_signal_of_chunks, (self._chunks, self._name))
        return (ChannelSignal, (self._episode, self._channel, self._name, self._role))


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
        self.tensors = tensors
        self._path = path
        self._size_bytes = size_bytes
        self.chunks = chunks
        self._signals = LazySignals(lambda: self._channels, self._open_signal)

    @cached_property
    def _channels(self) -> dict[str, NamedChannel]:
        return _named_channels(self.tensors)

    def _open_signal(self, name: str) -> Signal:
        named = self._channels[name]
        return ChannelSignal(self.tensors, named.of(self.tensors), name, named.role, self.chunks)

    @classmethod
    def of_chunks(cls, chunks: ChunkList) -> ShardSource:
        """A chunked episode as one."""
        return cls(ChunkedEpisodeReader(chunks).episode(), chunks=chunks)

    @property
    def id(self) -> str:
        """The id of the episode."""
        return self.tensors.id

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The channels as signals."""
        return self._signals

    @property
    def static(self) -> Mapping[str, Any]:
        """The metadata that the user gave, and the environment."""
        found = dict(self.tensors.metadata)
        if self.tensors.env_id:
            found.setdefault("env_id", self.tensors.env_id)
        return ReadOnlyDict(found)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metadata of the shard."""
        tensors = self.tensors
        stated = {"id": tensors.id, "env_id": tensors.env_id, "length": tensors.length, **tensors.about}
        return ReadOnlyDict(stated)

    @property
    def step_clock(self) -> StepClock:
        """The rows of the shard: everything of a step carries the time of the step."""
        return StepClock(STEPS, "same", self.tensors.times_ns, self.tensors.length)

    @property
    def place(self) -> str | None:
        """The file of the shard, or the chunk list; None in memory."""
        if self.chunks is not None:
            return None if self.chunks.path is None else os.fspath(self.chunks.path)
        return self._path

    def stored_bytes(self) -> int:
        """The size of the shard, or of all chunks; 0 in memory."""
        if self.chunks is None:
            return self._size_bytes
        found = (self.chunks.chunk_bytes(each) for each in self.chunks.chunks)
        return sum(each.stat().st_size if isinstance(each, Path) else each.size for each in found)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.chunks is not None:
            return (ShardSource.of_chunks, (self.chunks,))
        return (_shard_again, (self.tensors, self._path, self._size_bytes))


class NamedChannel(NamedTuple):
    """The place of the channel of a signal in the tensors: a field, and a key where the field holds several."""

    field: str
    key: str | None
    role: SignalRole

    def of(self, tensors: WShardEpisode) -> Channel:
        """The channel itself."""
        held = getattr(tensors, self.field)
        found: Channel = held if self.key is None else held.data[self.key]
        return found


_FIELD_OF_LANE = {
    "signal": "observations", "action": "actions", "omen": "omens", "uncert": "uncerts", "residual": "residuals",
}  # fmt: skip
_FIELD_OF_FLAG = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}


def _named_channels(tensors: WShardEpisode) -> dict[str, NamedChannel]:
    """A channel goes by its id; by its block where an id stands in two lanes, and for what models made."""
    flags = {
        name: NamedChannel(field, None, guess_role(name, "scalar"))
        for name, field in _FIELD_OF_FLAG.items()
        if getattr(tensors, field) is not None
    }
    found: dict[str, NamedChannel] = {}
    for block, channel in tensors.lanes():
        lane, _, rest = block.partition("/")
        # Bits packed over several steps have no time of their own.
        is_bits = lane == "residual" and is_sign_bits(rest, channel.row_source.spec)
        if is_bits or (channel.clock_source is None and channel.length != tensors.length):
            continue
        role = SignalRole("observation") if lane == "signal" else guess_role(block, "vector")
        is_plain = lane in ("signal", "action") and rest not in found and rest not in flags
        found[rest if is_plain else block] = NamedChannel(_FIELD_OF_LANE[lane], rest, role)
    return found | flags


def _shard_again(tensors: WShardEpisode, path: str | None, size_bytes: int) -> ShardSource:
    return ShardSource(tensors, path=path, size_bytes=size_bytes)


def _signal_of_chunks(chunks: ChunkList, name: str) -> Signal:
    return ShardSource.of_chunks(chunks).signals[name]
