"""Epoch streams: shares of ranks, states that fit any world, states that are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warpdata.ordering.epochs import MAX_EPOCH, MAX_POSITION, MAX_SEED, EpochStream, rank_slice


class Positions(EpochStream):
    """A stream of positions alone."""

    def __init__(
        self, rows: int, batch: int, *, seed: int = 0, epoch: int = 0, rank=0, world=1, tail="short"
    ) -> None:
        super().__init__(seed, epoch, rank, world, tail)
        self._shape = (rows, batch)

    @property
    def total(self) -> int:
        return self._shape[0]

    @property
    def global_batch(self) -> int:
        return self._shape[1]

    def identity(self) -> dict[str, Any]:
        return {"plan": "123456"}

    def steps(self, count: int) -> list[list[int]]:
        found = []
        for _ in range(min(count, self.steps_left(self._position))):
            positions = self.batch_positions(self._position, 8)
            found.append(positions[rank_slice(len(positions), self.rank, self.world)].tolist())
            self._position = min(self.total, self._position + self.global_batch)
        return found


@given(
    rows=st.integers(1, 90), batch=st.integers(1, 40), world=st.integers(1, 9),
    tail=st.sampled_from(["short", "drop", "pad"]),
)  # fmt: skip
def test_ranks_share_every_batch(rows, batch, world, tail) -> None:
    alone = Positions(rows, batch, tail=tail).steps(999)
    ranks = [Positions(rows, batch, tail=tail, rank=r, world=world).steps(999) for r in range(world)]
    assert [[each for part in step for each in part] for step in zip(*ranks, strict=True)] == alone
    seen = [each for step in alone for each in step]
    assert seen[:rows] == list(range(len(seen)))[:rows]
    if tail == "pad":
        assert seen[rows:] == (list(range(rows)) * 41)[: len(seen) - rows]
    elif tail == "drop":
        assert len(seen) == rows // batch * batch


@given(
    done=st.lists(st.integers(0, 5), min_size=2, max_size=4), then=st.tuples(st.integers(1, 5), st.integers(1, 30)),
)  # fmt: skip
@example(done=[3, 5], then=(2, 7))
def test_ranks_at_different_steps_lose_nothing_or_are_refused(done, then) -> None:
    world, rows, batch = len(done), 100, 12
    given_rows, states = [], []
    for rank, count in enumerate(done):
        stream = Positions(rows, batch, rank=rank, world=world)
        given_rows += [row for step in stream.steps(count) for row in step]
        states.append(json.loads(json.dumps(stream.state_dict())))

    def resume(load) -> list[int]:
        rest = []
        for rank in range(then[0]):
            stream = Positions(rows, then[1], rank=rank, world=then[0])
            stream.load_state_dict(load(rank))
            rest += [row for step in stream.steps(999) for row in step]
        return sorted(given_rows + rest)

    own = [states[rank] if rank < world else states[0] for rank in range(then[0])]
    if then == (world, batch):
        assert resume(own.__getitem__) == list(range(rows))
    elif then[0] > 1:
        with pytest.raises(ValueError, match="load the state of rank 0 on all ranks"):
            resume(own.__getitem__)
    if len(set(done)) == 1:
        assert resume(lambda _: states[0]) == resume(lambda _: states) == list(range(rows))
    else:
        with pytest.raises(ValueError, match="not of one step"):
            resume(lambda _: states)


@example(MAX_SEED, MAX_EPOCH - 1, MAX_POSITION)
@given(st.integers(0, MAX_SEED), st.integers(0, MAX_EPOCH - 1), st.integers(0, MAX_POSITION))
def test_a_state_is_under_100_bytes(seed: int, epoch: int, position: int) -> None:
    stream = Positions(MAX_POSITION, 1, seed=np.uint64(seed), epoch=np.int64(epoch))
    stream._position = position
    packed = json.dumps(stream.state_dict())
    assert len(packed) < 100
    other = Positions(MAX_POSITION, 1, seed=seed)
    other.load_state_dict(json.loads(packed))
    assert other.state_dict() == json.loads(packed)


def test_foreign_states_are_refused() -> None:
    stream = Positions(50, 8, seed=3)
    good = stream.state_dict()
    for change, words in (
        ({"v": 1}, "not a state"), ({"plan": "other"}, "its plan is 'other', expected '123456'"),
        ({"seed": 4}, "its seed is 4, expected 3"), ({"position": "3"}, "position"), ({"position": 51}, "beyond"),
        ({"epoch": -1}, "epoch"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            stream.load_state_dict({**good, **change})
    with pytest.raises(ValueError, match="lacks 'plan'"):
        stream.load_state_dict({key: value for key, value in good.items() if key != "plan"})
    for wrong in (None, [], {}, "x"):
        with pytest.raises(ValueError, match="not a state"):
            stream.load_state_dict(wrong)
