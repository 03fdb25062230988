"""Columns of tables in parquet, Arrow, the SQL engine and frames. One of the adapters of pyarrow; that of polars."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import (
    CorruptLayoutError,
    DatasetError,
    ManifestCorruptedError,
    MissingExtraError,
    TooLargeError,
    TruncatedError,
)

Positions = NDArray[np.int64]


def fold_case(name: str) -> str:
    """A name as the engine compares it: only the letters A to Z lose their case."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def rows_at(table: pa.Table, positions: Positions) -> pa.Table:
    """The rows at these positions, in the order given, with the types the table has."""
    count = len(positions)
    if count == table.num_rows and np.array_equal(positions, np.arange(count)):
        return table
    if count == 0 or table.num_columns == 0:
        return table.slice(0, count)
    at = pa.array(positions)
    columns = [_taken(column, at, positions) for column in table.columns]
    return pa.table(columns, schema=table.schema)


def _taken(column: pa.ChunkedArray, at: pa.Array, positions: Positions) -> pa.ChunkedArray:
    # Arrow cannot take from strings that are views: it can from the same strings in one piece.
    for kind in (column.type, without_views(column.type)):
        with contextlib.suppress(pa.ArrowNotImplementedError):
            return cast_column(cast_column(column, kind).take(at), column.type)
    # Slices put together: slow, but every type can be sliced.
    borders = np.flatnonzero(np.diff(positions) != 1) + 1
    pieces: list[Any] = []
    for run in np.split(positions, borders):
        pieces += column.slice(int(run[0]), len(run)).chunks
    return pa.chunked_array([pa.concat_arrays(pieces)], column.type)


def without_views(kind: pa.DataType) -> pa.DataType:
    """The same type with strings and bytes in one piece."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else with_children(kind, without_views)


def with_children(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType | None]
) -> pa.DataType | None:
    """A type with changed types inside it, at any depth if `change` calls this; None if one of them becomes None."""
    types = pa.types
    if types.is_struct(kind):
        inner = [change(field.type) for field in kind]
    elif types.is_map(kind):
        inner = [change(kind.key_type), change(kind.item_type)]
    elif types.is_dictionary(kind) or hasattr(kind, "value_field"):
        inner = [change(kind.value_type)]
    else:
        return kind
    if None in inner:
        return None
    if types.is_struct(kind):
        return pa.struct([field.with_type(held) for field, held in zip(kind, inner, strict=True)])
    if types.is_map(kind):
        return pa.map_(*inner, kind.keys_sorted)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, inner[0], kind.ordered)
    return kind if inner[0] == kind.value_type else list_of(kind, inner[0])


def list_of(kind: pa.DataType, child: pa.DataType) -> pa.DataType:
    """The same kind of list with other values."""
    field, types = kind.value_field.with_type(child), pa.types
    if types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    if types.is_list_view(kind):
        return pa.list_view(field)
    if types.is_large_list_view(kind):
        return pa.large_list_view(field)
    return pa.large_list(field) if types.is_large_list(kind) else pa.list_(field)


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in another type, where Arrow's cast can be trusted; ArrowException where there is no cast."""
    if column.type == kind:
        return column
    return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    # Arrow's own cast of list views makes lists with wrong borders, and that of nulls inside others too few of them.
    if array.type.id == kind.id and isinstance(array, pa.ListArray | pa.LargeListArray):
        return array.cast(kind) if pa.types.is_map(kind) else _cast_list(array, kind)
    if isinstance(array, pa.StructArray) and pa.types.is_struct(kind):
        names, wanted = ([field.name for field in struct] for struct in (array.type, kind))
        places = (
            range(len(names)) if names == wanted else [names.index(n) if n in names else None for n in wanted]
        )
        children = [
            pa.nulls(len(array), field.type) if place is None else _cast(array.field(place), field.type)
            for place, field in zip(places, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if not isinstance(array, pa.ListViewArray | pa.LargeListViewArray):
        return array.cast(kind)
    offsets, sizes = (pa.array(part.to_numpy()) for part in (array.offsets, array.sizes))
    values = _cast(array.values, kind.value_type)
    return type(array).from_arrays(offsets, sizes, values, type=kind, mask=array.is_null())


def _cast_list(array: Any, kind: pa.DataType) -> pa.Array:
    offsets = array.offsets.to_numpy()
    first, end = offsets[0].item(), offsets[-1].item()
    values = _cast(array.values.slice(first, end - first), kind.value_type)
    return type(array).from_arrays(pa.array(offsets - first), values, type=kind, mask=array.is_null())


_KNOWN_EXTENSIONS = ("arrow.uuid", "arrow.json", "arrow.bool8")
_MAX_DECIMAL_DIGITS = 38
_REPLACED = {pa.float16(): pa.float32()} | {
    pa.duration(unit): pa.duration("us") for unit in ("s", "ms", "ns")
}


@dataclass(frozen=True, slots=True)
class EngineColumn:
    """A column of a table as SQL sees it."""

    name: str
    """Its name in SQL: where two columns have one name, the second has a number."""
    field: pa.Field
    held: pa.DataType | None
    """The type that is handed to the engine, None where it has none for these values."""
    occurrence: int = 0
    """How many columns before it have exactly its name."""

    @property
    def is_as_stored(self) -> bool:
        """Whether the engine sees what is in the file, under the same name."""
        return bool(self.held == self.field.type) and self.name == self.field.name

    def of(self, table: pa.Table) -> pa.ChunkedArray:
        """This column of a table that has it, as the engine holds it."""
        places = [place for place, name in enumerate(table.schema.names) if name == self.field.name]
        column = table.column(places[self.occurrence])
        if column.type == self.held:
            return column
        try:
            plain = pa.chunked_array([_plain(chunk) for chunk in column.chunks], _plain_type(column.type))
            return cast_column(plain, self.held)
        except pa.ArrowException as error:
            fact = f"SQL cannot look at column {self.field.name!r}: {error}"
            raise DatasetError(fact, hint="Use an Arrow expression as the filter.") from None


def engine_columns(fields: Iterable[pa.Field]) -> list[EngineColumn]:
    """Columns as SQL sees them: each name once, ignoring case."""
    taken: set[str] = set()
    seen: dict[str, int] = {}
    columns = []
    for field in fields:
        name, number = field.name or "unnamed", 0
        while fold_case(name) in taken:
            number += 1
            name = f"{field.name or 'unnamed'}_{number}"
        taken.add(fold_case(name))
        kind = _plain_type(field.type) if pa.types.is_dictionary(field.type) else field.type
        columns.append(EngineColumn(name, field, _held(kind), seen.get(field.name, 0)))
        seen[field.name] = seen.get(field.name, 0) + 1
    return columns


def refuse_unheld(columns: Sequence[EngineColumn]) -> None:
    """DatasetError for the first column that the engine has no type for."""
    for column in columns:
        if column.held is None:
            hint = "Leave the column out of the SQL, or use an Arrow expression as the filter."
            raise DatasetError(
                f"SQL cannot look at column {column.field.name!r} of type {column.field.type}", hint=hint
            )


def _held(kind: pa.DataType) -> pa.DataType | None:
    """The type under which the engine holds values without loss: most often the same one."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        inner = _held(kind.storage_type)
        return kind if kind.extension_name in _KNOWN_EXTENSIONS or inner == kind.storage_type else inner
    if types.is_decimal(kind):
        if kind.precision > _MAX_DECIMAL_DIGITS or not 0 <= kind.scale <= kind.precision:
            return None
        return pa.decimal128(kind.precision, kind.scale) if types.is_decimal256(kind) else kind
    if types.is_dictionary(kind):
        # Categories inside lists are decoded: old engines mix them up where a list does not begin at 0.
        return _held(kind.value_type)
    if types.is_struct(kind) and len({fold_case(field.name) for field in kind}) < max(1, kind.num_fields):
        return None  # without fields; or the engine returns the first of two
    if any(test(kind) for test in (types.is_interval, types.is_union, types.is_run_end_encoded)):
        return None
    return _REPLACED.get(kind) or with_children(kind, _held)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return without_views(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _plain(array: pa.Array) -> pa.Array:
    """The values behind a dictionary or an extension."""
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    if isinstance(array, pa.DictionaryArray):
        values = array.dictionary.cast(_plain_type(array.type))
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    return array


def engine_schema(columns: Iterable[EngineColumn]) -> pa.Schema:
    """The columns as the engine sees them."""
    # A column of an unsupported type is shown as text; reading it raises the error.
    return pa.schema([pa.field(column.name, column.held or pa.string()) for column in columns])


def fields_in(expression: Any, names: Sequence[str]) -> list[str]:
    """The columns an Arrow expression may name: it has no way to list them, so its text is searched."""
    text = "" if expression is None else str(expression)
    return list(names) if names_by_place(text) else [name for name in names if name in text]


def names_by_place(text: str) -> bool:
    """Whether an Arrow expression, given as text, may name columns by their numbers, those of the whole table."""
    return "FieldPath(" in text


MAX_BYTES = 1 << 30
"""What is brought into memory at once unless a caller allows more."""


def collect_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, what: str, max_rows: int | None, max_bytes: int
) -> pa.Table:
    """Batches as one table; reading stops as soon as they exceed the limits."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if (max_rows is not None and rows > max_rows) or size > max_bytes:
            raise TooLargeError(f"{what} has at least {rows} rows in {size} bytes of memory")
        held.append(batch)
    return pa.Table.from_batches(held, schema)


def pandas_from(table: Any) -> Any:
    """An Arrow table as a pandas frame."""
    try:
        return table.to_pandas()
    except ImportError:
        raise MissingExtraError("pandas is not installed", hint="Run: pip install pandas") from None


def polars_from(table: Any) -> Any:
    """An Arrow table as a polars frame."""
    try:
        import polars
    except ImportError:
        raise MissingExtraError("polars is not installed", hint="Run: pip install polars") from None
    return polars.from_arrow(table)


ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)
"""Errors of pyarrow for damaged files and schemas."""
_TAIL_BYTES = 8
_MAX_FOOTER_BYTES = 256 << 20
_PARQUET_MAGIC = b"PAR1"


def read_tail(reader: RangeReader) -> bytes:
    """The footer of a parquet file with its length and magic."""
    if reader.size < 12:
        raise TruncatedError("too short for a parquet file", path=reader.name)
    guess = bytes(reader.read(max(0, reader.size - (64 << 10)), reader.size))
    if guess[-4:] != _PARQUET_MAGIC:
        raise CorruptLayoutError("not a parquet file", path=reader.name)
    size = int.from_bytes(guess[-8:-4], "little") + _TAIL_BYTES
    if size > min(reader.size, _MAX_FOOTER_BYTES):
        raise CorruptLayoutError("the parquet footer is larger than the file", path=reader.name)
    return guess[-size:] if size <= len(guess) else bytes(reader.read(reader.size - size, reader.size))


def parse_footer(tail: bytes, name: str) -> pq.FileMetaData:
    """The parsed footer of a parquet file."""
    try:
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(_PARQUET_MAGIC + tail)))
    except ARROW_ERRORS as error:
        raise CorruptLayoutError(f"damaged parquet footer ({first_line(error)})", path=name) from None


def schema_to_base64(schema: pa.Schema) -> str:
    """The Arrow IPC bytes of a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_base64(text: str) -> pa.Schema:
    """A schema from untrusted text."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, *ARROW_ERRORS) as error:
        raise ManifestCorruptedError(f"the Arrow schema is damaged ({first_line(error)})") from None


def schema_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    """The fields of a schema for people and programs without Arrow."""
    return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]


def first_line(error: Exception) -> str:
    """The first line of an error of Arrow, which may have many."""
    return str(error).split("\n")[0][:200] or type(error).__name__
