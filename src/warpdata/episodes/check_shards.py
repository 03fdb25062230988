"""What only shards have that can be wrong: damaged blocks that are no signal, chunks beside their list."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from warpdata.episodes.check import Finding, damaged_block
from warpdata.episodes.local import holds_recordings
from warpdata.episodes.packed import VIDEO_PREFIX, PackedSource, is_packed
from warpdata.episodes.signals import VideoSignal
from warpdata.errors import WarpError
from warpdata.formats.wshard.chunks import read_chunk_list
from warpdata.formats.wshard.layout import ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import Finding as Damage
from warpdata.formats.wshard.verify import verify_shard


def shards_in(folder: Any) -> list[str]:
    """The episodes of a folder on this machine that holds shards instead of recordings."""
    if not isinstance(folder, str | os.PathLike) or holds_recordings(Path(folder)):
        return []
    shards = {path.name: str(path) for path in sorted(Path(folder).glob("*.wshard"))}
    for path in list(shards.values()):
        with contextlib.suppress(WarpError):  # not a chunk list, or a damaged one: then it is a finding
            for chunk in read_chunk_list(path).chunks:
                shards.pop(chunk.uri, None)
    return list(shards.values())


def unplayable_cameras(path: str | os.PathLike[str], *, full: bool) -> list[Damage]:
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
                found.append(Damage("unplayable_camera", str(error), f"{VIDEO_PREFIX}{name}", error.hint))
    return found


def damaged_blocks(found: Any, name: str) -> list[Finding]:
    """What is wrong with the blocks of a shard, those too that are no signal; nothing of anything else."""
    if found is None or (isinstance(found, str | os.PathLike) and os.path.isdir(found)):
        return []
    if ShardReader.open(found).role != ROLE_EPISODE:
        return []
    return [damaged_block(name, each) for each in verify_shard(found) if each.is_damage]
