"""INDEX payloads of layer A: entry points, top layers, centroids and the partition map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import align_up, padding
from warpdata.bytekit.view import byte_view
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.graph import pack_index_header, unpack_index_header
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.vec import column_dtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PARTITION_DTYPE = np.dtype(
    list(zip(layout.PARTITION._fields, ("<u4", "<u8", "<u8", "<u8", "<u4"), strict=True))
)

TopLayer = tuple[tuple[int, tuple[int, ...]], ...]
"""Nodes of one layer with their neighbours."""


@dataclass(frozen=True, slots=True)
class LayerA:
    """The part of an index that a first query needs: entry points, and which block holds which region."""

    header: Row
    entry_points: tuple[Row, ...]
    max_layer: int
    top_layers: tuple[TopLayer, ...]
    centroids: NDArray[Any]
    partitions: NDArray[Any]
    """Records of (centroid_id, id_start, id_end, segment_ref, block_ref)."""


Offsets = tuple[int, int, int, int]
"""Where entry points, top layers, centroids and partitions begin in the payload."""


def make_partitions(rows: list[Any]) -> NDArray[Any]:
    """The partition map as an array of records."""
    return np.array([tuple(row) for row in rows], _PARTITION_DTYPE)


def encode_layer_a(layer: LayerA) -> tuple[bytes, Offsets]:
    """The payload of layer A and the offsets its root points at."""
    entries = layout.ENTRY_POINT_HEAD.pack(len(layer.entry_points), layer.max_layer)
    entries += b"".join(layout.ENTRY_POINT.pack(*entry) for entry in layer.entry_points)
    top = bytearray(layout.COUNT_U32.pack(len(layer.top_layers)))
    for nodes in layer.top_layers:
        top += layout.COUNT_U32.pack(len(nodes))
        for node, neighbors in nodes:
            top += layout.TOP_NODE_HEAD.pack(node, len(neighbors)) + np.asarray(neighbors, "<u8").tobytes()
        top += padding(len(top), layout.ALIGNMENT)
    dtype = "f16" if layer.centroids.dtype == np.float16 else "f32"
    head = layout.CENTROID_HEAD.pack(*layer.centroids.shape, layout.DTYPE_IDS[dtype])
    centroids = head.ljust(layout.ALIGNMENT, b"\0") + np.ascontiguousarray(layer.centroids).tobytes()
    partitions = layout.COUNT_U32.pack(len(layer.partitions)) + layer.partitions.tobytes()
    out, starts = bytearray(pack_index_header(layer.header)), []
    for block in (entries, top, centroids, partitions):
        starts.append(len(out))
        out += block
        out += padding(len(out), layout.ALIGNMENT)
    return bytes(out), (starts[0], starts[1], starts[2], starts[3])


def decode_layer_a(payload: Buffer, where: str = "") -> tuple[LayerA, Offsets]:
    """Layer A from its payload; every block is found by walking, the root's offsets must agree with it."""
    view = byte_view(payload)
    header = unpack_index_header(view, where)
    if header.layer_level != layout.LAYER_A:
        raise CorruptLayoutError("this INDEX segment is not layer A", path=where or None)
    cursor = _Cursor(view, where)
    starts = [cursor.position]
    count, max_layer = layout.ENTRY_POINT_HEAD.unpack_from(cursor.take(layout.ENTRY_POINT_HEAD.size))
    entries = tuple(layout.ENTRY_POINT.iter_unpack(cursor.take(count * layout.ENTRY_POINT.size)))
    starts.append(cursor.align())
    top = []
    for _ in range(cursor.count()):
        nodes = []
        for _ in range(cursor.count()):
            node, size = layout.TOP_NODE_HEAD.unpack_from(cursor.take(layout.TOP_NODE_HEAD.size))
            nodes.append((node, tuple(np.frombuffer(cursor.take(8 * size), "<u8").tolist())))
        top.append(tuple(nodes))
        cursor.align()
    starts.append(cursor.align())
    count, dim, dtype = layout.CENTROID_HEAD.unpack_from(cursor.take(layout.CENTROID_HEAD.size))
    if dtype not in (layout.DTYPE_IDS["f32"], layout.DTYPE_IDS["f16"]):
        raise CorruptLayoutError(f"centroids of dtype {dtype}", path=where or None)
    cursor.align()
    element = column_dtype(layout.DTYPE_NAMES[dtype])
    data = cursor.take(count * dim * element.itemsize)
    centroids = np.frombuffer(data, element).reshape(count, dim)
    starts.append(cursor.align())
    data = cursor.take(cursor.count() * _PARTITION_DTYPE.itemsize)
    partitions = np.frombuffer(data, _PARTITION_DTYPE)
    layer = LayerA(header, entries, max_layer, tuple(top), centroids, partitions)
    return layer, (starts[0], starts[1], starts[2], starts[3])


class _Cursor:
    """A position in the payload that never goes past its end."""

    def __init__(self, view: memoryview, where: str) -> None:
        self._view, self._where = view, where
        self.position = layout.ALIGNMENT

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        end = self.position + size
        if end > self._view.nbytes:
            raise TruncatedError("layer A is cut off", path=self._where or None)
        taken, self.position = self._view[self.position : end], end
        return taken

    def count(self) -> int:
        """The next u32."""
        return int(layout.COUNT_U32.unpack(self.take(layout.COUNT_U32.size))[0])

    def align(self) -> int:
        """Continue at the next boundary, and return it."""
        self.position = align_up(self.position, layout.ALIGNMENT)
        return self.position
