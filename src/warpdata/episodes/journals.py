"""The journals behind a recording: one for small records, one per size of large ones, a ring per camera."""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit import system
from warpdata.bytekit.commit import fsync_folder, map_os_errors
from warpdata.episodes.interrupts import interrupts_wait
from warpdata.episodes.recorder import Durability, JournalKeeper, owner
from warpdata.errors import TruncatedError
from warpdata.formats.journal.layout import RECORD_BYTES
from warpdata.formats.journal.writer import JournalWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

KIND = "episode-signals"
FRAMES_KIND = "episode-frames"
CONTROL_STREAM = 0
"""Records of this stream are JSON: signals as they appear, static items."""

SMALL_RECORD_BYTES = 64 << 10
SIGNALS_JOURNAL = "signals.journal"
SEGMENT_BYTES = 64 << 20
SEGMENT_FRAMES = 8


class KeptJournal:
    """A journal with the threads that keep it ahead of its recorder."""

    def __init__(
        self, path: Path, descriptor: Mapping[str, Any], max_record_bytes: int, durability: Durability
    ) -> None:
        self.writer = JournalWriter(path, {**descriptor, "owner": owner()}, max_record_bytes=max_record_bytes)
        self._keeper: JournalKeeper | None = JournalKeeper(self.writer, durability)

    def check(self) -> None:
        """Raise what went wrong while syncing."""
        if self._keeper is not None and self._keeper.failure is not None:
            raise self._keeper.failure

    def close(self, *, durable: bool) -> None:
        """Stop the threads and let go of the journal, which stays on disk."""
        self._stop()
        self.writer.close(durable=durable)

    def discard(self) -> None:
        """Stop the threads and delete the journal."""
        self._stop()
        self.writer.discard()

    def _stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


class Shelf:
    """All journals of small and large records of one recording."""

    def __init__(self, folder: Path, descriptor: Mapping[str, Any], durability: Durability) -> None:
        self._folder = folder
        self._descriptor = {**descriptor, "kind": KIND}
        self._durability = durability
        path = folder / SIGNALS_JOURNAL
        self._small = KeptJournal(path, self._descriptor, SMALL_RECORD_BYTES, durability)
        self._large: dict[int, KeptJournal] = {}
        self.syncs_every_step = durability.every_step
        self.small = self._small.writer
        self.lock = threading.Lock()

    def append(self, stream: int, step: int, ts_ns: int, payload: Buffer, size: int) -> None:
        """Add one record of `size` bytes to the journal of its size."""
        self._of_size(size).writer.append(stream, step, 1, ts_ns, payload)

    def sync(self, size: int) -> None:
        """Make the journal of records of this size survive power loss."""
        self._of_size(size).writer.sync()

    def check(self) -> None:
        """Raise what went wrong while syncing."""
        for kept in (self._small, *self._large.values()):
            kept.check()

    def close(self, *, durable: bool = True) -> None:
        """Let go of all journals, which stay on disk."""
        for kept in (self._small, *self._large.values()):
            kept.close(durable=durable)

    def _of_size(self, size: int) -> KeptJournal:
        if size <= SMALL_RECORD_BYTES:
            return self._small
        power = (size - 1).bit_length()
        if power not in self._large:
            path = self._folder / f"large-{power}.journal"
            with interrupts_wait():
                self._large[power] = KeptJournal(path, self._descriptor, 1 << power, self._durability)
        return self._large[power]


class Segment:
    """One journal of a camera's ring: deleted once all its frames are safely encoded."""

    def __init__(
        self, path: Path, descriptor: Mapping[str, Any], frame_bytes: int, durability: Durability
    ) -> None:
        self.kept = KeptJournal(path, descriptor, frame_bytes, durability)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, out: memoryview) -> None:
        """Read the payload of the frame at `offset`."""
        position = offset + RECORD_BYTES
        while out:
            got = system.read_into(self.fd, out, position)
            if not got:
                raise TruncatedError("the journal of a camera ends before its frame does")
            out, position = out[got:], position + got

    def close(self, *, durable: bool) -> None:
        """Let go of the journal, which stays on disk."""
        if self._close_fd():
            self.kept.close(durable=durable)

    def discard(self) -> None:
        """Delete the journal: its space goes back to the disk."""
        if self._close_fd():
            self.kept.discard()

    def _close_fd(self) -> bool:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        return fd >= 0


class FrameRing:
    """Raw frames of one camera until they are encoded, in a row of journals whose space is given back."""

    def __init__(
        self,
        folder: Path,
        stream: int,
        descriptor: Mapping[str, Any],
        frame_bytes: int,
        durability: Durability,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._descriptor = {**descriptor, "kind": FRAMES_KIND, "stream": stream}
        self._frame_bytes = frame_bytes
        self._durability = durability
        self._size = max(SEGMENT_BYTES, SEGMENT_FRAMES * frame_bytes)
        self._made = 0
        self._segments: deque[Segment] = deque()
        self._spare: Segment | None = None
        self._lock = threading.Lock()
        self._current = self._make()
        self._segments.append(self._current)

    def append(self, step: int, ts_ns: int, frame: Buffer) -> tuple[Segment, int]:
        """Copy a frame into the journal; when this returns it survives the death of the process."""
        segment = self._current
        segment.kept.check()
        if segment.kept.writer.position >= self._size:
            segment = self._rotate()
        return segment, segment.kept.writer.append(self._stream, step, 1, ts_ns, frame)

    def sync(self) -> None:
        """If every step is to survive power loss, see to it."""
        if self._durability.every_step:
            self._current.kept.writer.sync()

    def prepare(self) -> None:
        """Make the next journal ahead of time; meant for the encoder's thread."""
        with self._lock:
            if self._spare is None and self._current.kept.writer.position > self._size // 2:
                self._spare = self._make()

    def release_before(self, segment: Segment) -> None:
        """Say that no frame before this journal is needed any more: the space of those behind goes back."""
        while self._segments[0] is not segment:
            self._segments.popleft().discard()

    def close(self, *, durable: bool = True) -> None:
        """Let go of what is left, which stays on disk."""
        if self._spare is not None:
            self._segments.append(self._spare)
        for segment in self._segments:
            segment.close(durable=durable)

    def _rotate(self) -> Segment:
        with interrupts_wait(), self._lock:
            following = self._spare or self._make()
            self._spare = None
            self._segments.append(following)
            self._current = following
        return following

    def _make(self) -> Segment:
        path = self._folder / f"frames-{self._stream}-{self._made:06d}.journal"
        self._made += 1
        return Segment(path, self._descriptor, self._frame_bytes, self._durability)


def remove_folder(folder: Path) -> None:
    """Take a recording folder away: at once for readers, then its contents."""
    gone = folder.with_name(f"{folder.name}-done")
    shutil.rmtree(gone, ignore_errors=True)  # what a crash left here before
    with map_os_errors(folder):
        os.rename(folder, gone)
        fsync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
