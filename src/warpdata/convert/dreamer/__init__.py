"""DreamerV3 replay: streams of experience in chunks of `.npz`, in and out."""

from __future__ import annotations

from warpdata.convert.dreamer.reading import matches, read
from warpdata.convert.dreamer.writing import write

__all__ = ["matches", "read", "write"]
