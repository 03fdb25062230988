"""One episode of some windows: its anchors, and for each field the records to read and how to write them out."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.bytekit.memory import RecycledArrays
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.episodes.sources.cameras import ImageRequest, StillsSignal, VideoSignal, empty_images
from warpdata.errors import BlobNotFoundError, FormatError, SchemaMismatchError, WarpError
from warpdata.formats.episodedir.video import Picture, planes_shape, scale_image
from warpdata.loading.alignment import Aligned, Anchors, Bools, Clock, Int64s, RowTable
from warpdata.loading.field import Field, FieldRows, FieldSchema, check_same, find_schema, signal_named
from warpdata.loading.poses import subtract
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.ragged import pad_rows
from warpdata.timeline.sampling import blank_values, mixed_values
from warpdata.timeline.signal import MappedRows, Signal, SignalView

DAMAGE = (FormatError, BlobNotFoundError)
"""Errors that make an episode unreadable: bytes that are wrong or missing. A failing connection is no damage."""

_CHECK_EVERY = 16
"""Reads between two checks whether all bytes of a signal are in memory or mapped."""
_STEP_BYTES = 16 << 20
_RECENT_BLOCKS = 16
"""Of a camera, how many blocks are looked through for images that a new one needs."""
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
"""Of the colours of ImageNet."""
AT_ANCHOR = FieldRows("times", (0,))

Copies = list[tuple[NDArray[Any], NDArray[Any]]]
"""Targets and sources of copies that are made together: between two of them another thread may take over."""
Timings = dict[str, float]
"""Seconds of work by kind: `decode` (reading values), `scale`, `copy`."""


class SampleBlock(NamedTuple):
    """Samples that are decoded together: those of a block of the shuffle, or of one call."""

    key: Hashable
    members: Int64s
    """Which of the samples that are read are in it."""
    anchors: Callable[[], Int64s]
    """The anchors of all its samples in the episode."""


class FieldOut:
    """One field of a batch while it is read; signals have an axis of rows."""

    __slots__ = ("age_ns", "mask", "timings", "values")

    def __init__(self, schema: FieldSchema, count: int, timings: Timings, arrays: RecycledArrays) -> None:
        rows = (count,) if schema.is_static else (count, schema.rows)
        self.values = arrays.empty((*rows, *schema.shape), schema.dtype)
        self.mask = np.ones((*rows, schema.shape[0]) if schema.is_ragged else rows, np.bool_)
        self.age_ns = np.empty(rows, np.int64)
        self.timings = timings


Outs = Mapping[str, FieldOut]
"""The fields of a batch while it is read, by name."""


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
        arrays: RecycledArrays,
    ) -> None:
        """`arrays` gives memory for images that are kept."""
        self.episode = episode
        used = {name: signal_named(episode, name) for name in grid_signals}
        self.times = anchors.times(
            episode, {n: each for n, each in used.items() if each is not None and len(each)}
        )
        self.fields: dict[str, SignalReader | StaticReader] = {}
        self._guards: list[Callable[[], None]] = []
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
            self.fields[name] = SignalReader(own or known, signal, rows, reference, self._guards)
        self._plain = dict(self.fields)
        by_camera: dict[str, dict[str, SignalReader]] = {}
        for name, reader in self.fields.items():
            if isinstance(reader, SignalReader) and reader.is_camera:
                by_camera.setdefault(reader.schema.field.signal, {})[name] = reader
                del self._plain[name]
        self.cameras = [CameraReader(readers, arrays) for readers in by_camera.values()]

    @property
    def is_in_place(self) -> bool:
        """Whether nothing needs to be fetched: all values are in memory or in a mapped file."""
        return not self.cameras and all(reader.is_in_place for reader in self._plain.values())

    def read(
        self, anchors: list[int], places: list[int], out: Outs, blocks: Sequence[SampleBlock], copies: Copies
    ) -> list[Callable[[], object]]:
        """Write all fields of some anchors to places of a batch, or add to `copies`; `blocks` are for cameras.

        Returns what is left to call: cameras that another thread is decoding.
        """
        name = ""
        try:
            for guard in self._guards:
                guard()
            for name, reader in self._plain.items():
                reader.read(anchors, places, out[name], copies)
        except WarpError as error:
            raise self._named_error(error, name, anchors) from None
        if not self.cameras:
            return []

        def read(camera: CameraReader, *, wait: bool) -> bool:
            try:
                return camera.read(np.array(anchors), np.array(places), out, blocks, wait=wait)
            except WarpError as error:
                raise self._named_error(error, next(iter(camera.fields)), anchors) from None

        return [partial(read, camera, wait=True) for camera in self.cameras if not read(camera, wait=False)]

    def _named_error(self, error: WarpError, name: str, anchors: list[int]) -> WarpError:
        field = f", field {name!r}" if name else ""
        return named_error(error, f"episode {self.episode.id!r} near {int(self.times[anchors[0]])}{field}")

    def inside(self, anchors: Int64s) -> Bools:
        """At which anchors no row of any signal is beyond an edge."""
        return np.asarray(np.logical_and.reduce([field.inside(anchors) for field in self.fields.values()]))

    def prefetch(self, anchors: Int64s, blocks: Sequence[SampleBlock]) -> None:
        """Bring the bytes that are read at these anchors into the cache; of cameras those of their blocks."""
        for reader in self._plain.values():
            if isinstance(reader, SignalReader):
                reader.prefetch(anchors)
        for camera in self.cameras:
            camera.prefetch(blocks)

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
                    raise named_error(error, f"field {name!r}") from None


def named_error(error: WarpError, where: str) -> WarpError:
    """The same error with its place: episode, time and field."""
    error.message = f"{where}: {error.message}"
    error.args = (error.message,)
    return error


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

    is_in_place = True

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

    def read(self, anchors: Any, places: list[int], out: FieldOut, copies: Copies) -> None:  # noqa: ARG002
        """Write the value to some places of a batch."""
        if out.values.dtype == np.dtype(object):
            for place in places:
                out.values[place] = self._value
        else:
            out.values[places] = self._value
        out.mask[places] = self._is_present
        out.age_ns[places] = 0

    def read_at(self, ts_ns: Int64s, out: FieldOut) -> None:
        """Write the value at any time."""
        self.read(ts_ns, list(range(len(ts_ns))), out, [])


class _BlockImages(NamedTuple):
    """Images of the records that the samples of a block need, for each field of a camera."""

    records: dict[str, Int64s]
    images: dict[str, NDArray[Any] | list[Picture]]
    nbytes: int
    unused: list[int]
    """One item for each sample of the block that was not read yet."""


class CameraReader:
    """The fields over one camera. Where an image of a sample is missing, those of its whole block are decoded and kept.

    A shuffle takes the samples of a block soon after one another.
    """

    def __init__(self, fields: Mapping[str, SignalReader], arrays: RecycledArrays) -> None:
        self.fields = fields
        self._signal = next(iter(fields.values())).signal
        self._arrays = arrays
        self._owner = BLOCK_CACHE.new_owner()
        self._recent: deque[Hashable] = deque(maxlen=_RECENT_BLOCKS)
        self._lock = ThreadLock()
        weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False

    def read(
        self, anchors: Int64s, places: Int64s, out: Outs, blocks: Sequence[SampleBlock], *, wait: bool
    ) -> bool:
        """Write values, mask and ages of some anchors to places of a batch.

        Without `wait` it returns False if images are missing and another thread is decoding the camera.
        """
        timings = next(iter(out.values())).timings
        found = {block.key: BLOCK_CACHE.get(self._owner, block.key) for block in blocks}
        if not all(found.values()):
            if not self._lock.acquire(wait=wait):
                return False
            try:  # another thread may have decoded them meanwhile
                found = {key: each or BLOCK_CACHE.get(self._owner, key) for key, each in found.items()}
                missing = [block for block in blocks if found[block.key] is None]
                found |= self._decode(missing, timings) if missing else {}
            finally:
                self._lock.release()
        began = perf_counter()
        for name, field in self.fields.items():
            target, aligned = out[name], field.rows.aligned(anchors)
            target.mask[places], target.age_ns[places] = aligned.mask, aligned.age_ns
            for block in blocks:
                kept = found[block.key]
                rows = kept.records[name].searchsorted(aligned.positions[block.members])
                _copy_images(field, kept.images[name], rows, places[block.members], target.values)
        for block in blocks:
            unused = found[block.key].unused
            del unused[: len(block.members)]
            if isinstance(block.key, int) and not unused:  # an epoch has every sample once
                BLOCK_CACHE.drop(self._owner, block.key)
        timings["copy"] += perf_counter() - began
        return True

    def prefetch(self, blocks: Sequence[SampleBlock]) -> None:
        """Bring the bytes of blocks that are not kept into the cache."""
        kept = BLOCK_CACHE.of(self._owner)
        for block in blocks:
            if block.key not in kept:
                for field in self.fields.values():
                    field.prefetch(block.anchors())

    def _decode(self, blocks: Sequence[SampleBlock], timings: Timings) -> dict[Hashable, _BlockImages]:
        """Decode the images of blocks, all at once; those that other blocks have are copied."""
        recent = [BLOCK_CACHE.get(self._owner, key) for key in self._recent]
        made: dict[Hashable, _BlockImages] = {}
        requests: list[ImageRequest] = []
        for block in blocks:
            anchors = block.anchors()
            records = {
                name: np.unique(field.rows.aligned(anchors).positions) for name, field in self.fields.items()
            }
            nbytes = sum(len(records[name]) * field.schema.row_bytes for name, field in self.fields.items())
            made[block.key] = new = _BlockImages(records, {}, nbytes, [0] * len(anchors))
            for name, field in self.fields.items():
                requests += self._place(new, name, field.schema, [each for each in recent if each])
        if any(len(request.records) for request in requests):
            read_images(self._signal, requests, timings)
        for key, new in made.items():
            BLOCK_CACHE.put(self._owner, key, new)
            self._recent.append(key)
        return made

    def _place(
        self, new: _BlockImages, name: str, schema: FieldSchema, recent: Sequence[_BlockImages]
    ) -> list[ImageRequest]:
        """Make room for the images of a field, copy those that are kept, and request the others."""
        records, shape = new.records[name], schema.image_shape
        # Whole images that are shown once become pixels when they are delivered.
        if schema.view is None and schema.rows == 1:
            pictures: list[Any] = [None] * len(records)
            new.images[name] = pictures
            planes = self._arrays.empty((len(records), *planes_shape(shape)), np.dtype(np.uint8))
            return [ImageRequest(records, None, pictures, planes)]
        new.images[name] = memory = self._arrays.empty((len(records), *shape), schema.stored_dtype)
        is_missing = np.ones(len(records), np.bool_)
        for other in recent:
            is_common = is_missing & np.isin(records, other.records[name])
            if is_common.any():
                images = other.images[name]
                assert isinstance(images, np.ndarray)
                memory[is_common] = images[other.records[name].searchsorted(records[is_common])]
                is_missing &= ~is_common
        # Runs, so that images are written to their places.
        cuts = np.flatnonzero(np.diff(is_missing)) + 1
        return [
            ImageRequest(records[run], schema.view, memory[run[0] : run[-1] + 1])
            for run in np.split(np.arange(len(records)), cuts)
            if is_missing[run[0]]
        ]


def _copy_images(
    field: SignalReader, images: NDArray[Any] | list[Picture], rows: Int64s, places: Int64s, out: NDArray[Any]
) -> None:
    """Write images by row to places of a batch, converted as the field wants them."""
    schema = field.schema
    is_same = schema.shape == schema.image_shape and schema.dtype == schema.stored_dtype
    if isinstance(images, list):
        pixels = np.empty(schema.image_shape, schema.stored_dtype)
        for (row,), place in zip(rows.tolist(), places.tolist(), strict=True):
            images[row].write(out[place, 0] if is_same else pixels, None)
            if not is_same:
                out[place, 0] = field.convert(pixels)
    elif is_same:
        for row, place in zip(rows, places.tolist(), strict=True):
            images.take(row, axis=0, out=out[place], mode="clip")
    else:
        out[places] = field.convert(images[rows])


class SignalReader:
    """A signal: the records that answer at each anchor, and their values."""

    def __init__(
        self,
        schema: FieldSchema,
        signal: Signal,
        rows: RowTable,
        reference: tuple[Signal, RowTable] | None,
        guards: list[Callable[[], None]],
    ) -> None:
        """`guards` takes what is to be called before each batch, while values are read in a mapped file."""
        self.schema, self.signal = schema, signal
        self.rows, self._reference = rows, reference
        self._is_between = schema.field.align in ("linear", "slerp")
        self._is_plain = (
            not (self._is_between or schema.is_changed or schema.is_text or schema.is_ragged)
            and len(signal) > 0
        )
        self._direct: MappedRows | None = None
        self._guards = guards
        self.is_in_place = False
        self._reads = 0

    @property
    def is_camera(self) -> bool:
        """Whether frames are decoded and delivered as they are, or scaled."""
        return not self._is_between and len(self.signal) > 0 and is_encoded(self.signal)

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

    def read(self, anchors: list[int], places: list[int], out: FieldOut, copies: Copies) -> None:
        """Write values, mask and ages of some anchors to places of a batch; values in memory are added to `copies`."""
        table = self.rows.table() if self._is_plain else None
        direct = self._mapped_rows() if table is not None else None
        if table is None or direct is None:
            self._read_values(table, np.array(anchors), np.array(places), out)
            return
        rows, check, guard = direct
        runs, ages, width = self.rows.runs, table.age_ns, out.values.shape[1]
        values, age_ns = out.values, out.age_ns
        # Most groups are of few samples: a copy each costs less than indexing by arrays.
        for anchor, place in zip(anchors, places, strict=True):
            first = runs[anchor]
            if check is not None:
                chosen = table.positions[anchor]
                if check(int(chosen.min()), int(chosen.max()) + 1):  # all of them are checked now
                    self._direct, check = MappedRows(rows, None, guard), None
            if first >= 0:
                copies.append((values[place], rows[first : first + width]))
            else:
                rows.take(table.positions[anchor], axis=0, out=values[place], mode="clip")
                out.mask[place] = table.mask[anchor]
            age_ns[place] = ages[anchor]

    def _read_values(self, table: Aligned | None, anchors: Int64s, places: Int64s, out: FieldOut) -> None:
        if table is not None:
            began = perf_counter()
            starts = np.array([self.rows.runs[anchor] for anchor in anchors.tolist()], np.int64)
            if (starts >= 0).all() and self.signal._read_runs(starts, out.values, places):
                out.age_ns[places] = table.age_ns[anchors]
                out.timings["decode"] += perf_counter() - began
                return
        reference = None if self._reference is None else self._reference[1].aligned(anchors)
        self._write(self.rows.aligned(anchors), reference, places, out)

    def read_at(self, ts_ns: Int64s, out: FieldOut) -> None:
        """Write values, mask and ages at any times."""
        reference = None if self._reference is None else self._reference[1].at(ts_ns)
        self._write(self.rows.at(ts_ns), reference, np.arange(len(ts_ns)), out)

    def _mapped_rows(self) -> MappedRows | None:
        """A view of all values, if they are in memory or in a mapped file."""
        if self._direct is None:
            direct = self.signal._in_memory() if self._reads % _CHECK_EVERY == 0 else None
            # take() into the batch needs the same type in native order.
            if direct is not None and direct.rows.dtype == self.schema.dtype and direct.rows.dtype.isnative:
                self._direct, self.is_in_place = direct, True
                if direct.guard is not None and direct.guard not in self._guards:
                    self._guards.append(direct.guard)
            self._reads += 1
        return self._direct

    def _write(self, aligned: Aligned, reference: Aligned | None, places: Int64s, out: FieldOut) -> None:
        """Write the values of an alignment."""
        field, mask, age_ns = self.schema.field, aligned.mask, aligned.age_ns
        began = perf_counter()
        if not len(self.signal):
            shape = (*aligned.positions.shape, *self.schema.image_shape)
            if self.schema.view is None:
                values = blank_values(self.signal.meta, aligned.positions.size).reshape(shape)
            else:
                values = np.zeros(shape, self.schema.stored_dtype)
        elif self._is_between:
            values = self._between(aligned)
        elif self.schema.view is not None or is_encoded(self.signal):
            wanted, back = np.unique(aligned.positions, return_inverse=True)
            images = empty_images(self.signal.meta, wanted, self.schema.view)
            read_images(self.signal, [ImageRequest(wanted, self.schema.view, images)], out.timings)
            values, began = images[back.reshape(aligned.positions.shape)], perf_counter()
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
        out.values[places] = self.convert(values)
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
        mixed = mixed.reshape(first.shape)
        if self.schema.view is None:
            return mixed
        images = np.empty((*mixed.shape[:2], *self.schema.image_shape), mixed.dtype)
        for at in np.ndindex(mixed.shape[:2]):
            scale_image(mixed[at], self.schema.view, images[at])
        return images

    def convert(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values as the field wants them: in another range, layout or type."""
        schema = self.schema
        if not schema.is_changed:
            return values
        if schema.field.scale is not None:
            values = scale_values(values, schema.field.scale)
        if schema.field.layout == "chw" and len(schema.shape) > 2:
            values = np.moveaxis(values, (-3, -2), (-2, -1))
        return values.astype(schema.dtype, copy=False)


def _read_once(signal: Signal, positions: Int64s) -> NDArray[Any]:
    """The values of records by number, each read once."""
    flat = positions.reshape(-1)
    if (np.diff(flat) > 0).all():
        values = signal._values_kept(flat)
        return values.reshape(*positions.shape, *values.shape[1:])
    wanted, back = np.unique(positions, return_inverse=True)
    return signal._values_kept(wanted)[back.reshape(positions.shape)]


def is_encoded(signal: Signal) -> bool:
    """Whether the frames of a signal have to be decoded."""
    if isinstance(signal, SignalView):
        return is_encoded(signal.base)
    if isinstance(signal, JoinedSignal):
        return is_encoded(signal.parts[0])
    return isinstance(signal, VideoSignal | StillsSignal)


def read_images(signal: Signal, requests: Sequence[ImageRequest], timings: Timings) -> None:
    """Write images of records of a signal; frames are cropped and scaled where they are decoded, each decoded once."""
    if isinstance(signal, VideoSignal | StillsSignal):
        signal.read_images(requests, timings)
    elif isinstance(signal, SignalView):
        moved = [request._replace(records=signal._base_rows(request.records)) for request in requests]
        read_images(signal.base, moved, timings)
    elif isinstance(signal, JoinedSignal):
        _read_joined(signal, requests, timings)
    else:
        for request in requests:
            began = perf_counter()
            frames = signal._values_kept(request.records)
            timings["decode"] += perf_counter() - began
            began = perf_counter()
            assert isinstance(request.out, np.ndarray)
            if request.view is None:
                request.out[...] = frames
            else:
                for frame, image in zip(frames, request.out, strict=True):
                    scale_image(frame, request.view, image)
            timings["scale"] += perf_counter() - began


def _read_joined(signal: JoinedSignal, requests: Sequence[ImageRequest], timings: Timings) -> None:
    for part, first in zip(signal.parts, signal._starts.tolist(), strict=False):
        inside = [(request.records >= first) & (request.records < first + len(part)) for request in requests]
        own = []
        for request, here in zip(requests, inside, strict=True):
            records = request.records[here] - first
            images: Any = [None] * len(records)
            if not isinstance(request.out, list):
                images = empty_images(signal.meta, records, request.view)
            planes = None if request.planes is None else request.planes[here]
            own.append(ImageRequest(records, request.view, images, planes))
        if any(len(request.records) for request in own):
            read_images(part, own, timings)
            for request, here, each in zip(requests, inside, own, strict=True):
                for place, image in zip(np.flatnonzero(here).tolist(), each.out, strict=True):
                    request.out[place] = image


def scale_values(images: NDArray[Any], scale: str) -> NDArray[np.float32]:
    """Values of 8-bit images with channels last as floats in a range, or normalised as ImageNet."""
    values: NDArray[np.float32] = images.astype(np.float32) / np.float32(255)
    if scale == "-1..1":
        return np.asarray(values * 2 - 1, np.float32)
    if scale == "imagenet":
        return np.asarray((values - _MEAN[: values.shape[-1]]) / _STD[: values.shape[-1]], np.float32)
    return values
