"""Times at the edges: grids keep their last moment, and distances of any two 64-bit times are what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warpdata.loading import Field, Windows
from warpdata.timeline import ArraySignal, Episode
from warpdata.timeline.times import INT64_MAX, INT64_MIN, add_offsets, checked_rate, ns_between, rate_grid

_TIMES = st.integers(INT64_MIN, INT64_MAX)


def _signal(times: list[int]) -> ArraySignal:
    return ArraySignal(np.array(times, np.int64), np.arange(len(times), dtype=np.float64))


@given(
    st.sampled_from([3.0, 7.0, 24.0, 29.97, 30.0, 60.0, 1000.0 / 3]),
    st.integers(1, 500),
    st.integers(-(1 << 62), 1 << 62),
)
def test_a_grid_has_every_moment_of_its_rate(rate: float, count: int, start: int) -> None:
    times = [start + round(k * 1e9 / rate) for k in range(count)]
    assert rate_grid(start, times[-1], rate).tolist() == times
    episode = Episode.of({"state": _signal(times)})
    assert episode.steps_at(rate_hz=rate).length == count
    assert episode.steps_at(rate_hz=rate).observations["state"].data.tolist() == list(range(count))


def test_a_grid_over_all_time_there_is() -> None:
    found = rate_grid(INT64_MIN, INT64_MAX, 2.0**-28).tolist()
    assert len(found) == 69
    assert found == [INT64_MIN + k * 10**9 * 2**28 for k in range(69)]
    with pytest.raises(ValueError, match="too large"):
        rate_grid(INT64_MIN, INT64_MAX, 30.0)


@given(_TIMES, _TIMES)
@example(INT64_MIN, INT64_MAX)
@example(INT64_MAX, INT64_MIN)
@example(0, INT64_MIN)
def test_distances_and_moves_stay_in_range(a: int, b: int) -> None:
    one, two = np.array([a]), np.array([b])
    assert ns_between(one, two).tolist() == [max(-INT64_MAX, min(INT64_MAX, a - b))]
    assert add_offsets(one, two).tolist() == [max(INT64_MIN, min(INT64_MAX, a + b))]


@given(st.lists(_TIMES, min_size=1, max_size=4, unique=True).map(sorted), _TIMES, st.integers(0, 1 << 62))
@example([INT64_MIN], INT64_MAX, 10)
@example([INT64_MIN, INT64_MAX], INT64_MAX - 1, 10)
def test_what_is_too_old_is_masked_however_far_away(times: list[int], asked: int, max_age: int) -> None:
    episode = Episode.of({"state": _signal(times)})
    found = episode.sample([asked], max_age_ns=max_age)
    held = max((k for k, ts in enumerate(times) if ts <= asked), default=None)
    valid = held is not None and asked - times[held] <= max_age
    assert found.mask["state"].tolist() == [valid]
    if held is not None:
        assert found["state"].tolist() == [held]
        assert found.age_ns["state"].tolist() == [min(asked - times[held], INT64_MAX)]
        share = (asked - times[held]) / (times[held + 1] - times[held]) if held + 1 < len(times) else 0.0
        between = episode.sample([asked], align="linear")["state"]
        assert np.allclose(between, held + share)


def test_windows_do_not_reach_around_the_end_of_time() -> None:
    episode = Episode.of({"state": _signal([INT64_MIN, INT64_MAX])}, id="edge")
    windows = Windows([episode], {"state": Field("state", offsets_s=[-1.0, 0.0, 1.0])}, anchor="state")
    assert [each["state"].tolist() for each in (windows[0], windows[1])] == [[0, 0, 0], [0, 1, 1]]
    assert windows[0].mask["state"].tolist() == [True, True, True]
    assert windows[1].age_ns["state"].tolist() == [INT64_MAX, 0, 0]


@pytest.mark.parametrize("rate", [20, 20.0, np.float32(20), np.int64(20), np.uint8(20)])
def test_a_rate_is_any_positive_number(rate: Any) -> None:
    assert checked_rate(rate) == 20


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 1e300, 10**30, "20", None, True, 2j])
def test_what_is_no_rate(wrong: Any) -> None:
    with pytest.raises(ValueError, match="rate_hz is a positive number"):
        checked_rate(wrong)
