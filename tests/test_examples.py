"""The examples run, and what they promise holds; with torch, and without it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sweeps import SOAK


def test_every_example_is_run_and_listed() -> None:
    """By this module, or by the tests of its package; the home of the docs lists it."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    home = (ROOT / "docs" / "index.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        name = path.stem
        is_run = re.search(
            rf'run\("{name}\.py"|\("{name}", "|examples/{name}\.py|"examples" / "{name}\.py"', tests
        )
        assert is_run, f"no test runs {path.name}"
        assert f"`{path.name}`" in home, f"docs/index.md does not list {path.name}"
        about = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert f"    python examples/{path.name} [FOLDER" in about, (
            f"{path.name} does not begin with how to run it"
        )


def run(name: str, folder: Path, *, torch: bool, before: Sequence[str] = ()) -> str:
    """What an example prints; without torch, an import of it fails as if it were not installed.

    `before` stands before its name: what starts it.
    """
    environment = {
        **os.environ,
        "WARP_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    if not torch:
        hidden = folder / "hidden" / "torch"
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").write_text("raise ImportError('hidden')\n")
        environment["PYTHONPATH"] = f"{hidden.parent}{os.pathsep}{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, *before, str(ROOT / "examples" / name), str(folder)],
        env=environment, capture_output=True, text=True, timeout=220,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "samples/s" not in done.stderr, "no progress in a pipe"
    return done.stdout


@pytest.mark.parametrize("torch", [True, False], ids=["torch", "numpy"])
def test_behaviour_cloning_killed_and_resumed_on_two_ranks(tmp_path: Path, torch: bool) -> None:
    pytest.importorskip("gymnasium")
    if torch:
        pytest.importorskip("torch")
    told = run("train_bc.py", tmp_path, torch=torch)
    assert "killed at step 21" in told
    assert "rank 1 of 2 goes on after step 16" in told
    assert f"with {'torch' if torch else 'numpy'}" in told
    assert "the loss curve is identical" in told


def test_images_are_augmented_alike_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "the same images after a resume" in run("augment_images.py", tmp_path, torch=True)


def test_a_world_model_with_lanes(tmp_path: Path) -> None:
    told = run("world_model.py", tmp_path, torch=False)
    assert "computed 2, kept 8" in told


@pytest.mark.parametrize(
    ("name", "library", "expected"),
    [
        ("record_gym", "gymnasium", "packed the best episode: 80 steps"),
        ("mujoco_arm", "mujoco.egl", "200 windows, successes: [True, True]"),
        ("similar_moments", "av", "most unlike the others"),
        ("clean_lerobot", "av", "3 episodes exported, 69 steps in the first"),
        ("curate_ray", "ray", "published 2 episodes with joints, target, speed"),
    ],
)
def test_an_example_does_what_it_promises(tmp_path: Path, name: str, library: str, expected: str) -> None:
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        importlib.import_module(library)
    except (ImportError, AttributeError, OSError) as error:  # MuJoCo fails so where it cannot render
        pytest.skip(f"{library} is not usable here: {error}")
    assert expected in run(f"{name}.py", tmp_path, torch=False)


def test_ranks_find_themselves(tmp_path: Path) -> None:
    assert "every sample once per epoch" in run("distributed.py", tmp_path, torch=False)


@pytest.mark.skipif(
    not SOAK, reason="starts torch three times: make soak; tests/loading/test_torch.py asks it for the rank"
)
def test_ranks_find_themselves_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = run(
        "distributed.py",
        tmp_path,
        torch=True,
        before=["-m", "torch.distributed.run", "--nproc-per-node", "2"],
    )
    assert not told, "what the ranks saw lies in files"
    spec = importlib.util.spec_from_file_location("distributed_example", ROOT / "examples" / "distributed.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.check(tmp_path, 2)
