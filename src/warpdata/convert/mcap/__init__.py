"""MCAP files: ROS 2, protobuf and JSON messages, cameras; in and out."""

from __future__ import annotations

from warpdata.convert.mcap.read import matches, read
from warpdata.convert.mcap.write import write

__all__ = ["matches", "read", "write"]
