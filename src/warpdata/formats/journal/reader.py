"""Reading journals, also damaged ones and those of a writer that died."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader, check_regular
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import is_locked
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    JournalInUseError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.journal import layout

_SCAN_STEP = 1 << 20
_WORK_FACTOR = 8
"""Searching after damage may checksum at most this many times the size of the journal."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records in file order, as columns."""

    offset: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]
    stream: NDArray[np.int64]
    steps: NDArray[np.int64]
    first_step: NDArray[np.int64]
    ts_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def payload_offset(self) -> NDArray[np.int64]:
        """Offset of each payload in the file."""
        return self.offset + layout.RECORD_BYTES

    def of_stream(self, stream: int) -> Records:
        """Only the records of one stream."""
        return self.select(self.stream == stream)

    def in_order(self) -> Records:
        """Sorted by the number of their first step; of two with one number only the later one in the file."""
        _, from_end = np.unique(self.first_step[::-1], return_index=True)
        return self.select(len(self) - 1 - from_end)

    def select(self, which: NDArray[Any]) -> Records:
        """Some of the records, by mask or by position."""
        return Records(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the journal that holds no readable record."""

    start: int
    end: int
    why: str
    is_torn: bool = False
    """Whether this is the record that was being written when the recorder died: it was never acknowledged."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Everything that can be read from a journal, and the damage."""

    records: Records
    damage: tuple[Damage, ...]
    last_crc32c: int
    end_offset: int
    is_cut: bool = False
    """Whether the file ends right after a record, where its writer left room: later records are gone."""

    @property
    def dropped_bytes(self) -> int:
        """How many bytes are not part of any readable record."""
        return sum(damage.end - damage.start for damage in self.damage)

    @property
    def lost(self) -> tuple[Damage, ...]:
        """The damage that may have taken acknowledged records."""
        return tuple(damage for damage in self.damage if not damage.is_torn)


class JournalReader:
    """A journal opened for reading: its descriptor, and a scan of its records."""

    def __init__(self, reader: RangeReader, *, lenient: bool = False) -> None:
        self.reader = reader
        self.name = reader.name
        self.fault: FormatError | None = None
        """What is wrong with header or descriptor, where that was allowed."""
        try:
            self.header = _unpack_header(reader)
            self.descriptor = _read_descriptor(reader, self.header)
        except FormatError as error:
            if not lenient or isinstance(error, UnsupportedVersionError):
                raise
            self.fault = error
            # Records have magics and checksums of their own: look for them everywhere.
            most = max(1, min(reader.size, layout.MAX_RECORD_BYTES))
            start = min(layout.HEADER_BYTES, reader.size)
            self.header = layout.RecordingHeader(
                layout.MAGIC, layout.VERSION, layout.FLAGS, 0, 0, start, most, b"", 0
            )
            self.descriptor = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str] | RangeReader, *, lenient: bool = False) -> JournalReader:
        """Open a journal by path or over a RangeReader; `lenient` continues without a readable header.

        One that is being written is not mapped: its writer cuts it when it ends, and a mapping would fault.
        """
        if not isinstance(path, RangeReader):
            path = FileRangeReader(path) if is_live(path) else MmapRangeReader(path)
        return cls(path, lenient=lenient)

    def scan(self, start: int | None = None) -> Scan:
        """Find every complete record from `start` on; a torn or damaged stretch is skipped and reported."""
        slots = self.descriptor.get("slots")
        if isinstance(slots, int) and slots > 0:
            return self._scan_slots(slots)
        columns = [array("q") for _ in range(6)]
        damage: list[Damage] = []
        position, last_crc = start or self.header.records_offset, 0
        work = _WORK_FACTOR * self.reader.size
        while position < self.reader.size:
            record = self._record_at(position)
            if record is not None:
                for column, value in zip(columns, (position, *record[2:]), strict=True):
                    column.append(value)
                last_crc = record.crc32c
                position += layout.record_span(record.payload_bytes)
                continue
            following, work = self._next_record(position + layout.RECORD_ALIGNMENT, work)
            end = self._last_nonzero(position, following)
            if following == self.reader.size:
                damage += self._check_end(position, end)
                break
            if end == position:  # zeros alone between two records, or before the first, are a hole
                end = following
            if end > position:
                damage.append(self._damage(position, end))
            position = following
        is_cut = self.reader.size - position < layout.RECORD_BYTES
        records = Records(*(np.array(column, np.int64) for column in columns))
        return Scan(records, tuple(damage), last_crc, position, is_cut)

    def _scan_slots(self, slots: int) -> Scan:
        """The records of a journal of slots, in the order in which they were made."""
        first, span = self.header.records_offset, layout.record_span(self.header.max_record_bytes)
        records, damage, size = list[tuple[int, layout.RecordHeader]](), list[Damage](), self.reader.size
        for position in range(first, min(first + slots * span, size - layout.RECORD_BYTES + 1), span):
            header = self._header_at(position)
            if header is not None and not header.steps:  # never used, or being filled
                continue
            record = self._record_at(position)
            if record is None:
                damage.append(self._damage(position, min(position + span, size)))
            else:
                records.append((position, record))
        records.sort(key=lambda item: item[1].ts_ns)
        rows = [(position, *record[2:]) for position, record in records]
        columns = np.array(rows, np.int64).reshape(-1, 6).T
        last_crc = records[-1][1].crc32c if records else 0
        return Scan(Records(*columns), tuple(damage), last_crc, size, size != first + slots * span)

    def payload(self, offset: int, payload_bytes: int) -> memoryview:
        """The payload of the record at `offset`, as a view where the reader allows."""
        start = offset + layout.RECORD_BYTES
        return self.reader.read(start, start + payload_bytes)

    def _header_at(self, position: int) -> layout.RecordHeader | None:
        """The bytes here as a record header; None where the file ends sooner or other bytes are there."""
        if position + layout.RECORD_BYTES > self.reader.size:
            return None
        head = self.reader.read(position, position + layout.RECORD_BYTES)
        record = layout.RecordHeader(*layout.RECORD.unpack(head))
        return record if record.magic == layout.RECORD_MAGIC else None

    def _record_at(self, position: int) -> layout.RecordHeader | None:
        """The record that begins here, if it is complete and its checksum matches."""
        record = self._header_at(position)
        if record is None or record.payload_bytes > self.header.max_record_bytes or record.first_step >> 62:
            return None
        end = position + layout.RECORD_BYTES + record.payload_bytes
        is_mark = not record.steps and not record.crc32c
        if is_mark or end > self.reader.size:
            return None
        checked = self.reader.read(position + layout.CHECKED_FROM, end)
        return record if crc32c(checked) == record.crc32c else None

    def _next_record(self, position: int, work: int) -> tuple[int, int]:
        """The next offset from `position` on where a complete record begins, or the end of the file."""
        while position < self.reader.size and work > 0:
            stop = min(position + _SCAN_STEP + len(layout.RECORD_MAGIC), self.reader.size)
            at = bytes(self.reader.read(position, stop)).find(layout.RECORD_MAGIC)
            if at < 0:
                position += _SCAN_STEP
                continue
            position += at
            if position % layout.RECORD_ALIGNMENT == 0 and self._record_at(position) is not None:
                return position, work
            header = self._header_at(position)
            claimed = 0 if header is None else min(header.payload_bytes, self.header.max_record_bytes)
            work -= layout.RECORD_BYTES + claimed
            position += 1
        return self.reader.size, work

    def _last_nonzero(self, start: int, end: int) -> int:
        """End of the bytes of [start, end) that are not zero: space that was never written is no loss."""
        while end > start:
            low = max(start, end - _SCAN_STEP)
            # A copy: a recorder may be writing there, and numpy refuses what changes while it counts.
            used = np.flatnonzero(np.frombuffer(bytes(self.reader.read(low, end)), np.uint8))
            if len(used):
                return low + int(used[-1]) + 1
            end = low
        return start

    def _check_end(self, start: int, end: int) -> Iterator[Damage]:
        """Damage after the last complete record, whose bytes that are not zero end at `end`."""
        if start + layout.RECORD_BYTES > self.reader.size:  # cut, which is reported for the whole file
            if end > start:
                yield self._damage(start, end)
            return
        is_end = self._is_mark(start)
        if is_end and end <= start + layout.RECORD_BYTES:
            return
        # Payload and the mark of its own end come before a record's header, its checksum last: then it is acknowledged.
        record = self._header_at(start)
        if is_end:
            is_torn = end - start <= layout.record_span(self.header.max_record_bytes) + layout.RECORD_BYTES
        elif record is None or record.crc32c or not record.steps:
            is_torn = False
        else:
            stop = start + layout.record_span(record.payload_bytes)
            is_allowed = record.payload_bytes <= self.header.max_record_bytes
            is_torn = is_allowed and end <= stop + layout.RECORD_BYTES and self._is_mark(stop)
        if is_torn:
            yield Damage(start, end, "the record that was being written when the recorder died", is_torn=True)
        else:
            yield self._damage(start, max(end, start + layout.RECORD_BYTES))

    def _is_mark(self, position: int) -> bool:
        stop = position + layout.RECORD_BYTES
        return stop <= self.reader.size and self.reader.read(position, stop) == layout.end_mark(position)

    def _damage(self, start: int, end: int) -> Damage:
        head = bytes(self.reader.read(start, min(start + len(layout.RECORD_MAGIC), self.reader.size)))
        if head == layout.RECORD_MAGIC:
            return Damage(start, end, "record is torn or its checksum does not match")
        return Damage(start, end, "no record begins where one was expected")


def is_live(path: str | os.PathLike[str]) -> bool:
    """Whether a running process holds this journal open for writing."""
    check_regular(path)
    return is_locked(path)


def is_journal(reader: RangeReader) -> bool:
    """Whether these bytes begin like a journal."""
    return reader.size >= len(layout.MAGIC) and bytes(reader.read(0, len(layout.MAGIC))) == layout.MAGIC


def work_folder(path: Path) -> Path:
    """The folder of journals beside the file that a writer of one signal makes."""
    return path.with_name(f".{path.name}{layout.WORK_SUFFIX}")


def check_not_unfinished(path: str) -> None:
    """Raise if a file is missing because its recording was never finished."""
    is_shard = os.path.isdir(path + layout.WORK_SUFFIX)
    if not os.path.exists(path) and (is_shard or work_folder(Path(path)).is_dir()):
        wait = f"Read it with wd.open_live({path!r})" if is_shard else "Wait until its recorder is done"
        hint = f"{wait}; if it was killed, run `warp salvage {path}`."
        raise JournalInUseError("the recording is not finished", path=path, hint=hint)


def _unpack_header(reader: RangeReader) -> layout.RecordingHeader:
    if not is_journal(reader):
        raise BadMagicError("not a recording journal", path=reader.name)
    if reader.size < layout.HEADER_BYTES:
        raise TruncatedError("the header of the journal is incomplete", path=reader.name)
    raw = reader.read(0, layout.HEADER_BYTES)
    header = layout.RecordingHeader(*layout.HEADER.unpack(raw[: layout.HEADER.size]))
    if crc32c(raw[layout.HEADER_CHECKED]) != header.header_crc32c:
        raise ChecksumError("the header of the journal is damaged", path=reader.name)
    if (header.version, header.flags) != (layout.VERSION, layout.FLAGS):
        raise UnsupportedVersionError(
            f"unknown journal version {header.version} (flags {header.flags})", path=reader.name
        )
    if header.max_record_bytes > layout.MAX_RECORD_BYTES:
        raise LimitExceededError(
            f"records of {header.max_record_bytes} bytes: at most {layout.MAX_RECORD_BYTES} are allowed",
            path=reader.name,
        )
    return header


def _read_descriptor(reader: RangeReader, header: layout.RecordingHeader) -> dict[str, Any]:
    end = layout.HEADER_BYTES + header.descriptor_bytes
    if header.descriptor_bytes > layout.MAX_DESCRIPTOR_BYTES or header.records_offset < end:
        raise CorruptLayoutError("the descriptor of the journal does not fit", path=reader.name)
    if reader.size < end:
        raise TruncatedError("the descriptor of the journal is incomplete", path=reader.name)
    text = reader.read(layout.HEADER_BYTES, end)
    if crc32c(text) != header.descriptor_crc32c:
        raise ChecksumError("the descriptor of the journal is damaged", path=reader.name)
    try:
        return parse_json_object(text)
    except FormatError as error:
        raise type(error)(f"descriptor: {error.message}", path=reader.name) from None
