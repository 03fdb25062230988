"""A shuffled corpus as a torch IterableDataset."""

from __future__ import annotations

from typing import Any

from warpdata.corpora.shuffled import ShuffledRows, TorchBatch
from warpdata.corpora.torch_epochs import TorchEpochs, as_iterable_dataset


def torch_dataset(rows: ShuffledRows) -> Any:
    """An IterableDataset over the shuffled corpus; use its `loader`, or DataLoader(dataset, batch_size=None)."""
    return as_iterable_dataset(CorpusDataset)(rows)


class CorpusDataset(TorchEpochs):
    """Batches of tensors in the order of the shuffle, whatever the number of workers."""

    _hint = (
        "use dataset.state_after(batch), iterate dataset.loader(num_workers=…), or torchdata's "
        "StatefulDataLoader"
    )

    def state_after(self, batch: TorchBatch) -> dict[str, Any]:
        """The state to go on with after this batch of the pass begun last, whatever workers have read ahead."""
        epoch, _ = self._passes.start
        passed = max(0, self._passes.number() - 1)
        return self._source.state_at((epoch + passed, int(batch.position)))
