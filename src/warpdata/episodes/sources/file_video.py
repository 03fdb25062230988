"""Frames of a video file that another program wrote, without an index of ours: all of them, or those of one episode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import RangeReader, open_buffered
from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.sources.signals import VideoSignal
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import FrameIndex, image_description
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.mp4 import same_stream, sample_table
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import Probe, list_packets
from warpdata.timeline.meta import Role


@dataclass(frozen=True, slots=True)
class _Frames:
    """The frames of a file in the order shown."""

    stream: Stream
    shape: FrameShape
    tick: Fraction
    pts: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    keyframe: NDArray[np.bool_]
    file_bytes: int


class SourceVideo:
    """A video file whose frames several episodes share; its packets are listed once, when first needed."""

    def __init__(self, opened: Callable[[], RangeReader], path: str) -> None:
        self.open = opened
        """A new reader of the bytes; it must be possible to pickle it."""
        self.path = path

    @cached_property
    def frames(self) -> _Frames:
        """Where its frames are; a damaged file is a typed error that names it."""
        reader = self.open()
        try:
            probe, places, keyframe, pts = _listed(reader, self.path)
            size = reader.size
        finally:
            reader.close()
        _check_places(places, keyframe, size, self.path)
        order: Any = slice(None) if (pts[1:] > pts[:-1]).all() else np.argsort(pts, kind="stable")
        depth = probe.stream.pix_fmt.startswith(("gray1", "gray9"))
        plane = probe.stream.pix_fmt.startswith("gray")
        shape = FrameShape(probe.height, probe.width, 0 if plane else 3, "uint16" if depth else "uint8")
        return _Frames(
            probe.stream,
            shape,
            probe.tick,
            pts[order],
            places[order, 0],
            places[order, 1],
            keyframe[order],
            size,
        )

    def __len__(self) -> int:
        return len(self.frames.pts)

    def times_s(self) -> NDArray[np.float64]:
        """When each frame is shown, in seconds."""
        found = self.frames
        return found.pts.astype(np.float64) * float(found.tick)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SourceVideo, (self.open, self.path))


_Listing = tuple[Probe, NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]
_KEPT_PROBES = 64
_PROBES: OrderedDict[bytes, Probe] = OrderedDict()
"""Streams as FFmpeg probed them, by the stream entries of their files: the videos of a set are encoded alike."""


def _listed(reader: RangeReader, path: str) -> _Listing:
    """The packets of a video, by its own tables where they are plain and FFmpeg knows such a stream already."""
    table = sample_table(reader)
    key = same_stream(table.entry) if table is not None else None
    known = _PROBES.get(key) if key is not None else None
    if table is not None and known is not None:
        if known.tick != table.tick:
            known = replace(known, tick=table.tick)
        return known, table.places, table.keyframe, table.pts
    found = list_packets(open_buffered(reader), path)
    if key is not None:
        _PROBES[key] = found[0]
        while len(_PROBES) > _KEPT_PROBES:
            _PROBES.popitem(last=False)
    return found


def _check_places(places: NDArray[np.int64], keyframe: NDArray[np.bool_], file_bytes: int, path: str) -> None:
    """Raise for impossible places: the first frame is a keyframe, and each one ends before the next begins."""
    if not len(places):
        return
    if not _follow(places):
        order = np.argsort(places[:, 0], kind="stable")
        places, keyframe = places[order], keyframe[order]
        if not _follow(places):
            raise CorruptLayoutError("frames overlap in the video", path=path)
    if not keyframe[0]:
        raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    if places[0, 0] < 0 or int(places[-1, 0]) + int(places[-1, 1]) > file_bytes:
        raise CorruptLayoutError("frames are past the end of the video", path=path)


def _follow(places: NDArray[np.int64]) -> bool:
    """Whether each begins where the one before it ends, or later."""
    return bool((places[1:, 0] >= places[:-1, 0] + places[:-1, 1]).all())


_READ_BYTES = 1 << 20


def runs_of(
    offset: NDArray[np.int64], size: NDArray[np.int64], max_bytes: int = 1 << 62
) -> Iterator[tuple[int, int]]:
    """The stretches [start, stop) that packets in the order of a file fill, each one whole and of about `max_bytes`."""
    if not len(offset):
        return
    ends = offset + size
    filled = np.cumsum(size) // max_bytes
    last = np.flatnonzero((offset[1:] != ends[:-1]) | (filled[1:] != filled[:-1]))
    starts = offset[np.concatenate([[0], last + 1])].tolist()
    yield from zip(starts, ends[np.concatenate([last, [len(ends) - 1]])].tolist(), strict=True)


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
        self._about = (role, clock, fps)

    @property
    def is_whole_file(self) -> bool:
        """Whether the file holds nothing but this camera's frames."""
        return self.first == 0 and len(self) == len(self.source)

    @cached_property
    def first(self) -> int:
        """The number of the first frame in the file."""
        return self._first if isinstance(self._first, int) else self._first()

    @cached_property
    def _shown_ts_ns(self) -> NDArray[np.int64]:
        """The times of the frames; known without the video, whose frames are compared with them when it is read."""
        return read_only(self._times())

    def _clock(self) -> NDArray[np.int64]:
        return self._shown_ts_ns

    def __len__(self) -> int:
        return len(self._shown_ts_ns)

    def count_frames(self) -> tuple[int, int]:
        """The same number twice: its index is made of the file, whose other frames belong to other episodes."""
        rows = len(self._read_index(None).ts_ns)
        return rows, rows

    def _read_index(self, _expected: FileSum | None) -> FrameIndex:
        found, times, first = self.source.frames, self._times(), self.first
        stop = first + len(times)
        if first < 0 or stop > len(found.pts):
            raise CorruptLayoutError(
                f"{self.name!r} needs frames {first} to {stop} of a video that has {len(found.pts)}",
                path=self.path,
            )
        role, clock, fps = self._about
        plain = image_description(found.shape)
        about = Description("image", plain.dtype, plain.shape, role=role, clock=clock)
        if not len(times):
            none = np.empty(0, np.int64)
            return FrameIndex(
                about, none, found.shape, found.stream, none.astype(np.bool_), none, none, None, 0, fps
            )
        if first == 0 and stop == len(found.pts):
            return FrameIndex(
                about, times, found.shape, found.stream, found.keyframe, found.offset, found.size, None,
                found.file_bytes, fps,
            )  # fmt: skip
        keys = np.flatnonzero(found.keyframe)
        low = int(keys[np.searchsorted(keys, first, side="right") - 1])
        after = int(np.searchsorted(keys, stop, side="left"))
        high = int(keys[after]) if after < len(keys) else len(found.pts)
        before, after_last = times[0] - np.arange(first - low, 0, -1), times[-1] + 1 + np.arange(high - stop)
        stamps = np.concatenate([before, times, after_last])
        shown = np.zeros(high - low, np.bool_)
        shown[first - low : stop - low] = True
        return FrameIndex(
            about, stamps, found.shape, found.stream, found.keyframe[low:high], found.offset[low:high],
            found.size[low:high], None, found.file_bytes, fps, None if shown.all() else shown,
        )  # fmt: skip

    def complete_index(self) -> FrameIndex | None:
        """The index with the checksum of every frame, as it goes with a copy of the file."""
        index = self._loaded()
        if not self.is_whole_file or index.offset is None or index.size is None:
            return None
        reader = self._bytes()
        sums = np.empty(len(index.offset), np.uint32)
        order = np.argsort(index.offset, kind="stable")
        rows = iter(order.tolist())
        offsets, sizes = index.offset.tolist(), index.size.tolist()
        for start, stop in runs_of(index.offset[order], index.size[order], _READ_BYTES):
            data, at = reader.read(start, stop), start
            while at < stop:
                row = next(rows)
                sums[row] = crc32c(data[offsets[row] - start : offsets[row] - start + sizes[row]])
                at = offsets[row] + sizes[row]
        reader.close()
        return FrameIndex(
            index.description, index.ts_ns, index.shape, index.stream, index.keyframe, index.offset, index.size, sums,
            index.video_bytes, index.fps, index.shown,
        )  # fmt: skip

    def check(self) -> None:
        """Raise unless the frames are there."""
        self._loaded()

    def _bytes(self) -> RangeReader:
        return self.source.open()

    def __reduce__(self) -> tuple[Any, ...]:
        role, clock, fps = self._about
        return (_again, (self.source, self._times, self.name, self._first, role, clock, fps))


def _again(source: Any, times: Any, name: str, first: Any, *about: Any) -> FileVideo:
    role, clock, fps = about
    return FileVideo(source, times, name=name, first=first, role=role, clock=clock, fps=fps)
