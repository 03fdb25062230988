"""Values and times of records: the description a first value gives its signal, checks of later ones, the clock."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DTYPE_NAMES, DType, as_array, dtype_named, dtype_of
from warpdata.errors import RecordingError, SchemaMismatchError, TimestampOrderError, WriterClosedError
from warpdata.formats.episodedir.documents import Description, FrameShape
from warpdata.formats.episodedir.layout import RAGGED_KINDS, SOUND_DTYPES
from warpdata.timeline.meta import ABOUT_OTHERS, Role, as_kind, as_role, guess_role, numeric_kind
from warpdata.timeline.times import INT64_MAX, INT64_MIN, as_int, checked_rate

MAX_EVENT_BYTES = 256 << 20
MAX_VALUE_BYTES = 1 << 30
BEGIN, CLOSED = INT64_MIN - 1, INT64_MAX + 1
"""The last time of a signal before its first record, and once it takes no more."""

_LEAST_SIDE = 16
"""RGBA and 16-bit colour with smaller sides are taken for numbers, unless declared as images."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Properties of a signal that were declared before its first value."""

    kind: str | None = None
    units: str | None = None
    names: tuple[str, ...] | None = None
    """One per element of a vector, one per axis of a tensor or an image."""
    dtype: DType | None = None
    """The type every value is converted to."""
    role: Role | None = None
    of: str | None = None
    model: str | None = None
    clock: str | None = None
    rate_hz: float | None = None
    """Of sound: samples in a second."""

    @classmethod
    def check(
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
        ragged: bool = False,
        rate_hz: float | None = None,
    ) -> Hints:
        """Hints from the arguments of a call; a TypeError or ValueError names the wrong one."""
        for what, text in (("units", units), ("of", of), ("model", model), ("clock", clock)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what}: expected a string, got {type(text).__name__}")
        known_role = None if role is None else as_role(role)
        if (of is not None or model is not None) and known_role not in ABOUT_OTHERS:
            raise ValueError(f"of= and model= go with the roles {', '.join(ABOUT_OTHERS)}")
        axes = None if names is None else tuple(names)
        if isinstance(names, str) or not all(isinstance(name, str) for name in axes or ()):
            raise TypeError("names are a sequence of strings")
        if ragged and kind not in (None, "ragged"):
            raise ValueError(f"ragged=True goes without kind={kind!r}")
        known_kind = "ragged" if ragged else None if kind is None else as_kind(kind)
        known_dtype = None if dtype is None else dtype_of(dtype)
        if (known_kind == "sound") != (rate_hz is not None):
            raise ValueError("kind='sound' and rate_hz= (samples in a second) go together")
        if known_kind == "sound" and known_dtype is not None and known_dtype.name not in SOUND_DTYPES:
            raise ValueError(f"sound is of {', '.join(SOUND_DTYPES)}, not of {known_dtype}")
        rate = None if rate_hz is None else checked_rate(rate_hz)
        return cls(known_kind, units, axes, known_dtype, known_role, of, model, clock, rate)


def describe(name: str, data: Any, hints: Hints) -> Description:
    """The description of a signal from its first value; TypeError or ValueError if it cannot be stored.

    Without a declared role, that is guessed from the name.
    """
    shape: tuple[int, ...] = ()
    names = hints.names
    if isinstance(data, str | bytes | bytearray | memoryview):
        kind = dtype = "text" if isinstance(data, str) else "bytes"
        names = None
        as_event(data, kind, "new signal")
        if hints.dtype is not None:
            raise SchemaMismatchError(f"signal {name!r} was declared as {hints.dtype}, not as {kind}")
    elif hints.kind in RAGGED_KINDS:
        array = _first_rows(name, data, hints)
        kind, dtype, shape = str(hints.kind), dtype_of(array.dtype).name, array.shape[1:]
        if names is not None and len(names) != (shape[0] if len(shape) == 1 else len(shape)):
            raise SchemaMismatchError(f"{len(names)} names for rows of shape {shape}")
    else:
        array = as_numbers(data)
        if hints.dtype is not None:
            array = as_declared(name, array, hints.dtype)
        if names is not None and len(names) != (array.size if array.ndim == 1 else array.ndim):
            raise SchemaMismatchError(f"{len(names)} names for a value of shape {array.shape}")
        kind, dtype, shape = _choose_kind(array, hints.kind), dtype_of(array.dtype).name, array.shape
    about = guess_role(name, kind) if hints.role is None else hints
    more = (hints.units, names, about.role, about.of, about.model, hints.clock, hints.rate_hz)
    return Description(kind, dtype, shape, *more)


def _first_rows(name: str, data: Any, hints: Hints) -> NDArray[Any]:
    """The first value of a ragged signal, which gives it the type and shape of its rows."""
    if isinstance(data, list | tuple) and not len(data):
        raise SchemaMismatchError(
            f"signal {name!r}: an empty list has no row type; the first value needs one: np.empty((0, 3), np.float32)"
        )
    array = as_numbers(data, empty=True)
    if hints.dtype is not None:
        array = as_declared(name, array, hints.dtype)
    if array.ndim < 1 or 0 in array.shape[1:]:
        raise SchemaMismatchError(f"signal {name!r}: a value is an array of rows, not of shape {array.shape}")
    if hints.kind == "sound" and (array.ndim > 2 or dtype_of(array.dtype).name not in SOUND_DTYPES):
        raise SchemaMismatchError(
            f"signal {name!r}: a block of sound is [samples] or [samples, channels] of {', '.join(SOUND_DTYPES)}, "
            f"not {array.dtype}{list(array.shape)}"
        )
    return array


def as_rows(data: Any, about: Description, name: str, *, converts: bool = False) -> NDArray[Any]:
    """A value of a ragged signal as an array of rows of its type, or SchemaMismatchError."""
    dtype = dtype_named(about.dtype)
    expected = f"{about.dtype}[n{''.join(f', {side}' for side in about.shape)}]"
    if isinstance(data, str | bytes | bytearray | memoryview):
        raise mismatch_error(name, expected, type(data).__name__)
    array = as_numbers(data, empty=True)
    if array.ndim == 1 and not len(array):  # such as []: no rows
        array = np.empty((0, *about.shape), dtype.dtype)
    elif converts:
        array = as_declared(name, array, dtype)
    if array.ndim < 1 or array.dtype != dtype.dtype or array.shape[1:] != about.shape:
        raise mismatch_error(name, expected, f"{array.dtype}{list(array.shape)}")
    return array


def as_declared(name: str, array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """A value as the type its signal was declared with; a float never becomes an integer or infinite silently."""
    if array.dtype == dtype.dtype:
        return array
    is_whole = array.dtype.kind in "biu"
    if not is_whole and dtype.dtype.kind in "biu":
        raise mismatch_error(name, str(dtype), str(array.dtype))
    with np.errstate(over="ignore"):
        converted = array.astype(dtype.dtype)
    if is_whole:
        fits = np.array_equal(converted.astype(array.dtype), array)
    else:
        fits = np.array_equal(np.isfinite(converted), np.isfinite(array))
    if not fits:
        raise SchemaMismatchError(f"signal {name!r}: {array.tolist()} does not fit in {dtype}")
    return converted


def _choose_kind(array: NDArray[Any], wanted: str | None) -> str:
    channels = array.shape[2] if array.ndim == 3 else 0
    is_plain = array.ndim == 2 or (channels == 3 and array.dtype == np.uint8)
    is_image = is_plain or (channels in (3, 4) and min(array.shape[:2]) >= _LEAST_SIDE)
    if wanted == "image" or (wanted is None and is_image and array.dtype in (np.uint8, np.uint16)):
        FrameShape.of(array)
        return "image"
    natural = numeric_kind(array.shape)
    if wanted not in (None, natural, "tensor"):
        raise SchemaMismatchError(f"a value of shape {array.shape} is a {natural}, not a {wanted}")
    return wanted or natural


def as_numbers(data: Any, *, empty: bool = False) -> NDArray[Any]:
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
        known = f"use str, bytes or one of {', '.join(DTYPE_NAMES)}"
        raise TypeError(f"{type(data).__name__} (dtype {array.dtype}) cannot be recorded; {known}") from None
    if array.size == 0 and not empty:
        raise ValueError("an array without elements cannot be recorded")
    if array.nbytes > MAX_VALUE_BYTES:
        raise ValueError(f"a value of {array.nbytes} bytes is too large; at most {MAX_VALUE_BYTES}")
    return array


def as_event(data: Any, kind: str, name: str) -> bytes:
    """Text or bytes as the bytes that are stored."""
    if kind == "text" and isinstance(data, str):
        try:
            packed = data.encode()
        except UnicodeEncodeError:
            raise ValueError(f"signal {name!r}: the text is not valid Unicode") from None
    elif kind == "bytes" and isinstance(data, bytes | bytearray | memoryview):
        packed = bytes(data)
    else:
        raise mismatch_error(name, kind, type(data).__name__)
    if len(packed) > MAX_EVENT_BYTES:
        raise ValueError(f"signal {name!r}: an event of {len(packed)} bytes is too large")
    return packed


def as_timestamp(ts_ns: Any) -> int:
    """A time as a Python integer that an int64 can hold."""
    number = as_int(ts_ns, "a timestamp")
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"timestamp {number} does not fit in 64 bits")
    return number


def order_error(name: str, ts_ns: int, last: int) -> RecordingError:
    """The error for a time at or before the last one; once a signal is closed no time is late enough."""
    if last >= CLOSED:
        return WriterClosedError(f"signal {name!r} is closed")
    return TimestampOrderError(
        f"signal {name!r}: timestamp {ts_ns} is not increasing; the last one is {last}"
    )


def mismatch_error(name: str, expected: str, got: str) -> SchemaMismatchError:
    """The error for a value of another type or shape."""
    return SchemaMismatchError(
        f"signal {name!r} holds {expected}, not {got}",
        hint=f"Declare the type before the first record: declare({name!r}, dtype=…).",
    )


Clock = Literal["monotonic", "wall", "simulated"]

STEP_BACK_NS = 1_000_000
"""The wall clock is adjusted by less than this all the time; a larger step back is reported."""


class RecordingClock:
    """Gives increasing times, for any number of threads.

    A wall clock that is set back would refuse every record until it caught up. Instead the times continue at the
    pace of the monotonic clock, from where the wall clock was before. A warning reports it once, and the offset at the
    end of the recording gives the difference.
    """

    def __init__(self, name: Clock) -> None:
        self.name: Clock = name
        self._lock = threading.Lock()
        self._last = -1
        self._first_offset_ns = self._offset_ns = _wall_offset_ns()
        self._is_behind = False

    def now(self) -> int:
        """The time now, later than every time before."""
        if self.name == "simulated":
            raise ValueError("simulated time is given with every record: pass ts_ns=")
        with self._lock:
            now = time.monotonic_ns() if self.name == "monotonic" else self._wall_ns()
            self._last = now = max(now, self._last + 1)
            return now

    def facts(self, *, is_end: bool = False) -> dict[str, Any]:
        """The entry `clock` of meta.json: the clock, and the offset from its times to the time of day.

        At the end also the offset then, which a suspend or a step of the wall clock changed.
        """
        offset = {"monotonic": self._first_offset_ns, "wall": 0, "simulated": None}[self.name]
        facts = {"name": self.name, "wall_offset_ns": offset}
        if is_end and self.name == "monotonic":
            facts["wall_offset_end_ns"] = _wall_offset_ns()
        elif is_end and self.name == "wall":
            facts["wall_offset_end_ns"] = min(0, _wall_offset_ns() - self._offset_ns)
        return facts

    def _wall_ns(self) -> int:
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        offset_ns = wall_ns - monotonic_ns
        if offset_ns >= self._offset_ns - STEP_BACK_NS:
            self._offset_ns = offset_ns
            return wall_ns
        if not self._is_behind:
            self._is_behind = True
            warnings.warn(
                f"the wall clock was set back by {(self._offset_ns - offset_ns) / 1e9:.3f} s: the times of this "
                "recording continue without the step",
                RuntimeWarning,
                stacklevel=4,
            )
        return monotonic_ns + self._offset_ns


def _wall_offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()
