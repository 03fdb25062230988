"""One writer at a time: a lock file beside the store that dies with its owner."""

from __future__ import annotations

import os
import secrets
import socket
import time

from warpdata.bytekit.io.commit import map_os_errors, write_at
from warpdata.bytekit.process.forks import process_id
from warpdata.bytekit.process.locks import FileLock
from warpdata.errors import ConflictError, CorruptLayoutError, StoreError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.writer import LockOwner, pack_lock, unpack_lock


class WriterLock:
    """`<file>.lock` held by this process until `release`; a lock whose owner is dead is taken over."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}.lock"
        self._writer_id = secrets.token_bytes(16)
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise StoreError("the folder does not exist", path=path, hint="Create the folder first.")
        lock = FileLock.take(self.path, removes=True, mode=0o644)
        if lock is None:
            raise _held(_owner(self.path), path)
        owner = _owner(self.path)
        if owner is not None and _is_foreign_and_fresh(owner):
            lock.let_go()  # the file is another host's, which the kernel here cannot see
            raise _held(owner, path)
        self._lock = lock
        try:
            self._sign()
        except BaseException:
            lock.release()
            raise

    def release(self) -> None:
        """Give the lock back; a forked child has none to give."""
        self._lock.release()

    def _sign(self) -> None:
        mine = LockOwner(process_id(), socket.gethostname(), time.time_ns(), self._writer_id)
        with map_os_errors(self.path):
            os.ftruncate(self._lock.fd, 0)
            write_at(self._lock.fd, pack_lock(mine), 0)


def _owner(path: str) -> LockOwner | None:
    """Who the lock file says holds it, if it says so."""
    try:
        with open(path, "rb") as file:
            return unpack_lock(file.read(layout.WRITER_LOCK.size + 1), path)
    except (OSError, CorruptLayoutError):
        return None


def _held(owner: LockOwner | None, store: str) -> ConflictError:
    who = "" if owner is None else f" (process {owner.pid} on {owner.hostname})"
    return ConflictError(
        f"another writer has this store open{who}",
        path=store,
        hint="Close the other writer, or open this store with mode='r'.",
    )


def _is_foreign_and_fresh(owner: LockOwner) -> bool:
    age_s = (time.time_ns() - owner.timestamp_ns) / 1e9
    return owner.hostname != socket.gethostname() and age_s < layout.LOCK_STALE_FOREIGN_S
