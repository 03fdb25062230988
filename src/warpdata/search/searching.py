"""The reading side of an open store: partial reads first, everything in memory later, filters, counters."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads import vec
from warpdata.formats.rvf.payloads.graph import Adjacency, GraphPayload
from warpdata.formats.rvf.payloads.journal import DeleteRange, UpdateField
from warpdata.formats.rvf.payloads.meta import MetaPayload
from warpdata.formats.rvf.payloads.sketch import AccessSketch
from warpdata.search import checked_input
from warpdata.search.ann import Graph, GraphShape
from warpdata.search.appending import WriterState
from warpdata.search.content import Content
from warpdata.search.copies import Copies
from warpdata.search.in_memory import HITS_BUFFER, Cells, MemorySearch
from warpdata.search.metadata import MetadataTable
from warpdata.search.metric import is_ordinary, prepared
from warpdata.search.overlays import overlaid, overlays_of
from warpdata.search.partial_reads import PartialReader
from warpdata.search.probing import cells_of
from warpdata.search.rows import RowData

if TYPE_CHECKING:
    from warpdata.search.conditions import MetadataColumns

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MAX_RANGE = 1 << 22
_F32 = np.dtype(np.float32)


class Searcher:
    """Answers queries about one content; follows the writer of the same process."""

    def __init__(self, content: Content, *, counts_hits: bool = False) -> None:
        self._content = content
        self._counts_hits = counts_hits
        self._dim = content.dim
        self._rows: RowData | None = None
        self._memory: MemorySearch | None = None
        self._probed: list[Ints] = []
        self._partial = PartialReader(content, self._probed)
        self._is_followed = False
        self._metadata: MetadataTable | None = None
        self._columns: tuple[int, MetadataColumns] | None = None
        self._sketch: AccessSketch | None = None
        self._counted_before = 0

    # -- state ---------------------------------------------------------------------------------------

    @property
    def rows(self) -> RowData:
        """Every row, loaded once."""
        if self._rows is None:
            self._rows = self._content.load_rows()
        return self._rows

    @property
    def metadata(self) -> MetadataTable:
        """Every record of metadata, loaded once."""
        if self._metadata is None:
            self._metadata = self._content.load_metadata()
        return self._metadata

    @property
    def has_metadata(self) -> bool:
        """Whether any vector may have metadata."""
        kinds = {entry.seg_type for entry in self._content.snapshot.segments}
        return bool(kinds & {SegmentType.META, SegmentType.JOURNAL})

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted."""
        if not self._content.has_profile:
            return int(self.rows.live.sum())
        count = self._content.snapshot.live_count
        if count > self._content.row_bytes:
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
            late = number >= snapshot.checkpointed
            if entry.seg_type == SegmentType.VEC and late:
                pieces = [block.ids for block in content.decode_blocks(entry)]
                ids = np.concatenate([np.zeros(0, np.uint64), *pieces])
                state.deleted = state.deleted[~np.isin(state.deleted, ids)]
                state.next_id = max(state.next_id, int(ids.max(initial=0)) + 1)
            elif entry.seg_type == SegmentType.JOURNAL:
                state.deleted = np.union1d(state.deleted, self._deleted_by(entry))
        return state

    def _deleted_by(self, entry: Any) -> NDArray[np.uint64]:
        ranges = [e for e in self._content.journal(entry).entries if isinstance(e, DeleteRange)]
        if sum(r.end - r.start for r in ranges) > _MAX_RANGE:
            ids = self.rows.table.ids
            return np.concatenate([ids[(ids >= r.start) & (ids < r.end)] for r in ranges])
        pieces = [np.arange(r.start, r.end, dtype=np.uint64) for r in ranges]
        return np.concatenate([np.zeros(0, np.uint64), *pieces])

    def follow(self, content: Content) -> None:
        """The store was changed by its own writer; what is loaded stays."""
        self._content = content
        self._partial = PartialReader(content, self._probed, self._partial.served)
        self._is_followed = True

    def added(self, ids: NDArray[np.uint64], vectors: Floats) -> None:
        """Rows were appended."""
        if self._rows is not None:
            order = np.argsort(ids, kind="stable")
            self._rows.add(ids[order], vectors[order])

    def deleted(self, ids: NDArray[np.uint64]) -> None:
        """Rows were deleted."""
        if self._rows is not None:
            self._rows.delete(ids)

    def rounded(self, matrix: Floats) -> Floats:
        """Vectors as they will be read back."""
        dtype = self._content.profile.dtype
        return vec.unpack_rows(vec.pack_rows(matrix, dtype), dtype, matrix.shape[1])

    def metadata_changed(self, change: MetaPayload | list[UpdateField]) -> None:
        """A change of the metadata was committed; only now it counts."""
        if isinstance(change, MetaPayload):
            self.metadata.apply(change, self._content.reader.name)
        else:
            self.metadata.apply_journal(change, self._content.reader.name)
        self._columns = None

    def quick(self, query: Any, k: int, ef: int) -> tuple[Ints, Floats] | None:
        """The shortest way for one query of a warm store, without a lock; None if it does not apply."""
        memory = self._memory
        if memory is None or type(query) is not np.ndarray or query.dtype is not _F32:
            return None
        if query.ndim != 1 or len(query) != self._dim or type(k) is not int or type(ef) is not int:
            return None
        if not 0 < k <= ef:
            return None
        found = memory.quick(query, k, ef)
        if len(memory.quick_hits) >= HITS_BUFFER:
            self._count(memory.drain_hits())
        return found

    def close(self) -> None:
        """Forget what is loaded."""
        self._memory = None
        self._partial = PartialReader(self._content, [])

    # -- search --------------------------------------------------------------------------------------

    def search(self, queries: ArrayLike, k: int, ef: int, where: Any, exact: bool) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest vectors."""
        memory = self._memory
        if memory is None:
            self._content.check_comparable()
        matrix, is_one = self._queries(queries)
        k, ef = _checked_effort(k, ef)
        if not len(matrix):
            return _nothing(0, False, min(k, self.live_count))
        if memory is not None and where is None and not exact:
            memory.refresh()
            if memory.is_plain and k <= len(memory.rows.base_ids) and is_ordinary(matrix):
                rows, distances = memory.plain_search(matrix, k, ef)
                return self._answer(memory, rows, distances, is_one)
        return self._general(matrix, is_one, k, ef, where, exact)

    def _general(
        self, matrix: Floats, is_one: bool, k: int, ef: int, where: Any, exact: bool
    ) -> tuple[Ints, Floats]:
        if not exact and self._is_partial_query(len(matrix)):
            found = self._from_parts(matrix, k, ef, where)
            if found is not None:
                return _shaped(*found, is_one)
        memory = self.warm()
        allowed = None if where is None else self._mask(where)
        possible = (
            int((memory.rows.live & allowed).sum()) if allowed is not None else int(memory.rows.live.sum())
        )
        count = min(k, possible)
        if count == 0:
            return _nothing(len(matrix), is_one)
        rows, distances = memory.search(matrix, count, max(ef, count), allowed, exact)
        return self._answer(memory, rows, distances, is_one)

    def _answer(
        self, memory: MemorySearch, rows: Ints, distances: NDArray[Any], is_one: bool
    ) -> tuple[Ints, Floats]:
        table = memory.rows
        ids = table.base_ids[rows] if len(table) == table.indexed else table.ids[rows]
        if rows[0, -1] < 0 or (len(rows) > 1 and (rows[:, -1] < 0).any()):
            missing = rows < 0
            ids[missing], distances[missing] = -1, np.inf
        if memory.has_many_hits:
            self._count(memory.drain_hits())
        return _shaped(ids, distances, is_one)

    def _queries(self, queries: ArrayLike) -> tuple[Floats, bool]:
        array = as_array(queries)
        matrix = checked_input.checked_matrix(array, self._content.dim, "queries")
        return matrix, array.ndim == 1

    def _is_partial_query(self, count: int) -> bool:
        return self._is_unloaded and self.live_count > 0 and self._partial.takes(count)

    @property
    def _is_unloaded(self) -> bool:
        return self._memory is None and self._rows is None

    def _from_parts(self, matrix: Floats, k: int, ef: int, where: Any) -> tuple[Ints, NDArray[Any]] | None:
        """The answer out of a few partitions; None if everything should be loaded."""
        if where is None:
            count = min(k, self.live_count)
            found = self._partial.search(matrix, count, max(ef, count))
        else:
            allowed = self._partial.allowed(matrix, ef, lambda ids: self._chosen(where, ids.astype(np.int64)))
            if allowed is None:
                return None
            if not len(allowed.ids):
                return np.zeros((len(matrix), 0), np.int64), np.zeros((len(matrix), 0), np.float32)
            count = min(k, len(allowed.ids))
            found = self._partial.search(matrix, count, max(ef, count), allowed)
        return found

    def warm(self) -> MemorySearch:
        """Everything in memory, loaded once."""
        if self._memory is None:
            self._content.check_comparable()
            self._memory = self._load_memory()
            self._memory.counts_hits = self._counts_hits
            self._partial = PartialReader(self._content, self._probed, self._partial.served)
        return self._memory

    # -- single vectors ------------------------------------------------------------------------------

    @property
    def _reads_parts(self) -> bool:
        """Whether ids are looked up in the file; a writer keeps its rows at hand instead."""
        return (
            self._is_unloaded
            and not self._is_followed
            and self._partial.knows_ids
            and self._partial.is_thrifty
        )

    def exist(self, ids: NDArray[np.uint64]) -> Mask:
        """Which of these ids are of live vectors."""
        if self._reads_parts:
            return self._partial.exist(ids)
        return self.rows.table.find(ids) >= 0

    def take(self, ids: NDArray[np.uint64]) -> Floats:
        """The vectors of ids that exist, in this order."""
        found = self._partial.take(ids) if self._reads_parts else None
        return self.rows.take(self.rows.table.find(ids)) if found is None else found

    def live_ids(self) -> Ints:
        """The ids of all live vectors, ascending."""
        if self._reads_parts:
            return self._partial.live_ids.astype(np.int64)
        table = self.rows.table
        return table.ids[table.alive].astype(np.int64)

    def _load_memory(self) -> MemorySearch:
        content, metric = self._content, self._content.profile.metric
        payload = content.graph()
        if payload is not None and payload.trailer is not None:
            self._rows = self._in_graph_order(payload)
        rows = self.rows
        kind = None if payload is None else records.INDEX_NAMES[payload.header.index_type]
        graph, copies = None, None
        if payload is not None and kind == "hnsw" and self._fits(payload, rows):
            copies = self._copies(rows)
            adjacency = self._with_overlays(payload)
            adjacency = adjacency if copies is None else copies.unlinked(adjacency)
            vectors = prepared(rows.base_vectors, metric)
            # Unit vectors are as far apart as they differ in direction, and distances tell near ones apart better.
            walked = "l2" if metric == "cosine" and vectors[vectors[:, 0] == 0].any(axis=1).all() else metric
            graph = Graph.restore(vectors, walked, adjacency, self._shape(payload))
            self._spread_entries(graph, copies)
        return MemorySearch(rows, metric, graph, None if graph is not None else self._cells(), copies)

    def _cells(self) -> Cells | None:
        """The partitions of the indexed rows, where there are any."""
        content, count = self._content, self.rows.indexed
        if 0 not in content.layers or not count:
            return None
        cells = cells_of(content)
        if int(cells.ends[-1]) != count:
            raise CorruptLayoutError("the partitions do not fit their vectors", path=content.reader.name)
        return cells

    def _with_overlays(self, payload: GraphPayload) -> Adjacency:
        """The graph with what was changed since it was written."""
        entry = self._content.layers.get(2)
        chain = [] if entry is None else overlays_of(self._content, entry.segment_id)
        return overlaid(payload.adjacency, chain, 2 * payload.header.m, self._content.reader.name)

    def _copies(self, rows: RowData) -> Copies | None:
        """Who is equal to whom, where the graph was built of distinct vectors; the links of copies do otherwise."""
        wanted = self._content.profile.copies
        found = Copies.of(rows.base_vectors) if wanted else None
        return found if found is not None and found.count == wanted else None

    def _spread_entries(self, graph: Graph, copies: Copies | None) -> None:
        """Let walks begin in the cell of the query; where cells are few, at rows spread evenly over them as well."""
        cells = self._cells() if graph.by_distance else None
        if cells is None:
            return
        rows = cells.entries(graph.vectors)
        enough = math.isqrt(graph.count) // 2
        if len(rows) < enough:
            rows = np.append(rows, np.linspace(0, graph.count - 1, enough).astype(np.int64))
        graph.enter_at(np.unique(rows if copies is None else copies.first[rows]))

    def _fits(self, payload: GraphPayload, rows: RowData) -> bool:
        """Whether the graph is that of the rows; one of a shipped program may be stale, ours may not."""
        fits = rows.indexed == payload.header.node_count
        if not fits and payload.trailer is None and not self._content.is_runtime:
            raise CorruptLayoutError("the graph does not fit its vectors", path=self._content.reader.name)
        return fits

    def _shape(self, payload: GraphPayload) -> GraphShape:
        if payload.trailer is not None:
            trailer = payload.trailer
            return GraphShape(trailer.m0 // 2, trailer.entry_ordinal, trailer.max_layer)
        layer = self._content.layer_a
        if layer is None or not layer.entry_points:
            raise CorruptLayoutError("the graph has no entry point", path=self._content.reader.name)
        entry = layer.entry_points[0]
        return GraphShape(payload.header.m, entry.node_id, entry.layer)

    def _in_graph_order(self, payload: GraphPayload) -> RowData:
        """Rows of a shipped program in the order of its graph; as they are if the graph is stale."""
        rows = self.rows
        assert payload.trailer is not None
        found = rows.table.find(payload.trailer.ids)
        if (found < 0).any() or len(found) != len(rows):
            return rows
        return RowData(payload.trailer.ids, rows.take(found), len(found), ())

    def _mask(self, where: Any) -> Mask:
        """Which rows a filter lets through."""
        rows = self.rows
        if _is_id_list(where):
            return self._chosen(where, rows.ids)
        from warpdata.search.conditions import MetadataColumns

        if self._columns is None or self._columns[0] != rows.version:
            self._columns = (rows.version, MetadataColumns(self.metadata, rows.ids))
        return self._columns[1].mask(_condition(where))

    def _chosen(self, where: Any, ids: Ints) -> Mask:
        """Which of these ids a filter lets through."""
        if _is_id_list(where):
            wanted = sorted(where) if isinstance(where, Set) else where
            return np.isin(ids, checked_input.checked_ids(wanted).astype(np.int64))
        from warpdata.search.conditions import MetadataColumns

        return MetadataColumns(self.metadata, ids).mask(_condition(where))

    # -- counters ------------------------------------------------------------------------------------

    @property
    def sketch(self) -> AccessSketch:
        """How often each partition was asked for."""
        if self._sketch is None:
            self._sketch = self._content.sketch()
            self._counted_before = self._sketch.total_accesses
        if self._probed:
            self._sketch.add(np.concatenate(self._probed))
            self._probed.clear()
        return self._sketch

    def _count(self, rows: Ints) -> None:
        if 0 in self._content.layers:
            starts = self._content.need_layer_a().partitions["id_start"]
            self.sketch.add(np.searchsorted(starts, rows.astype(np.uint64), side="right") - 1)

    def new_accesses(self) -> int:
        """Accesses counted since the counters were read from the file."""
        self._count_rest()
        if self._sketch is None and not self._probed:
            return 0
        return self.sketch.total_accesses - self._counted_before

    def _count_rest(self) -> None:
        if self._memory is not None and (self._memory.hits or self._memory.quick_hits):
            self._count(self._memory.drain_hits())

    def hot_ids(self, limit: int) -> NDArray[np.uint64]:
        """Ids of the partitions asked for most, as many as may be hot."""
        none = np.zeros(0, np.uint64)
        self._count_rest()
        cells = self._cells() if self.sketch.total_accesses else None
        if cells is None:
            return none
        heat = self.sketch.estimate(np.arange(len(cells.starts)))
        hot = [cell for cell in np.argsort(-heat).tolist() if heat[cell] > records.SKETCH_HOT]
        spans = [np.arange(cells.starts[cell], cells.ends[cell]) for cell in hot]
        rows = np.concatenate([np.zeros(0, np.int64), *spans])[:limit]
        alive: Ints = rows[self.rows.live[rows]]
        found: NDArray[np.uint64] = self.rows.base_ids[alive].astype(np.uint64)
        return found

    def stats(self) -> dict[str, Any]:
        """How queries are answered now."""
        plan = self._content.profile.index
        codes = self._content.profile.codes
        stage = "memory" if self._memory is not None else "partitions" if self._partial.prober else "closed"
        return {
            "index": None if plan is None else plan.kind,
            "codes": None if codes is None else codes.kind,
            "layers": [name for number, name in enumerate("ABC") if number in self._content.layers],
            "stage": stage,
            "queries_from_parts": self._partial.served,
            "unindexed_segments": len(self._content.tail_entries),
        }


def _condition(where: Any) -> str:
    if not isinstance(where, str):
        raise TypeError(f"where is an SQL condition or a list of ids, not {type(where).__name__}")
    return where


def _is_id_list(where: Any) -> bool:
    return isinstance(where, np.ndarray | Sequence | Set) and not isinstance(where, str | bytes)


def _checked_effort(k: int, ef: int) -> tuple[int, int]:
    try:
        k, ef = operator.index(k), operator.index(ef)
    except TypeError:
        raise TypeError(f"k and ef are whole numbers, not {k!r} and {ef!r}") from None
    if k < 1 or ef < 1:
        raise ValueError(f"k and ef are at least 1, not {k} and {ef}")
    return k, ef


def _shaped(ids: Ints, distances: NDArray[Any], is_one: bool) -> tuple[Ints, Floats]:
    """Results as callers get them: distances in f32, one row for one query."""
    with np.errstate(over="ignore"):
        away = distances.astype(np.float32, copy=False)
    return (ids[0], away[0]) if is_one else (ids, away)


def _nothing(count: int, is_one: bool, k: int = 0) -> tuple[Ints, Floats]:
    ids, distances = np.zeros((count, k), np.int64), np.zeros((count, k), np.float32)
    return (ids[0], distances[0]) if is_one else (ids, distances)
