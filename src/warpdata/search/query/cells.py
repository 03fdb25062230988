"""Partitions of the indexed rows: which of them a query looks into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.search.file.content import Content
from warpdata.search.query.distance import prepared

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

DEFAULT_PROBE_SHARE = 0.05
"""The share of all rows that a probe of normal effort compares with, where none was measured."""
_NORMAL_EF = 64
_ROWS_PER_EF = 4
_SPOTS = np.random.default_rng(1).random(48)
"""Which rows of a cell are looked at: no regular ones, which might be those of one camera out of two."""
_MOST_BUNDLES = 8
_BUNDLED = 1000
"""Rows of which a quarter lie so many times nearer to one (squared) than the farthest are several bundles."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Partitions of the indexed rows: prepared centroids, and the rows [start, end) of each cell."""

    centroids: Floats
    centroid_of_cell: Ints
    starts: Ints
    ends: Ints
    probe_share: float = DEFAULT_PROBE_SHARE

    def order(self, query: Floats, metric: str) -> Ints:
        """The cells from the nearest centroid to the farthest."""
        away = -(self.centroids @ query) if metric == "ip" else _squares(self.centroids - query)
        return np.argsort(away[self.centroid_of_cell], kind="stable")

    def enough(self, order: Ints, ef: int, sizes: Ints | None = None) -> int:
        """How many of the cells in this order a search of effort `ef` looks into: a share of all rows.

        `sizes` says how many rows of each cell count, where not all of them do.
        """
        total = int(self.ends[-1]) if len(self.ends) else 0
        wanted = max(_ROWS_PER_EF * ef, self.probe_share * total * ef / _NORMAL_EF)
        gathered = np.cumsum((self.ends - self.starts if sizes is None else sizes)[order])
        return max(1, int(np.searchsorted(gathered, wanted, side="right")))

    def entries(self, vectors: Floats) -> Ints:
        """Rows for walks to begin at: one near the middle of each cell, and one in each tight bundle of its rows.

        Rows of a bundle have each other as neighbours and hardly anybody else: no walk from outside comes in.
        """
        found: list[int] = []
        for cell, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            rows = start + (_SPOTS * (end - start)).astype(np.int64)
            some = vectors[rows]
            chosen = int(_squares(some - self.centroids[self.centroid_of_cell[cell]]).argmin())
            found.append(int(rows[chosen]))
            apart = _squares(some - some[chosen])
            near = np.partition(apart, len(apart) // 4)[len(apart) // 4]
            for _ in range(_MOST_BUNDLES):
                chosen = int(apart.argmax())
                if apart[chosen] <= _BUNDLED * near:
                    break
                found.append(int(rows[chosen]))
                apart = np.minimum(apart, _squares(some - some[chosen]))
        return np.array(found, np.int64)


def _squares(vectors: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", vectors, vectors)
    return squares


@dataclass(frozen=True, slots=True)
class ProbedRows:
    """Cells that a query looks into, and names and vectors of their live rows."""

    cells: Ints
    names: Ints
    vectors: Floats


def probe_cells(
    cells: Cells,
    query: Floats,
    k: int,
    ef: int,
    metric: str,
    gather: Callable[[Ints], tuple[Ints, Floats]],
    sizes: Ints | None = None,
) -> ProbedRows:
    """Look into the nearest cells, and into more of them until k rows are there.

    `gather` gives names (rows or ids) and vectors of the live rows of cells. `sizes` is how many rows of each cell may
    be results, where a condition or deletions exclude some. The largest inner products lie anywhere: under a condition
    every cell with such a row is looked into.
    """
    order = choose_cells(cells, query, metric, sizes)
    count = len(order) if metric == "ip" and sizes is not None else cells.enough(order, ef, sizes)
    while True:
        names, vectors = gather(order[:count])
        if len(names) >= k or count >= len(order):
            return ProbedRows(order[:count], names, vectors)
        count *= 2


def choose_cells(cells: Cells, query: Floats, metric: str, sizes: Ints | None = None) -> Ints:
    """Cells from the nearest to the farthest, without those that have no possible result."""
    order = cells.order(prepared(query[None], metric)[0], metric)
    return order if sizes is None else order[sizes[order] > 0]


def cells_of(content: Content) -> Cells:
    """The partitions of layer A, ready to be compared with prepared queries."""
    layer = content.need_layer_a()
    parts = layer.partitions
    centroid = parts["centroid_id"].astype(np.int64)
    starts, ends = parts["id_start"].astype(np.int64), parts["id_end"].astype(np.int64)
    edges = np.append(starts, layer.header.node_count)
    touching = len(starts) and starts[0] == 0 and np.array_equal(ends, edges[1:])
    if not touching or centroid.max() >= len(layer.centroids) or (ends <= starts).any():
        raise CorruptLayoutError("the partition map contradicts itself", path=content.reader.name)
    share = content.profile.probe_share or DEFAULT_PROBE_SHARE
    return Cells(layer.centroids.astype(np.float32), centroid, starts, ends, share)
