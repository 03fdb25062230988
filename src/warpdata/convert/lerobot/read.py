"""Open a LeRobot set as episodes: nothing is converted, rows are read and frames decoded on demand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.io.ranges import FolderReader
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.convert.aligning import Times, grid_times, seconds_as_times
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.documents import DEFAULTS, INFO, OURS, Documents, EpisodeRow
from warpdata.convert.lerobot.tables import ColumnKind, KeptRows
from warpdata.convert.place import Place
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, EpisodeNotes, packed, parse_notes
from warpdata.convert.stepped import ForeignSource, PicturesSignal, Rows, RowsSignal
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.facts import table_of
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, nearest
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, Kind, Role, SignalMeta, numeric_kind
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import STEPS, LazySignals, StepClock

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
        self.place, self.documents = place, Documents(place)
        self._videos: dict[str, SourceVideo] = {}

    @cached_property
    def ids(self) -> Sequence[str]:
        """The number of every episode, as roots of recordings write it."""
        return [f"{episode.number:012d}" for episode in self.documents.episodes]

    @property
    def name(self) -> str:
        """Path or URL of the set."""
        return self.place.name

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the whole set: info.json, tasks, statistics, and files of other programs."""
        documents = self.documents
        kept = {"info": documents.info, "tasks": documents.tasks, "stats": documents.stats()}
        return {FORMAT: packed({**kept, "files": documents.other_files()})}

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


def _open_source(source: LeRobotSource, position: int) -> ForeignSource:
    documents, row, note = source.documents, source.documents.episodes[position], source.note(position)
    rows = EpisodeRows(source, position)
    texts = None if row.tasks is None else list(dict.fromkeys(row.tasks))
    has_events = bool(row.length) and (texts is None or len(texts) > 1)

    def names() -> list[str]:
        own = [*documents.features, *rows.kinds]
        return [*own, TASK] if has_events else own

    static: dict[str, Any] = {**note.static, "fps": documents.fps, "episode_index": row.number}
    if documents.info.get("robot_type") is not None:
        static["robot_type"] = documents.info["robot_type"]
    if texts is not None and len(texts) == 1:
        static[TASK] = texts[0]

    def about() -> dict[str, Any]:
        entry = {"episode": row.row, "stats": documents.stats_of(row)}
        return {FORMAT: {"version": documents.version, **packed(entry)}}

    signals = SetSignals(names, partial(_open_signal, rows), documents.features)
    place = f"{source.place.name} (episode {row.number})"
    clock = StepClock(STEPS, "same", rows.times, row.length)
    opened = ForeignSource(source.ids[position], signals, static, about, clock, place)
    opened.reopen_by(_open_source, source, position)
    return opened


class SetSignals(LazySignals):
    """The features of an episode by name; a declared one is known without its data file."""

    def __init__(self, names: Any, open_signal: Any, declared: Mapping[str, Any]) -> None:
        super().__init__(names, open_signal)
        self._declared = declared

    def __getitem__(self, name: str) -> Signal:
        if name in self._declared and name not in self.opened:
            self.opened.setdefault(name, self._open_signal(name))
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return name in self._declared or super().__contains__(name)


def _open_signal(rows: EpisodeRows, name: str) -> Signal:
    documents, role = rows.source.documents, role_of(name)
    about = documents.features.get(name, {})
    if name == TASK and TASK not in documents.features:
        return rows.task_events()
    if about.get("dtype") == "video":
        file, start = documents.video_file(rows.row, name)
        return CameraSignal(rows, name, file, start)
    kind = rows.kinds[name]
    if kind.is_picture:
        declared = about.get("shape")
        sides = declared if isinstance(declared, list) and len(declared) == 3 else [0, 0, 0]
        column = Rows.objects(rows.row.length, "bytes", partial(rows.read_pictures, name))
        column = replace(column, is_pictures=True, has_axis=1 in (sides[0], sides[2]))
        return PicturesSignal(name, column, rows.times, role, STEPS, rows.path)
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

    def task_events(self) -> ArraySignal:
        """The task where it changes inside an episode: an event at each change."""
        numbers = self.numbers("task_index", "iu")
        at = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        texts = {int(row["task_index"]): str(row["task"]) for row in self.source.documents.tasks}
        values = np.empty(len(at), object)
        for place, number in enumerate(numbers[at].tolist()):
            if number not in texts:
                raise CorruptLayoutError(f"there is no task {number}", path=self.path)
            values[place] = texts[number]
        return ArraySignal(self.times()[at], values, SignalMeta(np.dtype(object), (), "text", role="event"))

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
