"""Search over rows in memory: graph, partitions or exact; a condition decides by its selectivity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.search.file.rows import RowData
from warpdata.search.query.ann import Graph
from warpdata.search.query.cells import Cells, probe_cells
from warpdata.search.query.copies import Copies
from warpdata.search.query.distance import has_ordinary_squares, is_ordinary, merge_nearest, nearest, prepared

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Distances = NDArray[Any]

PREFILTER_SHARE = 0.01
"""Below this share of allowed rows they are compared one by one: exact and faster than a walk."""
TRAVERSAL_SHARE = 0.2
"""Below this share the walk looks at proportionally more nodes."""
_NODES_PER_EF = 10
_MAX_EF = 4096
_PRODUCT_EFFORT = 4
"""Graphs of inner products are walked with this many times the effort: they hide more of their nodes."""
_PRODUCT_ROWS = 2048
"""Up to so many rows, comparing with all of them costs no more than such a walk."""


class MemorySearch:
    """Answers queries from rows in memory."""

    def __init__(
        self, rows: RowData, metric: str, graph: Graph | None, cells: Cells | None, copies: Copies | None
    ) -> None:
        self.rows = rows
        self._copies = copies
        self._metric = metric
        self._effort = _PRODUCT_EFFORT if metric == "ip" else 1
        self._base = prepared(rows.base_vectors, metric) if graph is None else graph.vectors
        few = metric == "ip" and rows.indexed <= _PRODUCT_ROWS
        self.graph = None if few or not is_ordinary(self._base) else graph
        self._cells = cells if self.graph is graph else None
        self._tail = np.zeros((0, self._base.shape[1]), np.float32)
        self._version = -1
        self._dead_bits: NDArray[np.uint8] | None = None
        self._live_share = 1.0
        self._is_plain = False
        """Whether every row is alive and in the graph."""

    def _refresh(self) -> None:
        """Follow changes of the rows."""
        if self._version == self.rows.version:
            return
        self._version = self.rows.version
        self._tail = prepared(self.rows.tail_vectors, self._metric)
        live = self.rows.live[: self.rows.indexed]
        self._dead_bits = None if live.all() else np.packbits(live, bitorder="little")
        self._live_share = float(live.mean()) if len(live) else 0.0
        self._is_plain = self.graph is not None and self._dead_bits is None and not len(self._tail)

    def search(
        self, queries: Floats, k: int, ef: int, allowed: Mask | None, exact: bool
    ) -> tuple[Ints, Distances]:
        """Rows and distances of the nearest of `allowed`, nearest first; row -1 where there are fewer than k."""
        self._refresh()
        if allowed is None and self._is_plain and not exact and has_ordinary_squares(queries):
            return self._walk(queries, min(k, len(self._base)), ef)
        live = self.rows.live if allowed is None else self.rows.live & allowed
        k = min(k, int(live.sum()))
        split = self.rows.indexed
        parts = [self._search_base(queries, k, max(ef, k), live[:split], allowed is not None, exact)]
        if len(self._tail):
            units = self._tail if self._metric == "cosine" else None
            rows, distances = nearest(queries, self.rows.tail_vectors, k, self._metric, live[split:], units)
            parts.append((np.where(rows < 0, -1, rows + split), distances))
        return merge_nearest(parts, k)

    def _search_base(
        self, queries: Floats, k: int, ef: int, live: Mask, filtered: bool, exact: bool
    ) -> tuple[Ints, Distances]:
        """The nearest live rows that the index covers."""
        is_whole = not filtered and self._dead_bits is None
        share = float(live.mean()) if filtered and len(live) else self._live_share
        has_index = self.graph is not None or self._cells is not None
        few = share * len(live) <= max(self._prefilter_share(ef) * len(live), 2 * k)
        if exact or few or not has_index or not has_ordinary_squares(queries):
            return self._compare(queries, k, None if is_whole else live)
        if self.graph is None:
            return self._search_cells(queries, k, ef, None if is_whole else live)
        if is_whole:
            return self._walk(queries, k, ef)
        bits = np.packbits(live, bitorder="little") if filtered else self._dead_bits
        rows, distances = self._walk(queries, k, _widened_effort(ef, share), live, bits)
        short = np.flatnonzero((rows < 0).any(axis=1))
        if len(short):  # the walk met too few allowed nodes
            rows[short], distances[short] = self._compare(queries[short], k, live)
        return rows, distances

    def _compare(self, queries: Floats, k: int, live: Mask | None) -> tuple[Ints, Distances]:
        """Exact search among the indexed rows."""
        units = self._base if self._metric == "cosine" else None
        return nearest(queries, self.rows.base_vectors, k, self._metric, live, units)

    def _prefilter_share(self, ef: int) -> float:
        """Below which share of allowed rows comparing with each of them is better than a walk.

        A walk meets about ef / share nodes and their neighbours; the two cost the same where the square of
        the share is so many times ef / rows. Walks for inner products miss too much where few rows count.
        """
        even = (_NODES_PER_EF * ef / max(1, len(self._base))) ** 0.5
        return max(PREFILTER_SHARE, TRAVERSAL_SHARE if self._metric == "ip" else min(even, TRAVERSAL_SHARE))

    def _walk(
        self,
        queries: Floats,
        k: int,
        ef: int,
        live: Mask | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> tuple[Ints, Distances]:
        """The graph's nearest rows; where `live` bounds them, `bits` is the same packed."""
        graph = self.graph
        assert graph is not None
        if self._copies is not None and live is not None:
            bits = np.packbits(self._copies.reachable(live), bitorder="little")
        rows, scores = graph.search(prepared(queries, self._metric), k, ef * self._effort, bits)
        if self._metric == "cosine":
            scores = scores * np.float32(0.5) if graph.by_distance else 1 - scores
        elif self._metric == "ip":
            scores = -scores
        return (rows, scores) if self._copies is None else self._copies.expanded(rows, scores, live)

    def _search_cells(self, queries: Floats, k: int, ef: int, live: Mask | None) -> tuple[Ints, Distances]:
        """Exact search in the nearest cells of each query."""
        cells = self._cells
        assert cells is not None
        sizes = None if live is None else np.add.reduceat(live.astype(np.int64), cells.starts)
        vectors = self.rows.base_vectors

        def gather(chosen: Ints) -> tuple[Ints, Floats]:
            spans = [np.arange(cells.starts[cell], cells.ends[cell]) for cell in chosen]
            rows = np.concatenate([np.zeros(0, np.int64), *spans])
            rows = rows if live is None else rows[live[rows]]
            return rows, vectors[rows]

        rows = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf)
        for number, query in enumerate(queries):
            probe = probe_cells(cells, query, k, ef, self._metric, gather, sizes)
            at, away = nearest(query[None], probe.vectors, k, self._metric)
            rows[number, : at.shape[1]], distances[number, : at.shape[1]] = probe.names[at[0]], away[0]
        return rows, distances


def _widened_effort(ef: int, share: float) -> int:
    """More effort where fewer of the nodes may be results."""
    return ef if share > TRAVERSAL_SHARE else min(int(ef / share), max(ef, _MAX_EF))
