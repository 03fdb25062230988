"""What a rank and its readers give in a pass, and how much of it is done: pure, and the state of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpdata.loading.tables.row_ranges import (
    GroupRows,
    RowRange,
    RowRanges,
    equal_run,
    first_rows,
    has_overlap,
    merged,
    remaining,
    share_of,
    total_rows,
    within,
)
from warpdata.ordering.limits import Tail, check_tail

STATE_FORMAT = 2


@dataclass(frozen=True, slots=True)
class ReaderProgress:
    """How far one reader is: rows of its part that are done, and rows that satisfied the filter and were given."""

    rows: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The rows a rank gives from here to the end of the pass, split over its readers.

    `gives` rows are the rank's, as many as any rank's. Unless `tail` is "short" its readers give them in
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
    """Of the readers it is known of."""
    given_before: int = 0
    """What this rank gave before, of what was split in another way."""

    def part(self, reader: int, group_rows: GroupRows) -> tuple[RowRanges, int]:
        """The ranges of one reader, and how many rows it gives."""
        if self.tail == "short":
            ranges = share_of(self.ranges, group_rows, reader, self.readers)
            return ranges, total_rows(ranges)
        size = self.batch_size
        steps = self.gives // size if self.tail == "drop" else -(-self.gives // size)
        low, high = steps * reader // self.readers * size, steps * (reader + 1) // self.readers * size
        return first_rows(remaining(self.ranges, low), high - low), high - low

    def left(self, group_rows: GroupRows) -> RowRanges:
        """The rows that no reader has given yet, also those that would be left over."""
        parts = [self.part(reader, group_rows)[0] for reader in range(self.readers)]
        rest = [remaining(part, self.progress[reader].rows) for reader, part in enumerate(parts)]
        return merged(
            [*rest, remaining(self.ranges, sum(map(total_rows, parts)))] if self.tail != "short" else rest
        )

    @property
    def is_known(self) -> bool:
        """Whether the progress of every reader is known."""
        return len(self.progress) == self.readers

    @property
    def done(self) -> int:
        """Rows that all readers gave, those given twice included."""
        return sum(each.rows for each in self.progress.values())

    @property
    def given(self) -> int:
        """Rows that this rank gave in the whole pass so far."""
        return self.given_before + sum(each.given for each in self.progress.values())

    def at(self, reader: int, progress: ReaderProgress) -> Share:
        """The same with a reader at another place."""
        return replace(self, progress={**self.progress, reader: progress})

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "rank": self.rank,
            "world": self.world,
            "pieces": [[piece.shard, piece.start, piece.end] for piece in self.ranges],
            "gives": self.gives,
            "batch_size": self.batch_size,
            "even": None if self.tail == "short" else self.tail,
            "readers": self.readers,
            "progress": [[reader, each.rows, each.given] for reader, each in sorted(self.progress.items())],
            "given_before": self.given_before,
        }


@dataclass(frozen=True, slots=True)
class ReaderSplit:
    """How a stream splits rows: over ranks, over the readers of a rank, and whether into equal steps."""

    rank: int
    world: int
    readers: int
    batch_size: int
    tail: Tail
    group_rows: GroupRows

    def begin(self, ranges: RowRanges, given_before: int = 0) -> Share:
        """The share of this rank of rows that all ranks split."""
        if self.tail == "short":
            own = share_of(ranges, self.group_rows, self.rank, self.world)
            return self._share(own, total_rows(own), given_before)
        rows, world = total_rows(ranges), self.world
        gives = rows // world if self.tail == "drop" else -(-rows // world)
        return self._share(equal_run(ranges, self.rank, world), gives, given_before)

    def resume(self, states: Sequence[Share], everything: RowRanges) -> Share:
        """Go on from the state of this rank, or from those of all ranks of any world."""
        old_world = states[0].world
        if any(state.world != old_world for state in states):
            raise ValueError("the states are of worlds of different sizes")
        if len({state.rank for state in states}) != len(states):
            raise ValueError("two of the states are of the same rank")
        own = next((s for s in states if (s.rank, s.world) == (self.rank, self.world)), None)
        if own is not None and (own.tail == self.tail or self.tail == "short" or self.world == 1):
            return self._go_on(own, everything)
        if len(states) != old_world:
            ranks = ", ".join(str(state.rank) for state in states)
            raise ValueError(
                f"rank {self.rank} of {self.world} cannot go on from the state of rank {ranks} of {old_world} alone: "
                f"give it the states of all {old_world} ranks"
            )
        for state in states:
            _require_known(state)
            self._check_progress(state)
        left = merged([state.left(self.group_rows) for state in states])
        if has_overlap(left):
            raise ValueError("the states share rows: they were not taken in one pass")
        given = sum(state.given for state in states) if self.rank == 0 else 0
        return self.begin(within(left, everything), given)

    def _go_on(self, own: Share, everything: RowRanges) -> Share:
        """The same rank: its readers go on, or others share what they left."""
        self._check_progress(own)
        if (own.readers, own.tail) == (self.readers, self.tail) and self.batch_size == own.batch_size:
            return own
        _require_known(own)
        left = within(own.left(self.group_rows), everything)
        gives = max(0, own.gives - own.done) if own.tail == self.tail != "short" else total_rows(left)
        return self._share(left, gives, own.given)

    def _check_progress(self, state: Share) -> None:
        """ValueError for a state in which a reader is beyond the rows it has."""
        for reader, progress in state.progress.items():
            rows = state.part(reader, self.group_rows)[1]
            if not progress.given <= progress.rows <= rows:
                fact = f"reader {reader} gave {progress.given} of the {progress.rows} rows it is past"
                raise ValueError(f"the state contradicts itself: {fact}, and has {rows}")

    def _share(self, ranges: RowRanges, gives: int, given_before: int) -> Share:
        """A share of which no row was read."""
        return Share(
            self.rank,
            self.world,
            ranges,
            gives,
            self.batch_size,
            self.tail,
            self.readers,
            {reader: ReaderProgress() for reader in range(self.readers)},
            given_before,
        )


def _require_known(state: Share) -> None:
    if not state.is_known:
        raise ValueError(
            f"the state is of reader {', '.join(map(str, sorted(state.progress)))} of {state.readers} of rank "
            f"{state.rank} alone: it goes on only in the same worker of as many workers"
        )


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """ValueError that names the first thing in which a state is of another stream."""
    for key, value in identity.items():
        if state.get(key) != value:
            raise ValueError(
                f"the state is of another stream: its {key} is {state.get(key)!r}, expected {value!r}"
            )


def parse_share(state: Any, identity: Mapping[str, Any], shard_rows: Sequence[int]) -> Share:
    """Read a state and refuse one of another stream, or one that does not fit the table."""
    if not isinstance(state, Mapping):
        raise ValueError(f"this is no state of a stream, but a {type(state).__name__}")
    if state.get("format") != STATE_FORMAT:
        raise ValueError(f"this is no state of a stream of format {STATE_FORMAT}")
    check_identity(state, identity)
    try:
        share = _parsed(state)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"the state is damaged ({error!r})") from None
    for piece in share.ranges:
        if not (
            0 <= piece.shard < len(shard_rows) and 0 <= piece.start <= piece.end <= shard_rows[piece.shard]
        ):
            raise ValueError(f"the state has rows {piece.start} to {piece.end} of shard {piece.shard}")
    # A rank that pads gives as many rows as the one with the most, which has at most one more.
    most = total_rows(share.ranges) + (share.tail == "pad")
    # What was given counts for the limit of a filter, which gives no row twice.
    is_absurd = share.gives > most or (
        identity["filter"] is not None and share.given_before > sum(shard_rows)
    )
    if is_absurd or not 0 <= share.rank < share.world or has_overlap(share.ranges):
        raise ValueError("the state contradicts itself")
    return share


def _parsed(state: Mapping[str, Any]) -> Share:
    tail = check_tail("short" if state["even"] is None else state["even"])
    readers = _count(state["readers"], at_least=1)
    progress = {
        _count(r): ReaderProgress(_count(rows), _count(given)) for r, rows, given in state["progress"]
    }
    if not progress or max(progress) >= readers or len(progress) < len(state["progress"]):
        raise ValueError(f"progress of readers {sorted(progress)} of {readers}")
    return Share(
        _count(state["rank"]),
        _count(state["world"], at_least=1),
        _row_ranges(state["pieces"]),
        _count(state["gives"]),
        _count(state["batch_size"], at_least=1),
        tail,
        readers,
        progress,
        _count(state["given_before"]),
    )


def _row_ranges(raw: Sequence[Sequence[int]]) -> RowRanges:
    return tuple(RowRange(_count(shard), _count(start), _count(end)) for shard, start, end in raw)


def _count(value: object, at_least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{value!r} is no count")
    return value
