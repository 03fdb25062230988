"""Recording Gymnasium environments: nested spaces, rendered frames, ends of episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import warpdata as wd


class Nested(gym.Env[Any, Any]):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self) -> None:
        self.render_mode = "rgb_array"
        self.observation_space = gym.spaces.Dict(
            {
                "arm": gym.spaces.Dict({"pos": gym.spaces.Box(-1, 1, (3,)), "on": gym.spaces.Discrete(2)}),
                "pair": gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), gym.spaces.Text(9))),
                "image": gym.spaces.Box(0, 255, (16, 20, 3), np.uint8),
            }
        )
        self.action_space = gym.spaces.Dict(
            {"move": gym.spaces.Box(-1, 1, (2,)), "grip": gym.spaces.Discrete(3)}
        )
        self.step_number = 0

    def _see(self) -> dict[str, Any]:
        n = self.step_number
        return {
            "arm": {"pos": np.full(3, n, np.float32), "on": np.int64(n % 2)},
            "pair": (np.full(2, -n, np.float32), f"s{n}"),
            "image": np.full((16, 20, 3), 20 * n, np.uint8),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        return self._see(), 0.5 * self.step_number, self.step_number == 6, False, {}

    def render(self) -> Any:
        return np.full((24, 32, 3), 30 * self.step_number, np.uint8)


def test_nested_spaces_and_frames(tmp_path: Path) -> None:
    env = wd.RecordEpisodes(Nested(), wd.LocalDatasetWriter(tmp_path), static={"policy": "random"})
    for seed in (3, 4):
        env.reset(seed=seed)
        done = False
        while not done:
            action = {"move": np.ones(2, np.float32), "grip": np.int64(2)}
            _, _, done, _, _ = env.step(action)
    env.close()
    dataset = wd.LocalDataset(tmp_path)
    assert len(dataset) == 2
    episode = dataset[0]
    assert set(episode.signals) == {
        "observation/arm/pos", "observation/arm/on", "observation/pair/0", "observation/pair/1",
        "observation/image", "action/move", "action/grip", "reward", "terminated", "truncated", "frame",
    }  # fmt: skip
    assert episode["observation/arm/pos"].values()[:, 0].tolist() == list(range(7))
    assert episode["observation/pair/1"].values().tolist() == [f"s{n}" for n in range(7)]
    assert len(episode["frame"]) == 7
    assert len(episode["action/move"]) == 6
    assert episode["reward"].values().tolist() == [0.5 * n for n in range(1, 7)]
    assert episode["terminated"].values().tolist() == [False] * 5 + [True]
    step = 50_000_000
    assert episode["observation/arm/on"].timestamps.tolist() == [n * step for n in range(7)]
    assert episode["action/move"].timestamps.tolist() == [n * step for n in range(6)]
    assert dict(episode.static) == {"env_id": "Nested", "seed": 3, "policy": "random"}


def test_a_standard_environment_and_an_early_reset(tmp_path: Path) -> None:
    env = wd.RecordEpisodes(gym.make("CartPole-v1"), wd.LocalDatasetWriter(tmp_path), clock="wall")
    env.reset(seed=0)
    env.step(0)
    env.reset(seed=1)
    for _ in range(5):
        env.step(1)
    assert env.episode_writer is not None
    env.episode_writer.set_static("note", "mine")
    env.close()
    dataset = wd.LocalDataset(tmp_path)
    assert [len(episode["action"]) for episode in dataset] == [1, 5]
    assert dataset[1].static["env_id"] == "CartPole-v1"
    assert dataset[1].static["note"] == "mine"
    assert "frame" not in dataset[0]
    with pytest.raises(ValueError, match="clock"):
        wd.RecordEpisodes(gym.make("CartPole-v1"), wd.LocalDatasetWriter(tmp_path), clock="sun")


class Strange(Nested):
    """Keys that are no names, parts that come and go."""

    def _see(self) -> dict[str, Any]:
        n = self.step_number
        seen = tuple(np.full(1, k, np.float32) for k in range(n % 3))
        return {"agent pos/x": np.full(2, n, np.float32), "..": n, "edges": None, "seq": seen, 7: "seven"}


def test_keys_that_are_no_names_and_parts_that_are_missing(tmp_path: Path) -> None:
    for wrong in (str(tmp_path), None, 5):
        with pytest.raises(TypeError, match="LocalDatasetWriter"):
            wd.RecordEpisodes(Strange(), wrong)
    env = wd.RecordEpisodes(Strange(), wd.LocalDatasetWriter(tmp_path), frames=False)
    env.reset(seed=1)
    for _ in range(6):
        env.step({"move": np.ones(2, np.float32), "grip": np.int64(2)})
    episode = wd.LocalDataset(tmp_path)[0]
    lengths = {name: len(signal) for name, signal in episode.signals.items() if name.startswith("obs")}
    assert lengths == {
        "observation/agent_pos_x": 7, "observation/_": 7, "observation/seq/0": 4, "observation/seq/1": 2,
        "observation/7": 7,
    }  # fmt: skip
