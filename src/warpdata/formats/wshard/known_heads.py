"""What was read from the heads of shards that were opened before: opened again unchanged, they are not parsed again.

A head is header, table, names and metadata. What is remembered is used only where a file of the same name and size
begins with exactly the same bytes, so it is never anything but what these bytes say.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from warpdata.formats.wshard import layout
from warpdata.formats.wshard.schema import EpisodeSchema
from warpdata.formats.wshard.table import BlockTable

if TYPE_CHECKING:
    from warpdata.formats.wshard.outline import Outline

MAX_SHARDS = 1024
MAX_HEAD_BYTES = 8 << 10

_META = (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS)


class Head:
    """The first bytes of a shard and what they say."""

    __slots__ = ("data", "outline", "schema", "signals", "size", "table")

    def __init__(self, data: bytes, size: int, table: BlockTable, schema: EpisodeSchema) -> None:
        self.data = data
        self.size = size
        self.table = table
        self.schema = schema
        self.outline: Outline | None = None
        """How the episode is made again; known once it was opened twice."""
        self.signals: dict[str, Any] | None = None
        """Its channels by the names they have as signals; known once it was seen in time."""


_heads: OrderedDict[str, Head] = OrderedDict()


def known_head_of(path: str, start: memoryview, size: int) -> Head | None:
    """The head of this shard if it was opened before and is as it was."""
    found = _heads.get(path)
    if found is None or found.size != size or not isinstance(start.obj, bytes):
        return None
    return found if start.obj.startswith(found.data) else None


def remember_head(path: str, start: memoryview, size: int, table: BlockTable, schema: EpisodeSchema) -> None:
    """Keep the head of a shard unless its metadata lies further on, and let go of the oldest beyond a thousand."""
    end = _end_of_head(table)
    if end is None or end > min(len(start), MAX_HEAD_BYTES):
        return
    _heads[path] = Head(bytes(start[:end]), size, table, schema)
    while len(_heads) > MAX_SHARDS:
        try:
            _heads.popitem(last=False)
        except KeyError:  # another thread was quicker
            break


def forget_heads() -> None:
    """Remember nothing: the next opening of every shard is its first."""
    _heads.clear()


def _end_of_head(table: BlockTable) -> int | None:
    """Where header, table and metadata end; None if some of it is compressed."""
    end = table.header.data_section_offset
    for name in _META:
        block = table.get(name)
        if block is not None:
            if block.codec != "none":
                return None
            end = max(end, block.data_offset + block.disk_size)
    return end
