"""Writers of single signals: the recording of an episode, for files of one's own choosing."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.episodes.record.journals import remove_left
from warpdata.episodes.record.recording import Recording, RecordingWriter, SignalRecorder
from warpdata.episodes.record.stream_writer import check_no_file
from warpdata.episodes.record.tables import write_empty
from warpdata.episodes.record.threads import Durability, interrupts_wait
from warpdata.episodes.record.values import Hints, as_numbers
from warpdata.episodes.salvage.work_folder import facts_of, work_folder
from warpdata.errors import SchemaMismatchError
from warpdata.formats.episodedir.frame_index import write_empty_index
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, choose_codec, suffix_for
from warpdata.timeline.writing import SignalWriter

if TYPE_CHECKING:
    from types import TracebackType


class _JournaledWriter(RecordingWriter, SignalWriter):
    """One signal with a recording of its own, made by the first record and gone when the files are done."""

    def __init__(
        self, path: str | os.PathLike[str], hints: Hints, durability: str, *, overwrite: bool
    ) -> None:
        super().__init__()
        self.path: Path = Path(os.path.abspath(path))
        self._overwrite = overwrite
        self._hints = hints
        self._durability = Durability.parse(durability)
        self._options = VideoOptions()
        self._recording: Recording | None = None
        self._signal: SignalRecorder | None = None

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._signal = None

    def append(self, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` at `ts_ns`; when this returns, the record survives a crash."""
        signal = self._signal
        if signal is None:
            signal = self._open(data, ts_ns)
        signal.append(data, ts_ns)

    def close(self) -> None:
        """Finish the files under their names; calling it again does nothing. Ctrl-C waits until it is done."""
        self._close_once(self._finish)

    def _finish(self) -> None:
        if self._recording is None or self._signal is None or not self._signal.count:
            self._drop_recording()
            self._check_targets()
            self._write_nothing()
            return
        self._signal = None
        try:
            self._check_targets()
            self._recording.finish(self._targets, self.path.parent, lambda _: {})
        except BaseException:
            self._recording.let_go()
            raise

    def abort(self) -> None:
        """Remove what was written; every later call raises WriterClosedError."""
        with self._lock:
            self._check_open()
            self._closed = "aborted"
            self._drop_recording()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed is None:
            self.close()

    @abstractmethod
    def _check_first(self, data: Any) -> None:
        """Raise unless this writer can store values like this one."""

    @abstractmethod
    def _write_nothing(self) -> None:
        """Finish without a single record."""

    @property
    def _frames_file(self) -> Path | None:
        return None

    def _targets(self, _name: str, _suffix: str) -> tuple[Path, Path]:
        return self.path, self._frames_file or self.path

    def _check_targets(self) -> None:
        if not self._overwrite:
            for path in filter(None, (self.path, self._frames_file)):
                check_no_file(path)

    def _open(self, data: Any, ts_ns: Any) -> SignalRecorder:
        with interrupts_wait(), self._lock:
            self._check_open()
            if self._signal is None:
                self._check_first(data)
                if self._recording is None:
                    with map_os_errors(self.path):
                        self.path.parent.mkdir(parents=True, exist_ok=True)
                    remove_left(work_folder(self.path))
                    facts = facts_of(self.path, self._frames_file)
                    self._recording = Recording(work_folder(self.path), facts, self._durability)
                name = self.path.stem
                self._signal = self._recording.add(name, data, ts_ns, self._hints, self._options)
            return self._signal

    def _drop_recording(self) -> None:
        if self._recording is not None:
            self._recording.discard()
        self._recording = self._signal = None


class SimpleSignalWriter(_JournaledWriter):
    """Writes scalars, vectors, tensors, text or bytes to one parquet file, which appears at close.

    The writer of the document: a `Recording` of one signal, without the directory of an episode around it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        units: str | None = None,
        names: Sequence[str] | None = None,
        durability: str = "100ms",
        overwrite: bool = False,
    ) -> None:
        # Values that would be images in an episode are tensors here: the file is a table.
        super().__init__(path, Hints.of_caller(units=units, names=names), durability, overwrite=overwrite)
        self._check_targets()

    def _check_first(self, data: Any) -> None:
        if isinstance(data, str | bytes | bytearray | memoryview):
            return
        array = as_numbers(data)
        if array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8:
            raise SchemaMismatchError("images are written by VideoSignalWriter", path=self.path)
        if array.ndim == 2:
            self._hints = replace(self._hints, kind="tensor")

    def _write_nothing(self) -> None:
        with map_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        write_empty(self.path)


class VideoSignalWriter(_JournaledWriter):
    """Encodes images into a video file and its frame index, which appear at close.

    The writer of the document: a `Recording` of one camera. A thread encodes; where it falls behind, `append` waits.
    """

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
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, Hints("image"), durability, overwrite=overwrite)
        self.frames_path = Path(os.path.abspath(frames_path))
        self._check_targets()
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

    def _write_nothing(self) -> None:
        """Without a frame there is no size and so no video: only an index of no frames."""
        with map_os_errors(self.frames_path):
            self.frames_path.parent.mkdir(parents=True, exist_ok=True)
        write_empty_index(str(self.frames_path))
