"""Batches in the order of epochs as a torch IterableDataset: the same for any number of DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from warpdata.corpora.torch_passes import Passes, StatefulLoader, imported_torch, worker_info
from warpdata.ordering.state import MAX_EPOCH, checked_integer

Tag = tuple[int, int]
"""Epoch and position after a batch."""


class EpochStep(Protocol):
    """One batch of an epoch."""

    @property
    def after(self) -> int:
        """Where the epoch stands once all ranks have the batch."""

    @property
    def settled(self) -> int:
        """Where it stands once every worker has given as many batches."""


class EpochPlace(Protocol):
    """Where a state stands."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def position(self) -> int:
        """How much of the epoch all ranks together are past."""


class EpochSource(Protocol):
    """What is read: batches from any position of any epoch on, and states that name such a position."""

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""

    @property
    def position(self) -> int:
        """Where it goes on."""

    @property
    def total(self) -> int:
        """Where an epoch ends."""

    def steps_left(self, position: int) -> int:
        """How many batches an epoch has from a position on."""

    def tensor_steps(
        self, epoch: int, position: int, worker: int, workers: int
    ) -> Iterator[tuple[EpochStep, Any]]:
        """Batches of tensors; of several workers each gives every n-th."""

    def state_at(self, epoch: int, position: int, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a position of an epoch; at its end that is the beginning of the next, unless a worker is."""

    def checked_state(self, state: Mapping[str, Any]) -> EpochPlace:
        """A state that belongs to this source, or ValueError that names what differs."""


def torch_epochs(source: EpochSource) -> Any:
    """An IterableDataset over the batches of a source; use its `loader()`, or DataLoader(dataset, batch_size=None)."""
    return _dataset_class()(source)


@cache
def _dataset_class() -> Any:
    torch = imported_torch()

    class TorchEpochs(_TorchEpochs, torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Batches of tensors in the order of their source, whatever the number of workers."""

    return TorchEpochs


class _TorchEpochs:
    """Every iteration is the rest of an epoch, then the next ones follow; worker w gives every n-th batch from w on."""

    def __init__(self, source: EpochSource) -> None:
        self._source = source
        self._passes = Passes((source.epoch, source.position))
        self._own: Tag | None = None
        """Where this worker goes on, if its DataLoader keeps a state for each worker."""
        self._now: Tag | None = None
        """Where this process is, once it has given or noted a batch."""

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, Any]]:
        """Batches, each with where the epoch stands after it."""
        epoch, position = self._begin()
        info = worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for step, batch in self._source.tensor_steps(epoch, position, worker, workers):
            self._now = (epoch, step.after) if info is None else (epoch, step.settled)
            yield (epoch, step.after), batch
        self._now = None if info is None else (epoch, self._source.total)

    def _begin(self) -> Tag:
        first = self._next_start()
        number = self._passes.begin()
        if self._own is not None:  # the passes after this one follow from here
            self._passes.move_start((first[0] - number, 0))
        self._own, self._now = None, None
        return first

    def _next_start(self) -> Tag:
        if self._own is not None:
            return self._own
        number = self._passes.number()
        epoch, position = self._passes.start
        return (epoch + number) % (1 << 64), 0 if number else position

    def __len__(self) -> int:
        """Steps of a whole epoch, also where the next iteration gives the rest of one: trainers count from there."""
        return self._source.steps_left(0)

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    def set_epoch(self, epoch: int) -> None:
        """Iterate from the beginning of an epoch next; without it every iteration is the next epoch."""
        self._restart((checked_integer("epoch", epoch, MAX_EPOCH), 0))

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is: after the batch given last, or at the beginning of the next epoch."""
        info = worker_info()
        if info is None and self._now is None and self._passes.is_with_workers:
            raise RuntimeError(
                "DataLoader workers read this data, and only they know how far: iterate "
                "dataset.loader(num_workers=…) and ask it, or use torchdata's StatefulDataLoader"
            )
        state = self._source.state_at(*(self._now or self._next_start()), is_worker=info is not None)
        return state if info is None else {**state, "worker": info.id, "workers": info.num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch the state was taken at."""
        info = worker_info()
        mine = None if info is None else (info.id, info.num_workers)
        if (
            isinstance(state, Mapping)
            and "worker" in state
            and (state["worker"], state.get("workers")) != mine
        ):
            raise ValueError(f"this is the state of worker {state['worker']} of {state.get('workers')} alone")
        parsed = self._source.checked_state(state)
        start = (parsed.epoch, parsed.position)
        if info is not None:
            self._own, self._now = start, None
        else:
            self._restart(start)

    def _restart(self, start: Tag) -> None:
        self._passes.restart(start)
        self._own, self._now = None, None

    def note_begin(self) -> None:
        """A DataLoader begins an epoch."""
        self._now = None

    def note(self, tag: Tag) -> None:
        """The batch before this position was handed over."""
        self._now = tag

    def note_end(self) -> None:
        """The epoch is over: the next one begins."""
        self._now = None
        self._passes.settle()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self._source, self._passes))


def _restored(source: EpochSource, passes: Passes) -> Any:
    dataset = torch_epochs(source)
    dataset._passes = passes
    return dataset
