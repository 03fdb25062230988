"""Every number of the recording journal; their meaning is in SPEC.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"WDJOURNL"
VERSION = 1
RECORD_MAGIC = b"WJR1"

RECORD_ALIGNMENT = 8
RECORDS_ALIGNMENT = 4096
MAX_DESCRIPTOR_BYTES = 16 << 20
MAX_RECORD_BYTES = 1 << 30


class RecordingHeader(NamedTuple):
    """The first bytes of a journal."""

    magic: bytes
    version: int
    flags: int
    descriptor_bytes: int
    descriptor_crc32c: int
    records_offset: int
    max_record_bytes: int
    journal_id: bytes
    header_crc32c: int


ROOM_BEHIND_FLAG = 1
"""At least one record header of room follows the last record: a file that ends sooner was cut."""

END_MARK_FLAG = 2
"""An end mark follows the last record, always: where neither it nor the next record begins, records are gone."""

HEADER = struct.Struct("<8sHHIIII16sI")
HEADER_CHECKED = slice(0, 44)
HEADER_BYTES = 64


class RecordHeader(NamedTuple):
    """What stands before the payload of each record."""

    magic: bytes
    crc32c: int
    payload_bytes: int
    stream: int
    steps: int
    first_step: int
    ts_ns: int


RECORD = struct.Struct("<4sIIHHQq")
RECORD_BYTES = RECORD.size

CRC_AT = 4
"""Offset of the checksum in a record."""

CHECKED_FROM = 8
"""The checksum covers a record from this offset to the end of its payload."""

STEP_AT = 16
"""Offset of first_step and ts_ns, the two fields that change from record to record of one stream."""

CRC = struct.Struct("<I")
STEP = struct.Struct("<Qq")


def end_mark(offset: int) -> bytes:
    """What stands at `offset` behind the last record: the header of no step, with its own offset."""
    return RECORD.pack(RECORD_MAGIC, 0, 0, 0, 0, offset, 0)


def record_span(payload_bytes: int) -> int:
    """How many bytes of the file a record takes, padding included."""
    return -(-(RECORD_BYTES + payload_bytes) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
