"""A plan is what a pass spends, to the byte and the request; where it cannot be, it says that it is a lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.servers import run_http

ROWS, SHARDS, PAGE = 30_000, 3, 64 << 10


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dataset of which row groups share pages, behind http."""
    folder = tmp_path_factory.mktemp("plan")
    random = np.random.default_rng(5)
    for number in range(SHARDS):
        table = pa.table({name: random.integers(0, 1 << 62, ROWS) for name in "abcd"})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2_000, compression="none")
    with wd.DatasetBuilder("ws/pages", catalog=str(folder / "catalog")) as builder:
        builder.add_table("main", sorted(folder.glob("*.parquet")))
        builder.publish()
    with run_http(folder / "catalog") as server:
        yield server.url


def opened(address: str, cache: Path, cache_bytes: int, **options: Any) -> wd.Dataset:
    return wd.dataset("ws/pages", catalog=address, cache_dir=cache, cache_bytes=cache_bytes, **options)


def planned_and_spent(ds: wd.Dataset, **options: Any) -> tuple[Any, int, int]:
    """A plan, then the requests and bytes of the pass."""
    plan, before = ds.plan("main", **options), ds.spent
    assert ds.spent == before
    list(ds.table().batches(1000, **options))
    return plan, ds.spent.requests - before.requests, ds.spent.bytes_read - before.bytes_read


def test_a_plan_of_any_cache_is_exact_or_says_that_it_is_not(address: str, tmp_path: Path) -> None:
    said: set[bool] = set()
    for pages in (0, 4, 45, 60, 200):
        for prefetch in ("off", "4"):
            with opened(address, tmp_path / f"{pages}-{prefetch}", pages * PAGE) as ds:
                for columns in (
                    ["b"],
                    ["a", "c"],
                    None,
                ):  # what earlier passes brought is there, or was evicted
                    plan, requests, size = planned_and_spent(ds, columns=columns, prefetch=prefetch)
                    said.add(plan.is_exact)
                    assert size >= plan.bytes_to_read
                    if plan.is_exact:
                        assert (requests, size) == (plan.requests, plan.bytes_to_read)
                        assert "at least" not in repr(plan)
                    else:
                        assert "at least" in repr(plan)
    assert said == {True, False}


def test_a_cache_with_room_gives_an_exact_plan(address: str, tmp_path: Path) -> None:
    with opened(address, tmp_path, 1 << 30) as ds:
        for columns in (["b"], None, None):
            plan, requests, size = planned_and_spent(ds, columns=columns)
            assert plan.is_exact
            assert (requests, size) == (plan.requests, plan.bytes_to_read)
        assert plan.bytes_to_read == 0


def test_what_hybrid_brings_beside_the_pass_is_said(address: str, tmp_path: Path) -> None:
    with opened(address, tmp_path, 1 << 30, mode="hybrid") as ds:
        plan, _, size = planned_and_spent(ds, columns=["b"])
        assert not plan.is_exact
        assert size >= plan.bytes_to_read
        ds.warm()
        assert ds.plan("main").is_exact, "nothing is left to bring"


def test_planning_evicts_nothing(address: str, tmp_path: Path) -> None:
    with opened(address, tmp_path, 20 * PAGE) as ds:
        list(ds.table().batches(1000, columns=["b"], limit=4000))
        before = {path.name for path in tmp_path.rglob("*.pages")}
        ds.plan("main")
        assert {path.name for path in tmp_path.rglob("*.pages")} == before


@pytest.mark.parametrize(("batch_size", "is_exact"), [(4_000, True), (80_000, True), (100_000, False)])
def test_rows_that_pad_are_part_of_the_plan(
    address: str, tmp_path: Path, batch_size: int, is_exact: bool
) -> None:
    """Without a cache they are fetched again; where they come a third time, the plan is a lower bound."""
    options: dict[str, Any] = {"tail": "pad", "columns": ["b"], "rank": 1, "world": 2}
    with opened(address, tmp_path, 0, mode="remote") as ds:
        plan, before = ds.plan("main", batch_size=batch_size, **options), ds.spent
        rows = sum(batch.num_rows for batch in ds.table().batches(batch_size, **options))
        spent = (ds.spent.requests - before.requests, ds.spent.bytes_read - before.bytes_read)
    assert rows > ROWS * SHARDS // 2
    assert plan.is_exact == is_exact
    assert is_exact == (spent == (plan.requests, plan.bytes_to_read) and rows == plan.rows)
    assert spent >= (plan.requests, plan.bytes_to_read)
