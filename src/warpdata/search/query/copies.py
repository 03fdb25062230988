"""Equal vectors in a graph: one of them is walked to, the others hang on it.

A graph chooses neighbours that differ from each other, so among many equal vectors most would be nobody's
neighbour. The graph is therefore built of distinct vectors; copies are linked as a tree below the first of
them, which any program can walk, and which ours need not: it knows who is equal to whom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.formats.rvf.graph import Adjacency

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_CHUNK_ROWS = 16_384
_TREE_LINKS = 3
"""A copy has one above it and two below."""


@dataclass(frozen=True)
class Copies:
    """Which rows are equal: `first[i]` is the first row with the vector of row i."""

    first: Ints

    @classmethod
    def of(cls, vectors: Floats) -> Copies:
        """The equal rows among these; 0 and -0 are equal."""
        hashes = np.empty(len(vectors), np.uint64)
        factors = np.random.default_rng(1).integers(1, 1 << 63, vectors.shape[1], np.uint64) | np.uint64(1)
        for start in range(0, len(vectors), _CHUNK_ROWS):
            bits = (vectors[start : start + _CHUNK_ROWS] + np.float32(0)).view(np.uint32)
            hashes[start : start + len(bits)] = (bits * factors).sum(axis=1)
        order = np.argsort(hashes, kind="stable")
        same = np.append(False, hashes[order][1:] == hashes[order][:-1])
        starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
        first = np.arange(len(vectors))
        first[order] = order[starts]
        alike = np.flatnonzero(first != np.arange(len(first)))
        for start in range(0, len(alike), _CHUNK_ROWS):
            rows = alike[start : start + _CHUNK_ROWS]
            equal = (vectors[rows] == vectors[first[rows]]).all(axis=1)
            first[rows[~equal]] = rows[~equal]
        return cls(first)

    @cached_property
    def is_first(self) -> Mask:
        """Which rows are not a copy of an earlier one."""
        return np.asarray(self.first == np.arange(len(self.first)))

    @property
    def count(self) -> int:
        """How many rows are copies."""
        return int((~self.is_first).sum())

    @cached_property
    def _groups(self) -> tuple[Ints, Ints, Ints]:
        """Rows in the order of their first ones, and where the group of each first row begins and ends."""
        members = np.argsort(self.first, kind="stable")
        sizes = np.bincount(self.first, minlength=len(self.first))
        starts = np.cumsum(sizes) - sizes
        return members, starts, starts + sizes

    def reachable(self, allowed: Mask) -> Mask:
        """The first rows of which any copy is allowed."""
        found = np.zeros(len(self.first), bool)
        found[self.first[allowed]] = True
        return found

    def expanded(self, rows: Ints, scores: Floats, allowed: Mask | None) -> tuple[Ints, Floats]:
        """Results of a walk over first rows, each followed by its copies, as many as there were results."""
        out, away = np.full_like(rows, -1), np.full_like(scores, np.inf)
        members, starts, ends = self._groups
        k = rows.shape[1]
        for number, row in enumerate(rows):
            found = row[row >= 0]
            sizes = np.minimum(ends[found] - starts[found], k if allowed is None else len(members))
            before = np.cumsum(sizes) - sizes
            at = np.repeat(starts[found] - before, sizes) + np.arange(int(sizes.sum()))
            near, distances = members[at], np.repeat(scores[number, : len(found)], sizes)
            if allowed is not None:
                near, distances = near[allowed[near]], distances[allowed[near]]
            out[number, : len(near[:k])], away[number, : len(near[:k])] = near[:k], distances[:k]
        return out, away

    def linked(self, distinct: Adjacency, vectors: Floats, m: int) -> Adjacency:
        """A graph of the first rows alone, as one of all rows: each copy hangs on its first row."""
        rows = np.flatnonzero(self.is_first)
        counts = np.ones(len(self.first), np.int64)
        counts[rows] = distinct.layer_counts
        list_start = np.cumsum(counts) - counts
        old_node = np.repeat(np.arange(distinct.node_count), distinct.layer_counts)
        old_start = np.cumsum(distinct.layer_counts) - distinct.layer_counts
        layer = np.arange(len(old_node)) - np.repeat(old_start, distinct.layer_counts)
        kept = ~self._farthest(distinct, old_start, vectors, rows, 2 * m)
        owner = np.repeat(list_start[rows[old_node]] + layer, distinct.sizes)[kept]
        neighbor = rows[distinct.neighbors][kept]
        owners, neighbors = [owner], [neighbor]
        for from_row, to_row in self._tree():
            owners.append(list_start[from_row])
            neighbors.append(to_row)
        ways = self._ways_out(distinct, old_start, rows, 2 * m - _TREE_LINKS)
        owners.append(list_start[ways[0]])
        neighbors.append(ways[1])
        flat_owner, flat = np.concatenate(owners), np.concatenate(neighbors)
        order = np.lexsort((flat, flat_owner))
        sizes = np.bincount(flat_owner, minlength=int(counts.sum()))
        return Adjacency(len(self.first), counts, sizes, flat[order])

    def _tree(self) -> list[tuple[Ints, Ints]]:
        """The links below first rows, both ways: the first copy on its first row, then two on each."""
        members, starts, ends = self._groups
        heads = np.flatnonzero(ends - starts > 1)
        sizes = ends[heads] - starts[heads]
        place = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        base = np.repeat(starts[heads], sizes)
        child = place > 0
        lower, upper = members[(base + place)[child]], members[(base + place // 2)[child]]
        return [(lower, upper), (upper, lower)]

    def _farthest(
        self, distinct: Adjacency, lists: Ints, vectors: Floats, rows: Ints, room: int
    ) -> NDArray[np.bool_]:
        """Of full ground lists that must take a copy, the neighbour that is farthest away."""
        dropped = np.zeros(len(distinct.neighbors), bool)
        _, starts, ends = self._groups
        full = np.flatnonzero((ends[rows] - starts[rows] > 1) & (distinct.sizes[lists] >= room))
        for begin in range(0, len(full), _CHUNK_ROWS // room):
            nodes = full[begin : begin + _CHUNK_ROWS // room]
            at = distinct.starts[lists[nodes]][:, None] + np.arange(room)
            away = vectors[rows[distinct.neighbors[at]]] - vectors[rows[nodes]][:, None]
            worst = np.einsum("ijk,ijk->ij", away, away).argmax(axis=1)
            dropped[at[np.arange(len(nodes)), worst]] = True
        return dropped

    def _ways_out(self, distinct: Adjacency, lists: Ints, rows: Ints, room: int) -> tuple[Ints, Ints]:
        """Copies know neighbours of their first row too, as many as fit beside the tree."""
        copies = np.flatnonzero(~self.is_first)
        node = np.searchsorted(rows, self.first[copies])
        sizes = np.minimum(distinct.sizes[lists[node]], max(0, room))
        before = np.cumsum(sizes) - sizes
        at = np.repeat(distinct.starts[lists[node]] - before, sizes) + np.arange(int(sizes.sum()))
        return np.repeat(copies, sizes), rows[distinct.neighbors[at]]

    def unlinked(self, adjacency: Adjacency) -> Adjacency:
        """The graph of `linked` without its copies: they stay nodes, but nothing leads to them."""
        lists = np.repeat(np.arange(len(adjacency.sizes)), adjacency.sizes)
        node = np.repeat(np.arange(adjacency.node_count), adjacency.layer_counts)
        kept = self.is_first[adjacency.neighbors] & self.is_first[node][lists]
        sizes = np.bincount(lists[kept], minlength=len(adjacency.sizes))
        return Adjacency(adjacency.node_count, adjacency.layer_counts, sizes, adjacency.neighbors[kept])
