"""Recordings of a Gymnasium environment as a LeRobot set: names, rewards, marks, and what the receipt states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import warpdata as wd
from warpdata.episodes.collection.edits import Edits
from warpdata.errors import BlobNotFoundError

STEPS = 8
STEP_NS = 20_000_000


class Counting(gym.Env[Any, Any]):
    """A reward that counts the steps, a state and a camera; frames by `render`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium's own attribute
    render_mode = "rgb_array"
    observation_space = gym.spaces.Dict(
        {"state": gym.spaces.Box(-1, 1, (3,)), "side": gym.spaces.Box(0, 255, (32, 48, 3), np.uint8)}
    )
    action_space = gym.spaces.Box(-1, 1, (2,))
    count = 0

    def _seen(self) -> dict[str, Any]:
        return {"state": np.full(3, self.count, np.float32), "side": self.render()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, _: Any) -> Any:
        self.count += 1
        return self._seen(), float(self.count), False, self.count >= STEPS, {}

    def render(self) -> Any:
        return np.full((32, 48, 3), 20 * self.count, np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    env = wd.RecordEpisodes(Counting(), tmp_path / "root", static={"operator": "ada"})
    for seed in range(2):
        env.reset(seed=seed)
        for _ in range(STEPS):
            env.step(np.zeros(2, np.float32))
    env.close()
    return tmp_path / "root"


def test_names_are_those_that_policies_look_for(root: Path, tmp_path: Path) -> None:
    receipt = wd.export_episodes(root, tmp_path / "set", "lerobot", task="count")
    features = json.loads((tmp_path / "set" / "meta" / "info.json").read_text())["features"]
    assert {"observation.state", "action", "next.reward", "next.done", "next.truncated"} <= set(features)
    assert {"observation.images.side", "observation.images.frame"} <= set(features)
    signals = receipt.to_json()["signals"]
    assert signals["reward"]["how"] == signals["action"]["how"] == "kept"
    for name in ("observation/state", "observation/side"):
        assert signals[name]["how"] in ("cut", "reencoded"), "all but the last record are there"
        assert any("after the last step" in why for why in signals[name]["why"])
    assert not receipt.is_exact
    episode = wd.open(tmp_path / "set")[1]
    assert episode.static["seed"] == 1
    assert episode.static["operator"] == "ada"
    assert episode.steps.rewards[:].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_names_that_the_user_chose_stay(tmp_path: Path) -> None:
    with wd.Recorder(tmp_path / "root", step_clock="action") as out:
        for step in range(4):
            now = step * STEP_NS
            out.append("action", np.zeros(2, np.float32), now)
            out.append("observation.environment_state", np.zeros(2, np.float32), now)
            out.append("observation.image", np.zeros((32, 48, 3), np.uint8), now)
    wd.export_episodes(tmp_path / "root", tmp_path / "set", "lerobot", task="x")
    features = json.loads((tmp_path / "set" / "meta" / "info.json").read_text())["features"]
    assert {"observation.environment_state", "observation.image", "action"} <= set(features)


@pytest.mark.parametrize("target", ["lerobot", "zarr", "rlds", "minari", "dreamer", "hdf5"])
def test_a_trimmed_episode_has_no_reward_without_a_value(root: Path, tmp_path: Path, target: str) -> None:
    Edits(root).trim(0, None, 5 * STEP_NS)
    wd.export_episodes(root, tmp_path / f"set.{target}", target)
    rewards = wd.open(tmp_path / f"set.{target}")[0].steps.rewards
    assert rewards is not None
    valid = rewards.data[rewards.mask]
    assert np.isfinite(valid).all()
    assert valid[:4].tolist() == [1, 2, 3, 4]
    if target == "lerobot":
        stats = json.loads((tmp_path / "set.lerobot" / "meta" / "stats.json").read_text())
        assert np.isfinite(stats["next.reward"]["mean"]).all()


def test_a_missing_video_is_named(root: Path, tmp_path: Path) -> None:
    wd.export_episodes(root, tmp_path / "set", "lerobot", task="count")
    for video in (tmp_path / "set").rglob("*.mp4"):
        video.unlink()
    camera = wd.Field("observation.images.frame")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(BlobNotFoundError, match="file-000"),
    ):
        _ = wd.Windows(wd.open_episodes(tmp_path / "set"), {"camera": camera}, anchor="action").schema


def test_every_episode_keeps_its_own_robot(tmp_path: Path) -> None:
    for robot in ("ur5", "franka"):
        with wd.record(tmp_path / "root", clock="simulated", static={"robot_type": robot}) as rec:
            for step in range(5):
                rec.append("action", np.full(2, step, np.float32), step * 10**8)
            rec.mark(success=robot == "ur5")
    receipt = wd.export_episodes(tmp_path / "root", tmp_path / "set", "lerobot", task="reach")
    assert receipt.is_exact
    kept = [episode.static for episode in wd.open_episodes(tmp_path / "set")]
    assert [(each["robot_type"], each["success"]) for each in kept] == [("ur5", True), ("franka", False)]
    wd.export_episodes(tmp_path / "root", tmp_path / "given", "lerobot", task="reach", robot_type="so101")
    assert [each.static["robot_type"] for each in wd.open_episodes(tmp_path / "given")] == ["so101"] * 2
