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


FLAGS = 3
"""1: room for one record header follows the last record. 2: an end mark is in it. Both hold for every journal."""

HEADER = struct.Struct("<8sHHIIII16sI")
HEADER_CHECKED = slice(0, 44)
HEADER_BYTES = 64


class RecordHeader(NamedTuple):
    """Fields before the payload of each record."""

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

STEPS_AT = 14
"""Offset of the number of steps in a record."""

STEP_AT = 16
"""Offset of first_step and ts_ns, the two fields that change from record to record of one stream."""

CRC = struct.Struct("<I")
STEP = struct.Struct("<Qq")


SIGNALS_KIND = "episode-signals"
FRAMES_KIND = "episode-frames"
STEPS_KIND = "wshard-steps"
SIGNALS_JOURNAL = "signals.journal"
CONTROL_STREAM = 0
"""Records of this stream are JSON: signals as they appear, static items, journals begun and released."""

ROW_STREAM = 0xFFFF
"""An empty record of this stream follows the records of each row: with it the row is complete."""

WORK_SUFFIX = ".recording"
"""End of the name of a folder with the journals of one file: beside it, until the file is complete."""

PARTIAL_SUFFIX = ".partial"
"""End of the name of a journal of steps: the name of the shard it becomes, with this."""


def end_mark(offset: int) -> bytes:
    """The end mark at `offset`: a record header without steps, with its own offset."""
    return RECORD.pack(RECORD_MAGIC, 0, 0, 0, 0, offset, 0)


def record_span(payload_bytes: int) -> int:
    """How many bytes of the file a record takes, padding included."""
    return -(-(RECORD_BYTES + payload_bytes) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
