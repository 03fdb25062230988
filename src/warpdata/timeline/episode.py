"""An episode: signals recorded together on one axis of time, plus static items; in time, and by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import NoStepsError, TimeRangeError, nearest, require_kind
from warpdata.timeline.cards import items_card, plot_episode, signals_card, titled
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import Role
from warpdata.timeline.sampling import Align, Before, Samples, sample_signals
from warpdata.timeline.signal import Signal, positive_step, value_at
from warpdata.timeline.source import (
    EpisodeSource,
    LazySignals,
    Outcome,
    SampledSource,
    StatedSource,
    StepClock,
    WindowSource,
    change_signals,
    named_error,
)
from warpdata.timeline.steps import PREFIXES, Steps, StepTimes
from warpdata.timeline.times import as_int, as_int_array, checked_rate, grid, is_many, rate_grid

_GATED: tuple[Role, ...] = ("observation", "action")
"""A grid of steps begins where all signals of these roles have a value."""

_SHOWN_NAMES = 12

_OLDER_NAMES = {"done": "terminated", "terminated": "done"}


class Names(tuple[str, ...]):
    """Names in order; calling them gives them again, so `episode.keys` and `episode.keys()` are the same."""

    __slots__ = ()

    def __call__(self) -> Names:
        return self


class Episode(Mapping[str, Any]):
    """Named signals on one axis of time, static items and metadata, wherever they are stored.

    In time: `ep["joints"]`, `ep.time[…]`, `ep.sample(…)`. By step: `ep.steps`, `ep.steps_at(…)`.
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source

    @classmethod
    def of(
        cls,
        signals: Mapping[str, Signal],
        static: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        id: str = "",  # noqa: A002 - the word of the model
        steps: StepClock | None = None,
    ) -> Episode:
        """An episode in memory; a signal without a role of its own gets the one that its name implies."""
        require_kind("signals", signals, Mapping, "a mapping of names to signals")
        named = {
            name: signal.named(name) if isinstance(signal, ArraySignal) else signal
            for name, signal in signals.items()
        }
        return cls(StatedSource(id, named, static or {}, meta or {}, steps))

    @property
    def source(self) -> EpisodeSource:
        """Where it comes from; most callers do not need it."""
        return self._source

    @property
    def id(self) -> str:
        """The name of the episode among its neighbours."""
        return self._source.id

    @property
    def signals(self) -> Mapping[str, Signal]:
        """Name -> signal, read-only; each is opened on first use."""
        signals = self._source.signals
        return signals if isinstance(signals, LazySignals) else change_signals(signals)

    @property
    def static(self) -> Mapping[str, Any]:
        """The items that do not change in time."""
        return self._source.static

    @property
    def meta(self) -> Mapping[str, Any]:
        """System metadata, read-only; not part of `keys`."""
        return self._source.meta

    @property
    def address(self) -> str | None:
        """What opens it again, here or elsewhere; None where nothing does, as for windows and what is in memory."""
        return self._source.address

    @property
    def stored_bytes(self) -> int:
        """How many bytes it takes where it is stored, as far as that is known; 0 in memory."""
        return self._source.stored_bytes()

    # A mapping of names.

    @property
    def keys(self) -> Names:  # type: ignore[override]
        """Names of all signals and static items."""
        return Names((*self.signals, *self.static))

    def __getitem__(self, name: str) -> Any:
        signals = self._source.signals
        if name in signals:
            return signals[name]
        if name in self._source.static:
            return self._source.static[name]
        older = self._older_name(name)
        if older is not None:
            return signals[older]
        listed = f"{', '.join(self.keys) or 'none'}.{nearest(name, self.keys)}"
        raise KeyError(f"no item {name!r} in this episode; it has {listed}")

    def __contains__(self, name: object) -> bool:
        return name in self._source.signals or name in self._source.static

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _older_name(self, name: str) -> str | None:
        """A signal by a name that carries its role: `action/torque`, `done`."""
        if not isinstance(name, str):
            return None
        signals = self._source.signals
        other = _OLDER_NAMES.get(name)
        if other in signals:
            return other
        for role, prefixes in PREFIXES.items():
            for prefix in prefixes:
                rest = name.removeprefix(prefix)
                if rest != name and rest in signals and signals[rest].meta.role == role:
                    return rest
        return None

    # In time.

    @property
    def first_ts_ns(self) -> int:
        """The first record of any signal."""
        return min(signal.first_ts_ns for signal in self._filled())

    @property
    def last_ts_ns(self) -> int:
        """The last record of any signal."""
        return max(signal.last_ts_ns for signal in self._filled())

    @property
    def start_ts(self) -> int:
        """The latest first record: from here on every signal with records has a value."""
        return max(signal.first_ts_ns for signal in self._filled())

    @property
    def last_ts(self) -> int:
        """The latest last record."""
        return self.last_ts_ns

    @property
    def duration_ns(self) -> int:
        """From the first record to the last; 0 where there are none."""
        return self.last_ts_ns - self.first_ts_ns if any(map(len, self._source.signals.values())) else 0

    @property
    def duration_s(self) -> float:
        """From the first record to the last, in seconds."""
        return self.duration_ns / 1e9

    @property
    def time(self) -> EpisodeTime:
        """Access to all signals by time."""
        return EpisodeTime(self)

    def sample(
        self,
        times_ns: Any,
        fields: Any = None,
        before: Before = "pad",
        max_age_ns: int | None = None,
        align: Align | Mapping[str, Align] = "hold",
    ) -> Samples:
        """Aligned arrays of the fields at these times, with a mask and the age of every value.

        Before the first record of a field its values are masked and padded with the first record, NaN or 0
        (`before="nan"`), or an error (`before="raise"`).
        """
        signals = self.signals
        names = list(signals) if fields is None else [fields] if isinstance(fields, str) else list(fields)
        wanted = {name: signals[name] for name in (*names, *(align if isinstance(align, Mapping) else ()))}
        times = as_int_array(times_ns if is_many(times_ns) else [times_ns], "a time")
        return sample_signals({name: wanted[name] for name in names}, times, before, max_age_ns, align)

    # By step.

    @property
    def steps(self) -> Steps:
        """The episode by step, on the clock that was declared or that the actions share."""
        clock = self._source.step_clock or self._action_clock()
        return Steps(self.signals, self._clock_times(clock), clock=clock.name, outcome=clock.outcome)

    def steps_at(
        self,
        *,
        clock: str | None = None,
        rate_hz: float | None = None,
        align: Align | Mapping[str, Align] = "hold",
        max_age_ns: int | None = None,
    ) -> Steps:
        """The episode by step on a chosen clock: the records of a signal, or a grid of `rate_hz`.

        A grid begins where every observation and action has a value.
        """
        if (clock is None) == (rate_hz is None):
            raise ValueError("give either clock= or rate_hz=")
        declared = self._source.step_clock
        outcome: Outcome = self._guessed_outcome() if declared is None else declared.outcome
        if clock is not None:
            if clock not in self._source.signals and clock not in self._clocks():
                known = [*self._source.signals, *self._clocks()]
                raise KeyError(f"no signal or clock {clock!r} in this episode.{nearest(clock, known)}")
            times, name = self._clock_times(StepClock(clock, outcome)), clock
        else:
            times, name = StepTimes.of(self._rate_grid(rate_hz)), f"{rate_hz:g} Hz"
        return Steps(self.signals, times, clock=name, outcome=outcome, align=align, max_age_ns=max_age_ns)

    @property
    def tensors(self) -> Any:
        """The episode by step as a `WShardEpisode`, to be changed and saved."""
        from warpdata.episodes.forms.shard import tensors_of  # the two views offer each other

        return tensors_of(self)

    def _rate_grid(self, rate_hz: Any) -> NDArray[np.int64]:
        rate = checked_rate(rate_hz)
        gated = [signal for signal in self._filled() if signal.meta.role in _GATED] or self._filled()
        start = max(signal.first_ts_ns for signal in gated)
        stop = max(signal.last_ts_ns for signal in gated)
        return rate_grid(start, stop, rate)

    def _clock_times(self, clock: StepClock) -> StepTimes:
        if clock.times is not None and clock.count is not None:
            return StepTimes(clock.count, clock.times)
        if clock.times is not None:
            return StepTimes.of(clock.times())
        signals = self._source.signals
        if clock.name in signals:
            return _times_of(signals[clock.name])
        shared = [each for each in signals.values() if each.meta.clock == clock.name]
        if not shared:
            fact = f"the step clock {clock.name!r} is not a signal or clock of this episode"
            raise NoStepsError(fact, path=self._source.place)
        # There are as many steps as actions; what was seen after the last one has a time of its own.
        actions = [each for each in shared if each.meta.role == "action"] or shared[:1]
        if all(np.array_equal(each.timestamps, actions[0].timestamps) for each in actions[1:]):
            return _times_of(actions[0])
        return StepTimes.of(np.unique(np.concatenate([each.timestamps for each in actions])))

    def _action_clock(self) -> StepClock:
        """The clock that all actions share."""
        signals = self._source.signals
        actions = [name for name, each in signals.items() if each.meta.role == "action" and len(each)]
        if not actions or not all(same_clock(signals[actions[0]], signals[name]) for name in actions[1:]):
            why = "several actions with clocks of their own" if actions else "no actions"
            listed = ", ".join(self._clocks()) or "none"
            fact = f"the episode has {why} and no declared step clock; its clocks are {listed}"
            raise NoStepsError(fact, path=self._source.place)
        return StepClock(signals[actions[0]].meta.clock or actions[0], self._guessed_outcome())

    def _guessed_outcome(self) -> Outcome:
        """`next` where every reward or flag is after its action and before the next one."""
        by_role: dict[str, Signal] = {}
        for signal in self._source.signals.values():
            if len(signal):
                by_role.setdefault(signal.meta.role, signal)
        action = by_role.get("action")
        results = [by_role[role] for role in ("reward", "terminated", "truncated") if role in by_role]
        if action is None or not results or len(results[0]) != len(action):
            return "same"
        chosen, came = action.timestamps, results[0].timestamps
        follows = bool((came > chosen).all() and (came[:-1] <= chosen[1:]).all())
        return "next" if follows else "same"

    def _clocks(self) -> list[str]:
        return list(dict.fromkeys(each.meta.clock or name for name, each in self._source.signals.items()))

    def _filled(self) -> list[Signal]:
        found = [signal for signal in self._source.signals.values() if len(signal)]
        if not found:
            raise TimeRangeError("the episode has no records", path=self._source.place)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._source,))

    def plot(self, signals: Sequence[str] | None = None) -> Any:
        """A figure of matplotlib (`pip install matplotlib`) with an axis per signal of numbers, or of these signals."""
        return plot_episode(self, signals)

    def __repr__(self) -> str:
        place = self._source.place
        where = f" at {place}" if place else ""
        names = list(self._source.signals)
        more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f"<Episode {self.id!r}{where}: {', '.join(names[:_SHOWN_NAMES])}{more}>"

    def _repr_html_(self) -> str:
        return titled(f"Episode {self.id}", signals_card(self.signals), items_card(self.static))


def _times_of(signal: Signal) -> StepTimes:
    return StepTimes(len(signal), lambda: signal.timestamps)


def same_clock(a: Signal, b: Signal) -> bool:
    """Whether two signals have the same times; looks at the times only where it must."""
    if a.meta.clock is not None and a.meta.clock == b.meta.clock:
        return True
    if len(a) != len(b) or (len(a) and (a.first_ts_ns, a.last_ts_ns) != (b.first_ts_ns, b.last_ts_ns)):
        return False
    return bool(np.array_equal(a.timestamps, b.timestamps))


EpisodeView = Episode
"""The document's name for an episode seen through a window or sampled: it is an episode like any other."""


class EpisodeTime:
    """`episode.time`: snapshots, windows and sampling across all signals."""

    __slots__ = ("_episode",)

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._window(key) if key.step is None else self._sampled(self._grid(key))
        if is_many(key):
            return self._sampled(as_int_array(key, "a time"))
        return self._snapshot(as_int(key, "a time"))

    def _snapshot(self, ts_ns: int) -> dict[str, Any]:
        found = dict(self._episode.static)
        for name, signal in self._episode.signals.items():
            if not len(signal):  # left empty by a window: it hides nothing
                continue
            try:
                found[name] = value_at(signal, ts_ns)[0]
            except TimeRangeError as error:
                raise named_error(error, name) from None
        return found

    def _window(self, key: slice) -> Episode:
        for bound in (key.start, key.stop):
            if bound is not None:
                as_int(bound, "a time")
        return Episode(WindowSource(self._episode.source, key.start, key.stop))

    def _sampled(self, times: NDArray[np.int64]) -> Episode:
        view = Episode(SampledSource(self._episode.source, times))
        _ = list(view.signals.values())  # a time before the first record is an error here, not later
        return view

    def _grid(self, key: slice) -> NDArray[np.int64]:
        step = positive_step(key.step)
        start = self._episode.start_ts if key.start is None else as_int(key.start, "a time")
        stop = self._episode.last_ts_ns + 1 if key.stop is None else as_int(key.stop, "a time")
        return grid(start, stop, step)
