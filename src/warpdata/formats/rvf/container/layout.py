"""Every number of the vector file: magics, types, flags, limits, and one record per struct."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

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

DTYPE_IDS = {
    "f32": 0, "f16": 1, "bf16": 2, "i8": 3, "u8": 4, "i4": 5, "binary": 6, "pq": 7, "custom": 8,
}  # fmt: skip
DTYPE_NAMES = {number: name for name, number in DTYPE_IDS.items()}

TIER_HOT, TIER_WARM, TIER_COLD = 0, 1, 2


COUNT_U16 = struct.Struct("<H")
COUNT_U32 = struct.Struct("<I")
COUNT_U64 = struct.Struct("<Q")


class SegmentHeader(NamedTuple):
    """The 64 bytes in front of every payload."""

    magic: bytes
    version: int
    seg_type: int
    flags: int
    segment_id: int
    payload_length: int
    timestamp_ns: int
    checksum_algo: int
    compression: int
    reserved_0: int
    reserved_1: int
    content_hash: bytes
    uncompressed_len: int
    alignment_pad: int


HEADER = struct.Struct("<4sBBHQQQBBHI16sII")

SIGNED_PREFIX_BYTES = 40
"""How much of the header a signature covers, before the content hash."""

FOOTER_HEAD = struct.Struct("<HH")
FOOTER_TAIL = struct.Struct("<I")
FOOTER_FIXED_BYTES = 8


class FooterHead(NamedTuple):
    """The start of a signature footer."""

    sig_algo: int
    sig_length: int


class RootPointer(NamedTuple):
    """Where something starts: a segment, a block inside its payload, how many entries."""

    seg_offset: int
    block_offset: int
    entries: int


class RootFields(NamedTuple):
    """The fixed fields of the 4096-byte root."""

    magic: bytes
    version: int
    flags: int
    l1_manifest_offset: int
    l1_manifest_length: int
    total_vector_count: int
    dimension: int
    base_dtype: int
    profile_id: int
    epoch: int
    created_ns: int
    modified_ns: int
    entrypoint_seg_offset: int
    entrypoint_block_offset: int
    entrypoint_count: int
    toplayer_seg_offset: int
    toplayer_block_offset: int
    toplayer_node_count: int
    centroid_seg_offset: int
    centroid_block_offset: int
    centroid_count: int
    quantdict_seg_offset: int
    quantdict_block_offset: int
    quantdict_size_bytes: int
    hot_cache_seg_offset: int
    hot_cache_block_offset: int
    hot_cache_vector_count: int
    prefetch_map_offset: int
    prefetch_map_entries: int


ROOT = struct.Struct("<4sHHQQQHBBIQQQIIQIIQIIQIIQIIQI")
ROOT_SIGNED = 0x0004
ROOT_METRIC_SHIFT = 4
"""Bits 4 and 5 of the root's flags: 0 l2, 1 inner product, 2 cosine."""
ROOT_SIGNATURE_HEAD_OFFSET = 0x098
ROOT_SIGNATURE_OFFSET = 0x09C
ROOT_IDENTITY_OFFSET = 0xF00
ROOT_SIGNATURE_MAX_BYTES = 3684
ROOT_CRC_OFFSET = 0xFFC


class FileIdentity(NamedTuple):
    """Which file this is and which one it was derived from."""

    file_id: bytes
    parent_id: bytes
    parent_hash: bytes
    lineage_depth: int


FILE_IDENTITY = struct.Struct("<16s16s32sI")


class TlvHead(NamedTuple):
    """The head of a Level-1 record; the value follows, padded to 8 bytes."""

    tag: int
    length: int
    pad: int


TLV_HEAD = struct.Struct("<HIH")


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


class DirectoryEntry(NamedTuple):
    """One segment in the directory, with everything its header must repeat."""

    segment_id: int
    seg_type: int
    tier: int
    flags: int
    reserved: int
    file_offset: int
    payload_length: int
    compressed_length: int
    shard_id: int
    compression: int
    block_count: int
    content_hash: bytes


DIRECTORY_ENTRY = struct.Struct("<QBBHIQQQHHI16s")


class OverlayChain(NamedTuple):
    """How a manifest hangs on the one before it."""

    epoch: int
    pad: int
    prev_manifest_offset: int
    prev_manifest_id: int
    checkpoint_hash: bytes


OVERLAY_CHAIN = struct.Struct("<IIQQ16s")


class TierEntry(NamedTuple):
    """The temperature of one block."""

    segment_id: int
    block: int
    tier: int


TIER_ENTRY = struct.Struct("<QIB3x")


class LayerEntry(NamedTuple):
    """Which segment holds which layer of the vector index, for which rows."""

    layer: int
    segment_id: int
    node_start: int
    node_end: int


LAYER_BITS = struct.Struct("<B7x")
LAYER_ENTRY = struct.Struct("<B7xQQQ")


class SketchRef(NamedTuple):
    """Where the access sketch is."""

    segment_id: int
    file_offset: int


SKETCH_REF = struct.Struct("<QQ")
SEGMENT_LIST_HEAD = struct.Struct("<I4x")


class KeyRef(NamedTuple):
    """A public key that signed something in this file, and the CRYPTO segment that holds it."""

    key_id: bytes
    segment_id: int


KEY_REF = struct.Struct("<16sQ")


class DimensionEntry(NamedTuple):
    """One vector space of the file."""

    dimension: int
    dtype: int
    flags: int
    vector_count: int
    index_seg_offset: int


DIMENSION_ENTRY = struct.Struct("<HBBIQ")
DIMENSION_HEAD = struct.Struct("<HH")


class BitmapHead(NamedTuple):
    """The head of a deletion bitmap."""

    cookie: int
    high_key_count: int


BITMAP_HEAD = struct.Struct("<II")
BITMAP_COOKIE = 0x3B3A3332


class ContainerEntry(NamedTuple):
    """The ids with one high key."""

    high_key: int
    container_type: int
    container_offset: int


CONTAINER_ENTRY = struct.Struct("<IBI")
CONTAINER_ARRAY, CONTAINER_BITMAP, CONTAINER_RUN = 1, 2, 3
ARRAY_CONTAINER_MAX = 4096
BITMAP_CONTAINER_BYTES = 8192


class WriterLockRecord(NamedTuple):
    """The lock file beside a store that is being written."""

    magic: bytes
    pid: int
    hostname: bytes
    timestamp_ns: int
    writer_id: bytes
    version: int
    checksum: int


WRITER_LOCK = struct.Struct("<4sI64sQ16sII")
WRITER_LOCK_MAGIC = b"FLVR"
WRITER_LOCK_VERSION = 1
LOCK_STALE_FOREIGN_S = 300.0
