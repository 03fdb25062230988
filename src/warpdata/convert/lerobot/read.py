"""Open a LeRobot set as episodes: nothing is converted, rows are read and frames decoded on demand.

The metadata are info.json, tasks, one row per episode and statistics. Nothing of them is trusted.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.io.ranges import FolderReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.convert.aligning import Times, grid_times, seconds_as_times, stated_rate
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.tables import ColumnKind, KeptRows, Tables
from warpdata.convert.place import Place, check_inside
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, EpisodeNotes, pack, parse_notes
from warpdata.convert.stepped import Rows, RowsSignal
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.facts import table_of
from warpdata.episodes.sources.cameras import FileVideo, SourceVideo
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    StoreError,
    UnsupportedVersionError,
    naming,
    nearest,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, Kind, Role, SignalMeta, numeric_kind
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import STEPS, EpisodeSource, LazySignals, StepClock

INFO, STATS, EPISODES_STATS = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl"
TASKS_LINES, TASKS_TABLE, EPISODES_LINES = "meta/tasks.jsonl", "meta/tasks.parquet", "meta/episodes.jsonl"
OURS = "meta/warpdata.json"
"""The receipt, in a set that warpdata wrote."""
VERSIONS = ("v2.0", "v2.1", "v3.0")
DEFAULTS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_KNOWN = (INFO, STATS, EPISODES_STATS, TASKS_LINES, TASKS_TABLE, EPISODES_LINES, OURS)
_OFTEN = ("meta/modality.json",)
"""Files of other programs that are looked for where a server cannot list names."""
_FIELD = re.compile(r"\{(chunk_index|file_index|video_key|episode_chunk|episode_index)(?::0?(\d{1,2})d)?\}")
_STATS_LINE = re.compile(rb'\{"episode_index": ?(0|[1-9][0-9]{0,14}), ?"stats": ?\{')
_MAX_KEPT_FILE, _MAX_LINES, _MAX_FRAMES = 16 << 20, 4 << 30, 1 << 40


@dataclass(slots=True)
class EpisodeRow:
    """One episode in the metadata."""

    number: int
    length: int
    tasks: list[str] | None
    row: dict[str, Any]
    """Its entry, without statistics."""
    file: str
    """The file of the entry."""
    at: int | None = None
    """Row of the entry in a file of v3.0."""
    data_file: str = ""
    data_start: int = 0


class Documents:
    """The metadata of a set; whatever contradicts itself is a typed error that names the file."""

    def __init__(self, place: Place) -> None:
        self.place, self.tables = place, Tables(place)
        try:
            self.info = place.read_json(INFO)
        except BlobNotFoundError:
            raise BadMagicError(f"not a LeRobot set: there is no {INFO!r}", path=place.name) from None
        self.version = self.info.get("codebase_version")
        if self.version not in VERSIONS:
            fact = f"unsupported version {self.version!r} of a LeRobot set (supported: {', '.join(VERSIONS)})"
            hint = "Convert it to v2.1 or v3.0 with the program that wrote it."
            raise UnsupportedVersionError(fact, path=self._path(INFO), hint=hint)
        self.is_v3 = self.version == "v3.0"
        features = self.info.get("features")
        if not isinstance(features, dict) or not all(isinstance(item, dict) for item in features.values()):
            raise self._damaged("info.json does not list its features")
        for name in features:
            if not name or name.startswith("/") or ".." in name.split("/") or "\x00" in name:
                raise self._damaged(f"the feature {name!r} would lead out of its folder")
        self.features: dict[str, dict[str, Any]] = features
        self.fps: Any = self.info.get("fps")
        if (stated_rate(self.fps) or 1e6) >= 1e6:
            raise self._damaged(f"invalid fps in info.json: {self.fps!r}")
        self.chunks_size = self.info.get("chunks_size", 1000)
        if type(self.chunks_size) is not int or self.chunks_size < 1:
            raise self._damaged(f"invalid chunks_size: {self.chunks_size!r}")
        self._stats_lines: dict[int, bytes] = {}
        self.tasks = self._read_tasks()
        self.episodes = sorted(self._read_v3() if self.is_v3 else self._read_v2(), key=lambda row: row.number)
        self._check_counts()

    def _path(self, name: str) -> str:
        return f"{self.place.name}/{name}"

    def _damaged(self, fact: str, name: str = INFO) -> CorruptLayoutError:
        return CorruptLayoutError(fact, path=self._path(name))

    def _check_counts(self) -> None:
        first: dict[str, int] = {}
        for number, episode in enumerate(self.episodes):
            if episode.number != number:
                fact = f"episode {number} is missing: row {number} is episode {episode.number}"
                raise self._damaged(fact, episode.file)
            first[episode.data_file] = min(
                episode.data_start, first.get(episode.data_file, episode.data_start)
            )
        for episode in self.episodes:  # rows of the set -> rows of the file
            episode.data_start -= first[episode.data_file]
        frames = sum(episode.length for episode in self.episodes)
        for key, count in (("total_episodes", len(self.episodes)), ("total_frames", frames)):
            stated = self.info.get(key)
            if stated is not None and stated != count:
                raise self._damaged(f"info.json states {key} {stated}, the episodes add up to {count}")

    def _read_tasks(self) -> list[dict[str, Any]]:
        name = TASKS_TABLE if self.is_v3 else TASKS_LINES
        if self.is_v3 and not self.place.exists(name):
            raise BlobNotFoundError("the tasks are missing", path=self._path(name))
        tasks = []
        for row in self.tables.everything(name) if self.is_v3 else self._lines(name):
            text = row.pop("task", row.pop("__index_level_0__", None))
            if not isinstance(row.get("task_index"), int) or not isinstance(text, str):
                raise self._damaged("a task without its number or its text", name)
            tasks.append({"task_index": row.pop("task_index"), "task": text, **row})
        return sorted(tasks, key=lambda row: int(row["task_index"]))

    def _episode_files(self) -> Iterator[str]:
        """The files that list the episodes; if the store cannot list names, they are tried one by one."""
        try:
            yield from (name for name in self.place.names("meta/episodes") if name.endswith(".parquet"))
            return
        except StoreError:
            pass
        for chunk in itertools.count():
            for file in itertools.count():
                name = f"meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
                if not self.place.exists(name):
                    break
                yield name
            if not file:
                return

    def _read_v3(self) -> Iterator[EpisodeRow]:
        files = list(self._episode_files())
        if not files:
            raise BlobNotFoundError("no episodes are listed", path=self._path("meta/episodes"))
        for file in files:
            names = tuple(name for name in self.tables.schema(file).names if not name.startswith("stats/"))
            table = self.tables.columns(file, names, 0, self.tables.rows(file))
            for at, row in enumerate(table.table.to_pylist()):
                episode = self._episode(row, file, at)
                keys = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
                chunk, number, start, stop = self._numbers(row, keys, file)
                if stop - start != episode.length or start < 0:
                    fact = f"episode {episode.number} has {episode.length} frames in rows {start} to {stop}"
                    raise self._damaged(fact, file)
                episode.data_file = self._template("data_path", chunk_index=chunk, file_index=number)
                episode.data_start = start
                yield episode

    def _numbers(self, row: Mapping[str, Any], keys: tuple[str, ...], file: str) -> list[int]:
        try:
            return [int(row[key]) for key in keys]
        except (KeyError, TypeError, ValueError, OverflowError):
            fact = f"episode {row.get('episode_index')} has no valid {', '.join(keys)}"
            raise self._damaged(fact, file) from None

    def _read_v2(self) -> Iterator[EpisodeRow]:
        for line in self._lines(EPISODES_LINES):
            episode = self._episode(line, EPISODES_LINES, None)
            chunk = episode.number // self.chunks_size
            episode.data_file = self._template("data_path", episode_chunk=chunk, episode_index=episode.number)
            yield episode
        if self.place.exists(EPISODES_STATS):
            for raw in self.place.read(EPISODES_STATS, max_bytes=_MAX_LINES).splitlines():
                if raw.strip():  # parsed when it is needed: a set has many
                    begin = _STATS_LINE.match(raw)
                    number = int(begin[1]) if begin else self._parse(raw, EPISODES_STATS).get("episode_index")
                    if not isinstance(number, int):
                        raise self._damaged("statistics of no episode", EPISODES_STATS)
                    self._stats_lines[number] = raw

    def _episode(self, row: dict[str, Any], file: str, at: int | None) -> EpisodeRow:
        number, length, tasks = row.get("episode_index"), row.get("length"), row.get("tasks")
        if type(number) is not int or number < 0 or type(length) is not int or length < 0:
            raise self._damaged(f"episode {number!r} has length {length!r}", file)
        if length > _MAX_FRAMES:
            raise LimitExceededError(f"episode {number} has {length} frames", path=self._path(file))
        texts = [str(task) for task in tasks] if isinstance(tasks, list) else None
        return EpisodeRow(number, length, texts, row, file, at)

    def _template(self, key: str, **values: Any) -> str:
        """A path from a template of info.json, which may name known fields only."""
        template = self.info.get(key)
        if not isinstance(template, str) or len(template) > 512:
            raise self._damaged(f"invalid {key}: {str(template)[:80]!r}")

        def fill(field: re.Match[str]) -> str:
            if field[1] not in values:
                raise self._damaged(f"the template {template!r} names an unknown field {field[1]!r}")
            return str(values[field[1]]).zfill(int(field[2] or 0))

        return check_inside(_FIELD.sub(fill, template), self._path(INFO))

    def video_file(self, episode: EpisodeRow, key: str) -> tuple[str, float]:
        """The file of a camera of an episode, and the second in it where the episode begins."""
        if not self.is_v3:
            chunk, number = episode.number // self.chunks_size, episode.number
            return self._template("video_path", episode_chunk=chunk, episode_index=number, video_key=key), 0.0
        prefix = f"videos/{key}"
        chunk, file = self._numbers(
            episode.row, (f"{prefix}/chunk_index", f"{prefix}/file_index"), episode.file
        )
        start = episode.row.get(f"{prefix}/from_timestamp")
        if not isinstance(start, int | float):
            raise self._damaged(
                f"episode {episode.number} has no valid {prefix}/from_timestamp", episode.file
            )
        return self._template("video_path", chunk_index=chunk, file_index=file, video_key=key), float(start)

    def stats_of(self, episode: EpisodeRow) -> dict[str, Any]:
        """The statistics of one episode; empty if the set has none."""
        if episode.at is None:
            line = self._stats_lines.get(episode.number)
            stats = {} if line is None else self._parse(line, EPISODES_STATS).get("stats", {})
            return stats if isinstance(stats, dict) else {}
        names = [name for name in self.tables.schema(episode.file).names if name.startswith("stats/")]
        if not names:
            return {}
        stated: dict[str, Any] = {}
        row = self.tables.columns(episode.file, tuple(names), episode.at, episode.at + 1).table.to_pylist()[0]
        for name, value in row.items():
            feature, _, what = name.removeprefix("stats/").rpartition("/")
            if value is not None:
                stated.setdefault(feature, {})[what] = value
        return stated

    def stats(self) -> dict[str, Any] | None:
        """stats.json, if there is one."""
        return self.place.read_json(STATS) if self.place.exists(STATS) else None

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        for raw in self.place.read(name, max_bytes=_MAX_LINES).splitlines():
            if raw.strip():
                yield self._parse(raw, name)

    def _parse(self, raw: bytes, name: str) -> dict[str, Any]:
        with naming(self._path(name)):
            return parse_json_object(raw, allow_nan=True)


FORMAT = "lerobot"
TASK = "task"
_FLAGS: dict[str, Role] = {
    "next.reward": "reward",
    "reward": "reward",
    "next.done": "terminated",
    "done": "terminated",
    "next.terminated": "terminated",
    "next.truncated": "truncated",
    "truncated": "truncated",
}
_KEPT_VIDEOS = 64
_NEAR = 0.25
"""In frames: how far rows may be from their frames if there are as many of both."""


def matches(place: Place) -> bool:
    """Whether a place holds a LeRobot set."""
    return not place.is_file and place.exists(INFO) and b"codebase_version" in place.head(1 << 20, INFO)


def read(source: str | os.PathLike[str] | FolderReader | Place) -> Episodes:
    """The episodes of a LeRobot set: nothing is converted, frames are decoded on demand."""
    return Episodes(LeRobotSource(Place.of(source)))


def role_of(name: str) -> Role:
    """The role of a feature by its name."""
    if name in DEFAULTS:
        return "other"
    if name == "action" or name.startswith(("action.", "action/", "actions.")):
        return "action"
    return _FLAGS.get(name, "observation" if name.startswith("observation") else "other")


class LeRobotSource(Reopens, EpisodesSource):
    """The episodes of a LeRobot set, whose metadata have their facts."""

    has_facts = True

    def __init__(self, place: Place) -> None:
        self.place, self.name, self.documents = place, place.name, Documents(place)
        self._videos: dict[str, SourceVideo] = {}

    @cached_property
    def ids(self) -> Sequence[str]:
        """The number of every episode, as roots of recordings write it."""
        return [f"{episode.number:012d}" for episode in self.documents.episodes]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the whole set: info.json, tasks, statistics, and files of other programs."""
        documents = self.documents
        kept = {"info": documents.info, "tasks": documents.tasks, "stats": documents.stats()}
        files: dict[str, str | bytes] = {}
        try:
            names = documents.place.names("meta")
        except StoreError:
            names = [name for name in _OFTEN if documents.place.exists(name)]
        for name in names:
            if name in _KNOWN or name.startswith("meta/episodes/"):
                continue
            try:
                data = documents.place.read(name, max_bytes=_MAX_KEPT_FILE)
            except FormatError:  # too large
                continue
            try:
                files[name] = data.decode()
            except UnicodeDecodeError:
                files[name] = data
        return {FORMAT: pack({**kept, "files": files})}

    @cached_property
    def own_notes(self) -> Mapping[str, EpisodeNotes]:
        """Notes of a set that warpdata exported, by episode id."""
        is_ours = self.place.exists(OURS)
        return parse_notes(self.place.read(OURS, max_bytes=MAX_DOCUMENT_BYTES) if is_ours else None)

    def note(self, position: int) -> EpisodeNotes:
        """The note of an episode; an empty one if there is none for an episode of this length."""
        length = self.documents.episodes[position].length
        note = self.own_notes.get(self.ids[position])
        return note if note is not None and note.steps == length else EpisodeNotes(length)

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(_open_source(self, position))

    def facts(self) -> Any:
        """One row per episode, from the metadata alone."""
        documents = self.documents
        names, fps = list(documents.features), float(documents.fps)
        rows = []
        for position, row in enumerate(documents.episodes):
            rows.append({
                "id": self.ids[position],
                "length": row.length,
                "task": row.tasks[0] if row.tasks and len(set(row.tasks)) == 1 else None,
                "signals": names,
                "duration_s": max(0, row.length - 1) / documents.fps,
                "start_ns": self.note(position).start_ns,
                "rates": dict.fromkeys(names, fps),
                "counts": dict.fromkeys(names, row.length),
                "problems": [],
                "fps": fps,
                "episode_index": row.number,
                "robot_type": documents.info.get("robot_type"),
            })  # fmt: skip
        return table_of(rows)

    def video(self, name: str) -> SourceVideo:
        """A video file, whose packets are listed once for all its episodes."""
        video = self._videos.get(name)
        if video is None:
            new = SourceVideo(partial(self.place.open, name), f"{self.place.name}/{name}")
            video = self._videos.setdefault(name, new)
            while len(self._videos) > _KEPT_VIDEOS:
                self._videos.pop(next(iter(self._videos)), None)
        return video


def is_of_lerobot(episode: Episode) -> bool:
    """Whether an episode was read or imported from a LeRobot set, whose own columns and items it has."""
    return isinstance(episode.meta.get(FORMAT), Mapping)


def _open_source(source: LeRobotSource, position: int) -> EpisodeSource:
    documents, row, note = source.documents, source.documents.episodes[position], source.note(position)
    rows = EpisodeRows(source, position)
    texts = None if row.tasks is None else list(dict.fromkeys(row.tasks))
    has_events = bool(row.length) and (texts is None or len(texts) > 1)

    def names() -> list[str]:
        own = [*documents.features, *rows.kinds]
        return [*own, TASK] if has_events else own

    static: dict[str, Any] = {**note.static, "fps": documents.fps, "episode_index": row.number}
    if documents.info.get("robot_type") is not None:
        static.setdefault("robot_type", documents.info["robot_type"])
    if texts is not None and len(texts) == 1:
        static[TASK] = texts[0]

    def about() -> dict[str, Any]:
        entry = {"episode": row.row, "stats": documents.stats_of(row)}
        return {FORMAT: {"version": documents.version, **pack(entry)}}

    signals = LazySignals(names, partial(_open_signal, rows), documents.features)
    place = f"{source.place.name} (episode {row.number})"
    clock = StepClock(STEPS, "same", rows.times, row.length)
    opened = EpisodeSource(source.ids[position], signals, static, about, clock, place)
    opened.reopen_by(_open_source, source, position)
    return opened


def _open_signal(rows: EpisodeRows, name: str) -> Signal:
    documents, role = rows.source.documents, role_of(name)
    about = documents.features.get(name, {})
    if name == TASK and TASK not in documents.features:
        numbers = rows.numbers("task_index", "iu")
        at = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        texts = {int(row["task_index"]): str(row["task"]) for row in rows.source.documents.tasks}
        values = np.empty(len(at), object)
        for place, number in enumerate(numbers[at].tolist()):
            if number not in texts:
                raise CorruptLayoutError(f"there is no task {number}", path=rows.path)
            values[place] = texts[number]
        return ArraySignal(rows.times()[at], values, SignalMeta(np.dtype(object), (), "text", role="event"))
    if about.get("dtype") == "video":
        file, start = documents.video_file(rows.row, name)
        return CameraSignal(rows, name, file, start)
    kind = rows.kinds[name]
    if kind.is_picture:
        declared = about.get("shape")
        sides = declared if isinstance(declared, list) and len(declared) == 3 else [0, 0, 0]
        column = Rows.objects(rows.row.length, "bytes", partial(rows.read_pictures, name))
        column = replace(column, is_pictures=True, has_axis=1 in (sides[0], sides[2]))
        return column.stills(name, rows.times, rows.path, role=role, clock=STEPS)
    labels = about.get("names")
    size = kind.shape[0] if len(kind.shape) == 1 else len(kind.shape)
    is_named = isinstance(labels, list) and len(labels) == size and all(isinstance(n, str) for n in labels)
    names = tuple(labels) if is_named and labels else None
    signal_kind: Kind = "text" if kind.dtype == OBJECT else numeric_kind(kind.shape)
    meta = SignalMeta(kind.dtype, kind.shape, signal_kind, names=names, role=role, clock=STEPS)
    return RowsSignal(rows.times, meta, partial(rows.read, name), rows.row.length)


class EpisodeRows(Reopens):
    """The rows of one episode in its data file."""

    def __init__(self, source: LeRobotSource, position: int) -> None:
        self.source = source
        self.row: EpisodeRow = source.documents.episodes[position]
        self.start_ns = source.note(position).start_ns
        """Time of the first row; LeRobot counts from 0."""
        self.path = f"{source.place.name}/{self.row.data_file} (episode {self.row.number})"
        self._is_counted = False

    @cached_property
    def kinds(self) -> Mapping[str, ColumnKind]:
        """The columns of the file, without those of videos."""
        documents = self.source.documents
        try:
            return documents.tables.kinds(self.row.data_file, documents.features, self.path)
        except BlobNotFoundError:
            raise BlobNotFoundError("the data file is missing", path=self.path) from None

    @cached_property
    def _plain(self) -> tuple[str, ...]:
        """The columns that are no pictures: they are read together."""
        return tuple(kind.name for kind in self.kinds.values() if not kind.is_picture)

    def table(self, names: tuple[str, ...]) -> KeptRows:
        """Some columns of the episode."""
        row, documents = self.row, self.source.documents
        if not self._is_counted and not documents.is_v3:
            count = documents.tables.rows(row.data_file)
            if count != row.length:
                raise CorruptLayoutError(f"{count} rows, {row.file} states {row.length}", path=self.path)
        self._is_counted = True
        return documents.tables.columns(row.data_file, names, row.data_start, row.data_start + row.length)

    def values(self, name: str) -> NDArray[Any]:
        """All rows of a column of numbers or text."""
        kind = self.kinds.get(name)
        if kind is None:
            raise CorruptLayoutError(f"no column {name!r}.{nearest(name, self.kinds)}", path=self.path)
        return self.table(self._plain).array(kind, self.path)

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop) of a column."""
        return self.values(name)[start:stop]

    def read_pictures(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """The encoded pictures of an image feature: their bytes, or the files that are named."""
        cells = tables.pictures(self.table((name,)).table, name, range(start, stop), self.path)
        for row, (data, file) in enumerate(cells, start):
            if data is None and not file:
                raise CorruptLayoutError(f"row {row} of {name!r} has no picture", path=self.path)
        return as_objects(self.source.place.read(str(f)) if data is None else data for data, f in cells)

    def numbers(self, name: str, kinds: str) -> NDArray[Any]:
        """All rows of a column with one number of such a type in each."""
        values = self.values(name).reshape(-1)
        if values.dtype.kind not in kinds or len(values) != self.row.length:
            raise CorruptLayoutError(f"column {name!r} is not one number in each row", path=self.path)
        return values

    @cached_property
    def _times(self) -> Times:
        count, fps = self.row.length, self.source.documents.fps
        stated = self.numbers("timestamp", "fiu")
        checks = (("episode_index", np.full(count, self.row.number)), ("frame_index", np.arange(count)))
        for name, expected in checks:
            if name in self.kinds and not np.array_equal(self.values(name).reshape(-1), expected):
                fact = f"its rows are not those of episode {self.row.number} ({name})"
                raise CorruptLayoutError(fact, path=self.path)
        if np.array_equal(stated, (np.arange(count) / fps).astype(stated.dtype)):
            return read_only(grid_times(count, fps, self.start_ns))
        return read_only(seconds_as_times(stated, self.path) + self.start_ns)

    def times(self) -> Times:
        """The times of the rows: exactly on the grid of the frame rate if `timestamp` is."""
        return self._times

    def first_frame(self, video: SourceVideo, start_s: float, name: str) -> int:
        """The frame of a file that the first row of the episode shows; every row must have its frame."""
        times = self.times() - self.start_ns
        if not len(times):
            return 0
        wanted, shown = start_s + times.astype(np.float64) / 1e9, video.times_s()
        fps, where = self.source.documents.fps, f"{video.path} (episode {self.row.number})"
        if not len(shown):
            raise CorruptLayoutError("the video has no frames", path=where)
        if len(shown) == len(wanted) and np.abs(shown - wanted).max() < _NEAR / fps:
            return 0  # a video of its own, as most are before v3.0
        after = np.clip(np.searchsorted(shown, wanted), 1, max(1, len(shown) - 1))
        later = np.minimum(after, len(shown) - 1)
        closest = np.where(wanted - shown[after - 1] <= shown[later] - wanted, after - 1, later)
        is_far = ~(np.abs(shown[closest] - wanted) <= 0.5 / fps)  # true of NaN, too
        is_far[1:] |= np.diff(closest) != 1
        if is_far.any():
            step = int(np.flatnonzero(is_far)[0])
            fact = f"camera {name!r} has no frame for step {step} of {len(times)}"
            raise CorruptLayoutError(f"{fact}: the video has {len(shown)} frames", path=where)
        return int(closest[0])


class CameraSignal(FileVideo):
    """The frames of a camera of one episode, in a file that other episodes may share."""

    def __init__(self, rows: EpisodeRows, name: str, file: str, start_s: float) -> None:
        video, fps = rows.source.video(file), float(rows.source.documents.fps)
        first = partial(rows.first_frame, video, start_s, name)
        super().__init__(video, rows.times, name=name, first=first, role=role_of(name), clock=STEPS, fps=fps)
        self._rows = rows
        self.reopen_by(CameraSignal, rows, name, file, start_s)

    def __len__(self) -> int:
        return self._rows.row.length

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        try:
            return super()._values_at(indices)
        except CorruptLayoutError as error:
            fact = f"episode {self._rows.row.number}, {self.name!r}: {error.message}"
            raise CorruptLayoutError(fact) from None
