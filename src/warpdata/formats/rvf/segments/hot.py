"""HOT payloads: the vectors asked for most, row by row, with their neighbours beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.layout import HotHeader
from warpdata.formats.rvf.segments.vec import column_dtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

HOT_DTYPES = ("f16", "i8", "f32", "bf16", "u8")


@dataclass(frozen=True, slots=True)
class HotSet:
    """Hot vectors, their ids and the ids of their neighbours."""

    ids: NDArray[np.uint64]
    vectors: NDArray[Any]
    neighbors: tuple[NDArray[np.uint64], ...]
    neighbor_m: int
    dtype: str


def encode_hot(hot: HotSet) -> bytes:
    """A HOT payload."""
    count, dim = hot.vectors.shape
    header = records.HOT_HEADER.pack(count, dim, layout.DTYPE_IDS[hot.dtype], hot.neighbor_m)
    pieces = [header.ljust(layout.ALIGNMENT, b"\0")]
    rows = np.ascontiguousarray(hot.vectors, column_dtype(hot.dtype))
    for vector_id, row, neighbors in zip(hot.ids.tolist(), rows, hot.neighbors, strict=True):
        entry = layout.COUNT_U64.pack(vector_id) + row.tobytes()
        entry += layout.COUNT_U16.pack(len(neighbors)) + neighbors.astype("<u8").tobytes()
        pieces += [entry, padding_to(len(entry), layout.ALIGNMENT)]
    return b"".join(pieces)


def decode_hot(payload: Buffer, where: str = "") -> HotSet:
    """The hot set of a HOT payload."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a HOT payload has no header", path=where or None)
    header = HotHeader._make(records.HOT_HEADER.unpack_from(view))
    name = layout.DTYPE_NAMES.get(header.dtype, "?")
    if name not in HOT_DTYPES:
        raise CorruptLayoutError(f"hot vectors of dtype {header.dtype}", path=where or None)
    element = column_dtype(name)
    row_size = header.dim * element.itemsize
    if header.vector_count * (10 + row_size) > view.nbytes:
        raise TruncatedError(
            f"a HOT payload holds fewer than {header.vector_count} vectors", path=where or None
        )
    ids = np.zeros(header.vector_count, np.uint64)
    rows = np.zeros((header.vector_count, header.dim), element)
    neighbors = []
    position = layout.ALIGNMENT
    for index in range(header.vector_count):
        head, body = position + 8, position + 8 + row_size
        if body + 2 > view.nbytes:
            raise TruncatedError("a hot vector is cut off", path=where or None)
        ids[index] = layout.COUNT_U64.unpack_from(view, position)[0]
        rows[index] = np.frombuffer(view[head:body], element)
        end = body + 2 + 8 * layout.COUNT_U16.unpack_from(view, body)[0]
        if end > view.nbytes:
            raise TruncatedError("the neighbours of a hot vector are cut off", path=where or None)
        neighbors.append(np.frombuffer(view[body + 2 : end], "<u8"))
        position = align_up(end, layout.ALIGNMENT)
    return HotSet(ids, rows, tuple(neighbors), header.neighbor_m, name)
