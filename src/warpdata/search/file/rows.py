"""The rows of a store in memory: ids, vectors, which of them live, and where an id is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf.journal import DeleteRange

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Deletions = tuple[tuple[DeleteRange, ...], int]
"""Ids deleted when the file had so many rows: newer rows of the same id live."""


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

    def apply(self, events: Iterable[Deletions]) -> None:
        """Mark ids as deleted whose newest row was there at the time."""
        for ranges, row_end in events:
            singles = np.array([r.start for r in ranges if r.end == r.start + 1], np.uint64)
            at = self._places(singles)
            self.alive[at[self.rows[at] < row_end]] = False
            for span in ranges:
                if span.end > span.start + 1:
                    low, high = np.searchsorted(self.ids, np.array([span.start, span.end], np.uint64))
                    self.alive[low:high] &= self.rows[low:high] >= row_end

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
        self.alive[self._places(ids)] = False

    def _places(self, ids: Ids) -> Ints:
        """Where those of the ids are that the table has."""
        at = np.searchsorted(self.ids, ids)
        inside = at < len(self.ids)
        return np.asarray(at[inside][self.ids[at[inside]] == ids[inside]], np.int64)


class RowData:
    """All rows of a store: those the index covers first, then the ones added since."""

    def __init__(self, ids: Ids, vectors: Floats, indexed: int, events: Iterable[Deletions] = ()) -> None:
        self.table = IdTable(ids)
        self.table.apply(events)
        self.live = np.zeros(len(ids), bool)
        self.live[self.table.rows[self.table.alive]] = True
        self.indexed = indexed
        self.base_vectors: Floats = vectors[:indexed]
        self._ids: list[Ints] = [ids.astype(np.int64)]
        self._tail: list[Floats] = [vectors[indexed:]]
        self.version = 0
        """Counts changes, so that what was derived from the rows can be derived again."""

    def __len__(self) -> int:
        return len(self.live)

    @property
    def ids(self) -> Ints:
        """Ids of all rows, in order."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0]

    @property
    def tail_vectors(self) -> Floats:
        """Vectors of the rows the index does not cover."""
        if len(self._tail) > 1:
            self._tail = [np.concatenate(self._tail)]
        return self._tail[0]

    def take(self, rows: Ints) -> Floats:
        """The vectors of these rows."""
        out = np.empty((len(rows), self.base_vectors.shape[1]), np.float32)
        base = rows < self.indexed
        out[base] = self.base_vectors[rows[base]]
        out[~base] = self.tail_vectors[rows[~base] - self.indexed]
        return out

    def add(self, ids: Ids, vectors: Floats) -> None:
        """Append rows; known ids are superseded."""
        self.live[self.table.put(ids, len(self.live))] = False
        self.live = np.append(self.live, np.ones(len(ids), bool))
        self._ids.append(ids.astype(np.int64))
        self._tail.append(vectors)
        self.version += 1

    def delete(self, ids: Ids) -> None:
        """Mark ids as deleted."""
        rows = self.table.find(ids)
        self.live[rows[rows >= 0]] = False
        self.table.remove(ids)
        self.version += 1
