"""What readers of foreign formats build episodes from: rows read when asked for, and the times of evenly spaced steps.

"T + 1 observations, T actions": give every signal the times of as many rows as it has, from the same start. The steps
are then those of the actions, and the last observation is what was seen after the last of them (`timeline/steps.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.errors import CorruptLayoutError
from warpdata.timeline.memory import ClockedSignal, check_increasing
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import STEPS, ReadOnlyDict, StatedSource, StepClock

Times = NDArray[np.int64]
EXACT_NS = 1000
"""Times this close to a grid are on it: clocks in floats are no better."""
ReadRows = Callable[[int, int], NDArray[Any]]
"""Rows [start, stop) of one signal; a partial of a function of a module, so that it can be pickled."""


@functools.lru_cache(maxsize=64)
def rate_of(fps: float) -> Fraction:
    """Frames per second as an exact fraction: 29.97 is 2997/100, 30000/1001 itself."""
    found = Fraction(fps).limit_denominator(1001)
    if not 0 < found < 1_000_000_000:
        raise ValueError(f"a rate is a positive number, not {fps!r}")
    return found


def stated_rate(value: Any) -> float | None:
    """A rate that a file states, if it is one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        rate_of(value)
    except (ValueError, OverflowError):
        return None
    return float(value)


def measured_rate(times: Times) -> float | None:
    """The mean rate of times, a whole number where it is nearly one; None of fewer than two."""
    if len(times) < 2:
        return None
    rate = 1e9 * (len(times) - 1) / float(times[-1] - times[0])
    return float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate and round(rate) else rate


def grid_times(count: int, fps: float, start_ns: int = 0) -> Times:
    """The times of evenly spaced rows, each rounded once: no error adds up."""
    rate = rate_of(fps)
    numbers = np.arange(count, dtype=object) if count > 1 << 20 else np.arange(count, dtype=np.int64)
    found = (numbers * (1_000_000_000 * rate.denominator) + rate.numerator // 2) // rate.numerator
    return np.asarray(found, np.int64) + start_ns


class RowsSignal(ClockedSignal):
    """A signal over rows that a function reads; nothing is kept."""

    def __init__(
        self, times: Times | Callable[[], Times], meta: SignalMeta, read: ReadRows, count: int
    ) -> None:
        self._times = times
        self._meta = meta
        self._read = read
        self._count = count
        self._ts: Times | None = None

    @property
    def meta(self) -> SignalMeta:
        """What its maker said of it."""
        return self._meta

    def __len__(self) -> int:
        return self._count

    def _clock(self) -> Times:
        if self._ts is None:
            found = self._times() if callable(self._times) else self._times
            if len(found) != self._count:
                raise CorruptLayoutError(f"{len(found)} times for {self._count} records")
            check_increasing(found)
            self._ts = read_only(found)
        return self._ts

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._meta.shape), self._meta.dtype)
        low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1
        found = self._read(low, high)
        if found.shape != (high - low, *self._meta.shape) or found.dtype != self._meta.dtype:
            raise CorruptLayoutError(
                f"{found.dtype}{list(found.shape)} was read, {self._meta.dtype}"
                f"{[high - low, *self._meta.shape]} was expected"
            )
        return read_only(found[:: rows.step] if rows.step > 0 else found[::-1][:: -rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        low, high = int(indices.min()), int(indices.max()) + 1
        if high - low <= 4 * len(indices) + 64:
            return read_only(self._values_in(range(low, high))[indices - low])
        rows = [self._values_in(range(row, row + 1)) for row in indices.tolist()]
        return read_only(np.concatenate(rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return (RowsSignal, (self._times, self._meta, self._read, self._count))


class ForeignSource(StatedSource):
    """An episode of a foreign set; `again` makes it anew in another process, by address."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the model
        signals: Mapping[str, Signal],
        static: Mapping[str, Any],
        meta: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        place: str,
        again: tuple[Any, ...],
        steps: StepClock | None = None,
        stored_bytes: int = 0,
    ) -> None:
        super().__init__(id, signals, static, {}, steps or StepClock(STEPS))
        self._stated: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = meta
        self._place, self._again, self._stored_bytes = place, again, stored_bytes

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is needed to write it again as it was, under the name of the format; read when first asked for."""
        if self._stated is not None:
            self._meta = ReadOnlyDict(self._stated() if callable(self._stated) else self._stated)
            self._stated = None
        return self._meta

    @property
    def place(self) -> str | None:
        """The set and the episode in it, for messages."""
        return self._place

    def stored_bytes(self) -> int:
        """What its reader knows of its size."""
        return self._stored_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments = self._again
        return (make, arguments)
