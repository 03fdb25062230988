"""A robot of three processes records one episode: a camera driver, a 500 Hz controller, a teleoperation node.

    python examples/robot_processes.py [FOLDER]

Each process opens the same episode by its name and records its own signals. The controller is killed halfway.
The others continue, and the last one to close finishes the episode with everything that the killed process had
recorded. At the end the episode is checked and shown. Needs the extra `video`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import warpdata as wd

SECONDS = 2.0


def camera(root: str) -> None:
    """30 images per second; if the encoder falls behind, `append` waits 10 ms at most, and drops are counted."""
    with wd.record(root) as rec:
        rec.declare("camera/wrist", kind="image", policy="drop_oldest", max_wait_ms=10)
        begin = time.monotonic()
        number = 0
        while time.monotonic() - begin < SECONDS:
            rec.append("camera/wrist", np.full((120, 160, 3), number % 255, np.uint8))
            number += 1
            time.sleep(1 / 30)
    show(rec)


def show(rec: wd.episodes.Recorder) -> None:
    """Print the receipt of the episode, in the process that finished it: the last one to close."""
    if rec.receipt is not None:
        print(rec.receipt, flush=True)


def controller(root: str) -> None:
    """500 states and torques per second, until it is killed."""
    with wd.record(root) as rec:
        k = 0
        while True:
            state = np.sin(np.arange(6) + k / 50)
            rec.step({"joints": state}, {"torque": -0.1 * state})
            k += 1
            time.sleep(1 / 500)


def teleoperation(root: str) -> None:
    """Commands of an operator, and the outcome."""
    with wd.record(root, static={"operator": "ada", "task": "stack"}) as rec:
        begin = time.monotonic()
        while time.monotonic() - begin < SECONDS + 0.5:
            rec.append("command", "close the gripper")
            time.sleep(0.1)
        rec.mark(success=True)
    show(rec)


def main() -> None:
    """Start the three processes, kill one, and look at the result."""
    root = sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.mkdtemp(), "recordings"))
    environment = {**os.environ, "WARP_EPISODE": "take-12"}
    names = ("teleoperation", "camera", "controller")
    command = [sys.executable, __file__, "--process"]
    processes = {name: subprocess.Popen([*command, name, root], env=environment) for name in names}
    while not any(Path(root).rglob("names/joints")):  # the controller records
        time.sleep(0.05)
    time.sleep(0.5)
    processes["controller"].send_signal(signal.SIGKILL)
    assert processes["camera"].wait() == 0
    assert processes["teleoperation"].wait() == 0
    [episode] = wd.open(root)
    print({name: len(rows) for name, rows in episode.signals.items()})
    assert {"camera/wrist", "joints", "torque", "command"} <= set(episode.signals)
    assert episode["success"] is True
    assert episode.meta["episode"] == "take-12"
    print(wd.check_dataset(root))


if __name__ == "__main__":
    if "--process" in sys.argv:
        {"camera": camera, "controller": controller, "teleoperation": teleoperation}[sys.argv[2]](sys.argv[3])
    else:
        main()
