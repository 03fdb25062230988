"""Small row segments of many commits, written as one, so that a manifest lists few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf.layout import DirectoryEntry, SegmentType
from warpdata.formats.rvf.payloads.vec import VecBlock, encode_vec
from warpdata.formats.rvf.writer import NewSegment

if TYPE_CHECKING:
    from warpdata.search.content import Content

Ids = NDArray[np.uint64]

_SMALLEST_BYTES = 4096
_FACTOR = 16
"""Segments up to 4 KiB, 64 KiB, 1 MiB, 16 MiB: this many per step are merged, so a row moves four times at most."""
_STEPS = 4
_BLOCK_ROWS = 8192


def run_to_merge(tail: Sequence[DirectoryEntry]) -> list[DirectoryEntry]:
    """The last segments of these, if so many of them are small that they should become one."""
    found: list[DirectoryEntry] = []
    for step in range(_STEPS):
        limit = _SMALLEST_BYTES * _FACTOR**step
        count = 0
        while count < len(tail) and tail[len(tail) - 1 - count].payload_length <= limit:
            count += 1
        if count >= _FACTOR * (step + 1):
            found = list(tail[len(tail) - count :])
    return found


def merged_rows(content: Content, run: Sequence[DirectoryEntry], deleted: Ids) -> NewSegment | None:
    """The newest row of each id in these segments, unless it is deleted; None if no row is left."""
    blocks = [block for entry in run for block in content.decode_blocks(entry)]
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
