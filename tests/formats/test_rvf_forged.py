"""Payloads, headers and manifests of vector files of which one statement is false: each refused by name."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from warpdata.bytekit import varint
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.rvf import container, graph, layout, meta, quant, runtime, vec, writer
from warpdata.formats.rvf.container import Root, SegmentOptions, SignatureFooter
from warpdata.formats.rvf.layout import INDEX_HEADER, PREFETCH_HINT, Flag, SegmentType
from warpdata.formats.rvf.meta import MetaPayload
from warpdata.formats.rvf.reader import Snapshot, earlier_snapshots, open_snapshot, read_segment
from warpdata.formats.rvf.vec import VecBlock
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender

CORRUPT, LIMIT, CUT = CorruptLayoutError, LimitExceededError, TruncatedError
ALIGN = layout.ALIGNMENT
FOUR = np.arange(4, dtype=np.uint64)


def put(payload: Any, at: int, value: int, size: int) -> bytes:
    """The payload with one number in it changed."""
    at = at if at >= 0 else len(payload) + at
    return bytes(payload[:at]) + value.to_bytes(size, "little") + bytes(payload[at + size :])


ADJACENCY = graph.Adjacency(4, np.ones(4, np.int64), np.ones(4, np.int64), np.array([1, 2, 3, 0]))
HEADER = INDEX_HEADER(0, 2, 4, 40, 4)
GRAPH = graph.encode_graph(HEADER, ADJACENCY)
HINT = layout.COUNT_U32.pack(1) + PREFETCH_HINT.pack(*([1] * len(PREFETCH_HINT._fields)))
HINTED = GRAPH + HINT.ljust(layout.ALIGNMENT, b"\0")
SHIPPED = graph.encode_runtime_graph(HEADER, ADJACENCY, graph.Trailer(8, 0, 0, FOUR))
TRAILER = len(SHIPPED) - layout.INDEX_TRAILER_END.size
IDS = vec.encode_id_directory(vec.IdDirectory(FOUR, np.zeros(4, np.int64), 1))
VEC = bytes(vec.encode_vec([VecBlock(np.ones((4, 2), np.float32), FOUR, 2, "f32")]))
RUNTIME_VEC = runtime.encode_runtime_vec(FOUR, np.ones((4, 2), np.float32))
LOCK = writer.pack_lock(1, "host", 2, b"w" * 16)


RUN = container.encode_deletions(np.arange(500, dtype=np.uint64))


def block(id_map: bytes) -> Any:
    body = np.ones((2, 4), np.float32).tobytes() + id_map
    return body + crc32c(body).to_bytes(4, "little")


def decode_block(data: bytes) -> Any:
    return vec.decode_block(data, layout.BLOCK_ENTRY(0, 4, 2, layout.DTYPE_IDS["f32"], 1))


def meta_of(body: bytes, fields: int = 0, of_file: int = 0, rows: int = 0) -> bytes:
    """A META payload with these counts and this body, hashed as it should be."""
    head = layout.META_HEADER.pack(
        layout.META_MAGIC,
        layout.META_VERSION,
        layout.META_SNAPSHOT,
        1,
        layout.META_NO_BASE,
        fields,
        of_file,
        rows,
    )
    return head + body + layout.META_END + hashlib.sha256(head + body).digest()


FIELD = layout.META_FIELD.pack(0, layout.META_TYPES["i64"], 1, 1) + b"a"
RECORD = layout.META_RECORD_HEAD
UPSERT = RECORD.pack(1, layout.META_UPSERT, 1)


def cow_map(name: bytes = b"p.rvf", length: int = 0, magic: bytes = layout.COW_MAP_MAGIC) -> bytes:
    sizes = 1, 0, 0, 4096, 64, bytes(16), bytes(32), 0, 0, len(name), length
    return layout.COW_MAP_HEAD.pack(magic, *sizes) + name


def members(count: int, of: int, bits: bytes = b"\x07", magic: bytes = layout.MEMBERSHIP_MAGIC) -> bytes:
    size = layout.MEMBERSHIP_HEAD.size
    return layout.MEMBERSHIP_HEAD.pack(magic, 1, 0, 0, of, count, size, len(bits)) + bits


def header(**changes: Any) -> bytes:
    found, _ = container.build(SegmentType.VEC, 1, b"x")
    return container.pack_header(found._replace(**changes))


FOOTER = container.pack_footer(SignatureFooter("ed25519", bytes(64)))
ROOT = container.pack_root(Root(3))


def root_of(at: int, value: int) -> bytes:
    data = put(ROOT, at, value, 1)
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


def read(flags: int, **options: Any) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        found, stored = container.build(SegmentType.VEC, 1, data, SegmentOptions(**options))
        return container.checked_payload(found._replace(flags=found.flags | flags), stored)

    return decode


FORGERIES: dict[str, tuple[Callable[[bytes], Any], bytes, type[FormatError], str]] = {
    # graphs
    "an index without a header": (graph.decode_graph, GRAPH[:20], CUT, "no header"),
    "an index of an unknown type": (graph.decode_graph, put(GRAPH, 0, 9, 1), CORRUPT, "unknown index type or layer"),
    "an index without groups": (graph.decode_graph, GRAPH[: ALIGN + 4], CUT, "no restart table"),
    "more nodes than bytes": (graph.decode_graph, put(GRAPH, 8, 10**9, 8), LIMIT, "more than it holds"),
    "groups of other nodes": (graph.decode_graph, put(GRAPH, 8, 100, 8), CORRUPT, "do not cover the nodes"),
    "groups that do not begin": (graph.decode_graph, put(GRAPH, ALIGN + 8, 3, 4), CORRUPT, "do not ascend"),
    "a group without an end": (graph.decode_graph, GRAPH[: 2 * ALIGN] + b"\xff" * ALIGN, CUT, "is cut off"),
    "a list behind the data": (graph.decode_graph, GRAPH[: 2 * ALIGN] + bytes([1, 3, 1]), CUT, "adjacency data is cut"),
    "a list longer than all": (graph.decode_graph, put(GRAPH, 2 * ALIGN + 1, 0x7F, 1), CORRUPT, "longer than the"),
    "a node of many layers": (graph.decode_graph, put(GRAPH, 2 * ALIGN, 0x7F, 1), CORRUPT, "too many layers"),
    "a neighbour that is none": (graph.decode_graph, put(GRAPH, 2 * ALIGN + 2, 0x70, 1), CORRUPT, "does not exist"),
    "more hints than bytes": (graph.decode_graph, put(HINTED, 3 * ALIGN, 99, 4), CORRUPT, "prefetch hints"),
    "a trailer longer than all": (graph.decode_graph, put(SHIPPED, TRAILER, 2**31, 4), CORRUPT, "contradicts its size"),
    "a trailer of a later version": (
        graph.decode_graph, put(SHIPPED, TRAILER - 4 - layout.INDEX_TRAILER.size, 9, 2), CORRUPT, "unknown trailer",
    ),
    "layer B where A should be": (graph.decode_layer_a, GRAPH, CORRUPT, "not layer A"),
    # ids and vectors
    "ids without a header": (vec.decode_id_directory, IDS[:20], CUT, "no header"),
    "block numbers of three bytes": (vec.decode_id_directory, put(IDS, 12, 3, 1), CORRUPT, "numbers of 3 bytes"),
    "more ids than bytes": (vec.decode_id_directory, put(IDS, 0, 10**9, 8), LIMIT, "1000000000 ids in"),
    "ids without their blocks": (vec.decode_id_directory, IDS[: 2 * ALIGN], CUT, "block numbers of an IDS payload"),
    "a block that is none": (vec.decode_id_directory, put(IDS, -1, 7, 1), CORRUPT, "contradicts itself"),
    "ids that do not ascend": (vec.decode_id_directory, put(IDS, ALIGN + 1, 0, 1), CORRUPT, "contradicts itself"),
    "blocks of no count": (vec.decode_vec, VEC[:3], CUT, "no block count"),
    "more blocks than bytes": (vec.decode_vec, put(VEC, 0, 10**6, 4), LIMIT, "1000000 blocks"),
    "a directory cut off": (lambda d: vec.read_directory(d, 10**6), put(VEC, 0, 99, 4), CUT, "directory is cut off"),
    "a block in the directory": (vec.decode_vec, put(VEC, 4, 1, 4), CORRUPT, "directory contradicts itself"),
    "a block cut off": (decode_block, block(b"")[:20], CUT, "4 vectors is cut off"),
    "ids of other vectors": (
        decode_block, block(layout.ID_MAP_HEAD.pack(layout.IDS_RAW, 0, 5) + bytes(40)), CORRUPT, "5 ids for 4",
    ),
    "ids of an unknown kind": (
        decode_block, block(layout.ID_MAP_HEAD.pack(9, 0, 4) + bytes(32)), CORRUPT, "unknown id encoding 9",
    ),
    "ids cut off": (
        decode_block, block(layout.ID_MAP_HEAD.pack(layout.IDS_RAW, 0, 4) + bytes(20)), CUT, "ids of a block are cut",
    ),
    "a block that was changed": (
        decode_block, put(block(layout.ID_MAP_HEAD.pack(layout.IDS_RAW, 0, 4) + bytes(32)), 0, 7, 1),
        ChecksumError, "a vector block does not match",
    ),
    "restart points elsewhere": (
        decode_block,
        block(
            layout.ID_MAP_HEAD.pack(layout.IDS_DELTA, 2, 4) + (0).to_bytes(4, "little") + (9).to_bytes(4, "little")
            + varint.encode_varints(np.array([1, 1, 3, 1], np.uint64))
        ),
        ChecksumError, "ids of a vector block",
    ),
    "shipped vectors without a header": (runtime.decode_runtime_vec, RUNTIME_VEC[:3], CUT, "no header"),
    "shipped vectors of another size": (runtime.decode_runtime_vec, RUNTIME_VEC[:-1], CORRUPT, "contradicts its"),
    "codes without a dictionary": (
        lambda d: vec.column_count("pq", 4), b"", CORRUPT, "need a QUANT segment",
    ),
    # metadata
    "fields of no type": (meta.decode_meta, meta_of(put(FIELD, 2, 99, 1), 1), CORRUPT, "schema of a META payload"),
    "a field twice": (meta.decode_meta, meta_of(FIELD + FIELD, 2), CORRUPT, "schema of a META payload"),
    "more records than bytes": (meta.decode_meta, meta_of(b"", rows=10**6), LIMIT, "more than it can hold"),
    "bytes behind the records": (meta.decode_meta, meta_of(b"x"), CORRUPT, "do not fill it"),
    "a record twice": (meta.decode_meta, meta_of(2 * RECORD.pack(1, layout.META_DELETE, 0), rows=2), CORRUPT, "fill"),
    "a record of more fields": (
        meta.decode_meta, meta_of(RECORD.pack(1, layout.META_UPSERT, 3), rows=1), CORRUPT, "contradicts the schema",
    ),
    "a field that is none": (
        meta.decode_meta, meta_of(FIELD + UPSERT + b"\x09\x00", 1, rows=1), CORRUPT,
        "names an unknown field",
    ),
    "a value of another type": (
        meta.decode_meta,
        meta_of(FIELD + UPSERT + b"\x00\x00" + meta.pack_value(True, "bool"), 1, rows=1),
        CORRUPT, "a value of 'a' contradicts the schema",
    ),
    "a text that is none": (
        meta.decode_meta, meta_of(layout.META_FIELD.pack(0, 3, 1, 1) + b"\xff", 1), CORRUPT, "not UTF-8",
    ),
    "a value that is none": (meta.unpack_value, b"\x63", CORRUPT, "unknown metadata value 99"),
    "bytes behind a value": (meta.unpack_value, meta.pack_value(True, "bool") + b"x", CORRUPT, "bytes follow"),
    "another META": (meta.decode_meta, b"x" + meta_of(b"")[1:], CORRUPT, "not supported"),
    "META without an end": (meta.decode_meta, put(meta_of(b""), -36, 0, 4), CUT, "no end mark"),
    # shipped programs
    "a map cut off": (runtime.decode_cow_map, cow_map()[:20], CUT, "map is cut off"),
    "no map": (runtime.decode_cow_map, cow_map(magic=b"XXXX"), BadMagicError, "not a copy-on-write map"),
    "a map of another size": (runtime.decode_cow_map, cow_map(length=9), CORRUPT, "contradicts its size"),
    "a parent without a name": (runtime.decode_cow_map, cow_map(b"\xff\xfe"), CORRUPT, "not UTF-8"),
    "a filter cut off": (runtime.decode_membership, members(3, 8)[:20], CUT, "filter is cut off"),
    "no filter": (runtime.decode_membership, members(3, 8, magic=b"XXXX"), BadMagicError, "not a membership filter"),
    "a filter of more ids": (runtime.decode_membership, members(3, 99), CORRUPT, "contradicts its size"),
    "a filter that miscounts": (runtime.decode_membership, members(5, 8), CORRUPT, "miscounts its members"),
    # the rest
    "a codebook without a shape": (
        quant.decode_quant, put(bytes(ALIGN), 0, layout.QUANT_KINDS["pq"], 1)[:2] + b"\4\0" + bytes(ALIGN - 4),
        FormatError, "codebook|quantisation",
    ),
    "a run of too many ids": (
        container.decode_deletions, put(RUN, RUN.index(b"\x01\x00\x00\x00\xf3\x01") + 2, 0xFF00, 2), CORRUPT,
        "too long",
    ),
    "a bitmap of shards": (container.decode_deletions, b"\1" + RUN[1:], CORRUPT, "sharded"),
    "a lock that was changed": (writer.unpack_lock, put(LOCK, 9, 7, 1), CORRUPT, "lock file is damaged"),
    "a lock cut off": (writer.unpack_lock, LOCK[:-1], CORRUPT, "104 bytes"),
    # headers, footers, roots
    "half a header": (container.unpack_header, header()[:40], CUT, "has only 40"),
    "a compression that is none": (
        container.unpack_header, header(flags=Flag.COMPRESSED, compression=9, uncompressed_len=1), CORRUPT, "unknown",
    ),
    "a hash that is none": (
        lambda d: container.checked_payload(container.unpack_header(d), b"x"), header(checksum_algo=9), CORRUPT,
        "unknown",
    ),
    "an encrypted segment": (read(Flag.ENCRYPTED), b"x", UnsupportedVersionError, "without its key"),
    "half a footer": (container.unpack_footer, FOOTER[:2], CUT, "footer is cut off"),
    "a footer cut off": (container.unpack_footer, FOOTER[:-1], CUT, "footer is cut off"),
    "a footer of another length": (container.unpack_footer, put(FOOTER, 2, 9, 2), CORRUPT, "with 9 bytes"),
    "a footer of two lengths": (container.unpack_footer, put(FOOTER, -4, 9, 4), CORRUPT, "another length at its end"),
    "half a root": (container.unpack_root, ROOT[:-1], CUT, "4096 bytes"),
    "no root": (container.unpack_root, b"X" + ROOT[1:], BadMagicError, "no root here"),
    "a root that was changed": (container.unpack_root, put(ROOT, 40, 9, 1), ChecksumError, "does not match its"),
    "a root of a later version": (container.unpack_root, root_of(4, 9), UnsupportedVersionError, "root version 9"),
    "half a directory": (container.unpack_directory, bytes(9), CORRUPT, "not a whole number of entries"),
    "half a chain": (container.unpack_chain, bytes(9), CORRUPT, "has a wrong size"),
    "nothing": (lambda d: open_snapshot(BytesRangeReader(d)), b"", CUT, "at least one segment"),
    "no manifest": (lambda d: open_snapshot(BytesRangeReader(d)), bytes(9000), CORRUPT, "no committed manifest"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_false_statement_is_refused_by_name(name: str) -> None:
    decode, data, kind, words = FORGERIES[name]
    with pytest.raises(kind, match=words):
        decode(data)


def test_the_honest_ones_are_read() -> None:
    assert graph.decode_graph(HINTED).header == HEADER
    assert graph.decode_graph(SHIPPED).trailer is not None
    assert vec.decode_id_directory(IDS).ids.tolist() == [0, 1, 2, 3]
    assert decode_block(block(vec.encode_id_map(FOUR))).ids.tolist() == [0, 1, 2, 3]
    assert meta.decode_meta(meta_of(FIELD, 1)) == MetaPayload(1, None, {"a": "i64"})
    assert runtime.decode_cow_map(cow_map()) == (bytes(16), "p.rvf")
    assert runtime.decode_membership(members(3, 8)).tolist() == [0, 1, 2]
    assert container.unpack_footer(FOOTER)[1] == len(FOOTER)
    assert container.unpack_root(ROOT).dimension == 3


# -- whole files -----------------------------------------------------------------------------------------


@dataclass
class File:
    """Two commits, of one segment each; what is changed in a manifest is hashed anew."""

    content: bytes
    first: Snapshot
    last: Snapshot

    @classmethod
    def new(cls) -> File:
        with tempfile.TemporaryFile() as file:
            appender = SegmentAppender(file.fileno(), "f", None, durable=False)
            entries, states = [], []
            for epoch in (1, 2):
                entries.append(appender.append(NewSegment(SegmentType.VEC, VEC, block_count=1)))
                states.append(appender.commit_checkpoint(entries, Root(2, epoch=epoch), []))
            file.seek(0)
            return cls(file.read(), states[0], states[1])

    def header(self, at: int, **fields: Any) -> None:
        """Change the header of a segment."""
        found = container.unpack_header(self.content[at : at + layout.HEADER_BYTES])._replace(**fields)
        self.content = (
            self.content[:at] + container.pack_header(found) + self.content[at + layout.HEADER_BYTES :]
        )

    def payload(self, change: Callable[[bytes], bytes]) -> None:
        """Change the payload of the newest manifest."""
        at = self.last.manifest_offset
        start = at + layout.HEADER_BYTES
        found = container.unpack_header(self.content[at:start])
        end = start + found.payload_length
        payload = change(self.content[start:end])
        self.content = self.content[:start] + payload + self.content[end:]
        self.header(at, content_hash=container.content_hash(found.checksum_algo, payload))

    def root(self, **fields: Any) -> None:
        """Change the root."""
        root = replace(container.unpack_root(self.content[-layout.ROOT_BYTES :]), **fields)
        self.payload(lambda payload: payload[: -layout.ROOT_BYTES] + container.pack_root(root))

    def chain(self, **fields: Any) -> None:
        """Change what the newest manifest says about the one before."""
        start = layout.TLV_HEAD.size
        size = start + layout.OVERLAY_CHAIN.size
        self.payload(
            lambda payload: (
                payload[:start]
                + layout.OVERLAY_CHAIN.pack(*container.unpack_chain(payload[start:size])._replace(**fields))
                + payload[size:]
            )
        )

    def read(self) -> None:
        """Everything that is read of a file, its history too."""
        reader = BytesRangeReader(self.content, name="f.rvf")
        newest = open_snapshot(reader)
        list(earlier_snapshots(reader, newest))
        for entry in newest.segments:
            read_segment(reader, entry)


WHOLE: dict[str, tuple[Callable[[File], None], type[FormatError], str]] = {
    "a root that points outside": (lambda f: f.root(l1_manifest_offset=10**9), CORRUPT, "points outside its file"),
    "a root that points at rows": (
        lambda f: f.root(l1_manifest_offset=layout.HEADER_BYTES), CORRUPT, "a manifest is marked as another segment",
    ),
    "a root that points at nothing": (
        lambda f: f.root(l1_manifest_offset=2 * layout.HEADER_BYTES), CORRUPT, "before the root is damaged",
    ),
    "a root of more records": (lambda f: f.root(l1_manifest_length=10**6), CORRUPT, "overstates its records"),
    "records behind the records": (
        lambda f: f.root(l1_manifest_length=f.last.root.l1_manifest_length - 8), CORRUPT, "does not fit in its",
    ),
    "an encrypted manifest": (
        lambda f: f.header(f.last.manifest_offset, flags=Flag.ENCRYPTED), CORRUPT, "flags it cannot have",
    ),
    "a manifest with other padding": (
        lambda f: f.header(f.last.manifest_offset, alignment_pad=7), CORRUPT, "padding of a manifest is wrong",
    ),
    "a manifest that was changed": (
        lambda f: f.header(f.last.manifest_offset, content_hash=b"x" * 16), ChecksumError, "does not match its hash",
    ),
    "a manifest before itself": (
        lambda f: f.chain(prev_manifest_offset=f.last.manifest_offset), CORRUPT, "hangs on one behind it",
    ),
    "a manifest before that is none": (lambda f: f.chain(prev_manifest_offset=64), CORRUPT, "chain is damaged"),
    "a manifest before that is another": (lambda f: f.chain(prev_manifest_id=99), CORRUPT, "chain was exchanged"),
    "rows of another id": (lambda f: f.header(0, segment_id=99), CORRUPT, "contradicts the directory"),
    "rows with other flags": (lambda f: f.header(0, flags=Flag.SEALED), CORRUPT, "contradicts the directory"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_false_manifest_is_refused_by_name(name: str) -> None:
    forge, kind, words = WHOLE[name]
    file = File.new()
    file.read()
    forge(file)
    with pytest.raises(kind, match=words) as refused:
        file.read()
    assert "f.rvf" in str(refused.value)
