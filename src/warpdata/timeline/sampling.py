"""Aligned arrays for learning: values at common times, with how valid and how old each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import TimeRangeError
from warpdata.timeline.signal import Signal, before_first
from warpdata.timeline.times import as_int, frozen

Before = Literal["raise", "pad", "nan"]

_EXTRAS = ("mask", "age_ns", "times_ns")


class Samples(dict[str, NDArray[Any]]):
    """Field -> stacked array; `.mask` and `.age_ns` have one array per field, `.times_ns` the times asked.

    The three can also be had by key, unless a field has that name.
    """

    def __init__(
        self,
        values: Mapping[str, NDArray[Any]],
        mask: dict[str, NDArray[np.bool_]],
        age_ns: dict[str, NDArray[np.int64]],
        times_ns: NDArray[np.int64],
    ) -> None:
        super().__init__(values)
        self.mask = mask
        self.age_ns = age_ns
        self.times_ns = times_ns

    def __missing__(self, key: str) -> Any:
        if key in _EXTRAS:
            return getattr(self, key)
        raise KeyError(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Samples, (dict(self), self.mask, self.age_ns, self.times_ns))


def sample_signals(
    signals: Mapping[str, Signal], times: NDArray[np.int64], before: Before, max_age_ns: int | None
) -> Samples:
    """Sample every signal at the same times; what is missing or too old is masked, never guessed silently."""
    if before not in ("raise", "pad", "nan"):
        raise ValueError(f"before is 'raise', 'pad' or 'nan', not {before!r}")
    if max_age_ns is not None and as_int(max_age_ns, "max_age_ns") < 0:
        raise ValueError(f"max_age_ns is not negative, but {max_age_ns}")
    values: dict[str, NDArray[Any]] = {}
    mask: dict[str, NDArray[np.bool_]] = {}
    age: dict[str, NDArray[np.int64]] = {}
    for name, signal in signals.items():
        try:
            values[name], mask[name], age[name] = _sample_one(signal, times, before, max_age_ns)
        except TimeRangeError as error:
            raise TimeRangeError(f"signal {name!r}: {error.message}", hint=error.hint) from None
    return Samples(values, mask, age, frozen(times))


def _sample_one(
    signal: Signal, times: NDArray[np.int64], before: Before, max_age_ns: int | None
) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int64]]:
    """Values, whether each is valid, and its age: negative where the first record lies in the future."""
    positions = signal._search_ts(times)
    missing = positions < 0
    if len(times) and (not len(signal) or (before == "raise" and missing.any())):
        raise before_first(signal, int(times[missing][0]) if missing.any() else int(times[0]))
    held = np.where(missing, 0, positions)
    values = signal._values_at(held)
    age = times - signal._ts_at(held)
    mask = ~missing if max_age_ns is None else ~missing & (age <= max_age_ns)
    if before == "nan" and not mask.all():
        values = _blanked(values, mask)
    return frozen(values), frozen(mask), frozen(age)


def _blanked(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Invalid floats become NaN, other numbers 0, text and bytes empty."""
    out = np.array(values)
    if out.dtype == object:
        out[~mask] = type(values[0])()
    else:
        out[~mask] = np.nan if out.dtype.kind in "fc" else 0
    return out
