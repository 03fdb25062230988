"""The page cache: pages of remote blobs on the local disk, bounded, shared by all processes without a daemon.

Each blob has a sparse file of its bytes (`.data`) and a map (`.pages`) that every process maps into memory: a header of
eight numbers, then one entry per page, its CRC-32C with a bit for "present". Locks on bytes far past the end of the map
mark pages being fetched and blobs in use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io import commit
from warpdata.bytekit.io.files import FileStamp
from warpdata.bytekit.process import locks, system
from warpdata.bytekit.process.forks import ThreadLock, run_in_child
from warpdata.errors import PermissionError_, StoreError, UnavailableError
from warpdata.stores.blobstore import PAGE_BYTES, checked_pages, page_count

_log = logging.getLogger("warpdata.stores")

_MAGIC = int.from_bytes(b"WPGMAP01", "little")
_HEADER_NUMBERS = 8
"""Numbers of 64 bits before the entries: magic, blob bytes, page bytes, whether the SHA-256 was checked, zeros."""
_WHOLE = 3
_PRESENT = 1 << 32
PAGE_LOCK_BASE = 1 << 40
PIN_LOCK_OFFSET = 1 << 39
"""Bytes far past the end of the map that only carry locks."""

_DATA, _MAP = ".data", ".pages"
_SLACK = 0.95
"""Eviction goes a little below the limit, so that it does not run for every page."""
_FOLDER_TIMEOUT_S = 20.0
_STUCK_S = 60.0
"""How long to wait for the lock of the folder, and for how long after a timeout not to wait again."""
_PIN_TIMEOUT_S = 20.0
_TOUCH_S = 1.0
_BLOCK_BYTES = 4096
"""Disks allocate space in blocks of this size."""
_MAP_COST_BYTES = 8 << 10
"""Disk space of a new blob before any page of it is kept: its map and the first block of its inode."""
_HASH_BYTES = 4 << 20
_ONLY_READ = (errno.EROFS, errno.EACCES, errno.EPERM)

MOST_OPEN = min(256, max(2, system.allowed_descriptors() // 16))
"""Blobs whose files stay open, of all caches of the process: each has two descriptors."""
_open_blobs: dict[tuple[int, str], weakref.ref[PageCache]] = {}
"""Those blobs and their caches, the one opened first in front."""
_opening = ThreadLock()


class PageFile:
    """The cached pages of one blob, shared by all processes that have it open."""

    def __init__(self, data_path: Path, map_path: Path, blob_bytes: int) -> None:
        self.data_path = data_path
        self.blob_bytes = blob_bytes
        self.map_fd, self.is_read_only = _open_shared(map_path)
        self._data_fd, _ = _open_shared(data_path)
        count = page_count(blob_bytes)
        map_file = system.map_to_read if self.is_read_only else system.map_to_write
        numbers = np.frombuffer(map_file(self.map_fd, 8 * (_HEADER_NUMBERS + count)), np.uint64)
        self._header, self._entries = numbers[:_HEADER_NUMBERS], numbers[_HEADER_NUMBERS:]
        self._bytes = system.map_to_read(self._data_fd, blob_bytes)
        self._checked = checked_pages(str(data_path), FileStamp.of(self._data_fd), count)
        self._lock = threading.Lock()
        self._pins = 0
        self._touched_s = 0.0

    def pin(self) -> bool:
        """Keep the blob from being evicted until `unpin`; False when it was evicted or cut before."""
        with self._lock:
            if self._pins == 0 and not locks.lock_range(
                self.map_fd, PIN_LOCK_OFFSET, 1, shared=True, timeout_s=_PIN_TIMEOUT_S
            ):
                fact = "timed out waiting for the cache lock of this blob"
                raise UnavailableError(fact, path=self.data_path)
            self._pins += 1
        is_here = False
        try:
            # Reading a mapping of a file that was cut would end the process.
            is_cut = os.fstat(self._data_fd).st_size < self.blob_bytes
            is_here = not is_cut and os.fstat(self.map_fd).st_nlink > 0
            now = time.monotonic()
            if is_here and now - self._touched_s > _TOUCH_S:  # eviction takes the longest unused first
                self._touched_s = now
                if not self.is_read_only:
                    os.utime(self.map_fd)
        finally:
            if not is_here:
                self.unpin()
        return is_here

    def unpin(self) -> None:
        """Undo one `pin`."""
        with self._lock:
            self._pins -= 1
            if self._pins == 0:
                locks.unlock_range(self.map_fd, PIN_LOCK_OFFSET, 1)

    def lock_pages(self, run: tuple[int, int], timeout_s: float = 0.0) -> bool:
        """Lock the pages [first, last) against other processes; whether that was possible within the timeout."""
        return locks.lock_range(self.map_fd, PAGE_LOCK_BASE + run[0], run[1] - run[0], timeout_s=timeout_s)

    def unlock_pages(self, run: tuple[int, int]) -> None:
        """Undo one `lock_pages`."""
        locks.unlock_range(self.map_fd, PAGE_LOCK_BASE + run[0], run[1] - run[0])

    def missing(self, first: int, last: int) -> list[int]:
        """The pages of [first, last) that are absent, or present but damaged."""
        if self._checked[first:last].all() and self._entries[first:last].all():
            return []
        here = (self._entries[first:last] & np.uint64(_PRESENT)) != 0
        for page in (np.flatnonzero(here & ~self._checked[first:last]) + first).tolist():
            start = page * PAGE_BYTES
            if crc32c(self._bytes[start : start + PAGE_BYTES]) == int(self._entries[page]) & 0xFFFFFFFF:
                self._checked[page] = True
                continue
            here[page - first] = False
            if not self.is_read_only:
                self._entries[page] = 0
        return [] if here.all() else (np.flatnonzero(~here) + first).tolist()

    def seems_here(self, first: int, last: int) -> bool:
        """Whether the pages [first, last) are listed as present; `missing` also checks their sums."""
        return bool(self._entries[first:last].all())

    def read(self, start: int, end: int) -> memoryview:
        """A view of bytes whose pages are here."""
        return self._bytes[start:end]

    def write(self, first: int, pieces: Sequence[memoryview], sums: Sequence[int]) -> None:
        """Keep consecutive pages that begin at page `first`, whose checksums are `sums`."""
        system.write_pieces(self._data_fd, pieces, first * PAGE_BYTES)
        self._entries[first : first + len(pieces)] = np.asarray(sums, np.uint64) | np.uint64(_PRESENT)
        self._checked[first : first + len(pieces)] = True

    def drop(self, first: int = 0, last: int | None = None) -> None:
        """Forget the pages [first, last), all by default; nothing happens if the cache is read only."""
        if not self.is_read_only:
            self._entries[first:last] = 0
            self._checked[first:last] = False
            self._header[_WHOLE] = 0

    @property
    def is_complete(self) -> bool:
        """Whether every page is here."""
        return bool((self._entries & np.uint64(_PRESENT)).all())

    @property
    def present_bytes(self) -> int:
        """How many bytes are here."""
        past_end = len(self._entries) * PAGE_BYTES - self.blob_bytes if self._entries[-1] else 0
        return int(np.count_nonzero(self._entries)) * PAGE_BYTES - past_end

    def is_whole(self, sha256: str) -> bool:
        """Whether every page is here and all of them together have this hash."""
        if not self.is_complete:
            return False
        if self._header[_WHOLE]:
            return True
        running = RunningSha256()
        for start in range(0, self.blob_bytes, _HASH_BYTES):
            running.update(self._bytes[start : start + _HASH_BYTES])
        if running.hexdigest() != sha256:
            return False
        if not self.is_read_only:
            self._header[_WHOLE] = 1
        return True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for name in ("map_fd", "_data_fd"):
            if hasattr(self, name):
                close(getattr(self, name))  # the module is gone by now where the interpreter ends


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Contents of a cache folder."""

    folder: str
    limit_bytes: int
    used_bytes: int
    blobs: int
    whole_blobs: int
    files: int


@dataclass(frozen=True, slots=True)
class _Entry:
    map_path: Path
    used_bytes: int
    touched_s: float


class PageCache:
    """Pages of blobs below one folder, never more than `limit_bytes` of them."""

    def __init__(self, folder: str | os.PathLike[str], limit_bytes: int) -> None:
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._blobs, self._members = self.folder / "blobs", self.folder / "members"
        self._has_complained = False
        self._lock_fd = -1
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Start with no open files: locks belong to open files, so a forked child must not use its parent's."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
        self._open: dict[str, PageFile] = {}
        self._lock = threading.RLock()
        self._lock_fd = -1
        self._is_read_only = False
        self._stuck_until_s = 0.0
        self._used: int | None = None

    def pin_blob(self, name: str, blob_bytes: int, *, make: bool = True) -> PageFile | None:
        """The page file of a blob, created if needed and pinned: call `unpin` after the read.

        None if nothing of the blob is here and nothing can be written, or is to be created.
        """
        while True:
            with self._lock:
                file = self._open.get(name) or self._open_blob(name, blob_bytes, make=make)
            if file is None:
                return None
            with commit.map_os_errors(file.data_path):
                if file.pin():
                    return file
            with self._lock:
                if self._open.get(name) is file:
                    self._open.pop(name, None)

    def find_open(self, name: str) -> PageFile | None:
        """The page file of a blob if this process has it open; it may be evicted at any time."""
        return self._open.get(name)

    def keep(self, file: PageFile, first: int, pieces: list[memoryview], sums: list[int]) -> bool:
        """Keep pages of a pinned blob if there is room or room can be made; False when there is not."""
        if file.is_read_only:
            return False
        size = sum(align_up(piece.nbytes, _BLOCK_BYTES) for piece in pieces)
        try:
            with self._exclusive(), commit.map_os_errors(file.data_path):
                if not self._make_room(size):
                    return False
                file.write(first, pieces, sums)
        except StoreError as error:
            # A full disk or a stuck process is no reason to fail a read whose bytes are here; it is logged.
            self.complain(error)
            return False
        return True

    def is_writable(self) -> bool:
        """Whether anything can be kept here."""
        with self._exclusive():
            return not self._is_read_only

    def has_room(self, size: int, blobs: int = 0) -> bool:
        """Whether `size` more bytes of so many blobs, all of them new, fit without evicting anything."""
        size += blobs * _MAP_COST_BYTES
        with self._exclusive():
            if self._is_read_only:
                return False
            # The shared count may be too high, never too low: a new scan decides.
            return self._read_used() + size <= self.limit_bytes or self._scan() + size <= self.limit_bytes

    def complain(self, error: StoreError) -> None:
        """Log once that reading goes on without the cache."""
        if not self._has_complained:
            self._has_complained = True
            _log.warning("reading without the cache: %s", error)

    def member_path(self, name: str) -> Path:
        """The path of an extracted member."""
        return self._members / name[:2] / name

    def keep_member(self, name: str, data: memoryview) -> Path:
        """Keep an extracted member as a file of its own."""
        path = self.member_path(name)
        with self._exclusive(), commit.map_os_errors(path):
            self._check_writable()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(align_up(data.nbytes, _BLOCK_BYTES))
            commit.write_file(path, data, durable=False)
        return path

    def stats(self) -> CacheStats:
        """Contents of the folder now."""
        entries = self._entries()
        maps = [entry.map_path for entry in entries if entry.map_path.suffix == _MAP]
        whole = sum((header := _read_header(path)) is not None and bool(header[_WHOLE]) for path in maps)
        used = sum(entry.used_bytes for entry in entries)
        others = len(entries) - len(maps)
        return CacheStats(str(self.folder), self.limit_bytes, used, len(maps), whole, others)

    def gc(self, limit_bytes: int | None = None) -> int:
        """Evict what was unused longest until at most `limit_bytes` are used; returns the bytes freed."""
        with self._exclusive():
            self._check_writable()
            before = self._scan()
            return before - self._evict(self.limit_bytes if limit_bytes is None else limit_bytes, before)

    def remove(self, names: Collection[str] | None = None) -> int:
        """Remove the pages of blobs by their cache names (None: everything); returns the bytes freed."""
        with self._exclusive():
            self._check_writable()
            before = self._scan()
            entries = [e for e in self._entries() if names is None or e.map_path.stem in names]
            freed = sum(entry.used_bytes for entry in entries if _remove(entry.map_path))
            self._write_used(before - freed)
            return freed

    def close(self) -> None:
        """Close every file; nothing is lost."""
        with self._lock:
            self._open.clear()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def _check_writable(self) -> None:
        if self._is_read_only:
            hint = "Set WARP_CACHE_DIR to a folder that can be written."
            raise PermissionError_("this cache can only be read", path=self.folder, hint=hint)

    def _open_blob(self, name: str, blob_bytes: int, *, make: bool) -> PageFile | None:
        map_path = self._blobs / name[:2] / (name + _MAP)
        data_path = map_path.with_suffix(_DATA)
        with self._exclusive(), commit.map_os_errors(map_path):
            if not _is_usable(map_path, data_path, blob_bytes):
                if self._is_read_only or not make:
                    return None
                self._make_room(_MAP_COST_BYTES)
                _create(map_path, data_path, blob_bytes)
            file = PageFile(data_path, map_path, blob_bytes)
        self._open[name] = file
        with _opening:  # close the files that were opened first, of any cache; reads of them go on
            _open_blobs.pop((id(self), name), None)
            _open_blobs[id(self), name] = weakref.ref(self)
            while len(_open_blobs) > MOST_OPEN:
                first = next(iter(_open_blobs))
                cache = _open_blobs.pop(first)()
                if cache is not None:
                    cache._open.pop(first[1], None)
        return file

    def _make_room(self, size: int) -> bool:
        """Make room for `size` bytes by the shared count, or by a new scan of the disk."""
        used = self._read_used()
        if used + size > self.limit_bytes:
            used = self._scan()
            if used + size > self.limit_bytes:
                used = self._evict(int(self.limit_bytes * _SLACK) - size, used)
            if used + size > self.limit_bytes:
                self._write_used(used)
                return False
        self._write_used(used + size)
        return True

    def _evict(self, limit_bytes: int, used: int) -> int:
        for entry in sorted(self._entries(), key=lambda entry: entry.touched_s):
            if used <= limit_bytes:
                break
            if _remove(entry.map_path):
                used -= entry.used_bytes
        self._write_used(used)
        return used

    def _scan(self) -> int:
        """The bytes in use; first removes leftovers of killed processes: bytes without a map, temporary files."""
        for path in self._blobs.glob("*/*"):
            is_unmapped = path.suffix == _DATA and not path.with_suffix(_MAP).exists()
            if is_unmapped or commit.TEMP_MARK in path.name:
                path.unlink(missing_ok=True)
        return sum(entry.used_bytes for entry in self._entries())

    def _entries(self) -> list[_Entry]:
        entries = []
        for path in (*self._blobs.glob(f"*/*{_MAP}"), *self._members.glob("*/*")):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                used = stat.st_blocks * 512
                if path.suffix == _MAP:
                    used += path.with_suffix(_DATA).stat().st_blocks * 512
                entries.append(_Entry(path, used, stat.st_mtime))
        return entries

    def _read_used(self) -> int:
        data = system.read_some(self._lock_fd, 8, 0)
        return int.from_bytes(data, "little") if len(data) == 8 else self._scan()

    def _write_used(self, used: int) -> None:
        self._used = used
        system.write_some(self._lock_fd, memoryview(max(used, 0).to_bytes(8, "little")), 0)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let one thread of one process change the folder at a time; the lock dies with its process."""
        with self._lock:
            if self._lock_fd < 0:
                self._lock_fd, self._is_read_only = self._open_lock()
            if self._is_read_only:
                yield
                return
            # A process that was stopped while it holds the lock is not waited for again and again.
            timeout_s = 0.1 if time.monotonic() < self._stuck_until_s else _FOLDER_TIMEOUT_S
            if not locks.lock_range(self._lock_fd, 0, 1, timeout_s=timeout_s):
                self._stuck_until_s = time.monotonic() + _STUCK_S
                raise UnavailableError(
                    "timed out waiting for the lock of the cache",
                    path=self.folder,
                    hint="Look for a stopped process that uses this cache, or set WARP_CACHE_DIR to another folder.",
                )
            try:
                with commit.map_os_errors(self.folder):
                    yield
            finally:
                locks.unlock_range(self._lock_fd, 0, 1)

    def _open_lock(self) -> tuple[int, bool]:
        path = self.folder / "usage"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return _open_shared(path, os.O_CREAT)
        except OSError as error:
            hint = "Set WARP_CACHE_DIR to a folder that can be written, or use mode='remote'."
            raise StoreError(f"the cache cannot be used ({error.strerror})", path=path, hint=hint) from None


page_cache = functools.cache(PageCache)
"""One cache per folder and process: it keeps files open."""


def _read_header(map_path: Path) -> NDArray[np.uint64] | None:
    """The header of a map; None if it is missing or not a map of this version."""
    try:
        with map_path.open("rb") as file:
            data = file.read(8 * _HEADER_NUMBERS)
    except FileNotFoundError:
        return None
    header = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    is_map = len(header) == _HEADER_NUMBERS and header[0] == _MAGIC and header[2] == PAGE_BYTES
    return header if is_map else None


def _is_usable(map_path: Path, data_path: Path, blob_bytes: int) -> bool:
    header = _read_header(map_path)
    if header is None or header[1] != blob_bytes:
        return False
    try:
        sizes = (map_path.stat().st_size, data_path.stat().st_size)
    except FileNotFoundError:
        return False
    return sizes == (8 * (_HEADER_NUMBERS + page_count(blob_bytes)), blob_bytes)


def _create(map_path: Path, data_path: Path, blob_bytes: int) -> None:
    map_path.unlink(missing_ok=True)
    data_path.unlink(missing_ok=True)
    map_path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, blob_bytes)
    finally:
        os.close(fd)
    numbers = np.zeros(_HEADER_NUMBERS + page_count(blob_bytes), np.uint64)
    numbers[:_WHOLE] = _MAGIC, blob_bytes, PAGE_BYTES
    commit.write_file(map_path, numbers.data, durable=False)


def _remove(path: Path) -> bool:
    """Delete an entry unless it is being read."""
    if path.suffix != _MAP:
        path.unlink(missing_ok=True)
        return True
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not locks.lock_range(fd, PIN_LOCK_OFFSET, 1):
            return False
        path.unlink(missing_ok=True)
        path.with_suffix(_DATA).unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _open_shared(path: Path, flags: int = 0) -> tuple[int, bool]:
    """A file of the cache, and whether it can only be read: a cache on a read-only disk is still of use."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666), False
    except OSError as error:
        if error.errno not in _ONLY_READ:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), True
