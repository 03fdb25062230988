"""Folders for what is packed before it is published: each has an owner, and those of dead owners are swept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from warpdata.bytekit.commit import map_os_errors
from warpdata.stores import locks

_PREFIX = "warpdata-staging-"
_LOCK = "owner.lock"
_UNOWNED_S = 600.0
"""A folder without a lock is one being made, unless it is this old."""


class Staging:
    """A temporary folder that goes away when it is closed, collected, or its process ends in any way."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        root = Path(parent or tempfile.gettempdir())
        sweep(root)
        with map_os_errors(root):
            self.path, fd = _owned_folder(root)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, fd, os.getpid())

    def close(self) -> None:
        """Remove the folder."""
        self._finalizer()


def sweep(root: Path) -> int:
    """Remove the folders of owners that are dead; how many there were."""
    removed = 0
    for folder in root.glob(f"{_PREFIX}*"):
        # Several processes may sweep at once: what one of them has taken is gone for the others.
        with contextlib.suppress(OSError):
            removed += folder.stat().st_uid == os.getuid() and _swept(folder)
    return removed


def _owned_folder(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if locks.try_lock(fd, 0, 1):
                return folder, fd
            os.close(fd)


def _swept(folder: Path) -> bool:
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        is_dead = time.time() - folder.stat().st_mtime > _UNOWNED_S
        if is_dead:
            shutil.rmtree(folder, ignore_errors=True)
        return is_dead
    try:
        is_dead = locks.try_lock(fd, 0, 1)
        if is_dead:
            shutil.rmtree(folder, ignore_errors=True)
        return is_dead
    finally:
        os.close(fd)


def _remove_own(folder: Path, fd: int, owner: int) -> None:
    """A forked child only lets go of what is its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
    os.close(fd)
