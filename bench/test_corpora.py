"""The corpus benchmarks, shrunk: they run, and nothing is slower than a generous floor."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("h5py")
pytest.importorskip("safetensors")

from bench.versus import activations


def test_the_benchmark_runs_and_reports_every_bar(tmp_path: Path) -> None:
    report = activations.run(tmp_path, quick=True)
    works = [bar["work"] for bar in report["bars"]]
    assert len(works) == len(set(works)) == 15
    assert all(bar["measured"] > 0 for bar in report["bars"])
    for how, peak in report["memory_mb"].items():
        assert peak < 128, f"{how} took {peak:.0f} MB"
    assert max(report["resume_ms"].values()) < 1000
