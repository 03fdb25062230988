"""Find moments like this one: embed windows of motion, then search for what looks alike in other episodes.

    python examples/similar_moments.py [FOLDER]

The index is a file beside the recordings. Running `wd.embed` again embeds only what is new. Needs the extra `video`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import warpdata as wd

SECOND = 1_000_000_000


def main(folder: Path) -> None:
    """Index eight episodes of the simulated robot, search for one moment, and rank episodes by novelty."""
    root = folder / "robot_data"
    wd.demo_data(root, episodes=8)
    report = wd.embed(root, "motion", per="window", window_s=1.0, stride_s=0.25, signals=["joints"])
    print(report)

    episode = wd.open(root)[0]
    t0_ns = episode.start_ts + 2 * SECOND
    hits = wd.find_similar(root, episode.id, t0_ns, t0_ns + SECOND, k=4)
    for hit in hits:
        print(f"{hit.episode_id} from {hit.t0_ns / 1e9:.2f} s to {hit.t1_ns / 1e9:.2f} s: {hit.distance:.3f}")
    assert all(hit.episode_id != episode.id or hit.t0_ns >= t0_ns + SECOND for hit in hits[:1])

    print("most unlike the others:", wd.rank_novelty(root)[0])
    print("near-duplicates:", wd.find_duplicates(root))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
