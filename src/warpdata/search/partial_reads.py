"""What an open store answers from parts of its file: first queries, filtered ones, single vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.payloads.ids import IdDirectory
from warpdata.search.blocks import BlockReader, Place
from warpdata.search.content import Content, is_plain
from warpdata.search.probing import MAX_PROBE_SHARE, Allowed, Prober
from warpdata.search.rows import RowData

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]

COLD_QUERIES = 8
"""This many queries are answered from partitions; then everything is loaded once."""
MAX_TAIL_BYTES = 256 << 10
"""With more unindexed rows than this, loading everything is the better first step."""


class PartialReader:
    """Answers from as few bytes of one content as it can."""

    def __init__(self, content: Content, probed: list[Ints], served: int = 0) -> None:
        self._content = content
        self._probed = probed
        self._blocks = BlockReader(content)
        self.served = served
        self.prober: Prober | None = None

    # -- queries -------------------------------------------------------------------------------------

    def takes(self, count: int) -> bool:
        """Whether this many more queries are answered from partitions."""
        if self.served + count > COLD_QUERIES or not self._tail_is_small:
            return False
        return Prober.serves(self._content)

    def search(
        self, queries: Floats, k: int, ef: int, allowed: Allowed | None = None
    ) -> tuple[Ints, NDArray[np.float64]] | None:
        """Ids and distances of the nearest live vectors of queries; None if everything must be read."""
        self.served += len(queries)
        return self._probe().search(queries, k, ef, allowed)

    def allowed(self, queries: Floats, ef: int, choose: Callable[[Ids], Mask]) -> Allowed | None:
        """What a filter on ids lets through; None if it is better to load everything."""
        if not self.knows_ids:
            return None
        ids = self.live_ids
        ids = ids[choose(ids)]
        at, in_base = self._base_position(ids)
        cells = self._cell_of_block[self._directory.blocks[at[in_base]]]
        count = len(self._content.need_layer_a().partitions)
        found = Allowed(ids, np.bincount(cells, minlength=count))
        return found if self._probe().is_worth(queries, ef, found) else None

    def _probe(self) -> Prober:
        if self.prober is None:
            self.prober = Prober(self._content, self._blocks, self._tail, self._probed)
        return self.prober

    @cached_property
    def _cell_of_block(self) -> Ints:
        places = {place: number for number, place in enumerate(self._places)}
        out = np.zeros(len(self._places), np.int64)
        for cell, part in enumerate(self._content.need_layer_a().partitions):
            number = places.get((int(part["segment_ref"]), int(part["block_ref"])))
            if number is None:
                raise CorruptLayoutError("a partition names a block that does not exist", path=self._where)
            out[number] = cell
        return out

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
        return self._blocks.held_bytes <= MAX_PROBE_SHARE * total

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
        return sum(entry.payload_length for entry in self._content.tail_entries) <= MAX_TAIL_BYTES

    @property
    def _where(self) -> str:
        return self._content.reader.name
