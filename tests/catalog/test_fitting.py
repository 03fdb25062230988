"""Rows that join a table: cast where nothing is lost, named by column and type where something would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.errors import DatasetError

BASE = pa.table({"text": ["a", "b"], "x": [0.5, 1.5], "n": pa.array([1, 2], pa.int32())})


def extend(catalog: str, rows: Any, **options: Any) -> pa.Table:
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        builder.add_table("main", rows).extend(**options).publish()
    with wd.dataset("ws/x", catalog=catalog) as ds:
        assert ds.verify() == []
        return ds.table().arrow()


@pytest.fixture
def catalog(local_catalog: str) -> str:
    extend(local_catalog, BASE)
    return local_catalog


GOOD: dict[str, dict[str, Any]] = {
    "all-null text": {"text": pa.nulls(1), "x": [2.5], "n": [3]},
    "whole numbers for floats": {"text": ["c"], "x": [2], "n": [3]},
    "floats for whole numbers": {"text": ["c"], "x": [2.0], "n": [3.0]},
    "another order": {"n": [3], "x": [2.5], "text": ["c"]},
    "large text": {"text": pa.array(["c"], pa.large_string()), "x": [2.5], "n": [3]},
    "views": {"text": pa.array(["c"], pa.string_view()), "x": [2.5], "n": [3]},
    "categories": {"text": pa.array(["c"]).dictionary_encode(), "x": [float("nan")], "n": [3]},
}


@pytest.mark.parametrize("kind", list(GOOD))
@pytest.mark.parametrize("as_file", [False, True])
def test_rows_of_another_schema_are_cast(catalog: str, kind: str, as_file: bool, tmp_path: Path) -> None:
    rows: Any = pa.table(GOOD[kind])
    if as_file:
        pq.write_table(rows, tmp_path / "rows.parquet")
        rows = [tmp_path / "rows.parquet"]
    table = extend(catalog, rows)
    assert table.schema.equals(BASE.schema)
    assert table.num_rows == 3
    assert table["n"].to_pylist() == [1, 2, 3]
    assert table["text"].to_pylist()[2] == (None if kind == "all-null text" else "c")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a number for text": ({"text": [1], "x": [2.5], "n": [3]}, "column 'text': expected string, got int64"),
    "text for a number": ({"text": ["c"], "x": ["2.5"], "n": [3]}, "column 'x': expected double, got string"),
    "a fraction": ({"text": ["c"], "x": [2.5], "n": [3.5]}, "column 'n': double does not fit int32"),
    "too large": ({"text": ["c"], "x": [2.5], "n": [1 << 40]}, "column 'n': int64 does not fit int32"),
    "not exact": ({"text": ["c"], "x": [(1 << 60) + 1], "n": [3]}, "column 'x': int64 does not fit double"),
    "a missing column": ({"text": ["c"], "x": [2.5]}, "column 'n' is missing"),
    "another column": ({"text": ["c"], "x": [2.5], "n": [3], "y": [1]}, "unknown column 'y'"),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_does_not_fit_is_named(catalog: str, kind: str) -> None:
    rows, words = BAD[kind]
    with pytest.raises(DatasetError, match=words):
        extend(catalog, pa.table(rows))
    with wd.dataset("ws/x", catalog=catalog) as ds:
        assert ds.table().row_count == 2


NESTED = {"pose": [{"x": 1, "name": "a"}], "parts": [[1, 2]]}
FITTING: dict[str, dict[str, Any]] = {
    "keys in another order": {"pose": [{"name": "b", "x": 2}], "parts": [[3]]},
    "whole floats inside": {"pose": [{"name": "b", "x": 2.0}], "parts": [[3.0]]},
    "an empty list": {"pose": [{"x": 2, "name": None}], "parts": [[]]},
    "no list": {"pose": [{"x": None, "name": "b"}], "parts": [None]},
    "nothing": {"pose": [None], "parts": [[], None][:1]},
    "some without": {"pose": [None, {"name": "b", "x": 2}], "parts": [None, []]},
}


@pytest.mark.parametrize("kind", list(FITTING))
def test_nested_rows_of_another_schema_are_cast(local_catalog: str, kind: str) -> None:
    extend(local_catalog, NESTED)
    rows = FITTING[kind]
    expected = [{**NESTED, **rows}[name] for name in NESTED]
    table = extend(local_catalog, rows)
    assert [table[name].to_pylist()[1:] for name in NESTED] == expected


def test_columns_are_added_on_request(catalog: str) -> None:
    table = extend(catalog, pa.table({"text": ["c"], "y": ["new"], "n": [3]}), add_columns=True)
    assert table.column_names == ["text", "x", "n", "y"]
    assert table["y"].to_pylist() == [None, None, "new"]
    assert table["x"].to_pylist() == [0.5, 1.5, None]


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_texts_of_every_kind_can_be_bound(kind: pa.DataType, local_catalog: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in ("a", "b"):
        (tmp_path / "files" / name).write_text(name * 3)
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", pa.table({"file": pa.array(["b", "a", None]).cast(kind)}))
        builder.add_artifact("files", tmp_path / "files").bind("main", "file", "files").publish()
    with wd.dataset("ws/x", catalog=local_catalog) as ds:
        refs = next(iter(ds.table().batches(3)))["file"].refs()
        assert [None if ref is None else ref.read_bytes() for ref in refs] == [b"bbb", b"aaa", None]
        lists = next(iter(ds.table().batch_dicts(3)))["file"]
        assert lists[0].read_bytes() == b"bbb"


@pytest.mark.parametrize("zones", [("UTC", None), (None, "UTC"), ("UTC", "+02:00")])
def test_a_time_of_day_is_no_moment_without_its_zone(local_catalog: str, zones: tuple[str, str]) -> None:
    held, new = (pa.table({"t": pa.array([5], pa.timestamp("us", zone))}) for zone in zones)
    extend(local_catalog, held)
    if None not in zones:
        assert [each.timestamp() for each in extend(local_catalog, new)["t"].to_pylist()] == [5e-6, 5e-6]
        return
    with pytest.raises(DatasetError, match="column 't': expected timestamp"):
        extend(local_catalog, new)
