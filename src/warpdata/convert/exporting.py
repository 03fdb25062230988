"""Skeletons of exports: sets by step (`StepWriter`), and one file per episode.

They own the schema of the first episode, alignment, `on_error`, progress, the receipt and the order of the episodes,
which are prepared in this process or in others. A format gives `open`, `make`, `add` and `finish`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder
from warpdata.convert.aligning import EXACT_NS, AlignOptions, Hold, steps_with
from warpdata.convert.plain_names import with_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, EpisodeNotes, How, Note, called, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import in_order, runner_of
from warpdata.episodes.forms.content import ContentSum, RowsSum
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import FormatError, SchemaMismatchError, WarpError, require_word
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.ragged import join_sound, split_rows
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import LazySignals, SourceAround
from warpdata.timeline.steps import Steps

Progress = Callable[[int, int], None]
OnError = Literal["stop", "skip"]
Work = Callable[[int, Episode], Any]
"""Work on the episode at a position; it must pickle."""
_BLOCK_BYTES = 4 << 20
_RAGGED_ROWS = 64
"""Values of varying length in a block."""
_LOSSLESS = ("ffv1", "png")
_PREFIX = re.compile(r"(observations?|obs|actions?)[./](obs/)?")
_NO_PLACE = "what was seen after the last step has no place in the target"


class FileOptions(TypedDict, total=False):
    """Options of every export."""

    on_error: OnError
    """`skip` leaves out episodes that cannot be read, and counts them."""
    jobs: int
    """Processes that prepare episodes; the result does not depend on how many there are."""
    progress: Progress | None


class ExportOptions(FileOptions, total=False):
    """Options of every export by step."""

    rate: float | None
    """Steps on a grid of this many per second, instead of the steps of the episode."""
    clock: str | None
    """Or a step for every record of this signal."""
    align: Hold
    """Value of a signal at a step: `hold` (the last record), `nearest` or `linear`."""


class StepWriter(ABC):
    """A format by step. It is pickled for other processes, without `out`: the open target."""

    format: ClassVar[str]
    version = ""
    holds_ragged = False
    """Whether the format has a place for values of varying length at every step; sound becomes such values."""
    out: Any = None
    schema: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

    def write(
        self,
        episodes: Episodes,
        target: str | os.PathLike[str],
        *,
        supplied: Mapping[str, Any] | None = None,
        max_age_ns: int | None = None,
        **given: Unpack[ExportOptions],
    ) -> ConversionReceipt:
        """Write episodes by step into a new set; `supplied` are further facts from the user, for the receipt."""
        options = AlignOptions(given.get("rate"), given.get("clock"), given.get("align", "hold"), max_age_ns)
        on_error = given.get("on_error", "stop")
        check_on_error(on_error)
        stated = {**options.to_json(), **(supplied or {})}
        receipt = ConversionReceipt.of_export(self.format, episodes, target, self.version, stated)
        for position in range(len(episodes)):
            try:
                first = StepRows(with_own_names(episodes[position]), options, ragged=self.holds_ragged)
                self.choose(first, episodes)
                break
            except WarpError:
                if on_error == "stop" or position + 1 == len(episodes):
                    raise
        written = []
        with (
            tempfile.TemporaryDirectory(prefix="warpdata-") as scratch,
            self.open(Path(os.path.abspath(target))) as self.out,
        ):
            work = partial(self.prepare, options, Path(scratch))
            for position, part in export_each(episodes, work, receipt, given):
                receipt.episode_notes[self.add(part)] = part.about
                receipt.add(part.notes)
                shutil.rmtree(Path(scratch) / str(position))
                written.append(position)
            self.finish(episodes if len(written) == len(episodes) else episodes[written], receipt)
        return receipt

    def open(self, target: Path) -> AbstractContextManager[Any]:
        """The new target, which appears whole or not at all; becomes `out`. By default a folder."""
        return commit_folder(target)

    def choose(self, rows: StepRows, _episodes: Episodes) -> None:
        """Choose the schema of the set from the first episode that can be read."""
        self.schema = {name: column.type for name, column in rows.columns.items()}

    def prepare(self, options: AlignOptions, scratch: Path, position: int, episode: Episode) -> Part:
        """The part of the episode at a position, in any process; its files go into a folder below `scratch`."""
        folder = scratch / str(position)
        folder.mkdir()
        rows = StepRows(with_own_names(episode), options, ragged=self.holds_ragged)
        part = self.make(rows, folder)
        part.notes = rows.notes
        part.about = {"id": rows.id, **(part.about or rows.episode_notes(part.rows))}
        return part

    @abstractmethod
    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The part of one episode; files go into `scratch`, a new folder."""

    @abstractmethod
    def add(self, part: Part) -> str:
        """Add the part of the next episode to the set; the id under which it is read again."""

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Complete the set of these episodes, and write the document of the receipt."""
        (self.out / RECEIPT_FILE).write_bytes(receipt.document())

    def check_same(self, names: Iterable[str], rows: StepRows) -> None:
        """Raise unless an episode has these signals of the schema, with the same types."""
        for name in names:
            types = [self.schema.get(name), rows.columns[name].type if name in rows.columns else None]
            if types[0] != types[1]:
                words = ["no such signal" if each is None else f"{each[0]}{list(each[1])}" for each in types]
                raise SchemaMismatchError(
                    f"signal {name!r} of episode {rows.episode.id!r}: expected {words[0]} as in the first "
                    f"episode, got {words[1]}",
                    hint="Leave out signals that not all episodes have (Episodes.map).",
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "out": None}


@dataclass(slots=True)
class Part:
    """One episode on its way into a set."""

    rows: int
    """Rows of the episode in the set."""
    data: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    """Step times and static items, as the document of the set keeps them."""
    notes: Mapping[str, Note] = field(default_factory=dict)


class StepRows:
    """The rows of one episode, and the notes of what becomes of its signals.

    Empty signals are left out, and those of varying length that the format cannot hold.
    """

    def __init__(self, episode: Episode, options: AlignOptions, *, ragged: bool = False) -> None:
        self.notes = {
            name: note_of(signal, "dropped", f"{signal.meta.kind} values have no place in the target")
            for name, signal in episode.signals.items()
            if signal.meta.rows is not None and not ragged
        }
        if self.notes:
            kept = [name for name in episode.signals if name not in self.notes]
            lazy = LazySignals(lambda: kept, episode.signals.__getitem__)
            episode = Episode(SourceAround(episode.source, lazy))
        self.episode, self.options, self.id = episode, options, source_id(episode)
        self.steps = steps_with(episode, options)
        self.is_aligned = bool(options.to_json())
        """Whether the caller chose the steps."""
        sounds = {
            name: _SoundByStep(signal, self.steps)
            for name, signal in episode.signals.items()
            if signal.meta.kind == "sound" and len(signal)
        }
        signals = {name: signal for name, signal in episode.signals.items() if len(signal)} | sounds
        counts = {name: self._exact_rows(signal) for name, signal in signals.items()}
        later = [name for name, count in counts.items() if count is not None and count > len(self)]
        later.sort(key=lambda name: signals[name].meta.role != "observation")
        end_ns = int(signals[later[0]].timestamps[len(self)]) if later else 0
        self.columns = {
            name: StepColumn(name, signal, self.steps, counts[name] or len(self), bool(counts[name]), end_ns)
            for name, signal in signals.items()
        }

    def _exact_rows(self, signal: Signal) -> int | None:
        """Number of rows of a signal that has a record at every step, and maybe one after; None of any other."""
        steps, count = self.steps, len(signal)
        if count not in (len(steps), len(steps) + 1) or steps.comes_later(signal):
            return None
        return count if np.array_equal(signal.timestamps[: len(steps)], steps.times_ns) else None

    def __len__(self) -> int:
        return len(self.steps)

    def names(self, *roles: str) -> list[str]:
        """The signals of these roles."""
        return [name for name, column in self.columns.items() if column.meta.role in roles]

    def place(self, patterns: Mapping[str, tuple[str, str]], other: str = "{}") -> dict[str, str]:
        """Signal -> its path in the target, by role: the pattern of the only signal of a role, and that of several.

        Names that have the form of the pattern stay. Of several signals for a path without `{}` the first one takes
        it, and the others follow the pattern `other`.
        """
        paths: dict[str, str] = {}
        for name, column in self.columns.items():
            names = self.names(column.meta.role)
            pattern = patterns.get(column.meta.role, (other, other))[len(names) > 1]
            word = pattern.removesuffix("/{}")
            if "{}" not in pattern and name != (word if word in names else names[0]):
                word = pattern = other
            is_folder = "{}" in pattern and len(names) > 1
            is_placed = (name == word and not is_folder) or name.startswith(f"{word}/")
            short = name if pattern == other else _PREFIX.sub("", name, count=1)
            paths[name] = name if is_placed else pattern.format(short)
        taken = list(paths.values())
        for path in sorted(taken):
            if taken.count(path) > 1 or any(below.startswith(f"{path}/") for below in taken):
                hint = "Rename them with Episodes.map."
                raise SchemaMismatchError(f"two signals would be called {path!r}", hint=hint)
        return paths

    def keep(self, name: str, there: str = "", **options: Any) -> None:
        """Note that a signal is in the set, called `there`; `options` are those of `StepColumn.note`."""
        self.notes[name] = called(self.columns[name].note(**options), name, there or name)

    def drop(self, names: Iterable[str], why: str) -> None:
        """Remove columns, and note why."""
        for name in list(names):
            self.notes[name] = note_of(self.columns.pop(name).signal, "dropped", why)

    def drop_objects(self, why: str) -> None:
        """Remove text and bytes, for formats that have no place for them."""
        self.drop(
            (name for name, column in self.columns.items() if column.meta.kind in ("text", "bytes")), why
        )

    def add_missing(self, name: str, why: str) -> None:
        """Note an array that the format needs and the episode does not have."""
        self.notes[name] = Note("kept", 0, why=f"missing in the source: {why}")

    def episode_notes(self, rows: int) -> dict[str, Any]:
        """Times and static items of the episode, which has `rows` rows in the set."""
        times = self.steps.times_ns
        later = [column.end_ns for column in self.columns.values() if column.has_more]
        times = np.append(times, later[:1]) if later else times
        is_assumed = self.episode.meta.get("fps_from") == "assumed" and not self.is_aligned
        return EpisodeNotes.of(self.episode, rows, times, is_assumed=is_assumed).to_json()


@dataclass(slots=True)
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
    content: ContentSum | None = None
    """The hash of the signal, once all its rows went through `blocks`."""

    @property
    def meta(self) -> SignalMeta:
        """Description of the values."""
        return self.signal.meta

    @property
    def type(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a row of the array; of values of varying length -1 is their length."""
        rows = self.meta.rows
        return (self.meta.dtype, self.meta.shape) if rows is None else (rows.dtype, (-1, *rows.shape))

    @property
    def has_more(self) -> bool:
        """Whether it has one more row than there are steps: the observation after the last one."""
        return self.count > len(self.steps)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop)."""
        return (self.signal if self.is_exact else self.steps[self.name]).rows(start, stop)

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """The rows, a few megabytes at a time."""
        end = self.count if stop is None else stop
        step = _RAGGED_ROWS
        if self.meta.rows is None:
            step = max(1, _BLOCK_BYTES // max(64, self.meta.row_bytes))
        is_whole = self.is_exact and start == 0 and end == len(self.signal) and not self.meta.is_object
        total = RowsSum() if is_whole and encoded_run(self.signal) is None else None
        for low in range(start, end, step):
            block = self.rows(low, min(low + step, end))
            if total is not None:
                total.add(block)
            yield block
        self.content = self.content if total is None else total.result()

    def pictures(self, *codecs: str) -> EncodedRun | None:
        """Its frames, if they are pictures encoded with one of these codecs, one in every row."""
        run = encoded_run(self.signal) if self.is_exact and self.meta.kind == "image" else None
        return run if run is not None and run.stream.codec in codecs and bool(run.shown.all()) else None

    def note(self, *, decoded: bool = True, has_final: bool = True, error_ns: int = 0) -> Note:
        """What becomes of the signal: kept, decoded to pixels, or aligned with the steps.

        `decoded`: encoded frames become pixels. `has_final`: the target has a place for the observation after the last
        step. `error_ns`: how far its rows are moved in time.
        """
        if isinstance(self.signal, _SoundByStep):
            return note_of(self.signal.sound, "resampled", self.signal.why)
        note = partial(note_of, self.signal, known=self.content, max_error_ns=error_ns)
        kept: How = "resampled" if error_ns else "kept"
        if self.steps.comes_later(self.signal):
            return note(kept, "each at the step that led to it")
        if not self.is_exact:
            aligned = self.steps[self.name]
            why, missing = "the record that holds at each step", int((~aligned.mask).sum())
            if missing:
                why += f"; {missing} rows have no valid value and repeat another"
            age = int(np.abs(aligned.age_ns[aligned.mask]).max(initial=0))
            return note("resampled", why, max_age_ns=age)
        if self.has_more and not has_final:
            return note("cut", _NO_PLACE)
        if self.has_more and (moved := abs(int(self.signal.timestamps[-1]) - self.end_ns)) > EXACT_NS:
            why = "the observation after the last step is moved in time"
            return note_of(self.signal, "resampled", why, known=self.content, max_error_ns=moved)
        run = encoded_run(self.signal) if decoded else None
        if run is not None and run.stream.codec in _LOSSLESS:
            return note("kept", f"the same pixels, which were {run.stream.codec}")
        if run is not None:
            return note("reencoded", "decoded to pixels")
        return note(kept)


class _SoundByStep(ArraySignal):
    """A sound signal as values of varying length: the samples from each step to the next."""

    def __init__(self, signal: Signal, steps: Steps) -> None:
        self.sound = signal
        rows, (samples, rate, start_ns, _) = signal.meta.rows, join_sound(signal)
        at = np.rint((steps.times_ns - start_ns) * rate / 1e9).clip(0, len(samples)).astype(np.int64)
        self.why = f"the samples from each step to the next, {rate:g} Hz"
        if len(at) and at[0]:
            self.why += f"; {at[0]} samples before the first step have no place"
        values = split_rows(samples, np.append(at, len(samples)) if len(at) else at[:0])
        meta = SignalMeta(OBJECT, (), "ragged", role=signal.meta.role, clock=steps.clock, rows=rows)
        super().__init__(steps.times_ns, values, meta)


def source_id(episode: Episode) -> str:
    """The id of an episode in the foreign set it was imported from; its own, if it was not."""
    notes = episode.meta.get("import")
    stated = notes.get("id") if isinstance(notes, Mapping) else None
    return stated if isinstance(stated, str) else episode.id


@dataclass(frozen=True)
class EpisodeTask:
    """Work for the episode at a position; it travels to other processes."""

    episodes: Episodes
    work: Work

    def __call__(self, position: int) -> tuple[WarpError | None, Any]:
        """The error of this episode, or the result; errors of the machine are raised."""
        try:
            return None, self.work(position, self.episodes[position])
        except WarpError as error:
            if error.code in ("out_of_space", "permission"):
                raise
            return error, None
        except (ValueError, TypeError) as error:  # a name or a value that episodes cannot have
            return FormatError(str(error), hint="Rename it, or leave it out with a mapping."), None


def export_each(
    episodes: Episodes, work: Work, receipt: ConversionReceipt, options: FileOptions
) -> Iterator[tuple[int, Any]]:
    """Positions and results in order; the error of an episode is raised, or entered into the receipt."""
    runner, progress = runner_of(options.get("jobs", 1)), options.get("progress")
    results = in_order(runner, EpisodeTask(episodes, work), range(len(episodes)))
    for done, (position, (error, result)) in enumerate(results, 1):
        if error is None:
            yield position, result
        elif options.get("on_error", "stop") == "stop":
            raise error
        else:
            receipt.skip(episodes.ids[position], error)
        if progress is not None:
            progress(done, len(episodes))


def check_on_error(on_error: str) -> None:
    """Raise ValueError unless the word is known."""
    require_word("on_error", on_error, ("stop", "skip"))


WriteFile = Callable[[Episode, Path, ConversionReceipt | None], dict[str, Note]]
"""Writes a new file and returns the notes of the signals. A receipt is given to a file that is the whole export:
the notes are added to it, and the file stores it."""


def write_episode_files(
    format: str,  # noqa: A002 - the word of the receipt
    episodes: Episodes,
    target: str | os.PathLike[str],
    write_file: WriteFile,
    *,
    version: str = "",
    is_folder: bool = False,
    **options: Unpack[FileOptions],
) -> ConversionReceipt:
    """Write every episode as a file named after it, with the format as suffix: into a new folder, or as `target`.

    `is_folder`: an episode is a folder, without a suffix.
    """
    check_on_error(options.get("on_error", "stop"))
    receipt = ConversionReceipt.of_export(format, episodes, target, version)
    suffix = "" if is_folder else f".{format}"
    if suffix and os.fspath(target).endswith(suffix):
        if len(episodes) != 1:
            raise ValueError(f"{target} is one file for {len(episodes)} episodes: name a folder")
        write_file(with_own_names(episodes[0]), Path(target), receipt)
        return receipt
    with commit_folder(target) as folder:
        work = partial(_write_part, write_file, folder)
        taken: set[str] = set()
        for position, (name, notes) in export_each(episodes, work, receipt, options):
            while name in taken:
                name += "_"
            taken.add(name)
            (folder / f".{position}.part").rename(folder / f"{name}{suffix}")
            receipt.add(notes)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


def _write_part(
    write_file: WriteFile, folder: Path, position: int, episode: Episode
) -> tuple[str, dict[str, Note]]:
    """Write one file under a temporary name; its final name and the notes of the signals."""
    notes = write_file(with_own_names(episode), folder / f".{position}.part", None)
    return re.sub(r"[^A-Za-z0-9_.=+@-]", "_", source_id(episode)).lstrip(".") or "episode", notes
