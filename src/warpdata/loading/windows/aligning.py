"""Which records answer a field at some anchors: positions, what is valid and how old it is. Pure arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.loading.windows.field import FieldRows
from warpdata.timeline.sampling import Align, shares
from warpdata.timeline.times import moved, ns_between

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Aligned:
    """For each anchor and row of a field: the record that stands there, and what it is worth."""

    positions: Int64s
    """Always a record that exists, the nearest one where the right one does not."""
    inside: Bools
    """False beyond an edge: before the first record, past the end of the episode, across a gap."""
    mask: Bools
    """`inside`, and not too old."""
    age_ns: Int64s
    later: Int64s | None = None
    """For values between two records: the second of them."""
    share: NDArray[np.float64] | None = None
    """How far between the two each value is, from 0 to 1."""


class Clock:
    """The times of a signal, cut into stretches without a gap."""

    def __init__(self, stamps: Int64s, max_gap_ns: int | None) -> None:
        self.stamps = stamps
        self._first: Int64s | None = None
        self._last: Int64s | None = None
        if max_gap_ns is None:
            return
        cuts = np.flatnonzero(ns_between(stamps[1:], stamps[:-1]) > max_gap_ns) + 1
        if len(cuts):
            lengths = np.diff(np.concatenate([[0], cuts, [len(stamps)]]))
            firsts = np.concatenate([[0], cuts])
            self._first = np.repeat(firsts, lengths).astype(np.int64)
            self._last = np.repeat(firsts + lengths - 1, lengths).astype(np.int64)

    def __len__(self) -> int:
        return len(self.stamps)

    def held(self, times: Int64s) -> Int64s:
        """The last record at or before each time, -1 before the first."""
        return self.stamps.searchsorted(times, "right").astype(np.int64) - 1

    def stretch(self, records: Int64s) -> tuple[Int64s | int, Int64s | int]:
        """First and last record of the stretch of each record; before the first record counts to it."""
        if self._first is None or self._last is None:
            return 0, len(self.stamps) - 1
        at = np.maximum(records, 0)
        return self._first[at], self._last[at]


def align_rows(
    rows: FieldRows, align: Align, clock: Clock, anchors: Int64s, end_ns: int, max_age_ns: int | None
) -> Aligned:
    """The rows of a field at these anchors. `end_ns` is the end of the episode: a moment after it is outside."""
    if not len(clock):
        return _nothing(len(anchors), rows.count)
    own = clock.held(anchors)
    low, high = clock.stretch(own)
    if clock._first is not None:
        low, high = np.asarray(low)[:, None], np.asarray(high)[:, None]
    if rows.when == "records":
        return _counted(rows, clock, anchors, own, (low, high), max_age_ns)
    return _timed(rows, align, clock, anchors, (low, high), end_ns, max_age_ns)


def _counted(
    rows: FieldRows,
    clock: Clock,
    anchors: Int64s,
    own: Int64s,
    bounds: tuple[Any, Any],
    max_age_ns: int | None,
) -> Aligned:
    """Records counted from the one at the anchor; only that one can be too old."""
    steps = np.array(rows.steps, np.int64)
    wanted = own[:, None] + steps
    inside = (wanted >= bounds[0]) & (wanted <= bounds[1])
    positions = np.clip(wanted, *bounds)
    age = ns_between(anchors[:, None], clock.stamps[positions])
    mask = inside if max_age_ns is None else inside & ((np.abs(age) <= max_age_ns) | (steps != 0))
    return Aligned(positions, inside, mask, age)


def _timed(
    rows: FieldRows,
    align: Align,
    clock: Clock,
    anchors: Int64s,
    bounds: tuple[Any, Any],
    end_ns: int,
    max_age_ns: int | None,
) -> Aligned:
    """The record that answers at each moment, as `episode.sample` finds it."""
    stamps = clock.stamps
    times = moved(anchors[:, None], np.array(rows.offsets_ns, np.int64))
    found = clock.held(times)
    if align == "nearest":
        held, later = np.maximum(found, 0), np.minimum(found + 1, len(stamps) - 1)
        is_closer = (found >= 0) & (ns_between(stamps[later], times) < ns_between(times, stamps[held]))
        found = np.where(is_closer, later, found)
    inside = (found >= bounds[0]) & (found <= bounds[1]) & (times <= end_ns)
    positions = np.clip(found, *bounds)
    age = ns_between(times, stamps[positions])
    mask = inside if max_age_ns is None else inside & (np.abs(age) <= max_age_ns)
    if align not in ("linear", "slerp"):
        return Aligned(positions, inside, mask, age)
    # Between two records of one stretch; beyond the last of a stretch it holds.
    later = np.minimum(positions + 1, bounds[1])
    share = np.where(later > positions, shares(times, stamps[positions], stamps[later]), 0.0)
    return Aligned(positions, inside, mask, age, later, share)


def _nothing(anchors: int, rows: int) -> Aligned:
    shape = (anchors, rows)
    no = np.zeros(shape, np.bool_)
    return Aligned(np.zeros(shape, np.int64), no, no, np.zeros(shape, np.int64))
