"""The reading side of an open store: one way from parts of the file to everything in memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, vec
from warpdata.formats.rvf.access import AccessSketch
from warpdata.formats.rvf.graph import GraphPayload
from warpdata.formats.rvf.journal import DeleteRange
from warpdata.formats.rvf.layout import SegmentType
from warpdata.search.file import checked_input
from warpdata.search.file.appending import WriterState
from warpdata.search.file.content import Content
from warpdata.search.file.metadata import Metadata
from warpdata.search.file.rows import RowData
from warpdata.search.query.ann import Graph, GraphShape
from warpdata.search.query.cells import EFFORTS, Cells
from warpdata.search.query.copies import Copies
from warpdata.search.query.distance import has_ordinary_squares, is_ordinary, merge_nearest, nearest, prepared
from warpdata.search.query.parts import FileParts

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Answer = tuple[Ints, NDArray[Any]]

DEFAULT_EF = 64
PREFILTER_SHARE = 0.01
"""Below this share of allowed rows they are compared one by one: exact and faster than a walk."""
TRAVERSAL_SHARE = 0.2
"""Below this share the walk looks at proportionally more nodes."""
_NODES_PER_EF = 10
_MAX_EF = 4096
_PRODUCT_EFFORT = 4
"""Graphs of inner products are walked with so many times the effort: they hide more of their nodes."""
_PRODUCT_ROWS = 2048
"""Up to so many rows, comparing with all of them costs no more than such a walk."""
_MAX_RANGE = 1 << 22
_HITS_BUFFER = 256


class Memory:
    """Rows in memory with their index: answers by graph, by cells or by comparing with every row."""

    def __init__(self, rows: RowData, metric: str, graph: Graph | None, cells: Cells | None) -> None:
        self.rows = rows
        self.copies: Copies | None = None
        self._metric = metric
        self._base = prepared(rows.base_vectors, metric) if graph is None else graph.vectors
        few = metric == "ip" and rows.indexed <= _PRODUCT_ROWS
        self.graph = None if few or not is_ordinary(self._base) else graph
        self._cells = cells if self.graph is graph and graph is None else None
        self._tail = np.zeros((0, self._base.shape[1]), np.float32)
        self._version = -1
        self._live_bits: NDArray[np.uint8] | None = None
        self._live_share = 1.0
        self._is_plain = False
        """Whether every row is alive and in the graph."""

    def _refresh(self) -> None:
        """Follow changes of the rows."""
        if self._version == self.rows.version:
            return
        self._version = self.rows.version
        self._tail = prepared(self.rows.tail_vectors, self._metric)
        live = self.rows.live[: self.rows.indexed]
        self._live_bits = None if live.all() else np.packbits(live, bitorder="little")
        self._live_share = float(live.mean()) if len(live) else 0.0
        self._is_plain = self.graph is not None and self._live_bits is None and not len(self._tail)

    def search(self, queries: Floats, k: int, ef: int, allowed: Mask | None, exact: bool) -> Answer:
        """Rows and distances of the nearest of `allowed`, nearest first; row -1 where there are fewer than k."""
        self._refresh()
        if allowed is None and self._is_plain and not exact and has_ordinary_squares(queries):
            return self._walk(queries, min(k, len(self._base)), ef)
        live = self.rows.live if allowed is None else self.rows.live & allowed
        k = min(k, int(live.sum()))
        split = self.rows.indexed
        parts = [self._search_base(queries, k, max(ef, k), live[:split], allowed is not None, exact)]
        if len(self._tail):
            units = self._tail if self._metric == "cosine" else None
            rows, distances = nearest(queries, self.rows.tail_vectors, k, self._metric, live[split:], units)
            parts.append((np.where(rows < 0, -1, rows + split), distances))
        return merge_nearest(parts, k)

    def _search_base(
        self, queries: Floats, k: int, ef: int, live: Mask, filtered: bool, exact: bool
    ) -> Answer:
        """The nearest live rows that the index covers."""
        is_whole = not filtered and self._live_bits is None
        share = float(live.mean()) if filtered and len(live) else self._live_share
        has_index = self.graph is not None or self._cells is not None
        few = share * len(live) <= max(self._prefilter_share(ef) * len(live), 2 * k)
        if exact or few or not has_index or not has_ordinary_squares(queries):
            return self._compare(queries, k, None if is_whole else live)
        if self.graph is None:
            return self._search_cells(queries, k, ef, None if is_whole else live)
        if is_whole:
            return self._walk(queries, k, ef)
        bits = np.packbits(live, bitorder="little") if filtered else self._live_bits
        wide = ef if share > TRAVERSAL_SHARE else min(int(ef / share), max(ef, _MAX_EF))
        rows, distances = self._walk(queries, k, wide, live, bits)
        # A walk that met too few allowed nodes, or whose own neighbourhood is excluded, is not to be trusted.
        doubtful = (rows < 0).any(axis=1)
        if filtered:
            _, near = self._walk(queries, min(k, len(self._base)), ef)
            doubtful |= distances[:, 0] > near[:, -1]
        short = np.flatnonzero(doubtful)
        if len(short):
            rows[short], distances[short] = self._compare(queries[short], k, live)
        return rows, distances

    def _compare(self, queries: Floats, k: int, live: Mask | None) -> Answer:
        """Exact search among the indexed rows."""
        units = self._base if self._metric == "cosine" else None
        return nearest(queries, self.rows.base_vectors, k, self._metric, live, units)

    def _prefilter_share(self, ef: int) -> float:
        """Below which share of allowed rows comparing with each of them is better than a walk.

        A walk meets about ef / share nodes and their neighbours; the two cost the same where the square of
        the share is so many times ef / rows. Walks for inner products miss too much where few rows count.
        """
        even = (_NODES_PER_EF * ef / max(1, len(self._base))) ** 0.5
        return max(PREFILTER_SHARE, TRAVERSAL_SHARE if self._metric == "ip" else min(even, TRAVERSAL_SHARE))

    def _walk(
        self,
        queries: Floats,
        k: int,
        ef: int,
        live: Mask | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> Answer:
        """The graph's nearest rows; where `live` bounds them, `bits` is the same packed."""
        graph = self.graph
        assert graph is not None
        if self.copies is not None and live is not None:
            bits = np.packbits(self.copies.reachable(live), bitorder="little")
        effort = ef * (_PRODUCT_EFFORT if self._metric == "ip" else 1)
        rows, scores = graph.search(prepared(queries, self._metric), k, effort, bits)
        if self._metric == "cosine":
            scores = scores * np.float32(0.5) if graph.by_distance else 1 - scores
        elif self._metric == "ip":
            scores = -scores
        return (rows, scores) if self.copies is None else self.copies.expanded(rows, scores, live)

    def _search_cells(self, queries: Floats, k: int, ef: int, live: Mask | None) -> Answer:
        """Exact search in the nearest cells of each query."""
        cells = self._cells
        assert cells is not None
        sizes = None if live is None else np.add.reduceat(live.astype(np.int64), cells.starts)
        vectors = self.rows.base_vectors

        def gather(chosen: Ints) -> tuple[Ints, Floats]:
            spans = [np.arange(cells.starts[cell], cells.ends[cell]) for cell in chosen]
            rows = np.concatenate([np.zeros(0, np.int64), *spans])
            rows = rows if live is None else rows[live[rows]]
            return rows, vectors[rows]

        rows = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf)
        for number, query in enumerate(queries):
            _, names, near = cells.probe(query, k, ef, self._metric, gather, sizes)
            at, away = nearest(query[None], near, k, self._metric)
            rows[number, : at.shape[1]], distances[number, : at.shape[1]] = names[at[0]], away[0]
        return rows, distances

    def absorb(self, graph: Graph) -> Memory:
        """The same rows, all of them covered by a graph that was extended."""
        rows = RowData.__new__(RowData)
        rows.__dict__.update(self.rows.__dict__)
        rows.base_vectors = np.concatenate([self.rows.base_vectors, self.rows.tail_vectors])
        rows.indexed = len(rows.base_vectors)
        rows._tail = [rows.base_vectors[:0]]
        return Memory(rows, self._metric, graph, None)


class Searcher:
    """Answers queries about one content; follows the writer of the same process."""

    def __init__(self, content: Content, *, counts_hits: bool = False) -> None:
        self._content = content
        self._counts_hits = counts_hits
        self._rows: RowData | None = None
        self._memory: Memory | None = None
        self._hits: list[Ints] = []
        self._parts = FileParts(content)
        self._is_followed = False
        self._metadata: Metadata | None = None
        self._sketch: AccessSketch | None = None
        self._counted_before = 0
        self._keys: tuple[Metadata, dict[str, int]] | None = None

    # -- state ---------------------------------------------------------------------------------------

    @property
    def rows(self) -> RowData:
        """Every row, loaded once."""
        if self._rows is None:
            self._rows = self._content.load_rows()
        return self._rows

    @property
    def metadata(self) -> Metadata:
        """The columns of the metadata; their heads are read once."""
        if self._metadata is None:
            self._metadata = Metadata.of(self._content)
        return self._metadata

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted."""
        if not self._content.has_profile:
            return int(self.rows.live.sum())
        count = self._content.snapshot.live_count
        if count > sum(entry.payload_length for entry in self._content.row_entries):
            raise CorruptLayoutError(
                f"the manifest counts {count} vectors, more than there are bytes of them",
                path=self._content.reader.name,
            )
        return count

    def writer_state(self) -> WriterState:
        """What a writer must know, from the manifest and the few segments after the checkpoint."""
        content, snapshot = self._content, self._content.snapshot
        state = WriterState(self.live_count, content.profile.next_id, content.bitmap_ids)
        for number, entry in enumerate(snapshot.segments):
            if entry.seg_type == SegmentType.VEC and number >= snapshot.checkpointed:
                pieces = [block.ids for block in content.decode_blocks(entry)]
                ids = np.concatenate([np.zeros(0, np.uint64), *pieces])
                state.deleted = state.deleted[~np.isin(state.deleted, ids)]
                state.next_id = max(state.next_id, int(ids.max(initial=0)) + 1)
            elif entry.seg_type == SegmentType.JOURNAL:
                ranges = [e for e in content.journal(entry).entries if isinstance(e, DeleteRange)]
                if sum(r.end - r.start for r in ranges) > _MAX_RANGE:
                    known = self.rows.table.ids
                    gone = [known[(known >= r.start) & (known < r.end)] for r in ranges]
                else:
                    gone = [np.arange(r.start, r.end, dtype=np.uint64) for r in ranges]
                state.deleted = np.union1d(state.deleted, np.concatenate([np.zeros(0, np.uint64), *gone]))
        return state

    def follow(self, content: Content) -> None:
        """The store was changed by its own writer; what is loaded stays."""
        self._content = content
        self._parts = FileParts(content, self._parts.served, self._parts.probed)
        self._is_followed = True

    def added(self, ids: Ids, vectors: Floats, dtype: str) -> None:
        """Rows were appended; they are kept as they will be read back."""
        if self._rows is not None:
            order = np.argsort(ids, kind="stable")
            if dtype != "f32":
                vectors = vec.unpack_rows(vec.pack_rows(vectors, dtype), dtype, vectors.shape[1])
            self._rows.add(ids[order], vectors[order])

    def deleted(self, ids: Ids) -> None:
        """Rows were deleted."""
        if self._rows is not None:
            self._rows.delete(ids)

    def metadata_changed(self, payload: bytes) -> None:
        """A segment of metadata was committed; only now it counts."""
        self._metadata = self.metadata.with_segment(payload)

    def ids_of_keys(self, name: str) -> dict[str, int]:
        """The id of each live vector by its key; kept until something changes."""
        live = self.live_ids()
        if self._keys is None or self._keys[0] is not self.metadata or len(self._keys[1]) != len(live):
            values = self.metadata.column(name, live).to_pylist() if name in self.metadata.fields else []
            self._keys = (self.metadata, dict(zip(values, live.tolist(), strict=False)))
        return self._keys[1]

    def close(self) -> None:
        """Drop what is loaded."""
        self._memory = None
        self._parts = FileParts(self._content)

    # -- search --------------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int, ef: int | None, recall: float | None, where: Any, exact: bool
    ) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest vectors: from parts of the file at first, then from memory."""
        array = as_array(queries)
        matrix = checked_input.checked_matrix(array, self._content.dim, "queries")
        try:
            k, effort = operator.index(k), DEFAULT_EF if ef is None else operator.index(ef)
        except TypeError:
            raise TypeError(f"k and ef are whole numbers, not {k!r} and {ef!r}") from None
        if k < 1 or effort < 1:
            raise ValueError(f"k and ef are at least 1, not {k} and {effort}")
        if recall is not None:
            if ef is not None:
                raise ValueError("give either ef= or recall=")
            effort, exact = self._effort_for(recall, exact)
        if not len(matrix):
            shape = (0, min(k, self.live_count))
            return np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        answer = None
        is_cold = not exact and self._memory is None and self._rows is None and self.live_count
        if is_cold and self._parts.takes(len(matrix)):
            choose = None if where is None else lambda ids: self.allowed(where, ids)
            answer = self._parts.search(matrix, k, effort, choose)
        ids, distances = self._search_memory(matrix, k, effort, where, exact) if answer is None else answer
        with np.errstate(over="ignore"):
            away = distances.astype(np.float32, copy=False)
        return (ids[0], away[0]) if array.ndim == 1 else (ids, away)

    def _effort_for(self, recall: float, exact: bool) -> tuple[int, bool]:
        """The least effort whose measured recall reaches the wanted one for every kind of probe; else exact."""
        if not 0 < recall <= 1:
            raise ValueError(f"recall is above 0 and at most 1, not {recall}")
        for row in self._content.profile.efforts:
            if min(row[1:]) >= recall:
                return int(row[0]), exact
        return EFFORTS[-1], True

    def _search_memory(self, matrix: Floats, k: int, ef: int, where: Any, exact: bool) -> Answer:
        memory = self.warm()
        allowed = None
        if where is not None:
            table = memory.rows.table
            allowed = np.zeros(len(memory.rows), bool)
            allowed[table.rows[self.allowed(where, table.ids)]] = True
        rows, distances = memory.search(matrix, k, ef, allowed, exact)
        if self._counts_hits:
            self._hits.append(rows)
            if len(self._hits) >= _HITS_BUFFER:
                self._count_hits()
        ids = memory.rows.ids[rows]
        if rows.size and rows[:, -1].min() < 0:
            missing = rows < 0
            ids[missing], distances[missing] = -1, np.inf
        return ids, distances

    def allowed(self, where: Any, ids: Ids) -> Mask:
        """Which of these ids a filter allows: an SQL condition on metadata, or a list of ids."""
        if isinstance(where, str):
            return self.metadata.mask(where, ids)
        if not isinstance(where, np.ndarray | Sequence | Set) or isinstance(where, bytes):
            raise TypeError(f"where is an SQL condition or a list of ids, not {type(where).__name__}")
        return np.isin(ids, checked_input.checked_ids(sorted(where) if isinstance(where, Set) else where))

    def warm(self) -> Memory:
        """Everything in memory, loaded once."""
        if self._memory is None:
            self._memory = self._load_memory()
            self._parts = FileParts(self._content, self._parts.served, self._parts.probed)
        return self._memory

    def _load_memory(self) -> Memory:
        content, metric = self._content, self._content.profile.metric
        payload = content.graph()
        if payload is not None and payload.trailer is not None:
            self._rows = self._in_graph_order(payload)
        rows = self.rows
        cells = Cells.of(content) if rows.indexed else None
        if cells is not None:
            count = int(cells.ends[-1])
            if count > rows.indexed or (count < rows.indexed and not content.profile.graph_segments):
                raise CorruptLayoutError("the partitions do not fit their vectors", path=content.reader.name)
        is_graph = payload is not None and layout.INDEX_NAMES[payload.header.index_type] == "hnsw"
        if payload is None or not is_graph or not self._fits(payload, rows):
            return Memory(rows, metric, None, cells)
        wanted = content.profile.copies
        copies = Copies.of(rows.base_vectors) if wanted else None
        copies = copies if copies is not None and copies.count == wanted else None
        adjacency = payload.adjacency if copies is None else copies.unlinked(payload.adjacency)
        vectors = prepared(rows.base_vectors, metric)
        # Unit vectors are as far apart as they differ in direction, and distances separate near ones better.
        walked = "l2" if metric == "cosine" and vectors[vectors[:, 0] == 0].any(axis=1).all() else metric
        graph = Graph.restore(vectors, walked, adjacency, self._shape(payload))
        if cells is not None:
            cells.spread_entries(graph, copies)
        memory = Memory(rows, metric, graph, cells)
        memory.copies = copies
        return memory

    def _fits(self, payload: GraphPayload, rows: RowData) -> bool:
        """Whether the graph is that of the rows; one of a shipped program may be stale, ours may not."""
        fits = bool(rows.indexed == payload.header.node_count)
        if not fits and payload.trailer is None and not self._content.is_runtime:
            raise CorruptLayoutError("the graph does not fit its vectors", path=self._content.reader.name)
        return fits

    def _shape(self, payload: GraphPayload) -> GraphShape:
        trailer, entry = payload.trailer, self._content.profile.graph_entry
        if trailer is not None:
            return GraphShape(trailer.m0 // 2, trailer.entry_ordinal, trailer.max_layer)
        if entry:
            return GraphShape(payload.header.m, entry[0], entry[1])
        layer = self._content.layer_a
        if layer is None or not layer.entry_points:
            raise CorruptLayoutError("the graph has no entry point", path=self._content.reader.name)
        first = layer.entry_points[0]
        return GraphShape(payload.header.m, first.node_id, first.layer)

    def _in_graph_order(self, payload: GraphPayload) -> RowData:
        """Rows of a shipped program in the order of its graph; as they are if the graph is stale."""
        rows = self.rows
        assert payload.trailer is not None
        places = rows.table.find(payload.trailer.ids)
        if (places < 0).any() or len(places) != len(rows):
            return rows
        return RowData(payload.trailer.ids, rows.take(places), len(places))

    def absorb(self, least: int, share: float) -> Graph | None:
        """Extend the graph by the rows behind it, if they are so many and no two rows are equal."""
        memory = self.warm()
        rows = memory.rows
        late = len(rows) - rows.indexed
        if memory.graph is None or late < max(least, share * rows.indexed) or self._content.profile.copies:
            return None
        vectors = np.concatenate([rows.base_vectors, rows.tail_vectors])
        if not is_ordinary(vectors) or Copies.of(vectors).count:
            return None
        graph = memory.graph.extended(prepared(rows.tail_vectors, self._content.profile.metric))
        self._memory = memory.absorb(graph)
        self._rows = self._memory.rows
        cells = Cells.of(self._content)
        if cells is not None:
            cells.spread_entries(graph, None)
        return graph

    # -- single vectors ------------------------------------------------------------------------------

    @property
    def _reads_parts(self) -> bool:
        """Whether ids are looked up in the file; a writer keeps its rows at hand instead."""
        is_loaded = self._memory is not None or self._rows is not None or self._is_followed
        return not is_loaded and self._parts.knows_ids and self._parts.is_thrifty

    def exist(self, ids: Ids) -> Mask:
        """Which of these ids are of live vectors."""
        return self._parts.exist(ids) if self._reads_parts else np.asarray(self.rows.table.find(ids) >= 0)

    def take(self, ids: Ids) -> Floats:
        """The vectors of ids that exist, in this order."""
        vectors = self._parts.take(ids) if self._reads_parts else None
        return self.rows.take(self.rows.table.find(ids)) if vectors is None else vectors

    def live_ids(self) -> Ids:
        """The ids of all live vectors, ascending."""
        if self._reads_parts:
            return self._parts.live_ids
        table = self.rows.table
        return table.ids if table.alive.all() else table.ids[table.alive]

    # -- counters ------------------------------------------------------------------------------------

    @property
    def sketch(self) -> AccessSketch:
        """How often each partition was read."""
        if self._sketch is None:
            self._sketch = self._content.sketch()
            self._counted_before = self._sketch.total_accesses
        if self._parts.probed:
            self._sketch.add(np.concatenate(self._parts.probed))
            self._parts.probed.clear()
        return self._sketch

    def _count_hits(self) -> None:
        """Count the partitions of the indexed rows found since the last call."""
        if not self._hits:
            return
        rows = np.concatenate([hits.ravel() for hits in self._hits])
        self._hits.clear()
        layer = self._content.layer_a
        rows = rows[(rows >= 0) & (rows < self.rows.indexed)]
        if len(rows) and layer is not None:
            starts = layer.partitions["id_start"]
            self.sketch.add(np.searchsorted(starts, rows.astype(np.uint64), side="right") - 1)

    def new_accesses(self) -> int:
        """Accesses counted since the counters were read from the file."""
        self._count_hits()
        if self._sketch is None and not self._parts.probed:
            return 0
        return self.sketch.total_accesses - self._counted_before

    def hot_ids(self, limit: int) -> Ids:
        """Ids of the partitions read most, as many as may be hot."""
        self._count_hits()
        cells = Cells.of(self._content) if self.sketch.total_accesses else None
        if cells is None:
            return np.zeros(0, np.uint64)
        heat = self.sketch.estimate(np.arange(len(cells.starts)))
        hot = [cell for cell in np.argsort(-heat).tolist() if heat[cell] > layout.SKETCH_HOT]
        spans = [np.arange(cells.starts[cell], cells.ends[cell]) for cell in hot]
        rows = np.concatenate([np.zeros(0, np.int64), *spans])[:limit]
        alive: Ints = rows[self.rows.live[rows]]
        return np.asarray(self.rows.ids[alive], np.uint64)

    def stats(self) -> dict[str, Any]:
        """How queries are answered now."""
        profile = self._content.profile
        stage = "partitions" if self._parts.has_cells else "closed"
        expected = {int(row[0]): min(row[1:]) for row in profile.efforts}
        return {
            "index": None if profile.index is None else profile.index.kind,
            "codes": None if profile.codes is None else profile.codes.kind,
            "layers": [name for number, name in enumerate("ABC") if number in self._content.layers],
            "stage": "memory" if self._memory is not None else stage,
            "queries_from_parts": self._parts.served,
            "unindexed_segments": len(self._content.tail_entries),
            "recall": expected.get(DEFAULT_EF),
            "recall_by_effort": expected,
        }
