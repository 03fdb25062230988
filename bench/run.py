"""Every benchmark at full size, one after the other: `make bench`.

Results go to bench/results; what slipped against the committed ones is printed at the end, and is the exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.measure import RESULTS
from bench.slipped import committed, slipped

HERE = Path(__file__).parent
PEERS = "_peers"
"""How modules are called that are a part of a comparison."""
LIMIT_S = 3 * 3600.0
"""A comparison that takes longer hangs: it is ended, with all its processes, and the next one begins."""


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


def run(module: str, limit_s: float = LIMIT_S) -> str:
    """Run a comparison; returns why it did not run to its end, or nothing."""
    process = subprocess.Popen([sys.executable, "-m", module], cwd=HERE.parent, start_new_session=True)
    try:
        code = process.wait(limit_s)
        return f"{module} did not run to its end: exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"{module} did not end within {limit_s:g} s"
    finally:  # what it started must not stay, at Ctrl-C neither
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    before, failed = head(), []
    for script in sorted((HERE / "versus").glob("[a-z]*.py")):
        if script.stem.endswith(PEERS):
            continue
        print(f"== {script.name}", flush=True)
        failed += filter(None, [run(f"bench.versus.{script.stem}")])
    subprocess.run([sys.executable, "-m", "bench.tables"], cwd=HERE.parent, check=True)
    worse = [*failed, *slipped(before, committed())]
    print("\n".join(["slipped:", *worse]) if worse else "all benchmarks ran, and nothing slipped")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
