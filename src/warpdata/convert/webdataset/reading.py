"""Open WebDataset shards as episodes: a sample is an episode, or a step of the episode its folder names."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.io.ranges import BytesRangeReader, PartRangeReader, RangeReader
from warpdata.bytekit.jsontext import parse_json
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.corpora.npy import npy_header
from warpdata.convert.place import Place
from warpdata.convert.rows import stated_rate
from warpdata.convert.set_notes import EpisodeNotes
from warpdata.convert.stepped import EpisodeColumn, MemoryRows, Parts, Rows, SteppedEpisodes, VideoRows
from warpdata.convert.tables.npz_file import NpzFile
from warpdata.convert.webdataset.samples import SampleField, Shards, TarSample
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.file_video import SourceVideo
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    UnsupportedDtypeError,
    WarpError,
)
from warpdata.timeline.meta import ROLES, Role, as_role, guess_role

Per = Literal["episode", "step"]
OWN_FIELD = "warpdata.json"
"""The field in which warpdata keeps what a sample has no place for."""
_VIDEOS = ("mp4", "mkv", "mov", "avi", "webm")
_FRAME = re.compile(r"(?:(.+?)\.)?(?:(\d+)\.)?(jpe?g|png)")
_NUMBERS = ("cls", "cls2", "index", "id", "inx")
_TEXTS = ("txt", "text", "transcript", "json", "jsn")
_TAR_HEAD = 262


def matches(place: Place) -> bool:
    """Whether it is a tar file, or a folder of them."""
    if place.is_file:
        return place.head(_TAR_HEAD)[257:262] == b"ustar"
    names = [name for name in place.children() if name.endswith(".tar")]
    return bool(names) and place.head(_TAR_HEAD, names[0])[257:262] == b"ustar"


def read(source: Any, *, per: Per | None = None, fps: float | None = None) -> Episodes:
    """The episodes of a tar shard, or of all those in a folder; only headers are read until a field is asked for.

    `per="episode"`: a sample is an episode, its arrays have a row per step. `per="step"`: a sample is a step, its
    folder names the episode. By default the second where keys have folders. Pickled fields come as bytes: nothing
    unpickles them.
    """
    if per not in (None, "episode", "step"):
        raise ValueError(f"per is 'episode' or 'step', not {per!r}")
    return Episodes(TarEpisodes(Place.of(source), per, fps))


class TarEpisodes(SteppedEpisodes):
    """Samples of tar shards."""

    def __init__(self, place: Place, per: Per | None, fps: float | None) -> None:
        self._place, self._per, self._fps = place, per, fps
        names = [""] if place.is_file else sorted(name for name in place.children() if name.endswith(".tar"))
        if not names:
            raise BlobNotFoundError("no tar shard is in this folder", path=place.name)
        self._shards = Shards(place, names)

    @cached_property
    def per(self) -> Per:
        """Whether a sample is an episode or a step."""
        samples = self._shards.samples
        return self._per or (
            "step" if samples and all("/" in sample.key for sample in samples) else "episode"
        )

    @cached_property
    def groups(self) -> dict[str, list[TarSample]]:
        """The samples of every episode by its id, in the order of the shards."""
        found: dict[str, list[TarSample]] = {}
        for sample in self._shards.samples:
            name = sample.key.rpartition("/")[0] or "episode" if self.per == "step" else sample.key
            if name in found and self.per == "episode":
                raise CorruptLayoutError(
                    f"sample {name!r} is there twice", path=self._shards.path(sample.shard)
                )
            found.setdefault(name, []).append(sample)
        return found

    @cached_property
    def ids(self) -> Sequence[str]:
        """The keys, or their folders."""
        return list(self.groups)

    def parts(self, position: int) -> Parts:
        """The fields of an episode."""
        name = self.ids[position]
        samples = self.groups[name]
        place = f"{self._shards.path(samples[0].shard)}#{name}"
        try:
            made = self._of_steps(samples) if self.per == "step" else self._of_sample(samples[0])
        except WarpError as error:
            raise type(error)(f"episode {name!r}: {error.message}", path=place, hint=error.hint) from None
        columns, static, steps = made
        own = _own(static.pop("warpdata", None))
        if own is not None:
            return self._own_parts(name, columns, static, own, steps, place)
        about = static.get("meta", static.get("json"))
        fps = stated_rate(about.get("fps")) if isinstance(about, Mapping) else None
        return Parts(name, steps, columns, static, {}, self._fps or fps, place=place)

    def _own_parts(
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
        if note is None or not 0 <= note.steps <= steps:
            raise CorruptLayoutError(f"{OWN_FIELD} is damaged", path=place)
        named: dict[str, EpisodeColumn] = {}
        for signal, about in own["signals"].items():
            field, role, at = _field_key(about["field"]), as_role(about["role"]), about.get("at")
            text = texts.get(field)
            if field in columns:
                rows, at = columns[field].rows, at if at is not None else columns[field].at
            elif isinstance(text, list) and all(isinstance(each, str) for each in text):
                rows = MemoryRows(np.array([*text, None], object)[:-1], "text")
            else:
                raise CorruptLayoutError(f"field {about['field']!r} is missing", path=place)
            if at is not None and (len(at) != rows.count or not all(0 <= each < note.steps for each in at)):
                at = None if rows.count == note.steps + 1 else tuple(range(rows.count))
            column = EpisodeColumn(rows, role, at=None if at is None else tuple(at))
            named[signal] = _every_step(column, note.steps)
        return self.with_note(Parts(name, note.steps, named, place=place), note)

    # A sample per step.

    def _of_steps(self, samples: Sequence[TarSample]) -> tuple[dict[str, EpisodeColumn], dict[str, Any], int]:
        names = dict.fromkeys(field for sample in samples for field in sample.fields if field != OWN_FIELD)
        static: dict[str, Any] = {}
        if OWN_FIELD in samples[0].fields:
            static["warpdata"] = _static(
                _text(self._shards.read(samples[0].fields[OWN_FIELD]), OWN_FIELD), "json"
            )
        columns: dict[str, EpisodeColumn] = {}
        for field in names:
            at = tuple(number for number, sample in enumerate(samples) if field in sample.fields)
            chosen = [samples[number].fields[field] for number in at]
            rows = _FieldRows(self._shards, field, chosen)
            signal = _signal_name(field, rows)
            if signal in columns:
                signal = field
            is_dense = len(at) == len(samples)
            columns[signal] = EpisodeColumn(rows, _role(signal, rows), at=None if is_dense else at)
        return columns, static, len(samples)

    # A sample per episode.

    def _of_sample(self, sample: TarSample) -> tuple[dict[str, EpisodeColumn], dict[str, Any], int]:
        arrays: dict[str, Rows] = {}
        static: dict[str, Any] = {}
        frames: dict[str, list[tuple[int, str, SampleField]]] = {}
        single: dict[str, SampleField] = {}
        for name, field in sample.fields.items():
            stem, _, kind = name.rpartition(".")
            found = _FRAME.fullmatch(name)
            if found:
                frames.setdefault(f"{found[1] or 'frames'}|{found[3]}", []).append(
                    (int(found[2] or 0), name, field)
                )
            elif kind == "npy":
                arrays[stem or "npy"] = _npy_rows(self._shards, field, name)
            elif kind == "npz":
                archive = NpzFile(_InTar(self._shards, field, name))  # type: ignore[arg-type]
                for key in archive.keys:
                    arrays[f"{stem or 'npz'}/{key}"] = archive.rows(key)
            elif kind in _TEXTS or kind in _NUMBERS:
                static[stem or kind] = _static(_text(self._shards.read(field), name), kind)
            elif kind in _VIDEOS:
                opened = partial(_open_field, self._shards, field, name)
                source = SourceVideo(opened, f"{self._shards.path(field.shard)}:{name}")
                arrays[stem or kind] = VideoRows(source)
            else:
                single[name] = field
        columns, steps = self._episode_columns(arrays, frames, single)
        return columns, static, steps

    def _episode_columns(
        self,
        arrays: Mapping[str, Rows],
        frames: Mapping[str, list[tuple[int, str, SampleField]]],
        single: Mapping[str, SampleField],
    ) -> tuple[dict[str, EpisodeColumn], int]:
        """Columns of a sample, and how many steps they have."""
        columns = {name: EpisodeColumn(rows, _role(name, rows)) for name, rows in arrays.items()}
        counts = [column.rows.count for column in columns.values()]
        actions = [column.rows.count for column in columns.values() if column.role == "action"]
        steps = actions[0] if actions else max(counts, key=counts.count, default=0)
        for name, listed in frames.items():
            listed.sort()
            signal = name.partition("|")[0]
            signal = signal if signal not in columns else name.replace("|", ".")
            rows = _FieldRows(self._shards, listed[0][1], [field for _, _, field in listed])
            at = tuple(number for number, _, _ in listed)
            if len(set(at)) != len(at):
                raise CorruptLayoutError(f"two frames of {signal!r} have one number")
            is_dense = at == tuple(range(len(at))) and len(at) in (steps, steps + 1)
            columns[signal] = EpisodeColumn(rows, "observation", at=None if is_dense else at)
            steps = max(steps, len(at) if not counts else steps)
        for name, field in single.items():
            columns[name] = EpisodeColumn(
                _FieldRows(self._shards, name, [field], as_bytes=True), "other", at=(0,)
            )
        for name, column in list(columns.items()):
            if column.at is None and column.rows.count not in (steps, steps + 1):
                columns[name] = EpisodeColumn(column.rows, column.role, at=tuple(range(column.rows.count)))
        count = max(steps, 1 if columns and not counts else steps)
        return {name: _every_step(column, count) for name, column in columns.items()}, count

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Whether a sample is an episode or a step."""
        return {"webdataset": {"per": self.per}}

    @property
    def name(self) -> str:
        """Where the shards lie."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (TarEpisodes, (self._place, self._per, self._fps))


def _every_step(column: EpisodeColumn, steps: int) -> EpisodeColumn:
    """The column, on the clock of the steps where it has a row for each of them."""
    is_dense = column.at is not None and column.at == tuple(range(len(column.at)))
    return (
        EpisodeColumn(column.rows, column.role)
        if is_dense and column.rows.count in (steps, steps + 1)
        else column
    )


def _open_field(shards: Shards, field: SampleField, name: str) -> RangeReader:
    """The bytes of a field, without reading them all where they are not packed."""
    path = f"{shards.path(field.shard)}:{name}"
    if field.is_gzip:
        return BytesRangeReader(shards.read(field), path)
    return PartRangeReader(shards.reader(field.shard), field.offset, field.length, path)


def _own(told: Any) -> Mapping[str, Any] | None:
    """What warpdata wrote of an episode beside it, if it is sound."""
    if not isinstance(told, Mapping) or not isinstance(told.get("signals"), Mapping):
        return None
    known = all(
        isinstance(about, Mapping) and isinstance(about.get("field"), str) and about.get("role") in ROLES
        for about in told["signals"].values()
    )  # fmt: skip
    return told if known else None


def _field_key(field: str) -> str:
    """The name that the reader gives to a field."""
    stem, _, kind = field.rpartition(".")
    found = _FRAME.fullmatch(field)
    if found:
        return found[1] or "frames"
    return field if kind == "bin" or not stem else stem


class _FieldRows(Rows):
    """One field of many samples as rows: pictures, arrays, numbers, text or bytes."""

    def __init__(
        self, shards: Shards, name: str, fields: Sequence[SampleField], *, as_bytes: bool = False
    ) -> None:
        self._shards, self._name, self._fields = shards, name, list(fields)
        self._how = "bytes" if as_bytes else _how(name)
        self.count, self.row_shape = len(fields), ()
        if self._how in ("bytes", "text", "picture"):
            self.dtype = np.dtype(object)
            self.kind = "text" if self._how == "text" else "bytes"
        elif self._how == "number":
            self.dtype = np.dtype(np.int64)
        else:
            first = self._array(0)
            self.dtype, self.row_shape = first.dtype, first.shape

    @property
    def is_pictures(self) -> bool:
        """Whether the field is a JPEG or PNG picture."""
        return self._how == "picture"

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The pictures as they are."""
        return [self._shards.read(field) for field in self._fields[start:stop]]

    def _array(self, row: int) -> NDArray[Any]:
        return npy_array(self._shards.read(self._fields[row]), self._name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows, a member each."""
        if self._how == "array":
            out = np.empty((stop - start, *self.row_shape), self.dtype)
            for row in range(start, stop):
                found = self._array(row)
                if found.shape != self.row_shape or found.dtype != self.dtype:
                    raise CorruptLayoutError(
                        f"field {self._name!r} changes from step to step",
                        path=self._shards.path(self._fields[row].shard),
                    )
                out[row - start] = found
            return out
        data = self.encoded(start, stop)
        if self._how == "number":
            numbers = [_whole(_text(each, self._name), self._name) for each in data]
            if numbers and not -(1 << 63) <= min(numbers) <= max(numbers) < 1 << 63:
                raise CorruptLayoutError(
                    f"field {self._name!r} has a number of more than 64 bits",
                    path=self._shards.path(self._fields[start].shard),
                )
            return np.array(numbers, np.int64)
        out = np.empty(len(data), object)
        out[:] = [_text(each, self._name) for each in data] if self._how == "text" else data
        return out


def _how(name: str) -> str:
    kind = name.rpartition(".")[2]
    if kind in ("jpg", "jpeg", "png"):
        return "picture"
    return (
        "array" if kind == "npy" else "number" if kind in _NUMBERS else "text" if kind in _TEXTS else "bytes"
    )


def _signal_name(field: str, rows: _FieldRows) -> str:
    stem = field.rpartition(".")[0]
    return field if not stem or (rows.kind == "bytes" and not rows.is_pictures) else stem


def _role(name: str, rows: Rows) -> Role:
    return guess_role(name, rows.kind or "tensor").role if not rows.is_pictures else "observation"


def npy_array(data: bytes, name: str) -> NDArray[Any]:
    """An array out of the bytes of a .npy file; one of objects, which would be a pickle, is refused."""
    stream = io.BytesIO(data)
    shape, is_fortran, dtype = npy_header(stream, name)
    if dtype.hasobject:
        raise UnsupportedDtypeError(
            f"{name!r} holds Python objects, which are read by running code in them",
            hint="Write the file again with arrays of numbers; nothing here reads a pickle.",
        )
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(data) - stream.tell() < size:
        raise CorruptLayoutError(f"array {name!r} is cut")
    try:
        wanted = dtype_of(dtype.newbyteorder("<")).dtype
    except ValueError:
        raise UnsupportedDtypeError(f"{name!r} holds {dtype}") from None
    count = size // dtype.itemsize
    found = np.frombuffer(data, dtype, count, stream.tell()).reshape(shape, order="F" if is_fortran else "C")
    return found.astype(wanted, copy=False)


def _npy_rows(shards: Shards, field: SampleField, name: str) -> Rows:
    found = npy_array(shards.read(field), name)
    return MemoryRows(found if found.ndim else found.reshape(1))


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptLayoutError(f"field {name!r} is not UTF-8") from None


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptLayoutError(f"field {name!r} is no whole number: {text[:40]!r}") from None


def _static(text: str, kind: str) -> Any:
    if kind in _NUMBERS:
        return _whole(text, kind)
    if kind not in ("json", "jsn"):
        return text
    try:
        found = parse_json(text.encode())
        json.dumps(found, allow_nan=False)
    except (FormatError, ValueError):
        return text
    return found


class _InTar:
    """A field as a place with one file, for whoever reads files."""

    def __init__(self, shards: Shards, field: SampleField, name: str) -> None:
        self._shards, self._field, self.name = shards, field, f"{shards.path(field.shard)}:{name}"

    def open(self, _: str = "") -> Any:
        """The bytes of the field."""
        return BytesRangeReader(self._shards.read(self._field), self.name)
