"""The container around encoded frames that are copied: what stands before and behind them in an MP4 file.

Times are whole numbers of frames, so that frame k is shown at exactly k / rate, however many there are.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.images import Stream

_MAX_MOOV_BYTES = 1 << 28
_TICKS = 512
"""Ticks of the clock per frame, as other programs write them."""
_MATRIX = b"".join(n.to_bytes(4, "big") for n in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000))
_CONFIGURED = {"h264": (b"avc1", b"avcC"), "hevc": (b"hvc1", b"hvcC"), "av1": (b"av01", b"av1C"),
               "ffv1": (b"FFV1", b"glbl")}  # fmt: skip
_OBJECT_TYPES = {"mjpeg": 0x6C, "png": 0x6D, "mpeg4": 0x20}
HEAD_BYTES = 48


class Wrapping(NamedTuple):
    """What stands before the first frame, and behind the last."""

    head: bytes
    tail: bytes


def wrapped(
    entry: bytes,
    size: NDArray[np.int64],
    shows: NDArray[np.int64],
    keyframe: NDArray[np.bool_],
    rate: Fraction,
) -> Wrapping:
    """The container of frames that follow each other in decoding order.

    `entry` is the sample entry, `shows` the number of the frame that each packet shows, from 0 without gaps.
    """
    return Wrapping(file_head(int(size.sum())), _moov(entry, size, shows, keyframe, rate))


def file_head(media_bytes: int) -> bytes:
    """The beginning of a file, up to the first frame; always HEAD_BYTES long."""
    ftyp = _box(b"ftyp", b"isom", _u32(0x200), b"isom", b"iso2", b"mp41", b"\0\0\0\0")
    return ftyp + _u32(1) + b"mdat" + (media_bytes + 16).to_bytes(8, "big")


def _moov(
    entry: bytes,
    size: NDArray[np.int64],
    shows: NDArray[np.int64],
    keyframe: NDArray[np.bool_],
    rate: Fraction,
) -> bytes:
    count = len(size)
    ticks = _TICKS if rate.numerator * _TICKS < 1 << 31 else 1
    scale, delta = rate.numerator * ticks, rate.denominator * ticks
    width, height = (int.from_bytes(entry[at : at + 2], "big") for at in (32, 34))
    late = int((np.arange(count) - shows).max(initial=0))
    duration = count * delta
    movie_ms = -(-duration * 1000 // scale)
    tables = [
        _full(b"stsd", 0, 0, _u32(1), entry),
        _full(b"stts", 0, 0, _u32(1), _u32(count), _u32(delta)) if count else _full(b"stts", 0, 0, _u32(0)),
    ]
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
        _full(b"co64", 0, 0, _u32(1), HEAD_BYTES.to_bytes(8, "big")),
    ]
    stbl = _box(b"stbl", *tables)
    dinf = _box(b"dinf", _full(b"dref", 0, 0, _u32(1), _full(b"url ", 0, 1)))
    minf = _box(b"minf", _full(b"vmhd", 0, 1, bytes(8)), dinf, stbl)
    mdhd = _full(b"mdhd", 1, 0, bytes(16), _u32(scale), duration.to_bytes(8, "big"), _u16(0x55C4), bytes(2))
    hdlr = _full(b"hdlr", 0, 0, bytes(4), b"vide", bytes(12), b"VideoHandler\0")
    tkhd = _full(
        b"tkhd", 1, 3, bytes(16), _u32(1), bytes(4), movie_ms.to_bytes(8, "big"), bytes(16), _MATRIX,
        _u32(width << 16), _u32(height << 16),
    )  # fmt: skip
    edit = _full(
        b"elst", 1, 0, _u32(1), movie_ms.to_bytes(8, "big"), (late * delta).to_bytes(8, "big"), _u32(0x10000)
    )
    trak = _box(b"trak", tkhd, _box(b"edts", edit), _box(b"mdia", mdhd, hdlr, minf))
    mvhd = _full(
        b"mvhd", 1, 0, bytes(16), _u32(1000), movie_ms.to_bytes(8, "big"), _u32(0x10000), _u16(0x100), bytes(10),
        _MATRIX, bytes(24), _u32(2),
    )  # fmt: skip
    return _box(b"moov", mvhd, trak)


def sample_entry(stream: Stream, width: int, height: int) -> bytes:
    """The sample entry of a stream whose container was none, or not MP4; FormatError where MP4 cannot hold it."""
    visual = bytes(6) + _u16(1) + bytes(16) + _u16(width) + _u16(height) + _u32(0x480000) * 2 + bytes(4)
    visual += _u16(1) + bytes(32) + _u16(0x18) + b"\xff\xff"
    codec = {"h265": "hevc"}.get(stream.codec, stream.codec)
    if codec in _CONFIGURED:
        kind, config = _CONFIGURED[codec]
        if codec != "ffv1" and stream.extradata[:1] not in (b"\x01", b"\x81"):
            raise FormatError(
                f"{codec} frames without the head that MP4 needs", hint="Encode the camera again."
            )
        return _box(kind, visual, _box(config, stream.extradata))
    if codec in _OBJECT_TYPES:
        return _box(b"mp4v", visual, _descriptor(_OBJECT_TYPES[codec], stream.extradata))
    raise FormatError(f"MP4 has no place for {codec} frames", hint="Encode the camera again.")


def stored_entry(reader: RangeReader) -> bytes | None:
    """The sample entry of the video in an MP4 file, as it stands there; None where the file is no MP4."""
    moov = find_moov(reader)
    if moov is None:
        return None
    for _, trak in children(moov, b"trak"):
        mdia = child(trak, b"mdia")
        handler = child(mdia, b"hdlr")
        if handler[8:12] != b"vide":
            continue
        table = child(child(child(mdia, b"minf"), b"stbl"), b"stsd")
        size = int.from_bytes(table[8:12], "big")
        if 86 <= size <= len(table) - 8:
            return table[8 : 8 + size]
    raise CorruptLayoutError("the video does not say how it is encoded", path=reader.name)


def find_moov(reader: RangeReader) -> bytes | None:
    """What the moov box of an MP4 file holds; None where the file is no MP4."""
    at, is_first = 0, True
    while at + 16 <= reader.size:
        head = bytes(reader.read(at, at + 16))
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        body = 8
        if size == 1:
            size, body = int.from_bytes(head[8:16], "big"), 16
        elif size == 0:
            size = reader.size - at
        if is_first and kind not in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
            return None
        if size < body or at + size > reader.size:
            break
        if kind == b"moov":
            if size > _MAX_MOOV_BYTES:
                break
            return bytes(reader.read(at + body, at + size))
        at, is_first = at + size, False
    if is_first:
        return None
    raise CorruptLayoutError(
        "the video has no table of its frames: it was never finished, or is cut", path=reader.name
    )


def children(data: bytes, kind: bytes) -> list[tuple[bytes, bytes]]:
    """The boxes of this kind directly inside a box: name and content."""
    found, at = [], 0
    while at + 8 <= len(data):
        size, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if size < 8 or at + size > len(data):
            break
        if name == kind:
            found.append((name, data[at + 8 : at + size]))
        at += size
    return found


def child(data: bytes, kind: bytes) -> bytes:
    """The content of the first box of this kind directly inside a box, which must be there."""
    found = children(data, kind)
    if not found:
        raise CorruptLayoutError(f"a video without its {kind.decode()} box")
    return found[0][1]


def _descriptor(object_type: int, extradata: bytes) -> bytes:
    """The esds box: which kind of stream it is, in nested descriptors."""
    special = _tagged(5, extradata) if extradata else b""
    config = _tagged(4, bytes([object_type, 0x11]) + bytes(11) + special)
    return _full(b"esds", 0, 0, _tagged(3, _u16(1) + b"\0" + config + _tagged(6, b"\x02")))


def _tagged(tag: int, body: bytes) -> bytes:
    size = len(body)
    return (
        bytes([tag, 0x80 | size >> 21, 0x80 | size >> 14 & 0x7F, 0x80 | size >> 7 & 0x7F, size & 0x7F]) + body
    )


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _u32(len(body) + 8) + kind + body


def _full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, bytes([version]) + flags.to_bytes(3, "big"), *parts)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _u16(number: int) -> bytes:
    return number.to_bytes(2, "big")
