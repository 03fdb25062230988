"""HDF5 files of episodes: robomimic, LIBERO, ManiSkill, ALOHA, D4RL and mapped ones in; robomimic out."""

from __future__ import annotations

from warpdata.convert.hdf5.read import matches, read
from warpdata.convert.hdf5.write import write

__all__ = ["matches", "read", "write"]
