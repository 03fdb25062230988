"""Every name and number of the bf16 directory."""

from __future__ import annotations

MANIFEST_NAME = "manifest.json"
FORMAT = "residual_shard_bf16"
VERSION = 1
DTYPE = "bfloat16"
BYTE_ORDER = "little"
ITEM_BYTES = 2
SHARD_NAME = "shard_{:05d}.bf16"
MAX_MANIFEST_BYTES = 256 << 20
MAX_EMPTY_ROWS = 1 << 20
"""Rows of a file of width 0: no byte stands for them, so this bounds what reading them takes."""
