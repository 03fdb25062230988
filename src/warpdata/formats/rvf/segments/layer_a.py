"""INDEX payloads of layer A: entry points, top layers, centroids and the partition map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.cursor import PayloadCursor
from warpdata.formats.rvf.segments.graph import pack_index_header, unpack_index_header
from warpdata.formats.rvf.segments.layout import EntryPoint, IndexHeader, Partition
from warpdata.formats.rvf.segments.vec import column_dtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PARTITION_DTYPE = np.dtype(
    [
        ("centroid_id", "<u4"),
        ("id_start", "<u8"),
        ("id_end", "<u8"),
        ("segment_ref", "<u8"),
        ("block_ref", "<u4"),
    ]
)
_CENTROID_DTYPES = ("f32", "f16")

TopLayer = tuple[tuple[int, tuple[int, ...]], ...]
"""Nodes of one layer with their neighbours."""


@dataclass(frozen=True, slots=True)
class LayerA:
    """What the first query needs: where to enter the graph, and which block holds which region of space."""

    header: IndexHeader
    entry_points: tuple[EntryPoint, ...]
    max_layer: int
    top_layers: tuple[TopLayer, ...]
    centroids: NDArray[Any]
    partitions: NDArray[Any]
    """Records of (centroid_id, id_start, id_end, segment_ref, block_ref)."""


@dataclass(frozen=True, slots=True)
class LayerAOffsets:
    """Where the four blocks of layer A begin in its payload."""

    entry_points: int
    top_layers: int
    centroids: int
    partitions: int


def make_partitions(rows: list[Partition]) -> NDArray[Any]:
    """The partition map as an array of records."""
    return np.array(rows, _PARTITION_DTYPE)


def encode_layer_a(layer: LayerA) -> tuple[bytes, LayerAOffsets]:
    """The payload of layer A and the offsets its root points at."""
    blocks = (_pack_entries(layer), _pack_top(layer), _pack_centroids(layer), _pack_partitions(layer))
    out = bytearray(pack_index_header(layer.header))
    starts = []
    for block in blocks:
        starts.append(len(out))
        out += block
        out += padding_to(len(out), layout.ALIGNMENT)
    return bytes(out), LayerAOffsets(*starts)


def _pack_entries(layer: LayerA) -> bytes:
    head = records.ENTRY_POINT_HEAD.pack(len(layer.entry_points), layer.max_layer)
    return head + b"".join(records.ENTRY_POINT.pack(*entry) for entry in layer.entry_points)


def _pack_top(layer: LayerA) -> bytes:
    out = bytearray(layout.COUNT_U32.pack(len(layer.top_layers)))
    for nodes in layer.top_layers:
        out += layout.COUNT_U32.pack(len(nodes))
        for node, neighbors in nodes:
            out += records.TOP_NODE_HEAD.pack(node, len(neighbors))
            out += np.asarray(neighbors, "<u8").tobytes()
        out += padding_to(len(out), layout.ALIGNMENT)
    return bytes(out)


def _pack_centroids(layer: LayerA) -> bytes:
    count, dim = layer.centroids.shape
    dtype = "f16" if layer.centroids.dtype == np.float16 else "f32"
    head = records.CENTROID_HEAD.pack(count, dim, layout.DTYPE_IDS[dtype])
    return head.ljust(layout.ALIGNMENT, b"\0") + np.ascontiguousarray(layer.centroids).tobytes()


def _pack_partitions(layer: LayerA) -> bytes:
    return layout.COUNT_U32.pack(len(layer.partitions)) + layer.partitions.tobytes()


def decode_layer_a(payload: Buffer, where: str = "") -> tuple[LayerA, LayerAOffsets]:
    """Layer A from its payload; every block is found by walking, the root's offsets must agree with it."""
    view = byte_view(payload)
    header = unpack_index_header(view, where)
    if header.layer_level != records.LAYER_A:
        raise CorruptLayoutError("this INDEX segment is not layer A", path=where or None)
    cursor = PayloadCursor(view, "layer A", where, layout.ALIGNMENT)
    starts = [cursor.position]
    entries, max_layer = _read_entries(cursor)
    starts.append(cursor.align())
    top = _read_top(cursor)
    starts.append(cursor.align())
    centroids = _read_centroids(cursor)
    starts.append(cursor.align())
    partitions = _read_partitions(cursor)
    return LayerA(header, entries, max_layer, top, centroids, partitions), LayerAOffsets(*starts)


def _count(cursor: PayloadCursor) -> int:
    return int(layout.COUNT_U32.unpack(cursor.take(layout.COUNT_U32.size))[0])


def _read_entries(cursor: PayloadCursor) -> tuple[tuple[EntryPoint, ...], int]:
    count, max_layer = records.ENTRY_POINT_HEAD.unpack(cursor.take(records.ENTRY_POINT_HEAD.size))
    packed = cursor.take(count * records.ENTRY_POINT.size)
    return tuple(EntryPoint._make(e) for e in records.ENTRY_POINT.iter_unpack(packed)), max_layer


def _read_top(cursor: PayloadCursor) -> tuple[TopLayer, ...]:
    layers = []
    for _ in range(_count(cursor)):
        layers.append(tuple(_read_top_node(cursor) for _ in range(_count(cursor))))
        cursor.align()
    return tuple(layers)


def _read_top_node(cursor: PayloadCursor) -> tuple[int, tuple[int, ...]]:
    node, count = records.TOP_NODE_HEAD.unpack(cursor.take(records.TOP_NODE_HEAD.size))
    return node, tuple(np.frombuffer(cursor.take(8 * count), "<u8").tolist())


def _read_centroids(cursor: PayloadCursor) -> NDArray[Any]:
    count, dim, dtype = records.CENTROID_HEAD.unpack(cursor.take(records.CENTROID_HEAD.size))
    name = layout.DTYPE_NAMES.get(dtype, "?")
    if name not in _CENTROID_DTYPES:
        raise CorruptLayoutError(f"centroids of dtype {dtype}", path=cursor.where)
    cursor.align()
    element = column_dtype(name)
    return np.frombuffer(cursor.take(count * dim * element.itemsize), element).reshape(count, dim)


def _read_partitions(cursor: PayloadCursor) -> NDArray[Any]:
    return np.frombuffer(cursor.take(_count(cursor) * _PARTITION_DTYPE.itemsize), _PARTITION_DTYPE)
