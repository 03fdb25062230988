"""Batches in the order of epochs as a torch IterableDataset: the same for any number of DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from warpdata.corpora.torch_passes import Passes, StatefulLoader, imported_torch, worker_info
from warpdata.ordering.epochs import EpochStream, LeftOut, Place
from warpdata.ordering.state import MAX_EPOCH, checked_integer

Tag = tuple[Place, LeftOut]


def torch_epochs(source: EpochStream) -> Any:
    """An IterableDataset over the batches of a source; use its `loader()`, or DataLoader(dataset, batch_size=None)."""
    return as_iterable_dataset(TorchEpochs)(source)


@cache
def as_iterable_dataset(kind: type[TorchEpochs]) -> Any:
    """The same class as one of torch's iterable datasets."""
    base = imported_torch().utils.data.IterableDataset
    return type(kind.__name__, (kind, base), {"__doc__": kind.__doc__, "__module__": kind.__module__})


class TorchEpochs:
    """Every iteration is the rest of an epoch, then the next ones follow; worker w gives every n-th batch from w on.

    `set_epoch` says which epoch comes next. Workers, ranks and seeds of torch do not change the order.
    """

    _hint = "iterate dataset.loader(num_workers=…) and ask it, or use torchdata's StatefulDataLoader"

    def __init__(self, source: EpochStream) -> None:
        self._source = source
        self._passes = Passes(source.place)
        self._own: Place | None = None
        """Where this worker goes on, if its DataLoader keeps a state for each worker."""
        self._now: Place | None = None
        """Where this process is, once it has given or noted a batch."""

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, Any]]:
        """Batches, each with where its source stands after it, and what it was cut without."""
        first = self._begin()
        info = worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for step, batch in self._source.tensor_steps(first, worker, workers):
            self._now = (first[0], step.after if info is None else step.settled)
            yield ((first[0], step.after), step.left_out), batch
        self._now = None if info is None else (first[0], self._source.total)

    def _begin(self) -> Place:
        """Begin a pass: where it starts."""
        first = self._next_start()
        number = self._passes.begin()
        if self._own is not None:  # the passes after this one follow from here
            self._passes.move_start((first[0] - number, 0))
        self._own, self._now = None, None
        return first

    def _next_start(self) -> Place:
        """Where the next pass of this process starts."""
        if self._own is not None:
            return self._own
        number = self._passes.number()
        epoch, position = self._passes.start
        return ((epoch + number) % (1 << 64), 0 if number else position)

    def __len__(self) -> int:
        """Steps of a whole epoch, also where the next iteration gives the rest of one: trainers count from there."""
        return self._source.steps_left(0)

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    @property
    def epoch(self) -> int:
        """The epoch of the batch given last, or of the next one."""
        return (self._now or self._next_start())[0]

    def set_epoch(self, epoch: int) -> None:
        """Iterate from the beginning of an epoch next; without it every iteration is the next epoch."""
        self._restart((checked_integer("epoch", epoch, MAX_EPOCH), 0))

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is: after the batch given last, or at the beginning of the next epoch."""
        info = worker_info()
        if info is None and self._now is None and self._passes.is_with_workers:
            raise RuntimeError(f"DataLoader workers read this data, and only they know how far: {self._hint}")
        state = self._source.state_at(self._now or self._next_start(), is_worker=info is not None)
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
        start = self._source.checked_state(state)
        if info is not None:
            self._own, self._now = start, None
        else:
            self._restart(start)

    def _restart(self, start: Place) -> None:
        self._passes.restart(start)
        self._own, self._now = None, None

    def note_begin(self) -> None:
        """A DataLoader begins an epoch."""
        self._now = None

    def note(self, tag: Tag) -> None:
        """The batch before this position was handed over."""
        self._now, left_out = tag
        self._source.note(left_out)

    def note_end(self) -> None:
        """The epoch is over: the next one begins."""
        self._now = None
        self._passes.settle()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self._kind(), self._source, self._passes))

    @classmethod
    def _kind(cls) -> type[TorchEpochs]:
        """The class before it was made one of torch's."""
        return next(each for each in cls.__mro__[1:] if issubclass(each, TorchEpochs))


def _restored(kind: Any, source: EpochStream, passes: Passes) -> Any:
    dataset = as_iterable_dataset(kind)(source)
    dataset._passes = passes
    return dataset
