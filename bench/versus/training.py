"""Shuffled windows for training against other loaders: local, compressed, as video, and from S3 with 20 ms round trips.

python -m bench.versus.training [--quick] [--no-peers]

Peers are installed in environments of their own first, which takes minutes the first time (`bench/environments.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.servers import BUCKET, Proxy, run_s3

import warpdata as wd
from bench import environments, measure
from bench.data import frames
from bench.versus.training_peers import (
    BATCH,
    ENVIRONMENTS,
    PEERS,
    WIDTH,
    arrays,
    ffmpeg_of,
    peer,
    shuffled_starts,
)
from warpdata.formats.wshard.reader import ShardReader
from warpdata.loading.windows import SampleTable

THREADS = 2
RTT_S = 0.020
LEROBOT_APART = 288.0
"""Windows per second of lerobot 0.4.4 with torchcodec on such a machine, where it is not measured in the same run."""
FIELDS = {"image": wd.Field("rgb", horizon=WIDTH), "action": wd.Field("ctrl", horizon=WIDTH)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    episodes: int = 100
    steps: int = 500
    video_episodes: int = 20
    s3_episodes: int = 100
    batches: int = 200
    """Of a round, where rivals take turns; an epoch of 100 episodes has 757."""
    slow_batches: int = 30
    rounds: int = 4
    epochs: int = 3
    peer_rounds: int = 2
    peer_batches: int = 120
    """Many more than any of them reads ahead."""


QUICK = Sizes(6, 60, 3, 3, 3, 2, 1, 2, 0)


# The data, in every form.


def write_data(work: Path, sizes: Sizes) -> None:
    """The same frames and vectors as plain arrays, as raw and compressed shards, and recorded with a camera."""
    scene, rng = frames(sizes.steps), np.random.default_rng(1)
    total = sizes.episodes * sizes.steps
    opened = np.lib.format.open_memmap
    images = opened(work / "image.npy", "w+", np.uint8, (total, *scene.shape[1:]))
    actions = opened(work / "action.npy", "w+", np.float32, (total, 7))
    (work / "steps.json").write_text(json.dumps(sizes.steps))
    for kind in ("raw", "zstd"):
        (work / kind).mkdir()
    recorder = wd.LocalDatasetWriter(work / "video")
    for number in range(sizes.episodes):
        low, high = number * sizes.steps, (number + 1) * sizes.steps
        images[low:high] = np.roll(scene, (7 * number, 3 * number), (1, 2))
        actions[low:high] = rng.normal(size=(sizes.steps, 7))
        made = wd.WShardEpisode(id=f"{number:05d}", length=sizes.steps)
        made.observations["rgb"], made.actions["ctrl"] = (
            np.asarray(images[low:high]),
            np.asarray(actions[low:high]),
        )
        wd.save_wshard(made, work / "raw" / f"{number:05d}.wshard", durable=False)
        wd.save_wshard(made, work / "zstd" / f"{number:05d}.wshard", "zstd-seekable", durable=False)
        if number < sizes.video_episodes:
            with recorder.new_episode() as episode:
                for step in range(sizes.steps):
                    episode.append("rgb", images[low + step], step * 50_000_000)
                    episode.append("ctrl", actions[low + step], step * 50_000_000)


def windows_of(episodes: Any, edges: Any = "skip") -> wd.Windows:
    return wd.Windows(episodes, FIELDS, anchor="ctrl", edges=edges)


def loader_of(windows: wd.Windows) -> wd.Loader:
    return wd.Loader(windows, batch_size=BATCH, seed=1, threads=THREADS, tail="drop", rank=0, world=1)


class Endless:
    """Batches of a loader, epoch after epoch."""

    def __init__(self, windows: wd.Windows) -> None:
        self._loader = loader_of(windows)
        self._batches = iter(self._loader)

    def take(self, count: int) -> None:
        for _ in range(count):
            if next(self._batches, None) is None:
                self._batches = iter(self._loader)
                next(self._batches)


class BareGather:
    """Windows copied from mapped arrays into buffers that are used again, by two threads, and nothing else."""

    def __init__(self, work: Path) -> None:
        self._images, self._actions, steps = arrays(work)
        self._starts = shuffled_starts(len(self._images), steps)
        self._at = 0
        self._free: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        for _ in range(THREADS + 2):
            image = np.empty((BATCH, WIDTH, *self._images.shape[1:]), np.uint8)
            self._free.put((image, np.empty((BATCH, WIDTH, 7), np.float32)))
        self._threads = ThreadPoolExecutor(THREADS)

    def take(self, count: int) -> None:
        jobs: deque[Any] = deque()
        for number in range(count):
            jobs.append(self._threads.submit(self._gather, self._next()))
            if len(jobs) > THREADS or number == count - 1:
                self._free.put(jobs.popleft().result())
        while jobs:
            self._free.put(jobs.popleft().result())

    def _next(self) -> list[int]:
        if self._at + BATCH > len(self._starts):
            self._at = 0
        self._at += BATCH
        return list(self._starts[self._at - BATCH : self._at].tolist())

    def _gather(self, starts: list[int]) -> tuple[Any, Any]:
        image, action = self._free.get()
        for row, start in enumerate(starts):
            image[row] = self._images[start : start + WIDTH]
            action[row] = self._actions[start : start + WIDTH]
        return image, action


def decompress_rate(work: Path, sizes: Sizes) -> float:
    """Windows per second of nothing but zstd: the frames of random windows, by as many threads as the loader has."""
    readers = [ShardReader.open(path) for path in sorted((work / "zstd").iterdir())]
    count = sizes.slow_batches * BATCH
    rng = np.random.default_rng(0)
    wanted = [
        (int(rng.integers(len(readers))), int(rng.integers(sizes.steps - WIDTH + 1))) for _ in range(count)
    ]

    def some(first: int) -> None:
        for number, start in wanted[first::THREADS]:
            readers[number].read_rows("signal/rgb", start, start + WIDTH)

    def run() -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(some, range(THREADS)))

    run()
    return count / min(measure.seconds(run) for _ in range(sizes.rounds))


# What is measured.


def local(work: Path, sizes: Sizes, pythons: Mapping[str, str]) -> dict[str, Any]:
    """The bare gather, our loader and the peers in turns: windows per second, and CPU seconds per window of ours."""
    ours: dict[str, Any] = {
        "bare gather": BareGather(work),
        "raw": Endless(windows_of(wd.open_episodes(work / "raw"))),
        "zstd": Endless(windows_of(wd.open_episodes(work / "zstd"))),
    }
    rates: dict[str, float] = dict.fromkeys(ours, 0.0)
    cpu: dict[str, float] = dict.fromkeys(ours, float("inf"))
    peers: dict[str, float | str] = {}
    for name, rival in ours.items():
        rival.take(sizes.batches if name != "raw" else 4 * sizes.batches)  # every byte of it is checked once
    for number in range(sizes.rounds):
        for name, rival in ours.items():
            start, began = time.perf_counter(), time.process_time()
            rival.take(sizes.batches)
            count = sizes.batches * BATCH
            rates[name] = max(rates[name], count / (time.perf_counter() - start))
            cpu[name] = min(cpu[name], (time.process_time() - began) / count)
        if number < sizes.peer_rounds:
            _peers_turn(
                peers, [name for name, each in PEERS.items() if not each.is_video], work, sizes, pythons
            )
    return {
        "windows/s": rates,
        "CPU s per window": cpu,
        "only decompressing, windows/s": decompress_rate(work, sizes),
        "peers, windows/s": peers,
    }


def _peers_turn(
    found: dict[str, float | str], names: Sequence[str], work: Path, sizes: Sizes, pythons: Mapping[str, str]
) -> None:
    """One turn of each peer; the best of a peer's turns counts, and one that failed is not asked again."""
    for name in names:
        before, python = found.get(name, 0.0), pythons[PEERS[name].environment]
        if isinstance(before, str):
            continue
        if not os.path.exists(python):
            found[name] = f"not installed: {python}"
            continue
        env = {"BENCH_EPISODES": str(sizes.video_episodes)}
        if PEERS[name].is_video:
            env |= ffmpeg_of(python, work)
        count = sizes.slow_batches if PEERS[name].is_video else sizes.peer_batches
        rate = peer(name, work, count, python=python, **env)
        found[name] = rate if isinstance(rate, str) else max(rate, before)


def video(work: Path, sizes: Sizes, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Windows per second over all pools of an epoch, decoding included; peers in turns."""
    windows = windows_of(wd.open_recordings(work / "video"))
    epoch, best = len(loader_of(windows)), float("inf")
    peers: dict[str, float | str] = {}
    for _ in range(max(1, sizes.peer_rounds)):
        best = min(best, measure.seconds(lambda: Endless(windows).take(epoch)))
        if sizes.peer_rounds:
            _peers_turn(peers, [name for name, each in PEERS.items() if each.is_video], work, sizes, pythons)
    return {"windows/s": epoch * BATCH / best, "peers, windows/s": peers}


def first_batch(windows: Callable[[], wd.Windows]) -> float:
    return measure.seconds(lambda: next(iter(loader_of(windows()))))


def first_batch_local(work: Path) -> dict[str, float]:
    """Seconds from the episodes to the first batch, in a process that has read nothing before and has nothing kept."""
    return {
        name: _in_fresh_process(f"first_batch(lambda: windows_of({how}))", work)
        for name, how in (
            ("raw", "wd.open_episodes(work / 'raw')"),
            ("zstd", "wd.open_episodes(work / 'zstd')"),
            ("video", "wd.open_recordings(work / 'video')"),
            ("raw, edges padded", "wd.open_episodes(work / 'raw'), 'pad'"),
        )
    }


def _in_fresh_process(expression: str, work: Path) -> Any:
    """What an expression over this module gives in a process of its own, with an empty cache."""
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom bench.versus.training import *\n"
        "_ = wd.Windows, wd.Loader, wd.open_episodes, wd.open_recordings  # imports are not what is measured\n"
        f"work = Path(sys.argv[1])\nprint(json.dumps({expression}))"
    )
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-c", code, str(work)],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={**os.environ, "WARP_CACHE_DIR": cache},
        )
    return json.loads(done.stdout)


def memory(work: Path, kind: str, epochs: int) -> dict[str, float]:
    """Anonymous memory after each epoch, without the batches that are read ahead or in use."""
    loader, before, found = loader_of(windows_of(wd.open_episodes(work / kind))), _anonymous(), []
    size = 0
    for _ in range(epochs):
        peak = 0
        for batch in loader:
            size = sum(each.nbytes for each in batch.values())
            peak = max(peak, _anonymous())
        found.append(peak)
    batches = (THREADS + 3) * size
    return {
        "beside the batches (MB)": (max(found) - before - batches) / 1e6,
        "growth (MB)": (found[-1] - found[0]) / 1e6,
    }


def _anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024


def resume(work: Path) -> float:
    """Seconds to load a state at the middle of 10⁹ samples and to know the samples of the next batch."""
    windows = windows_of(wd.open_episodes(work / "raw"))
    windows.__dict__["table"] = SampleTable.of_kept([10_000_000] * 100)
    state = loader_of(windows).state_at((0, 500_000_000))

    def run() -> None:
        loader = loader_of(windows)
        loader.load_state_dict(state)
        assert len(next(loader.steps((loader.epoch, loader.position))).chosen) == BATCH

    return measure.seconds(run)


def from_s3(work: Path, sizes: Sizes, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Cold and again from the cache, through a proxy that adds 20 ms to each answer of a real server."""
    found: dict[str, Any] = {}
    with run_s3() as server:
        os.environ.update(server.environment())
        catalog = f"s3://{BUCKET}/bench"
        chosen = sorted((work / "raw").iterdir())[: sizes.s3_episodes]
        part = work / "part"
        part.mkdir()
        for path in chosen:
            os.link(path, part / path.name)
        with wd.DatasetBuilder("bench/windows", catalog=catalog) as builder:
            builder.add_episodes("episodes", wd.open_episodes(part)).publish()
        needed = sum(path.stat().st_size for path in chosen)
        with Proxy(server.port, delay_s=RTT_S) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint

            def opened(cache: str) -> Any:
                return wd.dataset("bench/windows", catalog=catalog, cache_dir=str(work / cache))

            with opened("first") as ds:
                found["first batch (s)"] = first_batch(lambda: windows_of(ds.episodes))
            with opened("cold") as ds:
                far = windows_of(ds.episodes)
                loader = loader_of(far)
                start = time.perf_counter()
                count = sum(batch.size for batch in loader)
                found["cold, windows/s"] = count / (time.perf_counter() - start)
                found["bytes fetched / needed"] = ds.spent.bytes_read / needed
                near, again = Endless(windows_of(wd.open_episodes(part))), Endless(far)
                found["second epoch / local"] = _ratio(again, near, sizes)
            found["peers, cold, windows/s"] = s3_peers(server, proxy, work, sizes, pythons)
    return found


def _ratio(one: Endless, other: Endless, sizes: Sizes) -> float:
    """How much faster one is, best rounds in turns."""
    best = [0.0, 0.0]
    for _ in range(sizes.rounds + 1):
        for number, each in enumerate((one, other)):
            best[number] = max(best[number], 1 / measure.seconds(lambda: each.take(sizes.batches)))  # noqa: B023
    return best[0] / best[1]


def s3_peers(
    server: Any, proxy: Proxy, work: Path, sizes: Sizes, pythons: Mapping[str, str]
) -> dict[str, float | str]:
    from tests.servers import s3_store

    from warpdata.stores.blobstore import digest_file

    found: dict[str, float | str] = {}
    for name in [name for name, each in PEERS.items() if each.is_remote and sizes.peer_rounds]:
        folder = work / "peers" / PEERS[name].folder
        files = [each for each in folder.iterdir() if each.is_file()] if (folder / "written").exists() else []
        if not files:
            found[name] = "not installed, or its files could not be written"
            continue
        store = s3_store(server, f"peers/{folder.name}")
        for path in files:
            store.put_file(path.name, path, digest_file(path))
        remote = f"s3://{BUCKET}/peers/{folder.name}"
        python = pythons[PEERS[name].environment]
        found[name] = peer(
            name, work, sizes.slow_batches, python=python, BENCH_REMOTE=remote, S3_ENDPOINT_URL=proxy.endpoint
        )
    return found


def installed() -> dict[str, str]:
    """The interpreter of every environment of peers, or why there is none."""
    found = {}
    for name, wanted in ENVIRONMENTS.items():
        try:
            found[name] = environments.python_of(name, wanted)
        except environments.NotInstalled as error:
            found[name] = str(error)
    return found


def run(sizes: Sizes) -> dict[str, Any]:
    """Everything, in one run on one machine."""
    pythons = installed() if sizes.peer_rounds else {}
    work = Path(tempfile.mkdtemp(prefix="warp-bench-"))
    try:
        began = time.perf_counter()
        write_data(work, sizes)
        results: dict[str, Any] = {
            "sizes": asdict(sizes),
            "peers": {name: _versions(python) for name, python in pythons.items()},
            "first batch (s)": first_batch_local(work),
            "memory": {
                kind: _in_fresh_process(f"memory(work, {kind!r}, {sizes.epochs})", work)
                for kind in ("raw", "zstd")
            },
        }
        results["local"] = local(work, sizes, pythons)
        results["video"] = video(work, sizes, pythons)
        results["resume at the middle of 10⁹ (s)"] = resume(work)
        results["S3 20 ms"] = from_s3(work, sizes, pythons)
        results["took (s)"] = time.perf_counter() - began
        return results
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _versions(python: str) -> dict[str, str] | str:
    """What the peers of an environment are, or why there is none."""
    names = [
        "torch",
        "numpy",
        "grain",
        "litdata",
        "mosaicml-streaming",
        "webdataset",
        "zarr",
        "h5py",
        "lerobot",
        "torchcodec",
    ]
    return environments.versions(python, names) if os.path.exists(python) else python


def bars(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure with its bar; a peer that could not run has no row."""
    near, far, film = results["local"], results["S3 20 ms"], results["video"]
    rates, cpu = near["windows/s"], near["CPU s per window"]
    libraries, recorded = numbers(near["peers, windows/s"]), numbers(film["peers, windows/s"])
    distant = numbers(far["peers, cold, windows/s"])
    first, held = results["first batch (s)"], results["memory"].values()
    rows: dict[str, tuple[float, str, float]] = {
        "raw: windows per s / bare gather with two threads": (rates["raw"] / rates["bare gather"], ">=", 0.8),
        "raw: CPU per window / bare gather": (cpu["raw"] / cpu["bare gather"], "<=", 1.3),
        "zstd: windows per s": (rates["zstd"], ">=", 4000),
        "zstd: windows per s / only decompressing them": (
            rates["zstd"] / near["only decompressing, windows/s"],
            ">=",
            0.9,
        ),
        "S3 20 ms: bytes fetched / needed": (far["bytes fetched / needed"], "<=", 1.5),
        "S3: second epoch from the cache / local": (far["second epoch / local"], ">=", 0.8),
        **{
            f"first batch, {name}, in s": (first[name], "<", 0.2)
            for name in ("raw", "raw, edges padded", "zstd")
        },
        "first batch, S3 20 ms, in s": (far["first batch (s)"], "<", 1.5),
        "memory beside the batches in MB": (max(each["beside the batches (MB)"] for each in held), "<", 300),
        "memory: third epoch less first in MB": (max(each["growth (MB)"] for each in held), "<", 16),
        "resume at the middle of 10⁹ samples in s": (results["resume at the middle of 10⁹ (s)"], "<", 0.2),
    }
    if libraries:
        rows[f"raw: windows per s / best library ({best(libraries)})"] = (
            rates["raw"] / max(libraries.values()),
            ">=",
            1,
        )
    if recorded:
        rows["video: windows per s / LeRobot"] = (film["windows/s"] / max(recorded.values()), ">=", 4)
    else:
        rows[f"video: windows per s / {LEROBOT_APART:.0f}, LeRobot measured apart"] = (
            film["windows/s"] / LEROBOT_APART,
            ">=",
            4,
        )
    if distant:
        rows[f"S3 20 ms, cold: windows per s / best peer ({best(distant)})"] = (
            far["cold, windows/s"] / max(distant.values()),
            ">=",
            3,
        )
    judge: dict[str, Callable[[float, float], bool]] = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        "<": lambda a, b: a < b,
    }
    return {
        name: {"value": value, "bar": f"{sign} {limit}", "holds": judge[sign](value, limit)}
        for name, (value, sign, limit) in rows.items()
    }


def numbers(found: Mapping[str, float | str]) -> dict[str, float]:
    """The peers that ran."""
    return {name: rate for name, rate in found.items() if isinstance(rate, float)}


def best(rates: Mapping[str, float]) -> str:
    """The name of the fastest, without what was said about it."""
    return max(rates, key=lambda name: rates[name]).partition(",")[0]


def listed(results: dict[str, Any]) -> dict[str, float | str]:
    """Windows per second of everybody, or why there is no such number."""
    near, far, film = results["local"], results["S3 20 ms"], results["video"]
    ours = {
        f"warpdata, {name}" if name != "bare gather" else "bare gather, two threads": rate
        for name, rate in near["windows/s"].items()
    }
    return {
        **ours,
        **near["peers, windows/s"],
        "warpdata, video": film["windows/s"],
        **film["peers, windows/s"],
        "warpdata, S3 20 ms, cold": far["cold, windows/s"],
        **{f"{name}, S3 20 ms, cold": rate for name, rate in far["peers, cold, windows/s"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="install and run no other loader")
    args = parser.parse_args()
    sizes = QUICK if args.quick else Sizes()
    results = run(replace(sizes, peer_rounds=0) if args.no_peers else sizes)
    results = {"bars": bars(results), "windows/s": listed(results), **results}
    print(json.dumps(results, indent=1, default=float))
    if not args.quick:
        measure.save("training", results)


if __name__ == "__main__":
    main()
