"""The frame index beside a video: true times, and where each encoded frame lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_numpy
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, StoreError
from warpdata.formats.episodedir import arrow, layout
from warpdata.formats.episodedir.documents import FileSum, read_bytes
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.signal_file import Description, check_clock

_MAX_FILE_BYTES = 1 << 33
_DTYPES = {"uint8": "u8", "uint16": "u16"}


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """One row per frame in the order shown; `offset` is None in indexes of other writers."""

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
        description or image_description(shape), np.array([mark.ts_ns for mark in marks], np.int64), shape, stream,
        np.array([mark.flags & layout.KEYFRAME_FLAG for mark in marks], np.bool_),
        np.array([mark.offset for mark in marks], np.int64),
        np.array([mark.size for mark in marks], np.int64),
        np.array([mark.packet_crc32c for mark in marks], np.uint32), video_bytes, fps,
    )  # fmt: skip


def write_frame_index(path: str | BinaryIO, index: FrameIndex) -> None:
    """Write the index of a finished video."""
    arrow.write_columns(path, *_columns(index))


def frame_index_bytes(index: FrameIndex) -> Any:
    """The index of a finished video as a buffer; one of few frames is neither encoded nor compressed."""
    return arrow.columns_bytes(*_columns(index), shared=_OFTEN_ALIKE)


_OFTEN_ALIKE = ("ts_ns", "pts", "keyframe")
"""Columns that the cameras of an episode share, and often the next episode."""


def _columns(index: FrameIndex) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    stream = index.stream
    assert stream is not None
    about = {
        **index.description.to_json(), "video_bytes": index.video_bytes, "fps": index.fps, **stream.to_json(),
    }  # fmt: skip
    columns = {
        "ts_ns": index.ts_ns, "pts": np.arange(len(index.ts_ns), dtype=np.int64), "keyframe": index.keyframe,
        "offset": index.offset, "size": index.size, "crc32c": index.crc32c,
    }  # fmt: skip
    if index.shown is not None:
        columns[layout.SHOWN_COLUMN] = index.shown
    return columns, about  # type: ignore[return-value]


def write_empty_index(path: str) -> None:
    """Write the index of a camera that never gave a frame; its size is not known."""
    arrow.write_columns(path, {layout.FRAME_TIME_COLUMN: np.empty(0, np.int64)}, {"kind": "image"})


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
    footer = arrow.ParquetFooter(data, path)
    about = footer.description
    column = footer.time_column(layout.FRAME_TIME_COLUMN)
    if about is None or not set(layout.FRAME_COLUMNS) <= set(footer.schema.names):
        stamps = arrow.int64_of(footer.read([column])[column])
        return _checked(FrameIndex(Description("image", "u8", ()), stamps, shown=_shown(footer)), path)
    found = footer.read(list(layout.FRAME_COLUMNS))
    stamps = arrow.int64_of(found["ts_ns"])
    return _checked(replace(_own_index(found, stamps, about, path), shown=_shown(footer)), path)


def _shown(footer: arrow.ParquetFooter) -> NDArray[np.bool_] | None:
    if layout.SHOWN_COLUMN not in footer.schema.names:
        return None
    return _column(footer.read([layout.SHOWN_COLUMN]), layout.SHOWN_COLUMN, np.bool_, footer.path)


def _column(found: dict[str, Any], name: str, dtype: type[np.generic], path: str) -> NDArray[Any]:
    """A column of the type it must have."""
    values = to_numpy(found[name])
    if values.dtype != dtype:
        raise CorruptLayoutError(f"column {name!r} is not of {dtype.__name__}", path=path)
    return values


def _checked(index: FrameIndex, path: str) -> FrameIndex:
    check_clock(index.shown_ts_ns, path)
    return index


def _own_index(
    found: dict[str, Any], stamps: NDArray[np.int64], about: dict[str, Any], path: str
) -> FrameIndex:
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
    offset, size = (_column(found, name, np.int64, path) for name in ("offset", "size"))
    keyframe = _column(found, "keyframe", np.bool_, path)
    sums = _column(found, "crc32c", np.uint32, path)
    if len(offset) and (offset.min() < 0 or size.min() < 1 or size.max() > layout.MAX_PACKET_BYTES):
        raise CorruptLayoutError("frames of impossible size", path=path)
    if len(offset) and (offset > video_bytes - size).any():  # a sum could be more than the type holds
        raise CorruptLayoutError("frames are past the end of the video", path=path)
    if len(offset) and not keyframe[0]:
        raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    return FrameIndex(description, stamps, shape, stream, keyframe, offset, size, sums, video_bytes, fps)


def pack_mark(mark: layout.FrameMark) -> bytes:
    """A mark with its checksum."""
    packed = bytearray(layout.FRAME_MARK.pack(*mark))
    layout.MARK_CRC.pack_into(
        packed, layout.FRAME_MARK_CHECKED.stop, crc32c(packed[layout.FRAME_MARK_CHECKED])
    )
    return bytes(packed)


def read_marks(path: str) -> list[layout.FrameMark | None]:
    """The marks a recorder left, by frame number; None where one is damaged. A last one that is torn was none yet."""
    try:
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
    except BlobNotFoundError:
        return []
    except StoreError as error:
        raise FormatError(error.message, hint=error.hint) from None
    pieces = [
        data[at : at + layout.FRAME_MARK_BYTES]
        for at in range(0, len(data) - layout.FRAME_MARK_BYTES + 1, layout.FRAME_MARK_BYTES)
    ]
    return [_mark(piece) for piece in pieces]


def _mark(piece: bytes) -> layout.FrameMark | None:
    mark = layout.FrameMark(*layout.FRAME_MARK.unpack(piece))
    whole = crc32c(piece[layout.FRAME_MARK_CHECKED]) == mark.mark_crc32c
    return mark if whole and 0 < mark.size <= layout.MAX_PACKET_BYTES else None


def marks_of_index(index: FrameIndex) -> list[layout.FrameMark | None]:
    """The frames of a finished index as the marks they were made of."""
    if index.offset is None or index.size is None or index.keyframe is None or index.crc32c is None:
        return []
    columns = (index.ts_ns, index.offset, index.size, index.keyframe, index.crc32c)
    return [
        layout.FrameMark(ts_ns, offset, size, int(key), total, 0)
        for ts_ns, offset, size, key, total in zip(*(each.tolist() for each in columns), strict=True)
    ]
