"""A camera being recorded: frames wait in journals until a thread has encoded them into a growing video."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.commit import commit_together, fsync_files
from warpdata.episodes.record.tables import SignalsJournal, owner
from warpdata.episodes.record.threads import JobQueue, RecordingThreads, interrupts_wait
from warpdata.episodes.record.values import BEGIN, CLOSED, as_timestamp, mismatch_error, order_error
from warpdata.episodes.statistics import ClockStatistics, SharedClocks
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.containers import VideoSink
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import index_of_marks, pack_mark, write_frame_index
from warpdata.formats.episodedir.images import FrameShape, Stream, VideoOptions, choose_codec, suffix_for
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import VideoEncoder, probe
from warpdata.formats.journal.layout import FRAMES_KIND
from warpdata.formats.journal.writer import JournalWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

QUEUE_BYTES = 256 << 20
"""Raw frames that may wait for the encoder before `append` blocks."""

SEGMENT_BYTES = 64 << 20
SEGMENT_FRAMES = 8
SEGMENT_S = 5.0
"""A journal of frames is left after this long, so that it is gone before the kernel writes its pages (30 s)."""

RAW_SYNC_S = 2.0
"""Raw frames that are not encoded after this long are synced themselves."""


class VideoFile:
    """The growing video of a camera: encoded frames, and a mark on disk for each that is safely inside."""

    def __init__(
        self,
        base: Path,
        shape: FrameShape,
        options: VideoOptions,
        done: list[layout.FrameMark] | None = None,
        description: Description | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """`done`: marks of the frames in the file. `durable`: they must survive a crash while others are added."""
        self.shape = shape
        self.options = options
        self.suffix = suffix_for(choose_codec(shape, options))
        self.path = Path(f"{base}{self.suffix}")
        self.index_path = Path(f"{base}.index")
        self._durable = durable
        self._description = description
        self._marks = list(done or [])
        self._waiting: deque[int] = deque()
        self._last_sum = -1
        self._repeats = self._duplicates = self._longest_frozen = 0
        marks_path = Path(f"{base}.marks")
        end = None if not self._marks else self._marks[-1].offset + self._marks[-1].size
        if end is None:
            for leftover in (self.path, marks_path):
                leftover.unlink(missing_ok=True)
        self._sink = VideoSink(str(self.path), self.suffix, append_at=end)
        self._marks_file: AppendFile | None = None
        if durable:
            self._marks_file = AppendFile.open(marks_path, end=len(self._marks) * layout.FRAME_MARK_BYTES)
        keys = sum(mark.flags & layout.KEYFRAME_FLAG for mark in self._marks)
        self._encoder: VideoEncoder | None = None
        try:
            encoder = VideoEncoder(
                self._sink, shape, options, first_frame=len(self._marks), fragment=keys + 1
            )
        except BaseException:
            self.close()
            raise
        self._encoder, self._keyframes = encoder, encoder.keyframes

    @property
    def safe(self) -> int:
        """How many frames are completely in the file."""
        return len(self._marks)

    @property
    def waits(self) -> int:
        """How many frames were given to the encoder and are not completely in the file yet."""
        return len(self._waiting)

    def stream(self) -> Stream:
        """The decoder parameters in the header of the file."""
        return probe(str(self.path)).stream

    def encode(self, frame: NDArray[Any], ts_ns: int) -> bool:
        """Encode the next frame; True when frames became safe."""
        assert self._encoder is not None
        # Frames that repeat the one before are counted: a camera that froze.
        checksum = crc32c(frame.reshape(-1).view(np.uint8).data)
        self._repeats = self._repeats + 1 if checksum == self._last_sum else 0
        self._duplicates += bool(self._repeats)
        self._longest_frozen = max(self._longest_frozen, self._repeats)
        self._last_sum = checksum
        self._waiting.append(ts_ns)
        began = self._encoder.encode(frame)
        return began and len(self._waiting) > self.options.gop_size and self._mark()

    def drain(self) -> None:
        """Wait until every frame came out of the encoder, which takes no more: it may hold half of the work."""
        if self._waiting:
            assert self._encoder is not None
            self._encoder.close()
            self._encoder = None
            self._mark(is_end=True)

    def complete(self) -> dict[str, Any]:
        """Write the ends of the video and of its index under temporary names; returns the entry for meta.json."""
        self.drain()
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} frames did not come out of the encoder")
        self.close()
        size = self.path.stat().st_size
        index = index_of_marks(
            self._marks, self.shape, self.stream(), size, self._description, self.options.fps
        )
        write_frame_index(str(self.index_path), index)
        total = FileSum.of(self.index_path.read_bytes())
        clock = ClockStatistics()
        clock.add(index.ts_ns)
        return {
            **index.description.to_json(), **clock.to_json(), "video_bytes": size,
            "codec": index.stream.codec if index.stream else None,
            "duplicate_frames": self._duplicates, "longest_frozen_frames": self._longest_frozen,
            "file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
        }  # fmt: skip

    def files(self, video: Path, frames: Path) -> list[tuple[Path, Path]]:
        """The complete files and their final paths."""
        return [(self.path, video), (self.index_path, frames)]

    def commit(self, video: Path, frames: Path) -> dict[str, Any]:
        """Finish the files under their names."""
        facts, files = self.complete(), self.files(video, frames)
        if self._durable:
            fsync_files([temp for temp, _ in files])
            commit_together(files, video.parent)
        else:
            for temp, name in files:
                os.replace(temp, name)
        return facts

    def close(self) -> None:
        """Close the files."""
        if self._encoder is not None:
            self._encoder.discard()
        self._sink.close()
        if self._marks_file is not None:
            self._marks_file.close()

    def _mark(self, *, is_end: bool = False) -> bool:
        """Mark the frames that are completely in the file, on the disk too; the end is synced later."""
        packets = self._sink.take()
        marks = [
            layout.FrameMark(
                self._waiting.popleft(), *packet[:2], int(self._keyframes.popleft()), packet.crc32c, 0
            )
            for packet in packets
        ]
        if marks and self._marks_file is not None:
            if not is_end:
                self._sink.sync()
            self._marks_file.append(*map(pack_mark, marks), sync=not is_end)
        self._marks += marks
        return bool(marks)


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
        """Time of its first frame."""
        self.safe_until = 0
        """Frames before this offset are safely encoded."""
        self._waiting: deque[tuple[float, int]] = deque()
        self._threads = threads
        about = {**descriptor, "journal": self.name, "owner": owner()}
        self.writer = JournalWriter(path, about, max_record_bytes=frame_bytes)
        threads.add_journal(self.writer, self._sync_waiting)

    def close(self, *, durable: bool = False, discard: bool = False) -> None:
        """Close the journal, which stays on disk unless `discard` gives its space back."""
        self._threads.remove_journal(self.writer)
        if discard:
            self.writer.discard()
        else:
            self.writer.close(durable=durable)

    def _sync_waiting(self) -> None:
        now = time.monotonic()
        self._waiting.append((now, self.writer.position))
        end = None
        while self._waiting and self._waiting[0][0] <= now - RAW_SYNC_S:
            end = self._waiting.popleft()[1]
        if end is not None:
            self.writer.sync(self.safe_until, end)


class FrameJournals:
    """Raw frames of one camera until they are encoded, in a sequence of journals whose space is freed.

    `append` never makes a file: until the background has made the first journal, frames go where all other records
    go, and while it has not made the next one, the current one grows.
    """

    def __init__(
        self,
        folder: Path,
        stream: int,
        descriptor: Mapping[str, Any],
        frame_bytes: int,
        signals: SignalsJournal,
    ) -> None:
        self.signals = signals
        self._path = f"{folder}/frames-{stream}"
        self._stream = stream
        self._descriptor = {**descriptor, "kind": FRAMES_KIND, "stream": stream}
        self._frame_bytes = frame_bytes
        self._size = max(SEGMENT_BYTES, SEGMENT_FRAMES * frame_bytes)
        self._made = 0
        self._journals: deque[FrameJournal] = deque()
        self._current: FrameJournal | None = None
        self._spare: FrameJournal | None = None
        self._lock = threading.Lock()

    def append(self, step: int, ts_ns: int, frame: Buffer) -> tuple[FrameJournal | None, int]:
        """Copy a frame into a journal, where it survives the death of the process; returns journal and offset."""
        self.signals.threads.check()
        if self._spare is not None and self._is_used(1.0):
            with interrupts_wait(), self._lock:
                if self._spare is not None:
                    self.signals.note({"journal": self._spare.name})
                    self._journals.append(self._spare)
                    self._current, self._spare = self._spare, None
        journal = self._current
        if journal is None:
            with self.signals.lock:
                return None, self.signals.writer.append(self._stream, step, 1, ts_ns, frame)
        offset = journal.writer.append(self._stream, step, 1, ts_ns, frame)
        journal.begun = min(journal.begun, time.monotonic())
        return journal, offset

    def read(self, journal: FrameJournal | None, offset: int, out: memoryview) -> None:
        """Read back the frame at a place that `append` returned."""
        (self.signals if journal is None else journal).writer.read_payload(offset, out)

    def sync(self) -> None:
        """Sync if every record is to survive power loss."""
        if self.signals.syncs_every_record:
            (self._current or self.signals).writer.sync()

    def prepare(self) -> None:
        """Make the next journal ahead of time; for a thread of the recording."""
        if self._spare is None and self._is_used(0.5):
            path = Path(f"{self._path}-{self._made:06d}.journal")
            self._made += 1
            journal = FrameJournal(path, self._descriptor, self._frame_bytes, self.signals.threads)
            with self._lock:
                self._spare = journal

    def release_before(self, journal: FrameJournal | None, offset: int) -> None:
        """Free the space of all frames before this place."""
        if journal is None:
            return
        while self._journals[0] is not journal:
            self.signals.note({"released": self._journals[0].name})
            self._journals.popleft().close(discard=True)
        journal.safe_until = offset
        # Pages that are gone are not written. Noted before, because a file cut where it is empty looks complete.
        self.signals.note({"given_back": {"journal": journal.name, "until": offset}})
        journal.writer.release(offset)

    def close(self, *, durable: bool = True) -> None:
        """Close all journals, which stay on disk."""
        for journal in (*self._journals, *filter(None, [self._spare])):
            journal.close(durable=durable)

    def _is_used(self, share: float) -> bool:
        """Whether so much of the current journal's size or age is used up; the kernel writes old pages to the disk."""
        current = self._current
        if current is None:
            return True
        is_old = time.monotonic() - current.begun > SEGMENT_S * share
        return is_old or current.writer.position >= self._size * share


class CameraRecorder:
    """One camera of a recording: `append` costs one copy; a slow encoder makes it wait, never drop.

    Its files and its encoder are opened in the background: frames that cannot be encoded are an error of the next call.

    Ctrl-C may come between any two calls: a frame counts from the moment the journal has it, and one that was not
    handed to the encoder then is handed over by the next call, maybe twice: the encoder knows which it has.
    """

    def __init__(
        self,
        name: str,
        stream: int,
        shape: FrameShape,
        open_video: Callable[[], VideoFile],
        frames: FrameJournals,
        jobs: JobQueue,
    ) -> None:
        self.name = name
        self.stream = stream
        self.count = 0
        self.last_ts_ns = BEGIN
        self.jobs = jobs
        self._video: VideoFile | None = None
        """None until the background has opened it."""
        self._open_video = open_video
        self._is_stream_noted = False
        self._facts: dict[str, Any] = {}
        self._handed = 0
        self._encoded = 0
        self._newest: tuple[FrameJournal | None, int] | None = None
        self._frames = frames
        self._shape = shape.shape
        self._dtype = np.dtype(shape.dtype)
        self._lock = threading.Lock()
        self._scratch: NDArray[Any] | None = None
        """Frames read back by the background."""
        self._pending: deque[tuple[FrameJournal | None, int]] = deque()

    def check(self, data: Any, ts_ns: int) -> NDArray[Any]:
        """The frame as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise order_error(self.name, ts_ns, self.last_ts_ns)
        return self._as_frame(data)

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of a frame, without `ts_ns` at the time of the clock; then it survives a crash."""
        frame = self._as_frame(data)
        if ts_ns is not None:
            ts_ns = as_timestamp(ts_ns)
        pixels = frame.data
        with self._lock:
            if ts_ns is None:
                ts_ns = self._frames.signals.now()
            if ts_ns <= self.last_ts_ns:
                raise order_error(self.name, ts_ns, self.last_ts_ns)
            self._hand_over()
            self.jobs.wait_for_room()
            self._newest = self._frames.append(self.count, ts_ns, pixels)
            self.last_ts_ns = ts_ns
            self.count += 1
            self._hand_over()
            self._frames.sync()

    def close(self) -> None:
        """Hand over the rest; later appends are refused."""
        with self._lock:
            self._hand_over()
            self.last_ts_ns = CLOSED

    def complete(self) -> None:
        """Encode the tail and write the ends of the files."""
        self.jobs.finish()
        assert self._video is not None
        self._facts = self._video.complete()
        self._frames.close(durable=False)

    def facts(self, _clocks: SharedClocks) -> dict[str, Any]:
        """The entry of the camera in meta.json, once its files are complete."""
        return {**self._facts, "blocked_ns": self.jobs.blocked_ns}

    def files(self, data: Path, frames: Path) -> list[tuple[Path, Path]]:
        """The complete files and their final paths."""
        assert self._video is not None
        return self._video.files(data, frames)

    @property
    def suffix(self) -> str:
        """The suffix of its video."""
        assert self._video is not None
        return self._video.suffix

    def cancel(self) -> None:
        """Stop encoding and close everything; files stay as they are."""
        self.jobs.cancel()  # first: an `append` that waits for room holds the lock
        with self._lock:
            self.last_ts_ns = CLOSED
        if self._video is not None:
            self._video.close()
        self._frames.close()

    def _hand_over(self) -> None:
        if self._handed < self.count and self._newest is not None:
            (journal, offset), number, ts_ns = self._newest, self.count, self.last_ts_ns
            self.jobs.submit(lambda: self._encode(number, journal, offset, ts_ns))
            self._handed = number

    def _encode(self, number: int, journal: FrameJournal | None, offset: int, ts_ns: int) -> None:
        """In the background: read the frame from the journal, encode it, free the space of frames that are safe."""
        if number <= self._encoded:
            return
        if self._video is None:
            self._frames.prepare()  # first: frames come already
            self._video = self._open_video()
        if self._scratch is None:
            self._scratch = np.empty(self._shape, self._dtype)
        video, scratch = self._video, self._scratch
        self._frames.read(journal, offset, scratch.reshape(-1).view(np.uint8).data)
        self._pending.append((journal, offset))
        self._encoded = number
        before = video.safe
        if video.encode(scratch, ts_ns):
            if not self._is_stream_noted:  # before the first raw frame leaves: how to decode those that left
                self._frames.signals.note({"video": {"stream": self.stream, **video.stream().to_json()}})
                self._is_stream_noted = True
            for _ in range(video.safe - before):
                self._pending.popleft()
            self._frames.release_before(*(self._pending[0] if self._pending else (journal, offset)))
        self._frames.prepare()

    def _as_frame(self, data: Any) -> NDArray[Any]:
        if not isinstance(data, np.ndarray):
            with contextlib.suppress(ValueError, TypeError):
                data = np.asarray(data)
        if not isinstance(data, np.ndarray) or data.shape != self._shape or data.dtype != self._dtype:
            got = f"{data.dtype}{list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise mismatch_error(self.name, f"{self._dtype}{list(self._shape)}", got)
        return np.ascontiguousarray(data)
