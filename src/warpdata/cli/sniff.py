"""What kind of file a path is, from its first bytes."""

from __future__ import annotations

import os

from warpdata.bytekit.ranges import FileRangeReader
from warpdata.errors import BadMagicError

_SHARD_ROLES = {4: "chunk-list", 5: "episode"}


def file_kind(path: str | os.PathLike[str]) -> str:
    """`episode`, `chunk-list`, `shard`, `journal`, `vectors` or `rows`; anything else is an error that says so."""
    with FileRangeReader(path) as reader:
        start = bytes(reader.read(0, min(8, reader.size)))
    if start[:4] == b"SHRD":
        return _SHARD_ROLES.get(start[5] if len(start) > 5 else 5, "shard")
    if start == b"WDJOURNL":
        return "journal"
    if start[:4] == b"SFVR":
        return "vectors"
    if start == b"GAMSAE01":
        return "rows"
    raise BadMagicError("no file format that warp knows", path=path)
