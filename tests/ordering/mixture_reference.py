"""The schedule of a mixture as it is said in words: slow, exact, one step after the other."""

from __future__ import annotations

from collections.abc import Sequence

from warpdata.ordering.mixture import mixture_shares


def mixture_schedule(weights: Sequence[float], batches: int) -> list[int]:
    """The source of each batch: always the one furthest behind its share, the first of equals."""
    shares = mixture_shares(weights)
    given = [0] * len(shares)
    order = []
    for step in range(1, batches + 1):
        behind = [share * step - count for share, count in zip(shares, given, strict=True)]
        order.append(behind.index(max(behind)))
        given[order[-1]] += 1
    return order
