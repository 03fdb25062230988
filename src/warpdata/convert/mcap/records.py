"""The messages of MCAP files, found in one pass from front to back; every checksum is compared.

The mcap library writes files but does not read them: its reader loads records and decompresses chunks without a bound,
skips the checksums of attachments, cannot continue after damage, and is several times slower per message.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
    crc: int


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
            _Scan(self._open(file), self._path(file), file, contents).run(recover=self._recover)
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
        found = []
        for channel, own in zip(self.channels, np.split(every, bounds), strict=False):
            if max(own["log"].max(initial=0), own["publish"].max(initial=0)) >= _MAX_TIME:
                raise CorruptLayoutError(f"timestamp out of range in topic {channel.topic!r}", path=self.name)
            log_ns, publish_ns = own["log"].astype(np.int64), own["publish"].astype(np.int64)
            stamps, order = Stamps.sort(log_ns, publish_ns, own["sequence"])
            found.append((stamps, own[order]))
        return found

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
        stored = self._open(part.file).read(part.offset, part.offset + part.stored)
        records = np.frombuffer(_decompress(part, stored, self._path(part.file)), np.uint8)
        self._cache[number] = records
        total = sum(each.nbytes for each in self._cache.values())
        while total > _CACHE_BYTES and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
        return records


def _decompress(part: _Part, stored: memoryview, path: str) -> bytes | memoryview:
    """Records of a chunk; sizes are checked before anything is allocated."""
    if part.size > MAX_CHUNK_BYTES:
        raise LimitExceededError(f"chunk of {part.size} bytes (limit {MAX_CHUNK_BYTES})", path=path)
    try:
        if part.compression == "zstd":
            return decode_bytes("zstd", stored, part.size) if part.size else b""
        if part.compression == "lz4":
            return decode_lz4_frame(stored, part.size)
    except WarpError as error:
        raise type(error)(error.message, path=path, hint=error.hint) from None
    if part.compression:
        raise FormatError(f"unknown chunk compression {part.compression!r} (known: zstd, lz4)", path=path)
    if len(stored) != part.size:
        raise CorruptLayoutError(f"chunk size mismatch: expected {part.size}, got {len(stored)}", path=path)
    return stored


class _Fields:
    """Reads the fields of a record one after the other."""

    def __init__(self, data: memoryview, path: str) -> None:
        self._data, self._path, self.at = data, path, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        end = self.at + size
        if end > len(self._data):
            raise CorruptLayoutError("record ends before its last field", path=self._path)
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
            raise CorruptLayoutError("string of a record is not UTF-8", path=self._path) from None

    def pairs(self) -> dict[str, str]:
        """The next map of strings."""
        size = self.number(4)
        end = self.at + size
        pairs: dict[str, str] = {}
        while self.at < end:
            key = self.text()
            pairs[key] = self.text()
        if self.at != end:
            raise CorruptLayoutError(
                f"map size mismatch: expected {size}, got {size + self.at - end}", path=self._path
            )
        return pairs


class _Scan:
    """One pass over one file."""

    def __init__(self, reader: RangeReader, path: str, file: int, contents: _Contents) -> None:
        self._reader, self._path, self._file, self._out = reader, path, file, contents
        self._recover = False
        self._schemas: dict[int, tuple[str, str, bytes]] = {}
        self._channels: dict[int, LogChannel] = {}
        self._indexes = np.full(1 << 16, -1, np.int32)
        """Number of a channel in this file -> its number in the recording."""
        self._summary_channels: list[memoryview] = []
        self._summary_start = 0
        self._expected_count: int | None = None
        self._count = 0
        self._run = bytearray()
        self._run_start = 0
        self._window = (0, memoryview(b""))

    def run(self, *, recover: bool) -> None:
        """Read all records. Damage is an error; with `recover` it is noted and what can be read is kept."""
        if bytes(self._reader.read(0, min(8, self._reader.size))) != layout.MAGIC:
            raise BadMagicError("not an MCAP file", path=self._path)
        self._recover = recover
        for stage in (self._read_end, self._read_data, self._close_run, self._check_counts):
            try:
                stage()
            except FormatError as error:
                self._note_damage(error)

    def _note_damage(self, error: FormatError) -> None:
        if not self._recover or isinstance(error, LimitExceededError):
            raise error
        if error.message not in self._out.damage:
            self._out.damage.append(error.message)

    def _corrupted(self, problem: str) -> CorruptLayoutError:
        return CorruptLayoutError(problem, path=self._path)

    def _read_end(self) -> None:
        """Footer and summary: channels without messages and the number of messages."""
        size, body = self._reader.size, layout.FOOTER_BODY.size
        begin = size - len(layout.MAGIC) - body - layout.RECORD.size
        tail = bytes(self._reader.read(begin, size)) if begin >= len(layout.MAGIC) else b""
        if not tail.endswith(layout.MAGIC) or layout.RECORD.unpack_from(tail) != (layout.FOOTER, body):
            raise TruncatedError(
                "file has no footer: the recorder was stopped or the file is cut",
                path=self._path,
                hint=_RECOVER,
            )
        start, offsets, crc = layout.FOOTER_BODY.unpack_from(tail, layout.RECORD.size)
        if (start and not 8 <= start <= begin) or (offsets and not start <= offsets <= begin):
            raise self._corrupted("summary is outside of the file")
        if not start:
            return
        self._summary_start = start
        if begin - start > _MAX_SUMMARY_BYTES:
            raise LimitExceededError(
                f"summary of {begin - start} bytes (limit {_MAX_SUMMARY_BYTES})", path=self._path
            )
        summary = self._reader.read(start, size - len(layout.MAGIC) - 4)
        self._check_crc("summary", crc, zlib.crc32(summary))
        at, data = 0, memoryview(summary)[: begin - start]
        while at < len(data):
            opcode, content, at = self._next_record(data, at, "summary")
            if opcode == layout.STATISTICS:
                self._expected_count = _Fields(content, self._path).number(8)
            elif opcode == layout.SCHEMA:
                self._add_schema(content)
            elif opcode == layout.CHANNEL:
                self._summary_channels.append(content)

    def _check_crc(self, what: str, expected: int, actual: int) -> None:
        if expected and expected != actual:
            message = f"CRC mismatch of the {what}: expected {expected:08x}, got {actual:08x}"
            raise ChecksumError(message, path=self._path, hint=_RECOVER)

    def _next_record(self, data: memoryview, at: int, where: str) -> tuple[int, memoryview, int]:
        """Opcode and body of the record at an offset, and the offset of the next one."""
        begin = at + layout.RECORD.size
        if begin > len(data):
            raise self._corrupted(f"{where} ends inside a record")
        opcode, length = layout.RECORD.unpack_from(data, at)
        if length > len(data) - begin:
            raise self._corrupted(f"record of {length} bytes exceeds its {where}")
        return opcode, data[begin : begin + length], begin + length

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
        at, size = len(layout.MAGIC), self._reader.size
        crc = zlib.crc32(layout.MAGIC)
        while at + layout.RECORD.size <= size:
            begin = at + layout.RECORD.size
            head = self._read(at, begin)
            opcode, length = layout.RECORD.unpack(head)
            if opcode != layout.MESSAGE:
                self._close_run()
            if opcode in (layout.DATA_END, layout.FOOTER):
                self._end_data(opcode, at, length, crc)
                return
            if length > size - begin:
                message = f"record of {length} bytes at {at} exceeds the file of {size} bytes"
                raise TruncatedError(message, path=self._path, hint=_RECOVER)
            if length > MAX_MESSAGE_BYTES:
                raise LimitExceededError(
                    f"record of {length} bytes (limit {MAX_MESSAGE_BYTES})", path=self._path
                )
            body = self._read(begin, begin + length)
            crc = zlib.crc32(body, zlib.crc32(head, crc))
            if opcode == layout.MESSAGE:
                self._add_loose_message(at, head, body)
            else:
                self._add_record(opcode, body, begin)
            at = begin + length
        raise TruncatedError(
            "file has no end of data: the recorder was stopped", path=self._path, hint=_RECOVER
        )

    def _end_data(self, opcode: int, at: int, length: int, crc: int) -> None:
        begin = at + layout.RECORD.size
        if opcode == layout.DATA_END:
            if length != 4 or begin + length > self._reader.size:
                raise self._corrupted("corrupted end of data")
            self._check_crc("data", int.from_bytes(self._read(begin, begin + 4), "little"), crc)
        if self._summary_start and at != self._summary_start - layout.RECORD.size - 4:
            raise self._corrupted("data does not end where the summary starts")

    def _check_counts(self) -> None:
        for body in self._summary_channels:  # channels without messages are declared only there
            self._add_channel(body)
        if self._expected_count is not None and self._expected_count != self._count:
            raise self._corrupted(
                f"message count mismatch: expected {self._expected_count}, got {self._count}"
            )

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
            fields = _Fields(body, self._path)
            self._out.metadata.append({"name": fields.text(), "metadata": fields.pairs()})
        elif opcode == layout.HEADER:
            fields = _Fields(body, self._path)
            header = {"profile": fields.text(), "library": fields.text()}
            self._out.header = self._out.header or header

    def _add_schema(self, body: memoryview) -> None:
        fields = _Fields(body, self._path)
        number, name, encoding = fields.number(2), fields.text(), fields.text()
        schema = (name, encoding, bytes(fields.take(fields.number(4))))
        if self._schemas.setdefault(number, schema) != schema:
            raise self._corrupted(f"several schemas with number {number}")

    def _add_channel(self, body: memoryview) -> None:
        fields = _Fields(body, self._path)
        number, schema, topic, encoding = fields.number(2), fields.number(2), fields.text(), fields.text()
        if schema and schema not in self._schemas:
            raise self._corrupted(f"unknown schema {schema} of topic {topic!r}")
        channel = LogChannel(topic, *self._schemas.get(schema, ("", "", b"")), encoding, fields.pairs())
        if self._channels.setdefault(number, channel) != channel:
            raise self._corrupted(f"several channels with number {number}")
        self._indexes[number] = self._out.channels.setdefault(channel, len(self._out.channels))

    def _add_attachment(self, body: memoryview) -> None:
        fields = _Fields(body, self._path)
        log_ns, create_ns, name, media_type = fields.number(8), fields.number(8), fields.text(), fields.text()
        data = bytes(fields.take(fields.number(8)))
        actual = zlib.crc32(body[: fields.at])
        self._check_crc(f"attachment {name!r}", fields.number(4), actual)
        if max(log_ns, create_ns) >= _MAX_TIME:
            raise self._corrupted(f"timestamp out of range in attachment {name!r}")
        self._out.attachments.append(Attachment(name, media_type, log_ns, create_ns, data))

    def _add_loose_message(self, at: int, head: memoryview, body: memoryview) -> None:
        """A message outside of chunks; consecutive ones are one part."""
        if not self._run:
            self._run_start = at
        self._run += head
        self._run += body
        if len(self._run) >= _RUN_BYTES:
            self._close_run()

    def _close_run(self) -> None:
        if self._run:
            data, self._run = bytes(self._run), bytearray()
            self._add_part(_Part(self._file, self._run_start, len(data), len(data), "", 0), data)

    def _add_chunk(self, body: memoryview, offset: int) -> None:
        fields = _Fields(body, self._path)
        _, _, size, crc = layout.CHUNK_HEAD.unpack(fields.take(layout.CHUNK_HEAD.size))
        compression, stored = fields.text(), fields.number(8)
        part = _Part(self._file, offset + fields.at, stored, size, compression, crc)
        data = fields.take(stored)
        try:
            records = _decompress(part, data, self._path)
            self._check_crc(f"chunk at {part.offset}", crc, zlib.crc32(records))
            self._add_part(part, records)
        except FormatError as error:
            self._note_damage(error)

    def _add_part(self, part: _Part, records: bytes | memoryview) -> None:
        """Find the messages of a part; nothing of a damaged part is kept."""
        view = memoryview(records)
        offsets: list[int] = []
        at, size, unpack = 0, len(view), layout.RECORD.unpack_from
        while at + layout.RECORD.size <= size:
            opcode, length = unpack(view, at)
            end = at + layout.RECORD.size + length
            if opcode == layout.MESSAGE and length >= layout.MESSAGE_FIXED_BYTES and end <= size:
                offsets.append(at)
            elif opcode in (layout.SCHEMA, layout.CHANNEL) and end <= size:
                self._add_record(opcode, view[at + layout.RECORD.size : end], 0)
            elif end > size or opcode in (layout.MESSAGE, layout.CHUNK):
                raise self._corrupted(f"invalid record with opcode {opcode} and {length} bytes in a chunk")
            at = end
        if at != size:
            raise self._corrupted("chunk ends inside a record")
        starts = np.array(offsets, np.int64)
        raw = np.frombuffer(view, np.uint8)[starts[:, None] + np.arange(layout.MESSAGE_HEAD.itemsize)]
        heads = raw.reshape(-1).view(layout.MESSAGE_HEAD)
        channels = self._indexes[heads["channel"]]
        if (channels < 0).any():
            raise self._corrupted(f"message of unknown channel {heads['channel'][channels < 0][0]}")
        messages = np.empty(len(starts), _MESSAGES)
        messages["channel"], messages["part"] = channels, len(self._out.parts)
        messages["start"] = starts + layout.MESSAGE_HEAD.itemsize
        messages["size"] = heads["length"].astype(np.int64) - layout.MESSAGE_FIXED_BYTES
        for name in ("log", "publish", "sequence"):
            messages[name] = heads[name]
        self._out.messages.append(messages)
        self._out.parts.append(part)
        self._count += len(starts)
