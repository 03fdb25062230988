"""Copy a shard block by block as it is stored, with some of its episode metadata changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpdata.bytekit.commit import NewFile
from warpdata.bytekit.jsontext import dump_json
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.writer import ShardWriter


def restamp_episode(shard: ShardReader, out: NewFile, changes: Mapping[str, Any]) -> None:
    """Write `shard` again into `out` with these keys of `meta/episode` replaced; data is not recompressed."""
    writer = ShardWriter(out, shard.names, role=shard.role)
    for name in shard.names:
        if name == layout.META_EPISODE:
            meta = {**shard.read_json(name), **changes}
            writer.add_bytes(name, dump_json(meta), layout.CONTENT_JSON)
        else:
            writer.add_stored(shard.block(name), shard.stored(name))
    writer.finish()
