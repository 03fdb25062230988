"""Every number of a tar shard and of its member index."""

from __future__ import annotations

import struct
from typing import NamedTuple

BLOCK_BYTES = 512
MAX_NAME_BYTES = 4096
MAX_PAX_BYTES = 1 << 20
MAX_MEMBERS = 1 << 31

REGULAR_TYPES = (b"0", b"\0", b"7")
FOLDER_TYPE = b"5"
PAX_TYPE = b"x"
PAX_GLOBAL_TYPE = b"g"
GNU_NAME_TYPE = b"L"

INDEX_MAGIC = b"WTARIDX1"
BUCKET_BYTES = 4096
BUCKET_CAPACITY = 85
BUCKET_LOAD = 56
"""Members per bucket aimed at; a fuller bucket makes the index larger, never slower."""

HEAD_BYTES = 4096
NAMES_PER_BLOCK = 1024


class TarHeader(NamedTuple):
    """One 512-byte header of a tar file (ustar)."""

    name: bytes
    mode: bytes
    uid: bytes
    gid: bytes
    size: bytes
    mtime: bytes
    checksum: bytes
    typeflag: bytes
    linkname: bytes
    magic: bytes
    version: bytes
    uname: bytes
    gname: bytes
    devmajor: bytes
    devminor: bytes
    prefix: bytes


class IndexHead(NamedTuple):
    """The first record of a member index."""

    magic: bytes
    member_count: int
    bucket_count: int
    names_offset: int
    fences_offset: int
    block_count: int
    file_bytes: int
    fences_crc32c: int
    head_crc32c: int


class BucketHead(NamedTuple):
    """The first record of a bucket."""

    crc32c: int
    member_count: int
    bucket: int


class MemberEntry(NamedTuple):
    """The place of one member; `frame_bytes` is 0 unless the shard is compressed."""

    key: bytes
    shard: int
    crc32c: int
    offset: int
    length: int
    frame_bytes: int
    inner_offset: int


class NameFence(NamedTuple):
    """The place of one block of sorted names."""

    offset: int
    disk_bytes: int
    raw_bytes: int
    first_bytes: int
    crc32c: int


TAR_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
INDEX_HEAD = struct.Struct("<8sQQQQQQII")
BUCKET_HEAD = struct.Struct("<IIQ")
MEMBER_ENTRY = struct.Struct("<16sIIQQII")
NAME_FENCE = struct.Struct("<QIIII")

CHECKSUM_START, CHECKSUM_END = 148, 156


def bucket_offset(bucket: int) -> int:
    """The position of a bucket in the index."""
    return HEAD_BYTES + bucket * BUCKET_BYTES
