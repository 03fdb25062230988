"""Files of records: TFRecord (plain, gzip or zlib), and ArrayRecord through its own library, whose adapter this is."""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import LocalRangeReader
from warpdata.bytekit.io.ranges import BytesRangeReader, RangeReader
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
)

HEAD_BYTES, TAIL_BYTES = 12, 4
MAX_INFLATED_BYTES = 64 << 30
MAX_RATIO, MAX_SMALL_BYTES = 256, 256 << 20
"""What a compressed file may become; more is an attack, or a set to be unpacked first."""
IN_MEMORY_BYTES = 64 << 20
"""What is decompressed into memory; larger files go into one that the system removes."""
MAX_RECORD_BYTES = 2 << 30
"""The largest Example there can be: a protocol message has at most 2 GiB."""

_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"
_ANY = 47
"""For zlib: gzip or zlib, whichever it is."""


class RecordFile(ABC):
    """Records by their number."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def read(self, number: int) -> memoryview:
        """One record, checked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""


class TFRecordFile(RecordFile):
    """Records one after the other: length, its checksum, the bytes, their checksum."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = _inflated(reader)
        self.name = reader.name
        self._offsets: NDArray[np.int64] | None = None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where every record begins, and the end of the file; found by going from head to head."""
        if self._offsets is None:
            found, at, size = [], 0, self._reader.size
            while at < size:
                found.append(at)
                at += HEAD_BYTES + self._length(at) + TAIL_BYTES
            self._offsets = np.array([*found, at], np.int64)
        return self._offsets

    def _length(self, at: int) -> int:
        size = self._reader.size
        if at + HEAD_BYTES + TAIL_BYTES > size:
            raise TruncatedError(f"a record begins at {at}, the file ends at {size}", path=self.name)
        head = self._reader.read(at, at + HEAD_BYTES)
        if masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
            raise ChecksumError(f"the length of the record at {at} is damaged", path=self.name)
        length = int.from_bytes(head[:8], "little")
        if length > MAX_RECORD_BYTES or length > size - at - HEAD_BYTES - TAIL_BYTES:
            raise TruncatedError(
                f"the record at {at} has {length} bytes, the file ends at {size}", path=self.name
            )
        return length

    @property
    def count(self) -> int:
        """How many records the file has."""
        return len(self.offsets) - 1

    def read(self, number: int) -> memoryview:
        """One record, checked."""
        start, end = int(self.offsets[number]) + HEAD_BYTES, int(self.offsets[number + 1])
        whole = self._reader.read(start, end)
        data = whole[:-TAIL_BYTES]
        if masked_crc(data) != int.from_bytes(whole[-TAIL_BYTES:], "little"):
            raise ChecksumError(f"record {number} is damaged", path=self.name)
        return data

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def masked_crc(data: Any) -> int:
    """The checksum of TFRecord: CRC-32C, turned and moved."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def packed_record(data: bytes) -> bytes:
    """A record as it stands in a TFRecord file."""
    length = len(data).to_bytes(8, "little")
    sums = [masked_crc(each).to_bytes(4, "little") for each in (length, data)]
    return b"".join((length, sums[0], data, sums[1]))


def _inflated(reader: RangeReader) -> RangeReader:
    """The same bytes, or those that a compressed file holds."""
    if not _is_compressed(bytes(reader.read(0, min(HEAD_BYTES, reader.size)))):
        return reader
    limit = min(MAX_INFLATED_BYTES, max(MAX_SMALL_BYTES, reader.size * MAX_RATIO))
    size, held = 0, bytearray()
    try:
        with contextlib.ExitStack() as stack:
            file: Any = None
            for piece in _inflated_pieces(reader):
                size += len(piece)
                if size > limit:
                    raise LimitExceededError(
                        f"becomes more than {limit} bytes when decompressed", path=reader.name,
                        hint="Unpack it with gunzip first.",
                    )  # fmt: skip
                held += piece
                if file is None and size > IN_MEMORY_BYTES:
                    file = stack.enter_context(tempfile.TemporaryFile(prefix="warpdata-", buffering=0))
                if file is not None:
                    file.write(held)
                    held.clear()
            if file is None:
                return BytesRangeReader(bytes(held), reader.name)
            return LocalRangeReader.of_file(file)
    finally:
        reader.close()


def _inflated_pieces(reader: RangeReader) -> Iterator[bytes]:
    """What a gzip or zlib file holds, of several members too."""
    stream, at, waiting = zlib.decompressobj(_ANY), 0, b""
    try:
        while waiting or at < reader.size or not stream.eof:
            if not waiting and at < reader.size:
                waiting = bytes(reader.read(at, at := min(at + (1 << 20), reader.size)))
            if stream.eof:  # several members one after the other
                stream = zlib.decompressobj(_ANY)
            more = stream.decompress(waiting, 1 << 24)
            if not more and not waiting:
                raise TruncatedError("the compressed file ends too soon", path=reader.name)
            yield more
            waiting = stream.unused_data if stream.eof else stream.unconsumed_tail
    except zlib.error as error:
        raise CorruptLayoutError(f"does not decompress ({error})", path=reader.name) from None


def is_first_head(head: bytes) -> bool:
    """Whether a TFRecord file begins so: with a length and its checksum."""
    return len(head) == HEAD_BYTES and masked_crc(head[:8]) == int.from_bytes(head[8:], "little")


def _is_compressed(head: bytes) -> bool:
    is_zlib = head[:1] == b"\x78" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0
    return head.startswith(_GZIP) or (is_zlib and not is_first_head(head[:HEAD_BYTES]))


def begins_with_record(head: bytes) -> bool:
    """Whether bytes are the first of a TFRecord file, compressed or not."""
    if _is_compressed(head):
        try:
            head = zlib.decompressobj(_ANY).decompress(head, HEAD_BYTES)
        except zlib.error:
            return False
    return is_first_head(head[:HEAD_BYTES])


class ArrayRecordFile(RecordFile):
    """Records of an ArrayRecord file on this machine."""

    def __init__(self, path: str) -> None:
        try:
            from array_record.python import array_record_module
        except ImportError:
            raise MissingExtraError(
                "ArrayRecord files need the package array_record", path=path,
                hint="pip install 'warpdata[rlds]', or write the set as tfrecord.",
            ) from None  # fmt: skip
        self.name = path
        self._reader = self._asked(lambda: array_record_module.ArrayRecordReader(path))

    @property
    def count(self) -> int:
        """How many records the file has."""
        return int(self._asked(self._reader.num_records))

    def read(self, number: int) -> memoryview:
        """One record; the library checks it."""
        found = self._asked(lambda: self._reader.read([number]))
        return memoryview(found[0])

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _asked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the library raises what its C++ throws
            raise CorruptLayoutError(f"array_record cannot read it ({error})", path=self.name) from None
