"""The rows of a store in memory: ids, vectors, which of them live, and where an id is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf.journal import DeleteRange

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeletionEvent:
    """Ids deleted when the file had `row_end` rows: newer rows of the same id live."""

    ranges: tuple[DeleteRange, ...]
    row_end: int


class IdTable:
    """Id -> its newest row, for many ids at once."""

    def __init__(self, ids: Ids) -> None:
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        last = np.append(ordered[1:] != ordered[:-1], True) if len(ids) else np.zeros(0, bool)
        self.ids: Ids = ordered[last]
        self.rows: Ints = order[last]
        self.alive = np.ones(len(self.ids), bool)

    def find(self, ids: Ids) -> Ints:
        """The live row of each id, or -1."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        known = (self.ids[at] == ids) & self.alive[at]
        return np.where(known, self.rows[at], -1)

    def apply(self, events: Iterable[DeletionEvent]) -> None:
        """Take out what was deleted after its newest row was written."""
        for event in events:
            loners = np.array([r.start for r in event.ranges if r.end == r.start + 1], np.uint64)
            at = np.searchsorted(self.ids, loners)
            inside = at < len(self.ids)
            hit = at[inside][self.ids[at[inside]] == loners[inside]]
            self.alive[hit[self.rows[hit] < event.row_end]] = False
            for each in event.ranges:
                if each.end > each.start + 1:
                    low, high = np.searchsorted(self.ids, np.array([each.start, each.end], np.uint64))
                    self.alive[low:high] &= self.rows[low:high] >= event.row_end

    def put(self, ids: Ids, first_row: int) -> Ints:
        """Set the rows of new or known ids; returns the rows that are superseded."""
        order = np.argsort(ids)
        ids, rows = ids[order], order + first_row
        at = np.searchsorted(self.ids, ids)
        known = np.zeros(len(ids), bool)
        inside = at < len(self.ids)
        known[inside] = self.ids[at[inside]] == ids[inside]
        spots = at[known]
        superseded = self.rows[spots][self.alive[spots]]
        self.rows[spots], self.alive[spots] = rows[known], True
        fresh = ~known
        self.ids = np.insert(self.ids, at[fresh], ids[fresh])
        self.rows = np.insert(self.rows, at[fresh], rows[fresh])
        self.alive = np.insert(self.alive, at[fresh], True)
        return superseded

    def remove(self, ids: Ids) -> None:
        """Mark ids as deleted."""
        at = np.searchsorted(self.ids, ids)
        inside = at < len(self.ids)
        hit = at[inside][self.ids[at[inside]] == ids[inside]]
        self.alive[hit] = False


class RowData:
    """All rows of a store: those the index covers first, then the ones added since."""

    def __init__(self, ids: Ids, vectors: Floats, indexed: int, events: Iterable[DeletionEvent]) -> None:
        self.table = IdTable(ids)
        self.table.apply(events)
        self.live = np.zeros(len(ids), bool)
        self.live[self.table.rows[self.table.alive]] = True
        self.indexed = indexed
        self.base_ids: Ints = ids[:indexed].astype(np.int64)
        self.base_vectors: Floats = vectors[:indexed]
        self._tail_ids: list[Ints] = [ids[indexed:].astype(np.int64)]
        self._tail_vectors: list[Floats] = [vectors[indexed:]]
        self._all_ids: Ints | None = None
        self.version = 0
        """Counts changes, so that what was derived from the rows can be derived again."""

    def __len__(self) -> int:
        return len(self.live)

    @property
    def tail_ids(self) -> Ints:
        """Ids of the rows the index does not cover."""
        if len(self._tail_ids) > 1:
            self._tail_ids = [np.concatenate(self._tail_ids)]
        return self._tail_ids[0]

    @property
    def tail_vectors(self) -> Floats:
        """Vectors of the rows the index does not cover."""
        if len(self._tail_vectors) > 1:
            self._tail_vectors = [np.concatenate(self._tail_vectors)]
        return self._tail_vectors[0]

    @property
    def ids(self) -> Ints:
        """Ids of all rows, in order."""
        if self._all_ids is None or len(self._all_ids) != len(self.live):
            self._all_ids = np.concatenate([self.base_ids, self.tail_ids])
        return self._all_ids

    def take(self, rows: Ints) -> Floats:
        """The vectors of these rows."""
        out = np.empty((len(rows), self.base_vectors.shape[1]), np.float32)
        base = rows < self.indexed
        out[base] = self.base_vectors[rows[base]]
        out[~base] = self.tail_vectors[rows[~base] - self.indexed]
        return out

    def add(self, ids: Ids, vectors: Floats) -> None:
        """Append rows; known ids are superseded."""
        superseded = self.table.put(ids, len(self.live))
        self.live[superseded] = False
        self.live = np.append(self.live, np.ones(len(ids), bool))
        self._tail_ids.append(ids.astype(np.int64))
        self._tail_vectors.append(vectors)
        self.version += 1

    def delete(self, ids: Ids) -> None:
        """Take ids out."""
        rows = self.table.find(ids)
        self.live[rows[rows >= 0]] = False
        self.table.remove(ids)
        self.version += 1
