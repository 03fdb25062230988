"""An episode by step as the tensor container of the WShard document, from any source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.episodes.sources.shard_episode import ShardSource
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import ChannelMap, WShardEpisode
from warpdata.formats.wshard.rows import ArrayRows, ChannelRows
from warpdata.formats.wshard.schema import TensorSpec, Timebase
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import innermost
from warpdata.timeline.steps import PREFIXES, StepSignal, StepSignals


def tensors_of(episode: Episode) -> WShardEpisode:
    """The rows of an episode: those of its shard, or its steps, read on demand.

    A signal that has no record of its own for every step keeps its own clock. Text and bytes are left out.
    """
    source = innermost(episode.source)
    if isinstance(source, ShardSource):
        return source.tensors
    steps = episode.steps
    made = WShardEpisode(
        episode.id, str(episode.static.get("env_id", "")), steps.length, Timebase("timestamps_ns"),
        timestamps_ns=steps.times_ns,
    )  # fmt: skip
    made.metadata = {name: value for name, value in episode.static.items() if name != "env_id"}
    lanes: tuple[tuple[ChannelMap, StepSignals], ...] = (
        (made.observations, steps.observations),
        (made.actions, steps.actions),
        (made.omens, steps.predictions),
        (made.uncerts, steps.uncertainties),
        (made.residuals, steps.residuals),
    )
    for lane, signals in lanes:
        for name, signal in signals.items():
            if not signal.meta.is_object:
                key = lane_key(name, signal)
                key = name if key in lane else key  # two of one model keep their own names
                lane[key] = channel_of(key, signal if signal.is_exact else signal.signal)
    for attribute, flag in (
        ("rewards", steps.rewards), ("terminations", steps.terminated), ("truncations", steps.truncated)
    ):  # fmt: skip
        if flag is not None:
            setattr(made, attribute, channel_of(attribute, flag))
    return made


def lane_key(name: str, signal: StepSignal) -> str:
    """What a signal is called inside its lane: its name without the role, `of/model` for what models made."""
    meta = signal.meta
    for prefix in PREFIXES.get(meta.role, ()):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    if meta.of is not None:
        return f"{meta.of}/{meta.model}" if meta.model else meta.of
    return name


def channel_of(name: str, signal: StepSignal | Signal) -> Channel:
    """A signal as a channel: by step, or in time with its own clock; read on demand."""
    meta = signal.meta
    about: dict[str, Any] = {"kind": meta.kind, "unit": meta.units, "names": meta.names and list(meta.names)}
    kept = {key: value for key, value in about.items() if value is not None}
    if isinstance(signal, StepSignal):
        return Channel.over(name, _Rows(signal.rows, len(signal), meta), about=kept)
    clock = ArrayRows(signal.timestamps, TensorSpec(dtype_named("i64"), ()))
    return Channel.over(name, _Rows(signal.rows, len(signal), meta), clock=clock, about=kept)


def rows_of(signal: Signal, first: int) -> ChannelRows:
    """The records of a signal from number `first` on."""
    return _Rows(lambda start, end: signal.rows(first + start, first + end), len(signal) - first, signal.meta)


class _Rows:
    """The rows of a signal, by step or in time."""

    def __init__(self, read: Callable[[int, int], NDArray[Any]], length: int, meta: SignalMeta) -> None:
        self._read = read
        self.spec = TensorSpec(dtype_of(meta.dtype), meta.shape)
        self.length = length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end)."""
        return self._read(start, end)
