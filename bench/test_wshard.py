"""Episode shards: what each verb costs. Runs once at a small size in the ordinary test run; `make bench` measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from bench import data
from bench.versus import episode_formats

STEPS = 200


@pytest.fixture(scope="module")
def episode() -> wd.WShardEpisode:
    return data.episode(STEPS)


@pytest.fixture(scope="module")
def shard(episode: wd.WShardEpisode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "raw.wshard"
    wd.save_wshard(episode, path)
    return path


@pytest.fixture(scope="module")
def seekable(episode: wd.WShardEpisode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "seekable.wshard"
    wd.save_wshard(episode, path, {"rgb": "zstd-seekable:3"})
    return path


def test_save_raw(benchmark: Any, episode: wd.WShardEpisode, tmp_path: Path) -> None:
    benchmark(wd.save_wshard, episode, tmp_path / "a.wshard", overwrite=True, durable=False)
    assert wd.load_wshard(tmp_path / "a.wshard") == episode


def test_read_everything(benchmark: Any, shard: Path) -> None:
    found = benchmark(lambda: episode_formats.read_all(wd.load_wshard(shard)))
    assert len(found) == 3


@pytest.mark.parametrize("kind", ["load_wshard", "open_episode", "inner_reader"])
def test_open_and_read_one_block(
    benchmark: Any, episode: wd.WShardEpisode, tmp_path: Path, kind: str
) -> None:
    wd.save_wshard(episode, tmp_path / "a.wshard")
    found = benchmark(episode_formats.one_block(kind, tmp_path))
    assert bytes(found) == episode.actions["ctrl"].data.tobytes()


@pytest.mark.parametrize("kind", ["shard", "seekable"])
def test_window(benchmark: Any, kind: str, request: pytest.FixtureRequest, episode: wd.WShardEpisode) -> None:
    channel = wd.load_wshard(request.getfixturevalue(kind)).observations["rgb"]
    window = benchmark(lambda: channel[100:116])
    assert np.array_equal(window, episode.observations["rgb"].data[100:116])


def test_append(benchmark: Any, tmp_path: Path) -> None:
    writer = wd.WShardStreamWriter(tmp_path / "a", "e", [{"id": "x", "dtype": "f32", "shape": [14]}])
    writer.begin_episode()
    row = {"x": np.zeros(14, np.float32)}
    benchmark(writer.write_timestep, row, reward=1.0, done=False)
    steps = writer.steps
    writer.end_episode()
    assert wd.load_wshard(tmp_path / "a").length == steps


def test_comparison_runs_shrunk(tmp_path: Path) -> None:
    report = episode_formats.run(tmp_path, steps=60, rounds=1, small=200, large=60)
    assert len(report["bars"]) == 17
    assert all(row["value"] == row["value"] for row in report["bars"].values())
    assert "| task |" in episode_formats.table(report)
