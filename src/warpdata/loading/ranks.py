"""Rank and world of this process."""

from __future__ import annotations

import operator
import sys
from typing import Any

from warpdata.settings import Settings


def rank_and_world(shard: Any) -> tuple[int, int]:
    """(rank, world) from a pair, "auto" or None."""
    if shard is None:
        return 0, 1
    if shard == "auto":
        return auto_rank()
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ValueError(f"shard is {shard!r}; expected (rank, world), 'auto' or None")
    try:
        rank, world = map(operator.index, shard)
    except TypeError:
        raise ValueError(f"rank and world are integers, not {shard[0]!r} and {shard[1]!r}") from None
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks")
    return rank, world


def known_rank(shard: Any) -> Any:
    """The same share for a process that this one starts: "auto" as a pair, where this process knows its rank."""
    if shard != "auto":
        return shard
    rank, world = auto_rank()
    return (rank, world) if world > 1 else shard


def auto_rank() -> tuple[int, int]:
    """Rank and world from torch.distributed if it runs, else from RANK (or LOCAL_RANK) and WORLD_SIZE, else (0, 1)."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    settings = Settings.from_env()
    if settings.rank is None and settings.world_size is None:
        return 0, 1
    rank = settings.local_rank if settings.rank is None else settings.rank
    world = settings.world_size or 1
    if rank is None and world > 1:
        raise ValueError(f"WORLD_SIZE is {world}, but neither RANK nor LOCAL_RANK is set")
    return rank_and_world((rank or 0, world))
