"""Append records to a memory-mapped journal: once `append` returns, the kernel owns the bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
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
from warpdata.errors import JournalInUseError, LimitExceededError, TruncatedError, WriterClosedError
from warpdata.formats.journal import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_WINDOW_BYTES, MAX_WINDOW_BYTES = 1 << 20, 8 << 20
_SMALL_RECORDS_PER_WINDOW, _RECORDS_PER_WINDOW = 256, 8
"""A window of few small records would be full before the next one is made."""
MAX_MAPPED_RECORD_BYTES = 8 << 20
"""Journals of larger records write those past their windows, which would have to be several times as large."""

_SMALL_RECORD_BYTES = 64 << 10

_LOCK_TIMEOUT_S = 10.0
_ZEROS = bytes(1 << 16)


class JournalWriter:
    """One open journal file: the only writer of its path, holding a lock that dies with the process.

    One thread appends; others may prepare windows, sync, read back and publish meanwhile.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        descriptor: Mapping[str, Any],
        *,
        max_record_bytes: int,
        mapped_record_bytes: int | None = None,
        publish: bool = True,
        on_advance: Callable[[], None] | None = None,
    ) -> None:
        """Records of up to `mapped_record_bytes` always fit in a window (default: all, unless they are large).

        Without `publish` somebody does that later.
        """
        if not 0 < max_record_bytes <= layout.MAX_RECORD_BYTES:
            raise LimitExceededError(
                f"a record of {max_record_bytes} bytes, at most {layout.MAX_RECORD_BYTES} are allowed",
                path=path,
            )
        self.path = os.fspath(path)
        self.on_advance = on_advance
        self._max_record_bytes = max_record_bytes
        if mapped_record_bytes is None:
            is_large = max_record_bytes > MAX_MAPPED_RECORD_BYTES
            mapped_record_bytes = _SMALL_RECORD_BYTES if is_large else max_record_bytes
        self._overlap = align_up(layout.record_span(mapped_record_bytes), PAGE_BYTES)
        is_small = self._overlap < _SMALL_RECORD_BYTES
        records = _SMALL_RECORDS_PER_WINDOW if is_small else _RECORDS_PER_WINDOW
        wanted = min(records * self._overlap, MAX_WINDOW_BYTES)
        self._stride = max(MIN_WINDOW_BYTES, wanted, self._overlap)
        # A short recording never needs a second window; where records are large, half a window is too late.
        self._unused_ahead = self._stride // 2 if self._overlap * 4 <= self._stride else 0
        self._next: tuple[int, mmap.mmap] | None = None
        self._retired: list[mmap.mmap] = []
        self._is_faulted = False
        self._synced = 0
        self._touched = 0
        """Up to where bytes of a record may lie that was never finished: Ctrl-C came between."""
        self._preparing, self._syncing = threading.Lock(), threading.Lock()
        # Under its own name a journal always has a whole header: one that has not was damaged, not just begun.
        self._folder, name = os.path.split(self.path)
        self._temp: str | None = os.path.join(self._folder, f".{name}{TEMP_MARK}{secrets.token_hex(6)}")
        with map_os_errors(self.path):
            self._fd = _create(self._temp)
            try:
                self._begin(_pack_head(descriptor, max_record_bytes))
                if publish:
                    self.publish()
            except BaseException:
                self.discard()
                raise
        tell_in_child(self)

    def in_child(self) -> None:
        """In a forked child: let go of the file, so that the lock dies with the recorder and not with its children."""
        fd, self._fd = self._fd, -1
        self._preparing, self._syncing = threading.Lock(), threading.Lock()
        if fd >= 0:
            # Each mapping keeps the file open as well; one that a thread of the parent was writing to cannot go.
            with contextlib.suppress(BufferError):
                self._unmap()
            os.close(fd)

    def _begin(self, head: bytes) -> None:
        write_at(self._fd, head, 0)
        self._window_start = 0
        self._window = map_window(self._fd, 0, self._stride + self._overlap)
        self._limit = self._unused_ahead or self._stride
        self.position = self.records_offset = self._touched = self._released = len(head)
        if self.position >= self._limit:
            self._reach()

    def publish(self) -> None:
        """Make the header survive power loss and give the journal its name; what is published already stays so."""
        with self._syncing, map_os_errors(self.path):
            self._publish()

    def _publish(self) -> None:
        if self._temp is None or self._fd < 0:
            return
        sync_range(self._fd, 0, self.records_offset)
        try:
            system.rename_new(self._temp, self.path)
        except FileExistsError:
            raise JournalInUseError(
                "a journal is already there", path=self.path,
                hint=f"Run `warp salvage {self.path}`, then record again.",
            ) from None  # fmt: skip
        self._temp = None
        fsync_folder(self._folder)

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
        if base + span > len(window):
            head = bytearray(layout.RECORD_BYTES)
            layout.RECORD.pack_into(head, 0, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
            checksum = crc32c(head[layout.CHECKED_FROM :])
            for view in views:
                checksum = crc32c(view, checksum)
            return self._write_past_windows([head, *views], layout.CRC.pack(checksum), span)
        at = base + layout.RECORD_BYTES
        for view in views:
            window[at : at + view.nbytes] = view
            at += view.nbytes
        layout.RECORD.pack_into(window, base, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
        with memoryview(window) as whole, whole[base + layout.CHECKED_FROM : at] as checked:
            checksum = crc32c(checked)
        layout.CRC.pack_into(window, base + layout.CRC_AT, checksum)
        return self._taken(span)

    def append_packed(self, record: Buffer, size: int) -> int:
        """Add a record already packed with its header and checksum, padded to `size` bytes."""
        base = self._place(size)
        if base + size > len(self._window):
            whole = byte_view(record)
            crc_end = layout.CRC_AT + layout.CRC.size
            pieces: list[Buffer] = [whole[: layout.CRC_AT], bytes(layout.CRC.size), whole[crc_end:]]
            return self._write_past_windows(pieces, whole[layout.CRC_AT : crc_end], size)
        self._window[base : base + size] = record
        return self._taken(size)

    def read_payload(self, offset: int, out: memoryview) -> None:
        """Read back the payload of the record at `offset`."""
        position = offset + layout.RECORD_BYTES
        while out:
            got = system.read_into(self._fd, out, position)
            if not got:
                raise TruncatedError("the journal ends before its record does", path=self.path)
            out, position = out[got:], position + got

    def prepare(self) -> None:
        """Map and fault in the next window and unmap those behind, so that the recorder need not wait for either."""
        with self._preparing:
            if self._fd < 0:
                return
            if not self._is_faulted:
                self._is_faulted = True
                prefault(self._window)
            if self._next is None and self.position >= self._window_start + self._unused_ahead:
                start = self._window_start + self._stride
                window = map_window(self._fd, start, self._stride + self._overlap)
                prefault(window)
                self._next = (start, window)
            while self._retired:
                self._retired.pop(0).close()

    def sync(self, start: int = 0, end: int | None = None) -> None:
        """Make what was appended, or only bytes [start, end) of it, survive power loss."""
        with self._syncing, map_os_errors(self.path):
            end = self.position if end is None else end
            start = max(start, self._synced)
            if end > start and self._fd >= 0:
                self._publish()
                sync_range(self._fd, start, end)
                self._synced = end

    def release(self, end: int) -> None:
        """Give the records before `end` back to the disk: they are needed no more, and read as zeros."""
        with self._syncing:
            size = end - self._released
            if self._fd >= 0 and size > 0 and system.give_back(self._fd, self._released, size):
                self._released = end

    def close(self, *, durable: bool = True) -> None:
        """Give back the room ahead of the last record, and let go; not `durable` where the file is deleted next."""
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

    def discard(self) -> None:
        """Delete the journal: what it held is gone."""
        with self._preparing, self._syncing:
            self._unmap()
            fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temp or self.path)
            os.close(fd)

    def _place(self, span: int) -> int:
        """Where in the window the next record of `span` bytes goes, moving the window if need be."""
        if self._fd < 0:
            raise WriterClosedError("the journal is closed", path=self.path)
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
        with map_os_errors(self.path):
            for at in range(self.position, self._touched, len(_ZEROS)):
                write_at(self._fd, memoryview(_ZEROS)[: self._touched - at], at)

    def _write_past_windows(self, pieces: Sequence[Buffer], checksum: Buffer, span: int) -> int:
        """A record that no window holds: allocated and written as it is, the checksum last."""
        with map_os_errors(self.path):
            try:
                system.allocate(self._fd, self.position, span + layout.RECORD_BYTES)
            except OSError:
                self._touched = self.position
                raise
            system.write_pieces(self._fd, pieces, self.position)
            write_at(self._fd, checksum, self.position + layout.CRC_AT)
        return self._taken(span)

    def _reach(self) -> None:
        """The window is full, or it is time to prepare the next one."""
        end = self._window_start + self._stride
        if self.position >= end:
            self._advance()
            end = self._window_start + self._stride
        early = self._window_start + self._unused_ahead
        self._limit = early if self.position < early else end
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
