"""Kill a recorder 10,000 times: `python -m bench.soak_kill [TIMES]`. Any acknowledged step that is missing stops it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.episodes.killing import kill_many

from bench import measure

BATCH = 100


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    totals: dict[str, int] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for batch in range(-(-times // BATCH)):
            for name, count in kill_many(Path(folder), BATCH, seed=1000 + batch).items():
                totals[name] = totals.get(name, 0) + count
            print(
                f"\r{totals['kills']} kills, {totals['acknowledged']} steps acknowledged", end="", flush=True
            )
    report = {**totals, "lost": 0, "seconds": round(time.monotonic() - start, 1)}
    print("\n" + json.dumps(report))
    if times >= 10_000:
        measure.save("soak_kill", report)


if __name__ == "__main__":
    main()
