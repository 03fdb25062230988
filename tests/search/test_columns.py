"""Vectors out of files of others: as they are there, or refused with the file or the line that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.errors import BlobNotFoundError, CorruptLayoutError
from warpdata.search.columns import Columns, VectorRows, json_batches, read_batches


def read(path: Path, **columns: Any) -> list[VectorRows]:
    return list(read_batches(str(path), Columns(**columns)))


@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=3), min_size=1, max_size=6))
def test_a_column_is_read_as_it_is_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "columns.parquet"
    pq.write_table(pa.table({"vector": pa.array(rows, pa.list_(pa.float32()))}), path)
    if len({*map(len, rows)}) == 1:
        assert read(path)[0].vectors.tolist() == rows
    else:
        with pytest.raises(ValueError, match="differ in length"):
            read(path)


@pytest.mark.parametrize("column", [[1.0, 2.0], [[1.0], None], ["a", "b"], [{"x": 1}, {"x": 2}]])
def test_a_column_that_holds_no_vectors(column: list[Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"vector": column}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="not a list of numbers without gaps"):
        read(tmp_path / "a.parquet")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError):
        read(tmp_path / "none.npy")
    for name in ("a.npy", "a.parquet", "a.txt"):
        (tmp_path / name).write_bytes(b"no such file")
    for name in ("a.npy", "a.parquet"):
        with pytest.raises(CorruptLayoutError, match=name):
            read(tmp_path / name)
    with pytest.raises(ValueError, match=r"\.npy, \.parquet"):
        read(tmp_path / "a.txt")
    np.savez(tmp_path / "several.npz", np.zeros((2, 3)))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    with pytest.raises(CorruptLayoutError, match="magic"):
        read(tmp_path / "several.npy")
    np.save(tmp_path / "flat.npy", np.zeros(3))
    with pytest.raises(ValueError, match="two dimensions, not 1"):
        read(tmp_path / "flat.npy")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["[1, 2]", "{"], "line 2 is not JSON"),
        (["[" * 100_000], "line 1 is not JSON"),
        (["[1, 2]", "3"], "line 2 has no vector"),
        (['{"vector": 3}'], "line 1 has no vector"),
        (['{"vector": [1], "metadata": 5}'], "the metadata of line 1 is no object"),
        (['{"vector": [1], "id": 1}', "[2]"], "every line has an id, or none"),
        (["[1, 2]", "[3]"], "differ in length"),
        (['["a"]'], "not numbers"),
        (["[1" + "0" * 400 + "]"], "not numbers"),
    ],
)
def test_lines_that_are_wrong_are_named(lines: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(json_batches(lines))
