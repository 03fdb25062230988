"""Every benchmark at full size, one after the other: `make bench`. Results go to bench/results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    failed = []
    for script in sorted((HERE / "versus").glob("[a-z]*.py")):
        print(f"== {script.name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.versus.{script.stem}"], cwd=HERE.parent).returncode:
            failed.append(script.name)
    subprocess.run([sys.executable, "-m", "bench.tables"], cwd=HERE.parent, check=True)
    print("failed: " + ", ".join(failed) if failed else "all benchmarks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
