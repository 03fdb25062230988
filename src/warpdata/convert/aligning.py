"""Episodes at one rate, for formats that know no other: which clock, how values are held, and what that changed.

Row k of an episode is what `timeline/steps.py` says it is. Where T actions have T + 1 observations, there are T rows,
and the last observation is outside them: formats that have a place for it take it from `final`. Where the last row of
a source is an observation only, with numbers in the place of an action that mean nothing, it is no row either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from warpdata.convert.receipt import How, Note, noted
from warpdata.convert.rows import EXACT_NS, grid_times, measured_rate, rate_of
from warpdata.episodes.forms.content import ContentSum, sum_of
from warpdata.errors import NoStepsError, nearest
from warpdata.timeline.episode import Episode
from warpdata.timeline.sampling import Align
from warpdata.timeline.signal import Signal
from warpdata.timeline.steps import Steps, StepSignal, StepTimes

LAST_ROW = "last_row"
"""In the metadata of an episode: `observation` where the last row of the source has no action of its own."""

OUTCOMES = ("reward", "terminated", "truncated")
Hold = Literal["hold", "nearest", "linear"]


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """What the user said of the one rate."""

    rate: float | None = None
    """A grid of this many steps a second."""
    clock: str | None = None
    """Or the records of this signal."""
    align: Hold = "hold"
    """What stands at a step: the last record, the nearest one, or a value between two (of floats)."""
    max_age_ns: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and self.clock is not None:
            raise ValueError("give rate= or clock=, not both")
        if self.align not in get_args(Hold):
            known = get_args(Hold)
            raise ValueError(
                f"align is one of {', '.join(known)}, not {self.align!r}.{nearest(self.align, known)}"
            )

    def to_json(self) -> dict[str, Any]:
        """What was said, for the receipt."""
        said = {"rate": self.rate, "clock": self.clock, "max_age_ns": self.max_age_ns}
        found = {key: value for key, value in said.items() if value is not None}
        return found | ({"align": self.align} if self.align != "hold" else {})


@dataclass(slots=True)
class AlignedEpisode:
    """The rows of an episode at one rate."""

    steps: Steps
    fps: float
    error_ns: int
    """How far the farthest step is moved to stand on the grid."""
    final: Mapping[str, Any] = field(default_factory=dict)
    """What was observed after the last action."""

    def __len__(self) -> int:
        return self.steps.length

    def note(
        self, name: str, *, how: How | None = None, why: str = "", found: ContentSum | None = None
    ) -> Note:
        """What became of a signal on its way into the rows; `found` is its sum, where that is known already."""
        on_steps = self.steps[name]
        signal = on_steps.signal
        ages = np.abs(on_steps.age_ns[on_steps.mask])
        age, whys = int(ages.max(initial=0)), [why] if why else []
        if self.steps.outcome == "next" and signal.meta.role in OUTCOMES:
            age = 0  # each record is in the row of the step that led to it
        is_kept = is_run(on_steps) and not (whys or self.error_ns or age)
        unchanged: How = "kept" if len(signal) == len(self) else "dropped"
        if not on_steps.mask.all():
            whys.append(f"{int((~on_steps.mask).sum())} rows have no valid value and repeat another")
        if len(signal) > len(self) and is_run(on_steps):
            whys.append(f"{len(signal) - len(self)} records behind the last row are left out")
        chosen: How = how or (unchanged if is_kept else "resampled")
        total = sum_of(signal) if found is None else found
        return noted(len(signal), total, chosen, "; ".join(whys), max_age_ns=age, max_error_ns=self.error_ns)


def aligned(episode: Episode, options: AlignOptions, fps: float | None = None) -> AlignedEpisode:
    """The rows of an episode; `fps` is the rate its source states, if it does."""
    steps = steps_with(episode, options)
    times = steps.times_ns
    chosen = options.rate or fps or measured_rate(times)
    if chosen is None:
        raise NoStepsError(
            f"no rate: the episode has {len(times)} steps", path=episode.source.place,
            hint="Give the rate: rate=… (--rate).",
        )  # fmt: skip
    grid = grid_times(len(times), chosen, int(times[0]) if len(times) else 0)
    error = int(np.abs(times - grid).max(initial=0))
    if error > 5e8 / chosen:
        raise NoStepsError(
            f"the steps are not {chosen:g} a second: step {int(np.abs(times - grid).argmax())} is off by "
            f"{error / 1e6:g} ms", path=episode.source.place, hint="Choose one rate: rate=… (--rate).",
        )  # fmt: skip
    return AlignedEpisode(steps, chosen, 0 if error <= EXACT_NS else error, steps.final_observations)


def acted_steps(episode: Episode) -> Steps:
    """The steps of an episode without a last one that only observes, or whose outcome was cut off."""
    steps = episode.steps
    if not len(steps) or not (
        episode.meta.get(LAST_ROW) == "observation" or _lacks_last_outcome(steps, episode.signals)
    ):
        return steps
    times = StepTimes.of(steps.times_ns[:-1])
    return Steps(episode.signals, times, clock=steps.clock, outcome=steps.outcome)


def _lacks_last_outcome(steps: Steps, signals: Mapping[str, Signal]) -> bool:
    """Whether the rewards or flags that belong to the last step, and to no other, are missing: a trim cut them off."""
    if steps.outcome != "next":
        return False
    masks = [steps[name].mask for name, signal in signals.items() if signal.meta.role in OUTCOMES]
    return any(len(mask) > 1 and bool(mask[:-1].all()) and not mask[-1] for mask in masks)


def steps_with(episode: Episode, options: AlignOptions) -> Steps:
    """The steps of an episode: its own, or those that the options choose."""
    try:
        return _chosen_steps(episode, options)
    except NoStepsError as error:
        error.hint = "Choose them: clock=NAME (--clock NAME) or rate=20 (--rate 20)."
        raise


def _chosen_steps(episode: Episode, options: AlignOptions) -> Steps:
    if options.rate is None and options.clock is None and options.align == "hold":
        return acted_steps(episode)
    how: dict[str, Align] = {
        name: options.align
        for name, signal in episode.signals.items()
        if options.align != "linear" or (signal.meta.dtype.kind == "f" and signal.meta.kind != "image")
    }
    clock = options.clock
    if options.rate is None and clock is None:
        clock = episode.steps.clock
    return episode.steps_at(clock=clock, rate_hz=options.rate, align=how, max_age_ns=options.max_age_ns)


def is_run(on_steps: StepSignal) -> bool:
    """Whether the rows are records one after the other, from the first."""
    return bool(on_steps.mask.all() and np.array_equal(on_steps.positions, np.arange(len(on_steps))))


def exact_rate(fps: float) -> Fraction:
    """The rate as containers want it."""
    return rate_of(fps)
