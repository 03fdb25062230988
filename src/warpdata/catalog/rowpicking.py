"""Rows taken out of Arrow tables of any type. One of the doors of pyarrow."""

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
        return column.cast(whole).take(at).cast(column.type)
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
    if types.is_fixed_size_list(kind):
        return pa.list_(_child(kind), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_child(kind))
    return pa.list_(_child(kind)) if types.is_list(kind) else kind


def _child(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(without_views(kind.value_type))
