"""Training on camera images of 480x640: decoding and scaling against bare decoders and LeRobot, mixtures, memory.

python -m bench.versus.training_images [--quick] [--no-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from bench import environments, measure
from bench.versus.training_peers import CAMERA_PEER, ENVIRONMENTS, LEROBOT, ffmpeg_of, peer

THREADS, BATCH, HORIZON = 2, 32, 50
SMALL = (224, 224)
STEP_NS = 33_333_333
MEMORY_CASES = {
    "480x640, GOP 10, 224x224": ((480, 640), 10, "h264", SMALL),
    "480x640, GOP 10, full size": ((480, 640), 10, "h264", None),
    "1080x1920, GOP 2 (AV1), 224x224": ((1080, 1920), 2, "av1", SMALL),
    "1080x1920, GOP 10, 224x224": ((1080, 1920), 10, "h264", SMALL),
    "1080x1920, GOP 250, 224x224": ((1080, 1920), 250, "h264", SMALL),
}
"""Three cameras each: size of the frames, group of pictures, codec, size of the field."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    episodes: int = 12
    steps: int = 250
    lerobot_episodes: int = 20
    lerobot_steps: int = 60
    rounds: int = 3
    memory_episodes: int = 4
    memory_steps: int = 260
    peer_batches: int = 30
    peers: bool = True


QUICK = Sizes(3, 24, 2, 24, 1, 2, 12, 1, peers=False)


def scenes(steps: int, height: int, width: int, seed: int) -> np.ndarray:
    """A smooth coloured scene under a moving camera, with a moving object and noise of the sensor."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(height // 40 + 4, width // 40 + 4, 3))
    y, x = (
        np.linspace(0, size - 2, length)
        for size, length in zip(coarse.shape, (height + 80, width + 80), strict=False)
    )
    rows, columns = y.astype(int), x.astype(int)
    low, right = (y - rows)[:, None, None], (x - columns)[None, :, None]
    top = coarse[rows][:, columns] * (1 - right) + coarse[rows][:, columns + 1] * right
    bottom = coarse[rows + 1][:, columns] * (1 - right) + coarse[rows + 1][:, columns + 1] * right
    scene = np.clip(128 + 50 * (top * (1 - low) + bottom * low), 0, 255).astype(np.int16)
    noise = rng.integers(-3, 4, (height + 16, width + 16, 3), dtype=np.int16)
    out = np.empty((steps, height, width, 3), np.uint8)
    for step in range(steps):
        down, over = int(40 + 39 * np.sin(step / 20)), int(40 + 39 * np.cos(step / 17))
        frame = (
            scene[down : down + height, over : over + width]
            + noise[step % 16 :, step % 13 :][:height, :width]
        )
        out[step] = np.clip(frame, 0, 255)
        at = (step * 5) % (height - height // 6)
        out[step, at : at + height // 6, at : at + height // 6] = (200, 40, 40)
    return out


def record(root: Path, films: Sequence[dict[str, np.ndarray]], dims: int = 7, **options: Any) -> None:
    """One recording per film: its cameras at 30 frames per second, and an action."""
    video = wd.VideoOptions(**options)
    for number, cameras in enumerate(films):
        with wd.record(root, static={"task": "t"}, clock="simulated", video=video) as rec:
            for step in range(len(next(iter(cameras.values())))):
                for name, frames in cameras.items():
                    rec.append(name, frames[step], step * STEP_NS)
                rec.append("action", np.full(dims, number + step, np.float32), step * STEP_NS)


def windows_of(
    root: Any, cameras: Sequence[str], size: tuple[int, int] | None, action: str = "action"
) -> wd.Windows:
    episodes = wd.open(root) if isinstance(root, Path) else root
    fields: dict[str, Any] = {f"image{n}": wd.Field(name, size=size) for n, name in enumerate(cameras)}
    return wd.Windows(episodes, {**fields, "action": wd.Field(action, horizon=HORIZON)}, anchor=action)


@dataclass(frozen=True, slots=True)
class Speed:
    """The best round: items per second, and the least CPU milliseconds of all threads per item."""

    rate: float
    cpu_ms: float

    @classmethod
    def of(cls, run: Callable[[], int], rounds: int) -> Speed:
        """Of the items that `run` counts."""
        rates, costs = [], []
        for _ in range(rounds):
            start, before = time.perf_counter(), time.process_time()
            count = run()
            rates.append(count / (time.perf_counter() - start))
            costs.append((time.process_time() - before) * 1e3 / count)
        return cls(max(rates), min(costs))


def epoch_speed(windows: wd.Windows | wd.Mixture, rounds: int) -> tuple[Speed, Speed]:
    """Samples of whole epochs of one loader, shuffled: of the first, and of those after it.

    Everything is decoded again in each. The first one also opens files and takes memory.
    """
    loader = wd.Loader(windows, BATCH, seed=1, threads=THREADS, rank=0, world=1)

    def run() -> int:
        return sum(batch.size for batch in loader)

    return Speed.of(run, 1), Speed.of(run, rounds)


def bare_speed(files: Sequence[Path], size: tuple[int, int] | None, rounds: int, cameras: int = 1) -> Speed:
    """Samples of so many frames, decoding files from front to back into RGB, by as many threads as the loader has."""
    import av

    def decode(some: Sequence[Path]) -> int:
        count = 0
        for path in some:
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                stream.thread_type, stream.codec_context.thread_count = "NONE", 1
                scaler = av.video.reformatter.VideoReformatter()
                height, width = size or (None, None)
                for frame in container.decode(stream):
                    made = scaler.reformat(frame, width, height, "rgb24", interpolation="BILINEAR", threads=1)
                    count += len(made.to_ndarray()) > 0
        return count

    def run() -> int:
        with ThreadPoolExecutor(THREADS) as threads:
            frames = sum(threads.map(decode, [files[number::THREADS] for number in range(THREADS)]))
        return frames // cameras

    return Speed.of(run, rounds)


def compare(
    files: Sequence[Path], make: Callable[[Any], wd.Windows], sizes: Sizes, cameras: int
) -> dict[str, float]:
    """Speeds of the loader and of bare decoding, scaled and at full size."""
    results = {}
    for name, size in (("224", SMALL), ("full", None)):
        bare = bare_speed(files, size, sizes.rounds, cameras)
        first, ours = epoch_speed(make(size), sizes.rounds)
        results |= {f"bare {name}": bare.rate, f"ours {name}": ours.rate}
        results[f"first epoch of ours, {name}"] = first.rate
        results[f"CPU of bare / ours, {name}"] = bare.cpu_ms / ours.cpu_ms
    return results


def recorded(work: Path, sizes: Sizes) -> dict[str, float]:
    """One camera as our recorder writes it: H.264 in groups of ten."""
    root = work / "h264"
    films = [{"cam": scenes(sizes.steps, 480, 640, seed)} for seed in range(min(4, sizes.episodes))]
    record(root, [films[number % len(films)] for number in range(sizes.episodes)])
    files = sorted(root.rglob("*.mp4"))
    return compare(files, lambda size: windows_of(root, ["cam"], size), sizes, 1)


def mixed(work: Path, sizes: Sizes) -> dict[str, float]:
    """Three robots with actions of different widths, alone and as a mixture with weights 3, 2 and 1."""
    robots = {"arm": (7, 3), "hand": (22, 2), "base": (3, 1)}
    for number, (name, (dims, _)) in enumerate(robots.items()):
        films = [{"cam": scenes(sizes.steps, 480, 640, 10 * number + seed)} for seed in range(2)]
        record(work / name, films * max(1, sizes.episodes // 2), dims)

    def single(name: str) -> wd.Windows:
        return windows_of(work / name, ["cam"], SMALL)

    alone = {name: epoch_speed(single(name), sizes.rounds)[1] for name in robots}
    count = len(single("arm"))
    # Whole passes of every source: three, two and one.
    first, together = epoch_speed(
        wd.Mixture({name: (single(name), weight) for name, (_, weight) in robots.items()}, length=6 * count),
        sizes.rounds,
    )
    whole = sum(weight for _, weight in robots.values())
    mean_ms = sum(weight / whole * alone[name].cpu_ms for name, (_, weight) in robots.items())
    return {
        **{f"{name} alone": speed.rate for name, speed in alone.items()},
        "mean": 1 / sum(weight / whole / alone[name].rate for name, (_, weight) in robots.items()),
        "mixture": together.rate,
        "first epoch of the mixture": first.rate,
        "CPU of the mean / mixture": mean_ms / together.cpu_ms,
    }


def write_lerobot_input(work: Path, sizes: Sizes) -> Path:
    """Frames that LeRobot writes as its own set."""
    folder = work / "frames"
    folder.mkdir()
    for episode in range(sizes.lerobot_episodes):
        for camera in range(2):
            frames = scenes(sizes.lerobot_steps, 480, 640, 100 + 2 * episode + camera)
            np.save(folder / f"{episode}-{camera}.npy", frames)
    return folder


def lerobot(work: Path, sizes: Sizes) -> dict[str, Any]:
    """Two cameras in a set of LeRobot (AV1, groups of two) that is opened in place."""
    python = None
    if sizes.peers:
        try:
            python = environments.python_of(LEROBOT, ENVIRONMENTS[LEROBOT])
        except environments.NotInstalled as error:
            print(f"LeRobot is not installed: {error}", file=sys.stderr)
    frames, root = write_lerobot_input(work, sizes), work / "lerobot"
    env = {"BENCH_FRAMES": str(frames), "BENCH_BATCH": str(BATCH)}
    results: dict[str, Any] = {}
    if python is not None:
        env |= ffmpeg_of(python, work)
        results["LeRobot 0.6.1"] = peer(CAMERA_PEER, work, sizes.peer_batches, python=python, **env)
        root = work / "peers" / "lerobot-cameras" / "set"
    else:
        record(
            work / "av1",
            [
                {f"observation.images.c{n}": np.load(frames / f"{e}-{n}.npy") for n in range(2)}
                for e in range(sizes.lerobot_episodes)
            ],
            codec="av1",
            gop_size=2,
        )
        wd.export_episodes(wd.open(work / "av1"), root, "lerobot")
    shutil.rmtree(frames)
    files = sorted(root.rglob("*.mp4"))
    cameras = ["observation.images.c0", "observation.images.c1"]
    return results | compare(files, lambda size: windows_of(root, cameras, size), sizes, 2)


def memory(work: Path, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Anonymous memory beside the batches with three cameras, each case in a process of its own, over three epochs."""
    results = {}
    for number, (name, ((height, width), gop, codec, size)) in enumerate(MEMORY_CASES.items()):
        root = work / f"memory{number}"
        film = scenes(min(sizes.memory_steps, 40 if gop <= 10 else 260), height, width, number)
        record(root, [{f"cam{n}": film for n in range(3)}], codec=codec, gop_size=gop)
        del film
        first = next(root.glob("*/*"))
        for copy in range(1, sizes.memory_episodes):
            shutil.copytree(first, first.with_name(f"{copy:012d}"))
        code = (
            "import json, sys\nfrom pathlib import Path\nfrom bench.versus.training_images import measured_memory\n"
            "print(json.dumps(measured_memory(Path(sys.argv[1]), json.loads(sys.argv[2]))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(root), json.dumps(size)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        results[name] = json.loads(done.stdout)
        shutil.rmtree(root)
    return results


def measured_memory(root: Path, size: tuple[int, int] | None) -> dict[str, float]:
    """Highest anonymous memory of three epochs, less what was there before and the batches read ahead or in use."""
    batch_size = BATCH if size is not None else 8
    windows = windows_of(root, ["cam0", "cam1", "cam2"], size)
    loader = wd.Loader(windows, batch_size, seed=1, threads=THREADS, rank=0, world=1)
    before, peaks, batch_bytes = _anonymous(), [], 0
    for _ in range(3):
        peak = 0
        for batch in loader:
            batch_bytes = max(batch_bytes, sum(values.nbytes for values in batch.values()))
            peak = max(peak, _anonymous())
        peaks.append(peak)
    return {
        "beside the batches (MB)": (max(peaks) - before - (THREADS + 3) * batch_bytes) / 1e6,
        "growth (MB)": (peaks[-1] - peaks[0]) / 1e6,
    }


def _anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024


STAGES: dict[str, Callable[[Path, Sizes], dict[str, Any]]] = {
    "recorded": recorded,
    "LeRobot": lerobot,
    "mixture": mixed,
    "memory": memory,
}


def run(sizes: Sizes, only: Sequence[str] = ()) -> dict[str, Any]:
    """Everything, or some stages, each in a folder of its own."""
    results: dict[str, Any] = {"sizes": asdict(sizes)}
    for name in only or STAGES:
        with tempfile.TemporaryDirectory(prefix="warp-bench-") as work:
            results[name] = STAGES[name](Path(work), sizes)
    return results


def bars(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure with its bar."""
    ours, film, mixture = results["recorded"], results["LeRobot"], results["mixture"]
    held = results["memory"].values()
    rows: dict[str, tuple[float, float]] = {
        "LeRobot's AV1, two cameras, 224x224 / bare decode + scale": (
            film["ours 224"] / film["bare 224"],
            0.8,
        ),
        "LeRobot's AV1, two cameras, full size / bare decode + RGB": (
            film["ours full"] / film["bare full"],
            0.8,
        ),
        "recorded H.264, 224x224 / bare decode + scale": (ours["ours 224"] / ours["bare 224"], 0.6),
        "recorded H.264, full size / bare decode + RGB": (ours["ours full"] / ours["bare full"], 0.4),
        "mixture of 3 robots / weighted mean of the single ones": (mixture["mixture"] / mixture["mean"], 0.9),
    }
    if isinstance(film.get("LeRobot 0.6.1"), float):
        rows["LeRobot's AV1, two cameras, 224x224 / LeRobot 0.6.1"] = (
            film["ours 224"] / film["LeRobot 0.6.1"],
            6,
        )
    judged = {n: {"value": v, "bar": f">= {bar}", "holds": v >= bar} for n, (v, bar) in rows.items()}
    most, growth = (max(case[key] for case in held) for key in ("beside the batches (MB)", "growth (MB)"))
    judged["three cameras: memory beside the batches in MB"] = {
        "value": most,
        "bar": "< 500",
        "holds": most < 500,
    }
    judged["three cameras: third epoch less first in MB"] = {
        "value": growth,
        "bar": "< 32",
        "holds": growth < 32,
    }
    return judged


def listed(results: dict[str, Any]) -> dict[str, float | str]:
    """Samples per second of everything."""
    return {
        f"{area}: {name}": rate
        for area in ("recorded", "LeRobot", "mixture")
        for name, rate in results[area].items()
        if not name.startswith("CPU")
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="do not run LeRobot")
    parser.add_argument(
        "--only", choices=STAGES, nargs="*", default=[], help="other figures stay as measured"
    )
    args = parser.parse_args()
    sizes = QUICK if args.quick else Sizes()
    results = run(replace(sizes, peers=False) if args.no_peers else sizes, args.only)
    before = measure.RESULTS / "training_images.json"
    if args.only and before.exists():
        kept = json.loads(before.read_text())
        results = {**{name: kept[name] for name in STAGES if name in kept}, **results}
    if all(name in results for name in STAGES):
        results = {"bars": bars(results), "windows/s": listed(results), **results}
    print(json.dumps(results, indent=1, default=float))
    if not args.quick:
        measure.save("training_images", results)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    main()
