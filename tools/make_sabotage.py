"""Make a set of recordings in which some are spoilt, each in one way, and say which: `make_sabotage.py ROOT [SEED]`.

A small arm moves to a goal before a camera. Everything follows from the seed. `warp check ROOT` must name what
`EXPECTED` lists and nothing else, and nothing at all in a set made with `--clean`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import warpdata as wd
from warpdata.formats.episodedir.documents import VideoOptions

EPISODES = 20
RATE_HZ = 30
PAUSE_NS = 1_000_000_000 // RATE_HZ
HEIGHT, WIDTH = 24, 32

START = np.array([0.0, 1.0, -0.6, 2.2])
GOAL = np.array([1.2, 0.1, 0.7, 1.3])
"""Every joint has a course of its own, so that two of them can be told apart."""

EXPECTED: dict[int, tuple[str, str | None]] = {
    3: ("outlier-length", None),
    5: ("outlier-return", None),
    7: ("action-jerk", "action/velocity"),
    9: ("outlier-final-state", "joints"),
    11: ("dead-channel", "joints"),
    13: ("swapped-channels", "joints"),
    15: ("time-shift", "camera"),
    17: ("near-duplicate", None),
    18: ("constant-channel", "joints"),
}
"""Number of a spoilt episode -> the rule that names it, and the signal."""


@dataclass
class Take:
    """One episode before it is recorded."""

    joints: NDArray[np.float64]
    velocity: NDArray[np.float64]
    reward: NDArray[np.float64]
    pictures: list[NDArray[np.uint8]]
    camera_late_ns: int = 0


def take(rng: np.random.Generator, steps: int | None = None, goal: NDArray[np.float64] = GOAL) -> Take:
    """A course from near the start to the goal: three bends of its own, then rest."""
    steps = int(rng.integers(80, 96)) if steps is None else steps
    phase = np.clip(np.linspace(0, 1.15, steps), 0, 1)[:, None]
    eased = phase**3 * (10 - 15 * phase + 6 * phase**2)
    start = START + rng.normal(0, 0.05, 4)
    bends = sum(
        rng.normal(0, 0.12 / k, 4) * np.sin(np.pi * k * phase + rng.uniform(0, np.pi, 4)) for k in (1, 2, 3)
    )
    envelope = np.sin(np.pi * phase)
    joints = start + (goal - start) * eased + bends * envelope + rng.normal(0, 0.002, (steps, 4))
    velocity = np.gradient(start + (goal - start) * eased + bends * envelope, axis=0) * RATE_HZ
    velocity += rng.normal(0, 0.01, (steps, 4))
    reward = -np.abs(joints - GOAL).sum(1)
    return Take(joints, velocity, reward, [picture(each) for each in joints])


def picture(joints: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Two bars that the joints move and one that they dim."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = np.full((HEIGHT, WIDTH, 3), 30.0)
    image[..., 0] += 200 * np.exp(-((columns - WIDTH * (0.2 + 0.45 * joints[0])) ** 2) / 18)
    image[..., 1] += 200 * np.exp(-((rows - HEIGHT * (0.2 + 0.5 * joints[1])) ** 2) / 18)
    image[..., 2] += 60 * (joints[2] + 1)
    return np.clip(image, 0, 255).astype(np.uint8)


def spoil(number: int, rng: np.random.Generator, made: list[Take]) -> Take:
    """The episode of this number, spoilt as `EXPECTED` says."""
    rule = EXPECTED[number][0]
    if rule == "outlier-length":
        whole = take(rng)
        half = len(whole.joints) * 2 // 5
        return Take(whole.joints[:half], whole.velocity[:half], whole.reward[:half], whole.pictures[:half])
    if rule == "outlier-final-state":
        return take(rng, goal=GOAL + np.array([0.0, 0.5, 0.0, 0.0]))
    one = take(rng)
    if rule == "outlier-return":
        one.reward = one.reward * -2
    elif rule == "action-jerk":
        one.velocity = one.velocity + rng.normal(0, 0.6, one.velocity.shape)
    elif rule == "dead-channel":
        one.joints[:, 2] = START[2] + rng.normal(0, 0.0005, len(one.joints))
    elif rule == "constant-channel":
        one.joints[:, 0] = START[0]
    elif rule == "swapped-channels":
        one.joints = one.joints[:, [0, 3, 2, 1]]
    elif rule == "time-shift":
        one.camera_late_ns = 9 * PAUSE_NS
    elif rule == "near-duplicate":
        old = made[2]
        one = Take(
            old.joints + rng.normal(0, 0.0005, old.joints.shape), old.velocity, old.reward, old.pictures
        )
    return one


def make(
    root: Path, seed: int = 0, *, clean: bool = False, camera: bool = True
) -> dict[str, tuple[str, str | None]]:
    """Record the set; returns which episode must be named by which rule, and its signal."""
    rng = np.random.default_rng(seed)
    made: list[Take] = []
    writer = wd.LocalDatasetWriter(root, durability="none", video=VideoOptions(fps=RATE_HZ))
    for number in range(EPISODES):
        one = spoil(number, rng, made) if number in EXPECTED and not clean else take(rng)
        made.append(one)
        with writer.new_episode() as recording:
            _record(recording, one, camera=camera)
    return {} if clean else {f"{number:012d}": what for number, what in EXPECTED.items()}


def _record(recording: wd.DiskEpisodeWriter, one: Take, *, camera: bool) -> None:
    for step in range(len(one.joints)):
        ts_ns = step * PAUSE_NS
        recording.append("joints", one.joints[step], ts_ns)
        recording.append("action/velocity", one.velocity[step], ts_ns)
        recording.append("reward", float(one.reward[step]), ts_ns)
        if camera:
            recording.append("camera", one.pictures[step], ts_ns + one.camera_late_ns)


def main() -> None:
    """Write the set, and beside it what must be found."""
    arguments = [each for each in sys.argv[1:] if not each.startswith("--")]
    root, seed = Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    expected = make(root, seed, clean="--clean" in sys.argv)
    print(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
