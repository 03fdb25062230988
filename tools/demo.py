"""The main job, end to end, with no account and no server: `make demo`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import warpdata as wd
from tools import demo_catalog, demo_corpus, demo_episodes, demo_vectors

CHANNELS = [
    {"id": "joint_pos", "dtype": "f32", "shape": [7], "unit": "rad"},
    {"id": "camera/rgb", "dtype": "u8", "shape": [48, 64, 3], "modality": "rgb"},
    {"id": "torque", "dtype": "f32", "shape": [7], "lane": "action"},
]


def title(text: str) -> None:
    print(f"\n\033[1m── {text}\033[0m" if sys.stdout.isatty() else f"\n-- {text}")


def warp(*arguments: str | Path) -> int:
    """Run a command as a user would, and show it."""
    words = [str(each) for each in arguments]
    print("$ warp " + " ".join(words), flush=True)
    return subprocess.run([sys.executable, "-m", "warpdata", *words]).returncode


def record_for_ever(path: Path) -> None:
    """A robot loop that nobody stops properly."""
    writer = wd.WShardStreamWriter(
        path, "demo_001", CHANNELS, env_id="TwoJointArm-v0", metadata={"task": "reach"}
    )
    writer.begin_episode()
    picture = np.zeros((48, 64, 3), np.uint8)
    for step in range(1_000_000):
        angle = np.sin(step / 20 + np.arange(7)).astype(np.float32)
        picture[:] = step % 256
        picture[step % 48] = 255
        values = {"joint_pos": angle, "camera/rgb": picture, "torque": angle * 0.1}
        writer.write_timestep(values, reward=float(angle[0]), done=False)
        time.sleep(0.001)


def record_and_kill(path: Path) -> None:
    title("Record an episode by streaming, and kill the recorder half way with SIGKILL")
    child = os.fork()
    if child == 0:
        record_for_ever(path)
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    partial = Path(f"{path}.partial")
    print(f"recorder {child} is dead; what it left: {partial.name}, {partial.stat().st_size:,} bytes")


def episode_shards(folder: Path) -> None:
    path = folder / "demo_001.wshard"
    record_and_kill(path)
    title("Salvage: every acknowledged step, and a receipt of what was lost")
    warp("salvage", path)
    title("Verify every checksum")
    warp("verify", "--full", path)
    title("What is inside")
    warp("inspect", path)
    title("Read a window: only the bytes it needs")
    episode = wd.load_wshard(path)
    window = episode.observations["camera/rgb"][100:116]
    print(f"{episode}\ncamera/rgb[100:116] -> {window.dtype} {window.shape}, mean {window.mean():.1f}")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="warpdata-demo-"))
    try:
        episode_shards(folder)
        title("Record episodes in time: signals, cameras, a crash, checks, aligned windows")
        demo_episodes.main(folder / "recordings")
        title("Activation corpora: harvest, shuffle, resume")
        demo_corpus.main(folder / "corpus")
        title("Vector files: add, search, filter")
        demo_vectors.main(folder)
        title("Publish, resolve, query, stream, compare")
        demo_catalog.main(folder)
        print("\nThe demo ran to its end.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
