"""The thirteen element types, by short name and by numpy dtype. The adapter of ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from warpdata.errors import nearest

_NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype("<f8"),
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype("<i8"),
    "i32": np.dtype("<i4"),
    "i16": np.dtype("<i2"),
    "i8": np.dtype("i1"),
    "u64": np.dtype("<u8"),
    "u32": np.dtype("<u4"),
    "u16": np.dtype("<u2"),
    "u8": np.dtype("u1"),
    "bool": np.dtype("?"),
}

DTYPE_NAMES = tuple(_NUMPY)


class DType:
    """One of the thirteen element types; equal to its short name and to its numpy dtype."""

    __slots__ = ("dtype", "name")

    name: str
    dtype: np.dtype[Any]

    def __init__(self, name: str) -> None:
        if name not in _NUMPY:
            known = ", ".join(DTYPE_NAMES)
            raise ValueError(
                f"unknown dtype {name!r}; the thirteen are {known}.{nearest(str(name), DTYPE_NAMES)}"
            )
        self.name = name
        self.dtype = _NUMPY[name]  # numpy finds this attribute, so np.zeros(3, dtype=DType("f32")) works

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str) and other == self.name:
            return True
        try:
            return bool(self.dtype == other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DType, (self.name,))


_BY_NAME = {name: DType(name) for name in DTYPE_NAMES}
_BY_NUMPY = {numpy: _BY_NAME[name] for name, numpy in _NUMPY.items()}


def dtype_named(name: str) -> DType:
    """The dtype with this short name, or ValueError."""
    found = _BY_NAME.get(name)
    return DType(name) if found is None else found


def dtype_of(dtype: object) -> DType:
    """The dtype for a short name, a DType or a little-endian numpy dtype."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        found = _BY_NUMPY.get(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None:
        near = nearest(str(dtype), [*DTYPE_NAMES, *map(str, _BY_NUMPY)])
        raise ValueError(
            f"no such element type: {dtype!r}; use one of {', '.join(DTYPE_NAMES)} in little-endian order.{near}"
        )
    return found
