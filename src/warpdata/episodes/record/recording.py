"""A recording under way, of an episode or of one signal: its folder, its journals, its signals and its threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.io.commit import (
    commit_together,
    fsync_folder,
    fsync_started,
    link_or_copy,
    map_os_errors,
    put_file,
    start_writing,
)
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import NoPickle, run_in_child
from warpdata.bytekit.process.locks import FileLock, make_locked_folder
from warpdata.episodes.record.camera import QUEUE_BYTES, CameraRecorder, VideoFile
from warpdata.episodes.record.journals import REVISION, FrameJournals, SignalsJournal, remove_folder
from warpdata.episodes.record.tables import (
    EventRecorder,
    NumberRecorder,
    TableFile,
    TableRecorder,
    count_together,
)
from warpdata.episodes.record.threads import Durability, JobQueue, RecordingThreads, finish_despite_interrupt
from warpdata.episodes.record.values import Hints, as_timestamp, describe
from warpdata.episodes.salvage.status import SignalStatus, remove_status, write_status
from warpdata.episodes.statistics import SharedClocks
from warpdata.errors import JournalInUseError, WriterClosedError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, choose_codec
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import check_installed

SignalRecorder = NumberRecorder | EventRecorder | CameraRecorder
Targets = Callable[[str, str], tuple[Path, Path]]
"""The data file, and the frame index of a camera, by the signal's name and the ending of its data file's name."""

Documents = Callable[[dict[str, Any]], Mapping[Path, bytes]]
"""The documents of an episode by path, from the entry of each signal."""

_SOME_FRAMES = 2
"""That may wait for their encoder, however large they are."""
_TABLE_BLOCKS = 64
_TABLE_DELAY_S = 0.5


class RecordingWriter(NoPickle):
    """What all writers share: a lock, one notion of closed, finishing once, and refusal in forked children."""

    path: Path | None

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._closed: str | None = None
        """The reason why no more records are taken."""
        run_in_child(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child: the recording continues in the process that began it."""
        self._lock, self._closed = threading.RLock(), "recorded by another process"

    def _check_open(self) -> None:
        if self._closed is not None:
            raise WriterClosedError(f"the recording is {self._closed}", path=self.path)

    def _close_once(self, finish: Callable[[], None]) -> None:
        """Run `finish`, with Ctrl-C held back; if it fails, the rest is left to salvage. Later calls do nothing."""

        def close() -> None:
            with self._lock:
                if self._closed == "closed":
                    return
                self._check_open()
                self._closed = "broken: closing it failed; `warp salvage` finishes it"
                finish()
                self._closed = "closed"

        finish_despite_interrupt(close, lambda: self._closed is not None)


class Recording:
    """What every recorder is made of: records go to journals, files grow in the background, and end together.

    Making one costs no sync: the folder and the journal are brought to the disk by the helper thread, and
    `on_begun` is called there once they are. `wait_until_begun` waits for it.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        durability: Durability,
        on_begun: Callable[[], None] | None = None,
        lock: FileLock | None = None,
        now: Callable[[], int] | None = None,
    ) -> None:
        """`lock` is that of the episode the folder is in; a folder by itself is locked as it is made.

        `now` reads the clock for records that come without a time.
        """
        self.folder = folder
        self.signals: dict[str, SignalRecorder] = {}
        self.dropped: dict[str, int] = {}
        """How many values of each signal were refused; shown in the status."""
        self._on_begun = on_begun
        self._streams = 0
        self._expected: dict[str, JobQueue] = {}
        """Of cameras that were declared and gave no frame yet."""
        with map_os_errors(folder):
            try:
                self._lock = lock or make_locked_folder(folder)
                if lock is not None:
                    folder.mkdir()
            except FileExistsError:
                raise JournalInUseError(
                    "a recording is under way here, or was never finished", path=folder,
                    hint="Wait for its recorder; if it was killed, run `warp salvage`, then record again.",
                ) from None  # fmt: skip
        self._has_begun = False
        self._threads = RecordingThreads(durability, self._write_status)
        try:
            facts = {**facts, "revision": REVISION}
            self._journal = SignalsJournal(folder, facts, durability, self._threads, now)
            self._tables = self._threads.table_jobs(_TABLE_BLOCKS, _TABLE_DELAY_S)
            self._threads.chores.submit(self._begin)
            if durability.every_record:
                self.wait_until_begun()
        except BaseException:
            self._threads.close()
            if hasattr(self, "_journal"):
                self._journal.close(durable=False)
            self._unlock()
            raise

    def _begin(self) -> None:
        self._journal.writer.publish()
        with map_os_errors(self.folder):
            fsync_folder(self.folder.parent)
        if self._on_begun is not None:
            self._on_begun()
        self._has_begun = True

    def _write_status(self) -> None:
        """Twice a second, in the background: write the status."""
        if self._has_begun:  # before that, only a journal marks the recording
            write_status(self.folder, self.status())

    def status(self) -> dict[str, SignalStatus]:
        """The counts of each signal by now."""
        dropped = dict(self.dropped)
        found = {}
        for name, each in {**dict.fromkeys(dropped), **dict(self.signals)}.items():
            lost = dropped.get(name, 0)
            if isinstance(each, CameraRecorder):
                found[name] = SignalStatus(each.waiting, each.blocked, each.blocked_ns, lost)
            else:
                found[name] = SignalStatus(dropped=lost)
        return found

    def wait_until_begun(self) -> None:
        """Wait until the beginning survives power loss, or raise why it does not."""
        self._threads.chores.settle()

    def add(self, name: str, data: Any, ts_ns: Any, hints: Hints, options: VideoOptions) -> SignalRecorder:
        """The recorder of a new signal, made from its first value; that value is not recorded yet."""
        if ts_ns is not None:
            as_timestamp(ts_ns)
        description = describe(name, data, hints)
        # A stream that could not be made is never tried again under the same number: its files may exist.
        self._streams += 1
        if description.kind == "image":
            made: SignalRecorder = self._camera(name, description, options, description.frame_shape())
        else:
            made = self._table(name, description, is_declared=hints.dtype is not None)
        self.signals[name] = made
        return made

    def expect_camera(self, name: str, hints: Hints, options: VideoOptions) -> None:
        """Have a thread ready for a camera, so that its first frame waits for nothing that can be done before."""
        if name not in self._expected:
            jobs = self._expected[name] = self._threads.camera_jobs(_SOME_FRAMES)
            jobs.submit(lambda: _rehearse(name, hints, options))

    def note(self, fact: Mapping[str, Any]) -> None:
        """Journal a fact about the recording itself."""
        self._journal.note(fact)

    def in_rows(self, name: str) -> None:
        """Note that a signal gets its records by rows, before its first one."""
        self.note({"in_rows": self.signals[name].stream})

    def end_row(self, ts_ns: int) -> None:
        """Note that the row of this time is whole."""
        self._journal.end_row(ts_ns)

    def fail(self, error: BaseException) -> None:
        """Refuse every later record: finishing fails too, and salvage keeps what is whole."""
        self._threads.failed(error)

    def counts(self) -> dict[str, int]:
        """How many records each signal has so far."""
        return {name: each.count for name, each in dict(self.signals).items()}

    def finish(self, targets: Targets, root: Path, documents: Documents) -> None:
        """Complete all files and give them their names at once, the documents last; then the journals go.

        `documents` makes them from the entry of each signal; the disk writes the files while those are computed
        out. Folders below `root` are synced once.
        """
        files = []
        for temp, target in self._files(targets, documents):
            start_writing(temp)
            files.append((temp, target))
        temps = [temp for temp, _ in files]
        # To drop the pages of a journal takes a while: most of them go while this thread waits for the disk.
        self._threads.chores.submit(self._journal.writer.trim)
        self._threads.chores.submit(lambda: fsync_started(temps[1::2]))
        self._threads.end()
        fsync_started(temps[::2])  # two threads wait for the disk at the same time
        self._threads.chores.settle()  # the beginning too: its meta.json must not take the place of the last one
        commit_together(files, root)
        self._remove(self.folder)

    def finish_by(self, store: Callable[[Path], None], targets: Targets, documents: Documents) -> None:
        """Complete all files, and let `store` make something durable of the episode directory they are then.

        Nothing of the directory is synced: until `store` is done the journals have every record. Then the directory
        this folder is in goes.
        """
        whole = self.folder / layout.WHOLE_FOLDER
        with map_os_errors(whole):
            whole.mkdir()
        for temp, target in self._files(targets, documents):
            path = whole / target
            with map_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(temp, path)
        self._threads.end()
        store(whole)
        self._remove(self.folder.parent, durable=False)

    def _files(self, targets: Targets, documents: Documents) -> Iterator[tuple[Path, Path]]:
        """Every file as soon as it is complete, with the name it is to have; the documents last."""
        yield from self._completed(targets)
        yield from self._documents(documents)

    def _completed(self, targets: Targets) -> Iterator[tuple[Path, Path]]:
        """The files of every signal."""
        for each in self.signals.values():
            each.close()
        self._tables.stop()
        for name, each in self.signals.items():
            if each.count:
                each.complete()
                yield from each.files(*targets(name, each.suffix))
            else:  # its first record never reached the journal: there is no such signal
                each.cancel()
        self._threads.check()

    def _documents(self, documents: Documents) -> Iterator[tuple[Path, Path]]:
        """The documents, once the files of every signal are complete."""
        clocks = SharedClocks()
        count_together(
            each for each in self.signals.values() if isinstance(each, TableRecorder) and each.count
        )
        found = {name: each.facts(clocks) for name, each in self.signals.items() if each.count}
        for target, data in documents(found).items():
            temp = self.folder / target.name
            put_file(temp, data)
            yield temp, target

    def _remove(self, folder: Path, *, durable: bool = True) -> None:
        """The recording is finished: its journals are no longer needed."""
        self._threads.close()
        self._journal.close(durable=False)
        remove_folder(folder, durable=durable)
        self._unlock()  # now only: a folder without a lock is one to salvage

    def let_go(self) -> None:
        """Stop all threads and close all files, leaving them as they are."""
        try:
            self._stop()
        finally:
            self._unlock()

    def discard(self) -> None:
        """Remove all that was recorded."""
        try:
            self._stop()
        finally:
            remove_folder(self.folder)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _stop(self) -> None:
        self._tables.cancel()
        for each in self.signals.values():
            each.cancel()
        self._threads.close()
        remove_status(self.folder)
        self._journal.close()

    def _table(self, name: str, description: Description, *, is_declared: bool) -> SignalRecorder:
        stream = self._streams
        self.note({"signal": {"stream": stream, "name": name, **description.to_json()}})
        file = TableFile(self.folder / f"{stream}.parquet", description)
        if description.kind in ("text", "bytes"):
            return EventRecorder(name, stream, file, self._journal, self._tables)
        return NumberRecorder(name, stream, file, self._journal, self._tables, converts=is_declared)

    def _camera(
        self, name: str, description: Description, options: VideoOptions, shape: FrameShape
    ) -> SignalRecorder:
        check_installed()
        stream, settings = self._streams, {**options.to_json(), "codec": choose_codec(shape, options)}
        about = {"stream": stream, "name": name, **description.to_json(), "video": settings}
        self.note({"signal": about})
        facts = {"signal": about, "revision": REVISION}
        frames = FrameJournals(self.folder, stream, facts, shape.nbytes, self._journal)
        jobs = self._expected.pop(name, None) or self._threads.camera_jobs(_SOME_FRAMES)
        jobs.limit = max(_SOME_FRAMES, QUEUE_BYTES // shape.nbytes)
        return CameraRecorder(
            name, stream, shape,
            lambda: VideoFile(self.folder / str(stream), shape, options, description=description),
            frames, jobs,
            lambda found: self.note({"video": {"stream": stream, **found.to_json()}}),
        )  # fmt: skip


def _rehearse(name: str, hints: Hints, options: VideoOptions) -> None:
    """What the first frame needs, done with a small one: code that never ran takes many times as long."""
    with contextlib.suppress(Exception):  # wrong hints are an error of the first frame
        description = describe(name, np.zeros((16, 16, 3), np.uint8), hints)
        settings = {**options.to_json(), "codec": choose_codec(description.frame_shape(), options)}
        dump_json({"signal": {"name": name, **description.to_json(), "video": settings}})
