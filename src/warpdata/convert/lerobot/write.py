"""Write episodes as a LeRobot set, v3.0 or v2.1: encoded frames are copied, times are on the grid of the rate."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import check_free, commit_folder, map_os_errors
from warpdata.convert.aligning import (
    AlignOptions,
    check_rate,
    measured_rate,
    rate_of,
    stated_rate,
    steps_with,
)
from warpdata.convert.exporting import ExportOptions, Part, StepColumn, StepRows, StepWriter
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.features import (
    QUANTILES,
    Feature,
    FrameCounts,
    SetPlan,
    SetStatistics,
    camera_codec,
    row_statistics,
)
from warpdata.convert.lerobot.read import FORMAT, OURS, TASK, is_of_lerobot
from warpdata.convert.place import check_inside
from warpdata.convert.plain_names import free_name, with_own_names
from warpdata.convert.receipt import ConversionReceipt, EpisodeNotes, Note, pack, unpack
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.forms.directory import RawCamera, encode_cameras
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import SchemaMismatchError, WarpError, require_word
from warpdata.formats.episodedir.containers import HEAD_BYTES, file_around, file_head
from warpdata.formats.episodedir.documents import STILL_CODECS, FrameShape, VideoOptions
from warpdata.formats.episodedir.video import encode_png
from warpdata.timeline.episode import Episode


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
        around = file_around(self.entry, size, shows, np.array(self._keys, np.bool_), self._rate)
        self._file.write(around.tail)
        self._file.seek(0)
        self._file.write(around.head)
        self._file.close()

    def discard(self) -> None:
        """Close an unfinished file."""
        self._file.close()


Version = Literal["v3.0", "v2.1"]
_PATHS = {
    "v3.0": {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    },
    "v2.1": {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    },
}
CODEC = VideoOptions(codec="av1", gop_size=2, quality=30, preset="12")
"""LeRobot's own encoding, for cameras with raw frames."""
_SAMPLED_FRAMES = 512
_MB = 1024 * 1024
_COUNTED = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
_PLACES = ("videos/", "data/", "meta/", "stats/")
_V2_ONLY = ("total_videos", "total_chunks")
_V3_ONLY = ("data_files_size_in_mb", "video_files_size_in_mb")


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    version: Version = "v3.0",
    max_age_ns: int | None = None,
    names: Mapping[str, str] | None = None,
    task: str | None = None,
    robot_type: str | None = None,
    frames_as: Literal["video", "image"] = "video",
    video: VideoOptions | None = None,
    data_files_size_in_mb: int = 100,
    video_files_size_in_mb: int = 200,
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as a LeRobot set into a new folder, which appears whole or not at all.

    `rate`, `clock` and `align` choose the one rate of the set if the steps of the episodes are not evenly spaced.
    `names` maps signals to features; without it, names of LeRobot stay and others get the names its policies look for.
    `task` is the text of episodes that have none. Raw frames are encoded with `video` (by default AV1 as LeRobot does),
    or stored as PNG with `frames_as="image"`; encoded ones are copied.
    """
    require_word("version", version, get_args(Version))
    if not len(episodes):
        raise SchemaMismatchError("there are no episodes to write", hint="Check the selection.")
    path = Path(os.path.abspath(target))
    check_free(path)
    with map_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    limits = (data_files_size_in_mb, video_files_size_in_mb)
    writer = LeRobotWriter(version, names, task, robot_type, frames_as, video or CODEC, limits)
    given = {"names": names, "task": task, "robot_type": robot_type}
    supplied = {key: value for key, value in given.items() if value is not None}
    return writer.write(episodes, path, supplied=supplied, max_age_ns=max_age_ns, **options)


@dataclass(slots=True)
class Prepared:
    """An episode before its place in the set is known."""

    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Of features of numbers and text."""
    pictures: dict[str, tuple[list[bytes], str]] = field(default_factory=dict)
    """Of image features: the pictures, and the suffix of their names."""
    frames: dict[str, EncodedFrames] = field(default_factory=dict)
    counts: dict[str, FrameCounts] = field(default_factory=dict)
    """Of cameras without stated statistics."""
    stated: dict[str, Any] = field(default_factory=dict)
    """The statistics of the source."""
    texts: list[str] = field(default_factory=list)
    """The task of every row; empty if the episode has none."""
    entry: dict[str, Any] = field(default_factory=dict)
    """The entry of the episode in the source, without counts and places."""
    numbers: tuple[Any, int] | None = None
    """`episode_index` and the first `index` of the source, if it numbers rows."""
    remarks: list[str] = field(default_factory=list)


class FileNumbers:
    """Chunk and file numbers as LeRobot counts them, and the open file."""

    def __init__(self, chunks_size: int) -> None:
        self._chunks_size, self.chunk, self.file = chunks_size, 0, -1
        self.out: Any = None
        self.path = Path()

    def advance(self) -> tuple[int, int]:
        """Close the open file; the numbers of the next one."""
        if self.out is not None:
            self.out.close()
        self.file += 1
        if self.file >= self._chunks_size:
            self.chunk, self.file = self.chunk + 1, 0
        return self.chunk, self.file

    def discard(self) -> None:
        """Close a file that was not finished."""
        if self.out is not None:
            self.out.discard()


@dataclass
class LeRobotWriter(StepWriter):
    """Data and video files of many episodes each (v3.0), or of one (v2.1), and the metadata."""

    format = FORMAT
    _version: Version
    _names: Mapping[str, str] | None
    _task: str | None
    _robot_type: str | None
    _frames_as: Literal["video", "image"]
    _video: VideoOptions
    _limits: tuple[int, int]
    _rows: list[dict[str, Any]] = field(default_factory=list)
    """The entry of every written episode in the metadata."""
    _stats: list[dict[str, Any]] = field(default_factory=list)
    _statistics: dict[str, SetStatistics] = field(default_factory=dict)
    _remarks: list[str] = field(default_factory=list)
    _frames = 0

    def __post_init__(self) -> None:
        self.version, self.is_v3 = self._version, self._version == "v3.0"
        self._is_robot_given = self._robot_type is not None

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[Path]:
        """The new folder; files that are open when an error occurs are closed, each of them."""
        with commit_folder(target, durable=False) as folder, contextlib.ExitStack() as stack:
            for numbers in (self._data, *self._cameras.values()):
                stack.callback(numbers.discard)
            yield folder

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """Choose features, rate and tasks from the first episode and the metadata of the source."""
        first = rows.episode
        plan = self._plan = SetPlan(episodes, first, self._names, self._frames_as)
        self._features, self._info = plan.features, plan.info
        self._robot_type = self._robot_type or plan.robot_type
        fps = first.meta.get("fps") if first.meta.get("fps_from") == "user" else plan.fps
        options = rows.options
        fps = options.rate or (fps if stated_rate(fps) is not None and options.clock is None else None)
        self._fps: float | None = fps or _first_rate(episodes, options)
        for feature in self._features.chosen:
            if feature.name != feature.signal:
                self._remarks.append(f"{feature.signal} is called {feature.name} there")
        chunks_size = self._info.get("chunks_size", 1000)
        self._chunks_size = chunks_size if isinstance(chunks_size, int) and chunks_size > 0 else 1000
        self._data = FileNumbers(self._chunks_size)
        videos = [feature.name for feature in self._features.chosen if feature.storing == "video"]
        self._cameras = {name: FileNumbers(self._chunks_size) for name in videos}
        self._sampled = max(1, min(16, _SAMPLED_FRAMES // len(episodes)))

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The values, encoded frames and notes of one episode."""
        episode, made = rows.episode, Prepared()
        columns = self._columns(rows)
        if not len(rows):
            raise SchemaMismatchError(f"episode {episode.id} has no steps")
        fps, error_ns = check_rate(rows.steps, self._fps, episode.source.place)
        raw: list[RawCamera] = []
        for number, feature in enumerate(self._features.chosen):
            name, column, path = feature.name, columns[feature.name], scratch / str(number)
            if feature.storing == "image":
                data, suffix, rows.notes[feature.signal] = encode_pictures(column, error_ns)
                made.pictures[name] = data, suffix
            elif feature.storing == "video":

                def keep(frames: EncodedFrames, note: Note, feature: Feature = feature) -> None:
                    made.frames[feature.name], rows.notes[feature.signal] = frames, note

                copied = copy_frames(column, path, fps, allows_lead=self.is_v3, error_ns=error_ns)
                if copied is None:
                    raw.append(raw_camera(column, path, fps, self._video, error_ns, keep))
                else:
                    keep(*copied)
            else:
                made.values[name] = np.asarray(rows.steps[feature.signal].data)
                note = column.note(has_final=False, error_ns=error_ns)
                if feature.why:
                    why = "; ".join(filter(None, (feature.why, note.why)))
                    note = replace(note, how="cut" if note.how == "cut" else "retyped", why=why)
                rows.notes[feature.signal] = note
        encode_cameras(raw)
        for name, why in self._features.dropped.items():
            if name in episode.signals:
                rows.notes[name] = Note("dropped", len(episode.signals[name]), why=why)
        self._take_facts(made, rows)
        self._count_frames(made, columns)
        static = self._static_beside(episode, made)
        start = int(rows.steps.times_ns[0])
        about = EpisodeNotes(len(rows), start_ns=start, static=pack(static)).to_json()
        return Part(len(rows), made, about)

    def _static_beside(self, episode: Episode, made: Prepared) -> dict[str, Any]:
        """The static items that LeRobot has no place for; those of the user that have the name of one are renamed."""
        static: dict[str, Any] = {}
        for name, value in episode.static.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_placed = {
                TASK: isinstance(value, str),
                "robot_type": self._is_robot_given or (isinstance(value, str) and value == self._robot_type),
                "fps": is_of_lerobot(episode) or (is_number and value == self._fps),
                "episode_index": is_of_lerobot(episode),
            }.get(name)
            if is_placed:
                continue
            if name in (TASK, "fps", "episode_index"):
                there = free_name(f"source_{name}", {*episode.static, *static})
                made.remarks.append(f"static item {name} is called {there} there")
                static[there] = value
            else:
                static[name] = value
        return static

    def _columns(self, rows: StepRows) -> dict[str, StepColumn]:
        """The column of every feature, with the types of the first episode."""
        columns: dict[str, StepColumn] = {}
        for feature in self._features.chosen:
            name, signal, episode = feature.signal, rows.episode.signals.get(feature.signal), rows.episode
            if signal is None:
                raise SchemaMismatchError(f"episode {episode.id} has no {name!r}, which the first one has")
            is_same = signal.meta.shape == feature.shape or feature.storing in ("text", "json")
            if feature.storing == "numbers" and not feature.why:
                is_same = is_same and signal.meta.dtype == feature.dtype
            if not is_same:
                raise SchemaMismatchError(
                    f"{name!r} is {signal.meta.dtype}{list(signal.meta.shape)} in episode {episode.id}, "
                    f"{feature.dtype}{list(feature.shape)} in the first one"
                )
            empty = StepColumn(name, signal, rows.steps, len(rows), False)
            columns[feature.name] = rows.columns.get(name, empty)
        return columns

    def _take_facts(self, made: Prepared, rows: StepRows) -> None:
        """Tasks, numbers and further entries of the source."""
        episode: Episode = rows.episode
        task = episode.static.get(TASK, self._task)
        if TASK in episode.signals and episode.signals[TASK].meta.kind == "text":
            made.texts = [str(text) for text in rows.steps[TASK].data.tolist()]
        elif task is not None:
            made.texts = [str(task)] * len(rows)
        about = episode.meta.get(FORMAT)
        about = unpack(about) if isinstance(about, Mapping) else {}
        entry, stats = about.get("episode"), about.get("stats")
        if isinstance(entry, Mapping):
            made.entry = {
                key: value
                for key, value in entry.items()
                if key not in _COUNTED and not key.startswith(_PLACES)
            }
        if isinstance(stats, Mapping):
            made.stated = {name: dict(item) for name, item in stats.items() if isinstance(item, Mapping)}
        index = episode.signals.get("index")
        if index is not None and is_of_lerobot(episode):
            first = int(index[0][0]) if len(index) == len(rows) else -1
            made.numbers = episode.static.get("episode_index"), first

    def _count_frames(self, made: Prepared, columns: Mapping[str, StepColumn]) -> None:
        """Look at a few evenly spaced frames of every camera without stated statistics."""
        for feature in self._features.chosen:
            if feature.storing in ("image", "video") and feature.name not in made.stated:
                column = columns[feature.name]
                count = len(column.steps)
                at = np.unique(np.linspace(0, count - 1, min(self._sampled, count)).astype(np.int64))
                frames = [column.steps[column.name].rows(row, row + 1) for row in at.tolist()]
                made.counts[feature.name] = FrameCounts.of(np.concatenate(frames))

    def add(self, part: Part) -> str:
        """Write one episode behind the others."""
        made: Prepared = part.data
        number, count, first = len(self._rows), part.rows, self._frames
        if not made.texts:
            self._remark("episodes with no task have the empty text as theirs: give task=…")
        texts = made.texts or [""] * count
        for text in made.remarks:
            self._remark(text)
        if made.numbers not in (None, (number, first), (None, first)):
            self._remark("episode_index, index, frame_index and timestamp are counted again")
        assert self._fps is not None
        defaults = self._plan.defaults(self._fps, number, first, texts)
        columns = {one.name: _column(one, made) for one in self._features.chosen if one.storing != "video"}
        columns |= {name: tables.number_column(column, is_scalar=True) for name, column in defaults.items()}
        self._write_data({name: columns[name] for name in self._features.to_json() if name in columns})
        videos: dict[str, Any] = {}
        for name, frames in made.frames.items():
            videos |= self._write_video(name, frames, count)
        seen, stated = list(dict.fromkeys(texts)), made.entry.pop("tasks", None)
        tasks = stated if isinstance(stated, list) and set(stated) == set(seen) else seen
        row: dict[str, Any] = {"episode_index": number, "tasks": tasks, "length": count, **made.entry}
        if self.is_v3:
            row |= {"data/chunk_index": self._data.chunk, "data/file_index": self._data.file}
            row |= {"dataset_from_index": first, "dataset_to_index": first + count, **videos}
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._rows.append(row)
        self._stats.append(self._episode_stats(made, defaults, count))
        self._frames += count
        return f"{number:012d}"

    def _remark(self, text: str) -> None:
        if text not in self._remarks:
            self._remarks.append(text)

    def _file(self, key: str, chunk: int, file: int, name: str = "") -> Path:
        """The path of a new data or video file."""
        number = len(self._rows)
        values = {"chunk_index": chunk, "file_index": file, "video_key": name, "episode_index": number}
        values["episode_chunk"] = number // self._chunks_size
        path: Path = self.out / check_inside(_PATHS[self.version][key].format(**values), str(self.out))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write_data(self, columns: Mapping[str, Any]) -> None:
        """Add the rows of an episode to the data file, or to a new one if it would become too large."""
        data, size = self._data, sum(column.nbytes for column in columns.values())
        limit = self._limits[0] * _MB
        if data.out is None or not self.is_v3 or os.path.getsize(data.path) + size >= limit:
            data.path = self._file("data_path", *data.advance())
            data.out = tables.RowsFile(str(data.path), columns)
        data.out.write(columns)

    def _write_video(self, name: str, frames: EncodedFrames, count: int) -> dict[str, Any]:
        """Add the frames of an episode to the video file of its camera; the entries about its place."""
        assert self._fps is not None
        feature = next(feature for feature in self._features.chosen if feature.name == name)
        if "info" not in feature.about and "video_info" not in feature.about:
            feature.about["info"] = frames.info
        camera, size = self._cameras[name], sum(frames.sizes)
        out: VideoOut | None = camera.out
        is_full = out is not None and out.bytes + size >= self._limits[1] * _MB
        if out is None or is_full or not self.is_v3 or out.entry != frames.entry:
            path = self._file("video_path", *camera.advance(), name)
            out = camera.out = VideoOut(path, frames.entry, rate_of(self._fps))
        first = out.frames + frames.lead
        out.add(frames)
        place = {"chunk_index": camera.chunk, "file_index": camera.file}
        seconds = {"from_timestamp": first / self._fps, "to_timestamp": (first + count) / self._fps}
        return {f"videos/{name}/{key}": value for key, value in {**place, **seconds}.items()}

    def _episode_stats(
        self, made: Prepared, defaults: Mapping[str, NDArray[Any]], count: int
    ) -> dict[str, Any]:
        """Statistics of one episode: those of the source if they are true of it, else computed."""
        stats: dict[str, Any] = {}
        for name, feature in self._features.to_json().items():
            values, stated = made.values.get(name, defaults.get(name)), made.stated.get(name)
            total = self._statistics.setdefault(name, SetStatistics())
            if name == "task_index" or (values is not None and values.dtype == object):
                values = None
            if values is not None:
                total.add_rows(values)
            if stated is not None and (values is None or self._is_true(name, stated, values, count)):
                stats[name] = stated
            elif values is not None:
                stats[name] = row_statistics(values, quantiles=self.is_v3)
            elif name in made.counts:
                stats[name] = made.counts[name].statistics(quantiles=self.is_v3)
            if feature["dtype"] in ("image", "video") and name in stats:
                total.add_part(stats[name], made.counts.get(name))
        return stats

    def _is_true(self, name: str, stated: Mapping[str, Any], values: Any, count: int) -> bool:
        """Whether statistics of the source are those of these rows, and complete for this version."""
        if stated.get("count") != [count] or (self.is_v3 and not set(QUANTILES) <= set(stated)):
            return False
        if name not in ("index", "episode_index"):
            return True
        lowest = np.asarray(stated.get("min"), np.float64).reshape(-1)
        return bool(lowest[0] == float(values.min()))

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Close all files and write the metadata."""
        receipt.notes += self._remarks
        if not self._rows:
            fact = f"none of {len(episodes) + len(receipt.skipped)} episodes could be written"
            raise SchemaMismatchError(fact)
        for numbers in (self._data, *self._cameras.values()):
            numbers.advance()
            numbers.out = None
        (self.out / "meta").mkdir(exist_ok=True)
        tasks, had_stats = self._plan.tasks, self._plan.original.get("stats") is not None
        is_same = episodes.is_whole and receipt.is_exact
        stated = self._plan.stated_stats(len(self._rows), self._frames) if is_same else None
        stats = {name: counts.statistics() for name, counts in self._statistics.items()}
        stats = {name: each for name, each in stats.items() if each is not None}
        if self.is_v3 or had_stats:
            self._json("meta/stats.json", stats if stated is None else stated)
        if self.is_v3:
            self._write_v3(tasks)
        else:
            listed = [{"episode_index": number, "stats": each} for number, each in enumerate(self._stats)]
            for name, lines in (("tasks", tasks), ("episodes", self._rows), ("episodes_stats", listed)):
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
                (self.out / f"meta/{name}.jsonl").write_text(text)
        self._json("meta/info.json", self._new_info(len(tasks)))
        for name, kept in (self._plan.original.get("files") or {}).items():
            path = self.out / check_inside(name, str(self.out))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept if isinstance(kept, bytes) else kept.encode())
        (self.out / OURS).write_bytes(receipt.document())

    def _new_info(self, tasks: int) -> dict[str, Any]:
        """info.json: the entries of the source, with what is known of this set."""
        count, paths, fps = len(self._rows), _PATHS[self.version], self._fps
        is_same = self._info.get("codebase_version") == self.version
        if isinstance(fps, float) and fps.is_integer() and not isinstance(self._info.get("fps"), float):
            fps = int(fps)
        sizes = dict(zip(_V3_ONLY, self._limits, strict=True))
        defaults = {**(sizes if self.is_v3 else {}), "splits": {"train": f"0:{count}"}}
        kept = {key: value for key, value in self._info.items() if is_same or key not in _V2_ONLY + _V3_ONLY}
        if kept.get("total_episodes") != count:
            kept.pop("splits", None)
        videos = {"total_videos": count * len(self._cameras), "total_chunks": -(-count // self._chunks_size)}
        counted = {
            "codebase_version": self.version,
            "robot_type": self._robot_type,
            "total_episodes": count,
            "total_frames": self._frames,
            "total_tasks": tasks,
            **({} if self.is_v3 else videos),
            "chunks_size": self._chunks_size,
            "fps": fps,
            "data_path": paths["data_path"],
            "video_path": paths["video_path"] if self._cameras or not self.is_v3 else None,
            "features": self._features.to_json(),
        }
        return {**defaults, **kept, **counted}

    def _write_v3(self, tasks: list[dict[str, Any]]) -> None:
        keys = [
            "task_index",
            *(key for key in (tasks[0] if tasks else ()) if key not in ("task_index", "task")),
        ]
        columns: dict[str, Any] = {key: [row.get(key) for row in tasks] for key in keys}
        columns["task"] = tables.text_column([row["task"] for row in tasks])
        tables.write_table(f"{self.out}/meta/tasks.parquet", columns, {"pandas": _pandas(list(columns))})
        names = dict.fromkeys(key for row in self._rows for key in row)
        columns = {key: [row.get(key) for row in self._rows] for key in names}
        for name in dict.fromkeys(name for stats in self._stats for name in stats):
            for key in dict.fromkeys(key for stats in self._stats for key in stats.get(name, {})):
                values = [stats.get(name, {}).get(key) for stats in self._stats]
                columns[f"stats/{name}/{key}"] = tables.list_column(values)
        folder = self.out / "meta/episodes/chunk-000"
        folder.mkdir(parents=True)
        tables.write_table(f"{folder}/file-000.parquet", columns)

    def _json(self, name: str, value: Any) -> None:
        (self.out / name).write_text(json.dumps(value, indent=4, ensure_ascii=False))


def _first_rate(episodes: Episodes, options: AlignOptions) -> float | None:
    """The rate of the first episode that has one: a single step has none."""
    for position in range(len(episodes)):
        with contextlib.suppress(WarpError):
            rate = measured_rate(steps_with(with_own_names(episodes[position]), options).times_ns)
            if rate is not None:
                return rate
    return None


def _column(feature: Feature, made: Prepared) -> Any:
    """The column of a feature that is no video."""
    if feature.storing == "image":
        data, suffix = made.pictures[feature.name]
        return tables.picture_column(data, [f"frame-{k:06d}.{suffix}" for k in range(len(data))])
    values = made.values[feature.name]
    if feature.storing == "text":
        return tables.text_column(values.tolist())
    if feature.storing == "json":
        return tables.json_column(values.tolist(), feature.name)
    shape = tuple(feature.about["shape"]) if feature.shape else ()
    rows = values.astype(feature.dtype, copy=False).reshape(len(values), *shape)
    return tables.number_column(rows, is_scalar=not feature.shape)


def _pandas(names: Sequence[str]) -> str:
    """Metadata of pandas that make the column `task` the index when it reads the file."""
    columns = []
    for name in names:
        kinds = {"task": ("unicode", "object"), "task_index": ("int64", "int64")}.get(
            name, ("object", "object")
        )
        about = {"name": name, "field_name": name, "pandas_type": kinds[0], "numpy_type": kinds[1]}
        columns.append({**about, "metadata": None})
    creator = {"library": "pyarrow", "version": "15.0.0"}
    stated = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "attributes": {}}
    return json.dumps({**stated, "creator": creator, "pandas_version": "2.2.0"})
