"""The corpus part of the demo: harvest rows, kill the harvest, go on, shuffle, resume, warm-start."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import warpdata as wd

WIDTH = 64


def rows(first: int, count: int) -> np.ndarray:
    """Activations of a model nobody has to download."""
    ids = np.arange(first, first + count, dtype=np.float64)[:, None]
    return np.sin(ids * 0.01 + np.arange(WIDTH)) * (1 + np.arange(WIDTH) / WIDTH)


def main(folder: str | Path) -> None:
    """Run the corpus pass inside `folder` and say what happened."""
    corpus = Path(folder) / "corpus"
    writer = wd.CorpusWriter(corpus, WIDTH, dtype="bf16", shard_bytes=256 << 10, columns={"token_id": "i32"})
    for first in range(0, 6000, 500):
        writer.append(rows(first, 500), token_id=np.arange(first, first + 500) % 977)
    writer.abandon()  # as a kill would
    with wd.CorpusWriter.reopen(corpus, shard_bytes=256 << 10) as again:
        print(f"corpus: {again.total_rows} rows survived a killed harvest; going on")
        for first in range(again.total_rows, 10_000, 500):
            again.append(rows(first, 500), token_id=np.arange(first, first + 500) % 977)
        print(f"corpus: mean row norm {again.statistics()['norm_mean']:.3f}")
    with wd.MmapShardSource.open_dir(corpus, dtype="float32") as source:
        shuffle(source)
        warm(source, Path(folder) / "warm")


def shuffle(source: wd.MmapShardSource) -> None:
    """One epoch of one process, and the second half of it again on four ranks."""
    options = {"seed": 3, "batch_size": 512, "block_rows": 64, "window_blocks": 32}
    with wd.ShuffledRows(source, **options) as stream:
        seen = [stream.next_batch().row_ids for _ in range(10)]
        state = stream.state_dict()
        rest = [batch.row_ids for batch in stream]
        quality = stream.shuffle_quality()
    assert np.array_equal(np.sort(np.concatenate(seen + rest)), np.arange(source.total_rows))
    parts = []
    for rank in range(4):
        with wd.ShuffledRows(source, **options, rank=rank, world=4) as stream:
            stream.load_state_dict(state)
            parts.append([batch.row_ids for batch in stream])
    resumed = [np.concatenate(batches) for batches in zip(*parts, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(resumed, rest, strict=True))
    print(
        f"corpus: shuffled, {quality.blocks_per_batch:.0f} blocks in a batch; resumed on 4 ranks: same batches"
    )


def warm(source: wd.MmapShardSource, folder: Path) -> None:
    """A solver's state for a nested twentieth of the rows, found again after reopening."""
    with wd.RowWarmCache(folder, model="demo", total_rows=source.total_rows) as cache:
        for batch in wd.FractionRows(source, 1 / 20):
            latents = list(batch.rows[:, :4].astype(np.float64))
            active = [[0, 1]] * len(batch)
            cache.put(wd.WarmRows.from_rows(batch.row_ids, latents, active, np.full(len(batch), 3)))
    with wd.RowWarmCache(folder, model="demo", total_rows=source.total_rows) as cache:
        print(f"corpus: {len(cache)} warm starts kept over a restart")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(temp)
