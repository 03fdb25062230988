"""An episode of any source as an episode directory: encoded frames as they are, numbers exactly, nothing journaled."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import check_case_clash, commit_folder, map_os_errors, put_file
from warpdata.bytekit.process.system import usable_cores
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.episodes.forms.content import ContentSum, RowsSum, sum_of, sum_of_rows
from warpdata.episodes.record.camera import VideoFile, camera_entry
from warpdata.episodes.record.recording import last_documents
from warpdata.episodes.record.tables import table_entry
from warpdata.episodes.sources.cameras import describe
from warpdata.episodes.sources.encoded import encoded_camera, encoded_parts
from warpdata.episodes.statistics import MAX_CHANNELS, ClockStatistics, SharedClocks, ValueStatistics
from warpdata.errors import FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    FileSum,
    FrameShape,
    VideoOptions,
    check_name,
    plain_static,
    read_meta,
    signal_file,
    suffix_for,
)
from warpdata.formats.episodedir.frame_index import frame_index_bytes
from warpdata.formats.episodedir.signal_file import TableWriter, signal_schema, table_bytes
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 14
_SMALL_BYTES = 1 << 16
_COPY_BYTES = 1 << 20
_CLOCKS = SharedClocks()
"""Not only the signals of an episode share a clock: the next one of as many steps has it too."""

MetaOf = Callable[[Mapping[str, ContentSum]], Mapping[str, Any]]
"""Makes the metadata of an episode from the sum of every signal as it was copied."""


def write_directory(
    episode: Episode,
    directory: Path,
    meta_of: MetaOf | None = None,
    *,
    video: VideoOptions | None = None,
    reencode: bool = False,
    durable: bool = True,
    overwrite: bool = False,
) -> None:
    """Write an episode as a directory, which appears whole or not at all; power loss may take it unless `durable`.

    Frames that are not encoded become lossless video, unless `video` gives another encoding; `reencode` encodes the
    frames of every camera again. `meta_of` makes the metadata (default: that of the episode).
    """
    options = video or VideoOptions() if reencode else video
    with map_os_errors(directory):
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
    with commit_folder(directory, durable=durable, replace=overwrite) as folder:
        copy = _Copy(folder, options, reencode=reencode)
        copy.add_all(dict(episode.signals))
        meta = episode.meta if meta_of is None else meta_of(copy.sums)
        entries, stated = copy.entries, meta.get("signals")
        if isinstance(stated, Mapping) and not reencode:  # such as how often a camera froze while recording
            entries = {name: {**stated.get(name, {}), **entry} for name, entry in entries.items()}
        static = {check_name(name): plain_static(name, value) for name, value in episode.static.items()}
        for path, data in last_documents(folder, meta, static, entries, None).items():
            put_file(path, data)


def is_intact(directory: Path) -> bool:
    """Whether a directory has all its files at their stated sizes: the loss of power can leave some empty."""
    try:
        meta = read_meta(directory)
        sizes = {directory / layout.STATIC_FILE: meta["static_file"]["bytes"]}
        for name, entry in meta["signals"].items():
            is_camera = entry["kind"] == "image"
            if is_camera:
                suffix = entry.get(layout.SUFFIX_KEY) or suffix_for(str(entry["codec"]))
                sizes[signal_file(directory, name, suffix)] = entry["video_bytes"]
            suffix = layout.FRAMES_SUFFIX if is_camera else layout.SIGNAL_SUFFIX
            sizes[signal_file(directory, name, suffix)] = entry["file"]["bytes"]
        return all(path.stat().st_size == size for path, size in sizes.items())
    except (OSError, FormatError, KeyError, TypeError, AttributeError):
        return False


class _Copy:
    """The signals of an episode on their way into a folder."""

    def __init__(self, folder: Path, video: VideoOptions | None, *, reencode: bool) -> None:
        self._folder = folder
        self._video = video
        self._reencode = reencode
        self._raw: list[RawCamera] = []
        self._statistics: dict[str, dict[str, Any]] = {}  # of small signals
        self.entries: dict[str, dict[str, Any]] = {}
        """The meta.json entry of every signal."""
        self.sums: dict[str, ContentSum] = {}

    def add_all(self, signals: Mapping[str, Signal]) -> None:
        """Copy all signals; raw cameras are encoded together at the end."""
        taken: dict[str, str] = {}
        for name in signals:
            check_case_clash(name, taken, self._folder)
            if "/" in check_name(name):
                signal_file(self._folder, name).parent.mkdir(parents=True, exist_ok=True)
            self.entries[name], self.sums[name] = {}, ContentSum(0)
        by_count: dict[int, list[str]] = {}
        for name, signal in signals.items():
            meta, size = signal.meta, len(signal) * signal.meta.row_bytes
            is_numeric = meta.kind != "image" and not meta.is_object
            if is_numeric and 0 < size <= _SMALL_BYTES and math.prod(meta.shape) <= MAX_CHANNELS:
                by_count.setdefault(len(signal), []).append(name)
        for count, names in by_count.items():
            tables = [np.asarray(signals[name]._values_in(range(count))) for name in names]
            self._statistics |= zip(names, ValueStatistics.of_tables(tables), strict=True)
        for name, signal in signals.items():
            is_camera = signal.meta.kind == "image" and len(signal) > 0
            is_raw = is_camera and (self._reencode or encoded_parts(signal) is None) and holds_frames(signal)
            if is_raw:
                self._raw.append(self._raw_camera(name, signal))
            elif not (is_camera and self._copy_camera(name, signal)):
                self._write_table(name, signal)
        encode_cameras(self._raw)

    def _write_table(self, name: str, signal: Signal) -> None:
        description = describe(signal.meta, in_table=True)
        about, path = description.to_json(), signal_file(self._folder, name)
        clock = _CLOCKS.of(np.asarray(signal.timestamps))
        known = self._statistics.get(name)
        statistics = None if signal.meta.is_object or known else ValueStatistics(signal.meta.shape)
        blocks = list(_blocks(signal))
        if len(blocks) == 1:
            values = np.asarray(signal._values_in(blocks[0]))
            if statistics is not None:
                statistics.add(values)
            data = table_bytes(about, np.asarray(signal.timestamps), values)
            put_file(path, data)
            file = FileSum.of(data)
            self.sums[name] = sum_of(signal) if signal.meta.is_object else sum_of_rows([values])
        else:
            self.sums[name] = self._write_blocks(path, signal, about, statistics)
            total = 0
            with open(path, "rb") as written:
                while block := written.read(_COPY_BYTES):
                    total = crc32c(block, total)
            file = FileSum(os.path.getsize(path), total)
        self.entries[name] = table_entry(description, clock, known or statistics, file)

    def _write_blocks(
        self, path: Path, signal: Signal, about: Mapping[str, Any], statistics: ValueStatistics | None
    ) -> ContentSum:
        """Write a large table block by block."""
        running = RowsSum()
        with map_os_errors(path), open(path, "xb") as out:
            writer = TableWriter(out, signal_schema(about), about)
            for rows in _blocks(signal):
                values = np.asarray(signal._values_in(rows))
                writer.write(np.asarray(signal._ts_in(rows)), values)
                if statistics is not None:
                    statistics.add(values)
                    running.add(values)
            writer.close()
        return sum_of(signal) if statistics is None else running.result()

    def _copy_camera(self, name: str, signal: Signal) -> bool:
        """Copy a camera whose frames are encoded; False where they are not."""
        camera = encoded_camera(name, signal)
        if camera is None:
            return False
        index, size, digest = camera.copy_to(signal_file(self._folder, name, camera.suffix))
        total = ContentSum(size, xxh3_128=digest) if index.shown is None else sum_of(signal)
        frames = frame_index_bytes(index)
        put_file(signal_file(self._folder, name, layout.FRAMES_SUFFIX), frames)
        entry = camera_entry(index, frames, _CLOCKS.of(index.shown_ts_ns))
        entry["video_bytes"] = camera.video.size
        if camera.suffix != suffix_for(str(entry["codec"])):
            entry[layout.SUFFIX_KEY] = camera.suffix
        self.entries[name], self.sums[name] = entry, total
        return True

    def _raw_camera(self, name: str, signal: Signal) -> RawCamera:
        """A camera whose frames are to be encoded; its entry is known once they are."""
        meta = signal.meta
        shape = FrameShape.of_values(meta.shape, meta.dtype)
        rate_hz = ClockStatistics.of(np.asarray(signal.timestamps)).rate_hz(30.0)
        fps = min(max(rate_hz, 0.001), 1000.0)
        options = replace(self._video or VideoOptions(codec="ffv1"), fps=fps)
        running, part = RowsSum(), self._folder / f".{len(self._raw)}.part"

        def blocks() -> Iterator[tuple[NDArray[Any], list[int]]]:
            for rows in _blocks(signal):
                values = np.asarray(signal._values_in(rows))
                running.add(values)
                yield values, np.asarray(signal._ts_in(rows)).tolist()

        def finish(file: VideoFile) -> None:
            suffixes = (file.suffix, layout.FRAMES_SUFFIX)
            self.entries[name] = file.commit(*(signal_file(self._folder, name, end) for end in suffixes))
            self.sums[name] = running.result()

        about = describe(meta)
        return RawCamera(
            partial(VideoFile, part, shape, options, description=about, durable=False), blocks(), finish
        )


def holds_frames(signal: Signal) -> bool:
    """Whether values of this shape and type can be frames of a video."""
    try:
        FrameShape.of_values(signal.meta.shape, signal.meta.dtype)
    except ValueError:
        return False
    return True


def _blocks(signal: Signal) -> Iterator[range]:
    return signal.runs(_BLOCK_BYTES, _BLOCK_ROWS) if len(signal) else iter([range(0)])


@dataclass(frozen=True, slots=True)
class RawCamera:
    """A camera to be encoded."""

    open: Callable[[], VideoFile]
    """Opens its encoder, when its turn has come."""
    blocks: Iterator[tuple[NDArray[Any], Sequence[int]]]
    """Frames, and the time of each."""
    finish: Callable[[VideoFile], None]
    """Is given the file when all frames are in it."""


def encode_cameras(cameras: Sequence[RawCamera]) -> None:
    """Encode all frames of all cameras; where one fails, open files are closed and the reason is raised."""
    together = usable_cores()  # an encoder takes as much memory as many frames
    for first in range(0, len(cameras), together):
        files: list[VideoFile] = []
        try:
            group = cameras[first : first + together]
            for camera in group:
                files.append(camera.open())
            map_in_threads(_encode, list(zip(group, files, strict=True)), together)
            for camera, file in zip(group, files, strict=True):
                camera.finish(file)
        except BaseException:
            for file in files:
                file.close()
            raise


def _encode(task: tuple[RawCamera, VideoFile]) -> None:
    camera, file = task
    for frames, times in camera.blocks:
        for frame, ts_ns in zip(frames, times, strict=True):
            file.encode(np.ascontiguousarray(frame), ts_ns)
    file.drain()
