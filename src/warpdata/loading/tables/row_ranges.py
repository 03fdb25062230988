"""Which rank reads which rows of a table: pure functions of the shards' sizes and the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True, order=True)
class RowRange:
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows the one has."""
        return self.end - self.start


RowRanges = tuple[RowRange, ...]
GroupRows = Callable[[int], Sequence[int]]
"""Given a shard, the rows of each of its row groups."""


def whole_table(shard_rows: Sequence[int], limit: int | None = None) -> RowRanges:
    """Every row, or the first `limit` of them, in order."""
    left = sum(shard_rows) if limit is None else limit
    ranges = []
    for shard, rows in enumerate(shard_rows):
        taken = min(rows, left)
        left -= taken
        if taken:
            ranges.append(RowRange(shard, 0, taken))
    return tuple(ranges)


def share_of(ranges: RowRanges, group_rows: GroupRows, rank: int, world: int) -> RowRanges:
    """What one rank reads: whole ranges if there are enough, else row groups, else runs of rows."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks")
    if world == 1:
        return ranges
    if len(ranges) < world:
        ranges = by_group(ranges, group_rows)
    if len(ranges) < world:
        return equal_run(ranges, rank, world)
    return ranges[rank::world]


def by_group(ranges: RowRanges, group_rows: GroupRows) -> RowRanges:
    """The ranges cut at the borders of row groups."""
    out = []
    for one in ranges:
        borders = [0, *accumulate(group_rows(one.shard))]
        for low, high in pairwise(borders):
            start, end = max(low, one.start), min(high, one.end)
            if start < end:
                out.append(RowRange(one.shard, start, end))
    return tuple(out)


def remaining(ranges: RowRanges, rows: int) -> RowRanges:
    """The ranges without their first `rows` rows."""
    out = []
    for one in ranges:
        skipped = min(rows, one.rows)
        rows -= skipped
        if skipped < one.rows:
            out.append(RowRange(one.shard, one.start + skipped, one.end))
    return tuple(out)


def total_rows(ranges: RowRanges) -> int:
    """Rows of all ranges."""
    return sum(one.rows for one in ranges)


def merged(parts: Sequence[RowRanges]) -> RowRanges:
    """The ranges of several ranks in row order."""
    return tuple(sorted(one for part in parts for one in part))


def has_overlap(ranges: RowRanges) -> bool:
    """Whether a row is in two of some sorted ranges."""
    return any(a.shard == b.shard and b.start < a.end for a, b in pairwise(ranges))


def within(ranges: RowRanges, beginning: RowRanges) -> RowRanges:
    """The rows of some ranges that are also in the beginning of a table."""
    ends = {one.shard: one.end for one in beginning}
    cut = [RowRange(p.shard, p.start, min(p.end, ends.get(p.shard, 0))) for p in ranges]
    return tuple(one for one in cut if one.start < one.end)


def equal_run(ranges: RowRanges, rank: int, world: int) -> RowRanges:
    """The run of rows of one rank; no two ranks differ by more than one row."""
    total = total_rows(ranges)
    start, end = total * rank // world, total * (rank + 1) // world
    return first_rows(remaining(ranges, start), end - start)


def first_rows(ranges: RowRanges, rows: int) -> RowRanges:
    """The first `rows` rows of some ranges."""
    out = []
    for one in ranges:
        taken = min(rows, one.rows)
        rows -= taken
        if taken:
            out.append(RowRange(one.shard, one.start, one.start + taken))
    return tuple(out)
