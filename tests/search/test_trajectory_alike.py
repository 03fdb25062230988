"""A file and a server answer alike: random episodes, windows, replacements, queries and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.search.deepdata import run_deepdata
from tests.sweeps import enough_examples
from warpdata.search.moments.trajectories import EpisodeRef

WIDTH = 3
EPISODES = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.integers(0, 5),
            "steps": st.integers(1, 30),
            "env": st.sampled_from(["", "A", "B", "Ä 'x'"]),
            "reward": st.sampled_from([0.0, -2.5, 1.0, 7.25]),
            "seed": st.integers(0, 1000),
        }
    ),
    min_size=1,
    max_size=7,
)
QUESTIONS = st.lists(
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 1000),
            "kind": st.sampled_from(["dict", "array", "steps"]),
            "top_k": st.integers(1, 40),
            "env_id": st.sampled_from([None, "", "A", "B", "Ä 'x'", "C"]),
            "min_length": st.sampled_from([None, 0, 5, 20, 31]),
            "reward_range": st.sampled_from([None, (0, 1), (-3, 7.25), (1, 1), (float("-inf"), 0.5), (8, 9)]),
        }
    ),
    min_size=1,
    max_size=6,
)


def embed(observation: Any) -> np.ndarray:
    return np.append(np.asarray(observation, np.float32), np.float32(0.5))


def saved(folder: Path, given: dict[str, Any]) -> Path:
    episode = wd.WShardEpisode(id=f"ep_{given['number']}", env_id=given["env"], length=given["steps"])
    random = np.random.default_rng(given["seed"])
    episode.observations["state"] = random.normal(size=(given["steps"], WIDTH)).astype(np.float32)
    rewards = np.zeros(given["steps"], np.float32)
    rewards[-1] = given["reward"]
    episode.rewards = rewards
    path = folder / f"ep_{given['number']}.wshard"
    wd.save_wshard(episode, path, overwrite=True)
    return path


def asked(given: dict[str, Any]) -> Any:
    random = np.random.default_rng(given["seed"])
    if given["kind"] == "steps":
        return random.normal(size=(4, WIDTH))
    array = random.normal(size=WIDTH).astype(np.float32)
    return {"state": array} if given["kind"] == "dict" else array


def facts(found: list[EpisodeRef]) -> list[dict[str, Any]]:
    """What both must say; a file knows the time of a moment too, and a name of its own for rows."""
    known = ("episode_id", "env_id", "length_T", "file_path", "total_reward", "window_start", "window_end")
    return [{name: each.metadata[name] for name in known if name in each.metadata} for each in found]


@settings(
    max_examples=enough_examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(episodes=EPISODES, questions=QUESTIONS, window=st.integers(1, 12), stride=st.integers(1, 12))
def test_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[dict[str, Any]],
    questions: list[dict[str, Any]],
    window: int,
    stride: int,
) -> None:
    folder = tmp_path_factory.mktemp("alike")
    with run_deepdata() as server:
        targets = [str(folder / "t.rvf"), server.url]
        ids: list[list[Any]] = [[], []]
        for number, target in enumerate(targets):
            with wd.TrajectoryIngestor(target, embedder=embed) as ingestor:
                for each in episodes:
                    ids[number].append(ingestor.ingest_episode(saved(folder, each), max_steps=1))
                for each in {
                    each["number"]: each for each in episodes
                }.values():  # a server keeps old windows
                    path = saved(folder, each)
                    ids[number].append(ingestor.ingest_timesteps(path, window_size=window, stride=stride))
        assert ids[0] == ids[1]
        for question in questions:
            answers = []
            for target in targets:
                with wd.TrajectoryRetriever(target, embedder=embed) as retriever:
                    bounds = {name: question[name] for name in ("env_id", "min_length", "reward_range")}
                    one = retriever.search_similar_episodes(asked(question), question["top_k"], **bounds)
                    many = retriever.search_similar_timesteps(
                        asked(question), question["top_k"], question["env_id"]
                    )
                    answers.append((one, many))
            for mine, theirs in zip(*answers, strict=True):
                assert len(mine) == len(theirs)
                np.testing.assert_allclose(
                    [each.score for each in mine], [each.score for each in theirs], atol=1e-5
                )
                gaps = np.diff([each.score for each in theirs])
                if not len(gaps) or gaps.max() < -1e-4:  # equal ones may come in any order
                    assert facts(mine) == facts(theirs)
