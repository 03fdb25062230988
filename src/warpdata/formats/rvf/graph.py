"""INDEX payloads: the HNSW adjacency with restart groups, layer A, and the trailer of shipped programs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, LimitExceededError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import Cursor
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.vec import column_dtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ints = NDArray[np.int64]
_MAX_LAYERS = 64
_LISTS_AT_ONCE = 4096
"""Lists undone together: what numpy makes of them stays in the cache of a processor."""


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The neighbour lists of a graph, flat: list l belongs to `node[l]` at `layer[l]` and has `sizes[l]` ids.

    Lists are ordered by node, then layer; `neighbors` holds all of them, each in ascending order.
    """

    node_count: int
    layer_counts: Ints
    sizes: Ints
    neighbors: Ints

    @property
    def starts(self) -> Ints:
        """Where each list begins in `neighbors`."""
        ends = np.cumsum(self.sizes)
        return ends - self.sizes


@dataclass(frozen=True, slots=True)
class Trailer:
    """What shipped programs write behind the adjacency."""

    m0: int
    max_layer: int
    entry_ordinal: int
    ids: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class GraphPayload:
    """A decoded INDEX payload of layer B or C."""

    header: Row
    adjacency: Adjacency
    trailer: Trailer | None = None


def pack_index_header(header: Row) -> bytes:
    """The index header, padded to 64 bytes."""
    return layout.INDEX_HEADER.pack(*header).ljust(layout.ALIGNMENT, b"\0")


def unpack_index_header(payload: Buffer, where: str = "") -> Row:
    """The checked header of an INDEX payload."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("an INDEX payload has no header", path=where or None)
    header = layout.INDEX_HEADER.unpack_from(view)
    if header.index_type not in layout.INDEX_NAMES or header.layer_level > layout.LAYER_C:
        raise CorruptLayoutError("unknown index type or layer", path=where or None)
    return header


def encode_graph(header: Row, adjacency: Adjacency) -> bytes:
    """An INDEX payload: delta-coded lists, restart groups on 64-byte boundaries."""
    values, node_starts = _value_stream(adjacency)
    encoded, ends = varint.encode_varints_bounds(values)
    bounds = ends[np.append(node_starts[:: layout.NODE_RESTART_INTERVAL], len(values))]
    groups = [encoded[a:b] for a, b in itertools.pairwise(bounds.tolist())]
    padded = [group + padding_to(len(group), layout.ALIGNMENT) for group in groups]
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in padded])))[:-1]
    if len(groups) and offsets[-1] > layout.MAX_PAYLOAD_BYTES:
        raise LimitExceededError("an INDEX segment holds less than 4 GiB")
    table = layout.RESTART_HEAD.pack(layout.NODE_RESTART_INTERVAL, len(groups))
    table += offsets[: len(groups)].astype("<u4").tobytes()
    table += padding_to(len(table), layout.ALIGNMENT)
    return b"".join((pack_index_header(header), table, *padded))


def renumbered(adjacency: Adjacency, rank: Ints) -> Adjacency:
    """The same graph with node i as node `rank[i]`."""
    counts = adjacency.layer_counts
    node = np.repeat(np.arange(adjacency.node_count), counts)
    layer = np.arange(len(node)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((layer, rank[node]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    owner = place[np.repeat(np.arange(len(node)), adjacency.sizes)]
    neighbors = rank[adjacency.neighbors]
    new_counts = np.empty_like(counts)
    new_counts[rank] = counts
    return Adjacency(
        adjacency.node_count, new_counts, adjacency.sizes[order], neighbors[np.lexsort((neighbors, owner))]
    )


def encode_runtime_graph(header: Row, adjacency: Adjacency, trailer: Trailer) -> bytes:
    """An INDEX payload as shipped programs write it: groups back to back, restart nodes absolute, a trailer."""
    values, node_starts = _value_stream(adjacency, layout.NODE_RESTART_INTERVAL)
    encoded, ends = varint.encode_varints_bounds(values)
    offsets = ends[node_starts[:: layout.NODE_RESTART_INTERVAL]]
    if len(encoded) > layout.MAX_PAYLOAD_BYTES:
        raise LimitExceededError("an INDEX segment holds less than 4 GiB")
    table = layout.RESTART_HEAD.pack(layout.NODE_RESTART_INTERVAL, len(offsets))
    table += offsets.astype("<u4").tobytes()
    body = layout.INDEX_TRAILER.pack(
        1, trailer.m0, trailer.max_layer, trailer.entry_ordinal, len(trailer.ids)
    ) + varint.encode_varints(varint.delta_encode(trailer.ids))
    return b"".join(
        (
            pack_index_header(header),
            table,
            padding_to(len(table), layout.ALIGNMENT),
            encoded,
            padding_to(len(encoded), layout.ALIGNMENT),
            body,
            layout.INDEX_TRAILER_END.pack(len(body), layout.INDEX_TRAILER_MAGIC),
        )
    )


def _value_stream(adjacency: Adjacency, absolute_interval: int = 0) -> tuple[NDArray[np.uint64], Ints]:
    """Every number of the adjacency data in order, and where each node begins."""
    counts, sizes = adjacency.layer_counts, adjacency.sizes
    list_node = np.repeat(np.arange(adjacency.node_count), counts)
    list_words = 1 + sizes
    before = np.cumsum(list_words) - list_words
    list_at = before + list_node + 1
    values = np.zeros(adjacency.node_count + int(list_words.sum()), np.uint64)
    node_words = np.ones(adjacency.node_count, np.int64)
    np.add.at(node_words, list_node, list_words)
    node_starts = np.cumsum(node_words) - node_words
    values[node_starts] = counts
    values[list_at] = sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.arange(len(adjacency.neighbors)) - np.repeat(adjacency.starts, sizes)
    neighbors = adjacency.neighbors
    deltas = neighbors.copy()
    deltas[1:] -= neighbors[:-1]
    firsts = adjacency.starts[sizes > 0]
    deltas[firsts] = neighbors[firsts]
    if (deltas < 0).any():
        raise ValueError("neighbour lists must ascend")
    if absolute_interval:
        plain = np.repeat(list_node % absolute_interval == 0, sizes)
        deltas[plain] = neighbors[plain]
    values[list_at[owner] + 1 + inside] = deltas.astype(np.uint64)
    return values, node_starts


def decode_graph(payload: Buffer, where: str = "") -> GraphPayload:
    """An INDEX payload of layer B or C, in the seed's form or in that of shipped programs (RVIX trailer)."""
    view = byte_view(payload)
    header = unpack_index_header(view, where)
    trailer, body_end = _decode_trailer(view, where)
    start = layout.ALIGNMENT + layout.RESTART_HEAD.size
    if body_end < start:
        raise TruncatedError("an INDEX payload has no restart table", path=where or None)
    interval, count = layout.RESTART_HEAD.unpack_from(view, layout.ALIGNMENT)
    end = start + 4 * count
    if end > body_end or header.node_count > body_end:
        raise LimitExceededError("an INDEX payload announces more than it holds", path=where or None)
    if count != (-(-header.node_count // interval) if interval else 0) or (
        header.node_count and not interval
    ):
        raise CorruptLayoutError("restart points do not cover the nodes", path=where or None)
    offsets = np.frombuffer(view[start:end], "<u4").astype(np.int64)
    data = view[align_up(end, layout.ALIGNMENT) : body_end]
    adjacency, used = _decode_adjacency(data, header.node_count, interval, offsets, trailer is not None)
    hints = data[align_up(used, layout.ALIGNMENT) :]  # of what to read ahead: nothing here needs them
    if trailer is None and hints.nbytes >= layout.COUNT_U32.size:
        count = layout.COUNT_U32.unpack_from(hints)[0]
        if layout.COUNT_U32.size + count * layout.PREFETCH_HINT.size > hints.nbytes:
            raise CorruptLayoutError("prefetch hints of an INDEX segment are cut off")
    return GraphPayload(header, adjacency, trailer)


def _decode_adjacency(
    data: memoryview, node_count: int, interval: int, offsets: Ints, absolute: bool
) -> tuple[Adjacency, int]:
    """Walk all restart groups side by side: one numpy step per node of a group, not one per node."""
    empty = np.zeros(0, np.int64)
    if node_count == 0:
        return Adjacency(0, empty, empty, empty), 0
    raw = np.frombuffer(data, np.uint8)
    if (np.diff(offsets) <= 0).any() or offsets[0] != 0 or offsets[-1] >= len(raw):
        raise CorruptLayoutError("restart points of an INDEX segment do not ascend")
    ends = raw < 0x80
    last = len(raw) - int(np.argmax(ends[::-1])) if ends.any() else 0
    if offsets[-1] >= last:
        raise TruncatedError("the last restart group is cut off")
    values = varint.decode_varints(data[:last]).view(np.int64)
    starts = np.append(0, np.cumsum(np.add.reduceat(ends, offsets, dtype=np.int64)))[:-1]
    layer_counts, sizes, firsts, used_values = _walk_groups(values, starts, node_count, interval)
    for form in (interval,) if absolute else (0, interval):  # bytes alone do not distinguish the forms
        neighbors = _gather_lists(values, sizes, firsts, layer_counts, form)
        if not neighbors.size or (neighbors.min() >= 0 and neighbors.max() < node_count):
            break
    else:
        raise CorruptLayoutError("a neighbour of the graph does not exist")
    used = int(offsets[-1]) + int(np.flatnonzero(ends[offsets[-1] :])[used_values - starts[-1] - 1]) + 1
    return Adjacency(node_count, layer_counts, sizes, neighbors), used


def _walk_groups(values: Ints, starts: Ints, node_count: int, interval: int) -> tuple[Ints, Ints, Ints, int]:
    """Layers per node, then size and first value of each list, in node order, and where the last group ends."""
    groups = len(starts)
    position = starts.copy()
    layer_counts = np.zeros(groups * interval, np.int64)
    found: list[tuple[Ints, int, Ints, Ints]] = []
    for step in range(min(interval, node_count)):
        nodes = np.arange(groups) * interval + step
        live = np.flatnonzero(nodes < node_count)
        counts = _take(values, position[live])
        if counts.size and not 0 <= counts.min() <= counts.max() <= _MAX_LAYERS:
            raise CorruptLayoutError("a node of the graph has too many layers")
        layer_counts[nodes[live]] = counts
        position[live] += 1
        for layer in range(int(counts.max(initial=0))):
            live, counts = live[counts > layer], counts[counts > layer]
            sizes = _take(values, position[live])
            if sizes.size and (sizes.max() > len(values) or sizes.min() < 0):
                raise CorruptLayoutError("a neighbour list is longer than the graph")
            found.append((nodes[live], layer, sizes, position[live] + 1))
            position[live] += 1 + sizes
    if (position > len(values)).any():
        raise TruncatedError("the adjacency data is cut off")
    empty = np.zeros(0, np.int64)
    node = np.concatenate([empty, *(nodes for nodes, *_ in found)])
    layer_no = np.concatenate([empty, *(np.full(len(nodes), layer) for nodes, layer, *_ in found)])
    sizes = np.concatenate([empty, *(each for _, _, each, _ in found)])
    firsts = np.concatenate([empty, *(each for *_, each in found)])
    order = np.lexsort((layer_no, node))
    return layer_counts[:node_count], sizes[order], firsts[order], int(position[-1])


def _take(values: Ints, position: Ints) -> Ints:
    if position.size and position.max() >= len(values):
        raise TruncatedError("the adjacency data is cut off")
    return values[position]


def _gather_lists(
    values: Ints, sizes: Ints, firsts: Ints, layer_counts: Ints, absolute_interval: int
) -> Ints:
    """Undo the deltas of every list at once; lists of restart nodes are absolute in the shipped form."""
    node = np.repeat(np.arange(len(layer_counts)), layer_counts)
    found = [np.zeros(0, np.int64)]
    for low in range(0, len(sizes), _LISTS_AT_ONCE):
        part = slice(low, low + _LISTS_AT_ONCE)
        counts = sizes[part]
        starts = np.cumsum(counts) - counts
        deltas = values[np.repeat(firsts[part] - starts, counts) + np.arange(int(counts.sum()))]
        sums = np.append(0, np.cumsum(deltas))
        neighbors = sums[1:] - np.repeat(sums[starts], counts)
        if absolute_interval:
            plain = np.repeat(node[part] % absolute_interval == 0, counts)
            neighbors[plain] = deltas[plain]
        found.append(neighbors)
    return np.concatenate(found)


def _decode_trailer(view: memoryview, where: str) -> tuple[Trailer | None, int]:
    """The RVIX trailer and where the adjacency ends."""
    tail = layout.INDEX_TRAILER_END.size
    if view.nbytes < tail:
        return None, view.nbytes
    body_bytes, magic = layout.INDEX_TRAILER_END.unpack_from(view, view.nbytes - tail)
    if magic != layout.INDEX_TRAILER_MAGIC:
        return None, view.nbytes
    start = view.nbytes - tail - body_bytes
    if body_bytes < layout.INDEX_TRAILER.size or start < 0:
        raise CorruptLayoutError("the trailer of an INDEX segment contradicts its size", path=where or None)
    version, m0, max_layer, entry, count = layout.INDEX_TRAILER.unpack_from(view, start)
    coded = view[start + layout.INDEX_TRAILER.size : view.nbytes - tail]
    if version != 1 or count > coded.nbytes:
        raise CorruptLayoutError("unknown trailer of an INDEX segment", path=where or None)
    ids = varint.delta_decode(varint.decode_varints(coded, count))
    return Trailer(m0, max_layer, entry, ids), start


# -- layer A ------------------------------------------------------------------------------------------

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
        top += padding_to(len(top), layout.ALIGNMENT)
    dtype = "f16" if layer.centroids.dtype == np.float16 else "f32"
    head = layout.CENTROID_HEAD.pack(*layer.centroids.shape, layout.DTYPE_IDS[dtype])
    centroids = head.ljust(layout.ALIGNMENT, b"\0") + np.ascontiguousarray(layer.centroids).tobytes()
    partitions = layout.COUNT_U32.pack(len(layer.partitions)) + layer.partitions.tobytes()
    out, starts = bytearray(pack_index_header(layer.header)), []
    for block in (entries, top, centroids, partitions):
        starts.append(len(out))
        out += block
        out += padding_to(len(out), layout.ALIGNMENT)
    return bytes(out), (starts[0], starts[1], starts[2], starts[3])


def decode_layer_a(payload: Buffer, where: str = "") -> tuple[LayerA, Offsets]:
    """Layer A from its payload; every block is found by walking, the root's offsets must agree with it."""
    view = byte_view(payload)
    header = unpack_index_header(view, where)
    if header.layer_level != layout.LAYER_A:
        raise CorruptLayoutError("this INDEX segment is not layer A", path=where or None)
    cursor = Cursor(view, where, layout.ALIGNMENT)
    starts = [cursor.position]
    count, max_layer = layout.ENTRY_POINT_HEAD.unpack_from(cursor.take(layout.ENTRY_POINT_HEAD.size))
    entries = tuple(layout.ENTRY_POINT.iter_unpack(cursor.take(count * layout.ENTRY_POINT.size)))
    starts.append(cursor.align())
    top = []
    for _ in range(cursor.integer(4)):
        nodes = []
        for _ in range(cursor.integer(4)):
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
    data = cursor.take(cursor.integer(4) * _PARTITION_DTYPE.itemsize)
    partitions = np.frombuffer(data, _PARTITION_DTYPE)
    layer = LayerA(header, entries, max_layer, tuple(top), centroids, partitions)
    return layer, (starts[0], starts[1], starts[2], starts[3])
