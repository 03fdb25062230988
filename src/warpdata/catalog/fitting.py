"""Casts rows to the schema of a table they join, without loss. One of the adapters of pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.errors import DatasetError

_types = pa.types
_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "number": (_types.is_integer, _types.is_floating, _types.is_decimal),
    "text": (_types.is_string, _types.is_large_string, _types.is_string_view),
    "bytes": (_types.is_binary, _types.is_large_binary, _types.is_binary_view, _types.is_fixed_size_binary),
    "date": (_types.is_date,),
    "timestamp": (_types.is_timestamp,),
    "duration": (_types.is_duration,),
    "time": (_types.is_time,),
    "list": (_types.is_list, _types.is_large_list, _types.is_fixed_size_list),
    "struct": (_types.is_struct,),
}


def joined_schema(name: str, held: pa.Schema, new: pa.Schema, *, add_columns: bool) -> pa.Schema:
    """The schema of a table and of rows that join it; DatasetError naming the first column that does not fit."""
    for schema in (held, new):
        if len(set(schema.names)) < len(schema.names):
            raise DatasetError(f"table {name!r} has two columns of one name, so that no rows can join it")
    fields = []
    for field in held:
        if field.name not in new.names:
            if not add_columns:
                raise _misfit(name, f"column {field.name!r} is missing")
            field = field.with_nullable(True)
        elif not _is_castable(new.field(field.name).type, field.type):
            fact = f"column {field.name!r}: expected {field.type}, got {new.field(field.name).type}"
            raise _misfit(name, fact)
        fields.append(field)
    added = [field for field in new if field.name not in held.names]
    if added and not add_columns:
        raise _misfit(name, f"unknown column {added[0].name!r}")
    return pa.schema([*fields, *(field.with_nullable(True) for field in added)])


def fit_batch(name: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in another schema; missing columns are null, and a value that would change is a DatasetError."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(cast_exactly(column, field.type))
        except (pa.ArrowException, ValueError) as error:
            fact = f"column {field.name!r}: {column.type} does not fit {field.type} without loss ({error})"
            raise _misfit(name, fact) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_exactly(column: Any, target: pa.DataType) -> Any:
    """A column as another type; ValueError if a value would change."""
    if column.type == target:
        return column
    if _types.is_dictionary(column.type):
        return cast_exactly(column.cast(column.type.value_type), target)
    if _types.is_null(column.type) or column.null_count == len(column):
        return pa.nulls(len(column), target)
    if _types.is_dictionary(target):
        return cast_exactly(column, target.value_type).dictionary_encode().cast(target)
    converted = column.cast(target)
    back = converted.cast(column.type)
    if _types.is_floating(column.type):  # NaN does not equal itself
        back, column = (pc.if_else(pc.is_nan(values), None, values) for values in (back, column))
    if not back.equals(column):
        raise ValueError("a value would change")
    return converted


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of a type may fit another type of the same kind."""
    if source == target or _types.is_null(source):
        return True
    if _types.is_dictionary(source) or _types.is_dictionary(target):
        plain = [kind.value_type if _types.is_dictionary(kind) else kind for kind in (source, target)]
        return _is_castable(*plain)
    kind = _kind(source)
    if kind is None or kind != _kind(target):
        return False
    if kind == "list":
        return _is_castable(source.value_type, target.value_type)
    if kind == "struct":
        return [f.name for f in source] == [f.name for f in target] and all(
            _is_castable(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    return True


def _kind(kind: pa.DataType) -> str | None:
    return next((name for name, tests in _KINDS.items() if any(test(kind) for test in tests)), None)


def _misfit(name: str, fact: str) -> DatasetError:
    hint = "Convert the rows to the schema of the table, or call extend(add_columns=True) to add columns."
    return DatasetError(f"the new rows do not fit table {name!r}: {fact}", hint=hint)
