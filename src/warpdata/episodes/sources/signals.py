"""Signals read from an episode directory: parquet files and videos, opened on first use."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, read_only
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader, open_buffered
from warpdata.episodes.sources.open_cameras import CAMERAS, FrameStretches
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import FrameIndex, read_frame_index
from warpdata.formats.episodedir.frame_reader import FrameReader, completed, plan_foreign, plan_of
from warpdata.formats.episodedir.images import Stream
from warpdata.formats.episodedir.signal_file import Description, Summary, read_signal, read_summary
from warpdata.formats.episodedir.video import list_packets
from warpdata.formats.journal.reader import check_not_unfinished
from warpdata.timeline.memory import ClockedSignal
from warpdata.timeline.meta import OBJECT, SignalMeta, as_kind, as_role, guess_role
from warpdata.timeline.signal import MappedRows, Record


def signal_meta(description: Description, name: str) -> SignalMeta:
    """The metadata of a signal by its stored description; without a stated role, it is guessed from the name."""
    is_object = description.kind in ("text", "bytes")
    dtype = OBJECT if is_object else dtype_named(description.dtype).dtype
    stated = description
    if stated.role is None:
        guess = guess_role(name, stated.kind)
        role, of, model = guess.role, guess.of, guess.model
    else:
        role, of, model = as_role(stated.role), stated.of, stated.model
    return SignalMeta(
        dtype, stated.shape, as_kind(stated.kind), stated.units, stated.names, role, of, model, stated.clock
    )


class SimpleSignal(ClockedSignal):
    """A scalar, vector, tensor, text or bytes signal in a parquet file; values are read on first use."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        summary: Summary | None = None,
        expected: FileSum | None = None,
        folder: FolderReader | None = None,
        name: str | None = None,
    ) -> None:
        self.path = _place(path, folder)
        self.name = _name(path) if name is None else name
        self.folder = folder
        self._summary = summary
        self._expected = expected
        self._data: tuple[NDArray[np.int64], NDArray[Any]] | None = None
        self._meta: SignalMeta | None = None

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind, from the footer of the file."""
        if self._meta is None:
            self._meta = signal_meta(self._about().description, self.name)
        return self._meta

    def __len__(self) -> int:
        return self._about().count

    def description(self) -> Description:
        """The description of the signal in the file."""
        return self._about().description

    def file_bytes(self) -> RangeReader:
        """The bytes of the file."""
        return open_bytes(self.path, self.folder)

    @property
    def loaded_bytes(self) -> int:
        """How much of the signal is in memory."""
        return 0 if self._data is None else self._data[0].nbytes + self._data[1].nbytes

    def _about(self) -> Summary:
        if self._summary is None:
            with contextlib.closing(open_bytes(self.path, self.folder)) as reader:
                self._summary = read_summary(reader)
        return self._summary

    def _loaded(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        data = self._data
        if data is None:
            about = self._about()
            stamps, values = read_signal(open_bytes(self.path, self.folder), self._expected)
            if len(stamps) != about.count or (len(stamps) and int(stamps[-1]) != about.last_ts_ns):
                raise CorruptLayoutError(
                    "the records do not match the metadata of the episode", path=self.path
                )
            data = self._data = (read_only(stamps), read_only(values))
        return data

    def _clock(self) -> NDArray[np.int64]:
        return (self._data or self._loaded())[0]

    def _edge(self, index: int) -> int:
        about = self._about()
        edge = about.first_ts_ns if index == 0 else about.last_ts_ns
        return super()._edge(index) if edge is None else edge

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return read_only((self._data or self._loaded())[1][indices])

    def _values_in(self, rows: range) -> NDArray[Any]:
        return (self._data or self._loaded())[1][rows.start : rows.stop : rows.step]

    def _record(self, index: int) -> Record:
        stamps, values = self._data or self._loaded()
        return values[index], int(stamps[index])

    def _in_memory(self) -> MappedRows | None:
        return MappedRows((self._data or self._loaded())[1])

    def _bring(self, indices: NDArray[np.int64]) -> None:  # noqa: ARG002
        if self._is_far():
            self._loaded()

    def _is_far(self) -> bool:
        return self.folder is not None

    def _floor(self, ts_ns: int) -> int:
        data = self._data
        if data is None or not -(1 << 63) <= ts_ns < 1 << 63:
            return super()._floor(ts_ns)
        return int(data[0].searchsorted(ts_ns, "right")) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return (_simple, (self.path, self._summary, self._expected, self.folder, self.name))


class VideoSignal(ClockedSignal):
    """A camera: a video and its frame index; frames are decoded on demand."""

    def __init__(
        self,
        video_path: str | os.PathLike[str],
        frames_path: str | os.PathLike[str],
        *,
        summary: Summary | None = None,
        expected: FileSum | None = None,
        folder: FolderReader | None = None,
        name: str | None = None,
    ) -> None:
        self.path = _place(video_path, folder)
        self.name = _name(video_path) if name is None else name
        self.frames_path = _place(frames_path, folder)
        self.folder = folder
        self._summary = summary
        self._expected = expected
        self._index: FrameIndex | None = None
        self._key: int | None = None
        self._stretches: FrameStretches | None = None
        self._meta: SignalMeta | None = None

    @property
    def meta(self) -> SignalMeta:
        """Shape and element type of one frame."""
        if self._meta is None:
            known = self._summary.description if self._summary is not None else self._loaded().description
            if not known.shape:
                known = Description("image", "u8", self._foreign_shape())
            self._meta = signal_meta(known, self.name)
        return self._meta

    def __len__(self) -> int:
        return self._summary.count if self._summary is not None else len(self._loaded().shown_ts_ns)

    def check(self) -> None:
        """Compare index and video: how many frames there are, and the checksum of each; raises what is wrong."""
        with self._decoder() as reader:
            reader.check()

    @property
    def loaded_bytes(self) -> int:
        """How much of the frame index is in memory."""
        if self._index is None:
            return 0
        columns = (self._index.ts_ns, self._index.offset, self._index.size, self._index.crc32c)
        return sum(each.nbytes for each in columns if each is not None)

    def complete_index(self) -> FrameIndex | None:
        """Of a camera of another writer, the index with everything ours has; None of one of ours."""
        index = self._loaded()
        if index.stream is not None or not len(index.ts_ns):
            return None
        reader = self._bytes()
        try:
            return completed(index, reader)
        finally:
            reader.close()

    def count_frames(self) -> tuple[int, int]:
        """The number of rows of the index and of frames in the video."""
        reader = self._bytes()
        try:
            return len(self._read_index(None).ts_ns), len(list_packets(open_buffered(reader), reader.name)[1])
        finally:
            reader.close()

    def _loaded(self) -> FrameIndex:
        if self._index is None:
            if self.folder is None and not os.path.exists(self.path):
                check_not_unfinished(self.path)
            self._index = self._read_index(self._expected)
            if self._summary is not None and len(self._index.shown_ts_ns) != self._summary.count:
                raise CorruptLayoutError("the frame index does not match the episode", path=self.frames_path)
        return self._index

    def _read_index(self, expected: FileSum | None) -> FrameIndex:
        return read_frame_index(open_bytes(self.frames_path, self.folder), expected)

    def _clock(self) -> NDArray[np.int64]:
        return read_only(self._loaded().shown_ts_ns)

    def _edge(self, index: int) -> int:
        about = self._summary
        edge = None if about is None else (about.first_ts_ns if index == 0 else about.last_ts_ns)
        return super()._edge(index) if edge is None else edge

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return np.empty((0, *self.meta.shape), self.meta.dtype)
        with self._decoder() as reader:
            return read_only(reader.frames(self.frame_numbers(indices)))

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(indices), *self.meta.shape), self.meta.dtype)
        self._kept().copy(self.frame_numbers(indices), out)
        return out

    def _gives_runs(self) -> bool:
        return self._loaded().shown is None

    def _runs_into(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
        self._kept().copy_runs(starts, out, places)

    def _kept(self) -> FrameStretches:
        if self._stretches is None:
            self._stretches = FrameStretches(self._loaded(), self.meta, self._decoder)
        return self._stretches

    def _record(self, index: int) -> Record:
        number = int(self.frame_numbers(np.array([index]))[0])
        with self._decoder() as reader:
            return reader.frame(number), int(self._clock()[index])

    def _bring(self, indices: NDArray[np.int64]) -> None:
        if self._is_far() and len(indices):
            wanted = self._kept().not_kept(self.frame_numbers(np.unique(indices)))
            if len(wanted):
                with self._decoder() as reader:
                    reader.bring(wanted)

    def _is_far(self) -> bool:
        return self.folder is not None

    def frame_numbers(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which frames of the video these records are: the same numbers, unless some frames are hidden."""
        shown = self._loaded().shown
        return records if shown is None else np.flatnonzero(shown)[records]

    def encoded_group(
        self, number: int, *, only_needed: bool = False
    ) -> tuple[Stream, list[int], list[bytes]]:
        """How the video is decoded, and the packets of the group that holds a frame, each with the frame it shows."""
        with self._decoder() as reader:
            return reader.stream, *reader.group(number, only_needed=only_needed)

    def frame_index(self) -> FrameIndex:
        """The index of the video."""
        return self._loaded()

    @property
    def suffix(self) -> str:
        """What the name of the video file ends in."""
        return os.path.splitext(self.path)[1]

    def video_bytes(self) -> RangeReader:
        """The bytes of the video."""
        return self._bytes()

    def index_bytes(self) -> RangeReader:
        """The bytes of the frame index."""
        return open_bytes(self.frames_path, self.folder)

    def _decoder(self) -> contextlib.AbstractContextManager[FrameReader]:
        """The decoder of this camera, one of those the process keeps open."""
        if self._key is None:
            self._key = CAMERAS.new_key()
            weakref.finalize(self, CAMERAS.gone, self._key).atexit = False
        return CAMERAS.use(self._key, self._open)

    def _open(self) -> FrameReader:
        index = self._loaded()
        reader = self._bytes()
        if index.stream is None or index.shape is None:
            plan, stream, shape = plan_foreign(reader)
        else:
            plan, stream, shape = plan_of(index), index.stream, index.shape
            if reader.size < (index.video_bytes or 0):
                raise TruncatedError(f"{reader.size} bytes of {index.video_bytes} are left", path=self.path)
        if len(plan) != len(index.ts_ns):
            raise CorruptLayoutError(
                f"the video has {len(plan)} frames, its index {len(index.ts_ns)}", path=self.path
            )
        return FrameReader(reader, plan, stream, shape)

    def _bytes(self) -> RangeReader:
        try:
            return open_bytes(self.path, self.folder)
        except FileNotFoundError:
            raise CorruptLayoutError("the video file is missing", path=self.path) from None

    def _foreign_shape(self) -> tuple[int, ...]:
        with self._decoder() as reader:
            return reader.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return (_video, (self.path, self.frames_path, self._summary, self._expected, self.folder, self.name))


def _place(path: str | os.PathLike[str], folder: FolderReader | None) -> str:
    """The name of a file in a folder elsewhere, or its absolute path on this machine."""
    return os.fspath(path) if folder is not None else os.path.abspath(path)


def open_bytes(path: str, folder: FolderReader | None) -> RangeReader:
    """The bytes of a file on this machine, or of that name in a folder elsewhere."""
    if folder is not None:
        return folder.open(path)
    try:
        return FileRangeReader(path)
    except FileNotFoundError:
        check_not_unfinished(path)
        raise


_ABOUT = ("summary", "expected", "folder", "name")


def _name(path: str | os.PathLike[str]) -> str:
    """What a signal is called whose file was opened alone."""
    return os.path.basename(os.fspath(path)).partition(".")[0]


def _simple(path: str, *about: Any) -> SimpleSignal:
    return SimpleSignal(path, **dict(zip(_ABOUT, about, strict=True)))


def _video(path: str, frames: str, *about: Any) -> VideoSignal:
    return VideoSignal(path, frames, **dict(zip(_ABOUT, about, strict=True)))
