"""RLDS episodes in TFDS folders: TFRecord in and out, ArrayRecord in; no TensorFlow."""

from __future__ import annotations

from warpdata.convert.rlds.read import matches, read
from warpdata.convert.rlds.write import write

__all__ = ["matches", "read", "write"]
