"""Skeleton of readers by step: columns of rows, read on demand, as signals on one grid of times.

A format subclasses `SteppedEpisodes` and gives `ids` and `parts`. T + 1 observations and T actions share one start: the
steps are those of the actions, and the last observation follows them (`timeline/steps.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.convert.aligning import Times, grid_times
from warpdata.convert.place import Place
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, RECEIPT_FILE, EpisodeNotes, parse_notes
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import CorruptLayoutError, LimitExceededError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import check_increasing
from warpdata.timeline.meta import OBJECT, Kind, Role, RowType, SignalMeta, numeric_kind
from warpdata.timeline.signal import ClockedSignal, Signal
from warpdata.timeline.source import STEPS, LazySignals, Outcome, StatedSource, StepClock
from warpdata.timeline.times import MAX_GRID

OBSERVATIONS = "observations"
"""Clock of what was observed at every step and once more after the last one."""
DEFAULT_FPS = 10.0
"""Rate of a set that states none; `fps_from` in the metadata of its episodes is then `assumed`."""
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


class Rows(Reopens, ABC):
    """The rows of one array of a foreign file."""

    count: int
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    kind: Kind | None = None
    """Kind of the rows if dtype and shape do not determine it: text, bytes, image, or ragged (rows of `row_shape`)."""
    is_pictures = False
    """Whether the rows are bytes of JPEG or PNG pictures."""
    has_axis = False
    """Whether gray pictures have an axis for their one channel."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), which exist."""

    def take_type(self, rows: Rows, count: int) -> None:
        """Describe this array by another one, with `count` rows."""
        self.count, self.dtype, self.row_shape, self.kind = count, rows.dtype, rows.row_shape, rows.kind


class MemoryRows(Rows):
    """Rows in memory."""

    def __init__(self, array: NDArray[Any], kind: Kind | None = None) -> None:
        self._array = array
        self.count, self.dtype, self.row_shape, self.kind = len(array), array.dtype, array.shape[1:], kind

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A slice of the array."""
        return self._array[start:stop]


class PartRows(Rows):
    """A run of the rows of another array."""

    def __init__(self, rows: Rows, start: int, stop: int) -> None:
        self._rows, self._start = rows, start
        self.take_type(rows, stop - start)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the run."""
        return self._rows.read(self._start + start, self._start + stop)


class ChainedRows(Rows):
    """The rows of several arrays, one after the other."""

    def __init__(self, parts: Sequence[Rows], what: str = "the parts") -> None:
        first = parts[0]
        for part in parts:
            if (part.dtype, part.row_shape) != (first.dtype, first.row_shape):
                types = [f"{each.dtype}{list(each.row_shape)}" for each in (first, part)]
                raise CorruptLayoutError(f"{what} disagree: {types[0]} and {types[1]}")
        self._parts = list(parts)
        self._ends = np.cumsum([part.count for part in parts]).tolist()
        self.take_type(first, self._ends[-1])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the parts that hold them."""
        pieces = []
        for end, part in zip(self._ends, self._parts, strict=True):
            begin = end - part.count
            if start < end and stop > begin:
                pieces.append(part.read(max(start - begin, 0), min(stop - begin, part.count)))
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.row_shape), self.dtype)


class VideoRows(Rows):
    """The frames of a video file; they are decoded by their signal, and the file can be copied."""

    dtype, row_shape, kind = np.dtype(np.uint8), (), "image"

    def __init__(self, source: SourceVideo) -> None:
        self.source = source

    @cached_property
    def count(self) -> int:
        """Number of frames; the packets of the file are listed for it."""
        return len(self.source)

    def read(self, _start: int, _stop: int) -> NDArray[Any]:
        """Not supported: `FileVideo` decodes frames."""
        raise TypeError("frames of a video are decoded by their signal")


class PictureRows(Rows):
    """JPEG or PNG pictures in rows of bytes; zeros that pad a JPEG to a common length are removed."""

    is_pictures = True

    def __init__(self, rows: Rows, *, has_axis: bool = False) -> None:
        self._rows, self.has_axis = rows, has_axis
        self.count, self.dtype, self.row_shape = rows.count, np.dtype(object), ()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The encoded pictures."""
        out = np.empty(stop - start, object)
        for row, picture in enumerate(self._rows.read(start, stop)):
            data = bytes(picture)
            end = data.rfind(_JPEG_END) if data.startswith(_JPEG) and data.endswith(b"\0") else -1
            out[row] = data[: end + 2] if end >= 0 else data
        return out


@dataclass(frozen=True, slots=True)
class EpisodeColumn:
    """One signal of a foreign episode: its rows, from the first step on, and its role."""

    rows: Rows
    role: Role = "observation"
    own_clock: str | None = None
    """Clock of the rows, where their number does not determine it."""
    at: tuple[int, ...] | None = None
    """The steps of the rows, where some steps have none."""

    def clock(self, steps: int) -> str | None:
        """The clock that its rows share with those of other columns."""
        if self.own_clock is not None or self.at is not None:
            return self.own_clock
        return {steps: STEPS, steps + 1: OBSERVATIONS}.get(self.rows.count)

    def signal(self, name: str, steps: int, times: Callable[[int], Times], place: str) -> Signal:
        """The column as a signal; `times` gives the times of the first n steps."""
        rows, clock = self.rows, self.clock(steps)
        own_times = partial(times, rows.count) if self.at is None else partial(_times_at, times, self.at)
        if isinstance(rows, VideoRows):
            return FileVideo(rows.source, own_times, name=name, role=self.role, clock=clock)
        if rows.is_pictures:
            return PicturesSignal(name, rows, own_times, self.role, clock, place)
        kind = rows.kind or image_kind(rows.dtype, rows.row_shape) or numeric_kind(rows.row_shape)
        is_object = kind in ("text", "bytes", "ragged")
        dtype, shape = (OBJECT, ()) if is_object else (rows.dtype, rows.row_shape)
        row_type = RowType(rows.dtype, rows.row_shape) if kind == "ragged" else None
        meta = SignalMeta(dtype, shape, kind, role=self.role, clock=clock, rows=row_type)
        return RowsSignal(own_times, meta, rows.read, rows.count)


def _times_at(times: Callable[[int], Times], steps: tuple[int, ...]) -> Times:
    return times(max(steps, default=-1) + 1)[list(steps)]


def image_kind(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kind | None:
    """`image` if rows of this type and shape are images as episodes hold them."""
    is_colour = len(shape) == 3 and shape[2] == 3 and dtype == np.uint8
    is_plane = len(shape) == 2 and dtype in (np.dtype(np.uint8), np.dtype(np.uint16)) and min(shape) >= 16
    return "image" if (is_colour or is_plane) and 0 not in shape else None


@dataclass(frozen=True, slots=True)
class Parts:
    """The contents of a foreign episode."""

    id: str
    steps: int
    columns: Mapping[str, EpisodeColumn]
    static: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    """Steps per second, if the source or the caller states it."""
    usual_fps: float = DEFAULT_FPS
    """Steps per second that such sets usually have."""
    times: Times | None = None
    """The times of the steps, if the source has them."""
    start_ns: int = 0
    """Time of the first of evenly spaced steps."""
    outcome: Outcome = "same"
    place: str | None = None


class SteppedEpisodes(Reopens, EpisodesSource):
    """A foreign set as episodes: a subclass gives the ids and the parts of each episode."""

    _place: Place
    _fps: float | None = None
    """Steps per second that the caller gave."""

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """The contents of the episode at a position; no rows are read."""

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(_open_source(self, position))

    @property
    def name(self) -> str:
        """Path or URL of the set."""
        return self._place.name

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into sets it exports, if there is one."""
        if self._place.is_file or not self._place.exists(RECEIPT_FILE):
            return None
        return self._place.read(RECEIPT_FILE, max_bytes=MAX_DOCUMENT_BYTES)

    @cached_property
    def own_notes(self) -> Mapping[str, EpisodeNotes]:
        """Notes of an exported set by episode id."""
        return parse_notes(self.own_document())

    def note_key(self, position: int) -> str:
        """The id under which an export noted an episode."""
        return self.ids[position]

    def with_note(self, parts: Parts, note: EpisodeNotes) -> Parts:
        """The parts with the times and static items of a note; a rate from the caller takes precedence."""
        parts = replace(parts, static={**parts.static, **note.static})
        if self._fps is not None or (note.fps is None and note.times is None):
            return replace(parts, fps=self._fps or parts.fps, start_ns=note.start_ns)
        if note.is_assumed and note.fps is not None:
            return replace(parts, fps=None, usual_fps=note.fps)
        return replace(parts, fps=note.fps, start_ns=note.start_ns, times=note.times)


def _open_source(episodes: SteppedEpisodes, position: int) -> ForeignSource:
    parts = episodes.parts(position)
    note = episodes.own_notes.get(episodes.note_key(position))
    if note is not None and note.steps == parts.steps:
        parts = episodes.with_note(parts, note)
    place = parts.place or episodes.name
    if parts.steps > MAX_GRID:
        raise LimitExceededError(f"episode {parts.id!r} claims {parts.steps} steps", path=place)
    rate, origin = parts.fps, "assumed" if parts.fps is None else "source"
    if parts.times is not None:
        origin = "times"
        rate = rate or (1e9 / float(np.median(np.diff(parts.times))) if len(parts.times) > 1 else None)
    elif rate is not None and episodes._fps is not None:
        origin = "user"
    fps = rate or parts.usual_fps
    times = partial(step_times, fps=fps, known=parts.times, start_ns=parts.start_ns)
    signals = LazySignals(
        lambda: parts.columns, lambda name: parts.columns[name].signal(name, parts.steps, times, place)
    )
    clock = StepClock(STEPS, parts.outcome, partial(times, parts.steps), parts.steps)
    meta = {"steps": clock.to_json(), "fps": fps, "fps_from": origin, **parts.meta}
    reopen = (_open_source, (episodes, position))
    return ForeignSource(parts.id, signals, parts.static, meta, place=place, again=reopen, steps=clock)


def step_times(count: int, *, fps: float, known: Times | None = None, start_ns: int = 0) -> Times:
    """The times of `count` steps: the known ones, continued evenly."""
    if known is None or not len(known):
        return read_only(grid_times(count, fps, start_ns))
    more = max(0, count - len(known))
    step = int(known[-1] - known[-2]) if len(known) > 1 else round(1e9 / fps)
    return read_only(
        np.concatenate([known[:count], known[-1] + step * np.arange(1, more + 1, dtype=np.int64)])
    )


class RowsSignal(Reopens, ClockedSignal):
    """A signal over rows that a function reads on demand; the function must pickle."""

    def __init__(
        self,
        times: Times | Callable[[], Times],
        meta: SignalMeta,
        read: Callable[[int, int], NDArray[Any]],
        count: int,
    ) -> None:
        self._times, self._meta, self._read, self._count = times, meta, read, count

    @property
    def meta(self) -> SignalMeta:
        """The description that it was given."""
        return self._meta

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _stamps(self) -> Times:
        times = self._times() if callable(self._times) else self._times
        if len(times) != self._count:
            raise CorruptLayoutError(f"{len(times)} times for {self._count} records")
        check_increasing(times)
        return read_only(times)

    def _clock(self) -> Times:
        return self._stamps

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._meta.shape), self._meta.dtype)
        low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1
        values = self._read(low, high)
        shape = (high - low, *self._meta.shape)
        if values.shape != shape or values.dtype != self._meta.dtype:
            got = f"{values.dtype}{list(values.shape)}"
            raise CorruptLayoutError(
                f"wrong type of rows: expected {self._meta.dtype}{list(shape)}, got {got}"
            )
        return read_only(values[:: rows.step] if rows.step > 0 else values[::-1][:: -rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        low, high = int(indices.min()), int(indices.max()) + 1
        if high - low <= 4 * len(indices) + 64:
            return read_only(self._values_in(range(low, high))[indices - low])
        return read_only(np.concatenate([self._values_in(range(row, row + 1)) for row in indices.tolist()]))


class PicturesSignal(Reopens, StillsSignal):
    """Encoded pictures of a foreign file."""

    def __init__(
        self, name: str, rows: Rows, times: Callable[[], Times], role: Role, clock: str | None, place: str
    ) -> None:
        super().__init__(name, role=role, clock=clock, has_axis=rows.has_axis)
        self._rows, self._times, self._place = rows, times, place

    @property
    def place(self) -> str:
        """The file and the episode in it."""
        return self._place

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures; neighbouring ones by one read."""
        low, high = min(rows), max(rows) + 1
        if high - low <= 2 * len(rows):
            run = self._rows.read(low, high)
            return [run[row - low] for row in rows]
        return [self._rows.read(row, row + 1)[0] for row in rows]

    def __len__(self) -> int:
        return self._rows.count

    def _clock(self) -> Times:
        return self._times()


class ForeignSource(StatedSource):
    """An episode of a foreign set; `again` is the call that opens it in another process."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the model
        signals: Mapping[str, Signal],
        static: Mapping[str, Any],
        meta: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        place: str,
        again: tuple[Callable[..., Any], tuple[Any, ...]],
        steps: StepClock,
    ) -> None:
        """`meta`: metadata of the source under the name of its format, which may be read on first use."""
        super().__init__(id, signals, static, meta, steps)
        self._place, self._again = place, again

    @property
    def place(self) -> str | None:
        """The set and the episode in it, for messages."""
        return self._place

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again
