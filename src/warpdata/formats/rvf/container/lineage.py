"""Whether a file is a later state of another one, where it was written anew and does not begin with its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import FormatError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.container.deletion import decode_deletions
from warpdata.formats.rvf.container.layout import SegmentType, Tag
from warpdata.formats.rvf.container.reader import open_snapshot, read_segment
from warpdata.formats.rvf.container.snapshot import Snapshot
from warpdata.formats.rvf.segments.journal import decode_journal, deleted_mask
from warpdata.formats.rvf.segments.vec import block_end, decode_block, read_directory

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

Ids = NDArray[np.uint64]
_PLAIN = {layout.DTYPE_IDS[name] for name in ("f32", "f16", "bf16", "i8", "u8", "i4", "binary")}


_SEED = 7


def goes_on_from(newer: RangeReader, older: RangeReader) -> bool:
    """Whether `newer` is the same store at a later time, and has every vector of `older` as it was."""
    after, before = open_snapshot(newer), open_snapshot(older)
    if after.root is None or before.root is None or after.epoch <= before.epoch:
        return False
    name = after.root.identity.file_id
    if not any(name) or name != before.root.identity.file_id or after.root.dimension != before.root.dimension:
        return False
    has, had = live_rows(newer, after), live_rows(older, before)
    if has is None or had is None:
        return False
    at = np.minimum(np.searchsorted(has[0], had[0]), max(0, len(has[0]) - 1))
    return len(has[0]) >= len(had[0]) and all(
        bool(np.array_equal(theirs[at], ours)) for theirs, ours in zip(has, had, strict=True)
    )


def live_rows(reader: RangeReader, snapshot: Snapshot) -> tuple[Ids, Ids] | None:
    """The ids of all vectors that are not deleted, ascending, and a number for the bytes of each.

    None where the rows of the file do not tell.
    """
    try:
        found = _live(reader, snapshot)
    except FormatError:
        return None
    return found if len(found[0]) == snapshot.live_count else None


def _live(reader: RangeReader, snapshot: Snapshot) -> tuple[Ids, Ids]:
    """Rows but for those that are gone: of an id that came back, no deletion is listed any more."""
    ids: list[Ids] = [np.zeros(0, np.uint64)]
    numbers: list[Ids] = [np.zeros(0, np.uint64)]
    for entry in snapshot.of_type(SegmentType.VEC):
        payload = read_segment(reader, entry)
        blocks = read_directory(payload, where=reader.name)
        for at, block in enumerate(blocks):
            if block.dtype in _PLAIN:  # codes are of rows that stand elsewhere too, or of none we can tell
                data = payload[block.block_offset : block_end(blocks, at, payload.nbytes)]
                found = decode_block(data, block, where=reader.name, check=False)
                ids.append(found.ids)
                numbers.append(_numbers(found.rows))
    # The newest row of an id is the last one listed.
    every, last = np.unique(np.concatenate(ids)[::-1], return_index=True)
    bitmap = snapshot.record(Tag.DELETION_BITMAP)
    gone = (
        np.zeros(len(every), bool)
        if bitmap is None
        else np.isin(every, decode_deletions(bitmap, reader.name))
    )
    for entry in snapshot.of_type(SegmentType.JOURNAL):
        gone |= deleted_mask(every, decode_journal(read_segment(reader, entry), reader.name).entries)
    return every[~gone], np.concatenate(numbers)[::-1][last][~gone]


def _numbers(rows: NDArray[Any]) -> Ids:
    """A number for each row that another row hardly has."""
    stored = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    weights = np.random.default_rng(_SEED).integers(1, 1 << 63, stored.shape[1], dtype=np.uint64)
    found: Ids = np.einsum("ij,j->i", stored, weights, dtype=np.uint64, casting="unsafe")
    return found
