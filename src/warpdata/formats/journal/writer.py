"""Journals as they are written, through mapped memory: once `append` returns, the kernel owns the bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import align_up, byte_view
from warpdata.bytekit.checksum import crc32c, crc32c_at_once
from warpdata.bytekit.io.append_file import GrowingFile
from warpdata.bytekit.io.commit import TEMP_MARK, fsync_folder, map_os_errors, write_at
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process import system
from warpdata.bytekit.process.locks import FileLock, is_locked
from warpdata.errors import JournalInUseError, LimitExceededError
from warpdata.formats.journal import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer


MAX_MAPPED_BYTES = 8 << 20
"""Where larger records may come, most are small."""
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


class JournalWriter(GrowingFile):
    """One open journal file: the only writer of its path, holding a lock that dies with the process.

    One thread appends; others may prepare windows, sync and publish meanwhile. The room ahead of the last record is
    allocated: an end mark, zeros.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        descriptor: Mapping[str, Any],
        *,
        max_record_bytes: int,
        publish: bool = True,
        in_memory: bool = False,
    ) -> None:
        """Without `publish` the caller does that later; for `in_memory` see `create_file`."""
        if not 0 < max_record_bytes <= layout.MAX_RECORD_BYTES:
            raise LimitExceededError(
                f"a record of {max_record_bytes} bytes, at most {layout.MAX_RECORD_BYTES} are allowed",
                path=path,
            )
        self.on_advance: Callable[[], None] | None = None
        """Called when there is something to prepare, so that another thread can do it."""
        self._max_record_bytes, self._is_in_memory = max_record_bytes, in_memory
        head = pack_head(descriptor, max_record_bytes)
        record_bytes = layout.record_span(max_record_bytes if max_record_bytes <= MAX_MAPPED_BYTES else 0)
        self._overlap = max(OVERLAP_BYTES, align_up(record_bytes + layout.RECORD_BYTES, PAGE_BYTES))
        wanted = min(RECORDS_PER_WINDOW * align_up(record_bytes, PAGE_BYTES), MAX_WINDOW_BYTES)
        self._stride = max(WINDOW_BYTES, wanted, self._overlap)
        self._next: tuple[int, mmap.mmap] | None = None
        self._retired: list[mmap.mmap] = []
        self._faulted = self._synced = 0
        """End of the pages that were faulted in, and of what is on the disk."""
        self._touched = 0
        """End of the bytes of an unfinished record, left by Ctrl-C."""
        self._preparing, self._syncing = threading.Lock(), threading.Lock()
        # Under its own name a file always has a whole header: one that has not was damaged, not just begun.
        self._temp: str | None
        with map_os_errors(path):
            self._temp, self._lock, fd = create_file(path, WINDOW_BYTES if in_memory else None)
            super().__init__(path, fd, 0)
            try:
                write_at(fd, head + layout.end_mark(len(head)), 0)
                self._window_start, self._window = 0, map_window(fd, 0, self._stride + self._overlap)
                self.position = self.records_offset = self._touched = len(head)
                self._reach()
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

    def append(self, stream: int, first_step: int, steps: int, ts_ns: int, *parts: Buffer) -> int:
        """Add one record made of `parts`; when this returns it survives the death of the process."""
        views = [byte_view(part) for part in parts]
        size = sum(view.nbytes for view in views)
        if size > self._max_record_bytes:
            raise LimitExceededError(
                f"a record of {size} bytes, at most {self._max_record_bytes} were announced", path=self.path
            )
        span = layout.record_span(size)
        base = self._place(span)
        window = self._window
        if base + span + layout.RECORD_BYTES > len(window):
            head = bytearray(layout.RECORD_BYTES)
            layout.RECORD.pack_into(head, 0, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
            checksum = crc32c(head[layout.CHECKED_FROM :])
            for view in views:
                checksum = crc32c(view, checksum)
            return self._write_past_windows([head, *views], layout.CRC.pack(checksum), span)
        # First: an end is marked at any moment, here or behind the new record.
        window[base + span : base + span + layout.RECORD_BYTES] = layout.end_mark(self.position + span)
        at = base + layout.RECORD_BYTES
        for view in views:
            window[at : at + view.nbytes] = view
            at += view.nbytes
        layout.RECORD.pack_into(window, base, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
        with memoryview(window) as whole, whole[base + layout.CHECKED_FROM : at] as checked:
            checksum = crc32c_at_once(checked)
        layout.CRC.pack_into(window, base + layout.CRC_AT, checksum)
        return self._end_record(span)

    def append_step(self, record: StepRecord, step: int, ts_ns: int) -> int:
        """Add what a record was filled with, as this step."""
        span = record.size
        base = self._place(span)
        record.stamp(step, ts_ns, self.position + span)
        window = self._window
        if base + len(record.buffer) > len(window):
            head, rest = record.head, record.rest[: -layout.RECORD_BYTES]
            pieces: list[Buffer] = [
                head[: layout.CRC_AT], bytes(layout.CRC.size), head[layout.CHECKED_FROM :], rest,
            ]  # fmt: skip
            checksum = head[layout.CRC_AT : layout.CHECKED_FROM]
            return self._write_past_windows(pieces, checksum, span)
        window[base + layout.RECORD_BYTES : base + len(record.buffer)] = record.rest
        window[base : base + layout.RECORD_BYTES] = record.head
        return self._end_record(span)

    def read_payload(self, offset: int, out: memoryview) -> None:
        """Read back the payload of the record at `offset`."""
        self.read_into(out, offset + layout.RECORD_BYTES)

    def publish(self) -> None:
        """Make the header survive power loss and give the file its name; what is published already stays so."""
        with self._syncing, map_os_errors(self.path):
            self._publish()

    def _publish(self) -> None:
        if self._temp is None or self._fd < 0:
            return
        if not self._is_in_memory:
            sync_range(self._fd, 0, self.records_offset + layout.RECORD_BYTES)
        try:
            system.rename_new(self._temp, self.path)
        except FileExistsError:
            hint = f"Run `warp salvage {self.path}`, then record again."
            raise JournalInUseError("a journal is already there", path=self.path, hint=hint) from None
        self._temp = None
        if not self._is_in_memory:
            fsync_folder(os.path.dirname(self.path))

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
                sync_range(self._fd, self._synced, end + layout.RECORD_BYTES)
                self._synced = end

    def trim(self) -> None:
        """Give back the room ahead of the last record already: nothing is appended any more, and the records stay."""
        self.on_advance = None
        with self._preparing, self._syncing:
            if self._fd >= 0:
                self._unmap()
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self.position + layout.RECORD_BYTES)

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
                        os.ftruncate(fd, self.position + layout.RECORD_BYTES)
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

    def _end_record(self, span: int) -> int:
        start = self.position
        self.position = start + span
        return start

    def _clear(self) -> None:
        """Wipe what an interrupted call left where the next record goes: it would be taken for damage."""
        mark, end = layout.end_mark(self.position), self._touched + layout.RECORD_BYTES
        with map_os_errors(self.path):
            write_at(self._fd, mark, self.position)
            for at in range(self.position + len(mark), end, len(_ZEROS)):
                write_at(self._fd, memoryview(_ZEROS)[: end - at], at)

    def _write_past_windows(self, pieces: Sequence[Buffer], checksum: Buffer, span: int) -> int:
        """A record that no window holds: allocated and written as it is, the checksum last."""
        # A window being prepared is filled with zeros where that is how a disk allocates: not over this record.
        with map_os_errors(self.path), self._preparing:
            try:
                system.allocate(self._fd, self.position, span + layout.RECORD_BYTES)
            except OSError:
                self._touched = self.position
                raise
            write_at(self._fd, layout.end_mark(self.position + span), self.position + span)
            system.write_pieces(self._fd, pieces, self.position)
            write_at(self._fd, checksum, self.position + layout.CRC_AT)
        return self._end_record(span)

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
        # Waiting for a window that is being prepared is quicker than faulting in another one page by page. And one
        # thread allocates at a time: where that is done by writing zeros, the other would write over new records.
        with self._preparing, map_os_errors(self.path):
            prepared, self._next = self._next, None
            if prepared is not None:
                if prepared[0] == start:
                    return prepared[1]
                self._retired.append(prepared[1])  # a large record went beyond it
            return map_window(self._fd, start, self._stride + self._overlap)

    def _unmap(self) -> None:
        while self._retired:
            self._retired.pop().close()
        if self._next is not None:
            self._next[1].close()
            self._next = None
        if hasattr(self, "_window"):
            self._window.close()


class StepRecord:
    """A record of fixed size that is filled and appended again and again, with the end mark that follows it."""

    def __init__(self, stream: int, payload_bytes: int) -> None:
        self.size = layout.record_span(payload_bytes)
        self.buffer = bytearray(self.size) + layout.end_mark(0)
        layout.RECORD.pack_into(self.buffer, 0, layout.RECORD_MAGIC, 0, payload_bytes, stream, 1, 0, 0)
        whole, end = memoryview(self.buffer), layout.RECORD_BYTES + payload_bytes
        self.payload = whole[layout.RECORD_BYTES : end]
        self.head, self.rest = whole[: layout.RECORD_BYTES], whole[layout.RECORD_BYTES :]
        self._checked = whole[layout.CHECKED_FROM : end]
        self._mark_at = self.size + layout.STEP_AT

    def stamp(self, step: int, ts_ns: int, end: int) -> None:
        """Set step, time and checksum, and where in the file the record will end."""
        layout.STEP.pack_into(self.buffer, layout.STEP_AT, step, ts_ns)
        layout.STEP.pack_into(self.buffer, self._mark_at, end, 0)
        layout.CRC.pack_into(self.buffer, layout.CRC_AT, crc32c(self._checked))


class SlotFile(GrowingFile):
    """All slots are mapped for as long as it is open: to fill one costs a copy and a checksum."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        descriptor: Mapping[str, Any],
        *,
        slots: int,
        record_bytes: int,
        in_memory: bool = True,
    ) -> None:
        name = os.fspath(path)
        head = pack_head({**descriptor, "slots": slots}, record_bytes)
        self._first, self._stride, self._size = len(head), layout.record_span(record_bytes), record_bytes
        size_bytes = self._first + slots * self._stride
        with map_os_errors(name):
            temp, self._lock, fd = create_file(name, size_bytes if in_memory else None)
            super().__init__(name, fd, size_bytes)
            try:
                self._window = map_window(fd, 0, size_bytes)
                system.populate_to_write(self._window)
                for slot in range(slots):
                    place = self._first + slot * self._stride
                    self._window[place : place + layout.RECORD_BYTES] = layout.end_mark(place)
                write_at(fd, head, 0)
                system.rename_new(temp, name)
            except BaseException:
                self.close()
                remove_file(temp)
                raise

    def write(self, slot: int, stream: int, step: int, ts_ns: int, data: Buffer) -> None:
        """Put a record into a slot; when this returns it survives the death of the process."""
        self._open_fd()
        window, view = self._window, byte_view(data)
        base = self._first + slot * self._stride
        start, end = base + layout.RECORD_BYTES, base + layout.RECORD_BYTES + self._size
        head = bytearray(layout.RECORD_BYTES)
        layout.RECORD.pack_into(head, 0, layout.RECORD_MAGIC, 0, self._size, stream, 1, step, ts_ns)
        # A record without steps is none: this byte goes first and comes back last.
        window[base + layout.STEPS_AT] = 0
        window[start:end] = view
        checksum = crc32c(memoryview(head)[layout.CHECKED_FROM :])
        with memoryview(window) as whole, whole[start:end] as payload:
            checksum = crc32c_at_once(payload, checksum)
        layout.CRC.pack_into(head, layout.CRC_AT, checksum)
        head[layout.STEPS_AT] = 0
        window[base:start] = head
        window[base + layout.STEPS_AT] = 1

    def read_payload(self, slot: int, out: memoryview) -> None:
        """Read back the payload of the record in a slot."""
        start = self._first + slot * self._stride + layout.RECORD_BYTES
        with memoryview(self._window) as whole:
            out[:] = whole[start : start + self._size]

    def sync_slot(self, slot: int) -> None:
        """Make the record in a slot survive power loss."""
        start = self._first + slot * self._stride
        with map_os_errors(self.path):
            sync_range(self._open_fd(), start, start + self._stride)

    def close(self) -> None:
        """Close the file; what is in it stays."""
        if hasattr(self, "_window"):
            with contextlib.suppress(BufferError):  # in a child: a thread of the parent was using it
                self._window.close()
        super().close()
        self._lock.let_go()

    def in_child(self) -> None:
        """Close the file."""
        self.close()


def pack_head(descriptor: Mapping[str, Any], max_record_bytes: int) -> bytes:
    """The bytes before the first record."""
    text = dump_json(descriptor)
    if len(text) > layout.MAX_DESCRIPTOR_BYTES:
        raise LimitExceededError(f"a descriptor of {len(text)} bytes is too large")
    records_offset = align_up(layout.HEADER_BYTES + len(text), layout.RECORDS_ALIGNMENT)
    fields = layout.RecordingHeader(
        layout.MAGIC, layout.VERSION, layout.FLAGS, len(text), crc32c(text), records_offset, max_record_bytes,
        secrets.token_bytes(16), 0,
    )  # fmt: skip
    head = bytearray(layout.HEADER.pack(*fields))
    layout.CRC.pack_into(head, layout.HEADER_CHECKED.stop, crc32c(head[layout.HEADER_CHECKED]))
    head = head.ljust(layout.HEADER_BYTES, b"\0") + text
    return bytes(head.ljust(records_offset, b"\0"))


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
