"""Test the wheel, not the source tree: `make test-all`, or `python -m tools.test_all --only 3.12 -- -x tests/bytekit`.

Builds the wheel once, and for every Python from 3.11 to 3.14 that is found on this machine makes a fresh environment,
installs the wheel with its test extra and runs the tests there. The run `oldest` has the oldest Python with the lowest
version of every library that the wheel says it works with. `--folder` keeps the environments, so that a second run
there, of one part of the tests after another, installs nothing but the wheel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

from tools.interpreters import interpreter, version_of

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = "oldest"
TESTS = ("tests",)
"""The benchmarks are left to `make test`: they would make each run longer and show little more."""
LIBRARIES_ONLY_FOR_TESTS = "test"
"""Their lowest versions are no promise: the run with the oldest libraries takes any that fit beside those."""


def interpreters() -> dict[str, str]:
    """The Python of each version that is here."""
    found = {version: interpreter(version) for version in VERSIONS}
    return {version: python for version, python in found.items() if python}


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def lowest(wheel: Path) -> Iterator[str]:
    """`name==version` for every library the wheel needs, at the lowest version it says it works with."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    requirements = [each.partition(";")[::2] for each in metadata.get_all("Requires-Dist", [])]
    pinned = {text.partition("==")[0].strip() for text, _ in requirements if "==" in text}
    for text, condition in requirements:
        if f"'{LIBRARIES_ONLY_FOR_TESTS}'" in condition or "'dev'" in condition or "'bench-" in condition:
            continue
        found = re.fullmatch(r"\s*([\w.-]+)>=([\w.]+)\s*", text)
        if found and found[1] not in pinned:
            yield f"{found[1]}=={found[2]}"


def run(name: str, python: str, wheel: Path, folder: Path, arguments: list[str]) -> bool:
    """Make an environment, install the wheel in it, run the tests; whether they passed."""
    print(f"== {name}: {python}", flush=True)
    place = folder / name
    if not place.exists():
        subprocess.run([python, "-m", "venv", str(place)], check=True)
    inside = str(place / "bin" / "python")
    install = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # The wheel of a tree that changed has the same version as the one before.
    subprocess.run([inside, "-m", "pip", "uninstall", "-q", "-y", "warpdata"], check=True)
    install.append(f"{wheel}[test]")
    if name == OLDEST:
        limits = folder / "lowest.txt"
        limits.write_text("".join(f"{each}\n" for each in lowest(wheel)))
        install += ["--constraint", str(limits)]
    if subprocess.run(install).returncode:
        print(f"{name}: cannot be installed")
        return False
    # The tests and benchmarks are copied to where no source tree lies beside them.
    tree = folder / f"{name}-tree"
    shutil.rmtree(tree, ignore_errors=True)
    for part in (*TESTS, "bench", "tools", "examples", "docs"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "mkdocs.yml", *(path.name for path in ROOT.glob("*.md"))):
        shutil.copy(ROOT / part, tree / part)
    # The page and the readers in other languages are taken where they lie, with what npm installed beside them.
    for part in ("viewer-ui", "packages"):
        (tree / part).symlink_to(ROOT / part)
    package = place / "lib" / f"python{version_of(inside)}" / "site-packages" / "warpdata"
    (tree / "src").mkdir()
    (tree / "src" / "warpdata").symlink_to(
        package
    )  # alone: type checkers take what is beside it for sources too
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    shared = Path(environment.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden"))
    environment["WARPDATA_SHARED_GOLDEN"] = str(shared)
    where = subprocess.run(
        [inside, "-c", "import warpdata; print(warpdata.__file__)"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(place):
        print(f"{name}: the wheel is not what would be tested ({where})")
        return False
    command = [inside, "-m", "pytest", *(arguments or ["-n", os.environ.get("WORKERS", "2"), *TESTS])]
    began = time.monotonic()
    code = subprocess.run(command, cwd=tree, env=environment).returncode
    print(f"{name}: pytest ended with {code} after {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a version, or 'oldest'; may be given several times")
    parser.add_argument("--folder", type=Path, help="where the environments are made and stay")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    args = parser.parse_args()
    found = interpreters()
    missing = [version for version in VERSIONS if version not in found]
    if not found:
        print("no Python from 3.11 to 3.14 is here")
        return 1
    runs = {**found, OLDEST: next(iter(found.values()))}
    wanted = {name: python for name, python in runs.items() if not args.only or name in args.only}
    passed = {}
    with tempfile.TemporaryDirectory(prefix="warpdata-test-all-") as temp:
        wheel = build_wheel(Path(temp))
        folder = args.folder or Path(temp)
        for name, python in wanted.items():
            passed[name] = run(name, python, wheel, folder.resolve(), args.arguments)
    for name, is_passed in passed.items():
        print(f"{name}: {'passed' if is_passed else 'FAILED'}")
    if missing:
        print(f"not here: Python {', '.join(missing)}")
    return 0 if passed and all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
