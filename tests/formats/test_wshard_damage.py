"""Every truncation and every single-bit flip of every golden file, ours and other people's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import OWN_GOLDEN, ROOT, SHARED_GOLDEN

FILES = [
    *sorted((OWN_GOLDEN / "wshard").rglob("*.wshard")),
    *sorted((SHARED_GOLDEN / "wshard").rglob("*.wshard")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_damage_is_named_or_harmless(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.formats.damage_sweep", path], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["faults"] == []
    assert report["counts"]["named"] > min(path.stat().st_size, 1000)
    assert report["grown_kib"] < 64 << 10
