"""The comparison of loaders, shrunk: it runs, reports every bar, and the counted ones hold."""

from __future__ import annotations

import math

from bench.versus import training


def test_the_comparison_runs_and_fetches_no_more_than_it_needs() -> None:
    results = training.run(training.QUICK, with_peers=False)
    found = training.bars(results)
    assert len(found) == 10
    assert all(math.isfinite(row["value"]) for row in found.values())
    assert found["S3 20 ms: bytes fetched / needed"]["holds"], found
