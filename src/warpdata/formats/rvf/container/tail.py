"""The end of a file: where manifests may be, and whether what follows the newest one is a torn write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.rvf.container import layout, segment
from warpdata.formats.rvf.container.layout import SegmentHeader, SegmentType, Tag
from warpdata.formats.rvf.container.snapshot import Snapshot
from warpdata.formats.rvf.segments.runtime import decode_runtime_manifest

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import Range, RangeReader

_FIRST_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 8 << 20
_NEAR_MAGIC_BITS = 2
_CHAIN_PREFIX = layout.TLV_HEAD.pack(Tag.OVERLAY_CHAIN, layout.OVERLAY_CHAIN.size, 0)
_TYPE_OFFSET = 5


class TailReader:
    """A reader whose last bytes were read once: many small commits are followed without a read for each."""

    def __init__(self, inner: RangeReader) -> None:
        self._inner = inner
        self.name, self.size = inner.name, inner.size
        self._start = max(0, self.size - _FIRST_CHUNK_BYTES)
        self._held = inner.read(self._start, self.size)

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), out of memory if they are there."""
        if self._start <= start <= end <= self.size:
            return self._held[start - self._start : end - self._start]
        return self._inner.read(start, end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return [self.read(start, end) for start, end in ranges]

    def close(self) -> None:
        """The reader inside belongs to somebody else."""


def manifest_candidates(reader: RangeReader) -> Iterator[int]:
    """Offsets that may begin a manifest segment, from the end of the file backward."""
    end = reader.size
    chunk = _FIRST_CHUNK_BYTES
    while end > 0:
        start = max(0, end - chunk)
        stop = min(reader.size, end + layout.HEADER_BYTES - 1)
        data = bytes(reader.read(start, stop))
        at = data.rfind(layout.SEGMENT_MAGIC)
        while at >= 0:
            is_manifest = data[at + _TYPE_OFFSET : at + _TYPE_OFFSET + 1] == b"\x05"
            if is_manifest and at < end - start and start + at + layout.HEADER_BYTES <= reader.size:
                yield start + at
            at = data.rfind(layout.SEGMENT_MAGIC, 0, at + len(layout.SEGMENT_MAGIC) - 1)
        end = start
        chunk = min(2 * chunk, _MAX_CHUNK_BYTES)


def check_tail(reader: RangeReader, snapshot: Snapshot) -> None:
    """Bytes behind the newest manifest are a torn write or rubbish; a damaged newer manifest is an error."""
    alignment = 1 if snapshot.dialect == "runtime" else layout.ALIGNMENT
    position = align_up(snapshot.end, alignment)
    while position + layout.HEADER_BYTES <= reader.size:
        data = reader.read(position, position + layout.HEADER_BYTES)
        if data[:4] != layout.SEGMENT_MAGIC:
            _refuse_damaged_magic(bytes(data), reader.name)
            return
        try:
            header = segment.unpack_header(data, reader.name)
        except FormatError:
            _refuse_manifest(data[_TYPE_OFFSET], reader.name)
            return
        end = position + layout.HEADER_BYTES + header.payload_length
        if end > reader.size:
            return
        _refuse_disguised(reader, position + layout.HEADER_BYTES, header)
        position = align_up(end, alignment)


def _refuse_damaged_magic(data: bytes, where: str) -> None:
    """A few flipped bits turn a manifest's magic into rubbish; real rubbish differs in many."""
    found = int.from_bytes(data[:4], "little") ^ int.from_bytes(layout.SEGMENT_MAGIC, "little")
    if found.bit_count() <= _NEAR_MAGIC_BITS:
        raise CorruptLayoutError("the header of a segment behind the manifest is damaged", path=where)


def _refuse_manifest(seg_type: int, where: str) -> None:
    if (seg_type ^ SegmentType.MANIFEST).bit_count() <= 1:
        raise CorruptLayoutError("the header of a newer manifest is damaged", path=where)


def _refuse_disguised(reader: RangeReader, start: int, header: SegmentHeader) -> None:
    """A manifest whose type was damaged looks like an uncommitted segment; its payload gives it away."""
    if header.seg_type == SegmentType.MANIFEST:
        return
    payload = reader.read(start, start + header.payload_length)
    disguised = payload[: len(_CHAIN_PREFIX)] == _CHAIN_PREFIX
    if header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]:
        disguised = _is_runtime_manifest(payload)
    if disguised:
        raise CorruptLayoutError("a newer manifest is marked as another segment", path=reader.name)


def _is_runtime_manifest(payload: memoryview) -> bool:
    try:
        found = decode_runtime_manifest(payload)
    except FormatError:
        return False
    return bool(found.segments) and found.segments[0].offset == 0


def is_length_damaged(reader: RangeReader, start: int, header: SegmentHeader) -> bool:
    """Whether a manifest that seems cut off is whole once one bit of its length is set right."""
    available = reader.size - start
    for bit in range(64):
        length = header.payload_length ^ (1 << bit)
        if 0 < length <= available:
            payload = reader.read(start, start + length)
            if segment.hash_matches(header, payload) and header.content_hash != segment.UNSET_HASH:
                return True
    return False
