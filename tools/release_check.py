"""Check what would be released: `make release-check`, or `python -m tools.release_check --only 3.12`.

Builds the wheel and the sdist, looks at their contents and metadata, installs each in a clean environment of every
supported Python found on this machine, runs `warp` there, resolves the base install together with the libraries it
must coexist with, and writes a bill of materials to build/release/sbom.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tools.interpreters import interpreter

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NEIGHBOURS = ("lerobot==0.6.1", "ray==2.60.0", "datasets>=4,<5", "rerun-sdk")
"""Libraries that people of this field have in the same environment; the base install must resolve beside each."""
CUDA = ("nvidia-", "triton", "cuda-")
SMOKE = """
import warpdata as wd, numpy as np
with wd.record("root", clock="simulated") as rec:
    for k in range(10):
        rec.step({"x": np.float32([k])}, {"u": np.float32([-k])}, reward=1.0, terminated=k == 9, ts_ns=k * 10**7)
assert wd.open("root")[0].steps.length == 10
"""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a program and return its output; a failure shows all of it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> tuple[Path, Path]:
    """The wheel and the sdist of this tree, in build/release."""
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        if old.is_file():
            old.unlink()
    run(sys.executable, "-m", "pip", "install", "-q", "build")
    run(sys.executable, "-m", "build", "--outdir", OUT)
    return next(OUT.glob("*.whl")), next(OUT.glob("*.tar.gz"))


def check_wheel(wheel: Path) -> Message:
    """Compare the wheel's files with the tree, and look at its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(_only(names, ".dist-info/METADATA")).decode())
    inside = {name for name in names if ".dist-info/" not in name}
    tracked = run("git", "ls-files", "src/warpdata").split()
    expected = {name.removeprefix("src/") for name in tracked}
    assert inside == expected, f"wheel differs from the tree: {sorted(inside ^ expected)[:10]}"
    for needed in (
        "warpdata/py.typed",
        "warpdata/formats/wshard/SPEC.md",
        "warpdata/viewer/static/index.html",
    ):
        assert needed in inside, f"{needed} is missing from the wheel"
    _only(names, "licenses/LICENSE")
    _only(names, "entry_points.txt")
    classifiers = metadata.get_all("Classifier", [])
    assert "Private :: Do Not Upload" in classifiers
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Project-URL"), "pyproject.toml has no [project.urls]"
    return metadata


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    stray = [name for name in names if name.startswith((".venv", "build/", "node_modules"))]
    assert not stray, f"stray files in the sdist: {stray[:10]}"
    missing = {"pyproject.toml", "LICENSE", "README.md", "src/warpdata/py.typed"} - names
    assert not missing, f"missing from the sdist: {sorted(missing)}"


def check_install(python: str, package: Path, folder: Path) -> None:
    """Install a built file in a clean environment and use it there."""
    run(python, "-m", "venv", "--clear", folder)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", package)
    run(folder / "bin" / "warp", "--help", cwd=folder)
    run(inside, "-c", SMOKE, cwd=folder)
    run(inside, "-m", "pip", "check")


def resolved(python: Path, *requirements: str | Path) -> list[dict[str, str]]:
    """The packages that pip would install for these requirements, with versions; nothing is installed."""
    report = OUT / "resolution.json"
    options = ("-q", "--dry-run", "--ignore-installed", "--report", report)
    run(python, "-m", "pip", "install", *options, *requirements)
    return [item["metadata"] for item in json.loads(report.read_text())["install"]]


def write_sbom(packages: list[dict[str, str]]) -> None:
    """A CycloneDX bill of materials of the base install."""
    components = [
        {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:pypi/{package['name'].lower()}@{package['version']}",
        }
        for package in sorted(packages, key=lambda package: package["name"].lower())
    ]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    (OUT / "sbom.json").write_text(json.dumps(document, indent=2) + "\n")


def check_extras(python: Path, wheel: Path, metadata: Message) -> None:
    """No extra pulls CUDA, except the one whose name is torch (an unpinned torch does)."""
    for extra in sorted(
        set(metadata.get_all("Provides-Extra", [])) - {"torch", "all", "test", "bench", "dev", "docs"}
    ):
        names = [package["name"] for package in resolved(python, f"{wheel}[{extra}]")]
        cuda = [name for name in names if name.startswith(CUDA)]
        assert not cuda, f"warpdata[{extra}] pulls {cuda}"


def _only(names: list[str], ending: str) -> str:
    matches = [name for name in names if name.endswith(ending)]
    assert len(matches) == 1, f"expected one {ending} in the wheel, got {matches}"
    return matches[0]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=VERSIONS, help="one Python instead of all")
    chosen = options.parse_args()
    wheel, sdist = build()
    metadata = check_wheel(wheel)
    check_sdist(sdist)
    print(f"contents and metadata: {wheel.name}, {sdist.name}")
    inside = Path()
    for version in [chosen.only] if chosen.only else VERSIONS:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not on this machine, skipped")
            continue
        folder = OUT / f"venv-{version}"
        for package in (sdist, wheel):
            check_install(python, package, folder)
        inside = folder / "bin" / "python"
        print(f"Python {version}: wheel and sdist install, warp and a recording work")
    assert inside != Path(), "no supported Python on this machine"
    write_sbom(resolved(inside, wheel))
    for neighbour in NEIGHBOURS:  # with the newest Python tried: lerobot needs 3.12
        resolved(inside, wheel, neighbour)
        print(f"resolves beside {neighbour}")
    check_extras(inside, wheel, metadata)
    print("no extra pulls CUDA; bill of materials in build/release/sbom.json")


if __name__ == "__main__":
    main()
