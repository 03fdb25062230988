"""Docs are run, not believed: every python and console block of README and docs executes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.S | re.M)
RUN = {"python", "console"}
SHOWN_ONLY = {"text", "json", "toml", "bash", ""}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text())


def run_console(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Lines that begin with `$ ` run in order; what they print is not compared."""
    for line in text.splitlines():
        if line.startswith("$ "):
            command = line[2:].split("  #")[0]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, shell=True, timeout=120
            )
            expected = 3 if "salvage" in command else 0
            assert done.returncode in (0, expected), f"$ {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_snippet_runs(page: Path, tmp_path: Path) -> None:
    """The python blocks of a page run as one program in an empty folder, console blocks in between."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    program = ""
    for language, flags, text in blocks(page):
        assert language in RUN | SHOWN_ONLY, f"{page.name}: what is a {language!r} block?"
        if "no-run" in flags:
            assert re.search(r"no-run: \S", flags), f"{page.name}: a block that does not run says why"
            continue
        if language == "python":
            program += text + "\n"
            (tmp_path / "snippet.py").write_text(program)
            done = subprocess.run(
                [sys.executable, "snippet.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, f"{page.name}:\n{program}\n{done.stderr}"
        elif language == "console":
            run_console(text, tmp_path, environment)
