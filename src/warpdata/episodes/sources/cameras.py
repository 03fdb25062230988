"""Cameras: encoded video or single pictures, decoded on demand; decoders and decoded frames are kept process-wide."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of, read_only
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader, open_buffered
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import Reopens, cached_property, run_in_child
from warpdata.errors import CorruptLayoutError, TruncatedError, naming
from warpdata.formats.episodedir.documents import Description, FileSum, Stream, Summary
from warpdata.formats.episodedir.frame_index import (
    FrameIndex,
    FrameReader,
    group_bounds,
    list_frames,
    locate_frames,
    plan_of,
    read_frame_index,
)
from warpdata.formats.episodedir.pictures import (
    EncodedPicture,
    PictureDecoder,
    Still,
    check_same,
    decode_stills,
    still_of,
)
from warpdata.formats.episodedir.scaling import ImageView
from warpdata.formats.episodedir.video import Picture, keep_picture, list_packets
from warpdata.formats.journal.reader import check_not_unfinished
from warpdata.timeline.meta import OBJECT, Role, RowType, SignalMeta, as_kind, as_role, guess_role
from warpdata.timeline.signal import ClockedSignal

Int64s = NDArray[np.int64]

MOST_OPEN = min(128, max(2, system.allowed_descriptors() // 8))
"""Videos that may stay open unused: as many as a shuffle has blocks of images in play.

Fewer where the system allows few descriptors: other files, caches and connections need theirs.
"""


class ImageRequest(NamedTuple):
    """Records of a camera, the view of them that is wanted (None is the whole image), and where they go."""

    records: Int64s
    view: ImageView | None
    out: NDArray[Any] | list[Picture]
    """Images, or a list that gets the pictures to write them from later; only of whole images of an encoded camera."""
    planes: NDArray[np.uint8] | None = None
    """Memory for such pictures."""


def empty_images(meta: SignalMeta, records: Int64s, view: ImageView | None) -> NDArray[Any]:
    """An array for a view of images of a signal."""
    size = meta.shape[:2] if view is None else (view.height, view.width)
    return np.empty((len(records), *size, *meta.shape[2:]), meta.dtype)


@dataclass(slots=True)
class _Entry:
    reader: FrameReader
    users: int = 0


class OpenCameras:
    """Videos by camera; one that was closed to make room is opened again when its camera is used again."""

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self.most_open = most_open
        self._keys = itertools.count()
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Start with no video: those of the parent belong to it."""
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Entry] = OrderedDict()
        self._gone: deque[int] = deque()

    def new_key(self) -> int:
        """A key for one more camera."""
        return next(self._keys)

    def gone(self, key: int) -> None:
        """Note that a camera was collected; safe in any thread, even one that is inside this object."""
        self._gone.append(key)

    @contextlib.contextmanager
    def use(self, key: int, open_reader: Callable[[], FrameReader]) -> Iterator[FrameReader]:
        """The video of a camera, which stays open at least for as long as the block runs."""
        with self._lock:
            entry = self._take(key)
        if entry is None:
            made = open_reader()
            with self._lock:
                entry = self._take(key)
                if entry is None:
                    entry = self._open[key] = _Entry(made, 1)
            if entry.reader is not made:  # another thread was quicker
                made.close()
        try:
            yield entry.reader
        finally:
            with self._lock:
                entry.users -= 1
                gone = [
                    self._open.pop(key, None)
                    for key in [self._gone.popleft() for _ in range(len(self._gone))]
                ]
                closing = [entry.reader for entry in gone if entry is not None]
                idle = [key for key, entry in self._open.items() if not entry.users]
                closing += [
                    self._open.pop(key).reader for key in idle[: max(0, len(self._open) - self.most_open)]
                ]
            for reader in closing:
                reader.close()

    def __len__(self) -> int:
        return len(self._open)

    def _take(self, key: int) -> _Entry | None:
        entry = self._open.get(key)
        if entry is not None:
            entry.users += 1
            self._open.move_to_end(key)
        return entry


CAMERAS = OpenCameras()
"""The videos of this process."""


def signal_meta(description: Description, name: str) -> SignalMeta:
    """The metadata of a signal by its stored description; without a stated role, it is guessed from the name."""
    about = description
    dtype, rows = OBJECT, None
    shape: tuple[int, ...] = ()
    if about.is_ragged:
        rows = RowType(dtype_named(about.dtype).dtype, about.shape)
    elif not about.is_object:
        dtype, shape = dtype_named(about.dtype).dtype, about.shape
    role, of, model = guess_role(name, about.kind)
    if about.role is not None:
        role, of, model = as_role(about.role), about.of, about.model
    plain = (about.units, about.names, role, of, model, about.clock, rows, about.rate_hz)
    return SignalMeta(dtype, shape, as_kind(about.kind), *plain)


def describe(meta: SignalMeta, *, in_table: bool = False) -> Description:
    """The description of a signal as it is stored; in a table, pictures that no video can hold are tensors."""
    kind = "tensor" if in_table and meta.kind == "image" else meta.kind
    stored, shape = (meta.dtype, meta.shape) if meta.rows is None else meta.rows
    dtype = kind if stored == OBJECT else dtype_of(stored).name
    about = (meta.units, meta.names, meta.role, meta.of, meta.model, meta.clock, meta.rate_hz)
    return Description(kind, dtype, shape, *about)


def open_bytes(path: str, folder: FolderReader | None) -> RangeReader:
    """The bytes of a file on this machine, or of that name in a folder elsewhere."""
    if folder is not None:
        return folder.open(path)
    try:
        return FileRangeReader(path)
    except FileNotFoundError:
        check_not_unfinished(path)
        raise


class StoredSignal(Reopens, ClockedSignal):
    """A signal in files of its own, here or in a folder elsewhere; what the episode states of it is known at once."""

    def __init__(
        self,
        *paths: str | os.PathLike[str],
        summary: Summary | None = None,
        expected: FileSum | None = None,
        folder: FolderReader | None = None,
        name: str | None = None,
    ) -> None:
        """`paths`: its data file, then its other files."""
        files = [os.fspath(path) if folder is not None else os.path.abspath(path) for path in paths]
        self.path = files[0]
        self.name = os.path.basename(self.path).partition(".")[0] if name is None else name
        self.folder = folder
        self._summary = summary
        self._expected = expected
        known = {"summary": summary, "expected": expected, "folder": folder, "name": self.name}
        self.reopen_by(type(self), *files, **known)

    @property
    @abstractmethod
    def loaded_bytes(self) -> int:
        """How much of the signal is in memory."""

    def _edge(self, index: int) -> int:
        about = self._summary
        edge = None if about is None else (about.first_ts_ns if index == 0 else about.last_ts_ns)
        return super()._edge(index) if edge is None else edge

    def _is_far(self) -> bool:
        return self.folder is not None and not getattr(self.folder, "is_local", False)


class VideoSignal(StoredSignal):
    """A camera: a video and its frame index; frames are decoded on demand."""

    def __init__(
        self, video_path: str | os.PathLike[str], frames_path: str | os.PathLike[str], **known: Any
    ) -> None:
        super().__init__(video_path, frames_path, **known)
        self.frames_path = os.fspath(frames_path) if self.folder is not None else os.path.abspath(frames_path)
        self._index: FrameIndex | None = None
        self._key: int | None = None

    @cached_property
    def meta(self) -> SignalMeta:
        """Shape and element type of one frame."""
        about = self._summary.description if self._summary is not None else self.frame_index().description
        if not about.shape:
            with self._decoder() as reader:
                about = Description("image", "u8", reader.shape)
        return signal_meta(about, self.name)

    def __len__(self) -> int:
        return self._summary.count if self._summary is not None else len(self._clock())

    @property
    def loaded_bytes(self) -> int:
        """How much of the frame index is in memory."""
        if self._index is None:
            return 0
        columns = (self._index.ts_ns, self._index.offset, self._index.size, self._index.crc32c)
        return sum(column.nbytes for column in columns if column is not None)

    @property
    def suffix(self) -> str:
        """The end of the name of the video file."""
        return os.path.splitext(self.path)[1]

    def check(self) -> None:
        """Compare index and video: how many frames there are, and the checksum of each; raises what is wrong."""
        with self._decoder() as reader:
            reader.check()

    def frame_index(self) -> FrameIndex:
        """The index of the video."""
        if self._index is None:
            if self.folder is None and not os.path.exists(self.path):
                check_not_unfinished(self.path)
            self._index = self._read_index(self._expected)
            if self._summary is not None and len(self._index.shown_ts_ns) != self._summary.count:
                raise CorruptLayoutError("the frame index does not match the episode", path=self.frames_path)
        return self._index

    @cached_property
    def located_index(self) -> FrameIndex:
        """The index with the place of every frame, also of another writer's video."""
        index = self.frame_index()
        if index.stream is not None:
            return index
        with contextlib.closing(self.video_bytes()) as reader:
            return locate_frames(index, reader)

    def count_frames(self) -> tuple[int, int]:
        """The number of rows of the index and of frames in the video."""
        with contextlib.closing(self.video_bytes()) as reader:
            return len(self._read_index(None).ts_ns), len(list_packets(open_buffered(reader), reader.name)[1])

    def frame_numbers(self, records: Int64s) -> Int64s:
        """Which frames of the video these records are: the same numbers, unless some frames are hidden."""
        shown = self.frame_index().shown
        return records if shown is None else np.flatnonzero(shown)[records]

    def encoded_group(
        self, number: int, *, only_needed: bool = False
    ) -> tuple[Stream, list[int], list[bytes]]:
        """Decoder parameters, and the packets of the group that holds a frame, each with the frame it shows."""
        with self._decoder() as reader:
            return reader.stream, *reader.group(number, only_needed=only_needed)

    def video_bytes(self) -> RangeReader:
        """The bytes of the video."""
        try:
            return self._bytes()
        except FileNotFoundError:
            raise CorruptLayoutError("the video file is missing", path=self.path) from None

    # A subclass stores video and index elsewhere.

    def _bytes(self) -> RangeReader:
        return open_bytes(self.path, self.folder)

    def _read_index(self, expected: FileSum | None) -> FrameIndex:
        return read_frame_index(open_bytes(self.frames_path, self.folder), expected)

    # Reading.

    def _clock(self) -> Int64s:
        return read_only(self.frame_index().shown_ts_ns)

    def _values_at(self, indices: Int64s) -> NDArray[Any]:
        if not len(indices):
            return np.empty((0, *self.meta.shape), self.meta.dtype)
        with self._decoder() as reader:
            return read_only(reader.frames(self.frame_numbers(indices)))

    def read_images(self, requests: Sequence[ImageRequest], timings: MutableMapping[str, float]) -> None:
        """Write images of records, each group of pictures decoded once for all requests."""
        places = [(request, row) for request in requests for row in range(len(request.records))]

        pixels_s = 0.0

        def use(place: int, picture: Picture) -> None:
            nonlocal pixels_s
            request, row = places[place]
            began = time.perf_counter()
            if not isinstance(request.out, list):
                picture.write(request.out[row], request.view)
            elif request.planes is not None:
                request.out[row] = keep_picture(picture, request.planes[row])
            pixels_s += time.perf_counter() - began

        began = time.perf_counter()
        with self._decoder() as reader:
            numbers = np.concatenate([self.frame_numbers(request.records) for request in requests])
            reader.visit(numbers, use)
        timings["scale"] += pixels_s
        timings["decode"] += time.perf_counter() - began - pixels_s

    def _bring(self, indices: Int64s) -> None:
        if self._is_far() and len(indices):
            with self._decoder() as reader:
                reader.bring(self.frame_numbers(np.unique(indices)))

    def _decoder(self) -> AbstractContextManager[FrameReader]:
        """The decoder of this camera, one of those the process keeps open."""
        if self._key is None:
            self._key = CAMERAS.new_key()
            weakref.finalize(self, CAMERAS.gone, self._key).atexit = False
        return CAMERAS.use(self._key, self._open)

    def _open(self) -> FrameReader:
        index = self.located_index
        assert index.stream is not None
        assert index.shape is not None
        reader = self.video_bytes()
        if reader.size < (index.video_bytes or 0):
            raise TruncatedError(f"{reader.size} bytes of {index.video_bytes} are left", path=self.path)
        return FrameReader(reader, plan_of(index), index.stream, index.shape)


class StillsSignal(Reopens, ClockedSignal):
    """A camera whose frames are encoded one by one (JPEG, PNG), and read on demand."""

    def __init__(
        self,
        name: str,
        read: Callable[[int, int], Sequence[bytes]],
        count: int,
        times: Callable[[], Int64s],
        place: str,
        *,
        role: Role = "observation",
        clock: str | None = None,
        has_axis: bool = False,
    ) -> None:
        """`read` gives pictures [start, stop); `has_axis`: frames of a single plane have an axis for it, HxWx1."""
        self.name, self.place = name, place
        self._read, self._count, self._times, self._has_axis = read, count, times, has_axis
        self._role: Role = role
        self._clock_name = clock

    def __len__(self) -> int:
        return self._count

    def _clock(self) -> Int64s:
        return self._times()

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures of these records; neighbouring ones by one read."""
        low, high = min(rows), max(rows) + 1
        if high - low <= 2 * len(rows):
            run = self._read(low, high)
            return [run[row - low] for row in rows]
        return [self._read(row, row + 1)[0] for row in rows]

    @cached_property
    def still(self) -> Still:
        """The kind of the pictures, by the head of the first one."""
        still = still_of(self.pictures(range(1))[0], f"{self.place} ({self.name!r}, picture 0)")
        is_plane = self._has_axis and not still.shape.is_colour
        return still._replace(shape=still.shape._replace(channels=1)) if is_plane else still

    @property
    def meta(self) -> SignalMeta:
        """Shape and element type of one frame."""
        shape = self.still.shape
        dtype = dtype_of(np.dtype(shape.dtype)).dtype
        return SignalMeta(dtype, shape.shape, "image", role=self._role, clock=self._clock_name)

    def _values_at(self, indices: Int64s) -> NDArray[Any]:
        return read_only(self._decode(indices.tolist()))

    def read_images(self, requests: Sequence[ImageRequest], timings: MutableMapping[str, float]) -> None:
        """Write images of records."""
        began = time.perf_counter()
        for request in requests:
            rows = request.records.tolist()
            if isinstance(request.out, list):
                decoder, pictures = PictureDecoder(self.still.codec, self.still.shape), self.pictures(rows)
                for row, data in zip(rows, pictures, strict=True):
                    check_same(data, self.still, f"{self.place} ({self.name!r}) (picture {row})")
                request.out[:] = [EncodedPicture(decoder, data) for data in pictures]
            else:
                request.out[:] = self._decode(rows, request.view)
        timings["decode"] += time.perf_counter() - began

    def _decode(self, rows: Sequence[int], view: ImageView | None = None) -> NDArray[Any]:
        return decode_stills(self.pictures(rows), self.still, f"{self.place} ({self.name!r})", rows, view)


class SourceVideo(Reopens):
    """A video file whose frames several episodes share; its packets are listed once, when first needed."""

    def __init__(self, open_file: Callable[[], RangeReader], path: str) -> None:
        """`open_file` opens a new reader of the bytes; it must be possible to pickle it."""
        self.open = open_file
        self.path = path

    @cached_property
    def _listed(self) -> tuple[FrameIndex, Fraction]:
        with contextlib.closing(self.open()) as reader, naming(self.path):
            return list_frames(reader)

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
