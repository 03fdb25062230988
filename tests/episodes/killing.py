"""Record in a child process, kill it at a random moment, salvage, and compare every acknowledged step.

`python -m tests.episodes.killing FOLDER TIMES SEED` prints how many steps were acknowledged and came back.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import warpdata as wd
from tests.episodes.nursery import Nursery, is_alive
from tests.waiting import until

LIMIT = 3000
AHEAD = 400
"""Steps a recorder does beyond the one it is to be killed at: then it waits, however late the kill comes."""
ACKNOWLEDGED, FINISHED, ALLOWED = range(3)
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


def recorder(path: Path, rows: dict[str, np.ndarray], shared: mmap.mmap) -> None:
    """Record until killed; the counter moves only after a step was acknowledged."""
    counts = np.frombuffer(shared, np.int64)
    writer = wd.WShardStreamWriter(path, "kill", CHANNELS)
    writer.begin_episode()
    for index in range(LIMIT):
        while index >= counts[ALLOWED]:
            time.sleep(0.0002)
        writer.write_timestep({name: each[index] for name, each in rows.items()}, reward=index, done=False)
        counts[ACKNOWLEDGED] = index + 1
    writer.end_episode()
    counts[FINISHED] = 1


def kill_once(path: Path, nursery: Nursery, after_steps: int, delay_s: float) -> tuple[int, int]:
    """(acknowledged, salvaged) steps of one killed recording; raises if any acknowledged byte is missing."""
    child = nursery.child(after_steps + AHEAD)
    counts = np.frombuffer(nursery.shared, np.int64)
    until(lambda: counts[ACKNOWLEDGED] >= after_steps, "the recorder does not record", pause_s=0.0002)
    time.sleep(delay_s)
    with contextlib.suppress(ProcessLookupError):  # it may have finished
        os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.0002)
    steps = int(counts[ACKNOWLEDGED])
    kept = _check(path, steps, is_finished=bool(counts[FINISHED]))
    for left in path.parent.iterdir():
        left.unlink()
    return steps, kept


def _check(path: Path, steps: int, *, is_finished: bool) -> int:
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


def kill_many(folder: Path, times: int, seed: int) -> dict[str, int]:
    """Kill `times` recordings at random moments; returns how many steps were acknowledged and salvaged."""
    moments = random.Random(seed)
    path = folder / "kill.wshard"
    totals = {"kills": 0, "acknowledged": 0, "salvaged": 0, "before_first_step": 0, "while_finishing": 0}
    rows = {name: expected(name, LIMIT) for name in ("state", "rgb", "ctrl")}
    assert wd.WShardStreamWriter, "loaded before the first fork"
    with Nursery(3, lambda shared: recorder(path, rows, shared)) as nursery:
        for _ in range(times):
            # From before the first step to after the last, so that beginning and finishing are hit too.
            after = max(0, min(LIMIT, moments.randrange(-LIMIT // 10, LIMIT + LIMIT // 5)))
            steps, kept = kill_once(path, nursery, after, moments.random() * 0.004)
            totals["kills"] += 1
            totals["acknowledged"] += steps
            totals["salvaged"] += kept
            totals["before_first_step"] += steps == 0
            totals["while_finishing"] += steps == LIMIT
    return totals


if __name__ == "__main__":
    print(json.dumps(kill_many(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
