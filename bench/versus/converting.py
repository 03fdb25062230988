"""Foreign sets in and out: `python -m bench.versus.converting [--quick] [--only SECTION …] [--no-peers]`.

Peers: a plain copy of the same files to the same disk, and in the same run lerobot, TFDS and mcap-ros2-support, each in
a virtualenv that is made when it is first needed (`converting_peers`). Where a peer cannot be installed its row divides
by what it reached when it was measured apart (`ANCHORS`), and says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from mcap.writer import Writer
from PIL import Image
from rosbags.typesys import Stores, get_typestore

from bench import measure
from bench.versus import converting_peers
from warpdata.convert import hdf5, lerobot, mcap, rlds
from warpdata.convert.aligning import grid_times
from warpdata.convert.importing import import_episodes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.formats.episodedir.documents import VideoOptions
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import STEPS, StepClock

ANCHORS = {
    "lerobot's own v2.1 to v3.0, steps per CPU second": 1500.0,
    "lerobot 0.6.1 writing two cameras of 640x480, steps per second": 6.0,
    "the usual script from MCAP to lerobot, steps per CPU second": 11.6,
    "TFDS, steps per CPU second": 345.0,
    "mcap-ros2-support, messages per CPU second": 49_000.0,
}
FPS = 20.0


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


def made_bag(path: Path, steps: int, *, camera: bool) -> Path:
    """A bag of ROS 2 messages: joint states, and with a camera commands and JPEG pictures of 640x480 at their times."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    kinds = {
        name.rpartition("/")[2]: store.types[name]
        for name in (
            "builtin_interfaces/msg/Time",
            "std_msgs/msg/Header",
            "sensor_msgs/msg/JointState",
            "sensor_msgs/msg/CompressedImage",
        )
    }
    topics = {"/joint_states": "JointState"}
    if camera:
        topics |= {"/joint_command": "JointState", "/camera/compressed": "CompressedImage"}
    rng, names = np.random.default_rng(3), [f"joint{number}" for number in range(7)]
    pictures = (
        [np.frombuffer(jpeg(each), np.uint8) for each in frames(rng, min(steps, 60), 480, 640)]
        if camera
        else []
    )
    with open(path, "wb") as out:
        writer = Writer(out)
        writer.start("ros2")
        numbers = []
        for topic, kind in topics.items():
            name = kinds[kind].__msgtype__
            definition = store.generate_msgdef(name, ros_version=2)[0].encode()
            schema = writer.register_schema(name, "ros2msg", definition)
            numbers.append(writer.register_channel(topic, "cdr", schema))
        for step in range(steps):
            ns = 1_000_000_000 + step * 50_000_000
            header = kinds["Header"](kinds["Time"](ns // 10**9, ns % 10**9), "base")
            for number, kind in zip(numbers, topics.values(), strict=True):
                joints = rng.normal(size=7)
                message = (
                    kinds[kind](header, names, joints, joints, joints)
                    if kind == "JointState"
                    else kinds[kind](header, "jpeg", pictures[step % len(pictures)])
                )
                data = bytes(store.serialize_cdr(message, kinds[kind].__msgtype__))
                writer.add_message(number, ns, data, ns, step)
        writer.finish()
    return path


def decoded_messages(bag: Path) -> int:
    """How many messages of the one topic were read, with every field of each."""
    episode = mcap.read(bag)[0]
    lengths = {len(each.values()) for name, each in episode.signals.items() if "/message." not in name}
    assert len(lengths) == 1
    return lengths.pop()


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


def pictures(name: str, values: np.ndarray, times: Any) -> StillsSignal:
    """Frames as JPEG pictures in memory."""
    data = [jpeg(each) for each in values]
    return StillsSignal(name, lambda low, high: data[low:high], len(data), lambda: times, "made", clock=STEPS)


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
            "image": pictures("image", frames(rng, steps, 96, 128), times),
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
    """Wall and CPU seconds of work into a new target, the disk included; the last one made is at `target`.

    Earlier targets are moved aside, not removed: ext4 goes round inodes that were freed in the last seconds, so that
    whoever makes many files would be charged for removing those of the round before.
    """
    rounds = itertools.count()

    def timed() -> tuple[float, float]:
        if target.exists():
            target.rename(target.with_name(f"{target.name}-{next(rounds)}"))
        os.sync()
        wall, start = time.perf_counter(), time.process_time()
        work(target)
        used = time.process_time() - start  # as peers count it: what the system does for others is not theirs
        os.sync()
        return time.perf_counter() - wall, used

    return timed


def turns(rivals: dict[str, Callable[[], tuple[float, float]]], rounds: int) -> dict[str, dict[str, float]]:
    """The median of rounds in which rivals take turns, and the least CPU time of any."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            took[name].append(work())
    return {
        name: {
            "wall_s": statistics.median(wall for wall, _ in each),
            "cpu_s": statistics.median(cpu for _, cpu in each),
            "best_cpu_s": min(cpu for _, cpu in each),
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


class Peers:
    """The peers that are there; asked, a peer that is not gives None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def ask(self, name: str, script: str, *words: Path | str | int) -> dict[str, Any] | None:
        """What a script says that runs with a peer's Python."""
        python = None if self._folder is None else converting_peers.python_of(name, self._folder)
        return None if python is None else converting_peers.ask(python, script, *map(str, words))


def lerobot_in(folder: Path, peers: Peers, episodes: int, *, quick: bool) -> dict[str, Any]:
    """A LeRobot v2.1 set of so many episodes with two cameras, brought in."""
    steps = 4 if quick else 120
    folder.mkdir()
    source = made_lerobot(folder, episodes, steps)
    once = fresh(
        folder / "in",
        lambda target: import_episodes(lerobot.read(source), target, format="lerobot", source=str(source)),
    )
    tries = 1 if quick else converting_peers.CONVERSIONS  # as many as lerobot has in its turn
    copy = fresh(folder / "copy", lambda target: shutil.copytree(source, target))
    theirs: list[dict[str, Any] | None] = []

    def bring() -> tuple[float, float]:
        walls, used = zip(*(once() for _ in range(tries)), strict=True)
        return statistics.median(walls), min(used)

    def convert() -> tuple[float, float]:
        target = folder / f"theirs_v30_{len(theirs)}"
        theirs.append(peers.ask("lerobot-0.6.1", converting_peers.CONVERSION, source, target))
        return 0.0, theirs[-1]["cpu_s"] if theirs[-1] else 0.0

    found = turns({"warpdata": bring, "copy": copy, "lerobot": convert}, 1 if quick else 5)
    return {
        "steps": episodes * steps,
        "bytes": sum(path.stat().st_size for path in source.rglob("*") if path.is_file()),
        **found,
        "lerobot": {"cpu_s": found["lerobot"]["best_cpu_s"]} if all(theirs) else None,
        "peak_mb": peak_mb("import", str(source), str(folder / "m1")),
    }


def raw_frames_out(folder: Path, peers: Peers, *, quick: bool) -> dict[str, Any]:
    """Raw frames of an HDF5 file, encoded: ours and lerobot's own writer, with what came out of both."""
    episodes, steps = (1, 3) if quick else (2, 60)
    raw = made_hdf5(folder / "raw.hdf5", episodes, steps, cameras=True)
    ours, theirs = folder / "v30", folder / "theirs_raw"
    out = fresh(ours, lambda target: lerobot.write(hdf5.read(raw), target, task="lift"))
    found: dict[str, Any] = {"steps": episodes * steps, **turns({"warpdata": out}, 1 if quick else 3)}
    arrays = folder / "arrays"
    arrays.mkdir()
    with h5py.File(raw) as file:
        for name, key in (
            ("camera0", "obs/camera0_image"),
            ("camera1", "obs/camera1_image"),
            ("actions", "actions"),
        ):
            np.save(
                arrays / f"{name}.npy", np.stack([file[f"data/demo_{k}/{key}"][:] for k in range(episodes)])
            )
    found["lerobot"] = peers.ask("lerobot-0.6.1", converting_peers.WRITER, arrays, theirs)
    found["ours_made"] = made_of(ours, arrays)
    found["theirs_made"] = made_of(theirs, arrays) if found["lerobot"] else None
    found["peak_mb"] = peak_mb("export", "lerobot", str(raw), str(folder / "m2"), "--option", "task=lift")
    return found


def made_of(folder: Path, arrays: Path) -> dict[str, float]:
    """How large the videos of a set are, and how far its frames are from those that went in, in dB."""
    errors = []
    for number, episode in enumerate(lerobot.read(folder)):
        cameras = sorted(name for name, each in episode.signals.items() if each.meta.kind == "image")
        for place, name in enumerate(cameras):
            truth = np.load(arrays / f"camera{place}.npy", mmap_mode="r")[number]
            for step in range(len(truth)):
                shown = episode.signals[name].rows(step, step + 1)[0]
                errors.append(float(((shown.astype(np.float32) - truth[step]) ** 2).mean()))
    size = sum(path.stat().st_size for path in (folder / "videos").rglob("*.mp4"))
    return {"bytes": size, "psnr_db": float(10 * np.log10(255**2 / np.mean(errors)))}


def bags(folder: Path, peers: Peers, *, quick: bool) -> dict[str, Any]:
    """A bag with a JPEG camera into a LeRobot set, and many small messages decoded."""
    steps, theirs, small = (6, 6, 50) if quick else (600, 60, 30_000)
    bag = made_bag(folder / "bag.mcap", steps, camera=True)
    out = fresh(
        folder / "bag_v30",
        lambda target: lerobot.write(
            mcap.read(bag, actions=["/joint_command"]), target, clock="camera/compressed/data", task="push"
        ),
    )
    joints = made_bag(folder / "joints.mcap", small, camera=False)
    used = min(_cpu(lambda: decoded_messages(joints)) for _ in range(1 if quick else 5))
    return {
        "steps": steps,
        **turns({"warpdata": out}, 1 if quick else 3),
        "lerobot": peers.ask(
            "lerobot-0.6.1", converting_peers.BAG_SCRIPT, bag, folder / "theirs_bag", theirs
        ),
        "messages": small,
        "warpdata_messages_per_cpu_s": small / used,
        "mcap_ros2": peers.ask("mcap-ros2-support", converting_peers.SMALL_MESSAGES, joints),
        "peak_mb": peak_mb(
            "export", "lerobot", str(bag), str(folder / "m5"), "--clock", "camera/compressed/data"
        ),
    }


def rlds_read(folder: Path, peers: Peers, *, quick: bool) -> dict[str, Any]:
    """An RLDS set with JPEG, PNG and depth in every step, all decoded."""
    episodes, steps = (2, 10) if quick else (12, 60)
    records = made_rlds(folder, episodes, steps)
    used, theirs = [], []
    for _ in range(1 if quick else 3):
        used += [_cpu(lambda: read_all(records)) for _ in range(1 if quick else 3)]
        theirs.append(peers.ask("tensorflow-datasets", converting_peers.TFDS, records))
    rates = [each["steps_per_cpu_s"] for each in theirs if each]
    return {
        "steps": episodes * steps,
        "warpdata_steps_per_cpu_s": episodes * steps / min(used),
        "tfds": {"steps_per_cpu_s": max(rates)} if rates else None,
        "peak_mb": peak_mb("import", str(records), str(folder / "m3"), "--rate", "20"),
    }


def small_episodes(folder: Path, *, quick: bool) -> dict[str, Any]:
    """A hundred short episodes of fifteen small arrays."""
    episodes = 5 if quick else 100
    file = made_hdf5(folder / "small.hdf5", episodes, 40, cameras=False)
    bring = fresh(
        folder / "small",
        lambda target: import_episodes(hdf5.read(file), target, format="hdf5", source=str(file)),
    )
    return {
        "episodes": episodes,
        **turns({"warpdata": bring}, 1 if quick else 3),
        "peak_mb": peak_mb("import", "hdf5", str(file), str(folder / "m4")),
    }


def long_video(folder: Path, *, quick: bool) -> dict[str, Any]:
    """One long episode of JPEG pictures, whose bytes are more than memory may be: into a LeRobot set."""
    steps = 60 if quick else 9000
    bag = made_bag(folder / "long.mcap", steps, camera=True)
    found = {
        "bytes": bag.stat().st_size,
        "peak_mb": peak_mb(
            "export", "lerobot", str(bag), str(folder / "m6"), "--clock", "camera/compressed/data"
        ),
    }
    bag.unlink()
    shutil.rmtree(folder / "m6")
    return found


SECTIONS: dict[str, Callable[[Path, Peers, bool], dict[str, Any]]] = {
    "lerobot_in": lambda folder, peers, quick: lerobot_in(
        folder / "many", peers, 3 if quick else 24, quick=quick
    ),
    "lerobot_in_few": lambda folder, peers, quick: lerobot_in(folder / "few", peers, 2, quick=quick),
    "raw_frames_out": lambda folder, peers, quick: raw_frames_out(folder, peers, quick=quick),
    "bags": lambda folder, peers, quick: bags(folder, peers, quick=quick),
    "rlds_read": lambda folder, peers, quick: rlds_read(folder, peers, quick=quick),
    "small_episodes": lambda folder, _, quick: small_episodes(folder, quick=quick),
    "long_video": lambda folder, _, quick: long_video(folder, quick=quick),
}


def run(
    folder: Path, *, quick: bool, peers: Path | None = None, only: Sequence[str] = tuple(SECTIONS)
) -> dict[str, Any]:
    """Measure some sections; those that are left out keep their committed figures."""
    measured: dict[str, Any] = {}
    if set(only) != set(SECTIONS):
        measured = json.loads((measure.RESULTS / "converting.json").read_text())["measured"]
    for name in only:
        measured[name] = SECTIONS[name](folder, Peers(peers), quick)
    return {"bars": bars(measured), "measured": measured, "anchors": ANCHORS}


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _against(found: float | None, anchor: float, peer: str) -> tuple[float, str]:
    """What to divide by, and what it is."""
    return (anchor, f"{anchor:g}, {peer} measured apart") if found is None else (found, peer)


def _brought_in(found: dict[str, Any], anchor: float) -> dict[str, tuple[float, str, float]]:
    """The rows of a LeRobot set that was brought in."""
    theirs, ours = found["lerobot"], found["warpdata"]
    own, own_name = _against(theirs and found["steps"] / theirs["cpu_s"], anchor, "its own v2.1 to v3.0")
    which = f"LeRobot v2.1 in, {found['steps']} steps"
    return {
        f"{which}, video copied: speed / copying the files": (
            found["copy"]["wall_s"] / ours["wall_s"],
            ">=",
            0.5,
        ),
        f"{which}: steps per CPU second / {own_name}": (found["steps"] / ours["best_cpu_s"] / own, ">=", 5.0),
    }


def bars(found: dict[str, Any]) -> dict[str, Any]:
    out, bag, records = (found[name] for name in ("raw_frames_out", "bags", "rlds_read"))
    own, written, script, tfds, small = ANCHORS.values()
    theirs = out["lerobot"]
    written, writer_name = _against(
        theirs and out["steps"] / theirs["wall_s"], written, "lerobot 0.6.1's writer"
    )
    script, script_name = _against(
        bag["lerobot"] and bag["lerobot"]["steps_per_cpu_s"], script, "the usual script"
    )
    tfds, tfds_name = _against(records["tfds"] and records["tfds"]["steps_per_cpu_s"], tfds, "TFDS")
    small, small_name = _against(
        bag["mcap_ros2"] and bag["mcap_ros2"]["messages_per_cpu_s"], small, "mcap-ros2-support"
    )
    rows = {
        **_brought_in(found["lerobot_in"], own),
        **_brought_in(found["lerobot_in_few"], own),
        f"MCAP with a JPEG camera to LeRobot v3: steps per CPU second / {script_name}": (
            bag["steps"] / bag["warpdata"]["cpu_s"] / script,
            ">=",
            50.0,
        ),
        f"raw frames (HDF5) to LeRobot v3, 2x640x480: steps per second / {writer_name}": (
            out["steps"] / out["warpdata"]["wall_s"] / written,
            ">=",
            3.0,
        ),
        f"RLDS read, decode included: steps per CPU second / {tfds_name}": (
            records["warpdata_steps_per_cpu_s"] / tfds,
            ">=",
            5.0,
        ),
        f"MCAP, small CDR messages decoded: messages per CPU second / {small_name}": (
            bag["warpdata_messages_per_cpu_s"] / small,
            ">=",
            3.0,
        ),
        "memory of any of these: peak in MB": (
            max(each["peak_mb"] for each in found.values() if "peak_mb" in each),
            "<",
            500.0,
        ),
    }
    ours, theirs = out["ours_made"], out["theirs_made"]
    if theirs is not None:
        rows["raw frames to LeRobot v3: bytes of video / lerobot's"] = (
            ours["bytes"] / theirs["bytes"],
            "<",
            1.05,
        )
        rows["raw frames to LeRobot v3: PSNR below lerobot's, in dB"] = (
            max(0.0, theirs["psnr_db"] - ours["psnr_db"]),
            "<",
            0.3,
        )
    return {
        name: {
            "value": round(value, 4),
            "bar": f"{sign} {limit:.3g}",
            "holds": bool(value < limit if sign == "<" else value >= limit),
        }
        for name, (value, sign, limit) in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that writes no results")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=tuple(SECTIONS), help="these sections")
    parser.add_argument(
        "--no-peers", action="store_true", help="divide by what peers reached when measured apart"
    )
    parser.add_argument(
        "--peers", type=Path, default=converting_peers.FOLDER, help="where the virtualenvs of peers are"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=converting_peers.FOLDER.parent / "warpdata-bench",
        help="where files are made: not where others remove theirs, see converting.md",
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        peers = None if args.no_peers or args.quick else args.peers
        report = run(Path(folder), quick=args.quick, peers=peers, only=args.only)
    if not args.quick:
        measure.save("converting", report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
