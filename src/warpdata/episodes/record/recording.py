"""The recorder behind every writer: records go to journals, files grow in the background and end together."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from warpdata.bytekit.io.commit import (
    check_case_clash,
    commit_together,
    fsync_folder,
    fsync_started,
    link_or_copy,
    make_folders,
    map_os_errors,
    put_file,
    start_writing,
    write_file,
)
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import NoPickle, run_in_child
from warpdata.bytekit.process.locks import FileLock, make_locked_folder
from warpdata.episodes.record.camera import (
    WAIT,
    CameraRecorder,
    FrameSlots,
    Policy,
    QueuePolicy,
    VideoFile,
)
from warpdata.episodes.record.status import STATUS_FILE, Monitor, OnSlow, RecordingStatus, SignalStatus
from warpdata.episodes.record.tables import EventRecorder, NumberRecorder, SignalsJournal, TableFile
from warpdata.episodes.record.threads import Durability, JobQueue, RecordingThreads, interrupts_wait
from warpdata.episodes.record.values import Hints, RecordingClock, as_timestamp, describe
from warpdata.episodes.statistics import SharedClocks
from warpdata.errors import (
    ConflictError,
    OutOfSpaceError,
    RecordingError,
    StoreError,
    WarpError,
    WriterClosedError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    Description,
    FileSum,
    VideoOptions,
    check_name,
    choose_codec,
    episode_path,
    meta_bytes,
    plain_static,
    signal_file,
    static_bytes,
)
from warpdata.formats.episodedir.video import check_installed, check_options
from warpdata.formats.journal.writer import remove_file

SignalRecorder = NumberRecorder | EventRecorder | CameraRecorder

_TABLE_BLOCKS = 64
_TABLE_DELAY_S = 0.5


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a signal before its first value."""

    hints: Hints
    video: VideoOptions
    policy: QueuePolicy = WAIT


class Recording(NoPickle):
    """An episode, or one signal, being recorded. Subclasses choose its folder and the names of its files.

    Nothing is on disk before the first record, or before a subclass begins it. Beginning costs no sync: the helper
    thread brings folder and journal to the disk. Any thread may append.
    """

    path: Path | None

    def __init__(
        self, durability: str, video: VideoOptions | None = None, clock: RecordingClock | None = None
    ) -> None:
        self._lock = threading.RLock()
        self._closed: str | None = None
        """The reason why no more records are taken."""
        self._ended: tuple[type[WarpError], str] | None = None
        """The same where it can still be closed: another process ended the episode, or the disk is almost full."""
        self._min_free = 0
        self._slow_s = 0.1
        self._on_slow: OnSlow | None = None
        self._monitor: Monitor | None = None
        self._durability = Durability.parse(durability)
        self._video = video or VideoOptions()
        self._clock = clock
        """For records that come without a time."""
        self._meta: dict[str, Any] = {}
        self._interrupted: str | None = None
        self._static: dict[str, Any] = {}
        self._marked_ns: dict[str, int] = {}
        """Times at which static items were set, to order those of several processes."""
        self._declared: dict[str, Declared] = {}
        self._names: dict[str, str] = {}
        self._refused: dict[str, int] = {}
        """How many values of each signal were refused; shown in the status."""
        self._row_signals: set[str] = set()
        """Signals that get their records by rows."""
        self._recorders: dict[str, SignalRecorder] = {}
        self._signals = self._recorders
        """The same while the recording is open, then empty: later appends are refused."""
        self._streams = 0
        self._expected: dict[str, JobQueue] = {}
        """Queues of cameras that were declared and gave no frame yet."""
        self._journal: SignalsJournal | None = None
        self._is_published = False
        run_in_child(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child: a recording that has begun continues in the process that began it."""
        self._lock = threading.RLock()
        if self._journal is not None:
            self._closed, self._signals = "recorded by another process", {}

    def _check_open(self) -> None:
        if self._closed is not None:
            raise WriterClosedError(f"the recording is {self._closed}", path=self.path)
        if self._ended is not None:
            kind, reason = self._ended
            raise kind(reason, path=self.path, hint="Close the recorder: everything recorded is kept.")

    # Names and places, chosen by subclasses.

    @abstractmethod
    def _claim(self) -> tuple[Path, FileLock | None]:
        """Make the folder of the journals, which no other recorder has, and lock it or the one around it."""

    @abstractmethod
    def _unclaim(self) -> None:
        """Remove what `_claim` made around the folder of the journals."""

    def _reserve(self, signal: str) -> None:
        """Take the name of a signal before its first record."""

    def _facts(self) -> dict[str, Any]:
        """The descriptor of the journal: what the recording becomes."""
        return {"episode": {"meta": self._meta}}

    def _targets(self, folder: Path, name: str, suffix: str) -> tuple[Path, Path]:
        """The data file of a signal, and the frame index of a camera."""
        return signal_file(folder, name, suffix), signal_file(folder, name, layout.FRAMES_SUFFIX)

    def _documents(self, folder: Path, signals: dict[str, Any]) -> Mapping[Path, bytes]:
        """The documents of the episode by path, from the entry of each signal."""
        clock = {} if self._clock is None else {"clock": self._clock.facts(is_end=True)}
        return last_documents(folder, {**self._meta, **clock}, self._static, signals, self._interrupted)

    def _on_published(self) -> None:
        """In the background, once the journal is on the disk."""
        assert self.path is not None
        folder = self._work.parent
        with map_os_errors(folder):
            write_file(folder / layout.META_FILE, meta_bytes(self._meta), durable=False)
            fsync_folder(folder.parent)

    # Recording.

    def _begin(self, *, wait: bool = False) -> None:
        """Make folder, journal and threads, once; `wait` until that survives power loss."""
        with interrupts_wait(), self._lock:
            self._check_open()
            if self._journal is not None:
                return
            self._work, self._folder_lock = self._claim()
            self._threads = RecordingThreads(self._durability, self._report)
            now = _refuse_without_time if self._clock is None else self._clock.now
            try:
                journal = SignalsJournal(self._work, self._facts(), self._durability, self._threads, now)
                self._tables = self._threads.table_jobs(_TABLE_BLOCKS, _TABLE_DELAY_S)
                place = self.path or self._work.parent
                self._monitor = Monitor(place, self._work, self._min_free, self._signal_status)
                self._journal = journal
                self._threads.chores.submit(self._publish)
                if wait or self._durability.every_record:
                    self._threads.chores.settle()
                if self._static:
                    journal.note({"static": self._static, "at_ns": time.time_ns()})
                for name, declared in self._declared.items():
                    self._expect(name, declared.hints)
            except BaseException:
                self._drop()
                self._journal = None
                raise

    def _publish(self) -> None:
        assert self._journal is not None
        self._journal.writer.publish()
        with map_os_errors(self._work):
            fsync_folder(self._work.parent)
        self._on_published()
        self._is_published = True

    def append(self, signal: str, value: Any, ts_ns: int | None = None) -> None:
        """Add a copy of `value` to a signal; when this returns, the record survives a crash.

        Times of one signal increase; without `ts_ns` the clock is read. Any thread may call it.
        """
        if signal in self._row_signals:
            with self._lock:  # between the records of a row nothing else is added to its signals
                self._append(signal, value, ts_ns)
                assert self._journal is not None
                self._journal.end_row(self._signals[signal].last_ts_ns)
        else:
            self._append(signal, value, ts_ns)

    def _append(self, signal: str, value: Any, ts_ns: int | None) -> None:
        recorder = self._signals.get(signal)
        try:
            if recorder is None:
                recorder = self._add(signal, value, ts_ns)
            recorder.append(value, ts_ns)
        except (WarpError, TypeError, ValueError):
            self._count_refused(signal)
            raise

    def append_row(self, row: Sequence[tuple[str, Any]], ts_ns: int | None = None) -> None:
        """Add a value to each of several signals at one time: all of them, or none where one is refused."""
        with self._lock:
            if self._journal is None:
                self._begin()
            journal = self._journal
            assert journal is not None
            if ts_ns is None and self._clock is not None:
                ts_ns = self._clock.now()
            ts_ns = as_timestamp(ts_ns)
            checked = []
            try:
                for name, value in row:
                    recorder = self._signals.get(name) or self._add(name, value, ts_ns)
                    if name not in self._row_signals:
                        if isinstance(recorder, CameraRecorder) and recorder.policy.policy != "wait":
                            raise RecordingError(
                                f"camera {name!r} may drop frames, so it cannot be part of a row",
                                hint="Record it by append(), or declare it with policy='wait'.",
                            )
                        journal.note({"in_rows": recorder.stream})
                        self._row_signals.add(name)
                    checked.append((recorder, recorder.check(value, ts_ns)))
            except (WarpError, TypeError, ValueError):
                self._count_refused(*(name for name, _ in row))
                raise
            try:
                for recorder, value in checked:
                    recorder.append(value, ts_ns)
                journal.end_row(ts_ns)
            except Exception as error:  # such as a full disk: no row may follow a part of one
                self._threads.fail(error)
                raise

    def _count_refused(self, *names: str) -> None:
        with self._lock:
            if self._closed is None:
                for name in names:
                    self._refused[name] = self._refused.get(name, 0) + 1

    def declare(
        self,
        signal: str,
        *,
        dtype: Any = None,
        role: str | None = None,
        of: str | None = None,
        model: str | None = None,
        clock: str | None = None,
        kind: str | None = None,
        units: str | None = None,
        names: Sequence[str] | None = None,
        video: VideoOptions | None = None,
        policy: Policy = "wait",
        max_wait_ms: float | None = None,
        ragged: bool = False,
        rate_hz: float | None = None,
    ) -> None:
        """Describe a signal before its first record: type, role, units, axis names, how it is encoded.

        `dtype` is numpy's or one of the format's short names; values are converted to it. `of` and `model` belong to
        predictions, uncertainties and residuals. Signals of one `clock` are recorded at the same times.
        `ragged`: values are arrays of any number of rows, such as point clouds. `kind="sound"` with `rate_hz`: values
        are blocks of samples, at the time of their first one.

        `policy` is for a camera whose encoder falls behind: `append` waits, or after `max_wait_ms` (default 0) the
        frame that waits for longest (`drop_oldest`) or the new one (`drop_newest`) is dropped, and counted.
        """
        queue = QueuePolicy.check(policy, max_wait_ms)
        if policy != "wait" and kind != "image":
            raise ValueError(f"policy={policy!r} is for cameras: declare {signal!r} with kind='image'")
        hints = Hints.check(
            kind=kind,
            units=units,
            names=names,
            dtype=dtype,
            role=role,
            of=of,
            model=model,
            clock=clock,
            ragged=ragged,
            rate_hz=rate_hz,
        )
        if kind == "image" or video is not None:
            check_options(video or self._video)
        with self._lock:
            self._check_open()
            self._declare(check_name(signal), Declared(hints, video or self._video, queue))

    def _declare(self, name: str, declared: Declared) -> None:
        if name in self._signals:
            raise RecordingError(f"signal {name!r} has records already")
        if name in self._static:
            raise RecordingError(f"{name!r} is a static item of this episode")
        self._declared[name] = declared
        if self._journal is not None:
            self._expect(name, declared.hints)

    def _expect(self, name: str, hints: Hints) -> None:
        """Have a thread ready for a camera, so that its first frame waits for nothing that can be done before."""
        if hints.kind != "image" or name in self._expected:
            return

        def rehearse() -> None:
            # With a small frame: code that never ran takes many times as long. Wrong hints fail with the first one.
            with contextlib.suppress(Exception):
                description = describe(name, np.zeros((16, 16, 3), np.uint8), hints)
                dump_json(_camera_facts(0, name, description, self._video))

        assert self._journal is not None
        self._threads.chores.submit(self._journal.expect_frames)
        jobs = self._expected[name] = self._threads.camera_jobs()
        jobs.submit(rehearse)

    def mark(self, **facts: Any) -> None:
        """Set items that do not change in time, such as `success=True`; the last value of an item counts."""
        with self._lock:
            self._check_open()
            for name, value in facts.items():
                if check_name(name) in self._signals:
                    raise RecordingError(f"{name!r} is a signal of this episode")
                plain = plain_static(name, value)  # what cannot be stored is refused now
                if self._journal is not None:
                    self._journal.note({"static": {name: plain}, "at_ns": time.time_ns()})
                self._static[name] = plain
                self._marked_ns[name] = time.time_ns()

    def set_static(self, name: str, value: Any) -> None:
        """Set an item that does not change in time, once."""
        with self._lock:
            self._check_open()
            if check_name(name) in self._static:
                raise RecordingError(f"static item {name!r} is set already")
            self.mark(**{name: value})

    def counts(self) -> dict[str, int]:
        """How many records each signal has so far."""
        return {name: recorder.kept for name, recorder in dict(self._signals).items()}

    def status(self) -> RecordingStatus:
        """The state by now: for each signal records, rate, queue, delay and drops, and the space on the disk."""
        monitor = self._monitor
        if monitor is None:
            return RecordingStatus(time.time_ns(), self._signal_status())
        return monitor.status()

    def _signal_status(self) -> dict[str, SignalStatus]:
        refused = dict(self._refused)
        status = {name: SignalStatus(refused=count) for name, count in refused.items()}
        for name, recorder in dict(self._recorders).items():
            counts: dict[str, Any] = {
                "records": recorder.kept,
                "bytes": recorder.recorded_bytes,
                "refused": refused.get(name, 0),
            }
            if isinstance(recorder, CameraRecorder):
                jobs, delay_ms = recorder.jobs, round(recorder.delay_s() * 1e3, 3)
                counts |= {
                    "waiting": len(recorder.waiting),
                    "delay_ms": delay_ms,
                    "dropped": len(recorder.dropped),
                }
                counts |= {"blocked": jobs.blocked, "blocked_ns": jobs.blocked_ns}
            status[name] = SignalStatus(**counts)
        return status

    def _end(self, kind: type[WarpError], reason: str) -> None:
        """Refuse later records with this error; the recording can still be closed."""
        self._ended = (kind, reason)
        self._signals = {}

    def _needed_bytes(self) -> int:
        """The space that closing takes."""
        return 0

    def _report(self) -> None:
        """Twice a second, in the background, for monitors; disk errors are left to the recording itself."""
        monitor = self._monitor
        if monitor is None:
            return
        with contextlib.suppress(WarpError, OSError):
            reason = monitor.look(self._needed_bytes)
            if reason is not None and self._ended is None:
                self._end(OutOfSpaceError, reason)
            if self._is_published:  # before that, only a journal marks the recording
                temp, target = self._work / f".{STATUS_FILE}", self._work / STATUS_FILE
                temp.unlink(missing_ok=True)
                put_file(temp, dump_json(monitor.status().to_json()))
                system.replace_lazily(str(temp), str(target))

    def _add(self, name: str, value: Any, ts_ns: Any) -> SignalRecorder:
        """The recorder of a new signal, made from its first value; that value is not recorded yet."""
        with interrupts_wait(), self._lock:
            self._check_open()
            check_name(name)
            if name in self._static:
                raise RecordingError(f"{name!r} is a static item of this episode")
            if name in self._signals:
                return self._signals[name]
            self._begin()
            check_case_clash(name, self._names, self._work)
            return self._make(name, value, ts_ns, self._declared.get(name) or Declared(Hints(), self._video))

    def _make(self, name: str, value: Any, ts_ns: Any, declared: Declared) -> SignalRecorder:
        if ts_ns is not None:
            as_timestamp(ts_ns)
        description = describe(name, value, declared.hints)
        self._reserve(name)
        journal = self._journal
        assert journal is not None
        # A stream that could not be made is never tried again under the same number: its files may exist.
        self._streams += 1
        stream = self._streams
        recorder: SignalRecorder
        if description.kind == "image":
            recorder = self._make_camera(journal, stream, name, description, declared)
        else:
            journal.note({"signal": {"stream": stream, "name": name, **description.to_json()}})
            file = TableFile(self._work / f"{stream}.parquet", description)
            kind = EventRecorder if description.is_object else NumberRecorder
            converts = declared.hints.dtype is not None
            recorder = kind(name, stream, file, journal, self._tables, converts=converts)
        self._recorders[name] = recorder
        return recorder

    def _make_camera(
        self, journal: SignalsJournal, stream: int, name: str, description: Description, declared: Declared
    ) -> CameraRecorder:
        check_installed()
        options = declared.video
        shape, facts = description.frame_shape(), _camera_facts(stream, name, description, options)
        journal.note(facts)
        frames = FrameSlots(self._work, stream, facts, shape.nbytes, journal)
        jobs = self._expected.pop(name, None) or self._threads.camera_jobs()
        monitor = self._monitor
        assert monitor is not None
        jobs.on_wait = lambda waited_s: monitor.report_wait(name, waited_s, self._slow_s, self._on_slow)
        base = self._work / str(stream)
        return CameraRecorder(
            name,
            stream,
            shape,
            options.fps,
            lambda: VideoFile(
                base, shape, options, description=description, sync_s=self._durability.video_period_s
            ),
            frames,
            jobs,
            declared.policy,
            lambda count: monitor.report("camera %r of %s drops frames: %d so far", name, count),
        )

    # Ends.

    @abstractmethod
    def _finish(self) -> None:
        """Make the files of what was recorded."""

    def close(self) -> None:
        """Finish what was recorded; calling it again does nothing. Ctrl-C waits until it is done.

        If that fails, the rest is left to salvage.
        """

        def close() -> None:
            with interrupts_wait(), self._lock:
                if self._closed == "closed":
                    return
                self._ended = None
                self._check_open()
                self._closed = "broken: closing it failed; `warp salvage` finishes it"
                self._signals = {}
                self._finish()
                self._closed = "closed"

        try:
            close()
        except KeyboardInterrupt:
            if self._closed is None:  # it came before it could be held back
                close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed is None:
            self._interrupted = None if kind is None else f"{kind.__name__}: {error}"
            self.close()

    def discard(self) -> None:
        """Remove everything recorded; every later call raises WriterClosedError."""
        with self._lock:
            self._check_open()
            self._closed = "discarded"
            if self._journal is not None:
                self._drop()

    def _commit(self, folder: Path) -> None:
        """Complete all files and give them their names in `folder` at once, the documents last; then the journals go.

        The disk writes the files while the entries of the signals are computed.
        """
        assert self._journal is not None
        try:
            files = []
            for temp, target in self._complete(folder):
                start_writing(temp)
                files.append((temp, target))
            temps = [temp for temp, _ in files]
            # To drop the pages of a journal takes a while: most of them go while this thread waits for the disk.
            self._threads.chores.submit(self._journal.writer.trim)
            self._threads.chores.submit(lambda: fsync_started(temps[1::2]))
            self._threads.end()
            fsync_started(temps[::2])  # two threads wait for the disk at the same time
            self._threads.chores.settle()  # the beginning too: its meta.json must not replace the last one
            commit_together(files, folder)
            self._remove(self._work)
        except BaseException:
            self._leave()
            raise

    def _commit_by(self, store: Callable[[Path], None]) -> None:
        """Complete all files; `store` makes something durable of the episode directory they are then.

        Nothing of the directory is synced: until `store` is done the journals have every record. Then the directory
        around the journals goes.
        """
        try:
            whole = self._work / layout.WHOLE_FOLDER
            with map_os_errors(whole):
                whole.mkdir()
            for temp, target in self._complete(whole):
                with map_os_errors(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(temp, target)
            self._threads.end()
            store(whole)
            self._remove(self._work.parent, durable=False)
        except BaseException:
            self._leave()
            raise

    def _complete(self, folder: Path) -> Iterator[tuple[Path, Path]]:
        """Every file as soon as it is complete, with its final path; the documents last."""
        for recorder in self._recorders.values():
            recorder.close()
        self._tables.stop()
        recorders = {}
        for name, recorder in self._recorders.items():
            if recorder.count:
                recorder.complete()
                recorders[name] = recorder
                yield from recorder.files(*self._targets(folder, name, recorder.suffix))
            else:  # its first record never reached the journal: there is no such signal
                recorder.cancel()
        self._threads.check()
        clocks = SharedClocks()
        facts = {name: recorder.facts(clocks) for name, recorder in recorders.items()}
        for target, data in self._documents(folder, facts).items():
            temp = self._work / target.name
            put_file(temp, data)
            yield temp, target

    def _remove(self, folder: Path, *, durable: bool = True) -> None:
        """The recording is finished: its journals are no longer needed."""
        assert self._journal is not None
        self._threads.close()
        self._journal.close(durable=False)
        remove_folder(folder, durable=durable)
        self._unlock()  # now only: a folder without a lock is one to salvage

    def _leave(self) -> None:
        """Stop all threads and close all files, leaving them as they are for salvage."""
        try:
            self._stop()
        finally:
            self._unlock()

    def _drop(self) -> None:
        """Stop, and remove all that was recorded."""
        try:
            self._stop()
        finally:
            remove_folder(self._work)
            self._unclaim()
            self._unlock()

    def _stop(self) -> None:
        self._signals = {}
        if hasattr(self, "_tables"):
            self._tables.cancel()
        for recorder in self._recorders.values():
            recorder.cancel()
        self._threads.close()
        with contextlib.suppress(OSError):
            (self._work / STATUS_FILE).unlink()
        if self._journal is not None:
            self._journal.close()

    def _unlock(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()


def _refuse_without_time() -> int:
    raise TypeError("ts_ns is missing: this recording has no clock")


def _camera_facts(stream: int, name: str, description: Description, options: VideoOptions) -> dict[str, Any]:
    codec = choose_codec(description.frame_shape(), options)
    video = {**options.to_json(), "codec": codec}
    return {"signal": {"stream": stream, "name": name, **description.to_json(), "video": video}}


def last_documents(
    folder: Path,
    meta: Mapping[str, Any],
    static: Mapping[str, Any],
    signals: Mapping[str, Any],
    interrupted: str | None,
    **more: Any,
) -> dict[Path, bytes]:
    """static.json and the complete meta.json by their paths: once they are written the episode is complete."""
    items = static_bytes(static)
    complete = {
        **meta,
        "signals": dict(signals),
        "static_file": FileSum.of(items).to_json(),
        **more,
    }
    if interrupted is not None:
        complete["interrupted"] = interrupted
    return {folder / layout.STATIC_FILE: items, folder / layout.META_FILE: meta_bytes(complete)}


def claim_directory(path: Path) -> tuple[Path, FileLock | None]:
    """Make a new, locked episode directory; returns the folder for its journals, and the lock.

    An episode is unfinished for as long as that folder is there, so it comes before anything else.
    """
    with map_os_errors(path):
        make_folders(path.parent)
        try:
            try:
                lock = make_locked_folder(path)
            except FileNotFoundError:  # a recorder that recorded nothing removed the folder around it
                make_folders(path.parent)
                lock = make_locked_folder(path)
        except FileExistsError:
            raise ConflictError("the directory exists already", path=path) from None
        work = path / layout.RECORDING_FOLDER
        try:
            work.mkdir()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            if lock is not None:
                lock.release()
            raise
        return work, lock


def claim_episode(root: Path) -> tuple[Path, FileLock | None]:
    """Claim the directory of the next free number of a root."""
    for path in free_paths(root):
        with contextlib.suppress(ConflictError):
            return claim_directory(path)
    raise AssertionError  # there is always another number


def free_paths(root: Path) -> Iterator[Path]:
    """Directories from one past the highest number on; the exclusive mkdir decides between processes."""
    number = 0
    for block in reversed(episode_numbers(root)):
        inside = episode_numbers(episode_path(root, block).parent)
        if inside:
            number = inside[-1] + 1
            break
    if number:  # a recorder that was killed as it removed its journals left them
        remove_leftovers(episode_path(root, number - 1) / layout.RECORDING_FOLDER)
    while True:
        yield episode_path(root, number)
        number += 1


def episode_numbers(folder: Path) -> list[int]:
    """The numbers of the blocks of a root, or of the episodes of a block; nothing in them is opened."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot list ({error.strerror})", path=folder) from None
    return sorted(int(name) for name in names if len(name) == layout.DIGITS and name.isdigit())


def remove_folder(folder: Path, *, durable: bool = True) -> None:
    """Remove a recording folder: at once for readers, then its contents."""
    done = folder.with_name(f"{folder.name}-done")
    with map_os_errors(folder):
        try:
            os.rename(folder, done)
        except OSError:
            remove_leftovers(folder)
            os.rename(folder, done)
        if durable:
            fsync_folder(folder.parent)
    remove_files(done)


def remove_files(folder: Path) -> None:
    """Remove a folder, and the files in memory that journals in it are links to."""
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_files(Path(entry.path))
            else:
                remove_file(entry.path)
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a crash left of a recording folder that was being removed."""
    done = folder.with_name(f"{folder.name}-done")
    if done.is_dir():
        remove_files(done)
