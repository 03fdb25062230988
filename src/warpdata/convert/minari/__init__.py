"""Minari datasets, stored as HDF5, Arrow or Parquet, in and out."""

from __future__ import annotations

from warpdata.convert.minari.reading import matches, read
from warpdata.convert.minari.writing import write

__all__ = ["matches", "read", "write"]
