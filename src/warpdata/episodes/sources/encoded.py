"""The encoded frames behind a camera, however it is cut, moved or joined: copied, never encoded again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, PartRangeReader, RangeReader
from warpdata.episodes.sources.file_video import FileVideo, runs_of
from warpdata.episodes.sources.signals import VideoSignal
from warpdata.episodes.sources.stills import StillsSignal
from warpdata.episodes.statistics import ClockStatistics
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.formats.episodedir.boxes import first_cluster, first_media_box
from warpdata.formats.episodedir.frame_index import FrameIndex, image_description, write_frame_index
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.mp4 import HEAD_BYTES, Wrapping, sample_entry, stored_entry, wrapped
from warpdata.formats.episodedir.sample_table import is_same_stream
from warpdata.formats.episodedir.stills import check_same
from warpdata.formats.wshard.schema import DEFAULT_TICK_HZ
from warpdata.timeline.memory import JoinedSignal, ShiftedSignal
from warpdata.timeline.signal import Signal, SignalView

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """Some frames of a video, or of pictures encoded one by one, one after the other, moved in time."""

    video: VideoSignal | StillsSignal
    frames: range
    shift_ns: int = 0


@dataclass(frozen=True, slots=True)
class EncodedCamera:
    """A camera as bytes: its video and the index of its frames."""

    suffix: str
    video: RangeReader
    frames: RangeReader
    original: RangeReader | None = None
    """The index as another writer made it, where it had to be completed."""
    index: FrameIndex | None = None
    """The parsed `frames`, where it was made here."""


@dataclass(frozen=True, slots=True)
class PictureGroup:
    """Encoded frames that are decoded together, beginning with a keyframe, in decoding order."""

    stream: Stream
    rows: list[int]
    """Which record of the camera each packet shows; -1 for frames that are there only to decode the others."""
    packets: list[bytes]


def picture_group(signal: Signal, row: int, *, only_needed: bool = False) -> PictureGroup | None:
    """The group of encoded frames that holds a record of a camera; None where its frames are not encoded.

    `only_needed` leaves out what follows the packet of that record.
    """
    start = 0
    for part in encoded_parts(signal) or ():
        if row - start < len(part.frames):
            return _group_of(part, row - start, start, only_needed)
        start += len(part.frames)
    return None


def _group_of(part: EncodedPart, inside: int, start: int, only_needed: bool) -> PictureGroup | None:
    if isinstance(part.video, StillsSignal):
        return None  # pictures one by one are no video
    records = np.arange(part.frames.start, part.frames.stop)
    numbers = part.video.frame_numbers(records)
    stream, frames, packets = part.video.encoded_group(int(numbers[inside]), only_needed=only_needed)
    at = np.searchsorted(numbers, frames)
    shown = numbers[np.minimum(at, len(numbers) - 1)] == frames
    return PictureGroup(stream, np.where(shown, at + start, -1).tolist(), packets)


def encoded_parts(signal: Signal) -> list[EncodedPart] | None:
    """The videos a camera is made of; None where its frames are not encoded, or not in a run."""
    if isinstance(signal, VideoSignal | StillsSignal):
        return [EncodedPart(signal, range(len(signal)))]
    if isinstance(signal, ShiftedSignal):
        inner = encoded_parts(signal.base)
        return None if inner is None else [replace(p, shift_ns=p.shift_ns + signal.shift_ns) for p in inner]
    if isinstance(signal, JoinedSignal):
        found = [encoded_parts(part) for part in signal.parts]
        return None if None in found else [part for parts in found if parts is not None for part in parts]
    if isinstance(signal, SignalView) and signal.run is not None:
        inner = encoded_parts(signal.base)
        return None if inner is None else _within(inner, signal.run)
    return None


def _within(parts: Sequence[EncodedPart], rows: range) -> list[EncodedPart]:
    """The frames `rows` of all parts joined."""
    out, start = [], 0
    for part in parts:
        stop = start + len(part.frames)
        low, high = max(rows.start, start), min(rows.stop, stop)
        if low < high:
            out.append(replace(part, frames=part.frames[low - start : high - start]))
        start = stop
    return out


def encoded_camera(name: str, signal: Signal) -> EncodedCamera | None:
    """The bytes of a camera, or None where its frames are not encoded.

    Whole groups of pictures are copied; frames outside the shown ones are there and hidden.
    """
    parts = encoded_parts(signal)
    if not parts:
        return None
    if _needs_container(parts):
        return _wrapped(name, parts)
    first = parts[0]
    assert isinstance(first.video, VideoSignal)
    is_whole = len(parts) == 1 and not first.shift_ns and len(first.frames) == len(first.video)
    complete = first.video.complete_index()
    if is_whole and complete is None:
        return EncodedCamera(first.video.suffix, first.video.video_bytes(), first.video.index_bytes())
    if is_whole and complete is not None:
        index = _with_rate(complete, first.video)
        frames = _index_reader(index, first.video)
        original = None if isinstance(first.video, FileVideo) else first.video.index_bytes()
        return EncodedCamera(first.video.suffix, first.video.video_bytes(), frames, original, index)
    if len(parts) == 1 and not _is_in_order(_known_index(first.video)):
        return _hidden_only(first)
    return _joined(name, parts)


def _needs_container(parts: Sequence[EncodedPart]) -> bool:
    """Whether the frames are in no video of their own that could be copied as it is."""
    if any(isinstance(part.video, StillsSignal) for part in parts):
        return True
    videos = [part.video for part in parts if isinstance(part.video, FileVideo)]
    if not videos:
        return False
    first = parts[0]
    return not (
        len(parts) == 1
        and videos[0].is_whole_file
        and len(first.frames) == len(videos[0])
        and not first.shift_ns
    )


def _known_index(video: VideoSignal | StillsSignal) -> FrameIndex:
    """The index with everything ours has, also of another writer's video."""
    assert isinstance(video, VideoSignal)
    complete = video.complete_index()
    return video.frame_index() if complete is None else _with_rate(complete, video)


RateOf = Callable[[NDArray[np.int64]], float]
"""Frames per second of a camera by its times."""


def _rate_of(times: NDArray[np.int64]) -> float:
    clock = ClockStatistics()
    clock.add(times)
    return clock.rate_hz(DEFAULT_TICK_HZ)


def _with_rate(index: FrameIndex, video: VideoSignal) -> FrameIndex:
    return _described(index, video, _rate_of(index.shown_ts_ns))


def _described(index: FrameIndex, video: VideoSignal, fps: float) -> FrameIndex:
    meta = video.meta
    description = replace(index.description, role=meta.role, of=meta.of, model=meta.model, clock=meta.clock)
    return replace(index, fps=fps, description=description)


def _is_in_order(index: FrameIndex) -> bool:
    """Whether frames are stored in the order they are shown, so that groups of them can be cut out."""
    return index.offset is not None and not (np.diff(index.offset) <= 0).any()


def _hidden_only(part: EncodedPart) -> EncodedCamera:
    """A video whose frames are stored in another order: all of it, with the frames outside hidden."""
    assert isinstance(part.video, VideoSignal)
    index = _known_index(part.video)
    all_times = index.ts_ns + part.shift_ns
    numbers = part.video.frame_numbers(np.arange(part.frames.start, part.frames.stop))
    shown = np.zeros(len(all_times), np.bool_)
    shown[numbers] = True
    made = replace(index, ts_ns=all_times, shown=shown)
    return EncodedCamera(part.video.suffix, part.video.video_bytes(), _index_reader(made, part.video))


def _joined(name: str, parts: Sequence[EncodedPart]) -> EncodedCamera:
    """The groups of pictures that the parts need, one after the other behind the head of the first video."""
    first = _known_index(parts[0].video)
    head = _head(parts[0].video)
    pieces: list[RangeReader] = [head]
    columns: dict[str, list[NDArray[Any]]] = {
        key: [] for key in ("ts", "key", "offset", "size", "crc", "shown")
    }
    position = head.size
    for part in parts:
        assert isinstance(part.video, VideoSignal)
        index = _known_index(part.video)
        if not _is_in_order(index) or index.stream != first.stream or index.shape != first.shape:
            raise SchemaMismatchError(
                f"the videos of camera {name!r} are encoded differently and cannot be joined as they are",
                hint="Say reencode=True to encode them again, which changes pixels.",
            )
        assert index.offset is not None
        assert index.size is not None
        assert index.keyframe is not None
        assert index.crc32c is not None
        numbers = part.video.frame_numbers(np.arange(part.frames.start, part.frames.stop))
        low, high = _groups(index.keyframe, int(numbers[0]), int(numbers[-1]) + 1)
        start = int(index.offset[low - 1] + index.size[low - 1]) if low else _head(part.video).size
        stop = int(index.offset[high - 1] + index.size[high - 1])
        pieces.append(PartRangeReader(part.video.video_bytes(), start, stop - start, part.video.path))
        shown = np.zeros(high - low, np.bool_)
        shown[numbers - low] = True
        columns["ts"].append(index.ts_ns[low:high] + part.shift_ns)
        columns["key"].append(index.keyframe[low:high])
        columns["offset"].append(index.offset[low:high] - start + position)
        columns["size"].append(index.size[low:high])
        columns["crc"].append(index.crc32c[low:high])
        columns["shown"].append(shown)
        position += stop - start
    joined = {key: np.concatenate(each) for key, each in columns.items()}
    index = FrameIndex(
        first.description, joined["ts"], first.shape, first.stream, joined["key"], joined["offset"], joined["size"],
        joined["crc"], position, first.fps, joined["shown"],
    )  # fmt: skip
    lead = parts[0].video
    assert isinstance(lead, VideoSignal)
    video = JoinedRangeReader(pieces, f"{lead.path} (cut)")
    return EncodedCamera(lead.suffix, video, _index_reader(index, lead))


def _groups(keyframe: NDArray[np.bool_], start: int, stop: int) -> tuple[int, int]:
    """The frames of the whole groups of pictures that hold frames [start, stop)."""
    keys = np.flatnonzero(keyframe)
    low = int(keys[np.searchsorted(keys, start, side="right") - 1])
    after = int(np.searchsorted(keys, stop, side="left"))
    return low, int(keys[after]) if after < len(keys) else len(keyframe)


def _head(video: VideoSignal | StillsSignal) -> RangeReader:
    """What stands before the first frame: all that a player needs to know of the stream."""
    assert isinstance(video, VideoSignal)
    reader = video.video_bytes()
    data = bytes(reader.read(0, min(_HEAD_BYTES, reader.size)))
    end = first_cluster(data) if video.suffix == ".mkv" else first_media_box(data, b"moof")
    return BytesRangeReader(data[: max(end, 0)], f"{video.path} (head)")


def _index_reader(index: FrameIndex, video: VideoSignal) -> RangeReader:
    sink = io.BytesIO()
    write_frame_index(sink, index)
    return BytesRangeReader(sink.getvalue(), f"{video.frames_path} (cut)")


class EncodedFrame(NamedTuple):
    """One encoded frame, in decoding order."""

    data: bytes
    is_keyframe: bool
    shows: int
    """The number of the frame it shows, among those of its run."""


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """Encoded frames one after the other, in decoding order, with all that a container needs."""

    parts: Sequence[EncodedPart]
    entry: bytes
    """The sample entry of MP4: codec, size and what its decoder must know."""
    stream: Stream
    shape: FrameShape
    ts_ns: NDArray[np.int64]
    """Of each frame in the order shown."""
    shown: NDArray[np.bool_]
    """Which frames belong to the camera; the others are there to decode them."""
    keyframe: NDArray[np.bool_]
    """Of each packet."""
    shows: NDArray[np.int64]
    """Packet -> the number of the frame it shows."""

    def __len__(self) -> int:
        return len(self.shows)

    def packets(self) -> Iterator[bytes]:
        """The frames in decoding order, a few megabytes read at a time."""
        for part in self.parts:
            yield from _packets(part)

    def packet_bytes(self) -> Iterator[bytes | memoryview]:
        """The bytes of all packets in decoding order, in pieces that are contiguous in the file."""
        for part in self.parts:
            yield from _packet_bytes(part)

    def frames(self) -> Iterator[EncodedFrame]:
        """The same, each with what is known of it."""
        for data, is_key, shows in zip(
            self.packets(), self.keyframe.tolist(), self.shows.tolist(), strict=True
        ):
            yield EncodedFrame(data, is_key, shows)


def encoded_frames(signal: Signal) -> Iterator[EncodedFrame] | None:
    """The encoded frames of a camera in decoding order, as they are; None where it is not encoded."""
    run = encoded_run(signal)
    return None if run is None else run.frames()


def encoded_run(signal: Signal) -> EncodedRun | None:
    """The encoded frames behind a camera, however it is cut, moved or joined; None where it is not encoded.

    Whole groups of pictures; parts that are encoded differently are a SchemaMismatchError.
    """
    parts = [part for part in encoded_parts(signal) or () if len(part.frames)]
    return _run_of(parts) if parts else None


def _run_of(parts: Sequence[EncodedPart]) -> EncodedRun:
    entries = [_entry_of(part.video) for part in parts]
    if not all(is_same_stream(entry, entries[0]) for entry in entries[1:]):
        raise SchemaMismatchError(
            f"the videos of {_named(parts[0].video)!r} are encoded differently and cannot be joined as they are",
            hint="Say reencode=True to encode them again, which changes pixels.",
        )
    every = [_frames_of(part) for part in parts]
    starts = np.cumsum([0, *(len(each.shows) for each in every)])
    stream, shape = _stream_of(parts[0].video)
    return EncodedRun(
        parts, entries[0], stream, shape,
        np.concatenate([each.ts_ns for each in every]),
        np.concatenate([each.shown for each in every]),
        np.concatenate([each.keyframe for each in every]),
        np.concatenate([each.shows + start for each, start in zip(every, starts.tolist(), strict=False)]),
    )  # fmt: skip


class _PartFrames(NamedTuple):
    """The frames of one part: times and what is shown by frame, the rest by packet."""

    ts_ns: NDArray[np.int64]
    shown: NDArray[np.bool_]
    keyframe: NDArray[np.bool_]
    shows: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


def _frames_of(part: EncodedPart) -> _PartFrames:
    if isinstance(part.video, StillsSignal):
        count = len(part.frames)
        yes, none = np.ones(count, np.bool_), np.empty(0, np.int64)
        times = part.video._ts_in(part.frames) + part.shift_ns
        return _PartFrames(times, yes, yes, np.arange(count, dtype=np.int64), none, none)
    index = part.video.frame_index()
    if index.offset is None:
        index = _known_index(part.video)
    assert index.offset is not None
    assert index.size is not None
    assert index.keyframe is not None
    numbers = part.video.frame_numbers(np.arange(part.frames.start, part.frames.stop))
    low, high = _groups(index.keyframe, int(numbers[0]), int(numbers[-1]) + 1)
    order = np.argsort(index.offset[low:high], kind="stable")
    offset, size = index.offset[low:high][order], index.size[low:high][order]
    between = (index.offset > offset[0]) & (index.offset < offset[-1])
    if int(between.sum()) != max(0, len(order) - 2):
        raise SchemaMismatchError(
            f"the frames of {part.video.name!r} cannot be cut out of their video: others need them",
            hint="Say reencode=True to encode them again, which changes pixels.",
        )
    shown = np.zeros(high - low, np.bool_)
    shown[numbers - low] = True
    return _PartFrames(
        index.ts_ns[low:high] + part.shift_ns, shown, index.keyframe[low:high][order], order, offset, size
    )


def _packets(part: EncodedPart) -> Iterator[bytes]:
    if isinstance(part.video, StillsSignal):
        still, where = part.video.still, f"{part.video.place} ({part.video.name!r})"
        for start in range(part.frames.start, part.frames.stop, _STILLS):
            rows = range(start, min(start + _STILLS, part.frames.stop))
            for row, data in zip(rows, part.video.pictures(rows), strict=True):
                check_same(data, still, f"{where} (picture {row})")
                yield data
        return
    frames, reader = _frames_of(part), part.video.video_bytes()
    sums = _sums(part.video, frames)
    groups = np.cumsum(frames.size) // _READ_BYTES
    for numbers in np.split(np.arange(len(frames.size)), np.flatnonzero(np.diff(groups)) + 1):
        ranges = [(int(frames.offset[n]), int(frames.offset[n] + frames.size[n])) for n in numbers]
        for number, view in zip(numbers.tolist(), reader.read_many(ranges), strict=True):
            if sums is not None and crc32c(view) != sums[number]:
                raise CorruptLayoutError(
                    "an encoded frame was changed after it was written", path=part.video.path
                )
            yield bytes(view)
    reader.close()


def _packet_bytes(part: EncodedPart) -> Iterator[bytes | memoryview]:
    """The bytes of packets that no checksum is known of are read from the file, many at once."""
    if not isinstance(part.video, FileVideo):
        yield from _packets(part)
        return
    frames, reader = _frames_of(part), part.video.video_bytes()
    for start, stop in runs_of(frames.offset, frames.size, _HASH_BYTES):
        yield reader.read(start, stop)
    reader.close()


_STILLS = 32
_READ_BYTES = 4 << 20
_HASH_BYTES = 1 << 20


def _sums(video: VideoSignal, frames: _PartFrames) -> NDArray[np.uint32] | None:
    """The checksum of each packet, where the index has them."""
    index = video.frame_index()
    if index.crc32c is None or index.offset is None:
        return None
    order = np.argsort(index.offset, kind="stable")
    return index.crc32c[order][np.searchsorted(index.offset[order], frames.offset)]


def _entry_of(video: VideoSignal | StillsSignal) -> bytes:
    stream, shape = _stream_of(video)
    if isinstance(video, StillsSignal):
        return sample_entry(stream, shape.width, shape.height)
    reader = video.video_bytes()
    try:
        found = stored_entry(reader)
    finally:
        reader.close()
    return sample_entry(stream, stream.coded_width, stream.coded_height) if found is None else found


def _stream_of(video: VideoSignal | StillsSignal) -> tuple[Stream, FrameShape]:
    if isinstance(video, StillsSignal):
        return video.still.stream, video.still.shape
    index = video.frame_index()
    if index.stream is None or index.shape is None:
        index = _known_index(video)
    assert index.stream is not None
    assert index.shape is not None
    return index.stream, index.shape


def _named(video: VideoSignal | StillsSignal) -> str:
    return video.name


def _wrapped(name: str, parts: Sequence[EncodedPart]) -> EncodedCamera:
    """Frames of a larger video, or one by one, in a video of their own; nothing is held but one piece."""
    run = _run_of(parts)
    size, sums = np.empty(len(run), np.int64), np.empty(len(run), np.uint32)
    for number, data in enumerate(run.packets()):
        size[number], sums[number] = len(data), crc32c(data)
    around, index = _contained(run, size, _rate_of(run.ts_ns[run.shown]))
    pieces: list[RangeReader] = [
        BytesRangeReader(around.head, f"{name} (head)"),
        PacketReader(run, size, name),
        BytesRangeReader(around.tail, f"{name} (tail)"),
    ]
    video = JoinedRangeReader(pieces, f"{name} (copied)")
    sink = io.BytesIO()
    write_frame_index(sink, replace(index, crc32c=sums[np.argsort(run.shows, kind="stable")]))
    return EncodedCamera(".mp4", video, BytesRangeReader(sink.getvalue(), f"{name} (index)"))


def _contained(run: EncodedRun, size: NDArray[np.int64], fps: float) -> tuple[Wrapping, FrameIndex]:
    """What stands around the packets of a run in a video of their own, and its index but for the checksums."""
    around = wrapped(run.entry, size, run.shows, run.keyframe, Fraction(fps).limit_denominator(1001))
    at = np.argsort(run.shows, kind="stable")
    offset = HEAD_BYTES + np.cumsum(size) - size
    meta = run.parts[0].video.meta
    description = replace(
        image_description(run.shape), role=meta.role, of=meta.of, model=meta.model, clock=meta.clock
    )
    video_bytes = len(around.head) + int(size.sum()) + len(around.tail)
    return around, FrameIndex(
        description, run.ts_ns, run.shape, run.stream, run.keyframe[at], offset[at].astype(np.int64), size[at],
        None, video_bytes, fps, None if run.shown.all() else run.shown,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretches:
    """Bytes of a video that are copied, and the packets among them in the order of the file."""

    video: FileVideo
    ranges: Sequence[tuple[int, int]]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CameraCopy:
    """How the frames of another program's videos become a video file: its parts in order, for one pass over them."""

    suffix: str
    head: bytes
    stretches: Sequence[Stretches]
    tail: bytes
    index: FrameIndex
    """But for the checksums of the packets, and their rate."""
    order: NDArray[np.int64]
    """The frame of each packet, in the order they are copied in."""
    fps: float

    @property
    def video_bytes(self) -> int:
        """How long the file will be."""
        return int(self.index.video_bytes or 0)

    def complete(self, sums: NDArray[np.uint32]) -> FrameIndex:
        """The index with the checksums of the packets, which come in the order they were copied in."""
        placed = np.empty(len(sums), np.uint32)
        placed[self.order] = sums
        return replace(self.index, crc32c=placed, fps=self.fps)


def camera_copy(signal: Signal, rate_of: RateOf) -> CameraCopy | None:
    """How the frames of a camera are copied in one pass; None where they are not in videos of other programs."""
    parts = [part for part in encoded_parts(signal) or () if len(part.frames)]
    videos = [part.video for part in parts if isinstance(part.video, FileVideo)]
    if not parts or len(videos) != len(parts):
        return None
    if not _needs_container(parts):
        video = videos[0]
        known = video.frame_index()
        assert known.offset is not None
        assert known.size is not None
        order = np.argsort(known.offset, kind="stable")
        whole = Stretches(video, [(0, int(known.video_bytes or 0))], known.offset[order], known.size[order])
        return CameraCopy(video.suffix, b"", [whole], b"", known, order, rate_of(known.shown_ts_ns))
    run = _run_of(parts)
    every = [_frames_of(part) for part in parts]
    size = np.concatenate([each.size for each in every])
    fps = rate_of(run.ts_ns[run.shown])
    around, index = _contained(run, size, fps)
    stretches = [
        Stretches(video, list(runs_of(each.offset, each.size)), each.offset, each.size)
        for video, each in zip(videos, every, strict=True)
    ]
    return CameraCopy(".mp4", around.head, stretches, around.tail, index, run.shows, fps)


class PacketReader:
    """Encoded frames one behind the other as bytes; read from front to back it keeps no more than one piece."""

    def __init__(self, run: EncodedRun, size: NDArray[np.int64], name: str) -> None:
        self.name = name
        self._run = run
        self._ends = np.cumsum(size)
        self.size = int(self._ends[-1]) if len(size) else 0
        self._begin()

    def _begin(self) -> None:
        self._packets = self._run.packets()
        self._held = b""
        self._start = 0

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        if start < self._start:
            self._begin()
        pieces: list[bytes] = []
        at = start
        while at < end:
            stop = self._start + len(self._held)
            if at < stop:
                piece = self._held[at - self._start : end - self._start]
                pieces.append(piece)
                at += len(piece)
                continue
            self._start, self._held = stop, next(self._packets)
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)).toreadonly()

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return [self.read(start, end) for start, end in ranges]

    def close(self) -> None:
        """Nothing is held open."""
