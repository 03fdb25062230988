"""Kill recorders at random moments and see what salvage brings back: `crash_recorder.py ROOT KILLS SEED HOW`.

`HOW` is `episode` (two cameras and three vectors in one episode) or `files` (the same with a writer each).
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from tests.episodes.nursery import Nursery, is_alive
from tests.waiting import until
from warpdata.errors import WarpError

VECTORS = ("arm/state", "force", "gripper")
CAMERAS = ("cam/left", "cam/right")
NAMES = (*VECTORS, *CAMERAS)
SHAPES = {"arm/state": (7,), "force": (3,), "gripper": ()}
HEIGHT, WIDTH = 48, 64
STEPS = 60
Append = Callable[[str, Any, int], object]
Close = Callable[[], object]


def vector(name: str, step: int) -> np.ndarray:
    return (np.arange(np.prod(SHAPES[name]), dtype=np.float64) + step * 10).reshape(SHAPES[name]).astype("f4")


def picture(name: str, step: int) -> np.ndarray:
    """The step is written into the image as bright and dark tiles."""
    image = np.full((HEIGHT, WIDTH, 3), 40 if name == "cam/left" else 60, np.uint8)
    for bit in range(12):
        if step >> bit & 1:
            row, column = divmod(bit, 4)
            image[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16] = 220
    return image


def step_in(image: np.ndarray) -> int:
    tiles = image.astype(np.float64).mean(axis=2).reshape(3, 16, 4, 16).mean(axis=(1, 3)).reshape(-1)
    return sum(1 << bit for bit in range(12) if tiles[bit] > 140)


def record(root: Path, how: str, acknowledged: mmap.mmap) -> None:
    """Record, close, and wait to be killed; every acknowledged record is counted in memory the parent sees."""
    counts = np.frombuffer(acknowledged, np.int64)
    append, close = episode_appender(root) if how == "episode" else file_appender(root)
    for step in range(STEPS):
        for number, name in enumerate(NAMES):
            value = vector(name, step) if name in VECTORS else picture(name, step)
            append(name, value, 1000 + step * 1000 + number)
            counts[number] += 1
        time.sleep(0.0005)
    close()
    time.sleep(60)


def episode_appender(root: Path) -> tuple[Append, Close]:
    writer = wd.LocalDatasetWriter(root).new_episode()
    writer.set_static("task", "to be killed")
    return writer.append, writer.close


def file_appender(root: Path) -> tuple[Append, Close]:
    """A writer per signal, without an episode around them."""
    writers: dict[str, wd.SignalWriter] = {}
    for name in NAMES:
        video, frames = signal_files(root, name)
        writers[name] = (
            wd.SimpleSignalWriter(video) if frames is None else wd.VideoSignalWriter(video, frames)
        )
    append = lambda name, value, ts_ns: writers[name].append(value, ts_ns)  # noqa: E731
    return append, lambda: [writer.close() for writer in writers.values()]


def signal_files(root: Path, name: str) -> tuple[Path, Path | None]:
    if name in VECTORS:
        return root / f"{name}.parquet", None
    return root / f"{name}.mp4", root / f"{name}.frames.parquet"


def kill_one(root: Path, how: str, nursery: Nursery, rng: random.Random) -> int:
    """Kill one recorder at a random moment; how many acknowledged records came back."""
    child = nursery.child()
    counts = np.frombuffer(nursery.shared, np.int64)
    everything = STEPS * len(NAMES)
    target = rng.choice([0, 1, 3, 10, 40, 80, 150, 220, everything, everything])
    until(lambda: counts.sum() >= target, "the recorder does not record", pause_s=0.0002)
    time.sleep(rng.random() * (0.2 if target == everything else 0.02))  # to hit the close as well
    os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.0005)
    (check_episode if how == "episode" else check_files)(root, counts.copy())
    return int(counts.sum())


def check_episode(root: Path, counts: np.ndarray) -> None:
    folders = [path for block in root.iterdir() if block.is_dir() for path in block.iterdir()]
    if not folders:
        assert not counts.any(), "acknowledged records, but no recording"
        return
    [folder] = folders
    if not any(folder.iterdir()):
        assert not counts.any(), "acknowledged records, but an empty recording"
        folder.rmdir()
        return
    receipt = wd.salvage(folder) if (folder / ".recording").exists() else None
    episode = wd.open_episode(folder)
    if receipt is not None:
        assert receipt.steps_lost == 0
        assert receipt.channels == {name: len(episode[name]) for name in episode.signals}
    if counts.any():
        assert episode.static["task"] == "to be killed"
    for number, name in enumerate(NAMES):
        check_signal(episode.signals.get(name), name, int(counts[number]))
    shutil.rmtree(folder)


def check_files(root: Path, counts: np.ndarray) -> None:
    for number, name in enumerate(NAMES):
        data, frames = signal_files(root, name)
        try:
            receipt = wd.salvage(data)
        except WarpError:
            receipt = None
        found = None
        if data.exists():
            found = wd.SimpleSignal(data) if frames is None else wd.VideoSignal(data, frames)
        if receipt is not None:
            assert receipt.steps_lost == 0
            assert sum(receipt.channels.values()) == (0 if found is None else len(found))
        check_signal(found, name, int(counts[number]))
        for path in (data, frames):
            if path is not None:
                path.unlink(missing_ok=True)
    left = [path for path in root.rglob("*") if path.is_file()]
    assert left == [], left


def check_signal(found: wd.Signal | None, name: str, acknowledged: int) -> None:
    kept, number = 0 if found is None else len(found), NAMES.index(name)
    assert acknowledged <= kept <= acknowledged + 1, (name, acknowledged, kept)
    if found is None:
        return
    assert found.timestamps.tolist() == [1000 + step * 1000 + number for step in range(kept)]
    if name in VECTORS:
        assert np.array_equal(found.values(), np.stack([vector(name, step) for step in range(kept)]))
    else:
        assert [step_in(frame) for frame, _ in found] == list(range(kept))


def kill_many(root: Path, kills: int, seed: int, how: str) -> dict[str, int]:
    """Kill `kills` recorders; how many acknowledged records there were, all of which came back."""
    rng = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    assert all((wd.LocalDatasetWriter, wd.VideoSignalWriter)), "loaded before the first fork"
    with Nursery(len(NAMES), lambda acknowledged: record(root, how, acknowledged)) as nursery:
        records = sum(kill_one(root, how, nursery, rng) for _ in range(kills))
    return {"kills": kills, "records": records}


if __name__ == "__main__":
    print(json.dumps(kill_many(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
