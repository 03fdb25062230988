"""Random sets of recordings, all from a seed: robots, rates, lengths, tasks and sensors; clean, or with one spoilt.

What is spoilt is spoilt by an amount that somebody who looks at the plots would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import warpdata as wd
from warpdata.episodes.check.compare import MIN_EPISODES, EpisodeSet
from warpdata.episodes.check.report import Finding
from warpdata.episodes.check.rules import check_opened
from warpdata.episodes.check.run import without_usual
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind

Floats = NDArray[np.float64]


@dataclass
class Take:
    """One episode before it is recorded: name -> times, values, role."""

    task: int
    signals: dict[str, tuple[NDArray[np.int64], NDArray[Any], str]]
    static: dict[str, Any] = field(default_factory=dict)

    def episode(self, name: str) -> wd.Episode:
        """It, in memory."""
        signals = {
            each: ArraySignal(
                times,
                values,
                SignalMeta(
                    values.dtype,
                    values.shape[1:],
                    "image" if each == "camera" else numeric_kind(values.shape[1:]),
                    role=role,
                ),
            )
            for each, (times, values, role) in self.signals.items()
        }
        return wd.Episode.of(signals, self.static, id=name)

    def record(self, root: Path) -> None:
        """It, as one more episode of a root."""
        with wd.LocalDatasetWriter(root, durability="none").new_episode() as recording:
            for name, value in self.static.items():
                recording.set_static(name, value)
            for name, (times, values, role) in self.signals.items():
                recording.declare(name, role=role)
                for value, ts_ns in zip(values, times.tolist(), strict=True):
                    recording.append(name, value, ts_ns)


@dataclass
class Task:
    """What is usual in one task."""

    steps: int
    start: Floats
    goal: Floats
    bends: Floats
    frequency: Floats


@dataclass
class World:
    """A robot, its sensors and its tasks."""

    rng: np.random.Generator
    rate_hz: float
    joints: int
    tasks: list[Task]
    labelled: bool
    motion: str
    start_spread: float
    goal_spread: float
    length_spread: float
    noise: float
    quantum: float
    unit: Floats
    offset: Floats
    dtype: str
    action: str
    action_name: str
    state_name: str
    reward: str
    camera: str
    camera_rate: float
    jitter: float
    epoch_ns: int
    binary: bool

    def take(self, task: int, steps: int | None = None) -> Take:
        """One honest episode."""
        rng, what = self.rng, self.tasks[task]
        if steps is None:
            widest = 2.5 * self.length_spread
            factor = np.exp(np.clip(rng.normal(0, self.length_spread), -widest, widest))
            steps = max(20, round(what.steps * float(factor)))
        phase = np.clip(np.linspace(0, 1.1, steps), 0, 1)[:, None]
        eased = phase**3 * (10 - 15 * phase + 6 * phase**2)
        start = what.start + rng.normal(0, self.start_spread, self.joints)
        goal = what.goal + rng.normal(0, self.goal_spread, self.joints)
        clean = start + (goal - start) * eased
        size = 0.15 if self.motion != "scripted" else 0.01
        for k in (1, 2, 3):
            clean = clean + np.sin(np.pi * phase) * rng.normal(0, size / k, self.joints) * np.sin(
                np.pi * k * phase + rng.uniform(0, np.pi, self.joints)
            )
        clean = clean + what.bends * np.sin(np.pi * phase)
        if self.motion == "periodic":
            turns = what.frequency * rng.uniform(0.95, 1.05)
            clean = clean + 0.4 * np.sin(
                2 * np.pi * (turns * np.linspace(0, 1, steps)[:, None]) + rng.uniform(0, 2 * np.pi)
            ) * np.sin(np.pi * phase)
        noise = self.noise * rng.standard_normal(clean.shape)
        state = clean + noise
        pause = 1e9 / self.rate_hz
        times = self.epoch_ns + (
            np.arange(steps) * pause + rng.uniform(-1, 1, steps) * self.jitter * pause
        ).astype(np.int64)
        signals: dict[str, tuple[NDArray[np.int64], NDArray[Any], str]] = {}
        signals[self.state_name] = (times, self._sensed(state), "observation")
        made = self._actions(clean, start, goal)
        if made is not None:
            signals[self.action_name] = (times, made, "action")
        if self.binary:
            closed = (np.arange(steps) > steps * rng.uniform(0.4, 0.6)).astype(np.float32)
            signals["gripper"] = (times, closed, "observation")
        reward = self._rewards(clean, goal)
        if reward is not None:
            signals["reward"] = (times, reward, "reward")
        if self.camera != "none":
            frames = max(2, int(steps / self.rate_hz * self.camera_rate))
            camera_times = np.linspace(0, (steps - 1) * pause, frames)
            shown = np.stack([np.interp(camera_times, np.arange(steps) * pause, each) for each in clean.T], 1)
            signals["camera"] = (
                self.epoch_ns + camera_times.astype(np.int64),
                self._pictures(shown),
                "observation",
            )
        static = {"task": f"task {task}"} if self.labelled else {}
        return Take(task, signals, static)

    def _sensed(self, state: Floats) -> NDArray[Any]:
        if self.quantum:
            state = np.round(state / self.quantum) * self.quantum
        if self.dtype.startswith("i"):
            return np.round(state * 4000).astype(self.dtype)
        return (state * self.unit + self.offset).astype(self.dtype)

    def _actions(self, clean: Floats, start: Floats, goal: Floats) -> NDArray[Any] | None:
        rng = self.rng
        if self.action == "velocity":
            speed = np.gradient(clean, axis=0) * len(clean)
            return (speed + 0.02 * rng.standard_normal(clean.shape)).astype(np.float32)
        if self.action == "target":
            return np.concatenate([clean[1:], clean[-1:]]).astype(np.float32) * self.unit.astype(np.float32)
        if self.action == "torque":
            return (5 * (goal - clean) + 0.3 * rng.standard_normal(clean.shape)).astype(np.float64)
        if self.action == "discrete":
            return np.digitize(clean[:, 0] - clean[:, 0].mean(), [-0.3, 0.0, 0.3]).astype(np.int64)
        if self.action == "constant":
            return np.tile(goal.astype(np.float32), (len(clean), 1))
        if self.action == "zero":
            return np.zeros((len(clean), self.joints), np.float32)
        return None

    def _rewards(self, clean: Floats, goal: Floats) -> NDArray[Any] | None:
        rng, steps = self.rng, len(clean)
        if self.reward == "distance":
            return -np.abs(clean - goal).mean(1)
        if self.reward == "sparse":
            out = np.zeros(steps, np.float32)
            out[-1] = float(rng.random() < 0.7)
            return out
        if self.reward == "alive":
            return np.ones(steps, np.float32)
        if self.reward == "zero":
            return np.zeros(steps, np.float64)
        return None

    def _pictures(self, shown: Floats) -> NDArray[Any]:
        rng, (height, width) = self.rng, (24, 32)
        rows, columns = np.mgrid[0:height, 0:width]
        image = np.full((len(shown), height, width), 30.0)
        drift = np.arange(len(shown))[:, None, None]
        if self.camera == "static":
            image += 100 * np.exp(-((columns - 10) ** 2) / 20)
        elif self.camera == "unrelated":
            image += 100 * np.exp(-((columns - (drift * 1.3 + rng.uniform(0, 32)) % width) ** 2) / 20)
        else:
            first, last = shown[:, 0, None, None], shown[:, -1, None, None]
            image += 120 * np.exp(-((columns - width * (0.5 + 0.25 * first)) ** 2) / 18)
            image += 100 * np.exp(-((rows - height * (0.5 + 0.25 * last)) ** 2) / 18)
        image += rng.normal(0, 2, image.shape)
        if self.camera == "depth":
            return np.clip(image * 20, 0, 65535).astype(np.uint16)
        gray = np.clip(image, 0, 255).astype(np.uint8)
        return np.stack([gray, gray, gray // 2], -1) if self.camera == "colour" else gray

    @property
    def shows_state(self) -> bool:
        """Whether its camera tells where the robot is."""
        return self.camera in ("colour", "gray", "depth")


def world(rng: np.random.Generator, **fixed: Any) -> World:
    """A robot drawn by chance; `fixed` says what is not."""

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    rate = float(np.exp(rng.uniform(np.log(5), np.log(500))))
    joints = int(fixed.pop("joints", one(1, 2, 3, 4, 6, 7, 8, 14, 32)))
    most = fixed.pop("most_steps", 5000 if joints < 8 else 1000)
    usual = float(np.exp(rng.uniform(np.log(24), np.log(most))))
    tasks = []
    for _ in range(int(one(1, 1, 1, 2, 3))):
        steps = int(np.clip(usual * float(np.exp(rng.uniform(-1.2, 1.2))), 24, 5000))
        tasks.append(
            Task(steps, rng.uniform(-1, 1, joints), rng.uniform(-1, 1, joints), rng.normal(0, 0.3, joints),
                 np.round(rng.uniform(2, 6, joints)))
        )  # fmt: skip
    camera = one("none", "none", "none", "colour", "gray", "depth", "static", "unrelated")
    made: dict[str, Any] = {
        "rate_hz": rate, "joints": joints, "tasks": tasks, "labelled": bool(one(True, False)),
        "motion": one("reach", "reach", "periodic", "scripted"),
        "start_spread": one(0.01, 0.05, 0.3), "goal_spread": one(0.0, 0.02, 0.05, 0.4),
        "length_spread": one(0.0, 0.02, 0.08, 0.15, 0.35),
        "noise": one(0.0, 0.001, 0.005, 0.02), "quantum": one(0.0, 0.0, 1 / 512, 1 / 64, 1 / 16),
        "unit": 10 ** rng.uniform(-3, 3, joints), "offset": rng.normal(0, 1, joints) * one(0, 10),
        "dtype": one("f4", "f8", "i2", "i4"),
        "action": one("velocity", "velocity", "target", "torque", "discrete", "constant", "zero"),
        "action_name": one("action", "torque", "action/arm", "cmd_vel", "u"),
        "state_name": one("joints", "observation/state", "qpos"),
        "reward": one("none", "distance", "sparse", "alive", "zero"),
        "camera": camera, "camera_rate": min(rate, float(one(5, 10, 15, 30))),
        "jitter": one(0.0, 0.0, 0.02, 0.1), "epoch_ns": one(0, 1_700_000_000_000_000_000),
        "binary": bool(one(True, False, False)),
    }  # fmt: skip
    made.update(fixed)
    return World(rng, **made)


def clean_set(where: World, count: int) -> list[Take]:
    """At least so many episodes of all tasks, mixed, and at least a sixth of `count` of each."""
    tasks = list(range(len(where.tasks)))
    order = where.rng.permutation([*tasks * (count // 6), *where.rng.choice(tasks, count)])
    return [where.take(int(each)) for each in (order if len(tasks) > 1 else order[:count])]


def findings(takes: list[Take]) -> list[Finding]:
    """What `warp check` says of a set."""
    beside, found = EpisodeSet(), []
    for number, each in enumerate(takes):
        episode = each.episode(f"{number:03d}")
        found += list(check_opened(partial(_itself, episode), episode.id, beside=beside.add))
    return without_usual(found, beside, len(takes)) + list(beside.findings())


def _itself(episode: wd.Episode) -> wd.Episode:
    return episode


# What can be spoilt; each takes the world, the set and the number of the episode, and may refuse a world where
# nobody could see it (None), else says the rules that may name it.

Named = tuple[str, ...]


def _cut(one: Take, begin: float, end: float) -> None:
    first = min(times[0] for times, _, _ in one.signals.values())
    last = max(times[-1] for times, _, _ in one.signals.values())
    low, high = first + int((last - first) * begin), first + int((last - first) * end)
    for name, (times, values, role) in one.signals.items():
        rows = slice(int(np.searchsorted(times, low)), int(np.searchsorted(times, high)))
        one.signals[name] = (times[rows], values[rows], role)


def spoil_length(where: World, takes: list[Take], at: int) -> Named | None:
    if where.length_spread > 0.15 or (where.length_spread > 0.08 and len(takes) < 12):
        return None
    task = where.tasks[takes[at].task]
    if where.labelled is False and len(where.tasks) > 1:
        lengths = [each.steps for each in where.tasks]
        if where.rng.random() < 0.5:
            steps = int(min(lengths) * where.rng.uniform(0.25, 0.4))
        else:
            steps = int(max(lengths) * where.rng.uniform(2.5, 4))
    else:
        steps = int(
            task.steps
            * (where.rng.uniform(0.25, 0.4) if where.rng.random() < 0.5 else where.rng.uniform(2.5, 4))
        )
    if steps < 20 or steps > 20000:
        return None
    takes[at] = where.take(takes[at].task, steps)
    return ("outlier-length",)


def spoil_return(where: World, takes: list[Take], at: int) -> Named | None:
    rng = where.rng
    if where.reward == "none" or where.reward == "sparse":
        return None
    times, _, role = takes[at].signals["reward"]
    same = [each for each in takes if each.task == takes[at].task or not where.labelled]
    totals = np.array([float(each.signals["reward"][1].sum()) for each in same])
    spread, usual = float(totals.std()), float(np.median(totals))
    extreme = max(abs(usual), float(np.abs(totals - usual).max()))
    wanted = usual + float(rng.choice([-1, 1])) * (max(10 * spread, 1.5 * extreme) if extreme else 5.0)
    values = takes[at].signals["reward"][1].astype(np.float64).copy()
    if rng.random() < 0.5:
        values[len(values) // 2] += wanted - values.sum()
    else:
        values += (wanted - values.sum()) / len(values)
    takes[at].signals["reward"] = (times, values.astype(np.float32), role)
    return ("outlier-return",)


def _ranges(where: World, takes: list[Take], name: str) -> Floats:
    values = [
        np.asarray(each.signals[name][1], np.float64).reshape(len(each.signals[name][1]), -1)
        for each in takes
    ]
    return np.median([np.ptp(each, axis=0) for each in values], axis=0)


def spoil_final(where: World, takes: list[Take], at: int) -> Named | None:
    rng = where.rng
    if where.goal_spread > 0.05 or (len(where.tasks) > 1 and not where.labelled):
        return None
    name = where.state_name
    times, values, role = takes[at].signals[name]
    channel = int(rng.integers(where.joints))
    same = [each for each in takes if each.task == takes[at].task]
    reach = max(
        float(_ranges(where, same, name)[channel]),
        20 * float(np.std([each.signals[name][1][-1, channel] for each in same])),
    )
    if reach == 0:
        return None
    bent = values.astype(np.float64).copy()
    ramp = np.clip((np.linspace(0, 1, len(bent)) - 0.6) / 0.3, 0, 1)
    bent[:, channel] += rng.choice([-1, 1]) * rng.uniform(0.6, 1.0) * reach * ramp
    if where.dtype == "i2":
        bent = np.clip(bent, -32768, 32767)
    takes[at].signals[name] = (times, bent.astype(values.dtype), role)
    return ("outlier-final-state",)


def spoil_jerk(where: World, takes: list[Take], at: int) -> Named | None:
    # Courses of few steps that differ much in length are as different from each other.
    if where.action not in ("velocity", "target") or where.length_spread > 0.15:
        return None
    times, values, role = takes[at].signals[where.action_name]
    scale = np.median(
        [each.signals[where.action_name][1].std(0) for each in takes if each.task == takes[at].task], axis=0
    )
    noisy = values + where.rng.normal(0, 1, values.shape) * scale * where.rng.uniform(0.4, 1.0)
    takes[at].signals[where.action_name] = (times, noisy.astype(values.dtype), role)
    return ("action-jerk",)


def spoil_dead(where: World, takes: list[Take], at: int) -> Named | None:
    rng, name = where.rng, where.state_name
    times, values, role = takes[at].signals[name]
    channel = int(rng.integers(where.joints))
    same = [each for each in takes if each.task == takes[at].task or not where.labelled]
    std = float(np.median([each.signals[name][1][:, channel].std() for each in same]))
    if std < 8 * (where.noise * (4000 if where.dtype[0] == "i" else where.unit[channel])) or std < 0.15 * (
        4000 if where.dtype[0] == "i" else where.unit[channel]
    ):
        return None
    dead = values.copy()
    kind = int(rng.integers(3))
    begin = 0 if kind < 2 else int(len(dead) * rng.uniform(0.15, 0.35))
    wanted = values[begin, channel] + (rng.normal(0, 0.003 * std, len(dead) - begin) if kind == 1 else 0)
    dead[begin:, channel] = wanted
    takes[at].signals[name] = (times, dead, role)
    return ("dead-channel", "constant-channel")


def spoil_swap(where: World, takes: list[Take], at: int) -> Named | None:
    rng, name = where.rng, where.state_name
    if (
        where.joints < 2
        or where.start_spread > 0.05
        or where.goal_spread > 0.05
        or where.motion == "periodic"
    ):
        return None
    if len(where.tasks) > 1 and not where.labelled:
        return None
    task = where.tasks[takes[at].task]
    away = np.abs(task.start[:, None] - task.start) + np.abs(task.goal[:, None] - task.goal)
    one, other = rng.choice(where.joints, 2, replace=False)
    if away[one, other] < 1.0:
        return None
    times, values, role = takes[at].signals[name]
    swapped = values.copy()
    swapped[:, [one, other]] = values[:, [other, one]]
    takes[at].signals[name] = (times, swapped, role)
    return ("swapped-channels",)


def spoil_shift(where: World, takes: list[Take], at: int) -> Named | None:
    rng = where.rng
    if not where.shows_state or (len(where.tasks) > 1 and not where.labelled):
        return None
    times, values, role = takes[at].signals["camera"]
    pause = 1e9 / where.camera_rate
    duration = float(times[-1] - times[0])
    shift = max(5 * pause, 0.12 * duration)
    if shift > 0.3 * duration or len(times) < 25:
        return None
    late = int(shift * rng.choice([-1, 1]))
    takes[at].signals["camera"] = (times + late, values, role)
    return ("time-shift",)


def spoil_copy(where: World, takes: list[Take], at: int) -> Named | None:
    rng = where.rng
    other = (at + 1 + int(rng.integers(len(takes) - 1))) % len(takes)
    old = takes[other]
    signals = dict(old.signals)
    times, values, role = signals[where.state_name]
    if not where.dtype.startswith("i"):
        noisy = values + rng.normal(0, 1, values.shape) * where.noise * 0.2 * where.unit
        signals[where.state_name] = (times, noisy.astype(values.dtype), role)
    takes[at] = Take(old.task, signals, dict(old.static))
    return ("near-duplicate",)


SPOILT: dict[str, Callable[[World, list[Take], int], Named | None]] = {
    "outlier-length": spoil_length,
    "outlier-return": spoil_return,
    "outlier-final-state": spoil_final,
    "action-jerk": spoil_jerk,
    "dead-channel": spoil_dead,
    "swapped-channels": spoil_swap,
    "time-shift": spoil_shift,
    "near-duplicate": spoil_copy,
}


def spoilable(where: World, takes: list[Take]) -> list[int]:
    """Episodes whose task has enough others for something to be usual."""
    tasks = [each.task for each in takes]
    return [
        at for at, each in enumerate(tasks) if not where.labelled or tasks.count(each) >= MIN_EPISODES + 2
    ]


def spoilt_set(seed: int, rule: str, **fixed: Any) -> tuple[list[Take], int, Named]:
    """A set in which one episode is spoilt, its number, and the rules that may name it."""
    rng = np.random.default_rng(seed)
    while True:
        camera = str(rng.choice(["colour", "gray", "depth"])) if rule == "time-shift" else "none"
        where = world(rng, **{"camera": camera, **fixed})
        takes = clean_set(where, int(rng.integers(10, 40)))
        chosen = spoilable(where, takes)
        at = int(rng.choice(chosen)) if chosen else 0
        named = SPOILT[rule](where, takes, at) if chosen else None
        if named is not None:
            return takes, at, named


def is_named(found: list[Finding], at: int, rules: Named) -> bool:
    """Whether an episode is named by one of the rules; of two that are alike either may be."""
    name = f"{at:03d}"
    return any(each.rule in rules and name in (each.episode, each.details.get("other")) for each in found)
