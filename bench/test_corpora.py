"""The corpus benchmarks at a small size: they run, and memory stays bounded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("h5py")
pytest.importorskip("safetensors")

from bench.versus import activations


def test_the_benchmark_runs_and_reports_every_bar(tmp_path: Path) -> None:
    report = activations.run(tmp_path, quick=True)
    assert len(report["bars"]) == 14
    assert all(math.isfinite(bar["value"]) for bar in report["bars"].values())
    for how, peak in report["memory_mb"].items():
        assert peak < 128, f"{how} took {peak:.0f} MB"
