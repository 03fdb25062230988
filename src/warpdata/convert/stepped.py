"""Episodes of foreign files that go by step: columns of rows, read when asked for, as signals on one grid of times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.collection import EpisodesSource
from warpdata.errors import CorruptLayoutError, LimitExceededError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ClockedSignal
from warpdata.timeline.meta import OBJECT, Kind, Role, SignalMeta, numeric_kind
from warpdata.timeline.readonly import ReadOnlyDict
from warpdata.timeline.source import STEPS, EpisodeSource, Outcome, StepClock
from warpdata.timeline.times import MAX_GRID, frozen

OBSERVATIONS = "observations"
"""The clock of what was seen at every step and once more after the last one."""

DEFAULT_FPS = 10.0
"""Steps per second of a set that does not say; `fps_from` in the metadata of its episodes is then `assumed`."""

Times = NDArray[np.int64]


class Rows(ABC):
    """The rows of one array, wherever they lie."""

    count: int
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    kind: Kind | None = None
    """What the rows are where dtype and shape do not say it: text, bytes or an image."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), which exist."""

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Rows by number, in any order; few reads where they lie close together."""
        if not len(indices):
            return np.empty((0, *self.row_shape), self.dtype)
        wanted, places = np.unique(indices, return_inverse=True)
        cuts = np.flatnonzero(np.diff(wanted) > 8) + 1
        pieces = []
        for run in np.split(wanted, cuts):
            low = int(run[0])
            block = self.read(low, int(run[-1]) + 1)
            pieces.append(block if len(block) == len(run) else block[run - low])
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces))[places]


class MemoryRows(Rows):
    """Rows that are in memory."""

    def __init__(self, array: NDArray[Any], kind: Kind | None = None) -> None:
        self._array = array
        self.count, self.dtype, self.row_shape, self.kind = len(array), array.dtype, array.shape[1:], kind

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A slice of the array."""
        return self._array[start:stop]


class PartRows(Rows):
    """A run of the rows of another array."""

    def __init__(self, rows: Rows, start: int, stop: int) -> None:
        if isinstance(rows, PartRows):
            rows, start, stop = rows.base, rows.start + start, rows.start + stop
        self.base, self.start = rows, start
        self.count, self.dtype, self.row_shape, self.kind = (
            stop - start,
            rows.dtype,
            rows.row_shape,
            rows.kind,
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the run."""
        return self.base.read(self.start + start, self.start + stop)


class JoinedRows(Rows):
    """The rows of several arrays, one after the other."""

    def __init__(self, parts: Sequence[Rows], what: str = "the parts") -> None:
        first = parts[0]
        for part in parts[1:]:
            if (part.dtype, part.row_shape) != (first.dtype, first.row_shape):
                raise CorruptLayoutError(
                    f"{what} disagree: {first.dtype}{list(first.row_shape)} and {part.dtype}{list(part.row_shape)}"
                )
        self.parts = list(parts)
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + part.count)
        self.count, self.dtype, self.row_shape, self.kind = (
            self._starts[-1],
            first.dtype,
            first.row_shape,
            first.kind,
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of whichever parts have them."""
        pieces = []
        for begin, part in zip(self._starts, self.parts, strict=False):
            low, high = max(start - begin, 0), min(stop - begin, part.count)
            if low < high:
                pieces.append(part.read(low, high))
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.row_shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Column:
    """One signal of a foreign episode: its rows, the part it plays, and at which times its rows lie."""

    rows: Rows
    role: Role = "observation"
    first: int = 0
    """The step of its first row."""

    def meta(self, steps: int) -> SignalMeta:
        """What a reader of the signal is told."""
        kind = self.rows.kind or image_kind(self.rows.dtype, self.rows.row_shape) or numeric_kind(self.rows.row_shape)
        clock = STEPS if self.rows.count == steps and not self.first else None
        if self.rows.count == steps + 1 and not self.first:
            clock = OBSERVATIONS
        dtype = OBJECT if kind in ("text", "bytes") else self.rows.dtype
        return SignalMeta(
            dtype, () if dtype == OBJECT else self.rows.row_shape, kind, role=self.role, clock=clock
        )


def image_kind(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kind | None:
    """Whether rows of this type and shape are images as we keep them."""
    is_colour = len(shape) == 3 and shape[2] == 3 and dtype == np.uint8
    is_plane = len(shape) == 2 and dtype in (np.dtype(np.uint8), np.dtype(np.uint16)) and min(shape) >= 16
    return "image" if (is_colour or is_plane) and 0 not in shape else None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a foreign episode is made of."""

    id: str
    steps: int
    columns: Mapping[str, Column]
    static: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    """Steps per second, where the source or the caller said it."""
    usual_fps: float = DEFAULT_FPS
    """Steps per second of such sets, where nobody said it."""
    times: Times | None = None
    """The times of the steps, where the source has them."""
    outcome: Outcome = "same"
    place: str | None = None


class SteppedEpisodes(EpisodesSource):
    """A foreign set as episodes: subclasses say which there are and what each is made of."""

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """What the episode at a position is made of; nothing of its rows is read."""

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(SteppedSource(self, position))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the files say of the set as a whole, by format, to come out again."""
        return {}


class SteppedSource(EpisodeSource):
    """One episode of a foreign set."""

    def __init__(self, episodes: SteppedEpisodes, position: int) -> None:
        self._episodes = episodes
        self._position = position

    @cached_property
    def _parts(self) -> Parts:
        parts = self._episodes.parts(self._position)
        if parts.steps > MAX_GRID:
            raise LimitExceededError(
                f"episode {parts.id!r} claims {parts.steps} steps", path=parts.place or self._episodes.name
            )
        return parts

    @property
    def id(self) -> str:
        """Its name in the set."""
        return self._episodes.ids[self._position]

    @cached_property
    def signals(self) -> Mapping[str, RowsSignal]:
        """Its columns as signals."""
        return _Signals(self, self._parts)

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """What does not change in time."""
        return ReadOnlyDict(self._parts.static)

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The steps, what their times mean, and what the source said that is nowhere else."""
        parts = self._parts
        said = "times" if parts.times is not None else "assumed" if parts.fps is None else "source"
        return ReadOnlyDict(
            {
                "steps": StepClock(STEPS, parts.outcome).to_json(),
                "fps": parts.fps or parts.usual_fps,
                "fps_from": said,
                **parts.meta,
            }
        )

    @property
    def step_clock(self) -> StepClock | None:
        """The steps of the source."""
        parts = self._parts
        return StepClock(STEPS, parts.outcome, lambda: self._times[: parts.steps], parts.steps)

    @property
    def place(self) -> str | None:
        """Where it lies."""
        return self._parts.place or self._episodes.name

    @cached_property
    def _times(self) -> Times:
        """The times of all steps and of the observation after the last one."""
        parts = self._parts
        return step_times(parts.steps + 1, parts.fps or parts.usual_fps, parts.times)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SteppedSource, (self._episodes, self._position))


def step_times(count: int, fps: float, known: Times | None = None) -> Times:
    """The times of `count` steps: those that are known, then one step after the other."""
    grid = np.rint(np.arange(count, dtype=np.float64) * (1e9 / fps)).astype(np.int64)
    if known is None or not len(known):
        return frozen(grid)
    more = count - len(known)
    step = int(known[-1] - known[-2]) if len(known) > 1 else round(1e9 / fps)
    return frozen(np.concatenate([known, known[-1] + step * np.arange(1, more + 1, dtype=np.int64)])[:count])


def seconds_as_times(seconds: NDArray[Any], place: str) -> Times:
    """Times in nanoseconds from seconds, which must grow."""
    flat = np.asarray(seconds, np.float64).reshape(len(seconds), -1)[:, 0] if len(seconds) else np.empty(0)
    if not np.isfinite(flat).all() or (np.abs(flat) > 9e9).any():
        raise CorruptLayoutError("a time of a step is no time", path=place)
    times = np.rint(flat * 1e9).astype(np.int64)
    if (np.diff(times) <= 0).any():
        raise CorruptLayoutError("the times of the steps do not increase", path=place)
    return times


class _Signals(Mapping[str, "RowsSignal"]):
    """The signals of an episode, each made when it is first asked for."""

    def __init__(self, source: SteppedSource, parts: Parts) -> None:
        self._source = source
        self._columns = parts.columns
        self._steps = parts.steps
        self._made: dict[str, RowsSignal] = {}

    def __getitem__(self, name: str) -> RowsSignal:
        found = self._made.get(name)
        if found is None:
            column = self._columns[name]
            found = self._made[name] = RowsSignal(self._source, name, column, self._steps)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns


class RowsSignal(ClockedSignal):
    """A column of a foreign episode as a signal; windows of it read only their rows."""

    def __init__(self, source: SteppedSource, name: str, column: Column, steps: int) -> None:
        self._source = source
        self.name = name
        self.rows_behind = column.rows
        self._first = column.first
        self._meta = column.meta(steps)

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind, without reading a row."""
        return self._meta

    def __len__(self) -> int:
        return self.rows_behind.count

    def _clock(self) -> Times:
        return self._source._times[self._first : self._first + len(self)]

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return frozen(self.rows_behind.take(indices))

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._meta.shape), self._meta.dtype)
        if rows.step != 1:
            return super()._values_in(rows)
        return frozen(self.rows_behind.read(rows.start, rows.stop))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_signal_of, (self._source, self.name))


def _signal_of(source: SteppedSource, name: str) -> RowsSignal:
    return source.signals[name]
