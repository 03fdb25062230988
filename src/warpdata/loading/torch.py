"""Tables as torch datasets. The door of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from warpdata.catalog.refarray import bound_dict
from warpdata.catalog.table import StreamRequest, Table
from warpdata.errors import MissingExtraError
from warpdata.loading.ranks import rank_and_world
from warpdata.loading.stream import TableStream


def torch_dataset(table: Table, request: StreamRequest) -> Any:
    """An IterableDataset of dictionaries of tensors; ranks and DataLoader workers share the rows."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError.for_extra("torch", "torch") from None

    class TorchTable(_TorchTable, torch.utils.data.IterableDataset):  # type: ignore
        """Batches of one table as tensors."""

        def __reduce__(self) -> tuple[Any, ...]:
            return _rebuilt, (self._table, self._request, self._state)

    return TorchTable(table, request)


def _rebuilt(table: Table, request: StreamRequest, state: Any) -> Any:
    dataset = torch_dataset(table, request)
    dataset.load_state_dict(state)
    return dataset


class _TorchTable:
    """What every torch table does, whatever torch is."""

    def __init__(self, table: Table, request: StreamRequest) -> None:
        self._table = table
        self._request = request
        self._state: Any = None
        self._stream: TableStream | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        rank, world = rank_and_world(self._request.shard)
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            rank, world = rank * worker.num_workers + worker.id, world * worker.num_workers
        self._stream = TableStream(self._table, replace(self._request, shard=(rank, world)))
        if self._state is not None:
            self._stream.load_state_dict(self._state)
            self._state = None
        types = self._table.ref_types()
        for batch in self._stream:
            lists = bound_dict(batch.select(list(types)), types) if types else {}
            yield {
                name: lists[name] if name in lists else _tensor(torch, batch.column(i))
                for i, name in enumerate(batch.schema.names)
            }

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is."""
        if self._stream is None:
            return TableStream(self._table, self._request).state_dict()
        return self._stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state the next time it is iterated."""
        self._state = state


def _tensor(torch: Any, column: Any) -> Any:
    """A numeric column as a tensor, lists of numbers of one length as a matrix, anything else as a list."""
    try:
        array = column.to_numpy(zero_copy_only=False)
        if array.dtype == object and len(array) and isinstance(array[0], np.ndarray):
            array = np.stack(array)
        if array.dtype.kind in "biuf":
            return torch.from_numpy(
                np.ascontiguousarray(array).copy() if not array.flags.writeable else array
            )
    except (ValueError, TypeError):
        pass
    return column.to_pylist()
