"""The comparison of recording and reading in time at a small size: it runs, reports every bar, and loses nothing."""

from __future__ import annotations

import math

from bench.versus import recording


def test_the_comparison_runs_and_drops_nothing() -> None:
    found = recording.bars(recording.run(quick=True))
    assert len(found) == 24
    assert all(math.isfinite(row["value"]) for row in found.values())
    uncounted = "six cameras as fast as they can: frames neither kept nor counted as dropped"
    for counted in ("frames dropped", "bytes per vec7 record", uncounted):
        assert found[counted]["holds"], (counted, found[counted])
