"""Every number of the vector file: magics, types, flags, limits, and one line per record."""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

Row = Any
"""The named tuple of a record."""


class Record:
    """A record of fixed size: its struct, and the named tuple of its fields. Calling it makes such a tuple."""

    def __init__(self, form: str, fields: str) -> None:
        self._struct = struct.Struct(form)
        self._row: Any = namedtuple("Row", fields)  # type: ignore[misc]
        self.format, self.size = form, self._struct.size
        self._fields = tuple(fields.split())

    def __call__(self, *values: Any, **named: Any) -> Row:
        return self._row(*values, **named)

    def pack(self, *values: Any) -> bytes:
        """The bytes of these values."""
        return self._struct.pack(*values)

    def unpack_from(self, data: Buffer, offset: int = 0) -> Row:
        """The record at an offset; the caller has checked that it is inside."""
        return self._row._make(self._struct.unpack_from(data, offset))

    def iter_unpack(self, data: Buffer) -> Iterator[Row]:
        """All records of some bytes, which are a multiple of the size."""
        return map(self._row._make, self._struct.iter_unpack(data))


# -- the container ---------------------------------------------------------------------------------------

SEGMENT_MAGIC = b"SFVR"
ROOT_MAGIC = b"0MVR"
VERSION = 1
ALIGNMENT = 64
HEADER_BYTES = 64
ROOT_BYTES = 4096
ROOT_VERSION = 1

MAX_DIM = 0xFFFF
MAX_ID = (1 << 63) - 1
MAX_EPOCH = MAX_VECTORS = (1 << 32) - 1
MAX_PAYLOAD_BYTES = (1 << 32) - 1
"""Offsets inside a payload are u32, so no payload is larger."""
MAX_BITMAP_ID = (1 << 48) - 1
"""A deletion bitmap has 32-bit keys of id >> 16."""


class SegmentType(IntEnum):
    """What a segment holds; a number that is not here is an unknown segment: skipped and preserved."""

    INVALID = 0x00
    VEC = 0x01
    INDEX = 0x02
    OVERLAY = 0x03
    JOURNAL = 0x04
    MANIFEST = 0x05
    QUANT = 0x06
    META = 0x07
    HOT = 0x08
    SKETCH = 0x09
    WITNESS = 0x0A
    PROFILE = 0x0B
    CRYPTO = 0x0C
    METAIDX = 0x0D
    KERNEL = 0x0E
    EBPF = 0x0F
    WASM = 0x10
    DASHBOARD = 0x11
    COW_MAP = 0x20
    REFCOUNT = 0x21
    MEMBERSHIP = 0x22
    DELTA = 0x23
    TRANSFER_PRIOR = 0x30
    POLICY_KERNEL = 0x31
    COST_CURVE = 0x32
    IDS = 0xF0
    LOG = 0xF1


def segment_name(number: int) -> str:
    """The name of a segment type, or its number in hex."""
    try:
        return SegmentType(number).name
    except ValueError:
        return f"0x{number:02X}"


class Flag(IntFlag):
    """Bits of the header's flags word."""

    COMPRESSED = 0x0001
    ENCRYPTED = 0x0002
    SIGNED = 0x0004
    SEALED = 0x0008
    PARTIAL = 0x0010
    TOMBSTONE = 0x0020
    HOT = 0x0040
    OVERLAY = 0x0080
    SNAPSHOT = 0x0100
    CHECKPOINT = 0x0200
    ATTESTED = 0x0400
    HAS_LINEAGE = 0x0800


RESERVED_FLAGS = 0xF000

CHECKSUM_IDS = {"crc32c": 0, "xxh3_128": 1, "shake256": 2}
COMPRESSION_IDS = {"none": 0, "lz4": 1, "zstd": 2, "custom": 3}
COMPRESSION_NAMES = {number: name for name, number in COMPRESSION_IDS.items()}
SIGNATURE_IDS = {"ed25519": 0, "ml-dsa-65": 1, "slh-dsa-128s": 2}
SIGNATURE_NAMES = {number: name for name, number in SIGNATURE_IDS.items()}
SIGNATURE_BYTES = {"ed25519": 64, "ml-dsa-65": 3309, "slh-dsa-128s": 7856}
PUBLIC_KEY_BYTES = {"ed25519": 32, "ml-dsa-65": 1952, "slh-dsa-128s": 32}
METRIC_IDS = {"l2": 0, "ip": 1, "cosine": 2}
METRIC_NAMES = {number: name for name, number in METRIC_IDS.items()}
_DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i4", "binary", "pq", "custom")
DTYPE_IDS = {name: number for number, name in enumerate(_DTYPES)}
DTYPE_NAMES = dict(enumerate(_DTYPES))
TIER_HOT, TIER_WARM, TIER_COLD = 0, 1, 2

COUNT_U16, COUNT_U32, COUNT_U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")

HEADER = Record(
    "<4sBBHQQQBBHI16sII",
    "magic version seg_type flags segment_id payload_length timestamp_ns checksum_algo compression reserved_0"
    " reserved_1 content_hash uncompressed_len alignment_pad",
)
SIGNED_PREFIX_BYTES = 40
"""The part of the header that a signature covers, before the content hash."""
FOOTER_HEAD = Record("<HH", "sig_algo sig_length")
FOOTER_TAIL = struct.Struct("<I")
FOOTER_FIXED_BYTES = 8

ROOT_POINTER = Record("<QII", "seg_offset block_offset entries")
ROOT = Record(
    "<4sHHQQQHBBIQQQIIQIIQIIQIIQIIQI",
    "magic version flags l1_manifest_offset l1_manifest_length total_vector_count dimension base_dtype profile_id"
    " epoch created_ns modified_ns entrypoint_seg_offset entrypoint_block_offset entrypoint_count"
    " toplayer_seg_offset toplayer_block_offset toplayer_node_count centroid_seg_offset centroid_block_offset"
    " centroid_count quantdict_seg_offset quantdict_block_offset quantdict_size_bytes hot_cache_seg_offset"
    " hot_cache_block_offset hot_cache_vector_count prefetch_map_offset prefetch_map_entries",
)
ROOT_SIGNED = 0x0004
ROOT_METRIC_SHIFT = 4
"""Bits 4 and 5 of the root's flags: 0 l2, 1 inner product, 2 cosine."""
ROOT_SIGNATURE_HEAD_OFFSET = 0x098
ROOT_SIGNATURE_OFFSET = 0x09C
ROOT_IDENTITY_OFFSET = 0xF00
ROOT_SIGNATURE_MAX_BYTES = 3684
ROOT_CRC_OFFSET = 0xFFC
FILE_IDENTITY = Record("<16s16s32sI", "file_id parent_id parent_hash lineage_depth")

TLV_HEAD = Record("<HIH", "tag length pad")


class Tag(IntEnum):
    """Level-1 record tags; a number that is not here is kept as it is."""

    SEGMENT_DIR = 0x0001
    TEMP_TIER_MAP = 0x0002
    INDEX_LAYERS = 0x0003
    OVERLAY_CHAIN = 0x0004
    COMPACTION_STATE = 0x0005
    SHARD_REFS = 0x0006
    CAPABILITY_MANIFEST = 0x0007
    PROFILE_CONFIG = 0x0008
    ACCESS_SKETCH_REF = 0x0009
    PREFETCH_TABLE = 0x000A
    ID_RESTART_POINTS = 0x000B
    WITNESS_CHAIN = 0x000C
    KEY_DIRECTORY = 0x000D
    DELETION_BITMAP = 0x000E
    METADATA_INDEX_DIR = 0x000F
    DIMENSION_CATALOG = 0x0010
    MANIFEST_SIGNATURE = 0xF001


DIRECTORY_ENTRY = Record(
    "<QBBHIQQQHHI16s",
    "segment_id seg_type tier flags reserved file_offset payload_length compressed_length shard_id compression"
    " block_count content_hash",
)
OVERLAY_CHAIN = Record("<IIQQ16s", "epoch pad prev_manifest_offset prev_manifest_id checkpoint_hash")
TIER_ENTRY = Record("<QIB3x", "segment_id block tier")
LAYER_BITS = struct.Struct("<B7x")
LAYER_ENTRY = Record("<B7xQQQ", "layer segment_id node_start node_end")
SKETCH_REF = Record("<QQ", "segment_id file_offset")
KEY_REF = Record("<16sQ", "key_id segment_id")
DIMENSION_HEAD = struct.Struct("<HH")
DIMENSION_ENTRY = Record("<HBBIQ", "dimension dtype flags vector_count index_seg_offset")

BITMAP_HEAD = Record("<II", "cookie high_key_count")
BITMAP_COOKIE = 0x3B3A3332
CONTAINER_ENTRY = Record("<IBI", "high_key container_type container_offset")
CONTAINER_ARRAY, CONTAINER_BITMAP, CONTAINER_RUN = 1, 2, 3
ARRAY_CONTAINER_MAX = 4096
BITMAP_CONTAINER_BYTES = 8192

WRITER_LOCK = Record("<4sI64sQ16sII", "magic pid hostname timestamp_ns writer_id version checksum")
WRITER_LOCK_MAGIC = b"FLVR"
WRITER_LOCK_VERSION = 1
LOCK_STALE_FOREIGN_S = 300.0

# -- vectors, ids, graphs --------------------------------------------------------------------------------

BLOCK_ENTRY = Record("<IIHBB", "block_offset vector_count dim dtype tier")
ID_MAP_HEAD = Record("<BHI", "encoding restart_interval id_count")
IDS_RAW, IDS_DELTA = 0, 1
ID_RESTART_INTERVAL = 128
ID_DIRECTORY_HEAD = Record("<QIB", "id_count block_count block_bytes")

INDEX_HEADER = Record("<BBHIQ", "index_type layer_level m ef_construction node_count")
INDEX_KINDS = {"hnsw": 0, "ivf": 1, "flat": 2}
INDEX_NAMES = {number: name for name, number in INDEX_KINDS.items()}
LAYER_A, LAYER_B, LAYER_C = 0, 1, 2
NODE_RESTART_INTERVAL = 64
RESTART_HEAD = Record("<II", "restart_interval restart_count")
PREFETCH_HINT = Record("<QQQII", "node_range_start node_range_end page_offset page_count prefetch_ahead")
ENTRY_POINT_HEAD = Record("<II", "entry_count max_layer")
ENTRY_POINT = Record("<QI", "node_id layer")
TOP_NODE_HEAD = Record("<QH", "node_id neighbor_count")
CENTROID_HEAD = Record("<IHB", "centroid_count dim dtype")
PARTITION = Record("<IQQQI", "centroid_id id_start id_end segment_ref block_ref")
INDEX_TRAILER = Record("<HHIQQ", "version m0 max_layer entry_ordinal id_count")
INDEX_TRAILER_END = struct.Struct("<I4s")
INDEX_TRAILER_MAGIC = b"RVIX"

HOT_HEADER = Record("<IHBH", "vector_count dim dtype neighbor_m")
QUANT_HEADER = Record("<BBH", "quant_type tier dim")
QUANT_KINDS = {"scalar": 0, "pq": 1, "binary": 2, "residual_pq": 3}
QUANT_NAMES = {number: name for name, number in QUANT_KINDS.items()}
PQ_SHAPE = Record("<HHH", "m k sub_dim")
RESIDUAL_SHAPE = Record("<HHHH", "k_coarse m k sub_dim")

SKETCH_HEADER = Record("<IIIBBQ", "block_count width depth counter_bits decay_shift total_accesses")
PLAIN_SKETCH_HEADER = Record("<IIQ", "width depth total_accesses")
SKETCH_SEEDS = (0x517CC1B727220A95, 0x6C62272E07BB0142, 0x44C6B90E0F294E41, 0x3B9F7A3E2D8F1C5B)
SKETCH_WIDTH, SKETCH_DEPTH = 1024, 4
SKETCH_DECAY_EVERY = 65_536
SKETCH_HOT = 128

# -- journals, metadata, keys ----------------------------------------------------------------------------

JOURNAL_HEADER = Record("<IIQI44x", "entry_count journal_epoch prev_journal_seg_id flags")
PACKED_JOURNAL_HEADER = Record("<IIQ", "entry_count journal_epoch prev_journal_seg_id")
JOURNAL_ENTRY_HEAD = Record("<BBH", "entry_type zero length")
DELETE_VECTOR, DELETE_RANGE, UPDATE_METADATA = 1, 2, 3
ID_PAIR = struct.Struct("<QQ")

LOG_HEAD = Record("<8sIIQ16s", "magic epoch piece_count live_count previous_hash")
LOG_PIECE = Record("<BBHII", "seg_type tier zero block_count payload_length")
LOG_MAGIC = b"RVFLOG1\0"
LOG_END = b"RVF-DONE"
"""It has no zero: a sector of zeros at the end of a LOG segment was never written."""
LOG_TYPES = (SegmentType.VEC, SegmentType.JOURNAL, SegmentType.META)
LOGGED_BYTES = 16 << 10
"""A commit of more payload is written as segments with a manifest."""
LOG_BYTES, LOG_COMMITS = 256 << 10, 256
"""So many bytes or commits of log follow a manifest at most."""

META_HEADER = Record(
    "<8sHHQQIII", "magic version flags generation base_generation schema_count file_meta_count record_count"
)
META_MAGIC = b"RVFMETA\0"
META_END = b"RVFDONE\0"
META_VERSION = 1
META_SNAPSHOT = 0x0001
META_NO_BASE = (1 << 64) - 1
META_MAX_FIELDS = 65_536
META_MAX_RECORDS = 16_777_216
META_MAX_VALUE_BYTES = 16 << 20
META_FIELD = Record("<HBBH", "field_id value_type nullable name_length")
META_RECORD_HEAD = Record("<QBI", "vector_id op field_count")
META_UPSERT, META_DELETE = 0, 1
VALUE_FORMS = {"i64": struct.Struct("<q"), "u64": struct.Struct("<Q"), "f64": struct.Struct("<d")}
META_TYPES = {"str": 1, "bytes": 2, "i64": 3, "u64": 4, "f64": 5, "bool": 6}
META_TYPE_NAMES = {number: name for name, number in META_TYPES.items()}
VALUE_NULL, VALUE_DELETE_FIELD = 0, 7

COLUMNS_HEAD = Record(
    "<8sHHIQIIII", "magic version flags chunk_rows row_count schema_bytes id_bytes column_count head_crc"
)
COLUMNS_MAGIC = b"RVFCOLS\0"
COLUMNS_VERSION = 1
COLUMNS_ID_RUNS = 0x0001
COLUMN_CHUNK_ROWS = 512
"""Rows of one piece of a column: the metadata of ten vectors of 200,000 is in 2.5 % of the pieces."""
COLUMN_PIECE = Record("<IIII", "offset size nulls crc")

CRYPTO_HEAD = Record("<BB16s", "key_type algorithm key_id")
CRYPTO_TAIL = struct.Struct("<QQ")
CRYPTO_SIGNING_KEY = 0
DOMAIN_NAMES = {0: "generic", 1: "rvdna", 2: "rvtext", 3: "rvgraph", 4: "rvvis"}

# -- files of shipped programs ---------------------------------------------------------------------------

RUNTIME_MANIFEST_HEAD = Record("<IHQIBBH", "epoch dimension total_vectors seg_count profile_id metric zero")
WASM_MANIFEST_HEAD = Record("<IHQBI", "epoch dimension total_vectors profile_id seg_count")
RUNTIME_SEGMENT = Record("<QQQB", "segment_id offset payload_length seg_type")
RUNTIME_IDENTITY_MAGIC = b"IDIF"
RUNTIME_VEC_HEAD = Record("<HI", "dim vector_count")
WASM_VEC_HEAD = Record("<HI", "vector_count dim")
RUNTIME_WITNESS_HEAD = Record("<BQI", "witness_type timestamp_ns text_length")
COW_MAP_HEAD = Record(
    "<4sHBBII16s32sQBII",
    "magic version map_format compression cluster_bytes vectors_per_cluster parent_id parent_hash map_offset zero"
    " name_length map_length",
)
COW_MAP_MAGIC = b"MCVR"
MEMBERSHIP_HEAD = Record(
    "<4sHBBQQQQ", "magic version filter_type filter_mode vector_count member_count filter_offset filter_bytes"
)
MEMBERSHIP_MAGIC = b"BMVR"
