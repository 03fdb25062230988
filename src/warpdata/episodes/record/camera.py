"""A camera being recorded: frames wait in journals until a thread has encoded them into a growing video."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.commit import commit_together, fsync_files
from warpdata.episodes.record.status import FRAMES_PREFIX
from warpdata.episodes.record.tables import SignalsJournal, owner
from warpdata.episodes.record.threads import JobQueue, interrupts_wait
from warpdata.episodes.record.values import BEGIN, CLOSED, as_timestamp, mismatch_error, order_error
from warpdata.episodes.statistics import ClockStatistics, SharedClocks
from warpdata.errors import require_word
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.containers import VideoSink
from warpdata.formats.episodedir.documents import (
    Description,
    FileSum,
    FrameShape,
    Stream,
    VideoOptions,
    choose_codec,
    suffix_for,
)
from warpdata.formats.episodedir.frame_index import (
    FrameIndex,
    index_of_marks,
    pack_mark,
    write_frame_index,
)
from warpdata.formats.episodedir.video import DEFAULT_PRESET, VideoEncoder, probe
from warpdata.formats.journal.layout import FRAMES_KIND
from warpdata.formats.journal.writer import JournalWriter, SlotFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

QUEUE_BYTES = (32 << 20, 256 << 20)
"""Raw frames of a camera that may wait for the encoder: one second, but at least and at most so many bytes."""
SOME_FRAMES = 2
"""That may wait for their encoder, however large they are."""
MAX_DELAY_S = 10.0
"""A frame waits no longer, however small it is."""

SLOTS_BYTES = 8 << 20
"""Slots for raw frames are made so many bytes at a time, but at least and at most so many."""
SLOTS = (2, 64)

PRESETS = (DEFAULT_PRESET, "ultrafast")
"""The presets of H.264 between which a recorder changes; both have the same header."""
_LOWER_FROM = 0.25
"""Share of the queue from which on a faster preset is used, if it does not become shorter."""
_CALM_GROUPS = 30
"""Groups without a frame that waits, after which the preset is raised again."""
_MOST_GAPS = 4096

Policy = Literal["wait", "drop_oldest", "drop_newest"]


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What `append` does when the queue of a camera is full: wait, or drop a frame after `max_wait_ms`."""

    policy: Policy = "wait"
    max_wait_ms: float = 0.0

    @classmethod
    def check(cls, policy: str, max_wait_ms: float | None) -> QueuePolicy:
        """From the arguments of a call; a ValueError or TypeError names the wrong one."""
        require_word("policy", policy, get_args(Policy))
        if max_wait_ms is None:
            return cls(policy)  # type: ignore[arg-type]
        if policy == "wait":
            raise ValueError("max_wait_ms goes with a policy that drops frames")
        if isinstance(max_wait_ms, bool) or not isinstance(max_wait_ms, int | float):
            raise TypeError(f"max_wait_ms: expected a number, got {type(max_wait_ms).__name__}")
        if not 0 <= max_wait_ms < math.inf:
            raise ValueError(f"max_wait_ms out of range: expected 0 or more, got {max_wait_ms}")
        return cls(policy, float(max_wait_ms))  # type: ignore[arg-type]


WAIT = QueuePolicy()


def drop_facts(dropped: Sequence[int], kept: NDArray[np.int64]) -> dict[str, Any]:
    """The meta.json entries about frames that a policy dropped; `kept` are the times of the others.

    `drops` has [first time, last time, count] of every stretch without a kept frame; very many are joined in pairs.
    """
    if not len(dropped):
        return {}
    times = np.unique(np.asarray(dropped, np.int64))
    starts = np.flatnonzero(np.diff(np.searchsorted(kept, times), prepend=-1))
    starts = starts[:: 1 + len(starts) // _MOST_GAPS]
    ends = np.append(starts[1:], len(times))
    spans = np.stack([times[starts], times[ends - 1], ends - starts], 1)
    return {"dropped_frames": len(times), "drops": spans.tolist()}


def camera_entry(index: FrameIndex, data: bytes, clock: ClockStatistics | None = None) -> dict[str, Any]:
    """The entry of a camera in meta.json; `data` is the file of its index, `clock` its statistics if they are known."""
    return {
        **index.description.to_json(),
        **(clock or ClockStatistics.of(index.ts_ns)).to_json(),
        "video_bytes": index.video_bytes,
        "codec": index.stream.codec if index.stream else None,
        "file": FileSum.of(data).to_json(),
    }


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
        sync_s: float = math.inf,
    ) -> None:
        """`done`: marks of the frames in the file. `durable`: they must survive a crash while others are added.

        `sync_s`: how often the frames are brought to the disk.
        """
        self.shape = shape
        self.options = options
        self.suffix = suffix_for(choose_codec(shape, options))
        self.path = Path(f"{base}{self.suffix}")
        self.index_path = Path(f"{base}.index")
        self._durable = durable
        self._sync_s, self._synced_s = sync_s, time.monotonic()
        self._description = description
        self._marks = list(done or [])
        self._waiting: deque[int] = deque()
        self._last_sum = -1
        self._repeats = self._duplicates = self._longest_frozen = 0
        self._level = self._calm = 0
        self._backlog = 1.0
        """When the last group began; at first frames wait until the encoder is open."""
        self._frames_of: dict[str, int] = {}
        """How many frames were encoded with each preset, where it may change."""
        marks_path = Path(f"{base}.marks")
        end = None if not self._marks else self._marks[-1].offset + self._marks[-1].size
        if end is None:
            for leftover in (self.path, marks_path):
                leftover.unlink(missing_ok=True)
        self._sink = VideoSink(str(self.path), self.suffix, append_at=end)
        self._marks_file: AppendFile | None = None
        if durable:
            self._marks_file = AppendFile.open(marks_path, end=len(self._marks) * layout.FRAME_MARK_BYTES)
        self._encoder: VideoEncoder | None = None
        self._open_encoder(options)

    def _open_encoder(self, options: VideoOptions) -> None:
        keys = sum(mark.flags & layout.KEYFRAME_FLAG for mark in self._marks)
        try:
            encoder = VideoEncoder(
                self._sink, self.shape, options, first_frame=len(self._marks), fragment=keys + 1
            )
        except BaseException:
            self.close()
            raise
        self._encoder, self._keyframes = encoder, encoder.keyframes

    def adapt(self, backlog: float) -> None:
        """Before each frame: use a faster preset while frames pile up, and the first one again when none wait.

        Only H.264 without a chosen preset is changed, when a group begins. `backlog`: share of the queue in use.
        """
        if (
            self.suffix != ".mp4"
            or self.options.preset is not None
            or self.options.codec not in (None, "h264")
        ):
            return
        number = len(self._marks) + len(self._waiting)
        if number and number % self.options.gop_size == 0:
            self._calm = 0 if backlog else self._calm + 1
            level = self._level
            if backlog >= max(_LOWER_FROM, self._backlog):
                level = min(level + 1, len(PRESETS) - 1)
            elif self._calm >= _CALM_GROUPS:
                level = max(level - 1, 0)
            self._backlog = backlog
            if level != self._level:
                self._level, self._calm = level, 0
                self._reopen(replace(self.options, preset=PRESETS[level]))
        preset = PRESETS[self._level]
        self._frames_of[preset] = self._frames_of.get(preset, 0) + 1

    def _reopen(self, options: VideoOptions) -> None:
        """Continue the file with another encoder, whose header is the same."""
        assert self._encoder is not None
        self._encoder.close()
        self._encoder = None
        self._mark()
        self._sink.close()
        end = self._marks[-1].offset + self._marks[-1].size
        self._sink = VideoSink(str(self.path), self.suffix, append_at=end)
        self._open_encoder(options)

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
            self._encoder, self._sync_s = None, math.inf  # the whole file is synced next
            self._mark()

    def complete(self, dropped: Sequence[int] = ()) -> dict[str, Any]:
        """Write the ends of the video and of its index under temporary names; returns the entry for meta.json.

        `dropped` are the times of frames that were dropped.
        """
        self.drain()
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} frames did not come out of the encoder")
        self.close()
        size = self.path.stat().st_size
        index = index_of_marks(
            self._marks, self.shape, self.stream(), size, self._description, self.options.fps
        )
        write_frame_index(str(self.index_path), index)
        return {
            **camera_entry(index, self.index_path.read_bytes()),
            "duplicate_frames": self._duplicates,
            "longest_frozen_frames": self._longest_frozen,
            **({"presets": self._frames_of} if len(self._frames_of) > 1 else {}),
            **drop_facts(dropped, index.ts_ns),
        }

    def files(self, video: Path, frames: Path) -> list[tuple[Path, Path]]:
        """The complete files and their final paths."""
        return [(self.path, video), (self.index_path, frames)]

    def commit(self, video: Path, frames: Path, *, dropped: Sequence[int] = ()) -> dict[str, Any]:
        """Finish the files under their names."""
        facts, files = self.complete(dropped), self.files(video, frames)
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

    def _mark(self) -> bool:
        """Mark the frames that are completely in the file."""
        packets = self._sink.take()
        marks = [
            layout.FrameMark(
                self._waiting.popleft(), *packet[:2], int(self._keyframes.popleft()), packet.crc32c, 0
            )
            for packet in packets
        ]
        if marks and self._marks_file is not None:
            self._marks_file.append(*map(pack_mark, marks))
            if time.monotonic() - self._synced_s >= self._sync_s:
                self._sink.sync()
                self._marks_file.sync()
                self._synced_s = time.monotonic()
        self._marks += marks
        return bool(marks)


class FramePlace(NamedTuple):
    """Where a raw frame is: the number of a slot, or an offset in a journal."""

    file: SlotFile | JournalWriter
    at: int


class FrameSlots:
    """Raw frames of one camera until they are encoded, in slots that are used again.

    `append` never makes a file: the background makes more slots before the last one is taken, and until it has made
    the first ones, frames go to a journal.
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
        self._path = f"{folder}/{FRAMES_PREFIX}{stream}"
        self._stream = stream
        self._descriptor = {**descriptor, "kind": FRAMES_KIND, "stream": stream}
        self._frame_bytes = frame_bytes
        least, most = SLOTS
        self._slots = min(max(least, SLOTS_BYTES // frame_bytes), most)
        self._files: list[SlotFile] = []
        self._free: list[FramePlace] = []
        """The last one is the next to be taken: memory that was used just now is in the cache."""
        self._next: tuple[int, FramePlace] | None = None
        """The last frame and its slot: one that Ctrl-C interrupted comes again, to the same slot."""
        self._made: SlotFile | None = None
        """Slots that the background made and that are not used yet."""
        self._is_growing = False
        self._is_closed = False
        self._grow_soon()

    def append(self, step: int, ts_ns: int, frame: Buffer) -> FramePlace:
        """Copy a frame to where it survives the death of the process."""
        self.signals.threads.check()
        if self._made is not None:
            with interrupts_wait():
                file, self._made = self._made, None
                self.signals.note({"journal": os.path.basename(file.path)})
                self._free += [FramePlace(file, slot) for slot in range(self._slots)]
                self._is_growing = False
        if self._next is None or self._next[0] != step:
            if len(self._free) * 2 <= self._slots:
                self._grow_soon()
            try:
                self._next = step, self._free.pop()
            except IndexError:
                return FramePlace(*self.signals.append_frame(self._stream, step, ts_ns, frame))
        place = self._next[1]
        assert isinstance(place.file, SlotFile)
        place.file.write(place.at, self._stream, step, ts_ns, frame)
        return place

    def release(self, place: FramePlace) -> None:
        """The frame there is needed no more."""
        if isinstance(place.file, SlotFile):
            self._free.append(place)

    def _grow_soon(self) -> None:
        if not self._is_growing and not self._is_closed:
            self._is_growing = True
            self.signals.threads.chores.submit(self._grow)

    def _grow(self) -> None:
        """In the background: make more slots, in memory unless every record is to survive power loss."""
        path = f"{self._path}-{len(self._files):06d}.journal"
        about = {**self._descriptor, "journal": os.path.basename(path), "owner": owner()}
        in_memory = not self.signals.syncs_every_record
        file = SlotFile(path, about, slots=self._slots, record_bytes=self._frame_bytes, in_memory=in_memory)
        self._files.append(file)
        if self._is_closed:
            file.close()
            return
        # Noted by the camera: who holds the lock of the journal may be waiting for this thread.
        self._made = file

    def close(self) -> None:
        """Close all files, which stay."""
        self._is_closed = True
        for file in self._files:
            file.close()


class Frame(NamedTuple):
    """A frame in a journal: its number among those of its camera, and where it is."""

    number: int
    ts_ns: int
    place: FramePlace
    queued_s: float


class CameraRecorder:
    """One camera of a recording: `append` costs one copy; with a slow encoder its policy decides.

    Its files and its encoder are opened in the background: frames that cannot be encoded are an error of the next call.

    Ctrl-C may come between any two calls: a frame counts from the moment the journal has it, and one that was not
    handed to the encoder then is handed over by the next call, maybe twice: the encoder knows which it has.
    """

    def __init__(
        self,
        name: str,
        stream: int,
        shape: FrameShape,
        fps: float,
        open_video: Callable[[], VideoFile],
        frames: FrameSlots,
        jobs: JobQueue,
        policy: QueuePolicy,
        on_drop: Callable[[int], None],
    ) -> None:
        self.name = name
        self.stream = stream
        self.count = 0
        """Frames that reached the journal; those dropped since are among them."""
        self.last_ts_ns = BEGIN
        self.jobs = jobs
        self.policy = policy
        self._on_drop = on_drop
        self._removed = 0
        self.dropped: list[int] = []
        """Times of the frames that the policy dropped."""
        least, most = (size // shape.nbytes for size in QUEUE_BYTES)
        self.limit = max(SOME_FRAMES, min(max(least, round(fps)), most))
        """How many frames may wait."""
        self.waiting: deque[Frame] = deque()
        """Frames that no encoder has taken yet."""
        self._video: VideoFile | None = None
        """None until the background has opened it."""
        self._open_video = open_video
        self._is_stream_noted = False
        self._facts: dict[str, Any] = {}
        self._newest: Frame | None = None
        """The last frame in the journal, until it is handed over."""
        self._encoded = -1
        self._released = 0
        self._frames = frames
        self._shape = shape.shape
        self._nbytes = shape.nbytes
        self._dtype = np.dtype(shape.dtype)
        self._lock = threading.Lock()
        self._scratch: NDArray[Any] | None = None
        """Frames read back by the background."""
        self._pending: deque[Frame] = deque()

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
            self._hand_over()
            if ts_ns is None:
                ts_ns = self._frames.signals.now()
            if ts_ns <= self.last_ts_ns:
                raise order_error(self.name, ts_ns, self.last_ts_ns)
            is_waiting = self.policy.policy == "wait"
            if not self.jobs.wait_until(
                self._has_room, math.inf if is_waiting else self.policy.max_wait_ms / 1e3
            ):
                if self.policy.policy == "drop_newest":
                    self._drop(ts_ns, None)
                    self.last_ts_ns = ts_ns
                    return
                with contextlib.suppress(IndexError):  # the encoder took the last one just now
                    oldest = self.waiting.popleft()
                    self._drop(oldest.ts_ns, oldest.number)
                    self._frames.release(oldest.place)
            place = self._frames.append(self.count, ts_ns, pixels)
            self._newest = Frame(self.count, ts_ns, place, time.monotonic())
            self._hand_over()
            if self._frames.signals.syncs_every_record:
                place.file.sync_slot(place.at) if isinstance(place.file, SlotFile) else place.file.sync()

    def _has_room(self) -> bool:
        if len(self.waiting) < SOME_FRAMES:
            return True
        return len(self.waiting) < self.limit and self.delay_s() < MAX_DELAY_S

    def delay_s(self) -> float:
        """How long the oldest frame waits for the encoder."""
        try:
            return time.monotonic() - self.waiting[0].queued_s
        except IndexError:
            return 0.0

    def _drop(self, ts_ns: int, number: int | None) -> None:
        """Count a frame that is not recorded, or not any more; the note survives a crash."""
        place = {} if number is None else {"step": number}
        self._removed += number is not None
        self._frames.signals.note({"dropped": {"stream": self.stream, "ts_ns": ts_ns, **place}})
        self.dropped.append(ts_ns)
        self._on_drop(len(self.dropped))

    @property
    def kept(self) -> int:
        """Frames recorded so far, without those dropped since."""
        return self.count - self._removed

    @property
    def recorded_bytes(self) -> int:
        """Raw bytes of the frames recorded so far."""
        return self.kept * self._nbytes

    def close(self) -> None:
        """Hand over the rest; later appends are refused."""
        with self._lock:
            self._hand_over()
            self.last_ts_ns = CLOSED

    def complete(self) -> None:
        """Encode the tail and write the ends of the files."""
        self.jobs.finish()
        while self.waiting:  # Ctrl-C came before the job of a frame was queued
            self._encode_next()
        assert self._video is not None
        self._facts = self._video.complete(self.dropped)
        self._frames.close()

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
        newest = self._newest
        if newest is not None:
            self.count, self.last_ts_ns = newest.number + 1, newest.ts_ns
            if not self.waiting or self.waiting[-1].number < newest.number:
                self.waiting.append(newest)
            self._newest = None
            # Where a frame was dropped there is a job more than frames.
            if len(self.jobs.jobs) <= len(self.waiting):
                self.jobs.submit(self._encode_next)

    def _encode_next(self) -> None:
        """In the background: read a frame from the journal, encode it, free the space of frames that are safe."""
        try:
            frame = self.waiting.popleft()
        except IndexError:
            return
        if frame.number <= self._encoded:
            return
        if self._video is None:
            self._video = self._open_video()
        if self._scratch is None:
            self._scratch = np.empty(self._shape, self._dtype)
        video, scratch = self._video, self._scratch
        frame.place.file.read_payload(frame.place.at, scratch.reshape(-1).view(np.uint8).data)
        self._pending.append(frame)
        self._encoded = frame.number
        video.adapt(len(self.waiting) / self.limit)
        video.encode(scratch, frame.ts_ns)
        if video.safe > self._released:
            if not self._is_stream_noted:  # before the first raw frame leaves: how to decode those that left
                self._frames.signals.note({"video": {"stream": self.stream, **video.stream().to_json()}})
                self._is_stream_noted = True
            for _ in range(video.safe - self._released):
                self._frames.release(self._pending.popleft().place)
            self._released = video.safe

    def _as_frame(self, data: Any) -> NDArray[Any]:
        if not isinstance(data, np.ndarray):
            with contextlib.suppress(ValueError, TypeError):
                data = np.asarray(data)
        if not isinstance(data, np.ndarray) or data.shape != self._shape or data.dtype != self._dtype:
            got = f"{data.dtype}{list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise mismatch_error(self.name, f"{self._dtype}{list(self._shape)}", got)
        return np.ascontiguousarray(data)
