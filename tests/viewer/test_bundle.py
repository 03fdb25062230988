"""What is committed under static/ is what viewer-ui makes, byte for byte, and it is small."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import LIMIT_S
from warpdata.viewer.server import FILES, STATIC

UI = ROOT / "viewer-ui"
MOST_BYTES = 120_000
built = pytest.mark.skipif(
    shutil.which("npm") is None or not (UI / "node_modules" / "esbuild").is_dir(),
    reason="npm or its packages are not installed (make setup)",
)


@built
def test_the_committed_bundle_is_what_the_source_makes(tmp_path: Path) -> None:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=UI, check=True, timeout=LIMIT_S)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in STATIC.iterdir())
    for name in made:
        is_same = (tmp_path / name).read_bytes() == (STATIC / name).read_bytes()
        assert is_same, f"{name}: run `make viewer`"  # telling how they differ would take minutes


@built
def test_the_source_is_typed() -> None:
    done = subprocess.run(
        ["npx", "tsc", "--noEmit"], cwd=UI, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_page_is_small_and_readable() -> None:
    files = [STATIC / file for file, _ in FILES.values()]
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= MOST_BYTES
    lines = (STATIC / "app.js").read_text().splitlines()
    assert len(lines) > 1000, "the bundle is not minified: its changes can be read"


def test_nothing_names_another_host() -> None:
    import re

    text = (STATIC / "app.js").read_text()
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"www.w3.org", "github.com"}, hosts
    if UI.exists():
        assert "resolved" not in (UI / "package-lock.json").read_text()
