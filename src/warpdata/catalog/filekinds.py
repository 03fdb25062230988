"""What kind of file a path is, from its first bytes."""

from __future__ import annotations

import os

from warpdata.bytekit.ranges import FileRangeReader
from warpdata.errors import BadMagicError
from warpdata.formats.gamsae.layout import SHARD_MAGIC
from warpdata.formats.journal.layout import MAGIC as JOURNAL_MAGIC
from warpdata.formats.rvf.layout import SEGMENT_MAGIC
from warpdata.formats.wshard.layout import MAGIC as WSHARD_MAGIC
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST, ROLE_EPISODE

_SHARD_ROLES = {ROLE_CHUNK_LIST: "chunk-list", ROLE_EPISODE: "episode"}
_ROLE_AT = 5
_KINDS = {JOURNAL_MAGIC: "journal", SEGMENT_MAGIC: "vectors", SHARD_MAGIC: "rows"}


def file_kind(path: str | os.PathLike[str]) -> str:
    """`episode`, `chunk-list`, `shard`, `journal`, `vectors` or `rows`; anything else is an error that says so."""
    with FileRangeReader(path) as reader:
        start = bytes(reader.read(0, min(8, reader.size)))
    if start.startswith(WSHARD_MAGIC):
        return _SHARD_ROLES.get(start[_ROLE_AT] if len(start) > _ROLE_AT else ROLE_EPISODE, "shard")
    for magic, kind in _KINDS.items():
        if start.startswith(magic):
            return kind
    raise BadMagicError("no file format that warp knows", path=path)
