"""Batches as bytes on a pipe: Arrow IPC, ndjson or parquet. One of the adapters of pyarrow."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterable
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.catalog.read.refarray import plain_batch, python_values
from warpdata.errors import require_word

FORMATS = ("arrow", "ndjson", "parquet")


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, out: IO[bytes]) -> int:
    """Write batches in one of the formats and return the number of rows."""
    if form == "ndjson":
        return _write_ndjson(batches, out)
    require_word("a format", form, FORMATS)
    sink = pa.PythonFile(out, mode="w")
    maker = pa.ipc.new_stream if form == "arrow" else pq.ParquetWriter
    rows = 0
    with maker(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(plain_batch(batch))
            rows += batch.num_rows
    return rows


def rows_as_json(table: Any) -> list[dict[str, Any]]:
    """Rows as values JSON can hold."""
    names = table.schema.names
    shown = [map(plain_value, _shown(c, name)) for name, c in zip(names, table.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*shown, strict=True)]


def _shown(column: Any, name: str) -> list[Any]:
    """The values of a column; times that Python would round as the text Arrow has for them."""
    return python_values(column.cast(pa.string()) if column.type == pa.time64("ns") else column, name)


def plain_value(value: Any) -> Any:
    """A value JSON can hold: bytes as base64, times as ISO text, not-a-number as null."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    if isinstance(value, dict):
        return {k: plain_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _write_ndjson(batches: Iterable[pa.RecordBatch], out: IO[bytes]) -> int:
    rows = 0
    for batch in batches:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows_as_json(plain_batch(batch))]
        out.write(("\n".join(lines) + "\n").encode() if lines else b"")
        rows += batch.num_rows
    return rows
