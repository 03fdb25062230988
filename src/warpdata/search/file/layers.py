"""The layers of a vector index as payloads: A for the first query, B for the next ones, C for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf.access import HotSet, encode_hot
from warpdata.formats.rvf.graph import (
    Adjacency,
    LayerA,
    Offsets,
    encode_graph,
    encode_layer_a,
    make_partitions,
)
from warpdata.formats.rvf.layout import (
    ENTRY_POINT,
    INDEX_HEADER,
    PARTITION,
    ROOT_POINTER,
    Row,
)
from warpdata.formats.rvf.manifest import Root
from warpdata.search.file.profile import IndexPlan, Profile
from warpdata.search.query.ann import Graph
from warpdata.search.query.cells import Cells
from warpdata.search.query.copies import Copies
from warpdata.search.query.distance import nearest, prepared

if TYPE_CHECKING:
    from warpdata.search.file.rewrite import Arrangement, LiveRows

Ints = NDArray[np.int64]

_TOP_LEVEL = 2
"""Layer A holds the lists of this level and above."""
_HUB_LEVEL = 1
"""Layer B holds the ground lists of nodes that reach this level, and of hot nodes."""


@dataclass(frozen=True, slots=True)
class IndexPayloads:
    """Encoded layers, and what the root must know about them."""

    node_count: int
    graphs: dict[int, bytes]
    """Layer B and C, by number."""
    layer_a: bytes | None = None
    offsets: Offsets | None = None
    counts: tuple[int, int, int] = (0, 0, 0)
    """Entry points, top nodes, centroids."""
    hot: bytes | None = None
    hot_count: int = 0
    probe_share: float = 0.0
    copies: int = 0

    def pointed(self, root: Root, seg_offset: int) -> Root:
        """The root with its pointers into layer A."""
        assert self.offsets is not None
        entries, top, centroids = self.counts
        return replace(
            root,
            entrypoint=ROOT_POINTER(seg_offset, self.offsets[0], entries),
            toplayer=ROOT_POINTER(seg_offset, self.offsets[1], top),
            centroid=ROOT_POINTER(seg_offset, self.offsets[2], centroids),
        )


def index_payloads(
    rows: LiveRows, profile: Profile, arranged: Arrangement, row_segments: list[tuple[Row, int]]
) -> IndexPayloads | None:
    """The layers of the planned index over rows in their final order."""
    plan, count = profile.index, len(rows.ids)
    if plan is None or not count:
        return None
    if plan.kind == "flat" or arranged.centroids is None:
        return IndexPayloads(count, {2: _flat_payload(plan)})
    built = _built(rows, profile, plan) if plan.kind == "hnsw" else None
    adjacency = None if built is None else built.adjacency
    graphs = {} if adjacency is None else _graph_payloads(plan, adjacency, rows)
    layer = _layer_a(plan, arranged, row_segments, built)
    payload, offsets = encode_layer_a(layer)
    top = sum(len(nodes) for nodes in layer.top_layers)
    hot = _hot_set(rows, adjacency, plan)
    return IndexPayloads(
        count, graphs, payload, offsets, (len(layer.entry_points), top, len(layer.centroids)),
        None if hot is None else encode_hot(hot), 0 if hot is None else len(hot.ids),
        _probe_share(rows, profile, arranged), 0 if built is None else built.copies,
    )  # fmt: skip


def _probe_share(rows: LiveRows, profile: Profile, arranged: Arrangement) -> float:
    assert arranged.centroids is not None
    starts, ends = arranged.bounds[:-1], arranged.bounds[1:]
    cells = Cells(arranged.centroids, arranged.cells, starts, ends)
    return measured_share(prepared(rows.vectors, profile.metric), cells, profile.metric)


def _flat_payload(plan: IndexPlan) -> bytes:
    """A flat index says only that every search is exact."""
    header = INDEX_HEADER(records.INDEX_KINDS["flat"], records.LAYER_C, 0, plan.ef_construction, 0)
    none = np.zeros(0, np.int64)
    return encode_graph(header, Adjacency(0, none, none, none))


@dataclass(frozen=True, slots=True)
class _Built:
    """A graph of all rows, where walks begin, and how many rows are copies."""

    adjacency: Adjacency
    entry: Row
    copies: int


def _built(rows: LiveRows, profile: Profile, plan: IndexPlan) -> _Built:
    """A graph of the distinct vectors, with the others hanging on it."""
    vectors = prepared(rows.vectors, profile.metric)
    copies = Copies.of(rows.vectors)
    distinct = vectors if not copies.count else np.ascontiguousarray(vectors[copies.is_first])
    graph = Graph.build(distinct, profile.metric, plan.m, plan.ef_construction)
    adjacency, entry = graph.adjacency(), graph.shape.entry_point
    if copies.count:
        adjacency = copies.linked(adjacency, vectors, plan.m)
        entry = int(np.flatnonzero(copies.is_first)[entry])
    return _Built(adjacency, ENTRY_POINT(entry, graph.shape.max_level), copies.count)


def _header(plan: IndexPlan, layer: int, count: int) -> Row:
    return INDEX_HEADER(records.INDEX_KINDS[plan.kind], layer, plan.m, plan.ef_construction, count)


def _graph_payloads(plan: IndexPlan, adjacency: Adjacency, rows: LiveRows) -> dict[int, bytes]:
    count = adjacency.node_count
    whole = encode_graph(_header(plan, records.LAYER_C, count), adjacency)
    chosen = (adjacency.layer_counts > _HUB_LEVEL) | np.isin(rows.ids, rows.hot_ids)
    return {
        2: whole,
        1: encode_graph(_header(plan, records.LAYER_B, count), _ground_lists(adjacency, chosen)),
    }


def _ground_lists(adjacency: Adjacency, chosen: NDArray[np.bool_]) -> Adjacency:
    """Only the ground lists of the chosen nodes."""
    counts = adjacency.layer_counts
    ground = np.cumsum(counts) - counts
    lists = ground[chosen]
    sizes = adjacency.sizes[lists]
    begins = np.cumsum(sizes) - sizes
    at = np.repeat(adjacency.starts[lists] - begins, sizes) + np.arange(int(sizes.sum()))
    return Adjacency(adjacency.node_count, chosen.astype(np.int64), sizes, adjacency.neighbors[at])


def _layer_a(
    plan: IndexPlan,
    arranged: Arrangement,
    row_segments: list[tuple[Row, int]],
    built: _Built | None,
) -> LayerA:
    assert arranged.centroids is not None
    return LayerA(
        _header(plan, records.LAYER_A, len(arranged.order)), () if built is None else (built.entry,),
        0 if built is None else built.entry.layer, () if built is None else _top_layers(built.adjacency),
        arranged.centroids.astype(np.float16), make_partitions(_partitions(arranged, row_segments)),
    )  # fmt: skip


def _partitions(arranged: Arrangement, row_segments: list[tuple[Row, int]]) -> list[Row]:
    places = [(entry.segment_id, n) for entry, blocks in row_segments for n in range(blocks)]
    bounds = arranged.bounds.tolist()
    return [
        PARTITION(cell, start, end, segment_id, block)
        for cell, start, end, (segment_id, block) in zip(
            arranged.cells.tolist(), bounds[:-1], bounds[1:], places, strict=True
        )
    ]


def _top_layers(adjacency: Adjacency) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]:
    """The lists of the upper levels, from the lowest of them to the top."""
    counts = adjacency.layer_counts
    first, starts = np.cumsum(counts) - counts, adjacency.starts
    ends = starts + adjacency.sizes
    layers = []
    for level in range(_TOP_LEVEL, int(counts.max(initial=0))):
        nodes = np.flatnonzero(counts > level)
        lists = [
            adjacency.neighbors[starts[at] : ends[at]].tolist() for at in (first[nodes] + level).tolist()
        ]
        layers.append(tuple((node, tuple(each)) for node, each in zip(nodes.tolist(), lists, strict=True)))
    return tuple(layers)


def _hot_set(rows: LiveRows, adjacency: Adjacency | None, plan: IndexPlan) -> HotSet | None:
    """Hot rows as f16 with the ids of their neighbours."""
    chosen = np.flatnonzero(np.isin(rows.ids, rows.hot_ids))
    if not len(chosen):
        return None
    empty = np.zeros(0, np.uint64)
    neighbors = [empty] * len(chosen)
    if adjacency is not None:
        counts = adjacency.layer_counts
        ground, starts = np.cumsum(counts) - counts, adjacency.starts
        neighbors = [
            rows.ids[adjacency.neighbors[starts[at] : starts[at] + adjacency.sizes[at]][: plan.m]]
            for at in ground[chosen].tolist()
        ]
    vectors = np.clip(rows.vectors[chosen], -65504, 65504).astype(np.float16)
    return HotSet(rows.ids[chosen], vectors, tuple(neighbors), plan.m, "f16")


Floats = NDArray[np.float32]

_SAMPLE = 128
_NEIGHBORS = 11
_COVERED = 0.99
_MARGIN = 1.0
_LEAST_SHARE = 0.002


def measured_share(vectors: Floats, cells: Cells, metric: str, *, seed: int = 1) -> float:
    """The share of rows, nearest cells first, that holds nearly all true neighbours of sampled vectors."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(vectors), min(_SAMPLE, len(vectors)), replace=False))
    queries = np.ascontiguousarray(vectors[chosen])
    rows, _ = nearest(queries, vectors, min(_NEIGHBORS, len(vectors)), metric)
    sizes = cells.ends - cells.starts
    needed = []
    for query, found in zip(queries, rows, strict=True):
        order = cells.order(query, metric)
        reached = np.empty(len(order), np.int64)
        reached[order] = np.cumsum(sizes[order])
        needed.append(reached[np.searchsorted(cells.starts, found, side="right") - 1])
    wanted = float(np.quantile(np.concatenate(needed), _COVERED))
    return float(min(1.0, max(_LEAST_SHARE, _MARGIN * wanted / len(vectors))))
