"""Frames of other libraries to and from Arrow. The adapter of polars; pandas comes through pyarrow."""

from __future__ import annotations

from typing import Any

from warpdata.errors import MissingExtraError


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
