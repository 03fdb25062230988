"""Bound columns as Arrow arrays of references; batches as values and bytes. One of the adapters of pyarrow."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.bytekit.arrays import resolve_index
from warpdata.catalog.read.artifacts import range_member
from warpdata.catalog.read.refs import REF_CLASSES, ArtifactOpener, FileRef, RefGroup, reopen_artifacts
from warpdata.errors import DatasetError, require_word
from warpdata.formats.tarshard.member_index import Member

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
        found = resolve_index(key, len(self), "row")
        if isinstance(found, int):
            return self.refs()[found]
        if isinstance(found, range) and found.step == 1:
            return self.slice(found.start, len(found))
        return self.take(pa.array(found, pa.int64()))

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
    artifact, cache = (kind._opener or reopen_artifacts(kind.recipe))(fields["artifact"])
    values = storage.to_pylist()
    places: list[str | Member] = []
    for value in values:
        if isinstance(value, dict):
            numbers = int(value["shard"]), int(value["offset"]), int(value["length"])
            places.append(range_member(artifact, *numbers, value.get("crc32c")))
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
            out.write("".join(lines).encode())
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
