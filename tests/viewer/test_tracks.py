"""Plots from few points: never more than two per pixel, and no extreme is lost, held against every record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.viewer import tracks
from warpdata.viewer.tracks import Track


def track_of(count: int, channels: int = 2, seed: int = 0, dtype: str = "float32") -> Track:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.integers(1, 2000, count)) + 1_760_000_000_000_000_000
    values = rng.normal(size=(count, channels)).astype(dtype)
    return Track(wd.ArraySignal(times, values))


@given(
    count=st.integers(1, 20_000), width=st.integers(1, 300), seed=st.integers(0, 5),
    low=st.floats(-0.2, 1), high=st.floats(0, 1.2), channels=st.integers(1, 3),
)  # fmt: skip
def test_what_is_drawn_has_the_extremes_of_all_records(
    count: int, width: int, seed: int, low: float, high: float, channels: int
) -> None:
    track = track_of(count, channels, seed)
    first, last = int(track.times[0]), int(track.times[-1])
    start, stop = first + int(low * (last - first)), first + int(high * (last - first))
    drawn = track.window(start, stop, width)
    assert drawn.values.shape == (channels, len(drawn.times))
    assert len(drawn.times) <= 2 * width
    assert (np.diff(drawn.times) >= 0).all()
    inside = (track.times >= start) & (track.times <= stop)
    values = track.signal.values()[inside]
    if len(values):
        assert (drawn.values.min(axis=1) <= values.min(axis=0)).all()
        assert (drawn.values.max(axis=1) >= values.max(axis=0)).all()
    if drawn.is_exact:
        shown = np.isin(track.times, drawn.times)
        assert shown[inside].all()
        assert np.array_equal(drawn.values.T, track.signal.values()[shown])
    else:
        assert inside.sum() + 2 > 2 * width


@pytest.mark.parametrize("width", [1, 7, 400])
def test_a_spike_in_millions_is_seen_where_it_is(width: int) -> None:
    count, at = 3_000_000, 1_234_567
    values = np.zeros(count, np.float32)
    values[at] = 9
    track = Track(wd.ArraySignal(np.arange(count, dtype=np.int64) * 1000, values))
    drawn = track.window(0, count * 1000, width)
    assert len(drawn.times) <= 2 * width
    assert drawn.values.max() == 9
    where = int(drawn.times[int(drawn.values[0].argmax())])
    assert abs(where - at * 1000) <= 2 * count * 1000 / width
    near = track.window((at - 50) * 1000, (at + 50) * 1000, 800)
    assert near.is_exact
    assert near.times[near.values[0] == 9].tolist() == [at * 1000]


def test_what_is_no_number_hides_nothing() -> None:
    values = np.full(100_000, np.nan, np.float32)
    values[50_000] = 4
    drawn = Track(wd.ArraySignal(np.arange(100_000), values)).window(0, 100_000, 10)
    assert np.nanmax(drawn.values) == 4
    assert np.isnan(drawn.values).any()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float16", "float64"])
def test_every_type_is_sent_as_floats_that_hold_it(dtype: str) -> None:
    values = np.array([0, 1, 1, 0], dtype)
    found = Track(wd.ArraySignal(np.arange(4), values)).window(0, 4, 10).values
    assert found.dtype in (np.float32, np.float64)
    assert found[0].tolist() == values.astype(np.float64).tolist()
    if dtype in ("int32", "int64", "float64"):
        assert found.dtype == np.float64


def test_gaps_are_pauses_of_five_times_the_usual() -> None:
    times = np.array([0, 10, 20, 30, 95, 105, 115, 125])
    track = Track(wd.ArraySignal(times, np.zeros(8)))
    assert track.gaps() == [(30, 95)]
    assert (track.row_at(-1), track.row_at(0), track.row_at(94), track.row_at(95), track.row_at(10**18)) == (
        -1,
        0,
        3,
        4,
        7,
    )


def test_gaps_are_those_of_a_plain_look_at_all_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "_LOOKED_AT", 7)
    rng = np.random.default_rng(5)
    for count in (2, 3, 4, 7, 8, 15, 200):
        pauses = np.where(rng.random(count) < 0.1, 1000, 10) + rng.integers(0, 3, count)
        times = np.concatenate([[0], np.cumsum(pauses)]).astype(np.int64)
        found = Track(wd.ArraySignal(times, np.zeros(len(times), np.float32))).gaps()
        wanted = np.flatnonzero(pauses > tracks.GAP_FACTOR * np.median(pauses)) if count >= 3 else []
        assert found == [(int(times[i]), int(times[i + 1])) for i in wanted]
