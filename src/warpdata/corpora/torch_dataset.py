"""The adapter of torch: a shuffled corpus as an IterableDataset, the same batches for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdata.corpora.shuffled import ShuffledRows, ShuffleOptions
from warpdata.corpora.torch_epochs import Place, PlainStep, TorchEpochs, as_iterable_dataset
from warpdata.corpora.torch_passes import imported_torch
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
    return as_iterable_dataset(CorpusDataset)(CorpusEpochs(source, options))


class CorpusEpochs:
    """A corpus in a shuffled order, from any place on; a state brings its seed along."""

    def __init__(self, source: FixedOrderSource, options: ShuffleOptions) -> None:
        self._source = source
        self._options = options
        with ShuffledRows(source, options) as rows:
            self.total = rows.shape.total_rows
            self._plan = rows.state_dict()["plan"]

    @property
    def place(self) -> Place:
        """Seed, epoch and position it begins with."""
        return (self._options.seed, self._options.epoch, 0)

    def steps_left(self, position: int) -> int:
        """How many batches an epoch has from a position on."""
        left, size = self.total - position, self._options.batch_size
        return left // size if self._options.tail == "drop" else -(-left // size)

    def tensor_steps(self, place: Place, worker: int, workers: int) -> Iterator[tuple[PlainStep, TorchBatch]]:
        """Batches of tensors from a place on; of several workers each gives every n-th."""
        torch = imported_torch()
        options = replace(self._options, worker=worker, workers=workers)
        behind = (workers - 1 - worker) * options.batch_size
        with self._source.reopened() as source, ShuffledRows(source, options) as rows:
            rows.load_state_dict(self.state_at(place))
            for batch in rows:
                after, ids = rows.position, torch.from_numpy(batch.row_ids.view("int64"))
                step = PlainStep(after, min(after + behind, self.total))
                yield step, TorchBatch(torch.from_numpy(batch.rows), ids, after)

    def note(self, left_out: tuple[tuple[str, str], ...]) -> None:
        """Nothing is left out of a corpus."""

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place; at the end of an epoch nothing of it is left."""
        _ = is_worker
        seed, epoch, position = place
        return OrderState(seed, epoch, position, self._plan).to_dict()

    def checked_state(self, state: Mapping[str, Any]) -> Place:
        """Where a state stands, or ValueError where it is of another corpus or shuffle."""
        parsed = parse_state(state, self._plan)
        if parsed.position > self.total:
            raise ValueError(f"position {parsed.position} of {self.total} rows")
        return (parsed.seed, parsed.epoch, parsed.position)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CorpusEpochs, (self._source, self._options))


class CorpusDataset(TorchEpochs):
    """Batches of tensors in the order of the shuffle, whatever the number of workers."""

    _asked_instead = (
        "use dataset.state_after(batch), iterate dataset.loader(num_workers=…), or torchdata's "
        "StatefulDataLoader"
    )

    def state_after(self, batch: TorchBatch) -> dict[str, Any]:
        """The state to go on with after this batch of the pass begun last, whatever workers have read ahead."""
        seed, epoch, _ = self._passes.start
        passed = max(0, self._passes.number() - 1)
        return self._source.state_at((seed, (epoch + passed) % (1 << 64), int(batch.position)))
