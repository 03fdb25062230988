"""A simulated two-joint arm with a camera, a force sensor and events, each at its own rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.timeline.writing import EpisodeWriter

STATE_HZ, FORCE_HZ, ACTION_HZ, CAMERA_HZ = 200, 400, 50, 30
HEIGHT, WIDTH = 120, 160
_LINKS = (0.5, 0.4)
_GAIN, _DAMPING = 40.0, 9.0


@dataclass(slots=True)
class Arm:
    """Two joints that follow targets; touching the table gives force and an event."""

    angle: NDArray[np.float64]
    speed: NDArray[np.float64]
    target: NDArray[np.float64]
    touches: bool = False

    def advance(self, dt_s: float) -> None:
        """Move for a short time."""
        self.speed += (_GAIN * (self.target - self.angle) - _DAMPING * self.speed) * dt_s
        self.angle += self.speed * dt_s

    def points(self) -> NDArray[np.float64]:
        """Shoulder, elbow and hand in metres."""
        first, second = self.angle[0], self.angle.sum()
        elbow = np.array([math.cos(first), math.sin(first)]) * _LINKS[0]
        hand = elbow + np.array([math.cos(second), math.sin(second)]) * _LINKS[1]
        return np.array([[0.0, 0.0], elbow, hand])

    def force(self) -> NDArray[np.float32]:
        """Force at the hand: the table pushes back below y = 0."""
        depth = max(0.0, -float(self.points()[2, 1]))
        return np.array([0.0, 800.0 * depth, 0.0], np.float32)

    def picture(self) -> NDArray[np.uint8]:
        """What the camera sees."""
        image = np.full((HEIGHT, WIDTH, 3), 235, np.uint8)
        image[int(HEIGHT * 0.75) :] = (150, 120, 90)
        points = self.points()
        for start, end, colour in ((0, 1, (40, 60, 160)), (1, 2, (190, 60, 40))):
            for share in np.linspace(0.0, 1.0, 60):
                x, y = points[start] * (1 - share) + points[end] * share
                row, column = int(HEIGHT * (0.75 - y * 0.7)), int(WIDTH * (0.5 + x * 0.5))
                image[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3] = colour
        return image


def demo_records(seed: int, start_ns: int = 0) -> Iterator[tuple[int, str, Any]]:
    """(ts_ns, signal, value) without end, in the order of time."""
    rng = np.random.default_rng(seed)
    arm = Arm(np.array([1.2, -0.8]), np.zeros(2), np.array([1.2, -0.8]))
    tick_hz = 1200  # every rate divides it
    for tick in range(1 << 62):
        now = start_ns + round(tick * 1e9 / tick_hz)
        if tick % (tick_hz // ACTION_HZ) == 0:
            if tick % tick_hz == 0:
                arm.target = rng.uniform([-0.3, -1.8], [1.6, -0.2])
                yield now, "events", f"reach {arm.target[0]:.2f} {arm.target[1]:.2f}"
            yield now, "action/joint_target", arm.target.astype(np.float32)
        if tick % (tick_hz // STATE_HZ) == 0:
            noise = rng.normal(0, 1e-4, 4)
            yield now, "joints", (np.concatenate([arm.angle, arm.speed]) + noise).astype(np.float32)
        if tick % (tick_hz // FORCE_HZ) == 0:
            yield now, "force", arm.force() + rng.normal(0, 0.02, 3).astype(np.float32)
        if tick % (tick_hz // CAMERA_HZ) == 0:
            yield now, "camera", arm.picture()
        touches = bool(arm.force()[1] > 1.0)
        if touches != arm.touches:
            arm.touches = touches
            yield now + 1, "events", "touch" if touches else "release"
        arm.advance(1.0 / tick_hz)


def describe_demo(writer: EpisodeWriter, seed: int) -> None:
    """The static items of a simulated episode."""
    writer.set_static("robot", "simulated two-joint arm")
    writer.set_static("task", "reach random targets")
    writer.set_static("seed", seed)
    writer.set_static("link_lengths_m", list(_LINKS))
