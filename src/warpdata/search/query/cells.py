"""Partitions of the indexed rows: which of them a query looks into, and where walks through the graph begin."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.search.file.content import Content
from warpdata.search.query.ann import Graph
from warpdata.search.query.copies import Copies
from warpdata.search.query.distance import nearest, prepared

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Gather = Callable[[Ints], tuple[Ints, Floats]]
"""Gives names (rows or ids) and vectors of the live rows of some cells."""

DEFAULT_PROBE_SHARE = 0.05
"""The share of all rows that a probe of normal effort compares with, where none was measured."""
_NORMAL_EF = 64
_ROWS_PER_EF = 4
_SPOTS = np.random.default_rng(1).random(48)
"""Which rows of a cell are looked at: irregular ones, since regular ones might be those of one camera of two."""
_MOST_BUNDLES = 8
_BUNDLED = 1000
"""Rows of which a quarter are so many times nearer to one (squared) than the farthest are several bundles."""
_SAMPLE = 128
_NEIGHBORS = 11
_COVERED = 0.99
_LEAST_SHARE = 0.002
EFFORTS = (16, 32, 64, 128, 256, 512)
_PROBES = 32
_RECALL_AT = 10


@dataclass(frozen=True, slots=True)
class Cells:
    """Partitions of the indexed rows: prepared centroids, and the rows [start, end) of each cell."""

    centroids: Floats
    centroid_of_cell: Ints
    starts: Ints
    ends: Ints
    probe_share: float = DEFAULT_PROBE_SHARE

    @classmethod
    def of(cls, content: Content) -> Cells | None:
        """The partitions of layer A, ready to be compared with prepared queries; None if there are none."""
        layer = content.layer_a
        if layer is None:
            return None
        parts = layer.partitions
        centroid = parts["centroid_id"].astype(np.int64)
        starts, ends = parts["id_start"].astype(np.int64), parts["id_end"].astype(np.int64)
        edges = np.append(starts, layer.header.node_count)
        touching = len(starts) and starts[0] == 0 and np.array_equal(ends, edges[1:])
        if not touching or centroid.max() >= len(layer.centroids) or (ends <= starts).any():
            raise CorruptLayoutError("the partition map contradicts itself", path=content.reader.name)
        share = content.profile.probe_share or DEFAULT_PROBE_SHARE
        return cls(layer.centroids.astype(np.float32), centroid, starts, ends, share)

    def order(self, query: Floats, metric: str, sizes: Ints | None = None) -> Ints:
        """The cells from the nearest centroid to the farthest, without those that have no possible result."""
        point = prepared(query[None], metric)[0]
        away = -(self.centroids @ point) if metric == "ip" else _squares(self.centroids - point)
        order = np.argsort(away[self.centroid_of_cell], kind="stable")
        return order if sizes is None else order[sizes[order] > 0]

    def enough(self, order: Ints, ef: int, sizes: Ints | None = None) -> int:
        """How many of the cells in this order a search of effort `ef` looks into: a share of all rows.

        `sizes` is how many rows of each cell count, where not all of them do.
        """
        total = int(self.ends[-1]) if len(self.ends) else 0
        wanted = max(_ROWS_PER_EF * ef, self.probe_share * total * ef / _NORMAL_EF)
        gathered = np.cumsum((self.ends - self.starts if sizes is None else sizes)[order])
        return max(1, int(np.searchsorted(gathered, wanted, side="right")))

    def probe(
        self, query: Floats, k: int, ef: int, metric: str, gather: Gather, sizes: Ints | None = None
    ) -> tuple[Ints, Ints, Floats]:
        """The nearest cells, and more of them until k rows are there; with names and vectors of their rows.

        The largest inner products are anywhere: under a condition every cell with such a row is looked into.
        """
        order = self.order(query, metric, sizes)
        count = len(order) if metric == "ip" and sizes is not None else self.enough(order, ef, sizes)
        while True:
            names, vectors = gather(order[:count])
            if len(names) >= k or count >= len(order):
                return order[:count], names, vectors
            count *= 2

    def entries(self, vectors: Floats) -> Ints:
        """Rows for walks to begin at: one near the middle of each cell, and one in each tight bundle of its rows.

        Rows of a bundle have each other as neighbours and hardly any other: no walk from outside comes in.
        """
        chosen_rows: list[int] = []
        for cell, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            rows = start + (_SPOTS * (end - start)).astype(np.int64)
            some = vectors[rows]
            chosen = int(_squares(some - self.centroids[self.centroid_of_cell[cell]]).argmin())
            chosen_rows.append(int(rows[chosen]))
            apart = _squares(some - some[chosen])
            near = np.partition(apart, len(apart) // 4)[len(apart) // 4]
            for _ in range(_MOST_BUNDLES):
                chosen = int(apart.argmax())
                if apart[chosen] <= _BUNDLED * near:
                    break
                chosen_rows.append(int(rows[chosen]))
                apart = np.minimum(apart, _squares(some - some[chosen]))
        return np.array(chosen_rows, np.int64)

    def spread_entries(self, graph: Graph, copies: Copies | None) -> None:
        """Let walks begin in the cell of the query; where cells are few, at rows spread evenly as well."""
        if not graph.by_distance:
            return
        rows = self.entries(graph.vectors)
        enough = math.isqrt(graph.count) // 2
        if len(rows) < enough:
            rows = np.append(rows, np.linspace(0, graph.count - 1, enough).astype(np.int64))
        graph.enter_at(np.unique(rows if copies is None else copies.first[rows]))


def _squares(vectors: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", vectors, vectors)
    return squares


def measure_share(vectors: Floats, cells: Cells, metric: str) -> float:
    """The share of rows, nearest cells first, that holds nearly all true neighbours of sampled vectors."""
    rng = np.random.default_rng(1)
    chosen = np.sort(rng.choice(len(vectors), min(_SAMPLE, len(vectors)), replace=False))
    queries = np.ascontiguousarray(vectors[chosen])
    rows, _ = nearest(queries, vectors, min(_NEIGHBORS, len(vectors)), metric)
    sizes = cells.ends - cells.starts
    needed = []
    for query, neighbors in zip(queries, rows, strict=True):
        order = cells.order(query, metric)
        reached = np.empty(len(order), np.int64)
        reached[order] = np.cumsum(sizes[order])
        needed.append(reached[np.searchsorted(cells.starts, neighbors, side="right") - 1])
    wanted = float(np.quantile(np.concatenate(needed), _COVERED))
    return float(min(1.0, max(_LEAST_SHARE, wanted / len(vectors))))


def measure_efforts(
    vectors: Floats, metric: str, walk: Callable[[Floats, int, int], Ints]
) -> list[list[float]]:
    """Recall of walks by effort, for probes near the data, between clusters and outside of the data.

    `walk(queries, k, ef)` gives the rows of the graph.
    """
    rng = np.random.default_rng(2)
    some, others = (vectors[rng.integers(0, len(vectors), _PROBES)] for _ in range(2))
    spread = vectors[rng.integers(0, len(vectors), 256)].std(axis=0)
    near = some + 0.05 * spread * rng.normal(size=some.shape)
    middle = (some + others) / 2
    centre = vectors[rng.integers(0, len(vectors), 256)].mean(axis=0)
    outside = centre + 3 * spread * rng.normal(size=some.shape)
    out = [[float(ef)] for ef in EFFORTS]
    k = min(_RECALL_AT, len(vectors))
    for probes in (near, middle, outside):
        queries = prepared(np.ascontiguousarray(probes, np.float32), metric)
        _, limits = nearest(queries, vectors, k, metric)
        for row, ef in zip(out, EFFORTS, strict=True):
            rows = walk(queries, k, ef)
            hits = 0
            for query, found_rows, away in zip(queries, rows, limits, strict=True):
                mine = found_rows[found_rows >= 0]
                _, distances = nearest(query[None], vectors[mine], len(mine), metric)
                hits += int((distances[0] <= away[-1] + 1e-6 * abs(away[-1]) + 1e-12).sum())
            row.append(round(hits / (k * len(queries)), 4))
    return out
