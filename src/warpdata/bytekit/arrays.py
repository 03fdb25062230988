"""Element types, arrays, buffers and indices. The adapter of ml_dtypes."""

from __future__ import annotations

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
    parts = [_plain(part) for part in (key if isinstance(key, tuple) else (key,))]
    at = _part_of_first_axis(parts, len(shape))
    if at is None:
        return read(0, count)[tuple(parts)]
    gap_rows = GAP_BYTES // max(1, itemsize * math.prod(shape[1:]))
    rows, parts[at : at + 1] = _first_axis(parts[at], shape, read, gap_rows, bring)
    return rows[tuple(parts)]


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
        _check_bounds(key, what)
        return range(count)[key]
    part = _plain(key)
    if isinstance(part, int) and not isinstance(part, bool):
        return _wrapped(part, count, what)
    if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind == "b":
        raise InvalidIndexError(
            f"{_said(key)} names no {what}: use an integer, a slice or a flat list of integers"
        )
    return _all_wrapped(part, count, what)


def _plain(part: Any) -> Any:
    """One part of a key in a form whose kind can be seen: None, Ellipsis, bool, slice, int or array."""
    if part is None or part is Ellipsis or isinstance(part, slice | bool):
        return part
    if isinstance(part, np.ndarray):
        array = part
    else:
        try:
            return bool(part) if isinstance(part, np.bool_) else operator.index(part)
        except TypeError:
            array = _as_array(part)
    if array.dtype.kind not in "biu":
        raise InvalidIndexError(
            f"{_said(part)} is no key: use integers, slices, ..., None or arrays of int or bool"
        )
    return array if array.ndim else array.item()


def _as_array(part: Any) -> NDArray[Any]:
    try:
        array = np.asarray(part)
    except (TypeError, ValueError) as error:
        raise InvalidIndexError(f"{_said(part)} is no key ({error})") from None
    # An empty list has no dtype; numpy takes it for integers.
    return array if array.size else array.astype(np.intp)


def _part_of_first_axis(parts: list[Any], axes: int) -> int | None:
    """Which part of a key chooses along the first axis; None where all of it is kept."""
    taken = [_axes_taken(part) for part in parts]
    spare = axes - sum(taken)
    if spare < 0:
        raise IndexError(f"{sum(taken)} indices for an array of {axes} axes")
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("a key has at most one '...'")
    for at, part in enumerate(parts):
        if taken[at]:
            return at
        if part is Ellipsis and spare:
            return None
    return None


def _axes_taken(part: Any) -> int:
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


def _first_axis(
    part: Any, shape: tuple[int, ...], read: ReadRows, gap_rows: int, bring: BringRows | None
) -> tuple[NDArray[Any], list[Any]]:
    """The rows one part of a key needs, and the parts that choose from those rows what it chose from all."""
    count = shape[0]
    if isinstance(part, int):
        row = _wrapped(part, count)
        return read(row, row + 1), [0]
    if isinstance(part, slice):
        rows, back = range(count)[part], slice(None, None, -1)
        forward = rows if rows.step > 0 else rows[::-1]
        if not rows:
            return read(0, 0), [slice(None)]
        if forward.step > gap_rows + 1:
            found = _gathered(np.arange(forward.start, forward.stop, forward.step), read, gap_rows, bring)
            return found, [slice(None) if rows.step > 0 else back]
        return read(forward[0], forward[-1] + 1), [slice(None, None, rows.step)]
    if part.dtype.kind == "b":
        # As in numpy, a mask without any element fits every axis.
        if any(size not in (0, axis) for size, axis in zip(part.shape, shape, strict=False)):
            raise IndexError(f"a mask of shape {part.shape} for an array of shape {shape}")
        wanted, *others = np.nonzero(part)
    else:
        wanted, others = _all_wrapped(part, count), []
    found, places = _picked(wanted, read, gap_rows, bring)
    return found, [places, *others]


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
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = rows[start:end]
        low, high = int(part[0]), int(part[-1]) + 1
        stretch = read(low, high)
        found.append(stretch if len(part) == high - low else stretch[part - low])
    return found[0] if len(found) == 1 else np.concatenate(found)


def _check_bounds(key: slice, what: str) -> None:
    for bound in (key.start, key.stop, key.step):
        if bound is None:
            continue
        if isinstance(bound, bool | np.bool_) or not hasattr(bound, "__index__"):
            raise InvalidIndexError(f"a slice of {what}s from {_said(bound)}: its bounds must be integers")
        try:
            operator.index(bound)
        except TypeError:
            raise InvalidIndexError(
                f"a slice of {what}s from {_said(bound)}: its bounds must be integers"
            ) from None
    if key.step is not None and operator.index(key.step) == 0:
        raise InvalidIndexError("the step of a slice cannot be zero")


def _wrapped(index: int, count: int, what: str = "row") -> int:
    if not -count <= index < count:
        raise IndexError(f"{what} {index} of {count}")
    return index + count if index < 0 else index


def _all_wrapped(indices: NDArray[Any], count: int, what: str = "row") -> NDArray[np.int64]:
    """Negative positions counted from the end; anything outside is an IndexError."""
    if indices.size and not -count <= (low := int(indices.min())) <= (high := int(indices.max())) < count:
        raise IndexError(f"{what} {low if low < -count else high} of {count}")
    found = indices.astype(np.int64, copy=False)
    return np.where(found < 0, found + count, found)


def _said(value: Any) -> str:
    """What was given, in few words."""
    return f"{value!r:.40} ({type(value).__name__})"
