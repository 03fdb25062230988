"""Compression by name, with output bounded before anything is allocated; seekable zstd; PNG files.

The adapter of zstandard and lz4.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import lz4.block as _lz4
import lz4.frame as _lz4_frame
import numpy as np
import zstandard as _zstd
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError

if TYPE_CHECKING:
    from typing import BinaryIO

    from typing_extensions import Buffer


CODEC_NAMES = ("none", "zstd", "lz4")

ZSTD_DEFAULT_LEVEL = 3
MAX_RATIO = {"lz4": 255, "zstd": 1 << 15}
"""The most that a codec can expand by; zstd turns 4 bytes of a run-length block into 128 KiB."""
MAX_EXPANDED_BYTES = 1 << 30
MAX_LARGE_RATIO = 256
"""What expands to more than MAX_EXPANDED_BYTES may do so by at most MAX_LARGE_RATIO: no small file takes all memory."""

_BOUNDED_BYTES = 4 << 10
"""So little is decompressed at a time that even what was made to grow fits into memory before it is counted."""
MAX_WINDOW_BYTES = 1 << 25
"""Largest zstd window a stream without content size may use."""

_UNKNOWN_SIZE = (1 << 64) - 1
_contexts = threading.local()


def encode(codec: str, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` with `codec` into one zstd frame with content size, or one raw LZ4 block."""
    if codec == "none":
        return bytes(data)
    if codec == "zstd":
        return _compressor(ZSTD_DEFAULT_LEVEL if level is None else level).compress(byte_view(data))
    if codec == "lz4":
        high = {"mode": "high_compression", "compression": level}
        options = {} if level is None or level <= 1 else high
        return bytes(_lz4.compress(byte_view(data), store_size=False, **options))
    raise ValueError(f"unknown codec {codec!r}; use one of {', '.join(CODEC_NAMES)}")


def decode(codec: str, data: Buffer, raw_size: int) -> bytes:
    """Decompress `data` to exactly `raw_size` bytes, or raise a FormatError without allocating more."""
    view = byte_view(data)
    if codec == "none":
        if view.nbytes != raw_size:
            raise CorruptLayoutError(f"stored bytes are not the {raw_size} bytes announced")
        return bytes(data)
    if codec == "zstd":
        return _zstd_decode(view, raw_size)
    if codec == "lz4":
        check_expansion("lz4", view.nbytes, raw_size)
        with _library_errors("LZ4 block", raw_size):
            out: bytes = _lz4.decompress(view, uncompressed_size=raw_size)
        if len(out) != raw_size:
            raise CorruptLayoutError(f"LZ4 block holds {len(out)} bytes, not the {raw_size} announced")
        return out
    raise ValueError(f"unknown codec {codec!r}; use one of {', '.join(CODEC_NAMES)}")


def check_expansion(codec: str, disk_size: int, raw_size: int) -> None:
    """Raise LimitExceededError if a claimed size is impossible or larger than a file of this size may expand to."""
    largest = min(disk_size * MAX_RATIO[codec], max(MAX_EXPANDED_BYTES, disk_size * MAX_LARGE_RATIO))
    if raw_size > largest:
        raise LimitExceededError(
            f"{disk_size} {codec} bytes expand to {raw_size}, at most {largest} are allowed"
        )


def encode_zstd_stream(
    pieces: Iterable[Buffer], raw_size: int, level: int = ZSTD_DEFAULT_LEVEL
) -> Iterator[bytes]:
    """Compress pieces of `raw_size` bytes in all into one zstd frame with content size, in bounded memory."""
    compressor = _zstd.ZstdCompressor(level=level, write_checksum=False).compressobj(size=raw_size)
    for piece in pieces:
        if chunk := compressor.compress(byte_view(piece)):
            yield chunk
    yield compressor.flush()


def encode_zstd_frame(data: Buffer, level: int = ZSTD_DEFAULT_LEVEL) -> bytes:
    """One zstd frame with content size and its own content checksum."""
    return _compressor(level, checksum=True).compress(byte_view(data))


_FRAME_CHECKSUM = 0x04
"""The bit of a frame's header, behind its magic, that is set if a checksum follows the content."""


def decode_zstd_frames(data: memoryview, ends: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Decompress neighbouring frames that end at these offsets and must hold exactly these sizes, joined.

    Nothing else vouches for a frame that is read alone: it must have a checksum.
    """
    check_expansion("zstd", data.nbytes, sum(sizes))
    context, announced = _decompressor(), _zstd.frame_content_size
    pieces, start = [], 0
    try:
        for end, size in zip(ends, sizes, strict=True):
            frame = data[start:end]
            if announced(frame) != size:
                raise CorruptLayoutError(f"a zstd frame does not hold the {size} bytes of the seek table")
            if not frame[4] & _FRAME_CHECKSUM:
                raise CorruptLayoutError("a zstd frame of a seek table has no checksum of its own")
            pieces.append(context.decompress(frame, allow_extra_data=False))
            start = end
    except _zstd.ZstdError as error:
        raise CorruptLayoutError(f"damaged zstd frame ({error})") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def zstd_frame_size(data: Buffer) -> int | None:
    """The decompressed size a zstd frame announces, or None if it states none."""
    try:
        size = _zstd.frame_content_size(byte_view(data))
    except _zstd.ZstdError as error:
        raise CorruptLayoutError(f"not a zstd frame ({error})") from None
    return None if size in (-1, _UNKNOWN_SIZE) else int(size)


def decode_zstd_bounded(data: Buffer, max_bytes: int) -> bytes:
    """Decompress zstd frames of unknown size to at most `max_bytes`, or raise a FormatError."""
    return b"".join(iter_decode_zstd(io.BytesIO(byte_view(data)), max_bytes))


def iter_decode_zstd(source: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """What zstd frames hold, piece by piece and at most `max_bytes` of it; what is more, or cut, is a FormatError."""
    total = 0
    context = _zstd.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    frame = None
    try:
        while data := source.read(_BOUNDED_BYTES):
            while data:
                frame = frame or context.decompressobj()
                piece = frame.decompress(data)
                total += len(piece)
                if total > max_bytes:
                    raise LimitExceededError(f"more than {max_bytes} bytes in a zstd frame")
                if piece:
                    yield piece
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except _zstd.ZstdError as error:
        raise CorruptLayoutError(f"damaged zstd frame ({error})") from None
    if frame is not None:
        raise CorruptLayoutError("a zstd frame is cut short")


@contextlib.contextmanager
def _library_errors(what: str, raw_size: int) -> Iterator[None]:
    """Turn the errors of the libraries into ours."""
    try:
        yield
    except (_zstd.ZstdError, _lz4.LZ4BlockError, RuntimeError, ValueError, OverflowError, EOFError) as error:
        raise CorruptLayoutError(f"damaged {what} ({error})") from None
    except MemoryError:
        raise LimitExceededError(f"not enough memory for a block of {raw_size} bytes") from None


def _zstd_decode(data: memoryview, raw_size: int) -> bytes:
    check_expansion("zstd", data.nbytes, raw_size)
    announced = zstd_frame_size(data)
    if announced is not None and announced > raw_size:
        raise LimitExceededError(f"a zstd frame announces {announced} bytes where {raw_size} are allowed")
    with _library_errors("zstd frame", raw_size):
        if announced == raw_size:
            return _decompressor().decompress(data, max_output_size=raw_size, allow_extra_data=False)
        context = _zstd.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        out = bytearray(raw_size)
        view = memoryview(out)
        filled = 0
        with context.stream_reader(data, read_across_frames=True) as stream:
            while filled < raw_size and (count := stream.readinto(view[filled:])):
                filled += count
            if filled != raw_size or stream.read(1):
                raise CorruptLayoutError(f"zstd frames do not hold the {raw_size} bytes announced")
        return bytes(out)


def decode_lz4_frame(data: Buffer, raw_size: int) -> bytes:
    """Decompress an LZ4 frame to exactly `raw_size` bytes, or raise a FormatError without allocating more."""
    view = byte_view(data)
    check_expansion("lz4", view.nbytes, raw_size)
    decompressor = _lz4_frame.LZ4FrameDecompressor()
    with _library_errors("LZ4 frame", raw_size):
        out: bytes = decompressor.decompress(view, max_length=raw_size + 1)
    if len(out) != raw_size or not decompressor.eof:
        raise CorruptLayoutError(f"an LZ4 frame does not hold the {raw_size} bytes announced")
    return out


def _compressor(level: int, checksum: bool = False) -> _zstd.ZstdCompressor:
    cache = _contexts.__dict__.setdefault("compressors", {})
    key = (level, checksum)
    if key not in cache:
        cache[key] = _zstd.ZstdCompressor(level=level, write_checksum=checksum)
    compressor: _zstd.ZstdCompressor = cache[key]
    return compressor


def _decompressor() -> _zstd.ZstdDecompressor:
    if not hasattr(_contexts, "decompressor"):
        _contexts.decompressor = _zstd.ZstdDecompressor()
    decompressor: _zstd.ZstdDecompressor = _contexts.decompressor
    return decompressor


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


PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_GRAY, _COLOUR = 0, 2


def encode_png(pixels: NDArray[Any]) -> bytes:
    """HxW or HxWx3 bytes, or HxW of 16 bits, as a PNG, without loss; a last axis of 1 is gray too."""
    plane = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    is_colour = plane.ndim == 3 and plane.shape[2] == 3 and plane.dtype == np.uint8
    is_gray = plane.ndim == 2 and plane.dtype in (np.uint8, np.uint16)
    if not (is_colour or is_gray) or 0 in plane.shape:
        raise UnsupportedDtypeError(
            f"a picture is uint8 HxW or HxWx3, or uint16 HxW, not {pixels.dtype} {pixels.shape}",
            hint="Turn the frames into one of these.",
        )
    height, width = plane.shape[:2]
    lines = plane.astype(plane.dtype.newbyteorder(">"), copy=False).reshape(height, -1).view(np.uint8)
    rows = np.zeros((height, 1 + lines.shape[1]), np.uint8)  # every row begins with its filter: none
    rows[:, 1:] = lines
    bits = plane.dtype.itemsize * 8
    head = (
        width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + bytes([bits, _COLOUR if is_colour else _GRAY, 0, 0, 0])
    )
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return PNG_MAGIC + b"".join(map(_chunk, chunks))


def _chunk(named: tuple[bytes, bytes]) -> bytes:
    name, data = named
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


_WAV_HEAD = struct.Struct("<4sI4s4sIHHIIHH4sI")
_PCM, _FLOAT = 1, 3


def wav_header(dtype: np.dtype[Any], channels: int, rate_hz: float, samples: int) -> bytes:
    """The head of a WAV file, which so many samples of each channel follow; at most 4 GiB."""
    frame = dtype.itemsize * channels
    size, rate = samples * frame, round(rate_hz)
    is_float = dtype.kind == "f"
    if size + 36 >= 1 << 32 or dtype.name not in ("uint8", "int16", "int32", "float32", "float64"):
        raise UnsupportedDtypeError(f"a WAV file cannot hold {samples} samples of {dtype} x {channels}")
    fmt = (b"fmt ", 16, _FLOAT if is_float else _PCM, channels, rate, rate * frame, frame, dtype.itemsize * 8)
    return _WAV_HEAD.pack(b"RIFF", 36 + size, b"WAVE", *fmt, b"data", size)
