"""What is installed: a wheel in an environment of its own, on a machine without Node, serves the page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import numpy
import pytest
import tornado

from tests.conftest import ROOT
from tests.waiting import LIMIT_S
from warpdata.viewer.server import FILES, STATIC

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed (make setup)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        for file, _ in FILES.values():
            assert found.read(f"warpdata/viewer/static/{file}") == (STATIC / file).read_bytes()


def test_a_clean_environment_without_node_serves_it(wheel: Path, recorded: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=LIMIT_S
    )
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, timeout=LIMIT_S)
    # What warpdata needs is here already; how this checkout is installed is not taken over.
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    needed = {str(Path(each.__file__).parents[1]) for each in (numpy, tornado)}
    (packages / "needed.pth").write_text("\n".join(sorted(needed)))
    command = [str(environment / "bin" / "warp"), "view", str(recorded), "--no-open"]
    clean = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            address, _, token = process.stdout.readline().strip().partition("#t=")
            for name, (file, _) in FILES.items():
                with urllib.request.urlopen(address + name, timeout=LIMIT_S) as answer:
                    assert answer.read() == (STATIC / file).read_bytes()
            asked = urllib.request.Request(
                f"{address}api/dataset", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
                assert json.loads(answer.read())["episodes"] == 3
            where = subprocess.run(
                [str(python), "-c", "import warpdata; print(warpdata.__file__)"],
                capture_output=True, text=True, env=clean, cwd=tmp_path, check=True,
            )  # fmt: skip
            assert Path(where.stdout.strip()).is_relative_to(environment)
        finally:
            process.terminate()
