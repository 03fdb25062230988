"""The comparison of converters at a small size: it runs and reports every bar."""

from __future__ import annotations

import math
from pathlib import Path

from bench.versus import converting


def test_the_comparison_runs(tmp_path: Path) -> None:
    report = converting.run(tmp_path, quick=True)
    assert len(report["bars"]) == 9
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in report["bars"].values())
    assert report["bars"]["memory of any of these: peak in MB"]["holds"]
