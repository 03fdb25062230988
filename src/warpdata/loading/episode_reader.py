"""One episode of some windows: its anchors, and for each field the records to read and how to write them out."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import BLOCK_CACHE, cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.errors import BlobNotFoundError, FormatError, SchemaMismatchError, WarpError
from warpdata.loading.alignment import Aligned, Anchors, Bools, Clock, Int64s
from warpdata.loading.field import Field, FieldRows, FieldSchema, check_same, find_schema, signal_named
from warpdata.loading.images import crop_box, resize_images, scale_values
from warpdata.loading.poses import subtract
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.ragged import pad_rows
from warpdata.timeline.sampling import blank_values, mixed_values
from warpdata.timeline.signal import MappedRows, Signal, SignalView
from warpdata.timeline.times import INT64_MAX

DAMAGE = (FormatError, BlobNotFoundError)
"""Errors that make an episode unreadable: bytes that are wrong or missing. A failing connection is no damage."""

_TABLE_ROWS = 1 << 18
"""An alignment of up to this many rows is computed once for all anchors of an episode, and kept."""
_CHECK_EVERY = 16
"""Reads between two checks whether all bytes of a signal are in memory or mapped."""
_STEP_BYTES = 16 << 20
_GROUP_BYTES = 64 << 20
"""Decoded frames of a group of pictures in memory at a time; longer groups are decoded in parts."""
AT_ANCHOR = FieldRows("times", (0,))

Timings = dict[str, float]
"""Seconds of work by kind: `decode` (reading values), `scale`, `copy`."""


class FieldOut:
    """One field of a batch while it is read; signals have an axis of rows."""

    __slots__ = ("age_ns", "mask", "timings", "values")

    def __init__(self, schema: FieldSchema, count: int, timings: Timings) -> None:
        rows = (count,) if schema.is_static else (count, schema.rows)
        self.values = np.empty((*rows, *schema.shape), schema.dtype)
        self.mask = np.ones((*rows, schema.shape[0]) if schema.is_ragged else rows, np.bool_)
        self.age_ns = np.empty(rows, np.int64)
        self.timings = timings


class EpisodeReader:
    """An episode, its anchors, and a reader for each field."""

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
        used = {name: signal_named(episode, name) for name in grid_signals}
        self.times = anchors.times(
            episode, {n: each for n, each in used.items() if each is not None and len(each)}
        )
        self.fields: dict[str, SignalReader | StaticReader] = {}
        clocks: dict[str, Clock] = {}
        tables: dict[Any, RowTable] = {}

        def table_of(name: str, signal: Signal, field: Field, rows: FieldRows, limit: int | None) -> RowTable:
            """The alignment of a signal; fields with the same clock and rows share one."""
            if name not in clocks:
                stamps = signal.timestamps
                same = (each for each in clocks.values() if np.array_equal(each.stamps, stamps))
                clocks[name] = next(same, None) or Clock(stamps, max_gap_ns)
            key = (id(clocks[name]), rows, field.align, limit)
            if key not in tables:
                tables[key] = RowTable(field, rows, clocks[name], self.times, episode, limit)
            return tables[key]

        for name, known in schema.items():
            field = known.field
            own = find_schema(name, field, episode)
            if own is not None:
                check_same(known, own, episode.id)
            signal = signal_named(episode, field.signal)
            if signal is None:
                self.fields[name] = StaticReader(known, episode)
                continue
            limit = max_age_ns if field.max_age_s is None else round(field.max_age_s * 1e9)
            rows = table_of(field.signal, signal, field, field.read_rows, limit)
            reference: tuple[Signal, RowTable] | None = None
            base = None if field.relative_to is None else signal_named(episode, field.relative_to)
            if field.relative_to is not None and base is not None:
                plain = Field(field.relative_to)
                reference = base, table_of(field.relative_to, base, plain, AT_ANCHOR, max_age_ns)
            self.fields[name] = SignalReader(own or known, signal, rows, reference)

    @property
    def is_near(self) -> bool:
        """Whether all values are in memory or in mapped files."""
        return all(not isinstance(each, SignalReader) or each.is_near for each in self.fields.values())

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row of any signal is beyond an edge."""
        good = np.ones(len(anchors), np.bool_)
        for field in self.fields.values():
            good &= field.inside(anchors)
        return good

    def settled(self) -> int:
        """Of an episode that grows, how many anchors have all their rows, so that later records change nothing."""
        good = np.ones(len(self.times), np.bool_)
        for field in self.fields.values():
            good &= field.settled()
        return len(good) if good.all() else int(good.argmin())

    def first_outside(self, anchors: Int64s) -> tuple[str, int] | None:
        """The field and the anchor of the first row beyond an edge."""
        outside = [
            (int(anchors[~good][0]), name)
            for name, field in self.fields.items()
            if not (good := field.inside(anchors)).all()
        ]
        return (min(outside)[1], min(outside)[0]) if outside else None

    @property
    def held_bytes(self) -> int:
        """Bytes this keeps in memory."""
        tables = {id(each.rows): each.rows for each in self.fields.values() if isinstance(each, SignalReader)}
        return self.episode.source.loaded_bytes() + sum(each.held_bytes for each in tables.values())

    def check(self) -> None:
        """Read everything the fields may need and compare it with its checksums; raises the first damage."""
        for name, reader in self.fields.items():
            if isinstance(reader, SignalReader):
                try:
                    _check_signal(reader.signal)
                except WarpError as error:
                    error.message = f"field {name!r}: {error.message}"
                    raise


def _check_signal(signal: Signal) -> None:
    if isinstance(signal, SignalView):
        _check_signal(signal.base)
    elif isinstance(signal, JoinedSignal):
        for part in signal.parts:
            _check_signal(part)
    elif isinstance(signal, VideoSignal):
        signal.check()
    else:
        for run in signal.runs(_STEP_BYTES):
            signal.rows(run.start, run.stop)


class StaticReader:
    """A static item, the same value at every anchor; or a signal that the whole episode lacks."""

    def __init__(self, schema: FieldSchema, episode: Episode) -> None:
        name = schema.field.signal
        self._is_static = schema.is_static
        self._is_present = schema.is_static and name in episode.static
        if self._is_present:
            self._value = episode.static[name]
        elif schema.is_text or schema.stored_dtype == np.dtype(object):
            self._value = ""
        else:
            self._value = np.nan if schema.dtype.kind in "fc" else 0

    def inside(self, anchors: Int64s) -> Bools:
        """Everywhere for a static item; nowhere for a signal that the episode lacks."""
        return np.full(len(anchors), self._is_static)

    def settled(self) -> bool:
        """Whether the value is final: an absent item or signal may still come."""
        return self._is_present

    def read(self, anchors: Int64s, places: Int64s, out: FieldOut) -> None:  # noqa: ARG002
        """Write the value to some places of a batch."""
        if out.values.dtype == np.dtype(object):
            for place in places.tolist():
                out.values[place] = self._value
        else:
            out.values[places] = self._value
        out.mask[places] = self._is_present
        out.age_ns[places] = 0

    def read_at(self, ts_ns: Int64s, out: FieldOut) -> None:
        """Write the value at any time."""
        self.read(ts_ns, np.arange(len(ts_ns)), out)


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
        self._align = field.align
        self._rows = rows
        self._clock = clock
        self._times = times
        self._episode = episode
        self._max_age_ns = max_age_ns
        self._is_small = len(times) * len(rows.offsets) <= _TABLE_ROWS
        self._table: Aligned | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept."""
        return 0 if self._table is None else 27 * self._table.positions.size

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


class ScaledFrames:
    """Frames of a video as a field wants them, decoded and scaled by groups of pictures; the last ones used are kept.

    Scaled frames are small: the block cache holds many groups, and no group is decoded for every single frame of it.
    """

    def __init__(self, signal: VideoSignal, schema: FieldSchema) -> None:
        self._signal = signal
        self._shape, self._dtype = schema.shape, schema.dtype
        self._owner = BLOCK_CACHE.new_owner()
        self._lock = ThreadLock()
        weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False

    @cached_property
    def _starts(self) -> Int64s:
        """The first record of every group, long groups in parts, and the number of records."""
        count, index = len(self._signal), self._signal.frame_index()
        most = max(1, _GROUP_BYTES // max(1, self._signal.meta.row_bytes))
        keys = [0]
        if index.keyframe is not None and index.shown is None:
            keys = [0, *np.flatnonzero(index.keyframe).tolist()]
        parts = [np.arange(low, high, most) for low, high in itertools.pairwise([*keys, count])]
        return np.append(np.unique(np.concatenate(parts)), count).astype(np.int64)

    def read(self, records: Int64s, change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """Records by ascending number; `change` turns decoded frames into those of the field."""
        out = np.empty((len(records), *self._shape), self._dtype)
        groups = self._starts.searchsorted(records, "right") - 1
        for number in np.unique(groups).tolist():
            low, here = int(self._starts[number]), groups == number
            out[here] = self._group(number, change)[records[here] - low]
        return out

    def _group(self, number: int, change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        low, high = int(self._starts[number]), int(self._starts[number + 1])
        with self._lock:  # one thread decodes a group, others find it in the cache
            block = BLOCK_CACHE.get(self._owner, number)
            if block is not None:
                return np.frombuffer(block, self._dtype).reshape(high - low, *self._shape)
            frames = np.ascontiguousarray(
                change(self._signal._values_at(np.arange(low, high, dtype=np.int64)))
            )
            BLOCK_CACHE.put(self._owner, number, frames.data.cast("B"))
        return frames


class SignalReader:
    """A signal: the records that answer at each anchor, and their values."""

    def __init__(
        self,
        schema: FieldSchema,
        signal: Signal,
        rows: RowTable,
        reference: tuple[Signal, RowTable] | None = None,
    ) -> None:
        self.schema = schema
        self.signal = signal
        self.rows = rows
        self._reference = reference
        self._is_between = schema.field.align in ("linear", "slerp")
        self._is_plain = (
            not (self._is_between or schema.is_changed or schema.is_text or schema.is_ragged)
            and len(signal) > 0
        )
        self._direct: MappedRows | None = None
        self._reads = 0
        is_scaled = schema.field.size is not None and isinstance(signal, VideoSignal) and not self._is_between
        self._frames = ScaledFrames(signal, schema) if is_scaled and isinstance(signal, VideoSignal) else None

    @property
    def is_near(self) -> bool:
        """Whether all values are known to be in memory or in a mapped file."""
        return self._direct is not None

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row is beyond an edge."""
        good = self.rows.inside(anchors)
        if self._reference is not None:
            good = good & self._reference[1].inside(anchors)
        return good if self.schema.field.relative_to is None or self._reference is not None else good & False

    def settled(self) -> Bools:
        """At which anchors no later record can change a row."""
        good = self.rows.settled()
        return good if self._reference is None else good & self._reference[1].settled()

    def read(self, anchors: Int64s, places: Int64s, out: FieldOut) -> None:
        """Write values, mask and ages of some anchors to places of a batch."""
        table = self.rows.table() if self._is_plain else None
        direct = self._mapped_rows() if table is not None else None
        if table is None or direct is None:
            reference = None if self._reference is None else self._reference[1].aligned(anchors)
            self._write(self.rows.aligned(anchors), reference, places, out)
            return
        began = perf_counter()
        rows, check = direct
        positions, mask, ages, values = table.positions, table.mask, table.age_ns, out.values
        # Most groups are of few samples: a copy each costs less than indexing by arrays.
        for anchor, place in zip(anchors.tolist(), places.tolist(), strict=True):
            chosen = positions[anchor]
            if check is not None:
                self._check_rows(direct, int(chosen.min()), int(chosen.max()) + 1)
            rows.take(chosen, axis=0, out=values[place], mode="clip")
            out.age_ns[place] = ages[anchor]
            out.mask[place] = mask[anchor]
        out.timings["copy"] += perf_counter() - began

    def read_at(self, ts_ns: Int64s, out: FieldOut) -> None:
        """Write values, mask and ages at any times."""
        reference = None if self._reference is None else self._reference[1].at(ts_ns)
        self._write(self.rows.at(ts_ns), reference, np.arange(len(ts_ns)), out)

    def _mapped_rows(self) -> MappedRows | None:
        """A view of all values, if they are in memory or in a mapped file."""
        if self._direct is None:
            if self._reads % _CHECK_EVERY == 0:
                direct = self.signal._in_memory()
                # take() into the batch needs the same type in native order.
                if (
                    direct is not None
                    and direct.rows.dtype == self.schema.dtype
                    and direct.rows.dtype.isnative
                ):
                    self._direct = direct
            self._reads += 1
        return self._direct

    def _check_rows(self, direct: MappedRows, start: int, stop: int) -> None:
        if direct.check is not None and direct.check(start, stop):
            self._direct = MappedRows(direct.rows)

    def _write(self, aligned: Aligned, reference: Aligned | None, places: Int64s, out: FieldOut) -> None:
        """Write the values of an alignment."""
        field, mask, age_ns = self.schema.field, aligned.mask, aligned.age_ns
        began = perf_counter()
        if not len(self.signal):
            blank = blank_values(self.signal.meta, aligned.positions.size)
            values = blank.reshape(*aligned.positions.shape, *self.signal.meta.shape)
        elif self._is_between:
            values = self._between(aligned)
        elif self._frames is not None:
            wanted, back = np.unique(aligned.positions, return_inverse=True)
            own: Timings = {"scale": 0.0}
            scaled = self._frames.read(wanted, lambda frames: self._change(frames[None], own)[0])
            out.timings["decode"] += perf_counter() - began - own["scale"]
            out.timings["scale"] += own["scale"]
            out.values[places] = scaled[back.reshape(aligned.positions.shape)]
            out.mask[places], out.age_ns[places] = mask, age_ns
            return
        else:
            values = _read_once(self.signal, aligned.positions)
        out.timings["decode"] += perf_counter() - began
        if self.schema.is_ragged:
            values, rows = self._padded(values)
            mask = mask[..., None] & rows
            values[~mask] = 0
        if field.delta:
            values = subtract(values[:, 1:], values[:, :-1], field.pose, tuple(field.except_dims))
            mask, age_ns = mask[:, 1:] & mask[:, :-1], age_ns[:, 1:]
        elif field.relative_to is not None:
            if self._reference is None or reference is None:
                mask = np.zeros_like(mask)
            else:
                base = _read_once(self._reference[0], reference.positions)
                values = subtract(values, base, field.pose, tuple(field.except_dims))
                mask = mask & reference.mask
        out.values[places] = self._change(values, out.timings) if self.schema.is_changed else values
        out.mask[places] = mask
        out.age_ns[places] = age_ns

    def _padded(self, values: NDArray[Any]) -> tuple[NDArray[Any], Bools]:
        """Values of varying length as one array, and a mask of their rows."""
        kind, (size, *_) = self.signal.meta.rows, self.schema.shape
        assert kind is not None
        flat = values.reshape(-1)
        longest = max(map(len, flat), default=0)
        if longest > size and self.schema.field.longer == "error":
            raise SchemaMismatchError(
                f"a value of {longest} rows, pad is {size}",
                hint="Give a larger pad=, or longer='cut' to keep the first rows.",
            )
        rows, mask = pad_rows(flat, kind, size)
        return rows.reshape(*values.shape, *rows.shape[1:]), mask.reshape(*values.shape, size)

    def prefetch(self, anchors: Int64s) -> None:
        """Bring the bytes that are read at these anchors into the cache."""
        if self._direct is None and len(self.signal):
            aligned = self.rows.aligned(anchors)
            parts = [aligned.positions] if aligned.later is None else [aligned.positions, aligned.later]
            self.signal._bring(np.concatenate(parts).reshape(-1))
            if self._reference is not None:
                self._reference[0]._bring(self._reference[1].aligned(anchors).positions.reshape(-1))

    def _between(self, aligned: Aligned) -> NDArray[Any]:
        """Values between two records."""
        assert aligned.later is not None
        assert aligned.share is not None
        first = _read_once(self.signal, aligned.positions)
        second = _read_once(self.signal, aligned.later)
        flat = (-1, *first.shape[2:])
        mixed = mixed_values(
            first.reshape(flat), second.reshape(flat), aligned.share.reshape(-1), self.schema.field.align
        )
        return mixed.reshape(first.shape)

    def _change(self, values: NDArray[Any], timings: Timings) -> NDArray[Any]:
        """Values as the field wants them: cut, scaled, in another range, layout or type."""
        field, schema, began = self.schema.field, self.schema, perf_counter()
        if field.crop is not None:
            rows, columns = crop_box(schema.stored_shape, field.crop, schema.name)
            values = values[:, :, rows, columns]
        if field.size is not None:
            flat = values.reshape(-1, *values.shape[2:])
            scaled = resize_images(flat, (field.size[0], field.size[1]), field.resize)
            values = scaled.reshape(*values.shape[:2], *scaled.shape[1:])
        if field.scale is not None:
            values = scale_values(values, field.scale)
        if field.layout == "chw":
            values = np.moveaxis(values, (2, 3), (-2, -1)) if values.ndim > 4 else values
        timings["scale"] += perf_counter() - began
        return values.astype(schema.dtype, copy=False)


def _read_once(signal: Signal, positions: Int64s) -> NDArray[Any]:
    """The values of records by number, each read once."""
    wanted, back = np.unique(positions, return_inverse=True)
    return signal._values_kept(wanted)[back.reshape(positions.shape)]
