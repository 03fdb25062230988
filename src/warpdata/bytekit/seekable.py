"""Seekable zstd: several frames and a seek table in a skippable frame, so that a range costs few frames."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from warpdata.bytekit.codec import ZSTD_DEFAULT_LEVEL, decode_zstd_frames, encode_zstd_frame
from warpdata.bytekit.view import byte_view
from warpdata.errors import CorruptLayoutError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SKIPPABLE_MAGIC = 0x184D2A5E
SEEK_TABLE_MAGIC = 0x8F92EAB1
MAX_FRAMES = 1 << 27

_SKIPPABLE = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
FOOTER_BYTES = _FOOTER.size

_CHECKSUM_FLAG = 0x80
_RESERVED_BITS = 0x7C


class SeekFooter(NamedTuple):
    """The last nine bytes of a seekable block."""

    frame_count: int
    descriptor: int
    magic: int


@dataclass(frozen=True, slots=True)
class SeekTable:
    """Where each frame starts, compressed and raw; both lists have one entry more than there are frames."""

    disk_starts: list[int]
    raw_starts: list[int]

    @property
    def frame_count(self) -> int:
        """How many frames there are."""
        return len(self.raw_starts) - 1

    def frames_for(self, start: int, end: int) -> tuple[int, int]:
        """The half-open range of frames that hold the raw bytes [start, end)."""
        first = bisect.bisect_right(self.raw_starts, start) - 1
        return first, max(first, bisect.bisect_left(self.raw_starts, end))

    def decode_frames(self, first: int, last: int, data: memoryview) -> bytes:
        """Decompress frames [first, last) from their compressed bytes; zstd checks each frame's own checksum."""
        base, raw = self.disk_starts[first], self.raw_starts
        ends = [end - base for end in self.disk_starts[first + 1 : last + 1]]
        sizes = [raw[index + 1] - raw[index] for index in range(first, last)]
        return decode_zstd_frames(data, ends, sizes)


def encode_seekable(pieces: Iterable[Buffer], level: int = ZSTD_DEFAULT_LEVEL) -> Iterator[bytes]:
    """Compress each piece into a frame of its own and end with the seek table."""
    sizes: list[tuple[int, int]] = []
    for piece in pieces:
        frame = encode_zstd_frame(piece, level)
        sizes.append((len(frame), byte_view(piece).nbytes))
        yield frame
    yield pack_seek_table(sizes)


def seek_table_size(frame_count: int) -> int:
    """Bytes of the seek table of so many frames."""
    return _SKIPPABLE.size + 8 * frame_count + FOOTER_BYTES


def pack_seek_table(sizes: list[tuple[int, int]]) -> bytes:
    """The skippable frame that lists (compressed, raw) sizes of all frames."""
    entries = np.array(sizes, dtype="<u4").tobytes()
    return (
        _SKIPPABLE.pack(SKIPPABLE_MAGIC, len(entries) + FOOTER_BYTES)
        + entries
        + _FOOTER.pack(len(sizes), 0, SEEK_TABLE_MAGIC)
    )


def seek_table_bytes(footer: Buffer) -> int:
    """The size of the whole seek table, from the last nine bytes of a block."""
    if byte_view(footer).nbytes < FOOTER_BYTES:
        raise CorruptLayoutError("no zstd seek table at the end of a seekable block")
    count, descriptor, magic = SeekFooter(*_FOOTER.unpack(footer))
    if magic != SEEK_TABLE_MAGIC or descriptor & _RESERVED_BITS:
        raise CorruptLayoutError("no zstd seek table at the end of a seekable block")
    if count > MAX_FRAMES:
        raise CorruptLayoutError(f"a seek table of {count} frames is too large")
    entry = 12 if descriptor & _CHECKSUM_FLAG else 8
    return _SKIPPABLE.size + count * entry + FOOTER_BYTES


def unpack_seek_table(table: Buffer, disk_size: int, raw_size: int) -> SeekTable:
    """Read a seek table and check that its frames are exactly `disk_size` and `raw_size` bytes."""
    view = byte_view(table)
    size = seek_table_bytes(view[-FOOTER_BYTES:])
    magic, payload = _SKIPPABLE.unpack(view[: _SKIPPABLE.size])
    if magic != SKIPPABLE_MAGIC or size != len(view) or payload != size - _SKIPPABLE.size:
        raise CorruptLayoutError("damaged zstd seek table")
    count, descriptor, _ = SeekFooter(*_FOOTER.unpack(view[-FOOTER_BYTES:]))
    columns = 3 if descriptor & _CHECKSUM_FLAG else 2
    entries = np.frombuffer(view[_SKIPPABLE.size : -FOOTER_BYTES], "<u4").reshape(count, columns)
    starts = np.zeros((count + 1, 2), np.int64)
    np.cumsum(entries[:, :2], axis=0, dtype=np.int64, out=starts[1:])
    if starts[-1, 0] != disk_size - size or starts[-1, 1] != raw_size:
        raise CorruptLayoutError("zstd seek table does not add up to the size of its block")
    return SeekTable(starts[:, 0].tolist(), starts[:, 1].tolist())
