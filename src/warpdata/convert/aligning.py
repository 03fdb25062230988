"""Rates, grids of times, and the steps that become the rows of an export.

Row k of an episode is defined in `timeline/steps.py`. Where T actions have T + 1 observations there are T rows, and the
last observation follows them. A last row of the source that only observes, with placeholders for its action, is no row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError, NoStepsError, require_word
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import StepClock
from warpdata.timeline.steps import Align, Steps

Times = NDArray[np.int64]
Hold = Literal["hold", "nearest", "linear"]

EXACT_NS = 1000
"""Times this close to a grid are on it: clocks in floats are no better."""
LAST_ROW = "last_row"
"""Key of episode metadata: `observation` where the last row of the source has no action of its own."""
OUTCOMES = ("reward", "terminated", "truncated")


@functools.lru_cache(maxsize=64)
def rate_of(fps: float) -> Fraction:
    """Frames per second as an exact fraction: 29.97 is 2997/100, 30000/1001 itself."""
    rate = Fraction(fps).limit_denominator(1001)
    if not 0 < rate < 1_000_000_000:
        raise ValueError(f"a rate is a positive number, not {fps!r}")
    return rate


def stated_rate(value: Any) -> float | None:
    """The rate that a file states; None if the value is not one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        rate_of(value)
    except (ValueError, OverflowError):
        return None
    return float(value)


def measured_rate(times: Times) -> float | None:
    """Mean rate of times, a whole number where it is nearly one; None of fewer than two times."""
    if len(times) < 2:
        return None
    rate = 1e9 * (len(times) - 1) / float(times[-1] - times[0])
    return float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate and round(rate) else rate


def grid_times(count: int, fps: float, start_ns: int = 0) -> Times:
    """Times of evenly spaced rows, each rounded once: no error adds up."""
    rate = rate_of(fps)
    numbers = np.arange(count, dtype=object) if count > 1 << 20 else np.arange(count, dtype=np.int64)
    times = (numbers * (1_000_000_000 * rate.denominator) + rate.numerator // 2) // rate.numerator
    return np.asarray(times, np.int64) + start_ns


def seconds_as_times(seconds: NDArray[Any], place: str) -> Times:
    """Times in nanoseconds from seconds, which must grow."""
    flat = np.asarray(seconds, np.float64).reshape(len(seconds), -1)[:, 0] if len(seconds) else np.empty(0)
    if not np.isfinite(flat).all() or (np.abs(flat) > 9e9).any():
        raise CorruptLayoutError("timestamp of a step out of range", path=place)
    times = np.rint(flat * 1e9).astype(np.int64)
    if (times[1:] <= times[:-1]).any():
        raise CorruptLayoutError("timestamps of the steps do not increase", path=place)
    return times


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """Steps that the user chose: a grid of `rate` per second, or the records of the signal `clock`."""

    rate: float | None = None
    clock: str | None = None
    align: Hold = "hold"
    """Value of a step: the last record, the nearest one, or a value between two (of floats)."""
    max_age_ns: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and self.clock is not None:
            raise ValueError("give rate= or clock=, not both")
        require_word("align", self.align, get_args(Hold))

    def to_json(self) -> dict[str, Any]:
        """The options that differ from the defaults, for the receipt."""
        stated = {"rate": self.rate, "clock": self.clock, "max_age_ns": self.max_age_ns}
        options = {key: value for key, value in stated.items() if value is not None}
        return options | ({"align": self.align} if self.align != "hold" else {})


def steps_with(episode: Episode, options: AlignOptions) -> Steps:
    """The steps of an episode: its own, or those that the options choose."""
    try:
        if options.rate is None and options.clock is None and options.align == "hold":
            # A last step is no row if it only observes, or if a trim cut off its reward or flags.
            steps, is_cut = episode.steps, False
            if steps.outcome == "next":
                outcomes = [name for name, signal in episode.signals.items() if signal.meta.role in OUTCOMES]
                masks = [steps[name].mask for name in outcomes]
                is_cut = any(len(mask) > 1 and bool(mask[:-1].all()) and not mask[-1] for mask in masks)
            if not len(steps) or not (is_cut or episode.meta.get(LAST_ROW) == "observation"):
                return steps
            return Steps(episode.signals, StepClock.of(steps.clock, steps.times_ns[:-1], steps.outcome))
        align: dict[str, Align] = {
            name: options.align
            for name, signal in episode.signals.items()
            if options.align != "linear" or (signal.meta.dtype.kind == "f" and signal.meta.kind != "image")
        }
        clock = options.clock
        if options.rate is None and clock is None:
            clock = episode.steps.clock
        return episode.steps_at(clock=clock, rate_hz=options.rate, align=align, max_age_ns=options.max_age_ns)
    except NoStepsError as error:
        error.hint = "Choose them: clock=NAME (--clock NAME) or rate=20 (--rate 20)."
        raise


def check_rate(steps: Steps, fps: float | None, place: str | None) -> tuple[float, int]:
    """The rate of evenly spaced steps, and how far the farthest step is from the grid of that rate.

    `fps` is the rate that is stated, if any. Raises NoStepsError where the steps do not follow it.
    """
    times = steps.times_ns
    rate = fps or measured_rate(times)
    if rate is None:
        fact = f"no rate: the episode has {len(times)} steps"
        raise NoStepsError(fact, path=place, hint="Give the rate: rate=… (--rate).")
    distance = np.abs(times - grid_times(len(times), rate, int(times[0]) if len(times) else 0))
    error = int(distance.max(initial=0))
    if error > 5e8 / rate:
        step, off_ms = int(distance.argmax()), error / 1e6
        fact = f"the steps are not {rate:g} a second: step {step} is off by {off_ms:g} ms"
        raise NoStepsError(fact, path=place, hint="Choose one rate: rate=… (--rate).")
    return rate, 0 if error <= EXACT_NS else error
