"""Every number inside payloads: vectors, graphs, dictionaries, journals, metadata, shipped programs."""

from __future__ import annotations

import struct
from typing import NamedTuple

from warpdata.formats.rvf.container.layout import Record


class BlockEntry(NamedTuple):
    """One block in the directory of a VEC payload."""

    block_offset: int
    vector_count: int
    dim: int
    dtype: int
    tier: int


BLOCK_ENTRY = struct.Struct("<IIHBB")


ID_MAP_HEAD = Record("<BHI", "encoding restart_interval id_count")
"""The start of the id map of a block."""
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


RESTART_HEAD = Record("<II", "restart_interval restart_count")
"""The head of the restart point table of an INDEX payload."""


class PrefetchHint(NamedTuple):
    """Which pages a range of nodes needs."""

    node_range_start: int
    node_range_end: int
    page_offset: int
    page_count: int
    prefetch_ahead: int


PREFETCH_HINT = struct.Struct("<QQQII")


ENTRY_POINT_HEAD = Record("<II", "entry_count max_layer")
"""The head of the entry point block of Layer A."""


class EntryPoint(NamedTuple):
    """A node where a walk through the graph begins."""

    node_id: int
    layer: int


ENTRY_POINT = struct.Struct("<QI")


TOP_NODE_HEAD = Record("<QH", "node_id neighbor_count")
"""A node in a top layer of Layer A; its neighbour ids (u64) follow."""


CENTROID_HEAD = Record("<IHB", "centroid_count dim dtype")
"""The head of the centroid block of Layer A; vectors follow on a 64-byte boundary."""


class Partition(NamedTuple):
    """Rows [id_start, id_end) of one centroid, and the block that holds them."""

    centroid_id: int
    id_start: int
    id_end: int
    segment_ref: int
    block_ref: int


PARTITION = struct.Struct("<IQQQI")


INDEX_TRAILER = Record("<HHIQQ", "version m0 max_layer entry_ordinal id_count")
"""The RVIX trailer's fixed fields; the delta-coded external ids follow."""
INDEX_TRAILER_END = struct.Struct("<I4s")
INDEX_TRAILER_MAGIC = b"RVIX"


class HotHeader(NamedTuple):
    """The first bytes of a HOT payload."""

    vector_count: int
    dim: int
    dtype: int
    neighbor_m: int


HOT_HEADER = struct.Struct("<IHBH")


QUANT_HEADER = Record("<BBH", "quant_type tier dim")
"""The first bytes of a QUANT payload."""
QUANT_KINDS = {"scalar": 0, "pq": 1, "binary": 2, "residual_pq": 3}
QUANT_NAMES = {number: name for name, number in QUANT_KINDS.items()}


PQ_SHAPE = Record("<HHH", "m k sub_dim")
"""The shape of a product quantiser's codebook."""


RESIDUAL_SHAPE = Record("<HHHH", "k_coarse m k sub_dim")
"""The shape of a residual product quantiser: coarse centroids, then the codebook."""


class SketchHeader(NamedTuple):
    """The first bytes of a SKETCH payload."""

    block_count: int
    width: int
    depth: int
    counter_bits: int
    decay_shift: int
    total_accesses: int


SKETCH_HEADER = struct.Struct("<IIIBBQ")


PLAIN_SKETCH_HEADER = Record("<IIQ", "width depth total_accesses")
"""The first bytes of the one-sketch payload that shipped encoders write."""
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


JOURNAL_ENTRY_HEAD = Record("<BBH", "entry_type zero length")
"""The head of a journal entry."""
DELETE_VECTOR, DELETE_RANGE, UPDATE_METADATA, MOVE_VECTOR, REMAP_ID = 1, 2, 3, 4, 5
ID_PAIR = struct.Struct("<QQ")


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


META_FIELD = Record("<HBBH", "field_id value_type nullable name_length")
"""One field of the schema; its name follows."""


META_RECORD_HEAD = Record("<QBI", "vector_id op field_count")
"""The head of the metadata of one vector."""
META_UPSERT, META_DELETE = 0, 1
VALUE_I64 = struct.Struct("<q")
VALUE_U64 = struct.Struct("<Q")
VALUE_F64 = struct.Struct("<d")
META_TYPES = {"str": 1, "bytes": 2, "i64": 3, "u64": 4, "f64": 5, "bool": 6}
META_TYPE_NAMES = {number: name for name, number in META_TYPES.items()}
VALUE_NULL, VALUE_DELETE_FIELD = 0, 7


RUNTIME_WITNESS_HEAD = Record("<BQI", "witness_type timestamp_ns text_length")
"""The head of the witness payload that shipped programs write."""


CRYPTO_HEAD = Record("<BB16s", "key_type algorithm key_id")
"""The head of a CRYPTO payload; the key follows, then its validity."""
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


RUNTIME_VEC_HEAD = Record("<HI", "dim vector_count")
"""The head of the vectors that shipped programs write; rows of (id, f32 * dim) follow."""


WASM_VEC_HEAD = Record("<HI", "vector_count dim")
"""The head of the vectors of the WASM export."""


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
