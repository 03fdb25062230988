"""Record an episode into a directory: journaled at once, its files written in the background."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.io.commit import check_case_clash, fsync_folder, make_folders, map_os_errors, write_file
from warpdata.bytekit.process.locks import make_locked_folder
from warpdata.episodes.provenance import first_meta
from warpdata.episodes.record.clock import RecordingClock
from warpdata.episodes.record.recording import Documents, Recording, RecordingWriter, SignalRecorder, Targets
from warpdata.episodes.record.threads import Durability, interrupts_wait
from warpdata.episodes.record.values import Hints, as_timestamp
from warpdata.errors import ConflictError, RecordingError, WarpError, suggests
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    FileSum,
    check_name,
    meta_bytes,
    plain_static,
    signal_file,
    static_bytes,
)
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.formats.episodedir.video import check_options
from warpdata.timeline.writing import EpisodeWriter

if TYPE_CHECKING:
    from types import TracebackType

RECORDING_SUFFIX = ".recording"
"""The directory in which a recording into one file is made: beside it, until it is whole."""

_WRITER = "warpdata.DiskEpisodeWriter"


class DiskEpisodeWriter(RecordingWriter, EpisodeWriter):
    """Writes one episode into a new directory; every acknowledged record survives a crash.

    The writer of the document, over the same `Recording` as `wd.record`, which adds steps, roles and one-file targets.
    """

    @suggests
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
        wait: bool = True,
        clock: RecordingClock | None = None,
    ) -> None:
        """`wait`: wait until the beginning survives power loss. `clock`: for records that come without a time."""
        super().__init__()
        self._clock = clock
        self._durability = Durability.parse(durability)
        self._video = video or VideoOptions()
        self._on_close = on_close
        self.path: Path = Path(os.path.abspath(directory))
        self._meta = {**first_meta(_WRITER, created_ts_ns, uid), **(meta or {})}
        if clock is not None:
            self._meta["clock"] = clock.facts()
        self._row_signals: set[str] = set()
        """Signals that get their records by rows."""
        self._static: dict[str, Any] = {}
        self._taken: dict[str, str] = {}
        self._declared: dict[str, tuple[Hints, VideoOptions]] = {}
        self._create(wait=wait)
        self._signals = self._recording.signals

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._signals = {}

    def _create(self, *, wait: bool) -> None:
        with map_os_errors(self.path):
            make_folders(self.path.parent)
            try:
                try:
                    lock = make_locked_folder(self.path)
                except FileNotFoundError:  # a recorder that recorded nothing removed the folder around it
                    make_folders(self.path.parent)
                    lock = make_locked_folder(self.path)
            except FileExistsError:
                raise ConflictError("the directory exists already", path=self.path) from None
            # An episode is unfinished for as long as this folder is there, so it comes before anything else.
            work = self.path / layout.RECORDING_FOLDER
            try:
                facts = {"episode": {"meta": self._meta}}
                now = None if self._clock is None else self._clock.now
                self._recording = Recording(work, facts, self._durability, self._begun, lock, now)
                if wait:
                    self._recording.wait_until_begun()
            except BaseException:
                self._discard()
                raise

    def _begun(self) -> None:
        """In the background, once the journal is on the disk."""
        with map_os_errors(self.path):
            write_file(self.path / layout.META_FILE, meta_bytes(self._meta), durable=False)
            fsync_folder(self.path.parent)

    @property
    def uid(self) -> str:
        """The identity of the episode."""
        return str(self._meta["uid"])

    def append(self, signal_name: str, data: Any, ts_ns: int | None = None) -> None:
        """Add a copy of `data` to a signal at `ts_ns`; when this returns, the record survives a crash.

        Without `ts_ns` the clock of the recording is read. Any thread may call it.
        """
        if signal_name in self._row_signals:
            with self._lock:  # between the records of a row nothing else is added to its signals
                self._append(signal_name, data, ts_ns)
                self._recording.end_row(self._signals[signal_name].last_ts_ns)
        else:
            self._append(signal_name, data, ts_ns)

    def _append(self, signal_name: str, data: Any, ts_ns: int | None) -> None:
        signal = self._signals.get(signal_name)
        try:
            if signal is None:
                signal = self._add(signal_name, data, ts_ns)
            signal.append(data, ts_ns)
        except (WarpError, TypeError, ValueError):
            self._dropped(signal_name)
            raise

    def append_row(self, row: Sequence[tuple[str, Any]], ts_ns: int | None = None) -> None:
        """Add a value to each of several signals at one time: all of them, or none where one is refused."""
        with self._lock:
            if ts_ns is None and self._clock is not None:
                ts_ns = self._clock.now()
            ts_ns = as_timestamp(ts_ns)
            checked = []
            try:
                for name, data in row:
                    signal = self._signals.get(name) or self._add(name, data, ts_ns)
                    if name not in self._row_signals:
                        self._recording.in_rows(name)
                        self._row_signals.add(name)
                    checked.append((signal, signal.checked(data, ts_ns)))
            except (WarpError, TypeError, ValueError):
                self._dropped(*(name for name, _ in row))
                raise
            try:
                for signal, value in checked:
                    signal.append(value, ts_ns)
                self._recording.end_row(ts_ns)
            except Exception as error:  # such as a full disk: no row may follow a part of one
                self._recording.fail(error)
                raise

    def _dropped(self, *names: str) -> None:
        """Count values that were refused while the recording goes on."""
        with self._lock:
            if self._closed is None:
                dropped = self._recording.dropped
                for name in names:
                    dropped[name] = dropped.get(name, 0) + 1

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
            if name in self._signals:
                raise RecordingError(f"{name!r} is a signal of this episode")
            plain = plain_static(name, data)
            self._recording.note({"static": {name: plain}})
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
            if signal_name in self._signals:
                raise RecordingError(f"signal {signal_name!r} has records already")
            if signal_name in self._static:
                raise RecordingError(f"{signal_name!r} is a static item of this episode")
            hints = Hints.of_caller(
                kind=kind, units=units, names=names, dtype=dtype, role=role, of=of, model=model, clock=clock
            )
            if kind == "image" or video is not None:
                check_options(video or self._video)
            self._declared[signal_name] = (hints, video or self._video)
            if kind == "image":
                self._recording.expect_camera(signal_name, *self._declared[signal_name])

    def counts(self) -> dict[str, int]:
        """How many records each signal has so far."""
        return self._recording.counts() if self._signals else {}

    def close(self) -> None:
        """Finalise the episode; calling it again does nothing. Ctrl-C waits until it is done."""
        self.finish(None)

    def finish(self, interrupted: str | None, store: Callable[[Path], None] | None = None) -> None:
        """Finalise, saying why it ended early if it did.

        `store` makes one file of the episode, here given as a directory without edits: that is what remains.
        """
        is_closed = self._closed == "closed"
        self._close_once(lambda: self._finish(interrupted, store))
        if self._on_close is not None and not is_closed:
            self._on_close(self)

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
            self.finish(None if kind is None else f"{kind.__name__}: {error}")

    def _add(self, name: str, data: Any, ts_ns: Any) -> SignalRecorder:
        with interrupts_wait(), self._lock:
            self._check_open()
            check_name(name)
            if name in self._static:
                raise RecordingError(f"{name!r} is a static item of this episode")
            if name in self._signals:
                return self._signals[name]
            check_case_clash(name, self._taken, self.path)
            hints, options = self._declared.get(name, (Hints(), self._video))
            return self._recording.add(name, data, ts_ns, hints, options)

    def _finish(self, interrupted: str | None, store: Callable[[Path], None] | None) -> None:
        self._signals = {}  # later appends are refused
        try:
            if store is None:
                self._recording.finish(*self._names(self.path, interrupted))
            else:
                targets, _, documents = self._names(Path(), interrupted)
                self._recording.finish_by(store, targets, documents)
        except BaseException:
            self._recording.let_go()
            raise

    def _names(self, folder: Path, interrupted: str | None) -> tuple[Targets, Path, Documents]:
        """The files of the episode in a folder, that folder, and the contents of its documents."""

        def targets(name: str, suffix: str) -> tuple[Path, Path]:
            return signal_file(folder, name, suffix), signal_file(folder, name, layout.FRAMES_SUFFIX)

        def documents(signals: dict[str, Any]) -> dict[Path, bytes]:
            meta = self._meta if self._clock is None else {**self._meta, "clock": self._clock.last_facts()}
            return last_documents(folder, meta, self._static, signals, interrupted)

        return targets, folder, documents

    def _discard(self) -> None:
        self._signals = {}
        try:
            if hasattr(self, "_recording"):
                self._recording.discard()
        finally:
            shutil.rmtree(self.path, ignore_errors=True)


def last_documents(
    folder: Path,
    meta: Mapping[str, Any],
    static: Mapping[str, Any],
    signals: Mapping[str, Any],
    interrupted: str | None,
    **more: Any,
) -> dict[Path, bytes]:
    """static.json and the complete meta.json by their paths: once they are written the episode is whole."""
    items = static_bytes(static)
    total = FileSum.of(items)
    complete = {
        **meta,
        "signals": dict(signals),
        "static_file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
        **more,
    }
    if interrupted is not None:
        complete["interrupted"] = interrupted
    return {
        folder / layout.STATIC_FILE: items,
        folder / layout.META_FILE: meta_bytes(complete),
    }
