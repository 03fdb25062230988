"""The adapter of torch: a shuffled corpus as an IterableDataset, the same batches for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdata.corpora.shuffled import ShuffledRows, ShuffleOptions
from warpdata.corpora.torch_passes import Passes, StatefulLoader, imported_torch, worker_info
from warpdata.ordering.state import OrderState, parse_state

if TYPE_CHECKING:
    from warpdata.corpora.source import FixedOrderSource


class TorchBatch(NamedTuple):
    """A batch of tensors, and the position of the epoch after it."""

    rows: Any
    row_ids: Any
    position: int


def torch_dataset(source: FixedOrderSource, options: ShuffleOptions) -> Any:
    """An IterableDataset over the shuffled corpus; use its `loader`, or DataLoader(dataset, batch_size=None)."""
    return _dataset_class()(source, options)


@cache
def _dataset_class() -> Any:
    torch = imported_torch()

    class CorpusDataset(_Corpus, torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        """Batches of tensors in the order of the shuffle, whatever the number of workers."""

    return CorpusDataset


class _Corpus:
    """Every iteration is one epoch: the first is the rest of the one the state is in, then the next ones follow.

    `set_epoch` says which epoch comes next. Workers, ranks and seeds of torch do not change the order.
    """

    def __init__(self, source: FixedOrderSource, options: ShuffleOptions) -> None:
        self._source = source
        self._options = options
        with ShuffledRows(source, options) as rows:
            self._batch_size = rows.batch_size
            self._total_rows = rows.shape.total_rows
            self._plan = rows.state_dict()["plan"]
        self._passes = Passes((options.seed, options.epoch, 0))
        self._own: OrderState | None = None
        """Where this worker goes on, if its loader keeps a state for each worker."""
        self._now: OrderState | None = None
        """Where this process is, once it has given or noted a batch."""

    def __iter__(self) -> Iterator[TorchBatch]:
        torch = imported_torch()
        info = worker_info()
        options = self._options
        if info is not None:
            options = replace(options, worker=info.id, workers=info.num_workers)
        first = self._begin()
        with self._source.reopened() as source, ShuffledRows(source, options) as rows:
            rows.load_state_dict(first.to_dict())
            for batch in rows:
                self._now = self._after(first, rows.position)
                ids = torch.from_numpy(batch.row_ids.view("int64"))
                yield TorchBatch(torch.from_numpy(batch.rows), ids, rows.position)
        self._now = None if info is None else replace(first, position=self._total_rows)

    def _begin(self) -> OrderState:
        """Begin a pass: where it starts."""
        first = self._next_start()
        number = self._passes.begin()
        if self._own is not None:  # the passes after this one follow from here
            self._passes.move_start((first.seed, first.epoch - number, 0))
        self._own, self._now = None, None
        return first

    def _next_start(self) -> OrderState:
        """Where the next pass of this process starts."""
        if self._own is not None:
            return self._own
        number = self._passes.number()
        seed, epoch, position = self._passes.start
        return OrderState(seed, (epoch + number) % (1 << 64), 0 if number else position, self._plan)

    def _after(self, first: OrderState, position: int) -> OrderState:
        """The state after a batch. A worker counts from where all workers stand when each has given as many."""
        info = worker_info()
        if info is not None:
            position += (info.num_workers - 1 - info.id) * self._batch_size
        return replace(first, position=min(position, self._total_rows))

    def __len__(self) -> int:
        """Batches of a whole epoch, also where the next iteration gives the rest of one: trainers count from there."""
        rows, size = self._total_rows, self._batch_size
        return rows // size if self._options.tail == "drop" else -(-rows // size)

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    def set_epoch(self, epoch: int) -> None:
        """Iterate from the beginning of an epoch next; without it every iteration is the next epoch."""
        self._restart(OrderState(self._passes.start[0], epoch, 0, self._plan))

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is: after the batch given last, or at the beginning of the next epoch."""
        info = worker_info()
        if info is not None:
            state = (self._now or self._next_start()).to_dict()
            return {**state, "worker": info.id, "workers": info.num_workers}
        if self._now is None and self._passes.is_with_workers:
            raise RuntimeError(
                "DataLoader workers read this corpus, and only they know how far: use dataset.state_after(batch), "
                "iterate dataset.loader(num_workers=…), or torchdata's StatefulDataLoader"
            )
        return (self._now or self._next_start()).to_dict()

    def state_after(self, batch: TorchBatch) -> dict[str, Any]:
        """The state to go on with after this batch of the pass begun last, whatever workers have read ahead."""
        return self._noted(int(batch.position)).to_dict()

    def _noted(self, position: int) -> OrderState:
        seed, epoch, _ = self._passes.start
        passed = max(0, self._passes.number() - 1)
        return OrderState(seed, (epoch + passed) % (1 << 64), position, self._plan)

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
        parsed = parse_state(state, self._plan)
        if parsed.position > self._total_rows:
            raise ValueError(f"position {parsed.position} of {self._total_rows} rows")
        if info is not None:
            self._own, self._now = parsed, None
        else:
            self._restart(parsed)

    def _restart(self, start: OrderState) -> None:
        self._passes.restart((start.seed, start.epoch, start.position))
        self._own, self._now = None, None

    def tagged(self) -> Iterator[tuple[int, TorchBatch]]:
        """Batches with the position after them."""
        for batch in self:
            yield batch.position, batch

    def note_begin(self) -> None:
        """A loader begins an epoch."""
        self._now = None

    def note(self, tag: int) -> None:
        """The batch before this position was handed over."""
        self._now = self._noted(tag)

    def note_end(self) -> None:
        """The epoch is over: the next one begins."""
        self._now = None
        self._passes.settle()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self._source, self._options, self._passes))


def _restored(source: FixedOrderSource, options: ShuffleOptions, passes: Passes) -> Any:
    dataset = torch_dataset(source, options)
    dataset._passes = passes
    return dataset
