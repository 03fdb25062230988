"""Episodes made up for the converters, and what two of them have in common."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.convert import lerobot
from warpdata.convert.aligning import grid_times
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import STEPS, StepClock

LEROBOT = ("v21_video_av1", "v30_044_image", "v30_044_video_av1", "v30_061_video_av1", "v30_061_video_h264")


def on_steps(times: Any, values: Any, role: str, kind: str | None = None) -> ArraySignal:
    """A signal on the clock of the steps."""
    array = np.asarray(values)
    chosen = kind or ("scalar", "vector", "tensor", "tensor")[min(array.ndim - 1, 3)]
    meta = SignalMeta(array.dtype, array.shape[1:], chosen, role=role, clock=STEPS)  # type: ignore[arg-type]
    return ArraySignal(times, array, meta)


def made_episode(number: int, steps: int = 9, fps: float = 30, *, camera: bool = True) -> Episode:
    """An episode with numbers of several types, text, and a camera of raw frames."""
    rng = np.random.default_rng(number)
    times = grid_times(steps, fps)
    signals: dict[str, Any] = {
        "observation.state": on_steps(times, rng.normal(size=(steps, 3)).astype(np.float32), "observation"),
        "action": on_steps(times, rng.normal(size=(steps, 2)), "action"),
        "next.reward": on_steps(times, rng.normal(size=steps).astype(np.float32), "reward"),
        "next.done": on_steps(times, np.arange(steps) == steps - 1, "terminated"),
        "observation.matrix": on_steps(times, rng.integers(-9, 9, (steps, 2, 3)), "observation"),
    }
    if camera:
        frames = np.zeros((steps, 32, 48, 3), np.uint8)
        frames += (np.arange(steps) * 9 + number).astype(np.uint8)[:, None, None, None]
        frames[:, 8:16, 8:20] = rng.integers(0, 255, (8, 12, 3), np.uint8)
        signals["observation.images.top"] = on_steps(times, frames, "observation", "image")
    static = {"task": f"task {number % 2}", "fps": fps, "robot_type": "arm"}
    return Episode.of(signals, static, id=f"{number:012d}", steps=StepClock(STEPS))


def made_episodes(count: int = 4, **options: Any) -> Episodes:
    return Episodes.of([made_episode(number, 7 + number % 3, **options) for number in range(count)])


def made_set(target: Path, count: int = 4, **options: Any) -> Path:
    """A LeRobot set written by us."""
    lerobot.write(made_episodes(count), target, **options)
    return target


def copied(source: Path, target: Path) -> Path:
    """A set that a test may change."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for each in [target, *target.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)
    return target


def change_json(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, **changes}))


def assert_same(a: Episode, b: Episode) -> None:
    """The same signals in the same order: times, values, what they are, and their encoded frames bit for bit."""
    assert list(a.signals) == list(b.signals)
    assert dict(a.static) == dict(b.static)
    for name in a.signals:
        first, second = a.signals[name], b.signals[name]
        assert first.meta == second.meta, name
        assert np.array_equal(first.timestamps, second.timestamps), name
        assert np.array_equal(first.values(), second.values()), name
        frames, again = encoded_run(first), encoded_run(second)
        assert (frames is None) == (again is None), name
        if frames is not None and again is not None:
            assert [each.data for each in frames.frames()] == [each.data for each in again.frames()], name


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their bytes; caches of the reader left out."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name not in (".listing.json", ".facts.parquet"):
            found[name] = path.read_bytes()
    return found
