"""Sets of an arm that picks things up: ways by points, at a pace of their own, with a gripper, contacts and a camera.

They differ from `random_sets` in what varies: where the thing lies and how long each part takes, not the course itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.episodes.random_sets import Floats, Named, Take

STATE = "observation/state"
PAUSE_NS = 50_000_000
HEIGHT, WIDTH = 24, 32


class Picker:
    """An arm and its task, drawn by chance."""

    def __init__(self, rng: np.random.Generator, *, camera: bool = False) -> None:
        self.rng = rng
        self.joints = int(rng.integers(4, 15))
        self.steps = int(rng.integers(80, 300))
        self.ways = int(rng.integers(2, 6))
        self.points = rng.uniform(-1.2, 1.2, (self.ways + 1, self.joints))
        self.to_thing = rng.normal(0, rng.choice([0.03, 0.08, 0.2]), (self.ways + 1, self.joints, 2))
        self.to_thing[0] *= rng.choice([0.0, 0.3])
        self.shares = rng.dirichlet(np.full(self.ways, 6.0))
        self.pace = float(rng.choice([0.02, 0.08, 0.2]))
        self.tremor = float(rng.choice([0.005, 0.02, 0.05]))
        self.noise = float(rng.choice([1e-4, 1e-3, 5e-3]))
        self.action = str(rng.choice(["target", "velocity"]))
        self.view = rng.normal(0, 1, (self.joints, 4)) / np.sqrt(self.joints) if camera else None

    def take(self) -> Take:
        """One honest episode."""
        rng, thing = self.rng, self.rng.uniform(-1, 1, 2)
        steps = int(self.steps * np.exp(np.clip(rng.normal(0, self.pace), -2 * self.pace, 2 * self.pace)))
        shares = self.shares * np.exp(rng.normal(0, self.pace, self.ways))
        knots = 0.95 * np.concatenate([[0.0], np.cumsum(shares / shares.sum())])
        points, phase = self.points + self.to_thing @ thing, np.linspace(0, 1, steps)
        part = np.clip(np.searchsorted(knots, phase, side="right") - 1, 0, self.ways - 1)
        along = np.clip((phase - knots[part]) / (knots[part + 1] - knots[part]), 0, 1)[:, None]
        eased = along**3 * (10 - 15 * along + 6 * along**2)
        course = points[part] * (1 - eased) + points[part + 1] * eased
        for k in (2, 3, 5):
            course += rng.normal(0, self.tremor, self.joints) * np.sin(np.pi * k * phase)[:, None]
        held = (phase > knots[1])[:, None]
        sensed = course + rng.normal(0, self.noise, course.shape) * (1 + 2 * held)
        speed = np.gradient(course, axis=0) * 1e9 / PAUSE_NS + rng.normal(0, 0.02, course.shape)
        times = np.arange(steps) * PAUSE_NS
        action = np.concatenate([course[1:], course[-1:]]) if self.action == "target" else speed
        signals: dict[str, tuple[NDArray[np.int64], NDArray[Any], str]] = {
            STATE: (times, np.c_[sensed, held].astype(np.float32), "observation"),
            "action": (times, np.c_[action, held].astype(np.float32), "action"),
        }
        if self.view is not None:
            signals["camera"] = (times, self._pictures(course @ self.view, thing), "observation")
        return Take(0, signals)

    def _pictures(self, shown: Floats, thing: Floats) -> NDArray[np.uint8]:
        rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
        image = np.full((len(shown), HEIGHT, WIDTH, 3), 60.0)
        for colour in range(3):
            x, y = 16 + 8 * shown[:, colour, None, None], 12 + 6 * shown[:, colour + 1, None, None]
            image[..., colour] += 150 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 30)
        x, y = 16 + 10 * thing[0], 12 + 8 * thing[1]
        image += 60 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 10)[..., None]
        return np.clip(image + self.rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8)


def _swap(robot: Picker, takes: list[Take], at: int) -> Named | None:
    """Two channels whose courses are well apart, and far from how much either differs between episodes."""
    courses = np.stack([_course(each.signals[STATE][1]) for each in takes])
    middle, spread = courses.mean(0), courses.std(0) + 1e-9
    for one, other in robot.rng.permutation([(a, b) for a in range(robot.joints) for b in range(a)])[:30]:
        apart = np.abs(middle[:, one] - middle[:, other])
        widest = max(np.ptp(middle[:, one]), np.ptp(middle[:, other]))
        clear = min((apart / spread[:, one]).mean(), (apart / spread[:, other]).mean())
        if clear > 4 and apart.mean() > 0.25 * widest:
            times, values, role = takes[at].signals[STATE]
            mixed = values.copy()
            mixed[:, [one, other]] = values[:, [other, one]]
            takes[at].signals[STATE] = (times, mixed, role)
            return ("swapped-channels",)
    return None


def _course(values: NDArray[Any]) -> Floats:
    rows = np.linspace(0, len(values) - 1, 32)
    return np.stack([np.interp(rows, np.arange(len(values)), each) for each in values.T], 1)


def _shift(robot: Picker, takes: list[Take], at: int) -> Named:
    times, values, role = takes[at].signals["camera"]
    late = int(robot.rng.uniform(0.1, 0.2) * times[-1] * robot.rng.choice([-1, 1]))
    takes[at].signals["camera"] = (times + late, values, role)
    return ("time-shift",)


def _copy(robot: Picker, takes: list[Take], at: int) -> Named:
    """The recording before it once more, as a program plays it again: the same commands, and a state near it."""
    old = takes[at - 1]
    times, values, role = old.signals[STATE]
    noisy = values + robot.rng.normal(0, 0.005, values.shape)
    takes[at] = Take(0, {**old.signals, STATE: (times, noisy.astype(values.dtype), role)})
    return ("near-duplicate",)


def _cut(robot: Picker, takes: list[Take], at: int) -> Named | None:
    """An episode that ends early: joints that would have moved later have not."""
    if robot.pace > 0.08:
        return None
    rows = slice(int(robot.steps * robot.rng.uniform(0.2, 0.4)))
    takes[at].signals = {n: (times[rows], v[rows], r) for n, (times, v, r) in takes[at].signals.items()}
    return ("outlier-length",)


SPOILT = {"swapped-channels": _swap, "time-shift": _shift, "near-duplicate": _copy, "outlier-length": _cut}


def spoilt_set(seed: int, rule: str) -> tuple[list[Take], int, Named]:
    """A set in which one episode is spoilt, its number, and the rules that may name it."""
    rng = np.random.default_rng(seed)
    while True:
        robot = Picker(rng, camera=rule == "time-shift")
        takes = [robot.take() for _ in range(int(rng.integers(10, 31)))]
        at = int(rng.integers(len(takes)))
        named = SPOILT[rule](robot, takes, at)
        if named is not None:
            return takes, at, named


def clean_set(seed: int) -> list[Take]:
    """A set in which nothing is wrong."""
    rng = np.random.default_rng(seed)
    robot = Picker(rng, camera=seed % 5 == 0)
    return [robot.take() for _ in range(int(rng.integers(8, 61)))]
