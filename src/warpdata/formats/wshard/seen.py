"""What was read from the heads of shards that were opened before: opened again unchanged, they are not parsed again.

A head is header, table, names and metadata. What is remembered is used only where a file of the same name and size
begins with exactly the same bytes, so it is never anything but what these bytes say.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from warpdata.formats.wshard import layout
from warpdata.formats.wshard.schema import EpisodeSchema
from warpdata.formats.wshard.table import BlockTable

if TYPE_CHECKING:
    from typing import Self

MAX_SHARDS = 1024
MAX_HEAD_BYTES = 8 << 10

_META = (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS)


class Head:
    """The first bytes of a shard and what they say."""

    __slots__ = ("data", "schema", "size", "table")

    def __init__(self, data: bytes, size: int, table: BlockTable) -> None:
        self.data = data
        self.size = size
        self.table = table
        self.schema: EpisodeSchema | None = None

    @classmethod
    def of(cls, start: memoryview, size: int, table: BlockTable) -> Self | None:
        """The head of a shard of `size` bytes that begins so; None if its metadata lies further on."""
        end = table.header.data_section_offset
        for name in _META:
            block = table.get(name)
            if block is not None:
                if block.codec != "none":
                    return None
                end = max(end, block.data_offset + block.disk_size)
        return cls(bytes(start[:end]), size, table) if end <= min(len(start), MAX_HEAD_BYTES) else None


_heads: OrderedDict[str, Head] = OrderedDict()


def seen_head(path: str, start: memoryview, size: int) -> Head | None:
    """The head of this shard if it was opened before and is as it was."""
    found = _heads.get(path)
    if found is None or found.size != size or not isinstance(start.obj, bytes):
        return None
    return found if start.obj.startswith(found.data) else None


def remember_head(path: str, head: Head) -> None:
    """Keep a head, and let go of the oldest beyond a thousand."""
    _heads[path] = head
    while len(_heads) > MAX_SHARDS:
        try:
            _heads.popitem(last=False)
        except KeyError:  # another thread was quicker
            break
