"""The frame index beside a video: true times and the place of each encoded frame; marks of a recorder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_numpy
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, StoreError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FileSum, read_bytes
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.signal_file import Description, ParquetFooter, check_clock, write_columns

_MAX_FILE_BYTES = 1 << 33
_DTYPES = {"uint8": "u8", "uint16": "u16"}


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


def write_frame_index(path: str | BinaryIO, index: FrameIndex) -> None:
    """Write the index of a finished video."""
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
    write_columns(path, known, {**index.description.to_json(), **about})


def frame_index_bytes(index: FrameIndex) -> bytes:
    """The file of a frame index."""
    sink = io.BytesIO()
    write_frame_index(sink, index)
    return sink.getvalue()


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
        for ts_ns, offset, size, key, total in zip(*(each.tolist() for each in columns), strict=True)
    ]
