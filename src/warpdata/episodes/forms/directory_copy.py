"""An episode of any source as an episode directory: encoded frames as they are, numbers exactly, nothing journaled."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.dtype import dtype_of
from warpdata.bytekit.io.commit import commit_folder, map_os_errors, put_file
from warpdata.bytekit.io.filenames import keep_apart
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.episodes.forms.content_sums import ContentSum, RowsSum, sum_of, sum_of_rows
from warpdata.episodes.forms.copied_video import copy_camera
from warpdata.episodes.forms.encode_cameras import RawCamera, encode_cameras
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.record.disk_writer import last_documents
from warpdata.episodes.record.tables import TableFile
from warpdata.episodes.sources.encoded import CameraCopy, camera_copy, encoded_camera, encoded_parts
from warpdata.episodes.sources.file_video import FileVideo
from warpdata.episodes.statistics import ClockStatistics, SharedClocks, are_few, stated_together
from warpdata.errors import FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.arrow import description_text, table_bytes
from warpdata.formats.episodedir.documents import plain_static, read_bytes, read_meta
from warpdata.formats.episodedir.frame_index import FrameIndex, frame_index_bytes, parse_frame_index
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, suffix_for
from warpdata.formats.episodedir.names import check_name, signal_file
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.wshard.schema import DEFAULT_TICK_HZ
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal

_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 14
_COPY_BYTES = 1 << 20
"""Few calls, and what was read is still in the cache of the processor when it is written."""
_WRITES_AHEAD = 8
"""Each holds a few megabytes."""

T = TypeVar("T")

MetaOf = Callable[[Mapping[str, ContentSum]], Mapping[str, Any]]
"""The metadata of an episode, from the sum of every signal as it was copied."""


Steps = Generator[bool, None, T]
"""Work on an episode that may go in step with that on others. It yields between its steps, and says first whether it
is small enough for that: it holds little while it waits."""


def copying_to_directory(
    episode: Episode,
    directory: Path,
    meta_of: MetaOf,
    *,
    video: VideoOptions | None = None,
    writing: WrittenLater | None = None,
) -> Steps[None]:
    """Write an episode as a new directory, which appears whole or not at all; power may still take it.

    Frames that are not encoded become lossless video, unless `video` says how to encode them. Every value is read once.
    `writing` waits for the disk while the next signal is read; all of its work is done at the end.
    """
    signals = dict(episode.signals)
    is_small = _are_small(signals.values())
    yield is_small
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        with map_os_errors(directory):
            os.makedirs(parent, exist_ok=True)
    with commit_folder(directory, durable=False) as folder:
        copying = _Copying(folder, video, writing)
        try:
            for _ in copying.steps(signals, is_small=is_small):
                yield is_small
        finally:  # what is still being written when something fails is waited for: its folder is about to be removed
            copying.wait()
        about, sums = copying.found()
        meta = meta_of(sums)
        yield is_small
        static = {check_name(name): plain_static(name, value) for name, value in episode.static.items()}
        for path, data in last_documents(folder, meta, static, about, None).items():
            put_file(path, data)


class WrittenLater:
    """One thread that writes the last part of large files, which is mostly to wait for the disk; few wait for it."""

    def __init__(self) -> None:
        self._thread = ThreadPool(1, "warpdata-import")
        self._ahead: deque[Future[None]] = deque()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Ask for a job, once there are not too many."""
        while len(self._ahead) >= _WRITES_AHEAD:
            self._ahead.popleft().exception()  # whoever asked for it is told
        future = self._thread.submit(job)
        self._ahead.append(future)
        return future

    def close(self) -> None:
        """End the thread."""
        self._thread.close(wait=True)


def is_intact(directory: Path) -> bool:
    """Whether a directory has all its files at their stated sizes: the loss of power can leave some empty."""
    try:
        meta = read_meta(directory)
        for name, about in meta["signals"].items():
            suffix = layout.SIGNAL_SUFFIX
            if about["kind"] == "image":
                video = signal_file(directory, name, suffix_for(str(about["codec"])))
                if video.stat().st_size != about["video_bytes"]:
                    return False
                suffix = layout.FRAMES_SUFFIX
            if signal_file(directory, name, suffix).stat().st_size != about["file"]["bytes"]:
                return False
        return bool((directory / layout.STATIC_FILE).stat().st_size == meta["static_file"]["bytes"])
    except (OSError, FormatError, KeyError, TypeError, AttributeError):
        return False


def _is_raw_camera(signal: Signal) -> bool:
    """Of a camera: whether its frames are to be encoded."""
    return len(signal) > 0 and encoded_parts(signal) is None and holds_frames(signal)


_SMALL_TOGETHER = 1 << 17
_CLOCKS = SharedClocks()
"""Not only the signals of an episode share a clock: the next one of as many steps has it too."""


class _Copying:
    """The signals of an episode on their way into a folder; small ones of as many records are written together."""

    def __init__(self, folder: Path, video: VideoOptions | None, writing: WrittenLater | None) -> None:
        self._folder = folder
        self._inside = f"{folder}{os.sep}"
        self._video = video
        self._writing = writing
        self._written: list[Future[None]] = []
        self._found: dict[str, dict[str, Any]] = {}
        self._sums: dict[str, ContentSum] = {}
        self._raw: list[RawCamera] = []
        self._raw_sums: dict[str, RowsSum] = {}
        self._copies: list[tuple[str, CameraCopy]] = []
        self._small: dict[int, list[tuple[str, Signal]]] = {}
        """By how many records they have."""
        self._last_clock: tuple[NDArray[np.int64], ClockStatistics] | None = None
        self._small_numbers: dict[int, int] = {}
        """How many numbers a record of all of those has."""

    def steps(self, signals: Mapping[str, Signal], *, is_small: bool) -> Iterator[None]:
        """Copy all signals; between two steps of a small episode others may take theirs."""
        self._name(signals)
        for name, signal in signals.items():
            if not isinstance(signal, FileVideo):
                self._add(name, signal)
        small = [self._small_steps(each) for each in self._small.values()]
        if is_small:
            for each in small:
                next(each)
            yield
        for name, signal in signals.items():
            if isinstance(signal, FileVideo):
                self._add(name, signal)
        yield
        copied = [self._copy_video(name, copy) for name, copy in self._copies]
        yield
        for (name, copy), index in zip(self._copies, copied, strict=True):
            self._add_index(name, index, frame_index_bytes(index), copy.video_bytes)
        yield
        yield from map(_nothing, itertools.zip_longest(*small) if is_small else itertools.chain(*small))
        encode_cameras(self._raw)

    def wait(self) -> None:
        """Until nothing is being written any more, whatever came of it."""
        for each in self._written:
            each.exception()

    def found(self) -> tuple[dict[str, dict[str, Any]], dict[str, ContentSum]]:
        """What meta.json says of every signal, and its sum, in the order of the source."""
        with map_os_errors(self._folder):
            for each in self._written:
                each.result()
        sums = self._sums | {name: each.found() for name, each in self._raw_sums.items()}
        return self._found, {name: sums[name] for name in self._found}

    def _name(self, names: Iterable[str]) -> None:
        """See to it that every signal has a place of its own."""
        taken: dict[str, str] = {}
        folders = {str(self._folder)}
        for name in names:
            keep_apart(name, taken, self._folder)
            if "/" in check_name(name) and (inside := os.path.dirname(self._inside + name)) not in folders:
                os.makedirs(inside, exist_ok=True)
                folders.add(inside)
            self._found[name] = {}

    def _add(self, name: str, signal: Signal) -> None:
        """Copy one signal, now or together with others."""
        if signal.meta.kind == "image":
            if _is_raw_camera(signal):
                self._raw.append(self._raw_camera(name, signal))
                return
            if len(signal) and self._camera(name, signal):
                return
        if _is_small(signal):
            self._add_small(name, signal)
        else:
            self._table(name, signal)

    def _add_small(self, name: str, signal: Signal) -> None:
        rows = len(signal)
        self._small.setdefault(rows, []).append((name, signal))
        numbers = self._small_numbers.get(rows, 0) + math.prod(signal.meta.shape)
        self._small_numbers[rows] = numbers
        if rows * numbers > _SMALL_TOGETHER:
            del self._small_numbers[rows]
            for _ in self._small_steps(self._small.pop(rows)):
                pass

    def _small_steps(self, signals: Sequence[tuple[str, Signal]]) -> Iterator[None]:
        """Write small signals of as many records."""
        rows = range(len(signals[0][1]))
        values = [np.asarray(signal._values_in(rows)) for _, signal in signals]
        clocks = [np.asarray(signal.timestamps) for _, signal in signals]
        yield
        stated = stated_together(values)
        yield
        files: list[tuple[str, Any]] = []
        for (name, signal), times, found, said in zip(signals, clocks, values, stated, strict=True):
            about, text = _stored_description(signal.meta)
            data = table_bytes(about, times, found, text)
            files.append((name, data))
            self._sums[name] = sum_of_rows([found])
            self._found[name] = {
                **about, **self._clock_of(times).to_json(), "values": said, "file": _file(data),
            }  # fmt: skip
        yield
        for name, data in files:
            put_file(self._inside + name + layout.SIGNAL_SUFFIX, data)

    def _table(self, name: str, signal: Signal) -> None:
        clock = self._clock_of(signal.timestamps)
        path = Path(self._inside + name + layout.SIGNAL_SUFFIX)
        table = TableFile(path, described(signal), clock=clock, recorded=False)
        running = None if signal.meta.is_object else RowsSum()
        for rows in _blocks(signal):
            values = np.array(signal._values_in(rows))
            if running is not None:
                running.add(values)
            table.write(np.array(signal._ts_in(rows)), values)
        table.complete()
        self._found[name] = table.facts()
        self._sums[name] = sum_of(signal) if running is None else running.found()

    def _camera(self, name: str, signal: Signal) -> bool:
        """Copy a camera whose frames are encoded, now or together with others; False where they are not."""
        copy = camera_copy(signal, self._rate_of)
        if copy is not None:
            self._copies.append((name, copy))
            return True
        camera = encoded_camera(name, signal)
        if camera is None:
            return False
        frames = read_bytes(camera.frames, max_bytes=1 << 33)
        index = camera.index or parse_frame_index(frames, f"{name} (index)")
        _copy(camera.video, self._inside + name + camera.suffix)
        self._sums[name] = sum_of(signal)
        self._add_index(name, index, frames, camera.video.size)
        return True

    def _copy_video(self, name: str, copy: CameraCopy) -> FrameIndex:
        index, self._sums[name] = copy_camera(copy, self._inside + name + copy.suffix)
        return index

    def _later(self, job: Callable[[], None]) -> None:
        if self._writing is None:
            job()
        else:
            self._written.append(self._writing.submit(job))

    def _add_index(self, name: str, index: FrameIndex, frames: Any, video_bytes: int) -> None:
        put_file(self._inside + name + layout.FRAMES_SUFFIX, frames)
        clock = self._clock_of(index.shown_ts_ns)
        self._found[name] = {
            **index.description.to_json(), **clock.to_json(), "video_bytes": video_bytes,
            "codec": index.stream.codec if index.stream else None, "file": _file(frames),
        }  # fmt: skip

    def _rate_of(self, times: NDArray[np.int64]) -> float:
        return self._clock_of(times).rate_hz(DEFAULT_TICK_HZ)

    def _clock_of(self, times: NDArray[np.int64]) -> ClockStatistics:
        """The statistics of a clock; the signals of an episode often have the very same times."""
        if self._last_clock is None or self._last_clock[0] is not times:
            self._last_clock = (times, _CLOCKS.of(times))
        return self._last_clock[1]

    def _raw_camera(self, name: str, signal: Signal) -> RawCamera:
        """A camera whose frames are to be encoded; what is said of it is known once they are."""
        meta = signal.meta
        shape = FrameShape.of_values(meta.shape, meta.dtype)
        fps = self._clock_of(signal.timestamps).rate_hz(30.0)
        options = replace(self._video or VideoOptions(codec="ffv1"), fps=min(max(fps, 0.001), 1000.0))
        about = replace(described(signal), kind="image")
        running = self._raw_sums[name] = RowsSum()
        part = self._folder / f".{len(self._raw)}.part"

        def blocks() -> Iterator[tuple[NDArray[Any], list[int]]]:
            for rows in _blocks(signal):
                values = np.asarray(signal._values_in(rows))
                running.add(values)
                yield values, np.asarray(signal._ts_in(rows)).tolist()

        def finish(file: VideoFile) -> None:
            names = (
                signal_file(self._folder, name, suffix) for suffix in (file.suffix, layout.FRAMES_SUFFIX)
            )
            self._found[name] = file.commit(*names)

        return RawCamera(
            partial(VideoFile, part, shape, options, description=about, durable=False), blocks(), finish
        )


def _nothing(_: object) -> None:
    return None


def _are_small(signals: Iterable[Signal]) -> bool:
    """Whether an episode is nothing but few numbers, and videos that are copied from files of other programs."""
    numbers = 0
    for signal in signals:
        if isinstance(signal, FileVideo):
            continue
        if not _is_small(signal):
            return False
        numbers += len(signal) * math.prod(signal.meta.shape)
    return numbers <= _SMALL_TOGETHER


def _is_small(signal: Signal) -> bool:
    """Whether a signal holds numbers that fit into one block, with statistics of their own each."""
    meta = signal.meta
    return not meta.is_object and len(signal) <= _BLOCK_ROWS and are_few(len(signal), math.prod(meta.shape))


def _file(data: Any) -> dict[str, Any]:
    """What meta.json says of a file."""
    return {"bytes": memoryview(data).nbytes, "crc32c": f"{crc32c(data):08x}"}


def described(signal: Signal) -> Description:
    """The description of a signal in a parquet file; pictures that no video can hold are tensors."""
    return _description(signal.meta)


@functools.lru_cache(maxsize=512)
def _stored_description(meta: SignalMeta) -> tuple[Mapping[str, Any], bytes]:
    """A description as JSON and as text: the next episode has the same signals."""
    about = _description(meta).to_json()
    return about, description_text(about)


def _description(meta: SignalMeta) -> Description:
    kind = "tensor" if meta.kind == "image" else meta.kind
    dtype = kind if meta.is_object else dtype_of(meta.dtype).name
    return Description(
        kind, dtype, meta.shape, meta.units, meta.names, meta.role, meta.of, meta.model, meta.clock
    )


def holds_frames(signal: Signal) -> bool:
    """Whether values of this shape and type can be frames of a video."""
    meta = signal.meta
    try:
        FrameShape.of_values(meta.shape, meta.dtype)
    except ValueError:
        return False
    return True


def _blocks(signal: Signal) -> Iterator[range]:
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, signal.meta.row_bytes)))
    for start in range(0, len(signal), step):
        yield range(start, min(start + step, len(signal)))


def _copy(source: RangeReader, target: str) -> None:
    with map_os_errors(target), open(target, "xb") as out:
        for start in range(0, source.size, _COPY_BYTES):
            out.write(source.read(start, min(start + _COPY_BYTES, source.size)))
    source.close()


__all__ = [
    "Steps",
    "WrittenLater",
    "copying_to_directory",
    "described",
    "holds_frames",
    "is_intact",
]
