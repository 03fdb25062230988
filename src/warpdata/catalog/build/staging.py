"""Temporary folders with an owner; those of dead owners are removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from warpdata.bytekit.io.commit import make_folders, map_os_errors
from warpdata.bytekit.process.locks import FileLock
from warpdata.errors import StoreError
from warpdata.stores.address import is_remote, open_store
from warpdata.stores.local import STAGING, LocalStore

_PREFIX = "warpdata-staging-"
_LOCK = "owner.lock"
_UNOWNED_S = 600.0
"""A folder without a lock is one being made, unless it is this old."""


class Staging:
    """A temporary folder that is removed when it is closed, collected, or its process ends in any way."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        root = Path(parent or tempfile.gettempdir())
        made = _absent(root)
        with map_os_errors(root):
            self.path, lock = _owned_folder(root)
        sweep(root)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, made)

    def close(self) -> None:
        """Remove the folder."""
        self._finalizer()


def staging_for(catalog: str, cache_dir: str, chosen: str | os.PathLike[str] | None) -> Staging:
    """A folder on the disk of the catalog, so that files move into it; for catalogs elsewhere, in the cache folder."""
    if chosen is not None:
        if not os.fspath(chosen):
            raise ValueError("staging names no folder; leave it out to use the disk of the catalog")
        return Staging(os.path.expanduser(chosen))
    if not is_remote(catalog):
        store = open_store(catalog)
        return Staging(store.folder / STAGING if isinstance(store, LocalStore) else None)
    try:
        return Staging(Path(os.path.expanduser(cache_dir)) / "staging")
    except StoreError:
        return Staging()


def sweep(root: Path) -> int:
    """Remove the folders of dead owners; returns their number."""
    removed = 0
    for folder in root.glob(f"{_PREFIX}*"):
        # Several processes may sweep at the same time.
        with contextlib.suppress(OSError, StoreError):
            removed += folder.stat().st_uid == os.getuid() and _swept(folder)
    return removed


def _owned_folder(root: Path) -> tuple[Path, FileLock]:
    while True:
        make_folders(root)
        # Another process may remove the folder, or the one around it, before it is locked. Other errors are final.
        with contextlib.suppress(FileNotFoundError):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            try:
                lock = _lock_folder(folder)
            except StoreError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if lock is not None:
                return folder, lock


def _swept(folder: Path) -> bool:
    if not (folder / _LOCK).exists():
        is_dead = time.time() - folder.stat().st_mtime > _UNOWNED_S
        if is_dead:
            shutil.rmtree(folder, ignore_errors=True)
        return is_dead
    lock = _lock_folder(folder)
    if lock is None:
        return False
    with lock:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _absent(root: Path) -> list[Path]:
    """The folders that must be made for `root`, innermost first; a staging folder is always ours."""
    made = [root] if root.name == STAGING else []
    for folder in (root, *root.parents):
        if folder.exists():
            break
        made += [] if folder in made else [folder]
    return made


def _lock_folder(folder: Path) -> FileLock | None:
    """The lock of the folder, None if another process holds it; FileNotFoundError if the folder is gone."""
    try:
        return FileLock.take(folder / _LOCK, mode=0o600)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


def _remove_own(folder: Path, lock: FileLock, made: list[Path]) -> None:
    """Remove the folder, unless this is a forked child, whose lock is closed."""
    if lock.fd >= 0:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for empty in made:
                empty.rmdir()
    lock.release()
