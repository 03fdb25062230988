"""Write an MCAP file: chunks with their indexes, and a summary that lets readers jump; every checksum is there."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

from warpdata._version import __version__
from warpdata.bytekit.codec import encode as encode_bytes
from warpdata.bytekit.codec import encode_lz4_frame
from warpdata.convert.mcap import layout
from warpdata.convert.messages.log import Attachment, LogChannel
from warpdata.errors import LimitExceededError, nearest

Compression = Literal["zstd", "lz4", "none"]
CHUNK_BYTES = 1 << 20
_MAX_NUMBER = 0xFFFF


class Sink(Protocol):
    """Where the bytes go."""

    @property
    def position(self) -> int:
        """How many there are so far."""

    def write(self, data: bytes) -> Any:
        """Append bytes."""


class _Chunk(NamedTuple):
    """What the summary says of a chunk."""

    start: int
    end: int
    offset: int
    length: int
    indexes: dict[int, int]
    index_bytes: int
    compression: bytes
    stored: int
    size: int


class McapFile:
    """A file being written, from front to back."""

    def __init__(self, out: Sink, *, profile: str = "", compression: Compression = "zstd") -> None:
        if compression not in get_args(Compression):
            known = get_args(Compression)
            raise ValueError(
                f"compression is one of {', '.join(known)}, not {compression!r}.{nearest(compression, known)}"
            )
        self._out, self._compression = out, compression
        self._crc = 0
        self._schemas: dict[tuple[str, str, bytes], int] = {}
        self._schema_records: list[bytes] = []
        self._channel_records: list[bytes] = []
        self._counts: list[int] = []
        self._chunks: list[_Chunk] = []
        self._pending = bytearray()
        self._entries: dict[int, list[tuple[int, int]]] = {}
        self._span: tuple[int, int] | None = None
        self._attachments: list[bytes] = []
        self._metadata: list[bytes] = []
        self._first: int | None = None
        self._last = 0
        self._write(layout.MAGIC)
        self._write(record(layout.HEADER, text(profile) + text(f"warpdata {__version__}")))

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._crc = zlib.crc32(data, self._crc)

    def channel(self, channel: LogChannel) -> int:
        """Declare a topic; its number."""
        number = len(self._channel_records)
        if number >= _MAX_NUMBER:
            raise LimitExceededError(f"an MCAP file holds at most {_MAX_NUMBER} topics")
        schema = 0
        if channel.schema or channel.schema_data or channel.schema_encoding:
            key = (channel.schema, channel.schema_encoding, channel.schema_data)
            if key not in self._schemas:
                self._schemas[key] = len(self._schemas) + 1
                body = layout.U16.pack(self._schemas[key]) + text(key[0]) + text(key[1])
                made = record(layout.SCHEMA, body + layout.U32.pack(len(key[2])) + key[2])
                self._schema_records.append(made)
                self._pending += made
            schema = self._schemas[key]
        body = layout.U16.pack(number) + layout.U16.pack(schema) + text(channel.topic)
        made = record(layout.CHANNEL, body + text(channel.message_encoding) + pairs(channel.metadata))
        self._channel_records.append(made)
        self._counts.append(0)
        self._pending += made
        return number

    def message(self, channel: int, sequence: int, log_ns: int, publish_ns: int, data: bytes) -> None:
        """Append a message."""
        head = layout.MESSAGE_HEAD.pack(
            layout.MESSAGE,
            layout.MESSAGE_FIXED + len(data),
            channel,
            sequence & 0xFFFFFFFF,
            log_ns,
            publish_ns,
        )
        self._entries.setdefault(channel, []).append((log_ns, len(self._pending)))
        self._pending += head
        self._pending += data
        low, high = self._span or (log_ns, log_ns)
        self._span = (min(low, log_ns), max(high, log_ns))
        self._first = log_ns if self._first is None else min(self._first, log_ns)
        self._last = max(self._last, log_ns)
        self._counts[channel] += 1
        if len(self._pending) >= CHUNK_BYTES:
            self._close_chunk()

    def attachment(self, each: Attachment) -> None:
        """Append a file."""
        self._close_chunk()
        body = layout.TWO_TIMES.pack(each.log_ns, each.create_ns) + text(each.name) + text(each.media_type)
        body += layout.U64.pack(len(each.data)) + each.data
        made = record(layout.ATTACHMENT, body + layout.U32.pack(zlib.crc32(body)))
        offset = self._out.position
        self._write(made)
        index = layout.CHUNK_INDEX_HEAD.pack(offset, len(made), each.log_ns, each.create_ns)
        index += layout.U64.pack(len(each.data)) + text(each.name) + text(each.media_type)
        self._attachments.append(record(layout.ATTACHMENT_INDEX, index))

    def metadata(self, name: str, values: Mapping[str, str]) -> None:
        """Append a metadata record."""
        self._close_chunk()
        made = record(layout.METADATA, text(name) + pairs(values))
        offset = self._out.position
        self._write(made)
        self._metadata.append(
            record(layout.METADATA_INDEX, layout.TWO_TIMES.pack(offset, len(made)) + text(name))
        )

    def _close_chunk(self) -> None:
        if not self._pending:
            return
        raw = bytes(self._pending)
        kind = b"" if self._compression == "none" else self._compression.encode()
        stored = raw
        if self._compression == "zstd":
            stored = encode_bytes("zstd", raw)
        elif self._compression == "lz4":
            stored = encode_lz4_frame(raw)
        start, end = self._span or (0, 0)
        head = layout.CHUNK_HEAD.pack(start, end, len(raw), zlib.crc32(raw))
        head += layout.U32.pack(len(kind)) + kind + layout.U64.pack(len(stored))
        offset = self._out.position
        self._write(layout.RECORD.pack(layout.CHUNK, len(head) + len(stored)) + head)
        self._write(stored)
        length, indexes, index_start = self._out.position - offset, {}, self._out.position
        for channel, entries in self._entries.items():
            indexes[channel] = self._out.position
            listed = b"".join(layout.TIME_AND_OFFSET.pack(*each) for each in entries)
            self._write(
                record(layout.MESSAGE_INDEX, layout.U16.pack(channel) + layout.U32.pack(len(listed)) + listed)
            )
        index_bytes = self._out.position - index_start
        self._chunks.append(
            _Chunk(start, end, offset, length, indexes, index_bytes, kind, len(stored), len(raw))
        )
        self._pending, self._entries, self._span = bytearray(), {}, None

    def finish(self) -> None:
        """Write the summary and the end."""
        self._close_chunk()
        self._write_end(self._crc)

    def _write_end(self, crc: int) -> None:
        self._out.write(record(layout.DATA_END, layout.U32.pack(crc)))
        start = self._out.position
        groups = [
            (layout.SCHEMA, self._schema_records),
            (layout.CHANNEL, self._channel_records),
            (layout.CHUNK_INDEX, [_index_of(each) for each in self._chunks]),
            (layout.ATTACHMENT_INDEX, self._attachments),
            (layout.STATISTICS, [self._statistics()]),
            (layout.METADATA_INDEX, self._metadata),
        ]
        summary, offsets = b"", b""
        for opcode, listed in groups:
            if listed:
                body = b"".join(listed)
                offsets += record(
                    layout.SUMMARY_OFFSET,
                    bytes([opcode]) + layout.TWO_TIMES.pack(start + len(summary), len(body)),
                )
                summary += body
        footer = layout.RECORD.pack(layout.FOOTER, layout.FOOTER_BODY.size)
        footer += layout.TWO_TIMES.pack(start, start + len(summary))
        whole = summary + offsets + footer
        self._out.write(whole + layout.U32.pack(zlib.crc32(whole)) + layout.MAGIC)

    def _statistics(self) -> bytes:
        body = layout.STATISTICS_HEAD.pack(
            sum(self._counts), len(self._schemas), len(self._counts), len(self._attachments), len(self._metadata),
            len(self._chunks), self._first or 0, self._last,
        )  # fmt: skip
        counts = b"".join(
            layout.U16.pack(number) + layout.U64.pack(count) for number, count in enumerate(self._counts)
        )
        return record(layout.STATISTICS, body + layout.U32.pack(len(counts)) + counts)


def _index_of(chunk: _Chunk) -> bytes:
    listed = b"".join(layout.U16.pack(channel) + layout.U64.pack(at) for channel, at in chunk.indexes.items())
    body = layout.CHUNK_INDEX_HEAD.pack(chunk.start, chunk.end, chunk.offset, chunk.length)
    body += layout.U32.pack(len(listed)) + listed + layout.U64.pack(chunk.index_bytes)
    body += layout.U32.pack(len(chunk.compression)) + chunk.compression
    return record(layout.CHUNK_INDEX, body + layout.TWO_TIMES.pack(chunk.stored, chunk.size))


def record(opcode: int, body: bytes) -> bytes:
    """A record with its opcode and length."""
    return layout.RECORD.pack(opcode, len(body)) + body


def text(value: str) -> bytes:
    """A string with its length."""
    raw = value.encode("utf-8", "surrogateescape")
    return layout.U32.pack(len(raw)) + raw


def pairs(values: Mapping[str, str]) -> bytes:
    """A map of strings with its length."""
    body = b"".join(text(key) + text(value) for key, value in values.items())
    return layout.U32.pack(len(body)) + body
