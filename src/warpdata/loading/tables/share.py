"""The rows of a table that one rank and its readers give in a pass, and the state of that pass. Pure functions.

A share is a list of row ranges: whole files if there are enough for all ranks, else row groups, else runs of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from warpdata.errors import require_word
from warpdata.ordering.epochs import TAILS, Tail

STATE_FORMAT = 2


class RowRange(NamedTuple):
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int


RowRanges = tuple[RowRange, ...]
GroupRows = Callable[[int], Sequence[int]]
"""The rows of each row group of a shard."""


def total_rows(ranges: RowRanges) -> int:
    """Rows of all ranges."""
    return sum(part.end - part.start for part in ranges)


def rows_between(ranges: RowRanges, start: int, end: int | None = None) -> RowRanges:
    """Rows [start, end) of some ranges, counted through all of them."""
    out, at = [], 0
    for part in ranges:
        size = part.end - part.start
        low = part.start + min(size, max(0, start - at))
        high = part.end if end is None else part.start + min(size, max(0, end - at))
        if low < high:
            out.append(RowRange(part.shard, low, high))
        at += size
    return tuple(out)


def whole_table(shard_rows: Sequence[int], limit: int | None = None) -> RowRanges:
    """Every row, or the first `limit` of them, in order."""
    return rows_between(tuple(RowRange(s, 0, rows) for s, rows in enumerate(shard_rows)), 0, limit)


def group_ranges(ranges: RowRanges, group_rows: GroupRows) -> Iterator[tuple[RowRange, int, int]]:
    """The ranges cut at the borders of row groups, each with the number and the first row of its group."""
    for part in ranges:
        borders = [0, *accumulate(group_rows(part.shard))]
        for group, (low, high) in enumerate(pairwise(borders)):
            start, end = max(low, part.start), min(high, part.end)
            if start < end:
                yield RowRange(part.shard, start, end), group, low


def equal_run(ranges: RowRanges, rank: int, world: int) -> RowRanges:
    """The run of rows of one rank; no two ranks differ by more than one row."""
    total = total_rows(ranges)
    return rows_between(ranges, total * rank // world, total * (rank + 1) // world)


def share_of(ranges: RowRanges, group_rows: GroupRows, rank: int, world: int) -> RowRanges:
    """The rows of one rank: whole ranges if there are enough, else row groups, else runs of rows."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks")
    if world == 1:
        return ranges
    if len(ranges) < world:
        ranges = tuple(part for part, *_ in group_ranges(ranges, group_rows))
    if len(ranges) < world:
        return equal_run(ranges, rank, world)
    return ranges[rank::world]


def has_overlap(ranges: RowRanges) -> bool:
    """Whether a row is in two of some sorted ranges."""
    return any(a.shard == b.shard and b.start < a.end for a, b in pairwise(ranges))


class ReaderProgress(NamedTuple):
    """How far one reader is: rows of its part that are done, and rows given after the filter."""

    rows: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of a rank from here to the end of the pass, split over its readers, and the progress of each.

    `gives` counts the rows of the rank, as many as of any rank. Unless `tail` is "short" its readers give them in
    whole batches: the last rows are left over ("drop"), or some rows of the rank come again after them ("pad").
    """

    rank: int
    world: int
    ranges: RowRanges
    gives: int
    batch_size: int
    tail: Tail
    readers: int
    progress: Mapping[int, ReaderProgress]
    """Of the readers whose progress is known."""
    given_before: int = 0
    """Rows this rank gave before, of a pass that was split in another way."""

    def part(self, reader: int, group_rows: GroupRows) -> tuple[RowRanges, int]:
        """The ranges of one reader, and how many rows it gives."""
        if self.tail == "short":
            ranges = share_of(self.ranges, group_rows, reader, self.readers)
            return ranges, total_rows(ranges)
        size = self.batch_size
        steps = self.gives // size if self.tail == "drop" else -(-self.gives // size)
        low, high = steps * reader // self.readers * size, steps * (reader + 1) // self.readers * size
        return rows_between(self.ranges, low, high), high - low

    def left(self, group_rows: GroupRows) -> RowRanges:
        """The rows that no reader has given yet, also those that would be left over."""
        parts = [self.part(reader, group_rows)[0] for reader in range(self.readers)]
        rest = [rows_between(part, self.progress[reader].rows) for reader, part in enumerate(parts)]
        if self.tail != "short":
            rest.append(rows_between(self.ranges, sum(map(total_rows, parts))))
        return tuple(sorted(part for ranges in rest for part in ranges))

    @property
    def given(self) -> int:
        """Rows that this rank gave in the whole pass so far."""
        return self.given_before + sum(progress.given for progress in self.progress.values())

    def check(self, group_rows: GroupRows, *, needs_all: bool) -> None:
        """ValueError if a reader is beyond its rows or, with `needs_all`, if the progress of one is unknown."""
        if needs_all and len(self.progress) != self.readers:
            raise ValueError(
                f"the state is of reader {', '.join(map(str, sorted(self.progress)))} of {self.readers} of rank "
                f"{self.rank} alone: it continues only in the same worker of as many workers"
            )
        for reader, progress in self.progress.items():
            rows = self.part(reader, group_rows)[1]
            if not progress.given <= progress.rows <= rows:
                fact = f"reader {reader} gave {progress.given} of the {progress.rows} rows it is past"
                raise ValueError(f"the state contradicts itself: {fact}, and has {rows}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rank": self.rank,
            "world": self.world,
            "pieces": [list(part) for part in self.ranges],
            "gives": self.gives,
            "batch_size": self.batch_size,
            "even": None if self.tail == "short" else self.tail,
            "readers": self.readers,
            "progress": [[reader, *progress] for reader, progress in sorted(self.progress.items())],
            "given_before": self.given_before,
        }


def begin_share(empty: Share, ranges: RowRanges, group_rows: GroupRows, given_before: int = 0) -> Share:
    """The share of a rank of rows that all ranks split; `empty` has the rank, readers, batch size and tail."""
    if empty.tail == "short":
        own = share_of(ranges, group_rows, empty.rank, empty.world)
        return replace(empty, ranges=own, gives=total_rows(own), given_before=given_before)
    rows, world = total_rows(ranges), empty.world
    gives = rows // world if empty.tail == "drop" else -(-rows // world)
    own = equal_run(ranges, empty.rank, world)
    return replace(empty, ranges=own, gives=gives, given_before=given_before)


def resume_share(
    empty: Share, states: Sequence[Share], everything: RowRanges, group_rows: GroupRows
) -> Share:
    """Continue from the state of this rank, or from those of all ranks of any world."""
    old_world = states[0].world
    if any(state.world != old_world for state in states):
        raise ValueError("the states are of worlds of different sizes")
    if len({state.rank for state in states}) != len(states):
        raise ValueError("two of the states are of the same rank")
    ends = {part.shard: part.end for part in everything}

    def within(ranges: RowRanges) -> RowRanges:
        """The rows of some ranges that the pass still has: a limit may have ended it."""
        cut = (part._replace(end=min(part.end, ends.get(part.shard, 0))) for part in ranges)
        return tuple(part for part in cut if part.start < part.end)

    own = next((s for s in states if (s.rank, s.world) == (empty.rank, empty.world)), None)
    if own is not None and (own.tail == empty.tail or empty.tail == "short" or empty.world == 1):
        split = (own.readers, own.tail, own.batch_size)
        is_same = split == (empty.readers, empty.tail, empty.batch_size)
        own.check(group_rows, needs_all=not is_same)
        if is_same:
            return own
        left = within(own.left(group_rows))
        done = sum(progress.rows for progress in own.progress.values())
        gives = max(0, own.gives - done) if own.tail == empty.tail != "short" else total_rows(left)
        return replace(empty, ranges=left, gives=gives, given_before=own.given)
    if len(states) != old_world:
        ranks = ", ".join(str(state.rank) for state in states)
        raise ValueError(
            f"rank {empty.rank} of {empty.world} cannot continue from the state of rank {ranks} of {old_world} "
            f"alone: load the states of all {old_world} ranks"
        )
    for state in states:
        state.check(group_rows, needs_all=True)
    left = tuple(sorted(part for state in states for part in state.left(group_rows)))
    if has_overlap(left):
        raise ValueError("the states share rows: they were not taken in one pass")
    given = sum(state.given for state in states) if empty.rank == 0 else 0
    return begin_share(empty, within(left), group_rows, given)


def parse_share(state: Any, identity: Mapping[str, Any], shard_rows: Sequence[int]) -> Share:
    """Read a state and refuse one of another stream, or one that does not fit the table."""
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        raise ValueError(f"not a state of a table stream of format {STATE_FORMAT}: {state!r:.200}")
    for key, value in identity.items():
        if state.get(key) != value:
            raise ValueError(
                f"the state is of another stream: its {key} is {state.get(key)!r}, expected {value!r}"
            )
    try:
        readers = _count(state["readers"], at_least=1)
        progress = {
            _count(r): ReaderProgress(_count(rows), _count(given)) for r, rows, given in state["progress"]
        }
        if not progress or max(progress) >= readers or len(progress) < len(state["progress"]):
            raise ValueError(f"progress of readers {sorted(progress)} of {readers}")
        share = Share(
            _count(state["rank"]),
            _count(state["world"], at_least=1),
            tuple(
                RowRange(_count(shard), _count(start), _count(end)) for shard, start, end in state["pieces"]
            ),
            _count(state["gives"]),
            _count(state["batch_size"], at_least=1),
            require_word("tail", "short" if state["even"] is None else state["even"], TAILS),
            readers,
            progress,
            _count(state["given_before"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"the state is damaged ({error!r})") from None
    for part in share.ranges:
        if part.shard >= len(shard_rows) or not part.start <= part.end <= shard_rows[part.shard]:
            raise ValueError(f"the state has rows {part.start} to {part.end} of shard {part.shard}")
    # A rank that pads gives as many rows as the one with the most, which has at most one more.
    is_too_much = share.gives > total_rows(share.ranges) + (share.tail == "pad")
    # Rows given count for the limit of a filter, which gives no row twice.
    is_too_much |= identity["filter"] is not None and share.given_before > sum(shard_rows)
    if is_too_much or share.rank >= share.world or has_overlap(share.ranges):
        raise ValueError("the state contradicts itself")
    return share


def _count(value: object, at_least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{value!r} is no count")
    return value
