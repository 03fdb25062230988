"""The frame index beside a video, marks of a recorder, and decoded frames by number from any bytes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_numpy
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader, open_buffered, retry_damaged
from warpdata.bytekit.process.forks import PerProcess
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, FormatError, StoreError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    STILL_CODECS,
    Description,
    FileSum,
    FrameShape,
    Stream,
    read_bytes,
)
from warpdata.formats.episodedir.pictures import PictureDecoder
from warpdata.formats.episodedir.signal_file import ParquetFooter, check_clock, write_columns
from warpdata.formats.episodedir.video import Picture, VideoDecoder, list_packets

_SUMMED_FRAMES = 64
_MAX_FILE_BYTES = 1 << 33
_DTYPES = {"uint8": "u8", "uint16": "u16"}
_AHEAD_BYTES = 8 << 20
"""Encoded frames fetched at once for a batch."""
_CHECK_BYTES = 2 << 20
_GROUP_PACKETS = 64
"""Packets of a group that are given together, where the requested frame does not need more."""
_DECODER_TABLES, _REFERENCES = 1 << 20, 8
ALWAYS_OPEN = 8
"""Unused decoders that stay open, however large their pictures are."""
DECODER_BYTES = 64 << 20
"""Memory of unused decoders beyond these."""


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """One row per frame in the order shown; indexes of other writers have only times."""

    description: Description
    ts_ns: NDArray[np.int64]
    shape: FrameShape | None = None
    stream: Stream | None = None
    keyframe: NDArray[np.bool_] | None = None
    offset: NDArray[np.int64] | None = None
    size: NDArray[np.int64] | None = None
    crc32c: NDArray[np.uint32] | None = None
    video_bytes: int | None = None
    fps: float | None = None
    shown: NDArray[np.bool_] | None = None
    """Which frames of the video belong to the camera; None for all. The others are there to decode them."""

    @property
    def places(self) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Keyframe flag, offset and size of every frame, where they are known: see `locate_frames`."""
        assert self.keyframe is not None
        assert self.offset is not None
        assert self.size is not None
        return self.keyframe, self.offset, self.size

    @property
    def shown_ts_ns(self) -> NDArray[np.int64]:
        """The times of the frames that belong to the camera."""
        return self.ts_ns if self.shown is None else self.ts_ns[self.shown]


def image_description(shape: FrameShape) -> Description:
    """The description of a camera of which only the frames are known."""
    return Description("image", _DTYPES[shape.dtype], shape.shape)


def group_bounds(keyframe: NDArray[np.bool_], start: int, stop: int) -> tuple[int, int]:
    """The frames [low, high) of the whole groups of pictures that hold frames [start, stop)."""
    keys = np.flatnonzero(keyframe)
    low = int(keys[np.searchsorted(keys, start, side="right") - 1])
    after = int(np.searchsorted(keys, stop, side="left"))
    return low, int(keys[after]) if after < len(keys) else len(keyframe)


def index_of_marks(
    marks: Sequence[layout.FrameMark],
    shape: FrameShape,
    stream: Stream,
    video_bytes: int,
    description: Description | None = None,
    fps: float | None = None,
) -> FrameIndex:
    """The index of a video whose frames a recorder marked one by one."""
    return FrameIndex(
        description or image_description(shape),
        np.array([mark.ts_ns for mark in marks], np.int64),
        shape,
        stream,
        np.array([mark.flags & layout.KEYFRAME_FLAG for mark in marks], np.bool_),
        np.array([mark.offset for mark in marks], np.int64),
        np.array([mark.size for mark in marks], np.int64),
        np.array([mark.packet_crc32c for mark in marks], np.uint32),
        video_bytes,
        fps,
    )


def write_frame_index(path: str | None, index: FrameIndex) -> bytes:
    """Write the index of a finished video; the bytes of the file if there is no path."""
    assert index.stream is not None
    fps = None if index.fps is None else float(index.fps)
    about = {"video_bytes": index.video_bytes, "fps": fps, **index.stream.to_json()}
    columns = {
        "ts_ns": index.ts_ns,
        "pts": np.arange(len(index.ts_ns), dtype=np.int64),
        "keyframe": index.keyframe,
        "offset": index.offset,
        "size": index.size,
        "crc32c": index.crc32c,
        layout.SHOWN_COLUMN: index.shown,
    }
    known = {name: column for name, column in columns.items() if column is not None}
    return write_columns(path, known, {**index.description.to_json(), **about})


def frame_index_bytes(index: FrameIndex) -> bytes:
    """The file of a frame index."""
    return write_frame_index(None, index)


def write_empty_index(path: str) -> None:
    """Write the index of a camera that never gave a frame; its size is not known."""
    write_columns(path, {layout.FRAME_TIME_COLUMN: np.empty(0, np.int64)}, {"kind": "image"})


def read_frame_index(reader: RangeReader, expected: FileSum | None = None) -> FrameIndex:
    """Read and check a frame index, ours or the existing library's."""

    def read() -> FrameIndex:
        data = read_bytes(reader, max_bytes=_MAX_FILE_BYTES)
        if expected is not None:
            expected.check(data, reader.name)
        return parse_frame_index(data, reader.name)

    return retry_damaged(reader, read)


def parse_frame_index(data: bytes, path: str) -> FrameIndex:
    """A frame index from the bytes of its file."""
    footer = ParquetFooter(data, path)
    about, names = footer.stated, set(footer.schema.names)
    stamps = footer.times(layout.FRAME_TIME_COLUMN)
    shown = _column(footer, layout.SHOWN_COLUMN, np.bool_) if layout.SHOWN_COLUMN in names else None
    index = FrameIndex(Description("image", "u8", ()), stamps, shown=shown)
    if about is not None and set(layout.FRAME_COLUMNS) <= names:
        index = _own_index(index, footer, about)
    check_clock(index.shown_ts_ns, path)
    return index


def _column(footer: ParquetFooter, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """A column of the type it must have."""
    values = to_numpy(footer.read([name])[name])
    if values.dtype != dtype:
        raise CorruptLayoutError(f"column {name!r} is not of {dtype.__name__}", path=footer.path)
    return values


def _own_index(foreign: FrameIndex, footer: ParquetFooter, about: dict[str, Any]) -> FrameIndex:
    """The index with everything our writers add."""
    path = footer.path
    description = Description.from_json(about, path)
    try:
        shape = description.frame_shape()
        stream = Stream.from_json(about)
        video_bytes = int(about["video_bytes"])
        if not 0 <= video_bytes < 1 << 62:
            raise ValueError
        fps = None if about.get("fps") is None else float(about["fps"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CorruptLayoutError("the description of the video is damaged", path=path) from None
    offset, size = (_column(footer, name, np.int64) for name in ("offset", "size"))
    keyframe, sums = _column(footer, "keyframe", np.bool_), _column(footer, "crc32c", np.uint32)
    if len(offset):
        if offset.min() < 0 or size.min() < 1 or size.max() > layout.MAX_PACKET_BYTES:
            raise CorruptLayoutError("frames of impossible size", path=path)
        if (offset > video_bytes - size).any():  # a sum could be more than the type holds
            raise CorruptLayoutError("frames are past the end of the video", path=path)
        if not keyframe[0]:
            raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    return FrameIndex(
        description,
        foreign.ts_ns,
        shape,
        stream,
        keyframe,
        offset,
        size,
        sums,
        video_bytes,
        fps,
        foreign.shown,
    )


def pack_mark(mark: layout.FrameMark) -> bytes:
    """A mark with its checksum."""
    packed = bytearray(layout.FRAME_MARK.pack(*mark))
    layout.MARK_CRC.pack_into(
        packed, layout.FRAME_MARK_CHECKED.stop, crc32c(packed[layout.FRAME_MARK_CHECKED])
    )
    return bytes(packed)


def read_marks(path: str) -> list[layout.FrameMark | None]:
    """The marks of a recorder by frame number; None for a damaged one. A torn last mark does not count."""
    try:
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
    except BlobNotFoundError:
        return []
    except StoreError as error:
        raise FormatError(error.message, hint=error.hint) from None
    marks: list[layout.FrameMark | None] = []
    for at in range(0, len(data) - layout.FRAME_MARK_BYTES + 1, layout.FRAME_MARK_BYTES):
        piece = data[at : at + layout.FRAME_MARK_BYTES]
        mark = layout.FrameMark(*layout.FRAME_MARK.unpack(piece))
        is_whole = crc32c(piece[layout.FRAME_MARK_CHECKED]) == mark.mark_crc32c
        marks.append(mark if is_whole and 0 < mark.size <= layout.MAX_PACKET_BYTES else None)
    return marks


def marks_of_index(index: FrameIndex) -> list[layout.FrameMark | None]:
    """The frames of a finished index as the marks they were made of."""
    if index.offset is None or index.size is None or index.keyframe is None or index.crc32c is None:
        return []
    columns = (index.ts_ns, index.offset, index.size, index.keyframe, index.crc32c)
    return [
        layout.FrameMark(ts_ns, offset, size, int(key), total, 0)
        for ts_ns, offset, size, key, total in zip(*(column.tolist() for column in columns), strict=True)
    ]


# Decoding, planned by keyframe: no group is decoded twice per batch.


@dataclass(frozen=True, slots=True)
class PacketPlan:
    """Where the packets are, in decoding order, and which of them a frame needs."""

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    frame: NDArray[np.int64]
    """Packet -> number of the frame it shows."""
    packet: NDArray[np.int64]
    """Frame -> its packet."""
    start: NDArray[np.int64]
    """Frame -> the keyframe packet to begin decoding at."""
    crc32c: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return len(self.offset)


def plan_of(index: FrameIndex) -> PacketPlan:
    """The plan of a video with a complete index; frames are decoded in the order of the file."""
    keyframe, offset, size = index.places
    frame = np.argsort(offset, kind="stable")
    count, keyframe = len(frame), keyframe[frame]
    packet = np.empty(count, np.int64)
    packet[frame] = np.arange(count)
    before = np.maximum.accumulate(np.where(keyframe, np.arange(count), 0))
    # A frame shown before the keyframe that precedes it in the file belongs to the group before.
    late = frame[before] > frame
    before = np.where(late, before[np.maximum(before - 1, 0)], before)
    sums = None if index.crc32c is None else index.crc32c[frame]
    return PacketPlan(offset[frame], size[frame], frame, packet, before[packet], sums)


def list_frames(reader: RangeReader) -> tuple[FrameIndex, Fraction]:
    """The frames of a video of another writer, found by walking through its packets once, and the unit of their times.

    Their times are those of the container, in that unit of seconds; a damaged file is a typed error that names it.
    """
    path = reader.name
    source = path if isinstance(reader, FileRangeReader) else open_buffered(reader)
    probe, places, keyframe, times = list_packets(source, path)
    order = np.argsort(places[:, 0], kind="stable")
    offset, size = places[order].T
    if (offset[1:] < offset[:-1] + size[:-1]).any():
        raise CorruptLayoutError("frames overlap in the video", path=path)
    if len(places) and not keyframe[order[0]]:
        raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    if len(places) and (offset[0] < 0 or int(offset[-1]) + int(size[-1]) > reader.size):
        raise CorruptLayoutError("frames are past the end of the video", path=path)
    pix_fmt = probe.stream.pix_fmt
    dtype = "uint16" if pix_fmt.startswith(("gray1", "gray9")) else "uint8"
    shape = FrameShape(probe.height, probe.width, 0 if pix_fmt.startswith("gray") else 3, dtype)
    at = np.argsort(times, kind="stable")
    columns = (keyframe[at], places[at, 0], places[at, 1], None)
    index = FrameIndex(image_description(shape), times[at], shape, probe.stream, *columns, reader.size)
    return index, probe.tick


def locate_frames(index: FrameIndex, reader: RangeReader) -> FrameIndex:
    """The index of another writer, which has only times, with the place of each frame."""
    frames, _ = list_frames(reader)
    if len(frames.ts_ns) != len(index.ts_ns):
        fact = f"the video has {len(frames.ts_ns)} frames, its index {len(index.ts_ns)}"
        raise CorruptLayoutError(fact, path=reader.name)
    assert frames.shape is not None
    shape = frames.shape._replace(channels=3, dtype="uint8")  # as its own reader shows every video
    return replace(frames, description=image_description(shape), shape=shape, ts_ns=index.ts_ns)


def sum_frames(index: FrameIndex, reader: RangeReader) -> FrameIndex:
    """The index with the checksum of every frame, as it goes with a copy of the video."""
    _, offset, size = index.places
    ranges = list(zip(offset.tolist(), (offset + size).tolist(), strict=True))
    sums: list[int] = []
    for at in range(0, len(ranges), _SUMMED_FRAMES):  # neighbours by one read
        sums += map(crc32c, reader.read_many(ranges[at : at + _SUMMED_FRAMES]))
    return replace(index, crc32c=np.array(sums, np.uint32))


@dataclass(slots=True, eq=False)
class _Decoder:
    """A decoder, the reader that used it last, and how far it is in the packets of that reader."""

    kind: tuple[Stream, FrameShape]
    codec: VideoDecoder | PictureDecoder
    nbytes: int
    """About what it takes: its tables, and the pictures it refers back to."""
    owner: int
    at: int = -1
    """The next packet; -1 before any."""
    shown: int = -1

    @classmethod
    def open(cls, stream: Stream, shape: FrameShape, owner: int) -> _Decoder:
        """A new decoder. Pictures look the same in a video as one by one."""
        is_still = stream.codec in STILL_CODECS
        codec = PictureDecoder(stream.codec, shape) if is_still else VideoDecoder(stream, shape)
        nbytes = _DECODER_TABLES + _REFERENCES * shape.height * shape.width * 3 // 2
        return cls((stream, shape), codec, nbytes, owner)


class _DecoderPool:
    """Unused decoders of a process. Cameras of one kind share them: opening one takes time, and each keeps pictures."""

    def __init__(self) -> None:
        self._own: PerProcess[tuple[threading.Lock, list[_Decoder]]] = PerProcess(
            lambda: (threading.Lock(), [])
        )

    @contextlib.contextmanager
    def use(self, kind: tuple[Stream, FrameShape], owner: int) -> Iterator[_Decoder]:
        """A decoder for a reader: the one it used last, else any of the kind if there are many, else a new one."""
        lock, free = self._own()
        with lock:
            same = [decoder for decoder in free if decoder.owner == owner]
            if not same and len(free) >= _room(free):
                same = [decoder for decoder in free if decoder.kind == kind]
            if same:  # the last one used: its memory for pictures is used again
                free.remove(same[-1])
        decoder = same[-1] if same else _Decoder.open(*kind, owner)
        if decoder.owner != owner:
            decoder.owner, decoder.at = owner, -1
            decoder.codec.reset()
        try:
            yield decoder
        except BaseException:
            decoder.codec.close()  # its state is unknown now
            raise
        with lock:
            free.append(decoder)
            surplus = [free.pop(0) for _ in range(len(free) - _room(free))]
        for decoder in surplus:
            decoder.codec.close()


def _room(decoders: Sequence[_Decoder]) -> int:
    """How many decoders stay open: fewer of large pictures."""
    return max(ALWAYS_OPEN, DECODER_BYTES // max((decoder.nbytes for decoder in decoders), default=1))


_DECODERS = _DecoderPool()
_owners = itertools.count(1)


class FrameReader:
    """Frames of one video; any number of threads may call it, one at a time decodes."""

    def __init__(
        self,
        reader: RangeReader,
        plan: PacketPlan,
        stream: Stream,
        shape: FrameShape,
    ) -> None:
        self._reader = reader
        self._plan = plan
        self._shape = shape
        self.stream = stream
        self._owner = next(_owners)
        self._lock = threading.Lock()
        self._ahead: dict[int, bytes] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one frame."""
        return self._shape.shape

    def close(self) -> None:
        """Close the file, once no thread decodes; nothing can be read after this."""
        with self._lock:
            self._reader.close()

    def check(self) -> None:
        """Raise unless every packet has its checksum, where checksums are known; nothing is decoded."""
        if self._plan.crc32c is not None:
            groups = np.cumsum(self._plan.size) // _CHECK_BYTES
            for numbers in np.split(np.arange(len(self._plan)), np.flatnonzero(np.diff(groups)) + 1):
                self._read(numbers.tolist())

    def frame(self, number: int) -> NDArray[np.generic]:
        """One frame."""
        return np.asarray(self.frames(np.array([number], np.int64))[0])

    def frames(self, numbers: NDArray[np.int64]) -> NDArray[np.generic]:
        """Many frames in any order as one batch."""
        out = np.empty((len(numbers), *self._shape.shape), self._shape.dtype)
        self.visit(numbers, lambda place, picture: picture.write(out[place], None))
        return out

    def visit(self, numbers: NDArray[np.int64], use: Callable[[int, Picture], None]) -> None:
        """Call `use(place, picture)` for the picture of each number; each group of pictures is decoded once.

        A picture is valid during the call.
        """
        wanted: dict[int, list[int]] = {}
        for place, number in enumerate(numbers.tolist()):
            wanted.setdefault(number, []).append(place)
        with self._lock, _DECODERS.use((self.stream, self._shape), self._owner) as decoder:
            try:
                left = sorted(wanted)
                while left:
                    plan, at, shown = self._plan, decoder.at, decoder.shown
                    packets: list[int] = []
                    size = count = 0
                    for number in left:
                        start, stop = int(plan.start[number]), int(plan.packet[number]) + 1
                        at = start if at < start or number <= shown else at
                        more = int(plan.size[at:stop].sum())
                        if count and size + more > _AHEAD_BYTES:
                            break
                        packets += range(at, stop)
                        at, shown, size, count = max(at, stop), number, size + more, count + 1
                    self._ahead = dict(zip(packets, self._read(packets), strict=True))
                    for number in left[:count]:
                        if number in wanted:
                            self._decode_until(decoder, number, wanted, use)
                    left = left[count:]
            except CorruptLayoutError as error:
                raise (
                    error if error.path else CorruptLayoutError(error.message, path=self._reader.name)
                ) from None
            finally:
                self._ahead = {}

    def bring(self, numbers: NDArray[np.int64]) -> None:
        """Read, and check, what decoding these frames takes, so that a cache has it; nothing is decoded."""
        plan = self._plan
        packets = {
            packet
            for number in numbers.tolist()
            for packet in range(int(plan.start[number]), int(plan.packet[number]) + 1)
        }
        self._read(sorted(packets))

    def group(self, number: int, *, only_needed: bool = False) -> tuple[list[int], list[bytes]]:
        """The encoded packets that show this frame and those of its group, from its keyframe on, in decoding order.

        Returns the frame that each one shows, too. Of a long group, packets far behind the frame are left out; with
        `only_needed` all packets behind it.
        """
        plan = self._plan
        start, stop = int(plan.start[number]), int(plan.packet[number]) + 1
        limit = stop if only_needed else min(len(plan), max(stop, start + _GROUP_PACKETS))
        while stop < limit and plan.start[plan.frame[stop]] == start:
            stop += 1
        with self._lock:
            return plan.frame[start:stop].tolist(), self._read(list(range(start, stop)))

    def _decode_until(
        self,
        decoder: _Decoder,
        number: int,
        wanted: dict[int, list[int]],
        use: Callable[[int, Picture], None],
    ) -> None:
        """Show the pictures that come out until a frame is not wanted any more, from its keyframe on if need be."""

        def show(pictures: Iterable[tuple[int, Picture]]) -> None:
            for shown, picture in pictures:
                decoder.shown = max(decoder.shown, shown)
                for place in wanted.pop(shown, ()):
                    use(place, picture)

        plan, start = self._plan, int(self._plan.start[number])
        if decoder.at < start or number <= decoder.shown:
            if decoder.at >= 0:
                decoder.codec.reset()
            decoder.at, decoder.shown = start, -1
        while number in wanted and decoder.at < len(plan):
            at = decoder.at
            packet = self._ahead.pop(at, None) or self._read([at])[0]
            decoder.at += 1
            show(decoder.codec.feed(int(plan.frame[at]), packet))
        if number in wanted:
            decoder.at = decoder.shown = -1
            show(decoder.codec.drain())
        if number in wanted:
            raise CorruptLayoutError(f"frame {number} is missing in the video")

    def _read(self, numbers: list[int]) -> list[bytes]:
        plan = self._plan
        ranges = [(int(plan.offset[n]), int(plan.offset[n] + plan.size[n])) for n in numbers]

        def read() -> list[bytes]:
            packets = [bytes(view) for view in self._reader.read_many(ranges)]
            for number, packet in zip(numbers, packets, strict=True):
                if plan.crc32c is not None and crc32c(packet) != plan.crc32c[number]:
                    raise ChecksumError(f"checksum mismatch in frame {number}", path=self._reader.name)
            return packets

        return retry_damaged(self._reader, read, ranges)
