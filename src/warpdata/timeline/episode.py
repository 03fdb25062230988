"""An episode: signals recorded together on one axis of time, plus static items. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import TimeRangeError
from warpdata.timeline.readonly import ReadOnlyDict
from warpdata.timeline.sampling import Before, Samples, sample_signals
from warpdata.timeline.signal import Signal, positive_step, sampled, value_at, window
from warpdata.timeline.times import as_int, as_int_array, grid, is_many


class Episode:
    """Named signals on one axis of time, static items, and system metadata."""

    def __init__(
        self,
        signals: Mapping[str, Signal],
        static: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._signals = signals
        self._static = ReadOnlyDict(static or {})
        self._meta = ReadOnlyDict(meta or {})

    @property
    def signals(self) -> Mapping[str, Signal]:
        """Name -> signal; each is opened when it is first asked for."""
        return MappingProxyType(self._signals)

    @property
    def static(self) -> Mapping[str, Any]:
        """The items that do not change in time."""
        return self._static

    @property
    def meta(self) -> Mapping[str, Any]:
        """System metadata, read-only; not part of `keys`."""
        return self._meta

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of all signals and static items."""
        return (*self.signals, *self.static)

    def __getitem__(self, name: str) -> Any:
        if name in self._signals:
            return self._signals[name]
        if name in self.static:
            return self.static[name]
        raise KeyError(f"no item {name!r} in this episode; it has {', '.join(self.keys) or 'none'}")

    def __contains__(self, name: object) -> bool:
        return name in self._signals or name in self.static

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)

    @property
    def start_ts(self) -> int:
        """The latest first record: from here on every signal has a value."""
        return max(signal.first_ts for signal in self._filled())

    @property
    def last_ts(self) -> int:
        """The latest last record."""
        return max(signal.last_ts for signal in self._filled())

    @property
    def duration_ns(self) -> int:
        """From `start_ts` to `last_ts`."""
        return self.last_ts - self.start_ts

    @property
    def time(self) -> EpisodeTime:
        """Access to all signals by time."""
        return EpisodeTime(self)

    def sample(
        self,
        times_ns: Any,
        fields: Any = None,
        before: Before = "raise",
        max_age_ns: int | None = None,
    ) -> Samples:
        """Aligned arrays of the fields at these times, with a mask and the age of every value."""
        names = (
            list(self._signals) if fields is None else [fields] if isinstance(fields, str) else list(fields)
        )
        for name in names:
            if name not in self._signals:
                raise KeyError(
                    f"no signal {name!r} in this episode; it has {', '.join(self._signals) or 'none'}"
                )
        times = as_int_array(times_ns if is_many(times_ns) else [times_ns], "a time")
        return sample_signals({name: self._signals[name] for name in names}, times, before, max_age_ns)

    def _filled(self) -> list[Signal]:
        found = [signal for signal in self._signals.values() if len(signal)]
        if not found:
            raise TimeRangeError("the episode has no records")
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._signals)} signals: {', '.join(self._signals)}>"


class EpisodeView(Episode):
    """A window of an episode, or an episode sampled at chosen times; static items and meta stay."""

    def __init__(self, episode: Episode, change: Callable[[str, Signal], Signal]) -> None:
        super().__init__(ChangedSignals(episode.signals, change))
        self._episode = episode
        self._change = change

    @property
    def static(self) -> Mapping[str, Any]:
        """The static items of the episode."""
        return self._episode.static

    @property
    def meta(self) -> Mapping[str, Any]:
        """The system metadata of the episode."""
        return self._episode.meta

    def __reduce__(self) -> tuple[Any, ...]:
        return (EpisodeView, (self._episode, self._change))


class EpisodeTime:
    """`episode.time`: snapshots, windows and sampling across all signals."""

    __slots__ = ("_episode",)

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            if key.step is None:
                return self._window(key)
            return self._sampled(self._grid(key))
        if is_many(key):
            return self._sampled(as_int_array(key, "a time"))
        return self._snapshot(as_int(key, "a time"))

    def _snapshot(self, ts_ns: int) -> dict[str, Any]:
        found = dict(self._episode.static)
        for name, signal in self._episode.signals.items():
            try:
                found[name] = value_at(signal, ts_ns)[0]
            except TimeRangeError as error:
                raise _named(error, name) from None
        return found

    def _window(self, key: slice) -> EpisodeView:
        for bound in (key.start, key.stop):
            if bound is not None:
                as_int(bound, "a time")
        return EpisodeView(self._episode, partial(_windowed, (key.start, key.stop)))

    def _sampled(self, times: NDArray[np.int64]) -> EpisodeView:
        view = EpisodeView(self._episode, partial(_sampled, times))
        _ = list(view.signals.values())  # a time before the first record is an error here, not later
        return view

    def _grid(self, key: slice) -> NDArray[np.int64]:
        step = positive_step(key.step)
        start = self._episode.start_ts if key.start is None else as_int(key.start, "a time")
        stop = self._episode.last_ts + 1 if key.stop is None else as_int(key.stop, "a time")
        return grid(start, stop, step)


class ChangedSignals(Mapping[str, Signal]):
    """The signals of an episode, each changed when it is first asked for."""

    def __init__(self, signals: Mapping[str, Signal], change: Callable[[str, Signal], Signal]) -> None:
        self._source = signals
        self._change = change
        self._made: dict[str, Signal] = {}

    def __getitem__(self, name: str) -> Signal:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = self._change(name, self._source[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def __contains__(self, name: object) -> bool:
        return name in self._source


def _windowed(bounds: tuple[Any, Any], _: str, signal: Signal) -> Signal:
    return window(signal, slice(*bounds))


def _sampled(times: NDArray[np.int64], name: str, signal: Signal) -> Signal:
    try:
        return sampled(signal, times)
    except TimeRangeError as error:
        raise _named(error, name) from None


def _named(error: TimeRangeError, name: str) -> TimeRangeError:
    return TimeRangeError(f"signal {name!r}: {error.message}", hint=error.hint)
