"""Every number inside payloads: vectors, graphs, dictionaries, journals, metadata, shipped programs."""

from __future__ import annotations

import struct
from typing import NamedTuple


class BlockEntry(NamedTuple):
    """One block in the directory of a VEC payload."""

    block_offset: int
    vector_count: int
    dim: int
    dtype: int
    tier: int


BLOCK_ENTRY = struct.Struct("<IIHBB")


class IdMapHead(NamedTuple):
    """The start of the id map of a block."""

    encoding: int
    restart_interval: int
    id_count: int


ID_MAP_HEAD = struct.Struct("<BHI")
IDS_RAW, IDS_DELTA = 0, 1
ID_RESTART_INTERVAL = 128


class IdDirectoryHead(NamedTuple):
    """The start of an IDS payload."""

    id_count: int
    block_count: int
    block_bytes: int


ID_DIRECTORY_HEAD = struct.Struct("<QIB")


class IndexHeader(NamedTuple):
    """The first bytes of an INDEX payload."""

    index_type: int
    layer_level: int
    m: int
    ef_construction: int
    node_count: int


INDEX_HEADER = struct.Struct("<BBHIQ")
INDEX_KINDS = {"hnsw": 0, "ivf": 1, "flat": 2}
INDEX_NAMES = {number: name for name, number in INDEX_KINDS.items()}
LAYER_A, LAYER_B, LAYER_C = 0, 1, 2
NODE_RESTART_INTERVAL = 64


class RestartHead(NamedTuple):
    """The head of the restart point table of an INDEX payload."""

    restart_interval: int
    restart_count: int


RESTART_HEAD = struct.Struct("<II")


class PrefetchHint(NamedTuple):
    """Which pages a range of nodes needs."""

    node_range_start: int
    node_range_end: int
    page_offset: int
    page_count: int
    prefetch_ahead: int


PREFETCH_HINT = struct.Struct("<QQQII")


class EntryPointHead(NamedTuple):
    """The head of the entry point block of Layer A."""

    entry_count: int
    max_layer: int


ENTRY_POINT_HEAD = struct.Struct("<II")


class EntryPoint(NamedTuple):
    """A node where a walk through the graph begins."""

    node_id: int
    layer: int


ENTRY_POINT = struct.Struct("<QI")


class TopNodeHead(NamedTuple):
    """A node in a top layer of Layer A; its neighbour ids (u64) follow."""

    node_id: int
    neighbor_count: int


TOP_NODE_HEAD = struct.Struct("<QH")


class CentroidHead(NamedTuple):
    """The head of the centroid block of Layer A; vectors follow on a 64-byte boundary."""

    centroid_count: int
    dim: int
    dtype: int


CENTROID_HEAD = struct.Struct("<IHB")


class Partition(NamedTuple):
    """Rows [id_start, id_end) of one centroid, and the block that holds them."""

    centroid_id: int
    id_start: int
    id_end: int
    segment_ref: int
    block_ref: int


PARTITION = struct.Struct("<IQQQI")


class IndexTrailer(NamedTuple):
    """The RVIX trailer's fixed fields; the delta-coded external ids follow."""

    version: int
    m0: int
    max_layer: int
    entry_ordinal: int
    id_count: int


INDEX_TRAILER = struct.Struct("<HHIQQ")
INDEX_TRAILER_END = struct.Struct("<I4s")
INDEX_TRAILER_MAGIC = b"RVIX"


class HotHeader(NamedTuple):
    """The first bytes of a HOT payload."""

    vector_count: int
    dim: int
    dtype: int
    neighbor_m: int


HOT_HEADER = struct.Struct("<IHBH")


class QuantHeader(NamedTuple):
    """The first bytes of a QUANT payload."""

    quant_type: int
    tier: int
    dim: int


QUANT_HEADER = struct.Struct("<BBH")
QUANT_KINDS = {"scalar": 0, "pq": 1, "binary": 2, "residual_pq": 3}
QUANT_NAMES = {number: name for name, number in QUANT_KINDS.items()}


class PqShape(NamedTuple):
    """The shape of a product quantiser's codebook."""

    m: int
    k: int
    sub_dim: int


PQ_SHAPE = struct.Struct("<HHH")


class ResidualShape(NamedTuple):
    """The shape of a residual product quantiser: coarse centroids, then the codebook."""

    k_coarse: int
    m: int
    k: int
    sub_dim: int


RESIDUAL_SHAPE = struct.Struct("<HHHH")


class SketchHeader(NamedTuple):
    """The first bytes of a SKETCH payload."""

    block_count: int
    width: int
    depth: int
    counter_bits: int
    decay_shift: int
    total_accesses: int


SKETCH_HEADER = struct.Struct("<IIIBBQ")


class PlainSketchHeader(NamedTuple):
    """The first bytes of the one-sketch payload that shipped encoders write."""

    width: int
    depth: int
    total_accesses: int


PLAIN_SKETCH_HEADER = struct.Struct("<IIQ")
SKETCH_SEEDS = (0x517CC1B727220A95, 0x6C62272E07BB0142, 0x44C6B90E0F294E41, 0x3B9F7A3E2D8F1C5B)
SKETCH_WIDTH, SKETCH_DEPTH = 1024, 4
SKETCH_DECAY_EVERY = 65_536
SKETCH_HOT, SKETCH_WARM = 128, 16


class JournalHeader(NamedTuple):
    """The 64-byte head of a JOURNAL payload."""

    entry_count: int
    journal_epoch: int
    prev_journal_seg_id: int
    flags: int


JOURNAL_HEADER = struct.Struct("<IIQI44x")
PACKED_JOURNAL_HEADER = struct.Struct("<IIQ")


class JournalEntryHead(NamedTuple):
    """The head of a journal entry."""

    entry_type: int
    zero: int
    length: int


JOURNAL_ENTRY_HEAD = struct.Struct("<BBH")
DELETE_VECTOR, DELETE_RANGE, UPDATE_METADATA, MOVE_VECTOR, REMAP_ID = 1, 2, 3, 4, 5
ID_PAIR = struct.Struct("<QQ")
ID_TRIPLE = struct.Struct("<QQQ")


class MetaHeader(NamedTuple):
    """The head of a META v1 payload."""

    magic: bytes
    version: int
    flags: int
    generation: int
    base_generation: int
    schema_count: int
    file_meta_count: int
    record_count: int


META_HEADER = struct.Struct("<8sHHQQIII")
META_MAGIC = b"RVFMETA\0"
META_END = b"RVFDONE\0"
META_VERSION = 1
META_SNAPSHOT = 0x0001
META_NO_BASE = (1 << 64) - 1
META_MAX_DELTAS = 64
META_MAX_FIELDS = 65_536
META_MAX_RECORDS = 16_777_216
META_MAX_BYTES = 256 << 20
META_MAX_NAME_BYTES = 4096
META_MAX_VALUE_BYTES = 16 << 20


class MetaField(NamedTuple):
    """One field of the schema; its name follows."""

    field_id: int
    value_type: int
    nullable: int
    name_length: int


META_FIELD = struct.Struct("<HBBH")


class MetaRecordHead(NamedTuple):
    """The head of the metadata of one vector."""

    vector_id: int
    op: int
    field_count: int


META_RECORD_HEAD = struct.Struct("<QBI")
META_UPSERT, META_DELETE = 0, 1
VALUE_I64 = struct.Struct("<q")
VALUE_U64 = struct.Struct("<Q")
VALUE_F64 = struct.Struct("<d")
META_TYPES = {"str": 1, "bytes": 2, "i64": 3, "u64": 4, "f64": 5, "bool": 6}
META_TYPE_NAMES = {number: name for name, number in META_TYPES.items()}
VALUE_NULL, VALUE_DELETE_FIELD = 0, 7


class RuntimeWitnessHead(NamedTuple):
    """The head of the witness payload that shipped programs write."""

    witness_type: int
    timestamp_ns: int
    text_length: int


RUNTIME_WITNESS_HEAD = struct.Struct("<BQI")


class CryptoHead(NamedTuple):
    """The head of a CRYPTO payload; the key follows, then its validity."""

    key_type: int
    algorithm: int
    key_id: bytes


CRYPTO_HEAD = struct.Struct("<BB16s")
CRYPTO_TAIL = struct.Struct("<QQ")
CRYPTO_SIGNING_KEY = 0


class RuntimeManifestHead(NamedTuple):
    """The head of the manifest that shipped programs write."""

    epoch: int
    dimension: int
    total_vectors: int
    seg_count: int
    profile_id: int
    metric: int
    zero: int


RUNTIME_MANIFEST_HEAD = struct.Struct("<IHQIBBH")


class WasmManifestHead(NamedTuple):
    """The head of the manifest of the WASM export."""

    epoch: int
    dimension: int
    total_vectors: int
    profile_id: int
    seg_count: int


WASM_MANIFEST_HEAD = struct.Struct("<IHQBI")


class RuntimeSegment(NamedTuple):
    """One segment in the manifest that shipped programs write."""

    segment_id: int
    offset: int
    payload_length: int
    seg_type: int


RUNTIME_SEGMENT = struct.Struct("<QQQB")
RUNTIME_IDENTITY_MAGIC = b"IDIF"


class RuntimeVecHead(NamedTuple):
    """The head of the vectors that shipped programs write; rows of (id, f32 * dim) follow."""

    dim: int
    vector_count: int


RUNTIME_VEC_HEAD = struct.Struct("<HI")


class WasmVecHead(NamedTuple):
    """The head of the vectors of the WASM export."""

    vector_count: int
    dim: int


WASM_VEC_HEAD = struct.Struct("<HI")


class CowMapHead(NamedTuple):
    """The head of a copy-on-write map: which file the other vectors are in."""

    magic: bytes
    version: int
    map_format: int
    compression: int
    cluster_bytes: int
    vectors_per_cluster: int
    parent_id: bytes
    parent_hash: bytes
    map_offset: int
    zero: int
    name_length: int
    map_length: int


COW_MAP_HEAD = struct.Struct("<4sHBBII16s32sQBII")
COW_MAP_MAGIC = b"MCVR"


class MembershipHead(NamedTuple):
    """The head of a membership filter: which ids of the parent are visible."""

    magic: bytes
    version: int
    filter_type: int
    filter_mode: int
    vector_count: int
    member_count: int
    filter_offset: int
    filter_bytes: int


MEMBERSHIP_HEAD = struct.Struct("<4sHBBQQQQ")
MEMBERSHIP_MAGIC = b"BMVR"


DOMAIN_NAMES = {0: "generic", 1: "rvdna", 2: "rvtext", 3: "rvgraph", 4: "rvvis"}
