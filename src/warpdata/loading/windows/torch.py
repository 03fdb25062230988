"""A loader as a torch IterableDataset: the same batches in the same order for any number of DataLoader workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.corpora.torch_passes import Passes, StatefulLoader, imported_torch, worker_info
from warpdata.loading.windows.batch import Batch

if TYPE_CHECKING:
    from warpdata.loading.windows.loader import Loader

Tag = tuple[int, int]
"""Epoch and position after a batch."""


def torch_loader(loader: Loader) -> Any:
    """An IterableDataset over the batches of a loader; use its `loader()`, or DataLoader(dataset, batch_size=None)."""
    return _dataset_class()(loader)


@cache
def _dataset_class() -> Any:
    torch = imported_torch()

    class TorchWindows(_TorchWindows, torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Batches of tensors in the order of the loader, whatever the number of workers."""

    return TorchWindows


class _TorchWindows:
    """Every iteration is the rest of an epoch, then the next ones follow; worker w gives every n-th batch from w on."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._passes = Passes((loader.epoch, loader.position))
        self._own: Tag | None = None
        """Where this worker goes on, if its DataLoader keeps a state for each worker."""
        self._now: Tag | None = None
        """Where this process is, once it has given or noted a batch."""

    def __iter__(self) -> Iterator[Batch]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, Batch]]:
        """Batches, each with where the epoch stands after it."""
        epoch, position = self._begin()
        info = worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for step, batch in self._loader.read_steps(epoch, position, worker, workers):
            self._now = (epoch, step.after) if info is None else (epoch, step.settled)
            yield (epoch, step.after), as_tensors(batch)
        self._now = None if info is None else (epoch, self._loader.total)

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
        return self._loader.steps_left(self._next_start()[1])

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    def set_epoch(self, epoch: int) -> None:
        """Iterate from the beginning of an epoch next; without it every iteration is the next epoch."""
        self._restart((epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is: after the batch given last, or at the beginning of the next epoch."""
        info = worker_info()
        if info is None and self._now is None and self._passes.is_with_workers:
            raise RuntimeError(
                "DataLoader workers read these windows, and only they know how far: iterate "
                "dataset.loader(num_workers=…) and ask it, or use torchdata's StatefulDataLoader"
            )
        state = self._loader.state_at(*(self._now or self._next_start()), is_worker=info is not None)
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
        parsed = self._loader.checked_state(state)
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
        return (_restored, (self._loader, self._passes))


def _restored(loader: Loader, passes: Passes) -> Any:
    dataset = torch_loader(loader)
    dataset._passes = passes
    return dataset


def as_tensors(batch: Batch) -> Batch:
    """A batch whose arrays are tensors over the same memory; text stays as lists."""
    return Batch(
        {name: _tensor(each) for name, each in batch.items()},
        {name: _tensor(each) for name, each in batch.mask.items()},
        {name: _tensor(each) for name, each in batch.age_ns.items()},
        _tensor(batch.sample_id), _tensor(batch.ts_ns), batch.position,
        None if batch.repeated is None else _tensor(batch.repeated),
        None if batch.source is None else _tensor(batch.source),
    )  # fmt: skip


def _tensor(array: Any) -> Any:
    if array.dtype.hasobject:
        return array.tolist()
    torch = imported_torch()
    found = torch.from_numpy(np.ascontiguousarray(array))
    # Pinned memory goes to the device while the program goes on; in a worker it would have to cross a process.
    return found.pin_memory() if torch.cuda.is_available() and worker_info() is None else found
