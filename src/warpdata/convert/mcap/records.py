"""The records of an MCAP file, found in one pass from front to back; every checksum is compared."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import decode as decode_bytes
from warpdata.bytekit.codec import decode_lz4_frame
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.mcap import layout
from warpdata.convert.messages.log import (
    MAX_MESSAGE_BYTES,
    Attachment,
    Ints,
    LogChannel,
    MessageLog,
    Payloads,
    Stamps,
)
from warpdata.convert.place import Place
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    WarpError,
)

MAX_CHUNK_BYTES = 1 << 28
MAX_RECORD_BYTES = 1 << 28
_RUN_BYTES = 4 << 20
_WINDOW = 4 << 20
_CACHE_BYTES = 32 << 20
_SMALL_BYTES = 32 << 20
"""Messages of topics that are small in all are kept once they are read."""
_RECOVER = "What can be read of a damaged file: read(…, recover=True), or -o recover=true."


@dataclass(frozen=True, slots=True)
class RecordRun:
    """A run of records: a chunk, or messages outside of one."""

    file: int
    offset: int
    stored: int
    size: int
    compression: str
    crc: int


@dataclass(slots=True)
class _ChannelMessages:
    """The messages of one channel."""

    channel: LogChannel
    log: list[int] = field(default_factory=list)
    publish: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entries:
    """The same in the order of log times."""

    stamps: Stamps
    part: NDArray[np.int32]
    start: Ints
    size: Ints

    @classmethod
    def of(cls, found: _ChannelMessages, path: str) -> _Entries:
        times = np.array(found.log, np.uint64)
        sent = np.array(found.publish, np.uint64)
        if len(times) and max(int(times.max()), int(sent.max())) >= 1 << 63:
            raise CorruptLayoutError(f"a time of topic {found.channel.topic!r} is no time", path=path)
        log = times.astype(np.int64)
        order = np.argsort(log, kind="stable")
        stamps = Stamps(log[order], sent.astype(np.int64)[order], np.array(found.sequence, np.int64)[order])
        return cls(
            stamps, np.array(found.part, np.int32)[order], np.array(found.start, np.int64)[order],
            np.array(found.size, np.int64)[order],
        )  # fmt: skip


@dataclass(slots=True)
class _Contents:
    """Everything that one pass over the files finds."""

    parts: list[RecordRun] = field(default_factory=list)
    found: dict[tuple[Any, ...], _ChannelMessages] = field(default_factory=dict)
    header: dict[str, str] = field(default_factory=dict)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


class McapLog(MessageLog):
    """One or more MCAP files that follow each other, as one recording."""

    def __init__(self, place: Place, files: Sequence[str], *, recover: bool = False) -> None:
        self._place, self._files, self._recover = place, list(files), recover
        self._cache: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._readers: dict[int, RangeReader] = {}
        self._kept: dict[int, Payloads] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self._place, self._files, self._recover))

    @property
    def name(self) -> str:
        """The file, or the folder of several."""
        return self._path(0) if len(self._files) == 1 else self._place.name

    def _path(self, file: int) -> str:
        return f"{self._place.name}/{self._files[file]}" if self._files[file] else self._place.name

    @cached_property
    def _contents(self) -> _Contents:
        found = _Contents()
        for number in range(len(self._files)):
            _Scan(self._reader(number), self._path(number), number, found, recover=self._recover).run()
        return found

    @cached_property
    def _entries(self) -> list[_Entries]:
        return [_Entries.of(each, self.name) for each in self._contents.found.values()]

    @cached_property
    def channels(self) -> Sequence[LogChannel]:
        """The topics, in the order they were declared."""
        return [each.channel for each in self._contents.found.values()]

    def stamps(self, channel: int) -> Stamps:
        """When the messages of a channel were recorded and sent."""
        return self._entries[channel].stamps

    def payload_bytes(self, channel: int) -> int:
        """How large the messages of a channel are in all."""
        return int(self._entries[channel].size.sum())

    @property
    def about(self) -> Mapping[str, Any]:
        """Header and metadata records; and what could not be read."""
        found = self._contents
        about: dict[str, Any] = {"header": found.header, "metadata": found.metadata}
        return about | ({"damage": found.damage} if found.damage else {})

    @property
    def attachments(self) -> Sequence[Attachment]:
        """Files that came with the messages."""
        return self._contents.attachments

    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Some messages of a channel; those of small topics are read together once."""
        kept = self._small.get(channel)
        if kept is not None:
            return Payloads(kept.data, kept.starts[rows], kept.sizes[rows])
        return self._gather(channel, rows)

    @cached_property
    def _small(self) -> dict[int, Payloads]:
        """All messages of the topics that are small in all: one pass over the file serves every one of them."""
        sizes = sorted((self.payload_bytes(number), number) for number in range(len(self.channels)))
        chosen, total = [], 0
        for size, number in sizes:
            total += size
            if total > _SMALL_BYTES:
                break
            chosen.append(number)
        pieces: dict[int, list[tuple[Ints, Payloads]]] = {number: [] for number in chosen}
        for part in range(len(self._contents.parts)):
            for number in chosen:
                rows = self._rows_by_part[number].get(part)
                if rows is not None:
                    # A copy: what is gathered lies in the whole part, large topics included.
                    pieces[number].append((rows, Payloads.of(self._gather(number, rows).each())))
        return {number: _joined(parts) for number, parts in pieces.items()}

    @cached_property
    def _rows_by_part(self) -> list[dict[int, Ints]]:
        found = []
        for each in self._entries:
            order = np.argsort(each.part, kind="stable")
            numbers, starts = np.unique(each.part[order], return_index=True)
            runs = np.split(order, starts[1:]) if len(numbers) else []
            found.append(dict(zip(numbers.tolist(), runs, strict=True)))
        return found

    def _gather(self, channel: int, rows: Ints) -> Payloads:
        entries = self._entries[channel]
        parts = entries.part[rows]
        if not len(rows):
            return Payloads(np.empty(0, np.uint8), rows, rows)
        if bool((parts == parts[0]).all()):
            return Payloads(self._part(int(parts[0])), entries.start[rows], entries.size[rows])
        messages: list[memoryview] = []
        for part, start, size in zip(
            parts.tolist(), entries.start[rows].tolist(), entries.size[rows].tolist(), strict=True
        ):
            messages.append(self._part(part)[start : start + size].data)
        return Payloads.of(messages)

    def _part(self, number: int) -> NDArray[np.uint8]:
        """The records of a part, from the few that are kept or from the file."""
        found = self._cache.get(number)
        if found is not None:
            self._cache.move_to_end(number)
            return found
        part = self._contents.parts[number]
        stored = self._reader(part.file).read(part.offset, part.offset + part.stored)
        found = np.frombuffer(_unpacked(part, stored, self._path(part.file), is_known=True), np.uint8)
        self._cache[number] = found
        total = sum(each.nbytes for each in self._cache.values())
        while total > _CACHE_BYTES and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
        return found

    def _reader(self, file: int) -> RangeReader:
        if file not in self._readers:
            self._readers[file] = self._place.open(self._files[file])
        return self._readers[file]


def _again(place: Place, files: Sequence[str], recover: bool) -> McapLog:
    return McapLog(place, files, recover=recover)


def _joined(parts: list[tuple[Ints, Payloads]]) -> Payloads:
    """Messages of several parts, in the order of their rows."""
    if not parts:
        return Payloads.of([])
    rows = np.concatenate([each for each, _ in parts])
    messages = [message for _, payloads in parts for message in payloads.each()]
    found = Payloads.of(messages)
    at = np.argsort(rows, kind="stable")
    return Payloads(found.data, found.starts[at], found.sizes[at])


def _unpacked(
    part: RecordRun, stored: memoryview, path: str, *, is_known: bool = False
) -> bytes | memoryview:
    """The records of a chunk; bounded before anything is allocated, and compared with its checksum once."""
    if part.size > MAX_CHUNK_BYTES:
        raise LimitExceededError(f"a chunk of {part.size} bytes", path=path)
    try:
        if part.compression == "":
            if len(stored) != part.size:
                raise CorruptLayoutError(f"a chunk of {part.size} bytes has {len(stored)}")
            raw: bytes | memoryview = stored
        elif part.compression == "zstd":
            raw = decode_bytes("zstd", stored, part.size) if part.size else b""
        elif part.compression == "lz4":
            raw = decode_lz4_frame(stored, part.size)
        else:
            raise FormatError(
                f"a chunk is compressed with {part.compression!r}", hint="Known are zstd, lz4 and none."
            )
    except WarpError as error:
        raise type(error)(error.message, path=path, hint=error.hint) from None
    if part.crc and not is_known and zlib.crc32(raw) != part.crc:
        raise ChecksumError(
            f"the chunk at {part.offset} was changed after it was written", path=path, hint=_RECOVER
        )
    return raw


class _Cursor:
    """The fields of a record, one after the other."""

    def __init__(self, data: memoryview | bytes, path: str) -> None:
        self._data, self._path, self.at = memoryview(data), path, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        end = self.at + size
        if size < 0 or end > len(self._data):
            raise CorruptLayoutError("a record ends before its last field", path=self._path)
        found = self._data[self.at : end]
        self.at = end
        return found

    def number(self, size: int) -> int:
        """The next whole number."""
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        """The next string."""
        try:
            return str(self.take(self.number(4)), "utf-8")
        except UnicodeDecodeError:
            raise CorruptLayoutError("a name in a record is no text", path=self._path) from None

    def pairs(self) -> dict[str, str]:
        """The next map of strings."""
        size = self.number(4)
        end = self.at + size
        found: dict[str, str] = {}
        while self.at < end:
            key = self.text()
            found[key] = self.text()
        if self.at != end:
            raise CorruptLayoutError("a map in a record is longer than it says", path=self._path)
        return found


class _Scan:
    """One pass over one file."""

    def __init__(self, reader: RangeReader, path: str, number: int, out: _Contents, *, recover: bool) -> None:
        self._reader, self._path, self._number, self._out = reader, path, number, out
        self._recover = recover
        self._schemas: dict[int, tuple[str, str, bytes]] = {}
        self._channels: dict[int, LogChannel] = {}
        self._targets: dict[int, _ChannelMessages] = {}
        self._count = 0
        self._stated: int | None = None
        self._summary_at = 0
        self._summary_channels: list[memoryview] = []
        self._run: list[tuple[int, int]] = []
        self._crc = 0
        self._has_begun = False
        self._window = (0, memoryview(b""))

    def run(self) -> None:
        """Read all records; a damage is an error, or is noted and what lies before it kept."""
        if bytes(self._reader.read(0, min(8, self._reader.size))) != layout.MAGIC:
            raise BadMagicError("not an MCAP file", path=self._path)
        try:
            self._check_end()
            end = self._records()
            if end is not None and self._summary_at and end != self._summary_at - layout.RECORD.size - 4:
                raise CorruptLayoutError("the data does not end where the summary begins", path=self._path)
            if end is None:
                raise TruncatedError(
                    "the file has no end: its recorder was stopped", path=self._path, hint=_RECOVER
                )
            for body in self._summary_channels:  # topics without messages stand nowhere else
                self._channel(body, 0)
            if self._stated is not None and self._stated != self._count:
                raise CorruptLayoutError(
                    f"the file states {self._stated} messages and has {self._count}", path=self._path
                )
        except FormatError as error:
            if not self._recover or isinstance(error, LimitExceededError):
                raise
            self._out.damage.append(error.message)
            if not self._has_begun:
                self._salvage()
        self._close_run()

    def _salvage(self) -> None:
        """The records before the damage, where the end of the file is what is damaged."""
        try:
            self._records()
        except FormatError as error:
            if error.message not in self._out.damage:
                self._out.damage.append(error.message)

    # The end of the file.

    def _check_end(self) -> None:
        size, body = self._reader.size, layout.FOOTER_BODY.size
        begin = size - len(layout.MAGIC) - body - layout.RECORD.size
        is_cut = begin < len(layout.MAGIC) or bytes(self._reader.read(size - 8, size)) != layout.MAGIC
        if not is_cut:
            tail = bytes(self._reader.read(begin, size - 8))
            is_cut = layout.RECORD.unpack_from(tail) != (layout.FOOTER, body)
        if is_cut:
            raise TruncatedError(
                "the file has no end: it is cut, or its recorder was stopped", path=self._path, hint=_RECOVER
            )
        start, offsets, crc = layout.FOOTER_BODY.unpack_from(tail, layout.RECORD.size)
        if (start and not 8 <= start <= begin) or (offsets and not start <= offsets <= begin):
            raise CorruptLayoutError("the summary lies outside of the file", path=self._path)
        if not start:
            return
        self._summary_at = start
        if begin - start > MAX_RECORD_BYTES:
            raise LimitExceededError(f"a summary of {begin - start} bytes", path=self._path)
        summary = self._reader.read(start, size - 8 - 4)
        if crc and zlib.crc32(summary) != crc:
            raise ChecksumError(
                "the summary was changed after it was written", path=self._path, hint=_RECOVER
            )
        self._read_summary(memoryview(summary)[: begin - start])

    def _read_summary(self, data: memoryview) -> None:
        at = 0
        while at + layout.RECORD.size <= len(data):
            opcode, length = layout.RECORD.unpack_from(data, at)
            at += layout.RECORD.size
            if length > len(data) - at:
                raise CorruptLayoutError("a record of the summary is longer than it", path=self._path)
            body = data[at : at + length]
            if opcode == layout.STATISTICS and length >= layout.STATISTICS_HEAD.size:
                self._stated = layout.STATISTICS_HEAD.unpack_from(body)[0]
            elif opcode == layout.SCHEMA:
                self._schema(body, 0)
            elif opcode == layout.CHANNEL:
                self._summary_channels.append(body)
            at += length

    # The records.

    def _bytes(self, start: int, end: int) -> memoryview:
        """Bytes of the file, read ahead."""
        begin, window = self._window
        if start < begin or end > begin + len(window):
            stop = min(max(end, start + _WINDOW), self._reader.size)
            begin, window = start, self._reader.read(start, stop)
            self._window = (begin, window)
        return window[start - begin : end - begin]

    def _records(self) -> int | None:
        """Every record up to the end of the data; where that is."""
        at, size = len(layout.MAGIC), self._reader.size
        self._crc, self._has_begun = zlib.crc32(layout.MAGIC), True
        while at + layout.RECORD.size <= size:
            head = self._bytes(at, at + layout.RECORD.size)
            opcode, length = layout.RECORD.unpack(head)
            begin, end = at + layout.RECORD.size, at + layout.RECORD.size + length
            if opcode == layout.DATA_END:
                self._check_data(begin, end)
                return at
            if opcode == layout.FOOTER:
                return at
            if end > size:
                raise TruncatedError(
                    f"the record at {at} states {length} bytes, the file has {size - begin}", path=self._path,
                    hint=_RECOVER,
                )  # fmt: skip
            if opcode != layout.MESSAGE:
                self._close_run()
            if length > MAX_MESSAGE_BYTES:
                raise LimitExceededError(f"a record of {length} bytes at {at}", path=self._path)
            body = self._bytes(begin, end)
            self._crc = zlib.crc32(body, zlib.crc32(head, self._crc))
            self._record(opcode, body, begin)
            at = end
        return None

    def _check_data(self, begin: int, end: int) -> None:
        if end - begin != 4 or end > self._reader.size:
            raise CorruptLayoutError("the end of the data is damaged", path=self._path)
        body = self._bytes(begin, end)
        stated = int.from_bytes(body[:4], "little")
        if stated and stated != self._crc:
            raise ChecksumError("the file was changed after it was written", path=self._path, hint=_RECOVER)

    def _record(self, opcode: int, body: memoryview, at: int) -> None:
        readers: dict[int, Callable[[memoryview, int], None]] = {
            layout.HEADER: self._header, layout.SCHEMA: self._schema, layout.CHANNEL: self._channel,
            layout.MESSAGE: self._message, layout.CHUNK: self._chunk, layout.ATTACHMENT: self._attachment,
            layout.METADATA: self._metadata,
        }  # fmt: skip
        if opcode in readers:
            readers[opcode](body, at)

    def _header(self, body: memoryview, _: int) -> None:
        cursor = _Cursor(body, self._path)
        profile, library = cursor.text(), cursor.text()
        if not self._out.header:
            self._out.header = {"profile": profile, "library": library}

    def _schema(self, body: memoryview, _: int) -> None:
        cursor = _Cursor(body, self._path)
        number, name, encoding = cursor.number(2), cursor.text(), cursor.text()
        data = bytes(cursor.take(cursor.number(4)))
        known = self._schemas.setdefault(number, (name, encoding, data))
        if known != (name, encoding, data):
            raise CorruptLayoutError(f"two schemas have the number {number}", path=self._path)

    def _channel(self, body: memoryview, _: int) -> None:
        cursor = _Cursor(body, self._path)
        number, schema, topic, encoding = cursor.number(2), cursor.number(2), cursor.text(), cursor.text()
        metadata = cursor.pairs()
        if schema and schema not in self._schemas:
            raise CorruptLayoutError(f"topic {topic!r} names a schema that is not there", path=self._path)
        found = LogChannel(topic, *self._schemas.get(schema, ("", "", b"")), encoding, metadata)
        if self._channels.setdefault(number, found).key != found.key:
            raise CorruptLayoutError(f"two channels have the number {number}", path=self._path)
        self._targets[number] = self._out.found.setdefault(found.key, _ChannelMessages(found))

    def _target(self, number: int) -> _ChannelMessages:
        found = self._targets.get(number)
        if found is None:
            raise CorruptLayoutError(f"a message of channel {number}, which is not there", path=self._path)
        return found

    def _message(self, body: memoryview, at: int) -> None:
        """A message outside of a chunk: runs of them are read as one part."""
        if len(body) < layout.MESSAGE_FIXED:
            raise CorruptLayoutError("a message is shorter than its head", path=self._path)
        if self._run and (at + len(body) - self._run[0][0] > _RUN_BYTES):
            self._close_run()
        begin = self._run[0][0] if self._run else at
        self._run.append((at, at + len(body)))
        cursor = _Cursor(body, self._path)
        target = self._target(cursor.number(2))
        target.sequence.append(cursor.number(4))
        target.log.append(cursor.number(8))
        target.publish.append(cursor.number(8))
        target.part.append(len(self._out.parts))
        target.start.append(at - begin + layout.MESSAGE_FIXED)
        target.size.append(len(body) - layout.MESSAGE_FIXED)
        self._count += 1

    def _close_run(self) -> None:
        if self._run:
            begin, end = self._run[0][0], self._run[-1][1]
            self._out.parts.append(RecordRun(self._number, begin, end - begin, end - begin, "", 0))
            self._run = []

    def _chunk(self, body: memoryview, at: int) -> None:
        cursor = _Cursor(body, self._path)
        _, _, size, crc = layout.CHUNK_HEAD.unpack(cursor.take(layout.CHUNK_HEAD.size))
        compression = cursor.text()
        stored = cursor.number(8)
        offset = at + cursor.at
        data = cursor.take(stored)
        part = RecordRun(self._number, offset, stored, size, compression, crc)
        try:
            self._chunk_records(_unpacked(part, data, self._path))
        except FormatError as error:
            if not self._recover or isinstance(error, LimitExceededError):
                raise
            self._forget(len(self._out.parts))
            self._out.damage.append(error.message)
            return
        self._out.parts.append(part)

    def _forget(self, part: int) -> None:
        """Take back the messages of a part that turned out to be damaged."""
        for target in self._out.found.values():
            while target.part and target.part[-1] == part:
                self._count -= 1
                for column in (
                    target.part, target.log, target.publish, target.sequence, target.start, target.size,
                ):  # fmt: skip
                    column.pop()

    def _chunk_records(self, data: bytes | memoryview) -> None:
        at, size, number = 0, len(data), len(self._out.parts)
        unpack, head_size = layout.MESSAGE_HEAD.unpack_from, layout.MESSAGE_HEAD.size
        view = memoryview(data)
        while at < size:
            if data[at] == layout.MESSAGE and at + head_size <= size:
                _, length, channel, sequence, log, publish = unpack(data, at)
                end = at + 9 + length
                if length < layout.MESSAGE_FIXED or end > size:
                    raise CorruptLayoutError("a message is longer than its chunk", path=self._path)
                target = self._target(channel)
                target.log.append(log)
                target.publish.append(publish)
                target.sequence.append(sequence)
                target.part.append(number)
                target.start.append(at + head_size)
                target.size.append(length - layout.MESSAGE_FIXED)
                self._count += 1
            else:
                end = self._inner_record(view, at)
            at = end

    def _inner_record(self, data: memoryview, at: int) -> int:
        if at + layout.RECORD.size > len(data):
            raise CorruptLayoutError("a chunk ends inside of a record", path=self._path)
        opcode, length = layout.RECORD.unpack_from(data, at)
        begin = at + layout.RECORD.size
        if length > len(data) - begin:
            raise CorruptLayoutError("a record is longer than its chunk", path=self._path)
        if opcode == layout.SCHEMA:
            self._schema(data[begin : begin + length], 0)
        elif opcode == layout.CHANNEL:
            self._channel(data[begin : begin + length], 0)
        elif opcode in (layout.MESSAGE, layout.CHUNK):
            raise CorruptLayoutError("a record stands in a chunk where it cannot", path=self._path)
        return begin + int(length)

    def _attachment(self, body: memoryview, _: int) -> None:
        cursor = _Cursor(body, self._path)
        log, create = cursor.number(8), cursor.number(8)
        name, media = cursor.text(), cursor.text()
        data = bytes(cursor.take(cursor.number(8)))
        checked = body[: cursor.at]
        crc = cursor.number(4)
        if crc and zlib.crc32(checked) != crc:
            raise ChecksumError(
                f"attachment {name!r} was changed after it was written", path=self._path, hint=_RECOVER
            )
        if max(log, create) >= 1 << 63:
            raise CorruptLayoutError(f"a time of attachment {name!r} is no time", path=self._path)
        self._out.attachments.append(Attachment(name, media, log, create, data))

    def _metadata(self, body: memoryview, _: int) -> None:
        cursor = _Cursor(body, self._path)
        self._out.metadata.append({"name": cursor.text(), "metadata": cursor.pairs()})
