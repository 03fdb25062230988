"""Make the golden episode directories: `python tools/make_golden_episodedir.py tests/golden/episodedir`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd


def make(folder: Path) -> None:
    """Two small episodes with every kind of signal, one edit, and what must be read from them."""
    shutil.rmtree(folder, ignore_errors=True)
    writer = wd.LocalDatasetWriter(folder / "root")
    for number in range(2):
        with writer.new_episode() as episode:
            episode.set_static("task", f"golden {number}")
            episode.declare("state", units="rad", names=["a", "b", "c"])
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


def describe(episode: wd.Episode) -> dict[str, Any]:
    """What a reader must find."""
    signals = {}
    for name, signal in episode.signals.items():
        lossy = signal.meta.kind == "image" and signal.meta.dtype == np.uint8
        signals[name] = {
            "kind": signal.meta.kind, "shape": list(signal.meta.shape),
            "timestamps": signal.timestamps.tolist(),
            "values": None if lossy else signal.values().tolist(),
            "means": signal.values().astype(float).mean(axis=(1, 2, 3)).tolist() if lossy else None,
        }  # fmt: skip
    return {"static": dict(episode.static), "signals": signals}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
