"""A robot of two processes, each with two cameras at 30 Hz and 500 states a second, recorded by us, mcap and LeRobot.

`robot(folder, seconds)` gives the rows of `bench/versus/recording.py`. Each program runs in processes of its own:
`python -m bench.versus.recording_robot PROGRAM FOLDER SECONDS ROOT SCENE`. mcap is one writer process that stores
JPEG. LeRobot is one process that encodes while it records and holds one state per frame: it has no place for 500
states a second.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH = 480, 640
CAMERAS = ("left", "right")
STATES_HZ, FRAMES_HZ = 500, 30
ROOT = Path(__file__).parents[2]


def pictures(scene: str, count: int = 60) -> list[np.ndarray[Any, Any]]:
    """One second or two of a camera, which can be repeated: what `scene` names."""
    return _SCENES[scene](count)


def _textured(count: int) -> list[np.ndarray[Any, Any]]:
    """A textured scene before which the camera swings, an object that moves in it, and the noise of a sensor.

    H.264 at our defaults makes about 3 Mbit/s of it, as of the camera of a robot in a room.
    """
    noise = np.random.default_rng(0)
    rows, columns = HEIGHT + 200, WIDTH + 400
    texture = np.full((rows, columns, 3), 120, "f4")
    for size, height in (
        (64, 45),
        (16, 22),
        (4, 18),
        (1, 12),
    ):  # details of each size, and how far they stand out
        coarse = noise.standard_normal((rows // size + 2, columns // size + 2, 3)).astype("f4")
        y, x = np.arange(rows) / size, np.arange(columns) / size
        top, left, down, right = y.astype(int), x.astype(int), (y % 1)[:, None, None], (x % 1)[:, None]
        upper = coarse[top][:, left] * (1 - right) + coarse[top][:, left + 1] * right
        lower = coarse[top + 1][:, left] * (1 - right) + coarse[top + 1][:, left + 1] * right
        texture += height * (upper * (1 - down) + lower * down)
    frames = []
    for turn in np.arange(count) * 2 * np.pi / count:
        y, x = round(60 + 16 * np.cos(turn)), round(100 + 40 * np.sin(turn))
        frame = texture[y : y + HEIGHT, x : x + WIDTH].copy()
        y, x = int(HEIGHT / 2 + 100 * np.sin(2 * turn)), int(WIDTH / 2 + 180 * np.cos(turn))
        frame[y - 50 : y + 50, x - 40 : x + 40] = texture[:100, :80] / 2 + (90, 30, 20)
        frame += 4 * noise.standard_normal(frame.shape).astype("f4")
        frames.append(frame.clip(0, 255).astype(np.uint8))
    return frames


def _smooth(count: int) -> list[np.ndarray[Any, Any]]:
    """Smooth waves that move, with the same little noise in each picture: H.264 makes 0.4 Mbit/s of it."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    base = ((np.sin(columns / 37) + np.cos(rows / 29)) * 60 + 128).clip(0, 255).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 4, (HEIGHT, WIDTH, 3), np.uint8)
    return [
        np.stack([np.roll(base, i % 20 * 3, 1), np.roll(base, i % 20 * 2, 0), base], 2) // 2 + noise
        for i in range(count)
    ]


_SCENES = {"textured": _textured, "smooth": _smooth}


def paced(rate_hz: float, seconds: float, call: Callable[[int], object]) -> list[int]:
    """Call at a rate; returns how long each call took, in nanoseconds."""
    waits = []
    began = time.perf_counter()
    for number in range(int(rate_hz * seconds)):
        while (ahead := began + number / rate_hz - time.perf_counter()) > 0:
            time.sleep(ahead)
        start = time.perf_counter_ns()
        call(number)
        waits.append(time.perf_counter_ns() - start)
    return waits


def cpu_s() -> float:
    """CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def used(before_s: float) -> dict[str, Any]:
    """CPU since pictures were made and packages imported, peak memory and bytes written of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/io", encoding="ascii") as file:
        counts = dict(line.split(": ") for line in file)
    written = int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])
    return {"cpu_s": cpu_s() - before_s, "peak_mb": usage.ru_maxrss / 1024, "written": written}


def in_threads(works: list[Callable[[], list[int]]]) -> list[list[int]]:
    """Run every work in a thread of its own; returns what each measured."""
    results: list[list[int]] = [[] for _ in works]

    def run(at: int) -> None:
        results[at] = works[at]()

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def record_ours(folder: str, seconds: float, scene: str, side: str) -> dict[str, Any]:
    """One process of the two: its cameras and its controller."""
    import warpdata as wd

    frames, state, before_s = pictures(scene), np.zeros(7, "f4"), cpu_s()
    with wd.record(Path(folder) / "ours", episode="take") as rec:
        for name in CAMERAS:
            rec.declare(f"{side}/{name}", kind="image")
        rec.append(f"{side}/state", state)
        time.sleep(0.5)
        cameras: list[Callable[[], list[int]]] = [
            lambda name=name: paced(  # type: ignore[misc]
                FRAMES_HZ, seconds, lambda i: rec.append(f"{side}/{name}", frames[i % len(frames)])
            )
            for name in CAMERAS
        ]
        measured = in_threads(
            [*cameras, lambda: paced(STATES_HZ, seconds, lambda _: rec.append(f"{side}/state", state))]
        )
        status = rec.status()
        start = time.perf_counter()
    close_s = time.perf_counter() - start
    waits = {"frames_ns": measured[0] + measured[1], "states_ns": measured[2]}
    dropped = status.total("dropped") + status.total("refused")
    return {**waits, "close_s": close_s, "lost": dropped, **used(before_s)}


def record_mcap(folder: str, seconds: float, scene: str) -> dict[str, Any]:
    """One writer process for all four cameras, which are stored as JPEG, and both controllers."""
    from mcap.writer import Writer
    from PIL import Image

    frames, state, before_s = pictures(scene), np.zeros(7, "f4").tobytes(), cpu_s()
    lock = threading.Lock()
    with open(Path(folder) / "peer.mcap", "wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("v", "jsonschema", b"{}")
        names = [f"{side}/{name}" for side in ("a", "b") for name in (*CAMERAS, "state")]
        channels = {name: writer.register_channel(name, "raw", schema) for name in names}

        def add(name: str, data: bytes) -> None:
            now = time.time_ns()
            with lock:
                writer.add_message(channels[name], now, data, now)

        def add_frame(name: str, frame: np.ndarray[Any, Any]) -> None:
            out = io.BytesIO()
            Image.fromarray(frame).save(out, "JPEG", quality=85)
            add(name, out.getvalue())

        works: list[Callable[[], list[int]]] = []
        for name in names:
            if name.endswith("state"):
                works.append(lambda name=name: paced(STATES_HZ, seconds, lambda _: add(name, state)))  # type: ignore[misc]
            else:
                works.append(
                    lambda name=name: paced(
                        FRAMES_HZ, seconds, lambda i: add_frame(name, frames[i % len(frames)])
                    )  # type: ignore[misc]
                )
        measured = dict(zip(names, in_threads(works), strict=True))
        start = time.perf_counter()
        writer.finish()
    close_s = time.perf_counter() - start
    states = [wait for name, waits in measured.items() if name.endswith("state") for wait in waits]
    images = [wait for name, waits in measured.items() if not name.endswith("state") for wait in waits]
    return {"frames_ns": images, "states_ns": states, "close_s": close_s, "lost": 0, **used(before_s)}


LEROBOT = """
import json, logging, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from bench.versus.recording_robot import CAMERAS, FRAMES_HZ, HEIGHT, WIDTH, cpu_s, paced, pictures, used
from lerobot.datasets.lerobot_dataset import LeRobotDataset
import numpy as np
logging.disable(logging.WARNING)
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
names = [f"observation.images.{side}_{name}" for side in "ab" for name in CAMERAS]
features = {name: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": ["h", "w", "c"]} for name in names}
features["observation.state"] = {"dtype": "float32", "shape": (14,), "names": None}
dataset = LeRobotDataset.create("me/robot", FRAMES_HZ, features, root=folder / "lerobot", streaming_encoding=True)
frames, state = pictures(sys.argv[4]), np.zeros(14, "f4")
before_s = cpu_s()
def add(i):
    dataset.add_frame({**{name: frames[i % len(frames)] for name in names}, "observation.state": state, "task": "x"})
waits = paced(FRAMES_HZ, seconds, add)
start = time.perf_counter()
dataset.save_episode()
dataset.finalize()
close_s = time.perf_counter() - start
lost = len(waits) - dataset.meta.total_frames
print(json.dumps({"frames_ns": waits, "states_ns": [], "close_s": close_s, "lost": lost, **used(before_s)}))
"""


def robot(
    folder: Path, seconds: float, scene: str, programs: Sequence[str], lerobot_python: str | None
) -> dict[str, Any]:
    """The same minute of a robot recorded by each program, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = {
        "ours": [[sys.executable, "-m", __spec__.name, f"ours-{side}"] for side in "ab"],
        "mcap": [[sys.executable, "-m", __spec__.name, "mcap"]],
        "lerobot": [] if lerobot_python is None else [[lerobot_python, "-c", LEROBOT]],
    }
    rows: dict[str, Any] = {"seconds": seconds, "scene": scene}
    for name in programs:
        running = [
            subprocess.Popen(
                [*command, str(folder), str(seconds), str(ROOT), scene],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
                if name != "lerobot"
                else plain_environment(),
            )
            for command in commands[name]
        ]
        results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
        if not results:
            continue
        rows[name] = summary(results, folder)
    return rows


def plain_environment() -> dict[str, str]:
    """The environment without our packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HF_HUB_OFFLINE": "1"
    }


def summary(results: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What the processes of one program measured, together."""
    frames = np.array([wait for result in results for wait in result["frames_ns"]])
    states = np.array([wait for result in results for wait in result["states_ns"]])
    files = {"ours": 0, "peer.mcap": 0, "lerobot": 0}
    for name in files:
        place = folder / name
        paths = [place] if place.is_file() else place.rglob("*")
        files[name] = sum(path.stat().st_size for path in paths if path.is_file())
    stored = max(files.values()) if len(files) == 1 else files
    return {
        "frame_ms": {"p50": _ms(frames, 50), "p99": _ms(frames, 99), "worst": _ms(frames, 100)},
        "state_ms": None if not len(states) else {"p99": _ms(states, 99), "worst": _ms(states, 100)},
        "close_s": round(max(result["close_s"] for result in results), 2),
        "cpu_s": round(sum(result["cpu_s"] for result in results), 1),
        "peak_mb": round(sum(result["peak_mb"] for result in results)),
        "written_mb": round(sum(result["written"] for result in results) / 1e6, 1),
        "lost": sum(result["lost"] for result in results),
        "files_mb": {name: round(size / 1e6, 1) for name, size in stored.items() if size},
    }


def _ms(waits: np.ndarray[Any, Any], percent: float) -> float:
    return round(float(np.percentile(waits, percent)) / 1e6, 3)


if __name__ == "__main__":
    program, place, duration, shown = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[5]
    if program == "mcap":
        print(json.dumps(record_mcap(place, duration, shown)))
    else:
        print(json.dumps(record_ours(place, duration, shown, program.removeprefix("ours-"))))
