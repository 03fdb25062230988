"""A file that is appended to through memory: what a recording survives `kill -9` by."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.io.append_file import GrowingFile
from warpdata.bytekit.io.commit import TEMP_MARK, fsync_folder, map_os_errors, os_error, write_at
from warpdata.bytekit.process import system
from warpdata.bytekit.process.locks import FileLock, is_locked
from warpdata.errors import JournalInUseError

if TYPE_CHECKING:
    from typing_extensions import Buffer


PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
WINDOW_BYTES = 1 << 20
MAX_WINDOW_BYTES, RECORDS_PER_WINDOW = 8 << 20, 256
"""A window of few records would be full before the next one is made."""
OVERLAP_BYTES = 128 << 10
"""Windows overlap by so much, or by a record. A record that fits in none is written past them.

Twice as much in front of the next record is faulted in: pages that are dirty long before they are full are written
to the disk twice.
"""
_LOCK_TIMEOUT_S = 10.0
_ZEROS = bytes(1 << 16)
_PREFIX, _PRIVATE = "warpdata-", 0o600
"""Of files in memory."""


def map_window(fd: int, start: int, size_bytes: int) -> mmap.mmap:
    """Allocate and map [start, start + size) of a file; a full disk is an OSError here, no fault later."""
    system.allocate(fd, start, size_bytes)
    return mmap.mmap(fd, size_bytes, offset=start)


def sync_range(fd: int, start: int, end: int) -> None:
    """Bring the bytes [start, end) of a file to the disk, written through any mapping."""
    # Syncing the whole file would write and protect pages mapped ahead, which then fault again one by one;
    # a range can only be named through a mapping, which costs nothing as long as it is not touched.
    first = start // PAGE_BYTES * PAGE_BYTES
    with mmap.mmap(fd, end - first, offset=first) as window:
        system.sync_mapped(window, fd)


class MappedFile(GrowingFile):
    """A growing file that is appended to through memory: once a record is copied, the kernel owns its bytes.

    It is new, and locked for as long as its writer lives; the lock dies with the process. One thread appends; others
    may prepare windows, sync and publish meanwhile. The room ahead of the last record is allocated: an end mark, zeros.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        head: bytes,
        *,
        record_bytes: int,
        end_mark: Callable[[int], bytes],
        publish: bool,
        in_memory: bool,
    ) -> None:
        """Records of up to `record_bytes` always fit in a window; `end_mark` makes what stands behind the last one.

        Without `publish` the caller does that later. `in_memory`: see `create_file`.
        """
        self.on_advance: Callable[[], None] | None = None
        """Called when a window is taken, so that another thread can prepare the next one."""
        self._is_in_memory = in_memory
        self._end_mark, self._room_bytes = end_mark, len(end_mark(0))
        self._overlap = max(OVERLAP_BYTES, align_up(record_bytes + self._room_bytes, PAGE_BYTES))
        wanted = min(RECORDS_PER_WINDOW * align_up(record_bytes, PAGE_BYTES), MAX_WINDOW_BYTES)
        self._stride = max(WINDOW_BYTES, wanted, self._overlap)
        self._next: tuple[int, mmap.mmap] | None = None
        self._retired: list[mmap.mmap] = []
        self._faulted = 0
        """End of the pages that were faulted in."""
        self._synced = 0
        self._touched = 0
        """End of the bytes of an unfinished record, left by Ctrl-C."""
        self._preparing, self._syncing = threading.Lock(), threading.Lock()
        # Under its own name a file always has a whole header: one that has not was damaged, not just begun.
        self._folder = os.path.dirname(os.fspath(path))
        self._temp: str | None
        with map_os_errors(path):
            self._temp, self._lock, fd = create_file(path, WINDOW_BYTES if in_memory else None)
            super().__init__(path, fd, 0)
            try:
                self._begin(head)
                if publish:
                    self.publish()
            except BaseException:
                self.discard()
                raise

    def in_child(self) -> None:
        """Close the file, unless a thread of the parent was using it."""
        self._preparing, self._syncing = threading.Lock(), threading.Lock()
        with contextlib.suppress(BufferError):
            self._unmap()
        super().in_child()

    def _begin(self, head: bytes) -> None:
        write_at(self._fd, head + self._end_mark(len(head)), 0)
        self._window_start = 0
        self._window = map_window(self._fd, 0, self._stride + self._overlap)
        self.position = self.records_offset = self._touched = len(head)
        self._reach()

    def publish(self) -> None:
        """Make the header survive power loss and give the file its name; what is published already stays so."""
        with self._syncing, map_os_errors(self.path):
            self._publish()

    def _publish(self) -> None:
        if self._temp is None or self._fd < 0:
            return
        if not self._is_in_memory:
            sync_range(self._fd, 0, self.records_offset + self._room_bytes)
        system.rename_new(self._temp, self.path)
        self._temp = None
        if not self._is_in_memory:
            fsync_folder(self._folder)

    def prepare(self) -> None:
        """Map the next window, fault in what comes next, and unmap windows behind: the recorder waits for nothing."""
        with self._preparing:
            if self._fd < 0:
                return
            position, stride = self.position, self._stride
            windows = [(self._window_start, self._window)]
            if self._next is None and position >= self._window_start + stride // 2:
                start = self._window_start + stride
                self._next = start, map_window(self._fd, start, stride + self._overlap)
            if self._next is not None:
                windows.append(self._next)
            # A file in memory never reaches the disk: all of it at once.
            end = position + (2 * stride if self._is_in_memory else 2 * self._overlap)
            for start, window in windows:
                first, last = max(position, self._faulted, start), min(end, start + stride)
                if first < last:
                    system.populate_to_write(window, first - start, last - start)
                    self._faulted = last
            while self._retired:
                self._retired.pop(0).close()

    def sync(self) -> None:
        """Make what was appended survive power loss."""
        with self._syncing, map_os_errors(self.path):
            end = self.position
            if end > self._synced and self._fd >= 0:
                self._publish()
                sync_range(self._fd, self._synced, end + self._room_bytes)
                self._synced = end

    def trim(self) -> None:
        """Give back the room ahead of the last record already: nothing is appended any more, and the records stay."""
        self.on_advance = None
        with self._preparing, self._syncing:
            if self._fd >= 0:
                self._unmap()
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self.position + self._room_bytes)

    def close(self, *, durable: bool = True, unlock: bool = True) -> None:
        """Give back the room ahead of the last record, and close; not `durable` where the file is deleted next.

        Without `unlock` the file stays locked until that is called.
        """
        with self._preparing, self._syncing:
            if durable and self._fd >= 0:
                with map_os_errors(self.path):
                    self._publish()
            self._unmap()
            fd, self._fd = self._fd, -1
        if fd >= 0:
            with map_os_errors(self.path):
                try:
                    if durable:
                        os.ftruncate(fd, self.position + self._room_bytes)
                        system.sync_data(fd)
                finally:
                    os.close(fd)
                    if unlock:
                        self.unlock()

    def unlock(self) -> None:
        """Let others have the file."""
        self._lock.let_go()

    def discard(self) -> None:
        """Delete the file: what it held is gone."""
        with self._preparing, self._syncing:
            self._unmap()
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.unlock()
            remove_file(self._temp or self.path)

    def _place(self, span: int) -> int:
        """Where in the window the next record of `span` bytes goes, moving the window if need be."""
        if self._fd < 0:
            self._open_fd()
        if self.position >= self._limit:
            self._reach()
        if self._touched > self.position:
            self._clear()
        self._touched = self.position + span
        return self.position - self._window_start

    def _taken(self, span: int) -> int:
        start = self.position
        self.position = start + span
        return start

    def _clear(self) -> None:
        """Wipe what an interrupted call left where the next record goes: it would be taken for damage."""
        mark, end = self._end_mark(self.position), self._touched + self._room_bytes
        with map_os_errors(self.path):
            write_at(self._fd, mark, self.position)
            for at in range(self.position + len(mark), end, len(_ZEROS)):
                write_at(self._fd, memoryview(_ZEROS)[: end - at], at)

    def _write_past_windows(
        self, pieces: Sequence[Buffer], checksum: Buffer, checksum_at: int, span: int
    ) -> int:
        """A record that no window holds: allocated and written as it is, the checksum last."""
        # A window being prepared is filled with zeros where that is how a disk allocates: not over this record.
        with map_os_errors(self.path), self._preparing:
            try:
                system.allocate(self._fd, self.position, span + self._room_bytes)
            except OSError:
                self._touched = self.position
                raise
            write_at(self._fd, self._end_mark(self.position + span), self.position + span)
            system.write_pieces(self._fd, pieces, self.position)
            write_at(self._fd, checksum, self.position + checksum_at)
        return self._taken(span)

    def _reach(self) -> None:
        """The window is full, or it is time to prepare what comes next."""
        if self.position >= self._window_start + self._stride:
            self._advance()
        self._limit = min(self.position + self._overlap, self._window_start + self._stride)
        if self.on_advance is not None:
            self.on_advance()
        elif len(self._retired) > 1:
            self._retired.pop(0).close()

    def _advance(self) -> None:
        """Windows overlap by one record, so a record never has to be split and none leaves a gap."""
        start = self.position // self._stride * self._stride
        window = self._take_prepared(start)
        self._retired.append(self._window)
        self._window, self._window_start = window, start

    def _take_prepared(self, start: int) -> mmap.mmap:
        """The window at `start`: the one prepared ahead if there is one, else a new one."""
        # Waiting for a window that is being prepared is quicker than faulting in another one page by page.
        with self._preparing:
            prepared, self._next = self._next, None
        if prepared is not None:
            if prepared[0] == start:
                return prepared[1]
            self._retired.append(prepared[1])  # a large record went beyond it
        try:
            return map_window(self._fd, start, self._stride + self._overlap)
        except OSError as error:
            raise os_error(error, self.path) from error

    def _unmap(self) -> None:
        while self._retired:
            self._retired.pop().close()
        if self._next is not None:
            self._next[1].close()
            self._next = None
        if hasattr(self, "_window"):
            self._window.close()


def create_file(path: str | os.PathLike[str], memory_bytes: int | None) -> tuple[str, FileLock, int]:
    """Make a file for `path` under a temporary name: that name, the lock of the file, and a descriptor for its data.

    With `memory_bytes`, and where the system has so much room for files in memory, the name is that of a link to one.
    It outlives its process, as any file does, but not the system; the disk never sees it.

    Lock and descriptor are two, because each mapping duplicates the second, and what a thread maps while a child is
    forked stays open in the child.
    """
    folder, name = os.path.split(os.fspath(path))
    temp = place = os.path.join(folder, f".{name}{TEMP_MARK}{secrets.token_hex(6)}")
    memory = None if memory_bytes is None else system.memory_folder(memory_bytes)
    # A process that checks the lock holds it for a moment itself.
    lock = None
    try:
        if memory is not None:
            with contextlib.suppress(OSError):  # some file systems have no links
                os.symlink(linked := os.path.join(memory, f"{_PREFIX}{secrets.token_hex(16)}"), temp)
                place = linked
        lock = FileLock.take(place, timeout_s=_LOCK_TIMEOUT_S, mode=0o666 if place == temp else _PRIVATE)
        if lock is None:
            raise JournalInUseError("another process took the file as it was made", path=path)
        return temp, lock, os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except BaseException:
        if lock is not None:
            lock.let_go()
        remove_file(temp)
        raise


def _place_in_memory(path: str | os.PathLike[str]) -> str | None:
    """The file in memory that this is a link to; None for anything else."""
    try:
        place = os.readlink(path)
    except OSError:
        return None
    folder, name = os.path.split(place)
    return place if folder == system.SHARED_MEMORY and name.startswith(_PREFIX) else None


def remove_file(path: str) -> None:
    """Remove a file or link, and the file in memory it is a link to, unless a process has that open."""
    place = _place_in_memory(path)
    with contextlib.suppress(OSError):
        if place is not None and not is_locked(place):
            os.unlink(place)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def move_to_disk(folder: Path) -> None:
    """Replace the links of a folder to files in memory by what is in these."""
    for path in folder.glob("*.journal"):
        if _place_in_memory(path) is not None and path.exists():
            copy = path.with_name(f".{path.name}{TEMP_MARK}{secrets.token_hex(6)}")
            shutil.copyfile(path, copy)
            remove_file(str(path))
            os.replace(copy, path)
