"""Files written whole: live rows in partition order, index layers, codes, metadata, signatures; exports."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.commit import NewFile, check_free, commit_file, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader, real_path
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.errors import LimitExceededError, require_word
from warpdata.formats.rvf import container, layout
from warpdata.formats.rvf import graph as graphs
from warpdata.formats.rvf.access import AccessSketch, HotSet, encode_hot, encode_sketch
from warpdata.formats.rvf.container import Root, SegmentOptions, Tlv
from warpdata.formats.rvf.graph import Adjacency, LayerA, Trailer, encode_runtime_graph, renumbered
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.meta import encode_meta
from warpdata.formats.rvf.quant import Quantiser, encode_quant
from warpdata.formats.rvf.reader import open_snapshot
from warpdata.formats.rvf.runtime import (
    RuntimeManifest,
    encode_runtime_manifest,
    encode_runtime_vec,
    encode_runtime_witness,
)
from warpdata.formats.rvf.signing import encode_crypto
from warpdata.formats.rvf.vec import IdDirectory, VecBlock, encode_id_directory, encode_vec, pack_rows
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender, WriterLock
from warpdata.search.file import writing
from warpdata.search.file.content import CODE_DTYPES, METRICS, Content, IndexPlan, Profile
from warpdata.search.file.metadata import Metadata, encode_records, meta_segment
from warpdata.search.file.writing import (
    MAX_BLOCK_ROWS,
    REPLACED_TAGS,
    dimension_record,
    root_flags,
    row_segments,
)
from warpdata.search.query import ann
from warpdata.search.query.ann import Copies, Graph, GraphShape
from warpdata.search.query.distance import WalkSpace, is_ordinary, prepared
from warpdata.search.query.searcher import Cells, measure_efforts, measure_share

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from warpdata.formats.rvf.signing import SigningKey

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]

_BLOCK_ROWS = 4096
_SEGMENT_BYTES = 128 << 20
"""Rows are cut into segments of about this size, so that writing needs bounded memory."""
_SMALLEST_INDEX = 2
_MEASURED_ROWS = 1000
"""From so many rows on the recall of each effort is measured."""
_ROW_BYTES_FOR_IDS = 64
"""Of shorter rows an id directory would be a noticeable part, and the whole file is soon read."""
_TOP_LEVEL = 2
"""Layer A holds the lists of this level and above."""
_HUB_LEVEL = 1
"""Layer B holds the ground lists of nodes that reach this level, and of hot nodes."""
_OWN_TYPES = {
    SegmentType[name]
    for name in ["VEC", "INDEX", "JOURNAL", "MANIFEST", "QUANT", "META", "HOT", "SKETCH", "CRYPTO", "IDS"]
}
"""Segments that a rewrite makes itself or leaves out; all others are copied."""
_LINEAGE_TYPES = {SegmentType.COW_MAP, SegmentType.REFCOUNT, SegmentType.MEMBERSHIP, SegmentType.DELTA}
"""Links of a branched file to its parent; its copy holds the parent's rows itself."""
_OWN_TAGS = {
    *REPLACED_TAGS,
    *(Tag.TEMP_TIER_MAP, Tag.INDEX_LAYERS, Tag.COMPACTION_STATE, Tag.WITNESS_CHAIN),
}


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What the new file is to have."""

    profile: Profile
    compression: str = "none"
    signer: SigningKey | None = None
    timestamp_ns: int | None = None
    """The time of the new file; None for now."""


@dataclass(slots=True)
class LiveRows:
    """The rows that survive, in any order."""

    ids: Ids
    vectors: Floats
    metadata: Metadata
    hot_ids: Ids = field(default_factory=lambda: np.zeros(0, np.uint64))
    graph: tuple[Adjacency, GraphShape] | None = None
    """A graph of exactly these rows, in this order, which need not be built again."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Rows in their new order: rows [bounds[i], bounds[i+1]) are block i, of centroid cells[i]."""

    order: Ints
    bounds: Ints
    cells: Ints
    centroids: Floats | None

    @property
    def as_cells(self) -> Cells:
        """The partitions of the new file."""
        assert self.centroids is not None
        return Cells(self.centroids, self.cells, self.bounds[:-1], self.bounds[1:])


def arrange(vectors: Floats, ids: Ids, plan: IndexPlan | None) -> Arrangement:
    """An order of the rows: by cell and id for an index with partitions, by id otherwise.

    Numbers whose squares leave f32 have no centroids to go by; they are compared one by one.
    """
    count = len(ids)
    if plan is None or plan.kind == "flat" or count < _SMALLEST_INDEX or not is_ordinary(vectors):
        order = np.argsort(ids, kind="stable")
        bounds = np.append(np.arange(0, count, _BLOCK_ROWS), count) if count else np.zeros(1, np.int64)
        return Arrangement(order, bounds, np.zeros(max(0, len(bounds) - 1), np.int64), None)
    wanted = plan.partitions or round(count**0.5)
    centroids, cells = ann.balanced_cells(vectors, min(wanted, count))
    order = np.lexsort((ids, cells))
    ordered = cells[order]
    cuts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    edges = np.append(cuts, count)
    pieces = [np.arange(a, b, MAX_BLOCK_ROWS) for a, b in itertools.pairwise(edges.tolist())]
    bounds = np.append(np.concatenate(pieces), count)
    return Arrangement(order, bounds, ordered[bounds[:-1]], centroids)


def rewrite(
    path: str, content: Content, rows: LiveRows, plan: RewritePlan, *, replace_file: bool = True
) -> None:
    """Replace the file at `path` by a new one, atomically; with `replace_file=False` there may be none."""
    with commit_file(path, replace=replace_file) as out:
        if os.path.exists(path):
            os.fchmod(out.fd, os.stat(path).st_mode & 0o777)
        _Rewriter(SegmentAppender(out.fd, path, None, durable=False), content, rows, plan).run()


def foreign_entries(content: Content) -> list[Row]:
    """The segments that a rewrite copies byte for byte."""
    left = _OWN_TYPES | (_LINEAGE_TYPES if content.is_runtime else set())
    return [entry for entry in content.snapshot.segments if entry.seg_type not in left]


class _Rewriter:
    """One new file, segment by segment."""

    def __init__(
        self, appender: SegmentAppender, content: Content, rows: LiveRows, plan: RewritePlan
    ) -> None:
        self._appender = appender
        self._content = content
        self._rows = rows
        self._plan = plan
        self._profile = plan.profile
        self._entries: list[Row] = []
        self._now_ns = time.time_ns() if plan.timestamp_ns is None else plan.timestamp_ns
        self._records: list[Tlv] = []

    def run(self) -> None:
        """Write everything and commit it; segments of types this writer does not own stay as they are."""
        reader = self._content.reader
        for entry in foreign_entries(self._content):
            if not entry.flags & Flag.ENCRYPTED:
                self._content.read(entry)
            header = container.read_header(reader, entry.file_offset)
            end = container.segment_end(reader, entry.file_offset, header)
            self._entries.append(self._appender.copy(reader.read(entry.file_offset, end), entry))
        arranged = arrange(
            prepared(self._rows.vectors, self._profile.metric), self._rows.ids, self._profile.index
        )
        self._rows.ids = self._rows.ids[arranged.order]
        self._rows.vectors = self._rows.vectors[arranged.order]
        root = self._root()
        quant, root = self._write_quantiser(root)
        codes = self._profile.codes
        is_coded = codes is not None and not codes.keep_full
        row_segments = self._write_blocks(arranged, quant if is_coded else None)
        code_segments = [] if quant is None or is_coded else self._write_blocks(arranged, quant)
        if code_segments:
            tiers = [(e.segment_id, n, layout.TIER_COLD) for e in code_segments for n in range(e.block_count)]
            packed = b"".join(layout.TIER_ENTRY.pack(*tier) for tier in tiers)
            self._records.append((int(Tag.TEMP_TIER_MAP), packed))
        profile = replace(
            self._profile,
            row_segments=tuple(entry.segment_id for entry in row_segments),
            code_segments=tuple(entry.segment_id for entry in code_segments),
            id_segment=self._write_ids(arranged, row_segments),
            graph_segments=(),
            graph_entry=(),
            probe_share=0.0,
            copies=0,
            efforts=(),
        )
        searched = self._rows.vectors
        if quant is not None and is_coded:  # of codes alone, the graph is one of what they stand for
            steps = range(0, len(searched), MAX_BLOCK_ROWS)
            pieces = [quant.decode(quant.encode(searched[at : at + MAX_BLOCK_ROWS])) for at in steps]
            searched = np.concatenate(pieces)
        profile, root = self._write_index(profile, root, arranged, row_segments, searched)
        for number, payload in enumerate(self._rows.metadata.rewritten(self._rows.ids)):
            self._append(SegmentType.META, payload, flags=0 if number else Flag.SNAPSHOT)
        if self._plan.signer is not None:
            key = self._plan.signer.public
            entry = self._append(SegmentType.CRYPTO, encode_crypto(key))
            self._records.append((int(Tag.KEY_DIRECTORY), layout.KEY_REF.pack(key.key_id, entry.segment_id)))
        sketch = self._append(SegmentType.SKETCH, encode_sketch(AccessSketch()))  # counts the new blocks
        place = layout.SKETCH_REF.pack(sketch.segment_id, sketch.file_offset)
        carried = [record for record in self._content.snapshot.records if record[0] not in _OWN_TAGS]
        described: list[Tlv] = [(int(Tag.PROFILE_CONFIG), profile.to_json())]
        described += [dimension_record(root, len(self._rows.ids)), *self._records]
        described += [(int(Tag.ACCESS_SKETCH_REF), place), *carried]
        signer = None if self._plan.signer is None else self._plan.signer.sign_root
        self._appender.commit_checkpoint(self._entries, root, described, signer)

    def _append(self, seg_type: int, payload: Buffer, **about: int) -> Row:
        flags = Flag.SEALED | about.pop("flags", 0)
        compressed = self._plan.compression if seg_type in (SegmentType.VEC, SegmentType.META) else "none"
        compressed = "zstd" if seg_type in (SegmentType.IDS, SegmentType.QUANT) else compressed
        options = SegmentOptions(flags=flags, timestamp_ns=self._now_ns, compression=compressed)
        signer = None if self._plan.signer is None else self._plan.signer.sign_segment
        entry = self._appender.append(NewSegment(seg_type, payload, options, **about), signer)
        self._entries.append(entry)
        return entry

    def _root(self) -> Root:
        old = self._content.snapshot.root or Root()
        return Root(
            dimension=self._rows.vectors.shape[1],
            base_dtype=layout.DTYPE_IDS[self._profile.dtype],
            total_vector_count=len(self._rows.ids),
            epoch=self._content.snapshot.next_epoch,
            created_ns=old.created_ns or self._now_ns,
            modified_ns=self._now_ns,
            profile_id=old.profile_id,
            flags=root_flags(self._profile.metric),
            identity=old.identity,
            reserved=old.reserved,
        )

    def _write_quantiser(self, root: Root) -> tuple[Quantiser | None, Root]:
        codes = self._profile.codes
        if codes is None or not len(self._rows.ids):
            return None, root
        if not is_ordinary(self._rows.vectors):
            raise ValueError("the numbers of these vectors are too large or too small to be quantised")
        # Vectors that were decoded from the codes of a dictionary fit it best.
        is_kept = not codes.keep_full and self._content.profile.codes == codes
        quant = self._content.quantiser if is_kept else None
        if quant is None:
            size = codes.bytes_for(self._rows.vectors.shape[1])
            quant = ann.train_quantiser(codes.kind, self._rows.vectors, size)
        entry = self._append(SegmentType.QUANT, encode_quant(quant), tier=layout.TIER_COLD)
        place = layout.ROOT_POINTER(entry.file_offset, 0, entry.payload_length)
        return quant, replace(root, quantdict=place)

    def _write_blocks(self, arranged: Arrangement, quant: Quantiser | None) -> list[Row]:
        """Segments of rows, or of their codes, in groups of bounded size."""
        most = max(1, _SEGMENT_BYTES // max(1, self._rows.vectors.shape[1] * 4))
        written, group, size = [], [], 0
        spans = list(itertools.pairwise(arranged.bounds.tolist()))
        for number, (start, end) in enumerate(spans):
            group.append(self._block(start, end, quant))
            size += end - start
            if size >= most or number + 1 == len(spans):
                payload, tier = encode_vec(group), group[0].tier
                written.append(self._append(SegmentType.VEC, payload, block_count=len(group), tier=tier))
                group, size = [], 0
        return written

    def _block(self, start: int, end: int, quant: Quantiser | None) -> VecBlock:
        vectors, ids = self._rows.vectors[start:end], self._rows.ids[start:end]
        dim = vectors.shape[1]
        if quant is not None:
            return VecBlock(quant.encode(vectors), ids, dim, CODE_DTYPES[quant.kind], layout.TIER_COLD)
        dtype = self._profile.dtype
        return VecBlock(pack_rows(vectors, dtype), ids, dim, dtype, layout.TIER_WARM)

    def _write_ids(self, arranged: Arrangement, row_segments: list[Row]) -> int:
        """The directory of ids, if the rows are long enough to make it worth its bytes; its segment or 0."""
        stored = sum(entry.payload_length for entry in row_segments)
        if not len(self._rows.ids) or stored < _ROW_BYTES_FOR_IDS * len(self._rows.ids):
            return 0
        blocks = np.repeat(np.arange(len(arranged.bounds) - 1), np.diff(arranged.bounds))
        order = np.argsort(self._rows.ids)
        directory = IdDirectory(self._rows.ids[order], blocks[order], len(arranged.bounds) - 1)
        return int(self._append(SegmentType.IDS, encode_id_directory(directory)).segment_id)

    # -- the index -----------------------------------------------------------------------------------

    def _write_index(
        self, profile: Profile, root: Root, arranged: Arrangement, row_segments: list[Row], vectors: Floats
    ) -> tuple[Profile, Root]:
        """The layers of the planned index over rows in their final order: C, B, A, and the hot set."""
        plan, count = profile.index, len(self._rows.ids)
        if plan is None or not count:
            return profile, root
        layers: list[Row] = []

        def header_of(layer: int, kind: str = plan.kind, m: int = plan.m, nodes: int = count) -> Row:
            return layout.INDEX_HEADER(layout.INDEX_KINDS[kind], layer, m, plan.ef_construction, nodes)

        if arranged.centroids is None:  # every search is exact
            nodes = Adjacency(0, *[np.zeros(0, np.int64)] * 3)
            payload = graphs.encode_graph(header_of(layout.LAYER_C, "flat", 0, 0), nodes)
            entry = self._append(SegmentType.INDEX, payload)
            self._list_layers([layout.LAYER_ENTRY(layout.LAYER_C, entry.segment_id, 0, count)])
            return profile, root
        built = None
        if plan.kind == "hnsw" and self._rows.graph is not None:
            adjacency, shape = self._rows.graph
            rank = np.argsort(arranged.order)
            entry_point = layout.ENTRY_POINT(int(rank[shape.entry_point]), shape.max_level)
            built = _Built(renumbered(adjacency, rank), entry_point, 0, self._profile.efforts)
        elif plan.kind == "hnsw":
            built = _built(vectors, profile, plan, arranged)
        if built is not None:
            hubs = (built.adjacency.layer_counts > _HUB_LEVEL) | np.isin(self._rows.ids, self._rows.hot_ids)
            lists = {layout.LAYER_C: built.adjacency, layout.LAYER_B: _ground_lists(built.adjacency, hubs)}
            for number, adjacency in lists.items():
                entry = self._append(SegmentType.INDEX, graphs.encode_graph(header_of(number), adjacency))
                layers.append(layout.LAYER_ENTRY(number, entry.segment_id, 0, count))
        layer = LayerA(
            header_of(layout.LAYER_A),
            () if built is None else (built.entry,),
            0 if built is None else built.entry.layer,
            () if built is None else _top_layers(built.adjacency),
            arranged.centroids.astype(np.float16),
            _partitions(arranged, row_segments),
        )
        payload, offsets = graphs.encode_layer_a(layer)
        entry = self._append(SegmentType.INDEX, payload, flags=Flag.HOT)
        layers.append(layout.LAYER_ENTRY(layout.LAYER_A, entry.segment_id, 0, count))
        self._list_layers(layers)
        counts = (len(layer.entry_points), sum(map(len, layer.top_layers)), len(layer.centroids))
        places = [
            layout.ROOT_POINTER(entry.file_offset, at, n) for at, n in zip(offsets, counts, strict=False)
        ]
        root = replace(root, entrypoint=places[0], toplayer=places[1], centroid=places[2])
        root = self._write_hot(root, None if built is None else built.adjacency, plan)
        # The f16 centroids of concentrated vectors would coincide.
        is_concentrated = WalkSpace.of(vectors, profile.metric).centre is not None
        share = 1.0 if is_concentrated else measure_share(vectors, arranged.as_cells, profile.metric)
        profile = replace(profile, probe_share=share)
        if built is not None:
            profile = replace(profile, copies=built.copies, efforts=built.efforts)
        return profile, root

    def _list_layers(self, entries: list[Row]) -> None:
        bits = sum(1 << entry.layer for entry in entries)
        packed = b"".join(layout.LAYER_ENTRY.pack(*entry) for entry in entries)
        self._records.append((int(Tag.INDEX_LAYERS), layout.LAYER_BITS.pack(bits) + packed))

    def _write_hot(self, root: Root, adjacency: Adjacency | None, plan: IndexPlan) -> Root:
        """Hot rows as f16 with the ids of their neighbours."""
        rows = self._rows
        chosen = np.flatnonzero(np.isin(rows.ids, rows.hot_ids))
        if not len(chosen):
            return root
        neighbors = [np.zeros(0, np.uint64)] * len(chosen)
        if adjacency is not None:
            counts = adjacency.layer_counts
            ground, starts = np.cumsum(counts) - counts, adjacency.starts
            neighbors = [
                rows.ids[adjacency.neighbors[starts[at] : starts[at] + adjacency.sizes[at]][: plan.m]]
                for at in ground[chosen].tolist()
            ]
        vectors = np.clip(rows.vectors[chosen], -65504, 65504).astype(np.float16)
        hot = HotSet(rows.ids[chosen], vectors, tuple(neighbors), plan.m, "f16")
        entry = self._append(SegmentType.HOT, encode_hot(hot), flags=Flag.HOT, tier=layout.TIER_HOT)
        return replace(root, hot_cache=layout.ROOT_POINTER(entry.file_offset, layout.ALIGNMENT, len(chosen)))


@dataclass(frozen=True, slots=True)
class _Built:
    """A graph of all rows, where walks begin, how many rows are copies, and the recall of each effort."""

    adjacency: Adjacency
    entry: Row
    copies: int
    efforts: tuple[tuple[float, ...], ...]


def _built(rows: Floats, profile: Profile, plan: IndexPlan, arranged: Arrangement) -> _Built:
    """A graph of the distinct vectors; the others are nodes without links."""
    copies, space = Copies.of(rows), WalkSpace.of(rows, profile.metric)
    distinct = rows if not copies.count else rows[copies.is_first]
    graph = Graph.build(space.place(distinct), space, plan.m, plan.ef_construction)
    adjacency, entry = graph.adjacency(), graph.shape.entry_point
    efforts: tuple[tuple[float, ...], ...] = ()
    if not copies.count and len(rows) >= _MEASURED_ROWS:
        arranged.as_cells.spread_entries(graph, None)
        efforts = measure_efforts(rows, graph)
    if copies.count:
        adjacency = copies.spread(adjacency)
        entry = int(np.flatnonzero(copies.is_first)[entry])
    return _Built(adjacency, layout.ENTRY_POINT(entry, graph.shape.max_level), copies.count, efforts)


def _ground_lists(adjacency: Adjacency, chosen: NDArray[np.bool_]) -> Adjacency:
    """Only the ground lists of the chosen nodes."""
    counts = adjacency.layer_counts
    lists = (np.cumsum(counts) - counts)[chosen]
    sizes = adjacency.sizes[lists]
    begins = np.cumsum(sizes) - sizes
    at = np.repeat(adjacency.starts[lists] - begins, sizes) + np.arange(int(sizes.sum()))
    return Adjacency(adjacency.node_count, chosen.astype(np.int64), sizes, adjacency.neighbors[at])


def _partitions(arranged: Arrangement, row_segments: list[Row]) -> NDArray[Any]:
    places = [(entry.segment_id, n) for entry in row_segments for n in range(entry.block_count)]
    bounds = arranged.bounds.tolist()
    spans = zip(arranged.cells.tolist(), bounds[:-1], bounds[1:], places, strict=True)
    return graphs.make_partitions([(cell, start, end, *place) for cell, start, end, place in spans])


def _top_layers(adjacency: Adjacency) -> tuple[Any, ...]:
    """The lists of the upper levels, from the lowest of them to the top."""
    counts = adjacency.layer_counts
    first, starts = np.cumsum(counts) - counts, adjacency.starts
    ends = starts + adjacency.sizes
    layers = []
    for level in range(_TOP_LEVEL, int(counts.max(initial=0))):
        nodes = np.flatnonzero(counts > level)
        places = (first[nodes] + level).tolist()
        lists = [tuple(adjacency.neighbors[starts[at] : ends[at]].tolist()) for at in places]
        layers.append(tuple(zip(nodes.tolist(), lists, strict=True)))
    return tuple(layers)


# -- files that are the same every time ------------------------------------------------------------------

Batch = tuple[Floats, Sequence[Mapping[str, Any]]]
"""Some vectors, and the metadata of each."""


def write_vectors(
    path: str | os.PathLike[str],
    batches: Iterable[Batch],
    *,
    metric: str = "cosine",
    notes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    durable: bool = True,
) -> int:
    """Write a vector file of these vectors, with ids that count from 0; returns how many there are.

    The same vectors give the same bytes on any machine: its id is a hash of its contents, and its times are 0. It
    appears whole or not at all. `notes` are about the file as a whole (`VectorStore.notes`).
    """
    target = real_path(path)
    require_word("metric", metric, METRICS)
    check_free(target, overwrite=overwrite)
    with contextlib.ExitStack() as stack:
        if durable:
            stack.enter_context(WriterLock(target))
            remove_temps_of(target)
        out = stack.enter_context(commit_file(target, durable=durable, replace=overwrite))
        return _write_whole(out.fd, target, batches, metric, dict(notes or {}))


def _write_whole(fd: int, path: str, batches: Iterable[Batch], metric: str, notes: dict[str, Any]) -> int:
    appender = SegmentAppender(fd, path, None, durable=False)
    fields: dict[str, str] = {}
    total, count, dim, entries, metas = RunningSha256(), 0, 0, [], []
    for vectors, rows in batches:
        dim = dim or writing.check_dim(vectors.shape[1])
        matrix = writing.checked_matrix(vectors, dim)
        ids = np.arange(count, count + len(matrix), dtype=np.uint64)
        entries += [appender.append(new) for new in row_segments(ids, matrix, "f32", 0)]
        total.update(byte_view(matrix))
        known = Metadata([], path, fields)
        fields, records = known.checked(writing.metadata_rows(rows, len(matrix)) or [])
        metas.append(encode_records(ids, records, fields, {} if count else notes))
        count += len(matrix)
    if not count:
        raise ValueError("there are no vectors to write")
    for payload in metas:
        total.update(payload)
        entries.append(appender.append(meta_segment(payload)))
    profile = Profile(metric=metric, next_id=count)
    identity = layout.FILE_IDENTITY(bytes.fromhex(total.hexdigest())[:16], bytes(16), bytes(32), 0)
    dtype = layout.DTYPE_IDS[profile.dtype]
    root = Root(dim, dtype, count, 1, 0, 0, flags=root_flags(metric), identity=identity)
    described = [(int(Tag.PROFILE_CONFIG), profile.to_json()), dimension_record(root, count)]
    appender.commit_checkpoint(entries, root, described)
    return count


def index_vectors(path: str | os.PathLike[str], kind: str) -> None:
    """Rewrite a file of `write_vectors` with an index over its vectors, in the same way every time."""
    target = real_path(path)
    with WriterLock(target), contextlib.closing(FileRangeReader(target)) as reader:
        content = Content(reader, open_snapshot(reader))
        data = content.load_rows()
        rows = LiveRows(data.ids, data.vectors, Metadata.of(content))
        profile = replace(content.profile, index=IndexPlan(kind))
        with ann.one_thread():
            rewrite(target, content, rows, RewritePlan(profile, timestamp_ns=0))


DIALECTS = ("wire", "runtime")
_MAX_ROWS_BYTES = 1 << 30
_INGEST = 1


@dataclass(frozen=True, slots=True, repr=False)
class ExportReceipt(Receipt):
    """What an export wrote, what of the store the new file has, and what it does not have."""

    path: str
    dialect: str
    vectors: int
    kept: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the new file has everything that the store has."""
        return not self.dropped

    def lines(self) -> Iterator[str]:
        """The receipt for a person."""
        yield f"wrote {self.vectors} vectors to {self.path}"
        if self.dropped:
            yield f"not in the new file: {', '.join(self.dropped)}"

    def to_json(self) -> dict[str, Any]:
        """The receipt for a program."""
        return asdict(self)


def export_rows(
    path: str, content: Content, rows: LiveRows, nodes: Ids | None, dialect: str, *, overwrite: bool
) -> ExportReceipt:
    """A new file with these rows, `wire` or `runtime`; `nodes` are the ids of the graph if it covers exactly those."""
    profile = content.profile
    has_metadata = bool(rows.metadata.fields or rows.metadata.notes)
    has_index = bool(content.snapshot.of_type(SegmentType.INDEX)) or profile.index is not None
    others = bool(foreign_entries(content))
    if is_wire := dialect == "wire":
        next_id = int(rows.ids.max(initial=0)) + 1
        new = replace(profile, next_id=next_id, row_segments=(), code_segments=())
        rewrite(path, content, rows, RewritePlan(new), replace_file=overwrite)
        keeps_index = profile.index is not None
    else:
        keeps_index = _write_runtime(path, content, rows, nodes, overwrite)
    facts = {  # what the store has, and whether the new file has it
        "metadata": (has_metadata, True),
        "index": (has_index, keeps_index),
        "codes": (profile.codes is not None, is_wire),
        "signatures": (content.is_signed, False),
        "other segments": (others, is_wire),
    }
    kept = tuple(name for name, (is_there, is_kept) in facts.items() if is_there and is_kept)
    dropped = tuple(name for name, (is_there, is_kept) in facts.items() if is_there and not is_kept)
    return ExportReceipt(path, dialect, len(rows.ids), kept, dropped)


def _write_runtime(path: str, content: Content, rows: LiveRows, nodes: Ids | None, overwrite: bool) -> bool:
    """VEC segments, metadata, the graph, a witness and a manifest; back to back. Whether there is a graph."""
    if rows.vectors.shape[1] > layout.MAX_DIM:
        raise LimitExceededError(f"{rows.vectors.shape[1]} dimensions")
    order = np.argsort(rows.ids)
    ids, vectors = rows.ids[order], rows.vectors[order]
    step = max(1, _MAX_ROWS_BYTES // (8 + 4 * vectors.shape[1]))
    graph, about = _runtime_graph(content, nodes), rows.metadata.payload_v1(ids)
    with commit_file(path, replace=overwrite) as out:
        listed: list[Row] = []

        def add(seg_type: int, payload: bytes) -> None:
            listed.append(_append(out, seg_type, len(listed) + 1, payload))

        for start in range(0, max(len(ids), 1), step):
            add(SegmentType.VEC, encode_runtime_vec(ids[start : start + step], vectors[start : start + step]))
        if about is not None:
            add(SegmentType.META, encode_meta(about))
        if graph is not None:
            add(SegmentType.INDEX, graph)
        text = f"ingest:count={len(ids)},epoch=1"
        add(SegmentType.WITNESS, encode_runtime_witness(text, time.time_ns(), _INGEST, None))
        identity = layout.FILE_IDENTITY(secrets.token_bytes(16), bytes(16), bytes(32), 0)
        none = np.zeros(0, np.uint64)
        facts = (1, vectors.shape[1], len(ids), 0, content.profile.metric)
        manifest = RuntimeManifest(*facts, tuple(listed), none, identity)
        _append(out, SegmentType.MANIFEST, len(listed) + 1, encode_runtime_manifest(manifest))
    return graph is not None


def _runtime_graph(content: Content, nodes: Ids | None) -> bytes | None:
    """The graph of the store with its nodes in the order of ids; None without one, or if rows came after it."""
    plan = content.profile.index
    if nodes is None or plan is None or plan.kind != "hnsw":
        return None
    payload, layer = content.graph(), content.layer_a
    if payload is None or layer is None or not layer.entry_points:
        return None
    order = np.argsort(nodes)
    rank = np.argsort(order)
    entry = content.profile.graph_entry or tuple(layer.entry_points[0])
    trailer = Trailer(2 * plan.m, entry[1], int(rank[entry[0]]), nodes[order])
    header = payload.header._replace(layer_level=layout.LAYER_C)
    return encode_runtime_graph(header, renumbered(payload.adjacency, rank), trailer)


def _append(out: NewFile, seg_type: int, segment_id: int, payload: bytes) -> Row:
    options = container.SegmentOptions(checksum="crc32c")
    header, _ = container.build(seg_type, segment_id, payload, options)
    header = header._replace(content_hash=container.runtime_hash(payload), alignment_pad=0)
    offset = out.write(container.pack_header(header))
    out.write(payload)
    return layout.RUNTIME_SEGMENT(segment_id, offset, len(payload), int(seg_type))
