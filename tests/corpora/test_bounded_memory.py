"""Resident memory does not grow with the corpus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import LIMIT_S
from warpdata.corpora.writer import CorpusWriter

CODE = """
import sys
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.shuffled import ShuffledRows

def resident_mib():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

how, folder = sys.argv[1:]
source = MmapShardSource.open_dir(folder, dtype="float32", copy=how != "view")
batches = ShuffledRows(source, batch_size=1024, window_blocks=16) if how == "shuffled" else source
start, peaks, batch = resident_mib(), [], None
for batch in batches:
    batch.rows.sum()
    peaks.append(resident_mib() - start)
print(max(peaks[: len(peaks) // 3]), max(peaks))
"""


@pytest.fixture(scope="module", name="corpus")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """384 MiB in four shards."""
    folder = tmp_path_factory.mktemp("bounded") / "c"
    rows = np.ones((4096, 1024), np.float32)
    with CorpusWriter(folder, 1024, shard_bytes=96 << 20) as writer:
        for _ in range(24):
            writer.append(rows)
    return folder


@pytest.mark.parametrize("how", ["mmap", "view", "shuffled"])
def test_memory_is_constant(corpus: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, how, str(corpus)],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    early, peak = map(float, done.stdout.split())
    assert peak < 64, f"{peak:.0f} MiB above the start"
    assert peak < early + 20, "memory grows with the corpus"
