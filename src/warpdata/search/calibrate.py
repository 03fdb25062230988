"""How much of a store a probe of its partitions must look at: measured on its own vectors, not assumed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpdata.search.in_memory import Cells
from warpdata.search.metric import nearest

Floats = NDArray[np.float32]

_SAMPLE = 128
_NEIGHBORS = 11
_COVERED = 0.99
_MARGIN = 1.0
_LEAST_SHARE = 0.002


def measured_share(vectors: Floats, cells: Cells, metric: str, *, seed: int = 1) -> float:
    """The share of rows, nearest cells first, that holds nearly all true neighbours of sampled vectors."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(vectors), min(_SAMPLE, len(vectors)), replace=False))
    queries = np.ascontiguousarray(vectors[chosen])
    rows, _ = nearest(queries, vectors, min(_NEIGHBORS, len(vectors)), metric)
    sizes = cells.ends - cells.starts
    needed = []
    for query, found in zip(queries, rows, strict=True):
        order = cells.order(query, metric)
        reached = np.empty(len(order), np.int64)
        reached[order] = np.cumsum(sizes[order])
        needed.append(reached[np.searchsorted(cells.starts, found, side="right") - 1])
    wanted = float(np.quantile(np.concatenate(needed), _COVERED))
    return float(min(1.0, max(_LEAST_SHARE, _MARGIN * wanted / len(vectors))))
