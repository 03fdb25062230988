"""How far a shuffled order is from a uniform one, measured on the order itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpdata.ordering.splitmix import I64


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Blocks a batch draws from, beside what a uniform shuffle would draw from; 1.0 is uniform."""

    blocks_in_play: int
    blocks_per_batch: float
    uniform_blocks_per_batch: float
    same_block_pairs: float
    """Share of row pairs of one batch that were neighbours in one block on disk."""
    uniform_same_block_pairs: float

    @property
    def score(self) -> float:
        """blocks_per_batch over its uniform value: 1.0 is uniform by this measure."""
        return self.blocks_per_batch / self.uniform_blocks_per_batch


def quality_of(
    row_ids: Callable[[int, int], I64], blocks: tuple[I64, I64], in_play: int, batch_size: int, batches: int
) -> ShuffleQuality:
    """Measure an order of rows in blocks, of which the first row and the number of rows are given."""
    firsts, rows = blocks
    total = int(rows.sum())
    batch_size = min(batch_size, total)
    starts = np.unique(np.linspace(0, total - batch_size, batches).astype(np.int64))
    distinct, pairs = [], []
    for start in starts.tolist():
        ids = row_ids(start, start + batch_size)
        counts = np.bincount(np.searchsorted(firsts, ids, "right") - 1)
        distinct.append(int(np.count_nonzero(counts)))
        pairs.append(float((counts * (counts - 1)).sum()) / max(1, batch_size * (batch_size - 1)))
    missed = np.exp(batch_size * np.log1p(-np.minimum(rows / total, 1 - 1e-12)))
    return ShuffleQuality(
        blocks_in_play=in_play,
        blocks_per_batch=float(np.mean(distinct)),
        uniform_blocks_per_batch=float((1 - missed).sum()),
        same_block_pairs=float(np.mean(pairs)),
        uniform_same_block_pairs=float((rows * (rows - 1.0)).sum() / max(1.0, total * (total - 1.0))),
    )
