"""Frames of a video file that another program wrote, without an index of ours: all of them, or those of one episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.checksum import RunningXxh3128, crc32c
from warpdata.bytekit.io.ranges import RangeReader, open_buffered
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import FrameIndex, group_bounds, image_description
from warpdata.formats.episodedir.images import FrameShape
from warpdata.formats.episodedir.video import Probe, list_packets
from warpdata.timeline.meta import Role

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Frames:
    """The frames of a file in the order shown."""

    probe: Probe
    pts: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    keyframe: NDArray[np.bool_]
    file_bytes: int

    @property
    def shape(self) -> FrameShape:
        """The shape of one frame."""
        pix_fmt = self.probe.stream.pix_fmt
        dtype = "uint16" if pix_fmt.startswith(("gray1", "gray9")) else "uint8"
        return FrameShape(self.probe.height, self.probe.width, 0 if pix_fmt.startswith("gray") else 3, dtype)


class SourceVideo(Reopens):
    """A video file whose frames several episodes share; its packets are listed once, when first needed."""

    def __init__(self, open_file: Callable[[], RangeReader], path: str) -> None:
        """`open_file` opens a new reader of the bytes; it must be possible to pickle it."""
        self.open = open_file
        self.path = path

    @cached_property
    def frames(self) -> _Frames:
        """The frames and their places; a damaged file is a typed error that names it."""
        with contextlib.closing(self.open()) as reader:
            probe, places, keyframe, pts = list_packets(open_buffered(reader), self.path)
            size = reader.size
        _check_places(places, keyframe, size, self.path)
        order = np.argsort(pts, kind="stable")
        return _Frames(probe, pts[order], places[order, 0], places[order, 1], keyframe[order], size)

    def __len__(self) -> int:
        return len(self.frames.pts)

    def times_s(self) -> NDArray[np.float64]:
        """When each frame is shown, in seconds."""
        return self.frames.pts.astype(np.float64) * float(self.frames.probe.tick)


def _check_places(places: NDArray[np.int64], keyframe: NDArray[np.bool_], file_bytes: int, path: str) -> None:
    """Raise for impossible places: the first frame is a keyframe, and each one ends before the next begins."""
    if not len(places):
        return
    order = np.argsort(places[:, 0], kind="stable")
    offset, size = places[order].T
    if (offset[1:] < offset[:-1] + size[:-1]).any():
        raise CorruptLayoutError("frames overlap in the video", path=path)
    if not keyframe[order[0]]:
        raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    if offset[0] < 0 or int(offset[-1]) + int(size[-1]) > file_bytes:
        raise CorruptLayoutError("frames are past the end of the video", path=path)


class FileVideo(VideoSignal):
    """A camera over some frames of a video file: frame `first` on, one for each of `times()`."""

    packets_hash: tuple[int, str] | None = None
    """Bytes of all packets and their xxh3-128, once `complete_index` has read them."""

    def __init__(
        self,
        source: SourceVideo,
        times: Callable[[], NDArray[np.int64]],
        *,
        name: str,
        first: Callable[[], int] | int = 0,
        role: Role = "observation",
        clock: str | None = None,
        fps: float | None = None,
    ) -> None:
        super().__init__(source.path, f"{source.path} (frames)", name=name)
        self.path = source.path
        self.source = source
        self._times = times
        self._first = first
        self._role, self._clock_name = role, clock
        self._fps = fps
        self.reopen_by(FileVideo, source, times, name=name, first=first, role=role, clock=clock, fps=fps)

    @property
    def is_whole_file(self) -> bool:
        """Whether the file holds nothing but this camera's frames."""
        return self.first == 0 and len(self) == len(self.source)

    @cached_property
    def first(self) -> int:
        """The number of the first frame in the file."""
        return self._first if isinstance(self._first, int) else self._first()

    @cached_property
    def _stamps(self) -> NDArray[np.int64]:
        """The times of the frames; known without the video, whose frames are compared with them when it is read."""
        return read_only(self._times())

    def _clock(self) -> NDArray[np.int64]:
        return self._stamps

    def count_frames(self) -> tuple[int, int]:
        """The same number twice: its index is made of the file, whose other frames belong to other episodes."""
        rows = len(self._read_index(None).ts_ns)
        return rows, rows

    def _read_index(self, _expected: FileSum | None) -> FrameIndex:
        frames, times, first = self.source.frames, self._stamps, self.first
        stop = first + len(times)
        if first < 0 or stop > len(frames.pts):
            raise CorruptLayoutError(
                f"{self.name!r} needs frames {first} to {stop} of a video that has {len(frames.pts)}",
                path=self.path,
            )
        about = replace(image_description(frames.shape), role=self._role, clock=self._clock_name)
        low, high = group_bounds(frames.keyframe, first, stop) if len(times) else (first, first)
        stamps, shown = times, None
        if (low, high) != (first, stop):  # whole groups of pictures are decoded; the other frames are hidden
            before = times[0] - np.arange(first - low, 0, -1)
            stamps = np.concatenate([before, times, times[-1] + 1 + np.arange(high - stop)])
            shown = np.zeros(high - low, np.bool_)
            shown[first - low : stop - low] = True
        columns = (frames.keyframe[low:high], frames.offset[low:high], frames.size[low:high])
        size = frames.file_bytes
        return FrameIndex(
            about, stamps, frames.shape, frames.probe.stream, *columns, None, size, self._fps, shown
        )

    def complete_index(self) -> FrameIndex:
        """The index with the checksum of every frame, as it goes with a copy of the file."""
        index = self.frame_index()
        assert index.offset is not None
        assert index.size is not None
        order = np.argsort(index.offset, kind="stable")
        offset, size = index.offset[order], index.size[order]
        ranges = list(zip(offset.tolist(), (offset + size).tolist(), strict=True))
        cuts = np.flatnonzero(np.diff(np.cumsum(size) // _READ_BYTES)) + 1
        sums, digest = np.empty(len(order), np.uint32), RunningXxh3128()
        with contextlib.closing(self.video_bytes()) as reader:
            for numbers in np.split(np.arange(len(order)), cuts):
                views = reader.read_many([ranges[number] for number in numbers])
                for number, view in zip(numbers.tolist(), views, strict=True):
                    sums[order[number]] = crc32c(view)
                    digest.update(view)
        self.packets_hash = int(size.sum()), digest.digest().hex()
        return replace(index, crc32c=sums)

    def check(self) -> None:
        """Raise unless the frames are there."""
        self.frame_index()

    def _bytes(self) -> RangeReader:
        return self.source.open()
