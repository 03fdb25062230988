"""Statistics over a selection of episodes: histograms, outcomes, outliers from facts, distributions from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.timeline.signal import Signal
from warpdata.viewer.tracks import MAX_CHANNELS

MEASURES = ("length", "duration_s", "total_reward")
_BINS = 24
_FAR = 3.5
"""An outlier is this many scaled median deviations from the median."""
_MAX_TASKS = 40
_EPISODES = 48
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
    found: dict[str, list[str]] = {}
    for name in MEASURES:
        for at in _far_off(_numbers(facts, name)):
            found.setdefault(ids[at], []).append(name)
    return found


def _numbers(facts: Any, name: str) -> NDArray[np.float64]:
    if name not in facts.column_names:
        return np.full(facts.num_rows, np.nan)
    found = [each if isinstance(each, int | float) else np.nan for each in facts.column(name).to_pylist()]
    return np.array(found, np.float64)


def _histogram(values: NDArray[np.float64]) -> dict[str, Any]:
    counts, edges = np.histogram(values, bins=min(_BINS, max(1, len(np.unique(values)))))
    return {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1])}


def _far_off(values: NDArray[np.float64]) -> list[int]:
    known = values[np.isfinite(values)]
    if len(known) < 5:
        return []
    middle = float(np.median(known))
    away = np.abs(known - middle)
    # If more than half are equal, use the mean deviation.
    spread = float(np.median(away)) * 1.4826 or float(away.mean()) * 1.2533
    if not spread:
        return []
    return np.flatnonzero(np.abs(values - middle) > _FAR * spread).tolist()


def _counts(facts: Any, name: str, most: int) -> list[dict[str, Any]]:
    if name not in facts.column_names:
        return []
    found: dict[Any, int] = {}
    for each in facts.column(name).to_pylist():
        found[each] = found.get(each, 0) + 1
    ordered = sorted(found.items(), key=lambda pair: -pair[1])[:most]
    return [{"value": value, "count": count} for value, count in ordered]


def sampled(signal: Signal) -> NDArray[np.float64]:
    """Records of a signal of numbers, evenly spaced where there are many: a row each, of its plotted channels."""
    if len(signal) <= _ROWS_EACH:
        values = signal.rows(0, len(signal))
    else:
        values = signal[np.linspace(0, len(signal) - 1, _ROWS_EACH).astype(np.int64)].values()
    return values.reshape(len(values), -1)[:, :MAX_CHANNELS].astype(np.float64)


def distribution(samples: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """Distribution of the values of a signal by channel; episodes with another width are left out."""
    width = samples[0].shape[1] if samples else 0
    taken = [each for each in samples if each.shape[1] == width]
    rows = np.concatenate(taken) if taken else np.empty((0, 0))
    channels: list[dict[str, Any] | None] = []
    for column in rows.T:
        known = column[np.isfinite(column)]
        channels.append({**_histogram(known), "mean": float(known.mean())} if len(known) else None)
    return {"episodes": len(taken), "records": len(rows), "channels": channels}


def spread_over(positions: Sequence[int]) -> list[int]:
    """Some of the positions, evenly spaced where there are many."""
    at = np.linspace(0, len(positions) - 1, min(len(positions), _EPISODES)).astype(np.int64)
    return [positions[each] for each in at.tolist()]
