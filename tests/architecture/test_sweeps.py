"""No sweep is thinned for good: `make soak` selects whatever is thinned in the ordinary run."""

from __future__ import annotations

import subprocess
import sys

from tests.sweeps import ROOT, is_thinned


def test_modules_that_thin_are_known() -> None:
    tests = ROOT / "tests"
    assert is_thinned(tests / "formats/test_tarshard.py")
    assert is_thinned(tests / "catalog/test_faults.py"), "by the constant"
    assert is_thinned(tests / "formats/test_wshard_damage.py"), "through the helper it uses"
    assert not is_thinned(tests / "architecture/test_public.py")


def test_they_and_every_property_are_selected() -> None:
    asked = [
        f"tests/{each}.py"
        for each in ("formats/test_tarshard", "architecture/test_public", "bytekit/test_varint")
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-m",
        "soak or hypothesis",
        "-n",
        "0",
        *asked,
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "test_tarshard" in found
    assert "test_varint" in found, "by hypothesis' own mark"
    assert "test_public" not in found
