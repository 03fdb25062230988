"""Element types, arrays, buffers and indices. The adapter of ml_dtypes."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warpdata.errors import nearest

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
        return (type(self), (self.name,))


_BY_NAME = {name: DType(name) for name in DTYPE_NAMES}
_BY_NUMPY = {numpy: _BY_NAME[name] for name, numpy in _NUMPY.items()}


def dtype_named(name: str) -> DType:
    """The dtype with this short name, or ValueError."""
    dtype = _BY_NAME.get(name)
    return DType(name) if dtype is None else dtype


def dtype_of(dtype: object) -> DType:
    """The dtype for a short name, a DType or a little-endian numpy dtype."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        known = _BY_NUMPY.get(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError:
        known = None
    if known is None:
        near = nearest(str(dtype), [*DTYPE_NAMES, *map(str, _BY_NUMPY)])
        raise ValueError(
            f"no such element type: {dtype!r}; use one of {', '.join(DTYPE_NAMES)} in little-endian order.{near}"
        )
    return known


def byte_view(data: Buffer | NDArray[Any]) -> memoryview:
    """The bytes of a contiguous buffer or array as a flat view; bf16 and empty arrays included."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("only a C-contiguous array can be seen as bytes")
        return data.reshape(-1).view(np.uint8).data if data.size else memoryview(b"")
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def align_up(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` at or after `offset`; an alignment of 0 or 1 means none."""
    if alignment <= 1:
        return offset
    return -(-offset // alignment) * alignment


def padding_to(offset: int, alignment: int) -> bytes:
    """The zero bytes that bring `offset` to the next multiple of `alignment`."""
    return bytes(align_up(offset, alignment) - offset)


def as_array(value: Any) -> NDArray[Any]:
    """`value` as an array, without a copy where possible; ValueError where it is no array.

    Tensors with a gradient or on a device are accepted, bf16 keeps its bits, and the byte order becomes native.
    """
    masked = sys.modules.get("numpy.ma")  # loading it takes as long as storing a thousand values
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise ValueError("a masked array: masked entries would become values")
    try:
        is_tensor = not isinstance(value, np.ndarray) and hasattr(value, "detach") and hasattr(value, "cpu")
        array = np.asarray(_tensor_values(value) if is_tensor else value)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"not an array ({error})") from None


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of an array; the array itself if it is read-only."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _tensor_values(tensor: Any) -> Any:
    plain = tensor.detach().cpu()
    if str(plain.dtype) != "torch.bfloat16":
        return plain.numpy()
    wide = np.ascontiguousarray(plain.float().numpy())
    # A bf16 is the upper half of the f32 it widens to: taking that half back loses no bit, not even of a NaN.
    return (wide.view(np.uint32) >> 16).astype(np.uint16).view(dtype_named("bf16").dtype)


ReadRows = Callable[[int, int], NDArray[Any]]
"""Rows [start, end) as an array; both inside."""

BringRows = Callable[[NDArray[np.int64]], None]
"""Called with rows that will be read in several stretches, so that all can be fetched at the same time."""

GAP_BYTES = 256 << 10
"""Rows closer together than this are read as one stretch."""


class InvalidIndexError(IndexError, TypeError, ValueError):
    """A key that chooses nothing here: an IndexError as in numpy, a TypeError or ValueError as in Python."""


def select_rows(
    key: Any, shape: tuple[int, ...], read: ReadRows, itemsize: int, bring: BringRows | None = None
) -> Any:
    """What `array[key]` is for an array of this shape of which `read` gives rows."""
    count = shape[0]
    if type(key) is slice and (key.step is None or key.step == 1):
        start, stop, _ = key.indices(count)
        return read(start, max(start, stop))
    if type(key) is int:
        row = _wrapped(key, count)
        return read(row, row + 1)[0]
    given = key if isinstance(key, tuple) else (key,)
    parts = [_key_array(part) if isinstance(part, list | tuple) else part for part in given]
    at = next((at for at, part in enumerate(parts) if part is not None), len(parts))
    chosen = _rows_of(parts[at], count) if at < len(parts) else None
    if chosen is None:
        np.broadcast_to(np.False_, shape)[tuple(parts)]  # an error costs no reading
        return read(0, count)[tuple(parts)]
    gap_rows = GAP_BYTES // max(1, itemsize * math.prod(shape[1:]))
    if isinstance(chosen, int):
        rows, parts[at] = read(chosen, chosen + 1), 0
    elif isinstance(chosen, np.ndarray):
        rows, parts[at] = _picked(chosen, read, gap_rows, bring)
    elif not chosen:
        rows, parts[at] = read(0, 0), slice(None)
    elif abs(chosen.step) > gap_rows + 1:
        forward = np.sort(np.array(chosen))
        rows = _gathered(forward, read, gap_rows, bring)
        parts[at] = slice(None, None, 1 if chosen.step > 0 else -1)
    else:
        rows = read(min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1)
        parts[at] = slice(None, None, chosen.step)
    return rows[tuple(parts)]


def _rows_of(part: Any, count: int) -> int | range | NDArray[np.int64] | None:
    """The rows that a part of a key chooses along the first axis; None where it is read whole to find out."""
    if isinstance(part, slice):
        return range(count)[part]
    array = _key_array(part)
    if array.dtype.kind == "b" and array.shape == (count,):
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu":
        return None
    return _all_wrapped(array, count) if array.ndim else _wrapped(int(array), count)


def _key_array(part: Any) -> NDArray[Any]:
    try:
        array = np.asarray(part)
    except (TypeError, ValueError) as error:
        raise InvalidIndexError(f"{part!r:.40} ({type(part).__name__}) is no key ({error})") from None
    # An empty list has no dtype; numpy takes it for integers.
    return array if array.size or isinstance(part, np.ndarray) else array.astype(np.intp)


def resolve_index(key: Any, count: int, what: str) -> int | range | NDArray[np.int64]:
    """Which of `count` records a key names: one, a slice of them, or a flat list of positions in any order.

    Boolean masks, several axes and new ones are refused: a sequence of records has none of them.
    """
    if type(key) is int:
        return _wrapped(key, count, what)
    if isinstance(key, tuple):
        if len(key) > 1:
            raise IndexError(f"{len(key)} indices where there is one axis of {what}s; a list chooses several")
        key = key[0] if key else Ellipsis
    if key is Ellipsis:
        key = slice(None)
    if isinstance(key, slice):
        try:
            if any(isinstance(bound, bool | np.bool_) for bound in (key.start, key.stop, key.step)):
                raise TypeError("bounds are integers, not truths")
            return range(count)[key]
        except (TypeError, ValueError) as error:
            raise InvalidIndexError(f"no slice of {what}s: {error}") from None
    if not isinstance(key, bool) and not isinstance(key, np.ndarray) and hasattr(key, "__index__"):
        with contextlib.suppress(TypeError):  # tensors of several numbers have it too
            return _wrapped(operator.index(key), count, what)
    array = _key_array(key)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        fact = f"{key!r:.40} ({type(key).__name__}) names no {what}"
        raise InvalidIndexError(f"{fact}: use an integer, a slice or a flat list of integers")
    return _all_wrapped(array, count, what) if array.ndim else _wrapped(int(array), count, what)


def _picked(
    wanted: NDArray[np.int64], read: ReadRows, gap_rows: int, bring: BringRows | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Rows that hold all that is wanted, and where in them each is."""
    if not wanted.size:
        return read(0, 0), wanted
    low, high = int(wanted.min()), int(wanted.max())
    if high - low <= gap_rows:
        return read(low, high + 1), wanted - low
    rows, places = np.unique(wanted, return_inverse=True)
    return _gathered(rows, read, gap_rows, bring), places.reshape(wanted.shape)


def _gathered(
    rows: NDArray[np.int64], read: ReadRows, gap_rows: int, bring: BringRows | None
) -> NDArray[Any]:
    """These ascending rows and no others, read in as few stretches as the gaps between them allow."""
    cuts = (np.flatnonzero(np.diff(rows) > gap_rows + 1) + 1).tolist()
    if cuts and bring is not None:
        bring(rows)
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = rows[start:end]
        low, high = int(part[0]), int(part[-1]) + 1
        stretch = read(low, high)
        pieces.append(stretch if len(part) == high - low else stretch[part - low])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _wrapped(index: int, count: int, what: str = "row") -> int:
    if not -count <= index < count:
        raise IndexError(f"{what} {index} of {count}")
    return index + count if index < 0 else index


def _all_wrapped(indices: NDArray[Any], count: int, what: str = "row") -> NDArray[np.int64]:
    """Negative positions counted from the end; anything outside is an IndexError."""
    if indices.size and not -count <= (low := int(indices.min())) <= (high := int(indices.max())) < count:
        raise IndexError(f"{what} {low if low < -count else high} of {count}")
    rows = indices.astype(np.int64, copy=False)
    return np.where(rows < 0, rows + count, rows)
