"""The journals behind a recording: one for small records, one per size of large ones, a ring per camera."""

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

from warpdata.bytekit import system
from warpdata.bytekit.commit import fsync_folder, map_os_errors
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.interrupts import interrupts_wait
from warpdata.episodes.recorder import Durability, JournalKeeper, owner
from warpdata.errors import StoreError, TruncatedError
from warpdata.formats.journal.layout import RECORD_BYTES
from warpdata.formats.journal.writer import JournalWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

KIND = "episode-signals"
FRAMES_KIND = "episode-frames"
CONTROL_STREAM = 0
"""Records of this stream are JSON: signals as they appear, static items, journals begun and released."""

SMALL_RECORD_BYTES = 64 << 10
SIGNALS_JOURNAL = "signals.journal"
SEGMENT_BYTES = 64 << 20
SEGMENT_FRAMES = 8
SEGMENT_S = 5.0
"""A journal of frames is left after this long, so that it is gone before the kernel writes its pages (30 s)."""

RAW_SYNC_S = 2.0
"""Raw frames that are not encoded after this long are synced themselves."""


class KeptJournal:
    """A journal with the threads that keep it ahead of its recorder."""

    def __init__(
        self,
        path: Path,
        descriptor: Mapping[str, Any],
        max_record_bytes: int,
        durability: Durability,
        on_failure: Callable[[StoreError], None],
        sync: Callable[[JournalWriter], None] = JournalWriter.sync,
    ) -> None:
        writer = JournalWriter(path, {**descriptor, "owner": owner()}, max_record_bytes=max_record_bytes)
        self.writer = writer
        self._keeper: JournalKeeper | None = JournalKeeper(
            writer, durability, sync=lambda: sync(writer), on_failure=on_failure
        )

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
        self.failure: StoreError | None = None
        """Why a journal could not be synced: whoever appends next must hear of it."""
        path = folder / SIGNALS_JOURNAL
        self._small = KeptJournal(path, self._descriptor, SMALL_RECORD_BYTES, durability, self.failed)
        self._large: dict[int, KeptJournal] = {}
        self._facts = 0
        self.syncs_every_step = durability.every_step
        self.small = self._small.writer
        self.lock = threading.Lock()

    def note(self, fact: Mapping[str, Any]) -> None:
        """Journal a fact about the recording itself."""
        with self.lock:
            self._note(fact)

    def append(self, stream: int, step: int, ts_ns: int, payload: Buffer, size: int) -> None:
        """Add one record of `size` bytes to the journal of its size; under `lock`."""
        self._of_size(size).writer.append(stream, step, 1, ts_ns, payload)

    def sync(self, size: int) -> None:
        """Make the journal of records of this size survive power loss."""
        self._of_size(size).writer.sync()

    def check(self) -> None:
        """Raise what went wrong while syncing."""
        if self.failure is not None:
            raise self.failure

    def close(self, *, durable: bool = True) -> None:
        """Let go of all journals, which stay on disk."""
        for kept in (self._small, *self._large.values()):
            kept.close(durable=durable)

    def failed(self, error: StoreError) -> None:
        """Keep what went wrong while syncing any journal of the recording."""
        self.failure = error

    def _note(self, fact: Mapping[str, Any]) -> None:
        self.check()
        text = dump_json(dict(fact))
        self.append(CONTROL_STREAM, self._facts, 0, text, len(text))
        self._facts += 1
        if self.syncs_every_step:
            self.sync(len(text))

    def _of_size(self, size: int) -> KeptJournal:
        if size <= SMALL_RECORD_BYTES:
            return self._small
        power = (size - 1).bit_length()
        if power not in self._large:
            path = self._folder / f"large-{power}.journal"
            with interrupts_wait():
                made = KeptJournal(path, self._descriptor, 1 << power, self._durability, self.failed)
                self._large[power] = made
                self._note({"journal": path.name})
        return self._large[power]


class Segment:
    """One journal of a camera's ring: deleted once all its frames are safely encoded.

    A frame that is encoded soon never needs to reach the disk: what is synced is its video. Only frames that wait
    for longer than `RAW_SYNC_S` are brought to the disk as they are.
    """

    def __init__(
        self,
        path: Path,
        descriptor: Mapping[str, Any],
        frame_bytes: int,
        durability: Durability,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self.name = path.name
        self.begun = math.inf
        """When its first frame came."""
        self.safe_until = 0
        """Frames before this place in the file are safely encoded."""
        self._waiting: deque[tuple[float, int]] = deque()
        self.kept = KeptJournal(
            path, descriptor, frame_bytes, durability, on_failure, sync=self._sync_what_waits
        )
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

    def _sync_what_waits(self, writer: JournalWriter) -> None:
        now = time.monotonic()
        self._waiting.append((now, writer.position))
        end = None
        while self._waiting and self._waiting[0][0] <= now - RAW_SYNC_S:
            end = self._waiting.popleft()[1]
        if end is not None:
            writer.sync(self.safe_until, end)


class FrameRing:
    """Raw frames of one camera until they are encoded, in a row of journals whose space is given back."""

    def __init__(
        self,
        folder: Path,
        stream: int,
        descriptor: Mapping[str, Any],
        frame_bytes: int,
        durability: Durability,
        shelf: Shelf,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._descriptor = {**descriptor, "kind": FRAMES_KIND, "stream": stream}
        self._frame_bytes = frame_bytes
        self._durability = durability
        self._shelf = shelf
        self._size = max(SEGMENT_BYTES, SEGMENT_FRAMES * frame_bytes)
        self._made = 0
        self._segments: deque[Segment] = deque()
        self._spare: Segment | None = None
        self._lock = threading.Lock()
        self._current = self._make()
        self._segments.append(self._current)
        try:
            shelf.note({"journal": self._current.name})
        except BaseException:
            self._current.discard()
            raise

    def append(self, step: int, ts_ns: int, frame: Buffer) -> tuple[Segment, int]:
        """Copy a frame into the journal; when this returns it survives the death of the process."""
        self._shelf.check()
        segment = self._current
        if segment.kept.writer.position >= self._size or self._is_older(SEGMENT_S):
            segment = self._rotate()
        place = segment.kept.writer.append(self._stream, step, 1, ts_ns, frame)
        segment.begun = min(segment.begun, time.monotonic())
        return segment, place

    def sync(self) -> None:
        """If every step is to survive power loss, see to it."""
        if self._durability.every_step:
            self._current.kept.writer.sync()

    def prepare(self) -> None:
        """Make the next journal ahead of time; meant for the encoder's thread."""
        with self._lock:
            is_half = self._current.kept.writer.position > self._size // 2 or self._is_older(SEGMENT_S / 2)
            if self._spare is None and is_half:
                self._spare = self._make()

    def release_before(self, segment: Segment, offset: int) -> None:
        """Say that no frame before this place is needed any more: journals behind give back their space."""
        while self._segments[0] is not segment:
            self._shelf.note({"released": self._segments[0].name})
            self._segments.popleft().discard()
        segment.safe_until = offset

    def close(self, *, durable: bool = True) -> None:
        """Let go of what is left, which stays on disk."""
        if self._spare is not None:
            self._segments.append(self._spare)
        for segment in self._segments:
            segment.close(durable=durable)

    def _is_older(self, seconds: float) -> bool:
        """Whether the first frame of the current journal came so long ago; the kernel writes old pages to the disk."""
        return time.monotonic() - self._current.begun > seconds

    def _rotate(self) -> Segment:
        with interrupts_wait(), self._lock:
            following = self._spare or self._make()
            self._spare = None
            self._segments.append(following)
            self._current = following
            self._shelf.note({"journal": following.name})
        return following

    def _make(self) -> Segment:
        path = self._folder / f"frames-{self._stream}-{self._made:06d}.journal"
        self._made += 1
        return Segment(path, self._descriptor, self._frame_bytes, self._durability, self._shelf.failed)


def remove_folder(folder: Path) -> None:
    """Take a recording folder away: at once for readers, then its contents."""
    gone = folder.with_name(f"{folder.name}-done")
    shutil.rmtree(gone, ignore_errors=True)  # what a crash left here before
    with map_os_errors(folder):
        os.rename(folder, gone)
        fsync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
