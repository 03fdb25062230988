"""Tables as torch datasets: tensors, shared by ranks and DataLoader workers, with states to continue from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from warpdata.catalog.read.refs import bound_dict, python_values
from warpdata.catalog.table import StreamRequest, Table
from warpdata.loading.ranks import known_rank
from warpdata.loading.tables.arrays import check_nulls, mask_of, numbers_of
from warpdata.loading.tables.share import ReaderProgress
from warpdata.loading.tables.stream import ShuffledStream, TableStream
from warpdata.ordering.epochs import Step
from warpdata.ordering.torch import Passes, StatefulLoader, imported_torch, torch_epochs, worker_info

Tag = tuple[int, int, int, int]
"""The reader that gave a batch, how many readers there are, the rows done after it, and those it gave."""


def torch_dataset(table: Table, request: StreamRequest, nulls: str = "error") -> Any:
    """An IterableDataset of dictionaries of tensors; ranks and DataLoader workers share the rows."""
    check_nulls(nulls, table.schema().names)
    if request.shuffle:
        return torch_epochs(ShuffledTensors(table, request, nulls))

    class TorchTable(_TorchTable, imported_torch().utils.data.IterableDataset):  # type: ignore[misc]
        """Batches of one table as tensors."""

    return TorchTable(table, request, nulls)


def _rebuild(table: Table, request: StreamRequest, nulls: str, passes: Passes, state: Any) -> Any:
    dataset = torch_dataset(table, request, nulls)
    dataset._passes, dataset._state, dataset._start_number = passes, state, passes.start_number
    return dataset


class _TorchTable:
    """Every iteration is a pass over the rows of this rank: the first continues a loaded state."""

    def __init__(self, table: Table, request: StreamRequest, nulls: str) -> None:
        self._table = table
        self._request = request
        self._nulls = nulls
        self._passes = Passes()
        self._start_number = self._passes.start_number
        self._state: Any = None
        """The state the first pass begins with."""
        self._own: Any = None
        """The state this worker begins with, if its loader keeps a state for each worker."""
        self._stream: TableStream | None = None
        """The stream this process reads."""
        self._noted: dict[int, ReaderProgress] = {}
        """ReaderProgress of the readers whose batches a loader handed over."""
        self._noted_readers = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, dict[str, Any]]]:
        """Batches, each with the progress of its reader after it."""
        reader, readers = _reader()
        stream = self._open(reader, readers, self._next_state())
        self._passes.begin()
        self._stream, self._own, self._noted = stream, None, {}
        for batch in stream:
            yield (reader, readers, *stream.progress[reader]), tensors_of(self._table, batch, self._nulls)
        if worker_info() is None:
            self._stream = None

    def _next_state(self) -> Any:
        """The state the next pass begins with, or None for the beginning."""
        if self._own is not None:
            return self._own
        if self._start_number != self._passes.start_number:
            raise RuntimeError(
                "a state was loaded after workers that persist had begun: make a new DataLoader for it"
            )
        return self._state if self._passes.number() == 0 else None

    def _open(self, reader: int, readers: int, state: Any) -> TableStream:
        stream = TableStream(self._table, self._request, reader, readers)
        if state is not None:
            stream.load_state_dict(state)
        return stream

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    def note_begin(self) -> None:
        """A loader begins a pass."""
        self._stream, self._noted = None, {}

    def note(self, tag: Tag) -> None:
        """A loader handed the batch with this tag over."""
        reader, self._noted_readers, *progress = tag
        self._noted[reader] = ReaderProgress(*progress)

    def note_end(self) -> None:
        """The pass is over: the next one begins."""
        self._passes.settle()
        self.note_begin()

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: after the batch given last, or at the beginning of the next pass."""
        if self._noted:
            state = self._state if self._passes.number() == 1 else None
            shared = self._open(0, self._noted_readers, state)
            return shared.state_of({**shared.progress, **self._noted})
        if self._stream is not None:
            return self._stream.state_dict()
        if worker_info() is None and self._passes.is_with_workers:
            raise RuntimeError(
                "DataLoader workers read this table, and only they know how far: iterate "
                "dataset.loader(num_workers=…) and use its state_dict(), or use torchdata's StatefulDataLoader"
            )
        return self._open(*_reader(), self._next_state()).state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state of this rank, or from those of all ranks, the next time it is iterated."""
        self._open(*_reader(), state)  # refuses a state that does not fit
        self.note_begin()
        if worker_info() is not None:
            self._own = state
            return
        self._state = state
        self._passes.restart()
        self._start_number = self._passes.start_number

    def __reduce__(self) -> tuple[Any, ...]:
        request = replace(self._request, shard=known_rank(self._request.shard))
        return _rebuild, (self._table, request, self._nulls, self._passes, self._state)


class ShuffledTensors(ShuffledStream):
    """A shuffled table whose batches become tensors: every iteration of the dataset over it is an epoch."""

    def __init__(self, table: Table, request: StreamRequest, nulls: str) -> None:
        super().__init__(table, request)
        self._nulls = nulls

    def to_tensors(self, step: Step, batch: Any) -> dict[str, Any]:  # noqa: ARG002
        """A batch as tensors and lists."""
        return tensors_of(self._table, batch, self._nulls)

    def __reduce__(self) -> tuple[Any, ...]:
        request = replace(self._request, shard=known_rank(self._request.shard))
        return ShuffledTensors, (self._table, request, self._nulls)


def tensors_of(table: Table, batch: Any, nulls: str) -> dict[str, Any]:
    """The columns of a batch: numbers as tensors with memory of their own, everything else as lists."""
    types = table.ref_types()
    lists = bound_dict(batch.select(list(types)), types) if types else {}
    from_numpy = imported_torch().from_numpy
    columns: dict[str, Any] = {}
    for index, name in enumerate(batch.schema.names):
        numbers = None if name in lists else numbers_of(batch.column(index), name, nulls)
        if numbers is None:
            columns[name] = lists[name] if name in lists else python_values(batch.column(index), name)
        elif isinstance(numbers.values, list):
            columns[name] = [from_numpy(np.array(row, order="C")) for row in numbers.values]
        else:
            columns[name] = from_numpy(np.array(numbers.values, order="C"))
        if numbers is not None and nulls == "mask":
            columns[mask_of(name)] = from_numpy(np.array(numbers.valid, order="C"))
    return columns


def _reader() -> tuple[int, int]:
    """The number of this reader of its rank, and how many there are."""
    info = worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
