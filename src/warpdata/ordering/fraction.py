"""Nested subsamples by row id, and the schedule that widens them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from warpdata.ordering.blocks import splitmix64, splitmix64_of


def fraction_threshold(fraction: float) -> int:
    """floor(fraction · 2^64): a row is in the fraction when its hash is below this."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction out of range: expected 0 to 1, got {fraction}")
    return math.floor(math.ldexp(fraction, 64))


@overload
def row_in_fraction(row_ids: int, fraction: float) -> bool: ...
@overload
def row_in_fraction(row_ids: npt.ArrayLike, fraction: float) -> npt.NDArray[np.bool_]: ...
def row_in_fraction(row_ids: npt.ArrayLike, fraction: float) -> npt.NDArray[np.bool_] | bool:
    """Whether a row (or which of many) belongs to the subsample: a row in a fraction is in every larger one."""
    threshold = fraction_threshold(fraction)
    if isinstance(row_ids, int | np.integer):
        return splitmix64_of(int(row_ids)) < threshold
    ids = np.asarray(row_ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"row ids are integers of 64 bits, not {ids.dtype}")
    hashes = splitmix64(ids)
    if threshold >= 1 << 64:
        return np.ones(hashes.shape, np.bool_)
    return hashes < np.uint64(threshold)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Passes over growing, nested subsamples; the last passes see every row."""

    fractions: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1.0)
    passes_per_stage: int = 1

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.fractions, self.fractions[1:], strict=False))
        if not self.fractions or not rising or self.fractions[-1] != 1.0 or self.fractions[0] <= 0.0:
            raise ValueError(f"fractions of a cascade rise from above 0 to 1, not {self.fractions}")
        if self.passes_per_stage < 1:
            raise ValueError("a stage has at least one pass")

    @classmethod
    def geometric(cls, first: float, factor: float = 4.0, passes_per_stage: int = 1) -> Cascade:
        """`first`, `first·factor`, … up to all rows."""
        if not 0.0 < first <= 1.0 or factor <= 1.0:
            raise ValueError("a geometric cascade begins in (0, 1] and grows")
        fractions = [first]
        while fractions[-1] < 1.0:
            fractions.append(min(1.0, fractions[-1] * factor))
        return cls(tuple(fractions), passes_per_stage)

    def fraction_at(self, pass_number: int) -> float:
        """The fraction that pass number 0, 1, 2 … reads; 1.0 after the last stage."""
        if pass_number < 0:
            raise ValueError("passes are counted from 0")
        stage = min(pass_number // self.passes_per_stage, len(self.fractions) - 1)
        return self.fractions[stage]
