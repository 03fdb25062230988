"""OVERLAY payloads: changes of a graph since it was written, and the partitions that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import padding
from warpdata.bytekit.view import byte_view
from warpdata.errors import CorruptLayoutError, LimitExceededError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads.cursor import PayloadCursor
from warpdata.formats.rvf.payloads.layout import EdgeDelta, OverlayHead, OverlayRollback, OverlayWitness

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NO_WITNESS = OverlayWitness(0, 0.0, 0, bytes(32))
_NO_ROLLBACK = OverlayRollback(0, bytes(16))


@dataclass(frozen=True, slots=True)
class Edge:
    """One change of a graph: `change` is add, remove or reweight; nodes are ordinals of the INDEX segment."""

    change: str
    src: int
    dst: int
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class CutPartition:
    """One part of a partitioned graph."""

    partition_id: int
    node_count: int
    edge_cut_weight: float
    centroid: NDArray[np.float16] = field(repr=False)
    id_start: int = 0
    id_end: int = 0


@dataclass(frozen=True, slots=True)
class Overlay:
    """What changed between two epochs of a graph."""

    epoch: int
    parent_epoch: int
    parent_seg_id: int
    """The INDEX segment it changes, or the OVERLAY it comes after."""
    edges: tuple[Edge, ...] = ()
    partitions: tuple[CutPartition, ...] = ()
    timestamp_ns: int = 0
    rollback_offset: int = 0
    witness: OverlayWitness = _NO_WITNESS
    cut_edges: tuple[tuple[int, int], ...] = ()
    rollback: OverlayRollback = _NO_ROLLBACK


_CHANGES = {"add": records.EDGE_ADD, "remove": records.EDGE_REMOVE, "reweight": records.EDGE_REWEIGHT}
_CHANGE_NAMES = {number: name for name, number in _CHANGES.items()}


def encode_overlay(overlay: Overlay) -> bytes:
    """An OVERLAY payload."""
    head = records.OVERLAY_HEAD.pack(
        overlay.epoch, overlay.parent_epoch, overlay.parent_seg_id, overlay.rollback_offset,
        overlay.timestamp_ns, len(overlay.edges), len(overlay.partitions),
    )  # fmt: skip
    edges = b"".join(_pack_edge(edge) for edge in overlay.edges)
    parts = b"".join(
        records.OVERLAY_PARTITION.pack(part.partition_id, part.node_count, part.edge_cut_weight)
        + part.centroid.astype("<f2").tobytes()
        + records.OVERLAY_RANGE.pack(part.id_start, part.id_end)
        for part in overlay.partitions
    )
    witness = records.OVERLAY_WITNESS.pack(*overlay.witness)
    witness += b"".join(records.OVERLAY_RANGE.pack(*pair) for pair in overlay.cut_edges)
    pieces = [head + edges, parts, witness]
    padded = [piece + padding(len(piece), layout.ALIGNMENT) for piece in pieces]
    return b"".join(padded) + records.OVERLAY_ROLLBACK.pack(*overlay.rollback)


def _pack_edge(edge: Edge) -> bytes:
    packed = records.EDGE_DELTA.pack(_CHANGES[edge.change], edge.src, edge.dst)
    return packed if edge.weight is None else packed + records.EDGE_WEIGHT.pack(edge.weight)


def decode_overlay(payload: Buffer, dim: int, where: str = "") -> Overlay:
    """The changes of an OVERLAY payload of a store of `dim` dimensions."""
    view = byte_view(payload)
    if view.nbytes > records.OVERLAY_MAX_BYTES:
        raise LimitExceededError(f"an overlay of {view.nbytes} bytes; at most 1 MiB", path=where or None)
    cursor = PayloadCursor(view, "an OVERLAY payload", where)
    head = OverlayHead._make(records.OVERLAY_HEAD.unpack(cursor.take(records.OVERLAY_HEAD.size)))
    least = head.delta_count * records.EDGE_DELTA.size + head.partition_count * records.OVERLAY_PARTITION.size
    if least > view.nbytes:
        raise LimitExceededError("an overlay announces more than it holds", path=where or None)
    if head.parent_epoch >= head.epoch:
        raise CorruptLayoutError("an overlay does not come after its parent", path=where or None)
    edges = tuple(_edge(cursor) for _ in range(head.delta_count))
    cursor.align()
    parts = tuple(_partition(cursor, dim) for _ in range(head.partition_count))
    cursor.align()
    witness = OverlayWitness._make(records.OVERLAY_WITNESS.unpack(cursor.take(records.OVERLAY_WITNESS.size)))
    if witness.witness_type > records.OVERLAY_CERTIFICATE:
        raise CorruptLayoutError(f"unknown overlay witness {witness.witness_type}", path=where or None)
    has_edges = witness.witness_type == records.OVERLAY_CERTIFICATE
    packed = cursor.take(records.OVERLAY_RANGE.size * (witness.cut_edge_count if has_edges else 0))
    cut = tuple((int(a), int(b)) for a, b in records.OVERLAY_RANGE.iter_unpack(packed))
    cursor.align()
    rollback = OverlayRollback._make(
        records.OVERLAY_ROLLBACK.unpack(cursor.take(records.OVERLAY_ROLLBACK.size))
    )
    return Overlay(
        head.epoch, head.parent_epoch, head.parent_seg_id, edges, parts, head.timestamp_ns,
        head.rollback_offset, witness, cut, rollback,
    )  # fmt: skip


def _edge(cursor: PayloadCursor) -> Edge:
    delta = EdgeDelta._make(records.EDGE_DELTA.unpack(cursor.take(records.EDGE_DELTA.size)))
    change = _CHANGE_NAMES.get(delta.delta_type)
    if change is None:
        raise CorruptLayoutError(f"unknown change {delta.delta_type} of an edge", path=cursor.where)
    weight = None
    if change != "remove":
        weight = float(records.EDGE_WEIGHT.unpack(cursor.take(records.EDGE_WEIGHT.size))[0])
    return Edge(change, delta.src, delta.dst, weight)


def _partition(cursor: PayloadCursor, dim: int) -> CutPartition:
    number, nodes, weight = records.OVERLAY_PARTITION.unpack(cursor.take(records.OVERLAY_PARTITION.size))
    centroid = np.frombuffer(cursor.take(2 * dim), "<f2")
    start, end = records.OVERLAY_RANGE.unpack(cursor.take(records.OVERLAY_RANGE.size))
    return CutPartition(number, nodes, weight, centroid, start, end)
