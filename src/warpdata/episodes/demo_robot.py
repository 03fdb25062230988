"""A simulated robot with two arms and two cameras: the left arm picks a cube, hands it over, the right arm places it.

Every page of the documentation uses its recordings. Each signal has its own rate, as on a real robot; every fifth
episode fails, because the grip is too weak and the cube falls.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.record.recorder import Recorder
from warpdata.errors import suggests

JOINTS = ("left_shoulder", "left_elbow", "left_gripper", "right_shoulder", "right_elbow", "right_gripper")
JOINTS_HZ, ACTION_HZ, FORCE_HZ, CAMERA_HZ = 100, 50, 200, 25
TICK_HZ = 200
EPISODE_S = 4.0
HEIGHT, WIDTH = 96, 128
BASES = ((-0.45, 0.0), (0.45, 0.0))
LINKS = (0.40, 0.36)
PLACE = np.array([0.22, 0.03])
HANDOVER = np.array([0.0, 0.40])
OPEN, CLOSED, WEAK = 0.08, 0.02, 0.035
"""Gripper openings in metres; a weak grip loses the cube on the way."""
_GAIN, _DAMPING = 90.0, 17.0
_LEFT, _RIGHT = (60, 90, 190), (200, 80, 50)


@dataclass(slots=True)
class Robot:
    """Joint angles and gripper openings that follow targets, and a cube that follows a closed gripper."""

    cube: NDArray[np.float64]
    joints: NDArray[np.float64] = field(default_factory=lambda: np.zeros(6))
    speeds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(6))
    targets: NDArray[np.float64] = field(default_factory=lambda: np.zeros(6))
    holder: int | None = None

    def advance(self, dt_s: float) -> None:
        """Move joints towards their targets; a cube that no gripper holds falls."""
        self.speeds += (_GAIN * (self.targets - self.joints) - _DAMPING * self.speeds) * dt_s
        self.joints += self.speeds * dt_s
        if self.holder is None:
            self.cube[1] = max(0.02, self.cube[1] - 1.2 * dt_s)
        else:
            self.cube[:] = self.arm(self.holder)[2]

    def arm(self, side: int) -> NDArray[np.float64]:
        """Shoulder, elbow and hand of an arm in metres."""
        shoulder, elbow = self.joints[3 * side], self.joints[3 * side : 3 * side + 2].sum()
        first = np.array(BASES[side]) + LINKS[0] * np.array([math.cos(shoulder), math.sin(shoulder)])
        return np.array([BASES[side], first, first + LINKS[1] * np.array([math.cos(elbow), math.sin(elbow)])])

    def reach(self, side: int, point: NDArray[np.float64], gripper: float) -> None:
        """Set the targets of an arm so that its hand goes to a point (two-link inverse kinematics)."""
        x, y = point - np.array(BASES[side])
        distance = min(math.hypot(x, y), sum(LINKS) - 1e-3)
        cosine = (distance**2 - LINKS[0] ** 2 - LINKS[1] ** 2) / (2 * LINKS[0] * LINKS[1])
        bend = math.acos(max(-1.0, min(1.0, cosine))) * (-1 if side == 0 else 1)
        inner = math.atan2(LINKS[1] * math.sin(bend), LINKS[0] + LINKS[1] * math.cos(bend))
        self.targets[3 * side : 3 * side + 3] = math.atan2(y, x) - inner, bend, gripper

    def forces(self) -> NDArray[np.float32]:
        """Grip force of both hands in newtons."""
        held = np.array([self.holder == 0, self.holder == 1])
        return (held * (OPEN - self.joints[[2, 5]]) * 200).astype(np.float32)

    def front_image(self) -> NDArray[np.uint8]:
        """The whole scene from the front."""
        image = np.full((HEIGHT, WIDTH, 3), 232, np.uint8)
        image[_row(0.0) :] = (150, 122, 92)
        _dot(image, PLACE, 5, (120, 170, 120))
        _dot(image, self.cube, 3, (230, 180, 30))
        for side, colour in ((0, _LEFT), (1, _RIGHT)):
            points = self.arm(side)
            for start, end in itertools.pairwise(points):
                for share in np.linspace(0.0, 1.0, 24):
                    _dot(image, start * (1 - share) + end * share, 1, colour)
            _dot(image, points[2], 1 + round(self.joints[3 * side + 2] * 25), (40, 40, 40))
        return image

    def wrist_image(self) -> NDArray[np.uint8]:
        """A camera on the right hand: the surroundings of the hand, twice as large."""
        half_rows, half_columns = HEIGHT // 4, WIDTH // 4
        padded = np.pad(self.front_image(), ((half_rows,) * 2, (half_columns,) * 2, (0, 0)), mode="edge")
        x, y = self.arm(1)[2]
        row, column = np.clip(_row(y), 0, HEIGHT - 1), np.clip(_column(x), 0, WIDTH - 1)
        near = padded[row : row + 2 * half_rows, column : column + 2 * half_columns]
        return near.repeat(2, axis=0).repeat(2, axis=1)


def _row(y: float) -> int:
    return int(HEIGHT * (0.85 - y))


def _column(x: float) -> int:
    return int(WIDTH * (0.5 + x * 0.55))


def _dot(
    image: NDArray[np.uint8], point: NDArray[np.float64], radius: int, colour: tuple[int, int, int]
) -> None:
    row, column = _row(float(point[1])), _column(float(point[0]))
    image[max(row - radius, 0) : row + radius + 1, max(column - radius, 0) : column + radius + 1] = colour


@suggests
def demo_data(root: str | os.PathLike[str], episodes: int = 10, *, seed: int = 0) -> None:
    """Record episodes of the simulated robot into a root: joints, actions, grip force, events and two cameras.

    Example:
        >>> wd.demo_data("robot_data", episodes=10)
        >>> wd.open("robot_data")
    """
    for number in range(seed, seed + episodes):
        with Recorder(root, static=demo_static(number), clock="simulated") as recorder:
            recorder.declare("joints", names=list(JOINTS))
            for ts_ns, name, value in demo_records(number):
                recorder.append(name, value, ts_ns)
            recorder.mark(success=is_successful(number))


def is_successful(seed: int) -> bool:
    """Whether the episode of this seed ends with the cube in its place."""
    return seed % 5 != 3


def demo_static(seed: int) -> dict[str, Any]:
    """Static items of an episode."""
    return {"robot": "simulated two-arm robot", "task": "hand the cube over", "seed": seed}


@suggests
def demo_records(seed: int, start_ns: int = 0, seconds: float = EPISODE_S) -> Iterator[tuple[int, str, Any]]:
    """Yield (ts_ns, signal, value) of an episode in the order of time; after four seconds the task is repeated."""
    rng = np.random.default_rng(seed)
    robot = Robot(cube=np.array([rng.uniform(-0.32, -0.12), 0.02]))
    rest = [np.array([-0.25, 0.5]), np.array([0.25, 0.5])]
    for side in (0, 1):
        robot.reach(side, rest[side], OPEN)
    robot.joints[:] = robot.targets
    grip = CLOSED if is_successful(seed) else WEAK
    for tick in itertools.takewhile(lambda tick: tick < seconds * TICK_HZ, itertools.count()):
        now = start_ns + tick * (1_000_000_000 // TICK_HZ)
        phase = tick / TICK_HZ % EPISODE_S
        if tick % (TICK_HZ // ACTION_HZ) == 0:
            _choose_targets(robot, phase, rest, grip)
            yield now, "action/joint_target", robot.targets.astype(np.float32)
        for event in _update_holder(robot, phase, grip):
            yield now + 1, "events", event
        if tick % (TICK_HZ // JOINTS_HZ) == 0:
            yield now, "joints", (robot.joints + rng.normal(0, 2e-4, 6)).astype(np.float32)
        yield now, "force", robot.forces() + rng.normal(0, 0.02, 2).astype(np.float32)
        if tick % (TICK_HZ // CAMERA_HZ) == 0:
            yield now, "camera/front", robot.front_image()
            yield now + 2_000_000, "camera/wrist", robot.wrist_image()
        robot.advance(1.0 / TICK_HZ)


def _choose_targets(robot: Robot, phase: float, rest: list[NDArray[np.float64]], grip: float) -> None:
    """Waypoints of both hands over the four seconds of the task."""
    left, left_grip, right, right_grip = rest[0], OPEN, rest[1], OPEN
    if phase < 1.2:
        left, left_grip = robot.cube.copy(), OPEN if phase < 0.8 else grip
    elif phase < 2.2:
        left, left_grip = HANDOVER, grip
        right = HANDOVER + np.array([0.02, 0.0]) if phase > 1.4 else right
        right_grip = CLOSED if phase > 1.9 else OPEN
    elif phase < 3.4:
        right, right_grip = (PLACE, CLOSED) if phase < 3.2 else (PLACE, OPEN)
    robot.reach(0, left, left_grip)
    robot.reach(1, right, right_grip)


def _update_holder(robot: Robot, phase: float, grip: float) -> Iterator[str]:
    """Grasp, hand over, drop and place, as events."""
    before = robot.holder
    if before is None and 1.0 < phase < 1.2 and np.linalg.norm(robot.arm(0)[2] - robot.cube) < 0.08:
        robot.holder = 0
        yield "grasp"
    elif before == 0 and grip == WEAK and phase > 1.6:
        robot.holder = None
        yield "drop"
    elif before == 0 and phase > 2.1:
        robot.holder = 1
        yield "handover"
    elif before == 1 and phase > 3.25:
        robot.holder = None
        yield "place"
