"""The journals behind a recording: one for all records, and a row of them per camera for raw frames."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.io.commit import fsync_folder, map_os_errors
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.record.threads import Durability, RecordingThreads, interrupts_wait, owner
from warpdata.formats.journal.layout import MAX_RECORD_BYTES
from warpdata.formats.journal.writer import JournalWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

KIND = "episode-signals"
FRAMES_KIND = "episode-frames"
CONTROL_STREAM = 0
"""Records of this stream are JSON: signals as they appear, static items, journals begun and released."""

ROW_STREAM = 0xFFFF
"""An empty record of this stream follows the records of each row: with it the row is whole."""

REVISION = 2
"""How the folder of a recording is used; 1 where no journal states it. From 2 on marks stay as long as the folder."""

MAPPED_RECORD_BYTES = 64 << 10
SIGNALS_JOURNAL = "signals.journal"
SEGMENT_BYTES = 64 << 20
SEGMENT_FRAMES = 8
SEGMENT_S = 5.0
"""A journal of frames is left after this long, so that it is gone before the kernel writes its pages (30 s)."""

RAW_SYNC_S = 2.0
"""Raw frames that are not encoded after this long are synced themselves."""


class SignalsJournal:
    """The journal of all numbers and events of a recording, of facts about it, and of the first raw frames."""

    def __init__(
        self,
        folder: Path,
        descriptor: Mapping[str, Any],
        durability: Durability,
        threads: RecordingThreads,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.threads = threads
        self.now = now or _no_clock
        """The time of a record that came without one; called while the signal is locked, so that times increase."""
        self.lock = threading.Lock()
        self.syncs_every_record = durability.every_record
        self._facts = self._rows = 0
        self.writer = JournalWriter(
            folder / SIGNALS_JOURNAL,
            {**descriptor, "kind": KIND, "journal": SIGNALS_JOURNAL, "owner": owner()},
            max_record_bytes=MAX_RECORD_BYTES, mapped_record_bytes=MAPPED_RECORD_BYTES, publish=False,
        )  # fmt: skip
        threads.keep(self.writer)

    def note(self, fact: Mapping[str, Any]) -> None:
        """Journal a fact about the recording itself."""
        with self.lock:
            self.threads.check()
            self.writer.append(CONTROL_STREAM, self._facts, 1, 0, dump_json(dict(fact)))
            self._facts += 1
            if self.syncs_every_record:
                self.writer.sync()

    def end_row(self, ts_ns: int) -> None:
        """Note that the row of this time is whole."""
        with self.lock:
            self.writer.append(ROW_STREAM, self._rows, 1, ts_ns)
            self._rows += 1
            if self.syncs_every_record:
                self.writer.sync()

    def close(self, *, durable: bool = True) -> None:
        """Let go of the journal, which stays on disk."""
        self.threads.forget(self.writer)
        self.writer.close(durable=durable)


def _no_clock() -> int:
    raise TypeError("ts_ns is missing: this recording has no clock")


class FrameJournal:
    """A journal of raw frames: its space is freed as they are safely encoded.

    A frame that is encoded soon never needs to reach the disk: what is synced is its video. Only frames that wait
    for longer than `RAW_SYNC_S` are brought to the disk as they are.
    """

    def __init__(
        self, path: Path, descriptor: Mapping[str, Any], frame_bytes: int, threads: RecordingThreads
    ) -> None:
        self.name = path.name
        self.begun = math.inf
        """When its first frame came."""
        self.safe_until = 0
        """Frames before this place in the file are safely encoded."""
        self._waiting: deque[tuple[float, int]] = deque()
        self._threads = threads
        about = {**descriptor, "journal": self.name, "owner": owner()}
        self.writer = JournalWriter(path, about, max_record_bytes=frame_bytes)
        threads.keep(self.writer, self._sync_what_waits)

    def close(self, *, durable: bool) -> None:
        """Let go of the journal, which stays on disk."""
        self._threads.forget(self.writer)
        self.writer.close(durable=durable)

    def discard(self) -> None:
        """Delete the journal: its space goes back to the disk."""
        self._threads.forget(self.writer)
        self.writer.discard()

    def _sync_what_waits(self) -> None:
        now = time.monotonic()
        self._waiting.append((now, self.writer.position))
        end = None
        while self._waiting and self._waiting[0][0] <= now - RAW_SYNC_S:
            end = self._waiting.popleft()[1]
        if end is not None:
            self.writer.sync(self.safe_until, end)


class FrameJournals:
    """Raw frames of one camera until they are encoded, in a row of journals whose space is freed.

    Whoever appends never makes a file: until the background has made the first journal, frames go where all other
    records go, and while it has not made the next one, the current one grows.
    """

    def __init__(
        self,
        folder: Path,
        stream: int,
        descriptor: Mapping[str, Any],
        frame_bytes: int,
        signals: SignalsJournal,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._descriptor = {**descriptor, "kind": FRAMES_KIND, "stream": stream}
        self._frame_bytes = frame_bytes
        self._signals = signals
        self.now = signals.now
        self._size = max(SEGMENT_BYTES, SEGMENT_FRAMES * frame_bytes)
        self._made = 0
        self._row: deque[FrameJournal] = deque()
        self._current: FrameJournal | None = None
        self._spare: FrameJournal | None = None
        self._lock = threading.Lock()

    def append(self, step: int, ts_ns: int, frame: Buffer) -> tuple[FrameJournal | None, int]:
        """Copy a frame into a journal; when this returns it survives the death of the process. Returns its place."""
        self._signals.threads.check()
        if self._spare is not None and self._is_used(1.0):
            self._go_on_with_spare()
        journal = self._current
        if journal is None:
            with self._signals.lock:
                return None, self._signals.writer.append(self._stream, step, 1, ts_ns, frame)
        place = journal.writer.append(self._stream, step, 1, ts_ns, frame)
        journal.begun = min(journal.begun, time.monotonic())
        return journal, place

    def read(self, journal: FrameJournal | None, place: int, out: memoryview) -> None:
        """Read back the frame at a place that `append` returned."""
        (self._signals if journal is None else journal).writer.read_payload(place, out)

    def sync(self) -> None:
        """If every record is to survive power loss, see to it."""
        if self._signals.syncs_every_record:
            (self._current or self._signals).writer.sync()

    def prepare(self) -> None:
        """Make the next journal ahead of time; for a thread of the recording."""
        if self._spare is None and self._is_used(0.5):
            path = self._folder / f"frames-{self._stream}-{self._made:06d}.journal"
            self._made += 1
            made = FrameJournal(path, self._descriptor, self._frame_bytes, self._signals.threads)
            with self._lock:
                self._spare = made

    def release_before(self, journal: FrameJournal | None, place: int) -> None:
        """Free the space of all frames before this place."""
        if journal is None:
            return
        while self._row[0] is not journal:
            self._signals.note({"released": self._row[0].name})
            self._row.popleft().discard()
        journal.safe_until = place
        # Pages that are gone are not written. Said before, because a file cut where it is empty looks whole.
        self._signals.note({"given_back": {"journal": journal.name, "until": place}})
        journal.writer.release(place)

    def close(self, *, durable: bool = True) -> None:
        """Let go of what is left, which stays on disk."""
        for journal in (*self._row, *filter(None, [self._spare])):
            journal.close(durable=durable)

    def _is_used(self, share: float) -> bool:
        """Whether so much of the current journal's size or age is used up; the kernel writes old pages to the disk."""
        current = self._current
        if current is None:
            return True
        is_old = time.monotonic() - current.begun > SEGMENT_S * share
        return is_old or current.writer.position >= self._size * share

    def _go_on_with_spare(self) -> None:
        with interrupts_wait(), self._lock:
            following = self._spare
            if following is not None:
                self._signals.note({"journal": following.name})
                self._row.append(following)
                self._current, self._spare = following, None


def remove_folder(folder: Path, *, durable: bool = True) -> None:
    """Take a recording folder away: at once for readers, then its contents."""
    gone = folder.with_name(f"{folder.name}-done")
    with map_os_errors(folder):
        try:
            os.rename(folder, gone)
        except OSError:
            remove_left(folder)
            os.rename(folder, gone)
        if durable:
            fsync_folder(folder.parent)
    _remove_files(gone)


def _remove_files(folder: Path) -> None:
    """Remove a folder that has files and seldom more: to look for more costs several times as much."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.path for entry in entries]
        for name in names:
            os.unlink(name)
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(folder: Path) -> None:
    """Remove what a crash left of a recording folder that was being taken away."""
    left = folder.with_name(f"{folder.name}-done")
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
