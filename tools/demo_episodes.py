"""The recording part of the demo: simulated episodes, a killed recorder, salvage, check, aligned windows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import warpdata as wd
from warpdata.cli.console import table
from warpdata.cli.main import main as warp
from warpdata.cli.sparkline import sparkline
from warpdata.episodes.demo_arm import demo_records, describe_demo

EPISODES = 10
SECONDS = 1.5
WINDOWS = 64
_KILLED = """
import os, sys
from warpdata.episodes.demo_arm import demo_records, describe_demo
from warpdata import LocalDatasetWriter
writer = LocalDatasetWriter(sys.argv[1]).new_episode()
describe_demo(writer, 99)
for number, (ts_ns, name, value) in enumerate(demo_records(99)):
    writer.append(name, value, ts_ns)
    if number == 600:
        os.kill(os.getpid(), 9)
"""


def main(folder: str | os.PathLike[str]) -> None:
    """Run the recording demo in `folder`."""
    root = Path(folder) / "episodes"
    print(f"\n== record {EPISODES} simulated episodes with a camera into {root}")
    for seed in range(EPISODES):
        record(root, seed)
    print("\n== a recorder is killed (kill -9) in the middle of an episode")
    done = subprocess.run([sys.executable, "-c", _KILLED, str(root)], check=False)
    assert done.returncode == -signal.SIGKILL
    warp(["salvage", str(root)])
    print("\n== check the dataset")
    warp(["check", str(root)])
    warp(["episodes", str(root)])
    show_windows(wd.LocalDataset(root))


def record(root: Path, seed: int) -> None:
    """One short episode of the simulated arm."""
    with wd.LocalDatasetWriter(root).new_episode() as writer:
        describe_demo(writer, seed)
        for ts_ns, name, value in demo_records(seed):
            if ts_ns > SECONDS * 1e9:
                break
            writer.append(name, value, ts_ns)


def show_windows(dataset: wd.LocalDataset) -> None:
    """Aligned windows of all signals, then a table with sparklines."""
    rng = np.random.default_rng(0)
    shapes = {}
    for _ in range(WINDOWS):
        episode = dataset[int(rng.integers(len(dataset)))]
        start = int(rng.integers(episode.start_ts, max(episode.start_ts + 1, episode.last_ts - 500_000_000)))
        times = start + np.arange(10) * 50_000_000
        batch = episode.sample(times, fields=["joints", "force", "camera"], max_age_ns=100_000_000)
        shapes = {name: (values.shape, int(batch.mask[name].sum())) for name, values in batch.items()}
    print(f"\n== {WINDOWS} aligned windows of ten moments; the last: {shapes}")
    rows = []
    for name, each in dataset[0].signals.items():
        if not each.meta.is_object and each.meta.kind != "image":
            first = each.values().reshape(len(each), -1)[:, 0].tolist()
            rows.append([name, str(len(each)), sparkline(first, 40)])
    print("\n".join(table(rows, ["signal", "records", "first channel"], right=[1])))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "demo")
