"""A mapped file that is cut while a loader or an open episode reads it: TruncatedError, and the process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S

ROWS = 20_000

_PROGRAM = """
import os, sys
import warpdata as wd
from warpdata.errors import TruncatedError

path, corpus, way = sys.argv[1:]
episodes = wd.open_episodes(path)
episode = episodes[0]


def windows(some):
    return wd.Windows(some, {"x": wd.Field("x", horizon=4), "y": wd.Field("y")}, anchor="x")


def batches(source, **options):
    loader = iter(wd.Loader(source, batch_size=64, seed=1, threads=0, **options))
    next(loader)
    return lambda: list(loader)


def second_epoch(source):
    loader = wd.Loader(source, batch_size=1024, seed=1, threads=2)
    list(loader)  # nothing is read ahead after it
    return lambda: list(loader)


def shuffled():
    loader = iter(wd.ShuffledRows(wd.open_corpus(corpus), batch_size=64, seed=1, window_blocks=4))
    next(loader)
    return lambda: list(loader)


def ragged():
    signal = episode["r"]
    signal[5]
    return lambda: signal[15_000]


def sample():
    episode.sample(10**9)
    return lambda: episode.sample(18 * 10**9)


def late_slice():
    signal = episode["x"]
    signal.timestamps[0]
    return lambda: signal.time[15 * 10**9 :].values().sum()


ways = {
    "windows": lambda: batches(windows(episodes)),
    "threads": lambda: second_epoch(windows(episodes)),
    "trimmed": lambda: batches(windows([episode.time[10**9 : 19 * 10**9]])),
    "mixture": lambda: batches(wd.Mixture({"a": (windows(episodes), 1), "b": (windows(episodes), 2)})),
    "corpus": lambda: batches(wd.open_corpus(corpus), shuffle=False),
    "corpus shuffled": shuffled,
    "ragged": ragged,
    "sample": sample,
    "slice": late_slice,
}
read = ways[way]()
os.truncate(corpus + "/shard-000000.shard" if "corpus" in way else path, 4096)
try:
    read()
except TruncatedError as error:
    print("truncated", ("shard-000000.shard" if "corpus" in way else path) in str(error))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed recording with mapped values, times and offsets, and a corpus."""
    folder = tmp_path_factory.mktemp("files")
    values = np.random.default_rng(0).normal(size=(ROWS, 32))
    with wd.record(folder / "root", clock="simulated") as rec:
        rec.declare("r", ragged=True)
        for number, row in enumerate(values):
            rec.append("x", row, number * 10**6 + number % 7)
            rec.append("y", row[:8], number * 10**6 + number % 5)
            rec.append("r", row[: number % 3], number * 10**6)
    wd.pack_episode(f"{folder}/root#0", folder / "kept.wshard")
    with wd.CorpusWriter(folder / "kept", 256) as corpus:
        corpus.append(np.random.default_rng(0).normal(size=(8_000, 256)).astype(np.float32))
    return folder


@pytest.mark.parametrize(
    "way",
    ["windows", "threads", "trimmed", "mixture", "corpus", "corpus shuffled", "ragged", "sample", "slice"],
)
def test_reading_on_from_a_file_that_was_cut_is_an_error(files: Path, tmp_path: Path, way: str) -> None:
    path, corpus = tmp_path / "p.wshard", tmp_path / "c"
    path.write_bytes((files / "kept.wshard").read_bytes())
    corpus.mkdir()
    for file in (files / "kept").iterdir():
        if file.is_file():
            (corpus / file.name).write_bytes(file.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path), str(corpus), way],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "truncated True"), done.stderr
