"""Statistics over many episodes, merged from what each recorded; data is read only where nothing was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.statistics import QUANTILES, RELATIVE_ERROR, ValueStatistics
from warpdata.errors import nearest
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class SignalSummary:
    """What all values of a signal are like, per channel; not-finite values are counted and left out."""

    episodes: int
    count: NDArray[np.int64]
    invalid: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    quantiles: dict[float, NDArray[np.float64]]
    quantile_error: float
    """How far a quantile may be off, relative to its value."""
    read: int
    """Of how many episodes the data had to be read."""

    @property
    def q01(self) -> NDArray[np.float64]:
        """The first percentile."""
        return self.quantiles[0.01]

    @property
    def q99(self) -> NDArray[np.float64]:
        """The 99th percentile."""
        return self.quantiles[0.99]

    def to_json(self) -> dict[str, Any]:
        """The summary for a program."""
        arrays = {
            name: getattr(self, name).tolist() for name in ("count", "invalid", "mean", "std", "min", "max")
        }
        quantiles = {str(q): values.tolist() for q, values in self.quantiles.items()}
        return {
            "episodes": self.episodes, **arrays, "quantiles": quantiles,
            "quantile_relative_error": self.quantile_error, "read": self.read,
        }  # fmt: skip


class _Merge:
    def __init__(self) -> None:
        self.values: ValueStatistics | None = None
        self.episodes = self.read = 0

    def add(self, episode: Episode, name: str, signal: Signal) -> None:
        found = recorded_statistics(episode, name)
        if found is None:
            found = _read(signal)
            self.read += 1
        self.episodes += 1
        if self.values is None:
            self.values = found
        elif self.values.channels != found.channels:
            raise ValueError(f"signal {name!r} does not have the same shape in all episodes")
        else:
            self.values.merge(found)

    def summary(self) -> SignalSummary:
        assert self.values is not None
        found = self.values
        std = np.sqrt(found.m2 / np.maximum(found.count, 1))
        quantiles = found.sketch.quantiles(list(QUANTILES))
        return SignalSummary(
            self.episodes, found.count, found.invalid, found.mean, std, found.low, found.high,
            dict(zip(QUANTILES, quantiles, strict=True)), RELATIVE_ERROR, self.read,
        )  # fmt: skip


def summaries_of(episodes: Iterable[Episode], signals: Sequence[str] | None) -> dict[str, SignalSummary]:
    """Statistics of these signals, or of all that hold numbers and are no images."""
    signals = [signals] if isinstance(signals, str) else signals
    merges: dict[str, _Merge] = {}
    known: set[str] = set()
    for episode in episodes:
        for name, signal in _numeric(episode, signals):
            merges.setdefault(name, _Merge()).add(episode, name, signal)
        known |= set(episode.signals)
    for name in signals or ():
        if name not in merges:
            raise KeyError(f"no signal {name!r} with numbers in these episodes.{nearest(name, known)}")
    return {name: merge.summary() for name, merge in merges.items()}


def _numeric(episode: Episode, signals: Sequence[str] | None) -> Iterator[tuple[str, Signal]]:
    for name, signal in episode.signals.items():
        is_wanted = name in signals if signals is not None else signal.meta.kind != "image"
        if is_wanted and not signal.meta.is_object:
            yield name, signal


def recorded_statistics(episode: Episode, name: str) -> ValueStatistics | None:
    """What was recorded of the values of a signal, to be merged with others; None where nothing was."""
    stated = episode.meta.get("signals")
    about = stated.get(name) if isinstance(stated, Mapping) else None
    return ValueStatistics.from_json(about.get("values")) if isinstance(about, Mapping) else None


def _read(signal: Signal) -> ValueStatistics:
    made = ValueStatistics(signal.meta.shape)
    row_bytes = signal.meta.dtype.itemsize * math.prod(signal.meta.shape)
    step = max(1, _BATCH_BYTES // max(1, row_bytes))
    for start in range(0, len(signal), step):
        made.add(signal.rows(start, start + step))
    return made
