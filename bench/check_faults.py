"""How many seeded faults `warp check` names, and how often it warns of sound episodes.

    python -m bench.check_faults [--seeds 1] [--out bench/results/check_faults.json]

Four robots that differ in rates, sensors, pauses and cameras: a pair of arms with two cameras, a mobile base with a
planar pose, a simulated arm that rests, and a gripper with a force sensor. Every set has one spoilt episode.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import warpdata as wd
from bench.check_blind import BLIND_ROBOTS
from warpdata.episodes.check.compare import EpisodeSet, SetMember
from warpdata.episodes.check.report import Finding
from warpdata.episodes.check.rules import check_opened
from warpdata.episodes.check.run import without_usual
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind

Floats = NDArray[np.float64]
Take = dict[str, tuple[NDArray[np.int64], NDArray[Any], str]]
"""Signal -> times, values, role."""

COUNT = 14
HEIGHT, WIDTH = 30, 40


def ease(phase: Floats) -> Floats:
    """A smooth way from 0 to 1."""
    clipped = np.clip(phase, 0, 1)
    return clipped * clipped * (3 - 2 * clipped)


def scene(rng: np.random.Generator, kind: int) -> tuple[Floats, Floats]:
    """A background and the colours of what moves before it; each kind of camera has another one."""
    look = np.random.default_rng(1000 + kind)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH] / HEIGHT
    wall, table = look.uniform(60, 200, 3), look.uniform(40, 160, 3)
    back = np.where((rows > 0.45 + 0.1 * kind)[..., None], table, wall) + 25 * np.sin(6 * columns + kind)[
        ..., None
    ] * look.uniform(0, 1, 3)
    return back + rng.normal(0, 2, 3), look.uniform(0, 255, (2, 3))


def film(rng: np.random.Generator, course: Floats, kind: int, noise: float) -> NDArray[np.uint8]:
    """Pictures of two things that move with a course of two numbers between -1 and 1."""
    back, colours = scene(rng, kind)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    frames = np.broadcast_to(back, (len(course), HEIGHT, WIDTH, 3)).copy()
    for number, (a, b) in enumerate(((0, 1), (1, 0))):
        x = WIDTH * (0.5 + 0.35 * course[:, a, None, None])
        y = HEIGHT * (0.55 + 0.3 * course[:, b, None, None]) - 4 * number
        mask = np.exp(-(((columns - x) / 5) ** 2 + ((rows - y) / 4) ** 2))[..., None]
        frames = frames * (1 - mask) + colours[number] * mask
    if noise:
        frames = frames + rng.normal(0, noise, frames.shape)
    return np.clip(frames, 0, 255).astype(np.uint8)


def path(rng: np.random.Generator, points: Floats, spread: float, seconds: Floats, dt: float) -> Floats:
    """A way by points that are reached at about the same times, each a little elsewhere every time."""
    stops = np.cumsum(seconds * np.exp(rng.normal(0, 0.08, len(seconds))))
    targets = points + rng.normal(0, spread, points.shape)
    times = np.arange(0, stops[-1] + 0.3, dt)
    course = np.repeat(targets[:1], len(times), 0)
    for number, stop in enumerate(stops):
        start = stops[number - 1] if number else 0.0
        share = ease((times - start) / (stop - start))[:, None]
        course = course + (targets[number + 1] - targets[number]) * share
    return course


class PairOfArms:
    """Teleoperated arms: targets at 50 Hz, the state a little behind, two noisy cameras at 25 Hz, gripper on change."""

    state, action, cameras, gripper = "arms/position", "arms/target", ("cam_left", "cam_right"), 12
    noise = 0.003

    def __init__(self, rng: np.random.Generator) -> None:
        self.points = rng.uniform(-1, 1, (5, 12))
        self.view = rng.normal(0, 0.25, (12, 2))

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode."""
        target = path(rng, self.points, 0.08, np.array([1.2, 0.9, 1.4, 1.0]), 0.02)
        target = target + np.cumsum(rng.normal(0, 0.002, target.shape), 0)
        late = 4
        state = np.concatenate([np.repeat(target[:1], late, 0), target[:-late]])
        closed = ease((np.arange(len(state)) / len(state) - rng.uniform(0.4, 0.5)) / 0.08)
        state = np.c_[state, 0.9 - 0.8 * closed] + rng.normal(0, 0.003, (len(state), 13))
        times = np.arange(len(state)) * 20_000_000 + rng.integers(-500_000, 500_000, len(state))
        pictures = np.tanh(state[::2, :12] @ self.view)
        edge = int(np.argmax(closed > 0.5))
        left, right = (film(rng, pictures, kind, 4.0) for kind in (0, 1))
        return {
            self.state: (times, state.astype(np.float32), "observation"),
            self.action: (times, target.astype(np.float32), "action"),
            "gripper/command": (times[[0, edge]], np.float32([0, 1]), "action"),
            "cam_left": (times[::2], left, "observation"),
            "cam_right": (times[::2], right, "observation"),
            "reward": (times, (0.1 + 0.01 * closed).astype(np.float32), "reward"),
        }


class Base:
    """A mobile base: planar pose with a quaternion, wheel speeds as actions, ranges, one noisy camera."""

    state, action, cameras, gripper = "base/pose", "base/velocity", ("front",), None
    noise = 0.003

    def __init__(self, rng: np.random.Generator) -> None:
        self.points = np.c_[rng.uniform(-2, 2, (4, 2)), rng.uniform(-1.2, 1.2, 4)]
        self.walls = rng.uniform(1, 4, 8)

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode."""
        course = path(rng, self.points, 0.1, np.array([2.5, 3.0, 2.0]), 0.05)
        heading = course[:, 2]
        pose = np.c_[course[:, :2], np.zeros((len(course), 3)), np.sin(heading / 2), np.cos(heading / 2)]
        pose[:, [0, 1]] += rng.normal(0, 0.004, (len(course), 2))
        speed = np.gradient(course, axis=0) / 0.05
        ranges = np.abs(
            self.walls - course[:, :1] * np.cos(np.arange(8)) - course[:, 1:2] * np.sin(np.arange(8))
        )
        ranges += rng.normal(0, 0.02, ranges.shape)
        times = np.arange(len(course)) * 50_000_000 + rng.integers(-1_500_000, 1_500_000, len(course))
        pictures = film(rng, np.tanh(course[:, :2] * 0.6), 2, 6.0)
        return {
            self.state: (times, pose, "observation"),
            "ranges": (times, ranges.astype(np.float32), "observation"),
            "bumper": (times, np.zeros(len(times), np.bool_), "observation"),
            self.action: (times, (speed + rng.normal(0, 0.01, speed.shape)).astype(np.float32), "action"),
            "front": (times, pictures, "observation"),
            "reward": (times, -np.abs(course[:, 0] - self.points[-1, 0]), "reward"),
        }


class SimulatedArm:
    """A simulated arm without any noise, which rests between its motions; its camera repeats images while it rests."""

    state, action, cameras, gripper = "qpos", "ctrl", ("render", "wrist"), 4
    noise = 0.0

    def __init__(self, rng: np.random.Generator) -> None:
        self.points = rng.uniform(-1.5, 1.5, (4, 4))

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode."""
        parts = []
        for number in range(3):
            ends = self.points[number : number + 2] + rng.normal(0, 0.1, (2, 4)) * [[0], [1]]
            if parts:
                ends[0] = parts[-1][-1]
            parts.append(path(rng, ends, 0.0, np.array([1.0]), 1 / 30))
            parts.append(np.repeat(parts[-1][-1:], int(rng.integers(15, 40)), 0))
        course = np.concatenate(parts)
        closed = (np.arange(len(course)) > 0.55 * len(course)) * 1.0
        state = np.c_[course, 0.04 - 0.03 * closed]
        times = np.round(np.arange(len(state)) * 1e9 / 30).astype(np.int64)
        control = np.c_[np.concatenate([course[1:], course[-1:]]), closed]
        view = np.tanh(course[:, :2] * 0.7)
        return {
            self.state: (times, state, "observation"),
            self.action: (times, control, "action"),
            "touch": (times, np.zeros(len(times), np.float32), "observation"),
            "render": (times, film(np.random.default_rng(0), view, 3, 0.0), "observation"),
            "wrist": (times, film(np.random.default_rng(0), view[:, ::-1], 1, 0.0), "observation"),
            "reward": (times, closed.astype(np.float32), "reward"),
        }


class ForceGripper:
    """A hand with a pose and a force at 100 Hz that peaks at contact, a camera at 15 Hz, actions as velocities."""

    state, action, cameras, gripper = "hand/pose", "hand/twist", ("camera",), 6
    noise = 0.003

    def __init__(self, rng: np.random.Generator) -> None:
        self.points = rng.uniform(-0.4, 0.4, (4, 6))
        self.view = rng.normal(0, 0.9, (6, 2))

    def take(self, rng: np.random.Generator) -> Take:
        """One sound episode."""
        course = path(rng, self.points, 0.02, np.array([1.0, 0.8, 1.1]), 0.01)
        closed = ease((np.arange(len(course)) / len(course) - rng.uniform(0.5, 0.6)) / 0.05)
        state = np.c_[course, 0.08 - 0.06 * closed] + rng.normal(0, 2e-4, (len(course), 7))
        force = rng.normal(0, 0.15, (len(course), 3))
        hits = rng.integers(len(course) // 2, len(course), 4)
        force[hits, 2] += rng.uniform(3, 8, 4)
        twist = np.gradient(course, axis=0) / 0.01 + rng.normal(0, 0.01, course.shape)
        times = np.arange(len(course)) * 10_000_000
        shown = np.arange(0, len(course), 7)
        return {
            self.state: (times, state.astype(np.float32), "observation"),
            "hand/force": (times, force.astype(np.float32), "observation"),
            self.action: (times, twist.astype(np.float32), "action"),
            "camera": (
                times[shown],
                film(rng, np.tanh(course[shown] @ self.view * 2), 4, 3.0),
                "observation",
            ),
            "reward": (times, (-np.abs(course[:, 0])).astype(np.float32), "reward"),
        }


ROBOTS = (PairOfArms, Base, SimulatedArm, ForceGripper)


# Faults: each changes one episode of a set, and returns the rules that may name it; None where it does not apply.

Rules = tuple[str, ...]
Fault = Callable[[np.random.Generator, Any, list[Take], int], "Rules | None"]


def _change(takes: list[Take], at: int, name: str, values: Any, times: Any = None) -> None:
    old = takes[at][name]
    takes[at][name] = (
        old[0] if times is None else times,
        np.asarray(values).astype(old[1].dtype),
        old[2],
    )


def _moving(robot: Any, take: Take) -> int:
    """A channel of the state that moves a lot."""
    return int(
        np.argmax(np.ptp(np.asarray(take[robot.state][1], np.float64)[:, : robot.gripper or 2], axis=0))
    )


def nan(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at][robot.state][1].copy()
    values[len(values) // 3 : len(values) // 3 + 5, 0] = np.nan
    _change(takes, at, robot.state, values)
    return ("nan",)


def constant(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at][robot.state][1].copy()
    values[:, _moving(robot, takes[at])] = values[0, _moving(robot, takes[at])]
    _change(takes, at, robot.state, values)
    return ("constant-channel", "dead-channel")


def dead(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    values[:, channel] = values[0, channel] + rng.normal(0, 0.002, len(values))
    _change(takes, at, robot.state, values)
    return ("dead-channel",)


def stuck(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    begin = int(0.25 * len(values))
    values[begin:, channel] = values[begin, channel]
    _change(takes, at, robot.state, values)
    return ("dead-channel", "outlier-final-state")


def gripper(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    if robot.gripper is None:
        return None
    values = takes[at][robot.state][1].copy()
    spread = robot.noise
    values[:, robot.gripper] = values[0, robot.gripper] + rng.normal(0, spread, len(values))
    _change(takes, at, robot.state, values)
    return ("dead-channel", "constant-channel", "outlier-final-state")


def swapped(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at][robot.state][1].copy()
    middle = np.stack([t[robot.state][1][[0, len(t[robot.state][1]) // 2, -1]] for t in takes]).mean(0)
    count = robot.gripper or 2
    apart = np.abs(middle[:, :count, None] - middle[:, None, :count]).mean(0)
    one, other = np.unravel_index(int(apart.argmax()), apart.shape)
    values[:, [one, other]] = values[:, [other, one]]
    _change(takes, at, robot.state, values)
    return ("swapped-channels",)


def flipped(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    values[:, channel] = -values[:, channel]
    _change(takes, at, robot.state, values)
    return ("outlier-final-state", "swapped-channels", "odd-course")


def degrees(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    values[:, channel] = np.degrees(values[:, channel])
    _change(takes, at, robot.state, values)
    return ("outlier-final-state", "odd-course")


def gap(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    times, values, _ = takes[at][robot.state]
    kept = (times < times[len(times) // 2]) | (times > times[len(times) // 2] + 700_000_000)
    _change(takes, at, robot.state, values[kept], times[kept])
    return ("gap",)


def jitter(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    times, values, _ = takes[at][robot.state]
    pause = int(np.median(np.diff(times)))
    moved = np.sort(times + rng.integers(-pause // 2, pause // 2, len(times)))
    _change(takes, at, robot.state, values, moved + np.arange(len(times)))
    return ("jitter",)


def short(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    end = 0.4 * max(times[-1] for times, _, _ in takes[at].values())
    for name, (times, values, _) in list(takes[at].items()):
        _change(takes, at, name, values[times <= end], times[times <= end])
    return ("outlier-length",)


def long(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    for name, (times, values, _) in list(takes[at].items()):
        pause = int(np.median(np.diff(times))) if len(times) > 2 else 1
        more = 0 if len(times) <= 2 else 2 * len(times)
        tail = times[-1] + pause * np.arange(1, more + 1)
        _change(
            takes,
            at,
            name,
            np.concatenate([values, np.repeat(values[-1:], more, 0)]),
            np.concatenate([times, tail]),
        )
    return ("outlier-length",)


def _spikes(rng: Any, robot: Any, takes: list[Take], at: int, count: int, size: float) -> None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    rows = rng.choice(np.arange(5, len(values) - 5), count, replace=False)
    values[rows, channel] += size * np.ptp(values[:, channel]) * rng.choice([-1, 1], count)
    _change(takes, at, robot.state, values)


def large_spikes(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    _spikes(rng, robot, takes, at, 4, 3.0)
    return ("spikes",)


def small_spikes(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    _spikes(rng, robot, takes, at, 3, 0.25)
    return ("spikes",)


def late_actions(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    times, values, _ = takes[at][robot.action]
    _change(takes, at, robot.action, values, times + 350_000_000)
    return ("time-shift",)


def noisy_actions(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at][robot.action][1]
    _change(takes, at, robot.action, values + rng.normal(0, 0.3, values.shape) * values.std(0))
    return ("action-jerk", "spikes")


def late_camera(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    times, values, _ = takes[at][robot.cameras[0]]
    _change(takes, at, robot.cameras[0], values, times + 400_000_000)
    return ("time-shift",)


def frozen(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    times, values, _ = takes[at][robot.cameras[0]]
    frames = values.copy()
    begin = int(0.15 * len(frames))
    stop = int(np.searchsorted(times, times[begin] + 800_000_000))
    frames[begin:stop] = frames[begin]
    _change(takes, at, robot.cameras[0], frames)
    return ("frozen-camera",)


def tripled(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at][robot.cameras[0]][1]
    _change(takes, at, robot.cameras[0], values[np.arange(len(values)) // 3 * 3])
    return ("repeated-frames",)


def _view(change: Callable[[NDArray[Any]], Any]) -> Fault:
    def fault(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
        _change(takes, at, robot.cameras[0], change(takes[at][robot.cameras[0]][1]))
        return ("odd-view",)

    return fault


def exchanged(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    if len(robot.cameras) < 2:
        return None
    one, other = robot.cameras
    takes[at][one], takes[at][other] = takes[at][other], takes[at][one]
    return ("odd-view",)


def copied(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    takes[at] = dict(takes[at - 1])
    return ("near-duplicate",)


def trimmed_copy(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    takes[at] = dict(takes[at - 1])
    last = max(times[-1] for times, _, _ in takes[at].values())
    for name, (times, values, _) in list(takes[at].items()):
        kept = (times >= 0.08 * last) & (times <= 0.9 * last)
        if kept.any():
            _change(takes, at, name, values[kept], times[kept])
    return ("near-duplicate",)


def odd_return(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values = takes[at]["reward"][1]
    totals = [float(take["reward"][1].sum()) for take in takes]
    away = 4 * max(np.ptp(totals), abs(np.median(totals)))
    _change(takes, at, "reward", values + away / len(values))
    return ("outlier-return",)


def elsewhere(rng: Any, robot: Any, takes: list[Take], at: int) -> Rules | None:
    values, channel = takes[at][robot.state][1].copy(), _moving(robot, takes[at])
    ramp = ease((np.arange(len(values)) / len(values) - 0.6) / 0.3)
    values[:, channel] = values[:, channel] + 0.9 * np.ptp(values[:, channel]) * ramp
    _change(takes, at, robot.state, values)
    return ("outlier-final-state", "odd-course")


FAULTS: dict[str, Fault] = {
    "nan": nan,
    "constant channel": constant,
    "dead channel": dead,
    "stuck channel": stuck,
    "gripper never closes": gripper,
    "swapped channels": swapped,
    "flipped sign": flipped,
    "degrees": degrees,
    "gap": gap,
    "jitter": jitter,
    "cut short": short,
    "idle tail": long,
    "large spikes": large_spikes,
    "small spikes": small_spikes,
    "late actions": late_actions,
    "noisy actions": noisy_actions,
    "late camera": late_camera,
    "frozen camera": frozen,
    "tripled frames": tripled,
    "covered lens": _view(lambda frames: frames // 12),
    "exchanged cameras": exchanged,
    "BGR": _view(lambda frames: frames[..., ::-1]),
    "upside down": _view(lambda frames: frames[:, ::-1, ::-1]),
    "copy": copied,
    "trimmed copy": trimmed_copy,
    "odd return": odd_return,
    "ends elsewhere": elsewhere,
}


def episode_of(take: Take, name: str) -> wd.Episode:
    """An episode in memory."""
    signals = {}
    for key, (times, values, role) in take.items():
        kind = "image" if values.ndim == 4 else numeric_kind(values.shape[1:])
        meta = SignalMeta(values.dtype, values.shape[1:], kind, role=role)  # type: ignore[arg-type]
        signals[key] = ArraySignal(times, values, meta)
    return wd.Episode.of(signals, id=name)


Checked = tuple[list[Finding], list[SetMember]]


def check_take(take: Take, number: int) -> Checked:
    """The findings of one episode, and what is remembered of it."""
    episode, members = episode_of(take, f"{number:03d}"), list[SetMember]()
    return list(check_opened(lambda: episode, episode.id, beside=members.append)), members


def warnings(takes: list[Take], known: dict[int, Checked] | None = None) -> list[Finding]:
    """The warnings of `warp check` about a set; `known` has episodes that are checked already."""
    checked = [(known or {}).get(number) or check_take(take, number) for number, take in enumerate(takes)]
    beside = EpisodeSet()
    for _, members in checked:
        for member in members:
            beside.add(member)
    findings = [finding for own, _ in checked for finding in own]
    every = without_usual(findings, beside, len(takes)) + list(beside.findings())
    return [finding for finding in every if finding.severity != "info"]


def make_set(robot: Any, seed: int) -> list[Take]:
    """A sound set."""
    rng = np.random.default_rng(seed)
    made = robot(rng)
    return [made.take(rng) for _ in range(COUNT)]


def spoil_set(
    robot: Any, fault: str, sound: list[Take], seed: int
) -> tuple[list[Take], Rules, set[str]] | None:
    """A set with one spoilt episode, the rules and the episodes that may be named; None where it does not apply."""
    rng, takes = np.random.default_rng(seed + 1), [dict(take) for take in sound]
    at = 1 + int(rng.integers(COUNT - 1))
    rules = FAULTS[fault](rng, robot, takes, at)
    if rules is None:
        return None
    return takes, rules, {f"{at:03d}", f"{at - 1:03d}"} if "near-duplicate" in rules else {f"{at:03d}"}


def measure(robots: Sequence[Any], seeds: int, fault_seeds: int) -> dict[str, Any]:
    """Share of sets whose fault is named, by fault, and warnings per hundred sound episodes."""
    named: dict[str, list[bool]] = {fault: [] for fault in FAULTS}
    alarms: list[str] = []
    besides: list[str] = []
    for robot, seed in itertools.product(robots, range(seeds)):
        sound = make_set(robot, seed)
        checked = {number: check_take(take, number) for number, take in enumerate(sound)}
        alarms += [f"{robot.__name__} {seed} {_line(finding)}" for finding in warnings(sound, checked)]
        for fault in FAULTS if seed < fault_seeds else ():
            spoilt = spoil_set(robot, fault, sound, seed)
            if spoilt is None:
                continue
            takes, rules, names = spoilt
            same = {number: checked[number] for number in checked if f"{number:03d}" not in names}
            findings = warnings(takes, same)
            named[fault].append(any(f.rule in rules and f.episode in names for f in findings))
            besides += [
                f"{robot.__name__} {seed} {fault}: {_line(f)}" for f in findings if f.episode not in names
            ]
    shares = {fault: round(float(np.mean(hits)), 2) for fault, hits in named.items()}
    episodes = COUNT * seeds * len(robots)
    return {
        "robots": [robot.__name__ for robot in robots],
        "episodes_per_set": COUNT,
        "sets_per_fault": {fault: len(hits) for fault, hits in named.items()},
        "share_named": shares,
        "faults_named": sum(share >= 0.5 for share in shares.values()),
        "faults": len(FAULTS),
        "mean_share": round(float(np.mean(list(shares.values()))), 3),
        "sound_episodes": episodes,
        "false_alarms": len(alarms),
        "false_alarms_per_100": round(100 * len(alarms) / episodes, 2),
        "alarms": alarms,
        "warnings_about_other_episodes": besides,
    }


def _line(finding: Finding) -> str:
    return f"{finding.rule} {finding.episode} {finding.signal}: {finding.message}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="sound sets per robot")
    parser.add_argument("--fault-seeds", type=int, default=1, help="spoilt sets per robot and fault")
    parser.add_argument("--robots", choices=("known", "blind"), action="append")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    groups = {"known": ROBOTS, "blind": BLIND_ROBOTS}
    chosen = options.robots or list(groups)
    result = {name: measure(groups[name], options.seeds, options.fault_seeds) for name in chosen}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
