"""Episodes with signals that were computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpdata.bytekit.arrays import as_array
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
        steps = episode.steps
        if rows.ndim == 0 or len(rows) != steps.length:
            raise ValueError(
                f"derived signal {name!r} has shape {rows.shape}; give one row for each of the {steps.length} "
                "steps, or a Signal with its own times"
            )
        made[name] = ArraySignal(steps.times_ns, rows).named(name)
    return Episode(DerivedSource(episode.source, made))


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
