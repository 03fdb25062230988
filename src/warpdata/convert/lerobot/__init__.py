"""LeRobot sets v2.0, v2.1 and v3.0 in, v2.1 and v3.0 out, with pyarrow and PyAV only."""

from __future__ import annotations

import os

from warpdata.bytekit.io.ranges import FolderReader
from warpdata.convert.lerobot.documents import INFO
from warpdata.convert.lerobot.reading import open_set
from warpdata.convert.lerobot.writing import write
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes

__all__ = ["matches", "read", "write"]


def matches(place: Place) -> bool:
    """Whether a place holds a LeRobot set."""
    return not place.is_file and place.exists(INFO) and b"codebase_version" in place.head(1 << 20, INFO)


def read(source: str | os.PathLike[str] | FolderReader | Place) -> Episodes:
    """The episodes of a LeRobot set where it lies: nothing is converted, frames are decoded when asked for."""
    return open_set(Place.of(source))
