"""Index of the messages of MCAP files, made in one pass from front to back; every checksum is compared.

The mcap library writes files but does not read them: its reader loads records and decompresses chunks without a bound,
skips the checksums of attachments, cannot continue after damage, and is several times slower per message.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    name_path,
)
from warpdata.convert.place import Place
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
)

MAX_CHUNK_BYTES = 1 << 28
_MAX_SUMMARY_BYTES = 1 << 28
_RUN_BYTES = 4 << 20
_READ_AHEAD_BYTES = 4 << 20
_CACHE_BYTES = 32 << 20
_SMALL_BYTES = 32 << 20
"""Messages of topics that are small in total are kept in memory."""
_MAX_TIME = 1 << 63
_RECOVER = "Read what is left of a damaged file with recover=True (warp: -o recover=true)."


class _Part(NamedTuple):
    """Records that are read together: those of a chunk, or messages outside of chunks."""

    file: int
    offset: int
    stored: int
    size: int
    compression: str


_MESSAGES = np.dtype(
    [
        *(("channel", "i4"), ("part", "i4"), ("start", "i8"), ("size", "i8")),
        *(("log", "u8"), ("publish", "u8"), ("sequence", "i8")),
    ]
)
"""Channel of a message, its part and position there, and its stamps."""


@dataclass(slots=True)
class _Contents:
    """Everything that one pass over the files finds."""

    channels: dict[LogChannel, int] = field(default_factory=dict)
    parts: list[_Part] = field(default_factory=list)
    messages: list[NDArray[Any]] = field(default_factory=list)
    header: dict[str, str] = field(default_factory=dict)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


class McapLog(MessageLog):
    """MCAP files of one recording, in order."""

    def __init__(self, place: Place, files: Sequence[str], recover: bool = False) -> None:
        self._place, self._files, self._recover = place, list(files), recover
        self._cache: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._readers: dict[int, RangeReader] = {}

    @property
    def name(self) -> str:
        """The file, or the folder of several."""
        return self._path(0) if len(self._files) == 1 else self._place.name

    def _path(self, file: int) -> str:
        return f"{self._place.name}/{self._files[file]}" if self._files[file] else self._place.name

    def _open(self, file: int) -> RangeReader:
        if file not in self._readers:
            self._readers[file] = self._place.open(self._files[file])
        return self._readers[file]

    @cached_property
    def _contents(self) -> _Contents:
        contents = _Contents()
        for file in range(len(self._files)):
            with name_path(self._path(file)):
                _Scan(self._open(file), file, contents, self._path(file) if self._recover else None).run()
        return contents

    @cached_property
    def channels(self) -> Sequence[LogChannel]:
        """All topics in the order of their declaration."""
        return list(self._contents.channels)

    @cached_property
    def _by_channel(self) -> list[tuple[Stamps, NDArray[Any]]]:
        """Messages of every channel, ordered by log time."""
        every = np.concatenate([np.empty(0, _MESSAGES), *self._contents.messages])
        every = every[np.argsort(every["channel"], kind="stable")]
        bounds = np.searchsorted(every["channel"], np.arange(1, len(self.channels)))
        by_channel = []
        for channel, own in zip(self.channels, np.split(every, bounds), strict=False):
            if max(own["log"].max(initial=0), own["publish"].max(initial=0)) >= _MAX_TIME:
                raise CorruptLayoutError(f"timestamp out of range in topic {channel.topic!r}", path=self.name)
            log_ns, publish_ns = own["log"].astype(np.int64), own["publish"].astype(np.int64)
            stamps, order = Stamps.sort(log_ns, publish_ns, own["sequence"])
            by_channel.append((stamps, own[order]))
        return by_channel

    def stamps(self, channel: int) -> Stamps:
        """Times of the messages of a channel."""
        return self._by_channel[channel][0]

    def payload_bytes(self, channel: int) -> int:
        """Total size of the messages of a channel."""
        return int(self._by_channel[channel][1]["size"].sum())

    @property
    def about(self) -> Mapping[str, Any]:
        """Header, metadata records, and what could not be read."""
        contents = self._contents
        about: dict[str, Any] = {"header": contents.header, "metadata": contents.metadata}
        return about | ({"damage": contents.damage} if contents.damage else {})

    @property
    def attachments(self) -> Sequence[Attachment]:
        """Files that came with the messages."""
        return self._contents.attachments

    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Messages of a channel by their positions in `stamps`."""
        small = self._small.get(channel)
        if small is not None:
            return Payloads(small.data, small.starts[rows], small.sizes[rows])
        messages = self._by_channel[channel][1][rows]
        part, start, size = messages["part"], messages["start"], messages["size"]
        if len(rows) and bool((part == part[0]).all()):
            return Payloads(self._read_part(int(part[0])), start, size)
        columns = zip(part.tolist(), start.tolist(), (start + size).tolist(), strict=True)
        return Payloads.join([self._read_part(number)[low:high].data for number, low, high in columns])

    @cached_property
    def _small(self) -> dict[int, Payloads]:
        """All messages of the smallest topics, copied in one pass over the parts."""
        numbers: list[int] = []
        total = 0
        for number in sorted(range(len(self.channels)), key=self.payload_bytes):
            total += self.payload_bytes(number)
            if total > _SMALL_BYTES:
                break
            numbers.append(number)
        if not numbers:
            return {}
        chosen = [self._by_channel[number][1] for number in numbers]
        messages = np.concatenate(chosen)
        sizes = messages["size"]
        targets = np.cumsum(sizes) - sizes
        data = memoryview(bytearray(int(sizes.sum())))
        order = np.argsort(messages["part"], kind="stable")
        columns = (messages["part"], messages["start"], targets, sizes)
        last, source = -1, data
        for part, start, target, size in zip(*(column[order].tolist() for column in columns), strict=True):
            if part != last:
                last, source = part, self._read_part(part).data
            data[target : target + size] = source[start : start + size]
        joined = np.frombuffer(data, np.uint8)
        ends = np.cumsum([len(own) for own in chosen])[:-1]
        places = zip(numbers, np.split(targets, ends), np.split(sizes, ends), strict=True)
        return {number: Payloads(joined, starts, lengths) for number, starts, lengths in places}

    def _read_part(self, number: int) -> NDArray[np.uint8]:
        """Records of a part, from the cache or from the file."""
        records = self._cache.get(number)
        if records is not None:
            self._cache.move_to_end(number)
            return records
        part = self._contents.parts[number]
        with name_path(self._path(part.file)):
            stored = self._open(part.file).read(part.offset, part.offset + part.stored)
            records = np.frombuffer(_decompress(part, stored), np.uint8)
        self._cache[number] = records
        total = sum(part_records.nbytes for part_records in self._cache.values())
        while total > _CACHE_BYTES and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
        return records


def _decompress(part: _Part, stored: memoryview) -> bytes | memoryview:
    """Records of a chunk; sizes are checked before anything is allocated."""
    if part.size > MAX_CHUNK_BYTES:
        raise LimitExceededError(f"chunk of {part.size} bytes (limit {MAX_CHUNK_BYTES})")
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
    at, unpack, head = 0, layout.RECORD.unpack_from, layout.RECORD.size
    while at + head <= len(data):
        opcode, length = unpack(data, at)
        start, at = at + head, at + head + length
        if at > len(data):
            raise CorruptLayoutError(f"record of {length} bytes exceeds its {where}")
        yield opcode, start, at
    if at != len(data):
        raise CorruptLayoutError(f"{where} ends inside a record")


def _check_crc(what: str, expected: int, actual: int) -> None:
    if expected and expected != actual:
        raise ChecksumError(
            f"CRC mismatch of the {what}: expected {expected:08x}, got {actual:08x}", hint=_RECOVER
        )


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


class _Scan:
    """One pass over one file."""

    def __init__(self, reader: RangeReader, file: int, contents: _Contents, recovered: str | None) -> None:
        """`recovered` is the path if damage is noted instead of raised."""
        self._reader, self._file, self._out, self._recovered = reader, file, contents, recovered
        self._schemas: dict[int, tuple[str, str, bytes]] = {}
        self._channels: dict[int, LogChannel] = {}
        self._indexes = np.full(1 << 16, -1, np.int32)
        """Number of a channel in this file -> its number in the recording."""
        self._summary_channels: list[memoryview] = []
        self._summary_start = 0
        self._expected_count: int | None = None
        self._count = 0
        self._run = bytearray()
        """Consecutive messages outside of chunks."""
        self._run_start = 0
        self._window = (0, memoryview(b""))

    def run(self) -> None:
        """Read all records, or what can be read of them."""
        if bytes(self._reader.read(0, min(8, self._reader.size))) != layout.MAGIC:
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
        if message not in self._out.damage:
            self._out.damage.append(message)

    def _read_end(self) -> None:
        """Footer and summary: channels without messages and the number of messages."""
        size, body = self._reader.size, layout.FOOTER_BODY.size
        begin = size - len(layout.MAGIC) - body - layout.RECORD.size
        tail = bytes(self._reader.read(begin, size)) if begin >= len(layout.MAGIC) else b""
        if not tail.endswith(layout.MAGIC) or layout.RECORD.unpack_from(tail) != (layout.FOOTER, body):
            raise TruncatedError("file has no footer: it is cut, or its recorder was stopped", hint=_RECOVER)
        start, offsets, crc = layout.FOOTER_BODY.unpack_from(tail, layout.RECORD.size)
        if (start and not 8 <= start <= begin) or (offsets and not start <= offsets <= begin):
            raise CorruptLayoutError("summary is outside of the file")
        if not start:
            return
        self._summary_start = start
        if begin - start > _MAX_SUMMARY_BYTES:
            raise LimitExceededError(f"summary of {begin - start} bytes (limit {_MAX_SUMMARY_BYTES})")
        summary = memoryview(self._reader.read(start, size - len(layout.MAGIC) - 4))
        _check_crc("summary", crc, zlib.crc32(summary))
        for opcode, low, high in _split_records(summary[: begin - start], "summary"):
            if opcode == layout.STATISTICS:
                self._expected_count = _Fields(summary[low:high]).number(8)
            elif opcode == layout.SCHEMA:
                self._add_schema(summary[low:high])
            elif opcode == layout.CHANNEL:
                self._summary_channels.append(summary[low:high])

    def _read(self, start: int, end: int) -> memoryview:
        """Bytes of the file, with read-ahead."""
        begin, window = self._window
        if start < begin or end > begin + len(window):
            stop = min(max(end, start + _READ_AHEAD_BYTES), self._reader.size)
            begin, window = start, self._reader.read(start, stop)
            self._window = (begin, window)
        return window[start - begin : end - begin]

    def _read_data(self) -> None:
        """All records of the data section."""
        at, size, crc = len(layout.MAGIC), self._reader.size, zlib.crc32(layout.MAGIC)
        while at + layout.RECORD.size <= size:
            begin = at + layout.RECORD.size
            head = self._read(at, begin)
            opcode, length = layout.RECORD.unpack(head)
            if length > size - begin:
                raise TruncatedError(f"record of {length} bytes at {at} exceeds the file", hint=_RECOVER)
            if length > MAX_MESSAGE_BYTES:
                raise LimitExceededError(f"record of {length} bytes (limit {MAX_MESSAGE_BYTES})")
            body = self._read(begin, begin + length)
            if opcode == layout.MESSAGE:
                self._add_loose_message(at, head, body)
            else:
                self._close_run()
                self._add_record(opcode, body, begin)
            if opcode in (layout.DATA_END, layout.FOOTER):
                if opcode == layout.DATA_END:
                    _check_crc("data", _Fields(body).number(4), crc)
                if self._summary_start and begin + length != self._summary_start:
                    raise CorruptLayoutError("data does not end where the summary starts")
                return
            crc = zlib.crc32(body, zlib.crc32(head, crc))
            at = begin + length
        raise TruncatedError("file has no end of data: its recorder was stopped", hint=_RECOVER)

    def _check_counts(self) -> None:
        for body in self._summary_channels:  # channels without messages are declared only there
            self._add_channel(body)
        if self._expected_count is not None and self._expected_count != self._count:
            expected, count = self._expected_count, self._count
            raise CorruptLayoutError(f"message count mismatch: expected {expected}, got {count}")

    def _add_record(self, opcode: int, body: memoryview, offset: int) -> None:
        if opcode == layout.SCHEMA:
            self._add_schema(body)
        elif opcode == layout.CHANNEL:
            self._add_channel(body)
        elif opcode == layout.CHUNK:
            self._add_chunk(body, offset)
        elif opcode == layout.ATTACHMENT:
            self._add_attachment(body)
        elif opcode == layout.METADATA:
            fields = _Fields(body)
            self._out.metadata.append({"name": fields.text(), "metadata": fields.pairs()})
        elif opcode == layout.HEADER:
            fields = _Fields(body)
            header = {"profile": fields.text(), "library": fields.text()}
            self._out.header = self._out.header or header

    def _add_schema(self, body: memoryview) -> None:
        fields = _Fields(body)
        number, name, encoding = fields.number(2), fields.text(), fields.text()
        schema = (name, encoding, bytes(fields.take(fields.number(4))))
        if self._schemas.setdefault(number, schema) != schema:
            raise CorruptLayoutError(f"several schemas with number {number}")

    def _add_channel(self, body: memoryview) -> None:
        fields = _Fields(body)
        number, schema, topic, encoding = fields.number(2), fields.number(2), fields.text(), fields.text()
        if schema and schema not in self._schemas:
            raise CorruptLayoutError(f"unknown schema {schema} of topic {topic!r}")
        channel = LogChannel(topic, *self._schemas.get(schema, ("", "", b"")), encoding, fields.pairs())
        if self._channels.setdefault(number, channel) != channel:
            raise CorruptLayoutError(f"several channels with number {number}")
        self._indexes[number] = self._out.channels.setdefault(channel, len(self._out.channels))

    def _add_attachment(self, body: memoryview) -> None:
        fields = _Fields(body)
        log_ns, create_ns, name, media_type = fields.number(8), fields.number(8), fields.text(), fields.text()
        data = bytes(fields.take(fields.number(8)))
        actual = zlib.crc32(body[: fields.at])
        _check_crc(f"attachment {name!r}", fields.number(4), actual)
        if max(log_ns, create_ns) >= _MAX_TIME:
            raise CorruptLayoutError(f"timestamp out of range in attachment {name!r}")
        self._out.attachments.append(Attachment(name, media_type, log_ns, create_ns, data))

    def _add_loose_message(self, at: int, head: memoryview, body: memoryview) -> None:
        if not self._run:
            self._run_start = at
        self._run += head
        self._run += body
        if len(self._run) >= _RUN_BYTES:
            self._close_run()

    def _close_run(self) -> None:
        if self._run:
            data, self._run = memoryview(bytes(self._run)), bytearray()
            self._add_part(_Part(self._file, self._run_start, len(data), len(data), ""), data)

    def _add_chunk(self, body: memoryview, offset: int) -> None:
        fields = _Fields(body)
        _, _, size, crc = layout.CHUNK_HEAD.unpack(fields.take(layout.CHUNK_HEAD.size))
        compression, stored = fields.text(), fields.number(8)
        part = _Part(self._file, offset + fields.at, stored, size, compression)
        data = fields.take(stored)
        try:
            records = memoryview(_decompress(part, data))
            _check_crc(f"chunk at {part.offset}", crc, zlib.crc32(records))
            self._add_part(part, records)
        except FormatError as error:
            self._note_damage(error)

    def _add_part(self, part: _Part, records: memoryview) -> None:
        """Find the messages of a part; nothing of a damaged part is kept."""
        offsets: list[int] = []
        for opcode, start, end in _split_records(records, "chunk"):
            if opcode == layout.MESSAGE and end - start >= layout.MESSAGE_FIXED_BYTES:
                offsets.append(start)
            elif opcode in (layout.SCHEMA, layout.CHANNEL):
                self._add_record(opcode, records[start:end], 0)
            elif opcode in (layout.MESSAGE, layout.CHUNK):
                raise CorruptLayoutError(
                    f"invalid record with opcode {opcode} and {end - start} bytes in a chunk"
                )
        starts = np.array(offsets, np.int64)
        raw = np.frombuffer(records, np.uint8)
        heads = raw[(starts - layout.RECORD.size)[:, None] + np.arange(layout.MESSAGE_HEAD.itemsize)]
        heads = heads.reshape(-1).view(layout.MESSAGE_HEAD)
        channels = self._indexes[heads["channel"]]
        if (channels < 0).any():
            raise CorruptLayoutError(f"message of unknown channel {heads['channel'][channels < 0][0]}")
        messages = np.empty(len(starts), _MESSAGES)
        messages["channel"], messages["part"] = channels, len(self._out.parts)
        messages["start"] = starts + layout.MESSAGE_FIXED_BYTES
        messages["size"] = heads["length"] - layout.MESSAGE_FIXED_BYTES
        for name in ("log", "publish", "sequence"):
            messages[name] = heads[name]
        self._out.messages.append(messages)
        self._out.parts.append(part)
        self._count += len(starts)
