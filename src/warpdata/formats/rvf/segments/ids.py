"""IDS payloads: which block holds an id, so that one vector can be read without the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, LimitExceededError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.layout import IdDirectoryHead

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]

_BLOCK_DTYPES = {1: "<u1", 2: "<u2", 4: "<u4"}


@dataclass(frozen=True, slots=True)
class IdDirectory:
    """Ids in ascending order, each once, and the block of each."""

    ids: Ids
    blocks: NDArray[Any]
    block_count: int


def check_ids(ids: Ids, where: str = "") -> None:
    """LimitExceededError for an id that a store cannot have: it would come back as a negative number."""
    if ids.size and int(ids.max()) > layout.MAX_ID:
        raise LimitExceededError(f"the id {int(ids.max())}; ids are below 2**63", path=where or None)


def encode_id_directory(directory: IdDirectory) -> bytes:
    """An IDS payload."""
    size = 1 if directory.block_count <= 1 << 8 else 2 if directory.block_count <= 1 << 16 else 4
    head = records.ID_DIRECTORY_HEAD.pack(len(directory.ids), directory.block_count, size)
    coded = varint.encode_varints(varint.delta_encode(directory.ids))
    places = directory.blocks.astype(_BLOCK_DTYPES[size]).tobytes()
    return b"".join(
        (head.ljust(layout.ALIGNMENT, b"\0"), coded, padding_to(len(coded), layout.ALIGNMENT), places)
    )


def decode_id_directory(payload: Buffer, where: str = "") -> IdDirectory:
    """The directory of an IDS payload: ids ascend, blocks exist, or a FormatError."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("an IDS payload has no header", path=where or None)
    head = IdDirectoryHead._make(records.ID_DIRECTORY_HEAD.unpack_from(view))
    if head.block_bytes not in _BLOCK_DTYPES:
        raise CorruptLayoutError(f"block numbers of {head.block_bytes} bytes", path=where or None)
    if head.id_count * (1 + head.block_bytes) > view.nbytes:
        raise LimitExceededError(f"{head.id_count} ids in {view.nbytes} bytes", path=where or None)
    deltas, used = varint.decode_varints_prefix(view[layout.ALIGNMENT :], head.id_count)
    start = layout.ALIGNMENT + align_up(used, layout.ALIGNMENT)
    if start + head.id_count * head.block_bytes > view.nbytes or len(deltas) != head.id_count:
        raise TruncatedError("the block numbers of an IDS payload are cut off", path=where or None)
    places = view[start : start + head.id_count * head.block_bytes]
    blocks = np.frombuffer(places, _BLOCK_DTYPES[head.block_bytes])
    ids = varint.delta_decode(deltas)
    check_ids(ids, where)
    if head.id_count and (int(blocks.max()) >= head.block_count or not (ids[1:] > ids[:-1]).all()):
        raise CorruptLayoutError("an id directory contradicts itself", path=where or None)
    return IdDirectory(ids, blocks, head.block_count)
