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
from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf import vec
from warpdata.formats.rvf.access import AccessSketch
from warpdata.formats.rvf.graph import GraphPayload
from warpdata.formats.rvf.journal import DeleteRange, UpdateField
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.meta import MetaPayload
from warpdata.search.file import checked_input
from warpdata.search.file.appending import WriterState
from warpdata.search.file.content import Content
from warpdata.search.file.metadata import MetadataTable
from warpdata.search.file.rows import RowData
from warpdata.search.query.ann import Graph, GraphShape
from warpdata.search.query.cells import Cells, cells_of
from warpdata.search.query.copies import Copies
from warpdata.search.query.distance import prepared
from warpdata.search.query.memory import MemorySearch
from warpdata.search.query.parts import PartialReader

if TYPE_CHECKING:
    from warpdata.search.query.conditions import MetadataColumns

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MAX_RANGE = 1 << 22
_HITS_BUFFER = 256


class Searcher:
    """Answers queries about one content; follows the writer of the same process."""

    def __init__(self, content: Content, *, counts_hits: bool = False) -> None:
        self._content = content
        self._counts_hits = counts_hits
        self._dim = content.dim
        self._rows: RowData | None = None
        self._memory: MemorySearch | None = None
        self._probed: list[Ints] = []
        self._hits: list[Ints] = []
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

    def close(self) -> None:
        """Forget what is loaded."""
        self._memory = None
        self._partial = PartialReader(self._content, [])

    # -- search --------------------------------------------------------------------------------------

    def search(self, queries: ArrayLike, k: int, ef: int, where: Any, exact: bool) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest vectors: from parts of the file at first, then from memory."""
        array = as_array(queries)
        matrix = checked_input.checked_matrix(array, self._dim, "queries")
        k, ef = _checked_effort(k, ef)
        if not len(matrix):
            return np.zeros((0, min(k, self.live_count)), np.int64), np.zeros(
                (0, min(k, self.live_count)), np.float32
            )
        found = None if exact or self._memory is not None else self._search_parts(matrix, k, ef, where)
        ids, distances = self._search_memory(matrix, k, ef, where, exact) if found is None else found
        with np.errstate(over="ignore"):
            away = distances.astype(np.float32, copy=False)
        return (ids[0], away[0]) if array.ndim == 1 else (ids, away)

    def _search_parts(self, matrix: Floats, k: int, ef: int, where: Any) -> tuple[Ints, NDArray[Any]] | None:
        """The answer out of a few partitions; None if everything should be loaded."""
        if self._rows is not None or self.live_count == 0 or not self._partial.takes(len(matrix)):
            return None
        choose = None if where is None else lambda ids: self._chosen(where, ids.astype(np.int64))
        return self._partial.search(matrix, k, ef, choose)

    def _search_memory(
        self, matrix: Floats, k: int, ef: int, where: Any, exact: bool
    ) -> tuple[Ints, NDArray[Any]]:
        memory = self.warm()
        allowed = None if where is None else self._mask(where)
        rows, distances = memory.search(matrix, k, ef, allowed, exact)
        table = memory.rows
        if self._counts_hits:
            self._hits.append(rows)
            if len(self._hits) >= _HITS_BUFFER:
                self._count_hits()
        ids = table.base_ids[rows] if len(table) == table.indexed else table.ids[rows]
        if rows.size and rows[:, -1].min() < 0:
            missing = rows < 0
            ids[missing], distances[missing] = -1, np.inf
        return ids, distances

    def warm(self) -> MemorySearch:
        """Everything in memory, loaded once."""
        if self._memory is None:
            self._memory = self._load_memory()
            self._partial = PartialReader(self._content, self._probed, self._partial.served)
        return self._memory

    # -- single vectors ------------------------------------------------------------------------------

    @property
    def _reads_parts(self) -> bool:
        """Whether ids are looked up in the file; a writer keeps its rows at hand instead."""
        return (
            self._memory is None
            and self._rows is None
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
            adjacency = payload.adjacency if copies is None else copies.unlinked(payload.adjacency)
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
        return fits  # type: ignore[no-any-return]

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
        from warpdata.search.query.conditions import MetadataColumns

        if self._columns is None or self._columns[0] != rows.version:
            self._columns = (rows.version, MetadataColumns(self.metadata, rows.ids))
        return self._columns[1].mask(_condition(where))

    def _chosen(self, where: Any, ids: Ints) -> Mask:
        """Which of these ids a filter lets through."""
        if _is_id_list(where):
            wanted = sorted(where) if isinstance(where, Set) else where
            return np.isin(ids, checked_input.checked_ids(wanted).astype(np.int64))
        from warpdata.search.query.conditions import MetadataColumns

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

    def _count_hits(self) -> None:
        """Count the partitions of the indexed rows found since the last call."""
        if not self._hits:
            return
        rows = np.concatenate([hits.ravel() for hits in self._hits])
        self._hits.clear()
        rows = rows[(rows >= 0) & (rows < self.rows.indexed)]
        if len(rows) and 0 in self._content.layers:
            starts = self._content.need_layer_a().partitions["id_start"]
            self.sketch.add(np.searchsorted(starts, rows.astype(np.uint64), side="right") - 1)

    def new_accesses(self) -> int:
        """Accesses counted since the counters were read from the file."""
        self._count_hits()
        if self._sketch is None and not self._probed:
            return 0
        return self.sketch.total_accesses - self._counted_before

    def hot_ids(self, limit: int) -> NDArray[np.uint64]:
        """Ids of the partitions asked for most, as many as may be hot."""
        none = np.zeros(0, np.uint64)
        self._count_hits()
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
        stage = (
            "memory" if self._memory is not None else "partitions" if self._partial.has_cells else "closed"
        )
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
