"""Episodes found by behaviour: nearest first, each once, within the bounds asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.search import trajectories


def embed(observation: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([observation["state"], [1.0]])


def record(folder: Path, number: int, *, steps: int = 40, env: str = "A", reward: float = 0.5) -> Path:
    episode = wd.WShardEpisode(id=f"ep_{number}", env_id=env, length=steps)
    angle = number * 0.4 + np.linspace(0, 0.1, steps)
    episode.observations["state"] = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32) * 5
    episode.rewards = np.full(steps, reward / steps, np.float32)
    path = folder / f"ep_{number}.wshard"
    wd.save_wshard(episode, path)
    return path


def query(number: float) -> dict[str, np.ndarray]:
    return {"state": np.array([np.cos(number * 0.4), np.sin(number * 0.4)], np.float32) * 5}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embed) as ingestor:
        for number in range(8):
            path = record(tmp_path, number, steps=20 + number, env="AB"[number % 2], reward=number / 8)
            assert ingestor.ingest_episode(path) == 20 + number
    return tmp_path / "t.rvf"


def test_the_nearest_episode_comes_first_and_each_once(index: Path) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        found = retriever.search_similar_episodes(query_obs=query(3), top_k=4)
    assert found[0].episode_id == "ep_3"
    assert len({each.file_path for each in found}) == 4
    assert [each.score for each in found] == sorted(each.score for each in found)
    assert wd.load_wshard(found[0].file_path).id == "ep_3"


def test_bounds(index: Path) -> None:
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        ask = retriever.search_similar_episodes
        assert {each.episode_id for each in ask(query(3), env_id="A")} == {"ep_0", "ep_2", "ep_4", "ep_6"}
        assert {each.episode_id for each in ask(query(3), min_length=26)} == {"ep_6", "ep_7"}
        found = ask(query(3), reward_range=(0.2, 0.45), min_length=0)
        assert {each.episode_id for each in found} == {"ep_2", "ep_3"}
        assert ask(query(3), env_id="none") == []


def test_adding_again_replaces(index: Path, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(index, embedder=embed) as ingestor:
        ingestor.ingest_episode(record(tmp_path, 3, steps=10))
    with wd.TrajectoryRetriever(index, embedder=embed) as retriever:
        found = [
            each for each in retriever.search_similar_episodes(query(3), top_k=8) if each.episode_id == "ep_3"
        ]
    assert len(found) == 1
    with wd.VectorStore.open(index) as store:
        assert len(store) == sum(20 + number for number in range(8)) - 23 + 10


def test_few_steps_of_a_long_episode(tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "t.rvf", embedder=embed) as ingestor:
        assert ingestor.ingest_episode(record(tmp_path, 1, steps=3000)) == trajectories.MAX_STEPS


def test_a_server_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no server"):
        wd.TrajectoryIngestor("http://somewhere:8080", embedder=embed)
