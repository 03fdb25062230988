"""Other converters, each in a virtualenv of its own: what it needs cannot live beside us.

The virtualenvs are made below a folder that is kept, by default `~/.cache/warpdata-peers`: making them takes minutes.
`python -m bench.versus.converting_peers` makes all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import environments
from bench.environments import FOLDER, Environment, NotInstalled

PEERS = {
    "lerobot-0.6.1": Environment(
        "3.12", (("torch==2.11.0",), ("lerobot[dataset]==0.6.1", "mcap-ros2-support"))
    ),
    "tensorflow-datasets": Environment("3.11", (("tensorflow-cpu", "tensorflow-datasets"),)),
    "mcap-ros2-support": Environment("3.11", (("mcap-ros2-support",),)),
}


def python_of(name: str, folder: Path = FOLDER) -> str | None:
    """The Python of a peer, which is installed if it is not yet; None where that fails, which is told."""
    try:
        return environments.python_of(name, PEERS[name], folder)
    except NotInstalled as reason:
        print(f"{name} cannot be installed: {reason}", file=sys.stderr)
        return None


def ask(python: str, script: str, *words: str) -> dict[str, Any]:
    """What a script prints last, as JSON; what goes wrong in it is raised with its last words."""
    done = subprocess.run([python, "-c", script, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr.strip()[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


_USED = """
import json, resource, sys, time
def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
"""

TFDS = (
    _USED
    + """
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
rates = []
for _ in range(3):
    start, steps = cpu(), 0
    for split in builder.info.splits:
        for episode in builder.as_dataset(split=split):
            for step in episode["steps"]:
                tfds.as_numpy(step)
                steps += 1
    rates.append(steps / (cpu() - start))
print(json.dumps({"steps_per_cpu_s": max(rates)}))
"""
)
"""RLDS, decode included; the best of three passes."""

SMALL_MESSAGES = (
    _USED
    + """
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
rates = []
for _ in range(3):
    start, count = cpu(), 0
    with open(sys.argv[1], "rb") as file:
        for _, _, _, message in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
            count += len(message.position) == 7
    rates.append(count / (cpu() - start))
print(json.dumps({"messages_per_cpu_s": max(rates)}))
"""
)

CONVERSIONS = 3
CONVERSION = (
    _USED
    + f"tries = {CONVERSIONS}"
    + """
from pathlib import Path
try:
    from lerobot.scripts import convert_dataset_v21_to_v30 as script
except ImportError:
    from lerobot.datasets.v30 import convert_dataset_v21_to_v30 as script
root, rates = Path(sys.argv[1]), []
script.validate_local_dataset_version(root)
for number in range(tries):
    new = Path(f"{sys.argv[2]}-{number}")
    start = cpu()
    script.convert_info(root, new, 100, 200)
    script.convert_tasks(root, new)
    data = script.convert_data(root, new, 100)
    videos = script.convert_videos(root, new, 200)
    script.convert_episodes_metadata(root, new, data, videos)
    rates.append(cpu() - start)
print(json.dumps({"cpu_s": min(rates)}))
"""
)
"""lerobot's own v2.1 to v3.0, the steps of its script; the best of so many tries."""

WRITER = (
    _USED
    + """
import logging
from pathlib import Path
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
logging.disable(logging.WARNING)
folder, target = Path(sys.argv[1]), sys.argv[2]
cameras = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("camera*.npy"))}
actions = np.load(folder / "actions.npy")
names = ["height", "width", "channels"]
features = {f"observation.images.{name}": {"dtype": "video", "shape": frames.shape[2:], "names": names}
            for name, frames in cameras.items()}
features["action"] = {"dtype": "float32", "shape": (actions.shape[2],), "names": None}
def write(target, episodes):
    data = LeRobotDataset.create("bench/set", 20, features, root=target, image_writer_threads=4)
    start, used = time.perf_counter(), cpu()
    for episode in range(episodes):
        for step in range(actions.shape[1]):
            frame = {f"observation.images.{name}": frames[episode, step] for name, frames in cameras.items()}
            data.add_frame({**frame, "action": actions[episode, step].astype(np.float32), "task": "lift"})
        data.save_episode()
    if hasattr(data, "finalize"):
        data.finalize()
    return time.perf_counter() - start, cpu() - used
wall, used = write(target, len(actions))
print(json.dumps({"wall_s": wall, "cpu_s": used}))
"""
)
"""lerobot's own writer, from frames in memory."""

BAG_SCRIPT = (
    _USED
    + """
import io, logging
import numpy as np
from PIL import Image
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from lerobot.datasets.lerobot_dataset import LeRobotDataset
logging.disable(logging.WARNING)
bag, target, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = ["height", "width", "channels"]
features = {"observation.images.camera": {"dtype": "video", "shape": (480, 640, 3), "names": names},
            "observation.state": {"dtype": "float32", "shape": (7,), "names": None},
            "action": {"dtype": "float32", "shape": (7,), "names": None}}
data = LeRobotDataset.create("bench/bag", 20, features, root=target, image_writer_threads=4)
start, last, steps = cpu(), {}, 0
with open(bag, "rb") as file:
    for _, channel, _, message in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
        if channel.topic != "/camera/compressed":
            last[channel.topic] = np.asarray(message.position, np.float32)
            continue
        pixels = np.asarray(Image.open(io.BytesIO(message.data)).convert("RGB"))
        data.add_frame({"observation.images.camera": pixels, "observation.state": last["/joint_states"],
                        "action": last["/joint_command"], "task": "push"})
        steps += 1
        if steps == wanted:
            break
data.save_episode()
if hasattr(data, "finalize"):
    data.finalize()
print(json.dumps({"steps_per_cpu_s": steps / (cpu() - start)}))
"""
)
"""The usual script from a bag to a LeRobot set: decode, add_frame, save_episode."""


def main() -> None:
    print(json.dumps({name: python_of(name) for name in PEERS}, indent=1))


if __name__ == "__main__":
    main()
