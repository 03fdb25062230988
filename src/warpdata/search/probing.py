"""The first queries of a file: centroids, then only the partitions near the query; the rest stays unread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, segment
from warpdata.formats.rvf.layout import DirectoryEntry
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads import vec
from warpdata.formats.rvf.payloads.layout import BlockEntry
from warpdata.formats.rvf.reader import check_against_directory
from warpdata.search import quantise
from warpdata.search.content import Content, is_plain
from warpdata.search.engine import DEFAULT_PROBE_SHARE, Cells
from warpdata.search.metric import merge_nearest, nearest, prepared

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MAX_TAIL_BYTES = 256 << 10
"""With more unindexed rows than this, loading everything is the better first step."""
MAX_PROBE_SHARE = 0.25
"""Where neighbours are scattered over more of the partitions than this, everything is loaded at once."""
_CODE_PROBES = 4
"""With codes at hand, this many times more cells are looked at before full vectors are read."""
_RERANK = 4
_EXTRA_CELLS = 2
_GRAPH_FROM_QUERY = 2
"""From this query on, layer B and the hot set widen the probe."""


@dataclass(frozen=True, slots=True)
class _Cell:
    rows: Ints
    ids: Ints
    vectors: Floats


class Prober:
    """Search that reads as little as it can."""

    def __init__(self, content: Content) -> None:
        layer = content.layer_a
        if layer is None:
            raise ValueError("the store has no partitions")
        self._content = content
        self._metric = content.profile.metric
        self.cells = cells_of(content)
        self._partitions = layer.partitions
        self._by_id = {entry.segment_id: entry for entry in content.row_entries}
        self._directories: dict[int, list[BlockEntry]] = {}
        self._loaded: dict[int, _Cell] = {}
        self._codes: dict[int, Floats] = {}
        self._tail = content.load_tail()
        self.queries = 0
        self.probed: list[Ints] = []

    @classmethod
    def serves(cls, content: Content) -> bool:
        """Whether a store can be searched this way."""
        tail = sum(entry.payload_length for entry in content.tail_entries)
        plain = all(is_plain(entry) for entry in content.base_entries)
        worth = content.profile.probe_share <= MAX_PROBE_SHARE and tail <= MAX_TAIL_BYTES
        return 0 in content.layers and plain and worth and bool(content.base_entries)

    def search(self, queries: Floats, k: int, ef: int) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest live vectors of prepared queries."""
        ids = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf, np.float32)
        for number, query in enumerate(queries):
            self.queries += 1
            found, away = self._one(query, k, ef)
            ids[number, : len(found)], distances[number, : len(found)] = found, away
        return ids, distances

    def _one(self, query: Floats, k: int, ef: int) -> tuple[Ints, Floats]:
        order = self.cells.order(query, self._metric)
        count = self.cells.enough(order, ef)
        chosen = self._by_codes(query, order, count, k) if self._has_codes else order[:count]
        while True:
            ids, vectors = self._gather(chosen)
            if len(ids) >= k or len(chosen) >= len(order):
                break
            count *= 2
            chosen = order[:count]
        rows, away = nearest(query[None], vectors, k, self._metric)
        if self.queries >= _GRAPH_FROM_QUERY:
            chosen, wider = self._widened(query, chosen, rows[0])
            if wider:
                ids, vectors = self._gather(chosen)
                rows, away = nearest(query[None], vectors, k, self._metric)
        self.probed.append(chosen)
        found, distances = merge_nearest([(ids[rows], away), self._tail_part(query, k)], k)
        good = found[0] >= 0
        return found[0][good], distances[0][good]

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
        return lists.layer_counts, lists.starts, lists.sizes, lists.neighbors

    def _tail_part(self, query: Floats, k: int) -> tuple[Ints, Floats]:
        tail = self._tail
        vectors = prepared(tail.tail_vectors, self._metric)
        rows, away = nearest(query[None], vectors, k, self._metric, tail.live)
        return np.where(rows < 0, -1, tail.tail_ids[rows] if len(tail) else rows), away

    def _gather(self, cells: Ints) -> tuple[Ints, Floats]:
        self._load(cells)
        found = [self._loaded[int(cell)] for cell in cells]
        return np.concatenate([c.ids for c in found]), np.concatenate([c.vectors for c in found])

    def _load(self, cells: Ints) -> None:
        missing = [int(cell) for cell in cells if int(cell) not in self._loaded]
        places = [self._place(cell, self._by_id) for cell in missing]
        found = self._content.reader.read_many([place[0] for place in places])
        for cell, (_, entry), data in zip(missing, places, found, strict=True):
            block = vec.decode_block(
                data, entry, code_bytes=self._content.code_bytes, where=self._content.reader.name
            )
            alive = ~self._content.base_is_dead(block.ids, self._tail)
            vectors = self._content.vectors_of(block)[alive]
            rows = int(self.cells.starts[cell]) + np.flatnonzero(alive)
            ids = block.ids[alive].astype(np.int64)
            self._loaded[cell] = _Cell(rows, ids, prepared(vectors, self._metric))

    def _place(self, cell: int, entries: dict[int, DirectoryEntry]) -> tuple[tuple[int, int], BlockEntry]:
        """The byte range of the block of a cell."""
        part = self._partitions[cell]
        return self._block_place(entries.get(int(part["segment_ref"])), int(part["block_ref"]), part)

    def _block_place(
        self, entry: DirectoryEntry | None, number: int, part: Any
    ) -> tuple[tuple[int, int], BlockEntry]:
        where = self._content.reader.name
        if entry is None:
            raise CorruptLayoutError("a partition names a segment that does not exist", path=where)
        blocks = self._directory(entry)
        if number >= len(blocks):
            raise CorruptLayoutError("a partition names a block that does not exist", path=where)
        block = blocks[number]
        if block.vector_count != int(part["id_end"]) - int(part["id_start"]):
            raise CorruptLayoutError("a partition and its block differ in size", path=where)
        start = entry.file_offset + layout.HEADER_BYTES
        end = vec.block_ends(blocks, entry.payload_length)[number]
        return (start + block.block_offset, start + end), block

    def _directory(self, entry: DirectoryEntry) -> list[BlockEntry]:
        found = self._directories.get(entry.segment_id)
        if found is None:
            size = layout.COUNT_U32.size + entry.block_count * records.BLOCK_ENTRY.size
            start = entry.file_offset
            size = min(size, entry.payload_length)
            data = self._content.reader.read(start, start + layout.HEADER_BYTES + size)
            header = segment.unpack_header(data, self._content.reader.name)
            check_against_directory(header, entry, self._content.reader.name)
            found = vec.read_directory(
                data[layout.HEADER_BYTES :], entry.payload_length, self._content.reader.name
            )
            self._directories[entry.segment_id] = found
        return found

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
        entries = {e.segment_id: e for e in content.snapshot.segments}
        shift = dict(zip(content.profile.row_segments, content.profile.code_segments, strict=True))
        missing = [int(cell) for cell in cells if int(cell) not in self._codes]
        places = []
        for cell in missing:
            part = self._partitions[cell]
            holder = entries.get(shift.get(int(part["segment_ref"]), -1))
            places.append(self._block_place(holder, int(part["block_ref"]), part))
        found = content.reader.read_many([place[0] for place in places])
        quant = content.quantiser
        if quant is None:
            raise CorruptLayoutError("the quantiser of these codes is missing", path=content.reader.name)
        for cell, (_, entry), data in zip(missing, places, found, strict=True):
            block = vec.decode_block(data, entry, code_bytes=quant.code_bytes, where=content.reader.name)
            decoded = quantise.decode(quant, np.ascontiguousarray(block.rows))
            self._codes[cell] = prepared(decoded, self._metric)

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


def cells_of(content: Content) -> Cells:
    """The partitions of layer A, ready to be compared with prepared queries."""
    layer = content.layer_a
    if layer is None:
        raise ValueError("the store has no partitions")
    parts = layer.partitions
    centroid = parts["centroid_id"].astype(np.int64)
    starts, ends = parts["id_start"].astype(np.int64), parts["id_end"].astype(np.int64)
    edges = np.append(starts, layer.header.node_count)
    touching = len(starts) and starts[0] == 0 and np.array_equal(ends, edges[1:])
    if not touching or centroid.max() >= len(layer.centroids) or (ends <= starts).any():
        raise CorruptLayoutError("the partition map contradicts itself", path=content.reader.name)
    share = content.profile.probe_share or DEFAULT_PROBE_SHARE
    return Cells(layer.centroids.astype(np.float32), centroid, starts, ends, share)
