"""Every benchmark, one after the other: `make bench`.

Results go to bench/results; what slipped against the committed ones is printed at the end, and is the exit code.
`make bench QUICK=1` runs all of it small: whether everything runs to its end here, without figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import RESULTS
from bench.slipped import committed, slipped

HERE = Path(__file__).parent
PARTS = ("_peers", "_robot")
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


def run(module: str, *options: str, limit_s: float = LIMIT_S) -> str:
    """Run a comparison; returns why it did not run to its end, or nothing."""
    command = [sys.executable, "-m", module, *options]
    process = subprocess.Popen(command, cwd=HERE.parent, start_new_session=True)
    try:
        code = process.wait(limit_s)
        return f"{module} did not run to its end: exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"{module} did not end within {limit_s:g} s"
    finally:  # what it started must not stay, at Ctrl-C neither
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def comparisons() -> list[str]:
    """The names of all comparisons in `bench/versus`."""
    names = sorted(path.stem for path in (HERE / "versus").glob("[a-z]*.py"))
    return [name for name in names if not name.endswith(PARTS)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run every benchmark.")
    parser.add_argument(
        "--quick", action="store_true", help="small runs that write no results and judge no bar"
    )
    quick = parser.parse_args(argv).quick
    before, failed = head(), []
    for name in comparisons():
        print(f"== {name}", flush=True)
        failed += filter(None, [run(f"bench.versus.{name}", *(["--quick"] if quick else []))])
    if not quick:
        subprocess.run([sys.executable, "-m", "bench.tables"], cwd=HERE.parent, check=True)
        failed += slipped(before, committed())
    ending = "all benchmarks ran" if quick else "all benchmarks ran, and nothing slipped"
    print("\n".join(["slipped:", *failed]) if failed else ending)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
