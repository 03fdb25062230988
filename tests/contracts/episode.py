"""What every form of an episode must do alike: a counting environment, in time and by step, wherever it is stored.

Row k must hold the observation k, the action 2000 + k and the reward 1000 + k: an off-by-one cannot hide.
"""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.source import StepClock

STEP_COUNT = 12
STEP_NS = 50_000_000
IMU_NS = 7_000_000
IMU_COUNT = 80
STATICS = {"env_id": "Counting-v0", "task": "count", "success": True, "gain": 0.5}
ROLES = {
    "number": "observation", "imu": "observation", "push": "action", "reward": "reward",
    "terminated": "terminated", "truncated": "truncated",
}  # fmt: skip


def observation(k: int) -> np.ndarray:
    return np.array([k, -k], np.float32)


def action(k: int) -> np.ndarray:
    return np.array([2000 + k], np.float32)


def imu(i: int) -> np.ndarray:
    return np.array([i, i * i, 0.25], np.float64)


def record_into(target: Path) -> None:
    """The episode as a robot would record it: steps, and a sensor with a clock of its own."""
    with wd.record(target, static=STATICS, clock="simulated") as rec:
        for k in range(STEP_COUNT):
            rec.step(
                {"number": observation(k)}, {"push": action(k)}, reward=1000.0 + k,
                terminated=k == STEP_COUNT - 1, truncated=False, ts_ns=k * STEP_NS,
            )  # fmt: skip
        for i in range(IMU_COUNT):
            rec.append("imu", imu(i), 1_000 + i * IMU_NS)


def in_memory() -> Episode:
    steps = np.arange(STEP_COUNT, dtype=np.int64) * STEP_NS
    rows = range(STEP_COUNT)
    signals: dict[str, Any] = {
        "number": ArraySignal(steps, np.stack([observation(k) for k in rows])),
        "push": ArraySignal(steps, np.stack([action(k) for k in rows]), role="action"),
        "reward": ArraySignal(steps, np.array([1000.0 + k for k in rows])),
        "terminated": ArraySignal(steps, np.array([k == STEP_COUNT - 1 for k in rows])),
        "truncated": ArraySignal(steps, np.zeros(STEP_COUNT, np.bool_)),
        "imu": ArraySignal(
            1_000 + np.arange(IMU_COUNT, dtype=np.int64) * IMU_NS,
            np.stack([imu(i) for i in range(IMU_COUNT)]),
        ),
    }
    return Episode.of(signals, STATICS, id="memory", steps=StepClock("push"))


def look(episode: Episode) -> list[Any]:
    """What a worker sees of an episode it was given."""
    steps = episode.steps
    rewards = steps.rewards
    assert rewards is not None
    return [
        steps.length, rewards.data.tolist(), steps.observations["number"][3].tolist(),
        int(episode["imu"].time[1_000 + 5 * IMU_NS][0][0]),
    ]  # fmt: skip


SEEN = [STEP_COUNT, [1000.0 + k for k in range(STEP_COUNT)], [3.0, -3.0], 5]


class EpisodeContract:
    """Inherit and give `episode`."""

    keeps_bool: ClassVar[bool] = True

    @pytest.fixture
    def episode(self) -> Episode:
        raise NotImplementedError

    def test_it_is_the_one_type(self, episode: Episode) -> None:
        assert type(episode) is Episode

    def test_roles(self, episode: Episode) -> None:
        assert {name: signal.meta.role for name, signal in episode.signals.items()} == ROLES

    def test_statics(self, episode: Episode) -> None:
        assert dict(episode.static) == STATICS
        assert episode["task"] == "count"

    def test_it_is_a_mapping(self, episode: Episode) -> None:
        assert set(episode.keys()) == {*ROLES, *STATICS} == set(episode) == set(dict(episode))
        assert len(episode) == len(ROLES) + len(STATICS)
        assert "push" in episode
        assert "nope" not in episode
        assert dict(episode.items())["gain"] == 0.5
        with pytest.raises(KeyError, match="Did you mean 'number'"):
            episode["numbr"]

    def test_values_and_times(self, episode: Episode) -> None:
        steps = [k * STEP_NS for k in range(STEP_COUNT)]
        assert episode["number"].times_ns.tolist() == steps
        assert np.array_equal(episode["number"].values(), [observation(k) for k in range(STEP_COUNT)])
        assert episode["number"].meta.dtype == np.float32
        assert episode["imu"].times_ns.tolist() == [1_000 + i * IMU_NS for i in range(IMU_COUNT)]
        assert np.array_equal(np.asarray(episode["imu"]), [imu(i) for i in range(IMU_COUNT)])
        assert episode["imu"].meta.dtype == np.float64
        assert episode["reward"].values().tolist() == [1000.0 + k for k in range(STEP_COUNT)]
        assert episode["terminated"].values().astype(bool).tolist() == [False] * (STEP_COUNT - 1) + [True]
        assert episode["terminated"].meta.dtype == np.bool_

    def test_the_span_is_everything(self, episode: Episode) -> None:
        last = max((STEP_COUNT - 1) * STEP_NS, 1_000 + (IMU_COUNT - 1) * IMU_NS)
        assert (episode.first_ts_ns, episode.last_ts_ns, episode.start_ts) == (0, last, 1_000)
        assert episode.duration_ns == last
        assert episode.duration_s == last / 1e9

    def test_rows(self, episode: Episode) -> None:
        steps = episode.steps
        assert steps.length == len(steps) == STEP_COUNT
        assert steps.observations["number"].data[:, 0].tolist() == list(range(STEP_COUNT))
        assert steps.actions["push"].data[:, 0].tolist() == [2000 + k for k in range(STEP_COUNT)]
        assert steps.rewards is not None
        assert steps.rewards.data.tolist() == [1000 + k for k in range(STEP_COUNT)]
        assert steps.terminated is not None
        assert steps.terminated.data.tolist() == [False] * (STEP_COUNT - 1) + [True]
        assert steps.truncated is not None
        assert not steps.truncated.data.any()
        assert steps.total_reward == sum(1000 + k for k in range(STEP_COUNT))
        assert steps.times_ns.tolist() == [k * STEP_NS for k in range(STEP_COUNT)]
        assert steps.observations["number"].mask.all()
        assert not steps.observations["number"].age_ns.any()
        assert steps.observations["number"].shape == (STEP_COUNT, 2)
        assert steps.observations["number"].row_shape == (2,)
        row = steps.row(-2)
        assert (row["observations"]["number"][0], row["actions"]["push"][0]) == (
            STEP_COUNT - 2, 2000 + STEP_COUNT - 2
        )  # fmt: skip
        assert (row["reward"], row["terminated"]) == (1000 + STEP_COUNT - 2, False)

    def test_another_clock_is_held_with_masks_and_ages(self, episode: Episode) -> None:
        found = episode.steps.observations["imu"]
        assert found.mask.tolist() == [False] + [True] * (STEP_COUNT - 1)
        for k in range(1, STEP_COUNT):
            i = (k * STEP_NS - 1_000) // IMU_NS
            i = min(i, IMU_COUNT - 1)
            assert found[k].tolist() == imu(i).tolist()
            assert found.age_ns[k] == k * STEP_NS - (1_000 + i * IMU_NS)

    def test_chosen_clocks(self, episode: Episode) -> None:
        on_imu = episode.steps_at(clock="imu")
        assert on_imu.length == IMU_COUNT
        assert on_imu.actions["push"][20][0] == 2000 + (1_000 + 20 * IMU_NS) // STEP_NS
        grid = episode.steps_at(rate_hz=100, max_age_ns=10_000_000)
        assert np.diff(grid.times_ns).tolist() == [10_000_000] * (grid.length - 1)
        assert grid.times_ns[0] == 1_000
        assert not grid.observations["number"].mask.all()
        linear = episode.steps_at(rate_hz=100, align={"number": "linear"})
        assert linear.observations["number"][1][0] == pytest.approx((1_000 + 10_000_000) / STEP_NS, rel=1e-6)
        with pytest.raises(ValueError, match="either"):
            episode.steps_at()
        with pytest.raises(KeyError, match="Did you mean"):
            episode.steps_at(clock="imuu")

    def test_samples(self, episode: Episode) -> None:
        got = episode.sample([0, 3 * STEP_NS + 1], fields=["push", "imu"])
        assert got["push"][:, 0].tolist() == [2000, 2003]
        assert got.mask["imu"].tolist() == [False, True]
        assert got.age_ns["push"].tolist() == [0, 1]

    def test_windows_are_episodes(self, episode: Episode) -> None:
        part = episode.time[2 * STEP_NS : 5 * STEP_NS]
        assert type(part) is Episode
        assert part.steps.length == 3
        assert part.steps.actions["push"].data[:, 0].tolist() == [2002, 2003, 2004]
        assert part["task"] == "count"
        again = pickle.loads(pickle.dumps(part))
        assert again.steps.observations["number"].data[:, 0].tolist() == [2, 3, 4]

    def test_tensors(self, episode: Episode) -> None:
        tensors = episode.tensors
        assert isinstance(tensors, wd.WShardEpisode)
        assert tensors.length == STEP_COUNT
        assert tensors.actions["push"].data[:, 0].tolist() == [2000 + k for k in range(STEP_COUNT)]
        assert tensors.rewards.data.tolist() == [1000 + k for k in range(STEP_COUNT)]
        assert tensors.env_id == "Counting-v0"

    def test_it_pickles_to_an_address(self, episode: Episode) -> None:
        episode["number"].values()
        assert look(pickle.loads(pickle.dumps(episode))) == SEEN

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_workers(self, episode: Episode, method: str) -> None:
        assert look(episode) == SEEN
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            assert pool.submit(look, episode).result(timeout=LIMIT_S) == SEEN
