"""torch: the same batches bit for bit for any number of workers, resumed anywhere; hooks that harvest."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.corpora.side_table import SideTable
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter

torch = pytest.importorskip("torch")


@pytest.fixture(name="source")
def corpus(tmp_path: Path) -> Iterator[MmapShardSource]:
    values = np.random.default_rng(0).standard_normal((1000, 8)).astype(np.float32)
    with CorpusWriter(tmp_path / "c", 8, shard_bytes=9000) as writer:
        for start in range(0, 1000, 100):
            writer.append(values[start : start + 100])
    with MmapShardSource.open_dir(tmp_path / "c", dtype="float32") as source:
        yield source


def loaded(dataset: Any, workers: int, limit: int | None = None, **more: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch thinks two cores are too few for three workers
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **more)
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == limit:
                break
    return found


def bits(batches: list[Any]) -> list[tuple[bytes, list[int], int]]:
    return [(b.rows.numpy().tobytes(), b.row_ids.tolist(), int(b.position)) for b in batches]


def test_workers_and_resume_give_the_same_bits(source: MmapShardSource) -> None:
    options = {"batch_size": 48, "seed": 5, "block_rows": 10, "window_blocks": 8}
    whole = bits(loaded(source.to_torch(**options), 0))
    assert sorted(i for _, ids, _ in whole for i in ids) == list(range(1000))
    for workers, other in ((1, 2), (2, 0), (3, 1), (4, 3)):
        dataset = source.to_torch(**options)
        first = loaded(dataset, workers, limit=7)
        assert bits(first) == whole[:7]
        state = json.loads(json.dumps(dataset.state_after(first[-1])))
        resumed = source.to_torch(**options)
        resumed.load_state_dict(state)
        assert len(resumed) == len(whole)  # of a whole epoch: trainers count with it
        assert bits(loaded(resumed, other)) == whole[7:]


def test_spawned_workers_reopen_the_corpus(source: MmapShardSource) -> None:
    options = {"batch_size": 200, "seed": 5}
    whole = bits(loaded(source.to_torch(**options), 0))
    spawned = loaded(source.to_torch(**options), 1, multiprocessing_context="spawn")
    assert bits(spawned) == whole


def test_epochs_ranks_and_state_without_workers(source: MmapShardSource) -> None:
    dataset = source.to_torch(batch_size=100, rank=1, world=4)
    first = loaded(dataset, 0)
    assert {len(batch.rows) for batch in first} == {25}
    assert first[0].rows.dtype == torch.float32
    dataset.set_epoch(1)
    second = loaded(dataset, 0, limit=3)
    assert second[0].row_ids.tolist() != first[0].row_ids.tolist()
    assert dataset.state_dict()["position"] == 300
    assert dataset.state_dict() == dataset.state_after(second[-1])


def test_a_forward_hook_harvests(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    tokens = torch.randn(5, 7, 4)
    seen: list[np.ndarray] = []
    with CorpusWriter(tmp_path / "c", 6, dtype="bf16", columns={"position": "i32"}) as writer:
        handle = model[1].register_forward_hook(
            writer.hook(lambda: {"position": np.tile(np.arange(7, dtype=np.int32), 5)})
        )
        model[1].register_forward_hook(lambda _m, _i, out: seen.append(out.detach().numpy()))
        for _ in range(3):
            model(tokens)
        handle.remove()
        assert writer.total_rows == 105
    wanted = torch.from_numpy(np.concatenate([x.reshape(-1, 6) for x in seen])).bfloat16().float().numpy()
    with MmapShardSource.open_dir(tmp_path / "c", dtype="float32") as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), wanted)
    assert SideTable(tmp_path / "c").take([8])["position"].tolist() == [1]
