"""Video containers without a library: packets of a growing file, and the MP4 boxes around copied packets."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.errors import CorruptLayoutError, FormatError, StoreError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Stream

Bytes = bytes | memoryview


class PacketPlace(NamedTuple):
    """Bytes of one encoded frame in the file."""

    offset: int
    size: int


class Packet(NamedTuple):
    """One encoded frame that is completely in the file."""

    offset: int
    size: int
    crc32c: int


class VideoSink:
    """The file a camera is encoded into; `take` gives the frames that became complete since the last call."""

    def __init__(self, path: str, suffix: str, *, append_at: int | None = None) -> None:
        """`append_at`: continue a video at this offset; the header that the muxer writes again is dropped."""
        self.path = path
        self.failure: StoreError | None = None
        self._is_mp4 = suffix == ".mp4"
        self._skips_header = append_at is not None
        self._held = bytearray()
        self._origin = append_at or 0
        self._file = AppendFile.open(path, end=self._origin)

    def write(self, data: bytes) -> int:
        """Append output of the muxer; after a failure nothing more is written."""
        size = len(data)
        if self.failure is None:
            self._held += data
            if self._skips_header:
                held = bytes(self._held)
                start = first_media_box(held, b"moof") if self._is_mp4 else first_cluster(held)
                if start < 0:
                    return size
                del self._held[:start]
                self._skips_header = False
                data = bytes(self._held)
            try:
                self._file.append(data)
            except StoreError as error:
                self.failure = error
        return size

    def take(self) -> list[Packet]:
        """The frames that are now completely in the file."""
        if self.failure is not None:
            raise self.failure
        held, origin = bytes(self._held), self._origin
        places, used = mp4_packets(held, origin) if self._is_mp4 else mkv_packets(held, origin)
        packets = [
            Packet(offset, size, crc32c(held[offset - origin : offset - origin + size]))
            for offset, size in places
        ]
        del self._held[:used]
        self._origin += used
        return packets

    def sync(self) -> None:
        """Make the file survive power loss."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# Fragments of MP4.


def mp4_packets(data: Bytes, origin: int) -> tuple[list[PacketPlace], int]:
    """The frames of all whole fragments in `data`, which begins at `origin`; and the bytes consumed."""
    places: list[PacketPlace] = []
    position = 0
    fragment: tuple[int, int] | None = None
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind == b"moof":
            fragment = start, end
            continue
        if kind == b"mdat" and fragment:
            places += _fragment_packets(data, *fragment, origin, origin + end)
            fragment = None
        position = end
    return places, fragment[0] if fragment else position


def first_media_box(data: Bytes, kind: bytes) -> int:
    """Offset of the first MP4 box of this kind, or -1."""
    return next((start for name, start, _ in _boxes(data, 0, len(data)) if name == kind), -1)


def _boxes(data: Bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start, end) of every whole box."""
    while start + layout.BOX.size <= stop:
        size, kind = layout.BoxHead(*layout.BOX.unpack_from(data, start))
        if size == 1 and start + 16 <= stop:
            size = layout.BOX_LARGE.unpack_from(data, start + 8)[0]
        if size < layout.BOX.size or start + size > stop:
            return
        yield kind, start, start + size
        start += size


def _child(data: Bytes, start: int, end: int, kind: bytes) -> tuple[int, int]:
    for name, low, high in _boxes(data, start + layout.BOX.size, end):
        if name == kind:
            return low, high
    raise CorruptLayoutError(f"a video fragment without its {kind.decode()} box")


def _fragment_packets(data: Bytes, start: int, end: int, origin: int, stop: int) -> Iterator[PacketPlace]:
    """The frames of a fragment, all of which end before `stop`."""
    traf = _child(data, start, end, b"traf")
    head, head_end = _child(data, *traf, b"tfhd")
    flags, at = _read_u32(data, head + 8, head_end) & 0xFFFFFF, head + 16
    optional = ((layout.TFHD_BASE_OFFSET, 8), (layout.TFHD_SAMPLE_INDEX, 4), (layout.TFHD_DURATION, 4))
    at += sum(size for flag, size in optional if flags & flag)
    default_size = _read_u32(data, at, head_end) if flags & layout.TFHD_SIZE else 0
    run, run_end = _child(data, *traf, b"trun")
    flags = _read_u32(data, run + 8, run_end) & 0xFFFFFF
    count, at = _read_u32(data, run + 12, run_end), run + 16
    offset = origin + start
    if flags & layout.TRUN_DATA_OFFSET:
        offset += _read_u32(data, at, run_end)
        at += 4
    at += 4 * bool(flags & layout.TRUN_FIRST_FLAGS)
    before = 4 * bool(flags & layout.TRUN_DURATION)
    fields = (layout.TRUN_DURATION, layout.TRUN_SIZE, layout.TRUN_FLAGS, layout.TRUN_CTO)
    stride = 4 * sum(bool(flags & field) for field in fields)
    for sample in range(count):
        has_size = flags & layout.TRUN_SIZE
        size = _read_u32(data, at + sample * stride + before, run_end) if has_size else default_size
        if not size or offset + size > stop:  # a count is bounded by nothing else
            raise CorruptLayoutError("a video fragment announces more frames or bytes than it has")
        yield PacketPlace(offset, size)
        offset += size


def _read_u32(data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        raise CorruptLayoutError("a table of a video fragment is cut short")
    return int(layout.U32.unpack_from(data, at)[0])


# Clusters of Matroska.


def mkv_packets(data: Bytes, origin: int) -> tuple[list[PacketPlace], int]:
    """The frames of all whole clusters in `data`, which begins at `origin`; and the bytes consumed."""
    places: list[PacketPlace] = []
    position = 0
    while (head := _element(data, position)) is not None:
        kind, size, body = head
        if kind == layout.EBML_SEGMENT:
            position = body
            continue
        if body + size > len(data):
            break
        if kind == layout.EBML_CLUSTER:
            start, stop = body, body + size
            while start < stop and (inner := _element(data, start)) is not None:
                kind, size, body = inner
                if kind in (layout.EBML_SIMPLE_BLOCK, layout.EBML_BLOCK):
                    if size <= layout.BLOCK_HEAD_BYTES or body + size > stop:
                        raise CorruptLayoutError("a frame of a cluster is empty, or larger than the cluster")
                    place = origin + body + layout.BLOCK_HEAD_BYTES
                    places.append(PacketPlace(place, size - layout.BLOCK_HEAD_BYTES))
                start = body if kind == layout.EBML_BLOCK_GROUP else body + size
            position = stop
        else:
            position = body + size
    return places, position


def first_cluster(data: Bytes) -> int:
    """Offset of the first Matroska cluster, or -1."""
    position = 0
    while (head := _element(data, position)) is not None:
        kind, size, body = head
        if kind == layout.EBML_CLUSTER:
            return position
        position = body if kind == layout.EBML_SEGMENT else body + size
    return -1


def _element(data: Bytes, at: int) -> tuple[int, int, int] | None:
    """(id, size, offset of the body) of the element at `at`, if its head is whole."""
    kind = _vint(data, at, keep_marker=True)
    size = None if kind is None else _vint(data, at + kind[1], keep_marker=False)
    if kind is None or size is None:
        return None
    return kind[0], size[0], at + kind[1] + size[1]


def _vint(data: Bytes, at: int, *, keep_marker: bool) -> tuple[int, int] | None:
    """A number of variable length and its bytes."""
    if at >= len(data) or not data[at]:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    value = int.from_bytes(data[at : at + length], "big")
    return (value if keep_marker else value & ((1 << (7 * length)) - 1)), length


# An MP4 file around packets that are copied: they can be read lazily, so no muxer library can write it.

HEAD_BYTES = 48
_TICKS = 512
"""Ticks of the clock per frame, as other programs write them."""
_MATRIX = b"".join(n.to_bytes(4, "big") for n in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000))
_CONFIGURED = {
    "h264": (b"avc1", b"avcC"),
    "hevc": (b"hvc1", b"hvcC"),
    "av1": (b"av01", b"av1C"),
    "ffv1": (b"FFV1", b"glbl"),
}
_OBJECT_TYPES = {"mjpeg": 0x6C, "png": 0x6D, "mpeg4": 0x20}


class Wrapping(NamedTuple):
    """The bytes before the first frame, and those after the last."""

    head: bytes
    tail: bytes


def file_around(
    entry: bytes,
    size: NDArray[np.int64],
    shows: NDArray[np.int64],
    keyframe: NDArray[np.bool_],
    rate: Fraction,
) -> Wrapping:
    """The container of frames that follow each other in decoding order.

    `entry` is the sample entry, `shows` the number of the frame that each packet shows, from 0 without gaps.
    """
    count = len(size)
    ticks = _TICKS if rate.numerator * _TICKS < 1 << 31 else 1
    scale, delta = rate.numerator * ticks, rate.denominator * ticks
    width, height = (int.from_bytes(entry[at : at + 2], "big") for at in (32, 34))
    late = int((np.arange(count) - shows).max(initial=0))
    movie_ms = _u64(-(-count * delta * 1000 // scale))
    runs = [_u32(1), _u32(count), _u32(delta)] if count else [_u32(0)]
    tables = [_full(b"stsd", 0, 0, _u32(1), entry), _full(b"stts", 0, 0, *runs)]
    if late:
        offsets = (shows + late - np.arange(count)) * delta
        pairs = np.stack([np.ones(count, np.int64), offsets], axis=1).astype(">u4")
        tables.append(_full(b"ctts", 0, 0, _u32(count), pairs.tobytes()))
    if not keyframe.all():
        keys = np.flatnonzero(keyframe) + 1
        tables.append(_full(b"stss", 0, 0, _u32(len(keys)), keys.astype(">u4").tobytes()))
    tables += [
        _full(b"stsc", 0, 0, _u32(1), _u32(1), _u32(max(1, count)), _u32(1)),
        _full(b"stsz", 0, 0, _u32(0), _u32(count), size.astype(">u4").tobytes()),
        _full(b"co64", 0, 0, _u32(1), _u64(HEAD_BYTES)),
    ]
    dinf = _box(b"dinf", _full(b"dref", 0, 0, _u32(1), _full(b"url ", 0, 1)))
    minf = _box(b"minf", _full(b"vmhd", 0, 1, bytes(8)), dinf, _box(b"stbl", *tables))
    times = _u32(scale) + _u64(count * delta) + _u16(0x55C4)
    mdhd = _full(b"mdhd", 1, 0, bytes(16), times, bytes(2))
    hdlr = _full(b"hdlr", 0, 0, bytes(4), b"vide", bytes(12), b"VideoHandler\0")
    sides = _u32(width << 16) + _u32(height << 16)
    tkhd = _full(b"tkhd", 1, 3, bytes(16), _u32(1), bytes(4), movie_ms, bytes(16), _MATRIX, sides)
    edit = _full(b"elst", 1, 0, _u32(1), movie_ms, _u64(late * delta), _u32(0x10000))
    trak = _box(b"trak", tkhd, _box(b"edts", edit), _box(b"mdia", mdhd, hdlr, minf))
    rates = _u32(0x10000) + _u16(0x100)
    mvhd = _full(
        b"mvhd", 1, 0, bytes(16), _u32(1000), movie_ms, rates, bytes(10), _MATRIX, bytes(24), _u32(2)
    )
    return Wrapping(file_head(int(size.sum())), _box(b"moov", mvhd, trak))


def file_head(media_bytes: int) -> bytes:
    """The beginning of a file, up to the first frame; always HEAD_BYTES long."""
    ftyp = _box(b"ftyp", b"isom", _u32(0x200), b"isom", b"iso2", b"mp41", b"\0\0\0\0")
    return ftyp + _u32(1) + b"mdat" + _u64(media_bytes + 16)


def sample_entry(stream: Stream, width: int, height: int) -> bytes:
    """The sample entry of a stream: codec, size and decoder configuration; FormatError where MP4 cannot hold it."""
    visual = bytes(6) + _u16(1) + bytes(16) + _u16(width) + _u16(height) + _u32(0x480000) * 2 + bytes(4)
    visual += _u16(1) + bytes(32) + _u16(0x18) + b"\xff\xff"
    codec = {"h265": "hevc"}.get(stream.codec, stream.codec)
    if codec in _CONFIGURED:
        kind, config = _CONFIGURED[codec]
        if codec != "ffv1" and stream.extradata[:1] not in (b"\x01", b"\x81"):
            raise FormatError(
                f"{codec} frames without decoder configuration", hint="Encode the camera again."
            )
        return _box(kind, visual, _box(config, stream.extradata))
    if codec in _OBJECT_TYPES:
        special = _tagged(5, stream.extradata) if stream.extradata else b""
        config = _tagged(4, bytes([_OBJECT_TYPES[codec], 0x11]) + bytes(11) + special)
        esds = _full(b"esds", 0, 0, _tagged(3, _u16(1) + b"\0" + config + _tagged(6, b"\x02")))
        return _box(b"mp4v", visual, esds)
    raise FormatError(f"MP4 has no place for {codec} frames", hint="Encode the camera again.")


def _tagged(tag: int, body: bytes) -> bytes:
    """A descriptor of MPEG-4 systems."""
    size = len(body)
    lengths = [0x80 | size >> 21, 0x80 | size >> 14 & 0x7F, 0x80 | size >> 7 & 0x7F, size & 0x7F]
    return bytes([tag, *lengths]) + body


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _u32(len(body) + 8) + kind + body


def _full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, bytes([version]) + flags.to_bytes(3, "big"), *parts)


def _u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")
