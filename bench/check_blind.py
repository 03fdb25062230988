"""Two robots that were written after the rules of `warp check`, to measure the rules on sets they were not made for.

`Kitchen` is a simulation without noise at 12.5 Hz: an arm with a finger, objects that rest until they are moved, goals
that differ in every episode, a reward at the end that some episodes do not get. `Rover` is a wheeled base with a
driven arm: teleoperated with pauses, many rates, dropped frames, exposure that drifts, a battery, commands on change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Take = dict[str, tuple[NDArray[np.int64], NDArray[Any], str]]
"""Signal -> times, values, role."""


def follow(targets: Floats, dt: float, stiffness: float) -> Floats:
    """A critically damped mass that follows targets: [steps, joints]."""
    state, speed = targets[0].copy(), np.zeros_like(targets[0])
    course = np.empty_like(targets)
    for step, target in enumerate(targets):
        speed = speed + dt * (stiffness**2 * (target - state) - 2 * stiffness * speed)
        state = state + dt * speed
        course[step] = state
    return course


def chain(angles: Floats, lengths: Floats) -> Floats:
    """Points of a planar chain of links: [steps, links + 1, 2]."""
    direction = np.cumsum(angles, axis=1)
    steps = lengths[:, None] * np.stack([np.cos(direction), np.sin(direction)], axis=-1)
    return np.concatenate([np.zeros((len(angles), 1, 2)), np.cumsum(steps, axis=1)], axis=1)


def draw(points: Floats, boxes: Floats, back: Floats, colours: Floats) -> Floats:
    """Frames of a chain of links and of boxes before a background; coordinates are -1 to 1."""
    height, width = back.shape[:2]
    rows, columns = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]  # type: ignore[misc]
    frames = np.broadcast_to(back, (len(points), *back.shape)).copy()
    for number in range(boxes.shape[1]):
        x, y = boxes[:, number, 0, None, None], boxes[:, number, 1, None, None]
        inside = (np.abs(columns - x) < 0.12) & (np.abs(rows - y) < 0.16)
        frames[inside] = colours[1 + number]
    for link in range(points.shape[1] - 1):
        start, end = points[:, link, None, None, :], points[:, link + 1, None, None, :]
        along = end - start
        spots = np.stack([columns, rows], axis=-1)[None]
        share = np.clip(((spots - start) * along).sum(-1) / ((along**2).sum(-1) + 1e-9), 0, 1)
        away = np.linalg.norm(spots - start - share[..., None] * along, axis=-1)
        cover = np.clip(1.6 - away / 0.06, 0, 1)[..., None]
        frames = frames * (1 - cover) + colours[0] * cover
    return frames


def backdrop(rng: np.random.Generator, height: int, width: int) -> Floats:
    """A textured background: stripes, a floor and a lamp."""
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]  # type: ignore[misc]
    floor, wall, lamp = rng.uniform(30, 220, (3, 3))
    stripes = np.sign(np.sin(columns * rng.uniform(10, 30)))[..., None] * rng.uniform(0, 18, 3)
    back = np.where((rows > rng.uniform(0.5, 0.7))[..., None], floor, wall + stripes)
    glow = np.exp(-((rows - rng.uniform(0, 0.4)) ** 2 + (columns - rng.uniform(0.1, 0.9)) ** 2) / 0.02)
    return np.asarray(back + glow[..., None] * (lamp - back))


def as_frames(frames: Floats) -> NDArray[np.uint8]:
    return np.clip(frames, 0, 255).astype(np.uint8)


class Kitchen:
    """A simulated kitchen: seven joints and a finger, two objects, delta actions, two rendered views."""

    state, action, cameras, gripper, noise = "robot0/qpos", "actions", ("agentview", "eye_in_hand"), 7, 0.0

    def __init__(self, rng: np.random.Generator) -> None:
        self.home = rng.uniform(-0.8, 0.8, 7)
        self.place = rng.uniform(-0.7, 0.7, 7)
        self.lengths = np.array([0.45, 0.4, 0.3])
        self.views = [backdrop(rng, 36, 36) for _ in range(2)]
        self.colours = rng.uniform(0, 255, (3, 3))

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode: reach an object somewhere, take it, put it at its place."""
        dt = 0.08
        home = self.home + rng.uniform(-0.05, 0.05, 7)
        reach = self.home * 0.3 + rng.uniform(-0.6, 0.6, 7)
        place = self.place + rng.uniform(-0.1, 0.1, 7)
        lengths = rng.integers((20, 6, 22, 6), (34, 10, 36, 14))
        targets = np.repeat(np.stack([reach, reach, place, place]), lengths, axis=0)
        qpos = follow(np.concatenate([home[None], targets]), dt, 2.2)
        grasp, release = int(lengths[0] + 2), int(lengths[:3].sum() + 2)
        steps = np.arange(len(qpos))
        closed = (steps >= grasp) & (steps < release)
        finger = follow(np.where(closed, 0.004, 0.04)[:, None], dt, 6.0)
        hand = chain(qpos[:, :3], self.lengths)[:, -1]
        carried = np.where(
            closed[:, None], hand, np.where((steps < grasp)[:, None], hand[grasp], hand[release])
        )
        other = np.repeat(rng.uniform(-0.6, 0.6, (1, 2)), len(qpos), axis=0)
        objects = np.concatenate([carried, np.zeros((len(qpos), 1)), other, np.zeros((len(qpos), 1))], axis=1)
        delta = np.gradient(qpos, axis=0)[:, :6] / 0.05
        success = rng.random() < 0.85
        reward = np.zeros(len(qpos), np.float32)
        reward[release:] = success
        times = steps.astype(np.int64) * 80_000_000
        points, boxes = chain(qpos[:, :3], self.lengths), np.stack([carried, other], axis=1)
        near = points - hand[:, None]
        return {
            self.state: (times, np.concatenate([qpos, finger], axis=1), "observation"),
            "robot0/qvel": (times, np.gradient(qpos, dt, axis=0), "observation"),
            "objects": (times, objects, "observation"),
            self.action: (times, np.c_[delta, np.where(closed, 1.0, -1.0)].astype(np.float32), "action"),
            "agentview": (times, as_frames(draw(points, boxes, self.views[0], self.colours)), "observation"),
            "eye_in_hand": (
                times,
                as_frames(draw(near, boxes - hand[:, None], self.views[1], self.colours)),
                "observation",
            ),
            "reward": (times, reward, "reward"),
            "done": (times, steps == len(steps) - 1, "terminated"),
        }


class Rover:
    """A wheeled base with a driven arm of five joints and a gripper, teleoperated from a leader arm."""

    state, action, cameras, gripper, noise = "arm/joints", "leader/joints", ("head", "mast"), 5, 0.004

    def __init__(self, rng: np.random.Generator) -> None:
        self.points = rng.uniform(-1.1, 1.1, (6, 5))
        self.route = rng.uniform(-1.5, 1.5, (3, 2))
        self.lengths = np.array([0.4, 0.35, 0.25])
        self.views = [backdrop(rng, 32, 48) for _ in range(2)]
        self.colours = rng.uniform(0, 255, (3, 3))

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode: drive somewhere with pauses, move the arm by way points, close the gripper."""
        dt = 1 / 60
        points = self.points + rng.normal(0, 0.12, self.points.shape)
        holds = rng.uniform(0.7, 1.4, len(points)) + (rng.random(len(points)) < 0.3) * rng.uniform(0.3, 1.2)
        targets = np.repeat(points, np.round(holds / dt).astype(int), axis=0)
        leader = follow(targets, dt, 5.0)
        leader = leader + 0.015 * np.sin(np.arange(len(leader))[:, None] * dt * 9 + rng.uniform(0, 6, 5))
        arm = follow(leader, dt, 25.0)
        count = len(arm)
        times = (np.arange(count) * 1e9 / 60).astype(np.int64) + rng.integers(0, 1_200_000, count)
        begin, end = rng.uniform(0.35, 0.5), rng.uniform(0.85, 0.95)
        phase = np.arange(count) / count
        closed = np.clip((phase - begin) / 0.04, 0, 1) - np.clip((phase - end) / 0.04, 0, 1)
        state = np.c_[arm, 1.2 - closed] + rng.normal(0, self.noise, (count, 6))
        position = follow(np.repeat(self.route, -(-count // 3), axis=0)[:count], dt, 1.5)
        position = position - position[0]
        odometry = slice(None, None, 2)
        heading = np.unwrap(np.arctan2(*np.gradient(position, axis=0).T[::-1])) * 0.3
        pose = np.c_[position, heading][odometry] + rng.normal(0, 0.003, (len(phase[odometry]), 3))
        twist = np.linalg.norm(np.gradient(position, dt, axis=0), axis=1)
        stick = np.round(np.c_[twist, np.gradient(heading, dt)][::6] * 8) / 8
        changes = np.r_[True, (np.diff(stick, axis=0) != 0).any(1)]
        beams = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        scan = 3 + np.cos(beams) * position[::11, :1] + np.sin(beams) * position[::11, 1:]
        scan = scan + rng.normal(0, 0.03, scan.shape)
        volts = 25.1 - 0.4 * phase[::60] - rng.uniform(0, 1.5) + rng.normal(0, 0.02, len(phase[::60]))
        films = []
        for number, view in enumerate(self.views):
            rows = np.arange(number, count, 3)
            rows = rows[rng.random(len(rows)) > 0.01]
            joints = arm[rows, :3] if number == 0 else arm[rows, 1:4] * [1, -1, 1]
            box = np.repeat((0.1 + 0.3 * number) * np.ones((1, 2, 2)), len(rows), axis=0)
            box[:, 0] = box[:, 0] + 0.2 * position[rows]
            exposure = 1 + 0.06 * np.sin(rows * dt * rng.uniform(0.3, 0.9) + rng.uniform(0, 6))
            frames = (
                draw(chain(joints, self.lengths), box, view, self.colours) * exposure[:, None, None, None]
            )
            frames = frames + rng.normal(0, 3, frames.shape)
            films.append((times[rows] + rng.integers(0, 4_000_000, len(rows)), as_frames(frames)))
        return {
            self.state: (times, state.astype(np.float32), "observation"),
            self.action: (times, leader.astype(np.float32), "action"),
            "base/odometry": (times[odometry], pose, "observation"),
            "base/command": (times[::6][changes], stick[changes].astype(np.float32), "action"),
            "lidar": (times[::11], scan.astype(np.float32), "observation"),
            "battery": (times[::60], volts.astype(np.float32), "observation"),
            "estop": (times[odometry], np.zeros(len(pose), np.bool_), "observation"),
            "head": (*films[0], "observation"),
            "mast": (*films[1], "observation"),
            "reward": (times[odometry], (0.01 * closed[odometry]).astype(np.float32), "reward"),
        }


BLIND_ROBOTS = (Kitchen, Rover)
