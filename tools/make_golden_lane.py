"""Make the golden lane: a catalog with two episodes and what a model said about them.

`python -m tools.make_golden_lane tests/golden/lane`
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import warpdata as wd

NAME = "golden/lane"


def episode(number: int) -> wd.WShardEpisode:
    """Five steps of two joints."""
    made = wd.WShardEpisode(id=f"ep_{number}", env_id="Golden-v0", length=5)
    made.observations["joints"] = np.arange(10, dtype=np.float32).reshape(5, 2) + number
    made.actions["torque"] = np.ones((5, 1), np.float32)
    return made


def say(given: wd.Episode) -> np.ndarray:
    """A prediction: twice the truth."""
    return given["joints"].values() * 2


def publish(catalog: Path) -> str:
    """The version with the lane."""
    with tempfile.TemporaryDirectory() as shards:
        for number in range(2):
            wd.save_wshard(episode(number), Path(shards) / f"ep_{number}.wshard")
        with wd.DatasetBuilder(NAME, catalog=catalog) as builder:
            builder.add_episodes("episodes", shards)
            builder.publish()
    with wd.dataset(NAME, catalog=catalog) as ds:
        return ds.add_lane("double", say, of="joints", revision="1").version


def main(folder: Path) -> None:
    """Write the catalog and what must be read from it."""
    folder.mkdir(parents=True, exist_ok=True)
    version = publish(folder / "catalog")
    with wd.dataset(NAME, catalog=folder / "catalog") as ds:
        shards = {str(shard.name): shard.hash for shard in ds.manifest.artifacts["lane-double"].shards}
    expected = {"version": version, "shards": shards}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/lane"))
