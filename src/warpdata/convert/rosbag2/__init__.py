"""ROS 2 bags: a folder with metadata.yaml and SQLite files; bags of MCAP files are read as such."""

from __future__ import annotations

from warpdata.convert.rosbag2.reading import matches, read

__all__ = ["matches", "read"]
