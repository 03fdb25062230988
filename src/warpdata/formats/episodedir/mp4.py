"""MP4 files without a decoder: sample tables that other programs wrote, and boxes around copied packets."""

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


_VISUAL_BYTES = 86
"""The fixed part of the sample entry of a video, its own head included."""
_TOLD_BY_ENTRY = (b"avc1", b"hvc1", b"av01")
"""Kinds of entries that say all a decoder must know: others leave it to the frames."""
_LEAVE = (b"btrt", b"free", b"skip")
"""Boxes of an entry that tell nothing of the stream: the rate of one file, and nothing."""
_ONE = 0x10000


class Mp4Samples(NamedTuple):
    """The frames of a video track in decoding order."""

    entry: bytes
    """How they are encoded: the sample entry."""
    tick: Fraction
    """The unit of presentation times in seconds."""
    places: NDArray[np.int64]
    """Offset and size of each."""
    keyframe: NDArray[np.bool_]
    pts: NDArray[np.int64]


def sample_table(reader: RangeReader) -> Mp4Samples | None:
    """The frames of a plain MP4 file; None where another program must look: it is none, or says more than we read."""
    try:
        moov = find_moov(reader)
        movie = None if moov is None else _Boxes(moov)
        if movie is None or b"mvex" in movie:
            return None
        tracks = [(trak, trak.inside(b"mdia")) for trak in map(_Boxes, movie.get(b"trak", ()))]
        videos = [each for each in tracks if each[1].one(b"hdlr")[8:12] == b"vide"]
        return _track(movie, *videos[0]) if len(videos) == 1 else None
    except (CorruptLayoutError, ValueError, IndexError, OverflowError):
        return None  # FFmpeg says what is wrong, or copes with it


def same_stream(entry: bytes) -> bytes | None:
    """What two entries have in common whose streams one decoder takes; None where the frames must be asked."""
    if entry[4:8] not in _TOLD_BY_ENTRY:
        return None
    kept, at = [entry[4:_VISUAL_BYTES]], _VISUAL_BYTES
    while at + 8 <= len(entry):
        size = int.from_bytes(entry[at : at + 4], "big")
        if size < 8:
            return None
        if entry[at + 4 : at + 8] not in _LEAVE:
            kept.append(entry[at : at + size])
        at += size
    return b"".join(kept)


def is_same_stream(one: bytes, other: bytes) -> bool:
    """Whether frames of both entries can follow each other under either."""
    return one == other or (same_stream(one) is not None and same_stream(one) == same_stream(other))


class _Boxes(dict[bytes, list[bytes]]):
    """The boxes directly inside a box: contents by kind. Every box is looked at once."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        at, end = 0, len(data)
        while at + 8 <= end:
            size = int.from_bytes(data[at : at + 4], "big")
            if size < 8 or at + size > end:
                break
            self.setdefault(data[at + 4 : at + 8], []).append(data[at + 8 : at + size])
            at += size

    def one(self, kind: bytes) -> bytes:
        """The content of the first box of a kind, which must be there."""
        found = self.get(kind)
        if not found:
            raise CorruptLayoutError(f"a video without its {kind.decode()} box")
        return found[0]

    def inside(self, kind: bytes) -> _Boxes:
        """The boxes inside the first one of a kind."""
        return _Boxes(self.one(kind))


def _track(movie: _Boxes, trak: _Boxes, mdia: _Boxes) -> Mp4Samples | None:
    tables = mdia.inside(b"minf").inside(b"stbl")
    described = tables.one(b"stsd")
    if b"sbgp" in tables or int.from_bytes(described[4:8], "big") != 1:
        return None
    entry = described[8 : 8 + int.from_bytes(described[8:12], "big")]
    scale = _scale(mdia.one(b"mdhd"))
    size = _sizes(tables.one(b"stsz"))
    if len(entry) < _VISUAL_BYTES or not scale or size is None or not len(size):
        return None
    count = len(size)
    offset = _offsets(tables, size)
    shown = _composition(tables, count)
    keyframe = _keyframes(tables, count)
    if offset is None or shown is None or keyframe is None:
        return None
    shift = _shift(movie, trak, scale, shown)
    if shift is None:
        return None
    places = np.stack([offset, size], axis=1)
    return Mp4Samples(entry, Fraction(1, scale), places, keyframe, shown - shift)


def _scale(mdhd: bytes) -> int:
    """Ticks per second: of a media header, or a movie header, which begin alike."""
    at = 20 if mdhd[0] == 1 else 12
    return int.from_bytes(mdhd[at : at + 4], "big")


def _words(data: bytes, at: int, count: int, dtype: str = ">u4") -> NDArray[np.int64]:
    """Numbers of a table; ValueError where it has fewer."""
    return np.frombuffer(data, dtype, count, at).astype(np.int64)


def _count(data: bytes, at: int = 4) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def _sizes(stsz: bytes) -> NDArray[np.int64] | None:
    if _count(stsz):  # all of one size: a count that no bytes stand behind
        return None
    found = _words(stsz, 12, _count(stsz, 8))
    return found if found.all() else None


def _offsets(tables: _Boxes, size: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Where each frame lies: frames of a chunk follow each other."""
    wide = b"co64" in tables
    table = tables.one(b"co64" if wide else b"stco")
    chunks = _words(table, 8, _count(table), ">u8" if wide else ">u4")
    runs = tables.one(b"stsc")
    listed = _words(runs, 8, 3 * _count(runs)).reshape(-1, 3)
    if not len(listed) or listed[0, 0] != 1 or not len(chunks):
        return None
    before = np.cumsum(size) - size
    if len(chunks) == len(listed) == 1:
        return before + chunks if listed[0, 1] == len(size) else None
    ends = np.append(listed[1:, 0], len(chunks) + 1)
    lasting = ends - listed[:, 0]
    if (lasting <= 0).any() or int(lasting.sum()) != len(chunks):
        return None
    each = np.repeat(listed[:, 1], lasting)
    if int(each.sum()) != len(size) or (each <= 0).any():
        return None
    first = np.cumsum(each) - each
    found: NDArray[np.int64] = np.repeat(chunks - before[first], each) + before
    return found


def _composition(tables: _Boxes, count: int) -> NDArray[np.int64] | None:
    """When each frame is shown, in ticks, before the edit."""
    pause = _repeated(tables.one(b"stts"), count)
    if pause is None:
        return None
    decoded: NDArray[np.int64] = np.cumsum(pause) - pause
    if b"ctts" not in tables:
        return decoded
    later = _repeated(tables.one(b"ctts"), count)
    if later is None or (later >= 1 << 31).any():  # negative
        return None
    found: NDArray[np.int64] = decoded + later
    return found if len(np.unique(found)) == count else None


def _repeated(table: bytes, count: int) -> NDArray[np.int64] | None:
    """Numbers that are each stated for a run of frames."""
    pairs = _words(table, 8, 2 * _count(table)).reshape(-1, 2)
    return np.repeat(pairs[:, 1], pairs[:, 0]) if int(pairs[:, 0].sum()) == count else None


def _keyframes(tables: _Boxes, count: int) -> NDArray[np.bool_] | None:
    found = np.ones(count, np.bool_)
    if b"stss" in tables:
        table = tables.one(b"stss")
        numbers = _words(table, 8, _count(table))
        if not len(numbers) or numbers.min() < 1 or numbers.max() > count:
            return None
        found[:] = False
        found[numbers - 1] = True
    return found


def _shift(movie: _Boxes, trak: _Boxes, scale: int, shown: NDArray[np.int64]) -> int | None:
    """How far the edit moves all frames; None where it hides some, or there are several."""
    if b"edts" not in trak:
        return 0
    table = trak.inside(b"edts").one(b"elst")
    if _count(table) != 1:
        return None
    wide = table[0] == 1
    width = 8 if wide else 4
    duration = int.from_bytes(table[8 : 8 + width], "big")
    start = int.from_bytes(table[8 + width : 8 + 2 * width], "big", signed=True)
    rate = int.from_bytes(table[8 + 2 * width : 12 + 2 * width], "big")
    first, last = int(shown.min()), int(shown.max())
    is_all = not duration or duration * scale > (last - start) * _scale(movie.one(b"mvhd"))
    return start if rate == _ONE and start == first and is_all else None
