"""Files of records and the `tf.train.Example` in each: TFRecord (plain, gzip or zlib), and ArrayRecord.

The adapter of the array_record library. An Example is named lists of bytes, floats or integers in protobuf's wire
format; lists of numbers are views of its bytes.
"""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import LocalRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.varint import decode_varints, encode_varint, encode_varints
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
)

_HEAD_BYTES, _TAIL_BYTES = 12, 4
MAX_INFLATED_BYTES = 64 << 30
_MAX_RATIO, _MAX_SMALL_BYTES = 256, 256 << 20
"""Limits for the size of a compressed file after decompression."""
MAX_RECORD_BYTES = 2 << 30
"""Largest Example: a protobuf message has at most 2 GiB."""
_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"
_GZIP_OR_ZLIB = 47

Kind = Literal["bytes", "floats", "ints", "nothing"]
_KINDS: dict[int, Kind] = {1: "bytes", 2: "floats", 3: "ints"}
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 70


# Files.


class TFRecordFile:
    """Records one after the other: length, its checksum, the bytes, their checksum."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = _inflate(reader)
        self.name = reader.name

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """Start of every record, and the end of the file."""
        offsets, at, size = [0], 0, self._reader.size
        while at < size:
            if at + _HEAD_BYTES + _TAIL_BYTES > size:
                raise TruncatedError(f"record at {at} exceeds the file of {size} bytes", path=self.name)
            head = self._reader.read(at, at + _HEAD_BYTES)
            if not _is_head(head):
                raise ChecksumError(f"checksum mismatch of the length of the record at {at}", path=self.name)
            length = int.from_bytes(head[:8], "little")
            at += _HEAD_BYTES + length + _TAIL_BYTES
            if length > MAX_RECORD_BYTES or at > size:
                fact = f"record of {length} bytes at {offsets[-1]} exceeds the file of {size} bytes"
                raise TruncatedError(fact, path=self.name)
            offsets.append(at)
        return np.array(offsets, np.int64)

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self._offsets) - 1

    def read(self, number: int) -> memoryview:
        """One record, checked."""
        whole = self._reader.read(int(self._offsets[number]) + _HEAD_BYTES, int(self._offsets[number + 1]))
        data = whole[:-_TAIL_BYTES]
        if masked_crc(data) != int.from_bytes(whole[-_TAIL_BYTES:], "little"):
            raise ChecksumError(f"checksum mismatch of record {number}", path=self.name)
        return data


class ArrayRecordFile:
    """Records of an ArrayRecord file on this machine."""

    def __init__(self, path: str) -> None:
        try:
            from array_record.python import array_record_module
        except ImportError:
            raise MissingExtraError.for_extra("array_record", "rlds") from None
        self.name = path
        self._reader = self._call(lambda: array_record_module.ArrayRecordReader(path))
        self.count = int(self._call(self._reader.num_records))

    def read(self, number: int) -> memoryview:
        """One record; the library checks it."""
        return memoryview(self._call(lambda: self._reader.read([number]))[0])

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the library raises what its C++ throws
            raise CorruptLayoutError(f"array_record cannot read it ({error})", path=self.name) from None


def masked_crc(data: Any) -> int:
    """The checksum of TFRecord: CRC-32C, rotated and offset."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def pack_record(data: bytes) -> bytes:
    """A record as it stands in a TFRecord file."""
    length = len(data).to_bytes(8, "little")
    sums = [masked_crc(part).to_bytes(4, "little") for part in (length, data)]
    return b"".join((length, sums[0], data, sums[1]))


def is_tfrecord(head: bytes) -> bool:
    """Whether bytes are the first of a TFRecord file, compressed or not."""
    if _is_compressed(head):
        try:
            head = zlib.decompressobj(_GZIP_OR_ZLIB).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return False
    return _is_head(head[:_HEAD_BYTES])


def _is_head(head: bytes | memoryview) -> bool:
    return len(head) == _HEAD_BYTES and masked_crc(head[:8]) == int.from_bytes(head[8:], "little")


def _is_compressed(head: bytes) -> bool:
    is_zlib = head[:1] == b"\x78" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0
    return head.startswith(_GZIP) or (is_zlib and not _is_head(head[:_HEAD_BYTES]))


def _inflate(reader: RangeReader) -> RangeReader:
    """The reader itself, or one of the bytes that a compressed file holds, in a temporary file."""
    if not _is_compressed(bytes(reader.read(0, min(_HEAD_BYTES, reader.size)))):
        return reader
    limit = min(MAX_INFLATED_BYTES, max(_MAX_SMALL_BYTES, reader.size * _MAX_RATIO))
    with contextlib.closing(reader), tempfile.TemporaryFile(prefix="warpdata-") as file:
        for piece in _inflate_pieces(reader):
            file.write(piece)
            if file.tell() > limit:
                fact = f"decompressed size exceeds {limit} bytes"
                hint = "Unpack it with gunzip first."
                raise LimitExceededError(fact, path=reader.name, hint=hint)
        return LocalRangeReader.of_file(file)


def _inflate_pieces(reader: RangeReader) -> Iterator[bytes]:
    """Contents of a gzip or zlib file, which may have several members."""
    stream, at, waiting = zlib.decompressobj(_GZIP_OR_ZLIB), 0, b""
    try:
        while waiting or at < reader.size or not stream.eof:
            if not waiting and at < reader.size:
                waiting = bytes(reader.read(at, at := min(at + (1 << 20), reader.size)))
            if stream.eof:
                stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            piece = stream.decompress(waiting, 1 << 24)
            if not piece and not waiting:
                raise TruncatedError("compressed file is cut", path=reader.name)
            yield piece
            waiting = stream.unused_data if stream.eof else stream.unconsumed_tail
    except zlib.error as error:
        raise CorruptLayoutError(f"corrupted compressed file ({error})", path=reader.name) from None


# Examples.


class Values(NamedTuple):
    """One list of an Example."""

    kind: Kind
    entries: Sequence[bytes | memoryview] = ()
    """Of bytes."""
    numbers: NDArray[Any] = np.empty(0, np.int64)
    """Of floats f32; of integers i64 as they are parsed."""

    def __len__(self) -> int:
        return len(self.entries) if self.kind == "bytes" else len(self.numbers)


def parse_example(data: memoryview, path: str) -> dict[str, Values]:
    """Every list of an Example by its name."""
    lists: dict[str, Values] = {}
    try:
        for number, _, features in _split_fields(data):
            if number == 1:
                for entry_number, _, entry in _split_fields(_as_bytes(features)):
                    if entry_number == 1:
                        name, values = _parse_entry(_as_bytes(entry))
                        lists[name] = values
    except FormatError as error:
        raise CorruptLayoutError(f"not a tf.train.Example: {error.message}", path=path) from None
    return lists


def _parse_entry(data: memoryview) -> tuple[str, Values]:
    name, values = "", Values("nothing")
    for number, _, value in _split_fields(data):
        if number == 1:
            try:
                name = bytes(_as_bytes(value)).decode()
            except UnicodeDecodeError:
                raise CorruptLayoutError("name is not UTF-8") from None
        elif number == 2:
            for kind, _, listed in _split_fields(_as_bytes(value)):
                if kind in _KINDS:
                    values = _parse_list(_KINDS[kind], _as_bytes(listed))
    return name, values


def _parse_list(kind: Kind, data: memoryview) -> Values:
    parts = [(wire, value) for number, wire, value in _split_fields(data) if number == 1]
    if kind == "bytes":
        return Values(kind, [_as_bytes(value) for _, value in parts])
    arrays: list[NDArray[Any]] = []
    for wire, value in parts:
        if kind == "floats" and not isinstance(value, int) and wire != _FIXED64 and len(value) % 4 == 0:
            arrays.append(np.frombuffer(value, "<f4"))
        elif kind == "ints" and isinstance(value, int):
            arrays.append(np.array([value], np.uint64).view(np.int64))
        elif kind == "ints" and wire == _DELIMITED:
            arrays.append(decode_varints(value).view(np.int64))  # type: ignore[arg-type]
        else:
            raise CorruptLayoutError(f"list of {kind} holds other values")
    dtype = np.float32 if kind == "floats" else np.int64
    return Values(
        kind, numbers=arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])
    )


def _split_fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Fields of a protobuf message: number, wire type, and the bytes or the integer."""
    at, end = 0, len(data)
    while at < end:
        key, at = _parse_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _parse_varint(data, at)
            yield number, wire, value
            continue
        size = 8 if wire == _FIXED64 else 4
        if wire == _DELIMITED:
            size, at = _parse_varint(data, at)
        elif wire not in (_FIXED64, _FIXED32):
            raise CorruptLayoutError(f"unknown wire type {wire}")
        if not number or size > end - at:
            raise CorruptLayoutError(f"field of {size} bytes exceeds its message")
        yield number, wire, data[at : at + size]
        at += size


def _parse_varint(data: memoryview, at: int) -> tuple[int, int]:
    """An integer and the offset after it."""
    value = shift = 0
    while at < len(data) and shift < _MAX_VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and not value >> 64:
            return value, at
        shift += 7
    raise CorruptLayoutError("varint is cut or exceeds 64 bits")


def _as_bytes(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise CorruptLayoutError("expected bytes, got an integer")
    return value


def build_example(features: Mapping[str, Values]) -> bytes:
    """An Example with these lists, in the order of their names: equal lists give equal bytes."""
    entries = [
        _build_field(1, _build_field(1, name.encode()) + _build_field(2, _build_list(features[name])))
        for name in sorted(features)
    ]
    return _build_field(1, b"".join(entries))


def _build_list(values: Values) -> bytes:
    if values.kind == "nothing":
        return b""
    if values.kind == "bytes":
        inside = b"".join(_build_field(1, entry) for entry in values.entries)
    elif not len(values.numbers):
        inside = b""
    elif values.kind == "floats":
        inside = _build_field(1, np.ascontiguousarray(values.numbers, "<f4").tobytes())
    else:
        numbers = np.ascontiguousarray(values.numbers, np.int64).view(np.uint64)
        inside = _build_field(1, encode_varints(numbers))
    return _build_field({"bytes": 1, "floats": 2, "ints": 3}[values.kind], inside)


def _build_field(number: int, data: bytes | memoryview) -> bytes:
    return b"".join((encode_varint(number << 3 | _DELIMITED), encode_varint(len(data)), data))
