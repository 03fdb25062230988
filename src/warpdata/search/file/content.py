"""A committed state of a store: profile (metric, dtype, index), rows, deletions and layers, read when needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import Range, coalesce, drop_cached
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError, TruncatedError, require_kind, require_word
from warpdata.formats.rvf import container, layout, vec
from warpdata.formats.rvf.access import AccessSketch, decode_sketch
from warpdata.formats.rvf.container import decode_deletions
from warpdata.formats.rvf.graph import GraphPayload, LayerA, decode_graph, decode_layer_a
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.meta import Journal, decode_journal, deleted_mask
from warpdata.formats.rvf.quant import Quantiser, decode_quant
from warpdata.formats.rvf.reader import Snapshot, check_against_directory, open_snapshot
from warpdata.formats.rvf.runtime import decode_cow_map, decode_membership, decode_runtime_vec
from warpdata.formats.rvf.vec import IdDirectory, VecBlock

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Place = tuple[int, int]
"""A block: the id of its segment, and its number in it."""

MAX_TAIL_BYTES = 256 << 10
"""With more rows behind the partitions than this, loading everything is the better first step."""
_MAX_LINEAGE = 16
"""More parents than this are a circle."""
CODE_DTYPES = {"scalar": "u8", "pq": "pq", "binary": "binary", "residual_pq": "pq"}
_PRODUCT_DTYPES = ("pq", "custom")
_FOREIGN_DTYPES = {
    "scalar": ("u8", "i8"),
    "pq": _PRODUCT_DTYPES,
    "binary": ("binary",),
    "residual_pq": _PRODUCT_DTYPES,
}
"""Which rows of another program's file are codes of a dictionary of this kind."""


METRICS = ("l2", "ip", "cosine")
INDEX_KINDS = ("hnsw", "ivf", "flat")
CODE_KINDS = ("scalar", "pq", "binary", "residual_pq")
WORTH_INDEXING = 20_000
"""From so many vectors on a graph is many times faster than comparing with all of them, and worth its cost."""
STORED_DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i4", "binary")


def _require_numbers(*numbers: object) -> None:
    for number in numbers:
        require_kind("a size in a plan", number, int, "a whole number")


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Which vector index a store has, or is to get."""

    kind: str = "hnsw"
    m: int = 16
    ef_construction: int = 200
    partitions: int = 0
    """0 chooses the square root of the number of vectors."""

    def __post_init__(self) -> None:
        require_word("the kind of an index", self.kind, INDEX_KINDS)
        _require_numbers(self.m, self.ef_construction, self.partitions)
        if not 2 <= self.m <= 256 or not 1 <= self.ef_construction <= 65_536 or self.partitions < 0:
            raise ValueError(
                "an index needs 2 <= m <= 256, 1 <= ef_construction <= 65536 and partitions >= 0"
            )


@dataclass(frozen=True, slots=True)
class CodePlan:
    """How vectors are quantised, and whether the full ones are kept."""

    kind: str
    keep_full: bool = True
    code_bytes: int | None = None

    def __post_init__(self) -> None:
        require_word("the kind of a quantisation", self.kind, CODE_KINDS)
        require_kind("keep_full", self.keep_full, bool, "True or False")
        _require_numbers(self.code_bytes or 0)

    def bytes_for(self, dim: int) -> int:
        """Bytes of a product code: as given, else one for four dimensions; for three if nothing else is kept."""
        wanted = -(-dim // (4 if self.keep_full else 3)) if self.code_bytes is None else self.code_bytes
        if not 1 <= wanted <= dim:
            raise ValueError(f"a code of {wanted} bytes for {dim} dimensions")
        return wanted


@dataclass(frozen=True, slots=True)
class Profile:
    """The part of the manifest that only a vector store understands."""

    metric: str = "l2"
    dtype: str = "f32"
    next_id: int = 0
    index: IndexPlan | None = None
    codes: CodePlan | None = None
    row_segments: tuple[int, ...] = ()
    """Segments whose rows the partitions cover, in the order of the index."""
    code_segments: tuple[int, ...] = ()
    """Segments that hold codes of the same rows."""
    probe_share: float = 0.0
    """The share of the rows that a probe of partitions must look at; measured when the index is built."""
    id_segment: int = 0
    """The segment with the block of each id of the row segments; 0 without one."""
    copies: int = 0
    """How many indexed rows equal an earlier one; the graph is then one of distinct vectors with copies below."""
    key: str = ""
    """The metadata field whose texts name the vectors, if one was declared."""
    graph_segments: tuple[int, ...] = ()
    """Segments whose rows were added to the graph later, behind those of the row segments."""
    graph_entry: tuple[int, ...] = ()
    """Node and level where walks begin, once rows were added to the graph."""
    efforts: tuple[tuple[float, ...], ...] = ()
    """Measured when the index was built: effort, and the recall near the data, between clusters and outside."""

    def to_json(self) -> bytes:
        """The record's bytes."""
        return dump_json({key: value for key, value in asdict(self).items() if value not in (None, (), "")})


_FIELDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("metric", "dtype", "key"), str),
    **dict.fromkeys(("next_id", "id_segment", "copies"), int),
    **dict.fromkeys(
        ("row_segments", "code_segments", "graph_segments", "graph_entry"),
        lambda given: tuple(map(int, given)),
    ),
    "efforts": lambda given: tuple(tuple(map(float, row)) for row in given),
    "probe_share": float,
}


def parse_profile(data: bytes | None, where: str = "") -> Profile:
    """The profile of a record; a file without one is an l2 store of f32."""
    body = parse_json_object(data or b"{}", max_bytes=1 << 24)
    index, codes = body.get("index"), body.get("codes")
    try:
        given: dict[str, Any] = {name: form(body[name]) for name, form in _FIELDS.items() if name in body}
        profile = Profile(
            index=None if index is None else IndexPlan(**index),
            codes=None if codes is None else CodePlan(**codes),
            **given,
        )
        require_word("the metric", profile.metric, METRICS)
        require_word("the dtype", profile.dtype, layout.DTYPE_IDS)
        if profile.next_id < 0:
            raise ValueError(f"the next id is {profile.next_id}")
        if len(profile.code_segments) not in (0, len(profile.row_segments)):
            raise ValueError("some rows have codes and others have none")
        if len(profile.graph_entry) not in (0, 2) or any(len(row) != 4 for row in profile.efforts):
            raise ValueError("the index is described wrongly")
    except (TypeError, ValueError) as error:
        fact = f"the profile of the store is damaged ({error})"
        raise CorruptLayoutError(fact, path=where or None) from None
    return profile


class Loaded(NamedTuple):
    """Rows in memory: ids, vectors and which of them live."""

    ids: Ids
    vectors: Floats
    live: Mask


class CountingReader:
    """Any reader, with the number of reads and bytes it served; near ranges are read together."""

    def __init__(self, inner: RangeReader) -> None:
        self.inner = inner
        self.reads = 0
        self.bytes_read = 0

    @property
    def name(self) -> str:
        """The name of the bytes."""
        return self.inner.name

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self.inner.size

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range; neighbours share a read, nothing between them is fetched."""
        spans = coalesce(ranges, max_gap_bytes=0)
        whole = self.inner.read_many([(span.start, span.end) for span in spans])
        out: dict[int, memoryview] = {}
        for span, data in zip(spans, whole, strict=True):
            self.reads += 1
            self.bytes_read += span.end - span.start
            if len(data) != span.end - span.start:  # it would look like an older state of the file
                fact = f"{len(data)} of {span.end - span.start} bytes came from offset {span.start}"
                hint = "Read again; the connection may have ended early."
                raise TruncatedError(fact, path=self.name, hint=hint)
            for member in span.members:
                start, end = ranges[member]
                out[member] = data[start - span.start : end - span.start]
        return [out[index] for index in range(len(ranges))]

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget cached copies of the bytes [start, end)."""
        return drop_cached(self.inner, start, end)

    def close(self) -> None:
        """Close the reader inside."""
        self.inner.close()


class Content:
    """One snapshot of a file; nothing is read before it is needed."""

    def __init__(
        self,
        reader: RangeReader,
        snapshot: Snapshot,
        open_parent: Callable[[str], RangeReader] | None = None,
        depth: int = 0,
    ) -> None:
        self._depth = depth
        self.reader = reader
        self.snapshot = snapshot
        self._open_parent = open_parent
        self._journals: dict[int, Journal] = {}
        self._directories: dict[int, list[Row]] = {}
        self._entries = {entry.segment_id: entry for entry in snapshot.segments}
        self.is_runtime = snapshot.dialect == "runtime"

    @cached_property
    def profile(self) -> Profile:
        """Metric, dtype and layout of the rows."""
        if self.snapshot.runtime is not None:
            return Profile(metric=self.snapshot.runtime.metric)
        return parse_profile(self.snapshot.record(Tag.PROFILE_CONFIG), self.reader.name)

    @cached_property
    def dim(self) -> int:
        """Dimensions of a vector; without a root that names it, those of the first block."""
        stated = 0 if self.snapshot.root is None else self.snapshot.root.dimension
        entries = self.snapshot.of_type(SegmentType.VEC)
        if stated or not entries:
            return stated
        blocks = vec.read_directory(self.read(entries[0]), where=self.reader.name)
        return int(blocks[0].dim) if blocks else 0

    @property
    def has_profile(self) -> bool:
        """Whether our own writer described this file."""
        return bool(self.snapshot.record(Tag.PROFILE_CONFIG))

    @property
    def is_signed(self) -> bool:
        """Whether the root or any segment carries a signature."""
        root = self.snapshot.root
        in_root = root is not None and bool(root.flags & layout.ROOT_SIGNED)
        return in_root or any(entry.flags & Flag.SIGNED for entry in self.snapshot.segments)

    def read(self, entry: Row) -> memoryview:
        """The checked payload of a segment."""
        return self.snapshot.read(self.reader, entry)

    def is_columns(self, entry: Row) -> bool:
        """Whether a META segment has our layout of columns."""
        if self.is_runtime:
            return False
        if entry.segment_id in self.snapshot.logged or entry.flags & (Flag.COMPRESSED | Flag.ENCRYPTED):
            return bytes(self.read(entry)[:8]) == layout.COLUMNS_MAGIC
        start = entry.file_offset + layout.HEADER_BYTES
        return bytes(self.reader.read(start, start + min(8, entry.payload_length))) == layout.COLUMNS_MAGIC

    # -- rows ----------------------------------------------------------------------------------------

    @cached_property
    def row_entries(self) -> list[Row]:
        """The segments that hold rows: those of the partitions, of the graph, and the others."""
        codes = set(self.profile.code_segments)
        rank = {number: 0 for number in self.profile.row_segments}
        rank |= {number: 1 for number in self.profile.graph_segments}
        entries = [e for e in self.snapshot.of_type(SegmentType.VEC) if e.segment_id not in codes]
        return sorted(entries, key=lambda entry: rank.get(entry.segment_id, 2))

    @cached_property
    def base_entries(self) -> list[Row]:
        """The row segments the partitions cover."""
        covered = set(self.profile.row_segments)
        return [entry for entry in self.row_entries if entry.segment_id in covered]

    @cached_property
    def late_entries(self) -> list[Row]:
        """The row segments behind the partitions."""
        return self.row_entries[len(self.base_entries) :]

    @property
    def has_plain_blocks(self) -> bool:
        """Whether blocks of the partitions can be read by themselves, and little came behind them."""
        plain = all(not e.flags & (Flag.COMPRESSED | Flag.ENCRYPTED) for e in self.base_entries)
        return plain and sum(entry.payload_length for entry in self.late_entries) <= MAX_TAIL_BYTES

    @property
    def tail_entries(self) -> list[Row]:
        """The row segments the index does not cover."""
        known = {*self.profile.row_segments, *self.profile.graph_segments}
        return [entry for entry in self.row_entries if entry.segment_id not in known]

    @cached_property
    def quantiser(self) -> Quantiser | None:
        """The dictionary of the codes in this file, if our profile has a plan for them."""
        quants, codes = self._quantisers, self.profile.codes
        if not quants or codes is None:
            return None
        if quants[-1].dim != self.dim or quants[-1].kind != codes.kind:
            raise CorruptLayoutError("the quantiser does not fit the store", path=self.reader.name)
        return quants[-1]

    @cached_property
    def _quantisers(self) -> list[Quantiser]:
        entries = [] if self.is_runtime else self.snapshot.of_type(SegmentType.QUANT)
        return [decode_quant(self.read(entry), self.reader.name) for entry in entries]

    @property
    def code_bytes(self) -> int:
        """The length of a product code, 0 without one."""
        if self.has_profile:
            return 0 if self.quantiser is None else self.quantiser.code_bytes
        products = [q for q in self._quantisers if q.kind in ("pq", "residual_pq") and q.dim == self.dim]
        return products[-1].code_bytes if products else 0

    def decode_blocks(self, entry: Row) -> list[VecBlock]:
        """The blocks of a row segment, fully checked."""
        payload = self.read(entry)
        if self.is_runtime:
            return [decode_runtime_vec(payload, self.reader.name)]
        return vec.decode_vec(payload, code_bytes=self.code_bytes, where=self.reader.name, check=False)

    def vectors_of(self, block: VecBlock) -> Floats:
        """The rows of a block as f32 vectors."""
        if block.dim != self.dim:
            raise CorruptLayoutError(
                f"a block of {block.dim} dimensions in a store of {self.dim}", path=self.reader.name
            )
        quant = self._quantiser_of(block)
        if quant is None:
            return vec.unpack_rows(block.rows, block.dtype, block.dim)
        codes: NDArray[Any] = np.ascontiguousarray(block.rows)
        if block.dtype == "i8":  # -128 is the smallest value, 127 the largest
            codes = (codes.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return quant.decode(codes)

    def _quantiser_of(self, block: VecBlock) -> Quantiser | None:
        """The dictionary that these rows are codes of; None if they are the numbers themselves.

        Files of other programs do not mark codes: rows whose type fits a dictionary of the file are codes,
        by that of their own tier if there is one.
        """
        codes, is_product = self.profile.codes, block.dtype in _PRODUCT_DTYPES
        if self.has_profile:
            is_coded = codes is not None and not codes.keep_full and block.dtype == CODE_DTYPES[codes.kind]
            return self.need_quantiser() if is_coded or is_product else None
        fitting = [quant for quant in self._quantisers if block.dtype in _FOREIGN_DTYPES[quant.kind]]
        if not fitting:
            return self.need_quantiser() if is_product else None
        of_size = [quant for quant in fitting if quant.dim == self.dim]
        if not of_size:
            raise CorruptLayoutError("the quantiser does not fit the store", path=self.reader.name)
        return next((quant for quant in reversed(of_size) if quant.tier == block.tier), of_size[-1])

    def need_quantiser(self) -> Quantiser:
        """The dictionary of codes that are in this file."""
        if self.quantiser is None:
            raise CorruptLayoutError("the quantiser of these codes is missing", path=self.reader.name)
        return self.quantiser

    def load_rows(self, entries: Sequence[Row] | None = None) -> Loaded:
        """The rows of these segments, or of all with those of a parent file; the newest row of an id lives.

        Ids of partitioned rows are unique, since they were written together.
        """
        inherited = self._parent_rows() if entries is None else None
        entries = self.row_entries if entries is None else entries
        loaded = [self.decode_blocks(entry) for entry in entries]
        row = 0 if inherited is None else len(inherited[0])
        total = row + sum(len(block.ids) for blocks in loaded for block in blocks)
        ids = np.empty(total, np.uint64)
        vectors = np.empty((total, self.dim), np.float32)
        if inherited is not None:
            ids[:row], vectors[:row] = inherited
        ends: dict[int, int] = {}
        for entry, blocks in zip(entries, loaded, strict=True):
            for block in blocks:
                end = row + len(block.ids)
                ids[row:end] = block.ids
                is_plain = block.dtype == "f32" and block.dim == self.dim
                vectors[row:end] = block.rows if is_plain else self.vectors_of(block)
                row = end
            ends[entry.segment_id] = row
        if entries is self.base_entries:
            return Loaded(ids, vectors, np.ones(total, bool))
        live = np.zeros(total, bool)
        live[total - 1 - np.unique(ids[::-1], return_index=True)[1]] = True
        for mask, row_end in self._deletions(ends, total):
            live[:row_end] &= ~mask(ids[:row_end])
        return Loaded(ids, vectors, live)

    def is_dead(self, ids: Ids) -> Mask:
        """Which of these ids of partitioned rows were deleted since; rows that replaced them are elsewhere."""
        dead = np.zeros(len(ids), bool)
        for mask, _ in self._deletions({}, 0):
            dead |= mask(ids)
        return dead

    def _deletions(self, ends: dict[int, int], count: int) -> list[tuple[Callable[[Ids], Mask], int]]:
        """Deletions in order: which ids they delete, and how many rows there were when it happened."""
        if self.snapshot.runtime is not None:
            return [(functools.partial(np.isin, test_elements=self.snapshot.runtime.deleted), count)]
        events: list[tuple[Callable[[Ids], Mask], int]] = []
        rows_so_far = 0
        for number, entry in enumerate([*self.snapshot.segments, None]):
            if number == self.snapshot.checkpointed and len(self.bitmap_ids):
                events.append((functools.partial(np.isin, test_elements=self.bitmap_ids), rows_so_far))
            if entry is None:
                break
            rows_so_far = max(rows_so_far, ends.get(entry.segment_id, 0))
            if entry.seg_type == SegmentType.JOURNAL:
                entries = self.journal(entry).entries
                events.append((functools.partial(deleted_mask, entries=entries), rows_so_far))
        return events

    def journal(self, entry: Row) -> Journal:
        """The entries of a JOURNAL segment, read once."""
        journal = self._journals.get(entry.segment_id)
        if journal is None:
            journal = self._journals[entry.segment_id] = decode_journal(self.read(entry), self.reader.name)
        return journal

    @cached_property
    def bitmap_ids(self) -> Ids:
        """The ids deleted at the checkpoint."""
        value = self.snapshot.record(Tag.DELETION_BITMAP)
        return np.zeros(0, np.uint64) if value is None else decode_deletions(value, self.reader.name)

    # -- single blocks -------------------------------------------------------------------------------

    def read_blocks(self, places: Sequence[Place]) -> list[VecBlock]:
        """Blocks of row segments as they are stored, read together, each checked by its CRC."""
        located = [self._locate(place) for place in places]
        data = self.reader.read_many([span for span, _ in located])
        return [
            vec.decode_block(piece, entry, code_bytes=self.code_bytes, where=self.reader.name)
            for piece, (_, entry) in zip(data, located, strict=True)
        ]

    def _locate(self, place: Place) -> tuple[Range, Row]:
        segment_id, number = place
        entry = self._entries.get(segment_id)
        if entry is None:
            raise CorruptLayoutError("a block of a segment that does not exist", path=self.reader.name)
        blocks = self._directories.get(segment_id)
        if blocks is None:
            where, start = self.reader.name, entry.file_offset
            size = layout.COUNT_U32.size + entry.block_count * layout.BLOCK_ENTRY.size
            size = min(size, entry.payload_length)
            data = self.reader.read(start, start + layout.HEADER_BYTES + size)
            check_against_directory(container.unpack_header(data, where), entry, where)
            blocks = vec.read_directory(data[layout.HEADER_BYTES :], entry.payload_length, where)
            self._directories[segment_id] = blocks
        if number >= len(blocks):
            raise CorruptLayoutError("a block that does not exist", path=self.reader.name)
        start = entry.file_offset + layout.HEADER_BYTES
        end = vec.block_end(blocks, number, entry.payload_length)
        return (start + blocks[number].block_offset, start + end), blocks[number]

    # -- the index -----------------------------------------------------------------------------------

    @cached_property
    def layers(self) -> dict[int, Row]:
        """Layer (A=0, B=1, C=2) -> its segment, for an index our writer made."""
        value = self.snapshot.record(Tag.INDEX_LAYERS)
        if value is None:
            return {}
        body = value[layout.LAYER_BITS.size :]
        if len(value) < layout.LAYER_BITS.size or len(body) % layout.LAYER_ENTRY.size:
            raise CorruptLayoutError("the layer record of the index is damaged", path=self.reader.name)
        by_id = {entry.segment_id: entry for entry in self.snapshot.of_type(SegmentType.INDEX)}
        layers = {}
        for each in layout.LAYER_ENTRY.iter_unpack(body):
            if each.segment_id not in by_id:
                raise CorruptLayoutError("a layer of the index is missing", path=self.reader.name)
            layers[each.layer] = by_id[each.segment_id]
        return layers

    @cached_property
    def layer_a(self) -> LayerA | None:
        """Centroids and partitions, if the store has them."""
        entry = self.layers.get(0)
        if entry is None:
            return None
        layer, offsets = decode_layer_a(self.read(entry), self.reader.name)
        root = self.snapshot.root
        if root is not None and root.centroid.block_offset not in (0, offsets[2]):
            raise CorruptLayoutError("the root points beside the centroids", path=self.reader.name)
        if layer.centroids.shape[1] != self.dim:
            raise CorruptLayoutError("the centroids do not fit the store", path=self.reader.name)
        return layer

    @cached_property
    def id_directory(self) -> IdDirectory | None:
        """The block of each id of the partitioned rows, if the store has such a directory."""
        wanted = self.profile.id_segment
        if not wanted:
            return None
        entries = [e for e in self.snapshot.of_type(SegmentType.IDS) if e.segment_id == wanted]
        if not entries:
            raise CorruptLayoutError("the id directory is missing", path=self.reader.name)
        directory = vec.decode_id_directory(self.read(entries[0]), self.reader.name)
        counts = [entry.block_count for entry in self.base_entries]
        room = [entry.payload_length // layout.BLOCK_ENTRY.size for entry in self.base_entries]
        fits = all(count <= most for count, most in zip(counts, room, strict=True))
        if not fits or directory.block_count != sum(counts):
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self.reader.name)
        return directory

    def graph(self) -> GraphPayload | None:
        """The neighbour lists of layer C."""
        entry = self.layers.get(2)
        if entry is None and self.is_runtime:
            entries = self.snapshot.of_type(SegmentType.INDEX)
            entry = entries[-1] if entries else None
        return None if entry is None else decode_graph(self.read(entry), self.reader.name)

    def sketch(self) -> AccessSketch:
        """The access counters, new ones if the file has none."""
        entries = self.snapshot.of_type(SegmentType.SKETCH)
        if not entries or not self.has_profile:
            return AccessSketch()
        return decode_sketch(self.read(entries[-1]), self.reader.name)

    def _parent_rows(self) -> tuple[Ids, Floats] | None:
        """The rows a branched file inherits from its parent."""
        maps = self.snapshot.of_type(SegmentType.COW_MAP) if self.is_runtime else []
        if not maps:
            return None
        parent_id, name = decode_cow_map(self.read(maps[-1]), self.reader.name)
        if self._open_parent is None or self._depth >= _MAX_LINEAGE:
            raise CorruptLayoutError(f"the parent file {name!r} cannot be reached", path=self.reader.name)
        reader = self._open_parent(name)
        try:
            parent = Content(reader, open_snapshot(reader), self._open_parent, self._depth + 1)
            if parent.snapshot.root is None or parent.snapshot.root.identity.file_id != parent_id:
                raise CorruptLayoutError(f"{name!r} is not the parent of this file", path=self.reader.name)
            if parent.dim != self.dim:
                fact = f"its vectors have {self.dim} dimensions, those of its parent {name!r} {parent.dim}"
                raise CorruptLayoutError(fact, path=self.reader.name)
            rows = parent.load_rows()
        finally:
            reader.close()
        visible = rows.ids[rows.live]
        members = self.snapshot.of_type(SegmentType.MEMBERSHIP)
        keep = np.ones(len(visible), bool)
        if members:
            wanted = decode_membership(self.read(members[-1]), self.reader.name)
            if lost := int((~np.isin(wanted, rows.ids)).sum()):
                # A parent that was cut off opens as it was some commits ago.
                fact = f"the parent file {name!r} lacks {lost} of the vectors this file has from it"
                raise CorruptLayoutError(fact, path=self.reader.name)
            keep = np.isin(visible, wanted)
        return visible[keep], rows.vectors[np.flatnonzero(rows.live)[keep]]
