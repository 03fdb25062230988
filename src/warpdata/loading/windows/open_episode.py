"""One episode as windows see it: its anchors, and for each field which records to read and how to write them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import BlobNotFoundError, FormatError, WarpError
from warpdata.loading.windows.aligning import Aligned, Bools, Clock, Int64s, align_rows
from warpdata.loading.windows.anchors import Anchors
from warpdata.loading.windows.field import (
    Field,
    FieldRows,
    FieldSchema,
    check_same,
    find_schema,
    signal_named,
)
from warpdata.loading.windows.images import crop_box, scale_images
from warpdata.timeline.episode import Episode
from warpdata.timeline.sampling import blank_values, mixed_values
from warpdata.timeline.signal import MappedRows, Signal
from warpdata.timeline.times import INT64_MAX

DAMAGE = (FormatError, BlobNotFoundError)
"""What makes an episode unreadable: bytes that are wrong or missing. A connection that fails is no damage."""

One = tuple[Any, Any, Any]
"""Values, mask and ages of one sample."""

_TABLE_ROWS = 1 << 18
"""An alignment of so many rows is found once for all anchors of an episode, and kept."""


_ASK_EVERY = 16
"""Reads between two checks whether all bytes of a signal are in memory or mapped."""


class SampleGroup:
    """Samples of a batch from one episode: their anchors and places in the batch."""

    __slots__ = ("episode", "pairs")

    def __init__(self, episode: int, pairs: list[tuple[int, int]]) -> None:
        self.episode = episode
        self.pairs = pairs
        """Anchor and place of each sample."""

    @property
    def anchors(self) -> Int64s:
        """The anchor of each sample."""
        return np.array([anchor for anchor, _ in self.pairs], np.int64)

    @property
    def places(self) -> Int64s:
        """Where in the batch each sample goes."""
        return np.array([place for _, place in self.pairs], np.int64)


class FieldOut:
    """One field of a batch while it is read, with an axis of rows if it is a signal."""

    __slots__ = ("age_ns", "mask", "values")

    def __init__(self, schema: FieldSchema, count: int) -> None:
        self.values = empty_values(schema, count)
        self.mask = np.ones(rows_shape(schema, count), np.bool_)
        self.age_ns = np.empty(self.mask.shape, np.int64)


class OpenEpisode:
    """An episode, its anchors, and a reader for each field."""

    __slots__ = ("_clocks", "_max_gap_ns", "episode", "fields", "same_rows", "times")

    def __init__(
        self,
        episode: Episode,
        anchors: Anchors,
        grid_signals: Sequence[str],
        schema: Mapping[str, FieldSchema],
        max_age_ns: int | None,
        max_gap_ns: int | None,
    ) -> None:
        self.episode = episode
        self._clocks: dict[str, Clock] = {}
        self._max_gap_ns = max_gap_ns
        signals = {each.field.signal: signal_named(episode, each.field.signal) for each in schema.values()}
        gated = {
            name: signals[name] if name in signals else signal_named(episode, name) for name in grid_signals
        }
        self.times = anchors.times(
            episode, {name: each for name, each in gated.items() if each is not None and len(each)}
        )
        self.fields: dict[str, SignalReader | StaticReader] = {}
        self.same_rows: dict[str, str] = {}
        """Fields whose masks and ages are those of an earlier field, which they name: same clock, same rows."""
        tables: dict[Any, tuple[str, RowTable]] = {}
        for name, known in schema.items():
            signal = signals[known.field.signal]
            own = find_schema(name, known.field, episode, signal)
            if own is not None:
                check_same(known, own, episode.id)
            if signal is None:
                self.fields[name] = StaticReader(known, episode)
                continue
            age = known.field.max_age_s
            limit = max_age_ns if age is None else round(age * 1e9)
            clock, field = self._clock(signal, known), known.field
            key = (id(clock), field.rows, field.align, limit)
            if key in tables:
                self.same_rows[name] = tables[key][0]
            else:
                tables[key] = (name, RowTable(field, clock, self.times, episode, limit))
            self.fields[name] = SignalReader(own or known, signal, tables[key][1])

    def _clock(self, signal: Signal, schema: FieldSchema) -> Clock:
        name = schema.field.signal
        if name not in self._clocks:
            stamps = signal.timestamps
            alike = (each for each in self._clocks.values() if np.array_equal(each.stamps, stamps))
            self._clocks[name] = next(alike, None) or Clock(stamps, self._max_gap_ns)
        return self._clocks[name]

    @property
    def is_near(self) -> bool:
        """Whether all values are in memory or in mapped files."""
        return all(not isinstance(each, SignalReader) or each.is_near for each in self.fields.values())

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row of any signal is beyond an edge."""
        good = np.ones(len(anchors), np.bool_)
        for name, field in self.fields.items():
            if name not in self.same_rows:
                good &= field.inside(anchors)
        return good

    def settled(self) -> int:
        """Of an episode that grows, how many anchors have all their rows, so that later records change nothing."""
        if not len(self.times):
            return 0
        good = np.ones(len(self.times), np.bool_)
        for field in self.fields.values():
            good &= field.settled()
        return int(good.argmin()) if not good.all() else len(good)

    def first_outside(self, anchors: Int64s) -> tuple[str, int] | None:
        """The field and the anchor of the first row beyond an edge."""
        found = [
            (int(anchors[~good][0]), name)
            for name, field in self.fields.items()
            if not (good := field.inside(anchors)).all()
        ]
        return (min(found)[1], min(found)[0]) if found else None

    @property
    def held_bytes(self) -> int:
        """What this keeps in memory."""
        tables = {id(each.rows): each.rows for each in self.fields.values() if isinstance(each, SignalReader)}
        return self.episode.source.loaded_bytes() + sum(each.held_bytes for each in tables.values())


class StaticReader:
    """A static item: the same value at every anchor."""

    def __init__(self, schema: FieldSchema, episode: Episode) -> None:
        name = schema.field.signal
        self._is_there = schema.is_static and name in episode.static
        self.schema = schema
        if self._is_there:
            value = episode.static[name]
        elif schema.is_text or schema.stored_dtype == np.dtype(object):
            value = ""
        else:
            value = np.nan if schema.dtype.kind in "fc" else 0
        self._value = value

    def inside(self, anchors: Int64s) -> Bools:
        """Everywhere: a static item has no edges. A signal that the whole episode lacks is inside nowhere."""
        return np.full(len(anchors), self.schema.is_static)

    def settled(self) -> bool:
        """Whether the value can be relied on: an item, or a signal, that is not there may still come."""
        return self._is_there

    def read(self, group: SampleGroup, out: FieldOut, *, marks: bool = True) -> None:
        """Write the value to the places of a group."""
        places = group.places
        if self.schema.is_static and self.schema.dtype == np.dtype(object):
            for place in places.tolist():
                out.values[place] = self._value
        else:
            out.values[places] = self._value
        out.mask[places] = self._is_there
        out.age_ns[places] = 0
        _ = marks

    def read_one(self, anchor: int) -> One:
        """The value, whether it is there, and its age."""
        return _one(self, anchor)


class RowTable:
    """Which records answer at each anchor; fields of one episode with the same clock and rows share one."""

    def __init__(
        self, field: Field, clock: Clock, times: Int64s, episode: Episode, max_age_ns: int | None
    ) -> None:
        self._field = field
        self._clock = clock
        self._times = times
        self._episode = episode
        self._max_age_ns = max_age_ns
        self._runs: Runs | None = None
        self._is_small = len(times) * field.rows.count <= _TABLE_ROWS

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept."""
        return 0 if self._runs is None else 27 * self._runs.table.positions.size

    def at(self, times: Int64s) -> Aligned:
        """The alignment at any times."""
        field = self._field
        return align_rows(field.rows, field.align, self._clock, times, self._end_ns, self._max_age_ns)

    @cached_property
    def _end_ns(self) -> int:
        """The last record of the episode; finding it may open signals that no field names."""
        episode = self._episode
        return episode.last_ts_ns if any(map(len, episode.signals.values())) else 0

    def runs(self) -> Runs | None:
        """The alignment at all anchors, kept; None where there are too many of them."""
        if self._runs is None and self._is_small:
            self._runs = Runs(self._at_anchors(self._times, self._field.rows, self._max_age_ns))
        return self._runs

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row is beyond an edge; the outermost rows decide for all of them."""
        found = self._at_anchors(self._times[anchors], self._field.rows.outermost, None)
        return np.asarray(found.inside.all(axis=1))

    def _at_anchors(self, times: Int64s, rows: FieldRows, max_age_ns: int | None) -> Aligned:
        end_ns = self._end_ns if max(rows.offsets_ns, default=0) > 0 else INT64_MAX
        return align_rows(rows, self._field.align, self._clock, times, end_ns, max_age_ns)

    def aligned(self, anchors: Int64s) -> Aligned:
        """The alignment at anchors by number."""
        runs = self.runs()
        if runs is None:
            return self._at_anchors(self._times[anchors], self._field.rows, self._max_age_ns)
        table = runs.table
        return Aligned(
            table.positions[anchors],
            table.inside[anchors],
            table.mask[anchors],
            table.age_ns[anchors],
            None if table.later is None else table.later[anchors],
            None if table.share is None else table.share[anchors],
        )

    def settled(self) -> Bools:
        """At which anchors no record that is still to come can change a row: it is before the last one there is."""
        if not len(self._clock):
            return np.zeros(len(self._times), np.bool_)
        rows, last = self._field.rows, int(self._clock.stamps[-1])
        if rows.when == "times":
            return np.asarray(self._times + max(rows.offsets_ns) < last)
        own = self._clock.held(self._times)
        return np.asarray((self._times < last) & (own + max(rows.steps) < len(self._clock)))


class Runs:
    """An alignment of all anchors, with the first record of those whose rows are consecutive records."""

    __slots__ = ("firsts", "is_valid", "starts", "table")

    def __init__(self, table: Aligned) -> None:
        self.table = table
        is_run = (np.diff(table.positions, axis=1) == 1).all(axis=1)
        self.firsts = np.where(is_run, table.positions[:, 0], -1)
        """The first record at each anchor whose rows are consecutive records, else -1."""
        self.starts: list[int] = self.firsts.tolist()
        self.is_valid = table.mask.all(axis=1).tobytes()
        """At which anchors all rows are valid."""


class SignalReader:
    """A signal: which records answer at each anchor, and their values."""

    __slots__ = (
        "_asked",
        "_direct",
        "_has_axis",
        "_is_between",
        "_is_plain",
        "_length",
        "_runs",
        "_signal",
        "_width",
        "rows",
        "schema",
    )

    def __init__(self, schema: FieldSchema, signal: Signal, rows: RowTable) -> None:
        self.schema = schema
        self.rows = rows
        self._signal = signal
        self._length = len(signal)
        self._width = schema.rows
        self._has_axis = schema.has_axis
        self._is_between = schema.field.align in ("linear", "slerp")
        self._is_plain = not self._is_between and not schema.is_changed and not schema.is_text
        self._runs: Runs | None = None
        self._direct: MappedRows | None = None
        self._asked = 0

    @property
    def signal(self) -> Signal:
        """The signal that is read."""
        return self._signal

    @property
    def is_near(self) -> bool:
        """Whether all values are known to be in memory or in a mapped file."""
        return self._direct is not None

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row is beyond an edge."""
        return self.rows.inside(anchors)

    def settled(self) -> Bools:
        """At which anchors no record that is still to come can change a row."""
        return self.rows.settled()

    def read(self, group: SampleGroup, out: FieldOut, *, marks: bool = True) -> None:
        """Put the values of a group to their places of a batch, and mask and ages if `marks`."""
        runs = self._runs
        if runs is None and (runs := self._all_runs()) is None:
            self.write(self.rows.aligned(group.anchors), group.places, out)
            return
        direct = self._direct or self._mapped()
        if direct is None:
            self._read_runs(runs, group, out.values)
        else:
            self._copy(direct, runs, group, out)
        if marks:
            ages, is_valid = runs.table.age_ns, runs.is_valid
            for anchor, place in group.pairs:  # most groups are too small for indexing by arrays
                out.age_ns[place] = ages[anchor]
                if not is_valid[anchor]:
                    out.mask[place] = runs.table.mask[anchor]

    def read_one(self, anchor: int) -> One:
        """The values, the mask and the ages at one anchor, without an axis of samples."""
        runs = self._runs or self._all_runs()
        direct = self._direct or self._mapped() if runs is not None else None
        start = -1 if runs is None or direct is None else runs.starts[anchor]
        if runs is None or direct is None or start < 0:
            return _one(self, anchor)
        values, table = self._checked_view(direct, start).copy(), runs.table
        mask, age_ns = table.mask[anchor].copy(), table.age_ns[anchor].copy()
        return (values, mask, age_ns) if self._has_axis else (values[0], mask[0], age_ns[0])

    def _all_runs(self) -> Runs | None:
        """The alignment at all anchors, if records are given as they are; else None."""
        if self._is_plain and self._length:
            self._runs = self.rows.runs()
        return self._runs

    def _mapped(self) -> MappedRows | None:
        """A view of all values, if they are in memory or in a mapped file."""
        if self._asked % _ASK_EVERY == 0:
            self._direct = self._signal._in_memory()
        self._asked += 1
        return self._direct

    def _checked_view(self, direct: MappedRows, start: int) -> NDArray[Any]:
        """A view of the rows from a record on, checked."""
        stop = start + self._width
        if direct.check is not None and direct.check(start, stop):
            self._direct = MappedRows(direct.rows)
        return direct.rows[start:stop]

    def _copy(self, direct: MappedRows, runs: Runs, group: SampleGroup, out: FieldOut) -> None:
        """Copy rows that are in memory or mapped, sample by sample."""
        rows, check = direct
        width, starts, values = self._width, runs.starts, out.values
        for anchor, place in group.pairs:
            start = starts[anchor]
            if start < 0:
                values[place] = self._read(runs.table.positions[anchor : anchor + 1])[0]
            elif check is None:
                values[place] = rows[start : start + width]
            else:
                values[place] = self._checked_view(direct, start)

    def _read_runs(self, runs: Runs, group: SampleGroup, out: NDArray[Any]) -> None:
        """Runs of records straight to where they go; the few that are no runs by number."""
        anchors, places = group.anchors, group.places
        starts = runs.firsts[anchors]
        if not self._signal._gives_runs():  # all at once: nothing is decoded twice
            out[places] = self._read(runs.table.positions[anchors])
        elif int(starts.min()) >= 0:
            self._signal._runs_into(starts, out, places)
        else:
            is_run = starts >= 0
            if is_run.any():
                self._signal._runs_into(starts[is_run], out, places[is_run])
            out[places[~is_run]] = self._read(runs.table.positions[anchors[~is_run]])

    def write(self, found: Aligned, places: Int64s, out: FieldOut) -> None:
        """Write the values of an alignment."""
        out.mask[places] = found.mask
        out.age_ns[places] = found.age_ns
        if not self._length:
            out.values[places] = blank_values(self._signal.meta, 1)[0]
        elif self._is_between:
            out.values[places] = self._between(found)
        elif self.schema.is_changed:
            out.values[places] = self._changed(self._read(found.positions))
        else:
            out.values[places] = self._read(found.positions)

    def bring(self, anchors: Int64s) -> None:
        """Bring the bytes of what is read at these anchors near."""
        if self._direct is not None:
            return
        found = self.rows.aligned(anchors)
        if self._length:
            wanted = (
                found.positions if found.later is None else np.concatenate([found.positions, found.later])
            )
            self._signal._bring(wanted.reshape(-1))

    def _read(self, positions: Int64s) -> NDArray[Any]:
        """The values of records by number, each read once."""
        wanted, back = np.unique(positions, return_inverse=True)
        values = self._signal._values_kept(wanted)
        return values[back.reshape(positions.shape)]

    def _between(self, found: Aligned) -> NDArray[Any]:
        assert found.later is not None
        assert found.share is not None
        shape = found.positions.shape
        first, second = self._read(found.positions), self._read(found.later)
        flat = (-1, *first.shape[2:])
        mixed = mixed_values(
            first.reshape(flat), second.reshape(flat), found.share.reshape(-1), self.schema.field.align
        )
        return self._changed(mixed.reshape(*shape, *first.shape[2:]))

    def _changed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values as the field wants them: cut, scaled, of another type."""
        field, schema = self.schema.field, self.schema
        if field.crop is not None:
            rows, columns = crop_box(schema.stored_shape, field.crop, schema.name)
            values = values[:, :, rows, columns]
        if field.size is not None:
            flat = values.reshape(-1, *values.shape[2:])
            values = scale_images(flat, field.size).reshape(*values.shape[:2], *schema.shape)
        return values.astype(schema.dtype, copy=False)


def rows_shape(schema: FieldSchema, count: int) -> tuple[int, ...]:
    """The shape of the mask of so many samples; every signal has an axis of rows while it is read."""
    return (count,) if schema.is_static else (count, schema.rows)


def empty_values(schema: FieldSchema, count: int) -> NDArray[Any]:
    """Memory for the values of so many samples; what it holds is left over."""
    shape = (*rows_shape(schema, count), *schema.shape)
    return np.empty(shape, schema.dtype)


def _one(reader: SignalReader | StaticReader, anchor: int) -> One:
    """One anchor read as a batch of one."""
    schema = reader.schema
    out = FieldOut(schema, 1)
    reader.read(SampleGroup(0, [(anchor, 0)]), out)
    is_flat = not schema.has_axis and not schema.is_static
    found = (out.values[0], out.mask[0], out.age_ns[0])
    return (found[0][0], found[1][0], found[2][0]) if is_flat else found


def named_fault(error: WarpError, place: str) -> WarpError:
    """The same error with its place: episode, time and field."""
    error.message = f"{place}: {error.message}"
    error.args = (error.message,)
    return error
