"""The comparison of loaders at a small size: it runs, reports every bar, and the counted ones hold."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.versus import training

WITH_US = (
    "memmap, DataLoader",
    "h5py, robomimic layout",
    "zarr, diffusion-policy layout",
    "webdataset, no global shuffle",
)
"""Peers that are installed where the tests run."""


def test_the_comparison_runs_and_fetches_no_more_than_it_needs() -> None:
    results = training.run(training.QUICK)
    found = training.bars(results)
    assert len(found) == 14
    assert all(math.isfinite(row["value"]) for row in found.values())
    assert found["S3 20 ms: bytes fetched / needed"]["holds"], found
    assert len(training.listed(results)) == 5


def test_peers_read_the_windows_we_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    steps, episodes = 100, 2
    np.save(tmp_path / "image.npy", rng.integers(0, 255, (steps * episodes, 8, 8, 3), np.uint8))
    np.save(tmp_path / "action.npy", rng.normal(size=(steps * episodes, 7)).astype(np.float32))
    (tmp_path / "steps.json").write_text(str(steps))
    asked = json.dumps({"work": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-m", "bench.versus.training_peers", "check", asked, *WITH_US],
        env={**os.environ, "BENCH_WORKERS": "0"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
