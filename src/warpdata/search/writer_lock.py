"""One writer at a time: a lock file beside the store that dies with its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time

from warpdata.bytekit.commit import map_os_errors
from warpdata.errors import ConflictError, CorruptLayoutError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.lockfile import LockOwner, pack_lock, unpack_lock

_ATTEMPTS = 10


class WriterLock:
    """`<file>.lock` held by this process until `release`; a lock whose owner is dead is taken over."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}.lock"
        self._writer_id = secrets.token_bytes(16)
        self._pid = os.getpid()
        self._fd = self._acquire(path)

    def release(self) -> None:
        """Give the lock back; a forked process has only a copy of it to close."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.getpid() == self._pid and _same_file(fd, self.path):
                os.unlink(self.path)
        os.close(fd)

    def _acquire(self, store: str) -> int:
        for _ in range(_ATTEMPTS):
            with map_os_errors(self.path):
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse(fd, store)
            if not _same_file(fd, self.path):
                os.close(fd)
                continue
            self._take(fd, store)
            return fd
        raise ConflictError("the lock of the store keeps changing hands", path=store)

    def _take(self, fd: int, store: str) -> None:
        """The kernel says nobody here holds it; a writer on another host may still do."""
        try:
            owner = unpack_lock(os.pread(fd, layout.WRITER_LOCK.size, 0), self.path)
        except CorruptLayoutError:
            owner = None
        if owner is not None and _is_foreign_and_fresh(owner):
            os.close(fd)
            raise _held(owner, store)
        mine = LockOwner(os.getpid(), socket.gethostname(), time.time_ns(), self._writer_id)
        with map_os_errors(self.path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, pack_lock(mine), 0)

    def _refuse(self, fd: int, store: str) -> None:
        data = os.pread(fd, layout.WRITER_LOCK.size, 0)
        os.close(fd)
        try:
            raise _held(unpack_lock(data, self.path), store)
        except CorruptLayoutError:
            raise ConflictError("another writer has this store open", path=store) from None


def _held(owner: LockOwner, store: str) -> ConflictError:
    return ConflictError(
        f"another writer has this store open (process {owner.pid} on {owner.hostname})",
        path=store,
        hint="Close the other writer, or open this store with mode='r'.",
    )


def _is_foreign_and_fresh(owner: LockOwner) -> bool:
    age_s = (time.time_ns() - owner.timestamp_ns) / 1e9
    return owner.hostname != socket.gethostname() and age_s < layout.LOCK_STALE_FOREIGN_S


def _same_file(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
