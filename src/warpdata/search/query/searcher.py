"""The reading side of an open store: its rows as two parts, indexed ones and later ones, and the merge of both."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from warpdata.bytekit.arrays import as_array
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, vec
from warpdata.formats.rvf.access import AccessSketch
from warpdata.formats.rvf.graph import Adjacency, GraphPayload
from warpdata.formats.rvf.journal import DeleteRange
from warpdata.formats.rvf.layout import SegmentType
from warpdata.search.file import writing
from warpdata.search.file.content import Content, Loaded
from warpdata.search.file.metadata import Metadata
from warpdata.search.file.writing import WriterState
from warpdata.search.query.ann import Copies, Graph, GraphShape, has_faiss
from warpdata.search.query.distance import WalkSpace, is_ordinary, merge_nearest
from warpdata.search.query.part import (
    EFFORTS,
    MAX_PROBE_SHARE,
    Answer,
    Cells,
    Floats,
    Ids,
    Ints,
    Mask,
    RowPart,
)

DEFAULT_EF = 64
COLD_QUERIES = 8
"""This many queries are answered from blocks of the file; then everything is loaded once."""
_MAX_RANGE = 1 << 22
_HITS_BUFFER = 256
_MOST_SOURCES = 64
"""Metadata that came in so many pieces are read again once the file holds them in few."""


class Searcher:
    """Answers queries about one content; follows the writer of the same process."""

    def __init__(self, content: Content, *, counts_hits: bool = False) -> None:
        self._content = content
        self._counts_hits = counts_hits
        self._base: RowPart | None = None
        self._tail: RowPart | None = None
        self._is_warm = False
        self._served = 0
        self._hits: list[Ints] = []
        self._metadata: Metadata | None = None
        self._sketch: AccessSketch | None = None
        self._counted_before = 0
        self._keys: dict[str, int] | None = None
        self._live: tuple[tuple[int, int, int], Ids] | None = None
        self._put_off = 0

    # -- rows ----------------------------------------------------------------------------------------

    @property
    def base(self) -> RowPart:
        """The rows that the index covers, or all rows that were there when the file was last rewritten."""
        if self._base is None:

            def is_replaced(ids: Ids) -> Mask:
                """Which ids of indexed rows were deleted or have a newer row."""
                dead = self._content.is_dead(ids)
                return dead | np.isin(ids, self.tail.ids) if self.tail.count else dead

            self._base = RowPart.of_file(self._content, is_replaced)
        return self._base

    @property
    def tail(self) -> RowPart:
        """The rows that came later; all of them in files of other programs."""
        if self._tail is None:
            content = self._content
            rows = content.load_rows(content.late_entries if content.base_entries else None)
            self._tail = RowPart(content.profile.metric, rows)
        return self._tail

    @property
    def metadata(self) -> Metadata:
        """The columns of the metadata; their heads are read once."""
        if self._metadata is None:
            self._metadata = Metadata.of(self._content)
        return self._metadata

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted."""
        if self._base is not None and self._base.knows_ids and self._tail is not None:
            return self._base.live_count + self._tail.live_count
        if not self._content.has_profile:
            return self.tail.live_count
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
                deleted = state.deleted[~np.isin(state.deleted, ids)]
                state.is_revived |= len(deleted) < len(state.deleted)
                state.deleted, state.next_id = deleted, max(state.next_id, int(ids.max(initial=0)) + 1)
            elif entry.seg_type == SegmentType.JOURNAL:
                ranges = [e for e in content.journal(entry).entries if isinstance(e, DeleteRange)]
                if sum(r.end - r.start for r in ranges) > _MAX_RANGE:
                    self.base.know_ids()
                    known = np.concatenate([self.base.ids, self.tail.ids])
                    gone = [known[(known >= r.start) & (known < r.end)] for r in ranges]
                else:
                    gone = [np.arange(r.start, r.end, dtype=np.uint64) for r in ranges]
                state.deleted = np.union1d(state.deleted, np.concatenate([np.zeros(0, np.uint64), *gone]))
        return state

    def follow(self, content: Content) -> None:
        """The store was changed by its own writer; loaded rows stay."""
        self._content = content

    def added(self, ids: Ids, vectors: Floats, names: list[str] | None) -> None:
        """Rows were appended; they are kept as they will be read back."""
        if self._keys is not None:
            self._keys.update(zip(names or (), ids.tolist(), strict=False))
        if self._tail is None:
            return
        dtype = self._content.profile.dtype
        if dtype != "f32":
            vectors = vec.unpack_rows(vec.pack_rows(vectors, dtype), dtype, vectors.shape[1])
        if self._base is not None:
            self._base.delete(ids)
        order = np.argsort(ids, kind="stable")
        self._tail.append(ids[order], vectors[order])

    def deleted(self, ids: Ids) -> None:
        """Rows were deleted."""
        if self._keys is not None:
            for name in self.keys_of(ids).values():
                self._keys.pop(name, None)
        for part in (self._base, self._tail):
            if part is not None:
                part.delete(ids)

    def metadata_changed(self, payload: bytes) -> None:
        """A segment of metadata was committed; only now it counts."""
        is_folded = not self._content.snapshot.log_commits and len(self.metadata.sources) > _MOST_SOURCES
        self._metadata = None if is_folded else self.metadata.with_segment(payload)

    def ids_of_keys(self) -> dict[str, int]:
        """The id of each live vector by its key; kept up with changes."""
        if self._keys is None:
            name, live = self._content.profile.key, self.live_ids()
            values = self.metadata.column(name, live).to_pylist() if name in self.metadata.fields else []
            self._keys = dict(zip(values, live.tolist(), strict=False))
        return self._keys

    def keys_of(self, ids: Ids) -> dict[int, str]:
        """The key of each of these ids that is there."""
        name, live = self._content.profile.key, ids[self.exist(ids)]
        rows = self.metadata.records(live, [name]) if len(live) else []
        return {number: row[name] for number, row in zip(live.tolist(), rows, strict=True)}

    def close(self) -> None:
        """Drop what is loaded."""
        self._base = self._tail = None

    # -- single vectors ------------------------------------------------------------------------------

    def find(self, ids: Ids) -> tuple[Ints, Ints]:
        """The live row of each id among the indexed rows, and among the later ones; -1 where it is in the other."""
        late = self.tail.find(ids)
        return np.where(late < 0, self.base.find(ids), -1), late

    def exist(self, ids: Ids) -> Mask:
        """Which of these ids are of live vectors."""
        base, late = self.find(ids)
        return np.asarray((base >= 0) | (late >= 0))

    def take(self, ids: Ids) -> Floats:
        """The vectors of ids that exist, in this order."""
        base, late = self.find(ids)
        out = np.empty((len(ids), self._content.dim), np.float32)
        out[base >= 0] = self.base.take(base[base >= 0])
        out[late >= 0] = self.tail.vectors[late[late >= 0]]
        return out

    def live_ids(self) -> Ids:
        """The ids of all live vectors, ascending; the same array until something changes."""
        self.base.know_ids()
        state = self.tail.count, self.tail.live_count, self.base.live_count
        if self._live is None or self._live[0] != state:
            parts = [part.live_ids() for part in (self.base, self.tail) if part.live_count]
            ids = parts[0] if len(parts) == 1 else np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
            self._live = state, ids
        return self._live[1]

    def live_rows(self) -> tuple[Ids, Floats]:
        """Ids and vectors of all live rows, indexed ones first."""
        self.base.load()
        parts = self.base, self.tail
        ids = np.concatenate([part.ids[part.live] for part in parts])
        return ids, np.concatenate([part.vectors[part.live] for part in parts])

    def graph_ids(self) -> Ids | None:
        """The ids of the nodes of the graph; None unless it covers exactly the live rows."""
        self.warm()
        is_covered = not self.tail.count and self.base.live_count == self.base.count
        return self.base.ids if is_covered and not self._content.profile.copies else None

    def graph(self) -> tuple[Adjacency, GraphShape] | None:
        """The graph in memory; None unless it is one of exactly the live rows."""
        is_there = self._content.profile.index is not None and has_faiss() and self.graph_ids() is not None
        graph = self.base.graph if is_there else None
        return None if graph is None else (graph.adjacency(), graph.shape)

    # -- search --------------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int, ef: int | None, recall: float | None, where: Any, exact: bool
    ) -> tuple[Ints, Floats]:
        """Ids and distances of the nearest vectors: from blocks of the file at first, then from memory."""
        array = as_array(queries)
        matrix = writing.checked_matrix(array, self._content.dim, "queries")
        k = writing.whole_number(k, "k")
        effort = DEFAULT_EF if ef is None else writing.whole_number(ef, "ef")
        if k < 1 or effort < 1:
            raise ValueError(f"k and ef are at least 1, not {k} and {effort}")
        if recall is not None:
            if ef is not None:
                raise ValueError("give either ef= or recall=")
            if not 0 < recall <= 1:
                raise ValueError(f"recall is above 0 and at most 1, not {recall}")
            # The least effort that reaches it for every kind of probe; else every vector is compared.
            enough = [row for row in self._content.profile.efforts if min(row[1:]) >= recall]
            effort, exact = (int(enough[0][0]), exact) if enough else (EFFORTS[-1], True)
        if len(matrix):
            ids, distances = self._nearest(matrix, k, effort, where, exact)
        else:
            shape = (0, min(k, self.live_count))
            ids, distances = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        away = distances if distances.dtype == np.float32 else writing.to_f32(distances)
        return (ids[0], away[0]) if array.ndim == 1 and len(matrix) else (ids, away)

    def _nearest(self, queries: Floats, k: int, ef: int, where: Any, exact: bool) -> Answer:
        """Both parts search their rows that the filter allows, and the nearest of both count."""
        few = self._served + len(queries) <= COLD_QUERIES and self.live_count > 0
        is_narrow = self._content.profile.probe_share <= MAX_PROBE_SHARE
        if not self._is_warm and (exact or not few or self.base.cells is None or not is_narrow):
            self.warm()
        masks: tuple[Mask | None, Mask | None] = (None, None)
        total = self.live_count
        if where is not None:
            masks, total = self._masks(where)
        k = min(k, total)
        if not k:
            return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0))
        answer = self.base.search(queries, k, max(ef, k), masks[0], exact)
        if answer is None:  # parts of the file do not suffice
            self.warm()
            return self._nearest(queries, k, ef, where, exact)
        if not self._is_warm:
            self._served += len(queries)
        if self._counts_hits:
            self._hits.append(answer[0])
            if len(self._hits) >= _HITS_BUFFER:
                self._count_hits()
        early = self.base.name_rows(answer)
        if not self.tail.count:
            return early
        late = self.tail.search(queries, k, ef, masks[1], exact=True)
        assert late is not None
        return merge_nearest([early, self.tail.name_rows(late)], k)

    def _masks(self, where: Any) -> tuple[tuple[Mask, Mask], int]:
        """The rows of both parts that a filter allows, and how many there are."""
        live = self.live_ids()
        ids = live[self.allowed(where, live)]
        masks = np.zeros(self.base.count, bool), np.zeros(self.tail.count, bool)
        for mask, rows in zip(masks, self.find(ids), strict=True):
            mask[rows[rows >= 0]] = True
        return masks, len(ids)

    def allowed(self, where: Any, ids: Ids) -> Mask:
        """Which of these ids a filter allows: an SQL condition on metadata, or a list of ids."""
        if isinstance(where, str):
            return self.metadata.mask(where, ids)
        if not isinstance(where, np.ndarray | Sequence | Set) or isinstance(where, bytes):
            raise TypeError(f"where is an SQL condition or a list of ids, not {type(where).__name__}")
        wanted = writing.checked_ids(sorted(where) if isinstance(where, Set) else where)
        return np.isin(ids, wanted)

    # -- the graph -----------------------------------------------------------------------------------

    def warm(self) -> None:
        """Everything in memory, with the graph; loaded once."""
        if self._is_warm:
            return
        content, payload = self._content, self._content.graph()
        self.base.load()
        cells = self.base.cells
        if payload is not None and self._fits(payload):
            vectors, wanted = self.base.vectors, content.profile.copies
            copies = Copies.of(vectors) if wanted else None
            copies = copies if copies is not None and copies.count == wanted else None
            adjacency = payload.adjacency if copies is None else copies.unlinked(payload.adjacency)
            space = WalkSpace.of(vectors, content.profile.metric)
            graph = Graph.restore(space.place(vectors), space, adjacency, self._shape(payload))
            if cells is not None:
                cells.spread_entries(graph, copies)
            self.base.with_graph(graph, copies)
        self._is_warm = True

    def _fits(self, payload: GraphPayload) -> bool:
        """Whether the graph is one of the indexed rows and those that joined; that of another program may be stale."""
        content, nodes = self._content, payload.header.node_count
        if layout.INDEX_NAMES[payload.header.index_type] != "hnsw":
            return False
        if payload.trailer is not None:
            _, rows = self.find(payload.trailer.ids)
            if (rows < 0).any() or len(rows) != self.tail.live_count or len(rows) != nodes:
                return False
            self._base = RowPart(content.profile.metric, _rows_of(self.tail, rows))
            self._tail = RowPart(content.profile.metric, _rows_of(self.tail, rows[:0]))
            return True
        joined = nodes - self.base.count
        if (joined and not content.profile.graph_segments) or not 0 <= joined <= self.tail.count:
            if content.is_runtime:
                return False
            raise CorruptLayoutError("the graph does not fit its vectors", path=content.reader.name)
        self._join(joined)
        return True

    def _join(self, count: int) -> None:
        """The first rows of the tail become rows of the index."""
        if count:
            base, tail, metric = self.base, self.tail, self._content.profile.metric
            first, rest = np.arange(count), np.arange(count, tail.count)
            ids, live = np.append(base.ids, tail.ids[first]), np.append(base.live, tail.live[first])
            self._base = RowPart(
                metric, Loaded(ids, np.concatenate([base.vectors, tail.vectors[first]]), live)
            )
            self._base.cells = base.cells
            self._tail = RowPart(metric, _rows_of(tail, rest))

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

    def is_due(self, least: int, share: float) -> bool:
        """Whether the rows behind the graph are so many that they should be added to it."""
        if self._content.profile.copies or self.tail.count < max(
            least, share * self.base.count, self._put_off
        ):
            return False
        self.warm()
        return self.base.graph is not None and self.tail.count >= max(least, share * self.base.count)

    def extended_graph(self) -> Graph | None:
        """The graph with the rows behind it, as they are in the file; None if two rows are equal."""
        self._tail = RowPart(
            self._content.profile.metric, self._content.load_rows(self._content.tail_entries)
        )
        vectors = np.concatenate([self.base.vectors, self._tail.vectors])
        if self.base.graph is None or not is_ordinary(vectors) or Copies.of(vectors).count:
            self._put_off = 2 * self._tail.count
            return None
        return self.base.graph.extended(self._tail.vectors)

    def join(self, graph: Graph) -> None:
        """The rows behind the graph are in it from now on."""
        cells = Cells.of(self._content)
        if cells is not None:
            cells.spread_entries(graph, None)
        self._join(self.tail.count)
        self.base.with_graph(graph, None)

    # -- counters ------------------------------------------------------------------------------------

    @property
    def sketch(self) -> AccessSketch:
        """How often each partition was read."""
        if self._sketch is None:
            self._sketch = self._content.sketch()
            self._counted_before = self._sketch.total_accesses
        return self._sketch

    def _count_hits(self) -> None:
        """Count the partitions of the indexed rows found since the last call."""
        if not self._hits:
            return
        rows = np.concatenate([hits.ravel() for hits in self._hits])
        self._hits.clear()
        layer = self._content.layer_a
        rows = rows[(rows >= 0) & (rows < self.base.count)]
        if len(rows) and layer is not None:
            starts = layer.partitions["id_start"]
            self.sketch.add(np.searchsorted(starts, rows.astype(np.uint64), side="right") - 1)

    def new_accesses(self) -> int:
        """Accesses counted since the counters were read from the file."""
        self._count_hits()
        if self._sketch is None:
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
        self.base.know_ids()
        return np.asarray(self.base.ids[rows[self.base.live[rows]]], np.uint64)

    def stats(self) -> dict[str, Any]:
        """How queries are answered now."""
        profile = self._content.profile
        expected = {int(row[0]): min(row[1:]) for row in profile.efforts}
        return {
            "index": None if profile.index is None else profile.index.kind,
            "codes": None if profile.codes is None else profile.codes.kind,
            "layers": [name for number, name in enumerate("ABC") if number in self._content.layers],
            "stage": "memory" if self._is_warm else "partitions" if self._served else "closed",
            "queries_from_parts": self._served,
            "unindexed_segments": len(self._content.tail_entries),
            "late_bytes": sum(entry.payload_length for entry in self._content.late_entries),
            "recall": expected.get(DEFAULT_EF),
            "recall_by_effort": expected,
        }


def _rows_of(part: RowPart, rows: Ints) -> Loaded:
    return Loaded(part.ids[rows], part.vectors[rows], part.live[rows])
