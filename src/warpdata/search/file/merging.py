"""Small row segments of many commits, written as one, so that a manifest lists few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.vec import VecBlock, encode_vec
from warpdata.formats.rvf.writer import NewSegment

Ids = NDArray[np.uint64]

_SMALLEST_BYTES = 4096
_FACTOR = 14
"""Segments up to 4 KiB, 56 KiB, 784 KiB, 11 MiB: this many per step are merged, so a row moves four times at most.

More of them make each manifest longer, fewer move each row more often.
"""
_STEPS = 4
_BLOCK_ROWS = 8192


def count_to_merge(sizes: Sequence[int]) -> int:
    """How many of the last segments of these sizes should become one, because so many of them are small."""
    found = 0
    for step in range(_STEPS):
        limit = _SMALLEST_BYTES * _FACTOR**step
        count = next((n for n, size in enumerate(reversed(sizes)) if size > limit), len(sizes))
        if count >= _FACTOR * (step + 1):
            found = count
    return found


def merged_rows(blocks: Sequence[VecBlock], deleted: Ids) -> NewSegment | None:
    """The newest row of each id in these blocks, unless it is deleted; None if no row is left."""
    ids = np.concatenate([block.ids for block in blocks])
    rows = np.concatenate([block.rows for block in blocks])
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    order = order[last & ~np.isin(ordered, deleted)]
    if not len(order):
        return None
    ids, rows = ids[order], rows[order]
    first = blocks[0]
    pieces = [
        VecBlock(rows[at : at + _BLOCK_ROWS], ids[at : at + _BLOCK_ROWS], first.dim, first.dtype)
        for at in range(0, len(ids), _BLOCK_ROWS)
    ]
    return NewSegment(SegmentType.VEC, encode_vec(pieces), block_count=len(pieces))
