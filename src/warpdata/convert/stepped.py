"""Skeleton of readers by step: columns of rows, read on demand, as signals on one grid of times.

A format subclasses `SteppedEpisodes` and gives `ids` and `parts`. T + 1 observations and T actions share one start: the
steps are those of the actions, and the last observation follows them (`timeline/steps.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of, read_only
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.convert.aligning import Times, grid_times
from warpdata.convert.place import Place
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, RECEIPT_FILE, EpisodeNotes, parse_notes
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.sources.cameras import FileVideo, SourceVideo, StillsSignal
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import check_increasing
from warpdata.timeline.meta import OBJECT, Kind, Role, RowType, SignalMeta, numeric_kind
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import ClockedSignal, Signal
from warpdata.timeline.source import STEPS, EpisodeSource, LazySignals, Outcome, StepClock
from warpdata.timeline.times import MAX_GRID

OBSERVATIONS = "observations"
"""Clock of what was observed at every step and once more after the last one."""
DEFAULT_FPS = 10.0
"""Rate of a set that states none; `fps_from` in the metadata of its episodes is then `assumed`."""
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
Read = Callable[[int, int], NDArray[Any]]
"""Reads rows [start, stop), which exist; it must pickle."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one array of a foreign file."""

    count: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""
    read: Read
    kind: Kind | None = None
    """Kind of the rows if dtype and shape do not determine it: text, bytes, image, or ragged (rows of `shape`)."""
    is_pictures: bool = False
    """Whether the rows are bytes of JPEG or PNG pictures."""
    has_axis: bool = False
    """Whether gray pictures have an axis for their one channel."""
    video: SourceVideo | None = None
    """The file whose frames are the rows; its signal decodes them."""

    @classmethod
    def of(cls, array: NDArray[Any], kind: Kind | None = None) -> Rows:
        """Rows in memory."""
        return cls(len(array), array.dtype, array.shape[1:], partial(_read_array, array), kind)

    @classmethod
    def objects(cls, count: int, kind: Kind, read: Read) -> Rows:
        """Rows of text or bytes."""
        return cls(count, OBJECT, (), read, kind)

    @classmethod
    def of_video(cls, video: SourceVideo) -> Rows:
        """The frames of a video file, which a signal decodes."""
        return cls(len(video), np.dtype(np.uint8), (), _no_rows, "image", video=video)

    def all(self) -> NDArray[Any]:
        """All rows."""
        return self.read(0, self.count)

    def part(self, start: int, stop: int) -> Rows:
        """A run of the rows."""
        return replace(self, count=stop - start, read=partial(_read_part, self.read, start))

    def stills(
        self, name: str, times: Callable[[], Times], place: str, *, role: Role, clock: str | None
    ) -> Signal:
        """The signal of a camera, of rows that are pictures."""
        more: dict[str, Any] = {"role": role, "clock": clock, "has_axis": self.has_axis}
        return StillsSignal(name, self.read, self.count, times, place, **more)  # type: ignore[arg-type]

    def as_pictures(self, *, has_axis: bool = False) -> Rows:
        """Rows of bytes as JPEG or PNG pictures."""
        read = partial(_read_pictures, self.read)
        return Rows(self.count, OBJECT, (), read, "bytes", is_pictures=True, has_axis=has_axis)


def numeric_type(dtype: np.dtype[Any], what: str, path: str, hint: str = "") -> np.dtype[Any]:
    """The little-endian type of numbers as episodes hold them; `what` has other values."""
    try:
        return dtype_of(dtype.newbyteorder("<")).dtype
    except ValueError:
        fact = f"{what} holds {dtype}" if what else f"unsupported dtype {dtype}"
        raise UnsupportedDtypeError(fact, path=path, hint=hint or None) from None


def _no_rows(_start: int, _stop: int) -> NDArray[Any]:
    raise TypeError("frames of a video are decoded by their signal")


def _read_array(array: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    return array[start:stop]


def _read_part(read: Read, begin: int, start: int, stop: int) -> NDArray[Any]:
    return read(begin + start, begin + stop)


def _read_pictures(read: Read, start: int, stop: int) -> NDArray[Any]:
    """Pictures without the zeros that pad a JPEG to a common length."""
    pictures = [bytes(picture) for picture in read(start, stop)]
    for row, data in enumerate(pictures):
        end = data.rfind(_JPEG_END) if data.startswith(_JPEG) and data.endswith(b"\0") else -1
        pictures[row] = data[: end + 2] if end >= 0 else data
    return as_objects(pictures)


def chain_rows(parts: Sequence[Rows], what: str) -> Rows:
    """The rows of several arrays, one after the other."""
    first = parts[0]
    for part in parts:
        if (part.dtype, part.shape) != (first.dtype, first.shape):
            types = [f"{rows.dtype}{list(rows.shape)}" for rows in (first, part)]
            raise CorruptLayoutError(f"{what} disagree: {types[0]} and {types[1]}")
    return replace(first, count=sum(part.count for part in parts), read=partial(_read_chain, list(parts)))


def _read_chain(parts: Sequence[Rows], start: int, stop: int) -> NDArray[Any]:
    pieces, begin = [], 0
    for part in parts:
        if start < begin + part.count and stop > begin:
            pieces.append(part.read(max(start - begin, 0), min(stop - begin, part.count)))
        begin += part.count
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty((0, *parts[0].shape), parts[0].dtype)


@dataclass(frozen=True, slots=True)
class EpisodeColumn:
    """One signal of a foreign episode: its rows, from the first step on, and its role."""

    rows: Rows
    role: Role = "observation"
    own_clock: str | None = None
    """Clock of the rows, where their number does not determine it."""
    at: tuple[int, ...] | None = None
    """The steps of the rows, where some steps have none."""

    def signal(self, name: str, steps: int, times: Callable[[int], Times], place: str) -> Signal:
        """The column as a signal; `times` gives the times of the first n steps."""
        rows, clock = self.rows, self.own_clock
        if clock is None and self.at is None:
            clock = {steps: STEPS, steps + 1: OBSERVATIONS}.get(rows.count)
        own_times = partial(times, rows.count) if self.at is None else partial(_times_at, times, self.at)
        if rows.video is not None:
            return FileVideo(rows.video, own_times, name=name, role=self.role, clock=clock)
        if rows.is_pictures:
            return rows.stills(name, own_times, place, role=self.role, clock=clock)
        kind = rows.kind or image_kind(rows.dtype, rows.shape) or numeric_kind(rows.shape)
        row_type = RowType(rows.dtype, rows.shape) if kind == "ragged" else None
        dtype, shape = (rows.dtype, rows.shape) if row_type is None else (OBJECT, ())
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

    _receipt_file = RECEIPT_FILE

    def __init__(self, place: Place, fps: float | None = None) -> None:
        """`fps` are the steps per second that the caller gave."""
        self._place, self.name, self._fps = place, place.name, fps

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """The contents of the episode at a position; no rows are read."""

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(_open_source(self, position))

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into sets it exports, if there is one."""
        if self._place.is_file or not self._place.exists(self._receipt_file):
            return None
        return self._place.read(self._receipt_file, max_bytes=MAX_DOCUMENT_BYTES)

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


def _open_source(episodes: SteppedEpisodes, position: int) -> EpisodeSource:
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
    source = EpisodeSource(parts.id, signals, parts.static, meta, clock, place)
    source.reopen_by(_open_source, episodes, position)
    return source


def step_times(count: int, *, fps: float, known: Times | None = None, start_ns: int = 0) -> Times:
    """The times of `count` steps: the known ones, continued evenly."""
    if known is None or not len(known):
        return read_only(grid_times(count, fps, start_ns))
    more = max(0, count - len(known))
    step = int(known[-1] - known[-2]) if len(known) > 1 else round(1e9 / fps)
    following = known[-1] + step * np.arange(1, more + 1, dtype=np.int64)
    return read_only(np.concatenate([known[:count], following]))


class RowsSignal(Reopens, ClockedSignal):
    """A signal over rows that a function reads on demand; the function must pickle."""

    def __init__(self, times: Callable[[], Times], meta: SignalMeta, read: Read, count: int) -> None:
        self._times, self._meta, self._read, self._count = times, meta, read, count

    @property
    def meta(self) -> SignalMeta:
        """The description that it was given."""
        return self._meta

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _stamps(self) -> Times:
        times = self._times()
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
            fact = f"wrong type of rows: expected {self._meta.dtype}{list(shape)}, got {got}"
            raise CorruptLayoutError(fact)
        return read_only(values[:: rows.step] if rows.step > 0 else values[::-1][:: -rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        low, high = int(indices.min()), int(indices.max()) + 1
        if high - low <= 4 * len(indices) + 64:
            return read_only(self._values_in(range(low, high))[indices - low])
        return read_only(np.concatenate([self._values_in(range(row, row + 1)) for row in indices.tolist()]))
