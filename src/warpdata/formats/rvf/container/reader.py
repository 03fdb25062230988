"""Find the newest committed manifest of a file and read the segments it lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.rvf.container import layout, manifest, segment
from warpdata.formats.rvf.container.layout import DirectoryEntry, Flag, SegmentHeader, SegmentType, Tag
from warpdata.formats.rvf.container.manifest import Root, Tlv
from warpdata.formats.rvf.container.snapshot import Snapshot
from warpdata.formats.rvf.container.tail import TailReader, check_tail, is_length_damaged, manifest_candidates
from warpdata.formats.rvf.segments.runtime import RuntimeManifest, decode_runtime_manifest

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

_MANIFEST_FLAGS = Flag.SNAPSHOT | Flag.CHECKPOINT | Flag.SEALED
_TORN_SECTOR_BYTES = 512


class _NotOurs(Exception):
    """These bytes look like a manifest but do not belong to this file: data that contains another file."""


class _Torn(Exception):
    """This manifest was never completely written."""


def open_snapshot(reader: RangeReader) -> Snapshot:
    """The newest committed state; a torn tail is stepped over, damage is a FormatError."""
    if reader.size < layout.HEADER_BYTES:
        raise TruncatedError("a vector file has at least one segment", path=reader.name)
    found = _by_root(reader)
    if found is not None:
        return found
    return _by_scan(TailReader(reader))


def earlier_snapshots(reader: RangeReader, newest: Snapshot) -> Iterator[Snapshot]:
    """The states before this one that the file still holds, newest first; each link repeats a hash."""
    state = newest
    while True:
        value = manifest.first_value(state.newest_records or state.records, Tag.OVERLAY_CHAIN)
        if value is None:
            return
        chain = manifest.unpack_chain(value, reader.name)
        if chain.checkpoint_hash == segment.UNSET_HASH:
            return
        if not 0 <= chain.prev_manifest_offset < state.manifest_offset:
            raise CorruptLayoutError("a manifest hangs on one behind it", path=reader.name)
        try:
            before = _load_manifest(reader, chain.prev_manifest_offset)
        except (_NotOurs, _Torn, BadMagicError) as error:
            raise CorruptLayoutError("a manifest of the chain is damaged", path=reader.name) from error
        if (before.manifest_id, before.manifest_hash) != (chain.prev_manifest_id, chain.checkpoint_hash):
            raise CorruptLayoutError("a manifest of the chain was exchanged", path=reader.name)
        yield before
        state = before


def _by_root(reader: RangeReader) -> Snapshot | None:
    """The fast path: the last 4096 bytes are a root."""
    if reader.size < layout.ROOT_BYTES + layout.HEADER_BYTES:
        return None
    data = reader.read(reader.size - layout.ROOT_BYTES, reader.size)
    if data[:4] != layout.ROOT_MAGIC:
        return None
    try:
        root = manifest.unpack_root(data, reader.name)
    except ChecksumError:
        return None
    offset = root.l1_manifest_offset - layout.HEADER_BYTES
    if not 0 <= offset <= reader.size - layout.ROOT_BYTES - layout.HEADER_BYTES:
        raise CorruptLayoutError("the root points outside its file", path=reader.name)
    whole = offset + layout.HEADER_BYTES + align_up(root.l1_manifest_length, layout.ALIGNMENT)
    end = reader.size if whole + layout.ROOT_BYTES == reader.size else None
    try:
        return _load_manifest(reader, offset, end)
    except (_NotOurs, _Torn, BadMagicError) as error:
        raise CorruptLayoutError("the manifest before the root is damaged", path=reader.name) from error


def _by_scan(reader: RangeReader) -> Snapshot:
    """The slow path: manifests from the end backward, until one is whole and belongs to this file."""
    newest_error: FormatError | None = None
    for offset in manifest_candidates(reader):
        try:
            snapshot = _load_manifest(reader, offset)
        except (_NotOurs, _Torn):
            continue
        except (ChecksumError, CorruptLayoutError, UnsupportedVersionError, TruncatedError) as error:
            newest_error = error
            break
        check_tail(reader, snapshot)
        return snapshot
    if newest_error is not None:
        raise newest_error
    raise CorruptLayoutError("no committed manifest in this file", path=reader.name)


def _load_manifest(reader: RangeReader, offset: int, end: int | None = None) -> Snapshot:
    header, payload = _manifest_payload(reader, offset, end)
    if _has_root(payload):
        return _checkpoint(reader, offset, header, payload)
    if header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]:
        return _runtime(reader, offset, header, payload)
    return _delta(reader, offset, header, payload)


def _manifest_payload(
    reader: RangeReader, offset: int, likely_end: int | None = None
) -> tuple[SegmentHeader, memoryview]:
    """The checked header and payload of a manifest; in one read where its end is known."""
    first = reader.read(offset, offset + layout.HEADER_BYTES if likely_end is None else likely_end)
    header = segment.unpack_header(first, reader.name)
    if header.seg_type != SegmentType.MANIFEST:
        raise CorruptLayoutError("a manifest is marked as another segment", path=reader.name)
    start = offset + layout.HEADER_BYTES
    end = start + header.payload_length
    if end > reader.size:
        if is_length_damaged(reader, start, header):
            raise CorruptLayoutError("the length of a manifest is damaged", path=reader.name)
        raise _Torn
    if header.flags & ~_MANIFEST_FLAGS or header.compression:
        raise CorruptLayoutError("a manifest has flags it cannot have", path=reader.name)
    payload = first[layout.HEADER_BYTES :] if end == likely_end else reader.read(start, end)
    runtime = header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]
    if not segment.hash_matches(header, payload, runtime=runtime):
        if not any(payload[-_TORN_SECTOR_BYTES:]):
            raise _Torn
        raise ChecksumError(f"manifest {header.segment_id} does not match its hash", path=reader.name)
    if not runtime and align_up(end, layout.ALIGNMENT) > reader.size:
        raise _Torn
    if not runtime and header.alignment_pad != align_up(len(payload), layout.ALIGNMENT) - len(payload):
        raise CorruptLayoutError("the padding of a manifest is wrong", path=reader.name)
    return header, payload


def _has_root(payload: memoryview) -> bool:
    at = len(payload) - layout.ROOT_BYTES
    return at >= 0 and payload[at : at + 4] == layout.ROOT_MAGIC


def _checkpoint(reader: RangeReader, offset: int, header: SegmentHeader, payload: memoryview) -> Snapshot:
    root = manifest.unpack_root(payload[-layout.ROOT_BYTES :], reader.name)
    if root.l1_manifest_offset != offset + layout.HEADER_BYTES:
        raise _NotOurs
    if root.l1_manifest_length > len(payload) - layout.ROOT_BYTES:
        raise CorruptLayoutError("the root overstates its records", path=reader.name)
    records = manifest.unpack_tlvs(payload[: root.l1_manifest_length], reader.name)
    segments = _directory(records, offset, reader)
    end = min(_manifest_end(offset, header), reader.size)
    return Snapshot(
        "wire", root.epoch, segments, offset, header.segment_id, header.content_hash, end, root,
        tuple(records), len(segments), end,
    )  # fmt: skip


def _delta(reader: RangeReader, offset: int, header: SegmentHeader, payload: memoryview) -> Snapshot:
    """A small manifest that lists what is new since the one it hangs on."""
    steps: list[tuple[list[Tlv], int]] = []
    at, head, data = offset, header, payload
    while not _has_root(data):
        records = manifest.unpack_tlvs(data, reader.name)
        value = manifest.first_value(records, Tag.OVERLAY_CHAIN)
        if value is None:
            raise _NotOurs
        chain = manifest.unpack_chain(value, reader.name)
        steps.append((records, at))
        if not 0 <= chain.prev_manifest_offset < at or not _follows_its_segments(records, at, reader):
            raise _NotOurs
        at = chain.prev_manifest_offset
        head, data = _chained(reader, at, chain.prev_manifest_id, chain.checkpoint_hash)
    base = _checkpoint(reader, at, head, data)
    segments = list(base.segments)
    for records, place in reversed(steps):
        segments += _directory(records, place, reader)
    epoch = base.epoch + len(steps)
    end = min(_manifest_end(offset, header), reader.size)
    return Snapshot(
        "wire", epoch, tuple(segments), offset, header.segment_id, header.content_hash, end, base.root,
        base.records, base.checkpointed, base.end, None, tuple(steps[0][0]),
    )  # fmt: skip


def _follows_its_segments(records: list[Tlv], offset: int, reader: RangeReader) -> bool:
    """A small manifest stands right behind the segments it lists; inside other data it does not."""
    entries = _directory(records, offset, reader)
    if not entries:
        return False
    last = entries[-1]
    end = last.file_offset + layout.HEADER_BYTES + (last.compressed_length or last.payload_length)
    return align_up(end, layout.ALIGNMENT) == offset


def _chained(
    reader: RangeReader, offset: int, segment_id: int, expected: bytes
) -> tuple[SegmentHeader, memoryview]:
    """The manifest a newer one hangs on; the newer one vouches that it was whole."""
    try:
        header, payload = _manifest_payload(reader, offset)
    except (BadMagicError, TruncatedError, _Torn) as error:
        raise CorruptLayoutError("a manifest of the chain is damaged", path=reader.name) from error
    if header.segment_id != segment_id or header.content_hash != expected:
        raise CorruptLayoutError("a manifest of the chain was exchanged", path=reader.name)
    return header, payload


def _directory(records: list[Tlv], manifest_offset: int, reader: RangeReader) -> tuple[DirectoryEntry, ...]:
    value = manifest.first_value(records, Tag.SEGMENT_DIR)
    entries = [] if value is None else manifest.unpack_directory(value, reader.name)
    for entry in entries:
        stored = entry.compressed_length or entry.payload_length
        if entry.file_offset + layout.HEADER_BYTES + stored > manifest_offset:
            raise _NotOurs
    return tuple(entries)


def _manifest_end(offset: int, header: SegmentHeader) -> int:
    return align_up(offset + layout.HEADER_BYTES + header.payload_length, layout.ALIGNMENT)


def _runtime(reader: RangeReader, offset: int, header: SegmentHeader, payload: memoryview) -> Snapshot:
    """The manifest of a shipped program; its segments must be where it says, or it belongs elsewhere."""
    found = decode_runtime_manifest(payload, reader.name)
    entries = [_runtime_entry(reader, offset, listed) for listed in found.segments]
    end = offset + layout.HEADER_BYTES + header.payload_length
    return Snapshot(
        "runtime", found.epoch, tuple(entries), offset, header.segment_id, header.content_hash, end,
        _runtime_root(found), (), len(entries), end, found,
    )  # fmt: skip


def _runtime_entry(
    reader: RangeReader, manifest_offset: int, listed: tuple[int, int, int, int]
) -> DirectoryEntry:
    segment_id, offset, length, seg_type = listed
    if offset + layout.HEADER_BYTES + length > manifest_offset:
        raise _NotOurs
    try:
        header = segment.read_header(reader, offset)
    except BadMagicError as error:
        raise CorruptLayoutError(
            "a listed segment is not where the manifest says", path=reader.name
        ) from error
    if (header.segment_id, header.payload_length, header.seg_type) != (segment_id, length, seg_type):
        raise CorruptLayoutError("a segment header contradicts the manifest", path=reader.name)
    return DirectoryEntry(
        segment_id, seg_type, 0, header.flags, 0, offset, length, 0, 0, 0, 0, header.content_hash
    )


def _runtime_root(found: RuntimeManifest) -> Root:
    return Root(
        found.dimension, layout.DTYPE_IDS["f32"], found.total_vectors, found.epoch,
        profile_id=found.profile_id, identity=found.identity,
    )  # fmt: skip


def read_segment(reader: RangeReader, entry: DirectoryEntry, *, runtime: bool = False) -> memoryview:
    """The payload of a listed segment: header, directory and hash agree, or a FormatError."""
    stored = entry.compressed_length or entry.payload_length
    start = entry.file_offset + layout.HEADER_BYTES
    data = reader.read(entry.file_offset, start + stored)
    header = segment.unpack_header(data, reader.name)
    check_against_directory(header, entry, reader.name)
    return segment.checked_payload(header, data[layout.HEADER_BYTES :], reader.name, runtime=runtime)


def check_against_directory(header: SegmentHeader, entry: DirectoryEntry, where: str) -> None:
    """A header must repeat what the directory says about its segment."""
    stored = entry.compressed_length or entry.payload_length
    said = (entry.segment_id, entry.seg_type, entry.flags, stored, entry.compression, entry.content_hash)
    is_ = (
        header.segment_id, header.seg_type, header.flags, header.payload_length, header.compression,
        header.content_hash,
    )  # fmt: skip
    if said != is_:
        name = layout.segment_name(entry.seg_type)
        raise CorruptLayoutError(
            f"the header of {name} segment {entry.segment_id} contradicts the directory", path=where
        )


def directory_entry(
    header: SegmentHeader, offset: int, block_count: int = 0, tier: int = 1
) -> DirectoryEntry:
    """The directory entry of a segment just written."""
    compressed = bool(header.flags & Flag.COMPRESSED)
    return DirectoryEntry(
        header.segment_id, header.seg_type, tier, header.flags, 0, offset,
        header.uncompressed_len if compressed else header.payload_length,
        header.payload_length if compressed else 0, 0, header.compression, block_count, header.content_hash,
    )  # fmt: skip
