"""Where an episode comes from. A storage form is one small source; `Episode` is written once above it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.errors import TimeRangeError, nearest
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal, sample_at, window

Outcome = Literal["same", "next"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Times = NDArray[np.int64]

STEPS = "steps"
"""The clock of everything recorded by step."""
OUTCOME_CLOCK = "outcomes"
"""The clock of what an action led to: reward, flags, and the infos of an environment."""


@dataclass(frozen=True, slots=True)
class StepClock:
    """Which moments are the steps of an episode, and how rewards and flags were stamped.

    `outcome="same"`: they carry the time of their own step. `"next"`: they came with the next observation.
    """

    name: str
    """A signal, or the name of the clock that signals share."""
    outcome: Outcome = "same"
    times: Callable[[], Times] | None = field(default=None, compare=False)
    """The times, where no signal has them."""
    count: int | None = field(default=None, compare=False)
    """How many there are, where that is known before they are read."""

    @classmethod
    def of(cls, name: str, times: Times, outcome: Outcome = "same") -> StepClock:
        """A clock of these times."""
        return cls(name, outcome, lambda: times, len(times))

    @classmethod
    def from_json(cls, stated: Any) -> StepClock | None:
        """The clock as metadata states it; None without a usable one."""
        if not isinstance(stated, Mapping) or not isinstance(stated.get("clock"), str):
            return None
        outcome = stated.get("outcome", "same")
        return cls(stated["clock"], outcome) if outcome in OUTCOMES else None

    def to_json(self) -> dict[str, str]:
        """The clock as metadata states it."""
        return {"clock": self.name, "outcome": self.outcome}


class LazySignals(Mapping[str, Signal]):
    """Signals opened on first use. Opening one twice in two threads is harmless: one result is kept."""

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        open_signal: Callable[[str], Signal],
        known: Container[str] = (),
    ) -> None:
        """`names` is called once, when the names are needed; `open_signal` once per signal, with its name.

        For signals whose names are `known` the others need not be read.
        """
        self._read_names, self._open_signal, self._known = names, open_signal, known
        self.opened: dict[str, Signal] = {}
        """The signals that were opened so far."""

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(self._read_names())

    def __getitem__(self, name: str) -> Signal:
        signal = self.opened.get(name)
        if signal is None:
            if name not in self._known and name not in self._names:
                listed, near = ", ".join(self._names) or "none", nearest(str(name), self._names)
                raise KeyError(f"no signal {name!r} in this episode; it has {listed}.{near}")
            signal = self.opened.setdefault(name, self._open_signal(name))
        return signal

    def __contains__(self, name: object) -> bool:
        return name in self.opened or name in self._known or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<signals {', '.join(self._names) or 'none'}>"


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses to change, and so do the mappings inside it; JSON, pickle and `==` work as ever.

    Names are text, as they come back from where they are stored.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__({str(key): _frozen(value) for key, value in items.items()})

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this is read-only; copy it with dict() to change it")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReadOnlyDict, (dict(self),))


PLAIN_TYPES = frozenset({int, float, str, bool, type(None)})
"""Values that cannot change, of which lists of metadata are full."""


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return list(value) if PLAIN_TYPES.issuperset(map(type, value)) else [_frozen(item) for item in value]
    if type(value) is ReadOnlyDict:
        return value
    if isinstance(value, dict) or (type(value) not in PLAIN_TYPES and isinstance(value, Mapping)):
        return ReadOnlyDict(value)
    return value


def change_signals(
    signals: Mapping[str, Signal], change: Callable[[str, Signal], Signal] = lambda _, signal: signal
) -> LazySignals:
    """The signals of an episode, each changed when it is first used."""
    return LazySignals(lambda: signals, lambda name: change(name, signals[name]))


Items = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Items, or a function that reads them."""


class EpisodeSource(Reopens):
    """What a storage form gives: signals, static items, metadata, steps and a place; it pickles to an address.

    Functions given for static items, metadata and steps are called on first use.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the model
        signals: Mapping[str, Signal],
        static: Items,
        meta: Items,
        step_clock: StepClock | Callable[[], StepClock | None] | None = None,
        place: str | None = None,
    ) -> None:
        """`id` is the name of the episode among its neighbours, `place` its path or URL for messages."""
        self.id, self.signals, self.place = id, signals, place
        self._items, self._step_clock = (static, meta), step_clock

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """The items that do not change in time."""
        return _read_items(self._items[0])

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """System metadata."""
        return _read_items(self._items[1])

    @property
    def step_clock(self) -> StepClock | None:
        """The steps that were given, declared, or recorded as such; None where nothing was."""
        if callable(self._step_clock):
            return self._step_clock()
        stated = self._step_clock or StepClock.from_json(self.meta.get("steps"))
        if stated is None and any(signal.meta.clock == STEPS for signal in self.signals.values()):
            return StepClock(STEPS)
        return stated

    @property
    def address(self) -> str | None:
        """What opens it again: a path, a URL or `ws/name@version#id`; None where nothing does, as in memory."""
        place = self.place
        return None if place is None or place.startswith("<") else place  # bytes in memory have such names

    def loaded_bytes(self) -> int:
        """How many bytes of signals are kept in memory and could be freed."""
        return 0

    def stored_bytes(self) -> int:
        """How many bytes it takes where it is stored, as far as that is known; 0 in memory."""
        return 0


def _read_items(items: Items) -> ReadOnlyDict:
    read = items() if callable(items) else items
    return read if type(read) is ReadOnlyDict else ReadOnlyDict(read)


class SourceAround(EpisodeSource):
    """A source around a source: everything as it is there, except what is given."""

    def __init__(
        self,
        inner: EpisodeSource,
        signals: Mapping[str, Signal] | None = None,
        *,
        static: Items | None = None,
        meta: Items | None = None,
        step_clock: Callable[[], StepClock | None] | None = None,
    ) -> None:
        super().__init__(
            inner.id,
            inner.signals if signals is None else signals,
            (lambda: inner.static) if static is None else static,
            (lambda: inner.meta) if meta is None else meta,
            (lambda: inner.step_clock) if step_clock is None else step_clock,
            inner.place,
        )
        self.inner, self.shows_same = inner, signals is None
        """The episode behind it, and whether the signals are the same."""

    @property
    def address(self) -> str | None:
        """What opens the episode behind it, where that shows the same signals."""
        return self.inner.address if self.shows_same else None

    def loaded_bytes(self) -> int:
        """What the episode behind it keeps in memory."""
        return self.inner.loaded_bytes()

    def stored_bytes(self) -> int:
        """What the episode behind it takes."""
        return self.inner.stored_bytes()


def innermost(source: EpisodeSource) -> EpisodeSource:
    """The source behind everything that shows the same signals as it does."""
    while isinstance(source, SourceAround) and source.shows_same:
        source = source.inner
    return source


def window_source(inner: EpisodeSource, start_ns: int | None, stop_ns: int | None) -> EpisodeSource:
    """The records of an episode with start <= ts < stop; nothing is copied."""
    bounds = slice(start_ns, stop_ns)

    def steps() -> StepClock | None:
        whole = inner.step_clock
        if whole is None or whole.times is None:
            return whole
        times = whole.times()
        inside = window(ArraySignal(times, np.zeros(len(times), np.bool_)), bounds).timestamps
        return StepClock.of(whole.name, inside, whole.outcome)

    signals = change_signals(inner.signals, lambda _, signal: window(signal, bounds))
    source = SourceAround(inner, signals, step_clock=steps)
    source.reopen_by(window_source, inner, start_ns, stop_ns)
    return source


def sampled_source(inner: EpisodeSource, times: Times) -> EpisodeSource:
    """An episode sampled at chosen times: every signal has a value at each of them, and they are its steps."""

    def sample(name: str, signal: Signal) -> Signal:
        try:  # a signal left empty by a window stays empty and hides nothing
            return sample_at(signal, times) if len(signal) else signal
        except TimeRangeError as error:
            raise named_error(error, name) from None

    clock = StepClock.of("sampled", times)
    source = SourceAround(inner, change_signals(inner.signals, sample), step_clock=lambda: clock)
    source.reopen_by(sampled_source, inner, times)
    return source


def named_error(error: TimeRangeError, name: str) -> TimeRangeError:
    """An error of a signal, with its name."""
    return TimeRangeError(f"signal {name!r}: {error.message}", hint=error.hint)
