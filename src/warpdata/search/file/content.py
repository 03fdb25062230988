"""A committed state of a store, read when it is needed: profile, rows, deletions, metadata, layers, blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import Range, coalesce, drop_cached
from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout, segment, vec
from warpdata.formats.rvf.access import AccessSketch, decode_sketch
from warpdata.formats.rvf.graph import GraphPayload, LayerA, decode_graph, decode_layer_a
from warpdata.formats.rvf.journal import DeleteRange, Journal, decode_journal, deleted_mask, deletions
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.manifest import decode_deletions
from warpdata.formats.rvf.quant import Quantiser, decode_quant
from warpdata.formats.rvf.reader import Snapshot, check_against_directory, open_snapshot, read_segment
from warpdata.formats.rvf.runtime import decode_cow_map, decode_membership, decode_runtime_vec
from warpdata.formats.rvf.vec import IdDirectory, VecBlock
from warpdata.search.file.profile import Profile, parse_profile
from warpdata.search.file.rows import Deletions, RowData

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
Place = tuple[int, int]
"""A block: the id of its segment, and its number in it."""

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
        return read_segment(self.reader, entry, runtime=self.is_runtime)

    def is_columns(self, entry: Row) -> bool:
        """Whether a META segment has our layout of columns."""
        if self.is_runtime or entry.flags & (Flag.COMPRESSED | Flag.ENCRYPTED):
            return not self.is_runtime and bytes(self.read(entry)[:8]) == layout.COLUMNS_MAGIC
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
        """The length of a product code, 0 where there is none."""
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

    def load_rows(self) -> RowData:
        """Every row."""
        return self._load(self.row_entries, self._parent_rows())

    def load_late(self) -> RowData:
        """The rows behind the partitions, by themselves."""
        return self._load(self.late_entries, None)

    def _load(self, entries: list[Row], inherited: tuple[Ids, Floats] | None) -> RowData:
        loaded = [self.decode_blocks(entry) for entry in entries]
        row = 0 if inherited is None else len(inherited[0])
        total = row + sum(len(block.ids) for blocks in loaded for block in blocks)
        ids = np.empty(total, np.uint64)
        vectors = np.empty((total, self.dim), np.float32)
        if inherited is not None:
            ids[:row], vectors[:row] = inherited
        covered = {*self.profile.row_segments, *self.profile.graph_segments}
        ends: dict[int, int] = {}
        indexed = 0
        for entry, blocks in zip(entries, loaded, strict=True):
            for block in blocks:
                end = row + len(block.ids)
                ids[row:end] = block.ids
                is_plain = block.dtype == "f32" and block.dim == self.dim
                vectors[row:end] = block.rows if is_plain else self.vectors_of(block)
                row = end
            ends[entry.segment_id] = row
            indexed = row if entry.segment_id in covered else indexed
        return RowData(ids, vectors, indexed, self._deletion_events(ends, total))

    def base_is_dead(self, ids: Ids, late: RowData) -> NDArray[np.bool_]:
        """Which of these ids of partitioned rows were deleted or replaced since."""
        dead = np.isin(ids, self.bitmap_ids) | np.isin(ids, late.table.ids)
        for entry in self.snapshot.of_type(SegmentType.JOURNAL):
            dead |= deleted_mask(ids, self.journal(entry).entries)
        return dead

    def _deletion_events(self, ends: dict[int, int], count: int) -> list[Deletions]:
        """Deletions in order, each with the number of rows that were there when it happened."""
        if self.snapshot.runtime is not None:
            return [(tuple(deletions(self.snapshot.runtime.deleted)), count)]
        events: list[Deletions] = []
        rows_so_far, bitmap = 0, tuple(deletions(self.bitmap_ids))
        for number, entry in enumerate(self.snapshot.segments):
            if number == self.snapshot.checkpointed:
                events.append((bitmap, rows_so_far))
            rows_so_far = max(rows_so_far, ends.get(entry.segment_id, 0))
            if entry.seg_type == SegmentType.JOURNAL:
                entries = self.journal(entry).entries
                events.append((tuple(e for e in entries if isinstance(e, DeleteRange)), rows_so_far))
        if len(self.snapshot.segments) <= self.snapshot.checkpointed:
            events.append((bitmap, rows_so_far))
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
            check_against_directory(segment.unpack_header(data, where), entry, where)
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
        visible = rows.ids[rows.live].astype(np.uint64)
        members = self.snapshot.of_type(SegmentType.MEMBERSHIP)
        keep = np.ones(len(visible), bool)
        if members:
            wanted = decode_membership(self.read(members[-1]), self.reader.name)
            if lost := int((~np.isin(wanted, rows.ids.astype(np.uint64))).sum()):
                # A parent that was cut off opens as it was some commits ago.
                fact = f"the parent file {name!r} lacks {lost} of the vectors this file has from it"
                raise CorruptLayoutError(fact, path=self.reader.name)
            keep = np.isin(visible, wanted)
        return visible[keep], rows.take(np.flatnonzero(rows.live)[keep])
