"""A foreign set is episodes like any other: row k is row k, it pickles, and workers read it."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S

STEPS = 12
FILES = {
    "lerobot": "lerobot", "rlds": "rlds", "hdf5": "demo.hdf5", "zarr": "buffer.zarr", "minari": "count-v0",
    "dreamer": "replay", "webdataset": "web", "mcap": "log",
}  # fmt: skip


def look(episode: wd.Episode) -> list[Any]:
    """Observations, actions and rewards of the steps in which something was done."""
    steps = episode.steps
    seen, done = (next(iter(each.values())) for each in (steps.observations, steps.actions))
    assert steps.rewards is not None
    return [
        np.asarray(seen.data)[:STEPS, 0].tolist(), np.asarray(done.data)[:STEPS, 0].tolist(),
        steps.rewards.data[:STEPS].tolist(),
    ]  # fmt: skip


SEEN = [
    list(range(STEPS)),
    [2000 + k for k in range(STEPS)],
    [1000 + k for k in range(STEPS)],
]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for _ in range(2):
        with wd.record(folder / "root", static={"task": "count", "success": True}, clock="simulated") as rec:
            for k in range(STEPS):
                rec.step(
                    {"observation/state": np.array([k, -k], np.float32)}, {"action": np.array([2000 + k], np.float32)},
                    reward=1000.0 + k, terminated=k == STEPS - 1, truncated=False, ts_ns=k * 50_000_000,
                )  # fmt: skip
    for format_, name in FILES.items():
        wd.export_episodes(wd.open_episodes(folder / "root"), folder / name, format=format_)
    return folder


@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_row_k(sets: Path, name: str) -> None:
    episodes = wd.open_episodes(sets / name)
    assert len(episodes) == 2
    for episode in episodes:
        assert type(episode) is wd.Episode
        assert look(episode) == SEEN
        assert look(pickle.loads(pickle.dumps(episode))) == SEEN
        assert [signal.meta.role for signal in episode.signals.values()].count("action") == 1
    both = wd.open_episodes(sets / "root") + episodes
    assert [look(each) for each in both] == [SEEN] * 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(sets: Path, method: str) -> None:
    episodes = [wd.open_episodes(sets / name)[1] for name in FILES.values()]
    assert look(episodes[0]) == SEEN
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(look, episodes, timeout=LIMIT_S)) == [SEEN] * len(episodes)
