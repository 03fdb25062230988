"""Every truncation and every single-bit flip of every golden file, ours and other people's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OWN_GOLDEN, ROOT, SHARED_GOLDEN

FILES = [
    *sorted((OWN_GOLDEN / "wshard").rglob("*.wshard")),
    *sorted((SHARED_GOLDEN / "wshard").rglob("*.wshard")),
]


@pytest.fixture(scope="module")
def reports() -> dict[Path, Any]:
    """One process sweeps all files: starting one takes as long as a sweep."""
    command = [sys.executable, "-m", "tests.formats.damage_sweep", *map(str, FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(FILES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_damage_is_named_or_harmless(path: Path, reports: dict[Path, Any]) -> None:
    report = reports[path]
    assert report["faults"] == []
    assert report["counts"]["named"] > min(path.stat().st_size, 1000)
    assert report["grown_kib"] < 64 << 10
