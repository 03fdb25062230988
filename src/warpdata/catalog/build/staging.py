"""Folders for what is packed before it is published: each has an owner, and those of dead owners are swept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from warpdata.bytekit.io.commit import make_folders, map_os_errors
from warpdata.bytekit.process.locks import FileLock, lock_first_byte
from warpdata.errors import StoreError
from warpdata.stores.address import is_remote, open_store
from warpdata.stores.local import STAGING, LocalStore

_PREFIX = "warpdata-staging-"
_LOCK = "owner.lock"
_UNOWNED_S = 600.0
"""A folder without a lock is one being made, unless it is this old."""


class Staging:
    """A temporary folder that goes away when it is closed, collected, or its process ends in any way."""

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
            raise ValueError("staging names no folder; leave it out to stage on the disk of the catalog")
        return Staging(os.path.expanduser(chosen))
    if not is_remote(catalog):
        store = open_store(catalog)
        return Staging(store.folder / STAGING if isinstance(store, LocalStore) else None)
    try:
        return Staging(Path(os.path.expanduser(cache_dir)) / "staging")
    except StoreError:
        return Staging()


def sweep(root: Path) -> int:
    """Remove the folders of owners that are dead; how many there were."""
    removed = 0
    for folder in root.glob(f"{_PREFIX}*"):
        # Several processes may sweep at once: what one of them has taken is gone for the others.
        with contextlib.suppress(OSError, StoreError):
            removed += folder.stat().st_uid == os.getuid() and _swept(folder)
    return removed


def _owned_folder(root: Path) -> tuple[Path, FileLock]:
    while True:
        make_folders(root)
        # A sweeper may take the folder between its making and its locking, or the folder around it. Whatever else
        # goes wrong (no room, no locks) goes wrong again.
        with contextlib.suppress(FileNotFoundError):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            try:
                lock = _taken(folder)
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
    lock = _taken(folder)
    if lock is None:
        return False
    with lock:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _absent(root: Path) -> list[Path]:
    """The folders that have to be made for `root`, innermost first; our own are always ours to make."""
    made = [root] if root.name == STAGING else []
    for folder in (root, *root.parents):
        if folder.exists():
            break
        made += [] if folder in made else [folder]
    return made


def _taken(folder: Path) -> FileLock | None:
    """The folder as ours, unless somebody lives in it; FileNotFoundError where it is gone.

    Earlier releases know a lock on the first byte instead.
    """
    try:
        lock = FileLock.take(folder / _LOCK, mode=0o600)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise
    if lock is not None and not lock_first_byte(lock):
        lock.let_go()
        return None
    return lock


def _remove_own(folder: Path, lock: FileLock, made: list[Path]) -> None:
    """A forked child has let go of what is its parent's."""
    if lock.fd >= 0:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for empty in made:
                empty.rmdir()
    lock.release()
