"""Recordings of eight behaviours: noise, other speeds, other start poses, and one channel in raw counts.

The benchmark of vector search and the tests judge embedders of windows by them: the nearest windows of a window should
show the same behaviour. Each performance draws its speed and its size from 0.8 to 1.25, a start pose with twice the
spread of the motion, and noise of 0.08 on every joint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd

BEHAVIOURS = ("reach", "lift", "wave", "circle", "push", "twist", "insert", "shake")
JOINTS = 7
_STEP_NS = 20_000_000
_SPEEDS = _SIZES = (0.8, 1.25)


def motion(behaviour: str, count: int, rng: np.random.Generator) -> Any:
    """One performance of a behaviour: [count, JOINTS], with its own speed, start pose, size and noise."""
    number = BEHAVIOURS.index(behaviour)
    shape = np.random.default_rng(100 + number)
    speed = rng.uniform(*_SPEEDS)
    phase = np.linspace(0, speed, count)[:, None]
    base = np.zeros((count, JOINTS))
    for _ in range(3):
        frequency, offset = shape.uniform(0.5, 2.5), shape.uniform(0, 1, JOINTS)
        base += shape.normal(size=JOINTS) * np.sin(2 * np.pi * (frequency * phase + offset))
    pose = rng.normal(size=JOINTS) * 2
    return pose + base * rng.uniform(*_SIZES) + 0.08 * rng.normal(size=(count, JOINTS))


def record_behaviours(
    root: Path, episodes: int, *, seed: int = 0, seconds: float = 2.0, counts: float = 1.0
) -> dict[str, str]:
    """Record episodes, each of one behaviour; returns the behaviour of each episode id. `counts` scales one channel."""
    rng = np.random.default_rng(seed)
    steps = int(seconds * 1e9) // _STEP_NS
    names = {}
    for number in range(episodes):
        behaviour = BEHAVIOURS[number % len(BEHAVIOURS)]
        joints = motion(behaviour, steps, rng)
        encoder = counts * (joints[:, :1] + 0.05 * rng.normal(size=(steps, 1)))
        with wd.record(root, static={"behaviour": behaviour}, clock="simulated") as recorder:
            for step in range(steps):
                observed = {
                    "joints": joints[step].astype(np.float32),
                    "encoder": encoder[step].astype(np.float32),
                }
                recorder.step(observed, {"command": joints[step].astype(np.float32)}, ts_ns=step * _STEP_NS)
        names[wd.open(root).ids[-1]] = behaviour
    return names


def agreement(store: wd.VectorStore, names: dict[str, str], k: int = 5) -> float:
    """The share of the k nearest windows of other episodes that show the behaviour of the window."""
    ids = store.ids
    owner = [row["episode_id"] for row in store.metadata(ids, columns=["episode_id"])]
    own = max(owner.count(name) for name in set(owner))
    place = {vector_id: at for at, vector_id in enumerate(ids.tolist())}
    near, _ = store.search(store.get(ids), min(len(ids), k + own), exact=True)
    hits = total = 0
    for at, row in enumerate(near.tolist()):
        others = [owner[place[vector_id]] for vector_id in row if vector_id >= 0]
        others = [name for name in others if name != owner[at]][:k]
        hits += sum(names[name] == names[owner[at]] for name in others)
        total += len(others)
    return hits / total
