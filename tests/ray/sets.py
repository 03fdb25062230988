"""A small published set of episodes, and what is done to them."""

from __future__ import annotations

import numpy as np

import warpdata as wd
from warpdata.timeline.source import StepClock


def made(number: int, *, steps: int = 20, width: int = 3) -> wd.Episode:
    rng = np.random.default_rng(number)
    times = np.arange(steps + number) * 10**8
    signals = {
        "joints": wd.ArraySignal(times, rng.normal(size=(len(times), width)).astype(np.float32)),
        "action": wd.ArraySignal(times, rng.normal(size=(len(times), 2)).astype(np.float32)),
    }
    static = {"task": "pick" if number % 2 else "place"}
    return wd.Episode.of(signals, static, id=f"ep{number:02d}", steps=StepClock("joints"))


def publish_arm(catalog: str, count: int = 8, *, odd: int | None = None, **options):
    """`odd` is the number of an episode that is much longer than the others."""
    episodes = [made(n, **({"steps": 400} if n == odd else options)) for n in range(count)]
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        return builder.add_episodes("episodes", wd.Episodes.of(episodes)).publish()


def speed(episode: wd.Episode) -> dict[str, np.ndarray]:
    """A derived signal."""
    return {"speed": np.abs(episode.steps["joints"].data).sum(1)}


def latest(name: str, catalog: str) -> str | None:
    """The newest version, or None where there is none."""
    try:
        with wd.dataset(name, catalog=catalog) as dataset:
            return dataset.version
    except wd.DatasetNotFoundError:
        return None


def blobs(catalog: str) -> set[str]:
    from pathlib import Path

    return {path.name for path in Path(catalog, "blobs").rglob("*") if path.is_file()}
