"""A committed state of a store, read when it is needed: profile, rows, deletions, metadata, layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout, vec
from warpdata.formats.rvf.access import AccessSketch, HotSet, decode_hot, decode_sketch
from warpdata.formats.rvf.graph import GraphPayload, LayerA, decode_graph, decode_layer_a
from warpdata.formats.rvf.journal import (
    DeleteRange,
    Journal,
    UpdateField,
    decode_journal,
    deleted_mask,
    deletions,
)
from warpdata.formats.rvf.layout import BLOCK_ENTRY, Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.manifest import decode_deletions
from warpdata.formats.rvf.meta import decode_meta
from warpdata.formats.rvf.quant import Quantiser, decode_quant
from warpdata.formats.rvf.reader import Snapshot, open_snapshot, read_segment
from warpdata.formats.rvf.runtime import decode_cow_map, decode_membership, decode_runtime_vec
from warpdata.formats.rvf.vec import IdDirectory, VecBlock, decode_id_directory
from warpdata.search.file import quantise
from warpdata.search.file.metadata import MetadataTable
from warpdata.search.file.profile import Profile, parse_profile
from warpdata.search.file.rows import DeletionEvent, RowData

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
ParentOpener = Callable[[str], "RangeReader"]

_MAX_LINEAGE = 16
"""More parents than this are a circle."""


class Content:
    """What one snapshot of a file holds; nothing is read before it is asked for."""

    def __init__(
        self, reader: RangeReader, snapshot: Snapshot, open_parent: ParentOpener | None = None, depth: int = 0
    ) -> None:
        self._depth = depth
        self.reader = reader
        self.snapshot = snapshot
        self._open_parent = open_parent
        self._journals: dict[int, Journal] = {}
        self.is_runtime = snapshot.dialect == "runtime"

    @cached_property
    def profile(self) -> Profile:
        """Metric, dtype and layout of the rows."""
        if self.snapshot.runtime is not None:
            return Profile(metric=self.snapshot.runtime.metric)
        return parse_profile(self.snapshot.record(Tag.PROFILE_CONFIG), self.reader.name)

    @cached_property
    def dim(self) -> int:
        """Dimensions of a vector; a root that does not say leaves it to the first block."""
        stated = 0 if self.snapshot.root is None else self.snapshot.root.dimension
        entries = self.snapshot.of_type(SegmentType.VEC)
        if stated or not entries:
            return stated
        blocks = vec.read_directory(self.read(entries[0]), where=self.reader.name)
        return blocks[0].dim if blocks else 0

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

    @cached_property
    def row_entries(self) -> list[Row]:
        """The segments that hold rows, in order; code segments are not among them."""
        codes = set(self.profile.code_segments)
        return [e for e in self.snapshot.of_type(SegmentType.VEC) if e.segment_id not in codes]

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of all rows, as the directory says."""
        return sum(entry.payload_length for entry in self.row_entries)

    @cached_property
    def base_entries(self) -> list[Row]:
        """The row segments the index covers."""
        covered = set(self.profile.row_segments)
        return [entry for entry in self.row_entries if entry.segment_id in covered]

    @cached_property
    def tail_entries(self) -> list[Row]:
        """The row segments the index does not cover."""
        covered = set(self.profile.row_segments)
        return [entry for entry in self.row_entries if entry.segment_id not in covered]

    @cached_property
    def quantiser(self) -> Quantiser | None:
        """The dictionary of the codes in this file, if our profile says that there are any."""
        found, codes = self._quantisers, self.profile.codes
        if not found or codes is None:
            return None
        if found[-1].dim != self.dim or found[-1].kind != codes.kind:
            raise CorruptLayoutError("the quantiser does not fit the store", path=self.reader.name)
        return found[-1]

    @cached_property
    def _quantisers(self) -> list[Quantiser]:
        entries = [] if self.is_runtime else self.snapshot.of_type(SegmentType.QUANT)
        return [decode_quant(self.read(entry), self.reader.name) for entry in entries]

    def decode_blocks(self, entry: Row) -> list[VecBlock]:
        """The blocks of a row segment, fully checked."""
        payload = self.read(entry)
        if self.is_runtime:
            return [decode_runtime_vec(payload, self.reader.name)]
        return vec.decode_vec(payload, code_bytes=self.code_bytes, where=self.reader.name, check=False)

    @property
    def code_bytes(self) -> int:
        """How long a product code is, 0 where there is none."""
        if self.has_profile:
            return 0 if self.quantiser is None else self.quantiser.code_bytes
        products = [q for q in self._quantisers if q.kind in quantise.PRODUCTS and q.dim == self.dim]
        return products[-1].code_bytes if products else 0

    def vectors_of(self, block: VecBlock) -> Floats:
        """The rows of a block as f32 vectors."""
        if block.dim != self.dim:
            raise CorruptLayoutError(
                f"a block of {block.dim} dimensions in a store of {self.dim}", path=self.reader.name
            )
        quant = self._quantiser_of(block)
        if quant is None:
            return vec.unpack_rows(block.rows, block.dtype, block.dim)
        codes = np.ascontiguousarray(block.rows)
        return quantise.decode(quant, quantise.unsigned(codes) if block.dtype == "i8" else codes)

    def _quantiser_of(self, block: VecBlock) -> Quantiser | None:
        """The dictionary that these rows are codes of; None if they are the numbers themselves.

        Other programs do not say which rows are codes: those whose type fits a dictionary of the file are,
        by that of their own tier if there is one.
        """
        codes = self.profile.codes
        if self.has_profile:
            is_coded = (
                codes is not None and not codes.keep_full and block.dtype == quantise.CODE_DTYPES[codes.kind]
            )
            return self.need_quantiser() if is_coded or block.dtype in ("pq", "custom") else None
        fitting = [each for each in self._quantisers if block.dtype in quantise.FOREIGN_DTYPES[each.kind]]
        if not fitting:
            return self.need_quantiser() if block.dtype in ("pq", "custom") else None
        of_size = [each for each in fitting if each.dim == self.dim]
        if not of_size:
            raise CorruptLayoutError("the quantiser does not fit the store", path=self.reader.name)
        return next((each for each in reversed(of_size) if each.tier == block.tier), of_size[-1])

    def need_quantiser(self) -> Quantiser:
        """The dictionary of codes that are in this file."""
        if self.quantiser is None:
            raise CorruptLayoutError("the quantiser of these codes is missing", path=self.reader.name)
        return self.quantiser

    def load_rows(self) -> RowData:
        """Every row with its fate."""
        return self._load([*self.base_entries, *self.tail_entries], self._parent_rows())

    def load_tail(self) -> RowData:
        """The rows the index does not cover, by themselves."""
        return self._load(self.tail_entries, None)

    def _load(self, entries: list[Row], inherited: tuple[Ids, Floats] | None) -> RowData:
        loaded = [self.decode_blocks(entry) for entry in entries]
        blocks = [block for each in loaded for block in each]
        first = 0 if inherited is None else len(inherited[0])
        total = first + sum(len(block.ids) for block in blocks)
        ids = np.empty(total, np.uint64)
        vectors = np.empty((total, self.dim), np.float32)
        if inherited is not None:
            ids[:first], vectors[:first] = inherited
        ends: dict[int, int] = {}
        row = first
        for entry, each in zip(entries, loaded, strict=True):
            for block in each:
                end = row + len(block.ids)
                ids[row:end] = block.ids
                self._fill(vectors[row:end], block)
                row = end
            ends[entry.segment_id] = row
        indexed = max((ends.get(entry.segment_id, 0) for entry in self.base_entries), default=0)
        return RowData(ids, vectors, indexed, self._deletion_events(ends, total))

    def _fill(self, out: Floats, block: VecBlock) -> None:
        """Write the vectors of a block, without a copy in between where the dtype allows."""
        if block.dtype == "f32" and block.dim == self.dim:
            out[...] = block.rows
        else:
            out[...] = self.vectors_of(block)

    def base_is_dead(self, ids: Ids, tail: RowData) -> NDArray[np.bool_]:
        """Which of these ids of indexed rows were deleted or replaced since."""
        dead = _members(ids, self.bitmap_ids) | _members(ids, tail.table.ids)
        for entry in self.snapshot.of_type(SegmentType.JOURNAL):
            dead |= deleted_mask(ids, self.journal(entry).entries)
        return dead

    def _deletion_events(self, ends: dict[int, int], count: int) -> list[DeletionEvent]:
        """Deletions in order, each with the number of rows that were there when it happened."""
        if self.snapshot.runtime is not None:
            return [DeletionEvent(tuple(deletions(self.snapshot.runtime.deleted)), count)]
        events: list[DeletionEvent] = []
        rows_so_far = 0
        for number, entry in enumerate(self.snapshot.segments):
            if number == self.snapshot.checkpointed:
                events.append(DeletionEvent(self.bitmap_ranges, rows_so_far))
            rows_so_far = max(rows_so_far, ends.get(entry.segment_id, 0))
            if entry.seg_type == SegmentType.JOURNAL:
                journal = self.journal(entry)
                ranges = tuple(e for e in journal.entries if isinstance(e, DeleteRange))
                events.append(DeletionEvent(ranges, rows_so_far))
        if len(self.snapshot.segments) <= self.snapshot.checkpointed:
            events.append(DeletionEvent(self.bitmap_ranges, rows_so_far))
        return events

    def journal(self, entry: Row) -> Journal:
        """The entries of a JOURNAL segment, read once."""
        found = self._journals.get(entry.segment_id)
        if found is None:
            found = self._journals[entry.segment_id] = decode_journal(self.read(entry), self.reader.name)
        return found

    @cached_property
    def bitmap_ids(self) -> Ids:
        """The ids deleted at the checkpoint."""
        value = self.snapshot.record(Tag.DELETION_BITMAP)
        return np.zeros(0, np.uint64) if value is None else decode_deletions(value, self.reader.name)

    @cached_property
    def bitmap_ranges(self) -> tuple[DeleteRange, ...]:
        """The same as ranges."""
        return tuple(deletions(self.bitmap_ids))

    def load_metadata(self) -> MetadataTable:
        """Every record of metadata."""
        table = MetadataTable()
        for entry in self.snapshot.segments:
            if entry.seg_type == SegmentType.META:
                table.apply(decode_meta(self.read(entry), self.reader.name), self.reader.name)
            elif entry.seg_type == SegmentType.JOURNAL:
                updates = [e for e in self.journal(entry).entries if isinstance(e, UpdateField)]
                if updates:
                    table.apply_journal(updates, self.reader.name)
        return table

    @cached_property
    def layers(self) -> dict[int, Row]:
        """Layer (A=0, B=1, C=2) -> its segment, for an index our writer made."""
        value = self.snapshot.record(Tag.INDEX_LAYERS)
        if value is None:
            return {}
        by_id = {entry.segment_id: entry for entry in self.snapshot.of_type(SegmentType.INDEX)}
        found = {}
        for each in _layer_entries(value, self.reader.name):
            if each.segment_id not in by_id:
                raise CorruptLayoutError("a layer of the index is missing", path=self.reader.name)
            found[each.layer] = by_id[each.segment_id]
        return found

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

    def need_layer_a(self) -> LayerA:
        """Centroids and partitions of a store that has them."""
        layer = self.layer_a
        assert layer is not None
        return layer

    @cached_property
    def id_directory(self) -> IdDirectory | None:
        """Which block of the indexed rows holds an id, if the store says."""
        wanted = self.profile.id_segment
        if not wanted:
            return None
        entries = [e for e in self.snapshot.of_type(SegmentType.IDS) if e.segment_id == wanted]
        if not entries:
            raise CorruptLayoutError("the id directory is missing", path=self.reader.name)
        found = decode_id_directory(self.read(entries[0]), self.reader.name)
        counts = [entry.block_count for entry in self.base_entries]
        room = [entry.payload_length // BLOCK_ENTRY.size for entry in self.base_entries]
        fits = all(count <= most for count, most in zip(counts, room, strict=True))
        if not fits or found.block_count != sum(counts):
            raise CorruptLayoutError("the id directory does not fit the blocks", path=self.reader.name)
        return found

    def graph(self, layer: int = 2) -> GraphPayload | None:
        """The neighbour lists of layer B or C."""
        entry = self.layers.get(layer)
        if entry is None and self.is_runtime and layer == 2:
            entries = self.snapshot.of_type(SegmentType.INDEX)
            entry = entries[-1] if entries else None
        return None if entry is None else decode_graph(self.read(entry), self.reader.name)

    def hot_set(self) -> HotSet | None:
        """The vectors asked for most."""
        entries = self.snapshot.of_type(SegmentType.HOT)
        if not entries or not self.has_profile:
            return None
        hot = decode_hot(self.read(entries[-1]), self.reader.name)
        if hot.vectors.shape[1] != self.dim:
            raise CorruptLayoutError("the hot vectors do not fit the store", path=self.reader.name)
        return hot

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


def _members(ids: Ids, ordered: Ids) -> NDArray[np.bool_]:
    """Which ids are among the ordered ones."""
    if not len(ordered):
        return np.zeros(len(ids), bool)
    at = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
    return np.asarray(ordered[at] == ids)


def _layer_entries(value: bytes, where: str) -> list[Row]:
    body = value[layout.LAYER_BITS.size :]
    if len(value) < layout.LAYER_BITS.size or len(body) % layout.LAYER_ENTRY.size:
        raise CorruptLayoutError("the layer record of the index is damaged", path=where)
    return list(layout.LAYER_ENTRY.iter_unpack(body))


def is_plain(entry: Row) -> bool:
    """Whether parts of a segment can be read by themselves."""
    return not entry.flags & (Flag.COMPRESSED | Flag.ENCRYPTED)
