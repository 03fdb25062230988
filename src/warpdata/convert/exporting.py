"""An episode as rows by step, for targets that hold nothing else: exact where the source goes by step, else aligned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.aligning import AlignOptions, steps_with
from warpdata.convert.importing import OnError, Progress
from warpdata.convert.receipt import ConversionReceipt, Note, note_of
from warpdata.convert.rows import EXACT_NS
from warpdata.convert.set_notes import EpisodeNotes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.steps import Steps

_BLOCK_BYTES = 4 << 20
_LOSSLESS = ("ffv1", "png")


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


def usable(
    episodes: Episodes, on_error: OnError, receipt: ConversionReceipt, options: AlignOptions
) -> Episodes:
    """The episodes to write: all, or with `skip` those that can be read to the end; the receipt names the others."""
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error is 'stop' or 'skip', not {on_error!r}")
    if on_error == "stop":
        return episodes
    good = []
    for position, name in enumerate(episodes.ids):
        try:
            for column in step_columns(episodes[position], options)[1].values():
                for _ in column.blocks():
                    pass
        except WarpError as error:
            receipt.skip(name, error)
        else:
            good.append(position)
    return episodes if len(good) == len(episodes) else episodes[good]


def counted(episodes: Episodes, progress: Progress | None) -> Iterator[Episode]:
    """Episodes one by one; `progress` is told how many are done."""
    for number, episode in enumerate(episodes):
        yield episode
        if progress is not None:
            progress(number + 1, len(episodes))


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


def episode_notes(
    episode: Episode, columns: Mapping[str, StepColumn], steps: Steps, rows: int, options: AlignOptions
) -> dict[str, Any]:
    """Times and static items of an episode that has `rows` rows in the target, for the document of the set."""
    times = steps.times_ns
    if any(column.has_more for column in columns.values()):
        times = np.append(times, next(column.end_ns for column in columns.values() if column.has_more))
    is_assumed = episode.meta.get("fps_from") == "assumed" and not options.to_json()
    return EpisodeNotes.of(episode, rows, times, is_assumed=is_assumed).to_json()


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
