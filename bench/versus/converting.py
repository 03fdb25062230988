"""Foreign sets in and out: `python -m bench.versus.converting [--quick] [--tfds PYTHON]`.

Peers: a plain copy of the same files to the same disk, and with `--tfds` (a Python that has tensorflow-datasets)
TFDS itself, in the same run. lerobot is not installed beside us: its rows divide by what it reached when it was
measured apart (`ANCHORS`), and so does the row of TFDS where it is not given. MCAP has no row yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from bench import measure
from warpdata.convert import hdf5, lerobot, rlds
from warpdata.convert.importing import import_episodes
from warpdata.convert.rows import grid_times
from warpdata.episodes.collection import Episodes
from warpdata.episodes.stills import StillsSignal
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import STEPS, StepClock

ANCHORS = {
    "lerobot's own v2.1 to v3.0, steps per CPU second": 1500.0,
    "lerobot 0.6.1 writing two cameras of 640x480, steps per second": 6.0,
    "TFDS, steps per CPU second": 345.0,
}
FPS = 20.0
TFDS = """
import json, sys, time
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
rates = []
for _ in range(3):
    start, steps = time.process_time(), 0
    for split in builder.info.splits:
        for episode in builder.as_dataset(split=split):
            for step in episode["steps"]:
                tfds.as_numpy(step)
                steps += 1
    rates.append(steps / (time.process_time() - start))
print(json.dumps(max(rates)))
"""


def signal(times: Any, values: np.ndarray, role: str, kind: str) -> ArraySignal:
    meta = SignalMeta(values.dtype, values.shape[1:], kind, role=role, clock=STEPS)  # type: ignore[arg-type]
    return ArraySignal(times, values, meta)


def frames(rng: np.random.Generator, steps: int, height: int, width: int) -> np.ndarray:
    """A scene with texture and a moving square: neither flat nor noise."""
    scene = rng.integers(0, 90, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    out = np.broadcast_to(scene, (steps, height, width, 3)).copy()
    out += rng.integers(0, 6, out.shape, np.uint8)
    for step in range(steps):
        at = 4 * step % (width - 40)
        out[step, 20:60, at : at + 40] = (220, 60, 30)
    return out


def made_lerobot(folder: Path, episodes: int, steps: int) -> Path:
    """A v2.1 set with two cameras of 640x480; its episodes share their frames, which are encoded once."""
    rng, times = np.random.default_rng(0), grid_times(steps, FPS)
    cameras = {
        f"observation.images.{name}": signal(times, frames(rng, steps, 480, 640), "observation", "image")
        for name in ("front", "wrist")
    }
    numbers = {
        "observation.state": signal(
            times, rng.normal(size=(steps, 7)).astype(np.float32), "observation", "vector"
        ),
        "action": signal(times, rng.normal(size=(steps, 7)).astype(np.float32), "action", "vector"),
    }
    made = Episode.of({**cameras, **numbers}, {"task": "push", "fps": FPS}, id="0", steps=StepClock(STEPS))
    video = VideoOptions(codec="h264", quality=15, preset="ultrafast")
    import_episodes(Episodes.of([made]), folder / "one", format="made", source="made", video=video)
    from warpdata import open_episodes

    one = open_episodes(folder / "one")[0]
    several = [
        Episode.of(dict(one.signals), dict(one.static), id=f"{k:012d}", steps=StepClock(STEPS))
        for k in range(episodes)
    ]
    lerobot.write(Episodes.of(several), folder / "v21", version="v2.1")
    return folder / "v21"


def made_hdf5(path: Path, episodes: int, steps: int, *, cameras: bool) -> Path:
    """A robomimic file: two cameras of 640x480, or fifteen small arrays in every episode."""
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        for number in range(episodes):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = steps
            demo["actions"], demo["states"] = rng.normal(size=(steps, 7)), rng.normal(size=(steps, 30))
            demo["rewards"], demo["dones"] = np.zeros(steps), np.zeros(steps, np.int64)
            for key in range(2 if cameras else 11):
                name = f"obs/{'camera' if cameras else 'key'}{key}_{'image' if cameras else 'low'}"
                demo[name] = frames(rng, steps, 480, 640) if cameras else rng.normal(size=(steps, 3))
        file["data"].attrs["total"] = episodes * steps
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Bench", "type": 2, "env_kwargs": {}})
    return path


class Pictures(StillsSignal):
    """Frames as JPEG pictures in memory."""

    place = "made"

    def __init__(self, name: str, values: np.ndarray, times: Any) -> None:
        super().__init__(name, clock=STEPS)
        self._data, self._times = [jpeg(each) for each in values], times

    def pictures(self, rows: Any) -> list[bytes]:
        return [self._data[row] for row in rows]

    def __len__(self) -> int:
        return len(self._data)

    def _clock(self) -> Any:
        return self._times


def jpeg(pixels: np.ndarray) -> bytes:
    import io

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def made_rlds(folder: Path, episodes: int, steps: int) -> Path:
    """As the sample of the measurements apart: 96x128 JPEG, 64x64 PNG and 48x64 depth in every step."""
    rng, times = np.random.default_rng(2), grid_times(steps, FPS)
    made = []
    for number in range(episodes):
        signals = {
            "image": Pictures("image", frames(rng, steps, 96, 128), times),
            "wrist": signal(times, frames(rng, steps, 64, 64), "observation", "image"),
            "depth": signal(
                times, rng.integers(0, 4000, (steps, 48, 64)).astype(np.uint16), "observation", "image"
            ),
            "state": signal(times, rng.normal(size=(steps, 7)).astype(np.float32), "observation", "vector"),
            "action": signal(times, rng.normal(size=(steps, 7)).astype(np.float32), "action", "vector"),
        }
        made.append(Episode.of(signals, {"task": "push"}, id=f"{number:012d}", steps=StepClock(STEPS)))
    rlds.write(Episodes.of(made), folder / "rlds", name="bench")
    return folder / "rlds"


def fresh(target: Path, work: Callable[[Path], object]) -> Callable[[], tuple[float, float]]:
    """Wall and CPU seconds of work into a new target, the disk included."""

    def timed() -> tuple[float, float]:
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        wall, used = time.perf_counter(), time.process_time()
        work(target)
        os.sync()
        return time.perf_counter() - wall, time.process_time() - used

    return timed


def turns(rivals: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> dict[str, dict[str, float]]:
    """The median of rounds in which rivals take turns."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            took[name].append(work())
    return {
        name: {
            "wall_s": statistics.median(wall for wall, _ in each),
            "cpu_s": statistics.median(cpu for _, cpu in each),
        }
        for name, each in took.items()
    }


def read_all(folder: Path) -> int:
    steps = 0
    for episode in rlds.read(folder, fps=FPS):
        for each in episode.signals.values():
            each.values()
        steps += len(episode.steps)
    return steps


PEAK = """
import sys
from warpdata.cli.main import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""


def peak_mb(*words: str) -> float:
    """The largest resident memory of a `warp` command, Python and its libraries included."""
    done = subprocess.run([sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


def run(folder: Path, *, quick: bool, tfds: str | None = None) -> dict[str, Any]:
    rounds = 1 if quick else 5
    found: dict[str, Any] = {}

    episodes, steps = (2, 4) if quick else (24, 120)
    source = made_lerobot(folder, episodes, steps)
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    bring = fresh(folder / "in", lambda target: import_episodes(
        lerobot.read(source), target, format="lerobot", source=str(source)))  # fmt: skip
    copy = fresh(folder / "copy", lambda target: shutil.copytree(source, target))
    found["lerobot_in"] = {
        "steps": episodes * steps,
        "bytes": size,
        **turns({"warpdata": bring, "copy": copy}, rounds),
    }

    few, rows = (1, 3) if quick else (2, 60)
    raw = made_hdf5(folder / "raw.hdf5", few, rows, cameras=True)
    out = fresh(folder / "v30", lambda target: lerobot.write(hdf5.read(raw), target, task="lift"))
    found["raw_frames_out"] = {"steps": few * rows, **turns({"warpdata": out}, min(rounds, 3))}

    many, short = (2, 10) if quick else (12, 60)
    records = made_rlds(folder, many, short)
    used = min(_cpu(lambda: read_all(records)) for _ in range(rounds))
    found["rlds_read"] = {"steps": many * short, "warpdata_steps_per_cpu_s": many * short / used}
    if tfds is not None:
        done = subprocess.run([tfds, "-c", TFDS, str(records)], capture_output=True, text=True, check=True)
        found["rlds_read"]["tfds_steps_per_cpu_s"] = float(done.stdout.strip().splitlines()[-1])

    small = 5 if quick else 100
    file = made_hdf5(folder / "small.hdf5", small, 40, cameras=False)
    bring = fresh(folder / "small", lambda target: import_episodes(
        hdf5.read(file), target, format="hdf5", source=str(file)))  # fmt: skip
    found["small_episodes"] = {"episodes": small, **turns({"warpdata": bring}, rounds)}

    found["peak_mb"] = {
        "lerobot_in": peak_mb("import", str(source), str(folder / "m1")),
        "raw_frames_out": peak_mb("export", "lerobot", str(raw), str(folder / "m2"), "-o", "task=lift"),
        "rlds_in": peak_mb("import", str(records), str(folder / "m3"), "--fps", "20"),
        "small_episodes": peak_mb("import", "hdf5", str(file), str(folder / "m4")),
    }
    return {"bars": bars(found), "measured": found, "anchors": ANCHORS}


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def bars(found: dict[str, Any]) -> dict[str, Any]:
    bring, out, records = found["lerobot_in"], found["raw_frames_out"], found["rlds_read"]
    own, written, apart = ANCHORS.values()
    tfds = records.get("tfds_steps_per_cpu_s")
    peer = "TFDS" if tfds is not None else "345, TFDS measured apart"
    rows = {
        "LeRobot v2.1 in, video copied: speed / copying the files": (
            bring["copy"]["wall_s"] / bring["warpdata"]["wall_s"], ">=", 0.5),
        "LeRobot v2.1 in: steps per CPU second / 1500, its own conversion measured apart": (
            bring["steps"] / bring["warpdata"]["cpu_s"] / own, ">=", 5.0),
        "raw frames (HDF5) to LeRobot v3, 2x640x480: steps per second / 6, lerobot 0.6.1 measured apart": (
            out["steps"] / out["warpdata"]["wall_s"] / written, ">=", 3.0),
        f"RLDS read, decode included: steps per CPU second / {peer}": (
            records["warpdata_steps_per_cpu_s"] / (tfds or apart), ">=", 5.0),
        "memory of any of these: peak in MB": (max(found["peak_mb"].values()), "<", 500.0),
    }  # fmt: skip
    return {
        name: {"value": round(value, 4), "bar": f"{sign} {limit:.3g}",
               "holds": bool(value < limit if sign == "<" else value >= limit)}
        for name, (value, sign, limit) in rows.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shrunk run that writes no results")
    parser.add_argument("--tfds", metavar="PYTHON", help="a Python that has tensorflow-datasets")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), quick=args.quick, tfds=args.tfds)
    if not args.quick:
        measure.save("converting", report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
