"""An episode of any source as an episode directory: encoded frames as they are, numbers exactly, nothing journaled."""

from __future__ import annotations

import functools
import itertools
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.checksum import RunningXxh3128, crc32c
from warpdata.bytekit.io.commit import check_case_clash, commit_folder, map_os_errors, put_file
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.system import usable_cores
from warpdata.episodes.forms.content_sums import ContentSum, RowsSum, sum_of, sum_of_rows
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.record.recording import last_documents
from warpdata.episodes.record.tables import TableFile
from warpdata.episodes.record.threads import JobQueue, Workers
from warpdata.episodes.sources.encoded import (
    CameraCopy,
    Stretches,
    camera_copy,
    encoded_camera,
    encoded_parts,
)
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

MetaOf = Callable[[Mapping[str, ContentSum]], Mapping[str, Any]]
"""The metadata of an episode, from the sum of every signal as it was copied."""


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
    frames of every camera again. Every value is read once. `meta_of` makes the metadata (default: that of the episode).
    """
    if reencode:
        video = video or VideoOptions()
    with map_os_errors(directory):
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
    with commit_folder(directory, durable=durable, replace=overwrite) as folder:
        copy = _Copy(folder, video, reencode=reencode)
        copy.add_all(dict(episode.signals))
        about, sums = copy.result()
        meta = episode.meta if meta_of is None else meta_of(sums)
        stated = meta.get("signals")
        if (
            isinstance(stated, Mapping) and not reencode
        ):  # such as how often a camera froze while it was recorded
            about = {name: {**stated.get(name, {}), **facts} for name, facts in about.items()}
        static = {check_name(name): plain_static(name, value) for name, value in episode.static.items()}
        for path, data in last_documents(folder, meta, static, about, None).items():
            put_file(path, data)


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


class _Copy:
    """The signals of an episode on their way into a folder; small ones of as many records are written together."""

    def __init__(self, folder: Path, video: VideoOptions | None, *, reencode: bool) -> None:
        self._folder = folder
        self._reencode = reencode
        self._inside = f"{folder}{os.sep}"
        self._video = video
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

    def add_all(self, signals: Mapping[str, Signal]) -> None:
        """Copy all signals."""
        self._name(signals)
        for name, signal in signals.items():
            self._add(name, signal)
        for small in self._small.values():
            self._write_small(small)
        for name, copy in self._copies:
            index, self._sums[name] = copy_camera(copy, self._inside + name + copy.suffix)
            self._add_index(name, index, frame_index_bytes(index), copy.video_bytes)
        encode_cameras(self._raw)

    def result(self) -> tuple[dict[str, dict[str, Any]], dict[str, ContentSum]]:
        """The meta.json entry of every signal, and its sum, in the order of the source."""
        sums = self._sums | {name: each.found() for name, each in self._raw_sums.items()}
        return self._found, {name: sums[name] for name in self._found}

    def _name(self, names: Iterable[str]) -> None:
        """See to it that every signal has a place of its own."""
        taken: dict[str, str] = {}
        folders = {str(self._folder)}
        for name in names:
            check_case_clash(name, taken, self._folder)
            if "/" in check_name(name) and (inside := os.path.dirname(self._inside + name)) not in folders:
                os.makedirs(inside, exist_ok=True)
                folders.add(inside)
            self._found[name] = {}

    def _add(self, name: str, signal: Signal) -> None:
        """Copy one signal, now or together with others."""
        if signal.meta.kind == "image":
            if _is_raw_camera(signal) or (self._reencode and holds_frames(signal)):
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
            self._write_small(self._small.pop(rows))

    def _write_small(self, signals: Sequence[tuple[str, Signal]]) -> None:
        """Write small signals of as many records; their statistics are computed together."""
        rows = range(len(signals[0][1]))
        values = [np.asarray(signal._values_in(rows)) for _, signal in signals]
        statistics = stated_together(values)
        for (name, signal), array, stated in zip(signals, values, statistics, strict=True):
            about, text = _stored_description(signal.meta)
            times = np.asarray(signal.timestamps)
            data = table_bytes(about, times, array, text)
            self._sums[name] = sum_of_rows([array])
            self._found[name] = {
                **about, **self._clock_of(times).to_json(), "values": stated, "file": _file(data),
            }  # fmt: skip
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
        """A camera whose frames are to be encoded; its entry is known once they are."""
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


def _is_small(signal: Signal) -> bool:
    """Whether a signal holds numbers that fit into one block, with statistics of their own each."""
    meta = signal.meta
    return not meta.is_object and len(signal) <= _BLOCK_ROWS and are_few(len(signal), math.prod(meta.shape))


def _file(data: Any) -> dict[str, Any]:
    """The file entry for meta.json."""
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


_PIECE_BYTES = 512 << 10
"""What is hashed and written while it is still in the cache of the processor."""


def copy_camera(copy: CameraCopy, target: str | os.PathLike[str]) -> tuple[FrameIndex, ContentSum]:
    """Write the video of a camera as a new file; returns its index and the sum of its frames."""
    digest = RunningXxh3128()
    sums: list[int] = []
    with map_os_errors(target), open(target, "xb") as out:
        out.write(copy.head)
        for each in copy.stretches:
            sums += _copy_stretches(each, out, digest)
        out.write(copy.tail)
    total = sum([int(each.size.sum()) for each in copy.stretches])
    return copy.complete(np.array(sums, np.uint32)), ContentSum(total, xxh3_128=digest.digest().hex())


def _copy_stretches(stretches: Stretches, out: BinaryIO, digest: RunningXxh3128) -> list[int]:
    """Copy the bytes; the checksum of each packet in the order of the file."""
    packets = _Packets(stretches, digest)
    reader = stretches.video.video_bytes()
    try:
        for start, stop in stretches.ranges:
            for at in range(start, stop, _PIECE_BYTES):
                piece = reader.read(at, min(at + _PIECE_BYTES, stop))
                packets.see(at, piece)
                out.write(piece)
    finally:
        reader.close()
    return packets.sums


class _Packets:
    """The checksum of each packet and the hash of all, from pieces of a file in order that are cut anywhere."""

    def __init__(self, stretches: Stretches, digest: RunningXxh3128) -> None:
        ends = stretches.offset + stretches.size
        self._starts, self._ends = stretches.offset.tolist(), ends.tolist()
        is_gap = stretches.offset[1:] != ends[:-1]
        self._gaps = (np.flatnonzero(is_gap) + 1).tolist()
        """The packets that do not follow the one before at once."""
        self.sums: list[int] = []
        """Of the packets that are complete, in the order of the file."""
        self._begun = 0
        """The checksum of what pieces before had of the next packet."""
        self._digest = digest

    def see(self, start: int, piece: memoryview) -> None:
        """Take the bytes of packets out of a piece that begins at `start` of the file."""
        stop, first = start + piece.nbytes, len(self.sums)
        last = bisect_right(self._ends, stop, first)  # those before it end in this piece
        at, starts, ends = first, self._starts, self._ends
        if first < last and starts[first] < start:
            self.sums.append(crc32c(piece[: ends[first] - start], self._begun))
            self._begun, at = 0, first + 1
        self.sums += [
            crc32c(piece[low - start : high - start])
            for low, high in zip(starts[at:last], ends[at:last], strict=True)
        ]
        if last < len(ends) and starts[last] < stop:
            self._begun = crc32c(piece[max(0, starts[last] - start) :], self._begun)
            last += 1
        self._hash(start, stop, piece, first, last)

    def _hash(self, start: int, stop: int, piece: memoryview, first: int, last: int) -> None:
        """Add the packets [first, last), as far as they are in the piece, in contiguous parts."""
        if first == last:
            return
        cuts = self._gaps[bisect_right(self._gaps, first) : bisect_left(self._gaps, last)]
        for low, high in itertools.pairwise([first, *cuts, last]):
            begin, end = max(self._starts[low], start), min(self._ends[high - 1], stop)
            self._digest.update(piece[begin - start : end - start])


_BLOCKS_AHEAD = 3
"""Blocks of one camera that may wait for its encoder."""

Block = tuple[NDArray[Any], Sequence[int]]
"""Frames, and the time of each."""


@dataclass(frozen=True, slots=True)
class RawCamera:
    """A camera to be encoded."""

    open: Callable[[], VideoFile]
    """Opens its encoder, when its turn has come."""
    blocks: Iterator[Block]
    """Read by the caller's thread, a block of each camera in turn."""
    finish: Callable[[VideoFile], None]
    """Is given the file when all frames are in it."""


def encode_cameras(cameras: Sequence[RawCamera]) -> None:
    """Encode all frames of all cameras; where one fails, open files are closed and the reason is raised."""
    together = usable_cores()  # an encoder takes as much memory as many frames
    for first in range(0, len(cameras), together):
        _encode_together(cameras[first : first + together])


def _encode_together(cameras: Sequence[RawCamera]) -> None:
    workers = Workers("warp-encoder", len(cameras))
    files: list[VideoFile] = []
    queues: list[JobQueue] = []
    try:
        for camera in cameras:
            files.append(camera.open())
            queues.append(workers.queue(_BLOCKS_AHEAD))
            workers.start()
        waiting = list(zip(cameras, files, queues, strict=True))
        while waiting:
            waiting = [each for each in waiting if _hand_over(*each)]
        for queue in queues:
            queue.finish()
        for camera, file in zip(cameras, files, strict=True):
            camera.finish(file)
    except BaseException:
        for queue in queues:
            queue.cancel()
        for file in files:
            file.close()
        raise
    finally:
        workers.close()


def _hand_over(camera: RawCamera, file: VideoFile, queue: JobQueue) -> bool:
    """Give the next block to the encoder; after the last it is drained, at the same time as the others."""
    block = next(camera.blocks, None)
    queue.submit(file.drain if block is None else partial(_encode, file, *block))
    return block is not None


def _encode(file: VideoFile, frames: NDArray[Any], times: Sequence[int]) -> None:
    for frame, ts_ns in zip(frames, times, strict=True):
        file.encode(np.ascontiguousarray(frame), ts_ns)
