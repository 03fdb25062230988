"""Batches as bytes on a pipe: every type, as it is stored or as JSON has it."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.catalog.read.refs import rows_as_json, write_batches
from warpdata.errors import DatasetError

TENSOR = pa.fixed_shape_tensor(pa.int32(), [2])
COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "integer": (pa.array([2**63 - 1, None]), [2**63 - 1, None]),
    "half": (pa.array([np.float16(1.5), None], pa.float16()), [1.5, None]),
    "not a number": (pa.array([float("nan"), float("-inf")]), [None, None]),
    "bytes": (pa.array([b"x", b""]), ["eA==", ""]),
    "decimal": (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
    "moment": (pa.array([datetime.datetime(2020, 1, 2, 3), None]), ["2020-01-02 03:00:00", None]),
    "day": (pa.array([datetime.date(2020, 1, 2), None]), ["2020-01-02", None]),
    "span": (pa.array([datetime.timedelta(seconds=61), None]), ["0:01:01", None]),
    "time": (pa.array([1, None], pa.time64("ns")), ["00:00:00.000000001", None]),
    "map": (pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())), [[["a", 1.5]], None]),
    "struct": (
        pa.array([{"a": float("nan"), "b": b"x", "c": [float("inf")]}, None]),
        [{"a": None, "b": "eA==", "c": [None]}, None],
    ),
    "text": (pa.array(["\x00\n\u2028", "ä"]), ["\x00\n\u2028", "ä"]),
    "category": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    "uuid": (pa.array([uuid.UUID(int=5).bytes, None], pa.uuid()), [str(uuid.UUID(int=5)), None]),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, -5], pa.int8())), [False, True]),
    "tensor": (
        pa.ExtensionArray.from_storage(TENSOR, pa.array([[1, 2], [3, 4]], TENSOR.storage_type)),
        [[1, 2], [3, 4]],
    ),
}
FIELDS = [pa.field(name, array.type, nullable=array.null_count > 0) for name, (array, _) in COLUMNS.items()]
TABLE = pa.table([array for array, _ in COLUMNS.values()], pa.schema(FIELDS))


def written(form: str) -> bytes:
    out = io.BytesIO()
    assert write_batches(TABLE.to_batches(max_chunksize=1), TABLE.schema, form, out) == 2
    return out.getvalue()


def test_arrow_and_parquet_are_the_table_with_its_types() -> None:
    read = pa.ipc.open_stream(written("arrow")).read_all()
    assert read.schema == TABLE.schema
    assert str(read.to_pylist()) == str(TABLE.to_pylist())
    stored = pq.read_table(io.BytesIO(written("parquet")))
    assert stored.schema == TABLE.schema
    assert str(stored.to_pylist()) == str(TABLE.to_pylist())


@pytest.mark.parametrize("name", COLUMNS)
def test_lines_have_what_json_has(name: str) -> None:
    lines = [json.loads(line) for line in written("ndjson").decode().split("\n") if line]
    assert [line[name] for line in lines] == COLUMNS[name][1]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([10**18], pa.timestamp("us")), pa.array([2**62], pa.duration("s")), pa.array([2**50], pa.date64()),
        pa.array([1], pa.timestamp("us", "Mars/Base")),
        pa.array([b"\xff\xfe"]).view(pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_what_python_cannot_hold_names_its_column(values: pa.Array) -> None:
    with pytest.raises(DatasetError, match=r"column 'far' .* Python cannot hold") as refused:
        rows_as_json(pa.table({"id": [1], "far": values}))
    assert "Arrow" in refused.value.hint


def test_a_misspelt_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'parquet'\?"):
        write_batches([], TABLE.schema, "parqet", io.BytesIO())


def test_nor_does_any_other_way_to_python_lose_the_column(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    far = pa.table({"id": [1], "far": pa.array([10**18], pa.timestamp("us"))})
    with wd.DatasetBuilder("ws/far", catalog=tmp_path) as builder:
        builder.add_table("main", far).publish()
    with wd.dataset("ws/far", catalog=tmp_path) as dataset:
        table = dataset.table()
        assert table.arrow() == far
        for use in (table._repr_html_, lambda: list(table.batch_dicts(5)), lambda: list(table.to_torch(5))):
            with pytest.raises(DatasetError, match="column 'far'"):
                use()
        assert "id" in table.select("id")._repr_html_()
