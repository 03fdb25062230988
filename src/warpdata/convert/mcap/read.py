"""MCAP files as episodes: one per file, or one per folder with the files of one recording.

One pass from front to back indexes all messages; every checksum is compared. The mcap library writes files but does not
read them: its reader loads records and decompresses chunks without a bound, skips the checksums of attachments, cannot
continue after damage, and is several times slower per message.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import decode as decode_bytes
from warpdata.bytekit.codec import decode_lz4_frame
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.messages import (
    MAX_MESSAGE_BYTES,
    Attachment,
    Ints,
    LogChannel,
    LogContents,
    MessageLog,
    Payloads,
    Stamps,
)
from warpdata.convert.messages.episode import Reading, Recordings, TimeKind
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    naming,
)

MAGIC = b"\x89MCAP0\r\n"
METADATA_FILE = "metadata.yaml"
_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK = range(1, 7)
_ATTACHMENT, _STATISTICS, _METADATA, _DATA_END = 9, 11, 12, 15
_HEAD_BYTES = 9
"""Opcode and length of the body, before every record."""
_FOOTER_BYTES = 20
_MESSAGE_HEAD = np.dtype(
    [
        *(("opcode", "u1"), ("length", "<u8"), ("channel", "<u2"), ("sequence", "<u4")),
        *(("log", "<u8"), ("publish", "<u8")),
    ]
)
"""A message record before its data."""
_MESSAGE_BYTES = _MESSAGE_HEAD.itemsize - _HEAD_BYTES
_INDEX = np.dtype(
    [
        *(("channel", "i4"), ("part", "i4"), ("start", "i8"), ("size", "i8")),
        *(("log", "u8"), ("publish", "u8"), ("sequence", "i8")),
    ]
)
"""Channel of a message, its part and position there, and its stamps."""

_MAX_CHUNK_BYTES = 1 << 28
_MAX_SUMMARY_BYTES = 1 << 28
_RUN_BYTES = 4 << 20
_READ_AHEAD_BYTES = 4 << 20
_CACHE_BYTES = 32 << 20
_SMALL_BYTES = 32 << 20
"""Messages of topics that are small in total are kept in memory."""
_MAX_TIME = 1 << 63
_RECOVER = "Read what is left of a damaged file with recover=True (warp: --option recover=true)."
_NUMBERED = re.compile(r"(.+)_(\d+)\.mcap")


def matches(place: Place) -> bool:
    """Whether it is an MCAP file, or a folder with some."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    files = _list_files(place)
    return bool(files) and place.head(len(MAGIC), files[0]) == MAGIC


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of an MCAP file, or of a folder of MCAP files or of bags; messages are read on first use.

    A signal is named by its topic and field: `joint_states/position`. `time` chooses the timestamps of its records:
    when the message was recorded (`log`), sent (`publish`), or measured (`header`, if the type has a stamp); the
    other times are signals. The fields of the topics in `actions` are actions; `topics` limits what is read.
    `recover` reads what is left of damaged files.
    """
    reading = Reading.of(time, actions, topics)
    return Episodes(Recordings(Place.of(source), reading, group_files, partial(McapLog, recover=recover)))


def _list_files(place: Place) -> list[str]:
    """MCAP files of a folder and of the folders in it."""
    return [name for name in place.names(folders_deep=1) if name.endswith(".mcap")]


def group_files(place: Place) -> dict[str, list[str]]:
    """Files by recording: those of a bag, or numbered after their folder, are one recording."""
    if place.is_file:
        return {PurePosixPath(place.name).stem: [""]}
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in _list_files(place):
        folder, _, file = name.rpartition("/")
        above = f"{folder}/" if folder else ""
        owner = folder.rpartition("/")[2] or PurePosixPath(place.name).name
        match = _NUMBERED.fullmatch(file)
        is_part = match is not None and match[1] == owner
        is_bag = is_part or place.exists(f"{above}{METADATA_FILE}")
        group = owner if is_bag else f"{above}{PurePosixPath(file).stem}"
        groups.setdefault(group, []).append((int(match[2]) if match else -1, name))
    return {group: [name for _, name in sorted(files)] for group, files in groups.items()}


class _Part(NamedTuple):
    """Records that are read together: those of a chunk, or messages outside of chunks."""

    file: int
    offset: int
    stored: int
    size: int
    compression: str


class McapLog(MessageLog):
    """MCAP files of one recording, in order."""

    def __init__(self, place: Place, files: Sequence[str], recover: bool = False) -> None:
        super().__init__(place, files)
        self._recover = recover
        self._cache: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._readers: dict[int, RangeReader] = {}

    def _open(self, file: int) -> RangeReader:
        if file not in self._readers:
            self._readers[file] = self._place.open(self._files[file])
        return self._readers[file]

    @cached_property
    def _scanned(self) -> _Contents:
        contents = _Contents()
        for file in range(len(self._files)):
            with naming(self._path(file)):
                contents.scan(self._open(file), file, self._path(file) if self._recover else None)
        return contents

    @cached_property
    def _messages(self) -> list[NDArray[Any]]:
        """Messages of every channel, ordered by log time."""
        channels = list(self._scanned.channels)
        every = np.concatenate([np.empty(0, _INDEX), *self._scanned.messages])
        every = every[np.argsort(every["channel"], kind="stable")]
        bounds = np.searchsorted(every["channel"], np.arange(1, len(channels)))
        messages = []
        for channel, own in zip(channels, np.split(every, bounds), strict=False):
            if max(own["log"].max(initial=0), own["publish"].max(initial=0)) >= _MAX_TIME:
                raise CorruptLayoutError(f"timestamp out of range in topic {channel.topic!r}", path=self.name)
            messages.append(own[np.argsort(own["log"], kind="stable")])
        return messages

    @cached_property
    def contents(self) -> LogContents:
        """Channels, stamps, header and metadata records, and what could not be read."""
        scanned = self._scanned
        stamps = [
            Stamps(*(own[name].astype(np.int64) for name in ("log", "publish", "sequence")))
            for own in self._messages
        ]
        about: dict[str, Any] = {"header": scanned.header, "metadata": scanned.metadata}
        about |= {"damage": scanned.damage} if scanned.damage else {}
        sizes = [int(own["size"].sum()) for own in self._messages]
        return LogContents(list(scanned.channels), stamps, sizes, about, scanned.attachments)

    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Messages of a channel by their positions in its stamps."""
        small = self._small.get(channel)
        if small is not None:
            return Payloads(small.data, small.starts[rows], small.sizes[rows])
        return self._read_messages(self._messages[channel][rows])

    @cached_property
    def _small(self) -> dict[int, Payloads]:
        """All messages of the smallest topics, copied in one pass over the parts."""
        sizes = np.array(self.contents.sizes, np.int64)
        order = np.argsort(sizes, kind="stable")
        numbers = order[: int((np.cumsum(sizes[order]) <= _SMALL_BYTES).sum())].tolist()
        if not numbers:
            return {}
        chosen = [self._messages[number] for number in numbers]
        data, starts, lengths = self._read_messages(np.concatenate(chosen))
        ends = np.cumsum([len(own) for own in chosen])[:-1]
        parts = zip(numbers, np.split(starts, ends), np.split(lengths, ends), strict=True)
        return {number: Payloads(data, *places) for number, *places in parts}

    def _read_messages(self, messages: NDArray[Any]) -> Payloads:
        """Messages from their parts: views if all are of one part, else copies made in the order of the parts."""
        part, start, sizes = messages["part"], messages["start"], messages["size"]
        if len(part) and bool((part == part[0]).all()):
            return Payloads(self._read_part(int(part[0])), start, sizes)
        targets = np.cumsum(sizes) - sizes
        data = memoryview(bytearray(int(sizes.sum())))
        order = np.argsort(part, kind="stable")
        last, source = -1, data
        columns = (column[order].tolist() for column in (part, start, targets, sizes))
        for number, begin, target, size in zip(*columns, strict=True):
            if number != last:
                last, source = number, self._read_part(number).data
            data[target : target + size] = source[begin : begin + size]
        return Payloads(np.frombuffer(data, np.uint8), targets, sizes)

    def _read_part(self, number: int) -> NDArray[np.uint8]:
        """Records of a part, from the cache or from the file."""
        records = self._cache.get(number)
        if records is not None:
            self._cache.move_to_end(number)
            return records
        part = self._scanned.parts[number]
        with naming(self._path(part.file)):
            stored = self._open(part.file).read(part.offset, part.offset + part.stored)
            records = np.frombuffer(_decompress(part, stored), np.uint8)
        self._cache[number] = records
        total = sum(part_records.nbytes for part_records in self._cache.values())
        while total > _CACHE_BYTES and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
        return records


def _decompress(part: _Part, stored: memoryview) -> bytes | memoryview:
    """Records of a chunk; sizes are checked before anything is allocated."""
    if part.size > _MAX_CHUNK_BYTES:
        raise LimitExceededError(f"chunk of {part.size} bytes (limit {_MAX_CHUNK_BYTES})")
    if part.compression == "zstd":
        return decode_bytes("zstd", stored, part.size) if part.size else b""
    if part.compression == "lz4":
        return decode_lz4_frame(stored, part.size)
    if part.compression:
        raise FormatError(f"unknown chunk compression {part.compression!r} (known: zstd, lz4)")
    if len(stored) != part.size:
        raise CorruptLayoutError(f"chunk size mismatch: expected {part.size}, got {len(stored)}")
    return stored


def _split_records(data: memoryview, where: str) -> Iterator[tuple[int, int, int]]:
    """Opcode, start and end of every record, the start without opcode and length."""
    at, size = 0, len(data)
    while at + _HEAD_BYTES <= size:
        opcode, start = data[at], at + _HEAD_BYTES
        at = start + int.from_bytes(data[at + 1 : start], "little")
        if at > size:
            raise CorruptLayoutError(f"record of {at - start} bytes exceeds its {where}")
        yield opcode, start, at
    if at != size:
        raise CorruptLayoutError(f"{where} ends inside a record")


def _check_crc(what: str, expected: int, actual: int) -> None:
    if expected and expected != actual:
        fact = f"CRC mismatch of the {what}: expected {expected:08x}, got {actual:08x}"
        raise ChecksumError(fact, hint=_RECOVER)


class _Fields:
    """Reads the fields of a record one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        end = self.at + size
        if end > len(self._data):
            raise CorruptLayoutError("record ends before its last field")
        taken, self.at = self._data[self.at : end], end
        return taken

    def number(self, size: int) -> int:
        """The next unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        """The next string."""
        try:
            return str(self.take(self.number(4)), "utf-8")
        except UnicodeDecodeError:
            raise CorruptLayoutError("string of a record is not UTF-8") from None

    def pairs(self) -> dict[str, str]:
        """The next map of strings."""
        inner = _Fields(self.take(self.number(4)))
        pairs: dict[str, str] = {}
        while inner.at < len(inner._data):
            key = inner.text()
            pairs[key] = inner.text()
        return pairs


class _Contents:
    """Everything but the messages of the files of a recording, and an index of the messages."""

    def __init__(self) -> None:
        self.channels: dict[LogChannel, int] = {}
        self.parts: list[_Part] = []
        self.messages: list[NDArray[Any]] = []
        self.header: dict[str, str] = {}
        self.metadata: list[dict[str, Any]] = []
        self.attachments: list[Attachment] = []
        self.damage: list[str] = []

    def scan(self, reader: RangeReader, file: int, recovered: str | None) -> None:
        """Add all records of a file; `recovered` is its path if damage is noted instead of raised."""
        self._reader, self._file, self._recovered = reader, file, recovered
        self._schemas: dict[int, tuple[str, str, bytes]] = {0: ("", "", b"")}
        self._file_channels: dict[int, LogChannel] = {}
        self._numbers = np.full(1 << 16, -1, np.int32)
        """Number of a channel in this file -> its number in the recording."""
        self._summary_channels: list[memoryview] = []
        self._summary_start = self._count = self._run_start = 0
        self._expected_count: int | None = None
        self._run = bytearray()
        """Consecutive messages outside of chunks."""
        self._window = (0, memoryview(b""))
        if bytes(reader.read(0, min(len(MAGIC), reader.size))) != MAGIC:
            raise BadMagicError("not an MCAP file")
        for stage in (self._read_end, self._read_data, self._close_run, self._check_counts):
            try:
                stage()
            except FormatError as error:
                self._note_damage(error)

    def _note_damage(self, error: FormatError) -> None:
        if self._recovered is None or isinstance(error, LimitExceededError):
            raise error
        message = f"{error.message}: {self._recovered}"
        if message not in self.damage:
            self.damage.append(message)

    def _read_end(self) -> None:
        """Footer and summary: channels without messages and the number of messages."""
        size = self._reader.size
        begin = size - len(MAGIC) - _FOOTER_BYTES - _HEAD_BYTES
        tail = memoryview(self._reader.read(begin, size) if begin >= len(MAGIC) else b"")
        head = bytes([_FOOTER]) + _FOOTER_BYTES.to_bytes(8, "little")
        if bytes(tail[-len(MAGIC) :]) != MAGIC or tail[:_HEAD_BYTES] != head:
            raise TruncatedError("file has no footer: it is cut, or its recorder was stopped", hint=_RECOVER)
        fields = _Fields(tail[_HEAD_BYTES:])
        start, offsets, crc = fields.number(8), fields.number(8), fields.number(4)
        if (start and not 8 <= start <= begin) or (offsets and not start <= offsets <= begin):
            raise CorruptLayoutError("summary is outside of the file")
        if not start:
            return
        self._summary_start = start
        if begin - start > _MAX_SUMMARY_BYTES:
            raise LimitExceededError(f"summary of {begin - start} bytes (limit {_MAX_SUMMARY_BYTES})")
        summary = memoryview(self._reader.read(start, size - len(MAGIC) - 4))
        _check_crc("summary", crc, zlib.crc32(summary))
        for opcode, low, high in _split_records(summary[: begin - start], "summary"):
            if opcode == _STATISTICS:
                self._expected_count = _Fields(summary[low:high]).number(8)
            elif opcode == _SCHEMA:
                self._add_schema(_Fields(summary[low:high]))
            elif opcode == _CHANNEL:
                self._summary_channels.append(summary[low:high])

    def _read(self, start: int, end: int) -> memoryview:
        """Bytes of the file, with read-ahead."""
        begin, window = self._window
        if start < begin or end > begin + len(window):
            stop = min(max(end, start + _READ_AHEAD_BYTES), self._reader.size)
            begin, window = self._window = (start, self._reader.read(start, stop))
        return window[start - begin : end - begin]

    def _read_data(self) -> None:
        """All records of the data section."""
        at, size, crc = len(MAGIC), self._reader.size, zlib.crc32(MAGIC)
        while at + _HEAD_BYTES <= size:
            begin = at + _HEAD_BYTES
            head = self._read(at, begin)
            opcode, length = head[0], int.from_bytes(head[1:], "little")
            if length > size - begin:
                raise TruncatedError(f"record of {length} bytes at {at} exceeds the file", hint=_RECOVER)
            if length > MAX_MESSAGE_BYTES:
                raise LimitExceededError(f"record of {length} bytes (limit {MAX_MESSAGE_BYTES})")
            body = self._read(begin, begin + length)
            if opcode == _MESSAGE:
                self._run_start = self._run_start if self._run else at
                self._run += head
                self._run += body
            if opcode != _MESSAGE or len(self._run) >= _RUN_BYTES:
                self._close_run()
                self._add_record(opcode, body, begin)
            if opcode in (_DATA_END, _FOOTER):
                if opcode == _DATA_END:
                    _check_crc("data", _Fields(body).number(4), crc)
                if self._summary_start and begin + length != self._summary_start:
                    raise CorruptLayoutError("data does not end where the summary starts")
                return
            crc = zlib.crc32(body, zlib.crc32(head, crc))
            at = begin + length
        raise TruncatedError("file has no end of data: its recorder was stopped", hint=_RECOVER)

    def _close_run(self) -> None:
        if self._run:
            data, self._run = memoryview(bytes(self._run)), bytearray()
            self._add_part(_Part(self._file, self._run_start, len(data), len(data), ""), data)

    def _check_counts(self) -> None:
        for body in self._summary_channels:  # channels without messages are declared only there
            self._add_channel(_Fields(body))
        if self._expected_count not in (None, self._count):
            expected, count = self._expected_count, self._count
            raise CorruptLayoutError(f"message count mismatch: expected {expected}, got {count}")

    def _add_record(self, opcode: int, body: memoryview, offset: int) -> None:
        fields = _Fields(body)
        if opcode == _SCHEMA:
            self._add_schema(fields)
        elif opcode == _CHANNEL:
            self._add_channel(fields)
        elif opcode == _CHUNK:
            self._add_chunk(fields, offset)
        elif opcode == _ATTACHMENT:
            log_ns, create_ns, name, media_type = (
                fields.number(8),
                fields.number(8),
                fields.text(),
                fields.text(),
            )
            data = bytes(fields.take(fields.number(8)))
            actual = zlib.crc32(body[: fields.at])
            _check_crc(f"attachment {name!r}", fields.number(4), actual)
            if max(log_ns, create_ns) >= _MAX_TIME:
                raise CorruptLayoutError(f"timestamp out of range in attachment {name!r}")
            self.attachments.append(Attachment(name, media_type, log_ns, create_ns, data))
        elif opcode == _METADATA:
            self.metadata.append({"name": fields.text(), "metadata": fields.pairs()})
        elif opcode == _HEADER:
            header = {"profile": fields.text(), "library": fields.text()}
            self.header = self.header or header

    def _add_schema(self, fields: _Fields) -> None:
        number, name, encoding = fields.number(2), fields.text(), fields.text()
        schema = (name, encoding, bytes(fields.take(fields.number(4))))
        if self._schemas.setdefault(number, schema) != schema:
            raise CorruptLayoutError(f"several schemas with number {number}")

    def _add_channel(self, fields: _Fields) -> None:
        number, schema, topic, encoding = fields.number(2), fields.number(2), fields.text(), fields.text()
        if schema not in self._schemas:
            raise CorruptLayoutError(f"unknown schema {schema} of topic {topic!r}")
        channel = LogChannel(topic, *self._schemas[schema], encoding, fields.pairs())
        if self._file_channels.setdefault(number, channel) != channel:
            raise CorruptLayoutError(f"several channels with number {number}")
        self._numbers[number] = self.channels.setdefault(channel, len(self.channels))

    def _add_chunk(self, fields: _Fields, offset: int) -> None:
        fields.take(16)  # first and last time
        size, crc, compression, stored = fields.number(8), fields.number(4), fields.text(), fields.number(8)
        part = _Part(self._file, offset + fields.at, stored, size, compression)
        data = fields.take(stored)
        try:
            records = memoryview(_decompress(part, data))
            _check_crc(f"chunk at {part.offset}", crc, zlib.crc32(records))
            self._add_part(part, records)
        except FormatError as error:
            self._note_damage(error)

    def _add_part(self, part: _Part, records: memoryview) -> None:
        """Index the messages of a part; nothing of a damaged part is kept."""
        offsets: list[int] = []
        for opcode, start, end in _split_records(records, "chunk"):
            if opcode == _MESSAGE and end - start >= _MESSAGE_BYTES:
                offsets.append(start)
            elif opcode in (_SCHEMA, _CHANNEL):
                self._add_record(opcode, records[start:end], 0)
            elif opcode in (_MESSAGE, _CHUNK):
                fact = f"invalid record with opcode {opcode} and {end - start} bytes in a chunk"
                raise CorruptLayoutError(fact)
        starts = np.array(offsets, np.int64)
        raw = np.frombuffer(records, np.uint8)
        heads = raw[(starts - _HEAD_BYTES)[:, None] + np.arange(_MESSAGE_HEAD.itemsize)]
        heads = heads.reshape(-1).view(_MESSAGE_HEAD)
        channels = self._numbers[heads["channel"]]
        if (channels < 0).any():
            raise CorruptLayoutError(f"message of unknown channel {heads['channel'][channels < 0][0]}")
        messages = np.empty(len(starts), _INDEX)
        messages["channel"], messages["part"] = channels, len(self.parts)
        messages["start"] = starts + _MESSAGE_BYTES
        messages["size"] = heads["length"] - _MESSAGE_BYTES
        for name in ("log", "publish", "sequence"):
            messages[name] = heads[name]
        self.messages.append(messages)
        self.parts.append(part)
        self._count += len(starts)
