"""Docs are run, not believed: every python and console block of README and docs executes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CLUSTER = ROOT / "docs" / "howto" / "ray.md"
"""Run by tests/ray/test_ray.py, on the cluster that is there: starting another costs more than the page."""

PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page != CLUSTER)]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.S | re.M)
SHOWN_ONLY = {"text", "json", "toml", "bash", ""}
PRELUDE = """
import contextlib, io, re, shlex, subprocess
from warpdata.cli.main import main as _warp

def _words(command):
    # The words of a command, None where it needs a shell.
    parts = shlex.shlex(command, posix=True, punctuation_chars=True)
    parts.whitespace_split, parts.commenters = True, ""
    words = list(parts)
    return None if any(set(word) <= set("|<>;&()") for word in words) else words

def _shell(command, allowed, shown):
    words, said = _words(command), io.StringIO()
    # In this process: starting one for each costs more than what most of them do. Jobs start this page again.
    if words and words[0] == "warp" and "--jobs" not in words:
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = _warp(words[1:])
        except SystemExit as ended:
            code = ended.code
    else:
        done = subprocess.run(command, capture_output=True, text=True, shell=True, timeout=270)
        code = done.returncode
        said.write(done.stdout + done.stderr)
    assert code in allowed, f"$ {command}\\n{said.getvalue()}"
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert re.search(f"^{pattern}\\s*$", said.getvalue(), re.M), f"the page shows {line!r}:\\n{said.getvalue()}"

"""


def program_of(page: Path) -> str:
    """The blocks of a page as one program: python as it stands, console lines that begin with `$ ` as commands.

    Other lines of a console block are lines of the output, in which `…` stands for anything.
    """
    program = ""
    for language, flags, text in BLOCK.findall(page.read_text()):
        if "no-run" in flags:
            assert re.search(r"no-run: \S", flags), f"{page.name}: a block that does not run says why"
        elif language == "python":
            program += text + "\n"
        elif language == "console":
            for command in re.findall(r"^\$ .*(?:\n(?!\$ ).*)*", text, re.M):
                words, *shown = command.rstrip().splitlines()
                program += f"_shell({words[2:]!r}, {allowed(words)}, {shown})\n"
        else:
            assert language in SHOWN_ONLY, f"{page.name}: what is a {language!r} block?"
    return program


def allowed(command: str) -> tuple[int, ...]:
    """A command that finds damage, or loses something, ends with 3."""
    return (0, 3) if re.search("warp (salvage|check|verify)", command) else (0,)


def missing(page: Path) -> list[str]:
    """The libraries a page needs that are too large to be installed for the tests, and are not."""
    needed = {
        name for _, flags, _ in BLOCK.findall(page.read_text()) for name in re.findall(r"needs: (\w+)", flags)
    }
    return sorted(name for name in needed if importlib.util.find_spec(name) is None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_snippet_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run as one program in an empty folder."""
    if missing(page):
        pytest.skip(f"not installed: {', '.join(missing(page))}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    program = program_of(page)
    (tmp_path / "snippet.py").write_text(PRELUDE + program)
    done = subprocess.run(
        [sys.executable, "snippet.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{page.name}:\n{program}\n{done.stderr}"
