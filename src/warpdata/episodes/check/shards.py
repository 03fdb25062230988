"""What only shards have that can be wrong: damaged blocks that are no signal, cameras that cannot be played."""

from __future__ import annotations

import os
from typing import Any

from warpdata.bytekit.findings import FileFinding
from warpdata.episodes.check.rules import Finding, damaged_block
from warpdata.episodes.forms.packed import VIDEO_PREFIX, PackedSource, is_packed
from warpdata.episodes.sources.signals import VideoSignal
from warpdata.errors import WarpError
from warpdata.formats.wshard.layout import ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import verify_shard


def unplayable_cameras(path: str | os.PathLike[str], *, full: bool) -> list[FileFinding]:
    """What keeps the cameras of a packed recording from being played; `full` decodes every frame."""
    shard = ShardReader.open(path)
    if not is_packed(shard):
        return []
    found = []
    for name, signal in PackedSource(shard).signals.items():
        if isinstance(signal, VideoSignal) and len(signal):
            try:
                signal.check()
                for _ in signal if full else signal[:1]:
                    pass
            except WarpError as error:
                found.append(
                    FileFinding("unplayable_camera", str(error), f"{VIDEO_PREFIX}{name}", error.hint)
                )
    return found


def damaged_blocks(found: Any, name: str) -> list[Finding]:
    """What is wrong with the blocks of a shard, those too that are no signal; nothing of anything else."""
    if found is None or (isinstance(found, str | os.PathLike) and os.path.isdir(found)):
        return []
    if ShardReader.open(found).role != ROLE_EPISODE:
        return []
    return [damaged_block(name, each) for each in verify_shard(found) if each.is_damage]
