"""Record an episode into a directory: journaled at once, its files written in the background."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.commit import fsync_folder, map_os_errors
from warpdata.bytekit.forks import tell_in_child
from warpdata.episodes.camera import CameraLane
from warpdata.episodes.interrupts import finish_despite_interrupt, interrupts_wait
from warpdata.episodes.provenance import first_meta
from warpdata.episodes.recorder import Durability
from warpdata.episodes.values import Hints
from warpdata.episodes.workbench import Lane, Workbench
from warpdata.errors import ConflictError, RecordingError, WriterClosedError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FileSum, plain_static, write_meta, write_static
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.formats.episodedir.names import check_name, signal_file
from warpdata.timeline.writing import EpisodeWriter

if TYPE_CHECKING:
    from types import TracebackType

RECORDING_SUFFIX = ".recording"
"""The directory in which a recording into one file is made: beside it, until it is whole."""

_WRITER = "warpdata.episodes.disk_writer.DiskEpisodeWriter"


class DiskEpisodeWriter(EpisodeWriter):
    """Writes one episode into a new directory; whatever `append` acknowledged survives a crash."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        video: VideoOptions | None = None,
        durability: str = "100ms",
        created_ts_ns: int | None = None,
        uid: str | None = None,
        meta: Mapping[str, Any] | None = None,
        on_close: Callable[[DiskEpisodeWriter], None] | None = None,
    ) -> None:
        self._durability = Durability.parse(durability)
        self._video = video or VideoOptions()
        self._on_close = on_close
        self.path = Path(os.path.abspath(directory))
        self._meta = {**first_meta(_WRITER, created_ts_ns, uid), **(meta or {})}
        self._lanes: dict[str, Lane] = {}
        self._static: dict[str, Any] = {}
        self._declared: dict[str, tuple[Hints, VideoOptions]] = {}
        self._lock = threading.RLock()
        self._closed: str | None = None
        self._create()
        tell_in_child(self)

    def in_child(self) -> None:
        """In a forked child: the recording goes on in the process that began it."""
        self._closed, self._lanes, self._lock = "recorded by another process", {}, threading.RLock()

    def _create(self) -> None:
        with map_os_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir()
            except FileExistsError:
                raise ConflictError("the directory exists already", path=self.path) from None
            # An episode is unfinished for as long as this folder is there, so it comes before anything else.
            work = self.path / layout.RECORDING_FOLDER
            try:
                self._bench = Workbench(work, {"episode": {"meta": self._meta}}, self._durability)
                write_meta(self.path, self._meta)
                fsync_folder(self.path.parent)
            except BaseException:
                self._discard()
                raise

    @property
    def uid(self) -> str:
        """The identity of the episode."""
        return str(self._meta["uid"])

    def append(self, signal_name: str, data: Any, ts_ns: int) -> None:
        """Add a copy of `data` to a signal at `ts_ns`; when this returns, the record survives a crash."""
        lane = self._lanes.get(signal_name)
        if lane is None:
            lane = self._open_lane(signal_name, data, ts_ns)
        lane.append(data, ts_ns)

    def set_static(self, name: str, data: Any) -> None:
        """Set an item that does not change in time, once; a signal of that name is an error."""
        with self._lock:
            self._check_open()
            check_name(name)
            if name in self._static:
                raise RecordingError(f"static item {name!r} is set already")
            self.mark(name, data)

    def mark(self, name: str, data: Any) -> None:
        """Set an item that does not change in time; the last word counts."""
        with self._lock:
            self._check_open()
            check_name(name)
            if name in self._lanes:
                raise RecordingError(f"{name!r} is a signal of this episode")
            plain = plain_static(name, data)
            self._bench.note({"static": {name: plain}})
            self._static[name] = plain

    def declare(
        self,
        signal_name: str,
        *,
        kind: str | None = None,
        units: str | None = None,
        names: Sequence[str] | None = None,
        dtype: Any = None,
        role: str | None = None,
        of: str | None = None,
        model: str | None = None,
        clock: str | None = None,
        video: VideoOptions | None = None,
    ) -> None:
        """Say what a signal is before its first record: its type, its role, units, axis names, how it is encoded.

        `dtype` is numpy's or one of the format's short names; values are converted to it. `of` and `model` belong to
        predictions, uncertainties and residuals. Signals of one `clock` are recorded at the same times.
        """
        with self._lock:
            self._check_open()
            check_name(signal_name)
            if signal_name in self._lanes:
                raise RecordingError(f"signal {signal_name!r} has records already")
            if signal_name in self._static:
                raise RecordingError(f"{signal_name!r} is a static item of this episode")
            hints = Hints.of_caller(
                kind=kind, units=units, names=names, dtype=dtype, role=role, of=of, model=model, clock=clock
            )
            self._declared[signal_name] = (hints, video or self._video)

    def counts(self) -> dict[str, int]:
        """How many records each signal has so far."""
        return {name: lane.count for name, lane in dict(self._lanes).items()}

    def close(self) -> None:
        """Finalise the episode; calling it again does nothing. Ctrl-C waits until it is done."""
        self._close(None)

    def finish(self, interrupted: str | None) -> None:
        """Finalise, saying why it ended early if it did."""
        self._close(interrupted)

    def abort(self) -> None:
        """Remove the whole episode; every later call raises WriterClosedError."""
        with self._lock:
            self._check_open()
            self._closed = "aborted"
            self._discard()

    def __repr__(self) -> str:
        return f"<DiskEpisodeWriter {self.path}: {self._closed or 'recording'}>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed is None:
            self._close(None if kind is None else f"{kind.__name__}: {error}")

    def _open_lane(self, name: str, data: Any, ts_ns: Any) -> Lane:
        with interrupts_wait(), self._lock:
            self._check_open()
            check_name(name)
            if name in self._static:
                raise RecordingError(f"{name!r} is a static item of this episode")
            if name in self._lanes:
                return self._lanes[name]
            hints, options = self._declared.get(name, (Hints(), self._video))
            lane = self._lanes[name] = self._bench.lane(name, data, ts_ns, hints, options)
            return lane

    def _check_open(self) -> None:
        if self._closed is not None:
            raise WriterClosedError(f"the episode is {self._closed}", path=self.path)

    def _close(self, interrupted: str | None) -> None:
        finish_despite_interrupt(lambda: self._finish(interrupted), lambda: self._closed is not None)

    def _finish(self, interrupted: str | None) -> None:
        with self._lock:
            if self._closed == "closed":
                return
            self._check_open()
            lanes, self._lanes = self._lanes, {}
            self._closed = "being closed"
            try:
                signals = self._finish_lanes(lanes)
                finish_documents(self.path, self._meta, self._static, signals, interrupted)
            except BaseException:
                self._lanes = lanes
                self._closed = "broken: closing it failed; `warp salvage` finishes it"
                self._let_go()
                raise
            self._bench.remove()
            self._closed = "closed"
        if self._on_close is not None:
            self._on_close(self)

    def _finish_lanes(self, lanes: Mapping[str, Lane]) -> dict[str, Any]:
        self._bench.settle(lanes)
        found: dict[str, Any] = {}
        for name, lane in lanes.items():
            if not lane.count:  # its first record never reached the journal: there is no such signal
                lane.cancel()
            elif isinstance(lane, CameraLane):
                video = signal_file(self.path, name, lane.video.suffix)
                found[name] = lane.finish(video, signal_file(self.path, name, layout.FRAMES_SUFFIX))
            else:
                found[name] = lane.spool.commit(signal_file(self.path, name))
        return found

    def _discard(self) -> None:
        try:
            if hasattr(self, "_bench"):
                self._let_go()
        finally:
            shutil.rmtree(self.path, ignore_errors=True)

    def _let_go(self) -> None:
        """Stop all threads and close all files, leaving them as they are."""
        lanes, self._lanes = self._lanes, {}
        self._bench.let_go(lanes)


def finish_documents(
    folder: Path,
    meta: Mapping[str, Any],
    static: Mapping[str, Any],
    signals: Mapping[str, Any],
    interrupted: str | None,
    *,
    durable: bool = True,
    **more: Any,
) -> None:
    """Write static.json and complete meta.json: after this the episode is whole."""
    total = FileSum.of(write_static(folder, static, durable=durable))
    complete = {
        **meta,
        "signals": dict(signals),
        "static_file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
        **more,
    }
    if interrupted is not None:
        complete["interrupted"] = interrupted
    write_meta(folder, complete, durable=durable, indent=1 if durable else None)
