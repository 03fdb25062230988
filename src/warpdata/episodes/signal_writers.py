"""Writers of single signal files; an episode writer does the same for many, with a journal behind it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.commit import map_os_errors
from warpdata.episodes.background import Background
from warpdata.episodes.camera import QUEUE_BYTES, VideoFile
from warpdata.episodes.lanes import Spool
from warpdata.episodes.values import (
    Hints,
    as_event,
    as_numbers,
    as_timestamp,
    describe,
    mismatch,
    not_increasing,
)
from warpdata.errors import SchemaMismatchError, WriterClosedError
from warpdata.formats.episodedir.images import FrameShape, VideoOptions
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.times import INT64_MIN
from warpdata.timeline.writing import SignalWriter

_BLOCK_ROWS = 4096


class SimpleSignalWriter(SignalWriter):
    """Writes scalars, vectors, tensors, text or bytes to one parquet file, which appears at close."""

    def __init__(
        self, path: str | os.PathLike[str], *, units: str | None = None, names: tuple[str, ...] | None = None
    ) -> None:
        self.path = Path(path)
        self._hints = Hints(None, units, names)
        self._part = self.path.with_name(f".{self.path.name}.part")
        self._spool: Spool | None = None
        self._last = INT64_MIN - 1
        self._stamps: list[int] = []
        self._values: list[Any] = []
        self._closed: str | None = None

    def append(self, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` at `ts_ns`, which must be later than the last one."""
        if self._closed is not None:
            raise WriterClosedError(f"the writer is {self._closed}", path=self.path)
        stamp = as_timestamp(ts_ns)
        if stamp <= self._last:
            raise not_increasing(self.path.stem, stamp, self._last)
        value = self._checked(data)
        self._stamps.append(stamp)
        self._values.append(value)
        self._last = stamp
        if len(self._stamps) >= _BLOCK_ROWS:
            self._flush()

    def close(self) -> None:
        """Write the footer and give the file its name; calling it again does nothing."""
        if self._closed == "aborted":
            raise WriterClosedError("the writer is aborted", path=self.path)
        if self._closed is None:
            self._closed = "closed"
            if self._spool is None:
                self._spool = Spool(self._part, Description("scalar", "f64", ()))
            self._flush()
            self._spool.commit(self.path)

    def abort(self) -> None:
        """Remove what was written; every later call raises WriterClosedError."""
        if self._closed == "closed":
            raise WriterClosedError("the file is finished already", path=self.path)
        self._closed = "aborted"
        if self._spool is not None:
            self._spool.discard()
        self._part.unlink(missing_ok=True)

    def _checked(self, data: Any) -> Any:
        if self._spool is None:
            description = describe(data, self._hints)
            if description.kind == "image":
                raise SchemaMismatchError("images are written by VideoSignalWriter", path=self.path)
            self._spool = Spool(self._part, description)
        about = self._spool.description
        if about.kind in ("text", "bytes"):
            packed = as_event(data, about.kind, self.path.stem)
            return data if about.kind == "text" else packed
        if isinstance(data, str | bytes | bytearray | memoryview):
            raise mismatch(self.path.stem, about.kind, type(data).__name__)
        array = as_numbers(data)
        found = describe(array, Hints(about.kind))
        if (found.dtype, found.shape) != (about.dtype, about.shape):
            got = f"{found.dtype}{list(found.shape)}"
            raise mismatch(self.path.stem, f"{about.dtype}{list(about.shape)}", got)
        return np.array(array)

    def _flush(self) -> None:
        if self._stamps:
            assert self._spool is not None
            is_event = self._spool.description.kind in ("text", "bytes")
            values = np.empty(len(self._values), object) if is_event else np.stack(self._values)
            if is_event:
                values[:] = self._values
            self._spool.write(np.array(self._stamps, np.int64), values)
            self._stamps, self._values = [], []


class VideoSignalWriter(SignalWriter):
    """Encodes images into a video file and its frame index; a thread encodes, a full queue waits."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames_path: str | os.PathLike[str],
        codec: str | None = None,
        gop_size: int = 10,
        fps: int = 30,
        *,
        quality: int | None = None,
        preset: str | None = None,
    ) -> None:
        self.path, self.frames_path = Path(path), Path(frames_path)
        self._options = VideoOptions(codec, gop_size, fps, quality, preset)
        self._part = self.path.with_name(f".{self.path.name}.part")
        self._video: VideoFile | None = None
        self._background: Background | None = None
        self._shape: FrameShape | None = None
        self._last = INT64_MIN - 1
        self._closed: str | None = None

    def append(self, data: Any, ts_ns: int) -> None:
        """Add a copy of an image at `ts_ns`, which must be later than the last one."""
        if self._closed is not None:
            raise WriterClosedError(f"the writer is {self._closed}", path=self.path)
        stamp = as_timestamp(ts_ns)
        if stamp <= self._last:
            raise not_increasing(self.path.stem, stamp, self._last)
        frame = np.array(as_numbers(data), order="C")
        shape = FrameShape.of(frame)
        if self._shape is None:
            self._open(shape)
        if shape != self._shape:
            raise mismatch(self.path.stem, str(self._shape), str(shape))
        video, background = self._video, self._background
        assert video is not None
        assert background is not None
        background.submit(lambda: _discard_result(video.encode(frame, stamp)))
        self._last = stamp

    def close(self) -> None:
        """Encode the tail, finish both files; calling it again does nothing."""
        if self._closed == "aborted":
            raise WriterClosedError("the writer is aborted", path=self.path)
        if self._closed is None:
            self._closed = "closed"
            if self._video is not None and self._background is not None:
                self._background.finish()
                self._video.finish(self.path, self.frames_path)

    def abort(self) -> None:
        """Remove what was written; every later call raises WriterClosedError."""
        if self._closed == "closed":
            raise WriterClosedError("the files are finished already", path=self.path)
        self._closed = "aborted"
        if self._video is not None and self._background is not None:
            self._background.cancel()
            self._video.close()
            for leftover in (self._video.path, self._video.marks_path):
                leftover.unlink(missing_ok=True)

    def _open(self, shape: FrameShape) -> None:
        with map_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._video = VideoFile(self._part, shape, self._options)
        if self._video.suffix != self.path.suffix:
            suffix = self._video.suffix
            self._video.close()
            self._video.path.unlink(missing_ok=True)
            self._video.marks_path.unlink(missing_ok=True)
            raise ValueError(f"this codec is stored in a {suffix} file, not {self.path.name!r}")
        self._shape = shape
        self._background = Background(f"warp-encode-{self.path.stem}", max(2, QUEUE_BYTES // shape.nbytes))


def _discard_result(_: bool) -> None:
    """A job gives nothing back."""
