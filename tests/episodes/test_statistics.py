from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.episodes.statistics import (
    QUANTILES,
    RELATIVE_ERROR,
    ClockStatistics,
    Sketch,
    ValueStatistics,
)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(0, 2**32))
def test_pieces_give_the_same_as_the_whole(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.normal(0, 10.0 ** rng.integers(-3, 4), (sum(sizes), 3))
    data[rng.random(data.shape) < 0.05] = np.nan
    pieces = ValueStatistics((3,))
    at = 0
    for size in sizes:
        part = ValueStatistics((3,))
        part.add(data[at : at + size])
        pieces.merge(part)
        at += size
    good = np.ma.masked_invalid(data)
    assert np.array_equal(pieces.count, good.count(axis=0))
    assert np.array_equal(pieces.invalid, np.isnan(data).sum(axis=0))
    for channel in range(3):
        column = data[np.isfinite(data[:, channel]), channel]
        if len(column):
            assert pieces.low[channel] == column.min()
            assert pieces.high[channel] == column.max()
            assert np.isclose(pieces.mean[channel], column.mean())
            assert np.isclose(np.sqrt(pieces.m2[channel] / len(column)), column.std())


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300))
def test_quantiles_keep_their_promise(values: list[float]) -> None:
    sketch = Sketch(1)
    for piece in np.array_split(np.array(values), 3):
        sketch.add(piece[:, None])
    found = sketch.quantiles(list(QUANTILES))[:, 0]
    ordered = sorted(values)
    for q, value in zip(QUANTILES, found, strict=True):
        true = ordered[max(1, int(np.ceil(q * len(values)))) - 1]
        assert abs(value - true) <= RELATIVE_ERROR * abs(true) * 1.0001 + 1e-12


def test_clock() -> None:
    clock = ClockStatistics()
    stamps = np.arange(0, 1000, 10, dtype=np.int64)
    stamps[60:] += 500
    for piece in np.array_split(stamps, 7):
        clock.add(piece)
    found = clock.to_json()
    assert (found["count"], found["first_ts_ns"], found["last_ts_ns"]) == (100, 0, 1490)
    assert (found["gaps"], found["longest_pause_ns"], found["longest_pause_at_ns"]) == (1, 510, 590)
    assert abs(found["usual_pause_ns"] - 10) <= 1
    assert np.isclose(found["jitter_ns"], np.diff(stamps).std(), atol=0.1)
    assert ClockStatistics().to_json()["count"] == 0


def test_signals_of_one_clock_say_of_it_what_each_would_say_alone(tmp_path: Path) -> None:
    times = {"a": range(0, 900, 3), "b": range(0, 900, 3), "c": range(5, 905, 3), "none": []}
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for name, stamps in times.items():
            for ts_ns in stamps:
                writer.append(name, float(ts_ns), ts_ns)
    about = wd.open_episode(tmp_path / "ep").meta["signals"]
    assert sorted(about) == ["a", "b", "c"]
    for name, found in about.items():
        alone = ClockStatistics()
        alone.add(np.array(times[name]))
        assert {key: found[key] for key in alone.to_json()} == alone.to_json()
        assert found["values"]["min"] == [float(times[name][0])]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 300), st.integers(0, 2**32))
def test_statistics_made_together_are_those_made_alone(widths: list[int], rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(rows, width)).astype(rng.choice(["f4", "f8"])) for width in widths]
    tables[0][rng.random(tables[0].shape) < 0.05] = np.nan
    alone = [ValueStatistics(table.shape[1:]) for table in tables]
    for statistics, table in zip(alone, tables, strict=True):
        statistics.add(table)
    assert ValueStatistics.of_tables(tables) == [statistics.to_json() for statistics in alone]
