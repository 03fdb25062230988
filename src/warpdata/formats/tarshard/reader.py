"""Read tar shards: every header checked, every unsafe member refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.io.commit import is_safe_name
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    TruncatedError,
)
from warpdata.formats.tarshard import layout
from warpdata.formats.tarshard.layout import BLOCK_BYTES, TarHeader
from warpdata.formats.tarshard.member_index import Member

_ZEROS = bytes(BLOCK_BYTES)
_WINDOW_BYTES = 1 << 20
_UNSAFE = "Remove the member from the archive, or pack the files again with `warp publish`."


def scan_members(reader: RangeReader, shard: int = 0) -> Iterator[Member]:
    """Every regular file of a tar shard in order; links, devices and unsafe or repeated names are refused."""
    seen: set[str] = set()
    position, long_name, long_size = 0, None, None
    blocks = _Blocks(reader)
    while True:
        block = blocks.read(position, BLOCK_BYTES)
        if block == _ZEROS:
            return
        header = _header(block, reader, position)
        size = long_size if long_size is not None else _number(header.size, reader)
        start = position + BLOCK_BYTES
        position = align_up(start + size, BLOCK_BYTES)
        if start + size > reader.size:
            raise TruncatedError("the archive ends within a member", path=reader.name)
        if header.typeflag in (layout.PAX_TYPE, layout.GNU_NAME_TYPE, layout.PAX_GLOBAL_TYPE):
            if size > layout.MAX_PAX_BYTES:
                raise LimitExceededError(f"an extended header of {size} bytes", path=reader.name)
            extra = _extended(header.typeflag, blocks.read(start, size), reader)
            if header.typeflag != layout.PAX_GLOBAL_TYPE:
                long_name, long_size = extra[0] or long_name, extra[1] if extra[1] is not None else long_size
            continue
        name = long_name if long_name is not None else _short_name(header, reader)
        long_name = long_size = None
        if header.typeflag == layout.FOLDER_TYPE:
            continue
        name = name.removeprefix("./")
        _check_member(header, name, seen, reader)
        seen.add(name)
        yield Member(name, shard, start, size, -1)


def _check_member(header: TarHeader, name: str, seen: set[str], reader: RangeReader) -> None:
    if header.typeflag not in layout.REGULAR_TYPES:
        kind = header.typeflag.decode("latin-1")
        raise CorruptLayoutError(
            f"member {name!r} is not a plain file (type {kind!r})", path=reader.name, hint=_UNSAFE
        )
    if not is_safe_name(name):
        raise CorruptLayoutError(f"unsafe member name {name!r}", path=reader.name, hint=_UNSAFE)
    if name in seen:
        raise CorruptLayoutError(f"member {name!r} appears twice", path=reader.name, hint=_UNSAFE)


class _Blocks:
    """Small reads of a shard served from one window, so that a scan does not make a read per header."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._start = 0
        self._window = memoryview(b"")

    def read(self, start: int, size: int) -> bytes:
        end = start + size
        if end > self._reader.size:
            fact = "the archive has no end mark" if start >= self._reader.size else "the archive is cut"
            raise TruncatedError(fact, path=self._reader.name)
        if start < self._start or end > self._start + self._window.nbytes:
            self._start = start
            self._window = self._reader.read(start, min(max(start + _WINDOW_BYTES, end), self._reader.size))
        return bytes(self._window[start - self._start : end - self._start])


def _header(block: bytes, reader: RangeReader, position: int) -> TarHeader:
    header = TarHeader(*layout.TAR_HEADER.unpack(block))
    if header.magic[:5] != b"ustar" and header.magic != bytes(6):
        raise BadMagicError(f"no tar header at {position}", path=reader.name)
    blank = block[: layout.CHECKSUM_START] + b" " * 8 + block[layout.CHECKSUM_END :]
    if sum(blank) != _octal(header.checksum, reader):
        raise ChecksumError(f"the tar header at {position} is damaged", path=reader.name)
    return header


def _number(field: bytes, reader: RangeReader) -> int:
    """A size: octal, or base 256 when its first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if value > 1 << 62:
            raise LimitExceededError("a member of absurd size", path=reader.name)
        return value
    return _octal(field, reader)


def _octal(field: bytes, reader: RangeReader) -> int:
    text = field.split(b"\0")[0].strip()
    if not re.fullmatch(rb"[0-7]*", text):
        raise CorruptLayoutError("a number of a tar header is not octal", path=reader.name)
    return int(text or b"0", 8)


def _short_name(header: TarHeader, reader: RangeReader) -> str:
    name = header.name.split(b"\0")[0]
    prefix = header.prefix.split(b"\0")[0] if header.magic == b"ustar\0" else b""
    return _decoded(prefix + b"/" + name if prefix else name, reader)


def _extended(kind: bytes, data: bytes, reader: RangeReader) -> tuple[str | None, int | None]:
    """The name and size an extended header gives to the next member."""
    if kind == layout.GNU_NAME_TYPE:
        return _decoded(data.rstrip(b"\0"), reader), None
    records = _pax_records(data, reader)
    path = records.get(b"path")
    size = records.get(b"size", b"")
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise CorruptLayoutError("a sparse member", path=reader.name, hint=_UNSAFE)
    if size and not re.fullmatch(rb"\d{1,18}", size):
        raise CorruptLayoutError("a size in an extended header is not a number", path=reader.name)
    return None if path is None else _decoded(path, reader), int(size) if size else None


def _pax_records(data: bytes, reader: RangeReader) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    while data.strip(b"\0"):
        match = re.match(rb"(\d{1,7}) ([^=]+)=", data)
        length = int(match[1]) if match else 0
        if match is None or length > len(data) or length <= match.end() or data[length - 1 : length] != b"\n":
            raise CorruptLayoutError("a damaged extended header", path=reader.name)
        records[match[2]] = data[match.end() : length - 1]
        data = data[length:]
    return records


def _decoded(name: bytes, reader: RangeReader) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise CorruptLayoutError("a member name is not UTF-8", path=reader.name, hint=_UNSAFE) from None
