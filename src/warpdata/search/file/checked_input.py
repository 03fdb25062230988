"""What comes into a store: vectors, ids and metadata, checked before anything is written."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.formats.rvf.layout import MAX_DIM, MAX_ID

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
Metadata = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

_INTEGER_RANGES = {"i8": (-128, 127), "u8": (0, 255), "i4": (-8, 7), "binary": (0, 1)}
_FLOAT_MAX = {"f16": 65504.0, "bf16": 3.3895e38, "f32": float(np.finfo(np.float32).max)}


def check_dim(dim: int) -> int:
    """A dimension the format can hold, or ValueError."""
    if not isinstance(dim, int | np.integer) or isinstance(dim, bool) or not 1 <= dim <= MAX_DIM:
        raise ValueError(f"dim is between 1 and {MAX_DIM}, not {dim}")
    return int(dim)


def whole_number(value: int, name: str) -> int:
    """A whole number as Python's own: numpy's cannot be sent or stored."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {value!r}") from None


def checked_matrix(vectors: ArrayLike, dim: int, what: str = "vectors") -> Floats:
    """Vectors as a matrix of finite f32, or ValueError; one vector becomes a matrix of one row."""
    array = as_array(vectors)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise ValueError(f"{what} are numbers, not {array.dtype}")
    if array.ndim == 1:
        array = array[None] if array.size else array.reshape(0, dim)
    if array.ndim != 2 or array.shape[1] != dim:
        raise ValueError(f"{what} have {dim} dimensions each, not shape {array.shape}")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(matrix).all():
        raise ValueError(f"{what} hold NaN, infinity or numbers beyond f32")
    return matrix


def check_fits(matrix: Floats, dtype: str) -> None:
    """Whether values can be stored as `dtype`: floats within range, integers exactly."""
    if not matrix.size:
        return
    if dtype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[dtype]
        if (matrix != np.rint(matrix)).any() or matrix.min() < low or matrix.max() > high:
            raise ValueError(f"a store of {dtype} holds integers from {low} to {high}; quantise others")
    elif dtype != "f32" and np.abs(matrix).max() > _FLOAT_MAX[dtype]:
        raise ValueError(f"a value is too large for {dtype}")


def checked_ids(ids: ArrayLike, count: int | None = None) -> Ids:
    """Ids as u64, each once, below 2**63, or ValueError."""
    ids = as_array(ids) if hasattr(ids, "detach") else ids  # a tensor, with gradients perhaps
    array = np.atleast_1d(np.asarray(ids))
    if array.dtype.kind == "f" and not isinstance(ids, np.ndarray) and array.size:
        array = np.atleast_1d(np.array(ids, object))
    if array.size == 0:
        array = array.astype(np.uint64)
    if array.dtype.kind == "O" and all(isinstance(each, int) for each in array.ravel().tolist()):
        raise ValueError("ids are between 0 and 2**63 - 1")  # too large for numpy
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"ids are a list of integers, not {array.dtype} of shape {array.shape}")
    if count is not None and len(array) != count:
        raise ValueError(f"{len(array)} ids for {count} vectors")
    if array.size and (int(array.min()) < 0 or int(array.max()) > MAX_ID):
        raise ValueError("ids are between 0 and 2**63 - 1")
    return array.astype(np.uint64)


def check_unique(ids: Ids) -> None:
    """Within one call an id may appear once: which of two vectors would win?"""
    if len(ids) > 1:
        ordered = ids if (ids[1:] > ids[:-1]).all() else np.sort(ids)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            raise ValueError(f"the id {ordered[twice[0]]} appears twice in one call")


def metadata_rows(metadata: Metadata | None, count: int) -> list[Mapping[str, Any]] | None:
    """Metadata as one mapping per vector; columns of equal length are taken too."""
    if metadata is None:
        return None
    if isinstance(metadata, Mapping):
        for name, values in metadata.items():
            if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                fact = f"the metadata column {name!r} is a list with one value per vector"
                raise TypeError(f"{fact}, not {values!r:.40}")
        columns = {name: list(values) for name, values in metadata.items()}
        wrong = [name for name, values in columns.items() if len(values) != count]
        if wrong:
            raise ValueError(f"the metadata column {wrong[0]!r} has not one value per vector ({count})")
        return [{name: values[row] for name, values in columns.items()} for row in range(count)]
    rows = list(metadata)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} metadata records for {count} vectors")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a metadata record is a mapping, not {type(row).__name__}")
    return rows
