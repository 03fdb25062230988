"""The measurements of the viewer at a small size: they run, the frames are right, and what is counted holds."""

from __future__ import annotations

import math
import shutil

import pytest
from tests.viewer.test_browser import missing

from bench.versus import viewer

NO_READER = (
    None if (viewer.READER / "node_modules").is_dir() else "packages/wshard is not installed (make setup)"
)

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(shutil.which("npm") is None or NO_READER is not None, reason=str(NO_READER)),
    pytest.mark.timeout(240),
]


def test_every_row_is_measured_and_the_counted_ones_hold() -> None:
    found = viewer.run(viewer.QUICK)
    bars = viewer.bars(found)
    assert len(bars) == 7
    assert all(math.isfinite(row["value"]) for row in bars.values())
    assert found["points"]["points"] <= 2 * 1440
    counted = [row["holds"] for name, row in bars.items() if "TypeScript" in name or "published" in name]
    assert counted == [True, True, True], bars
