"""Which rank reads which rows of a table: pure functions of the shards' sizes and the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows the piece has."""
        return self.end - self.start


Pieces = tuple[Piece, ...]
GroupRows = Callable[[int], Sequence[int]]
"""Given a shard, the rows of each of its row groups."""


def whole_table(shard_rows: Sequence[int], limit: int | None = None) -> Pieces:
    """Every row, or the first `limit` of them, in order."""
    left = sum(shard_rows) if limit is None else limit
    pieces = []
    for shard, rows in enumerate(shard_rows):
        taken = min(rows, left)
        left -= taken
        if taken:
            pieces.append(Piece(shard, 0, taken))
    return tuple(pieces)


def share_of(pieces: Pieces, group_rows: GroupRows, rank: int, world: int) -> Pieces:
    """What one rank reads: whole pieces if there are enough, else row groups, else runs of rows."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks")
    if world == 1:
        return pieces
    if len(pieces) < world:
        pieces = by_group(pieces, group_rows)
    if len(pieces) < world:
        return equal_run(pieces, rank, world)
    return pieces[rank::world]


def by_group(pieces: Pieces, group_rows: GroupRows) -> Pieces:
    """The pieces cut at the borders of row groups."""
    out = []
    for piece in pieces:
        borders = [0, *accumulate(group_rows(piece.shard))]
        for low, high in pairwise(borders):
            start, end = max(low, piece.start), min(high, piece.end)
            if start < end:
                out.append(Piece(piece.shard, start, end))
    return tuple(out)


def remaining(pieces: Pieces, rows: int) -> Pieces:
    """The pieces without their first `rows` rows."""
    out = []
    for piece in pieces:
        skipped = min(rows, piece.rows)
        rows -= skipped
        if skipped < piece.rows:
            out.append(Piece(piece.shard, piece.start + skipped, piece.end))
    return tuple(out)


def total_rows(pieces: Pieces) -> int:
    """Rows of all pieces."""
    return sum(piece.rows for piece in pieces)


def merged(parts: Sequence[Pieces]) -> Pieces:
    """The pieces of several ranks in row order."""
    return tuple(sorted(piece for part in parts for piece in part))


def has_overlap(pieces: Pieces) -> bool:
    """Whether a row is in two of some sorted pieces."""
    return any(a.shard == b.shard and b.start < a.end for a, b in pairwise(pieces))


def within(pieces: Pieces, beginning: Pieces) -> Pieces:
    """The rows of some pieces that are also in the beginning of a table."""
    ends = {piece.shard: piece.end for piece in beginning}
    cut = [Piece(p.shard, p.start, min(p.end, ends.get(p.shard, 0))) for p in pieces]
    return tuple(piece for piece in cut if piece.start < piece.end)


def equal_run(pieces: Pieces, rank: int, world: int) -> Pieces:
    """The run of rows of one rank; no two ranks differ by more than one row."""
    total = total_rows(pieces)
    start, end = total * rank // world, total * (rank + 1) // world
    return first_rows(remaining(pieces, start), end - start)


def first_rows(pieces: Pieces, rows: int) -> Pieces:
    """The first `rows` rows of some pieces."""
    out = []
    for piece in pieces:
        taken = min(rows, piece.rows)
        rows -= taken
        if taken:
            out.append(Piece(piece.shard, piece.start, piece.start + taken))
    return tuple(out)
