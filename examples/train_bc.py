"""Behaviour cloning, killed and resumed: record with Gymnasium, publish, train, `kill -9`, go on with two ranks.

    python examples/train_bc.py [FOLDER]

The policy sees two past observations and gives sixteen actions. The loss curve of the interrupted run is, number for
number, that of an uninterrupted run. Needs the extra `gym`; trains with torch where it is installed, else with numpy.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import warpdata as wd

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

HISTORY, CHUNK, BATCH, MICRO = 2, 16, 64, 8
STEPS, SAVE_EVERY, KILLED_AT = 40, 8, 21
NAME = "examples/pendulum"


def record(root: Path, episodes: int = 6) -> None:
    """An expert swings pendulums; every episode lands in `root`."""
    env = wd.RecordEpisodes(gymnasium.make("Pendulum-v1", max_episode_steps=100), root)
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed)
        is_over = False
        while not is_over:
            angle = np.arctan2(seen[1], seen[0])
            torque = np.clip([-8.0 * angle - 2.0 * seen[2]], -2, 2).astype(np.float32)
            seen, _, terminated, truncated, _ = env.step(torque)
            is_over = terminated or truncated
    env.close()


def loader_of(catalog: Path, rank: int, world: int) -> wd.Loader:
    """The samples: two observations, sixteen actions; `BATCH` is the batch of all ranks together."""
    windows = wd.Windows(
        wd.dataset(NAME, catalog=catalog).episodes,
        {"state": wd.Field("observation", past=HISTORY), "action": wd.Field("action", horizon=CHUNK)},
        anchor="action",
    )
    return wd.Loader(windows, BATCH, seed=7, normalize="auto", tail="drop", rank=rank, world=world)


class TorchPolicy:
    """A small network, its optimiser, and a checkpoint that has the loader's state beside them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(HISTORY * 3, 64), torch.nn.Tanh(), torch.nn.Linear(64, CHUNK)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), 3e-3)

    def gradients(
        self, state: np.ndarray, action: np.ndarray, mask: np.ndarray
    ) -> tuple[list[np.ndarray], float]:
        """Gradients and the sum of squared errors of a few samples; padded actions do not count."""
        self.optimizer.zero_grad()
        errors = self.net(torch.from_numpy(state.reshape(len(state), -1))) - torch.from_numpy(action[..., 0])
        loss = (errors.square() * torch.from_numpy(mask[..., 0])).sum()
        loss.backward()
        return [each.grad.numpy().copy() for each in self.net.parameters()], loss.item()

    def apply(self, gradients: list[np.ndarray]) -> None:
        """One step of the optimiser."""
        for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        self.optimizer.step()

    def save(self, path: Path, **more: Any) -> None:
        """A checkpoint that appears whole or not at all."""
        kept = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), **more}
        torch.save(kept, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint."""
        kept = torch.load(path, weights_only=True)
        self.net.load_state_dict(kept["net"])
        self.optimizer.load_state_dict(kept["optimizer"])
        return dict(kept)


class NumpyPolicy:
    """The same by hand, where torch is not installed."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shapes = [(HISTORY * 3, 64), (64,), (64, CHUNK), (CHUNK,)]
        self.weights = [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
        self.speed = [np.zeros_like(each) for each in self.weights]

    def gradients(
        self, state: np.ndarray, action: np.ndarray, mask: np.ndarray
    ) -> tuple[list[np.ndarray], float]:
        """Gradients and the sum of squared errors of a few samples; padded actions do not count."""
        seen = state.reshape(len(state), -1)
        hidden = np.tanh(seen @ self.weights[0] + self.weights[1])
        errors = (hidden @ self.weights[2] + self.weights[3] - action[..., 0]) * mask[..., 0]
        back = 2 * errors @ self.weights[2].T * (1 - hidden**2)
        made = [seen.T @ back, back.sum(0), 2 * hidden.T @ errors, 2 * errors.sum(0)]
        return made, float((errors**2).sum())

    def apply(self, gradients: list[np.ndarray]) -> None:
        """One step with momentum."""
        for weight, speed, gradient in zip(self.weights, self.speed, gradients, strict=True):
            speed *= 0.9
            speed -= 0.02 * gradient
            weight += speed

    def save(self, path: Path, **more: Any) -> None:
        """A checkpoint that appears whole or not at all."""
        arrays = {f"{kind}{i}": a for kind in ("weights", "speed") for i, a in enumerate(getattr(self, kind))}
        with path.with_suffix(".new").open("wb") as file:
            np.savez(file, more=json.dumps(more), **arrays)
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint."""
        with np.load(path, allow_pickle=False) as kept:
            for kind in ("weights", "speed"):
                setattr(self, kind, [kept[f"{kind}{i}"] for i in range(4)])
            return dict(json.loads(str(kept["more"])))


def policy_of() -> TorchPolicy | NumpyPolicy:
    """With torch where it is installed."""
    return NumpyPolicy() if torch is None else TorchPolicy()


def forever(loader: wd.Loader) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def train(
    catalog: Path,
    checkpoint: Path,
    rank: int = 0,
    world: int = 1,
    peers: Any = None,
    kill_at: int | None = None,
) -> list[float]:
    """Train to the last step from a checkpoint, if there is one; returns the loss of every step.

    Each rank computes gradients of its samples in small groups; all groups are added in the order of the batch, so that
    the sum has the same bits for any number of ranks.
    """
    policy, loader, losses = policy_of(), loader_of(catalog, rank, world), []
    if checkpoint.exists():
        kept = policy.load(checkpoint)
        loader.load_state_dict(kept["loader"])
        losses = kept["losses"]
        print(f"rank {rank} of {world} goes on after step {len(losses)}", flush=True)
    for batch in forever(loader):
        groups = []
        for start in range(0, batch.size, MICRO):
            few = slice(start, start + MICRO)
            mask = batch.loss_mask("action")[few].astype(np.float32)
            groups.append(
                (*policy.gradients(batch["state"][few], batch["action"][few], mask), float(mask.sum()))
            )
        every = groups if peers is None else peers(groups)
        count = sum(each[2] for each in every)
        policy.apply(
            [np.sum(parts, axis=0) / np.float32(count) for parts in zip(*(e[0] for e in every), strict=True)]
        )
        losses.append(sum(each[1] for each in every) / count)
        if len(losses) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and len(losses) % SAVE_EVERY == 0:
            policy.save(checkpoint, loader=loader.state_dict(), losses=losses)
        if len(losses) == STEPS:
            return losses
    raise AssertionError("an endless pass ended")


class Peers:
    """What every rank computed, in the order of the ranks; a trainer of yours would ask torch.distributed."""

    def __init__(self, rank: int, pipes: list[Any]) -> None:
        self.rank, self.pipes = rank, pipes

    def __call__(self, mine: list[Any]) -> list[Any]:
        """Rank 0 collects and hands out."""
        if self.rank:
            self.pipes[0].send(mine)
            return list(self.pipes[0].recv())
        every = mine + [each for pipe in self.pipes for each in pipe.recv()]
        for pipe in self.pipes:
            pipe.send(every)
        return every


def start(function: Any, *arguments: Any) -> Any:
    """Run a function in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def rank_main(catalog: Path, checkpoint: Path, rank: int, pipes: list[Any], out: Path) -> None:
    """One of two ranks."""
    losses = train(catalog, checkpoint, rank, 2, Peers(rank, pipes))
    out.write_text(json.dumps(losses))


def main(folder: Path) -> None:
    """Record, publish, train without interruption; then killed, and resumed with two ranks."""
    record(folder / "root")
    with wd.DatasetBuilder(NAME, catalog=folder / "catalog") as builder:
        builder.add_episodes("demos", folder / "root")
        print("published", builder.publish(message="expert"))
    catalog, checkpoint = folder / "catalog", folder / "checkpoint"
    policy_of()  # what torch loads for its first policy is loaded once, not in each of the processes
    doomed = start(train, catalog, checkpoint, 0, 1, None, KILLED_AT)
    doomed.join()
    assert doomed.exitcode == -signal.SIGKILL, "it was killed"
    print(f"killed at step {KILLED_AT}")
    ends = multiprocessing.Pipe()
    ranks = [start(rank_main, catalog, checkpoint, r, [ends[r]], folder / f"rank{r}.json") for r in range(2)]
    for process in ranks:
        process.join()
    resumed = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(2)]
    whole = train(catalog, folder / "other")
    assert resumed[0] == resumed[1] == whole, "the loss curves differ"
    assert whole[-1] < whole[0], "nothing was learnt"
    with_what = "torch" if torch is not None else "numpy"
    print(f"loss {whole[0]:.4f} -> {whole[-1]:.4f} in {STEPS} steps with {with_what}")
    print("killed, and resumed on two ranks: the loss curve is identical")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
