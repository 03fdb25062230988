"""Append records to a memory-mapped journal: once `append` returns, the kernel owns the bytes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import align_up, byte_view
from warpdata.bytekit.checksum import crc32c, crc32c_at_once
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import JournalInUseError, LimitExceededError
from warpdata.formats.journal import layout
from warpdata.formats.journal.mapped_file import MappedFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_MAPPED_BYTES = 8 << 20
"""Where larger records may come, most are small."""


class JournalWriter(MappedFile):
    """One open journal file: the only writer of its path, holding a lock that dies with the process."""

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
        self._max_record_bytes = max_record_bytes
        super().__init__(
            path,
            pack_head(descriptor, max_record_bytes),
            record_bytes=layout.record_span(max_record_bytes if max_record_bytes <= MAX_MAPPED_BYTES else 0),
            end_mark=layout.end_mark,
            publish=publish,
            in_memory=in_memory,
        )

    def _publish(self) -> None:
        try:
            super()._publish()
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
        span = layout.record_span(size)
        base = self._place(span)
        window = self._window
        if base + span + layout.RECORD_BYTES > len(window):
            head = bytearray(layout.RECORD_BYTES)
            layout.RECORD.pack_into(head, 0, layout.RECORD_MAGIC, 0, size, stream, steps, first_step, ts_ns)
            checksum = crc32c(head[layout.CHECKED_FROM :])
            for view in views:
                checksum = crc32c(view, checksum)
            return self._write_past_windows([head, *views], layout.CRC.pack(checksum), layout.CRC_AT, span)
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
        return self._taken(span)

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
            return self._write_past_windows(pieces, checksum, layout.CRC_AT, span)
        window[base + layout.RECORD_BYTES : base + len(record.buffer)] = record.rest
        window[base : base + layout.RECORD_BYTES] = record.head
        return self._taken(span)

    def read_payload(self, offset: int, out: memoryview) -> None:
        """Read back the payload of the record at `offset`."""
        self.read_into(out, offset + layout.RECORD_BYTES)


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
