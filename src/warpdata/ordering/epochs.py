"""Epochs of a shuffled stream: global batches, the share of each rank, and a small state that fits any world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from warpdata.ordering.splitmix import I64
from warpdata.ordering.state import MAX_EPOCH, MAX_POSITION, MAX_SEED, checked_integer
from warpdata.ordering.tail import Tail, check_filled, check_tail

STATE_VERSION = 2
Place = tuple[int, int]
"""An epoch, and how many of its rows all ranks together are past."""
LeftOut = tuple[tuple[str, str], ...]
"""What a batch was cut without because it is damaged, each with the reason."""


class Step(NamedTuple):
    """One batch of an epoch: the position after it, and after as many batches of every worker."""

    after: int
    settled: int
    left_out: LeftOut = ()


def rank_slice(n_rows: int, rank: int, world: int) -> tuple[int, int]:
    """The rows of a batch that one rank serves; equal for all ranks when the world divides the batch."""
    return n_rows * rank // world, n_rows * (rank + 1) // world


class EpochSetter:
    """`set_epoch` as trainers call it: the epoch that is being read goes on, any other begins."""

    def __init__(self, epochs: Any) -> None:
        self._epochs = epochs

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless a state put the reader into the midst of it."""
        if self._epochs.epoch != epoch:
            self._epochs.set_epoch(epoch)


class EpochStream(ABC):
    """A place in an endless sequence of epochs, each of `total` rows in an order of its own.

    Global batch t is positions [t·G, (t+1)·G) of an epoch for any number of ranks, G being `global_batch`; each rank
    serves its slice of it.
    """

    def __init__(self, seed: int, epoch: int, rank: int, world: int, tail: Tail) -> None:
        self.seed = checked_integer("seed", seed, MAX_SEED)
        self._epoch = checked_integer("epoch", epoch, MAX_EPOCH)
        self._position = 0
        self.rank, self.world = rank, world
        self.tail: Tail = check_tail(tail)

    @property
    @abstractmethod
    def total(self) -> int:
        """Rows of an epoch."""

    @property
    @abstractmethod
    def global_batch(self) -> int:
        """Rows of a step of all ranks together."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the data and the order are: a state of another identity is refused."""

    def tensor_steps(self, place: Place, worker: int, workers: int) -> Iterator[tuple[Any, Any]]:
        """Steps (see `Step`) and batches of tensors from a place on; of several workers each gives every n-th."""
        raise NotImplementedError

    def note(self, left_out: LeftOut) -> None:  # noqa: B027
        """Count what a batch was cut without, now that it is handed over."""

    def close(self) -> None:  # noqa: B027
        """Stop reading ahead."""

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epoch

    @property
    def position(self) -> int:
        """Rows of the epoch that all ranks together are past."""
        return self._position

    @property
    def place(self) -> Place:
        """Epoch and position."""
        return (self._epoch, self._position)

    @property
    def sampler(self) -> EpochSetter:
        """Where trainers look for `set_epoch`, which they call before every epoch."""
        return EpochSetter(self)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.close()
        self._epoch, self._position = checked_integer("epoch", epoch, MAX_EPOCH), 0

    def steps_left(self, position: int) -> int:
        """How many steps the ranks take from a position of an epoch on."""
        left = self.total - position
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def batch_positions(self, start: int, row_bytes: int) -> I64:
        """Positions of the global batch that begins at `start`; padding comes from the beginning of the epoch."""
        total, size = self.total, self.global_batch
        count = min(size, total - start)
        if self.tail == "pad" and count < size:
            count = size
            check_filled(size // self.world, total, row_bytes)
        positions = np.arange(start, start + count, dtype=np.int64)
        return positions if start + count <= total else positions % total

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch given last, valid for any number of ranks; under 100 bytes beside the identity."""
        return self.state_at(self.place)

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place; the end of an epoch is the beginning of the next, unless for one of several workers."""
        epoch, position = place
        if position and not is_worker and not self.steps_left(position):
            epoch, position = epoch + 1, 0
        state = {
            "v": STATE_VERSION,
            "seed": self.seed,
            "epoch": epoch,
            "position": position,
            **self.identity(),
        }
        if self.rank:
            state |= {"rank": self.rank, "world": self.world, "batch": self.global_batch}
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on after the batch a state was taken at, on any number of ranks.

        All ranks load the same state (that of rank 0), each its own with the batch size it had, or the list of all.
        With another batch size the rows before its position are done.
        """
        place = self.checked_state(state)
        self.close()
        self._epoch, self._position = place

    def checked_state(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Place:
        """The place of a state, or of the states of all ranks; ValueError that names what differs."""
        if isinstance(state, list | tuple) and state:
            places = {self._checked_place(each) for each in state}
            if len(places) > 1:
                rows = ", ".join(f"row {position} of epoch {epoch}" for epoch, position in sorted(places))
                raise ValueError(f"the states of the ranks are not of one step: {rows}")
            return places.pop()
        place = self._checked_place(state)
        assert isinstance(state, Mapping)
        then = (state.get("world", self.world), state.get("batch", self.global_batch))
        if then != (self.world, self.global_batch):
            raise ValueError(
                f"this is the state of rank {state.get('rank')} of {then[0]} alone, taken with a global batch of "
                f"{then[1]}; here are {self.world} ranks and a global batch of {self.global_batch}: "
                "load the state of rank 0 on all ranks, or the list of all states"
            )
        return place

    def _checked_place(self, state: Any) -> Place:
        if not isinstance(state, Mapping) or state.get("v") != STATE_VERSION:
            raise ValueError(f"not a state of a shuffled stream of version {STATE_VERSION}: {state!r:.200}")
        for key, value in {"seed": self.seed, **self.identity()}.items():
            if key not in state:
                raise ValueError(f"the state lacks {key!r}")
            if state[key] != value:
                reason = " (another shuffle, or other weights or blocks)" if key in ("order", "plan") else ""
                raise ValueError(
                    f"the state is of another stream: its {key} is {state[key]!r}, expected {value!r}{reason}"
                )
        epoch = checked_integer("epoch", state.get("epoch"), MAX_EPOCH)
        position = checked_integer("position", state.get("position"), MAX_POSITION)
        if position > self.total:
            raise ValueError(f"position {position} of a state is beyond the {self.total} rows of an epoch")
        return (epoch, position)
