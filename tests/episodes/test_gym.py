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
    assert env.recorder is not None
    env.recorder.set_static("note", "mine")
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
    for wrong in (None, 5):
        with pytest.raises(TypeError, match="LocalDatasetWriter"):
            wd.RecordEpisodes(Strange(), wrong)
    env = wd.RecordEpisodes(Strange(), wd.LocalDatasetWriter(tmp_path), frames=False)
    env.reset(seed=1)
    for _ in range(6):
        env.step({"move": np.ones(2, np.float32), "grip": np.int64(2)})
    env.finish()
    episode = wd.LocalDataset(tmp_path)[0]
    lengths = {name: len(signal) for name, signal in episode.signals.items() if name.startswith("obs")}
    assert lengths == {
        "observation/agent_pos_x": 7, "observation/_": 7, "observation/seq/0": 4, "observation/seq/1": 2,
        "observation/7": 7,
    }  # fmt: skip


class Counting(gym.Env[Any, Any]):
    """Observation k, reward 1000 + k for the k-th action, which is 2000 + k: an off-by-one cannot hide."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.render_mode, self.length = render_mode, length
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.k = 0

    def _see(self) -> Any:
        return np.array([self.k, self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.k = 0
        return self._see(), {"level": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.k = 1000.0 + self.k, self.k + 1
        info: dict[str, Any] = {
            "level": 3,
            "note": f"n{self.k}",
            "deep": {"force": np.full(3, self.k, np.float64)},
        }
        if self.k == self.length:
            info["is_success"] = self.length % 2 == 0
        return self._see(), reward, self.k == self.length, False, info

    def render(self) -> Any:
        return np.full((16, 32, 3), 10 * self.k, np.uint8)


def check_rows(episode: wd.Episode, length: int) -> None:
    """Row k is what was seen before action k, the action, and what it led to."""
    steps = episode.steps
    assert steps.length == length
    assert steps.observations["observation"].data[:, 0].tolist() == list(range(length))
    assert steps.actions["action"].data[:, 0].tolist() == [2000 + k for k in range(length)]
    assert steps.rewards is not None
    assert steps.rewards.data.tolist() == [1000 + k for k in range(length)]
    assert steps.terminated is not None
    assert steps.terminated.data.tolist() == [k == length - 1 for k in range(length)]
    for name in ("info/note", "info/deep/force", "info/level"):
        if name in episode.signals:
            rows, was = steps[name], {"note": [f"n{k + 1}" for k in range(length)], "level": [3] * length}
            assert rows.mask.all()
            seen = rows.data.tolist() if name != "info/deep/force" else rows.data[:, 0].tolist()
            assert seen == was.get(name.removeprefix("info/"), [k + 1 for k in range(length)])
    assert steps.final_observations is not None
    assert steps.final_observations["observation"].tolist()[0] == length


def run(env: Any, count: int) -> None:
    for k in range(count):
        env.step(np.array([2000 + k], np.float32))


def test_info_marks_and_discards(tmp_path: Path) -> None:
    env = wd.RecordEpisodes(Counting(render_mode="rgb_array"), tmp_path / "root")
    with pytest.raises(wd.errors.RecordingError, match="no episode to mark"):
        env.mark(success=True)
    for number in range(4):
        env.reset(seed=number)
        run(env, 4)
        if number == 1:
            env.discard()
            with pytest.raises(wd.errors.RecordingError, match="no episode to discard"):
                env.discard()
        if number == 2:
            env.mark(success=False, operator="kim", score=0.5)
    env.close()
    episodes = wd.open(tmp_path / "root")
    assert [each.static["seed"] for each in episodes] == [0, 2, 3]
    assert [each.static["success"] for each in episodes] == [True, False, True]
    assert (episodes[1].static["operator"], episodes[1].static["score"]) == ("kim", 0.5)
    assert episodes.where("success").ids == [episodes.ids[0], episodes.ids[2]]
    for episode in episodes:
        check_rows(episode, 4)
        assert episode["info/level"].values().tolist() == [3] * 5
        assert episode["info/note"].values().tolist() == ["n1", "n2", "n3", "n4"]
        assert episode["info/deep/force"].values()[:, 0].tolist() == [1, 2, 3, 4]
        assert len(episode["frame"]) == 5


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments(tmp_path: Path, mode: str) -> None:
    """Environments that end at different times: one episode of each at a time, whoever begins them again."""
    lengths = [3, 5]
    made = gym.vector.SyncVectorEnv(
        [lambda n=n: Counting(n, "rgb_array") for n in lengths],
        autoreset_mode=gym.vector.AutoresetMode(mode),
    )
    env = wd.RecordEpisodes(made, tmp_path / "root", static={"policy": "count"})
    observations, _ = env.reset(seed=7)
    marked = False
    for _ in range(20):
        actions = (2000 + observations[:, :1]).astype(np.float32)
        observations, _, terminated, truncated, _ = env.step(actions)
        if terminated[0] and not marked:
            env.mark(0, marked=True)
            marked = True
        elif terminated[0]:
            env.discard(0)
        if mode == "Disabled" and (terminated | truncated).any():
            observations, _ = env.reset(options={"reset_mask": terminated | truncated})
    env.close()
    episodes = wd.open(tmp_path / "root")
    by_env = {number: episodes.where(f"env_index = {number}") for number in range(2)}
    whole = by_env[0].where("marked")
    assert len(whole) == 1, "the episode just ended was marked, and those after it discarded"
    check_rows(whole[0], 3)
    assert whole[0].static["success"] is False
    assert whole[0].static["seed"] == 7
    assert sum(each.steps.length == 3 for each in by_env[0]) == 1
    ended = [each for each in by_env[1] if each.steps.length == 5]
    assert len(ended) == (4 if mode != "NextStep" else 3)
    for each in ended:
        check_rows(each, 5)
        assert each["info/deep/force"].values()[:, 0].tolist() == [1, 2, 3, 4, 5]
        shown = [int(frame[0, 0, 0]) for frame in each["frame"].values()]
        assert len(shown) == (5 if mode == "SameStep" else 6)
        assert np.allclose(shown, [10 * k for k in range(len(shown))], atol=3)


def as_directory(root: Path, _: Path) -> wd.Episode:
    return wd.open_episode(root / "000000000000" / "000000000000")


def as_edited(root: Path, _: Path) -> wd.Episode:
    dataset = wd.LocalDataset(root)
    dataset.edits.set_static(0, "note", "seen")
    dataset.refresh()
    return dataset[0]


def as_trimmed_to_all(root: Path, _: Path) -> wd.Episode:
    dataset = wd.LocalDataset(root)
    dataset.edits.trim(0, 0, 10**12)
    dataset.refresh()
    return dataset[0]


def as_packed(root: Path, folder: Path) -> wd.Episode:
    return wd.open_episode(wd.pack_episode(as_directory(root, folder), folder / "e.wshard"))


def as_unpacked(root: Path, folder: Path) -> wd.Episode:
    wd.pack_episode(as_directory(root, folder), folder / "e.wshard")
    return wd.open_episode(wd.unpack_episode(folder / "e.wshard", folder / "again"))


def as_rows(root: Path, folder: Path) -> wd.Episode:
    wd.save_wshard(as_directory(root, folder).tensors, folder / "rows.wshard")
    return wd.open_episode(folder / "rows.wshard")


def as_chunks(root: Path, folder: Path) -> wd.Episode:
    return wd.open_episode(wd.chunk_episode(as_directory(root, folder), folder / "chunks", steps=3))


def as_chunks_of_rows(root: Path, folder: Path) -> wd.Episode:
    return wd.open_episode(wd.chunk_episode(as_directory(root, folder).tensors, folder / "chunks", steps=3))


def as_published(root: Path, folder: Path) -> wd.Episode:
    with wd.DatasetBuilder("lab/counting", catalog=folder / "catalog") as builder:
        builder.add_episodes("demo", root, chunk_bytes=2000).publish()
    return wd.open("lab/counting#000000000000", catalog=folder / "catalog")


FORMS = [
    as_directory, as_edited, as_trimmed_to_all, as_packed, as_unpacked, as_rows, as_chunks, as_chunks_of_rows,
    as_published,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_row_k_in_every_form(tmp_path: Path, form: Any) -> None:
    """Rewards and flags that came with the next observation belong to the action that led to them, wherever stored."""
    env = wd.RecordEpisodes(Counting(8), tmp_path / "root")
    env.reset(seed=1)
    run(env, 8)
    env.close()
    episode = form(tmp_path / "root", tmp_path)
    steps = episode.steps
    assert steps.observations["observation"].data[:, 0].tolist() == list(range(8))
    assert steps.actions["action"].data[:, 0].tolist() == [2000 + k for k in range(8)]
    assert steps.rewards is not None
    assert steps.rewards.data.tolist() == [1000 + k for k in range(8)]
    assert steps.terminated is not None
    assert steps.terminated.data.astype(bool).tolist() == [False] * 7 + [True]
    assert steps.total_reward == sum(1000 + k for k in range(8))
    has_final = form not in (
        as_rows,
        as_chunks_of_rows,
    )  # rows have no place for what follows the last action
    assert (steps.final_observations is not None and "observation" in steps.final_observations) is has_final
    cut = episode.time[episode.first_ts_ns : episode.first_ts_ns + 3 * 20_000_000]
    assert cut.steps.actions["action"].data[:, 0].tolist() == [2000, 2001, 2002]
    assert cut.steps.observations["observation"].data[:, 0].tolist() == [0, 1, 2]
