"""WebDataset tar shards: a sample per episode, or per step of the episode that its folder names, in and out.

A sample is a run of members with one key; what follows the first dot is the field. Only headers are read to list them.
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import padding_to
from warpdata.bytekit.io.ranges import BytesRangeReader, PartRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json
from warpdata.bytekit.process.forks import PerProcess, Reopens, cached_property
from warpdata.convert.aligning import stated_rate
from warpdata.convert.exporting import ExportOptions, Part, StepColumn, StepRows, StepWriter
from warpdata.convert.place import Place, foreign_errors
from warpdata.convert.receipt import ConversionReceipt, EpisodeNotes, metadata_of, note_of
from warpdata.convert.stepped import EpisodeColumn, Parts, Read, Rows, SteppedEpisodes, numeric_type
from warpdata.convert.tables.npz import NpzFile, npy_array
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.cameras import SourceVideo
from warpdata.episodes.sources.encoded import encoded_camera, encoded_run
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    SchemaMismatchError,
    WarpError,
    require_word,
)
from warpdata.formats.tarshard.layout import BLOCK_BYTES
from warpdata.formats.tarshard.reader import scan_members
from warpdata.formats.tarshard.writer import member_header
from warpdata.timeline.meta import ROLES, guess_role
from warpdata.timeline.ragged import as_objects

Per = Literal["episode", "step"]
OWN_FIELD = "warpdata.json"
"""The field with what warpdata keeps and a sample has no place for."""
MAX_FIELD_BYTES = 1 << 30
_VIDEOS = ("mp4", "mkv", "mov", "avi", "webm")
_FRAME = re.compile(r"(?:(.+?)\.)?(?:(\d+)\.)?(jpe?g|png|(?<=\.\d{6}\.)npy)")
"""A picture of an episode that is one sample, or a value of varying length: signal, number, ending."""
_NUMBERS = ("cls", "cls2", "index", "id", "inx")
_TEXTS = ("txt", "text", "transcript", "json", "jsn")
_TAR_HEAD = 262
_COMPRESSED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_MAX_OPEN = 16
_STILLS = {"mjpeg": "jpg", "png": "png"}
_PIECE = 8 << 20


def matches(place: Place) -> bool:
    """Whether it is a tar file, or a folder of them."""
    if place.is_file:
        return place.head(_TAR_HEAD)[257:262] == b"ustar"
    names = [name for name in place.children() if name.endswith(".tar")]
    return bool(names) and place.head(_TAR_HEAD, names[0])[257:262] == b"ustar"


def read(source: Any, *, per: Per | None = None, fps: float | None = None) -> Episodes:
    """The episodes of a tar shard, or of all those in a folder; fields are read on demand.

    `per="episode"`: a sample is an episode, its arrays have a row per step. `per="step"`: a sample is a step, its
    folder names the episode; the default if all keys have folders. Pickled fields come as bytes and are not unpickled.
    """
    if per is not None:
        require_word("per", per, ("episode", "step"))
    return Episodes(TarEpisodes(Place.of(source), per, fps))


class SampleField(NamedTuple):
    """The bytes of one field in a shard."""

    shard: int
    offset: int
    length: int
    is_gzip: bool


Fields = dict[str, SampleField]


class Shards(Reopens):
    """Tar files in order; each is scanned once, and a few stay open."""

    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self._place, self._names = place, list(names)
        self._readers: PerProcess[dict[int, RangeReader]] = PerProcess(dict)

    def path(self, shard: int, name: str = "") -> str:
        """Path or URL of a shard, and a field in it."""
        path = f"{self._place.name}/{self._names[shard]}" if self._names[shard] else self._place.name
        return f"{path}:{name}" if name else path

    def _reader(self, shard: int) -> RangeReader:
        readers = self._readers()
        if shard not in readers:
            if len(readers) >= _MAX_OPEN:
                readers.pop(next(iter(readers))).close()
            reader = readers[shard] = self._place.open(self._names[shard])
            head = bytes(reader.read(0, min(4, reader.size)))
            for suffix, magic in _COMPRESSED.items():
                if head.startswith(magic):
                    fact = f"the shard is compressed as a whole ({suffix})"
                    hint = "Unpack it first: a compressed archive cannot be read in parts."
                    raise BadMagicError(fact, path=self.path(shard), hint=hint)
        return readers[shard]

    @cached_property
    def samples(self) -> list[tuple[str, Fields]]:
        """The key and the fields of every sample, in order."""
        samples: list[tuple[str, Fields]] = []
        for shard in range(len(self._names)):
            key: str | None = None
            for member in scan_members(self._reader(shard)):
                folder, _, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if base.startswith((".", "__")) or member.name.startswith("__") or not dot:
                    continue
                this, name = f"{folder}/{stem}" if folder else stem, extension.lower()
                if this != key:
                    key = this
                    samples.append((key, {}))
                field = SampleField(shard, member.offset, member.length, name.endswith(".gz"))
                name = name.removesuffix(".gz")
                if samples[-1][1].setdefault(name, field) is not field:
                    fact = f"duplicate field {name!r} of sample {this!r}"
                    raise CorruptLayoutError(fact, path=self.path(shard))
        return samples

    def read(self, field: SampleField) -> bytes:
        """The bytes of a field, unpacked if they are gzip."""
        path = self.path(field.shard)
        if field.length > MAX_FIELD_BYTES:
            raise LimitExceededError(f"a field of {field.length} bytes", path=path)
        data = bytes(self._reader(field.shard).read(field.offset, field.offset + field.length))
        if field.is_gzip:
            stream = zlib.decompressobj(31)
            with foreign_errors((zlib.error,), "damaged gzip field", path):
                data = stream.decompress(data, MAX_FIELD_BYTES)
            if not stream.eof:
                raise LimitExceededError("a gzip field that is truncated, or too large", path=path)
        return data

    def value(self, name: str, field: SampleField) -> Any:
        """One field: an array, a whole number, text or bytes."""
        kind, path = name.rpartition(".")[2], self.path(field.shard)
        if kind == "npy":
            return npy_array(self.read(field), self.path(field.shard, name))
        if kind not in _NUMBERS and kind not in _TEXTS:
            return self.read(field)
        try:
            text = self.read(field).decode()
        except UnicodeDecodeError:
            raise CorruptLayoutError(f"field {name!r} is not UTF-8", path=path) from None
        return whole_number(text, name, path) if kind in _NUMBERS else text

    def rows(self, name: str, fields: Sequence[SampleField]) -> Rows:
        """One field of many samples as rows: pictures, arrays, numbers, text or bytes."""
        kind = name.rpartition(".")[2]
        if kind == "npy":
            first = self.value(name, fields[0])
            dtype, shape = numeric_type(first.dtype, "", name), first.shape
            lengths = {field.length for field in fields}
            is_ragged = len(shape) > 0 and len(lengths) > 1 and not any(field.is_gzip for field in fields)
            shape = shape[1:] if is_ragged else shape
            read = partial(self._read_arrays, name, list(fields), dtype, shape, is_ragged)
            return Rows(len(fields), dtype, shape, read, "ragged" if is_ragged else None)
        read = partial(self._read_values, name, list(fields))
        if kind in _NUMBERS:
            return Rows(len(fields), np.dtype(np.int64), (), read)
        rows = Rows.objects(len(fields), "text" if kind in _TEXTS else "bytes", read)
        return replace(rows, is_pictures=kind in ("jpg", "jpeg", "png"))

    def _read_arrays(
        self,
        name: str,
        fields: Sequence[SampleField],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        is_ragged: bool,
        start: int,
        stop: int,
    ) -> NDArray[Any]:
        out = np.empty(stop - start, object) if is_ragged else np.empty((stop - start, *shape), dtype)
        for row, field in enumerate(fields[start:stop]):
            value = self.value(name, field)
            own = value.shape[1:] if is_ragged and value.ndim else value.shape
            if own != shape or numeric_type(value.dtype, "", name) != dtype:
                fact = f"field {name!r} changes from step to step"
                raise CorruptLayoutError(fact, path=self.path(field.shard))
            out[row] = value
        return out

    def _read_values(self, name: str, fields: Sequence[SampleField], start: int, stop: int) -> NDArray[Any]:
        values = [self.value(name, field) for field in fields[start:stop]]
        return np.array(values, np.int64) if name.rpartition(".")[2] in _NUMBERS else as_objects(values)

    def open(self, field: SampleField, name: str) -> RangeReader:
        """A field as a file, which is not read as a whole unless it is gzip."""
        path = self.path(field.shard, name)
        if field.is_gzip:
            return BytesRangeReader(self.read(field), path)
        return PartRangeReader(self._reader(field.shard), field.offset, field.length, path)


class TarEpisodes(SteppedEpisodes):
    """Samples of tar shards."""

    def __init__(self, place: Place, per: Per | None, fps: float | None) -> None:
        super().__init__(place, fps)
        self._per = per
        names = [""] if place.is_file else [name for name in place.children() if name.endswith(".tar")]
        if not names:
            raise BlobNotFoundError("no tar shard in this folder", path=place.name)
        self._shards = Shards(place, names)

    @cached_property
    def per(self) -> Per:
        """Whether a sample is an episode or a step."""
        samples = self._shards.samples
        return self._per or ("step" if samples and all("/" in key for key, _ in samples) else "episode")

    @cached_property
    def groups(self) -> dict[str, list[Fields]]:
        """The samples of every episode by its id, in the order of the shards."""
        groups: dict[str, list[Fields]] = {}
        for key, fields in self._shards.samples:
            name = key.rpartition("/")[0] or "episode" if self.per == "step" else key
            if name in groups and self.per == "episode":
                shard = next(iter(fields.values())).shard
                raise CorruptLayoutError(f"duplicate sample {name!r}", path=self._shards.path(shard))
            groups.setdefault(name, []).append(fields)
        return groups

    @cached_property
    def ids(self) -> Sequence[str]:
        """The keys, or their folders."""
        return list(self.groups)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Whether a sample is an episode or a step."""
        return {"webdataset": {"per": self.per}}

    def parts(self, position: int) -> Parts:
        """The fields of an episode."""
        name = self.ids[position]
        samples = self.groups[name]
        place = f"{self._shards.path(next(iter(samples[0].values())).shard)}#{name}"
        try:
            columns, static, steps = (
                self._of_steps(samples) if self.per == "step" else self._of_one(samples[0])
            )
        except WarpError as error:
            raise type(error)(f"episode {name!r}: {error.message}", path=place, hint=error.hint) from None
        own = static.pop("warpdata", None)
        if isinstance(own, Mapping) and isinstance(own.get("signals"), Mapping):
            return self._of_own(name, columns, static, own, steps, place)
        about = static.get("meta", static.get("json"))
        fps = stated_rate(about.get("fps")) if isinstance(about, Mapping) else None
        return Parts(name, steps, columns, static, {}, self._fps or fps, place=place)

    def _of_own(
        self,
        name: str,
        columns: Mapping[str, EpisodeColumn],
        texts: Mapping[str, Any],
        own: Mapping[str, Any],
        steps: int,
        place: str,
    ) -> Parts:
        """An episode that warpdata wrote: under its own names, with its roles, times and static items."""
        note = EpisodeNotes.from_json(own)
        entries = [about if isinstance(about, Mapping) else {} for about in own["signals"].values()]
        are_whole = all(isinstance(item.get("field"), str) and item.get("role") in ROLES for item in entries)
        if note is None or not 0 <= note.steps <= steps or not are_whole:
            raise CorruptLayoutError(f"{OWN_FIELD} is damaged", path=place)
        named: dict[str, EpisodeColumn] = {}
        for signal, about in zip(own["signals"], entries, strict=True):
            field, at = about["field"], about.get("at")
            stem, _, kind = field.rpartition(".")
            frame = _FRAME.fullmatch(field)
            key = (frame[1] or "frames") if frame else field if kind == "bin" or not stem else stem
            text = texts.get(key)
            if key in columns:
                rows, at = columns[key].rows, at if at is not None else columns[key].at
            elif isinstance(text, list) and all(isinstance(item, str) for item in text):
                rows = Rows.of(as_objects(text), "text")
            else:
                raise CorruptLayoutError(f"field {field!r} is missing", path=place)
            if about.get("ragged") is True and rows.kind is None and rows.shape:  # all have one length
                rows = replace(
                    rows, kind="ragged", shape=rows.shape[1:], read=partial(_read_objects, rows.read)
                )
            if at is not None and (len(at) != rows.count or not all(0 <= row < note.steps for row in at)):
                at = None if rows.count == note.steps + 1 else range(rows.count)
            named[signal] = _column(rows, about["role"], at, note.steps)
        return self.with_note(Parts(name, note.steps, named, place=place), note)

    def _of_steps(self, samples: Sequence[Fields]) -> tuple[dict[str, EpisodeColumn], dict[str, Any], int]:
        """Columns, static items and steps of an episode with a sample per step."""
        static: dict[str, Any] = {}
        if OWN_FIELD in samples[0]:
            static["warpdata"] = self._static(samples[0][OWN_FIELD], OWN_FIELD)
        columns: dict[str, EpisodeColumn] = {}
        for field in dict.fromkeys(name for sample in samples for name in sample if name != OWN_FIELD):
            at = tuple(number for number, sample in enumerate(samples) if field in sample)
            rows = self._shards.rows(field, [samples[number][field] for number in at])
            stem = field.rpartition(".")[0]
            signal = field if not stem or (rows.kind == "bytes" and not rows.is_pictures) else stem
            signal = field if signal in columns else signal
            is_dense = len(at) == len(samples)
            columns[signal] = EpisodeColumn(rows, _role(signal, rows), at=None if is_dense else at)
        return columns, static, len(samples)

    def _of_one(self, sample: Fields) -> tuple[dict[str, EpisodeColumn], dict[str, Any], int]:
        """Columns, static items and steps of an episode that is one sample."""
        arrays: dict[str, Rows] = {}
        static: dict[str, Any] = {}
        frames: dict[tuple[str, str], list[tuple[int, SampleField]]] = {}
        single: dict[str, SampleField] = {}
        for name, field in sample.items():
            stem, _, kind = name.rpartition(".")
            frame = _FRAME.fullmatch(name)
            opened, path = partial(self._shards.open, field, name), self._shards.path(field.shard, name)
            if frame:
                numbered = frames.setdefault((frame[1] or "frames", frame[3]), [])
                numbered.append((int(frame[2] or 0), field))
            elif kind == "npy":
                array = self._shards.value(name, field)
                array = array.astype(numeric_type(array.dtype, "", path), copy=False)
                arrays[stem or "npy"] = Rows.of(array if array.ndim else array.reshape(1))
            elif kind == "npz":
                archive = NpzFile(opened, path)
                arrays |= {f"{stem or 'npz'}/{key}": archive.rows(key) for key in archive.paths()}
            elif kind in _TEXTS or kind in _NUMBERS:
                static[stem or kind] = self._static(field, name)
            elif kind in _VIDEOS:
                arrays[stem or kind] = Rows.of_video(SourceVideo(opened, path))
            else:
                single[name] = field
        roles = {name: _role(name, rows) for name, rows in arrays.items()}
        counts = [rows.count for rows in arrays.values()]
        actions = [rows.count for name, rows in arrays.items() if roles[name] == "action"]
        steps = actions[0] if actions else max(counts, key=counts.count, default=0)
        pictures = self._pictures(frames, arrays)
        if not counts:
            steps = max([steps, int(bool(single)), *(len(numbers) for _, numbers in pictures.values())])
        columns = {name: _column(rows, roles[name], None, steps) for name, rows in arrays.items()}
        columns |= {
            name: _column(rows, _role(name, rows), at, steps) for name, (rows, at) in pictures.items()
        }
        for name, field in single.items():
            columns[name] = _column(self._shards.rows(f"{name}.bin", [field]), "other", [0], steps)
        return columns, static, steps

    def _pictures(
        self, frames: Mapping[tuple[str, str], list[tuple[int, SampleField]]], taken: Mapping[str, Any]
    ) -> dict[str, tuple[Rows, list[int]]]:
        """Signals of numbered pictures and arrays, with the numbers of these."""
        pictures: dict[str, tuple[Rows, list[int]]] = {}
        for (stem, kind), listed in frames.items():
            listed.sort(key=lambda pair: pair[0])
            numbers = [number for number, _ in listed]
            signal = stem if stem not in taken and stem not in pictures else f"{stem}.{kind}"
            if len(set(numbers)) != len(numbers):
                raise CorruptLayoutError(f"two frames of {signal!r} have one number")
            rows = self._shards.rows(f"{stem}.{kind}", [field for _, field in listed])
            pictures[signal] = rows, numbers
        return pictures

    def _static(self, field: SampleField, name: str) -> Any:
        """A field with one value: a number, text or JSON."""
        text = self._shards.value(name, field)
        if name.rpartition(".")[2] not in ("json", "jsn"):
            return text
        try:
            value = parse_json(text.encode())
            json.dumps(value, allow_nan=False)
        except (FormatError, ValueError):
            return text
        return value


def _column(rows: Rows, role: Any, at: Sequence[int] | None, steps: int) -> EpisodeColumn:
    """A column at these steps; on the clock of the steps if it has a row for each of them."""
    numbers = tuple(range(rows.count)) if at is None else tuple(at)
    is_dense = numbers == tuple(range(rows.count)) and rows.count in (steps, steps + 1)
    return EpisodeColumn(rows, role, at=None if is_dense else numbers)


def _read_objects(read: Read, start: int, stop: int) -> NDArray[Any]:
    return as_objects(read(start, stop))


def _role(name: str, rows: Rows) -> Any:
    return "observation" if rows.is_pictures else guess_role(name, rows.kind or "tensor").role


def whole_number(text: str, name: str, path: str) -> int:
    """The number in a field, of at most 64 bits."""
    try:
        number = int(text)
    except ValueError:
        fact = f"field {name!r} is not a whole number: {text[:40]!r}"
        raise CorruptLayoutError(fact, path=path) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise CorruptLayoutError(f"field {name!r} has a number of more than 64 bits", path=path)
    return number


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    per: Per | None = None,
    shard_bytes: int = 256 << 20,
    prefix: str = "shard",
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as a folder of tar shards, which appears whole or not at all.

    `per="episode"` makes a sample of each episode, with an array per signal (an array for each value, where their
    lengths vary); `per="step"` one of each step, with the episode as its folder; by default as the source was, else
    per episode. Shards have about `shard_bytes`. JPEG and PNG pictures and encoded videos are copied. The times of the
    steps are kept in the samples.
    """
    chosen = per or metadata_of(episodes.metadata, "webdataset").get("per") or "episode"
    require_word("per", chosen, ("episode", "step"))
    return SampleWriter(chosen, shard_bytes, prefix).write(episodes, target, **options)


@dataclass
class SampleWriter(StepWriter):
    """Tar shards, filled one after the other."""

    format = "webdataset"
    holds_ragged = True
    _per: Per
    _limit: int
    _prefix: str
    _path: Path | None = None
    """The shard that is being filled."""
    _count = _bytes = 0

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The samples of one episode, one after the other in a file."""
        fields = SampleFields(rows)
        key = re.sub(r"[^A-Za-z0-9_-]", "_", rows.id)
        samples = fields.per_step(key) if self._per == "step" else fields.per_episode(key)
        sizes: list[int] = []
        with open(scratch / "samples.tar", "xb") as out:
            for name, members in samples:
                start = out.tell()
                for field, data in sorted(members, key=lambda member: member[0]):
                    reader = data if isinstance(data, RangeReader) else BytesRangeReader(data, field)
                    out.write(member_header(f"{name}.{field}", reader.size))
                    for offset in range(0, reader.size, _PIECE):
                        out.write(reader.read(offset, min(offset + _PIECE, reader.size)))
                    out.write(padding_to(reader.size, BLOCK_BYTES))
                sizes.append(out.tell() - start)
        return Part(len(rows), (scratch / "samples.tar", sizes, key))

    def add(self, part: Part) -> str:
        """Append the samples to the last shard, or to a new one."""
        path, sizes, key = part.data
        with open(path, "rb") as file:
            for size in sizes:
                if self._path is None or self._bytes >= self._limit:
                    self._end_shard()
                    self._path = self.out / f"{self._prefix}-{self._count:06d}.tar"
                    self._count, self._bytes = self._count + 1, 0
                with open(self._path, "ab") as out:
                    for left in range(size, 0, -_PIECE):
                        out.write(file.read(min(left, _PIECE)))
                self._bytes += size
        return str(key)

    def _end_shard(self) -> None:
        if self._path is not None:
            with open(self._path, "ab") as out:
                out.write(bytes(2 * BLOCK_BYTES))

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """End the last shard and write the receipt."""
        self._end_shard()
        super().finish(episodes, receipt)


Member = tuple[str, bytes | RangeReader]
"""A field of a sample and its bytes."""


class SampleFields:
    """The signals of one episode as fields of samples."""

    def __init__(self, rows: StepRows) -> None:
        self._rows = rows
        self._fields: dict[str, str] = {}
        self._at: dict[str, list[int]] = {}
        """Steps of the records of signals that have none at some steps."""
        times = rows.steps.times_ns
        for name, column in rows.columns.items():
            if not column.is_exact and np.isin(column.signal.timestamps, times).all():
                self._at[name] = np.searchsorted(times, column.signal.timestamps).tolist()

    def _field(self, name: str, ending: str) -> str:
        """The field of a signal: its name with dots, and an ending."""
        field = f"{re.sub(r'[^a-z0-9_.-]', '_', name.lower().replace('/', '.'))}.{ending}"
        if field in self._fields.values():
            raise SchemaMismatchError(f"signal {name!r} and another one would be one field, {field!r}")
        self._fields[name] = field
        return field

    def _own(self) -> Member:
        """Names, roles, static items and step times, which a sample has no place for."""
        signals = self._rows.episode.signals
        roles = {
            name: {
                "field": field,
                "role": signals[name].meta.role,
                "at": self._at.get(name),
                **({"ragged": True} if signals[name].meta.rows is not None else {}),
            }
            for name, field in self._fields.items()
        }
        notes = self._rows.episode_notes(len(self._rows))
        return OWN_FIELD, dump_json({"id": self._rows.id, "signals": roles, **notes})

    def per_episode(self, key: str) -> Iterator[tuple[str, list[Member]]]:
        """One sample."""
        columns = self._rows.columns.items()
        members = [member for name, column in columns for member in self._episode_members(name, column)]
        yield key, [*members, self._own()]

    def _episode_members(self, name: str, column: StepColumn) -> list[Member]:
        signal, kind = column.signal, column.meta.kind
        run = encoded_run(signal) if column.is_exact or name in self._at else None
        if run is not None and run.stream.codec in _STILLS and bool(run.shown.all()):
            stem, _, ending = self._field(name, _STILLS[run.stream.codec]).rpartition(".")
            numbers = np.searchsorted(self._rows.steps.times_ns, signal.timestamps).tolist()
            self._rows.notes[name] = note_of(signal)
            packets = zip(numbers, run.packets(), strict=True)
            return [(f"{stem}.{number:06d}.{ending}", data) for number, data in packets]
        if run is not None and run.stream.codec != "ffv1":
            camera = encoded_camera(name, signal)
            assert camera is not None
            self._rows.notes[name] = note_of(signal)
            return [(self._field(name, camera.suffix.lstrip(".")), camera.video)]
        is_sparse = name in self._at
        self._rows.notes[name] = note_of(signal) if is_sparse else column.note()
        values = signal.values() if is_sparse else column.rows(0, column.count)
        if kind == "bytes" and len(values) == 1:
            return [(self._field(name, "bin"), bytes(values[0]))]
        if kind == "bytes":
            why = "bytes that are no pictures have no place in a sample"
            self._rows.notes[name] = note_of(signal, "dropped", why)
            return []
        if kind == "text":
            return [(self._field(name, "json"), json.dumps(values.tolist()).encode())]
        if column.meta.rows is not None:
            stem = self._field(name, "000000.npy").removesuffix(".000000.npy")
            numbers = self._at[name] if is_sparse else range(len(values))
            return [
                (f"{stem}.{at:06d}.npy", _value_bytes(value))
                for at, value in zip(numbers, values, strict=True)
            ]
        return [(self._field(name, "npy"), _value_bytes(values))]

    def per_step(self, key: str) -> Iterator[tuple[str, list[Member]]]:
        """A sample per step, and one more for what was seen after the last."""
        columns = self._rows.columns
        values = {name: self._step_values(name, column) for name, column in columns.items()}
        for step in range(max((column.count for column in columns.values()), default=0)):
            items = ((self._fields[name], next(rows, None)) for name, rows in values.items())
            members: list[Member] = [(field, data) for field, data in items if data is not None]
            yield f"{key}/{step:06d}", [*members, self._own()] if step == 0 else members

    def _step_values(self, name: str, column: StepColumn) -> Iterator[bytes | None]:
        signal = column.signal
        run = column.pictures(*_STILLS)
        if run is not None:
            self._field(name, _STILLS[run.stream.codec])
            self._rows.notes[name] = note_of(signal)
            return iter(run.packets())
        self._field(name, {"text": "txt", "bytes": "bin"}.get(column.meta.kind, "npy"))
        if name in self._at:
            self._rows.notes[name] = note_of(signal)
            by_step = dict(zip(self._at[name], map(_value_bytes, signal.values()), strict=True))
            return (by_step.get(step) for step in range(len(self._rows)))
        self._rows.keep(name)
        return (_value_bytes(value) for block in column.blocks() for value in block)


def _value_bytes(value: Any) -> bytes:
    """Text, bytes, or an array as a .npy file."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(value, order="C"), allow_pickle=False)
    return out.getvalue()
