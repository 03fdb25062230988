"""Epochs and states of the torch dataset: with any workers and interruptions the batches of plain ShuffledRows."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from warpdata.corpora.shuffled import ShuffledRows
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.ordering.torch import Passes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

OPTIONS = {"batch_size": 48, "seed": 5, "block_rows": 10, "window_blocks": 8}


@pytest.fixture(name="source", scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MmapShardSource]:
    folder = tmp_path_factory.mktemp("t") / "c"
    with CorpusWriter(folder, 4, shard_bytes=2000) as writer:
        writer.append(np.arange(1200, dtype=np.float32).reshape(300, 4))
    with MmapShardSource.open_dir(folder, dtype="float32") as source:
        yield source


@pytest.fixture(name="epochs", scope="module")
def expected(source: MmapShardSource) -> list[list[list[int]]]:
    """The batches of the first epochs, without torch."""
    with ShuffledRows(source, **OPTIONS) as rows:
        return [[batch.row_ids.tolist() for batch in rows] for _ in range(6)]


def loader_of(dataset: Any, workers: int, **more: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **more)


def ids(batches: Any, limit: int | None = None) -> list[list[int]]:
    found = []
    for batch in batches:
        found.append(batch.row_ids.tolist())
        if len(found) == limit:
            break
    return found


@pytest.mark.parametrize(("workers", "more"), [(0, {}), (2, {}), (3, {"persistent_workers": True})])
def test_every_iteration_is_the_next_epoch(
    source: MmapShardSource, epochs: list[list[list[int]]], workers: int, more: dict[str, Any]
) -> None:
    loader = loader_of(source.to_torch(**OPTIONS), workers, **more)
    assert [ids(loader) for _ in range(3)] == epochs[:3]
    assert ids(loader, limit=2) == epochs[3][:2], "an epoch that is broken off"
    assert ids(loader) == epochs[4], "is over"


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_says_which_comes_next(
    source: MmapShardSource, epochs: list[list[list[int]]], workers: int
) -> None:
    dataset = source.to_torch(**OPTIONS)
    loader = loader_of(dataset, workers, persistent_workers=bool(workers))
    for epoch in (4, 0, 0, 3):
        dataset.set_epoch(epoch)
        assert ids(loader) == epochs[epoch]
    assert ids(loader) == epochs[4]


def test_seeds_set_before_each_epoch_do_not_repeat_it(
    source: MmapShardSource, epochs: list[list[list[int]]]
) -> None:
    loader = loader_of(source.to_torch(**OPTIONS), 2)
    for epoch in range(3):
        torch.manual_seed(0)
        assert ids(loader) == epochs[epoch]


def test_workers_may_change_between_epochs(source: MmapShardSource, epochs: list[list[list[int]]]) -> None:
    dataset = source.to_torch(**OPTIONS)
    for epoch, workers in enumerate((2, 0, 3, 1)):
        assert ids(loader_of(dataset, workers)) == epochs[epoch]


def test_a_loaded_state_is_used_once(source: MmapShardSource, epochs: list[list[list[int]]]) -> None:
    dataset = source.to_torch(**OPTIONS)
    dataset.load_state_dict({**dataset.state_dict(), "position": 96, "epoch": 1})
    loader = loader_of(dataset, 2)
    assert len(dataset) == len(epochs[1]), "of a whole epoch: trainers count from its beginning"
    assert [ids(loader) for _ in range(2)] == [epochs[1][2:], epochs[2]]


def test_what_a_spawned_worker_counts_is_seen_here() -> None:
    passes = Passes((1, 2, 3))
    theirs = pickle.loads(ForkingPickler.dumps(passes))
    assert theirs.begin() == 0
    assert (passes.number(), passes.start) == (1, (1, 2, 3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 3, 7])
def test_the_state_of_the_loader_is_after_what_it_gave(
    source: MmapShardSource, epochs: list[list[list[int]]], workers: int, stop: int
) -> None:
    """Position 7 is the last batch of an epoch: then comes the next."""
    loader = source.to_torch(**OPTIONS).loader(num_workers=workers)
    assert ids(loader) == epochs[0]
    given = ids(loader, limit=stop) if stop else []
    state = json.loads(json.dumps(loader.state_dict()))
    again = source.to_torch(**OPTIONS).loader(num_workers=2 - workers)
    again.load_state_dict(state)
    rest = epochs[1][stop:] or epochs[2]
    assert ids(again) == rest
    if stop < 7:
        assert given + rest == epochs[1]
        assert ids(again) == epochs[2]


def test_a_state_that_nobody_knows_is_not_made_up(source: MmapShardSource) -> None:
    dataset = source.to_torch(**OPTIONS)
    batches = []
    for batch in loader_of(dataset, 2):
        batches.append(batch)
    with pytest.raises(RuntimeError, match="state_after"):
        dataset.state_dict()
    assert dataset.state_after(batches[1])["position"] == 96
    assert source.to_torch(**OPTIONS).state_dict()["position"] == 0


def test_states_of_single_workers_go_on_in_their_worker(
    source: MmapShardSource, epochs: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torchdata's StatefulDataLoader does: a state of each worker, given back to the same worker."""

    class Info:
        def __init__(self, number: int, seed: int) -> None:
            self.id, self.num_workers, self.seed = number, 2, seed + number

    def as_worker(number: int, seed: int) -> None:
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: Info(number, seed))

    shared = source.to_torch(**OPTIONS)
    given, states = [], []
    for worker, count in ((0, 2), (1, 1)):
        as_worker(worker, 100)
        mine = source.to_torch(**OPTIONS)
        mine._passes = copy.copy(shared._passes)  # the counter is shared, as by processes
        given.append(ids(mine, limit=count))
        states.append(json.loads(json.dumps(mine.state_dict())))
    shared = source.to_torch(**OPTIONS)
    for worker in range(2):
        as_worker(worker, 200)
        mine = source.to_torch(**OPTIONS)
        mine._passes = copy.copy(shared._passes)  # the counter is shared, as by processes
        with pytest.raises(ValueError, match="alone"):
            mine.load_state_dict(states[1 - worker])
        mine.load_state_dict(states[worker])
        given[worker] += ids(mine)
        assert mine.state_dict()["position"] == 300, "a worker that has ended stays at the end"
    assert given == [epochs[0][0::2], epochs[0][1::2]]
    for worker in range(2):
        as_worker(worker, 300)
        mine = source.to_torch(**OPTIONS)
        mine._passes = copy.copy(shared._passes)  # the counter is shared, as by processes
        assert ids(mine) == epochs[1][worker::2]


def test_the_loader_leaves_to_the_dataset_what_is_its(source: MmapShardSource) -> None:
    dataset = source.to_torch(**OPTIONS)
    with pytest.raises(ValueError, match="batch_size"):
        dataset.loader(batch_size=4)
    shapes = [shape for shape in dataset.loader(collate_fn=_shape)]
    assert shapes[0] == (48, 4)
    assert len(dataset.loader()) == 7


def _shape(batch: Any) -> tuple[int, ...]:
    return tuple(batch.rows.shape)
