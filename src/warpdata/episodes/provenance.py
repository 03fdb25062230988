"""Who wrote an episode: program, interpreter, platform, and the state of the repository it ran in."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import time
import uuid
from typing import Any

from warpdata._version import __version__
from warpdata.formats.episodedir import layout

_GIT_TIMEOUT_S = 2.0


def first_meta(writer: str, created_ts_ns: int | None, uid: str | None) -> dict[str, Any]:
    """The system metadata of a new episode, before anything is recorded."""
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "created_ts_ns": time.time_ns() if created_ts_ns is None else created_ts_ns,
        "uid": uid or uuid.uuid4().hex,
        "writer": {"name": writer, **environment(os.getcwd())},
    }


@functools.lru_cache(maxsize=8)
def environment(folder: str) -> dict[str, Any]:
    """What does not change while the process lives; the repository is looked at once per folder."""
    found: dict[str, Any] = {
        "version": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    git = _git_state(folder)
    return {**found, "git": git} if git else found


def _git_state(folder: str) -> dict[str, Any] | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": branch or "", "dirty": bool(changes)}


def _git(folder: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
