"""Make golden recordings.

`python tools/make_golden_episodedir.py tests/golden/episodedir tests/golden/packed tests/golden/imported`
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named, dtype_of
from warpdata.bytekit.codec import encode_png
from warpdata.convert.importing import import_episodes
from warpdata.episodes.forms.shard import write_chunks
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind


def make(folder: Path) -> None:
    """Two small episodes with every kind of signal, one edit, and what must be read from them."""
    shutil.rmtree(folder, ignore_errors=True)
    writer = wd.LocalDatasetWriter(folder / "root")
    for number in range(2):
        with writer.new_episode() as episode:
            episode.set_static("task", f"golden {number}")
            episode.declare("state", units="rad", names=["a", "b", "c"])
            episode.declare("cloud", ragged=True, units="m", names=["x", "y", "z"])
            episode.declare("mic", kind="sound", rate_hz=8000)
            for i in range(15):
                record(episode, i, 1000 * i + number)
    dataset = wd.LocalDataset(folder / "root")
    dataset.edits.set_static(1, "task", "edited")
    dataset.refresh()
    (folder / "root" / ".listing.json").unlink(missing_ok=True)
    expected = {name: describe(dataset.open(name)) for name in dataset.ids}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def record(episode: Any, i: int, ts_ns: int) -> None:
    """One moment of every kind of signal."""
    episode.append("state", np.array([i, i / 2, -i], "f4"), ts_ns)
    episode.append("count", i, ts_ns + 1)
    episode.append("good", i % 2 == 0, ts_ns + 2)
    episode.append("tensor/small", np.arange(4, dtype="i2").reshape(2, 2) * i, ts_ns + 3)
    episode.append("events", f"event {i}", ts_ns + 4)
    episode.append("camera", np.full((18, 22, 3), 15 * i, np.uint8), ts_ns + 5)
    episode.append("depth", np.full((9, 11), 4000 * i, np.uint16), ts_ns + 6)
    episode.append("cloud", np.arange(3 * (i % 4), dtype="f4").reshape(-1, 3) + i, ts_ns + 7)
    episode.append("mic", np.arange(8 + i % 2, dtype="i2") * (100 - i), ts_ns + 8)
    episode.append("rgba/ä", np.full((16, 17, 4), 16 * i, np.uint8), ts_ns + 9)
    episode.append("colour16", np.full((16, 16, 3), 4000 * i, np.uint16), ts_ns + 10)


def describe(episode: wd.Episode) -> dict[str, Any]:
    """What a reader must find."""
    signals = {}
    for name, signal in episode.signals.items():
        is_colour = signal.meta.kind == "image" and len(signal.meta.shape) == 3
        is_lossy = is_colour and signal.meta.dtype == np.uint8 and signal.meta.shape[2] == 3
        signals[name] = {
            "kind": signal.meta.kind,
            "shape": list(signal.meta.shape),
            "timestamps": signal.timestamps.tolist(),
            "values": None if is_colour else plain_values(signal),
            "means": signal.values().astype(float).mean(axis=(1, 2, 3)).tolist() if is_lossy else None,
        }
        if is_colour and not is_lossy:
            signals[name]["sha256"] = hashlib.sha256(signal.values().tobytes()).hexdigest()
    return {"static": dict(episode.static), "signals": signals}


def make_packed(folder: Path, root: Path) -> None:
    """The same episodes, and one by step, as one file each, and what must be read from them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with wd.record(folder / "steps.wshard", static={"task": "golden"}, clock="simulated") as rec:
        for k in range(6):
            rec.step(
                {"state": np.array([k, -k], "f4")},
                {"push": np.float32(2000 + k)},
                reward=1000.0 + k,
                terminated=k == 5,
                truncated=False,
                ts_ns=k * 1000,
            )
            rec.append("imu", k / 4, k * 1000 + 7)
        rec.step({"state": np.array([6, -6], "f4")}, ts_ns=6000)
    for number, episode in enumerate(wd.LocalDataset(root)):
        wd.pack_episode(episode, folder / f"recording_{number}.wshard")
    for name in ("steps", "recording_0"):
        write_chunks(wd.open_episode(folder / f"{name}.wshard"), folder, count=2, episode_id=f"{name}_cut")
    expected = {path.name: summary(wd.open_episode(path)) for path in sorted(folder.glob("*.wshard"))}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


class GrayPictures(StillsSignal):
    """PNG pictures of one plane, whose source says that frames have an axis for it."""

    place = "made"

    def __init__(self) -> None:
        super().__init__("plane", clock="steps", has_axis=True)

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """Each one brighter than the one before."""
        return [
            encode_png(np.arange(20 * 24, dtype=np.uint8).reshape(20, 24) + np.uint8(row)) for row in rows
        ]

    def __len__(self) -> int:
        return 6

    def _clock(self) -> Any:
        return np.arange(6) * 1000


def make_imported(folder: Path) -> None:
    """One episode as imports write it, small signals of every type in plain files, and what must be read from it."""
    shutil.rmtree(folder, ignore_errors=True)
    times, signals = np.arange(6) * 1000, {}
    for name in DTYPE_NAMES:
        for shape in ((), (3,), (2, 2)):
            values = (
                (np.arange(6 * int(np.prod(shape))) % 5).reshape(6, *shape).astype(dtype_named(name).dtype)
            )
            meta = SignalMeta(values.dtype, shape, numeric_kind(shape), clock="steps")
            signals[f"{name}/{len(shape)}"] = ArraySignal(times, values, meta)
    made = wd.Episode.of({**signals, "plane": GrayPictures()}, {"task": "golden"}, id="0")
    import_episodes(wd.Episodes.of([made]), folder / "root", format="made", source="made")
    found = {
        name: {
            "dtype": dtype_of(signal.meta.dtype).name,
            "kind": signal.meta.kind,
            "shape": list(signal.meta.shape),
            "timestamps": signal.timestamps.tolist(),
            "values": np.asarray(signal.values(), float).tolist(),
        }
        for name, signal in wd.open_episodes(folder / "root")[0].signals.items()
    }
    (folder / "expected.json").write_text(json.dumps(found) + "\n")


def plain_values(signal: wd.Signal) -> list[Any]:
    """All values as lists, numbers and text."""
    values: list[Any] = signal.values().tolist()
    return [value.tolist() for value in values] if signal.meta.rows is not None else values


def summary(episode: wd.Episode) -> dict[str, Any]:
    """What a reader of one file must find."""
    signals = {
        name: {
            "times": signal.times_ns.tolist(),
            "kind": signal.meta.kind,
            "shape": list(signal.meta.shape),
            "sha256": hashlib.sha256(repr(plain_values(signal)).encode()).hexdigest(),
        }
        for name, signal in episode.signals.items()
    }
    return {"static": dict(episode.static), "signals": signals}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    make_packed(Path(sys.argv[2]), Path(sys.argv[1]) / "root")
    make_imported(Path(sys.argv[3]))
