"""What cannot be meant is refused by name, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from warpdata.errors import NoStepsError
from warpdata.timeline import ArraySignal, Episode
from warpdata.timeline.memory import JoinedSignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import StepClock
from warpdata.timeline.times import INT64_MAX, as_int_array, grid, parse_time_ns


def signal(values: Any, **about: Any) -> ArraySignal:
    array = np.asarray(values)
    meta = SignalMeta(array.dtype, array.shape[1:], "vector" if array.ndim > 1 else "scalar", **about)
    return ArraySignal(np.arange(len(array)), array, meta)


def episode() -> Episode:
    return Episode.of({
        "joints": signal([[1.0, 2.0]] * 3, role="observation"),
        "count": signal([1, 2, 3], role="observation"),
        "quarter": signal([[0.0, 0.0, 0.0, 1.0]] * 3, role="observation"),
        "torque": signal([0.5, 0.5, 0.5], role="action"),
        "reward/sparse": signal([0.0, 0.0, 1.0], role="reward"),
        "reward/shaped": signal([0.0, 0.0, 1.0], role="reward"),
    })  # fmt: skip


MISUSES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no time": (lambda: parse_time_ns("soon"), ValueError, "not a time"),
    "no unit": (lambda: parse_time_ns("5 parsecs"), ValueError, "not a time"),
    "a time too far": (lambda: parse_time_ns("9e30s"), ValueError, "64 bits"),
    "nested times": (lambda: as_int_array(np.zeros((2, 2), int), "times"), TypeError, "flat sequence"),
    "a mask of times": (lambda: as_int_array(np.array([True]), "times"), TypeError, "masks"),
    "times above 64 bits": (lambda: as_int_array(np.array([2**63], np.uint64), "times"), ValueError, "64 bits"),
    "a grid that leaves time": (lambda: grid(INT64_MAX - 1, INT64_MAX + 2, 1), ValueError, "leaves the range"),
    "nothing to join": (lambda: JoinedSignal([]), ValueError, "nothing to join"),
    "mixed values": (lambda: ArraySignal([0, 1], ["a", b"b"]), TypeError, "all str, or all bytes"),
    "two clocks": (lambda: episode().steps_at(clock="joints", rate_hz=10), ValueError, "either"),
    "no clock": (lambda: episode().steps_at(), ValueError, "either"),
    "a misspelt clock": (lambda: episode().steps_at(clock="joint"), KeyError, "Did you mean 'joints'"),
    "a number to align by": (lambda: episode().sample([0], align=3), TypeError, "align is a word"),  # type: ignore[arg-type]
    "counts in between": (lambda: episode().sample([0], align={"count": "linear"}), ValueError, "needs floats"),
    "turns that are none": (lambda: episode().sample([0], align={"quarter": "slerp"}), ValueError, "quaternion"),
    "a misspelt align": (lambda: episode().sample([0], align="linea"), ValueError, "Did you mean 'linear'"),
    "a misspelt step": (lambda: episode().steps_at(clock="joints")["joint"], KeyError, "Did you mean 'joints'"),
    "a misspelt action": (
        lambda: episode().steps_at(clock="joints").actions["torqe"], KeyError, "Did you mean 'torque'"
    ),
    "one reward of two": (lambda: episode().steps_at(clock="joints").rewards, KeyError, "2 signals are a reward"),
    "steps on a clock that is gone": (
        lambda: Episode.of({"x": signal([1.0])}, steps=StepClock("ticks", "same")).steps.length,
        NoStepsError, "not a signal or clock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_it_is_refused_by_name(name: str) -> None:
    call, kind, match = MISUSES[name]
    with pytest.raises(kind, match=match):
        call()
