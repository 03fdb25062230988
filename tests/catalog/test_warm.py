"""What is warmed is here afterwards, or it is said what is not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.bytekit.process import system
from warpdata.errors import StoreError


@pytest.fixture
def published(tmp_path: Path) -> Path:
    for i in range(4):
        values = np.random.default_rng(i).random(40_000)
        pq.write_table(pa.table({"x": values}), tmp_path / f"{i}.parquet")
    with wd.DatasetBuilder("a/b", catalog=str(tmp_path / "catalog")) as builder:
        builder.add_table("main", sorted(tmp_path.glob("*.parquet"))).publish()
    return tmp_path / "catalog"


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_pieces(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system, "write_pieces", write_pieces)


def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_CACHE_SIZE_GB", "0.0007")


@pytest.mark.parametrize("fault", [full_disk, small_cache])
def test_what_does_not_stay_is_not_called_warm(
    fault: Callable[[pytest.MonkeyPatch], None], published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with run_http(published) as server, wd.dataset("a/b", catalog=server.url) as dataset:
        with pytest.raises(StoreError, match=r"did not stay in the cache|no space left") as caught:
            dataset.warm()
        assert caught.value.hint
        assert sum(batch.num_rows for batch in dataset.table().batches(10_000)) == 160_000, (
            "it is read all the same"
        )


def test_what_is_warm_needs_no_network(published: Path) -> None:
    with run_http(published) as server:
        with wd.dataset("a/b", catalog=server.url) as dataset:
            report: Any = dataset.warm()
        assert report.shards_skipped == 0
        url = server.url
    with wd.dataset("a/b", catalog=url, mode="local") as dataset:
        assert sum(batch.num_rows for batch in dataset.table().batches(10_000)) == 160_000
