"""The schedule of a mixture as it is said in words: slow, exact, one turn after the other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from warpdata.loading.mixture import mixture_shares


def mixture_schedule(weights: Sequence[float], batches: int) -> list[int]:
    """The source of each batch: turn k of a source stands at (k + ½) / share, the first source of equals."""
    shares = [share.limit_denominator(10_000) for share in mixture_shares(weights)]
    given = [0] * len(shares)
    order = []
    for _ in range(batches):
        turns = [
            ((given[source] + Fraction(1, 2)) / share, source) for source, share in enumerate(shares) if share
        ]
        order.append(min(turns)[1])
        given[order[-1]] += 1
    return order
