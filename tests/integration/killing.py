"""Record in a child process, kill it at a random moment, salvage, and compare every acknowledged step."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from pathlib import Path

import numpy as np

import warpdata as wd

CHANNELS = [
    {"id": "state", "dtype": "f32", "shape": [7]},
    {"id": "rgb", "dtype": "u8", "shape": [16, 16, 3]},
    {"id": "ctrl", "dtype": "f32", "shape": [7], "lane": "action"},
]


def expected(field: str, steps: int) -> np.ndarray:
    """Every value of every step is a function of its number, so a wrong byte cannot hide."""
    numbers = np.arange(steps, dtype=np.int64)
    if field == "rgb":
        return ((numbers[:, None] * 31 + np.arange(768)) % 251).astype(np.uint8).reshape(steps, 16, 16, 3)
    shift = {"state": 0.5, "ctrl": 0.25}[field]
    return (numbers[:, None] + np.arange(7) + shift).astype(np.float32)


def recorder(path: Path, acknowledged: mmap.mmap, limit: int) -> None:
    """Record until killed; the counter moves only after a step was acknowledged."""
    rows = {name: expected(name, limit) for name in ("state", "rgb", "ctrl")}
    writer = wd.WShardStreamWriter(path, "kill", CHANNELS)
    writer.begin_episode()
    for index in range(limit):
        writer.write_timestep({name: each[index] for name, each in rows.items()}, reward=index, done=False)
        acknowledged[:8] = (index + 1).to_bytes(8, "little")
    writer.end_episode()
    acknowledged[8:16] = (1).to_bytes(8, "little")


def kill_once(folder: Path, after_steps: int, delay_s: float, limit: int = 3000) -> tuple[int, int]:
    """(acknowledged, salvaged) steps of one killed recording; raises if any acknowledged byte is missing."""
    path = folder / "kill.wshard"
    acknowledged = mmap.mmap(-1, 4096)
    pid = os.fork()
    if pid == 0:
        try:
            recorder(path, acknowledged, limit)
        finally:
            os._exit(0)
    while int.from_bytes(acknowledged[:8], "little") < after_steps:
        time.sleep(0.0002)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    steps = int.from_bytes(acknowledged[:8], "little")
    is_finished = acknowledged[8] == 1
    kept = _check(path, steps, is_finished)
    for left in folder.iterdir():
        left.unlink()
    return steps, kept


def _check(path: Path, steps: int, is_finished: bool) -> int:
    partial = Path(f"{path}.partial")
    if not path.exists() and not partial.exists():
        assert steps == 0, f"{steps} acknowledged steps and no file"
        return 0
    if partial.exists():
        receipt = wd.salvage(path)
        assert receipt.steps_lost == 0
        if receipt.output is None:
            assert steps == 0
            return 0
    episode = wd.load_wshard(path)
    assert episode.length >= steps, f"{steps} steps were acknowledged, {episode.length} came back"
    assert episode.length <= steps + 1 or is_finished
    for name in ("state", "rgb"):
        assert np.array_equal(episode.observations[name].data, expected(name, episode.length))
    assert np.array_equal(episode.actions["ctrl"].data, expected("ctrl", episode.length))
    if episode.length:
        assert np.array_equal(episode.rewards.data, np.arange(episode.length, dtype=np.float32))
    return episode.length


def kill_many(folder: Path, times: int, seed: int, *, limit: int = 3000) -> dict[str, int]:
    """Kill `times` recordings at random moments; returns how many steps were acknowledged and salvaged."""
    moments = random.Random(seed)
    totals = {"kills": 0, "acknowledged": 0, "salvaged": 0, "before_first_step": 0, "while_finishing": 0}
    for _ in range(times):
        # From before the first step to after the last, so that beginning and finishing are hit too.
        after = max(0, min(limit, moments.randrange(-limit // 10, limit + limit // 5)))
        steps, kept = kill_once(folder, after, moments.random() * 0.004, limit)
        totals["kills"] += 1
        totals["acknowledged"] += steps
        totals["salvaged"] += kept
        totals["before_first_step"] += steps == 0
        totals["while_finishing"] += steps == limit
    return totals
