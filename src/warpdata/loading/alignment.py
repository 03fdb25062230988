"""Anchors of an episode, and the records that answer a field at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import cached_property
from warpdata.episodes.collection.facts import column_table
from warpdata.errors import DatasetError, nearest, require_integer
from warpdata.loading.field import Field, FieldRows
from warpdata.sql.columns import fold_case
from warpdata.sql.engine import matching_rows, parse_condition
from warpdata.timeline.episode import Episode, same_clock
from warpdata.timeline.meta import ROLES
from warpdata.timeline.signal import Signal
from warpdata.timeline.steps import Align, align_signal, aligned_values, shares
from warpdata.timeline.times import INT64_MAX, MAX_GRID, add_offsets, checked_rate, ns_between, rate_grid

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TABLE_ROWS = 1 << 18
"""An alignment of up to this many rows is computed once for all anchors of an episode, and kept."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """`signal`: every `stride`-th record of a signal (or of the signals of a role). `rate_hz`: a grid."""

    signal: str | None
    rate_hz: float | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        if (self.signal is None) == (self.rate_hz is None):
            raise ValueError("give either anchor= (a signal or a role) or rate_hz=")
        if self.signal is not None and not isinstance(self.signal, str):
            raise TypeError(f"anchor names a signal or a role, not {self.signal!r}")
        object.__setattr__(self, "stride", require_integer("stride", self.stride, MAX_GRID, least=1))
        if self.rate_hz is not None:
            object.__setattr__(self, "rate_hz", checked_rate(self.rate_hz))

    def to_json(self) -> dict[str, Any]:
        """The anchors as JSON; 20 and 20.0 are the same rate."""
        rate = self.rate_hz
        rate = int(rate) if rate is not None and rate.is_integer() else rate
        return {"signal": self.signal, "rate_hz": rate, "stride": self.stride}

    def name_in(self, episode: Episode) -> str | None:
        """The signal of this episode whose records are the anchors; None if it has no such signal."""
        assert self.signal is not None
        signals = episode.signals
        if self.signal in signals:
            return self.signal
        older = episode._older_name(self.signal)
        if older is not None or self.signal not in ROLES:
            return older
        of_role = [name for name, each in signals.items() if each.meta.role == self.signal and len(each)]
        for other in of_role[1:]:
            if not same_clock(signals[of_role[0]], signals[other]):
                raise ValueError(
                    f"the signals of role {self.signal!r} of episode {episode.id!r} have clocks of their own: "
                    f"choose one of {', '.join(of_role)}"
                )
        return of_role[0] if of_role else None

    def times(self, episode: Episode, used: Mapping[str, Signal]) -> Int64s:
        """The times of all anchors of an episode; `used` are the signals of the fields that have records.

        A grid goes from the first moment at which every field has a value until the last record of any.
        """
        if self.rate_hz is None:
            name = self.name_in(episode)
            return np.empty(0, np.int64) if name is None else episode.signals[name].timestamps[:: self.stride]
        if not used:
            return np.empty(0, np.int64)
        start = max(signal.first_ts_ns for signal in used.values())
        stop = max(signal.last_ts_ns for signal in used.values())
        return rate_grid(start, stop, self.rate_hz)[:: self.stride]


def matching_anchors(
    episode: Episode, times: Int64s, condition: str, other_names: Callable[[], Iterable[str]] = tuple
) -> Int64s:
    """Anchors that satisfy a SQL condition over signals (the value held there) and static items.

    A signal without a value yet is null, and so is a name that only other episodes have (`other_names`). Signals of
    several numbers are lists; `ts_ns` is the time of the anchor.
    """
    known, parsed = [*episode.keys, "ts_ns"], parse_condition(condition)
    if not {fold_case(name) for name in parsed.names} <= {fold_case(name) for name in known}:
        known += parsed.columns_of([name for name in other_names() if name not in known])
    wanted = set(parsed.columns_of(known))
    columns: dict[str, Any] = {}
    for name in known:
        if name not in wanted or name not in episode.keys:
            columns[name] = None
        elif name in episode.signals:
            signal = episode.signals[name]
            aligned = align_signal(signal, times)
            values = aligned_values(signal, times, aligned).tolist()
            columns[name] = [v if valid else None for v, valid in zip(values, aligned.mask, strict=True)]
        else:
            columns[name] = [episode.static[name]] * len(times)
    columns["ts_ns"] = times
    try:
        return matching_rows(column_table(columns, len(times)), condition)
    except DatasetError as error:
        unknown = sorted(parsed.names - {*known})
        near = "".join(nearest(name, known) for name in unknown[:1])
        hint = f"episode {episode.id!r} has {', '.join(known)}.{near}"
        raise DatasetError(f"where={condition!r}: {error.message}", hint=hint) from None


class Aligned(NamedTuple):
    """For each anchor and row of a field the record that answers."""

    positions: Int64s
    """Always a record that exists, the nearest one if the right one does not."""
    inside: Bools
    """False beyond an edge: before the first record, past the end of the episode, across a gap."""
    mask: Bools
    """`inside`, and not too old."""
    age_ns: Int64s
    later: Int64s | None = None
    """For values between two records: the second of them."""
    share: NDArray[np.float64] | None = None
    """How far between the two each value is, from 0 to 1."""

    def at(self, anchors: Int64s) -> Aligned:
        """The part of some anchors."""
        parts: list[Any] = [None if part is None else part[anchors] for part in self]
        return Aligned(*parts)


class Clock:
    """The times of a signal, cut into stretches without a gap."""

    def __init__(self, stamps: Int64s, max_gap_ns: int | None) -> None:
        self.stamps = stamps
        self._bounds: tuple[Int64s, Int64s] | None = None
        """First and last record of the stretch of each record, if there is a gap."""
        if max_gap_ns is not None:
            cuts = np.flatnonzero(ns_between(stamps[1:], stamps[:-1]) > max_gap_ns) + 1
            if len(cuts):
                firsts = np.concatenate([[0], cuts])
                lengths = np.diff(np.concatenate([firsts, [len(stamps)]]))
                self._bounds = np.repeat(firsts, lengths), np.repeat(firsts + lengths - 1, lengths)

    def held(self, times: Int64s) -> Int64s:
        """The last record at or before each time, -1 before the first."""
        return self.stamps.searchsorted(times, "right").astype(np.int64) - 1

    def align(
        self, rows: FieldRows, align: Align, anchors: Int64s, end_ns: int, max_age_ns: int | None
    ) -> Aligned:
        """The rows of a field at these anchors. `end_ns` is the end of the episode: a moment after it is outside."""
        if not len(self.stamps):
            shape = (len(anchors), len(rows.offsets))
            no = np.zeros(shape, np.bool_)
            return Aligned(np.zeros(shape, np.int64), no, no, np.zeros(shape, np.int64))
        own = self.held(anchors)
        bounds: Any = (0, len(self.stamps) - 1)
        if self._bounds is not None:
            bounds = tuple(bound[np.maximum(own, 0)][:, None] for bound in self._bounds)
        offsets = np.array(rows.offsets, np.int64)
        if rows.when == "records":  # only the record at the anchor can be too old
            wanted = own[:, None] + offsets
            inside = (wanted >= bounds[0]) & (wanted <= bounds[1])
            positions = np.clip(wanted, *bounds)
            age = ns_between(anchors[:, None], self.stamps[positions])
            is_young = True if max_age_ns is None else (np.abs(age) <= max_age_ns) | (offsets != 0)
            return Aligned(positions, inside, inside & is_young, age)
        return self._at_times(add_offsets(anchors[:, None], offsets), align, bounds, end_ns, max_age_ns)

    def _at_times(
        self, times: Int64s, align: Align, bounds: Any, end_ns: int, max_age_ns: int | None
    ) -> Aligned:
        """The record that answers at each moment, as `episode.sample` finds it."""
        stamps = self.stamps
        wanted = self.held(times)
        if align == "nearest":
            before, after = np.maximum(wanted, 0), np.minimum(wanted + 1, len(stamps) - 1)
            is_closer = ns_between(stamps[after], times) < ns_between(times, stamps[before])
            wanted = np.where((wanted >= 0) & is_closer, after, wanted)
        inside = (wanted >= bounds[0]) & (wanted <= bounds[1]) & (times <= end_ns)
        positions = np.clip(wanted, *bounds)
        age = ns_between(times, stamps[positions])
        mask = inside if max_age_ns is None else inside & (np.abs(age) <= max_age_ns)
        if align not in ("linear", "slerp"):
            return Aligned(positions, inside, mask, age)
        # Between two records of one stretch; beyond the last of a stretch it holds.
        later = np.minimum(positions + 1, bounds[1])
        share = np.where(later > positions, shares(times, stamps[positions], stamps[later]), 0.0)
        return Aligned(positions, inside, mask, age, later, share)


class RowTable:
    """The records that answer at each anchor; fields of one episode with the same clock and rows share one."""

    def __init__(
        self,
        field: Field,
        rows: FieldRows,
        clock: Clock,
        times: Int64s,
        episode: Episode,
        max_age_ns: int | None,
    ) -> None:
        self._align, self._rows, self._clock = field.align, rows, clock
        self._times, self._episode, self._max_age_ns = times, episode, max_age_ns
        self._is_small = len(times) * len(rows.offsets) <= _TABLE_ROWS
        self._table: Aligned | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept."""
        return 0 if self._table is None else 27 * self._table.positions.size + 40 * len(self._table.positions)

    @cached_property
    def _end_ns(self) -> int:
        """The last record of the episode; finding it may open signals that no field names."""
        episode = self._episode
        return episode.last_ts_ns if any(map(len, episode.signals.values())) else 0

    def at(self, times: Int64s) -> Aligned:
        """The alignment at any times."""
        return self._clock.align(self._rows, self._align, times, self._end_ns, self._max_age_ns)

    def _at_anchors(self, times: Int64s, rows: FieldRows, max_age_ns: int | None) -> Aligned:
        """The alignment at times of anchors: only a later moment can be past the end of the episode."""
        is_later = rows.when == "times" and max(rows.offsets) > 0
        end_ns = self._end_ns if is_later else INT64_MAX
        return self._clock.align(rows, self._align, times, end_ns, max_age_ns)

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row is beyond an edge; the outermost rows decide for all of them."""
        outermost = self._at_anchors(self._times[anchors], self._rows.outermost, None)
        return np.asarray(outermost.inside.all(axis=1))

    def table(self) -> Aligned | None:
        """The alignment at all anchors, kept; None if there are too many of them."""
        if self._table is None and self._is_small:
            self._table = self._at_anchors(self._times, self._rows, self._max_age_ns)
        return self._table

    @cached_property
    def runs(self) -> list[int]:
        """The first record of each anchor whose records follow one another and are valid, else -1; of a table kept."""
        assert self._table is not None
        positions = self._table.positions
        is_run = (np.diff(positions, axis=1) == 1).all(axis=1) & self._table.mask.all(axis=1)
        firsts: list[int] = np.where(is_run, positions[:, 0], -1).tolist()
        return firsts

    def aligned(self, anchors: Int64s) -> Aligned:
        """The alignment at anchors by number."""
        table = self.table()
        if table is not None:
            return table.at(anchors)
        return self._at_anchors(self._times[anchors], self._rows, self._max_age_ns)

    def settled(self) -> Bools:
        """At which anchors no later record can change a row: it is before the last one recorded."""
        stamps, rows = self._clock.stamps, self._rows
        if not len(stamps):
            return np.zeros(len(self._times), np.bool_)
        if rows.when == "times":
            return np.asarray(self._times + max(rows.offsets) < int(stamps[-1]))
        own = self._clock.held(self._times)
        return np.asarray((self._times < int(stamps[-1])) & (own + max(rows.offsets) < len(stamps)))
