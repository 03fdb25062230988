"""Times of records that come without one, when the clocks of the machine change during the recording."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd

HOUR_NS = 3600 * 10**9


@dataclass
class Machine:
    """The two clocks of a machine, set by the test."""

    wall: int = 500_000 * HOUR_NS
    uptime: int = 5 * HOUR_NS

    def time_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.uptime

    def advance(self, wall_ns: int, monotonic_ns: int) -> None:
        self.wall += wall_ns
        self.uptime += monotonic_ns


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    clocks = Machine()
    monkeypatch.setattr("warpdata.episodes.record.values.time", clocks)
    return clocks


def test_a_wall_clock_that_is_set_back_is_reported_once_and_refuses_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    began = machine.wall
    with wd.record(tmp_path / "a.wshard", clock="wall") as rec:
        rec.append("x", 0.0)
        machine.advance(1_000, 1_000)
        rec.append("x", 1.0)
        machine.advance(-HOUR_NS, 2_000)
        with pytest.warns(RuntimeWarning, match=r"set back by 3600\.000 s"):
            rec.append("x", 2.0)
        machine.advance(3_000, 3_000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rec.append("x", 3.0)
            rec.step({"y": 1.0})
    episode = wd.open(tmp_path / "a.wshard")
    assert (np.asarray(episode["x"].timestamps) - began).tolist() == [0, 1_000, 3_000, 6_000]
    assert episode.meta["clock"]["wall_offset_end_ns"] == -HOUR_NS - 2_000


@pytest.mark.parametrize("adjustment_ns", [-400_000, 400_000, 2 * HOUR_NS])
def test_a_wall_clock_is_followed_where_it_does_not_fall(
    tmp_path: Path, machine: Machine, adjustment_ns: int
) -> None:
    began = machine.wall
    with wd.record(tmp_path / "a.wshard", clock="wall") as rec:
        rec.append("x", 0.0)
        machine.advance(1_000_000 + adjustment_ns, 1_000_000)
        rec.append("x", 1.0)
    episode = wd.open(tmp_path / "a.wshard")
    assert (np.asarray(episode["x"].timestamps) - began).tolist() == [0, 1_000_000 + adjustment_ns]
    assert episode.meta["clock"] == {"name": "wall", "wall_offset_ns": 0, "wall_offset_end_ns": 0}


def test_both_offsets_are_kept_where_the_machine_slept(tmp_path: Path, machine: Machine) -> None:
    """The monotonic clock stands still while a laptop is closed: the time of day differs by that much afterwards."""
    first_wall = machine.wall
    with wd.record(tmp_path / "root") as rec:
        rec.append("x", 0.0)
        machine.advance(HOUR_NS + 5, 5)
        rec.append("x", 1.0)
        last_wall = machine.wall
    episode = wd.open(tmp_path / "root")[0]
    clock, (first, last) = episode.meta["clock"], np.asarray(episode["x"].timestamps)
    assert first + clock["wall_offset_ns"] == first_wall
    assert last + clock["wall_offset_end_ns"] == last_wall


def test_times_of_a_coarse_clock_still_increase(tmp_path: Path, machine: Machine) -> None:
    with wd.record(tmp_path / "a.wshard") as rec:
        for number in range(5):
            rec.append("x", float(number))
    assert np.diff(wd.open(tmp_path / "a.wshard")["x"].timestamps).tolist() == [1, 1, 1, 1]
