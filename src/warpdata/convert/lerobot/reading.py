"""A LeRobot set as episodes, read where it lies: rows when asked for, frames decoded when asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.documents import (
    DEFAULTS,
    OURS,
    Documents,
    EpisodeRow,
    plain_numbers,
    read_documents,
)
from warpdata.convert.lerobot.tables import ColumnKind, KeptRows
from warpdata.convert.place import Place
from warpdata.convert.rows import ForeignSource, grid_times
from warpdata.convert.set_notes import MAX_DOCUMENT_BYTES, EpisodeNotes, parse_notes
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.facts import table_of
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, TimestampOrderError, nearest
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ClockedSignal, check_increasing
from warpdata.timeline.meta import Role, SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import STEPS, StepClock

FORMAT = "lerobot"
TASK = "task"
_FLAGS: dict[str, Role] = {
    "next.reward": "reward", "reward": "reward", "next.done": "terminated", "done": "terminated",
    "next.terminated": "terminated", "next.truncated": "truncated", "truncated": "truncated",
}  # fmt: skip


def role_of(name: str) -> Role:
    """The role of a feature by its name."""
    if name in DEFAULTS:
        return "other"
    if name == "action" or name.startswith(("action.", "action/", "actions.")):
        return "action"
    return _FLAGS.get(name, "observation" if name.startswith("observation") else "other")


class LeRobotSource(EpisodesSource):
    """The episodes of a LeRobot set."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.documents: Documents = read_documents(place)
        self._videos: dict[str, SourceVideo] = {}

    @cached_property
    def ids(self) -> Sequence[str]:
        """The number of every episode, as roots of recordings write it."""
        return [f"{episode.number:012d}" for episode in self.documents.episodes]

    @property
    def name(self) -> str:
        """Where the set lies."""
        return self.place.name

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What the set says of itself as a whole: info.json, tasks, statistics, and files of other programs."""
        documents = self.documents
        return {
            FORMAT: {
                "info": plain_numbers(documents.info),
                "tasks": plain_numbers(documents.tasks),
                "stats": plain_numbers(documents.stats()),
                "files": documents.other_files(),
            }
        }

    @cached_property
    def own_notes(self) -> Mapping[str, EpisodeNotes]:
        """Notes that warpdata wrote into a set it exported, by episode id."""
        if not self.place.exists(OURS):
            return {}
        return parse_notes(self.place.read(OURS, max_bytes=MAX_DOCUMENT_BYTES))

    def _note(self, position: int) -> EpisodeNotes:
        """The note of an episode; an empty one where there is none, or of an episode of another length."""
        length = self.documents.episodes[position].length
        note = self.own_notes.get(self.ids[position])
        return note if note is not None and note.steps == length else EpisodeNotes(length)

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(self._episode(position))

    def _episode(self, position: int) -> ForeignSource:
        documents, row = self.documents, self.documents.episodes[position]
        note = self._note(position)
        rows = EpisodeRows(documents, row, note.start_ns)
        signals = _Signals(self, row, rows)
        static: dict[str, Any] = {**note.static, "fps": documents.fps, "episode_index": row.number}
        if documents.info.get("robot_type") is not None:
            static["robot_type"] = documents.info["robot_type"]
        if signals.task is not None:
            static[TASK] = signals.task
        about = partial(_about, documents, row)
        return ForeignSource(
            self.ids[position], signals, static, about, place=f"{self.place.name} (episode {row.number})",
            again=(_source_again, (self.place, position)),
            steps=StepClock(STEPS, "same", rows.times, row.length),
        )  # fmt: skip

    @property
    def has_facts(self) -> bool:
        """The metadata says them."""
        return True

    def facts(self) -> Any:
        """One row per episode, from the metadata alone."""
        documents = self.documents
        names = [name for name in documents.features]
        rows = []
        for number, row in enumerate(documents.episodes):
            task = row.tasks[0] if row.tasks and len(set(row.tasks)) == 1 else None
            rows.append({
                "id": self.ids[number], "length": row.length, "task": task, "signals": names,
                "duration_s": max(0, row.length - 1) / documents.fps, "start_ns": self._note(number).start_ns,
                "rates": dict.fromkeys(names, float(documents.fps)), "counts": dict.fromkeys(names, row.length),
                "problems": [], "fps": float(documents.fps), "episode_index": row.number,
                "robot_type": documents.info.get("robot_type"),
            })  # fmt: skip
        return table_of(rows)

    def video(self, name: str) -> SourceVideo:
        """A video file, listed once for all its episodes."""
        found = self._videos.get(name)
        if found is None:
            found = SourceVideo(partial(_open_file, self.place, name), f"{self.place.name}/{name}")
            found = self._videos.setdefault(name, found)
            while len(self._videos) > _KEPT_VIDEOS:
                self._videos.pop(next(iter(self._videos)), None)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (LeRobotSource, (self.place,))


_KEPT_VIDEOS = 64
_MAX_SECONDS = 9e9
"""What nanoseconds in 64 bits hold."""


def _open_file(place: Place, name: str) -> Any:
    return place.open(name)


def _source_again(place: Place, position: int) -> ForeignSource:
    return LeRobotSource(place)._episode(position)


def _about(documents: Documents, row: EpisodeRow) -> dict[str, Any]:
    """What the set says of one episode: its row, and its statistics."""
    stats = documents.plain_stats_of(row)
    return {FORMAT: {"version": documents.version, "episode": plain_numbers(row.row), "stats": stats}}


class EpisodeRows:
    """The rows of one episode in its data file."""

    def __init__(self, documents: Documents, row: EpisodeRow, start_ns: int = 0) -> None:
        self.documents = documents
        self.start_ns = start_ns
        """Time of the first row; LeRobot counts from 0."""
        self.row = row
        self.path = f"{documents.place.name}/{row.data_file} (episode {row.number})"
        self._ts: NDArray[np.int64] | None = None
        self._kinds: Mapping[str, ColumnKind] | None = None
        self._is_counted = False
        self._kept: Callable[[], KeptRows | None] = _nothing

    def kinds(self) -> Mapping[str, ColumnKind]:
        """The columns of the file, those of videos excepted; a declared one that is missing is an error."""
        if self._kinds is None:
            documents = self.documents
            try:
                self._kinds = documents.tables.kinds(self.row.data_file, documents.features, self.path)
            except BlobNotFoundError:
                raise BlobNotFoundError("the data file is missing", path=self.path) from None
        return self._kinds

    def values(self, name: str) -> NDArray[Any]:
        """All rows of a column of numbers or text."""
        kind = self.kinds().get(name)
        if kind is None:
            raise CorruptLayoutError(f"no column {name!r}.{nearest(name, self.kinds())}", path=self.path)
        return self._rows(self._plain).array(kind, self.path)

    def numbers(self, name: str, kinds: str) -> NDArray[Any]:
        """All rows of a column that has one number of such kinds of types in each."""
        found = self.values(name).reshape(-1)
        if found.dtype.kind not in kinds or len(found) != self.row.length:
            raise CorruptLayoutError(f"column {name!r} is not one number in each row", path=self.path)
        return found

    @cached_property
    def _plain(self) -> tuple[str, ...]:
        """The columns that are no pictures: they are read together."""
        return tuple(each.name for each in self.kinds().values() if not each.is_picture)

    def pictures(self, name: str, rows: Sequence[int]) -> list[bytes]:
        """Encoded pictures of a column: their bytes, or the file that is named."""
        found = tables.pictures(self._rows((name,)).table, name, rows, self.path)
        out = []
        for row, (data, file) in zip(rows, found, strict=True):
            if data is None and not file:
                raise CorruptLayoutError(f"row {row} of {name!r} has no picture", path=self.path)
            out.append(data if data is not None else self.documents.place.read(str(file)))
        return out

    def times(self) -> NDArray[np.int64]:
        """The times of the rows: exactly on the grid of the frame rate where `timestamp` says so."""
        if self._ts is None:
            self._ts = read_only(self._read_times() + self.start_ns)
        return self._ts

    def _read_times(self) -> NDArray[np.int64]:
        count, fps = self.row.length, self.documents.fps
        stated = self.numbers("timestamp", "fiu")
        self._check_rows()
        if np.array_equal(stated, (np.arange(count) / fps).astype(stated.dtype)):
            return grid_times(count, fps)
        seconds = stated.astype(np.float64)
        if not (np.abs(seconds) < _MAX_SECONDS).all():
            raise CorruptLayoutError("timestamps that are no times", path=self.path)
        found = np.round(seconds * 1e9).astype(np.int64)
        try:
            check_increasing(found)
        except TimestampOrderError as error:
            raise CorruptLayoutError(
                f"the timestamps do not increase ({error.message})", path=self.path
            ) from None
        return found

    def _check_rows(self) -> None:
        """Raise where rows of another episode stand in the place of these."""
        for name, expected in (
            ("episode_index", np.full(self.row.length, self.row.number)),
            ("frame_index", np.arange(self.row.length)),
        ):
            if name in self.kinds() and not np.array_equal(self.values(name).reshape(-1), expected):
                raise CorruptLayoutError(
                    f"its rows are not those of episode {self.row.number} ({name})", path=self.path
                )

    def _rows(self, names: tuple[str, ...]) -> KeptRows:
        kept = self._kept() if names is self._plain else None
        if kept is not None:
            return kept
        row, tables_here = self.row, self.documents.tables
        if not self._is_counted and not self.documents.is_v3:
            count = tables_here.rows(row.data_file)
            if count != row.length:
                raise CorruptLayoutError(f"{count} rows, {row.where} says {row.length}", path=self.path)
            self._is_counted = True
        found = tables_here.columns(row.data_file, names, row.data_start, row.data_start + row.length)
        if names is self._plain:
            self._kept = weakref.ref(found)  # whether it stays in memory is up to the tables
        return found


def _nothing() -> None:
    return None


class _Signals(Mapping[str, Signal]):
    """The features of an episode by name, opened when they are first asked for."""

    def __init__(self, source: LeRobotSource, row: EpisodeRow, rows: EpisodeRows) -> None:
        self._source, self._row, self._rows = source, row, rows
        self._made: dict[str, Signal] = {}
        texts = list(dict.fromkeys(row.tasks)) if row.tasks is not None else None
        self.task = texts[0] if texts is not None and len(texts) == 1 else None
        self._has_events = (texts is None or len(texts) > 1) and bool(row.length)

    @cached_property
    def _names(self) -> dict[str, None]:
        """What is declared, what the file has besides, and the task where it changes."""
        names = dict.fromkeys([*self._source.documents.features, *self._rows.kinds()])
        return {**names, TASK: None} if self._has_events else names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._source.documents.features or name in self._names

    def __getitem__(self, name: str) -> Signal:
        found = self._made.get(name)
        if found is None:
            if name not in self:
                raise KeyError(name)
            found = self._made.setdefault(name, self._open(name))
        return found

    def _open(self, name: str) -> Signal:
        documents = self._source.documents
        about = documents.features.get(name, {})
        if name == TASK and self._has_events and name not in documents.features:
            return TaskEvents(self._rows)
        if about.get("dtype") == "video":
            return self._video(name)
        kind = self._rows.kinds()[name]
        if kind.is_picture:
            return RowPictures(self._rows, name)
        names = about.get("names")
        labels = tuple(names) if isinstance(names, list) and all(isinstance(n, str) for n in names) else None
        if labels is not None and len(labels) != (kind.shape[0] if len(kind.shape) == 1 else len(kind.shape)):
            labels = None
        return RowColumn(self._rows, name, kind.meta(role_of(name), STEPS, labels))

    def _video(self, name: str) -> Signal:
        documents, row = self._source.documents, self._row
        file, start = documents.video_file(row, name)
        video = self._source.video(file)
        first = partial(first_frame, video, self._rows, start, name)
        return RowVideo(video, self._rows, name, first)


class RowColumn(ClockedSignal):
    """A column of numbers or text of one episode."""

    def __init__(self, rows: EpisodeRows, name: str, meta: SignalMeta) -> None:
        self._rows, self._name, self._meta = rows, name, meta

    @property
    def meta(self) -> SignalMeta:
        """Type and shape of one row."""
        return self._meta

    def __len__(self) -> int:
        return self._rows.row.length

    def _clock(self) -> NDArray[np.int64]:
        return self._rows.times()

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return read_only(self._rows.values(self._name)[indices])

    def _values_in(self, rows: range) -> NDArray[Any]:
        return read_only(self._rows.values(self._name)[rows.start : rows.stop : rows.step])

    def __reduce__(self) -> tuple[Any, ...]:
        return _signal_again(self._rows, self._name)


class RowPictures(StillsSignal):
    """The pictures of an image feature of one episode."""

    def __init__(self, rows: EpisodeRows, name: str) -> None:
        declared = rows.documents.features.get(name, {}).get("shape")
        sides = declared if isinstance(declared, list) and len(declared) == 3 else [0, 0, 0]
        super().__init__(name, role=role_of(name), clock=STEPS, has_axis=1 in (sides[0], sides[2]))
        self._rows = rows

    @property
    def place(self) -> str:
        """The data file and the episode."""
        return self._rows.path

    def __len__(self) -> int:
        return self._rows.row.length

    def _clock(self) -> NDArray[np.int64]:
        return self._rows.times()

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures of these rows."""
        return self._rows.pictures(self.name, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _signal_again(self._rows, self.name)


class RowVideo(FileVideo):
    """The frames of a camera of one episode, which may lie among those of others."""

    def __init__(self, video: SourceVideo, rows: EpisodeRows, name: str, first: Any) -> None:
        fps = float(rows.documents.fps)
        super().__init__(video, rows.times, name=name, first=first, role=role_of(name), clock=STEPS, fps=fps)
        self._rows = rows

    def __len__(self) -> int:
        return self._rows.row.length

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        try:
            return super()._values_at(indices)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(
                f"episode {self._rows.row.number}, {self.name!r}: {error.message}"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _signal_again(self._rows, self.name)


class TaskEvents(ClockedSignal):
    """The task where it changes inside an episode: an event at each change."""

    def __init__(self, rows: EpisodeRows) -> None:
        self._rows = rows

    @property
    def meta(self) -> SignalMeta:
        """Text."""
        return SignalMeta(np.dtype(object), (), "text", role="event")

    @cached_property
    def _found(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        numbers = self._rows.numbers("task_index", "iu")
        at = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        texts = self._rows.documents.task_texts()
        values = np.empty(len(at), object)
        for place, number in enumerate(numbers[at].tolist()):
            if number not in texts:
                raise CorruptLayoutError(f"there is no task {number}", path=self._rows.path)
            values[place] = texts[number]
        return self._rows.times()[at], values

    def __len__(self) -> int:
        return len(self._found[0])

    def _clock(self) -> NDArray[np.int64]:
        return self._found[0]

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._found[1][indices]

    def __reduce__(self) -> tuple[Any, ...]:
        return _signal_again(self._rows, TASK)


def _signal_again(rows: EpisodeRows, name: str) -> tuple[Any, ...]:
    return (_reopened_signal, (rows.documents.place, rows.row.number, name))


def _reopened_signal(place: Place, number: int, name: str) -> Signal:
    return LeRobotSource(place).open(number).signals[name]


_NEAR = 0.25
"""In frames: how far rows may be from their frames where there are as many of both."""


def first_frame(video: SourceVideo, rows: EpisodeRows, start_s: float, name: str) -> int:
    """The frame of a file that the first row of an episode shows; every row must have its frame."""
    times = rows.times() - rows.start_ns
    if not len(times):
        return 0
    wanted = start_s + times.astype(np.float64) / 1e9
    shown = video.times_s()
    where = f"{video.path} (episode {rows.row.number})"
    if not len(shown):
        raise CorruptLayoutError("the video has no frames", path=where)
    if len(shown) == len(wanted) and np.abs(shown - wanted).max() < _NEAR / rows.documents.fps:
        return 0  # a video of its own, as most are before v3.0
    after = np.clip(np.searchsorted(shown, wanted), 1, max(1, len(shown) - 1))
    later = np.minimum(after, len(shown) - 1)
    nearest = np.where(wanted - shown[after - 1] <= shown[later] - wanted, after - 1, later)
    far = ~(np.abs(shown[nearest] - wanted) <= 0.5 / rows.documents.fps)  # also what is no number
    if far.any() or (np.diff(nearest) != 1).any():
        at = int(np.flatnonzero(far)[0]) if far.any() else int(np.flatnonzero(np.diff(nearest) != 1)[0]) + 1
        raise CorruptLayoutError(
            f"camera {name!r} has no frame for step {at} of {len(times)}: the video has {len(shown)} frames",
            path=where,
        )
    return int(nearest[0])


def open_set(place: Place) -> Episodes:
    """The episodes of the LeRobot set at a place."""
    return Episodes(LeRobotSource(place))


__all__ = ["FORMAT", "TASK", "LeRobotSource", "open_set", "role_of"]
