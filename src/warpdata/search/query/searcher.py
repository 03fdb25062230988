"""The reading side of an open store: its indexed and its later rows, how each is searched, and the merge of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, vec
from warpdata.formats.rvf.access import AccessSketch
from warpdata.formats.rvf.graph import Adjacency, GraphPayload
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.meta import DeleteRange
from warpdata.search.file import writing
from warpdata.search.file.content import Content, Loaded, Place
from warpdata.search.file.metadata import Metadata
from warpdata.search.file.writing import WriterState
from warpdata.search.query.ann import Copies, Graph, GraphShape, has_faiss
from warpdata.search.query.distance import (
    WalkSpace,
    has_ordinary_squares,
    is_ordinary,
    merge_nearest,
    nearest,
    prepared,
)

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


DEFAULT_EF = 64
COLD_QUERIES = 8
"""This many queries are answered from blocks of the file; then everything is loaded once."""
_MAX_RANGE = 1 << 22
_HITS_BUFFER = 256
_MOST_SOURCES = 64
"""Metadata that came in so many pieces are read again once the file holds them in few."""


class Searcher:
    """Answers queries about one content; follows the writer of the same process."""

    def __init__(self, content: Content, *, counts_hits: bool = False) -> None:
        self._content = content
        self._counts_hits = counts_hits
        self._base: RowPart | None = None
        self._tail: RowPart | None = None
        self._is_warm = False
        self._served = 0
        self._hits: list[Ints] = []
        self._metadata: Metadata | None = None
        self._sketch: AccessSketch | None = None
        self._counted_before = 0
        self._keys: dict[str, int] | None = None
        self._live: tuple[tuple[int, int, int], Ids] | None = None
        self._put_off = 0

    # -- rows ----------------------------------------------------------------------------------------

    @property
    def base(self) -> RowPart:
        """The rows that the index covers, or all rows that were there when the file was last rewritten."""
        if self._base is None:

            def is_replaced(ids: Ids) -> Mask:
                """Which ids of indexed rows were deleted or have a newer row."""
                dead = self._content.is_dead(ids)
                return dead | np.isin(ids, self.tail.ids) if self.tail.count else dead

            self._base = RowPart.of_file(self._content, is_replaced)
        return self._base

    @property
    def tail(self) -> RowPart:
        """The rows that came later; all of them in files of other programs."""
        if self._tail is None:
            content = self._content
            rows = content.load_rows(content.late_entries if content.base_entries else None)
            self._tail = RowPart(content.profile.metric, rows)
        return self._tail

    @property
    def metadata(self) -> Metadata:
        """The columns of the metadata; their heads are read once."""
        if self._metadata is None:
            self._metadata = Metadata.of(self._content)
        return self._metadata

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted."""
        if self._base is not None and self._base.knows_ids and self._tail is not None:
            return self._base.live_count + self._tail.live_count
        if not self._content.has_profile:
            return self.tail.live_count
        count = self._content.snapshot.live_count
        if count > sum(entry.payload_length for entry in self._content.row_entries):
            raise CorruptLayoutError(
                f"the manifest counts {count} vectors, more than there are bytes of them",
                path=self._content.reader.name,
            )
        return count

    def writer_state(self) -> WriterState:
        """What a writer must know, from the manifest and the few segments after the checkpoint."""
        content, snapshot = self._content, self._content.snapshot
        state = WriterState(self.live_count, content.profile.next_id, content.bitmap_ids)
        for number, entry in enumerate(snapshot.segments):
            if entry.seg_type == SegmentType.VEC and number >= snapshot.checkpointed:
                pieces = [block.ids for block in content.decode_blocks(entry)]
                ids = np.concatenate([np.zeros(0, np.uint64), *pieces])
                deleted = state.deleted[~np.isin(state.deleted, ids)]
                state.is_revived |= len(deleted) < len(state.deleted)
                state.deleted, state.next_id = deleted, max(state.next_id, int(ids.max(initial=0)) + 1)
            elif entry.seg_type == SegmentType.JOURNAL:
                ranges = [e for e in content.journal(entry).entries if isinstance(e, DeleteRange)]
                if sum(r.end - r.start for r in ranges) > _MAX_RANGE:
                    self.base.know_ids()
                    known = np.concatenate([self.base.ids, self.tail.ids])
                    gone = [known[(known >= r.start) & (known < r.end)] for r in ranges]
                else:
                    gone = [np.arange(r.start, r.end, dtype=np.uint64) for r in ranges]
                state.deleted = np.union1d(state.deleted, np.concatenate([np.zeros(0, np.uint64), *gone]))
        return state

    def follow(self, content: Content) -> None:
        """The store was changed by its own writer; loaded rows stay."""
        self._content = content

    def added(self, ids: Ids, vectors: Floats, names: list[str] | None) -> None:
        """Rows were appended; they are kept as they will be read back."""
        if self._keys is not None:
            self._keys.update(zip(names or (), ids.tolist(), strict=False))
        if self._tail is None:
            return
        dtype = self._content.profile.dtype
        if dtype != "f32":
            vectors = vec.unpack_rows(vec.pack_rows(vectors, dtype), dtype, vectors.shape[1])
        if self._base is not None:
            self._base.delete(ids)
        order = np.argsort(ids, kind="stable")
        self._tail.append(ids[order], vectors[order])

    def deleted(self, ids: Ids) -> None:
        """Rows were deleted."""
        if self._keys is not None:
            for name in self.keys_of(ids).values():
                self._keys.pop(name, None)
        for part in (self._base, self._tail):
            if part is not None:
                part.delete(ids)

    def metadata_changed(self, payload: bytes) -> None:
        """A segment of metadata was committed; only now it counts."""
        is_folded = not self._content.snapshot.log_commits and len(self.metadata.sources) > _MOST_SOURCES
        self._metadata = None if is_folded else self.metadata.with_segment(payload)

    def ids_of_keys(self) -> dict[str, int]:
        """The id of each live vector by its key; kept up with changes."""
        if self._keys is None:
            name, live = self._content.profile.key, self.live_ids()
            values = self.metadata.column(name, live).to_pylist() if name in self.metadata.fields else []
            self._keys = dict(zip(values, live.tolist(), strict=False))
        return self._keys

    def keys_of(self, ids: Ids) -> dict[int, str]:
        """The key of each of these ids that is there."""
        name, live = self._content.profile.key, ids[self.exist(ids)]
        rows = self.metadata.records(live, [name]) if len(live) else []
        return {number: row[name] for number, row in zip(live.tolist(), rows, strict=True)}

    def close(self) -> None:
        """Drop what is loaded."""
        self._base = self._tail = None

    # -- single vectors ------------------------------------------------------------------------------

    def find(self, ids: Ids) -> tuple[Ints, Ints]:
        """The live row of each id among the indexed rows, and among the later ones; -1 where it is in the other."""
        late = self.tail.find(ids)
        return np.where(late < 0, self.base.find(ids), -1), late

    def exist(self, ids: Ids) -> Mask:
        """Which of these ids are of live vectors."""
        base, late = self.find(ids)
        return np.asarray((base >= 0) | (late >= 0))

    def take(self, ids: Ids) -> Floats:
        """The vectors of ids that exist, in this order."""
        base, late = self.find(ids)
        out = np.empty((len(ids), self._content.dim), np.float32)
        out[base >= 0] = self.base.take(base[base >= 0])
        out[late >= 0] = self.tail.vectors[late[late >= 0]]
        return out

    def live_ids(self) -> Ids:
        """The ids of all live vectors, ascending; the same array until something changes."""
        self.base.know_ids()
        state = self.tail.count, self.tail.live_count, self.base.live_count
        if self._live is None or self._live[0] != state:
            parts = [part.live_ids() for part in (self.base, self.tail) if part.live_count]
            ids = parts[0] if len(parts) == 1 else np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
            self._live = state, ids
        return self._live[1]

    def live_rows(self) -> tuple[Ids, Floats]:
        """Ids and vectors of all live rows, indexed ones first."""
        self.base.load()
        parts = self.base, self.tail
        ids = np.concatenate([part.ids[part.live] for part in parts])
        return ids, np.concatenate([part.vectors[part.live] for part in parts])

    def graph_ids(self) -> Ids | None:
        """The ids of the nodes of the graph; None unless it covers exactly the live rows."""
        self.warm()
        is_covered = not self.tail.count and self.base.live_count == self.base.count
        return self.base.ids if is_covered and not self._content.profile.copies else None

    def graph(self) -> tuple[Adjacency, GraphShape] | None:
        """The graph in memory; None unless it is one of exactly the live rows."""
        is_there = self._content.profile.index is not None and has_faiss() and self.graph_ids() is not None
        graph = self.base.graph if is_there else None
        return None if graph is None else (graph.adjacency(), graph.shape)

    # -- search --------------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int, ef: int | None, recall: float | None, where: Any, exact: bool
    ) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest vectors: from blocks of the file at first, then from memory."""
        array = as_array(queries)
        matrix = writing.checked_matrix(array, self._content.dim, "queries")
        k = writing.whole_number(k, "k")
        effort = DEFAULT_EF if ef is None else writing.whole_number(ef, "ef")
        if k < 1 or effort < 1:
            raise ValueError(f"k and ef are at least 1, not {k} and {effort}")
        if recall is not None:
            if ef is not None:
                raise ValueError("give either ef= or recall=")
            if not 0 < recall <= 1:
                raise ValueError(f"recall is above 0 and at most 1, not {recall}")
            # The least effort that reaches it for every kind of probe; else every vector is compared.
            enough = [row for row in self._content.profile.efforts if min(row[1:]) >= recall]
            effort, exact = (int(enough[0][0]), exact) if enough else (EFFORTS[-1], True)
        if len(matrix):
            ids, distances = self._nearest(matrix, k, effort, where, exact)
        else:
            shape = (0, min(k, self.live_count))
            ids, distances = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        away = distances if distances.dtype == np.float32 else writing.to_f32(distances)
        return (ids[0], away[0]) if array.ndim == 1 and len(matrix) else (ids, away)

    def _nearest(self, queries: Floats, k: int, ef: int, where: Any, exact: bool) -> Answer:
        """Both parts search their rows that the filter allows, and the nearest of both count."""
        few = self._served + len(queries) <= COLD_QUERIES and self.live_count > 0
        is_narrow = self._content.profile.probe_share <= MAX_PROBE_SHARE
        if not self._is_warm and (exact or not few or self.base.cells is None or not is_narrow):
            self.warm()
        masks: tuple[Mask | None, Mask | None] = (None, None)
        total = self.live_count
        if where is not None:
            masks, total = self._masks(where)
        k = min(k, total)
        if not k:
            return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0))
        answer = self.base.search(queries, k, max(ef, k), masks[0], exact)
        if answer is None:  # parts of the file do not suffice
            self.warm()
            return self._nearest(queries, k, ef, where, exact)
        if not self._is_warm:
            self._served += len(queries)
        if self._counts_hits:
            self._hits.append(answer[0])
            if len(self._hits) >= _HITS_BUFFER:
                self._count_hits()
        early = self.base.name_rows(answer)
        if not self.tail.count:
            return early
        late = self.tail.search(queries, k, ef, masks[1], exact=True)
        assert late is not None
        return merge_nearest([early, self.tail.name_rows(late)], k)

    def _masks(self, where: Any) -> tuple[tuple[Mask, Mask], int]:
        """The rows of both parts that a filter allows, and how many there are."""
        live = self.live_ids()
        ids = live[self.allowed(where, live)]
        masks = np.zeros(self.base.count, bool), np.zeros(self.tail.count, bool)
        for mask, rows in zip(masks, self.find(ids), strict=True):
            mask[rows[rows >= 0]] = True
        return masks, len(ids)

    def allowed(self, where: Any, ids: Ids) -> Mask:
        """Which of these ids a filter allows: an SQL condition on metadata, or a list of ids."""
        if isinstance(where, str):
            return self.metadata.mask(where, ids)
        if not isinstance(where, np.ndarray | Sequence | Set) or isinstance(where, bytes):
            raise TypeError(f"where is an SQL condition or a list of ids, not {type(where).__name__}")
        wanted = writing.checked_ids(sorted(where) if isinstance(where, Set) else where)
        return np.isin(ids, wanted)

    # -- the graph -----------------------------------------------------------------------------------

    def warm(self) -> None:
        """Everything in memory, with the graph; loaded once."""
        if self._is_warm:
            return
        content, payload = self._content, self._content.graph()
        self.base.load()
        cells = self.base.cells
        if payload is not None and self._fits(payload):
            vectors, wanted = self.base.vectors, content.profile.copies
            copies = Copies.of(vectors) if wanted else None
            copies = copies if copies is not None and copies.count == wanted else None
            adjacency = payload.adjacency if copies is None else copies.unlinked(payload.adjacency)
            space = WalkSpace.of(vectors, content.profile.metric)
            graph = Graph.restore(space.place(vectors), space, adjacency, self._shape(payload))
            if cells is not None:
                cells.spread_entries(graph, copies)
            self.base.with_graph(graph, copies)
        self._is_warm = True

    def _fits(self, payload: GraphPayload) -> bool:
        """Whether the graph is one of the indexed rows and those that joined; that of another program may be stale."""
        content, nodes = self._content, payload.header.node_count
        if layout.INDEX_NAMES[payload.header.index_type] != "hnsw":
            return False
        if payload.trailer is not None:
            _, rows = self.find(payload.trailer.ids)
            if (rows < 0).any() or len(rows) != self.tail.live_count or len(rows) != nodes:
                return False
            self._base = RowPart(content.profile.metric, _rows_of(self.tail, rows))
            self._tail = RowPart(content.profile.metric, _rows_of(self.tail, rows[:0]))
            return True
        joined = nodes - self.base.count
        if (joined and not content.profile.graph_segments) or not 0 <= joined <= self.tail.count:
            if content.is_runtime:
                return False
            raise CorruptLayoutError("the graph does not fit its vectors", path=content.reader.name)
        self._join(joined)
        return True

    def _join(self, count: int) -> None:
        """The first rows of the tail become rows of the index."""
        if count:
            base, tail, metric = self.base, self.tail, self._content.profile.metric
            first, rest = np.arange(count), np.arange(count, tail.count)
            ids, live = np.append(base.ids, tail.ids[first]), np.append(base.live, tail.live[first])
            self._base = RowPart(
                metric, Loaded(ids, np.concatenate([base.vectors, tail.vectors[first]]), live)
            )
            self._base.cells = base.cells
            self._tail = RowPart(metric, _rows_of(tail, rest))

    def _shape(self, payload: GraphPayload) -> GraphShape:
        trailer, entry = payload.trailer, self._content.profile.graph_entry
        if trailer is not None:
            return GraphShape(trailer.m0 // 2, trailer.entry_ordinal, trailer.max_layer)
        if entry:
            return GraphShape(payload.header.m, entry[0], entry[1])
        layer = self._content.layer_a
        if layer is None or not layer.entry_points:
            raise CorruptLayoutError("the graph has no entry point", path=self._content.reader.name)
        first = layer.entry_points[0]
        return GraphShape(payload.header.m, first.node_id, first.layer)

    def is_due(self, least: int, share: float) -> bool:
        """Whether the rows behind the graph are so many that they should be added to it."""
        if self._content.profile.copies or self.tail.count < max(
            least, share * self.base.count, self._put_off
        ):
            return False
        self.warm()
        return self.base.graph is not None and self.tail.count >= max(least, share * self.base.count)

    def extended_graph(self) -> Graph | None:
        """The graph with the rows behind it, as they are in the file; None if two rows are equal."""
        self._tail = RowPart(
            self._content.profile.metric, self._content.load_rows(self._content.tail_entries)
        )
        vectors = np.concatenate([self.base.vectors, self._tail.vectors])
        if self.base.graph is None or not is_ordinary(vectors) or Copies.of(vectors).count:
            self._put_off = 2 * self._tail.count
            return None
        return self.base.graph.extended(self._tail.vectors)

    def join(self, graph: Graph) -> None:
        """The rows behind the graph are in it from now on."""
        cells = Cells.of(self._content)
        if cells is not None:
            cells.spread_entries(graph, None)
        self._join(self.tail.count)
        self.base.with_graph(graph, None)

    # -- counters ------------------------------------------------------------------------------------

    @property
    def sketch(self) -> AccessSketch:
        """How often each partition was read."""
        if self._sketch is None:
            self._sketch = self._content.sketch()
            self._counted_before = self._sketch.total_accesses
        return self._sketch

    def _count_hits(self) -> None:
        """Count the partitions of the indexed rows found since the last call."""
        if not self._hits:
            return
        rows = np.concatenate([hits.ravel() for hits in self._hits])
        self._hits.clear()
        layer = self._content.layer_a
        rows = rows[(rows >= 0) & (rows < self.base.count)]
        if len(rows) and layer is not None:
            starts = layer.partitions["id_start"]
            self.sketch.add(np.searchsorted(starts, rows.astype(np.uint64), side="right") - 1)

    def new_accesses(self) -> int:
        """Accesses counted since the counters were read from the file."""
        self._count_hits()
        if self._sketch is None:
            return 0
        return self.sketch.total_accesses - self._counted_before

    def hot_ids(self, limit: int) -> Ids:
        """Ids of the partitions read most, as many as may be hot."""
        self._count_hits()
        cells = Cells.of(self._content) if self.sketch.total_accesses else None
        if cells is None:
            return np.zeros(0, np.uint64)
        heat = self.sketch.estimate(np.arange(len(cells.starts)))
        hot = [cell for cell in np.argsort(-heat).tolist() if heat[cell] > layout.SKETCH_HOT]
        spans = [np.arange(cells.starts[cell], cells.ends[cell]) for cell in hot]
        rows = np.concatenate([np.zeros(0, np.int64), *spans])[:limit]
        self.base.know_ids()
        return np.asarray(self.base.ids[rows[self.base.live[rows]]], np.uint64)

    def stats(self) -> dict[str, Any]:
        """How queries are answered now."""
        profile = self._content.profile
        expected = {int(row[0]): min(row[1:]) for row in profile.efforts}
        return {
            "index": None if profile.index is None else profile.index.kind,
            "codes": None if profile.codes is None else profile.codes.kind,
            "layers": [name for number, name in enumerate("ABC") if number in self._content.layers],
            "stage": "memory" if self._is_warm else "partitions" if self._served else "closed",
            "queries_from_parts": self._served,
            "unindexed_segments": len(self._content.tail_entries),
            "late_bytes": sum(entry.payload_length for entry in self._content.late_entries),
            "recall": expected.get(DEFAULT_EF),
            "recall_by_effort": expected,
        }


def _rows_of(part: RowPart, rows: Ints) -> Loaded:
    return Loaded(part.ids[rows], part.vectors[rows], part.live[rows])
