"""A camera being recorded: frames wait in a journal until a thread has encoded them; none is dropped."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.commit import commit_together, fsync_files
from warpdata.episodes.record.journals import FrameJournal, FrameJournals
from warpdata.episodes.record.threads import JobQueue
from warpdata.episodes.record.values import BEGIN, CLOSED, as_timestamp, mismatch, refused
from warpdata.episodes.statistics import ClockStatistics, SharedClocks
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.containers import VideoSink
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import index_of_marks, pack_mark, write_frame_index
from warpdata.formats.episodedir.images import FrameShape, Stream, VideoOptions, choose_codec, suffix_for
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import VideoEncoder, probe

QUEUE_BYTES = 256 << 20
"""Raw frames that may wait for the encoder before `append` blocks."""


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
        """`durable`: frames must survive a crash while others are added."""
        self.shape = shape
        self._durable = durable
        self.options = options
        self.clock = ClockStatistics()
        self.duplicates = 0
        self.longest_frozen = 0
        self._description = description
        self.suffix = suffix_for(choose_codec(shape, options))
        self.path = Path(f"{base}{self.suffix}")
        self.marks_path = Path(f"{base}.marks")
        self.index_path = Path(f"{base}.index")
        self._marks = list(done or [])
        self._waiting: deque[int] = deque()
        self._last_sum = -1
        self._run = 0
        end = None if not self._marks else self._marks[-1].offset + self._marks[-1].size
        if end is None:
            for leftover in (self.path, self.marks_path):
                leftover.unlink(missing_ok=True)
        self._sink = VideoSink(str(self.path), self.suffix, append_at=end)
        self._marks_file: AppendFile | None = None
        if durable:
            marked = len(self._marks) * layout.FRAME_MARK_BYTES
            self._marks_file = AppendFile.open(self.marks_path, end=marked)
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
        self._watch(frame)
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
        """Write the ends of the video and of its index, which still have no names; returns the entry for meta.json."""
        self.drain()
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} frames did not come out of the encoder")
        self.close()
        return self._index()

    def files(self, video: Path, frames: Path) -> list[tuple[Path, Path]]:
        """The complete files and the names they are to have."""
        return [(self.path, video), (self.index_path, frames)]

    def commit(self, video: Path, frames: Path) -> dict[str, Any]:
        """Finish the files under their names."""
        found, files = self.complete(), self.files(video, frames)
        if self._durable:
            fsync_files([temp for temp, _ in files])
            commit_together(files, video.parent)
        else:
            for temp, name in files:
                os.replace(temp, name)
        return found

    def close(self) -> None:
        """Let go of the files."""
        if self._encoder is not None:
            self._encoder.discard()
        self._sink.close()
        if self._marks_file is not None:
            self._marks_file.close()

    def _watch(self, frame: NDArray[Any]) -> None:
        """Count frames that repeat the one before: a camera that froze."""
        now = crc32c(frame.reshape(-1).view(np.uint8).data)
        self._run = self._run + 1 if now == self._last_sum else 0
        self.duplicates += bool(self._run)
        self.longest_frozen = max(self.longest_frozen, self._run)
        self._last_sum = now

    def _mark(self, *, is_end: bool = False) -> bool:
        """Note which frames are completely in the file; on the disk, if need be, where the end is synced later."""
        packets = self._sink.take()
        if not packets:
            return False
        marks = [
            layout.FrameMark(
                self._waiting.popleft(), *packet[:2], int(self._keyframes.popleft()), packet.crc32c, 0
            )
            for packet in packets
        ]
        if self._marks_file is not None:
            if not is_end:
                self._sink.sync()
            self._marks_file.append(*map(pack_mark, marks), sync=not is_end)
        self._marks += marks
        return True

    def _index(self) -> dict[str, Any]:
        size = self.path.stat().st_size
        index = index_of_marks(
            self._marks, self.shape, self.stream(), size, self._description, self.options.fps
        )
        description = index.description
        write_frame_index(str(self.index_path), index)
        total = FileSum.of(self.index_path.read_bytes())
        self.clock.add(index.ts_ns)
        return {
            **description.to_json(), **self.clock.to_json(), "video_bytes": size,
            "codec": index.stream.codec if index.stream else None,
            "duplicate_frames": self.duplicates, "longest_frozen_frames": self.longest_frozen,
            "file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
        }  # fmt: skip


class CameraRecorder:
    """One camera of a recording: `append` costs one copy; a slow encoder makes it wait, never drop.

    Its files and its encoder are opened in the background: what cannot be encoded is an error of the next call.

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
        note_stream: Callable[[Stream], None],
    ) -> None:
        self.name = name
        self.stream = stream
        self.video: VideoFile | None = None
        """None until the background has opened it."""
        self.count = 0
        self._open_video = open_video
        self._note_stream: Callable[[Stream], None] | None = note_stream
        self._facts: dict[str, Any] = {}
        self._handed = 0
        self._encoded = 0
        self._newest: tuple[FrameJournal | None, int] | None = None
        self._frames = frames
        self.last_ts_ns = BEGIN
        self._shape = shape.shape
        self._dtype = np.dtype(shape.dtype)
        self._lock = threading.Lock()
        self._scratch: NDArray[Any] | None = None
        """Where the background reads frames back to."""
        self._pending: deque[tuple[FrameJournal | None, int]] = deque()
        self._jobs = jobs

    def checked(self, data: Any, ts_ns: int) -> NDArray[Any]:
        """The frame as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise refused(self.name, ts_ns, self.last_ts_ns)
        return self._checked(data)

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of a frame, without `ts_ns` at the time of the clock; then it survives a crash."""
        frame = self._checked(data)
        if ts_ns is not None:
            ts_ns = as_timestamp(ts_ns)
        pixels = frame.data
        with self._lock:
            if ts_ns is None:
                ts_ns = self._frames.now()
            if ts_ns <= self.last_ts_ns:
                raise refused(self.name, ts_ns, self.last_ts_ns)
            self._hand_over()
            self._jobs.room()
            self._newest = self._frames.append(self.count, ts_ns, pixels)
            self.last_ts_ns = ts_ns
            self.count += 1
            self._hand_over()
            self._frames.sync()

    @property
    def blocked_ns(self) -> int:
        """How long `append` waited for the encoder in all."""
        return self._jobs.blocked_ns

    @property
    def blocked(self) -> int:
        """How often `append` had to wait for the encoder."""
        return self._jobs.blocked

    @property
    def waiting(self) -> int:
        """Frames that wait for the encoder, or are in its hands."""
        return len(self._jobs.jobs)

    def close(self) -> None:
        """Hand over the rest; later appends are refused."""
        with self._lock:
            self._hand_over()
            self.last_ts_ns = CLOSED

    def complete(self) -> None:
        """Encode the tail and write the ends of the files."""
        self._jobs.finish()
        assert self.video is not None
        self._facts = self.video.complete()
        self._frames.close(durable=False)

    def facts(self, _clocks: SharedClocks) -> dict[str, Any]:
        """The entry of the camera in meta.json, once its files are complete."""
        return {**self._facts, "blocked_ns": self.blocked_ns}

    def files(self, data: Path, frames: Path) -> list[tuple[Path, Path]]:
        """The complete files and the names they are to have."""
        assert self.video is not None
        return self.video.files(data, frames)

    @property
    def suffix(self) -> str:
        """How the name of its video ends."""
        assert self.video is not None
        return self.video.suffix

    def cancel(self) -> None:
        """Stop encoding and close everything; files stay as they are."""
        self._jobs.cancel()  # first: an `append` that waits for room holds the lock
        with self._lock:
            self.last_ts_ns = CLOSED
        if self.video is not None:
            self.video.close()
        self._frames.close()

    def _hand_over(self) -> None:
        if self._handed < self.count and self._newest is not None:
            (journal, place), number, ts_ns = self._newest, self.count, self.last_ts_ns
            self._jobs.submit(lambda: self._encode(number, journal, place, ts_ns))
            self._handed = number

    def _encode(self, number: int, journal: FrameJournal | None, place: int, ts_ns: int) -> None:
        """In the background: read the frame from the journal, encode it, free the space of frames that are safe."""
        if number <= self._encoded:
            return
        if self.video is None:
            self._frames.prepare()  # first: frames come already
            self.video = self._open_video()
        if self._scratch is None:
            self._scratch = np.empty(self._shape, self._dtype)
        scratch = self._scratch
        self._frames.read(journal, place, scratch.reshape(-1).view(np.uint8).data)
        self._pending.append((journal, place))
        self._encoded = number
        before = self.video.safe
        if self.video.encode(scratch, ts_ns):
            if (
                self._note_stream is not None
            ):  # before the first raw frame leaves: how to decode those that left
                self._note_stream(self.video.stream())
                self._note_stream = None
            for _ in range(self.video.safe - before):
                self._pending.popleft()
            self._frames.release_before(*(self._pending[0] if self._pending else (journal, place)))
        self._frames.prepare()

    def _checked(self, data: Any) -> NDArray[Any]:
        if not isinstance(data, np.ndarray):
            with contextlib.suppress(ValueError, TypeError):
                data = np.asarray(data)
        if not isinstance(data, np.ndarray) or data.shape != self._shape or data.dtype != self._dtype:
            got = f"{data.dtype}{list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise mismatch(self.name, f"{self._dtype}{list(self._shape)}", got)
        return np.ascontiguousarray(data)
