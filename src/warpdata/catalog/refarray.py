"""Bound columns inside Arrow batches: an extension array whose items are references. A door of pyarrow."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from warpdata.catalog.artifacts import Artifact, range_member
from warpdata.catalog.refs import REF_CLASSES, FileRef, RefGroup
from warpdata.errors import DatasetError
from warpdata.formats.manifest.model import Binding
from warpdata.formats.tarshard.member_index import Member
from warpdata.stores.cache import PageCache

ArtifactOpener = Callable[[str], tuple[Artifact, PageCache | None]]
Reopener = Callable[[str], ArtifactOpener]


class RefType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a bound column: how its values are found, enough to find them again in another process."""

    def __init__(self, storage: pa.DataType, recipe: str, opener: ArtifactOpener | None = None) -> None:
        self.recipe = recipe
        self._opener = opener
        super().__init__(storage, "warpdata.ref")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.recipe.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> RefType:
        return cls(storage, serialized.decode())

    def __arrow_ext_class__(self) -> type[RefArray]:
        return RefArray

    def __reduce__(self) -> tuple[Any, ...]:
        return RefType, (self.storage_type, self.recipe)

    @property
    def fields(self) -> dict[str, Any]:
        """What the recipe says."""
        found: dict[str, Any] = json.loads(self.recipe)
        return found

    def artifact(self) -> tuple[Artifact, PageCache | None]:
        """The artifact the column points into; opened again where the dataset itself is gone."""
        opener = self._opener or _reopened(self.recipe)
        return opener(self.fields["artifact"])


class RefArray(pa.ExtensionArray):  # type: ignore[misc]
    """A bound column: `column[i]` is a reference, and reading one brings its neighbours along."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int):
            return super().__getitem__(key)
        return self.refs()[key]

    def refs(self) -> list[FileRef | None]:
        """A reference for each row, None where the column is null."""
        return make_refs(self.type, self.storage)

    def to_pylist(self, **_: Any) -> list[Any]:
        """The references."""
        return list(self.refs())


def make_refs(kind: RefType, storage: pa.Array) -> list[FileRef | None]:
    """References for the stored values, all in one group."""
    artifact, cache = kind.artifact()
    fields = kind.fields
    values = storage.to_pylist()
    places = [_place(artifact, value) for value in values if value is not None]
    group = RefGroup(artifact, cache, places)
    kind_of_ref = REF_CLASSES[fields["ref_type"]]
    refs = iter([kind_of_ref(group, position) for position in range(len(places))])
    return [None if value is None else next(refs) for value in values]


def recipe_of(binding: Binding, dataset: dict[str, Any]) -> str:
    """The recipe of a bound column."""
    fields = {"artifact": binding.artifact, "ref_type": binding.ref_type, "dataset": dataset}
    return json.dumps(fields, sort_keys=True)


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
        else batch.column(i).to_pylist()
        for i, name in enumerate(batch.schema.names)
    }


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with references as the plain values that are stored."""
    columns = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def set_reopener(reopen: Reopener) -> None:
    """Say how a dataset is opened again from a recipe; called once by the module that can."""
    _reopeners[:] = [reopen]


_reopeners: list[Reopener] = []


@lru_cache(maxsize=8)
def _reopened(recipe: str) -> ArtifactOpener:
    if not _reopeners:
        raise DatasetError("the dataset of this reference is closed", hint="Import warpdata.catalog.dataset.")
    return _reopeners[0](recipe)


def _cast(column: pa.Array, storage: pa.DataType) -> pa.Array:
    return column if column.type == storage else column.cast(storage)


def _place(artifact: Artifact, value: Any) -> str | Member:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        crc = value.get("crc32c")
        return range_member(artifact, int(value["shard"]), int(value["offset"]), int(value["length"]), crc)
    raise DatasetError(f"a reference is a {type(value).__name__}, not a name or a range")
