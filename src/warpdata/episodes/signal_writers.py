"""Writers of single signals: the journal and the lanes of an episode, for files of one's own choosing."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.bytekit.commit import map_os_errors
from warpdata.bytekit.forks import tell_in_child
from warpdata.episodes.camera import CameraLane
from warpdata.episodes.interrupts import finish_despite_interrupt, interrupts_wait
from warpdata.episodes.journals import remove_folder
from warpdata.episodes.lanes import EventLane, NumberLane, write_empty
from warpdata.episodes.recorder import Durability
from warpdata.episodes.single import facts_of, work_folder
from warpdata.episodes.values import Hints, as_numbers
from warpdata.episodes.workbench import Lane, Workbench
from warpdata.errors import SchemaMismatchError, WriterClosedError
from warpdata.formats.episodedir.frame_index import write_empty_index
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, choose_codec, suffix_for
from warpdata.timeline.writing import SignalWriter

if TYPE_CHECKING:
    from types import TracebackType

_BROKEN = "broken: closing it failed; `warp salvage` finishes it"


class _JournaledWriter(SignalWriter):
    """One lane with its own journal, made by the first record and gone when the files are done."""

    def __init__(self, path: str | os.PathLike[str], hints: Hints, durability: str) -> None:
        self.path = Path(os.path.abspath(path))
        self._hints = hints
        self._durability = Durability.parse(durability)
        self._options = VideoOptions()
        self._lock = threading.Lock()
        self._bench: Workbench | None = None
        self._lane: Lane | None = None
        self._closed: str | None = None
        tell_in_child(self)

    def in_child(self) -> None:
        """In a forked child: the recording goes on in the process that began it."""
        self._closed, self._lane, self._lock = "of another process", None, threading.Lock()

    def append(self, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` at `ts_ns`; when this returns, the record survives a crash."""
        lane = self._lane
        if lane is None:
            lane = self._open(data, ts_ns)
        lane.append(data, ts_ns)

    def close(self) -> None:
        """Finish the files under their names; calling it again does nothing. Ctrl-C waits until it is done."""
        finish_despite_interrupt(self._close, lambda: self._closed is not None)

    def _close(self) -> None:
        with self._lock:
            if self._closed == "closed":
                return
            self._check_open()
            self._closed = _BROKEN
            if self._bench is None or self._lane is None or not self._lane.count:
                self._drop_bench()
                self._write_nothing()
            else:
                lane, self._lane = self._lane, None
                self._finish(self._bench, lane)
            self._closed = "closed"

    def abort(self) -> None:
        """Remove what was written; every later call raises WriterClosedError."""
        with self._lock:
            self._check_open()
            self._closed = "aborted"
            self._drop_bench()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed is None:
            self.close()

    @abstractmethod
    def _check_first(self, data: Any) -> None:
        """Raise unless this writer can store values like this one."""

    @abstractmethod
    def _commit(self, lane: Lane) -> None:
        """Give the finished files their names."""

    @abstractmethod
    def _write_nothing(self) -> None:
        """Finish without a single record."""

    @property
    def _frames_file(self) -> Path | None:
        return None

    def _open(self, data: Any, ts_ns: Any) -> Lane:
        with interrupts_wait(), self._lock:
            self._check_open()
            if self._lane is None:
                self._check_first(data)
                if self._bench is None:
                    self._bench = self._new_bench()
                self._lane = self._bench.lane(self.path.stem, data, ts_ns, self._hints, self._options)
            return self._lane

    def _new_bench(self) -> Workbench:
        with map_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        facts = facts_of(self.path, self._frames_file)
        return Workbench(work_folder(self.path), facts, self._durability)

    def _finish(self, bench: Workbench, lane: Lane) -> None:
        lanes = {self.path.stem: lane}
        try:
            bench.settle(lanes)
            self._commit(lane)
        except BaseException:
            bench.let_go(lanes)
            raise
        bench.remove()

    def _drop_bench(self) -> None:
        if self._bench is not None:
            self._bench.let_go({} if self._lane is None else {self.path.stem: self._lane})
            remove_folder(self._bench.folder)
        self._bench = self._lane = None

    def _check_open(self) -> None:
        if self._closed is not None:
            raise WriterClosedError(f"the writer is {self._closed}", path=self.path)


class SimpleSignalWriter(_JournaledWriter):
    """Writes scalars, vectors, tensors, text or bytes to one parquet file, which appears at close."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        units: str | None = None,
        names: Sequence[str] | None = None,
        durability: str = "100ms",
    ) -> None:
        # Values that would be images in an episode are tensors here: the file is a table.
        super().__init__(path, Hints.of(None, units, names), durability)

    def _check_first(self, data: Any) -> None:
        if isinstance(data, str | bytes | bytearray | memoryview):
            return
        array = as_numbers(data)
        if array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8:
            raise SchemaMismatchError("images are written by VideoSignalWriter", path=self.path)
        if array.ndim == 2:
            self._hints = Hints("tensor", self._hints.units, self._hints.names)

    def _commit(self, lane: Lane) -> None:
        assert isinstance(lane, NumberLane | EventLane)
        lane.spool.commit(self.path)

    def _write_nothing(self) -> None:
        with map_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        write_empty(self.path)


class VideoSignalWriter(_JournaledWriter):
    """Encodes images into a video file and its frame index; a thread encodes, a full queue waits."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames_path: str | os.PathLike[str],
        codec: str | None = None,
        gop_size: int = 10,
        fps: float = 30,
        *,
        quality: int | None = None,
        preset: str | None = None,
        durability: str = "100ms",
    ) -> None:
        super().__init__(path, Hints("image"), durability)
        self.frames_path = Path(os.path.abspath(frames_path))
        self._options = VideoOptions(codec, gop_size, fps, quality, preset)

    @property
    def _frames_file(self) -> Path | None:
        return self.frames_path

    def _check_first(self, data: Any) -> None:
        if isinstance(data, str | bytes | bytearray | memoryview):
            raise TypeError(f"an image is an array, not a {type(data).__name__}")
        shape = FrameShape.of(as_numbers(data))
        suffix = suffix_for(choose_codec(shape, self._options))
        if suffix != self.path.suffix:
            raise ValueError(f"images like this are stored in a {suffix} file, not {self.path.name!r}")

    def _commit(self, lane: Lane) -> None:
        assert isinstance(lane, CameraLane)
        with map_os_errors(self.frames_path):
            self.frames_path.parent.mkdir(parents=True, exist_ok=True)
        lane.finish(self.path, self.frames_path)

    def _write_nothing(self) -> None:
        """Without a frame there is no size and so no video: only an index of no frames."""
        with map_os_errors(self.frames_path):
            self.frames_path.parent.mkdir(parents=True, exist_ok=True)
        write_empty_index(str(self.frames_path))
