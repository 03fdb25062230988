"""Search over rows in memory: graph, partitions or exact; a filter decides by its selectivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.search.ann import Graph
from warpdata.search.copies import Copies
from warpdata.search.metric import is_ordinary, merge_nearest, nearest, prepared
from warpdata.search.rows import RowData

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

PREFILTER_SHARE = 0.01
"""Below this share of allowed rows they are compared one by one: exact and faster than a walk."""
TRAVERSAL_SHARE = 0.2
"""Below this share the walk looks at proportionally more nodes."""
_NODES_PER_EF = 10
_MAX_EF = 4096
DEFAULT_PROBE_SHARE = 0.05
"""The share of all rows that a probe of normal effort compares with, where none was measured."""
_NORMAL_EF = 64
_ROWS_PER_EF = 4
HITS_BUFFER = 256
_SPOTS = np.random.default_rng(1).random(48)
"""Which rows of a cell are looked at: no regular ones, which might be those of one camera out of two."""
_MOST_BUNDLES = 8
_BUNDLED = 1000
"""Rows of which a quarter lie so many times nearer to one (squared) than the farthest are several bundles."""
_PRODUCT_EFFORT = 4
"""Graphs of inner products are walked with this many times the effort: they hide more of their nodes."""
_PRODUCT_ROWS = 2048
"""Up to so many rows, comparing with all of them costs no more than such a walk."""


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


class MemorySearch:
    """Answers queries from rows in memory."""

    def __init__(
        self,
        rows: RowData,
        metric: str,
        graph: Graph | None,
        cells: Cells | None,
        copies: Copies | None = None,
    ) -> None:
        self.rows = rows
        self._copies = copies
        self.metric = metric
        self._effort = _PRODUCT_EFFORT if metric == "ip" else 1
        self._base = prepared(rows.base_vectors, metric) if graph is None else graph.vectors
        few = metric == "ip" and rows.indexed <= _PRODUCT_ROWS
        self.graph = None if few or not is_ordinary(self._base) else graph
        self.cells = cells if self.graph is graph else None
        self._tail = np.zeros((0, self._base.shape[1]), np.float32)
        self._version = -1
        self._base_bits: NDArray[np.uint8] | None = None
        self._live_share = 1.0
        self.is_plain = False
        """Whether every row is alive and indexed: then the graph alone answers."""
        self.counts_hits = False
        """Whether found rows are kept to be counted: a writer does, a reader could not store the counts."""
        self.hits: list[Ints] = []
        self.quick_hits: list[bytes] = []
        self.refresh()

    def refresh(self) -> None:
        """Follow changes of the rows."""
        if self._version == self.rows.version:
            return
        self._version = self.rows.version
        self._tail = prepared(self.rows.tail_vectors, self.metric)
        live = self.rows.live[: self.rows.indexed]
        self._base_bits = None if live.all() else np.packbits(live, bitorder="little")
        self._live_share = float(live.mean()) if len(live) else 0.0
        self.is_plain = self.graph is not None and self._base_bits is None and not len(self._tail)

    def search(
        self, queries: Floats, k: int, ef: int, allowed: Mask | None = None, exact: bool = False
    ) -> tuple[Ints, NDArray[Any]]:
        """The nearest rows of queries and their distances; `allowed` is a mask of rows."""
        self.refresh()
        live = self.rows.live if allowed is None else self.rows.live & allowed
        split = self.rows.indexed
        parts = [self._search_base(queries, k, ef, live[:split], allowed is not None, exact)]
        if len(self._tail):
            units = self._tail if self.metric == "cosine" else None
            rows, distances = nearest(queries, self.rows.tail_vectors, k, self.metric, live[split:], units)
            parts.append((np.where(rows < 0, -1, rows + split), distances))
        found, distances = merge_nearest(parts, k)
        return found, distances

    def quick(self, query: Floats, k: int, ef: int) -> tuple[Ints, Floats] | None:
        """One query (f32, one dimension) by the shortest way, or None if the long one is needed."""
        table, graph = self.rows, self.graph
        if graph is None or not self.is_plain or self._version != table.version or k > graph.count:
            return None
        if self._copies is not None:
            return None
        found = graph.search_one(query, k, ef * self._effort, self.metric == "cosine")
        if found is None or found[0][-1] < 0:
            return None
        rows, scores = found
        if self.counts_hits:
            self.quick_hits.append(rows.tobytes())
        return table.base_ids.take(rows), scores.copy() if self.metric == "l2" else self._distances(scores)

    def _distances(self, scores: Floats) -> Floats:
        """What faiss found, smaller is nearer."""
        if self.metric == "cosine":
            assert self.graph is not None
            return scores * np.float32(0.5) if self.graph.by_distance else 1 - scores
        return scores if self.metric == "l2" else -scores

    def _walk(
        self,
        queries: Floats,
        k: int,
        ef: int,
        live: Mask | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> tuple[Ints, Floats]:
        """The graph's nearest rows; where `live` bounds them, `bits` is the same packed."""
        assert self.graph is not None
        if self._copies is not None and live is not None:
            bits = np.packbits(self._copies.reachable(live), bitorder="little")
        rows, scores = self.graph.search(prepared(queries, self.metric), k, ef * self._effort, bits)
        distances = self._distances(scores)
        if self.metric == "cosine":
            distances[~queries.any(axis=1)] = 1  # no direction is like none
        return (rows, distances) if self._copies is None else self._copies.expanded(rows, distances, live)

    def plain_search(self, queries: Floats, k: int, ef: int) -> tuple[Ints, Floats]:
        """The shortest way: the graph alone, no filter, nothing deleted."""
        rows, distances = self._walk(queries, k, ef)
        if self.counts_hits:
            self.hits.append(rows)
        return rows, distances

    @property
    def has_many_hits(self) -> bool:
        """Whether enough rows were found since the last drain to be worth counting."""
        return len(self.hits) + len(self.quick_hits) >= HITS_BUFFER

    def drain_hits(self) -> Ints:
        """The indexed rows found since the last call."""
        hits, self.hits = self.hits, []
        quick, self.quick_hits = b"".join(self.quick_hits), []
        rows = np.concatenate([np.frombuffer(quick, np.int64), *(each.ravel() for each in hits)])
        return rows[(rows >= 0) & (rows < self.rows.indexed)]

    def _search_base(
        self, queries: Floats, k: int, ef: int, live: Mask, filtered: bool, exact: bool
    ) -> tuple[Ints, NDArray[Any]]:
        everything = not filtered and self._base_bits is None
        exact = exact or not is_ordinary(queries)
        if exact or (self.graph is None and self.cells is None):
            return self._compare_all(queries, k, None if everything else live)
        share = float(live.mean()) if filtered and len(live) else self._live_share
        if share * len(live) <= max(self._prefilter_share(ef) * len(live), 2 * k):
            return self._compare_all(queries, k, live)
        if self.graph is None:
            return self._search_cells(queries, k, ef, None if everything else live)
        if everything:
            return self.plain_search(queries, k, ef)
        bits = np.packbits(live, bitorder="little") if filtered else self._base_bits
        return self._search_allowed(queries, k, _widened_effort(ef, share), live, bits)

    def _compare_all(self, queries: Floats, k: int, live: Mask | None) -> tuple[Ints, NDArray[Any]]:
        """Exact search among the indexed rows."""
        units = self._base if self.metric == "cosine" else None
        return nearest(queries, self.rows.base_vectors, k, self.metric, live, units)

    def _prefilter_share(self, ef: int) -> float:
        """Below which share of allowed rows comparing with each of them is better than a walk.

        A walk meets about ef / share nodes and their neighbours; the two cost the same where the square of
        the share is so many times ef / rows. Walks for inner products miss too much where few rows count.
        """
        even = (_NODES_PER_EF * ef / max(1, len(self._base))) ** 0.5
        return max(PREFILTER_SHARE, TRAVERSAL_SHARE if self.metric == "ip" else min(even, TRAVERSAL_SHARE))

    def _search_allowed(
        self, queries: Floats, k: int, ef: int, live: Mask, bits: NDArray[np.uint8] | None
    ) -> tuple[Ints, NDArray[Any]]:
        """The graph, with only some of its nodes as results."""
        rows, distances = self._walk(queries, k, ef, live, bits)
        short = np.flatnonzero((rows < 0).any(axis=1))
        if len(short):
            # The walk met too few allowed nodes; the exact answer is always right.
            rows[short], distances[short] = self._compare_all(queries[short], k, live)
        return rows, distances

    def _search_cells(self, queries: Floats, k: int, ef: int, live: Mask | None) -> tuple[Ints, NDArray[Any]]:
        rows = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf)
        for number, query in enumerate(queries):
            found, away = self._probe(query, k, ef, live)
            rows[number, : len(found)], distances[number, : len(found)] = found, away
        return rows, distances

    def _probe(self, query: Floats, k: int, ef: int, live: Mask | None) -> tuple[Ints, NDArray[Any]]:
        """Exact search in the nearest cells; in more of them until k rows are found or none is left."""
        assert self.cells is not None
        order = self.cells.order(prepared(query[None], self.metric)[0], self.metric)
        count = self.cells.enough(order, ef)
        while True:
            chosen = order[:count]
            spans = [np.arange(self.cells.starts[c], self.cells.ends[c]) for c in chosen]
            rows = np.concatenate(spans)
            rows = rows if live is None else rows[live[rows]]
            if len(rows) >= k or count >= len(order):
                break
            count *= 2
        if self.counts_hits:
            self.hits.append(rows[:1])
        found, away = nearest(query[None], self.rows.base_vectors[rows], k, self.metric)
        return rows[found[0]], away[0]


def _widened_effort(ef: int, share: float) -> int:
    """More effort where fewer of the nodes may be results."""
    return ef if share > TRAVERSAL_SHARE else min(int(ef / share), max(ef, _MAX_EF))
