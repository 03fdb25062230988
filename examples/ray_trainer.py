"""Ray's TorchTrainer with our loader: Ray starts the workers, the loader finds out which of them it is.

    python examples/ray_trainer.py [FOLDER [WORKERS]]

Ray starts processes on many machines, and starts them again. The samples come from `wd.Loader`, because it resumes
exactly, on any number of workers, from a state of a hundred bytes in Ray's checkpoint.
Needs the extra `ray`, `ray[train]` and torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model

import warpdata as wd

EPISODES, STEPS, BATCH = 6, 50, 30


def record(root: Path) -> None:
    """Episodes whose action is a linear function of the state."""
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        with wd.record(root, clock="simulated") as rec:
            for k in range(STEPS):
                state = rng.normal(size=4).astype(np.float32)
                rec.step({"state": state}, {"action": state[:2] * 2 - 1}, ts_ns=k * 20_000_000)


def train_one(config: dict[str, Any]) -> None:
    """One worker: so many steps, from the beginning or from a checkpoint."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fields = {"state": wd.Field("state"), "action": wd.Field("action")}
    windows = wd.Windows(wd.open_recordings(config["root"]), fields, anchor="action")
    loader = wd.Loader(windows, BATCH, seed=3)  # no rank, no world: torch.distributed knows them
    context = train.get_context()
    assert (loader.rank, loader.world) == (context.get_world_rank(), context.get_world_size())
    model = prepare_model(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # The checkpoint of this job, if Ray started it again; else that of an earlier job.
    saved = train.get_checkpoint() or config["saved"]
    if saved is not None:
        with saved.as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
            getattr(model, "module", model).load_state_dict(torch.load(Path(folder, "model.pt")))
    steps, seen = 0, Path(config["seen"], f"{config['turn']}-{loader.rank}.txt")
    while steps < config["steps"]:
        for batch in loader:
            loss = (
                (model(torch.from_numpy(batch["state"])) - torch.from_numpy(batch["action"])).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with seen.open("a") as file:
                file.write(f"{' '.join(map(str, batch.sample_id.tolist()))}\n")
            steps += 1
            if steps == config["steps"]:
                break
    with tempfile.TemporaryDirectory() as folder:
        found = None
        if loader.rank == 0:  # the state is the same on every rank: one of them keeps it
            Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
            torch.save(getattr(model, "module", model).state_dict(), Path(folder, "model.pt"))
            found = train.Checkpoint.from_directory(folder)
        train.report({"loss": loss.item()}, checkpoint=found)


def fit(folder: Path, turn: int, workers: int, steps: int, saved: Any) -> Any:
    """A job of so many workers, from the beginning or from a checkpoint of another one."""
    config = {"root": str(folder / "root"), "seen": str(folder), "turn": turn, "steps": steps, "saved": saved}
    trainer = TorchTrainer(
        train_one,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(name=f"turn{turn}", storage_path=str(folder / "runs")),
    )
    return trainer.fit()


def seen(folder: Path, turn: int, workers: int) -> list[list[int]]:
    """The samples of every step of a job, all workers together."""
    parts = [(folder / f"{turn}-{rank}.txt").read_text().splitlines() for rank in range(workers)]
    return [[int(each) for line in step for each in line.split()] for step in zip(*parts, strict=True)]


def main(folder: Path, workers: int = 2) -> None:
    """Six steps on some workers, then the other fourteen of two epochs on one: together every sample twice."""
    record(folder / "root")
    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    per_epoch = EPISODES * STEPS // BATCH
    first = fit(folder, 0, workers, 6, None)
    second = fit(folder, 1, 1, 2 * per_epoch - 6, first.checkpoint)
    steps = seen(folder, 0, workers) + seen(folder, 1, 1)
    for epoch in (steps[:per_epoch], steps[per_epoch:]):
        assert sorted(sample for step in epoch for sample in step) == list(range(EPISODES * STEPS))
    assert second.metrics["loss"] < first.metrics["loss"]
    print(f"{workers} workers, then 1: {len(steps)} steps, every sample once per epoch")
    ray.shutdown()


if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    main(given.absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
