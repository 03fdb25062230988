"""Curate on Ray: read published episodes in parallel, measure them, add a signal, publish the result.

    python examples/curate_ray.py [FOLDER]

The same code runs on a cluster; the catalog is then a bucket. Needs the extra `ray`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray

import warpdata as wd


def add_speed(episode: wd.Episode) -> dict[str, np.ndarray]:
    """Joint speed per step, a new signal of the episode."""
    joints = episode.steps["joints"].data
    return {"speed": np.abs(np.diff(joints, axis=0, prepend=joints[:1])).sum(1)}


def top_speed(row: dict[str, Any]) -> dict[str, Any]:
    """The largest jump of a joint; opens the episode on the worker, by range."""
    joints = wd.ray.open(row)["joints"].values()
    return {"id": row["episode_id"], "top": float(np.abs(np.diff(joints, axis=0)).max())}


def main(folder: Path) -> None:
    """Publish raw data, look at it on workers, publish what was derived."""
    catalog = folder / "catalog"
    for seed in range(4):
        with wd.record(folder / "raw", static={"task": "pick" if seed % 2 else "place"}) as rec:
            for step in range(50):
                joints = np.sin(np.arange(6) + step / 10 + seed).astype(np.float32)
                rec.step({"joints": joints}, {"target": -joints}, ts_ns=step * 20_000_000)
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.add_episodes("episodes", folder / "raw")
        builder.publish()
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    try:
        rows = wd.ray.read_episodes("lab/arm", where="task = 'pick'", catalog=catalog)
        print(sorted(row["top"] for row in rows.map(top_speed).take_all()))
        mapped = wd.ray.map_episodes("lab/arm", add_speed, where="task = 'pick'", catalog=catalog)
        print(wd.ray.publish(mapped, "lab/arm-pick", catalog=catalog, expect=2, message="picks with speed"))
    finally:
        ray.shutdown()
    with wd.dataset("lab/arm-pick", catalog=catalog) as ds:
        assert "speed" in ds.episodes[0].signals
        print(f"published {len(ds.episodes)} episodes with {', '.join(ds.episodes[0].signals)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
