"""Bound columns inside Arrow batches: an extension array whose items are references. An adapter of pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from warpdata.bytekit.arrays import resolve_index
from warpdata.catalog.read.artifacts import Artifact, range_member
from warpdata.catalog.read.refs import REF_CLASSES, ArtifactOpener, FileRef, RefGroup, reopened
from warpdata.errors import DatasetError
from warpdata.formats.tarshard.member_index import Member
from warpdata.stores.pagecache import PageCache

_KEPT_COLUMNS = 2
"""How many columns keep their references: each look at `batch["image"]` makes a new array of the same memory."""


class RefType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a bound column: how its values are found, enough to find them again in another process."""

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

    @property
    def fields(self) -> dict[str, Any]:
        """What the recipe says."""
        found: dict[str, Any] = json.loads(self.recipe)
        return found

    def artifact(self) -> tuple[Artifact, PageCache | None]:
        """The artifact the column points into; opened again where the dataset itself is gone."""
        opener = self._opener or reopened(self.recipe)
        return opener(self.fields["artifact"])

    def refs_of(self, storage: pa.Array) -> list[FileRef | None]:
        """The references of a column, the same ones each time it is looked at."""
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
    artifact, cache = kind.artifact()
    fields = kind.fields
    values = storage.to_pylist()
    places = [_place(artifact, value) for value in values if value is not None]
    group = RefGroup(artifact, cache, places, kind.recipe)
    kind_of_ref = REF_CLASSES[fields["ref_type"]]
    refs = iter([kind_of_ref(group, position) for position in range(len(places))])
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
            column = pa.ExtensionArray.from_storage(kind, _cast(column, kind.storage_type))
            field = pa.field(field.name, kind, field.nullable)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def bound_dict(batch: pa.RecordBatch, types: dict[str, RefType]) -> dict[str, list[Any]]:
    """The batch as lists, bound columns as references."""
    return {
        name: make_refs(types[name], _cast(batch.column(i), types[name].storage_type))
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


def _cast(column: pa.Array, storage: pa.DataType) -> pa.Array:
    return column if column.type == storage else column.cast(storage)


def _place(artifact: Artifact, value: Any) -> str | Member:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        crc = value.get("crc32c")
        return range_member(artifact, int(value["shard"]), int(value["offset"]), int(value["length"]), crc)
    raise DatasetError(f"a reference is a {type(value).__name__}, not a name or a range")
