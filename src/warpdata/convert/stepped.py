"""Episodes of foreign files that go by step: columns of rows, read when asked for, as signals on one grid of times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.place import Place
from warpdata.convert.receipt import RECEIPT_FILE
from warpdata.convert.rows import ForeignSource, RowsSignal, grid_times
from warpdata.convert.set_notes import MAX_DOCUMENT_BYTES, EpisodeNotes, parse_notes
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import CorruptLayoutError, LimitExceededError
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import OBJECT, Kind, Role, SignalMeta, numeric_kind
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import STEPS, Outcome, StepClock
from warpdata.timeline.times import MAX_GRID

OBSERVATIONS = "observations"
"""The clock of what was seen at every step and once more after the last one."""

DEFAULT_FPS = 10.0
"""Steps per second of a set that does not say; `fps_from` in the metadata of its episodes is then `assumed`."""

Times = NDArray[np.int64]
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


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

    def encoded(self, _start: int, _stop: int) -> list[bytes]:
        """Pictures [start, stop) as they lie in the file; only of rows that are encoded pictures."""
        raise TypeError("these rows are not encoded")

    @property
    def is_pictures(self) -> bool:
        """Whether the rows are JPEG or PNG pictures, to be handed on as they are."""
        return False

    has_axis = False
    """Of gray pictures: whether the source says that frames have an axis for their one channel."""


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
        self.base: Rows = rows.base if isinstance(rows, PartRows) else rows
        self.start: int = rows.start + start if isinstance(rows, PartRows) else start
        self.count, self.dtype, self.row_shape, self.kind = (
            stop - start,
            rows.dtype,
            rows.row_shape,
            rows.kind,
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the run."""
        return self.base.read(self.start + start, self.start + stop)


class ChainedRows(Rows):
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


class VideoRows(Rows):
    """The frames of a video file, which is copied as it is."""

    def __init__(self, source: SourceVideo) -> None:
        self.source = source
        self.dtype, self.row_shape, self.kind = np.dtype(np.uint8), (), "image"

    @cached_property
    def count(self) -> int:
        """How many frames there are; the packets of the file are listed for it."""
        return len(self.source)

    def read(self, _start: int, _stop: int) -> NDArray[Any]:
        """Frames are decoded by the signal."""
        raise TypeError("frames of a video are decoded by their signal")


class PictureRows(Rows):
    """JPEG or PNG pictures: rows of bytes, or of bytes padded to one length."""

    def __init__(self, rows: Rows, *, has_axis: bool = False) -> None:
        self._rows = rows
        self.has_axis = has_axis
        self.count, self.dtype, self.row_shape = rows.count, np.dtype(object), ()

    @property
    def is_pictures(self) -> bool:
        """True."""
        return True

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The pictures of the file, without padding."""
        return [without_padding(bytes(each)) for each in self._rows.read(start, stop)]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The pictures as bytes."""
        out = np.empty(stop - start, object)
        out[:] = self.encoded(start, stop)
        return out


def without_padding(data: bytes) -> bytes:
    """A picture without zeros behind it."""
    if data.startswith(_JPEG) and data.endswith(b"\0"):
        end = data.rfind(_JPEG_END)
        return data[: end + 2] if end >= 0 else data
    return data


@dataclass(frozen=True, slots=True)
class EpisodeColumn:
    """One signal of a foreign episode: its rows, from the first step on, and the part it plays."""

    rows: Rows
    role: Role = "observation"
    own_clock: str | None = None
    """The clock that its rows share with others, where their number does not say it."""
    at: tuple[int, ...] | None = None
    """The steps of its rows, where not every step has one."""

    def clock(self, steps: int) -> str | None:
        """The clock that its rows share with others."""
        if self.own_clock is not None or self.at is not None:
            return self.own_clock
        return {steps: STEPS, steps + 1: OBSERVATIONS}.get(self.rows.count)

    def meta(self, steps: int) -> SignalMeta:
        """What a reader of the signal is told."""
        kind = (
            self.rows.kind
            or image_kind(self.rows.dtype, self.rows.row_shape)
            or numeric_kind(self.rows.row_shape)
        )
        dtype = OBJECT if kind in ("text", "bytes") else self.rows.dtype
        return SignalMeta(
            dtype,
            () if dtype == OBJECT else self.rows.row_shape,
            kind,
            role=self.role,
            clock=self.clock(steps),
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
    columns: Mapping[str, EpisodeColumn]
    static: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    """Steps per second, where the source or the caller said it."""
    usual_fps: float = DEFAULT_FPS
    """Steps per second of such sets, where nobody said it."""
    times: Times | None = None
    """The times of the steps, where the source has them."""
    start_ns: int = 0
    """Time of the first step, where the steps are evenly spaced."""
    outcome: Outcome = "same"
    place: str | None = None

    def renamed(self, name: str) -> Parts:
        """The same under another name."""
        return replace(self, id=name)


class SteppedEpisodes(EpisodesSource):
    """A foreign set as episodes: subclasses say which there are and what each is made of."""

    _place: Place
    _fps: float | None = None
    """Steps per second, where the caller said it."""

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """What the episode at a position is made of; nothing of its rows is read."""

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return Episode(_source_of(self, position))

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into sets it exports, where there is one."""
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

    def parts_with_notes(self, position: int) -> Parts:
        """The parts of an episode, completed by what its export noted."""
        parts = self.parts(position)
        note = self.own_notes.get(self.note_key(position))
        return parts if note is None or note.steps != parts.steps else self.with_note(parts, note)

    def with_note(self, parts: Parts, note: EpisodeNotes) -> Parts:
        """The parts of an episode with the times and static items of a note; a rate that the caller gave counts."""
        parts = replace(parts, static={**parts.static, **note.static})
        if self._fps is not None or (note.fps is None and note.times is None):
            return replace(parts, fps=self._fps or parts.fps, start_ns=note.start_ns)
        if note.is_assumed and note.fps is not None:
            return replace(parts, fps=None, usual_fps=note.fps)
        return replace(parts, fps=note.fps, start_ns=note.start_ns, times=note.times)


def _source_of(episodes: SteppedEpisodes, position: int) -> ForeignSource:
    parts = episodes.parts_with_notes(position)
    place = parts.place or episodes.name
    if parts.steps > MAX_GRID:
        raise LimitExceededError(f"episode {parts.id!r} claims {parts.steps} steps", path=place)
    fps = parts.fps or _rate_of(parts.times) or parts.usual_fps
    said = "times" if parts.times is not None else "assumed" if parts.fps is None else "source"
    if said == "source" and episodes._fps is not None:
        said = "user"
    times = partial(step_times, fps=fps, known=parts.times, start_ns=parts.start_ns)
    meta = {"steps": StepClock(STEPS, parts.outcome).to_json(), "fps": fps, "fps_from": said, **parts.meta}
    return ForeignSource(
        parts.id, _Signals(parts, times, place), parts.static, meta, place=place,
        again=(_source_of, (episodes, position)),
        steps=StepClock(STEPS, parts.outcome, partial(times, parts.steps), parts.steps),
    )  # fmt: skip


def _rate_of(times: Times | None) -> float | None:
    """The usual rate of steps whose times are known."""
    return None if times is None or len(times) < 2 else 1e9 / float(np.median(np.diff(times)))


def step_times(count: int, *, fps: float, known: Times | None = None, start_ns: int = 0) -> Times:
    """The times of `count` steps: those that are known, then one step after the other."""
    if known is None or not len(known):
        return read_only(grid_times(count, fps, start_ns))
    more = max(0, count - len(known))
    step = int(known[-1] - known[-2]) if len(known) > 1 else round(1e9 / fps)
    return read_only(
        np.concatenate([known[:count], known[-1] + step * np.arange(1, more + 1, dtype=np.int64)])
    )


def positive(number: Any) -> float | None:
    """A rate that makes sense."""
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return float(number) if is_number and 0 < number < 1e6 else None


def seconds_as_times(seconds: NDArray[Any], place: str) -> Times:
    """Times in nanoseconds from seconds, which must grow."""
    flat = np.asarray(seconds, np.float64).reshape(len(seconds), -1)[:, 0] if len(seconds) else np.empty(0)
    if not np.isfinite(flat).all() or (np.abs(flat) > 9e9).any():
        raise CorruptLayoutError("a time of a step is no time", path=place)
    times = np.rint(flat * 1e9).astype(np.int64)
    if (times[1:] <= times[:-1]).any():
        raise CorruptLayoutError("the times of the steps do not increase", path=place)
    return times


def _times_of(times: Callable[[int], Times], steps: tuple[int, ...]) -> Times:
    return times(max(steps, default=-1) + 1)[list(steps)]


class _Signals(Mapping[str, Signal]):
    """The signals of an episode, each made when it is first asked for."""

    def __init__(self, parts: Parts, times: Callable[[int], Times], place: str) -> None:
        self._parts = parts
        self._times = times
        self._place = place
        self._made: dict[str, Signal] = {}

    def __getitem__(self, name: str) -> Signal:
        found = self._made.get(name)
        if found is None:
            column, steps = self._parts.columns[name], self._parts.steps
            times = partial(self._times, column.rows.count)
            if column.at is not None:
                times = partial(_times_of, self._times, column.at)
            if isinstance(column.rows, VideoRows):
                found = FileVideo(
                    column.rows.source, times, name=name, role=column.role, clock=column.clock(steps)
                )
            elif column.rows.is_pictures:
                found = PicturesSignal(
                    name, column.rows, times, column.role, column.clock(steps), self._place
                )
            else:
                found = RowsSignal(times, column.meta(steps), column.rows.read, column.rows.count)
            self._made[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts.columns)

    def __len__(self) -> int:
        return len(self._parts.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._parts.columns


class PicturesSignal(StillsSignal):
    """Pictures that lie encoded in a foreign file."""

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
        """The pictures as they lie there; a run of them by one read."""
        low, high = min(rows), max(rows) + 1
        if high - low <= 2 * len(rows):
            found = self._rows.encoded(low, high)
            return [found[row - low] for row in rows]
        return [self._rows.encoded(row, row + 1)[0] for row in rows]

    def __len__(self) -> int:
        return self._rows.count

    def _clock(self) -> Times:
        return self._times()

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            PicturesSignal,
            (self.name, self._rows, self._times, self._role, self._clock_name, self._place),
        )
