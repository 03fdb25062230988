"""Arrow columns as arrays whose type follows from the schema alone. One of the adapters of pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.errors import DatasetError, require_word

Array = npt.NDArray[Any]
NULLS = ("error", "mask")


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValues:
    """The values of a column, and which of them are there; lists of different lengths are one array each."""

    values: Array | list[Array]
    valid: Array
    """Of the shape of `values`; for lists of different lengths one per row."""


def check_nulls(nulls: str, names: Sequence[str]) -> None:
    """Refuse a way to treat nulls that there is not, and columns that bear the names of masks."""
    require_word("nulls", nulls, NULLS)
    for name in names if nulls == "mask" else ():
        if mask_of(name) in names:
            fact = f"column {mask_of(name)!r} has the name of the mask of column {name!r}"
            raise ValueError(f"{fact}: choose the columns without it")


def mask_of(name: str) -> str:
    """What the mask of a column is called."""
    return f"{name}.valid"


def numbers_of(column: pa.Array, name: str, nulls: str) -> ColumnValues | None:
    """A column of numbers, or of lists of them, as arrays of its own type; None for any other column.

    A null is NaN in a column of floats; in any other it is an error, or with `nulls="mask"` a 0 that is not valid.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        is_bool = kind.extension_name == "arrow.bool8"
        found = numbers_of(pc.not_equal(column.storage, 0) if is_bool else column.storage, name, nulls)
        shape = getattr(kind, "shape", None)
        if found is None or shape is None or isinstance(found.values, list):
            return found
        axes = (0, *(axis + 1 for axis in kind.permutation or range(len(shape))))
        whole = (len(column), *shape)
        return ColumnValues(
            found.values.reshape(whole).transpose(axes), found.valid.reshape(whole).transpose(axes)
        )
    if pa.types.is_dictionary(kind):
        return numbers_of(column.dictionary_decode(), name, nulls) if _is_number(kind.value_type) else None
    if _is_number(kind):
        return _flat(column, name, nulls)
    if pa.types.is_fixed_size_list(kind):
        while pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        return _fixed(column, name, nulls) if _is_number(kind) else None
    if _is_list(kind) and _is_number(kind.value_type):
        return _ragged(column, name, nulls)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(check(kind) for check in kinds)


def _flat(column: pa.Array, name: str, nulls: str) -> ColumnValues:
    valid = np.ones(len(column), np.bool_)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if nulls == "mask":
            zero = np.zeros((), numpy_dtype(column.type))[()]
            column = pc.if_else(column.is_valid(), column, pa.scalar(zero, column.type))
        elif not pa.types.is_floating(column.type):
            raise _null_error(column.type, name)
    dtype = numpy_dtype(column.type)
    return ColumnValues(np.asarray(column.to_numpy(zero_copy_only=False), dtype), valid)


def _fixed(column: pa.Array, name: str, nulls: str) -> ColumnValues:
    """Lists of one length; those that are null have values too, which mean nothing."""
    size, rows = column.type.list_size, len(column)
    inner = column.values.slice(column.offset * size, rows * size)
    if column.null_count:
        if nulls == "error":
            raise _null_error(column.type, name)
        valid = column.is_valid()
        places = pa.array(np.repeat(valid.to_numpy(zero_copy_only=False), size))
        inner = pc.if_else(places, inner, pa.scalar(None, inner.type))
    found = numbers_of(inner, name, nulls)
    assert found is not None
    assert not isinstance(found.values, list)
    shape = (rows, size, *found.values.shape[1:])
    return ColumnValues(found.values.reshape(shape), found.valid.reshape(shape))


def _ragged(column: pa.Array, name: str, nulls: str) -> ColumnValues:
    """Lists of any length: a matrix where all have the same, else one array per row."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all() and nulls == "error":
        raise _null_error(column.type, name)
    inner = column.flatten()
    if nulls == "mask" and inner.null_count and not pa.types.is_floating(inner.type):
        fact = f"column {name!r} of {column.type} has a null inside a list, for which there is no mask"
        raise DatasetError(fact, hint="Leave the rows out with filter, or choose other columns.")
    flat = _flat(inner, name, "error").values
    assert not isinstance(flat, list)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if valid.all() and len(lengths) and (lengths == lengths[0]).all():
        matrix = flat.reshape(len(column), int(lengths[0]))
        return ColumnValues(matrix, np.ones(matrix.shape, np.bool_))
    return ColumnValues(np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else [], valid)


def _null_error(kind: pa.DataType, name: str) -> DatasetError:
    return DatasetError(
        f"column {name!r} of {kind} has a null, which a tensor of it cannot hold",
        hint='Ask for nulls="mask", leave the rows out with filter, or choose other columns.',
    )
