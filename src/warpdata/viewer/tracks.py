"""Numbers for plots: a few points of a signal, the record that holds at a time, statistics of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import ThreadLock
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal

MAX_CHANNELS = 64
_BLOCK = 64
_TOP_BLOCKS = 4096
_BATCH_BYTES = 8 << 20
_FINE = 4
"""A bucket of a plot is made of at least this many blocks of a level, or of a finer level."""

GAP_FACTOR = 5
_MAX_GAPS = 500
_SAMPLED = 1 << 16
_LOOKED_AT = 1 << 17
"""Times looked at together: so few stay in the cache."""

Times = NDArray[np.int64]
Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Plotted:
    """Points of a plot: times, and per channel a value at each; the records themselves, or the extremes of many."""

    times: Times
    values: Values
    is_exact: bool


def plotted_signal(signal: Signal) -> Signal:
    """What is plotted of a signal: of sound its loudness in each block (1 is the loudest), of values of varying length
    their number of rows, of all else the signal itself."""
    kind = signal.meta.rows
    if kind is None:
        return signal
    if signal.meta.kind == "ragged" or not len(signal):
        return ArraySignal(signal.timestamps, signal._lengths())
    middle = 128 if kind.dtype == np.uint8 else 0
    most = 1.0 if kind.dtype.kind == "f" else 2.0 ** (kind.dtype.itemsize * 8 - 1)
    peaks = [float(np.abs(block.astype(np.float64) - middle).max(initial=0)) / most for block, _ in signal]
    return ArraySignal(signal.timestamps, np.array(peaks, np.float32))


class Track:
    """One signal of numbers: its times, and the least and greatest values of its blocks, made when first needed."""

    def __init__(self, signal: Signal) -> None:
        signal = self.signal = plotted_signal(signal)
        self.times = signal.timestamps
        self._width = int(np.prod(signal.meta.shape, dtype=np.int64))
        self.channels = min(MAX_CHANNELS, self._width)
        self.is_all = self.channels == self._width
        """Whether every channel is plotted."""
        self._lock = ThreadLock()
        self._levels: list[tuple[Values, Values]] | None = None

    @property
    def kept_bytes(self) -> int:
        """How much memory it takes, roughly."""
        levels = sum(low.nbytes + high.nbytes for low, high in self._levels or ())
        return int(self.times.nbytes) + levels

    def row_at(self, ts_ns: int) -> int:
        """The last record at or before a time, -1 before the first."""
        return int(np.searchsorted(self.times, np.int64(ts_ns), side="right")) - 1

    def values(self, start: int, stop: int) -> Values:
        """Records [start, stop) as numbers of a browser, one row each."""
        rows = self.signal.rows(start, stop)
        flat = rows.reshape(len(rows), self._width)[:, : self.channels]
        kind, size = flat.dtype.kind, flat.dtype.itemsize
        is_wide = size > 4 or (kind in "iu" and size == 4)
        return flat.astype(np.float64 if is_wide else np.float32, copy=False)

    def gaps(self) -> list[tuple[int, int]]:
        """Pauses that are more than five times the usual one, as (first time, last time)."""
        count = len(self.times) - 1
        if count < 3:
            return []
        some = np.arange(0, count, -(-count // _SAMPLED))  # a sample is enough for the usual pause
        limit = GAP_FACTOR * np.median(self.times[some + 1] - self.times[some])
        starts: list[int] = []
        for start in range(0, count, _LOOKED_AT):
            part = self.times[start : min(start + _LOOKED_AT, count) + 1]
            starts += (start + np.flatnonzero(np.diff(part) > limit)).tolist()
            if len(starts) >= _MAX_GAPS:
                break
        return [(int(self.times[i]), int(self.times[i + 1])) for i in starts[:_MAX_GAPS]]

    def window(self, start_ns: int, stop_ns: int, width: int) -> Plotted:
        """What is to be drawn between two times on `width` pixels: at most two points per pixel."""
        low = max(0, self.row_at(start_ns))
        high = max(low, min(len(self.times), self.row_at(stop_ns) + 2))
        if high - low <= 2 * width:
            return Plotted(self.times[low:high], self.values(low, high).T, True)
        starts = low + (np.arange(width + 1) * (high - low)) // width
        rows_each = (high - low) // width
        # Records per block of the coarsest level that is fine enough; 1 for the records themselves.
        size = 1 if rows_each < _BLOCK * _FINE else _BLOCK
        while 1 < size <= rows_each // (_BLOCK * _FINE) and _depth(size) + 1 < len(self._levels_made()):
            size *= _BLOCK
        if size == 1:
            least, most = _extremes(self.values(low, high), starts[:-1] - low)
        else:
            blocks = self._levels_made()[_depth(size)]
            edges = starts // size
            edges = edges[np.flatnonzero(np.diff(edges, prepend=-1))]  # np.unique would load numpy.ma first
            edges[-1] = min(int(edges[-1]) + 1, len(blocks[0]))
            least = np.fmin.reduceat(blocks[0][: edges[-1]], edges[:-1], axis=0)
            most = np.fmax.reduceat(blocks[1][: edges[-1]], edges[:-1], axis=0)
            starts = edges * size
        middle = (starts[:-1] + np.minimum(starts[1:], len(self.times))) // 2
        rows = np.stack([starts[:-1], middle], axis=1).reshape(-1)
        values = np.stack([least, most], axis=1).reshape(-1, self.channels)
        return Plotted(self.times[np.minimum(rows, len(self.times) - 1)], values.T, False)

    def _levels_made(self) -> list[tuple[Values, Values]]:
        with self._lock:
            if self._levels is None:
                step = max(1, _BATCH_BYTES // (max(1, self.signal.meta.row_bytes) * _BLOCK)) * _BLOCK
                parts = []
                for start in range(0, len(self.times), step):
                    values = self.values(start, min(start + step, len(self.times)))
                    parts.append(_extremes(values, np.arange(0, len(values), _BLOCK)))
                low, high = (np.concatenate(part) for part in zip(*parts, strict=True))
                levels: list[tuple[Values, Values]] = [(low, high)]
                while len(levels[-1][0]) > _TOP_BLOCKS:
                    low, high = levels[-1]
                    starts = np.arange(0, len(low), _BLOCK)
                    levels.append((np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)))
                self._levels = levels
            return self._levels


def _extremes(values: Values, starts: NDArray[np.int64]) -> tuple[Values, Values]:
    """The least and greatest value of each run, per channel; NaN only where nothing else is."""
    # Several times quicker than fmin and fmax, which are used only where a NaN would hide the rest of its run.
    least, most = np.minimum.reduceat(values, starts, axis=0), np.maximum.reduceat(values, starts, axis=0)
    if np.isnan(least).any():
        least, most = np.fmin.reduceat(values, starts, axis=0), np.fmax.reduceat(values, starts, axis=0)
    return least, most


def _depth(size: int) -> int:
    return (size.bit_length() - 1) // (_BLOCK.bit_length() - 1) - 1


MEASURES = ("length", "duration_s", "total_reward")
_BINS = 24
_FAR = 3.5
"""An outlier is this many scaled median deviations from the median."""
_MAX_TASKS = 40
MOST_SAMPLED = 48
_ROWS_EACH = 512
"""A distribution is made of so many records of so many episodes at most."""


def selection_statistics(facts: Any, positions: Sequence[int], ids: Sequence[str]) -> dict[str, Any]:
    """What the episodes at these positions of the table are like."""
    chosen = facts.take(np.asarray(positions, np.int64))
    measures: dict[str, Any] = {}
    for name in MEASURES:
        values = _numbers(chosen, name)
        known = values[np.isfinite(values)]
        if len(known):
            measures[name] = {**_histogram(known), "mean": float(known.mean()), "sum": float(known.sum())}
    return {
        "episodes": chosen.num_rows,
        "measures": measures,
        "outliers": outliers_in(chosen, [ids[at] for at in positions]),
        "success": _counts(chosen, "success", 3),
        "task": _counts(chosen, "task", _MAX_TASKS),
    }


def outliers_in(facts: Any, ids: Sequence[str]) -> dict[str, list[str]]:
    """Which episodes of a table are far from the others, and in what."""
    outliers: dict[str, list[str]] = {}
    for name in MEASURES:
        values = _numbers(facts, name)
        known = values[np.isfinite(values)]
        if len(known) < 5:
            continue
        middle = float(np.median(known))
        away = np.abs(known - middle)
        # If more than half are equal, use the mean deviation.
        spread = float(np.median(away)) * 1.4826 or float(away.mean()) * 1.2533
        for at in np.flatnonzero(np.abs(values - middle) > _FAR * spread).tolist() if spread else ():
            outliers.setdefault(ids[at], []).append(name)
    return outliers


def _numbers(facts: Any, name: str) -> NDArray[np.float64]:
    if name not in facts.column_names:
        return np.full(facts.num_rows, np.nan)
    values = facts.column(name).to_pylist()
    numbers = [value if isinstance(value, int | float) else np.nan for value in values]
    return np.array(numbers, np.float64)


def _histogram(values: NDArray[np.float64]) -> dict[str, Any]:
    counts, edges = np.histogram(values, bins=min(_BINS, max(1, len(np.unique(values)))))
    return {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1])}


def _counts(facts: Any, name: str, most: int) -> list[dict[str, Any]]:
    if name not in facts.column_names:
        return []
    counts: dict[Any, int] = {}
    for value in facts.column(name).to_pylist():
        counts[value] = counts.get(value, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])[:most]
    return [{"value": value, "count": count} for value, count in ordered]


def sample_records(signal: Signal) -> NDArray[np.float64]:
    """Records of a signal of numbers, evenly spaced where there are many: a row each, of its plotted channels."""
    if len(signal) <= _ROWS_EACH:
        values = signal.rows(0, len(signal))
    else:
        values = signal[np.linspace(0, len(signal) - 1, _ROWS_EACH).astype(np.int64)].values()
    return values.reshape(len(values), -1)[:, :MAX_CHANNELS].astype(np.float64)


def distribution(samples: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """Distribution of the values of a signal by channel; episodes with another width are left out."""
    width = samples[0].shape[1] if samples else 0
    taken = [sample for sample in samples if sample.shape[1] == width]
    rows = np.concatenate(taken) if taken else np.empty((0, 0))
    channels: list[dict[str, Any] | None] = []
    for column in rows.T:
        known = column[np.isfinite(column)]
        channels.append({**_histogram(known), "mean": float(known.mean())} if len(known) else None)
    return {"episodes": len(taken), "records": len(rows), "channels": channels}
