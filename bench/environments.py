"""Virtualenvs for peers whose packages do not run beside ours: made once, used again.

They lie below a folder that is kept, `~/.cache/warpdata-peers`, each under its name: making them takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.interpreters import interpreter

FOLDER = Path.home() / ".cache" / "warpdata-peers"
INSTALL_TIMEOUT_S = 1800.0


class Environment(NamedTuple):
    """With which Python, and what is installed, one list after the other."""

    python: str
    installs: tuple[tuple[str, ...], ...]


class NotInstalled(Exception):
    """An environment could not be made; the text says why."""


def python_of(name: str, wanted: Environment, folder: Path = FOLDER) -> str:
    """The interpreter of an environment, which is made if it is not there yet."""
    place = folder / name
    python, mark = place / "bin" / "python", place / "complete"
    if not mark.exists():
        shutil.rmtree(place, ignore_errors=True)
        _run(interpreter(wanted.python) or sys.executable, "-m", "venv", str(place))
        for each in wanted.installs:
            _run(str(python), "-m", "pip", "install", "--quiet", *each)
        mark.touch()
    return str(python)


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Which version of each package an environment has, as far as it has it."""
    code = (
        "import json, sys, importlib.metadata as about\n"
        "found = {each.metadata['Name']: each.version for each in about.distributions()}\n"
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"no answer within {INSTALL_TIMEOUT_S:.0f} s: {' '.join(command)}") from None
    if done.returncode:
        last = ([line for line in done.stderr.splitlines() if line.strip()] or ["no message"])[-1]
        raise NotInstalled(f"{' '.join(command[-3:])}: {last[:200]}")
