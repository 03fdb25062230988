"""Rewrite of a store: live rows in partition order, index layers, codes, metadata, signatures."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file
from warpdata.errors import LimitExceededError
from warpdata.formats.rvf import layout, segment
from warpdata.formats.rvf.access import AccessSketch, encode_sketch
from warpdata.formats.rvf.layout import (
    KEY_REF,
    LAYER_ENTRY,
    ROOT_POINTER,
    TIER_ENTRY,
    Flag,
    Row,
    SegmentType,
    Tag,
)
from warpdata.formats.rvf.manifest import Root, Tlv
from warpdata.formats.rvf.meta import encode_meta
from warpdata.formats.rvf.quant import Quantiser, encode_quant
from warpdata.formats.rvf.segment import SegmentOptions
from warpdata.formats.rvf.signing import encode_crypto
from warpdata.formats.rvf.vec import IdDirectory, VecBlock, encode_id_directory, encode_vec, pack_rows
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender
from warpdata.search.file import quantise
from warpdata.search.file.layers import IndexPayloads, index_payloads
from warpdata.search.file.metadata import split_metadata
from warpdata.search.file.profile import CodePlan, IndexPlan, Profile
from warpdata.search.query import ann
from warpdata.search.query.distance import is_ordinary, prepared

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from warpdata.formats.rvf.meta import MetaPayload
    from warpdata.formats.rvf.signing import SigningKey
    from warpdata.search.file.content import Content

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

BLOCK_ROWS = 4096
MAX_BLOCK_ROWS = 8192
SEGMENT_BYTES = 128 << 20
"""Rows are cut into segments of about this size, so that writing needs bounded memory."""
_SMALLEST_INDEX = 2
_ROW_BYTES_FOR_IDS = 64
"""Of shorter rows an id directory would be a noticeable part, and the whole file is soon read."""
_OWN_TYPES = {
    SegmentType.VEC, SegmentType.INDEX, SegmentType.JOURNAL, SegmentType.MANIFEST, SegmentType.QUANT,
    SegmentType.META, SegmentType.HOT, SegmentType.SKETCH, SegmentType.CRYPTO, SegmentType.IDS,
}  # fmt: skip
"""Segments that a rewrite makes itself or leaves out; all others are copied."""
_LINEAGE_TYPES = {SegmentType.COW_MAP, SegmentType.REFCOUNT, SegmentType.MEMBERSHIP, SegmentType.DELTA}
"""What ties a branched file to its parent; its copy holds the parent's rows itself."""
OWN_TAGS = {
    Tag.SEGMENT_DIR, Tag.TEMP_TIER_MAP, Tag.INDEX_LAYERS, Tag.OVERLAY_CHAIN, Tag.COMPACTION_STATE,
    Tag.PROFILE_CONFIG, Tag.ACCESS_SKETCH_REF, Tag.WITNESS_CHAIN, Tag.KEY_DIRECTORY, Tag.DELETION_BITMAP,
    Tag.DIMENSION_CATALOG, Tag.MANIFEST_SIGNATURE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What the new file shall have."""

    profile: Profile
    compression: str = "none"
    signer: SigningKey | None = None
    timestamp_ns: int | None = None
    """What time it is said to be; now, if nobody says."""


@dataclass(slots=True)
class LiveRows:
    """The rows that survive, in any order."""

    ids: NDArray[np.uint64]
    vectors: Floats
    metadata: MetaPayload | None
    hot_ids: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Rows in their new order, and where each cell of it begins."""

    order: Ints
    bounds: Ints
    """Rows [bounds[i], bounds[i+1]) are block i."""
    cells: Ints
    """The centroid of each block."""
    centroids: Floats | None


def rewrite(
    path: str, content: Content, rows: LiveRows, plan: RewritePlan, *, replace_file: bool = True
) -> None:
    """Replace the file at `path` by a new one, atomically; with `replace_file=False` there may be none."""
    with commit_file(path, replace=replace_file) as out:
        if os.path.exists(path):
            os.fchmod(out.fd, os.stat(path).st_mode & 0o777)
        _Rewriter(SegmentAppender(out.fd, path, None, durable=False), content, rows, plan).run()


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
        self._tiers: list[Row] = []

    def run(self) -> None:
        """Write everything and commit it."""
        self._copy_foreign()
        plan = self._profile.index
        arranged = arrange(prepared(self._rows.vectors, self._profile.metric), self._rows.ids, plan)
        self._rows.ids = self._rows.ids[arranged.order]
        self._rows.vectors = self._rows.vectors[arranged.order]
        quant, quant_entry = self._write_quantiser()
        row_segments = self._write_rows(arranged, quant)
        code_segments = self._write_codes(arranged, quant)
        id_segment = self._write_ids(arranged, [entry for entry, _ in row_segments])
        index = index_payloads(self._as_searched(quant), self._profile, arranged, row_segments)
        layers, root = self._write_index(index, quant_entry)
        self._write_metadata()
        extra = self._write_keys()
        profile = replace(
            self._profile,
            row_segments=tuple(entry.segment_id for entry, _ in row_segments),
            code_segments=tuple(entry.segment_id for entry in code_segments),
            probe_share=0.0 if index is None else index.probe_share,
            id_segment=id_segment,
            copies=0 if index is None else index.copies,
        )
        self._commit(profile, root, [*layers, *extra])

    def _as_searched(self, quant: Quantiser | None) -> LiveRows:
        """The rows as they will be compared: of codes alone, what they stand for."""
        codes = self._profile.codes
        if quant is None or codes is None or codes.keep_full:
            return self._rows
        pieces = [
            quantise.decode(quant, quantise.encode(quant, self._rows.vectors[start : start + MAX_BLOCK_ROWS]))
            for start in range(0, len(self._rows.ids), MAX_BLOCK_ROWS)
        ]
        return replace(self._rows, vectors=np.concatenate(pieces))

    def _append(self, seg_type: int, payload: Buffer, **about: int) -> Row:
        flags = Flag.SEALED | about.pop("flags", 0)
        compressed = self._plan.compression if seg_type in (SegmentType.VEC, SegmentType.META) else "none"
        compressed = "zstd" if seg_type in (SegmentType.IDS, SegmentType.QUANT) else compressed
        options = SegmentOptions(flags=flags, timestamp_ns=self._now_ns, compression=compressed)
        signer = None if self._plan.signer is None else self._plan.signer.sign_segment
        entry = self._appender.append(NewSegment(seg_type, payload, options, **about), signer)
        self._entries.append(entry)
        return entry

    def _copy_foreign(self) -> None:
        """Segments of types this writer does not own stay as they are, byte for byte."""
        for entry in foreign_entries(self._content):
            if not entry.flags & Flag.ENCRYPTED:
                self._content.read(entry)
            reader = self._content.reader
            header = segment.read_header(reader, entry.file_offset)
            end = segment.segment_end(reader, entry.file_offset, header)
            self._entries.append(self._appender.copy(reader.read(entry.file_offset, end), entry))

    def _write_quantiser(self) -> tuple[Quantiser | None, Row | None]:
        codes = self._profile.codes
        if codes is None or not len(self._rows.ids):
            return None, None
        if not is_ordinary(self._rows.vectors):
            raise ValueError("the numbers of these vectors are too large or too small to be quantised")
        code_bytes = codes.bytes_for(self._rows.vectors.shape[1])
        quant = self._kept_quantiser(codes) or quantise.train(codes.kind, self._rows.vectors, code_bytes)
        return quant, self._append(SegmentType.QUANT, encode_quant(quant), tier=layout.TIER_COLD)

    def _kept_quantiser(self, codes: CodePlan) -> Quantiser | None:
        """The dictionary of the file, if its codes are all there is: vectors decoded from it fit it best."""
        is_kept = not codes.keep_full and self._content.profile.codes == codes
        return self._content.quantiser if is_kept else None

    def _write_rows(self, arranged: Arrangement, quant: Quantiser | None) -> list[tuple[Row, int]]:
        """The row segments, each with its number of blocks."""
        codes = self._profile.codes
        coded = quant if codes is not None and not codes.keep_full else None
        written = []
        for spans in self._groups(arranged):
            blocks = [self._block(start, end, coded) for start, end in spans]
            tier = blocks[0].tier
            entry = self._append(SegmentType.VEC, encode_vec(blocks), block_count=len(blocks), tier=tier)
            written.append((entry, len(blocks)))
        return written

    def _write_codes(self, arranged: Arrangement, quant: Quantiser | None) -> list[Row]:
        """The codes of rows whose full vectors are kept, in segments that match the row segments."""
        codes = self._profile.codes
        if quant is None or codes is None or not codes.keep_full:
            return []
        written = []
        for spans in self._groups(arranged):
            coded = [self._block(start, end, quant) for start, end in spans]
            entry = self._append(
                SegmentType.VEC, encode_vec(coded), block_count=len(coded), tier=layout.TIER_COLD
            )
            self._tiers += [TIER_ENTRY(entry.segment_id, n, layout.TIER_COLD) for n in range(len(coded))]
            written.append(entry)
        return written

    def _write_ids(self, arranged: Arrangement, row_segments: list[Row]) -> int:
        """The directory of ids, if the rows are long enough to make it worth its bytes; its segment or 0."""
        stored = sum(entry.payload_length for entry in row_segments)
        if not len(self._rows.ids) or stored < _ROW_BYTES_FOR_IDS * len(self._rows.ids):
            return 0
        blocks = np.repeat(np.arange(len(arranged.bounds) - 1), np.diff(arranged.bounds))
        order = np.argsort(self._rows.ids)
        found = IdDirectory(self._rows.ids[order], blocks[order], len(arranged.bounds) - 1)
        return self._append(SegmentType.IDS, encode_id_directory(found)).segment_id  # type: ignore[no-any-return]

    def _groups(self, arranged: Arrangement) -> Iterator[list[tuple[int, int]]]:
        """The row ranges of blocks, in groups of bounded size."""
        rows = max(1, SEGMENT_BYTES // max(1, self._rows.vectors.shape[1] * 4))
        group: list[tuple[int, int]] = []
        for start, end in itertools.pairwise(arranged.bounds.tolist()):
            group.append((start, end))
            if end - group[0][0] >= rows:
                yield group
                group = []
        if group:
            yield group

    def _block(self, start: int, end: int, quant: Quantiser | None) -> VecBlock:
        vectors, ids = self._rows.vectors[start:end], self._rows.ids[start:end]
        dim = vectors.shape[1]
        if quant is not None:
            codes = quantise.encode(quant, vectors)
            return VecBlock(codes, ids, dim, quantise.CODE_DTYPES[quant.kind], layout.TIER_COLD)
        dtype = self._profile.dtype
        return VecBlock(pack_rows(vectors, dtype), ids, dim, dtype, layout.TIER_WARM)

    def _write_index(self, index: IndexPayloads | None, quant_entry: Row | None) -> tuple[list[Tlv], Root]:
        root = self._root(quant_entry)
        if index is None:
            return [], root
        entries: list[Row] = []
        for layer, payload in index.graphs.items():
            entry = self._append(SegmentType.INDEX, payload)
            entries.append(LAYER_ENTRY(layer, entry.segment_id, 0, index.node_count))
        if index.layer_a is not None:
            entry = self._append(SegmentType.INDEX, index.layer_a, flags=Flag.HOT)
            entries.append(LAYER_ENTRY(0, entry.segment_id, 0, index.node_count))
            root = index.pointed(root, entry.file_offset)
        if index.hot is not None:
            hot = self._append(SegmentType.HOT, index.hot, flags=Flag.HOT, tier=layout.TIER_HOT)
            root = replace(root, hot_cache=ROOT_POINTER(hot.file_offset, 64, index.hot_count))
        bits = sum(1 << entry.layer for entry in entries)
        packed = b"".join(layout.LAYER_ENTRY.pack(*entry) for entry in entries)
        return [(Tag.INDEX_LAYERS, layout.LAYER_BITS.pack(bits) + packed)], root

    def _root(self, quant_entry: Row | None) -> Root:
        old = self._content.snapshot.root or Root()
        quant = ROOT_POINTER(0, 0, 0)
        if quant_entry is not None:
            quant = ROOT_POINTER(quant_entry.file_offset, 0, quant_entry.payload_length)
        return Root(
            dimension=self._rows.vectors.shape[1], base_dtype=layout.DTYPE_IDS[self._profile.dtype],
            total_vector_count=len(self._rows.ids), epoch=self._content.snapshot.next_epoch,
            created_ns=old.created_ns or self._now_ns, modified_ns=self._now_ns, profile_id=old.profile_id,
            flags=root_flags(self._profile.metric), quantdict=quant, identity=old.identity,
            reserved=old.reserved,
        )  # fmt: skip

    def _write_metadata(self) -> None:
        if self._rows.metadata is not None:
            for each in split_metadata(self._rows.metadata):
                self._append(SegmentType.META, encode_meta(each))

    def _write_keys(self) -> list[Tlv]:
        """Public key and an empty access sketch for the new blocks."""
        out: list[Tlv] = []
        if self._plan.signer is not None:
            key = self._plan.signer.public
            entry = self._append(SegmentType.CRYPTO, encode_crypto(key))
            out.append((Tag.KEY_DIRECTORY, layout.KEY_REF.pack(*KEY_REF(key.key_id, entry.segment_id))))
        sketch = self._append(SegmentType.SKETCH, encode_sketch(AccessSketch()))
        out.append((Tag.ACCESS_SKETCH_REF, layout.SKETCH_REF.pack(sketch.segment_id, sketch.file_offset)))
        if self._tiers:
            out.append((Tag.TEMP_TIER_MAP, b"".join(layout.TIER_ENTRY.pack(*tier) for tier in self._tiers)))
        return out

    def _commit(self, profile: Profile, root: Root, records: list[Tlv]) -> None:
        carried = [record for record in self._content.snapshot.records if record[0] not in OWN_TAGS]
        catalog = dimension_record(root, len(self._rows.ids))
        described = [(int(Tag.PROFILE_CONFIG), profile.to_json()), catalog, *records, *carried]
        signer = None if self._plan.signer is None else self._plan.signer.sign_root
        self._appender.commit_checkpoint(self._entries, root, described, signer)


def foreign_entries(content: Content) -> list[Row]:
    """The segments that a rewrite copies byte for byte."""
    left = _OWN_TYPES | (_LINEAGE_TYPES if content.is_runtime else set())
    return [entry for entry in content.snapshot.segments if entry.seg_type not in left]


def dimension_record(root: Root, live: int) -> Tlv:
    """The record that says how many vectors live."""
    if not 0 <= live <= layout.MAX_VECTORS:
        raise LimitExceededError(f"a vector file that counts {live} vectors")
    head = layout.DIMENSION_HEAD.pack(1, 0)
    flags = 3 if root.centroid.entries else 1
    offset = root.centroid.seg_offset
    return Tag.DIMENSION_CATALOG, head + layout.DIMENSION_ENTRY.pack(
        root.dimension, root.base_dtype, flags, live, offset
    )


def root_flags(metric: str) -> int:
    """The flags of a root: the metric, so that the root alone tells it."""
    return layout.METRIC_IDS[metric] << layout.ROOT_METRIC_SHIFT


def arrange(vectors: Floats, ids: NDArray[np.uint64], plan: IndexPlan | None) -> Arrangement:
    """An order of the rows: by cell and id for an index with partitions, by id otherwise.

    Numbers whose squares leave f32 have no centroids to go by; they are compared one by one.
    """
    count = len(ids)
    if plan is None or plan.kind == "flat" or count < _SMALLEST_INDEX or not is_ordinary(vectors):
        order = np.argsort(ids, kind="stable")
        bounds = np.append(np.arange(0, count, BLOCK_ROWS), count) if count else np.zeros(1, np.int64)
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
