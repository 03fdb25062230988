"""Tables in a shuffled order: every row once, the same for any ranks, resumed in any world."""

from __future__ import annotations

import itertools
import json

import pytest

import warpdata as wd
from tests.published import publish_demo


@pytest.fixture
def table(local_catalog, picture_folder):
    publish_demo(local_catalog, picture_folder, count=1000, shards=4)
    with wd.dataset("ws/demo", catalog=local_catalog) as dataset:
        yield dataset.table().select(["id", "value"])


def ids(stream) -> list[int]:
    return [each for batch in stream for each in batch.column("id").to_pylist()]


def together(table, world: int, size: int, state=None, **options) -> list[int]:
    """What all ranks give, step by step."""
    ranks = []
    for rank in range(world):
        stream = table.batches(size, shard=(rank, world), shuffle=True, **options)
        if state is not None:
            stream.load_state_dict(state)
        ranks.append([batch.column("id").to_pylist() for batch in stream])
    steps = max(map(len, ranks))
    return [each for step in range(steps) for rank in ranks if step < len(rank) for each in rank[step]]


def test_every_row_once_and_the_same_for_any_ranks(table) -> None:
    whole = ids(table.batches(60, shuffle=True, seed=3))
    assert sorted(whole) == list(range(1000))
    assert whole != sorted(whole)
    assert together(table, 3, 20, seed=3) == whole
    assert together(table, 6, 10, seed=3) == whole
    assert ids(table.batches(60, shuffle=True, seed=3, epoch=1)) != whole
    full = ids(table.batches(100, shuffle="full", seed=3))
    assert sorted(full) == list(range(1000))
    assert ids(table.batches(60)) == list(range(1000))
    values = [each for b in table.batches(60, shuffle=True, seed=3) for each in b.column("value").to_pylist()]
    assert values == [each * 0.5 for each in whole]


def test_filters_limits_and_even_steps(table) -> None:
    assert sorted(ids(table.filter("id % 3 = 0").batches(50, shuffle=True))) == list(range(0, 1000, 3))
    assert sorted(ids(table.batches(50, shuffle=True, limit=120))) == list(range(120))
    dropped = table.batches(64, shuffle=True, tail="drop")
    assert len(ids(dropped)) == 1000 // 64 * 64
    padded = ids(table.batches(64, shuffle=True, tail="pad"))
    assert len(padded) == 1024
    assert padded[1000:] == padded[:24]
    assert ids(table.filter("id < 0").batches(50, shuffle=True)) == []
    with pytest.raises(ValueError, match="Did you mean 'full'"):
        table.batches(50, shuffle="ful")


def test_a_state_goes_on_in_another_world(table) -> None:
    whole = ids(table.batches(60, shuffle=True, seed=3))
    for steps in (0, 1, 7, 17):
        stream = table.batches(60, shuffle=True, seed=3)
        for _ in range(steps):
            next(stream)
        state = json.loads(json.dumps(stream.state_dict()))
        assert together(table, 4, 5, state, seed=3) == whole[steps * 60 :]
    for other, word in (
        (table.batches(60, shuffle=True, seed=4), "seed"), (table.batches(60, shuffle="full", seed=3), "order"),
        (table.filter("id > 5").batches(60, shuffle=True, seed=3), "filter"), (table.batches(60), "state"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            other.load_state_dict(state)
    # The states of all ranks, as passes without a shuffle need them, are one where they are of one step.
    assert together(table, 2, 30, [state, state], seed=3) == whole[17 * 60 :]
    with pytest.raises(ValueError, match="not of one step"):
        stream.load_state_dict([state, {**state, "position": 0}])


def test_ranks_at_different_steps_do_not_go_on_with_another_batch_size(table) -> None:
    streams = [table.batches(20, shuffle=True, seed=3, shard=(rank, 2)) for rank in range(2)]
    seen = [ids(itertools.islice(stream, 2 + 3 * rank)) for rank, stream in enumerate(streams)]
    states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
    rest = []
    for rank, state in enumerate(states):
        stream = table.batches(20, shuffle=True, seed=3, shard=(rank, 2))
        stream.load_state_dict(state)
        rest += ids(stream)
    assert sorted([*seen[0], *seen[1], *rest]) == list(range(table.row_count))
    other = table.batches(30, shuffle=True, seed=3, shard=(1, 2))
    with pytest.raises(ValueError, match="load the state of rank 0 on all ranks"):
        other.load_state_dict(states[1])
    with pytest.raises(ValueError, match="not of one step"):
        other.load_state_dict(states)


def torch_ids(batches) -> list[int]:
    return [each for batch in batches for each in batch["id"].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_has_the_same_order_epoch_after_epoch(table, workers) -> None:
    pytest.importorskip("torch")
    options = {"shuffle": True, "seed": 3, "tail": "drop" if workers > 0 else "short"}
    expected = [ids(table.batches(60, epoch=epoch, **options)) for epoch in (2, 3)]
    loader = table.to_torch(60, epoch=2, **options).loader(num_workers=workers)
    assert [torch_ids(loader) for _ in range(2)] == expected
    assert len(loader) == (16 if workers else 17)


@pytest.mark.parametrize(("workers", "then"), [(0, 2), (2, 0)])
def test_torch_goes_on_in_another_world_with_other_workers(table, workers, then) -> None:
    pytest.importorskip("torch")
    whole = ids(table.batches(60, shuffle=True, seed=3))
    loader = table.to_torch(60, shuffle=True, seed=3).loader(num_workers=workers)
    batches = iter(loader)
    first = torch_ids([next(batches) for _ in range(5)])
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    ranks = []
    for rank in range(2):
        part = table.to_torch(30, shard=(rank, 2), shuffle=True, seed=3).loader(num_workers=then)
        part.load_state_dict(state)
        assert len(part) == 17, "of a whole epoch: trainers count from its beginning"
        ranks.append([torch_ids([batch]) for batch in part])
        assert part.state_dict()["epoch"] == 1
        assert part.state_dict()["position"] == 0
    assert first + [each for step in zip(*ranks, strict=True) for rank in step for each in rank] == whole
    with pytest.raises(ValueError, match="seed"):
        table.to_torch(60, shuffle=True, seed=4).load_state_dict(state)
    with pytest.raises(ValueError, match="Did you mean 'full'"):
        table.to_torch(60, shuffle="ful")


def test_ranks_at_different_steps_resume_with_their_batch_size_only(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/steps", catalog=local_catalog) as builder:
        builder.add_table("main", {"i": list(range(1000))}).publish()
    with wd.dataset("ws/steps", catalog=local_catalog) as ds:

        def stream(rank: int, size: int):
            return ds.table().batches(size, rank=rank, world=2, shuffle=True)

        seen: list[int] = []
        states = []
        for rank, steps in enumerate((7, 2)):
            first = stream(rank, 20)
            seen += [i for _ in range(steps) for i in next(first)["i"].to_pylist()]
            states.append(first.state_dict())
        with pytest.raises(ValueError, match="the list of all states"):
            stream(1, 30).load_state_dict(states[1])
        for rank in range(2):
            with pytest.raises(ValueError, match="not of one step"):
                stream(rank, 30).load_state_dict(states)
            rest = stream(rank, 20)
            rest.load_state_dict(states[rank])
            seen += [i for batch in rest for i in batch["i"].to_pylist()]
        assert sorted(seen) == list(range(1000))
        both = [stream(rank, 20) for rank in range(2)]
        seen = [i for one in both for _ in range(3) for i in next(one)["i"].to_pylist()]
        states = [one.state_dict() for one in both]
        for rank in range(2):
            rest = stream(rank, 33)
            rest.load_state_dict(states)
            seen += [i for batch in rest for i in batch["i"].to_pylist()]
        assert sorted(seen) == list(range(1000))
