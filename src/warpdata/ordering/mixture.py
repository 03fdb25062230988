"""Which of several sources gives the next batch, or the next sample: a deterministic largest-remainder schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from warpdata.ordering.splitmix import I64

MAX_PERIOD = 10_000
"""A schedule repeats after at most so many: shares are kept to one part in ten thousand."""


def mixture_counts(weights: Sequence[float], batches: int) -> list[int]:
    """How many of the first `batches` batches come from each source: within one of its exact share."""
    shares = mixture_shares(weights)
    exact = [share * batches for share in shares]
    counts = [int(value) for value in exact]
    rest = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in rest[: batches - sum(counts)]:
        counts[index] += 1
    return counts


def mixture_schedule(weights: Sequence[float], batches: int) -> list[int]:
    """The source of each of the next `batches` batches: always the one furthest behind its share."""
    shares = mixture_shares(weights)
    given = [0] * len(shares)
    order = []
    for _ in range(batches):
        order.append(next_source(shares, given))
        given[order[-1]] += 1
    return order


def next_source(shares: Sequence[Fraction], given: Sequence[int]) -> int:
    """Which source is furthest behind its share after each gave so many batches; the first of equals."""
    step = sum(given) + 1
    return max(range(len(shares)), key=lambda i: (shares[i] * step - given[i], -i))


def mixture_shares(weights: Sequence[float]) -> list[Fraction]:
    """The exact share of every source."""
    if not weights or min(weights) < 0 or sum(weights) <= 0:
        raise ValueError("a mixture needs weights of 0 or more, not all 0")
    whole = sum(Fraction(weight) for weight in weights)
    return [Fraction(weight) / whole for weight in weights]


class PeriodicSchedule:
    """A schedule by weight that repeats: what comes at any position, and how often each source came before, at once.

    Weights that are simple fractions are met exactly in every period; any others to one part in `MAX_PERIOD`.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        shares = [share.limit_denominator(MAX_PERIOD) for share in mixture_shares(weights)]
        period = math.lcm(*(share.denominator for share in shares))
        if sum(shares) == 1 and period <= MAX_PERIOD:
            self.counts = [int(share * period) for share in shares]
        else:
            period = MAX_PERIOD
            self.counts = mixture_counts(weights, period)
        for weight, count in zip(weights, self.counts, strict=True):
            if weight > 0 and not count:
                raise ValueError(f"a weight of {weight} is less than one part in {MAX_PERIOD} of all")
        self.period = period
        quotas = np.array(self.counts, np.int64)
        given = np.zeros(len(quotas), np.int64)
        self._source = np.empty(period, np.int64)
        self._before = np.empty(period, np.int64)
        for step in range(period):
            source = int(
                np.argmax(quotas * (step + 1) - given * period)
            )  # furthest behind, the first of equals
            self._source[step], self._before[step] = source, given[source]
            given[source] += 1
        self._quotas = quotas

    def at(self, positions: I64) -> tuple[I64, I64]:
        """The source at each position, and how many of that source came before."""
        rounds, inside = np.divmod(positions, self.period)
        source = self._source[inside]
        return source, rounds * self._quotas[source] + self._before[inside]

    def given(self, position: int) -> I64:
        """How many of each source come before a position."""
        rounds, inside = divmod(position, self.period)
        return rounds * self._quotas + np.bincount(self._source[:inside], minlength=len(self._quotas))
