"""Rows taken out of Arrow tables of any type. One of the adapters of pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Positions = NDArray[np.int64]


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
    try:
        return column.take(at)
    except pa.ArrowNotImplementedError:
        pass
    # Arrow cannot take from strings that are views: it can from the same strings in one piece.
    try:
        whole = without_views(column.type)
        return cast_column(cast_column(column, whole).take(at), column.type)
    except pa.ArrowNotImplementedError:
        return _joined_runs(column, positions)


def _joined_runs(column: pa.ChunkedArray, positions: Positions) -> pa.ChunkedArray:
    """Slices put together: slow, but every type can be sliced."""
    borders = np.flatnonzero(np.diff(positions) != 1) + 1
    pieces: list[Any] = []
    for run in np.split(positions, borders):
        pieces += column.slice(int(run[0]), len(run)).chunks
    return pa.chunked_array([pa.concat_arrays(pieces)], column.type)


def without_views(kind: pa.DataType) -> pa.DataType:
    """The same type with strings and bytes in one piece."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_views(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(without_views(kind.key_type), without_views(kind.item_type), kind.keys_sorted)
    return _list_without_views(kind) if hasattr(kind, "value_field") else kind


def _list_without_views(kind: pa.DataType) -> pa.DataType:
    child = without_views(kind.value_type)
    return kind if child == kind.value_type else list_of(kind, child)


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
        return _cast_struct(array, kind)
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


def _cast_struct(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
    """Its fields in other types, in the order of `kind`; a field that it has not is null."""
    names, wanted = ([field.name for field in each] for each in (array.type, kind))
    places = (
        range(len(names)) if names == wanted else [names.index(n) if n in names else None for n in wanted]
    )
    children = [
        pa.nulls(len(array), field.type) if place is None else _cast(array.field(place), field.type)
        for place, field in zip(places, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
