"""References from a table into an artifact: files, pictures, sound and video, and columns of them in Arrow batches.

One of the adapters of pyarrow.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import resolve_index
from warpdata.bytekit.io.ranges import PartRangeReader, RangeFile
from warpdata.bytekit.jsontext import escape_unprintable
from warpdata.bytekit.process.forks import ThreadLock, cached_property
from warpdata.catalog.read import media
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.episodes import episode_of
from warpdata.errors import CorruptLayoutError, DatasetError, require_kind, require_word
from warpdata.formats.tarshard.member_index import Member
from warpdata.stores.pagecache import PageCache
from warpdata.timeline.episode import Episode

_AHEAD_BYTES = 64 << 20
_AHEAD_REFS = 256
_STREAM_BYTES = 16 << 20
"""Larger files are streamed by range; smaller ones are read whole, so that their checksum is checked."""

_BUFFER_BYTES = 64 << 10

ArtifactOpener = Callable[[str], tuple[Artifact, PageCache | None]]


class RefGroup:
    """The references of one batch: the first read fetches the following ones too."""

    def __init__(
        self, artifact: Artifact, cache: PageCache | None, places: Sequence[str | Member], recipe: str = ""
    ) -> None:
        self.artifact = artifact
        self.cache = cache
        self.recipe = recipe
        """Opens the dataset in another process."""
        self._places = list(places)
        self._data: dict[int, memoryview] = {}
        self._given: set[int] = set()
        self._lock = ThreadLock()

    @cached_property
    def origin(self) -> tuple[str, str]:
        """The version of a dataset and the artifact that these are files of."""
        return (json.loads(self.recipe)["dataset"]["name"] if self.recipe else "", self.artifact.name)

    def place(self, position: int) -> str | Member:
        """The place of the member, or only its name before it was looked up."""
        return self._places[position]

    def member(self, position: int) -> Member:
        """The place of the member."""
        return self._locate([position])[0]

    def read(self, position: int) -> memoryview:
        """The bytes of one reference, and of those after it, up to a bound on memory."""
        with self._lock:
            if position not in self._data:
                self._fetch(position)
            self._given.add(position)
            return self._data.pop(position)

    def read_all(self) -> list[memoryview]:
        """The bytes of all references, fetched together."""
        return self.artifact.read(self._locate(range(len(self._places))))

    def _locate(self, positions: Sequence[int]) -> list[Member]:
        """The members at these places; names among them are looked up all at once."""
        named = [i for i in positions if isinstance(self._places[i], str)]
        members = self.artifact.find([str(self._places[i]) for i in named]) if named else []
        for i, member in zip(named, members, strict=True):
            self._places[i] = member
        return [place for i in positions if isinstance(place := self._places[i], Member)]

    def _fetch(self, position: int) -> None:
        """Fetch this one and those after it that were not read yet, so that each is fetched once in any order."""
        stop = min(position + _AHEAD_REFS, len(self._places))
        read = self._given.union(self._data)
        ahead = [position, *(i for i in range(position + 1, stop) if i not in read)]
        size = sum(view.nbytes for view in self._data.values())
        wanted: list[tuple[int, Member]] = []
        for i, place in zip(ahead, self._locate(ahead), strict=True):
            size += place.length
            if wanted and size > _AHEAD_BYTES:
                break
            wanted.append((i, place))
        if size > _AHEAD_BYTES:
            self._data.clear()
        views = self.artifact.read([member for _, member in wanted])
        self._data |= {i: view for (i, _), view in zip(wanted, views, strict=True)}


class FileRef:
    """One raw file of a dataset, read on first use."""

    def __init__(self, group: RefGroup, position: int) -> None:
        require_kind("a reference", group, RefGroup, "made by a table or by Dataset.ref, of a RefGroup")
        self._group = group
        self._position = position

    @property
    def name(self) -> str:
        """The member's name in its artifact."""
        place = self._group.place(self._position)
        return place if isinstance(place, str) else place.name

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._group.member(self._position).length

    def read_bytes(self) -> bytes:
        """The whole file."""
        return bytes(self._group.read(self._position))

    def open(self) -> io.BufferedReader:
        """The file as a seekable stream that reads ranges."""
        member = self._group.member(self._position)
        if member.frame_bytes or member.length <= _STREAM_BYTES:
            return io.BufferedReader(io.BytesIO(self.read_bytes()))
        shard = self._group.artifact.streamed_reader(member.shard)
        part = PartRangeReader(shard, member.offset, member.length, self.name)
        return io.BufferedReader(RangeFile(part), _BUFFER_BYTES)

    def local_path(self) -> Path:
        """A file on this disk with these bytes, downloaded if need be."""
        cache = self._group.cache
        member = self._group.member(self._position)
        artifact = self._group.artifact
        if not artifact.part.is_tar:
            path = artifact.shard_reader(member.shard).load_whole()
            if path is not None:
                return path
        if cache is None:
            hint = "Use open() or read_bytes(), or open the dataset in another mode."
            raise DatasetError(f"{self.name!r} has no file here, and mode='remote' writes none", hint=hint)
        shard = artifact.part.shards[member.shard].hash
        suffix = os.path.splitext(self.name)[1]
        name = f"{shard}-{member.offset}-{member.inner_offset}-{member.length}{suffix}"
        path = cache.member_path(name)
        return path if path.exists() else cache.keep_member(name, self._group.read(self._position))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_ref, (type(self), self._group.recipe, self._group.place(self._position))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileRef):
            return NotImplemented
        return (self.name, self._group.origin) == (other.name, other._group.origin)

    def __hash__(self) -> int:
        return hash((self.name, self._group.origin))


class ImageRef(FileRef):
    """A picture."""

    def as_pil(self) -> Any:
        """The decoded Pillow image."""
        return media.decode_pil(self.read_bytes(), self.name)

    def as_numpy(self) -> NDArray[Any]:
        """The pixels, (height, width) or (height, width, channels)."""
        return np.asarray(self.as_pil())


class AudioRef(FileRef):
    """Sound."""

    def as_array(self) -> NDArray[np.float32]:
        """The samples as float32, (frames,) or (frames, channels)."""
        return media.decode_audio(self.read_bytes(), self.name)[0]

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return media.decode_audio(self.read_bytes(), self.name)[1]


class VideoRef(FileRef):
    """Video."""

    def frame(self, time_s: float) -> NDArray[np.uint8]:
        """The frame shown at `time_s` seconds as (height, width, 3) RGB."""
        with self.open() as file:
            return media.decode_video_frame(file, time_s, self.name)


class EpisodeFileRef(FileRef):
    """A recorded episode: `open()` reads its header, and its blocks on first use."""

    def open(self) -> Episode:  # type: ignore[override]
        """The episode in time, lazily; `.tensors` is the same by step."""
        return episode_of(self._group.artifact, self._group.member(self._position))


REF_CLASSES: dict[str, type[FileRef]] = {
    "file": FileRef,
    "image": ImageRef,
    "audio": AudioRef,
    "video": VideoRef,
    "episode": EpisodeFileRef,
}


def read_refs(refs: Sequence[FileRef]) -> list[bytes]:
    """The bytes of many references of any batches, fetched together."""
    by_artifact: dict[int, list[int]] = {}
    for i, ref in enumerate(refs):
        require_kind("each of them", ref, FileRef, "a reference")
        by_artifact.setdefault(id(ref._group.artifact), []).append(i)
    out: list[bytes] = [b""] * len(refs)
    for positions in by_artifact.values():
        places = [refs[i]._group.place(refs[i]._position) for i in positions]
        group = RefGroup(refs[positions[0]]._group.artifact, None, places)
        for i, view in zip(positions, group.read_all(), strict=True):
            out[i] = bytes(view)
    return out


def _reopen_artifact(recipe: str) -> tuple[Artifact, PageCache | None]:
    """The artifact of a recipe, of which a reference outlived the dataset or came to another process."""
    from warpdata.catalog.dataset import reopen_dataset  # which imports this module

    fields = json.loads(recipe)
    return reopen_dataset(json.dumps(fields["dataset"])).artifact_and_cache(fields["artifact"])


def _reopen_ref(kind: type[FileRef], recipe: str, place: str | Member) -> FileRef:
    """A reference of another process."""
    return kind(RefGroup(*_reopen_artifact(recipe), [place], recipe), 0)


FORMATS = ("arrow", "ndjson", "parquet")
_KEPT_COLUMNS = 2
"""Columns that keep their references: each use of `batch["image"]` makes a new array of the same memory."""


class RefType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a bound column, with a recipe to find its values in another process."""

    def __init__(self, storage: pa.DataType, recipe: str, opener: ArtifactOpener | None = None) -> None:
        self.recipe = recipe
        self._opener = opener
        self._kept: list[tuple[Any, pa.Array, list[FileRef | None]]] = []
        super().__init__(storage, "warpdata.ref")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.recipe.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> RefType:
        return cls(storage, serialized.decode())

    def __arrow_ext_class__(self) -> type[RefArray]:
        return RefArray

    def __arrow_ext_scalar_class__(self) -> type[RefScalar]:
        return RefScalar

    def __reduce__(self) -> tuple[Any, ...]:
        return RefType, (self.storage_type, self.recipe)

    def refs_of(self, storage: pa.Array) -> list[FileRef | None]:
        """The references of a column, the same ones each time."""
        key = (storage.offset, len(storage), *(b and (b.address, b.size) for b in storage.buffers()))
        for known, _, refs in self._kept:
            if known == key:
                return refs
        refs = make_refs(self, storage)
        self._kept = [(key, storage, refs), *self._kept][:_KEPT_COLUMNS]
        return refs


class RefArray(pa.ExtensionArray):  # type: ignore[misc]
    """A bound column: `column[i]` is a reference, and reading one brings its neighbours along."""

    def __getitem__(self, key: Any) -> Any:
        rows = resolve_index(key, len(self), "row")
        if isinstance(rows, int):
            return self.refs()[rows]
        if isinstance(rows, range) and rows.step == 1:
            return self.slice(rows.start, len(rows))
        return self.take(pa.array(rows, pa.int64()))

    def __iter__(self) -> Iterator[FileRef | None]:
        return iter(self.refs())

    def refs(self) -> list[FileRef | None]:
        """A reference for each row, None where the column is null."""
        return list(self.type.refs_of(self.storage))

    def to_pylist(self, **_: Any) -> list[Any]:
        """The references."""
        return self.refs()


class RefScalar(pa.ExtensionScalar):  # type: ignore[misc]
    """One value of a bound column of a whole table: `as_py()` is the reference."""

    def as_py(self, **_: Any) -> FileRef | None:
        """The reference, None for null."""
        value = None if self.value is None else self.value.as_py()
        return make_refs(self.type, pa.array([value], self.type.storage_type))[0]


def make_refs(kind: RefType, storage: pa.Array) -> list[FileRef | None]:
    """References for the stored values, all in one group."""
    fields = json.loads(kind.recipe)
    opener = kind._opener
    artifact, cache = _reopen_artifact(kind.recipe) if opener is None else opener(fields["artifact"])
    values = storage.to_pylist()
    places: list[str | Member] = []
    for value in values:
        if isinstance(value, dict):
            shard, offset, length = int(value["shard"]), int(value["offset"]), int(value["length"])
            name, crc = f"{shard}:{offset}+{length}", value.get("crc32c")
            if min(shard, offset, length) < 0:
                raise CorruptLayoutError(f"no such reference: {name}", path=artifact.name)
            member = Member(name, shard, offset, length, -1 if crc is None else crc)
            places.append(artifact.check_place(member))
        elif isinstance(value, str):
            places.append(value)
        elif value is not None:
            raise DatasetError(f"a reference is a {type(value).__name__}, not a name or a range")
    group = RefGroup(artifact, cache, places, kind.recipe)
    ref_class = REF_CLASSES[fields["ref_type"]]
    refs = iter([ref_class(group, position) for position in range(len(places))])
    return [None if value is None else next(refs) for value in values]


def recipe_of(artifact: str, ref_type: str, dataset: dict[str, Any]) -> str:
    """The recipe of references into an artifact."""
    return json.dumps({"artifact": artifact, "ref_type": ref_type, "dataset": dataset}, sort_keys=True)


def bound_batch(batch: pa.RecordBatch, types: dict[str, RefType]) -> pa.RecordBatch:
    """The batch with its bound columns as references; the bytes are shared."""
    if not any(name in types for name in batch.schema.names):
        return batch
    columns, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = types.get(field.name)
        if kind is not None:
            column = pa.ExtensionArray.from_storage(kind, column.cast(kind.storage_type))
            field = pa.field(field.name, kind, field.nullable)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def bound_dict(batch: pa.RecordBatch, types: dict[str, RefType]) -> dict[str, list[Any]]:
    """The batch as lists, bound columns as references."""
    return {
        name: make_refs(types[name], batch.column(i).cast(types[name].storage_type))
        if name in types
        else python_values(batch.column(i), name)
        for i, name in enumerate(batch.schema.names)
    }


def python_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """The values of a column; DatasetError where Python has none for them, such as for the year 20000."""
    try:
        values: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        fact = f"column {name!r} of {column.type} has a value that Python cannot hold ({error})"
        raise DatasetError(fact, hint="Read it as Arrow, or choose other columns.") from None
    return values


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with references as the plain values that are stored."""
    columns = [c.storage if isinstance(c, RefArray) else c for c in batch.columns]
    fields = [field.with_type(c.type) for field, c in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, out: IO[bytes]) -> int:
    """Write batches in one of the formats and return the number of rows."""
    require_word("a format", form, FORMATS)
    rows = 0
    if form == "ndjson":
        for batch in batches:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows_as_json(plain_batch(batch))]
            out.write(escape_unprintable("".join(lines)).encode())
            rows += batch.num_rows
        return rows
    open_writer = pa.ipc.new_stream if form == "arrow" else pq.ParquetWriter
    with open_writer(pa.PythonFile(out, mode="w"), schema) as writer:
        for batch in batches:
            writer.write_batch(plain_batch(batch))
            rows += batch.num_rows
    return rows


def rows_as_json(table: Any) -> list[dict[str, Any]]:
    """Rows as values JSON can hold; times that Python would round are Arrow's text."""
    names = table.schema.names
    columns = [c.cast(pa.string()) if c.type == pa.time64("ns") else c for c in table.columns]
    values = [map(plain_value, python_values(c, name)) for name, c in zip(names, columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def plain_value(value: Any) -> Any:
    """A value JSON can hold: bytes as base64, times as ISO text, not-a-number as null."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    if isinstance(value, dict):
        return {k: plain_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
