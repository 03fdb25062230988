"""Episodes made for looking at: cameras whose frames say their number in their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import warpdata as wd

BITS = 10
START_NS = 1_760_000_000_000_000_000
STEP_NS = 20_000_000
STEPS = 120
SCRIPT = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def numbered_frame(number: int, height: int = 64, width: int = 160) -> NDArray[np.uint8]:
    """A picture with a row of blocks at its top: black for 0, white for 1, the lowest bit first."""
    frame = np.full((height, width, 3), 90, np.uint8)
    frame[height // 2 :, :, 0] = np.linspace(0, 255, width).astype(np.uint8)
    for bit in range(BITS):
        frame[: height // 2, bit * 16 : (bit + 1) * 16] = 255 if number >> bit & 1 else 0
    return frame


def record_one(
    root: Path, number: int, static: Mapping[str, Any] | None = None, *, steps: int = STEPS
) -> None:
    """One episode: joints by step with a prediction, two cameras at rates of their own, depth with a gap, events."""
    base = START_NS + number * 10**12
    given = {"task": "pick the cube", **(static or {})}
    with wd.record(root, static=given, clock="simulated") as rec:
        for k in range(steps):
            ts = base + k * STEP_NS
            joints = np.sin(k / 20 + np.arange(3) + number).astype(np.float32)
            rec.step({"joints": joints}, {"torque": -joints}, reward=1.0, terminated=k == steps - 1, ts_ns=ts)
            rec.append("omen/joints/dreamer", joints + np.float32(0.1 if k != 70 else 3.0), ts)
            rec.append("uncert/joints/dreamer/std", np.full(3, 0.2, np.float32), ts)
            if k % 2 == 0:
                rec.append("front", numbered_frame(k // 2), ts + 3_000_000)
            if k % 3 == 0:
                rec.append("wrist", numbered_frame(k // 3), ts + 7_000_000)
            if k % 4 == 0 and not 40 < k < 80:
                rec.append("depth", numbered_frame(k // 4)[:, :, 1].astype(np.uint16) * 16, ts + 1_000_000)
            if k in (30, 90):
                rec.append("events", "grasp" if k == 30 else SCRIPT, ts)
        rec.mark(success=number != 1)


def record_root(root: Path, count: int = 3) -> Path:
    """A root of such episodes; the second one is called what an attacker would call it."""
    for number in range(count):
        record_one(root, number, {"task": SCRIPT} if number == 1 else None, steps=STEPS - 20 * number)
    return root


def tensor_shard(path: Path) -> Path:
    """A shard by step with a raw camera, planes first, and floats."""
    episode = wd.WShardEpisode(id="raw", env_id="Arm-v0", length=40)
    frames = np.stack([numbered_frame(k) for k in range(40)])
    episode.observations["rgb"] = frames
    episode.observations["planes"] = np.moveaxis(frames, 3, 1).copy()
    episode.observations["map"] = (frames[:, :, :, 1] / 255).astype(np.float32)
    episode.observations["state"] = np.arange(80, dtype=np.float32).reshape(40, 2)
    episode.actions["ctrl"] = np.zeros((40, 2), np.float32)
    wd.save_wshard(episode, path)
    return path
