"""Exports by step: an episode as rows, and the skeleton that every such writer shares.

`write_set` chooses the schema from the first episode, makes parts of the episodes in this process or in others, adds
them to the set in order, and owns alignment, `on_error`, progress and receipt. A format is a `StepWriter`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.convert.aligning import AlignOptions, steps_with
from warpdata.convert.each_episode import OnError, Progress, check_on_error, exported
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import ConversionReceipt, Note, note_of
from warpdata.convert.rows import EXACT_NS
from warpdata.convert.set_notes import EpisodeNotes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import SchemaMismatchError, WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.steps import Steps

_BLOCK_BYTES = 4 << 20
_LOSSLESS = ("ffv1", "png")


class StepWriter(ABC):
    """A format by step. It pickles for other processes, all but `out`: the open target."""

    format: ClassVar[str]
    version = ""
    out: Any = None

    @abstractmethod
    def open(self, target: Path) -> AbstractContextManager[Any]:
        """The new target, which appears whole or not at all; becomes `out`."""

    def choose(self, rows: StepRows, _episodes: Episodes) -> None:
        """Choose the schema of the set from the first episode that can be read."""
        self.schema = {name: (column.meta.dtype, column.meta.shape) for name, column in rows.columns.items()}

    @abstractmethod
    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The part of one episode, in any process; files go below `scratch`, which is new."""

    @abstractmethod
    def add(self, part: Part) -> str:
        """Add the part of the next episode to the set; the id under which it is read again."""

    @abstractmethod
    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Complete the set of these episodes, and keep the document of the receipt."""

    def check_same(self, names: Iterable[str], rows: StepRows) -> None:
        """Raise unless an episode has these signals of the schema, in the same types."""
        for name in names:
            meta = rows.columns[name].meta if name in rows.columns else None
            there = None if meta is None else (meta.dtype, meta.shape)
            if there != self.schema.get(name):
                raise SchemaMismatchError(
                    f"signal {name!r} of episode {rows.episode.id!r}: expected {_type_text(self.schema.get(name))}"
                    f" as in the first episode, got {_type_text(there)}",
                    hint="Leave out signals that not all episodes have (Episodes.map).",
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "out": None}


def _type_text(about: tuple[Any, tuple[int, ...]] | None) -> str:
    return "no such signal" if about is None else f"{about[0]}{list(about[1])}"


@dataclass(frozen=True, slots=True)
class SavedRows:
    """Rows in a scratch file."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self) -> NDArray[Any]:
        """The rows, mapped."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", shape=self.shape)


@dataclass(slots=True)
class Part:
    """One episode on its way into a set."""

    rows: int
    """Rows of the episode in the set."""
    notes: dict[str, Note]
    data: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    """Step times and static items, as the document of the set keeps them."""


class StepRows:
    """The rows of one episode."""

    def __init__(self, episode: Episode, options: AlignOptions) -> None:
        self.episode, self.options = episode, options
        self.steps, self.columns = step_columns(episode, options)
        self.is_aligned = bool(options.to_json())
        """Whether the caller chose the steps."""

    def __len__(self) -> int:
        return len(self.steps)

    def names(self, *roles: str) -> list[str]:
        """The signals of these roles."""
        return [name for name, column in self.columns.items() if column.meta.role in roles]

    def drop_objects(self, why: str) -> dict[str, Note]:
        """Remove text and bytes, for formats that have no place for them; their notes."""
        dropped = {name: column for name, column in self.columns.items() if column.meta.is_object}
        for name in dropped:
            del self.columns[name]
        return {name: note_of(column.signal, "dropped", why) for name, column in dropped.items()}

    def episode_notes(self, rows: int) -> dict[str, Any]:
        """Times and static items of the episode, which has `rows` rows in the set."""
        times = self.steps.times_ns
        later = [column.end_ns for column in self.columns.values() if column.has_more]
        times = np.append(times, later[:1]) if later else times
        is_assumed = self.episode.meta.get("fps_from") == "assumed" and not self.is_aligned
        return EpisodeNotes.of(self.episode, rows, times, is_assumed=is_assumed).to_json()


def write_set(
    writer: StepWriter,
    episodes: Episodes,
    target: str | os.PathLike[str],
    options: AlignOptions,
    *,
    on_error: OnError,
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes by step into a new set."""
    check_on_error(on_error)
    episodes = under_own_names(episodes)
    receipt = ConversionReceipt.of_export(writer.format, episodes, target, writer.version, options.to_json())
    _choose(writer, episodes, options, on_error)
    written = []
    with (
        tempfile.TemporaryDirectory(prefix="warpdata-") as scratch,
        writer.open(Path(os.path.abspath(target))) as writer.out,
    ):
        work = partial(_make, writer, options, Path(scratch))
        for position, part in exported(
            episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress
        ):
            receipt.episode_notes[writer.add(part)] = part.about
            receipt.add(part.notes)
            shutil.rmtree(Path(scratch) / str(position))
            written.append(position)
        writer.finish(episodes if len(written) == len(episodes) else episodes[written], receipt)
    return receipt


def _choose(writer: StepWriter, episodes: Episodes, options: AlignOptions, on_error: OnError) -> None:
    for position in range(len(episodes)):
        try:
            writer.choose(StepRows(episodes[position], options), episodes)
            return
        except WarpError:
            if on_error == "stop" or position + 1 == len(episodes):
                raise


def _make(writer: StepWriter, options: AlignOptions, scratch: Path, position: int, episode: Episode) -> Part:
    folder = scratch / str(position)
    folder.mkdir()
    rows = StepRows(episode, options)
    part = writer.make(rows, folder)
    part.about = {"id": source_id(episode), **rows.episode_notes(part.rows)}
    return part


@dataclass(frozen=True, slots=True)
class StepColumn:
    """One signal by step: as many rows as there are steps, or one more."""

    name: str
    signal: Signal
    steps: Steps
    count: int
    is_exact: bool
    """Whether its rows are its records."""
    end_ns: int = 0
    """Time that the set keeps for the row after the last step."""

    @property
    def meta(self) -> SignalMeta:
        """What the values are."""
        return self.signal.meta

    @property
    def has_more(self) -> bool:
        """Whether it has a row more than there are steps: what was seen after the last one."""
        return self.count > len(self.steps)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop)."""
        if self.is_exact:
            return self.signal.rows(start, stop)
        return self.steps[self.name].rows(start, stop)

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """The rows, a few megabytes at a time."""
        end = self.count if stop is None else stop
        step = max(1, _BLOCK_BYTES // max(64, self.meta.row_bytes))
        for low in range(start, end, step):
            yield self.rows(low, min(low + step, end))

    def save(self, path: Path, stop: int) -> SavedRows:
        """The rows [0, stop), as an array on disk that travels to other processes by its path."""
        with open(path, "xb") as out:
            for block in self.blocks(0, stop):
                out.write(byte_view(np.ascontiguousarray(block)))
        return SavedRows(path, self.meta.dtype, (stop, *self.meta.shape))

    def note(self, *, decoded: bool = True) -> Note:
        """What became of the signal: kept, decoded to pixels, or laid on the steps."""
        if _comes_later(self.signal, self.steps):
            return note_of(self.signal, "kept", "each at the step that led to it")
        if not self.is_exact:
            shown = self.steps[self.name]
            age = int(shown.age_ns.max(initial=0))
            return note_of(self.signal, "resampled", "the record that holds at each step", max_age_ns=age)
        if self.has_more and (moved := abs(int(self.signal.timestamps[-1]) - self.end_ns)) > EXACT_NS:
            why = "the observation after the last step is moved in time"
            return note_of(self.signal, "resampled", why, max_error_ns=moved)
        run = encoded_run(self.signal) if decoded else None
        if run is not None and run.stream.codec in _LOSSLESS:
            return note_of(self.signal, "kept", f"the same pixels, which were {run.stream.codec}")
        if run is not None:
            return note_of(self.signal, "reencoded", "decoded to pixels")
        return note_of(self.signal)


def source_id(episode: Episode) -> str:
    """The name an episode had in the foreign set it was imported from; its own, if it was not."""
    told = episode.meta.get("import")
    found = told.get("id") if isinstance(told, Mapping) else None
    return found if isinstance(found, str) else episode.id


def step_columns(episode: Episode, options: AlignOptions) -> tuple[Steps, dict[str, StepColumn]]:
    """The signals of an episode by its steps, or by those that the options choose; empty ones are left out.

    Where the last row of the source is an observation only, it is no step: actions have a row more than steps then.
    """
    steps = steps_with(episode, options)
    counts = {
        name: None if _comes_later(signal, steps) else _exact_rows(signal, steps)
        for name, signal in episode.signals.items()
        if len(signal)
    }
    end_ns = _end_ns(episode, steps, counts)
    columns = {
        name: StepColumn(
            name,
            episode.signals[name],
            steps,
            len(steps) if count is None else count,
            count is not None,
            end_ns,
        )
        for name, count in counts.items()
    }
    return steps, columns


def _end_ns(episode: Episode, steps: Steps, counts: Mapping[str, int | None]) -> int:
    """Time of the row after the last step: of the first observation that has one."""
    later = [name for name, count in counts.items() if count is not None and count > len(steps)]
    later.sort(key=lambda name: episode.signals[name].meta.role != "observation")
    return int(episode.signals[later[0]].timestamps[len(steps)]) if later else 0


def _comes_later(signal: Signal, steps: Steps) -> bool:
    """Whether what an action led to stands with the observation after it."""
    return steps.comes_later(signal)


def _exact_rows(signal: Signal, steps: Steps) -> int | None:
    """How many rows a signal has whose records lie at the steps, and maybe once after; None of any other."""
    count = len(signal)
    if count not in (len(steps), len(steps) + 1):
        return None
    if signal.meta.clock == steps.clock and count == len(steps):
        return count
    return count if np.array_equal(signal.timestamps[: len(steps)], steps.times_ns) else None


def without_last(note: Note) -> Note:
    """The note of a signal whose row after the last step the target has no place for."""
    return replace(note, how="dropped", why="what was seen after the last step has no place in the target")
