"""All rows in memory, within limits, and as frames of others. The adapter of polars, one of those of pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from warpdata.errors import MissingExtraError, TooLargeError

MAX_BYTES = 1 << 30
"""What is brought into memory at once unless a caller allows more."""


def collected(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, what: str, max_rows: int | None, max_bytes: int
) -> pa.Table:
    """Batches as one table; reading stops as soon as they exceed the limits."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if (max_rows is not None and rows > max_rows) or size > max_bytes:
            raise TooLargeError(f"{what} has at least {rows} rows in {size} bytes of memory")
        held.append(batch)
    return pa.Table.from_batches(held, schema)


def pandas_from(table: Any) -> Any:
    """An Arrow table as a pandas frame."""
    try:
        return table.to_pandas()
    except ImportError:
        raise MissingExtraError("pandas is not installed", hint="Run: pip install pandas") from None


def polars_from(table: Any) -> Any:
    """An Arrow table as a polars frame."""
    try:
        import polars
    except ImportError:
        raise MissingExtraError("polars is not installed", hint="Run: pip install polars") from None
    return polars.from_arrow(table)
