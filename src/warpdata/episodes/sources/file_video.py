"""Frames of a video file that another program wrote, without an index of ours: all of them, or those of one episode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import FrameIndex, group_bounds, list_frames
from warpdata.timeline.meta import Role


class SourceVideo(Reopens):
    """A video file whose frames several episodes share; its packets are listed once, when first needed."""

    def __init__(self, open_file: Callable[[], RangeReader], path: str) -> None:
        """`open_file` opens a new reader of the bytes; it must be possible to pickle it."""
        self.open = open_file
        self.path = path

    @cached_property
    def _listed(self) -> tuple[FrameIndex, Fraction]:
        with contextlib.closing(self.open()) as reader:
            try:
                return list_frames(reader)
            except FormatError as error:
                raise type(error)(error.message, path=self.path, hint=error.hint) from None

    @property
    def frames(self) -> FrameIndex:
        """The frames and their places; a damaged file is a typed error that names it."""
        return self._listed[0]

    def __len__(self) -> int:
        return len(self.frames.ts_ns)

    def times_s(self) -> NDArray[np.float64]:
        """When each frame is shown, in seconds."""
        index, tick = self._listed
        return index.ts_ns.astype(np.float64) * float(tick)


class FileVideo(VideoSignal):
    """A camera over some frames of a video file: frame `first` on, one for each of `times()`."""

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
        if first < 0 or stop > len(self.source):
            raise CorruptLayoutError(
                f"{self.name!r} needs frames {first} to {stop} of a video that has {len(self.source)}",
                path=self.path,
            )
        keyframe, offset, size = frames.places
        low, high = group_bounds(keyframe, first, stop) if len(times) else (first, first)
        stamps, shown = times, None
        if (low, high) != (first, stop):  # whole groups of pictures are decoded; the other frames are hidden
            before = times[0] - np.arange(first - low, 0, -1)
            stamps = np.concatenate([before, times, times[-1] + 1 + np.arange(high - stop)])
            shown = np.zeros(high - low, np.bool_)
            shown[first - low : stop - low] = True
        return replace(
            frames,
            description=replace(frames.description, role=self._role, clock=self._clock_name),
            ts_ns=stamps,
            keyframe=keyframe[low:high],
            offset=offset[low:high],
            size=size[low:high],
            fps=self._fps,
            shown=shown,
        )

    def check(self) -> None:
        """Raise unless the frames are there."""
        self.frame_index()

    def _bytes(self) -> RangeReader:
        return self.source.open()
