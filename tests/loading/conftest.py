"""A published table that several tests stream."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd

ROWS = 700
FILES = (200, 1, 330, 169)


@pytest.fixture(name="table", scope="session")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Table]:
    """`id` counts from 0, `keep` says id % 3 != 1; four files of very different lengths, in row groups of 64 rows."""
    folder = tmp_path_factory.mktemp("loading")
    first = 0
    for number, count in enumerate(FILES):
        ids = pa.array(range(first, first + count), pa.int64())
        kept = pa.array([row % 3 != 1 for row in range(first, first + count)])
        pq.write_table(pa.table({"id": ids, "keep": kept}), folder / f"{number}.parquet", row_group_size=64)
        first += count
    with wd.DatasetBuilder("ws/loading", catalog=folder / "cat") as builder:
        builder.add_table("main", sorted(folder.glob("*.parquet"))).publish()
    with wd.dataset("ws/loading", catalog=folder / "cat") as ds:
        yield ds.table()
