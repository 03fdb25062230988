"""Ray's TorchTrainer with our loader: workers find themselves, and another number of them goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sweeps import SOAK

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'warpdata[ray]'")
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip(
        "ray.train.torch", reason="Ray Train is not installed: pip install 'ray[train]'", exc_type=ImportError
    )


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="starts clusters for minutes: make soak runs it")
def test_workers_of_a_trainer_find_themselves_and_another_number_goes_on(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "WARP_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / "ray_trainer.py"), str(tmp_path / "work"), "2"],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 workers, then 1: 20 steps, every sample once per epoch" in done.stdout
