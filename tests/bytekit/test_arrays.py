"""Every function takes what holds numbers, tensors of torch too, and none takes what lies under a mask for values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.search.moments.behaviour import Channels

ENTRIES: dict[str, Callable[[Path, Any], Any]] = {}
"""By name: puts a matrix of 4 x 3 in somewhere and gives what comes out again."""


def entry(put: Callable[[Path, Any], Any]) -> Callable[[Path, Any], Any]:
    ENTRIES[put.__name__] = put
    return put


@entry
def channel(folder: Path, rows: Any) -> Any:
    return wd.Channel("x", rows).data


@entry
def signal(folder: Path, rows: Any) -> Any:
    return wd.timeline.ArraySignal(np.arange(4), rows).values()


@entry
def record(folder: Path, rows: Any) -> Any:
    with wd.record(folder / "root", clock="simulated") as recorder:
        recorder.append("x", rows, 0)
    return wd.open(folder / "root")[0]["x"].values()[0]


@entry
def corpus(folder: Path, rows: Any) -> Any:
    with wd.CorpusWriter(folder / "corpus", 3) as writer:
        writer.append(rows)
    batch = wd.MmapShardSource.open_dir(folder / "corpus", dtype="float32").next_batch()
    assert batch is not None
    return batch.rows


@entry
def vectors(folder: Path, rows: Any) -> Any:
    with wd.VectorStore.create(folder / "v.rvf", dim=3) as store:
        store.add(rows)
        ids, _ = store.search(rows, k=1)
        assert ids[:, 0].tolist() == [0, 1, 2, 3]
        return store.get([0, 1, 2, 3])


@entry
def query(folder: Path, rows: Any) -> Any:
    return Channels().query({"x": rows})["x"]


@entry
def derived(folder: Path, rows: Any) -> Any:
    episode = wd.WShardEpisode("e", length=4)
    episode.actions["u"] = np.zeros(4, np.float32)
    return wd.Episodes.of([episode.in_time]).map(lambda _: {"more": rows})[0]["more"].values()


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("kind", ["plain", "grad", "bf16", "bf16 grad"])
def test_tensors_are_taken_everywhere(name: str, kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.bfloat16 if "bf16" in kind else torch.float32).reshape(4, 3)
    found = ENTRIES[name](tmp_path, tensor.requires_grad_("grad" in kind))
    assert np.asarray(found, np.float32).tolist() == np.arange(12).reshape(4, 3).tolist()


@pytest.mark.parametrize("name", ENTRIES)
def test_masked_values_are_refused_everywhere(name: str, tmp_path: Path) -> None:
    rows = np.ma.masked_array(np.ones((4, 3), np.float32), np.eye(4, 3, dtype=bool))
    with pytest.raises((TypeError, ValueError, wd.WarpError), match="mask"):
        ENTRIES[name](tmp_path, rows)


def test_a_field_that_an_episode_does_not_have_is_refused() -> None:
    episode = wd.WShardEpisode("e", length=4)
    with pytest.raises(AttributeError, match="reward"):
        episode.reward = np.zeros(4)  # type: ignore[attr-defined]
    episode.rewards = np.zeros(4)  # type: ignore[assignment]
