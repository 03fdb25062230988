"""A file that is cut while it is mapped: reads raise TruncatedError, and the process lives on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S

_PROGRAM = """
import os, sys
import numpy as np
import warpdata as wd
from warpdata.errors import TruncatedError
from warpdata.formats.wshard import ShardReader
from warpdata.bytekit.io.files import LocalRangeReader, MmapRangeReader

path, way = sys.argv[1:]
shard = ShardReader.open(path)
episode = wd.load_wshard(path)
channel = episode.observations["x"]
signal = wd.open_episode(path)["x"]
mapped = MmapRangeReader(path)
local = LocalRangeReader(path)
starts, out = np.array([0, 3_000]), np.empty((2, 2, 128), np.float32)
reads = {
    "rows": lambda: float(channel[3_000:3_001].sum()),
    "all": lambda: float(np.asarray(channel.row_source.rows(0, channel.length)).sum()),
    "data": lambda: float(channel.data[3_000].sum()),
    "windows": lambda: channel.row_source.read_windows(starts, out),
    "block": lambda: len(bytes(shard.view("signal/x"))),
    "shard rows": lambda: float(shard.read_rows("signal/x", 3_000, 3_001).sum()),
    "signal": lambda: float(np.sum(signal[3_000][0])),
    "mmap": lambda: sum(mapped.read(1 << 20, 3 << 19)),
    "local": lambda: sum(local.read(1 << 20, 3 << 19)),
}
reads[way]()
os.truncate(path, 4096)
try:
    reads[way]()
except TruncatedError:
    print("truncated")
"""


@pytest.mark.parametrize(
    "way", ["rows", "all", "data", "windows", "block", "shard rows", "signal", "mmap", "local"]
)
def test_reading_a_file_that_was_cut_is_an_error(tmp_path: Path, way: str) -> None:
    path = tmp_path / "a.wshard"
    episode = wd.WShardEpisode("e", length=4_000)
    episode.observations["x"] = np.ones((4_000, 128), np.float32)
    wd.save_wshard(episode, path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path), way],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "truncated"), done.stderr
