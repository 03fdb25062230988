"""The encoded frames behind a camera, however it is cut, moved or joined: copied, never encoded again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningXxh3128, crc32c
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, RangeReader, read_coalesced
from warpdata.episodes.sources.cameras import FileVideo, StillsSignal, VideoSignal
from warpdata.episodes.statistics import ClockStatistics
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.formats.episodedir.containers import HEAD_BYTES, file_around, sample_entry
from warpdata.formats.episodedir.documents import FrameShape, Stream
from warpdata.formats.episodedir.frame_index import FrameIndex, group_bounds, image_description
from warpdata.formats.episodedir.pictures import check_same
from warpdata.formats.wshard.schema import DEFAULT_TICK_HZ
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.signal import Signal, SignalView

_STILLS = 32
_CHANGED = "an encoded frame was changed after it was written"
_READ_BYTES = 4 << 20
_COPY_BYTES = 1 << 18  # stays in the cache of a core between reading, writing and summing


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """Some frames of a video, or of pictures encoded one by one, one after the other, moved in time."""

    video: VideoSignal | StillsSignal
    frames: range
    shift_ns: int = 0

    @property
    def is_whole_video(self) -> bool:
        """Whether these are all frames of a video file, at their times."""
        video = self.video
        if isinstance(video, StillsSignal) or self.shift_ns or len(self.frames) != len(video):
            return False
        return not isinstance(video, FileVideo) or video.is_whole_file


@dataclass(frozen=True, slots=True)
class EncodedCamera:
    """A camera as bytes: its video, and the index of its frames, without checksums if another program wrote it."""

    suffix: str
    video: RangeReader
    index: FrameIndex

    def copy_to(self, path: Path) -> tuple[FrameIndex, int, str]:
        """Copy the video into a new file; the index with all checksums, and size and xxh3-128 of the encoded frames.

        One pass over the bytes. A frame that has not the checksum of its index is an error.
        """
        index, at, digest = self.index, 0, RunningXxh3128()
        _, offset, size = index.places
        starts, stops = offset.tolist(), (offset + size).tolist()
        order = np.argsort(offset, kind="stable")
        cuts = np.flatnonzero(np.diff(offset[order] // _COPY_BYTES)) + 1
        sums = np.empty(len(order), np.uint32)
        with map_os_errors(path), open(path, "xb", buffering=0) as out:
            for numbers in np.split(order, cuts):
                block = self.video.read(at, stops[numbers[-1]])
                out.write(block)
                for number in numbers.tolist():
                    frame = block[starts[number] - at : stops[number] - at]
                    sums[number] = crc32c(frame)
                    digest.update(frame)
                at = stops[numbers[-1]]
            for start in range(at, self.video.size, _COPY_BYTES):
                out.write(self.video.read(start, min(start + _COPY_BYTES, self.video.size)))
        self.video.close()
        if index.crc32c is not None and (sums != index.crc32c).any():
            raise CorruptLayoutError(_CHANGED, path=self.video.name)
        return replace(index, crc32c=sums), int(size.sum()), digest.digest().hex()


class EncodedFrame(NamedTuple):
    """One encoded frame, in decoding order."""

    data: bytes
    is_keyframe: bool
    shows: int
    """The number of the frame it shows, among those of its run."""


@dataclass(frozen=True, slots=True)
class PictureGroup:
    """Encoded frames that are decoded together, beginning with a keyframe, in decoding order."""

    stream: Stream
    rows: list[int]
    """The record of the camera that each packet shows; -1 for frames that only help to decode others."""
    packets: list[bytes]


def picture_group(signal: Signal, row: int, *, only_needed: bool = False) -> PictureGroup | None:
    """The group of encoded frames that holds a record of a camera; None where its frames are not encoded.

    `only_needed` leaves out what follows the packet of that record.
    """
    start = 0
    for part in encoded_parts(signal) or ():
        inside = row - start
        if inside >= len(part.frames):
            start += len(part.frames)
            continue
        if isinstance(part.video, StillsSignal):
            return None  # pictures one by one are no video
        numbers = part.video.frame_numbers(np.arange(part.frames.start, part.frames.stop))
        stream, frames, packets = part.video.encoded_group(int(numbers[inside]), only_needed=only_needed)
        at = np.searchsorted(numbers, frames)
        is_shown = numbers[np.minimum(at, len(numbers) - 1)] == frames
        return PictureGroup(stream, np.where(is_shown, at + start, -1).tolist(), packets)
    return None


def encoded_parts(signal: Signal) -> list[EncodedPart] | None:
    """The videos a camera is made of; None where its frames are not encoded, or not in a run."""
    if isinstance(signal, VideoSignal | StillsSignal):
        return [EncodedPart(signal, range(len(signal)))]
    if isinstance(signal, JoinedSignal):
        every = [encoded_parts(part) for part in signal.parts]
        return None if None in every else [part for parts in every for part in parts or ()]
    if isinstance(signal, SignalView) and signal.run is not None:
        inner, start, out = encoded_parts(signal.base), 0, []
        for part in inner or ():
            stop = start + len(part.frames)
            low, high = max(signal.run.start, start), min(signal.run.stop, stop)
            if low < high:
                frames, shift_ns = part.frames[low - start : high - start], part.shift_ns + signal.shift_ns
                out.append(replace(part, frames=frames, shift_ns=shift_ns))
            start = stop
        return None if inner is None else out
    return None


@dataclass(frozen=True, slots=True)
class _PartFrames:
    """The frames of one part: times and visibility by frame, the rest by packet."""

    part: EncodedPart
    ts_ns: NDArray[np.int64]
    shown: NDArray[np.bool_]
    keyframe: NDArray[np.bool_]
    shows: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    crc32c: NDArray[np.uint32] | None

    def packets(self) -> Iterator[bytes]:
        """The packets in decoding order, a few megabytes read at a time."""
        video, frames = self.part.video, self.part.frames
        if isinstance(video, StillsSignal):
            for start in range(frames.start, frames.stop, _STILLS):
                rows = range(start, min(start + _STILLS, frames.stop))
                for row, data in zip(rows, video.pictures(rows), strict=True):
                    check_same(data, video.still, f"{video.place} ({video.name!r}) (picture {row})")
                    yield data
            return
        reader = video.video_bytes()
        groups = np.cumsum(self.size) // _READ_BYTES
        for numbers in np.split(np.arange(len(self.size)), np.flatnonzero(np.diff(groups)) + 1):
            ranges = [(int(self.offset[n]), int(self.offset[n] + self.size[n])) for n in numbers]
            for number, view in zip(numbers.tolist(), reader.read_many(ranges), strict=True):
                if self.crc32c is not None and crc32c(view) != self.crc32c[number]:
                    raise CorruptLayoutError(_CHANGED, path=video.path)
                yield bytes(view)
        reader.close()


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """Encoded frames one after the other, in decoding order, with all that a container needs."""

    stream: Stream
    shape: FrameShape
    parts: Sequence[_PartFrames]
    ts_ns: NDArray[np.int64]
    """The time of each frame in the order shown."""
    shown: NDArray[np.bool_]
    """Which frames belong to the camera; the others only help to decode them."""
    keyframe: NDArray[np.bool_]
    """Whether decoding can begin at a packet."""
    shows: NDArray[np.int64]
    """Packet -> the number of the frame it shows."""

    @property
    def entry(self) -> bytes:
        """The sample entry of MP4: codec, size and decoder configuration."""
        return sample_entry(self.stream, self.stream.coded_width, self.stream.coded_height)

    def __len__(self) -> int:
        return len(self.shows)

    def packets(self) -> Iterator[bytes]:
        """The frames in decoding order."""
        return (packet for part in self.parts for packet in part.packets())

    def frames(self) -> Iterator[EncodedFrame]:
        """The frames in decoding order, with their keyframe flags and numbers."""
        columns = zip(self.packets(), self.keyframe.tolist(), self.shows.tolist(), strict=True)
        return (EncodedFrame(*column) for column in columns)

    def hash(self) -> tuple[int, str]:
        """Bytes of all packets and their xxh3-128."""
        digest, size = RunningXxh3128(), 0
        for packet in self.packets():
            digest.update(packet)
            size += len(packet)
        return size, digest.digest().hex()


def encoded_run(signal: Signal) -> EncodedRun | None:
    """The encoded frames behind a camera, however it is cut, moved or joined; None where it is not encoded.

    Whole groups of pictures; parts that are encoded differently are a SchemaMismatchError.
    """
    parts = [part for part in encoded_parts(signal) or () if len(part.frames)]
    if not parts:
        return None
    frames, streams = [], []
    for part in parts:
        if isinstance(part.video, StillsSignal):
            streams.append((part.video.still.stream, part.video.still.shape))
            times, count = part.video._ts_in(part.frames) + part.shift_ns, len(part.frames)
            yes, no_place = np.ones(count, np.bool_), np.empty(0, np.int64)
            frames.append(_PartFrames(part, times, yes, yes, np.arange(count), no_place, no_place, None))
        else:
            index = part.video.located_index
            assert index.stream is not None
            assert index.shape is not None
            streams.append((index.stream, index.shape))
            frames.append(_video_frames(part, index))
    if any(stream != streams[0] for stream in streams):
        raise SchemaMismatchError(
            f"the videos of {parts[0].video.name!r} are encoded differently and cannot be joined as they are",
            hint="Pass reencode=True to encode them again, which changes pixels.",
        )
    starts = np.cumsum([0, *(len(part.shows) for part in frames[:-1])])
    shows = [part.shows + start for part, start in zip(frames, starts, strict=True)]
    return EncodedRun(
        *streams[0],
        frames,
        np.concatenate([part.ts_ns for part in frames]),
        np.concatenate([part.shown for part in frames]),
        np.concatenate([part.keyframe for part in frames]),
        np.concatenate(shows).astype(np.int64),
    )


def _video_frames(part: EncodedPart, index: FrameIndex) -> _PartFrames:
    assert isinstance(part.video, VideoSignal)
    keyframe, offset, size = index.places
    numbers = part.video.frame_numbers(np.arange(part.frames.start, part.frames.stop))
    low, high = group_bounds(keyframe, int(numbers[0]), int(numbers[-1]) + 1)
    order = low + np.argsort(offset[low:high], kind="stable")
    first, last = offset[order[[0, -1]]]
    if int(((offset >= first) & (offset <= last)).sum()) != len(order):
        # Packets of other groups are between them: the whole video is copied.
        low, high = 0, len(offset)
        order = np.argsort(offset, kind="stable")
    shown = np.zeros(high - low, np.bool_)
    shown[numbers - low] = True
    return _PartFrames(
        part,
        index.ts_ns[low:high] + part.shift_ns,
        shown,
        keyframe[order],
        order - low,
        offset[order],
        size[order],
        None if index.crc32c is None else index.crc32c[order],
    )


def encoded_camera(name: str, signal: Signal) -> EncodedCamera | None:
    """The bytes of a camera, or None where its frames are not encoded.

    A whole video is copied as it is. Of any other camera whole groups of pictures are put into an MP4 file; frames
    outside the shown ones are there and hidden.
    """
    parts = encoded_parts(signal)
    if not parts:
        return None
    lead = parts[0].video
    if len(parts) == 1 and parts[0].is_whole_video:
        assert isinstance(lead, VideoSignal)
        index = lead.located_index
        if index.crc32c is None:  # of another writer
            index = _described(index, lead, index.fps)
        return EncodedCamera(lead.suffix, lead.video_bytes(), index)
    run = encoded_run(signal)
    assert run is not None
    sizes, sums = [], []
    for packet in run.packets():
        sizes.append(len(packet))
        sums.append(crc32c(packet))
    size, shows, shown = np.array(sizes, np.int64), run.shows, run.shown
    fps = _rate_of(run.ts_ns[shown])
    rate = Fraction(min(max(fps, 1e-3), 1e6)).limit_denominator(1001)  # what the boxes can hold
    around = file_around(run.entry, size, shows, run.keyframe, rate)
    ahead: list[Any] = [0, run.packets()]

    def read_packets(first: int, last: int) -> list[bytes]:
        if ahead[0] != first:
            ahead[1] = itertools.islice(run.packets(), first, None)
        ahead[0] = last
        return list(itertools.islice(ahead[1], last - first))

    media = PacketReader(read_packets, size, name)
    at = np.argsort(shows, kind="stable")
    offset = HEAD_BYTES + np.cumsum(size) - size
    columns = (run.keyframe[at], offset[at], size[at], np.array(sums, np.uint32)[at])
    video_bytes = len(around.head) + media.size + len(around.tail)
    index = FrameIndex(
        image_description(run.shape), run.ts_ns, run.shape, run.stream, *columns, video_bytes, fps
    )
    pieces: list[RangeReader] = [BytesRangeReader(around.head), media, BytesRangeReader(around.tail)]
    video = JoinedRangeReader(pieces, f"{name} (copied)")
    index = replace(index, shown=None if shown.all() else shown)
    return EncodedCamera(".mp4", video, _described(index, lead, fps))


def _described(index: FrameIndex, video: VideoSignal | StillsSignal, fps: float | None) -> FrameIndex:
    """The index with rate and role of the camera."""
    meta = video.meta
    about = replace(index.description, role=meta.role, of=meta.of, model=meta.model, clock=meta.clock)
    if fps is None:
        fps = _rate_of(index.shown_ts_ns)
    return replace(index, fps=fps, description=about)


def _rate_of(times: NDArray[np.int64]) -> float:
    return ClockStatistics.of(times).rate_hz(DEFAULT_TICK_HZ)


ReadPackets = Callable[[int, int], Iterable[bytes]]
"""Gives packets [first, last)."""


class PacketReader:
    """Packets one behind the other as bytes, a few of which are kept; best read from front to back."""

    def __init__(self, read_packets: ReadPackets, sizes: NDArray[np.int64], name: str) -> None:
        self.name, self._read_packets, self._ends = name, read_packets, np.cumsum(sizes)
        self.size = int(self._ends[-1]) if len(sizes) else 0
        self._buffer: tuple[int, bytes, int] = (0, b"", 0)
        """Where it begins, its bytes, and the number of the packet behind it."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        begin, data, following = self._buffer
        if not begin <= start <= begin + len(data):
            following = int(self._ends.searchsorted(start, "right"))
            begin, data = int(self._ends[following - 1]) if following else 0, b""
        if end > begin + len(data):
            last = max(int(self._ends.searchsorted(end, "left")) + 1, min(following + 8, len(self._ends)))
            begin, data = (start, data[start - begin :]) if data else (begin, data)
            data += b"".join(self._read_packets(following, last))
            following = last
        self._buffer = (begin, data, following)
        return memoryview(data)[start - begin : end - begin]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Exactly the bytes of each range; neighbours by one read."""
        return read_coalesced(self, ranges)

    def close(self) -> None:
        """Nothing is open."""
