"""FileParts of a file: cells and single vectors are read without the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.layout import Flag
from warpdata.formats.rvf.vec import IdDirectory
from warpdata.search.file.content import Content, Place
from warpdata.search.file.rows import RowData
from warpdata.search.query.cells import Cells
from warpdata.search.query.distance import merge_nearest, nearest, prepared

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]

COLD_QUERIES = 8
"""This many queries are answered from partitions; then everything is loaded once."""
MAX_TAIL_BYTES = 256 << 10
"""With more rows behind the partitions than this, loading everything is the better first step."""
MAX_PROBE_SHARE = 0.25
"""Where neighbours are scattered over more of the partitions than this, everything is loaded at once."""
_NEIGHBORS = 10
_ROUNDING = 1e-5
_APART = 2.0
"""A query so many times as far (squared) from the nearest row as rows are from each other is outside of the data."""


class FileParts:
    """The blocks of one content that were read so far; a query, a vector or the ids need few of them."""

    def __init__(self, content: Content, served: int = 0, probed: list[Ints] | None = None) -> None:
        self._content = content
        self._metric = content.profile.metric
        self._blocks: dict[Place, tuple[Ids, Floats]] = {}
        self._live: dict[int, tuple[Ints, Floats]] = {}
        """Ids and vectors of the live rows of the cells read so far."""
        self._bytes = 0
        self.probed = [] if probed is None else probed
        self.served = served

    @cached_property
    def _is_plain(self) -> bool:
        """Whether parts of the segments can be read by themselves, and little came behind the partitions."""
        content = self._content
        plain = all(not e.flags & (Flag.COMPRESSED | Flag.ENCRYPTED) for e in content.base_entries)
        return plain and sum(entry.payload_length for entry in content.late_entries) <= MAX_TAIL_BYTES

    @property
    def knows_ids(self) -> bool:
        """Whether ids are found without reading every row."""
        return bool(self._content.profile.id_segment) and self._is_plain

    @property
    def is_thrifty(self) -> bool:
        """Whether the parts read so far are still few."""
        total = sum(entry.payload_length for entry in self._content.base_entries)
        return bool(self._bytes <= MAX_PROBE_SHARE * total)

    @property
    def has_cells(self) -> bool:
        """Whether cells were read."""
        return bool(self._live)

    def takes(self, count: int) -> bool:
        """Whether this many more queries are answered from partitions."""
        content = self._content
        if self.served + count > COLD_QUERIES or not content.base_entries or not self._is_plain:
            return False
        return 0 in content.layers and content.profile.probe_share <= MAX_PROBE_SHARE

    def search(
        self, queries: Floats, k: int, ef: int, choose: Callable[[Ids], Mask] | None
    ) -> tuple[Ints, Doubles] | None:
        """Ids and distances of the nearest live vectors; `choose` marks which ids may be results.

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
            near, away = answer
            ids[number, : len(near)], distances[number, : len(near)] = near, away
        return ids, distances

    def _search_one(
        self, query: Floats, k: int, ef: int, allowed: Ints | None, sizes: Ints | None
    ) -> tuple[Ints, Doubles] | None:
        chosen, ids, vectors = self.cells.probe(query, k, ef, self._metric, self._gather, sizes)
        total = len(self.cells.starts) if sizes is None else int((sizes > 0).sum())
        if len(chosen) < total and not self._is_inside(query, vectors):
            return None
        may = None if allowed is None else np.isin(ids, allowed)
        if may is not None and sizes is not None and may.sum() != sizes[chosen].sum():
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
        rows, away = nearest(query[None], vectors, k, self._metric, may)
        self.probed.append(chosen)
        late = self._late
        live = late.live if allowed is None else late.live & np.isin(late.ids, allowed)
        behind, far = nearest(query[None], late.take(np.arange(len(late))), k, self._metric, live)
        parts = [(_named(ids, rows), away), (_named(late.ids, behind), far)]
        merged, distances = merge_nearest(parts, k)
        good = merged[0] >= 0
        return merged[0][good], distances[0][good]

    def _is_inside(self, query: Floats, vectors: Floats) -> bool:
        """Whether the query is among these rows, as they are among each other."""
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
        order = self.cells.order(query, self._metric, sizes)
        count = len(order) if self._metric == "ip" else self.cells.enough(order, ef, sizes)
        rows = self.cells.ends - self.cells.starts
        return bool(rows[order[:count]].sum() <= MAX_PROBE_SHARE * rows.sum())

    @cached_property
    def cells(self) -> Cells:
        """Partitions of the indexed rows."""
        cells = Cells.of(self._content)
        assert cells is not None
        return cells

    def _allowed_in_cells(self, allowed: Ints) -> Ints:
        at, in_base = self._base_position(allowed.astype(np.uint64))
        layer = self._content.layer_a
        assert layer is not None
        numbers = {place: number for number, place in enumerate(self._places)}
        cell_of_block = np.zeros(len(self._places), np.int64)
        for cell in range(len(layer.partitions)):
            number = numbers.get(self._place(cell))
            if number is None:
                raise CorruptLayoutError("a partition names a block that does not exist", path=self._where)
            cell_of_block[number] = cell
        cells = cell_of_block[self._directory.blocks[at[in_base]]]
        return np.bincount(cells, minlength=len(layer.partitions))

    def _gather(self, cells: Ints) -> tuple[Ints, Floats]:
        """Ids and vectors of the live rows of these cells."""
        missing = [int(cell) for cell in cells if int(cell) not in self._live]
        blocks = self._read([self._place(cell) for cell in missing])
        for cell, (ids, vectors) in zip(missing, blocks, strict=True):
            if len(ids) != int(self.cells.ends[cell] - self.cells.starts[cell]):
                raise CorruptLayoutError("a partition and its block differ in size", path=self._where)
            alive = ~self._content.base_is_dead(ids, self._late)
            self._live[cell] = ids[alive].astype(np.int64), vectors[alive]
        parts = [self._live[int(cell)] for cell in cells]
        names = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
        vectors = np.concatenate([np.zeros((0, self._content.dim), np.float32), *(part[1] for part in parts)])
        return names, vectors

    def _read(self, places: list[Place]) -> list[tuple[Ids, Floats]]:
        """Ids and vectors of these blocks; those not there yet are read together."""
        missing = [place for place in dict.fromkeys(places) if place not in self._blocks]
        for place, block in zip(missing, self._content.read_blocks(missing), strict=True):
            self._blocks[place] = block.ids, self._content.vectors_of(block)
            self._bytes += block.rows.nbytes
        return [self._blocks[place] for place in places]

    def _place(self, cell: int) -> Place:
        layer = self._content.layer_a
        assert layer is not None
        part = layer.partitions[cell]
        return int(part["segment_ref"]), int(part["block_ref"])

    # -- single vectors ------------------------------------------------------------------------------

    def exist(self, ids: Ids) -> Mask:
        """Which of these ids are of live vectors."""
        _, in_base = self._base_position(ids)
        return in_base | (self._late.table.find(ids) >= 0)

    @cached_property
    def live_ids(self) -> Ids:
        """The ids of all live vectors, ascending."""
        base = self._directory.ids
        base = base[~self._content.base_is_dead(base, self._late)]
        return np.sort(np.concatenate([base, self._late.table.ids[self._late.table.alive]]))

    def take(self, ids: Ids) -> Floats | None:
        """The vectors of ids that exist; None if they are in so many blocks that all should be read."""
        at, in_base = self._base_position(ids)
        blocks = self._directory.blocks[at[in_base]].astype(np.int64)
        used, which = np.unique(blocks, return_inverse=True)
        if len(used) > max(1, MAX_PROBE_SHARE * len(self._places)):
            return None
        out = np.empty((len(ids), self._content.dim), np.float32)
        wanted = ids[in_base]
        target = np.flatnonzero(in_base)
        for number, (kept, vectors) in enumerate(self._read([self._places[n] for n in used.tolist()])):
            mine = which == number
            place = np.minimum(np.searchsorted(kept, wanted[mine]), max(0, len(kept) - 1))
            if not len(kept) or (kept[place] != wanted[mine]).any():
                raise CorruptLayoutError("the id directory does not fit the blocks", path=self._where)
            out[target[mine]] = vectors[place]
        rest = ~in_base
        out[rest] = self._late.take(self._late.table.find(ids[rest]))
        return out

    def _base_position(self, ids: Ids) -> tuple[Ints, Mask]:
        """Where ids are in the directory, and which of them are of live rows the directory lists."""
        known = self._directory.ids
        if not len(known):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return at, (known[at] == ids) & ~self._content.base_is_dead(ids, self._late)

    @property
    def _directory(self) -> IdDirectory:
        directory = self._content.id_directory
        assert directory is not None
        return directory

    @cached_property
    def _places(self) -> list[Place]:
        """Every block of the indexed rows, in the order the directory counts them."""
        entries = self._content.base_entries
        return [(entry.segment_id, number) for entry in entries for number in range(entry.block_count)]

    @cached_property
    def _late(self) -> RowData:
        return self._content.load_late()

    @property
    def _where(self) -> str:
        return self._content.reader.name


def _named(names: Ints, rows: Ints) -> Ints:
    """Names of rows; -1 where there is no row."""
    return np.where(rows < 0, -1, names[rows]) if len(names) else rows
