"""Fifty processes publish into one dataset on S3: `python -m bench.soak_writers [WRITERS [ROUNDS]]`.

Each goes on from whatever is the newest version; anything that is lost, and any version with two children, stops it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.catalog.test_growing import NAME, WRITER
from tests.servers import BUCKET, run_s3

import warpdata as wd
from bench import measure


def main() -> None:
    writers = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    with tempfile.TemporaryDirectory() as folder, run_s3() as server:
        os.environ.update(server.environment())
        catalog = f"s3://{BUCKET}/soak"
        files = Path(folder) / "files"
        files.mkdir()
        start = time.monotonic()
        command = [sys.executable, "-c", WRITER, catalog, str(files)]
        running = [subprocess.Popen([*command, str(n), str(rounds)]) for n in range(writers)]
        codes = [each.wait() for each in running]
        seconds = time.monotonic() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert codes == [0] * writers, codes
        with wd.dataset(NAME, catalog=catalog, cache_dir=str(Path(folder) / "cache")) as ds:
            expected = {f"w{w:03d}-r{r:03d}.bin" for w in range(writers) for r in range(rounds)}
            assert set(ds.artifact("raw").members()) == expected, "something is lost"
            assert ds.verify() == []
            line = {each.version: each.parent for each in ds.versions()}
    assert len(line) == len(set(line.values())) == writers * rounds, "the history is no line"
    report = {
        "writers": writers,
        "versions": len(line),
        "lost": 0,
        "seconds": round(seconds, 1),
        "versions_per_second": round(len(line) / seconds, 2),
        "cpu_seconds_of_writers": round(used.ru_utime + used.ru_stime, 1),
    }
    print(json.dumps(report))
    if writers >= 50:
        measure.save("soak_writers", report)


if __name__ == "__main__":
    main()
