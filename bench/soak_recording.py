"""Kill recorders: `python -m bench.soak_recording [TIMES]`. A record that is missing stops it.

TIMES (200) recorders of an episode with two cameras and three vectors, then as many with a writer per signal.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.episodes.crash_recorder import kill_many

from bench import measure

TIMES = 200


def main() -> None:
    """Kill, salvage, compare; at full size write what came back to bench/results."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    start = time.monotonic()
    report: dict[str, object] = {"signals": "two cameras, three vectors"}
    with tempfile.TemporaryDirectory() as folder:
        for how in ("episode", "files"):
            found = kill_many(Path(folder) / how, times, seed=len(how), how=how)
            report[how] = {"kills": found["kills"], "acknowledged": found["records"], "lost": 0}
            print(how, found, flush=True)
    report["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(report))
    if times >= TIMES:
        measure.save("soak_recording", report)


if __name__ == "__main__":
    main()
