"""Ctrl-C at random moments of recordings: `python -m tests.episodes.interrupting ROOT TIMES SEED HOW`.

`HOW` is `leave` (the interrupt ends the recording), `stay` (the recorder catches it and goes on) or `killed` (it goes
on and is killed a little later, so that the journals must tell the same).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import av
import numpy as np

import warpdata as wd
from tests.episodes.nursery import Nursery, is_alive
from tests.waiting import until
from warpdata.episodes.record import camera, tables
from warpdata.formats.journal import writer as journal_writer

NAMES = ("number", "text", "large", "cam/left", "cam/right")
LIMIT_S = 60
STARTED, INTERRUPTED, DONE, STEPS = range(len(NAMES), len(NAMES) + 4)
SLOTS = len(NAMES) + 4
SHORT, ENDLESS = 50, 10**9
"""A short one is often interrupted while it is being finished, an endless one always while it records."""


def value_of(name: str, step: int) -> Any:
    if name == "text":
        return f"step {step}"
    if name == "large":
        return np.full(20_000, step, "i4")
    return (
        np.full((16, 16), step % 251, np.uint8) if name.startswith("cam") else np.array([step, -step], "f8")
    )


def make_small() -> None:
    """Every block, window and ring is so small that their borders are met all the time."""
    tables._BLOCK_BYTES, tables._BLOCK_ROWS, tables._EVENTS_PER_BLOCK = 64, (4, 8), 4
    camera.SEGMENT_BYTES, camera.SEGMENT_FRAMES = 4096, 2
    journal_writer.WINDOW_BYTES = 1 << 16


def record(root: Path, how: str, shared: mmap.mmap) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counts = np.frombuffer(shared, np.int64)
    make_small()
    try:
        with wd.LocalDatasetWriter(root, durability="10ms").new_episode() as writer:
            counts[STARTED] = 1
            _append(writer, counts, how)
    except KeyboardInterrupt:
        counts[INTERRUPTED] = 1
    counts[DONE] = 1
    time.sleep(LIMIT_S if how == "killed" else 0)


def _append(writer: wd.DiskEpisodeWriter, counts: np.ndarray, how: str) -> None:
    step = 0
    end = counts[STEPS]
    while step < end:
        try:
            for number, name in enumerate(NAMES):
                if counts[number] == step:
                    writer.append(name, value_of(name, step), 10 * step)
                    counts[number] += 1
            step += 1
        except KeyboardInterrupt:
            if how == "leave":
                raise
            counts[INTERRUPTED] = 1
            end = step + 30
        except wd.errors.TimestampOrderError:
            # The interrupt came after the record was kept and before that was said: it is not appended again.
            assert counts[INTERRUPTED]
            counts[number] += 1


def interrupt_one(root: Path, how: str, nursery: Nursery, rng: random.Random) -> str:
    """Interrupt one recorder; how its recording ended."""
    child = nursery.child(rng.choice([SHORT, ENDLESS]) if how == "leave" else ENDLESS)
    counts = np.frombuffer(nursery.shared, np.int64)
    wait_for(lambda: counts[STARTED], "the recorder does not start")
    time.sleep(rng.random() * rng.choice([0.002, 0.05, 0.3]))
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)
    if how == "killed":
        wait_for(lambda: counts[INTERRUPTED] or counts[DONE], "the interrupt was not heard")
        time.sleep(rng.random() * 0.01)
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: not is_alive(child), "the recorder does not end", child)
    [folder] = [each for block in root.iterdir() if block.is_dir() for each in block.iterdir()]
    is_unfinished = (folder / ".recording").exists()
    assert how == "killed" or not is_unfinished, "Ctrl-C left the episode unfinished"
    if is_unfinished:
        assert wd.salvage(folder).steps_lost == 0
    check(wd.open_episode(folder), counts)
    shutil.rmtree(folder)
    return "salvaged" if is_unfinished else "interrupted" if counts[INTERRUPTED] else "complete"


def check(episode: wd.Episode, counts: np.ndarray) -> None:
    for number, name in enumerate(NAMES):
        acknowledged = int(counts[number])
        found = episode.signals.get(name)
        kept = 0 if found is None else len(found)
        assert acknowledged <= kept <= acknowledged + 1, (name, acknowledged, kept)
        if kept:
            assert found.timestamps.tolist() == [10 * step for step in range(kept)], name
            expected = [value_of(name, step) for step in range(kept)]
            assert np.array_equal(found.values(), np.stack(expected) if name != "text" else expected), name


def wait_for(is_so: Any, otherwise: str, child: int | None = None) -> None:
    def show_where_it_hangs() -> None:
        if child is not None:
            os.kill(child, signal.SIGABRT)
            time.sleep(1)

    until(is_so, otherwise, pause_s=0.0005, before_failing=show_where_it_hangs)


def interrupt_many(root: Path, times: int, seed: int, how: str) -> dict[str, int]:
    rng = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    assert all((wd.LocalDatasetWriter, wd.errors, av)), "loaded before the first fork"
    ends = {"complete": 0, "interrupted": 0, "salvaged": 0}
    with Nursery(SLOTS, lambda shared: record(root, how, shared)) as nursery:
        for _ in range(times):
            ends[interrupt_one(root, how, nursery, rng)] += 1
    return ends


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable(all_threads=True)
    print(json.dumps(interrupt_many(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
