"""One blob of the page cache: a sparse file of its bytes and a shared map of which pages are here."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.files import FileStamp
from warpdata.bytekit.process import locks, system
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import UnavailableError
from warpdata.stores.cache import layout
from warpdata.stores.cache.layout import PAGE_BYTES, PRESENT

_ONLY_READ = (errno.EROFS, errno.EACCES, errno.EPERM)
_TOUCH_S = 1.0
_PIN_TIMEOUT_S = 20.0
_HASH_BYTES = 4 << 20


class PageFile:
    """The pages of one blob, shared by all processes that have it open."""

    def __init__(self, data_path: Path, map_path: Path, blob_bytes: int) -> None:
        self.data_path = data_path
        self.blob_bytes = blob_bytes
        self._map_fd, self.is_read_only = open_shared(map_path)
        self._data_fd, _ = open_shared(data_path)
        count = layout.page_count(blob_bytes)
        mapped = system.map_to_read if self.is_read_only else system.map_to_write
        self._map = mapped(self._map_fd, layout.MAP_HEADER_BYTES + count * layout.MAP_ENTRY_BYTES)
        self._entries: NDArray[np.uint64] = np.frombuffer(
            self._map, np.uint64, count, layout.MAP_HEADER_BYTES
        )
        self._bytes = system.map_to_read(self._data_fd, blob_bytes)
        self._checked = checked_pages(str(data_path), FileStamp.of(self._data_fd), count)
        self._lock = threading.Lock()
        self._pins = 0
        self._touched_s = 0.0

    @property
    def map_fd(self) -> int:
        """The file that carries the page locks."""
        return self._map_fd

    def pin(self) -> bool:
        """Keep the blob from being evicted until `unpin`; False when it was evicted before."""
        with self._lock:
            if self._pins == 0:
                self._lock_pin()
            self._pins += 1
        is_here = False
        try:
            is_here = os.fstat(self._map_fd).st_nlink > 0
            if is_here:
                self._touch()
        finally:
            if not is_here:
                self.unpin()
        return is_here

    def _lock_pin(self) -> None:
        if not locks.lock_range(
            self._map_fd, layout.PIN_LOCK_OFFSET, 1, shared=True, timeout_s=_PIN_TIMEOUT_S
        ):
            raise UnavailableError("timed out waiting for the cache lock of this blob", path=self.data_path)

    def unpin(self) -> None:
        """The counterpart of `pin`."""
        with self._lock:
            self._pins -= 1
            if self._pins == 0:
                locks.unlock_range(self._map_fd, layout.PIN_LOCK_OFFSET, 1)

    def missing(self, first: int, last: int) -> list[int]:
        """Which of the pages [first, last) are not here, or here but damaged."""
        if self._checked[first:last].all() and self._entries[first:last].all():
            return []
        here = (self._entries[first:last] & np.uint64(PRESENT)) != 0
        doubtful = np.flatnonzero(here & ~self._checked[first:last]) + first
        for page in doubtful.tolist():
            if self._is_sound(page):
                self._checked[page] = True
            else:
                here[page - first] = False
                if not self.is_read_only:
                    self._entries[page] = 0
        return [] if here.all() else (np.flatnonzero(~here) + first).tolist()

    def seems_here(self, first: int, last: int) -> bool:
        """Whether the pages [first, last) are said to be here; `missing` also checks that they are sound."""
        return bool(self._entries[first:last].all())

    def read(self, start: int, end: int) -> memoryview:
        """A view of bytes whose pages are here."""
        return self._bytes[start:end]

    def write(self, first: int, pieces: Sequence[memoryview], sums: Sequence[int]) -> None:
        """Keep consecutive pages that begin at page `first`, whose checksums are `sums`."""
        system.write_pieces(self._data_fd, pieces, first * PAGE_BYTES)
        entries = np.asarray(sums, np.uint64) | np.uint64(PRESENT)
        self._entries[first : first + len(pieces)] = entries
        self._checked[first : first + len(pieces)] = True

    def drop(self, first: int = 0, last: int | None = None) -> None:
        """Forget the pages [first, last), all by default; nothing happens if the cache is read only."""
        if self.is_read_only:
            return
        self._entries[first:last] = 0
        self._checked[first:last] = False
        self._set_whole(0)

    @property
    def is_complete(self) -> bool:
        """Whether every page is here."""
        return bool((self._entries & np.uint64(PRESENT)).all())

    @property
    def present_bytes(self) -> int:
        """How many bytes are here."""
        past_end = len(self._entries) * PAGE_BYTES - self.blob_bytes if self._entries[-1] else 0
        return int(np.count_nonzero(self._entries)) * PAGE_BYTES - past_end

    def is_whole(self, sha256: str) -> bool:
        """Whether every page is here and all of them together have this hash."""
        if not self.is_complete:
            return False
        if self._map[layout.WHOLE_OFFSET]:
            return True
        running = RunningSha256()
        for start in range(0, self.blob_bytes, _HASH_BYTES):
            running.update(self._bytes[start : start + _HASH_BYTES])
        if running.hexdigest() != sha256:
            return False
        self._set_whole(1)
        return True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for name in ("_map_fd", "_data_fd"):
            if hasattr(self, name):
                close(getattr(self, name))  # the module is gone by now where the interpreter ends

    def _set_whole(self, value: int) -> None:
        if not self.is_read_only:
            self._map[layout.WHOLE_OFFSET] = value

    def _is_sound(self, page: int) -> bool:
        start = page * PAGE_BYTES
        found = crc32c(self._bytes[start : start + PAGE_BYTES])
        return found == int(self._entries[page]) & 0xFFFFFFFF

    def _touch(self) -> None:
        """Say that the blob is in use, at most once a second: eviction takes the longest unused first."""
        now = time.monotonic()
        if now - self._touched_s > _TOUCH_S:
            self._touched_s = now
            if not self.is_read_only:
                os.utime(self._map_fd)


def open_shared(path: Path, flags: int = 0) -> tuple[int, bool]:
    """A file of the cache, and whether it can only be read: so a warmed cache can be lent out."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666), False
    except OSError as error:
        if error.errno not in _ONLY_READ:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), True


_MAX_FILES = 1024
_SETTLED_NS = 100_000_000
_COARSE_SETTLED_NS = 2_500_000_000
"""A file younger than this may change again within one tick of its clock, so it is not remembered."""

_lock = ThreadLock()
_seen: OrderedDict[tuple[str, FileStamp], NDArray[np.bool_]] = OrderedDict()


def checked_pages(name: str, stamp: FileStamp, page_count: int) -> NDArray[np.bool_]:
    """A flag for each page, shared by every reader of the very same unchanged file; set it after checking."""
    is_coarse = stamp.changed_ns % 1_000_000_000 == 0
    if time.time_ns() - stamp.changed_ns < (_COARSE_SETTLED_NS if is_coarse else _SETTLED_NS):
        return np.zeros(page_count, bool)
    with _lock:
        flags = _seen.setdefault((name, stamp), np.zeros(page_count, bool))
        _seen.move_to_end((name, stamp))
        if len(_seen) > _MAX_FILES:
            _seen.popitem(last=False)
        return flags
