"""Statistics over a selection of episodes, from their table of facts: histograms, outcomes, values, outliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURES = ("length", "duration_s", "total_reward")
_BINS = 24
_FAR = 3.5
"""An outlier is this many scaled median deviations from the median."""
_MAX_SIGNALS = 40
_MAX_TASKS = 40


def selection_statistics(facts: Any, positions: Sequence[int], ids: Sequence[str]) -> dict[str, Any]:
    """What the episodes at these positions of the table are like."""
    chosen = facts.take(np.asarray(positions, np.int64))
    measures: dict[str, Any] = {}
    outliers: dict[str, list[str]] = {}
    for name in MEASURES:
        values = _numbers(chosen, name)
        known = values[np.isfinite(values)]
        if len(known):
            measures[name] = {**_histogram(known), "mean": float(known.mean()), "sum": float(known.sum())}
            for at in _far_off(values):
                outliers.setdefault(ids[positions[at]], []).append(name)
    return {
        "episodes": chosen.num_rows, "measures": measures, "outliers": outliers,
        "success": _counts(chosen, "success", 3), "task": _counts(chosen, "task", _MAX_TASKS),
        "signals": _signals(chosen),
    }  # fmt: skip


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
    spread = float(np.median(np.abs(known - middle))) * 1.4826
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


def _signals(facts: Any) -> list[dict[str, Any]]:
    """Where the values of each signal lie: the mean of every episode, per channel, between the extremes of all."""
    if not {"means", "mins", "maxs"} <= set(facts.column_names):
        return []
    columns = [
        [dict(each or ()) for each in facts.column(name).to_pylist()] for name in ("means", "mins", "maxs")
    ]
    names = list(dict.fromkeys(name for row in columns[0] for name in row))[:_MAX_SIGNALS]
    found = []
    for name in names:
        means, least, most = (
            [row[name] for row in column if isinstance(row.get(name), list)] for column in columns
        )
        sizes = {len(each) for each in (*means, *least, *most)}
        if len(sizes) == 1 and len(means) == len(least) == len(most) and sizes != {0}:
            tables = [np.array(each, np.float64) for each in (means, least, most)]
            found.append({
                "name": name, "mean": tables[0].mean(axis=0).tolist(),
                "low": tables[1].min(axis=0).tolist(), "high": tables[2].max(axis=0).tolist(),
            })  # fmt: skip
    return found
