"""A `.wshard` seen in time: channels as signals on the clock of their episode or on their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.folders import FolderReader
from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.chunked import ChunkedEpisodeReader
from warpdata.formats.wshard.chunks import ChunkList, read_chunk_list
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.reader import ShardReader, Source
from warpdata.formats.wshard.text import is_text
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ClockedSignal
from warpdata.timeline.meta import SignalMeta, as_kind, numeric_kind
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import frozen

__all__ = ["ChannelSignal", "ChunkList", "ShardEpisode", "ShardReader", "WShardEpisode", "load_wshard"]

DIRECTORY_BLOCK = "meta/directory"
"""JSON in a packed episode directory, and only there: what its meta.json and static.json said, and in which blocks
its signals are."""


class ChannelSignal(ClockedSignal):
    """A channel of a shard, or of its chunks, as a signal; reads only the rows it is asked for."""

    def __init__(
        self, episode: WShardEpisode, channel: Channel, name: str, chunks: ChunkList | None = None
    ) -> None:
        self._episode = episode
        self._chunks = chunks
        self._channel = channel
        self._name = name
        self._ts: NDArray[np.int64] | None = None

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind from the metadata of the shard."""
        about, shape = self._channel.about, self._channel.shape
        kind = about.get("kind") or ("image" if about.get("modality") == "rgb" else numeric_kind(shape))
        kind = "text" if is_text(self._channel.dtype) else kind
        names = about.get("names")
        return SignalMeta(
            self._channel.dtype.dtype,
            shape,
            as_kind(kind),
            about.get("unit"),
            tuple(names) if names else None,
        )

    def __len__(self) -> int:
        return self._channel.length

    def _clock(self) -> NDArray[np.int64]:
        if self._ts is None:
            own = self._channel.timestamps_ns
            stamps = self._episode.times_ns() if own is None else own
            if len(stamps) != len(self):
                raise CorruptLayoutError(f"{len(stamps)} times for {len(self)} rows", block=self._name)
            if np.any(stamps[1:] <= stamps[:-1]):
                raise CorruptLayoutError("the times of the channel are not increasing", block=self._name)
            self._ts = frozen(stamps)
        return self._ts

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._channel.shape), self._channel.dtype.dtype)
        if rows.step == 1:
            return frozen(self._channel.row_source.rows(rows.start, rows.stop))
        return frozen(self._channel[rows.start : rows[-1] + 1 : rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        return frozen(self._channel[indices])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._chunks is not None:
            return (_signal_of_chunks, (self._chunks, self._name))
        return (ChannelSignal, (self._episode, self._channel, self._name))


class ShardEpisode(Episode):
    """The signals of a shard in time; `.tensors` is the same by step, and its attributes work here too."""

    def __init__(
        self,
        tensors: WShardEpisode,
        *,
        chunks: ChunkList | None = None,
        static: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.tensors = tensors
        self._chunks = chunks
        stated = {"id": tensors.id, "env_id": tensors.env_id, "length": tensors.length, **tensors.about}
        super().__init__(
            ChannelSignals(tensors, chunks),
            dict(tensors.metadata) if static is None else static,
            stated if meta is None else meta,
        )

    @property
    def in_time(self) -> ShardEpisode:
        """This view."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "tensors" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.tensors, name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ShardEpisode):
            return self.tensors == other.tensors
        return self.tensors == other if isinstance(other, WShardEpisode) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of_chunks(cls, chunks: ChunkList) -> ShardEpisode:
        """A chunked episode as one."""
        return cls(ChunkedEpisodeReader(chunks).episode(), chunks=chunks)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._chunks is not None:
            return (ShardEpisode.of_chunks, (self._chunks,))
        return (ShardEpisode, (self.tensors,))

    def __repr__(self) -> str:
        return f"<ShardEpisode {self.tensors.id!r}: {', '.join(self._signals)}>"


class ChannelSignals(Mapping[str, Signal]):
    """Names in time: observations bare, everything else under its lane, rewards and flags by their own."""

    def __init__(self, tensors: WShardEpisode, chunks: ChunkList | None = None) -> None:
        self._tensors = tensors
        self._chunks = chunks
        self._made: dict[str, Signal] = {}

    @cached_property
    def _channels(self) -> dict[str, Channel]:
        return dict(_named_channels(self._tensors))

    def __getitem__(self, name: str) -> Signal:
        if name not in self._made:
            self._made[name] = ChannelSignal(self._tensors, self._channels[name], name, self._chunks)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)


def open_shard(source: Source, folder: FolderReader | None) -> ShardEpisode | ShardReader:
    """The episode of a shard or of a chunk list; the open shard itself where it is a packed directory."""
    shard = ShardReader.open(source)
    if DIRECTORY_BLOCK in shard:
        return shard
    if shard.role == ROLE_CHUNK_LIST:
        return ShardEpisode.of_chunks(read_chunk_list(shard, folder))
    return ShardEpisode(load_wshard(shard))


def _named_channels(tensors: WShardEpisode) -> Iterator[tuple[str, Channel]]:
    for block, channel in tensors.lanes():
        # Bits packed over several steps have no time of their own.
        if channel.clock_source is not None or channel.length == tensors.length:
            yield block.removeprefix("signal/"), channel
    for name, flag in (
        ("reward", tensors.rewards), ("done", tensors.terminations), ("truncated", tensors.truncations)
    ):  # fmt: skip
        if flag is not None:
            yield name, flag


def _signal_of_chunks(chunks: ChunkList, name: str) -> Signal:
    return ShardEpisode.of_chunks(chunks).signals[name]
