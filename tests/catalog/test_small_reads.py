"""How much is fetched: tiny row groups are read together, and a few rows of a large group page by page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.servers import run_http


def publish(catalog: Path, table: pa.Table, rows_per_group: int) -> int:
    path = catalog.parent / "x.parquet"
    pq.write_table(table, path, row_group_size=rows_per_group)
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        builder.add_table("main", [path]).publish()
    return path.stat().st_size


@pytest.mark.parametrize("mode", ["remote", "auto", "hybrid"])
def test_tiny_row_groups_are_fetched_together(tmp_path: Path, mode: str) -> None:
    size = publish(tmp_path / "cat", pa.table({"a": np.arange(10_000), "b": np.ones(10_000)}), 10)
    with run_http(tmp_path / "cat") as server, wd.dataset("ws/x", catalog=server.url, mode=mode) as ds:
        before = ds.spent
        assert [i for batch in ds.table().batches(7) for i in batch["a"].to_pylist()] == list(range(10_000))
        assert ds.spent.bytes_read - before.bytes_read <= 2 * size
        assert ds.spent.requests - before.requests <= 20
        assert ds.sql("select sum(a) as s from main where b = 1").arrow()["s"][0].as_py() == 49_995_000
        assert ds.table().take([9_999, 5], "a")["a"].to_pylist() == [9_999, 5]


FEW: dict[str, Callable[[wd.Dataset], list[int]]] = {
    "head": lambda ds: ds.table().head(5)["a"].to_pylist(),
    "take": lambda ds: ds.table().take(range(5))["a"].to_pylist(),
    "first batch": lambda ds: next(iter(ds.table().batches(5)))["a"].to_pylist(),
}


@pytest.mark.parametrize("mode", ["remote", "auto"])
@pytest.mark.parametrize("read", list(FEW))
def test_a_few_rows_of_a_large_group(tmp_path: Path, read: str, mode: str) -> None:
    rows = 2_000_000
    noise = np.random.default_rng(0).random(rows)
    size = publish(tmp_path / "cat", pa.table({"a": np.arange(rows), "b": noise}), rows)
    with run_http(tmp_path / "cat") as server, wd.dataset("ws/x", catalog=server.url, mode=mode) as ds:
        before = ds.spent.bytes_read
        assert FEW[read](ds) == list(range(5))
        assert ds.spent.bytes_read - before < size / 4
        if read == "first batch":
            assert sum(batch.num_rows for batch in ds.table().batches(300_000)) == rows
            stream = ds.table().batches(70_001, columns="a")
            assert np.array_equal(np.concatenate([batch["a"] for batch in stream]), np.arange(rows))


@pytest.mark.parametrize(("row", "share", "requests"), [(100_000, 0.25, 16), (1_900_000, 1.02, 10)])
def test_a_row_deep_in_a_large_group_takes_few_requests(
    tmp_path: Path, row: int, share: float, requests: int
) -> None:
    """Pages up to the row in the first quarter of a group; else the columns of the group, in few requests."""
    rows = 2_000_000
    noise = np.random.default_rng(0).random(rows)
    size = publish(tmp_path / "cat", pa.table({"a": np.arange(rows), "b": noise}), rows)
    with run_http(tmp_path / "cat") as server, wd.dataset("ws/x", catalog=server.url, mode="remote") as ds:
        before = ds.spent
        assert ds.table().take([row])["a"].to_pylist() == [row]
        assert ds.spent.bytes_read - before.bytes_read < share * size
        assert ds.spent.requests - before.requests <= requests
