"""How far predictions are from what was recorded: per signal, and the moments at which they are worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.catalog.lanes import Lane
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import WarpError
from warpdata.timeline.signal import Signal

_STEP_BYTES = 16 << 20
_APART_NS = 500_000_000
"""Moments of one episode that are nearer to each other than this are one."""


@dataclass(frozen=True, slots=True)
class WorstMoment:
    """Where a prediction is far off."""

    episode_id: str
    ts_ns: int
    error: float
    """The root of the mean square over the numbers of one value."""


@dataclass(slots=True)
class SignalError:
    """A prediction against the signal it is of; truth is the record that holds at the time of the prediction."""

    signal: str
    of: str
    moments: int = 0
    """Values that were compared: not those before the first record, nor those with a NaN on either side."""
    skipped: int = 0
    mean_abs: float = math.nan
    rms: float = math.nan
    largest: float = math.nan
    worst: list[WorstMoment] = field(default_factory=list)


@dataclass(slots=True)
class LaneReport:
    """A lane against the truth, over the episodes for which it holds."""

    lane: str
    episodes: int = 0
    signals: list[SignalError] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """Episodes of which something cannot be read, and why."""

    def to_json(self) -> dict[str, Any]:
        """For a program: numbers that are not there are null."""
        found = asdict(self)
        for each in found["signals"]:
            for name in ("mean_abs", "rms", "largest"):
                each[name] = each[name] if math.isfinite(each[name]) else None
        return found


def compare_lane(
    lane: Lane, episodes: Episodes, *, worst: int = 5, progress: Callable[[int, int], None] | None = None
) -> LaneReport:
    """Every prediction of a lane against the recorded signal, episode by episode, a bounded piece at a time."""
    if worst < 0:
        raise ValueError(f"worst is a number from 0, not {worst}")
    report = LaneReport(lane.name)
    sums = {name: _Sums(SignalError(name, of), worst) for name, of in lane.signals.items()}
    for number, name in enumerate(episodes.ids):
        if progress is not None:
            progress(number, len(episodes))
        try:
            signals = episodes[number].signals
            if not all(each in signals for each in sums):
                continue
            moments = {each: list(_errors(signals[each], signals[total.of])) for each, total in sums.items()}
        except WarpError as error:
            report.damaged[name] = str(error)
            continue
        report.episodes += 1
        for each, total in sums.items():
            total.add(name, moments[each])
    if progress is not None:
        progress(len(episodes), len(episodes))
    report.signals = [each.result() for each in sums.values()]
    return report


@dataclass(frozen=True, slots=True)
class _Moments:
    """Some moments of one episode: how far off each is."""

    times: NDArray[np.int64]
    rms: NDArray[np.float64]
    abs_sum: float
    square_sum: float
    numbers: int
    largest: float
    skipped: int


def _errors(predicted: Signal, truth: Signal) -> Iterator[_Moments]:
    step = max(1, _STEP_BYTES // max(8, 8 * math.prod(predicted.meta.shape)))
    for start in range(0, len(predicted), step):
        rows = range(start, min(start + step, len(predicted)))
        times = predicted._ts_in(rows)
        at = truth._search_ts(times)
        said = np.asarray(predicted._values_in(rows), np.float64).reshape(len(rows), -1)
        known = at >= 0
        real = np.asarray(truth._values_at(at[known]), np.float64).reshape(int(known.sum()), -1)
        off = said[known] - real
        good = np.isfinite(off).all(axis=1)
        off = off[good]
        squares = (off * off).mean(axis=1) if off.shape[1] else np.zeros(len(off))
        yield _Moments(
            times[known][good], np.sqrt(squares), float(np.abs(off).sum()), float((off * off).sum()), off.size,
            float(np.abs(off).max(initial=0.0)), len(rows) - len(off),
        )  # fmt: skip


class _Sums:
    """Running sums of one signal over all episodes."""

    def __init__(self, found: SignalError, worst: int) -> None:
        self._found = found
        self._wanted = worst
        self._abs = self._square = 0.0
        self._numbers = 0
        self._largest = 0.0

    @property
    def of(self) -> str:
        return self._found.of

    def add(self, episode_id: str, moments: list[_Moments]) -> None:
        for some in moments:
            self._found.moments += len(some.times)
            self._found.skipped += some.skipped
            self._abs += some.abs_sum
            self._square += some.square_sum
            self._numbers += some.numbers
            self._largest = max(self._largest, some.largest)
        if moments:
            times = np.concatenate([some.times for some in moments])
            errors = np.concatenate([some.rms for some in moments])
            found = [
                WorstMoment(episode_id, ts_ns, error) for ts_ns, error in _peaks(times, errors, self._wanted)
            ]
            # Equal errors in the order of the episodes: sorting keeps it.
            self._found.worst = sorted([*self._found.worst, *found], key=lambda each: -each.error)[
                : self._wanted
            ]

    def result(self) -> SignalError:
        found = self._found
        if self._numbers:
            found.mean_abs = self._abs / self._numbers
            found.rms = math.sqrt(self._square / self._numbers)
            found.largest = self._largest
        return found


def _peaks(times: NDArray[np.int64], errors: NDArray[np.float64], count: int) -> Iterator[tuple[int, float]]:
    """The largest errors of an episode, largest first, none near a larger one."""
    left = errors.copy()
    for _ in range(count):
        if not len(left) or not np.isfinite(peak := left.max()):
            return
        at = int(left.argmax())
        yield int(times[at]), float(peak)
        left[np.abs(times - times[at]) < _APART_NS] = -np.inf
