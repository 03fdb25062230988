"""Every benchmark at full size, one after the other: `make bench`.

Results go to bench/results; what slipped against the committed ones is said at the end, and is the exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.measure import RESULTS
from bench.slipped import committed, slipped

HERE = Path(__file__).parent
PEERS = "_peers"
"""How modules are called that are a part of a comparison."""


def head() -> dict[str, Any]:
    """The bars of the last commit: the files may hold an older run of this tree."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        name = path.relative_to(HERE.parent).as_posix()
        shown = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=HERE.parent, capture_output=True)
        report = json.loads(shown.stdout) if shown.returncode == 0 else {}
        if "bars" in report:
            found[path.stem] = report["bars"]
    return found or committed()


def main() -> int:
    before, failed = head(), []
    for script in sorted((HERE / "versus").glob("[a-z]*.py")):
        if script.stem.endswith(PEERS):
            continue
        print(f"== {script.name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.versus.{script.stem}"], cwd=HERE.parent).returncode:
            failed.append(f"{script.name} did not run to its end")
    subprocess.run([sys.executable, "-m", "bench.tables"], cwd=HERE.parent, check=True)
    worse = [*failed, *slipped(before, committed())]
    print("\n".join(["slipped:", *worse]) if worse else "all benchmarks ran, and nothing slipped")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
