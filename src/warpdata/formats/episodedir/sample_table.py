"""Where the frames of a finished MP4 lie, from its own tables: FFmpeg takes milliseconds for what is a few arrays.

Only what is plain is read here: one video track, no fragments, one edit that hides nothing. The rest is left to FFmpeg.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.mp4 import find_moov

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
