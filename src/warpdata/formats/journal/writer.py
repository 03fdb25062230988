"""Append records to a memory-mapped journal: once `append` returns, the kernel owns the bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpdata.bytekit import system
from warpdata.bytekit.align import align_up
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.commit import TEMP_MARK, fsync_folder, map_os_errors, os_error, write_at
from warpdata.bytekit.forks import tell_in_child
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.locks import lock_open_file
from warpdata.bytekit.mapping import PAGE_BYTES, map_window, prefault, sync_range
from warpdata.bytekit.view import byte_view
from warpdata.errors import JournalInUseError, LimitExceededError, WriterClosedError
from warpdata.formats.journal import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_WINDOW_BYTES = 8 << 20
_LOCK_TIMEOUT_S = 10.0


class JournalWriter:
    """One open journal file: the only writer of its path, holding a lock that dies with the process."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        descriptor: Mapping[str, Any],
        *,
        max_record_bytes: int,
        on_advance: Callable[[], None] | None = None,
    ) -> None:
        if not 0 < max_record_bytes <= layout.MAX_RECORD_BYTES:
            raise LimitExceededError(
                f"a record of {max_record_bytes} bytes, at most {layout.MAX_RECORD_BYTES} are allowed",
                path=path,
            )
        self.path = os.fspath(path)
        self.on_advance = on_advance
        self._max_record_bytes = max_record_bytes
        self._overlap = align_up(layout.record_span(max_record_bytes), PAGE_BYTES)
        self._stride = max(MIN_WINDOW_BYTES, 4 * self._overlap)
        self._next: tuple[int, mmap.mmap] | None = None
        self._retired: list[mmap.mmap] = []
        self._synced = 0
        self._preparing = threading.Lock()
        # Under its own name a journal always has a whole header: one that has not was damaged, not just begun.
        folder, name = os.path.split(self.path)
        self._temp: str | None = os.path.join(folder, f".{name}{TEMP_MARK}{secrets.token_hex(6)}")
        with map_os_errors(self.path):
            self._fd = _create(self._temp)
            try:
                self._begin(_pack_head(descriptor, max_record_bytes))
                self._publish(self._temp)
                self._temp = None
                fsync_folder(folder)
            except BaseException:
                self.discard()
                raise
        tell_in_child(self)

    def in_child(self) -> None:
        """In a forked child: let go of the file, so that the lock dies with the recorder and not with its children."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Each mapping keeps the file open as well; one that a thread of the parent was writing to cannot go.
            with contextlib.suppress(BufferError):
                self._unmap()
            os.close(fd)

    def _begin(self, head: bytes) -> None:
        write_at(self._fd, head, 0)
        self._window_start = 0
        self._window = map_window(self._fd, 0, self._stride + self._overlap)
        self._limit = self._stride
        self.position = self.records_offset = len(head)
        if self.position >= self._limit:
            self._advance()
        system.sync(self._fd)

    def _publish(self, temp: str) -> None:
        try:
            system.rename_new(temp, self.path)
        except FileExistsError:
            raise JournalInUseError(
                "a journal is already there", path=self.path,
                hint=f"Run `warp salvage {self.path}`, then record again.",
            ) from None  # fmt: skip

    def append(self, stream: int, first_step: int, steps: int, ts_ns: int, *parts: Buffer) -> int:
        """Add one record made of `parts`; when this returns it survives the death of the process."""
        views = [byte_view(part) for part in parts]
        size = sum(view.nbytes for view in views)
        if size > self._max_record_bytes:
            raise LimitExceededError(
                f"a record of {size} bytes, at most {self._max_record_bytes} were announced", path=self.path
            )
        base = self._place()
        window = self._window
        at = base + layout.RECORD_BYTES
        for view in views:
            window[at : at + view.nbytes] = view
            at += view.nbytes
        layout.RECORD.pack_into(window, base, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
        with memoryview(window) as whole, whole[base + layout.CHECKED_FROM : at] as checked:
            checksum = crc32c(checked)
        layout.CRC.pack_into(window, base + layout.CRC_AT, checksum)
        return self._taken(layout.record_span(size))

    def append_packed(self, record: Buffer, size: int) -> int:
        """Add a record already packed with its header and checksum, padded to `size` bytes."""
        base = self._place()
        self._window[base : base + size] = record
        return self._taken(size)

    def prepare(self) -> None:
        """Map and fault in the next window and unmap those behind, so that the recorder need not wait for either."""
        with self._preparing:
            if self._next is None and self._fd >= 0:
                start = self._window_start + self._stride
                window = map_window(self._fd, start, self._stride + self._overlap)
                prefault(window)
                self._next = (start, window)
        while self._retired:
            self._retired.pop(0).close()

    def sync(self, start: int = 0, end: int | None = None) -> None:
        """Make what was appended, or only bytes [start, end) of it, survive power loss; one caller at a time."""
        end = self.position if end is None else end
        start = max(start, self._synced)
        if end > start:
            with map_os_errors(self.path):
                sync_range(self._fd, start, end)
            self._synced = end

    def close(self, *, durable: bool = True) -> None:
        """Give back the room ahead of the last record, and let go; not `durable` where the file is deleted next."""
        self._unmap()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with map_os_errors(self.path):
                try:
                    os.ftruncate(fd, self.position + layout.RECORD_BYTES)
                    if durable:
                        system.sync_data(fd)
                finally:
                    os.close(fd)

    def discard(self) -> None:
        """Delete the journal: what it held is gone."""
        self._unmap()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temp or self.path)
            os.close(fd)

    def _place(self) -> int:
        """Where in the window the next record goes, moving the window if need be."""
        if self._fd < 0:
            raise WriterClosedError("the journal is closed", path=self.path)
        if self.position >= self._limit:
            self._advance()
        return self.position - self._window_start

    def _taken(self, span: int) -> int:
        start = self.position
        self.position = start + span
        return start

    def _advance(self) -> None:
        """Windows overlap by one record, so a record never has to be split and none leaves a gap."""
        while self.position >= self._limit:
            start = self._window_start + self._stride
            window = self._take_prepared(start)
            self._retired.append(self._window)
            self._window, self._window_start, self._limit = window, start, start + self._stride
        if self.on_advance is not None:
            self.on_advance()
        elif len(self._retired) > 1:
            self._retired.pop(0).close()

    def _take_prepared(self, start: int) -> mmap.mmap:
        """The window at `start`: the one prepared ahead if there is one, else a new one."""
        # Waiting for a window that is being prepared is quicker than faulting in another one page by page.
        with self._preparing:
            prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == start:
            return prepared[1]
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


class StepRecord:
    """A record of fixed size that is filled, stamped and appended again and again."""

    def __init__(self, stream: int, payload_bytes: int) -> None:
        self.size = layout.record_span(payload_bytes)
        self.buffer = bytearray(self.size)
        layout.RECORD.pack_into(self.buffer, 0, layout.RECORD_MAGIC, 0, payload_bytes, stream, 1, 0, 0)
        end = layout.RECORD_BYTES + payload_bytes
        self.payload = memoryview(self.buffer)[layout.RECORD_BYTES : end]
        self._checked = memoryview(self.buffer)[layout.CHECKED_FROM : end]

    def stamp(self, step: int, ts_ns: int) -> bytearray:
        """Set step, time and checksum; the result is ready for `append_packed`."""
        layout.STEP.pack_into(self.buffer, layout.STEP_AT, step, ts_ns)
        layout.CRC.pack_into(self.buffer, layout.CRC_AT, crc32c(self._checked))
        return self.buffer


def _create(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # Whoever only asks whether it is held holds it for a moment himself.
        if not lock_open_file(fd, path, timeout_s=_LOCK_TIMEOUT_S):
            raise JournalInUseError("another process took the journal as it was made", path=path)
    except BaseException:
        os.unlink(path)
        os.close(fd)
        raise
    return fd


def _pack_head(descriptor: Mapping[str, Any], max_record_bytes: int) -> bytes:
    text = dump_json(descriptor)
    if len(text) > layout.MAX_DESCRIPTOR_BYTES:
        raise LimitExceededError(f"a descriptor of {len(text)} bytes is too large")
    records_offset = align_up(layout.HEADER_BYTES + len(text), layout.RECORDS_ALIGNMENT)
    fields = layout.Header(
        layout.MAGIC, layout.VERSION, layout.ROOM_BEHIND_FLAG, len(text), crc32c(text), records_offset,
        max_record_bytes, secrets.token_bytes(16), 0,
    )  # fmt: skip
    head = bytearray(layout.HEADER.pack(*fields))
    layout.CRC.pack_into(head, layout.HEADER_CHECKED.stop, crc32c(head[layout.HEADER_CHECKED]))
    head = head.ljust(layout.HEADER_BYTES, b"\0") + text
    return bytes(head.ljust(records_offset, b"\0"))
