"""`make bench` comes to its end on a machine that has nothing: peers are installed, and nothing can hang."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from tests.waiting import until

from bench import run
from bench.versus import converting_peers, training_peers

HERE = Path(__file__).parent
OURS = {"bench", "examples", "tests", "tools", "warpdata"}
HANGS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
pathlib.Path({mark!r}).write_text(str(child.pid))
time.sleep(3600)
"""


def installed(extra: str) -> set[str]:
    """Names of what an extra and the package itself install, extras of ours followed."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    waiting = [*project["dependencies"], *project["optional-dependencies"][extra]]
    while waiting:
        name = waiting.pop()
        if (inner := re.match(r"warpdata\[(.*)\]", name)) is not None:
            waiting += [each for one in inner[1].split(",") for each in project["optional-dependencies"][one]]
        else:
            found.add(re.split(r"[\[<>=;!~ ]", name)[0].lower().replace("_", "-"))
    return found


def imported(path: Path) -> set[str]:
    """Top-level modules that a file imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - OURS - set(sys.stdlib_module_names)


def test_every_peer_is_installed() -> None:
    provided = metadata.packages_distributions()
    given = installed("bench")
    wanted = {module for path in HERE.rglob("*.py") for module in imported(path)}
    missing = {
        module
        for module in wanted
        if given.isdisjoint(each.lower().replace("_", "-") for each in provided.get(module, [module]))
    }
    environments = [training_peers.ENVIRONMENTS, converting_peers.PEERS]
    elsewhere = " ".join(str(each) for made in environments for each in made.values())
    assert {each for each in missing if each.replace("_", "-") not in elsewhere} == set()


def test_whatever_runs_is_a_comparison_that_can_be_shrunk() -> None:
    for name in run.comparisons():
        source = (HERE / "versus" / f"{name}.py").read_text()
        assert 'add_argument("--quick"' in source, f"{name} is a part of a comparison, or has no small run"


def test_a_quick_run_shrinks_everything_and_names_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[str, ...]] = []

    def note(*words: str) -> str:
        begun.append(words)
        return "recording did not run to its end: exit code 1" if words[0].endswith(".recording") else ""

    monkeypatch.setattr(run, "run", note)
    assert run.main(["--quick"]) == 1
    assert begun == [(f"bench.versus.{name}", "--quick") for name in run.comparisons()]
    assert capsys.readouterr().out.endswith("slipped:\nrecording did not run to its end: exit code 1\n")


def test_a_comparison_that_hangs_is_ended_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "child"
    (tmp_path / "hanging.py").write_text(HANGS.format(mark=str(mark)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run.run("hanging", limit_s=10) == "hanging did not end within 10 s"
    child = int(mark.read_text())
    until(lambda: not os.path.exists(f"/proc/{child}") or "Z" in Path(f"/proc/{child}/stat").read_text())


def test_a_comparison_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text("raise SystemExit(3)")
    (tmp_path / "passing.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run.run("failing") == "failing did not run to its end: exit code 3"
    assert run.run("passing") == ""
