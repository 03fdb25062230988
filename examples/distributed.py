"""Data-parallel training with our loader: rank and world size are found, not passed.

    torchrun --nproc-per-node 2 examples/distributed.py FOLDER      # with torch.distributed (gloo)
    python examples/distributed.py [FOLDER]                         # starts two processes itself

Every rank iterates its own loader. Together they see each sample once and are at the same place at every step,
so rank 0 alone saves a state, and a job of any other size goes on from it. Without torch the ranks train on their own
shares without averaging: what the loader does is the same.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import warpdata as wd

try:
    import torch
    from torch import distributed
except ImportError:
    torch = None  # type: ignore[assignment]

EPISODES, STEPS, BATCH = 6, 50, 30


def record(root: Path) -> None:
    """Episodes whose action is a linear function of the state."""
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        with wd.record(root, clock="simulated") as rec:
            for k in range(STEPS):
                state = rng.normal(size=4).astype(np.float32)
                rec.step({"state": state}, {"action": state[:2] * 2 - 1}, ts_ns=k * 20_000_000)


def loader_of(root: Path) -> wd.Loader:
    """The same line on every rank: who this is comes from torch.distributed, or from RANK and WORLD_SIZE."""
    fields = {"state": wd.Field("state"), "action": wd.Field("action")}
    return wd.Loader(wd.Windows(wd.open_recordings(root), fields, anchor="action"), BATCH, seed=3)


def train(root: Path, out: Path) -> None:
    """One rank: two epochs, with gradients averaged by torch where it is installed."""
    if torch is not None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        if distributed.get_rank() == 0 and not root.exists():
            record(root)
        distributed.barrier()
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = loader_of(root)
    seen: list[list[int]] = []
    losses: list[float] = []
    for _ in range(2):
        for batch in loader:
            seen.append(batch.sample_id.tolist())
            if torch is not None:
                loss = (
                    (model(torch.from_numpy(batch["state"])) - torch.from_numpy(batch["action"]))
                    .square()
                    .mean()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    weights = [] if torch is None else [each.detach().numpy().tolist() for each in model.parameters()]
    report = {
        "rank": loader.rank,
        "world": loader.world,
        "seen": seen,
        "losses": losses,
        "weights": weights,
        "state": loader.state_dict(),
    }
    (out / f"rank{loader.rank}.json").write_text(json.dumps(report))
    if torch is not None:
        distributed.destroy_process_group()


def launch(root: Path, out: Path, world: int = 2) -> None:
    """What torchrun does: one process per rank, who is who in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(root), str(out)], env={**shared, "RANK": str(rank)})
        for rank in range(world)
    ]
    assert [process.wait() for process in ranks] == [0] * world


def check(out: Path, world: int = 2) -> None:
    """Both ranks together saw every sample once per epoch, in the order of one process."""
    reports = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(world)]
    assert [(each["rank"], each["world"]) for each in reports] == [(rank, world) for rank in range(world)]
    places = {(each["state"]["epoch"], each["state"]["position"]) for each in reports}
    assert len(places) == 1, "the ranks are at one place"
    steps = zip(*(each["seen"] for each in reports), strict=True)
    together = [[sample for part in step for sample in part] for step in steps]
    half = len(together) // 2
    for epoch in (together[:half], together[half:]):
        assert sorted(sample for step in epoch for sample in step) == list(range(EPISODES * STEPS))
    if torch is not None:
        assert reports[0]["weights"] == reports[1]["weights"], "the models drifted apart"
        assert reports[0]["losses"][-1] < reports[0]["losses"][0]
    print(
        f"{world} ranks, {len(together)} steps: every sample once per epoch, one state: {reports[0]['state']}"
    )


def main(folder: Path) -> None:
    """Record, start two ranks, look at what they saw."""
    record(folder / "root")
    launch(folder / "root", folder)
    check(folder)


if __name__ == "__main__":
    if "RANK" in os.environ:
        given = [Path(each) for each in sys.argv[1:3]]
        if len(given) < 2:  # torchrun: one folder, with the recordings in it once there are some
            given = [given[0] / "root", given[0]]
        train(*given)
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
