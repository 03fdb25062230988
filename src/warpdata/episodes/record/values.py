"""What may be recorded: any value is either understood at the first look, or refused there."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DTYPE_NAMES, DType, as_array, dtype_of
from warpdata.errors import RecordingError, SchemaMismatchError, TimestampOrderError, WriterClosedError
from warpdata.formats.episodedir.images import FrameShape
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.meta import ABOUT_OTHERS, Role, as_kind, as_role, guess_role, numeric_kind
from warpdata.timeline.times import INT64_MAX, INT64_MIN, as_int

MAX_EVENT_BYTES = 256 << 20
MAX_VALUE_BYTES = 1 << 30
BEGIN, CLOSED = INT64_MIN - 1, INT64_MAX + 1
"""The last time of a signal before its first record, and once it takes no more."""

_USER_LEVEL = 7
"""Frames between a warning here and the call of `append`."""
_KNOWN = ", ".join(DTYPE_NAMES)


@dataclass(frozen=True, slots=True)
class Hints:
    """What was declared of a signal before its first value."""

    kind: str | None = None
    units: str | None = None
    names: tuple[str, ...] | None = None
    """One per element of a vector, one per axis of a tensor or an image."""
    dtype: DType | None = None
    """What every value is converted to."""
    role: Role | None = None
    of: str | None = None
    model: str | None = None
    clock: str | None = None

    @classmethod
    def of_caller(
        cls,
        *,
        kind: str | None = None,
        units: Any = None,
        names: Any = None,
        dtype: Any = None,
        role: str | None = None,
        of: str | None = None,
        model: str | None = None,
        clock: str | None = None,
    ) -> Hints:
        """Hints from the arguments of a call, checked."""
        for what, text in (("units", units), ("of", of), ("model", model), ("clock", clock)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what}: a string, not {type(text).__name__}")
        chosen_role = None if role is None else as_role(role)
        if (of is not None or model is not None) and chosen_role not in ABOUT_OTHERS:
            raise ValueError(f"of= and model= go with the roles {', '.join(ABOUT_OTHERS)}")
        chosen = None if names is None else tuple(names)
        if isinstance(names, str) or any(not isinstance(each, str) for each in chosen or ()):
            raise TypeError("names are a sequence of strings")
        return cls(
            None if kind is None else as_kind(kind), units, chosen, None if dtype is None else dtype_of(dtype),
            chosen_role, of, model, clock,
        )  # fmt: skip

    def describe(self, name: str, kind: str, dtype: str, shape: tuple[int, ...]) -> Description:
        """The description of a signal of this name; without a declared role, it is guessed from the name."""
        names = None if kind in ("text", "bytes") else self.names
        if self.role is None:
            guess = guess_role(name, kind)
            return Description(
                kind, dtype, shape, self.units, names, guess.role, guess.of, guess.model, self.clock
            )
        return Description(kind, dtype, shape, self.units, names, self.role, self.of, self.model, self.clock)


def describe(name: str, data: Any, hints: Hints) -> Description:
    """What a first value makes of its signal; a value that cannot be stored is a TypeError or ValueError."""
    if isinstance(data, str | bytes | bytearray | memoryview):
        kind = "text" if isinstance(data, str) else "bytes"
        as_event(data, kind, "new signal")
        if hints.dtype is not None:
            raise SchemaMismatchError(f"signal {name!r} was declared as {hints.dtype}, not as {kind}")
        return hints.describe(name, kind, kind, ())
    array = as_numbers(data)
    if hints.dtype is not None:
        array = as_declared(name, array, hints.dtype)
    if hints.names is not None and len(hints.names) != (array.size if array.ndim == 1 else array.ndim):
        raise SchemaMismatchError(f"{len(hints.names)} names for a value of shape {array.shape}")
    return hints.describe(name, _kind(name, array, hints.kind), dtype_of(array.dtype).name, array.shape)


def as_declared(name: str, array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """A value as the type its signal was declared with; a float never becomes an integer or infinite in silence."""
    if array.dtype != dtype.dtype:
        is_whole = array.dtype.kind in "biu"
        if not is_whole and dtype.dtype.kind in "biu":
            raise mismatch(name, str(dtype), str(array.dtype))
        with np.errstate(over="ignore"):
            converted = array.astype(dtype.dtype)
        fits = (
            np.array_equal(converted.astype(array.dtype), array)
            if is_whole
            else np.array_equal(np.isfinite(converted), np.isfinite(array))
        )
        if not fits:
            raise SchemaMismatchError(f"signal {name!r}: {array.tolist()} does not fit in {dtype}")
        return converted
    return array


def _resembles_image(array: NDArray[Any]) -> bool:
    is_rgba = array.ndim == 3 and array.shape[2] == 4 and array.dtype == np.uint8
    is_deep = array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype == np.uint16
    return (is_rgba or is_deep) and min(array.shape[:2]) >= 16


def _kind(name: str, array: NDArray[Any], wanted: str | None) -> str:
    looks_like_image = (array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8) or (
        array.ndim == 2 and array.dtype in (np.uint8, np.uint16)
    )
    if wanted == "image" or (wanted is None and looks_like_image):
        FrameShape.of(array)
        return "image"
    natural = numeric_kind(array.shape)
    if wanted is None and _resembles_image(array):
        warnings.warn(
            f"signal {name!r}: {array.dtype}{list(array.shape)} is stored as a tensor, without video encoding: "
            "images are uint8[H, W, 3], uint8[H, W] or uint16[H, W] (declare kind='tensor' to keep it so)",
            RuntimeWarning,
            stacklevel=_USER_LEVEL,
        )
    if wanted not in (None, natural, "tensor"):
        raise SchemaMismatchError(f"a value of shape {array.shape} is a {natural}, not a {wanted}")
    return wanted or natural


def as_numbers(data: Any) -> NDArray[Any]:
    """A number or an array of numbers as a little-endian array of one of the thirteen types."""
    if isinstance(data, int) and not isinstance(data, bool) and not INT64_MIN <= data <= INT64_MAX:
        raise ValueError(f"{data} does not fit in 64 bits")
    try:
        array = as_array(data)
    except ValueError as error:
        raise TypeError(f"a {type(data).__name__} cannot be recorded ({error})") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    try:
        dtype_of(array.dtype)
    except ValueError:
        raise TypeError(
            f"{type(data).__name__} (dtype {array.dtype}) cannot be recorded; use str, bytes or one of {_KNOWN}"
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
    return SchemaMismatchError(
        f"signal {name!r} holds {expected}, not {got}",
        hint=f"Declare the type before the first record: declare({name!r}, dtype=…).",
    )
