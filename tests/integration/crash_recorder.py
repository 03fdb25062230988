"""Kill recorders at random moments and see what salvage brings back: `crash_recorder.py ROOT KILLS SEED`."""

from __future__ import annotations

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
from warpdata.episodes.salvage_folder import salvage_episode

VECTORS = ("arm/state", "force", "gripper")
CAMERAS = ("cam/left", "cam/right")
NAMES = (*VECTORS, *CAMERAS)
SHAPES = {"arm/state": (7,), "force": (3,), "gripper": ()}
HEIGHT, WIDTH = 48, 64


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


def record(root: Path, acknowledged: mmap.mmap) -> None:
    """Record until killed; every acknowledged record is counted in memory the parent can see."""
    counts = np.frombuffer(acknowledged, np.int64)
    writer = wd.LocalDatasetWriter(root).new_episode()
    writer.set_static("task", "to be killed")
    for step in range(1 << 12):
        for number, name in enumerate(NAMES):
            value = vector(name, step) if name in VECTORS else picture(name, step)
            writer.append(name, value, 1000 + step * 1000 + number)
            counts[number] += 1
        time.sleep(0.0005)


class Nursery:
    """A process that has loaded everything and does nothing but fork recorders, so that forks stay clean."""

    def __init__(self, root: Path) -> None:
        self.acknowledged = mmap.mmap(-1, 8 * len(NAMES))
        asked, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(root, asked, answer)

    def recorder(self) -> int:
        """The process id of a new recorder."""
        np.frombuffer(self.acknowledged, np.int64)[:] = 0
        os.write(self._ask, b"x")
        return int.from_bytes(os.read(self._answers, 4), "little")

    def close(self) -> None:
        os.close(self._ask)
        os.waitpid(self._pid, 0)

    def _serve(self, root: Path, asked: int, answer: int) -> None:
        os.close(self._ask)
        while os.read(asked, 1):
            child = os.fork()
            if child == 0:
                try:
                    record(root, self.acknowledged)
                finally:
                    os._exit(1)
            os.write(answer, child.to_bytes(4, "little"))
            os.waitpid(child, 0)
        os._exit(0)


def kill_one(root: Path, nursery: Nursery, rng: random.Random) -> dict[str, object]:
    child = nursery.recorder()
    counts = np.frombuffer(nursery.acknowledged, np.int64)
    deadline = time.monotonic() + 30
    target = rng.choice([0, 1, 3, 10, 40, 80, 150, 300])
    while counts.sum() < target and time.monotonic() < deadline:
        time.sleep(0.0002)
    assert counts.sum() >= target, "the recorder does not record"
    time.sleep(rng.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    while is_alive(child):
        time.sleep(0.0005)
    return check(root, counts.copy())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check(root: Path, counts: np.ndarray) -> dict[str, object]:
    folders = [path for block in root.iterdir() if block.is_dir() for path in block.iterdir()]
    open_ones = [path for path in folders if (path / ".recording").exists()]
    if not open_ones:
        assert not counts.any(), "acknowledged records, but no recording"
        return {"records": 0}
    receipt = salvage_episode(open_ones[0])
    episode = wd.open_episode(open_ones[0])
    assert receipt.steps_lost == 0
    assert receipt.channels == {name: len(episode[name]) for name in episode.signals}
    if counts.any():
        assert episode.static["task"] == "to be killed"
    for number, name in enumerate(NAMES):
        kept = len(episode[name]) if name in episode.signals else 0
        assert counts[number] <= kept <= counts[number] + 1, (name, int(counts[number]), kept)
        if kept:
            check_signal(episode, name, number, kept)
    return {"records": int(counts.sum()), "dropped_bytes": receipt.bytes_dropped}


def check_signal(episode: wd.Episode, name: str, number: int, kept: int) -> None:
    found = episode[name]
    assert found.timestamps.tolist() == [1000 + step * 1000 + number for step in range(kept)]
    if name in VECTORS:
        assert np.array_equal(found.values(), np.stack([vector(name, step) for step in range(kept)]))
    else:
        assert [step_in(frame) for frame, _ in found] == list(range(kept))


def main(root: str, kills: int, seed: int) -> None:
    """Print one line of JSON: how many kills, how many records came back in all."""
    rng = random.Random(seed)
    Path(root).mkdir(parents=True, exist_ok=True)
    assert wd.LocalDatasetWriter, "loaded before the first fork"
    nursery = Nursery(Path(root))
    done = [kill_one(Path(root), nursery, rng) for _ in range(kills)]
    nursery.close()
    print(json.dumps({"kills": kills, "records": sum(int(str(each["records"])) for each in done)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
