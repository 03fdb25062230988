"""What may be recorded: any value is either understood at the first look, or refused there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import DTYPE_NAMES, dtype_of
from warpdata.errors import RecordingError, SchemaMismatchError, TimestampOrderError, WriterClosedError
from warpdata.formats.episodedir.images import FrameShape
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.meta import numeric_kind
from warpdata.timeline.times import INT64_MAX, INT64_MIN, as_int

MAX_EVENT_BYTES = 256 << 20
MAX_VALUE_BYTES = 1 << 30
BEGIN, CLOSED = INT64_MIN - 1, INT64_MAX + 1
"""The last time of a lane before its first record, and once it takes no more."""

_KNOWN = ", ".join(DTYPE_NAMES)


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller said about a signal before its first value."""

    kind: str | None = None
    units: str | None = None
    names: tuple[str, ...] | None = None
    """One per element of a vector, one per axis of a tensor or an image."""

    @classmethod
    def of(cls, kind: str | None, units: Any, names: Any) -> Hints:
        """Hints from whatever a caller passed, checked."""
        if units is not None and not isinstance(units, str):
            raise TypeError(f"units are a string, not {type(units).__name__}")
        chosen = None if names is None else tuple(names)
        if isinstance(names, str) or any(not isinstance(each, str) for each in chosen or ()):
            raise TypeError("names are a sequence of strings")
        return cls(kind, units, chosen)


def describe(data: Any, hints: Hints) -> Description:
    """What a first value makes of its signal; a value that cannot be stored is a TypeError or ValueError."""
    if isinstance(data, str | bytes | bytearray | memoryview):
        kind = "text" if isinstance(data, str) else "bytes"
        as_event(data, kind, "new signal")
        return Description(kind, kind, (), hints.units)
    array = as_numbers(data)
    if hints.names is not None and len(hints.names) != (array.size if array.ndim == 1 else array.ndim):
        raise SchemaMismatchError(f"{len(hints.names)} names for a value of shape {array.shape}")
    kind = _kind(array, hints.kind)
    return Description(kind, dtype_of(array.dtype).name, array.shape, hints.units, hints.names)


def _kind(array: NDArray[Any], wanted: str | None) -> str:
    looks_like_image = (array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8) or (
        array.ndim == 2 and array.dtype in (np.uint8, np.uint16)
    )
    if wanted == "image" or (wanted is None and looks_like_image):
        FrameShape.of(array)
        return "image"
    natural = numeric_kind(array.shape)
    if wanted not in (None, natural, "tensor"):
        raise SchemaMismatchError(f"a value of shape {array.shape} is a {natural}, not a {wanted}")
    return wanted or natural


def as_numbers(data: Any) -> NDArray[Any]:
    """A number or an array of numbers as a little-endian array of one of the thirteen types."""
    if isinstance(data, int) and not isinstance(data, bool) and not INT64_MIN <= data <= INT64_MAX:
        raise ValueError(f"{data} does not fit in 64 bits")
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError("a masked array cannot be recorded: what lies under its mask would become values")
    try:
        array = np.asarray(data)
    except (ValueError, TypeError) as error:
        raise TypeError(f"a {type(data).__name__} cannot be recorded ({error})") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    try:
        dtype_of(array.dtype)
    except ValueError:
        raise TypeError(
            f"a {type(data).__name__} of {array.dtype} cannot be recorded; use str, bytes or one of {_KNOWN}"
        ) from None
    if array.size == 0:
        raise ValueError("an array without elements cannot be recorded")
    if array.nbytes > MAX_VALUE_BYTES:
        raise ValueError(f"a value of {array.nbytes} bytes is too large; at most {MAX_VALUE_BYTES}")
    return array


def as_event(data: Any, kind: str, name: str) -> bytes:
    """Text or bytes as the bytes that are stored."""
    if kind == "text":
        if not isinstance(data, str):
            raise mismatch(name, "text", type(data).__name__)
        try:
            packed = data.encode()
        except UnicodeEncodeError:
            raise ValueError(f"signal {name!r}: the text is not valid Unicode") from None
    elif isinstance(data, bytes | bytearray | memoryview):
        packed = bytes(data)
    else:
        raise mismatch(name, "bytes", type(data).__name__)
    if len(packed) > MAX_EVENT_BYTES:
        raise ValueError(f"signal {name!r}: an event of {len(packed)} bytes is too large")
    return packed


def as_timestamp(ts_ns: Any) -> int:
    """A time as a Python integer that an int64 can hold."""
    number = as_int(ts_ns, "a timestamp")
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"timestamp {number} does not fit in 64 bits")
    return number


def refused(name: str, ts_ns: int, last: int) -> RecordingError:
    """The error for a time at or before the last one; after a lane is closed no time is late enough."""
    if last >= CLOSED:
        return WriterClosedError(f"signal {name!r} is closed")
    return TimestampOrderError(
        f"signal {name!r}: timestamp {ts_ns} is not increasing; the last one is {last}"
    )


def mismatch(name: str, expected: str, got: str) -> SchemaMismatchError:
    """The error for a value of another type or shape."""
    return SchemaMismatchError(f"signal {name!r} holds {expected}, not {got}")
