"""Which Pythons are on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def interpreter(version: str) -> str | None:
    """A Python of a version such as `3.12`, from the path or below pyenv; None where there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    candidates = [shutil.which(f"python{version}"), *map(str, kept)]
    return next((each for each in candidates if each and version_of(each) == version), None)


def version_of(python: str) -> str | None:
    """What an interpreter says it is; None where it does not run, as the stand-ins of pyenv."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
