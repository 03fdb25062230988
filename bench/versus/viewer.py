"""The viewer in a real browser, and the TypeScript reader over HTTP: `python -m bench.versus.viewer [--quick]`.

Chromium is driven by viewer-ui/tests/measure.mjs; every frame is known by the number in its pixels.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tests.servers import BUCKET, Proxy, run_http, run_s3
from tests.viewer.samples import BITS, numbered_frame

import warpdata as wd
from bench import measure

ROOT = Path(__file__).parents[2]
MEASURE = ROOT / "viewer-ui" / "tests" / "measure.mjs"
READER = ROOT / "packages" / "wshard"
WIDTH, HEIGHT = 640, 480
FRAME_NS = 33_333_333
RTT_S = 0.020
LEAST_BYTES = 300_000
SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    episodes: int = 10_000
    frames: int = 900
    turns: int = 60
    points: int = 10_000_000
    steps: int = 500
    servers: int = 3


QUICK = Sizes(episodes=200, frames=12, turns=2, points=100_000, steps=100, servers=1)


def in_browser(name: str, url: str, **options: Any) -> dict[str, Any]:
    """What the page says of itself."""
    command = ["node", str(MEASURE), name, url, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def many_episodes(root: Path, count: int) -> None:
    """A root of very many short episodes."""
    for number in range(count):
        folder = root / f"{number // 1000 * 1000:012d}" / f"{number:012d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text("{}")
        (folder / "static.json").write_text(json.dumps({"task": "reach", "success": number % 3 == 0}))


@contextlib.contextmanager
def served(address: str) -> Iterator[tuple[str, float]]:
    """`warp view` in a process of its own: its link, and how long it took to print it."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "warpdata", "view", address, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        took = time.perf_counter() - start
        try:
            yield link, took
        finally:
            process.terminate()


def first_paint(work: Path, sizes: Sizes) -> dict[str, Any]:
    """From the command to the first rows on the screen: for the first time, and once the list is known."""
    root = work / "many"
    many_episodes(root, sizes.episodes)
    time.sleep(2.1)  # folders that changed just now are not cached
    found: dict[str, Any] = {"episodes": sizes.episodes}
    for turn in ("first", "second"):
        with served(str(root)) as (link, link_s):
            page = in_browser("list", link)
            assert page["rows"].startswith(f"{sizes.episodes:,} "), page
            found[f"{turn}_s"] = round(link_s + page["ms"] / 1000, 3)
            found[f"{turn}_link_s"] = round(link_s, 3)
    return found


def picture(number: int, base: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A picture that moves, with its number at its top."""
    frame = np.roll(base, number * 3, axis=1)
    frame[:32, : BITS * 16] = numbered_frame(number, 64, WIDTH)[:32, : BITS * 16]
    return frame


def record_cameras(root: Path, frames: int) -> None:
    """One episode: two cameras of 640x480 at 30 frames a second, joints three times as often."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = ((np.sin(columns / 37) + np.cos(rows / 29)) * 60 + 128).clip(0, 255).astype(np.uint8)
    base = smooth[:, :, None] // 2 + rng.integers(0, 8, (HEIGHT, WIDTH, 3), np.uint8)
    with wd.record(root, static={"task": "reach"}, clock="simulated") as rec:
        for number in range(frames):
            for part in range(3):
                at = number + part / 3
                rec.append("joints", np.sin(np.arange(7) + at / 9).astype("f4"), int(at * FRAME_NS))
            shown = picture(number, base)
            rec.append("front", shown, number * FRAME_NS)
            rec.append("wrist", shown[:, :, ::-1], number * FRAME_NS)


def scrubbing(root: Path, sizes: Sizes) -> dict[str, Any]:
    """From the pointer to the right frame of both cameras."""
    with wd.view(root, open_browser=False) as viewer:
        asked = {"turns": sizes.turns, "start_ns": "0", "frame_ns": FRAME_NS, "cameras": 2}
        took = in_browser("scrub", viewer.url, **asked)["ms"]
    p50, p95 = np.percentile(took, [50, 95])
    return {
        "p50_ms": round(p50, 1),
        "p95_ms": round(p95, 1),
        "max_ms": round(max(took), 1),
        "turns": len(took),
    }


def many_points(work: Path, sizes: Sizes) -> dict[str, Any]:
    """From the click on an episode to its plot; the best of some servers, to each of which it is new."""
    folder = work / "points"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name, count in (("a-small", 100), ("b-big", sizes.points)):
        times = np.arange(count, dtype=np.int64) * 1_000_000
        values = np.cumsum(rng.standard_normal(count, dtype=np.float32))
        wd.pack_episode(
            wd.Episode.of({"x": wd.ArraySignal(times, values)}, id=name), folder / f"{name}.wshard"
        )
    found = []
    for _ in range(sizes.servers):
        with wd.view(folder, open_browser=False) as viewer:
            found.append(in_browser("points", viewer.url, small="a-small", big="b-big"))
    return min(found, key=lambda each: each["first_ms"]) | {"records": sizes.points}


def remote(root: Path, work: Path) -> dict[str, Any]:
    """Bytes that a published episode costs until its first frames and plots are there."""
    with run_s3() as server:
        catalog = f"s3://{BUCKET}/view"
        with mock.patch.dict(os.environ, server.environment()):
            with wd.DatasetBuilder("lab/reach", catalog=catalog) as builder:
                builder.add_episodes("demo", root).publish()
            with Proxy(server.port, delay_s=RTT_S) as proxy:
                os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
                with wd.dataset("lab/reach", catalog=catalog, cache_dir=str(work / "cache")) as dataset:
                    opened = proxy.answered_bytes
                    with wd.view(dataset, open_browser=False, draft=work / "draft") as viewer:
                        page = in_browser("first", viewer.url)
                        assert page["early"] == 0, "thumbnails wait until the frames and plots are there"
                        spent = proxy.answered_bytes
                    size = dataset.episodes[0].stored_bytes
    allowed = max(LEAST_BYTES, SHARE * size)
    return {
        "bytes": spent - opened,
        "bytes_of_opening": opened,
        "episode_bytes": size,
        "ratio": (spent - opened) / allowed,
        "ms": page["ms"],
    }


WINDOW = """
import { createHash } from "node:crypto";
import { fromUrl, openEpisode } from "./dist/src/index.js";
const [url, count, from, to] = process.argv.slice(1);
const counts = [];
let requests = 0;
const counted = (...args) => { requests++; return fetch(...args); };
const episode = await openEpisode(fromUrl(url, { fetch: counted }));
counts.push(requests);
const channel = episode.channel("rgb");
if (channel.length !== Number(count)) throw new Error(String(channel.length));
const start = performance.now();
const window = await channel.bytes(Number(from), Number(to));
const ms = performance.now() - start;
counts.push(requests - counts[0]);
const before = requests;
await channel.bytes(0, 16);
counts.push(requests - before);
const sha256 = createHash("sha256").update(window).digest("hex");
console.log(JSON.stringify({ open: counts[0], window: counts[1], next: counts[2], ms, sha256 }));
"""


def typescript(work: Path, sizes: Sizes) -> dict[str, Any]:
    """Requests of the TypeScript reader for an episode, and for a window of 16 frames in seekable zstd."""
    folder = work / "http"
    folder.mkdir()
    rng = np.random.default_rng(2)
    frames = (rng.integers(0, 8, (sizes.steps, 84, 84, 3)) * 16).astype(np.uint8)
    episode = wd.WShardEpisode(id="frames", env_id="Arm-v0", length=sizes.steps)
    episode.observations["rgb"] = frames
    wd.save_wshard(episode, folder / "frames.wshard", compression="zstd-seekable")
    built(READER)
    low = sizes.steps // 2
    with run_http(folder) as server:
        command = ["node", "--input-type=module", "-e", WINDOW, f"{server.url}/frames.wshard"]
        command += [str(sizes.steps), str(low), str(low + 16)]
        said = subprocess.run(command, cwd=READER, capture_output=True, text=True, timeout=120, check=False)
        if said.returncode:
            raise RuntimeError(said.stderr)
        asked = [int(last) - int(first) + 1 for first, last in map(_range, server.requests)]
    found: dict[str, Any] = json.loads(said.stdout)
    assert found.pop("sha256") == hashlib.sha256(frames[low : low + 16].tobytes()).hexdigest()
    return found | {"request_bytes": asked, "file_bytes": (folder / "frames.wshard").stat().st_size}


def _range(request: tuple[str, str, str]) -> list[str]:
    return request[2].removeprefix("bytes=").split("-")


def built(package: Path) -> None:
    """The package as it is published."""
    subprocess.run(["npm", "run", "--silent", "build"], cwd=package, check=True, timeout=240)


def run(sizes: Sizes) -> dict[str, Any]:
    """All measurements."""
    work = Path(tempfile.mkdtemp(prefix="warp-bench-"))
    try:
        record_cameras(work / "cameras", sizes.frames)
        return {
            "first_paint": first_paint(work, sizes),
            "scrub": scrubbing(work / "cameras", sizes),
            "points": many_points(work, sizes),
            "remote": remote(work / "cameras", work),
            "typescript": typescript(work, sizes),
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def bars(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure with its bar, and whether it holds."""
    rows = {
        "a root of 10,000 episodes: command to first paint in s": (
            found["first_paint"]["second_s"],
            "<",
            1.5,
        ),
        "scrub, two cameras 640x480: pointer to right frame, p50 in ms": (found["scrub"]["p50_ms"], "<", 60),
        "scrub, two cameras 640x480: pointer to right frame, p95 in ms": (found["scrub"]["p95_ms"], "<", 150),
        "10 million points: click to screen in ms": (found["points"]["first_ms"], "<", 150),
        "published episode, S3 20 ms: bytes until first frame and plot / (2 % of it or 300 KB)": (
            found["remote"]["ratio"],
            "<",
            1,
        ),
        "TypeScript, seekable zstd: requests to open": (found["typescript"]["open"], "<=", 1),
        "TypeScript, seekable zstd: requests of the first window of 16 frames": (
            found["typescript"]["window"],
            "<=",
            1,
        ),
    }
    return {
        name: {
            "value": value,
            "bar": f"{sign} {limit}",
            "holds": bool(value < limit or (sign == "<=" and value == limit)),
        }
        for name, (value, sign, limit) in rows.items()
    }


def main() -> None:
    """Print the measurements; at full size also write them to bench/results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    found = run(QUICK if args.quick else Sizes())
    report = {"bars": bars(found), **found}
    print(json.dumps(report, indent=1))
    if not args.quick:
        measure.save("viewer", report)


if __name__ == "__main__":
    main()
