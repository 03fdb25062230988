"""The comparison of published datasets at a small size: it runs, reports every bar, and what can be counted holds."""

from __future__ import annotations

import math

import pytest

from bench.versus.streaming import QUICK, bars, ratios, run

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""A peer leaves files open."""


def test_the_comparison_runs_and_few_requests_are_enough() -> None:
    found = bars(ratios(run(QUICK, ("core",))))
    assert len(found) == 12
    assert all(math.isfinite(row["value"]) for row in found.values())
    for counted in ("schema requests", "lookup requests", "lookup bytes"):
        assert found[counted]["holds"], (counted, found[counted])
