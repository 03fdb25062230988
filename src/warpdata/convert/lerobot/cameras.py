"""Cameras of an exported set: encoded frames are copied into video files, raw ones are encoded first."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.exporting import StepColumn
from warpdata.convert.lerobot.features import camera_codec
from warpdata.convert.receipt import Note
from warpdata.episodes.forms.directory import RawCamera
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.formats.episodedir.containers import HEAD_BYTES, file_head, wrapped
from warpdata.formats.episodedir.images import STILL_CODECS, FrameShape, VideoOptions
from warpdata.formats.episodedir.video import encode_png


@dataclass(slots=True)
class EncodedFrames:
    """The encoded frames of a camera of one episode, in decoding order, in a scratch file."""

    path: Path
    sizes: list[int]
    entry: bytes
    keyframe: list[bool]
    shows: list[int]
    lead: int
    """Frames before the first one shown."""
    info: dict[str, Any]
    """The entry of info.json about the stream."""

    @classmethod
    def save(
        cls, path: Path, run: EncodedRun, fps: float, rows: NDArray[np.int64] | None = None
    ) -> EncodedFrames:
        """Save the frames of a run; `rows` chooses pictures that are encoded one by one."""
        packets = run.packets() if rows is None else chosen_pictures(run, rows)
        sizes = []
        with open(path, "xb") as out:
            for data in packets:
                out.write(data)
                sizes.append(len(data))
        keyframe, shows = run.keyframe.tolist(), run.shows.tolist()
        if rows is not None:
            keyframe, shows = [True] * len(rows), list(range(len(rows)))
        info = {
            "video.height": run.shape.height,
            "video.width": run.shape.width,
            "video.codec": run.stream.codec,
            "video.pix_fmt": run.stream.pix_fmt,
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
        }
        lead = int(np.flatnonzero(run.shown)[0]) if rows is None else 0
        return cls(path, sizes, run.entry, keyframe, shows, lead, info)


def chosen_pictures(run: EncodedRun, rows: NDArray[np.int64]) -> Iterator[bytes]:
    """Pictures by number, read once as long as the numbers do not fall."""
    packets, position, data = run.packets(), -1, b""
    for row in np.maximum(rows, 0).tolist():
        if row < position:
            packets, position = run.packets(), -1
        while position < row:
            data, position = next(packets), position + 1
        yield data


def copy_frames(
    column: StepColumn, path: Path, fps: float, *, allows_lead: bool, error_ns: int
) -> tuple[EncodedFrames, Note] | None:
    """The encoded frames of a camera as they are; None if they must be encoded again.

    `allows_lead`: frames before the first one shown may be in the file.
    """
    codec = camera_codec(column.signal)
    aligned = column.steps[column.name]
    if codec in STILL_CODECS:
        run = encoded_run(column.signal)
        assert run is not None
        frames = EncodedFrames.save(path, run, fps, aligned.positions)
    else:
        count = len(column.steps)
        is_run = bool(aligned.mask.all() and np.array_equal(aligned.positions, np.arange(count)))
        run = encoded_run(column.signal[:count]) if codec is not None and is_run else None
        if run is None or not (allows_lead or bool(run.shown[0])):
            return None
        frames = EncodedFrames.save(path, run, fps)
    return frames, column.note(decoded=False, has_final=False, error_ns=error_ns)


def raw_camera(
    column: StepColumn, path: Path, fps: float, options: VideoOptions, error_ns: int, done: Any
) -> RawCamera:
    """A camera to be encoded; `done` is called with its frames and its note."""
    height, width = column.meta.shape[:2]
    codec = camera_codec(column.signal)
    options = replace(options, fps=float(fps))

    def blocks() -> Iterator[tuple[NDArray[Any], range]]:
        start = 0
        for frames in column.blocks(0, len(column.steps)):
            yield np.asarray(frames), range(start, start + len(frames))
            start += len(frames)

    def finish(file: VideoFile) -> None:
        video, index = Path(f"{path}.done{file.suffix}"), Path(f"{path}.done.frames.parquet")
        file.commit(video, index)
        run = encoded_run(VideoSignal(video, index, name=column.name))
        assert run is not None
        frames = EncodedFrames.save(Path(f"{path}.packets"), run, fps)
        source = "raw frames" if codec is None else f"{codec} frames that no longer follow each other"
        note = column.note(decoded=False, has_final=False, error_ns=error_ns)
        why = "; ".join(filter(None, (f"{source} encoded as {options.codec or 'h264'}", note.why)))
        done(frames, replace(note, how="reencoded", why=why))

    shape = FrameShape(height, width, 3, "uint8")
    return RawCamera(partial(VideoFile, path, shape, options, durable=False), blocks(), finish)


def encode_pictures(column: StepColumn, error_ns: int) -> tuple[list[bytes], str, Note]:
    """An image feature: JPEG and PNG as they are, anything else as PNG; with the suffix of the names."""
    codec = camera_codec(column.signal)
    note = column.note(decoded=False, has_final=False, error_ns=error_ns)
    if codec in STILL_CODECS:
        run = encoded_run(column.signal)
        assert run is not None
        rows = column.steps[column.name].positions
        return list(chosen_pictures(run, rows)), "png" if codec == "png" else "jpg", note
    blocks: Iterable[NDArray[Any]] = column.blocks(0, len(column.steps))
    data = [encode_png(np.ascontiguousarray(frame)) for block in blocks for frame in block]
    why = f"{'raw frames' if codec is None else f'{codec} frames, decoded'} as PNG"
    return data, "png", replace(note, how="reencoded", why="; ".join(filter(None, (why, note.why))))


class VideoOut:
    """A video file that grows by encoded frames; its tables are written when it is closed."""

    def __init__(self, path: Path, entry: bytes, rate: Fraction) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.entry, self._rate = entry, rate
        self._file = open(path, "xb")  # noqa: SIM115 - closed by `close`
        self._file.write(file_head(0))
        self._sizes: list[int] = []
        self._keys: list[bool] = []
        self._shows: list[int] = []
        self.bytes = HEAD_BYTES

    @property
    def frames(self) -> int:
        """The number of frames."""
        return len(self._sizes)

    def add(self, frames: EncodedFrames) -> None:
        """Append the frames of an episode."""
        first = self.frames
        with open(frames.path, "rb") as packets:
            shutil.copyfileobj(packets, self._file, 1 << 20)
        self._sizes += frames.sizes
        self.bytes += sum(frames.sizes)
        self._keys += frames.keyframe
        self._shows += [first + number for number in frames.shows]

    def close(self) -> None:
        """Write the tables, and how long the frames are."""
        size, shows = np.array(self._sizes, np.int64), np.array(self._shows, np.int64)
        around = wrapped(self.entry, size, shows, np.array(self._keys, np.bool_), self._rate)
        self._file.write(around.tail)
        self._file.seek(0)
        self._file.write(around.head)
        self._file.close()

    def discard(self) -> None:
        """Close an unfinished file."""
        self._file.close()
