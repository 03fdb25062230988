"""Write tar shards: equal files give equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import encode_zstd_frame
from warpdata.bytekit.io.commit import commit_file, is_safe_name
from warpdata.errors import CorruptLayoutError
from warpdata.formats.tarshard import layout
from warpdata.formats.tarshard.layout import BLOCK_BYTES, TarHeader
from warpdata.formats.tarshard.member_index import Member

if TYPE_CHECKING:
    from typing_extensions import Buffer

GROUP_BYTES = 256 << 10
"""Members are compressed together up to this size: one frame is what a single read costs."""

_END = bytes(2 * BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How files are packed: the size of a shard, and optionally zstd frames per group of members."""

    shard_bytes: int = 256 << 20
    compression: str | None = None
    level: int = 3


def member_header(name: str, size: int) -> bytes:
    """The header of one member: fixed owner, mode and time, so that equal files give equal shards."""
    if not is_safe_name(name):
        raise CorruptLayoutError(f"unsafe member name {name!r}")
    encoded = name.encode()
    if len(encoded) <= 100 and encoded.isascii() and size < 8**11:
        return _block(encoded, size, b"0")
    records = _pax_record("path", name) + (_pax_record("size", str(size)) if size >= 8**11 else b"")
    blocks = _block(b"PaxHeader", len(records), layout.PAX_TYPE) + records
    blocks += padding_to(len(records), BLOCK_BYTES)
    return blocks + _block(encoded[:100].decode("utf-8", "ignore").encode(), min(size, 8**11 - 1), b"0")


def pack_shards(
    files: Iterable[tuple[str, Callable[[], Buffer]]], folder: Path, options: PackOptions
) -> Iterator[tuple[Path, list[Member]]]:
    """Pack (name, bytes) pairs into tar shards in `folder`, in order; names must be new and safe."""
    pending = iter(files)
    item = next(pending, None)
    seen: set[str] = set()
    number = 0
    while item is not None:
        path = folder / f"shard-{number:06d}.tar{'.zst' if options.compression else ''}"
        with commit_file(path, durable=False) as out:
            shard = _ShardWriter(out.write, number, options)
            while item is not None and shard.raw_bytes < options.shard_bytes:
                if item[0] in seen:
                    raise CorruptLayoutError(f"member {item[0]!r} appears twice")
                seen.add(item[0])
                shard.add(item[0], item[1]())
                item = next(pending, None)
            shard.finish()
        yield path, shard.members
        number += 1


class _ShardWriter:
    """One shard being written, plain or as zstd frames of whole members."""

    def __init__(self, write: Callable[[Buffer], int], number: int, options: PackOptions) -> None:
        self._write = write
        self._number = number
        self._options = options
        self._group: list[tuple[str, int, int, int]] = []
        self._buffer = bytearray()
        self.raw_bytes = 0
        self.members: list[Member] = []

    def add(self, name: str, data: Buffer) -> None:
        """Append one member."""
        view = byte_view(data)
        head = member_header(name, view.nbytes)
        tail = padding_to(view.nbytes, BLOCK_BYTES)
        self.raw_bytes += len(head) + view.nbytes + len(tail)
        if self._options.compression is None:
            start = self._write(head) + len(head)
            self._write(view)
            self._write(tail)
            self.members.append(Member(name, self._number, start, view.nbytes, crc32c(view)))
            return
        self._group.append((name, len(self._buffer) + len(head), view.nbytes, crc32c(view)))
        self._buffer += head
        self._buffer += view
        self._buffer += tail
        if len(self._buffer) >= GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """Write the end mark."""
        if self._options.compression is None:
            self._write(_END)
            return
        self._buffer += _END
        self._flush()

    def _flush(self) -> None:
        frame = encode_zstd_frame(self._buffer, self._options.level)
        offset = self._write(frame)
        self.members += [
            Member(name, self._number, offset, size, crc, frame_bytes=len(frame), inner_offset=inner)
            for name, inner, size, crc in self._group
        ]
        self._group = []
        self._buffer = bytearray()


def _block(name: bytes, size: int, typeflag: bytes) -> bytes:
    zero = b"0000000\0"
    owner = (b"0000644\0", zero, zero, b"%011o\0" % size, b"00000000000\0", b" " * 8)
    header = TarHeader(name, *owner, typeflag, b"", b"ustar\0", b"00", b"", b"", zero, zero, b"")
    total = sum(layout.TAR_HEADER.pack(*header))
    return layout.TAR_HEADER.pack(*header._replace(checksum=b"%06o\0 " % total))


def _pax_record(key: str, value: str) -> bytes:
    """`<length> key=value`, where the length counts itself."""
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body
