"""What is no table, or a damaged one, is refused by name before anything of it is published."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.errors import (
    CorruptLayoutError,
    DatasetError,
    ManifestCorruptedError,
    TruncatedError,
    WarpError,
)
from warpdata.sql.columns import schema_from_base64, schema_to_base64
from warpdata.sql.engine import arrow_source, run_sql


def parquet(table: pa.Table | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table or pa.table({"id": range(1000), "word": ["x"] * 1000}), out, **options)
    return out.getvalue()


def with_footer_size(data: bytes, size: int) -> bytes:
    return data[:-8] + size.to_bytes(4, "little") + data[-4:]


def with_changed_footer(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size] + b"\xff" * size + data[-8:]


def with_changed_page(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[40:60] = bytes(20)
    return bytes(changed)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], type[WarpError], str]] = {
    "empty": (lambda data: b"", TruncatedError, "too short for a parquet file"),
    "magic only": (lambda data: data[:4], TruncatedError, "too short for a parquet file"),
    "cut": (lambda data: data[:-9], CorruptLayoutError, "not a parquet file"),
    "other": (lambda data: b"\x89HDF\r\n\x1a\n" * 9, CorruptLayoutError, "not a parquet file"),
    "long footer": (
        lambda data: with_footer_size(data, len(data)),
        CorruptLayoutError,
        "larger than the file",
    ),
    "huge footer": (
        lambda data: with_footer_size(data, 2**32 - 1),
        CorruptLayoutError,
        "larger than the file",
    ),
    "odd footer": (with_changed_footer, CorruptLayoutError, "damaged parquet footer"),
    "short footer": (lambda data: with_footer_size(data, 3), CorruptLayoutError, "damaged parquet footer"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_parquet_file_is_named(tmp_path: Path, name: str) -> None:
    damage, kind, said = DAMAGED[name]
    (tmp_path / "bad.parquet").write_bytes(damage(parquet()))
    for optimize in (False, True):
        with (
            wd.DatasetBuilder("ws/bad", catalog=tmp_path / "cat") as builder,
            pytest.raises(kind, match=said) as refused,
        ):
            builder.add_table("main", tmp_path / "bad.parquet", optimize=optimize).publish()
        assert "bad.parquet" in str(refused.value)
    assert not (tmp_path / "cat").exists()


def test_a_damaged_page_is_found_when_rows_are_written_again(tmp_path: Path) -> None:
    data = parquet(compression="none", write_page_checksum=True, use_dictionary=False)
    (tmp_path / "bad.parquet").write_bytes(with_changed_page(data))
    with (
        wd.DatasetBuilder("ws/bad", catalog=tmp_path / "cat") as builder,
        pytest.raises(CorruptLayoutError, match=r"cannot be read .*bad\.parquet"),
    ):
        builder.add_table("main", tmp_path / "bad.parquet", optimize=True).publish()


def several_kinds(folder: Path) -> Any:
    (folder / "a.csv").write_text("a\n1\n")
    (folder / "b.parquet").write_bytes(parquet())
    return [folder / "a.csv", folder / "b.parquet"]


def several_schemas(folder: Path) -> Any:
    (folder / "a.parquet").write_bytes(parquet())
    (folder / "b.parquet").write_bytes(parquet(pa.table({"id": ["x"]})))
    return folder


def only_notes(folder: Path) -> Any:
    (folder / "readme.txt").write_text("nothing here")
    return folder


def latin_header(folder: Path) -> Any:
    (folder / "a.csv").write_text("a\n1\n")
    (folder / "b.csv").write_bytes(b"a\xff\n1\n")
    return folder


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "several kinds": (several_kinds, DatasetError, "files of one kind, not csv and parquet"),
    "several schemas": (several_schemas, DatasetError, r"another schema.*b\.parquet"),
    "no tables": (only_notes, DatasetError, "no files of a table there"),
    "nothing there": (lambda folder: folder / "none.parquet", DatasetError, "no such files there"),
    "a number": (lambda folder: 5, TypeError, "a int is not a table"),
    "bytes": (lambda folder: b"a,b", TypeError, "a bytes is not a table"),
    "nothing": (lambda folder: None, TypeError, "a NoneType is not a table"),
    "columns of two lengths": (lambda folder: {"a": [1], "b": [1, 2]}, DatasetError, "turned into Arrow"),
    "a column of objects": (lambda folder: {"a": [object()]}, DatasetError, "column 'a' fit no one type"),
    "rows of objects": (
        lambda folder: [{"a": np.array(object())}],
        DatasetError,
        "column 'a' fit no one type",
    ),
    "other pieces": (
        lambda folder: iter([pa.table({"a": [1]}), pa.table({"a": ["x"]})]),
        DatasetError,
        "piece 1 of the table has another schema",
    ),
    "nothing beside rows": (lambda folder: [None, {"a": 1}], TypeError, "row 0 is a NoneType"),
    "a column named by no text": (lambda folder: [{"\ud800": 1}], DatasetError, "column name .* UTF-8"),
    "a column named by a number": (lambda folder: {1: [1]}, DatasetError, "named by text, not by 1"),
    "a header that is not UTF-8": (latin_header, DatasetError, r"not UTF-8 text.*b\.csv"),
    "a column of pandas alone": (lambda folder: pd.Series([1, 2]), DatasetError, "turned into Arrow"),
    "integers of pandas beyond 64 bits": (
        lambda folder: pd.DataFrame({"a": pd.Series([2**70], dtype=object)}),
        DatasetError,
        "turned into Arrow .*too large",
    ),
    "a frame of objects among pieces": (
        lambda folder: iter([pd.DataFrame({"a": ["x"]}), pd.DataFrame({"a": [object()]})]),
        DatasetError,
        "piece 1 of the table cannot be turned",
    ),
    "rows beside pieces": (
        lambda folder: iter([pa.table({"a": [1]}), {"a": 2}]),
        DatasetError,
        "piece 1 of the table cannot be turned",
    ),
    "numbers beside rows": (lambda folder: [{"a": 1}, 5], TypeError, "row 1 is a int"),
    "two columns of one name": (
        lambda folder: pa.table([[1], [2]], names=["a", "a"]),
        DatasetError,
        "cannot distinguish: 'a' and 'a'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    make, kind, said = REFUSED[name]
    (tmp_path / "given").mkdir()
    source = make(tmp_path / "given")
    with (
        wd.DatasetBuilder("ws/bad", catalog=tmp_path / "cat") as builder,
        pytest.raises(kind, match=said),
    ):
        builder.add_table("main", source).publish()
    assert not (tmp_path / "cat").exists()


@pytest.mark.parametrize(
    "text", ["?", "", base64.b64encode(b"x" * 64).decode(), schema_to_base64(pa.schema([]))[:40]]
)
def test_a_schema_that_is_none_is_damage_of_the_manifest(text: str) -> None:
    with pytest.raises(ManifestCorruptedError, match="Arrow schema is damaged"):
        schema_from_base64(text)


def test_tables_that_sql_takes_for_one_are_refused_where_both_are_named() -> None:
    table = pa.table({"a": [1]})
    sources = {name: arrow_source(list(table.schema), lambda *_: iter([table])) for name in ("x", "X", "y")}
    assert run_sql("select * from X, y", sources).arrow().num_rows == 1
    with pytest.raises(DatasetError, match="table names differ only in case"):
        run_sql("select * from x, X", sources)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    with wd.DatasetBuilder("ws/t", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", {"a": [1, 2]}).publish()
    with wd.dataset("ws/t", catalog=tmp_path / "cat") as dataset:
        assert len(getattr(dataset.table(), library)()) == 2
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(WarpError, match=f"{library} is not installed"):
            getattr(dataset.table(), library)()
