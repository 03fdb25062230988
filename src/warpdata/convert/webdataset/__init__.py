"""WebDataset tar shards: a sample per episode or per step, in and out."""

from __future__ import annotations

from warpdata.convert.webdataset.reading import matches, read
from warpdata.convert.webdataset.writing import write

__all__ = ["matches", "read", "write"]
