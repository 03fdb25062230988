"""What kind of file a path is, from its first bytes."""

from __future__ import annotations

import os

from warpdata.errors import BadMagicError, BlobNotFoundError

_SHARD_ROLES = {4: "chunk-list", 5: "episode"}


def file_kind(path: str | os.PathLike[str]) -> str:
    """`episode`, `chunk-list`, `shard`, `journal`, `vectors` or `rows`; anything else is an error that says so."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(8)
    except FileNotFoundError:
        raise BlobNotFoundError("no such file", path=path) from None
    if start[:4] == b"SHRD":
        return _SHARD_ROLES.get(start[5] if len(start) > 5 else 5, "shard")
    if start == b"WDJOURNL":
        return "journal"
    if start[:4] == b"SFVR":
        return "vectors"
    if start == b"GAMSAE01":
        return "rows"
    raise BadMagicError("no file format that warp knows", path=path)
