"""What may be a time: integers only, in every form numpy and Python have, or text with a unit; no float gets in."""

from __future__ import annotations

import operator
import re
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
_WORD = (1 << 64) - 1
MAX_GRID = 1 << 28
"""More times than this in one request are a mistake, not a grid."""


UNITS_NS = {
    "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9,
    "h": 3600 * 10**9, "d": 86_400 * 10**9, "w": 7 * 86_400 * 10**9,
}  # fmt: skip
_TIME = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?)\s*([a-zµ]*)\s*")


def parse_time_ns(text: str, default_unit: str = "ns") -> int:
    """Nanoseconds from a text like `0.1s`, `250ms` or `12h`; a bare number is in the default unit.

    Exact: no binary fraction comes between the text and the number.
    """
    match = _TIME.fullmatch(text)
    unit = (match[2] or default_unit) if match else ""
    if match is None or unit not in UNITS_NS:
        raise ValueError(f"not a time: {text!r}; write it like 0.1s, 250ms or 1500000 (nanoseconds)")
    number = (Decimal(match[1]) * UNITS_NS[unit]).to_integral_value(ROUND_HALF_EVEN)
    if not INT64_MIN <= number <= INT64_MAX:
        raise _too_large(int(number), "a time")
    return int(number)


def as_int(value: Any, what: str) -> int:
    """`value` as a Python integer; bool, float and everything else is a TypeError."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{what} must be an integer, not a bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}") from None


def is_many(key: Any) -> bool:
    """Whether a key names several times: a list, a tuple, a range or an array."""
    if isinstance(key, np.ndarray):
        return key.ndim > 0
    return isinstance(key, list | tuple | range)


def as_int_array(values: Any, what: str) -> NDArray[np.int64]:
    """A one-dimensional int64 array of integers; masks, floats and nested sequences are a TypeError."""
    if not isinstance(values, np.ndarray):
        numbers = [as_int(value, what) for value in values]
        for number in numbers:
            if not INT64_MIN <= number <= INT64_MAX:
                raise _too_large(number, what)
        return np.array(numbers, np.int64)
    if values.ndim != 1:
        raise TypeError(f"{what} must be a flat sequence, not an array of {values.ndim} dimensions")
    if values.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, not {values.dtype} (boolean masks are not supported)")
    if values.dtype == np.uint64 and len(values) and values.max() > INT64_MAX:
        raise _too_large(int(values.max()), what)
    return values.astype(np.int64, copy=False)


def _too_large(number: int, what: str) -> Exception:
    """No time is that far away; it must not be taken for another one."""
    return ValueError(f"{what} must fit in 64 bits, {number} does not")


def grid(start: int, stop: int, step: int) -> NDArray[np.int64]:
    """The times start, start + step, … below stop."""
    count = max(0, -(-(stop - start) // step))
    if count > MAX_GRID:
        raise ValueError(f"a grid of {count} times is too large; at most {MAX_GRID}")
    if count and (start < INT64_MIN or start + (count - 1) * step > INT64_MAX):
        raise ValueError("the grid leaves the range of 64-bit nanoseconds")
    return start + np.arange(count, dtype=np.int64) * min(step, INT64_MAX) if count else np.empty(0, np.int64)


def checked_rate(value: Any) -> float:
    """A rate per second, or ValueError."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1e9:
        raise ValueError(f"rate_hz is a positive number, not {value!r}")
    return float(value)


def rate_grid(start: int, stop: int, rate_hz: float) -> NDArray[np.int64]:
    """The times start + round(k · 1e9 / rate), up to and including stop."""
    span = stop - start
    count = int(span * rate_hz / 1e9) + 2  # rounding may bring one more moment to the edge
    if count > MAX_GRID:
        raise ValueError(f"a grid of {count} times is too large; at most {MAX_GRID}")
    offsets = np.rint(np.arange(count) * 1e9 / rate_hz)
    # Without a sign, because a span may have more than 63 bits.
    steps = offsets[offsets < 2.0**64].astype(np.uint64)
    moments: NDArray[np.uint64] = steps[steps <= span] + np.uint64(start & _WORD)
    return moments.view(np.int64)


def ns_between(later: Any, earlier: Any) -> NDArray[np.int64]:
    """later - earlier of int64 times; what does not fit is the largest or smallest number that has an opposite."""
    distance = np.subtract(later, earlier)
    wrapped = ((later ^ earlier) & (later ^ distance)) < 0
    ends = np.where(np.less(later, earlier), -INT64_MAX, INT64_MAX)
    return np.asarray(np.where(wrapped, ends, np.maximum(distance, -INT64_MAX)), np.int64)


def add_offsets(times: NDArray[np.int64], offsets_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """times + offsets; clipped to the first and last int64 time."""
    later = times + offsets_ns
    ends = np.where(offsets_ns < 0, INT64_MIN, INT64_MAX)
    return np.where((offsets_ns < 0) == (later < times), later, ends)
