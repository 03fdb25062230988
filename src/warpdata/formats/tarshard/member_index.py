"""The member index: a hash table on disk, so that finding a member is one small read, and the names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c, xxh3_128
from warpdata.bytekit.codec import decode, encode
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BadMagicError, ChecksumError, CorruptLayoutError, LimitExceededError
from warpdata.formats.tarshard import layout
from warpdata.formats.tarshard.layout import BucketHead, IndexHead, MemberEntry, NameFence

_ENTRY = layout.MEMBER_ENTRY.size
_BUCKET_HEAD = layout.BUCKET_HEAD.size
_KEPT_BUCKETS = 16_384
_SMALL_BYTES = 192 << 10
"""An index up to this size is read whole for any lookup."""

_BULK_BYTES = 8 << 20
_BULK_LOOKUPS = 8
"""An index up to this size is read whole when more buckets than this are needed at once."""


class Member(NamedTuple):
    """The place of one member, its length and its checksum."""

    name: str
    shard: int
    offset: int
    length: int
    crc32c: int
    frame_bytes: int = 0
    inner_offset: int = 0

    @property
    def read_range(self) -> tuple[int, int]:
        """The bytes of the shard that hold the member."""
        return self.offset, self.offset + (self.frame_bytes or self.length)


def pack_index(members: Sequence[Member]) -> tuple[bytes, int]:
    """The bytes of a member index and its number of buckets."""
    keys = [xxh3_128(member.name.encode()) for member in members]
    if len(set(keys)) != len(keys):
        raise CorruptLayoutError("a member name appears twice")
    tops = np.array([int.from_bytes(key[:4], "big") for key in keys], np.uint64)
    bucket_count = _bucket_count(tops)
    buckets = _buckets(members, keys, _bucket_of(tops, bucket_count), bucket_count)
    names = sorted(member.name.encode() for member in members)
    names_offset = layout.bucket_offset(bucket_count)
    blocks, fences, firsts = _name_blocks(names, names_offset)
    fences_offset = names_offset + len(blocks)
    tail = b"".join(layout.NAME_FENCE.pack(*fence) for fence in fences) + firsts
    counts = (len(members), bucket_count, names_offset, fences_offset, len(fences))
    head = IndexHead(layout.INDEX_MAGIC, *counts, fences_offset + len(tail), crc32c(tail), 0)
    head = head._replace(head_crc32c=crc32c(layout.INDEX_HEAD.pack(*head)))
    return layout.INDEX_HEAD.pack(*head).ljust(
        layout.HEAD_BYTES, b"\0"
    ) + buckets + blocks + tail, bucket_count


class MemberIndex:
    """Lookups in a member index of which only the counts are known beforehand."""

    def __init__(self, reader: RangeReader, bucket_count: int, member_count: int) -> None:
        if (
            layout.bucket_offset(bucket_count) > reader.size
            or member_count > bucket_count * layout.BUCKET_CAPACITY
        ):
            raise CorruptLayoutError("the member index is too short for its members", path=reader.name)
        self._reader = reader
        self._bucket_count = bucket_count
        self._member_count = member_count
        self._kept: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._member_count

    def find(self, names: Sequence[str]) -> list[Member | None]:
        """The place of each name, None for unknown names; all buckets are read in one round."""
        keys = [xxh3_128(name.encode("utf-8", "surrogatepass")) for name in names]
        count = self._bucket_count
        wanted = [int.from_bytes(key[:4], "big") * count >> 32 if count else -1 for key in keys]
        self._load(sorted(set(wanted)))
        return [
            self._member(name, key, self._kept[bucket])
            for name, key, bucket in zip(names, keys, wanted, strict=True)
        ]

    def names(self, prefix: str = "") -> Iterator[str]:
        """Every name that begins with `prefix`, sorted by its bytes."""
        head = self._head()
        fences, firsts = self._fences(head)
        wanted = prefix.encode()
        for number, fence in enumerate(fences):
            following = firsts[number + 1] if number + 1 < len(firsts) else None
            if following is not None and following < wanted:
                continue
            if firsts[number] > wanted and not firsts[number].startswith(wanted):
                return
            yield from (n.decode() for n in self._block(fence) if n.startswith(wanted))

    def all(self) -> list[Member]:
        """Every member, sorted by the bytes of its name; each name must be found."""
        names = list(self.names())
        members = [member for member in self.find(names) if member is not None]
        if len(members) != self._member_count or len(members) != len(names):
            raise CorruptLayoutError("the member index does not hold its members", path=self._reader.name)
        return members

    def _load(self, buckets: list[int]) -> None:
        absent = [bucket for bucket in buckets if bucket not in self._kept and bucket >= 0]
        size = layout.bucket_offset(self._bucket_count)
        if absent and (size <= _SMALL_BYTES or (len(absent) > _BULK_LOOKUPS and size <= _BULK_BYTES)):
            absent = [bucket for bucket in range(self._bucket_count) if bucket not in self._kept]
        if len(self._kept) + len(absent) > _KEPT_BUCKETS:
            self._kept = {bucket: self._kept[bucket] for bucket in buckets if bucket in self._kept}
        ranges = [(layout.bucket_offset(b), layout.bucket_offset(b + 1)) for b in absent]
        for bucket, data in zip(absent, self._reader.read_many(ranges), strict=True):
            self._kept[bucket] = self._checked(bucket, bytes(data))
        self._kept.setdefault(-1, b"")

    def _checked(self, bucket: int, data: bytes) -> bytes:
        head = BucketHead(*layout.BUCKET_HEAD.unpack_from(data))
        if (
            head.member_count > layout.BUCKET_CAPACITY
            or head.bucket != bucket
            or crc32c(data[4:]) != head.crc32c
        ):
            raise ChecksumError(f"bucket {bucket} of the member index is damaged", path=self._reader.name)
        return data[_BUCKET_HEAD : _BUCKET_HEAD + head.member_count * _ENTRY]

    def _member(self, name: str, key: bytes, entries: bytes) -> Member | None:
        at = entries.find(key)
        while at >= 0 and at % _ENTRY:
            at = entries.find(key, at + 1)
        if at < 0:
            return None
        _, shard, crc, offset, length, frame_bytes, inner_offset = layout.MEMBER_ENTRY.unpack_from(
            entries, at
        )
        return Member(name, shard, offset, length, crc, frame_bytes, inner_offset)

    def _head(self) -> IndexHead:
        head = IndexHead(*layout.INDEX_HEAD.unpack(self._reader.read(0, layout.INDEX_HEAD.size)))
        if head.magic != layout.INDEX_MAGIC:
            raise BadMagicError("not a member index", path=self._reader.name)
        if crc32c(layout.INDEX_HEAD.pack(*head._replace(head_crc32c=0))) != head.head_crc32c:
            raise ChecksumError("the head of the member index is damaged", path=self._reader.name)
        good = (self._member_count, self._bucket_count, self._reader.size)
        if (head.member_count, head.bucket_count, head.file_bytes) != good:
            raise CorruptLayoutError("the member index does not fit its artifact", path=self._reader.name)
        return head

    def _fences(self, head: IndexHead) -> tuple[list[NameFence], list[bytes]]:
        tail = bytes(self._reader.read(head.fences_offset, self._reader.size))
        if crc32c(tail) != head.fences_crc32c:
            raise ChecksumError("the fences of the member index are damaged", path=self._reader.name)
        size = layout.NAME_FENCE.size
        at = head.block_count * size
        fences = [NameFence(*fields) for fields in layout.NAME_FENCE.iter_unpack(tail[:at])]
        firsts = []
        for fence in fences:
            firsts.append(tail[at : at + fence.first_bytes])
            at += fence.first_bytes
        return fences, firsts

    def _block(self, fence: NameFence) -> list[bytes]:
        if fence.raw_bytes > layout.NAMES_PER_BLOCK * (layout.MAX_NAME_BYTES + 1):
            raise LimitExceededError("a block of names is too large", path=self._reader.name)
        data = self._reader.read(fence.offset, fence.offset + fence.disk_bytes)
        if crc32c(data) != fence.crc32c:
            raise ChecksumError("a block of names is damaged", path=self._reader.name)
        return decode("zstd", data, fence.raw_bytes).split(b"\0")


def _bucket_count(tops: NDArray[np.uint64]) -> int:
    """The fewest buckets, in growing steps, of which none overflows."""
    if not len(tops):
        return 0
    count = -(-len(tops) // layout.BUCKET_LOAD)
    while int(np.bincount(_bucket_of(tops, count).astype(np.int64)).max()) > layout.BUCKET_CAPACITY:
        count += max(1, count // 8)
    return count


def _bucket_of(tops: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    return (tops * np.uint64(count)) >> np.uint64(32)


def _buckets(
    members: Sequence[Member], keys: Sequence[bytes], places: NDArray[np.uint64], count: int
) -> bytes:
    held: list[list[int]] = [[] for _ in range(count)]
    for position in sorted(range(len(members)), key=lambda i: keys[i]):
        held[int(places[position])].append(position)
    buckets = []
    for number, positions in enumerate(held):
        entries = [layout.MEMBER_ENTRY.pack(*_entry(members[i], keys[i])) for i in positions]
        body = layout.BUCKET_HEAD.pack(0, len(entries), number) + b"".join(entries)
        body = body.ljust(layout.BUCKET_BYTES, b"\0")
        buckets.append(crc32c(body[4:]).to_bytes(4, "little") + body[4:])
    return b"".join(buckets)


def _entry(member: Member, key: bytes) -> MemberEntry:
    place = (member.shard, member.crc32c, member.offset, member.length)
    return MemberEntry(key, *place, member.frame_bytes, member.inner_offset)


def _name_blocks(names: Sequence[bytes], offset: int) -> tuple[bytes, list[NameFence], bytes]:
    blocks, fences, firsts = [], [], []
    for start in range(0, len(names), layout.NAMES_PER_BLOCK):
        group = names[start : start + layout.NAMES_PER_BLOCK]
        raw = b"\0".join(group)
        packed = encode("zstd", raw)
        fences.append(NameFence(offset, len(packed), len(raw), len(group[0]), crc32c(packed)))
        blocks.append(packed)
        firsts.append(group[0])
        offset += len(packed)
    return b"".join(blocks), fences, b"".join(firsts)
