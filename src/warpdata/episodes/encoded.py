"""The encoded frames behind a camera, however it is cut, moved or joined: copied, never encoded again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.ranges import BytesRangeReader, JoinedRangeReader, PartRangeReader, RangeReader
from warpdata.episodes.signals import VideoSignal
from warpdata.episodes.statistics import ClockStatistics
from warpdata.errors import SchemaMismatchError
from warpdata.formats.episodedir.boxes import first_cluster, first_media_box
from warpdata.formats.episodedir.frame_index import FrameIndex, write_frame_index
from warpdata.formats.episodedir.images import Stream
from warpdata.formats.wshard.schema import DEFAULT_TICK_HZ
from warpdata.timeline.memory import JoinedSignal, ShiftedSignal
from warpdata.timeline.signal import Signal, SignalView

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """Some frames of a video, one after the other, moved in time."""

    video: VideoSignal
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


@dataclass(frozen=True, slots=True)
class PictureGroup:
    """Encoded frames that are decoded together, beginning with a keyframe, in decoding order."""

    stream: Stream
    rows: list[int]
    """Which record of the camera each packet shows; -1 for frames that are there only to decode the others."""
    packets: list[bytes]


def picture_group(signal: Signal, row: int) -> PictureGroup | None:
    """The group of encoded frames that holds a record of a camera; None where its frames are not encoded."""
    start = 0
    for part in encoded_parts(signal) or ():
        if row - start < len(part.frames):
            return _group_of(part, row - start, start)
        start += len(part.frames)
    return None


def _group_of(part: EncodedPart, inside: int, start: int) -> PictureGroup:
    records = np.arange(part.frames.start, part.frames.stop)
    numbers = part.video.frame_numbers(records)
    stream, frames, packets = part.video.encoded_group(int(numbers[inside]))
    at = np.searchsorted(numbers, frames)
    shown = numbers[np.minimum(at, len(numbers) - 1)] == frames
    return PictureGroup(stream, np.where(shown, at + start, -1).tolist(), packets)


def encoded_parts(signal: Signal) -> list[EncodedPart] | None:
    """The videos a camera is made of; None where its frames are not encoded, or not in a run."""
    if isinstance(signal, VideoSignal):
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
    first = parts[0]
    is_whole = len(parts) == 1 and not first.shift_ns and len(first.frames) == len(first.video)
    complete = first.video.complete_index()
    if is_whole and complete is None:
        return EncodedCamera(first.video.suffix, first.video.video_bytes(), first.video.index_bytes())
    if is_whole and complete is not None:
        frames = _index_reader(_with_rate(complete, first.video), first.video)
        return EncodedCamera(first.video.suffix, first.video.video_bytes(), frames, first.video.index_bytes())
    if len(parts) == 1 and not _is_in_order(_known_index(first.video)):
        return _hidden_only(first)
    return _joined(name, parts)


def _known_index(video: VideoSignal) -> FrameIndex:
    """The index with everything ours has, also of another writer's video."""
    complete = video.complete_index()
    return video.frame_index() if complete is None else _with_rate(complete, video)


def _with_rate(index: FrameIndex, video: VideoSignal) -> FrameIndex:
    clock = ClockStatistics()
    clock.add(index.shown_ts_ns)
    meta = video.meta
    description = replace(index.description, role=meta.role, of=meta.of, model=meta.model, clock=meta.clock)
    return replace(index, fps=clock.to_json().get("rate_hz", DEFAULT_TICK_HZ), description=description)


def _is_in_order(index: FrameIndex) -> bool:
    """Whether frames are stored in the order they are shown, so that groups of them can be cut out."""
    return index.offset is not None and not (np.diff(index.offset) <= 0).any()


def _hidden_only(part: EncodedPart) -> EncodedCamera:
    """A video whose frames are stored in another order: all of it, with the frames outside hidden."""
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
    video = JoinedRangeReader(pieces, f"{parts[0].video.path} (cut)")
    return EncodedCamera(parts[0].video.suffix, video, _index_reader(index, parts[0].video))


def _groups(keyframe: NDArray[np.bool_], start: int, stop: int) -> tuple[int, int]:
    """The frames of the whole groups of pictures that hold frames [start, stop)."""
    keys = np.flatnonzero(keyframe)
    low = int(keys[np.searchsorted(keys, start, side="right") - 1])
    after = int(np.searchsorted(keys, stop, side="left"))
    return low, int(keys[after]) if after < len(keys) else len(keyframe)


def _head(video: VideoSignal) -> RangeReader:
    """What stands before the first frame: all that a player needs to know of the stream."""
    reader = video.video_bytes()
    data = bytes(reader.read(0, min(_HEAD_BYTES, reader.size)))
    end = first_cluster(data) if video.suffix == ".mkv" else first_media_box(data, b"moof")
    return BytesRangeReader(data[: max(end, 0)], f"{video.path} (head)")


def _index_reader(index: FrameIndex, video: VideoSignal) -> RangeReader:
    sink = io.BytesIO()
    write_frame_index(sink, index)
    return BytesRangeReader(sink.getvalue(), f"{video.frames_path} (cut)")
