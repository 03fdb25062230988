"""Recording and reading in time, against mcap, h5py and parquet-with-PNG: `python -m bench.versus.recording`.

Peers do the same work in the same run; ratios are what counts. `--quick` is a small run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import warpdata as wd
from bench import measure
from bench.versus import converting_peers, recording_robot

HEIGHT, WIDTH = 480, 640


def percentiles_us(latencies_ns: np.ndarray[Any, Any]) -> dict[str, float]:
    """p50, p99, p99.9 and the worst, in microseconds."""
    p50, p99, p999 = np.percentile(latencies_ns, [50, 99, 99.9]) / 1e3
    worst = float(latencies_ns.max()) / 1e3
    return {"p50": round(p50, 2), "p99": round(p99, 2), "p99.9": round(p999, 2), "max": round(worst, 1)}


def timed(count: int, call: Callable[[int], None]) -> np.ndarray[Any, Any]:
    """Latency of each call in nanoseconds."""
    out = np.empty(count, np.int64)
    clock = time.perf_counter_ns
    for i in range(count):
        start = clock()
        call(i)
        out[i] = clock() - start
    return out


def best(runs: list[np.ndarray[Any, Any]]) -> dict[str, float]:
    """The run with the smallest stall: other work on the machine can only add."""
    return percentiles_us(min(runs, key=lambda run: float(run.max())))


def vectors(folder: Path, count: int, repeats: int) -> dict[str, Any]:
    """Append vec7 f32: ours, mcap, h5py in blocks of one row."""
    import h5py
    from mcap.writer import Writer

    data = np.random.default_rng(0).standard_normal((count, 7)).astype("f4")
    ours, peers, h5 = [], [], []
    bytes_per_record = 0.0
    for repeat in range(repeats):
        path = folder / f"ours{repeat}"
        with wd.DiskEpisodeWriter(path) as writer:
            writer.append("state", data[0], -1)
            ours.append(timed(count, lambda i, w=writer: w.append("state", data[i], i * 1_000_000)))
        bytes_per_record = (path / "state.parquet").stat().st_size / count
        with open(folder / "peer.mcap", "wb") as file:
            mcap = Writer(file)
            mcap.start()
            channel = mcap.register_channel("state", "raw", mcap.register_schema("v", "jsonschema", b"{}"))

            def add(i: int, mcap: Any = mcap, channel: int = channel) -> None:
                mcap.add_message(channel, i * 1_000_000, data[i].tobytes(), i * 1_000_000)

            peers.append(timed(count, add))
            mcap.finish()
        with h5py.File(folder / "peer.h5", "w") as file:
            table = file.create_dataset("state", (0, 7), "f4", maxshape=(None, 7), chunks=(4096, 7))

            def append(i: int, table: Any = table) -> None:
                table.resize(i + 1, axis=0)
                table[i] = data[i]

            h5.append(timed(min(count, 5000), append))
    mine, theirs = best(ours), best(peers)
    return {
        "ours_us": mine,
        "mcap_us": theirs,
        "h5py_us": best(h5),
        "rerun_us": rerun_vectors(folder, data),
        "p50_ratio_to_mcap": round(mine["p50"] / theirs["p50"], 2),
        "bytes_per_record": round(bytes_per_record, 1),
    }


def rerun_vectors(folder: Path, data: np.ndarray[Any, Any]) -> dict[str, float] | None:
    """The same vectors logged with rerun, where it is installed."""
    if importlib.util.find_spec("rerun") is None:
        return None
    rerun = importlib.import_module("rerun")
    rerun.init("bench")
    rerun.save(folder / "peer.rrd")

    def log(i: int) -> None:
        rerun.set_time("step", sequence=i)
        rerun.log("state", rerun.Scalars(data[i]))

    found = percentiles_us(timed(min(len(data), 20_000), log))
    rerun.disconnect()
    return found


def bars(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each bar: what was measured, what was asked, and whether it holds."""
    vector, camera, robot, smooth = (found[part] for part in ("vectors", "cameras", "robot", "robot_smooth"))
    rows = {
        "append vec7: p50 / mcap add_message": (vector["p50_ratio_to_mcap"], "<=", 2),
        "append vec7: p99.9 in ms": (vector["ours_us"]["p99.9"] / 1000, "<", 1),
        "append vec7: worst stall in ms": (vector["ours_us"]["max"] / 1000, "<", 5),
        "bytes per vec7 record": (vector["bytes_per_record"], "<=", 32),
        "append frame, two cameras: p50 in copies of the frame": (camera["p50_in_copies"], "<", 3),
        "frames dropped": (camera["dropped"], "<=", 0),
        "close after the cameras in s": (camera["close_s"], "<", 0.5),
        "first frame of a declared camera in ms": (found["first_frame"]["declared_ms"], "<", 1),
        "first record of all, a frame nobody declared, in ms": (
            found["first_frame"]["undeclared_ms"],
            "<",
            5,
        ),
        "close of a small episode / as many bare fsyncs": (found["small_close"]["ratio"], "<=", 2),
        "two cameras of noise: bytes to the disk / (3 x the files + 1 s of raw frames)": (
            found["disk"]["of_allowed"],
            "<=",
            1,
        ),
        "two processes, four cameras: worst stall of a frame in ms": (
            robot["ours"]["frame_ms"]["worst"],
            "<",
            20,
        ),
        "two processes, four cameras: frames and states lost": (robot["ours"]["lost"], "<=", 0),
        "two processes, four cameras: bytes to the disk / files": (robot["written_of_files"], "<=", 1.2),
        "the same with smooth pictures: bytes to the disk / files": (smooth["written_of_files"], "<=", 1.2),
        "six cameras as fast as they can, 20 ms allowed: worst append in ms": (
            found["overload"]["worst_ms"],
            "<=",
            70,
        ),
        "six cameras as fast as they can: frames neither kept nor counted as dropped": (
            found["overload"]["uncounted"],
            "<=",
            0,
        ),
        "six cameras as fast as they can: bytes to the disk / (3 x the files + 1 s of raw frames)": (
            found["overload"]["of_allowed"],
            "<=",
            1,
        ),
        "signal.time[t]: p50 in µs": (found["lookups"]["time_us"]["p50"], "<", 6),
        "5 s x 5-signal windows through ds[i] per CPU second": (
            found["windows"]["windows_per_cpu_s"],
            ">=",
            1000,
        ),
        "random frames / x264 medium GOP 30, plain seek and decode": (
            found["random_frames"]["ratio"],
            ">=",
            2,
        ),
        "open a root of 10,000 episodes, second time, in s": (found["listing"]["second_s"], "<", 0.1),
        "where over statics of 10,000 episodes, second time, in s": (
            found["listing"]["second_where_s"],
            "<",
            0.1,
        ),
        "publish after a static edit / without it": (found["publishing"]["ratio"], "<=", 1.2),
    }
    return {
        name: {
            "value": float(value),
            "bar": f"{sign} {limit}",
            "holds": bool(value >= limit if sign == ">=" else value <= limit),
        }
        for name, (value, sign, limit) in rows.items()
    }


def cameras(folder: Path, seconds: float) -> dict[str, Any]:
    """Two cameras at 30 frames a second: cost of append in copies of a frame, and of close."""
    frames = recording_robot.pictures("smooth", 20)
    copy_to = np.empty_like(frames[0])
    latencies, copies = [], []
    writer = wd.DiskEpisodeWriter(folder / "cameras")
    count = int(seconds * 30)
    began = time.perf_counter()
    for i in range(count):
        while (ahead := began + i / 30 - time.perf_counter()) > 0:
            time.sleep(ahead)
        for name in ("left", "right"):
            frame = frames[i % 20]
            work = [
                (latencies, lambda _, n=name, f=frame, i=i: writer.append(n, f, i * 33_333_333)),
                (copies, lambda _, f=frame: np.copyto(copy_to, f)),
            ]
            # Whoever comes second finds the frame in the cache, so they take turns.
            for found, call in work if i % 2 else reversed(work):
                found.append(timed(1, call)[0])
    start = time.perf_counter()
    writer.close()
    close_s = time.perf_counter() - start
    episode = wd.open_episode(folder / "cameras")
    mine, copy = percentiles_us(np.array(latencies[2:])), percentiles_us(np.array(copies[2:]))
    return {
        "append_us": mine,
        "copy_us": copy,
        "p50_in_copies": round(mine["p50"] / copy["p50"], 2),
        "close_s": round(close_s, 3),
        "dropped": 2 * count - len(episode["left"]) - len(episode["right"]),
        "png_then_mp4_close_s": round(
            png_then_mp4(folder, frames, min(count, 60)) * count / min(count, 60), 2
        ),
    }


def median_cameras(folder: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """The middle one of several recordings: a copy at 30 Hz is as noisy as the machine."""
    runs = [cameras(folder / f"cameras{repeat}", seconds) for repeat in range(repeats)]
    return sorted(runs, key=lambda found: found["p50_in_copies"])[len(runs) // 2]


def first_frame_ms(folder: Path, is_declared: bool) -> float:
    """The first frame of a camera: declared in a recording under way, or the very first record of all."""
    frame = recording_robot.pictures("smooth", 1)[0]
    with wd.record(folder, clock="simulated") as rec:
        if is_declared:
            rec.declare("cam", kind="image")
            rec.append("state", np.zeros(7, "f4"), 0)
            time.sleep(0.5)
        return float(timed(1, lambda _: rec.append("cam", frame, 0))[0]) / 1e6


def first_frame(folder: Path, repeats: int) -> dict[str, float]:
    """Each time in a fresh process, where no encoder was ever loaded; other work on the machine can only add."""
    found = {}
    for name, is_declared in (("declared_ms", True), ("undeclared_ms", False)):
        times = []
        for _ in range(repeats):
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as fresh:
                times.append(fresh.submit(first_frame_ms, folder / "first", is_declared).result())
        found[name] = round(min(times), 3)
    return found


def small_close(folder: Path, repeats: int) -> dict[str, Any]:
    """Closing three signals of a hundred records, against as many small files written and synced."""
    ours, bare, syncs = [], [], 3 + 2 + 2  # a file per signal, two documents; the folder before and after
    for repeat in range(repeats):
        writer = wd.DiskEpisodeWriter(folder / f"small{repeat}")
        for i in range(100):
            for name in "abc":
                writer.append(name, np.full(7, i, "f4"), i)
        ours.append(timed(1, lambda _, w=writer: w.close())[0])
        start = time.perf_counter_ns()
        for number in range(syncs):
            fd = os.open(folder / f"bare{repeat}-{number}", os.O_WRONLY | os.O_CREAT)
            os.write(fd, bytes(4096))
            os.fsync(fd)
            os.close(fd)
        bare.append(time.perf_counter_ns() - start)
    mine, theirs = float(np.median(ours)) / 1e6, float(np.median(bare)) / 1e6
    return {
        "close_ms": round(mine, 2),
        "bare_ms": round(theirs, 2),
        "syncs": syncs,
        "ratio": round(mine / theirs, 2),
    }


def bytes_to_disk() -> int:
    """What this process made the kernel write, without what was deleted before that."""
    with open("/proc/self/io", encoding="ascii") as file:
        found = dict(line.split(": ") for line in file)
    return int(found["write_bytes"]) - int(found["cancelled_write_bytes"])


def disk(folder: Path, seconds: float) -> dict[str, Any]:
    """Two cameras of noise at 30 frames a second, which no encoder makes small: what of it the disk has to take."""
    noise = np.random.default_rng(3)
    frames = [noise.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in range(10)]
    before, count = bytes_to_disk(), int(seconds * 30)
    with wd.record(folder / "noise", clock="simulated") as rec:
        began = time.perf_counter()
        for i in range(count):
            while (ahead := began + i / 30 - time.perf_counter()) > 0:
                time.sleep(ahead)
            for name in ("left", "right"):
                rec.append(name, frames[i % 10], i * 33_333_333)
    written = bytes_to_disk() - before
    final = sum(path.stat().st_size for path in (folder / "noise").rglob("*") if path.is_file())
    raw = 2 * count * frames[0].nbytes
    meta = wd.open_recordings(folder / "noise")[0].meta["signals"]
    return {
        "seconds": seconds,
        "written_mb": round(written / 1e6, 1),
        "files_mb": round(final / 1e6, 1),
        "raw_mb": round(raw / 1e6, 1),
        "of_files": round(written / final, 2),
        "of_allowed": round(written / (3 * final + 60 * frames[0].nbytes), 2),
        "waited_for_the_encoder_s": round(sum(each["blocked_ns"] for each in meta.values()) / 1e9, 2),
    }


def overload(folder: Path, seconds: float) -> dict[str, Any]:
    """Six cameras from six threads at 60 Hz, more than two cores encode: what an append takes, and what is kept."""
    frames, count = recording_robot.pictures("smooth", 20), 6
    before, names = bytes_to_disk(), [f"cam{number}" for number in range(count)]
    waits: dict[str, list[int]] = {}
    with wd.record(folder / "overload") as rec:
        for name in names:
            rec.declare(name, kind="image", policy="drop_oldest", max_wait_ms=20)
        rec.append("begin", 1.0)
        time.sleep(0.5)

        def feed(name: str) -> None:
            waits[name] = recording_robot.paced(60, seconds, lambda i: rec.append(name, frames[i % 20]))

        threads = [threading.Thread(target=feed, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = rec.status()
    written = bytes_to_disk() - before
    episode = wd.open_recordings(folder / "overload")[0]
    signals = episode.meta["signals"]
    final = sum(path.stat().st_size for path in (folder / "overload").rglob("*") if path.is_file())
    given = sum(map(len, waits.values()))
    kept = sum(len(episode[name]) for name in names)
    dropped = sum(signals[name].get("dropped_frames", 0) for name in names)
    took = np.array([wait for each in waits.values() for wait in each])
    return {
        "seconds": seconds,
        "append_us": percentiles_us(took),
        "worst_ms": round(float(took.max()) / 1e6, 1),
        "given": given,
        "kept": kept,
        "dropped": dropped,
        "uncounted": given - kept - dropped,
        "waiting_at_the_end": status.total("waiting"),
        "least_and_most_kept": [
            min(len(episode[name]) for name in names),
            max(len(episode[name]) for name in names),
        ],
        "presets": {name: signals[name].get("presets") for name in names[:1]},
        "written_mb": round(written / 1e6, 1),
        "files_mb": round(final / 1e6, 1),
        "of_allowed": round(written / (3 * final + 60 * count * frames[0].nbytes), 2),
    }


def robot(
    folder: Path, seconds: float, scene: str, programs: Sequence[str], *, quick: bool
) -> dict[str, Any]:
    """Two processes with two cameras and a controller each, beside mcap and LeRobot's recorder."""
    python = None if quick else converting_peers.python_of("lerobot-0.6.1")
    rows = recording_robot.robot(folder / scene, seconds, scene, programs, python)
    ours = rows["ours"]
    rows["written_of_files"] = round(ours["written_mb"] / max(ours["files_mb"]["ours"], 1e-3), 2)
    rows["cpu_of_mcap"] = round(ours["cpu_s"] / rows["mcap"]["cpu_s"], 2)
    return rows


def png_then_mp4(folder: Path, frames: list[np.ndarray[Any, Any]], count: int) -> float:
    """The LeRobot way: images as files while recording, one encoding at close; returns the time of the close."""
    import av

    place = folder / "png"
    place.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.fromarray(frames[i % 20]).save(place / f"{i}.png", compress_level=1)
    start = time.perf_counter()
    with av.open(str(folder / "peer.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": "2", "crf": "30"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(count):
            container.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.asarray(Image.open(place / f"{i}.png")), format="rgb24")
                )
            )
        container.mux(stream.encode(None))
    return time.perf_counter() - start


def lookups(folder: Path, count: int) -> dict[str, Any]:
    """`signal.time[t]` on a signal the caller holds."""
    with wd.DiskEpisodeWriter(folder / "lookup") as writer:
        for i in range(20_000):
            writer.append("state", np.full(7, i, "f4"), i * 1000)
    signal = wd.open_episode(folder / "lookup")["state"]
    signal.values()
    times = np.random.default_rng(1).integers(0, 20_000_000, count).tolist()
    return {"time_us": percentiles_us(timed(count, lambda i: signal.time[times[i]]))}


def windows(folder: Path, episodes: int, count: int) -> dict[str, Any]:
    """Random 5 s windows of 5 signals over many episodes, always through `ds[i]`."""
    root = folder / "windows"
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
            for i in range(2000):
                for name in "abcde":
                    writer.append(name, np.full(7, i, "f4"), i * 10_000_000)
    dataset = wd.open_recordings(root)
    start = time.process_time()
    for _ in range(count):
        episode = dataset[int(rng.integers(episodes))]
        first = int(rng.integers(0, 15_000_000_000))
        view = episode.time[first : first + 5_000_000_000]
        for name in "abcde":
            view[name].values()
    spent = time.process_time() - start
    return {"windows_per_cpu_s": round(count / spent), "windows": count, "episodes": episodes}


def random_frames(folder: Path, frames: int, picks: int) -> dict[str, Any]:
    """Random frames: our defaults, against x264 medium GOP 30 with plain seek and decode."""
    import av

    pictures = recording_robot.pictures("smooth", 20)
    with wd.VideoSignalWriter(folder / "r.mp4", folder / "r.frames.parquet") as writer:
        for i in range(frames):
            writer.append(pictures[i % 20], i)
    with av.open(str(folder / "plain.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "medium", "g": "30"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pictures[i % 20], format="rgb24")))
        container.mux(stream.encode(None))
    wanted = np.random.default_rng(2).integers(0, frames, picks).tolist()
    signal = wd.VideoSignal(folder / "r.mp4", folder / "r.frames.parquet")
    spent, spent_plain = 0.0, 0.0
    with av.open(str(folder / "plain.mp4")) as container:
        stream = container.streams.video[0]
        ticks = round(1 / (float(stream.average_rate) * float(stream.time_base)))

        def plain_frame(i: int) -> None:
            container.seek(i * ticks, stream=stream)
            next(f for f in container.decode(stream) if f.pts // ticks >= i).to_ndarray(format="rgb24")

        for i in wanted:  # in turns, so that a slow moment of the machine meets both
            spent += cpu_s(lambda i=i: signal[i])
            spent_plain += cpu_s(lambda i=i: plain_frame(i))
    ours, plain = picks / spent, picks / spent_plain
    return {"ours_per_cpu_s": round(ours), "plain_per_cpu_s": round(plain), "ratio": round(ours / plain, 2)}


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def publishing(folder: Path, episodes: int, frames: int) -> dict[str, Any]:
    """Publishing recordings with a camera after a static edit of each, against publishing them as they are."""
    root, pictures = folder / "published", recording_robot.pictures("smooth", 20)
    for number in range(episodes):
        with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
            writer.set_static("number", number)
            for i in range(frames):
                writer.append("cam", pictures[i % 20], i * 33_000_000)
                writer.append("state", np.full(7, i, "f4"), i * 33_000_000)

    shutil.copytree(root, folder / "edited")
    edits = wd.open_recordings(folder / "edited").edits
    for number in range(episodes):
        edits.set_static(number, "judged", "good")

    def publish(source: str, repeat: int) -> float:
        start = time.perf_counter()
        with wd.DatasetBuilder("lab/bench", catalog=folder / f"catalog-{source}{repeat}") as builder:
            builder.add_episodes("demo", folder / source).publish()
        return time.perf_counter() - start

    # In turns: how long a sync takes changes from second to second.
    times: dict[str, list[float]] = {source: [] for source in ("published", "edited")}
    for repeat in range(7):
        for source, spent in times.items():
            spent.append(publish(source, repeat))
    plain, edited = (float(np.median(spent)) for spent in times.values())
    return {"plain_s": round(plain, 3), "edited_s": round(edited, 3), "ratio": round(edited / plain, 2)}


def listing(folder: Path, episodes: int) -> dict[str, Any]:
    """Opening a root of many episodes the second time, and asking for some of them by their static items."""
    root = folder / "many"
    for number in range(episodes):
        block = root / f"{number // 1000 * 1000:012d}" / f"{number:012d}"
        block.mkdir(parents=True)
        (block / "meta.json").write_text("{}")
        (block / "static.json").write_text(json.dumps({"number": number, "success": number % 3 == 0}))
    time.sleep(2.1)  # folders that changed just now are not cached
    start = time.perf_counter()
    assert len(wd.open_recordings(root)) == episodes
    first = time.perf_counter() - start
    asked = {}
    for turn in ("first", "second"):
        start = time.perf_counter()
        opened = wd.open_recordings(root)
        assert len(opened) == episodes
        asked[f"{turn}_open_s"] = time.perf_counter() - start
        start = time.perf_counter()
        found = opened.where("success and number >= 100")
        asked[f"{turn}_where_s"] = time.perf_counter() - start
        assert len(found) == len(range(102, episodes, 3))
    return {
        "episodes": episodes,
        "first_s": round(first, 3),
        "second_s": round(asked["second_open_s"], 4),
        "first_where_s": round(asked["first_where_s"], 3),
        "second_where_s": round(asked["second_where_s"], 4),
    }


def run(*, quick: bool, only: Sequence[str] = ()) -> dict[str, Any]:
    """All measurements or some, small or at full size."""
    folder, seconds = Path(tempfile.mkdtemp(prefix="warp-bench-")), 0.5 if quick else 60
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "vectors": lambda: vectors(folder, 10_000 if quick else 100_000, 1 if quick else 3),
        "cameras": lambda: median_cameras(folder, 0.5 if quick else 8, 1 if quick else 3),
        "first_frame": lambda: first_frame(folder, 1 if quick else 5),
        "small_close": lambda: small_close(folder, 3 if quick else 31),
        "disk": lambda: disk(folder, 0.3 if quick else 20),
        "overload": lambda: overload(folder, 0.3 if quick else 20),
        "robot": lambda: robot(folder, seconds, "textured", ("ours", "mcap", "lerobot"), quick=quick),
        "robot_smooth": lambda: robot(folder, seconds, "smooth", ("ours", "mcap"), quick=quick),
        "lookups": lambda: lookups(folder, 5_000 if quick else 50_000),
        "windows": lambda: windows(folder, 2 if quick else 50, 100 if quick else 5000),
        "random_frames": lambda: random_frames(folder, 16 if quick else 300, 8 if quick else 300),
        "listing": lambda: listing(folder, 200 if quick else 10_000),
        "publishing": lambda: publishing(folder, 2 if quick else 6, 6 if quick else 300),
    }
    try:
        return {name: part() for name, part in parts.items() if not only or name in only}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the measurements; at full size also write them to bench/results, where `--only` replaces some."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", nargs="*", default=[], help="parts to measure again, such as robot and overload"
    )
    args = parser.parse_args()
    found = run(quick=args.quick, only=args.only)
    if args.only:
        stored = json.loads((measure.RESULTS / "recording.json").read_text())
        found = {**{name: part for name, part in stored.items() if name not in ("bars", "machine")}, **found}
    is_whole = not args.only or {"robot", "robot_smooth", "overload"} <= set(found)
    report = {"bars": bars(found), **found} if is_whole else found
    print(json.dumps(report, indent=1))
    if not args.quick:
        measure.save("recording", report)


if __name__ == "__main__":
    main()
