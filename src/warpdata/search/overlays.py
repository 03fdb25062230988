"""Overlays of a graph: which belong to it, and the graph they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from warpdata.errors import CorruptLayoutError, LimitExceededError
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads.graph import Adjacency
from warpdata.formats.rvf.payloads.overlay import Edge, Overlay, decode_overlay

if TYPE_CHECKING:
    from warpdata.search.content import Content


def overlays(content: Content) -> list[tuple[int, Overlay]]:
    """Every overlay of a state with the id of its segment, in order."""
    return [
        (entry.segment_id, decode_overlay(content.read(entry), content.dim, content.reader.name))
        for entry in content.snapshot.of_type(SegmentType.OVERLAY)
    ]


def overlays_of(content: Content, segment_id: int) -> list[Overlay]:
    """The overlays that change the graph of an INDEX segment: a chain, each on the one before."""
    chain: list[Overlay] = []
    last, changed = segment_id, set()
    for number, overlay in overlays(content):
        if overlay.parent_seg_id in changed:
            raise CorruptLayoutError("two overlays change the same graph", path=content.reader.name)
        if overlay.parent_seg_id != last:
            continue
        changed.add(last)
        if chain and overlay.parent_epoch != chain[-1].epoch:
            raise CorruptLayoutError("an overlay does not follow the one before", path=content.reader.name)
        chain.append(overlay)
        last = number
    if len(chain) > records.OVERLAY_MAX_CHAIN:
        raise LimitExceededError(f"a chain of {len(chain)} overlays; at most 8", path=content.reader.name)
    return chain


def overlaid(adjacency: Adjacency, chain: Sequence[Overlay], room: int, where: str) -> Adjacency:
    """The graph after these changes of its ground lists; a list takes at most `room` neighbours.

    Lists of neighbours have no weights, so an edge that is weighted anew stays as it is.
    """
    changes = [edge for overlay in chain for edge in overlay.edges if edge.change != "reweight"]
    if not changes:
        return adjacency
    _check(changes, adjacency, where)
    ground = np.cumsum(adjacency.layer_counts) - adjacency.layer_counts
    pieces = np.split(adjacency.neighbors, np.cumsum(adjacency.sizes)[:-1])
    for edge in changes:
        at = int(ground[edge.src])
        held = pieces[at]
        if edge.change == "remove":
            pieces[at] = held[held != edge.dst]
        elif edge.dst not in held and edge.dst != edge.src and len(held) < room:
            pieces[at] = np.sort(np.append(held, edge.dst))
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    return Adjacency(adjacency.node_count, adjacency.layer_counts, sizes, np.concatenate(pieces))


def _check(changes: Sequence[Edge], adjacency: Adjacency, where: str) -> None:
    if any(max(edge.src, edge.dst) >= adjacency.node_count for edge in changes):
        raise CorruptLayoutError("an overlay names a node that does not exist", path=where)
    if any(not adjacency.layer_counts[edge.src] for edge in changes):
        raise CorruptLayoutError("an overlay changes a node without neighbour lists", path=where)
