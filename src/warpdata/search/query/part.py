"""Rows that are searched together: blocks of a file that are read when a query needs them, or rows in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.search.file.content import Content, Loaded, Place
from warpdata.search.query.ann import Copies, Graph
from warpdata.search.query.distance import has_ordinary_squares, is_ordinary, nearest, prepared

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

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
        """The partitions of layer A, ready to be compared with prepared queries; None without layer A."""
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

    def enough(self, order: Ints, ef: int, sizes: Ints | None, least: int) -> int:
        """How many of the cells in this order a search of effort `ef` looks into: a share of all rows.

        `sizes` is how many rows of each cell a filter allows: `least` of those are looked at, too.
        """
        rows = self.ends - self.starts
        wanted = max(_ROWS_PER_EF * ef, self.probe_share * int(rows.sum()) * ef / _NORMAL_EF)
        count = int(np.searchsorted(np.cumsum(rows[order]), wanted, side="right"))
        if sizes is not None:
            count = max(count, 1 + int(np.searchsorted(np.cumsum(sizes[order]), least)))
        return max(1, count)

    def entries(self, graph: Graph) -> Ints:
        """Rows for walks to begin at: one near the middle of each cell, and one in each tight bundle of its rows.

        Rows of a bundle have each other as neighbours and hardly any other: no walk from outside comes in.
        """
        chosen_rows: list[int] = []
        vectors, centre = graph.vectors, graph.space.centre
        centroids = self.centroids if centre is None else (self.centroids - centre).astype(np.float32)
        for cell, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            rows = start + (_SPOTS * (end - start)).astype(np.int64)
            some = vectors[rows]
            chosen = int(_squares(some - centroids[self.centroid_of_cell[cell]]).argmin())
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
        if not graph.space.by_distance:
            return
        rows = self.entries(graph)
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


def measure_efforts(vectors: Floats, graph: Graph) -> tuple[tuple[float, ...], ...]:
    """Recall of walks by effort, for probes near the data, between clusters and outside of the data."""
    rng, metric = np.random.default_rng(2), graph.space.metric
    some, others = (vectors[rng.integers(0, len(vectors), _PROBES)] for _ in range(2))
    spread = vectors[rng.integers(0, len(vectors), 256)].std(axis=0)
    near = some + 0.05 * spread * rng.normal(size=some.shape)
    middle = (some + others) / 2
    centre = vectors[rng.integers(0, len(vectors), 256)].mean(axis=0)
    outside = centre + 3 * spread * rng.normal(size=some.shape)
    out = [[float(ef)] for ef in EFFORTS]
    k = min(_RECALL_AT, len(vectors))
    for probes in (near, middle, outside):
        queries = np.ascontiguousarray(probes, np.float32)
        _, limits = nearest(queries, vectors, k, metric)
        for row, ef in zip(out, EFFORTS, strict=True):
            hits = 0
            for query, rows, away in zip(queries, graph.search(queries, k, ef)[0], limits, strict=True):
                _, distances = nearest(query[None], vectors[rows[rows >= 0]], k, metric)
                hits += int((distances[0] <= away[-1] + 1e-6 * abs(away[-1]) + 1e-12).sum())
            row.append(round(hits / (k * len(queries)), 4))
    return tuple(map(tuple, out))


Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Answer = tuple[Ints, NDArray[Any]]
"""Rows and distances of each query, nearest first; row -1 at infinity where there are fewer."""

PREFILTER_SHARE = 0.01
"""Below this share of allowed rows they are compared one by one: exact and faster than a walk."""
TRAVERSAL_SHARE = 0.2
"""Below this share the walk looks at proportionally more nodes."""
MAX_PROBE_SHARE = 0.25
"""Where a query needs more of the blocks than this, everything is loaded at once."""
_NODES_PER_EF = 10
_MAX_EF = 4096
_PRODUCT_ROWS = 2048
"""Up to so many rows, comparing with all of them costs no more than such a walk."""
_RECENT_ROWS = 1024
_NEIGHBORS = 10
_ROUNDING = 1e-5
_APART = 2.0
"""A query so many times as far (squared) from the nearest row as rows are from each other is outside of the data."""


class RowPart:
    """Some rows of a store in the order of their index, if they have one; of each id, at most the newest row lives."""

    def __init__(self, metric: str, rows: Loaded) -> None:
        """Rows in memory. `of_file` makes a part whose rows are read when needed."""
        self.metric = metric
        self.count = len(rows.ids)
        self.is_loaded = self.knows_ids = True
        self.ids, self.vectors, self.live = rows
        self.live_count = int(rows.live.sum())
        self.cells: Cells | None = None
        self.graph: Graph | None = None
        self.copies: Copies | None = None
        self._buffers = rows
        self._content: Content | None = None
        self._blocks: dict[int, tuple[Ids, Floats]] = {}
        self._bounds: Ints = np.zeros(1, np.int64)
        """Where the rows of each block begin, and where the last one ends; cells are blocks."""
        self._places: list[Place] = []
        self._is_dead: Callable[[Ids], Mask] = lambda ids: np.zeros(len(ids), bool)
        self._sorted: list[tuple[Ids, Ints, int]] = []
        self._forget()

    def _forget(self) -> None:
        """Drop what was derived from the rows."""
        self._units: Floats | None = None
        self._bits: NDArray[np.uint8] | None = None

    @classmethod
    def of_file(cls, content: Content, is_dead: Callable[[Ids], Mask]) -> RowPart:
        """The rows that the partitions of a file cover; without partitions they are read at once."""
        cells, directory = Cells.of(content), content.id_directory
        if not content.has_plain_blocks or (cells is None and directory is None):
            rows = content.load_rows(content.base_entries)
            part = cls(content.profile.metric, rows._replace(live=rows.live & ~is_dead(rows.ids)))
            part.cells = cells
            return part
        none = Loaded(np.zeros(0, np.uint64), np.zeros((0, content.dim), np.float32), np.zeros(0, bool))
        part = cls(content.profile.metric, none)
        part.cells = cells
        if cells is not None and content.layer_a is not None:
            part._bounds = np.append(cells.starts, cells.ends[-1])
            parts = content.layer_a.partitions
            part._places = list(zip(parts["segment_ref"].tolist(), parts["block_ref"].tolist(), strict=True))
        elif directory is not None:
            sizes = np.bincount(directory.blocks, minlength=directory.block_count)
            part._bounds = np.append(0, np.cumsum(sizes))
            entries = content.base_entries
            part._places = [(e.segment_id, number) for e in entries for number in range(e.block_count)]
        part.count = int(part._bounds[-1])
        part.is_loaded = part.knows_ids = False
        part._content, part._is_dead = content, is_dead
        return part

    # -- reading -------------------------------------------------------------------------------------

    def know_ids(self) -> None:
        """Ids of all rows, from the directory of the file where it has one: blocks hold ids in ascending order."""
        if self.knows_ids:
            return
        assert self._content is not None
        directory = self._content.id_directory
        if directory is None:
            self.load()
            return
        order = np.argsort(directory.blocks, kind="stable")
        entries = self._content.base_entries
        if self._places != [(e.segment_id, number) for e in entries for number in range(e.block_count)]:
            raise CorruptLayoutError("a partition names a block that does not exist", path=self._where)
        sizes = np.bincount(directory.blocks, minlength=len(self._places))
        if not np.array_equal(sizes, np.diff(self._bounds)):
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
        self._set_ids(directory.ids[order])
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        self._sorted = [(directory.ids, places, len(order))]

    def _set_ids(self, ids: Ids) -> None:
        self.ids, self.live, self.knows_ids = ids, ~self._is_dead(ids), True
        self.live_count = int(self.live.sum())

    def load(self) -> None:
        """Everything into memory."""
        if self.is_loaded:
            return
        assert self._content is not None
        rows = self._content.load_rows(self._content.base_entries)
        if len(rows.ids) != self.count or (self.knows_ids and (rows.ids != self.ids).any()):
            raise CorruptLayoutError("the partitions do not fit their vectors", path=self._where)
        if not self.knows_ids:
            self._set_ids(rows.ids)
        self.vectors, self.is_loaded, self._blocks = rows.vectors, True, {}
        self._buffers = Loaded(self.ids, self.vectors, self.live)

    def is_costly(self, cells: Ints) -> bool:
        """Whether these cells are so much of the file that everything should be loaded."""
        return bool(np.diff(self._bounds)[cells].sum() > MAX_PROBE_SHARE * self.count)

    def _read(self, cells: list[int]) -> None:
        """Blocks of cells that were not read yet, all of them together."""
        assert self._content is not None
        missing = [cell for cell in cells if cell not in self._blocks]
        places = [self._places[cell] for cell in missing]
        for cell, block in zip(missing, self._content.read_blocks(places), strict=True):
            start, end = int(self._bounds[cell]), int(self._bounds[cell + 1])
            if len(block.ids) != end - start:
                raise CorruptLayoutError("a partition and its block differ in size", path=self._where)
            if self.knows_ids and not np.array_equal(self.ids[start:end], block.ids):
                raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
            self._blocks[cell] = block.ids, self._content.vectors_of(block)

    def gather(self, cells: Ints, allowed: Mask | None) -> tuple[Ints, Floats]:
        """The live or allowed rows of these cells, and their vectors."""
        assert self.cells is not None
        spans = [np.arange(self.cells.starts[cell], self.cells.ends[cell]) for cell in cells]
        rows = np.concatenate([np.zeros(0, np.int64), *spans])
        if allowed is None and self.knows_ids:
            allowed = self.live
        if self.is_loaded:
            rows = rows if allowed is None else rows[allowed[rows]]
            return rows, self.vectors[rows]
        self._read([int(cell) for cell in cells])
        blocks = [self._blocks[int(cell)] for cell in cells]
        vectors = np.concatenate([self.vectors, *(block[1] for block in blocks)])
        if allowed is None:
            ids = np.concatenate([np.zeros(0, np.uint64), *(block[0] for block in blocks)])
            kept = ~self._is_dead(ids)
        else:
            kept = allowed[rows]
        return rows[kept], vectors[kept]

    def name_rows(self, answer: Answer) -> Answer:
        """An answer with the ids of its rows; -1 at infinity where there are fewer."""
        rows, distances = answer
        if not self.knows_ids:
            names = np.full_like(rows, -1)
            cells = np.searchsorted(self._bounds, rows, side="right") - 1
            for cell in np.unique(cells[rows >= 0]).tolist():
                mine = (cells == cell) & (rows >= 0)
                names[mine] = self._blocks[cell][0][rows[mine] - self._bounds[cell]]
        else:
            names = self.ids[rows].view(np.int64) if len(self.ids) else np.full_like(rows, -1)
        if rows.size and (rows.item(-1) if len(rows) == 1 else rows[:, -1].min()) < 0:
            names[rows < 0], distances[rows < 0] = -1, np.inf
        return names, distances

    def take(self, rows: Ints) -> Floats:
        """The vectors of these rows."""
        if not self.is_loaded:
            cells = np.searchsorted(self._bounds, rows, side="right") - 1
            if len(rows) > 1 and self.is_costly(np.unique(cells)):
                self.load()
            else:
                self._read(np.unique(cells).tolist())
                places = zip(cells.tolist(), (rows - self._bounds[cells]).tolist(), strict=True)
                taken = [self._blocks[cell][1][at] for cell, at in places]
                return np.array(taken, np.float32).reshape(len(rows), self.vectors.shape[1])
        return self.vectors[rows]

    def find(self, ids: Ids) -> Ints:
        """The live row of each id, or -1."""
        rows = np.full(len(ids), -1, np.int64)
        for names, places, _ in self._lookup():
            at = np.minimum(np.searchsorted(names, ids), max(0, len(names) - 1))
            hit = names[at] == ids if len(names) else np.zeros(len(ids), bool)
            rows[hit] = places[at[hit]]
        return np.where((rows >= 0) & self.live[rows], rows, -1) if self.count else rows

    def _lookup(self) -> list[tuple[Ids, Ints, int]]:
        """Ids in order with the newest row of each; rows appended lately are sorted by themselves."""
        self.know_ids()
        if (self._sorted[-1][2] if self._sorted else 0) < self.count:
            first = self._sorted[0][2] if self._sorted else 0
            start = first if self.count - first < _RECENT_ROWS else 0
            names, last = np.unique(self.ids[start:][::-1], return_index=True)
            self._sorted = [*(self._sorted[:1] if start else []), (names, self.count - 1 - last, self.count)]
        return self._sorted

    def live_ids(self) -> Ids:
        """The ids of all live rows, ascending."""
        tables = self._lookup()
        is_whole = self.live_count == self.count and len(tables) == 1
        return tables[0][0] if is_whole else np.sort(self.ids[self.live])

    # -- changes of the own writer -------------------------------------------------------------------

    def delete(self, ids: Ids) -> None:
        """Rows of these ids are dead from now on."""
        if self.knows_ids:
            rows = self.find(ids)
            self.live[rows[rows >= 0]] = False
            self.live_count = int(self.live.sum())
            self._bits = None

    def append(self, ids: Ids, vectors: Floats) -> None:
        """Add rows; known ids are superseded. Memory is taken in growing steps."""
        self.delete(ids)
        end = self.count + len(ids)
        if end > len(self._buffers.ids):
            size = max(end, 2 * len(self._buffers.ids))
            self._buffers = Loaded(
                np.zeros(size, np.uint64),
                np.zeros((size, self.vectors.shape[1]), np.float32),
                np.zeros(size, bool),
            )
            self._fill(slice(0, self.count), self.ids, self.vectors, self.live)
        self._fill(slice(self.count, end), ids, vectors, np.ones(len(ids), bool))
        kept = self._buffers
        self.ids, self.vectors, self.live = kept.ids[:end], kept.vectors[:end], kept.live[:end]
        self.count, self.live_count = end, self.live_count + len(ids)
        self._forget()

    def _fill(self, place: slice, ids: Ids, vectors: Floats, live: Mask) -> None:
        buffers = self._buffers
        buffers.ids[place], buffers.vectors[place], buffers.live[place] = ids, vectors, live

    def with_graph(self, graph: Graph | None, copies: Copies | None) -> None:
        """Search by this graph of the rows, unless comparing with all of them is better."""
        few = self.metric == "ip" and self.count <= _PRODUCT_ROWS
        if graph is not None and not few and is_ordinary(graph.vectors):
            self.graph, self.copies, self.cells = graph, copies, None

    # -- search --------------------------------------------------------------------------------------

    def search(self, queries: Floats, k: int, ef: int, allowed: Mask | None, exact: bool) -> Answer | None:
        """The k nearest live rows, or allowed ones, of each query; None if everything must be loaded for it."""
        if not self.is_loaded:
            return None if exact or self.cells is None else self._search_cells(queries, k, ef, allowed)
        is_whole = allowed is None and self.live_count == self.count
        has_index = (self.graph is not None or self.cells is not None) and not exact
        if has_index and has_ordinary_squares(queries):
            if is_whole and self.graph is not None:
                return self._walk(queries, min(k, self.count), max(ef, k))
            share = (self.live_count if allowed is None else int(allowed.sum())) / max(1, self.count)
            # A walk meets about ef / share nodes and their neighbours: it costs what comparing with all allowed rows
            # costs where the square of the share is so many times ef / rows. Walks for inner products miss too much.
            even = min((_NODES_PER_EF * ef / max(1, self.count)) ** 0.5, TRAVERSAL_SHARE)
            least = max(PREFILTER_SHARE, TRAVERSAL_SHARE if self.metric == "ip" else even)
            if share * self.count > max(least * self.count, 2 * k):
                mask = None if is_whole else self.live if allowed is None else allowed
                if self.graph is None:
                    return self._search_cells(queries, k, max(ef, k), mask)
                assert mask is not None
                return self._search_graph(queries, k, max(ef, k), mask, share, allowed is not None)
        return self._compare(queries, k, None if is_whole else self.live if allowed is None else allowed)

    def _compare(self, queries: Floats, k: int, mask: Mask | None) -> Answer:
        """Exact search."""
        if self._units is None and self.metric == "cosine":
            self._units = prepared(self.vectors, self.metric)
        return nearest(queries, self.vectors, k, self.metric, mask, self._units)

    def _search_graph(
        self, queries: Floats, k: int, ef: int, mask: Mask, share: float, filtered: bool
    ) -> Answer:
        """A walk under a mask; queries whose own neighbourhood is excluded are compared with every row."""
        if self._bits is None or filtered:
            reachable = mask if self.copies is None else self.copies.reachable(mask)
            bits = np.packbits(reachable, bitorder="little")
            self._bits = None if filtered else bits
        else:
            bits = self._bits
        wide = ef if share > TRAVERSAL_SHARE else min(int(ef / share), max(ef, _MAX_EF))
        rows, distances = self._walk(queries, k, wide, mask, bits)
        doubtful = (rows < 0).any(axis=1)
        if filtered:
            _, near = self._walk(queries, min(k, self.count), ef)
            doubtful |= distances[:, 0] > near[:, -1]
        short = np.flatnonzero(doubtful)
        if len(short):
            rows[short], distances[short] = self._compare(queries[short], k, mask)
        return rows, distances

    def _walk(
        self,
        queries: Floats,
        k: int,
        ef: int,
        mask: Mask | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> Answer:
        """The graph's nearest rows; where `mask` bounds them, `bits` is the same packed."""
        assert self.graph is not None
        rows, distances = self.graph.search(queries, k, ef, bits)
        return (rows, distances) if self.copies is None else self.copies.expanded(rows, distances, mask)

    def _search_cells(self, queries: Floats, k: int, ef: int, allowed: Mask | None) -> Answer | None:
        """Exact search in the nearest cells of each query.

        Cells were measured with vectors like those stored. The neighbours of a query far from all of them are
        scattered over many cells: None if they would have to be read from the file for it.
        """
        cells = self.cells
        assert cells is not None
        sizes = None if allowed is None else np.add.reduceat(allowed.astype(np.int64), cells.starts)
        rows = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf)
        for number, query in enumerate(queries if k else ()):
            order = cells.order(query, self.metric, sizes)
            # Read from the file, each row counts; the largest inner products under a filter are anywhere.
            least = _ROWS_PER_EF * ef if self.is_loaded else ef
            is_anywhere = self.metric == "ip" and sizes is not None
            count = len(order) if is_anywhere else cells.enough(order, ef, sizes, least)
            near: Ints = np.zeros(0, np.int64)
            while True:
                if not self.is_loaded and sizes is not None and self.is_costly(order[:count]):
                    return None
                near, vectors = self.gather(order[:count], allowed)
                if len(near) >= k or count >= len(order):
                    break
                count *= 2
            if not self.is_loaded and count < len(order) and not self._is_inside(query, vectors):
                return None
            at, away = nearest(query[None], vectors, k, self.metric)
            rows[number, : at.shape[1]], distances[number, : at.shape[1]] = near[at[0]], away[0]
        return rows, distances

    def _is_inside(self, query: Floats, vectors: Floats) -> bool:
        """Whether the query is among these rows, as they are among each other."""
        if self.metric == "ip" or len(vectors) <= _NEIGHBORS:
            return False
        moved = prepared(vectors, self.metric) - prepared(query[None], self.metric)
        away = np.einsum("ij,ij->i", moved, moved)
        hits = np.argpartition(away, _NEIGHBORS)[:_NEIGHBORS]
        apart = away[hits, None] + away - 2 * (moved[hits] @ moved.T)
        apart.partition(_NEIGHBORS, axis=1)
        rounding = _ROUNDING * float(away[hits].max())
        return bool(away[hits].min() <= _APART * np.median(apart[:, _NEIGHBORS]) + rounding)

    @property
    def _where(self) -> str:
        return "" if self._content is None else self._content.reader.name
