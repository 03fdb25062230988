"""The first queries of a file: centroids, then only the partitions near the query; the rest stays unread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.search import quantise
from warpdata.search.blocks import BlockReader, Place
from warpdata.search.content import Content, is_plain
from warpdata.search.in_memory import DEFAULT_PROBE_SHARE, Cells
from warpdata.search.metric import merge_nearest, nearest, prepared
from warpdata.search.rows import RowData

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_PROBE_SHARE = 0.25
"""Where neighbours are scattered over more of the partitions than this, everything is loaded at once."""
_CODE_PROBES = 4
"""With codes at hand, this many times more cells are looked at before full vectors are read."""
_RERANK = 4
_EXTRA_CELLS = 2
_GRAPH_FROM_QUERY = 2
"""From this query on, layer B and the hot set widen the probe."""
_NONE = np.zeros(0, np.int64)
_NEIGHBORS = 10
_ROUNDING = 1e-5
_APART = 2.0
"""A query this many times as far (squared) from the nearest row as rows lie from each other is outside of the data."""


@dataclass(frozen=True, slots=True)
class _Cell:
    rows: Ints
    ids: Ints
    vectors: Floats


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a filter lets through: the live ids, ascending, and how many of them each cell holds."""

    ids: NDArray[np.uint64]
    in_cells: Ints


class Prober:
    """Search that reads as little as it can."""

    def __init__(self, content: Content, blocks: BlockReader, tail: RowData, probed: list[Ints]) -> None:
        self._content = content
        self._blocks = blocks
        self._metric = content.profile.metric
        self.cells = cells_of(content)
        self._partitions = content.need_layer_a().partitions
        self._loaded: dict[int, _Cell] = {}
        self._codes: dict[int, Floats] = {}
        self._tail = tail
        self.queries = 0
        self._probed = probed

    @classmethod
    def serves(cls, content: Content) -> bool:
        """Whether a store can be searched this way."""
        plain = all(is_plain(entry) for entry in content.base_entries)
        worth = content.profile.probe_share <= MAX_PROBE_SHARE
        return 0 in content.layers and plain and worth and bool(content.base_entries)

    def is_worth(self, queries: Floats, ef: int, allowed: Allowed) -> bool:
        """Whether these queries need so few cells under a filter that reading them alone pays."""
        sizes = self.cells.ends - self.cells.starts
        return all(
            sizes[self._chosen(query, ef, allowed)].sum() <= MAX_PROBE_SHARE * sizes.sum()
            for query in queries
        )

    def search(
        self, queries: Floats, k: int, ef: int, allowed: Allowed | None = None
    ) -> tuple[Ints, Doubles] | None:
        """Ids and distances of the nearest live vectors of queries; None if everything must be read.

        Cells were measured with vectors like those stored. The neighbours of a query far from all of them
        are scattered over many cells, and only a search in everything finds them.
        """
        ids = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf)
        for number, query in enumerate(queries):
            self.queries += 1
            answer = self._one(query, k, ef) if allowed is None else self._filtered(query, k, ef, allowed)
            if answer is None:
                return None
            found, away = answer
            ids[number, : len(found)], distances[number, : len(found)] = found, away
        return ids, distances

    def _is_inside(self, query: Floats, vectors: Floats, chosen: Ints) -> bool:
        """Whether the query lies among the rows of the chosen cells, as rows lie among each other there."""
        if len(chosen) >= len(self.cells.starts):
            return True
        if self._metric == "ip" or len(vectors) <= _NEIGHBORS:
            return False
        moved = prepared(vectors, self._metric) - prepared(query[None], self._metric)
        away = np.einsum("ij,ij->i", moved, moved)
        hits = np.argpartition(away, _NEIGHBORS)[:_NEIGHBORS]
        apart = away[hits, None] + away - 2 * (moved[hits] @ moved.T)
        apart.partition(_NEIGHBORS, axis=1)
        rounding = _ROUNDING * float(away[hits].max())
        return bool(away[hits].min() <= _APART * np.median(apart[:, _NEIGHBORS]) + rounding)

    def _chosen(self, query: Floats, ef: int, allowed: Allowed) -> Ints:
        """The nearest cells that together hold as many allowed rows as a search without filter looks at.

        The largest inner products lie anywhere: there every cell with an allowed row is looked into.
        """
        order = self.cells.order(prepared(query[None], self._metric)[0], self._metric)
        order = order[allowed.in_cells[order] > 0]
        return order if self._metric == "ip" else order[: self.cells.enough(order, ef, allowed.in_cells)]

    def _filtered(self, query: Floats, k: int, ef: int, allowed: Allowed) -> tuple[Ints, Doubles] | None:
        chosen = self._chosen(query, ef, allowed)
        ids, vectors = self._gather(chosen)
        if len(chosen) < (allowed.in_cells > 0).sum() and not self._is_inside(query, vectors, chosen):
            return None
        may = np.isin(ids, allowed.ids.astype(np.int64))
        if may.sum() != allowed.in_cells[chosen].sum():
            raise CorruptLayoutError(
                "the id directory does not fit the blocks", path=self._content.reader.name
            )
        rows, away = nearest(query[None], vectors, k, self._metric, may)
        self._probed.append(chosen)
        live = self._tail.live & np.isin(self._tail.tail_ids, allowed.ids.astype(np.int64))
        base = np.where(rows < 0, -1, ids[rows] if len(ids) else rows)
        return _merged([(base, away), self._tail_part(query, k, live)], k)

    def _one(self, query: Floats, k: int, ef: int) -> tuple[Ints, Doubles] | None:
        order = self.cells.order(prepared(query[None], self._metric)[0], self._metric)
        count = self.cells.enough(order, ef)
        chosen = self._by_codes(query, order, count, k) if self._has_codes else order[:count]
        while True:
            ids, vectors = self._gather(chosen)
            if len(ids) >= k or len(chosen) >= len(order):
                break
            count *= 2
            chosen = order[:count]
        if not self._is_inside(query, vectors, chosen):
            return None
        rows, away = nearest(query[None], vectors, k, self._metric)
        if self.queries >= _GRAPH_FROM_QUERY:
            chosen, wider = self._widened(query, chosen, rows[0])
            if wider:
                ids, vectors = self._gather(chosen)
                rows, away = nearest(query[None], vectors, k, self._metric)
        self._probed.append(chosen)
        return _merged([(ids[rows], away), self._tail_part(query, k, self._tail.live)], k)

    def _widened(self, query: Floats, chosen: Ints, hits: Ints) -> tuple[Ints, bool]:
        """More cells: those of hot vectors near the query, and those the neighbours of the hits live in."""
        rows = np.concatenate([self._loaded[int(cell)].rows for cell in chosen])
        extra = np.concatenate([self._hot_cells(query), self._linked_cells(rows[hits])])
        _, first = np.unique(extra, return_index=True)
        extra = extra[np.sort(first)]
        extra = extra[~np.isin(extra, chosen)][:_EXTRA_CELLS]
        return np.concatenate([chosen, extra]), bool(len(extra))

    def _linked_cells(self, hits: Ints) -> Ints:
        """Cells of the neighbours that layer B lists for the rows found, most often named first."""
        lists = self._layer_b
        if lists is None:
            return np.zeros(0, np.int64)
        counts, starts, sizes, neighbors = lists
        listed = hits[counts[hits] > 0]
        first = np.cumsum(counts)[listed] - counts[listed]
        found = [neighbors[starts[at] : starts[at] + sizes[at]] for at in first.tolist()]
        if not found:
            return np.zeros(0, np.int64)
        cells = np.searchsorted(self.cells.starts, np.concatenate(found), side="right") - 1
        names, times = np.unique(cells, return_counts=True)
        return names[np.argsort(-times, kind="stable")]

    @cached_property
    def _layer_b(self) -> tuple[Ints, Ints, Ints, Ints] | None:
        payload = self._content.graph(1)
        if payload is None:
            return None
        lists = payload.adjacency
        if lists.node_count != int(self.cells.ends[-1]):
            raise CorruptLayoutError("layer B does not fit the partitions", path=self._content.reader.name)
        return lists.layer_counts, lists.starts, lists.sizes, lists.neighbors

    def _tail_part(self, query: Floats, k: int, live: NDArray[np.bool_]) -> tuple[Ints, Doubles]:
        tail = self._tail
        rows, away = nearest(query[None], tail.tail_vectors, k, self._metric, live)
        return np.where(rows < 0, -1, tail.tail_ids[rows] if len(tail) else rows), away

    def _gather(self, cells: Ints) -> tuple[Ints, Floats]:
        self._load(cells)
        found = [self._loaded[int(cell)] for cell in cells]
        none = _Cell(_NONE, _NONE, np.zeros((0, self._content.dim), np.float32))
        found = found or [none]
        return np.concatenate([c.ids for c in found]), np.concatenate([c.vectors for c in found])

    def _load(self, cells: Ints) -> None:
        missing = [int(cell) for cell in cells if int(cell) not in self._loaded]
        found = self._blocks.rows([self._place(cell) for cell in missing])
        for cell, block in zip(missing, found, strict=True):
            self._check_size(cell, len(block.ids))
            alive = ~self._content.base_is_dead(block.ids, self._tail)
            rows = int(self.cells.starts[cell]) + np.flatnonzero(alive)
            vectors = block.vectors if alive.all() else block.vectors[alive]
            ids = block.ids[alive].astype(np.int64)
            self._loaded[cell] = _Cell(rows, ids, vectors)

    def _place(self, cell: int) -> Place:
        part = self._partitions[cell]
        return int(part["segment_ref"]), int(part["block_ref"])

    def _check_size(self, cell: int, count: int) -> None:
        if count != int(self.cells.ends[cell] - self.cells.starts[cell]):
            raise CorruptLayoutError(
                "a partition and its block differ in size", path=self._content.reader.name
            )

    @property
    def _has_codes(self) -> bool:
        codes = self._content.profile.codes
        return codes is not None and codes.keep_full and bool(self._content.profile.code_segments)

    def _by_codes(self, query: Floats, order: Ints, count: int, k: int) -> Ints:
        """The cells whose codes look nearest, out of more cells than full vectors would be read of."""
        wide = order[: count * _CODE_PROBES]
        self._load_codes(wide)
        owners = np.concatenate([np.full(len(self._codes[int(c)]), c) for c in wide])
        approximate = np.concatenate([self._codes[int(c)] for c in wide])
        rows, _ = nearest(query[None], approximate, _RERANK * k, self._metric)
        cells, first = np.unique(owners[rows[0]], return_index=True)
        return cells[np.argsort(first)][: max(count, 1)]

    def _load_codes(self, cells: Ints) -> None:
        content = self._content
        quant = content.need_quantiser()
        holder = dict(zip(content.profile.row_segments, content.profile.code_segments, strict=True))
        missing = [int(cell) for cell in cells if int(cell) not in self._codes]
        places = [(holder.get(segment, -1), number) for segment, number in map(self._place, missing)]
        for cell, block in zip(missing, self._blocks.read(places, quant.code_bytes), strict=True):
            self._check_size(cell, len(block.ids))
            decoded = quantise.decode(quant, np.ascontiguousarray(block.rows))
            self._codes[cell] = decoded

    def _hot_cells(self, query: Floats) -> Ints:
        """Cells that hot vectors near the query live in, nearest first."""
        if self._hot is None:
            return np.zeros(0, np.int64)
        vectors, cells = self._hot
        rows, _ = nearest(query[None], vectors, _EXTRA_CELLS * 4, self._metric)
        near: Ints = cells[rows[0]]
        return near

    @cached_property
    def _hot(self) -> tuple[Floats, Ints] | None:
        return self._read_hot()

    def _read_hot(self) -> tuple[Floats, Ints] | None:
        hot = self._content.hot_set()
        if hot is None or not len(hot.ids):
            return None
        vectors = prepared(hot.vectors.astype(np.float32), self._metric)
        owner, _ = nearest(vectors, self.cells.centroids, 1, "l2")
        first_cell = np.searchsorted(self.cells.centroid_of_cell, owner[:, 0])
        return vectors, np.minimum(first_cell, len(self._partitions) - 1)


def _merged(parts: list[tuple[Ints, Doubles]], k: int) -> tuple[Ints, Doubles]:
    """The k nearest of what was found in cells and tail."""
    found, distances = merge_nearest(parts, k)
    good = found[0] >= 0
    return found[0][good], distances[0][good]


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
