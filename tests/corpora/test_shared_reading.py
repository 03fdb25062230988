"""Large batches are filled by two threads where a core is idle: they hold the rows that one thread reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.process import system
from warpdata.corpora import fixed_order

ROWS, WIDTH = 1777, 24


@pytest.fixture(params=["f32", "f16", "bf16"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder: Path = tmp_path / "corpus"
    values = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    with wd.CorpusWriter(folder, WIDTH, dtype=request.param, shard_bytes=60_000) as writer:
        writer.append(values)
    return folder


def rows_of(folder: Path, batch_rows: int, **options: Any) -> np.ndarray:
    found = []
    with wd.open_corpus(folder, dtype="float32", batch_rows=batch_rows, **options) as source:
        out = np.empty((batch_rows, WIDTH), np.float32)
        while (batch := source.next_batch(out)) is not None:
            found.append(batch.rows.copy())
    return np.concatenate(found)


@pytest.mark.parametrize("io", ["mmap", "direct"])
@pytest.mark.parametrize("cached", ["all", "some", "none"])
@pytest.mark.parametrize("batch_rows", [64, 100, 700])
def test_two_threads_read_what_one_reads(
    corpus: Path, io: str, cached: str, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of a batch lies in the page cache, at its beginning or behind a gap."""
    alone = rows_of(corpus, batch_rows, verify=False)
    real, chance = system.read_cached, random.Random(batch_rows)

    def read_cached(fd: int, out: Any, offset: int) -> int:
        if cached == "none" or (cached == "some" and chance.random() < 0.4):
            return 0
        view = memoryview(out).cast("B")
        size = chance.randrange(view.nbytes + 1) if cached == "some" and view.nbytes > 1 else view.nbytes
        return real(fd, view[:size], offset)

    shared: list[int] = []
    run = fixed_order.SharedWork.run
    monkeypatch.setattr(
        fixed_order.SharedWork, "run", lambda self, jobs: (shared.append(1), run(self, jobs))[1]
    )
    monkeypatch.setattr(fixed_order, "has_idle_core", lambda _: True)
    monkeypatch.setattr(fixed_order, "_CORES", 2)
    monkeypatch.setattr(fixed_order, "SPLIT_BYTES", 2048)
    monkeypatch.setattr(fixed_order, "SHARE_BYTES", 1024)
    monkeypatch.setattr(system, "read_cached", read_cached)
    assert np.array_equal(rows_of(corpus, batch_rows, io=io, verify=False), alone)
    assert shared, "nothing was shared"


def test_what_one_of_two_threads_finds_damaged_is_told(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_order, "has_idle_core", lambda _: True)
    monkeypatch.setattr(fixed_order, "_CORES", 2)
    monkeypatch.setattr(fixed_order, "SPLIT_BYTES", 2048)
    monkeypatch.setattr(fixed_order, "SHARE_BYTES", 1024)
    with wd.open_corpus(corpus, dtype="float32", batch_rows=500, verify=False) as source:
        out = np.empty((500, WIDTH), np.float32)
        assert source.next_batch(out) is not None
        for shard in corpus.glob("*.shard"):
            with open(shard, "r+b") as file:
                file.truncate(40)
        with pytest.raises(wd.errors.TruncatedError):
            while source.next_batch(out) is not None:
                pass
