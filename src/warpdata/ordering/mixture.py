"""The source of every sample of a mixture: a fixed schedule by weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from warpdata.ordering.splitmix import I64

MAX_PERIOD = 1 << 20
"""A schedule repeats after at most this many turns: shares are kept to one part in a million."""
SCHEDULE_VERSION = 2


def mixture_counts(weights: Sequence[float], batches: int) -> list[int]:
    """How many of the first `batches` batches come from each source: within one of its exact share."""
    shares = mixture_shares(weights)
    exact = [share * batches for share in shares]
    counts = [int(value) for value in exact]
    rest = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in rest[: batches - sum(counts)]:
        counts[index] += 1
    return counts


def mixture_shares(weights: Sequence[float]) -> list[Fraction]:
    """The exact share of every source."""
    if (
        not weights
        or not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not any(weights)
    ):
        raise ValueError(f"a mixture needs weights of 0 or more, not all 0: {list(weights)}")
    whole = sum(Fraction(weight) for weight in weights)
    return [Fraction(weight) / whole for weight in weights]


class PeriodicSchedule:
    """A schedule by weight that repeats: the source at any position, and how often each source came before.

    The turns of a source are spread evenly: turn k is at (k + ½) / weight, and turns come in that order, the first
    source of equals. Every period has each source's exact count; weights that do not add up within `MAX_PERIOD` are
    met to one part in that many.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        shares = [share.limit_denominator(MAX_PERIOD) for share in mixture_shares(weights)]
        self.period = math.lcm(*(share.denominator for share in shares))
        if sum(shares) == 1 and self.period <= MAX_PERIOD:
            self.counts = [int(share * self.period) for share in shares]
        else:
            self.period = MAX_PERIOD
            self.counts = mixture_counts(weights, self.period)
        for weight, count in zip(weights, self.counts, strict=True):
            if weight > 0 and not count:
                raise ValueError(f"a weight of {weight} is less than one part in {MAX_PERIOD} of all")
        turns = [np.arange(count) for count in self.counts]
        order = np.argsort(
            np.concatenate([(turn + 0.5) / max(1, len(turn)) for turn in turns]), kind="stable"
        )
        self._source = np.repeat(np.arange(len(turns)), self.counts)[order]
        self._before = np.concatenate(turns)[order]
        self._quotas = np.array(self.counts, np.int64)

    def at(self, positions: I64) -> tuple[I64, I64]:
        """The source at each position, and how many of that source came before."""
        rounds, inside = np.divmod(positions, self.period)
        source = self._source[inside]
        return source, rounds * self._quotas[source] + self._before[inside]

    def given(self, position: int) -> I64:
        """How many of each source come before a position."""
        rounds, inside = divmod(position, self.period)
        return rounds * self._quotas + np.bincount(self._source[:inside], minlength=len(self._quotas))


class WeightSchedule:
    """Schedules one after the other: other weights from a position on."""

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]]) -> None:
        self._starts = np.array([start for start, _ in stages], np.int64)
        self._schedules = [PeriodicSchedule(weights) for _, weights in stages]
        base = np.zeros(len(stages[0][1]), np.int64)
        self._bases = [base]
        for number in range(1, len(stages)):
            span = int(self._starts[number] - self._starts[number - 1])
            base = base + self._schedules[number - 1].given(span)
            self._bases.append(base)

    def at(self, positions: I64) -> tuple[I64, I64]:
        """The source at each position, and how many of that source came before."""
        stage = self._starts.searchsorted(positions, "right") - 1
        source, before = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for number in np.unique(stage).tolist():
            here = stage == number
            source[here], inside = self._schedules[number].at(positions[here] - self._starts[number])
            before[here] = inside + self._bases[number][source[here]]
        return source, before

    def given(self, position: int) -> I64:
        """How many of each source come before a position."""
        number = int(self._starts.searchsorted(position, "right")) - 1
        return self._bases[number] + self._schedules[number].given(position - int(self._starts[number]))
