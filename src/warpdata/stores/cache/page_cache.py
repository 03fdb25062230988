"""What stays on the local disk: pages of blobs by content hash, bounded, shared without a daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.io import commit
from warpdata.bytekit.process import locks, system
from warpdata.bytekit.process.forks import run_in_child
from warpdata.errors import PermissionError_, StoreError, UnavailableError
from warpdata.stores.cache import layout
from warpdata.stores.cache.pagefile import PageFile, open_shared

_log = logging.getLogger("warpdata.stores")

_DATA, _MAP = ".data", ".pages"
_SLACK = 0.95
"""Eviction goes a little below the limit, so that it does not run for every page."""

_FOLDER_TIMEOUT_S = 20.0
_STUCK_S = 60.0
"""How long a neighbour may hold the folder, and how long one that held it longer is not waited for again."""

_BLOCK_BYTES = 4096
"""Disks hand out space in blocks of this size."""

_MAP_COST_BYTES = 8 << 10
"""What a new blob may cost before any page of it is kept: its map and its inode's first block."""

MOST_OPEN = min(256, max(2, system.allowed_descriptors() // 16))
"""Blobs whose files stay open, of all caches of the process: each has two descriptors."""

_opened: dict[tuple[int, str], weakref.ref[PageCache]] = {}
"""Those blobs and their caches, the one opened first in front."""
_opening = locks.ThreadLock()


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache folder holds."""

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
        self._has_complained = False
        self._start()
        run_in_child(self.in_child)

    @property
    def _blobs(self) -> Path:
        return self.folder / "blobs"

    @property
    def _members(self) -> Path:
        return self.folder / "members"

    def _start(self) -> None:
        """Fresh state: locks belong to open files, so a forked child must not use its parent's."""
        self._open: dict[str, PageFile] = {}
        self._lock = threading.RLock()
        self._lock_fd = -1
        self._is_read_only = False
        self._stuck_until_s = 0.0
        self._used: int | None = None

    def in_child(self) -> None:
        """Begin anew; the files are closed, so that the locks of the parent die with the parent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
        self._start()

    def pinned(self, sha256: str, blob_bytes: int, *, make: bool = True) -> PageFile | None:
        """The page file of a blob, made if need be and pinned: call `unpin` when the read is done.

        None where nothing of the blob is here and nothing can be written, or is to be made.
        """
        while True:
            with self._lock:
                file = self._open.get(sha256) or self._opened(sha256, blob_bytes, make=make)
            if file is None:
                return None
            with commit.map_os_errors(file.data_path):
                if file.pin():
                    return file
            with self._lock:
                if self._open.get(sha256) is file:
                    self._open.pop(sha256, None)

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
            # A full disk or a stuck neighbour is no reason to fail a read: the bytes are in hand. But it is said.
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
            # The shared count may be too high, never too low: a fresh look has the last word.
            return self._read_used() + size <= self.limit_bytes or self._scan() + size <= self.limit_bytes

    def complain(self, error: StoreError) -> None:
        """Say once that reading goes on without the cache."""
        if not self._has_complained:
            self._has_complained = True
            _log.warning("reading without the cache: %s", error)

    def member_path(self, name: str) -> Path:
        """Where one extracted member is kept."""
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
        """What the folder holds now."""
        entries = self._entries()
        whole = sum(_is_whole(e.map_path) for e in entries if e.map_path.suffix == _MAP)
        files = [e for e in entries if e.map_path.suffix != _MAP]
        used = sum(e.used_bytes for e in entries)
        return CacheStats(
            str(self.folder), self.limit_bytes, used, len(entries) - len(files), whole, len(files)
        )

    def gc(self, limit_bytes: int | None = None) -> int:
        """Evict what was unused longest until at most `limit_bytes` are used; returns the bytes freed."""
        with self._exclusive():
            self._check_writable()
            before = self._scan()
            self._evict(limit_bytes if limit_bytes is not None else self.limit_bytes, before)
            return before - (self._used or 0)

    def remove(self, names: Collection[str] | None = None) -> int:
        """Remove the pages of blobs by their cache names (None: everything); returns the bytes freed."""
        with self._exclusive():
            self._check_writable()
            before = self._scan()
            used = before
            for entry in self._entries():
                if (names is None or entry.map_path.stem in names) and _remove(entry.map_path):
                    used -= entry.used_bytes
            self._write_used(used)
            return before - used

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

    def _opened(self, sha256: str, blob_bytes: int, *, make: bool) -> PageFile | None:
        map_path = self._blobs / sha256[:2] / (sha256 + _MAP)
        data_path = map_path.with_suffix(_DATA)
        with self._exclusive(), commit.map_os_errors(map_path):
            if not _is_usable(map_path, data_path, blob_bytes):
                if self._is_read_only or not make:
                    return None
                self._make_room(_MAP_COST_BYTES)
                _create(map_path, data_path, blob_bytes)
            file = PageFile(data_path, map_path, blob_bytes)
        self._open[sha256] = file
        self._close_surplus(sha256)
        return file

    def _close_surplus(self, newest: str) -> None:
        """Let go of the files that were opened first, whichever cache they are of; who reads one goes on."""
        with _opening:
            _opened.pop((id(self), newest), None)
            _opened[id(self), newest] = weakref.ref(self)
            while len(_opened) > MOST_OPEN:
                first = next(iter(_opened))
                cache = _opened.pop(first)()
                if cache is not None:
                    cache._open.pop(first[1], None)

    def _make_room(self, size: int) -> bool:
        """Make room for `size` bytes by the shared count, or by a fresh look at the disk."""
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
        for entry in sorted(self._entries(), key=lambda e: e.touched_s):
            if used <= limit_bytes:
                break
            if _remove(entry.map_path):
                used -= entry.used_bytes
        self._write_used(used)
        return used

    def _scan(self) -> int:
        for path in _orphans(self._blobs):
            path.unlink(missing_ok=True)
        return sum(entry.used_bytes for entry in self._entries())

    def _entries(self) -> list[_Entry]:
        found = [_entry(path) for path in self._blobs.glob(f"*/*{_MAP}")]
        found += [_entry(path) for path in self._members.glob("*/*")]
        return [entry for entry in found if entry is not None]

    def _read_used(self) -> int:
        data = system.read_some(self._lock_fd, 8, 0)
        return int.from_bytes(data, "little") if len(data) == 8 else self._scan()

    def _write_used(self, used: int) -> None:
        self._used = used
        system.write_some(self._lock_fd, memoryview(max(used, 0).to_bytes(8, "little")), 0)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One process, one thread changes the folder at a time; the lock dies with its process."""
        with self._lock:
            if self._lock_fd < 0:
                self._lock_fd, self._is_read_only = self._open_lock()
            if self._is_read_only:  # nothing is changed, so nobody is kept out
                yield
                return
            self._lock_folder()
            try:
                with commit.map_os_errors(self.folder):
                    yield
            finally:
                locks.unlock_range(self._lock_fd, 0, 1)

    def _lock_folder(self) -> None:
        """Wait for other processes, but not for one that was stopped in the middle, and not again and again."""
        timeout_s = 0.1 if time.monotonic() < self._stuck_until_s else _FOLDER_TIMEOUT_S
        if not locks.lock_range(self._lock_fd, 0, 1, timeout_s=timeout_s):
            self._stuck_until_s = time.monotonic() + _STUCK_S
            hint = "Look for a stopped process that uses this cache, or set WARP_CACHE_DIR to another folder."
            raise UnavailableError("timed out waiting for the lock of the cache", path=self.folder, hint=hint)

    def _open_lock(self) -> tuple[int, bool]:
        path = self.folder / "usage"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return open_shared(path, os.O_CREAT)
        except OSError as error:
            hint = "Set WARP_CACHE_DIR to a folder that can be written, or use mode='remote'."
            raise StoreError(f"the cache cannot be used ({error.strerror})", path=path, hint=hint) from None


def _is_usable(map_path: Path, data_path: Path, blob_bytes: int) -> bool:
    try:
        with map_path.open("rb") as file:
            header = layout.unpack_map_header(file.read(layout.MAP_HEADER_BYTES))
        expected = layout.MAP_HEADER_BYTES + layout.page_count(blob_bytes) * layout.MAP_ENTRY_BYTES
        sizes = (map_path.stat().st_size, data_path.stat().st_size)
    except FileNotFoundError:
        return False
    return header is not None and header.blob_bytes == blob_bytes and sizes == (expected, blob_bytes)


def _create(map_path: Path, data_path: Path, blob_bytes: int) -> None:
    map_path.unlink(missing_ok=True)
    data_path.unlink(missing_ok=True)
    map_path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, blob_bytes)
    finally:
        os.close(fd)
    entries = bytes(layout.page_count(blob_bytes) * layout.MAP_ENTRY_BYTES)
    commit.write_file(map_path, layout.pack_map_header(blob_bytes) + entries, durable=False)


def _entry(path: Path) -> _Entry | None:
    try:
        stat = path.stat()
        used = stat.st_blocks * 512
        if path.suffix == _MAP:
            used += path.with_suffix(_DATA).stat().st_blocks * 512
    except FileNotFoundError:
        return None
    return _Entry(path, used, stat.st_mtime)


def _is_whole(map_path: Path) -> bool:
    try:
        header = layout.unpack_map_header(map_path.read_bytes()[: layout.MAP_HEADER_BYTES])
    except FileNotFoundError:
        return False
    return header is not None and header.is_whole == 1


def _remove(path: Path) -> bool:
    """Delete an entry nobody reads right now."""
    if path.suffix != _MAP:
        path.unlink(missing_ok=True)
        return True
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not locks.lock_range(fd, layout.PIN_LOCK_OFFSET, 1):
            return False
        path.unlink(missing_ok=True)
        path.with_suffix(_DATA).unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _orphans(blobs: Path) -> Iterator[Path]:
    """What a killed process left: bytes without a map, and files that were never committed."""
    for path in blobs.glob("*/*"):
        unmapped = path.suffix == _DATA and not path.with_suffix(_MAP).exists()
        if unmapped or commit.TEMP_MARK in path.name:
            yield path
