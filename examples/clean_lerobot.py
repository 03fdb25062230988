"""Open a LeRobot set in place, leave out bad episodes, trim the rest, and export a clean set.

    python examples/clean_lerobot.py [FOLDER]

The set is made here so that the example runs anywhere; put the path of yours in its place.
Needs the extra `video`, and not `lerobot`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import warpdata as wd


def main(folder: Path) -> None:
    """Make a set, import it, clean it, export it, and compare."""
    wd.demo_data(folder / "robot_data", episodes=4)
    wd.export_episodes(folder / "robot_data", folder / "raw_set", "lerobot", rate=20)

    episodes = wd.open(folder / "raw_set")
    print(f"{len(episodes)} episodes in place: {', '.join(episodes[0].signals)}")
    wd.import_episodes(folder / "raw_set", folder / "cleaned")

    cleaned = wd.LocalDataset(folder / "cleaned")
    cleaned.edits.drop(3)  # the operator dropped the cube in this one
    first = cleaned[0]
    cleaned.edits.trim(0, first.start_ts + 500_000_000, first.last_ts)  # half a second before the robot moves

    receipt = wd.export_episodes(folder / "cleaned", folder / "clean_set", "lerobot")
    print(receipt)
    clean = wd.open(folder / "clean_set")
    assert len(clean) == 3
    assert len(clean[0]["action"]) < len(episodes[0]["action"])
    print(f"{len(clean)} episodes exported, {len(clean[0]['action'])} steps in the first")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
