"""Environments of their own for peers whose packages do not run beside ours: made once, used again.

They lie in `~/.cache/warpdata-bench` (or where `WARP_BENCH_ENVIRONMENTS` says), one per set of requirements.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSTALL_TIMEOUT_S = 1800.0


class NotInstalled(Exception):
    """An environment could not be made; the text says why."""


def folder() -> Path:
    return Path(os.environ.get("WARP_BENCH_ENVIRONMENTS") or Path.home() / ".cache" / "warpdata-bench")


def python_of(name: str, steps: Sequence[Sequence[str]]) -> str:
    """The interpreter of an environment in which these requirements were installed, one step after the other."""
    text = repr((sys.version_info[:3], [list(step) for step in steps]))
    place = folder() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        shutil.rmtree(place, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(place))
        for step in steps:
            _run(str(python), "-m", "pip", "install", "--quiet", *step)
        (place / "installed").write_text(text)
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
