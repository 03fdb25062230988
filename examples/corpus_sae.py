"""Harvest activations of a small model, train a tiny sparse autoencoder on the shuffled rows, resume it mid-epoch.

    python examples/corpus_sae.py [FOLDER]

The first half of the epoch is read with one worker, the second half with two. The batches are bit for bit those of
an uninterrupted run, and so are the weights. Needs torch.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import warpdata as wd

WIDTH, LATENTS, BATCH = 32, 64, 256


def harvest(folder: Path) -> None:
    """Run a small model over tokens; a forward hook appends every hidden row and where it came from."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, WIDTH), torch.nn.GELU())
    tokens = torch.randint(0, 100, (64, 128))
    side: dict[str, np.ndarray] = {}
    with wd.CorpusWriter(
        folder,
        WIDTH,
        dtype="bf16",
        shard_bytes=64 << 10,
        columns={"token_id": "i32", "position": "i32"},
        provenance={"model": "tiny", "layer": 2},
    ) as writer:
        model[2].register_forward_hook(writer.hook(lambda: side))
        for batch in tokens.split(8):
            side["token_id"] = batch.reshape(-1).to(torch.int32).numpy()
            side["position"] = np.tile(np.arange(128, dtype=np.int32), len(batch))
            with torch.no_grad():
                model(batch)


def batches(dataset: Any, workers: int) -> Iterator[Any]:
    """The batches of the rest of the epoch, made by this many worker processes."""
    yield from DataLoader(dataset, batch_size=None, num_workers=workers)


class Trainer:
    """A sparse autoencoder, and a running hash of the batches it saw."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.encoder, self.decoder = torch.nn.Linear(WIDTH, LATENTS), torch.nn.Linear(LATENTS, WIDTH)
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(parameters, 3e-3)
        self.losses: list[float] = []
        self.seen = hashlib.sha256()

    def step(self, rows: torch.Tensor) -> None:
        """One step on one batch."""
        latents = torch.relu(self.encoder(rows))
        loss = (self.decoder(latents) - rows).square().mean() + 1e-3 * latents.abs().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seen.update(rows.numpy().tobytes())


def dataset_of(source: wd.MmapShardSource) -> Any:
    """The shuffled corpus as a torch dataset; both runs make it alike."""
    return source.to_torch(batch_size=BATCH, seed=7)


def train_whole(source: wd.MmapShardSource) -> Trainer:
    """One epoch without interruption."""
    trainer = Trainer()
    for batch in batches(dataset_of(source), workers=0):
        trainer.step(batch.rows)
    return trainer


def train_interrupted(source: wd.MmapShardSource, stop: int) -> Trainer:
    """The same epoch, stopped after some batches and resumed with another number of workers."""
    trainer, dataset = Trainer(), dataset_of(source)
    for batch in islice(batches(dataset, workers=1), stop):
        trainer.step(batch.rows)
        state = dataset.state_after(batch)
    print(f"stopped with state {state}")
    resumed = dataset_of(source)
    resumed.load_state_dict(state)
    for batch in batches(resumed, workers=2):
        trainer.step(batch.rows)
    return trainer


def main(folder: Path) -> None:
    """Harvest, train twice, compare."""
    harvest(folder / "corpus")
    with wd.MmapShardSource.open_dir(folder / "corpus", dtype="float32") as source:
        print(f"harvested {source.total_rows} rows of width {source.width}")
        whole, interrupted = train_whole(source), train_interrupted(source, stop=11)
    assert whole.seen.digest() == interrupted.seen.digest(), "the batches differ"
    assert torch.equal(whole.encoder.weight, interrupted.encoder.weight), "the weights differ"
    print(f"loss {whole.losses[0]:.4f} -> {whole.losses[-1]:.4f}; resumed run is bit for bit the same")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
