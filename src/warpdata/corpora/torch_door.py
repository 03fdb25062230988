"""The door of torch: a shuffled corpus as an IterableDataset, the same batches for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdata.corpora.shuffled import ShuffledRows, ShuffleOptions
from warpdata.errors import MissingExtraError
from warpdata.ordering.state import OrderState

if TYPE_CHECKING:
    from warpdata.corpora.source import FixedOrderSource


class TorchBatch(NamedTuple):
    """A batch of tensors, and the position of the epoch after it."""

    rows: Any
    row_ids: Any
    position: int


def torch_dataset(source: FixedOrderSource, options: ShuffleOptions) -> Any:
    """An IterableDataset over the shuffled corpus; use it with DataLoader(dataset, batch_size=None)."""
    return _dataset_class()(source, options)


@cache
def _dataset_class() -> Any:  # noqa: C901 - a class that exists only where torch does
    try:
        import torch
        from torch.utils.data import IterableDataset, get_worker_info
    except ImportError:
        raise MissingExtraError.for_extra("torch", "torch") from None

    class CorpusDataset(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        """Batches of tensors in the order of the shuffle, whatever the number of workers.

        Every iteration is the rest of one epoch: call `set_epoch` for the next, as with a distributed
        sampler.
        """

        def __init__(self, source: FixedOrderSource, options: ShuffleOptions) -> None:
            self._source = source
            self._options = options
            self._state = ShuffledRows(source, options).state_dict()

        def __iter__(self) -> Iterator[TorchBatch]:
            info = get_worker_info()
            options = self._options
            if info is not None:
                options = replace(options, worker=info.id, workers=info.num_workers)
            with self._source.reopened() as source, ShuffledRows(source, options) as rows:
                rows.load_state_dict(self._state)
                for batch in rows:
                    ids = torch.from_numpy(batch.row_ids.view("int64"))
                    if info is None:
                        self._state = rows.state_dict()
                    yield TorchBatch(torch.from_numpy(batch.rows), ids, rows.position)

        def __len__(self) -> int:
            left = ShuffledRows(self._source, self._options)
            return left.batches_per_epoch() - int(self._state["position"]) // left.batch_size

        def set_epoch(self, epoch: int) -> None:
            """Iterate from the beginning of an epoch next."""
            self._state = OrderState(self._state["seed"], epoch, 0, self._state["plan"]).to_dict()

        def state_dict(self) -> dict[str, Any]:
            """Where iteration begins; without workers, after the batch given last."""
            return dict(self._state)

        def state_after(self, batch: TorchBatch) -> dict[str, Any]:
            """The state to go on with after this batch, whatever workers have read ahead."""
            return {**self._state, "position": int(batch.position)}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            """Go on after the batch the state was taken at."""
            with ShuffledRows(self._source, self._options) as rows:
                rows.load_state_dict(state)
                self._state = rows.state_dict()

        def __reduce__(self) -> tuple[Any, ...]:
            return (_restored, (self._source, self._options, self._state))

    return CorpusDataset


def _restored(source: FixedOrderSource, options: ShuffleOptions, state: Mapping[str, Any]) -> Any:
    dataset = torch_dataset(source, options)
    dataset.load_state_dict(state)
    return dataset
