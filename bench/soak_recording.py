"""Kill recorders: `python -m bench.soak_recording [TIMES]`. A record that is missing stops it.

TIMES (200) recorders of an episode with two cameras and three vectors, then as many with a writer per signal, and
histories of processes that join one episode, leave it, are killed and restart, until as many were killed.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.episodes.crash_recorder import kill_many
from tests.episodes.test_shared import record_by_processes

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
        report["processes"] = kill_processes(Path(folder) / "processes", times)
    report["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(report))
    if times >= TIMES:
        measure.save("soak_recording", report)


def kill_processes(folder: Path, times: int) -> dict[str, int]:
    """Random histories of several processes in one episode; what came back is compared after each."""
    total = {"episodes": 0, "processes": 0, "kills": 0, "acknowledged": 0, "lost": 0}
    while total["kills"] < times:
        place = folder / str(total["episodes"])
        place.mkdir(parents=True)
        counts = {**record_by_processes(place, seed=1000 + total["episodes"]), "episodes": 1}
        total |= {name: total[name] + count for name, count in counts.items()}
        shutil.rmtree(place)
    print("processes", total, flush=True)
    return total


if __name__ == "__main__":
    main()
