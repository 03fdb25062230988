"""Answers from parts of a file: first queries, also under a condition, and single vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.vec import IdDirectory
from warpdata.search.file import quantise
from warpdata.search.file.blocks import BlockReader, Place
from warpdata.search.file.content import Content, is_plain
from warpdata.search.file.rows import RowData
from warpdata.search.query.cells import Cells, cells_of, choose_cells, probe_cells
from warpdata.search.query.distance import merge_nearest, nearest, prepared

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]

COLD_QUERIES = 8
"""This many queries are answered from partitions; then everything is loaded once."""
MAX_TAIL_BYTES = 256 << 10
"""With more unindexed rows than this, loading everything is the better first step."""
MAX_PROBE_SHARE = 0.25
"""Where neighbours are scattered over more of the partitions than this, everything is loaded at once."""
_CODE_PROBES = 4
"""With codes at hand, this many times more cells are looked at before full vectors are read."""
_RERANK = 4
_NEIGHBORS = 10
_ROUNDING = 1e-5
_APART = 2.0
"""A query this many times as far (squared) from the nearest row as rows lie from each other is outside of the data."""


class PartialReader:
    """Answers from as few bytes of one content as it can."""

    def __init__(self, content: Content, probed: list[Ints], served: int = 0) -> None:
        self._content = content
        self._probed = probed
        self._blocks = BlockReader(content)
        self._metric = content.profile.metric
        self._codes: dict[int, Floats] = {}
        self._live: dict[int, tuple[Ints, Floats]] = {}
        """Ids and vectors of the live rows of the cells read so far."""
        self.served = served

    # -- queries -------------------------------------------------------------------------------------

    def takes(self, count: int) -> bool:
        """Whether this many more queries are answered from partitions."""
        content = self._content
        if self.served + count > COLD_QUERIES or not self._tail_is_small or not content.base_entries:
            return False
        worth = content.profile.probe_share <= MAX_PROBE_SHARE
        return 0 in content.layers and worth and all(is_plain(entry) for entry in content.base_entries)

    def search(
        self, queries: Floats, k: int, ef: int, choose: Callable[[Ids], Mask] | None
    ) -> tuple[Ints, Doubles] | None:
        """Ids and distances of the nearest live vectors; `choose` tells which ids may be results.

        None if everything must be read: cells were measured with vectors like those stored. The neighbours of a query
        far from all of them are scattered over many cells, and only a search in everything finds them.
        """
        allowed = sizes = None
        if choose is not None:
            if not self.knows_ids:
                return None
            allowed = self.live_ids[choose(self.live_ids)].astype(np.int64)
            sizes = self._allowed_in_cells(allowed)
            if not all(self._is_worth(query, ef, sizes) for query in queries):
                return None
        self.served += len(queries)
        count = min(k, self._content.snapshot.live_count if allowed is None else len(allowed))
        ids = np.full((len(queries), count), -1, np.int64)
        distances = np.full((len(queries), count), np.inf)
        for number, query in enumerate(queries if count else ()):
            answer = self._search_one(query, count, max(ef, count), allowed, sizes)
            if answer is None:
                return None
            found, away = answer
            ids[number, : len(found)], distances[number, : len(found)] = found, away
        return ids, distances

    def _search_one(
        self, query: Floats, k: int, ef: int, allowed: Ints | None, sizes: Ints | None
    ) -> tuple[Ints, Doubles] | None:
        if allowed is None and self._has_codes:
            chosen = self._by_codes(query, k, ef)
            ids, vectors = self._gather(chosen)
        else:
            probe = probe_cells(self.cells, query, k, ef, self._metric, self._gather, sizes)
            chosen, ids, vectors = probe.cells, probe.names, probe.vectors
        total = len(self.cells.starts) if sizes is None else int((sizes > 0).sum())
        if len(chosen) < total and not self._is_inside(query, vectors):
            return None
        may = None if allowed is None else np.isin(ids, allowed)
        if may is not None and sizes is not None and may.sum() != sizes[chosen].sum():
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
        rows, away = nearest(query[None], vectors, k, self._metric, may)
        self._probed.append(chosen)
        tail = self._tail
        live = tail.live if allowed is None else tail.live & np.isin(tail.tail_ids, allowed)
        late, far = nearest(query[None], tail.tail_vectors, k, self._metric, live)
        parts = [(_named(ids, rows), away), (_named(tail.tail_ids, late), far)]
        found, distances = merge_nearest(parts, k)
        good = found[0] >= 0
        return found[0][good], distances[0][good]

    def _is_inside(self, query: Floats, vectors: Floats) -> bool:
        """Whether the query lies among these rows, as they lie among each other."""
        if self._metric == "ip" or len(vectors) <= _NEIGHBORS:
            return False
        moved = prepared(vectors, self._metric) - prepared(query[None], self._metric)
        away = np.einsum("ij,ij->i", moved, moved)
        hits = np.argpartition(away, _NEIGHBORS)[:_NEIGHBORS]
        apart = away[hits, None] + away - 2 * (moved[hits] @ moved.T)
        apart.partition(_NEIGHBORS, axis=1)
        rounding = _ROUNDING * float(away[hits].max())
        return bool(away[hits].min() <= _APART * np.median(apart[:, _NEIGHBORS]) + rounding)

    def _is_worth(self, query: Floats, ef: int, sizes: Ints) -> bool:
        """Whether a query under a condition needs so few cells that reading them alone pays."""
        order = choose_cells(self.cells, query, self._metric, sizes)
        count = len(order) if self._metric == "ip" else self.cells.enough(order, ef, sizes)
        rows = self.cells.ends - self.cells.starts
        return bool(rows[order[:count]].sum() <= MAX_PROBE_SHARE * rows.sum())

    @cached_property
    def cells(self) -> Cells:
        """Partitions of the indexed rows."""
        return cells_of(self._content)

    @cached_property
    def _partitions(self) -> NDArray[np.void]:
        return self._content.need_layer_a().partitions

    @property
    def has_cells(self) -> bool:
        """Whether cells were read."""
        return bool(self._live)

    def _allowed_in_cells(self, allowed: Ints) -> Ints:
        at, in_base = self._base_position(allowed.astype(np.uint64))
        cells = self._cell_of_block[self._directory.blocks[at[in_base]]]
        return np.bincount(cells, minlength=len(self._partitions))

    @cached_property
    def _cell_of_block(self) -> Ints:
        places = {place: number for number, place in enumerate(self._places)}
        out = np.zeros(len(self._places), np.int64)
        for cell in range(len(self._partitions)):
            number = places.get(self._place(cell))
            if number is None:
                raise CorruptLayoutError("a partition names a block that does not exist", path=self._where)
            out[number] = cell
        return out

    def _gather(self, cells: Ints) -> tuple[Ints, Floats]:
        """Ids and vectors of the live rows of these cells."""
        missing = [int(cell) for cell in cells if int(cell) not in self._live]
        blocks = self._blocks.rows([self._place(cell) for cell in missing])
        for cell, block in zip(missing, blocks, strict=True):
            self._check_size(cell, len(block.ids))
            alive = ~self._content.base_is_dead(block.ids, self._tail)
            self._live[cell] = block.ids[alive].astype(np.int64), block.vectors[alive]
        parts = [self._live[int(cell)] for cell in cells]
        ids = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
        vectors = np.concatenate([np.zeros((0, self._content.dim), np.float32), *(part[1] for part in parts)])
        return ids, vectors

    def _place(self, cell: int) -> Place:
        part = self._partitions[cell]
        return int(part["segment_ref"]), int(part["block_ref"])

    def _check_size(self, cell: int, count: int) -> None:
        if count != int(self.cells.ends[cell] - self.cells.starts[cell]):
            raise CorruptLayoutError("a partition and its block differ in size", path=self._where)

    @property
    def _has_codes(self) -> bool:
        codes = self._content.profile.codes
        return codes is not None and codes.keep_full and bool(self._content.profile.code_segments)

    def _by_codes(self, query: Floats, k: int, ef: int) -> Ints:
        """The cells whose codes look nearest, out of more cells than full vectors would be read of."""
        order = choose_cells(self.cells, query, self._metric)
        count = self.cells.enough(order, ef)
        wide = order[: count * _CODE_PROBES]
        self._load_codes(wide)
        owners = np.concatenate([np.full(len(self._codes[int(cell)]), cell) for cell in wide])
        approximate = np.concatenate([self._codes[int(cell)] for cell in wide])
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
            self._codes[cell] = quantise.decode(quant, np.ascontiguousarray(block.rows))

    # -- single vectors ------------------------------------------------------------------------------

    @property
    def knows_ids(self) -> bool:
        """Whether ids are found without reading every row."""
        plain = all(is_plain(entry) for entry in self._content.base_entries)
        return bool(self._content.profile.id_segment) and plain and self._tail_is_small

    @property
    def is_thrifty(self) -> bool:
        """Whether the parts read so far are still few."""
        total = sum(entry.payload_length for entry in self._content.base_entries)
        return self._blocks.held_bytes <= MAX_PROBE_SHARE * total  # type: ignore[no-any-return]

    def exist(self, ids: Ids) -> Mask:
        """Which of these ids are of live vectors."""
        _, in_base = self._base_position(ids)
        return in_base | (self._tail.table.find(ids) >= 0)

    @cached_property
    def live_ids(self) -> Ids:
        """The ids of all live vectors, ascending."""
        base = self._directory.ids
        base = base[~self._content.base_is_dead(base, self._tail)]
        return np.sort(np.concatenate([base, self._tail.table.ids[self._tail.table.alive]]))

    def take(self, ids: Ids) -> Floats | None:
        """The vectors of ids that exist; None if they lie in so many blocks that all should be read."""
        at, in_base = self._base_position(ids)
        blocks = self._directory.blocks[at[in_base]].astype(np.int64)
        used, which = np.unique(blocks, return_inverse=True)
        if len(used) > max(1, MAX_PROBE_SHARE * len(self._places)):
            return None
        out = np.empty((len(ids), self._content.dim), np.float32)
        wanted = ids[in_base]
        target = np.flatnonzero(in_base)
        for number, block in enumerate(self._blocks.rows([self._places[each] for each in used.tolist()])):
            mine = which == number
            out[target[mine]] = block.vectors[self._positions(block.ids, wanted[mine])]
        rest = ~in_base
        out[rest] = self._tail.take(self._tail.table.find(ids[rest]))
        return out

    def _positions(self, held: Ids, wanted: Ids) -> Ints:
        at = np.minimum(np.searchsorted(held, wanted), max(0, len(held) - 1))
        if not len(held) or (held[at] != wanted).any():
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
        return at

    def _base_position(self, ids: Ids) -> tuple[Ints, Mask]:
        """Where ids are in the directory, and which of them are of live rows the directory lists."""
        known = self._directory.ids
        if not len(known):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return at, (known[at] == ids) & ~self._content.base_is_dead(ids, self._tail)

    @property
    def _directory(self) -> IdDirectory:
        found = self._content.id_directory
        assert found is not None
        return found

    @cached_property
    def _places(self) -> list[Place]:
        """Every block of the indexed rows, in the order the directory counts them."""
        return [
            (entry.segment_id, number)
            for entry in self._content.base_entries
            for number in range(entry.block_count)
        ]

    @cached_property
    def _tail(self) -> RowData:
        return self._content.load_tail()

    @property
    def _tail_is_small(self) -> bool:
        return sum(entry.payload_length for entry in self._content.tail_entries) <= MAX_TAIL_BYTES  # type: ignore[no-any-return]

    @property
    def _where(self) -> str:
        return self._content.reader.name


def _named(names: Ints, rows: Ints) -> Ints:
    """Names of rows; -1 where there is no row."""
    return np.where(rows < 0, -1, names[rows]) if len(names) else rows
