"""LeRobot sets v2.0, v2.1 and v3.0 in, v2.1 and v3.0 out, with pyarrow and PyAV only."""

from __future__ import annotations

from warpdata.convert.lerobot.read import matches, read
from warpdata.convert.lerobot.write import write

__all__ = ["matches", "read", "write"]
