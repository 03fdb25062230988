"""A journal of equally large records, each in a slot that is used again: raw frames on their way to the encoder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c, crc32c_at_once
from warpdata.bytekit.io.append_file import GrowingFile
from warpdata.bytekit.io.commit import map_os_errors, write_at
from warpdata.bytekit.process import system
from warpdata.formats.journal import layout
from warpdata.formats.journal.mapped_file import create_file, map_window, remove_file, sync_range
from warpdata.formats.journal.writer import pack_head

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
        self._first, self._stride = len(head), layout.record_span(record_bytes)
        self._size = record_bytes
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
