"""Which of several sources gives the next batch: a deterministic largest-remainder schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


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
