"""Any episode can be asked for by behaviour: recorded, edited, packed, chunked, published, in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_video import scene
from warpdata.errors import NoStepsError

STEPS = 12


def embed(observation: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([observation["state"], [1.0]])


def state(number: int, k: int) -> np.ndarray[Any, Any]:
    return np.array([np.cos(number), np.sin(number) + k / 1000], np.float32) * 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        statics = {"env_id": "Arm-v0" if number else "Other-v0"}
        with wd.record(tmp_path / "root", static=statics, clock="simulated") as rec:
            for k in range(STEPS):
                rec.step({"state": state(number, k)}, {"u": 0.0}, reward=float(number), ts_ns=k * 1000)
                rec.append("late", float(k), k * 1000 + 500)  # nothing at the first step
                rec.append("cam", scene(k, 16, 32), k * 1000)
    return tmp_path / "root"


def published(root: Path) -> wd.Episode:
    with wd.DatasetBuilder("lab/x", catalog=root.parent / "catalog") as builder:
        builder.add_episodes("demo", root).publish()
    return wd.open_episode("lab/x#1", catalog=root.parent / "catalog")


def edited(root: Path) -> wd.Episode:
    wd.open(root).edits.set_static(1, "note", "seen")
    return wd.open_episode(f"{root}#1")


def chunked(root: Path) -> wd.Episode:
    return wd.open_episode(wd.chunk_episode(wd.open_episode(f"{root}#1").tensors, root.parent / "chunks", 5))


def by_step(root: Path) -> Path:
    wd.save_wshard(wd.open_episode(f"{root}#1").tensors, root.parent / "e.wshard")
    return root.parent / "e.wshard"


FORMS: dict[str, Callable[[Path], Any]] = {
    "recorded": lambda root: wd.open_episode(f"{root}#1"),
    "a directory": lambda root: root / f"{0:012d}" / f"{1:012d}",
    "edited": edited,
    "packed": lambda root: wd.pack_episode(wd.open_episode(f"{root}#1"), root.parent / "p.wshard"),
    "by step": by_step,
    "chunked": chunked,
    "published": published,
    "in memory": lambda root: wd.open_episode(f"{root}#1").tensors,
    "a window": lambda root: wd.open_episode(f"{root}#1").time[0 : STEPS * 1000],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_found(root: Path, tmp_path: Path, form: str) -> None:
    source = FORMS[form](root)
    with wd.TrajectoryIngestor(tmp_path / "v.rvf", embed) as ingestor:
        others = wd.open_recordings(root)
        ingestor.ingest_episodes([others.open(0), others.open(2)])
        assert ingestor.ingest_episode(source) == "000000000001"
        assert ingestor.ingest_episode(source) == "000000000001"  # again replaces it
        assert len(ingestor.ingest_timesteps(source, window_size=4, stride=4)) == 3
    with wd.TrajectoryRetriever(tmp_path / "v.rvf", embed) as retriever:
        found = retriever.search_similar_episodes({"state": state(1, 0)}, top_k=3, env_id="Arm-v0")
        assert [each.episode_id for each in found] == ["000000000001", "000000000002"]
        best = found[0]
        assert best.metadata["total_reward"] == STEPS
        assert best.metadata["length_T"] == STEPS
        window = retriever.search_similar_timesteps({"state": state(1, 11)}, top_k=1)[0]
        assert window.step == 8
    if form not in ("in memory", "a window"):
        again = wd.open_episode(best.file_path, catalog=tmp_path / "catalog")
        assert np.array_equal(again.steps.observations["state"].data, [state(1, k) for k in range(STEPS)])


def test_a_whole_sequence(root: Path, tmp_path: Path) -> None:
    with wd.TrajectoryIngestor(tmp_path / "v.rvf", embed) as ingestor:
        assert ingestor.ingest_episodes(wd.open(root).where("env_id = 'Arm-v0'"), max_steps=1) == [
            "000000000001",
            "000000000002",
        ]


def test_the_embedder_sees_what_has_a_value_at_every_step(root: Path, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def look(observation: Any) -> Any:
        seen.append(observation.keys())
        return embed(observation)

    with wd.TrajectoryIngestor(tmp_path / "v.rvf", look) as ingestor:
        ingestor.ingest_episode(f"{root}/{0:012d}/{1:012d}", max_steps=2)
        ingestor.ingest_episode(wd.open_episode(f"{root}#1"), rate_hz=100_000, max_steps=2)
    assert sorted(seen[0]) == ["cam", "state"]
    assert sorted(seen[-1]) == ["cam", "late", "state"]  # a grid begins where everything has a value


def test_what_has_no_steps_says_what_to_do(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(STEPS):
            rec.append("state", state(0, k), k * 1000)
    episode = wd.open_episode(f"{tmp_path}/root#0")
    with wd.TrajectoryIngestor(tmp_path / "v.rvf", embed) as ingestor:
        with pytest.raises(NoStepsError) as caught:
            ingestor.ingest_episode(episode)
        assert "rate_hz=" in caught.value.hint
        assert ingestor.ingest_episode(episode, clock="state") == episode.id
        with pytest.raises(ValueError, match="give what wd"):
            ingestor.ingest_episode("lab/x#3")
