"""Tables as torch datasets: tensors, shared by ranks and DataLoader workers, with states that say where training is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from warpdata.catalog.read.columns import bound_dict, python_values
from warpdata.catalog.table import StreamRequest, Table
from warpdata.corpora.torch import Passes, StatefulLoader, imported_torch, torch_epochs, worker_info
from warpdata.loading.ranks import known_rank
from warpdata.loading.tables.arrays import ColumnValues, check_nulls, mask_of, numbers_of
from warpdata.loading.tables.share import ReaderProgress
from warpdata.loading.tables.shuffled import ShuffledStream
from warpdata.loading.tables.stream import TableStream
from warpdata.ordering.epochs import Place, Step

Tag = tuple[int, int, int, int]
"""Which reader of how many gave a batch, the rows that are done after it, and those it gave."""


def torch_dataset(table: Table, request: StreamRequest, nulls: str = "error") -> Any:
    """An IterableDataset of dictionaries of tensors; ranks and DataLoader workers share the rows."""
    if request.shuffle:
        return torch_epochs(ShuffledTensors(table, request, nulls))
    torch = imported_torch()

    class TorchTable(_TorchTable, torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Batches of one table as tensors."""

    return TorchTable(table, request, nulls)


def _rebuilt(table: Table, request: StreamRequest, nulls: str, passes: Passes, state: Any) -> Any:
    dataset = torch_dataset(table, request, nulls)
    dataset._passes, dataset._state, dataset._start_number = passes, state, passes.start_number
    return dataset


class _TorchTable:
    """Every iteration is a pass over the rows of this rank: the first goes on from a state that was loaded."""

    def __init__(self, table: Table, request: StreamRequest, nulls: str) -> None:
        check_nulls(nulls, table.schema().names)
        self._table = table
        self._request = request
        self._nulls = nulls
        self._passes = Passes()
        self._start_number = self._passes.start_number
        self._state: Any = None
        """Where the first pass begins."""
        self._own: Any = None
        """Where this worker begins, if its loader keeps a state for each worker."""
        self._stream: TableStream | None = None
        """What this process reads."""
        self._noted: dict[int, ReaderProgress] = {}
        """How far readers are whose batches a loader handed over."""
        self._noted_readers = 0
        self._plan: TableStream | None = None
        """The stream that the readers of a loader share, made when first needed."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, dict[str, Any]]]:
        """Batches, each with where its reader is after it."""
        reader, readers = _reader()
        stream = self._opened(reader, readers, self._first())
        self._passes.begin()
        self._forget()
        self._stream, self._own = stream, None
        for batch in stream:
            done = stream.progress[reader]
            yield (reader, readers, done.rows, done.given), tensors_of(self._table, batch, self._nulls)
        if worker_info() is None:
            self._stream = None

    def _first(self) -> Any:
        """The state the next pass begins with, or None for the beginning."""
        if self._own is not None:
            return self._own
        if self._start_number != self._passes.start_number:
            raise RuntimeError(
                "a state was loaded after workers that persist had begun: make a new DataLoader for it"
            )
        return self._state if self._passes.number() == 0 else None

    def _opened(self, reader: int, readers: int, state: Any) -> TableStream:
        stream = TableStream(self._table, self._request, reader, readers)
        if state is not None:
            stream.load_state_dict(state)
        return stream

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    def note_begin(self) -> None:
        """A loader begins a pass."""
        self._forget()

    def note(self, tag: Tag) -> None:
        """A loader handed the batch with this tag over."""
        reader, self._noted_readers, rows, given = tag
        self._noted[reader] = ReaderProgress(rows, given)

    def note_end(self) -> None:
        """The pass is over: the next one begins."""
        self._passes.settle()
        self._forget()

    def _noted_state(self) -> dict[str, Any]:
        if self._plan is None:
            first = self._state if self._passes.number() == 1 else None
            self._plan = self._opened(0, self._noted_readers, first)
        return self._plan.state_of({**self._plan.progress, **self._noted})

    def _forget(self) -> None:
        self._stream, self._plan, self._noted = None, None, {}

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: after the batch given last, or at the beginning of the next pass."""
        if self._noted:
            return self._noted_state()
        if self._stream is not None:
            return self._stream.state_dict()
        if worker_info() is None and self._passes.is_with_workers:
            raise RuntimeError(
                "DataLoader workers read this table, and only they know how far: iterate "
                "dataset.loader(num_workers=…) and use its state_dict(), or use torchdata's StatefulDataLoader"
            )
        return self._opened(*_reader(), self._first()).state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state of this rank, or from those of all ranks, the next time it is iterated."""
        self._opened(*_reader(), state)  # refuses a state that does not fit
        self._forget()
        if worker_info() is not None:
            self._own = state
            return
        self._state = state
        self._passes.restart()
        self._start_number = self._passes.start_number

    def __reduce__(self) -> tuple[Any, ...]:
        request = replace(self._request, shard=known_rank(self._request.shard))
        return _rebuilt, (self._table, request, self._nulls, self._passes, self._state)


class ShuffledTensors(ShuffledStream):
    """A shuffled table whose batches are tensors: every iteration of the dataset over it is an epoch."""

    def __init__(self, table: Table, request: StreamRequest, nulls: str) -> None:
        check_nulls(nulls, table.schema().names)
        super().__init__(table, request)
        self._nulls = nulls

    def tensor_steps(self, place: Place, worker: int, workers: int) -> Iterator[tuple[Step, dict[str, Any]]]:
        """Batches of tensors; of several workers each gives every n-th."""
        epoch, position = place
        for step, batch in self.read_steps(epoch, position, worker, workers):
            yield step, tensors_of(self._table, batch, self._nulls)

    def __reduce__(self) -> tuple[Any, ...]:
        request = replace(self._request, shard=known_rank(self._request.shard))
        return ShuffledTensors, (self._table, request, self._nulls)


def tensors_of(table: Table, batch: Any, nulls: str) -> dict[str, Any]:
    """The columns of a batch: numbers as tensors, everything else as lists."""
    types = table.ref_types()
    lists = bound_dict(batch.select(list(types)), types) if types else {}
    found: dict[str, Any] = {}
    for index, name in enumerate(batch.schema.names):
        if name in lists:
            found[name] = lists[name]
            continue
        numbers = numbers_of(batch.column(index), name, nulls)
        found[name] = python_values(batch.column(index), name) if numbers is None else _tensor(numbers)
        if numbers is not None and nulls == "mask":
            found[mask_of(name)] = _as_tensor(numbers.valid)
    return found


def _reader() -> tuple[int, int]:
    """Which reader of its rank this process is, and of how many."""
    info = worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _tensor(numbers: ColumnValues) -> Any:
    if isinstance(numbers.values, list):
        return [_as_tensor(row) for row in numbers.values]
    return _as_tensor(numbers.values)


def _as_tensor(array: Any) -> Any:
    """A tensor with memory of its own: Arrow's may not be written to."""
    return imported_torch().from_numpy(np.array(array, order="C"))
