"""Episodes with signals that were computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import NoStepsError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import SourceAround


def with_signals(episode: Episode, more: Mapping[str, Any] | Episode) -> Episode:
    """The episode with further signals by name: a Signal, or an array with one row per step."""
    if isinstance(more, Episode):
        return more
    if not isinstance(more, Mapping):
        raise TypeError(f"derived signals are {{name: rows}} or an Episode, not {type(more).__name__}")
    made: dict[str, Signal] = {}
    for name, value in more.items():
        if isinstance(value, Signal):
            made[name] = value
            continue
        rows = as_array(value)
        made[name] = ArraySignal(_times_ns(episode, name, rows), rows).named(name)
    return Episode(DerivedSource(episode.source, made))


def _times_ns(episode: Episode, name: str, rows: NDArray[Any]) -> NDArray[np.int64]:
    """The times of derived rows: those of the steps, or of the recorded signals that have as many rows."""
    hint = "give one row per step, or a Signal with its own times"
    try:
        steps = episode.steps
    except NoStepsError:
        if rows.ndim == 0:
            raise ValueError(f"derived signal {name!r} has shape {rows.shape}; {hint}") from None
        clocks = [signal.timestamps for signal in episode.signals.values() if len(signal) == len(rows)]
        if not clocks or any(not np.array_equal(clock, clocks[0]) for clock in clocks):
            raise ValueError(
                f"derived signal {name!r} has {len(rows)} rows, and the episode no steps to tell their times; {hint}"
            ) from None
        return np.asarray(clocks[0])
    if rows.ndim == 0 or len(rows) != steps.length:
        raise ValueError(
            f"derived signal {name!r} has shape {rows.shape}; expected one row for each of {steps.length} steps; {hint}"
        )
    return np.asarray(steps.times_ns)


class DerivedSource(SourceAround):
    """An episode and signals computed from it, which stand before recorded ones of the same name."""

    def __init__(self, inner: Any, more: Mapping[str, Signal]) -> None:
        super().__init__(inner)
        self._more = dict(more)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """Recorded and derived signals."""
        return {**self.inner.signals, **self._more}

    def __reduce__(self) -> tuple[Any, ...]:
        return (DerivedSource, (self.inner, self._more))
