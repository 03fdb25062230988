"""Epochs of a stream of batches: global batches, the share of each rank, and a small state that fits any world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from warpdata.errors import TooLargeError, require_integer, require_word
from warpdata.ordering.blocks import I64

MAX_SEED = (1 << 64) - 1
MAX_EPOCH = 10**6 - 1
MAX_POSITION = 10**12 - 1

Tail = Literal["short", "drop", "pad"]
"""The last batch is shorter, left out, or filled with what came first."""
TAILS: tuple[Tail, ...] = get_args(Tail)
MAX_FILLED_BYTES = 1 << 30
_LEAST_ROW_BYTES = 16
"""Bytes of a row beside its values: its number, and whether it is a repeat."""


def check_filled(rows: int, available: int, row_bytes: int) -> None:
    """TooLargeError for a filled batch that is mostly repeats and more than 1 GiB, before any of it is made.

    `available` counts the different rows it is filled with. Without repeats the data itself is the bound.
    """
    size = rows * max(row_bytes, _LEAST_ROW_BYTES)
    if rows > 2 * available and size > MAX_FILLED_BYTES:
        raise TooLargeError(
            f'tail="pad" would fill {rows} rows from {available}, which takes {size} bytes',
            hint='Use a smaller batch_size (or window), or tail="short".',
        )


STATE_VERSION = 2
Place = tuple[int, int]
"""An epoch, and how many of its rows all ranks together are past."""
LeftOut = tuple[tuple[str, str], ...]
"""Damaged parts that a batch was cut without, each with the reason."""


class Step(NamedTuple):
    """One global batch: its first position, the position after it, and after as many batches of every worker."""

    start: int
    after: int
    settled: int
    left_out: LeftOut = ()


def rank_slice(n_rows: int, rank: int, world: int) -> slice:
    """The rows of a batch that one rank serves; equal for all ranks if the world divides the batch."""
    return slice(n_rows * rank // world, n_rows * (rank + 1) // world)


class EpochSetter:
    """`set_epoch` as trainers call it: the current epoch continues, any other begins."""

    def __init__(self, epochs: Any) -> None:
        self._epochs = epochs

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless a state put the reader into the middle of it."""
        if self._epochs.epoch != epoch:
            self._epochs.set_epoch(epoch)


class EpochStream(ABC):
    """A place in an endless sequence of epochs, each of `total` rows in an order of its own.

    Global batch t is positions [t·G, (t+1)·G) of an epoch for any number of ranks, G being `global_batch`; each rank
    serves its slice of it. A subclass knows the order of the rows and how to read them.
    """

    def __init__(self, seed: int, epoch: int, rank: int, world: int, tail: Tail) -> None:
        self.seed = require_integer("seed", seed, MAX_SEED)
        self._epoch = require_integer("epoch", epoch, MAX_EPOCH)
        self._position = 0
        self.rank, self.world = rank, world
        self.tail: Tail = require_word("tail", tail, TAILS)
        self._batches: Generator[tuple[Step, Any], None, None] | None = None

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
        """Fingerprints of the data and the order: a state of another identity is refused."""

    def read_steps(
        self, place: Place, worker: int = 0, workers: int = 1
    ) -> Generator[tuple[Step, Any], None, None]:
        """Steps of this rank with their batches from a place on; of several workers each reads every n-th."""
        raise NotImplementedError

    def to_tensors(self, step: Step, batch: Any) -> Any:
        """A batch as torch tensors."""
        raise NotImplementedError

    def note(self, left_out: LeftOut) -> None:  # noqa: B027
        """Count the damaged parts that a delivered batch was cut without."""

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
        """Has the `set_epoch` that trainers call before every epoch."""
        return EpochSetter(self)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.close()
        self._epoch, self._position = require_integer("epoch", epoch, MAX_EPOCH), 0

    def close(self) -> None:
        """Stop reading ahead."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def steps_left(self, position: int) -> int:
        """How many steps the ranks take from a position of an epoch on."""
        left = self.total - position
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def batch_end(self, epoch: int, position: int) -> int | None:  # noqa: ARG002
        """The position after the global batch that begins at a position; None if there is no further batch."""
        return min(position + self.global_batch, self.total) if self.steps_left(position) > 0 else None

    def steps(self, place: Place, worker: int = 0, workers: int = 1) -> Iterator[Step]:
        """The steps from a place on; of several workers each takes every n-th."""
        epoch, position = place
        while True:
            ends = [position]
            while len(ends) <= workers and (end := self.batch_end(epoch, ends[-1])) is not None:
                ends.append(end)
            if len(ends) > worker + 1:
                yield Step(ends[worker], ends[worker + 1], ends[-1])
            if len(ends) <= workers:
                return
            position = ends[-1]

    def batch_positions(self, start: int, row_bytes: int) -> I64:
        """Positions of the global batch that begins at `start`; padding comes from the beginning of the epoch."""
        total, size = self.total, self.global_batch
        count = min(size, total - start)
        if self.tail == "pad" and count < size:
            count = size
            check_filled(size // self.world, total, row_bytes)
        positions = np.arange(start, start + count, dtype=np.int64)
        return positions if start + count <= total else positions % total

    def next_step(self) -> Any:
        """The next batch of this rank; None at the end of the epoch. After an error the same batch is read again."""
        if self._batches is None:
            self._batches = self.read_steps(self.place)
        try:
            step, batch = next(self._batches)
        except StopIteration:
            self._batches = None
            return None
        except BaseException:
            self.close()
            raise
        self._position = step.after
        self.note(step.left_out)
        return self.deliver(step, batch)

    def deliver(self, step: Any, batch: Any) -> Any:  # noqa: ARG002
        """The batch as the consumer gets it."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch, valid for any number of ranks; under 100 bytes beside the identity."""
        return self.state_at(self.place)

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place; the end of an epoch is the beginning of the next, except for one of several workers."""
        epoch, position = place
        if position and not is_worker and self.batch_end(epoch, position) is None:
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
        """Continue after the batch a state was taken at, on any number of ranks.

        All ranks load the same state (that of rank 0), each its own with the batch size it had, or the list of all.
        With another batch size the rows before its position are done.
        """
        place = self.checked_state(state)
        self.close()
        self._epoch, self._position = place

    def checked_state(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Place:
        """The place of a state, or of the states of all ranks; ValueError that names the difference."""
        if isinstance(state, list | tuple) and state:
            places = {self._checked_place(one) for one in state}
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
        epoch = require_integer("epoch", state.get("epoch"), MAX_EPOCH)
        position = require_integer("position", state.get("position"), MAX_POSITION)
        if position > self.total:
            raise ValueError(f"position {position} of a state is beyond the {self.total} rows of an epoch")
        return (epoch, position)
