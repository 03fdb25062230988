"""Find the newest committed manifest of a file and read the segments it lists."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.io.ranges import FarRangeReader, retry_damaged
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
)
from warpdata.formats.rvf import container, layout
from warpdata.formats.rvf.container import NO_IDENTITY, Root, Tlv, first_value
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.meta import decode_log
from warpdata.formats.rvf.runtime import RuntimeManifest, decode_runtime_manifest

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

_MANIFEST_FLAGS = Flag.SNAPSHOT | Flag.CHECKPOINT | Flag.SEALED
_SECTOR_BYTES, _PAGE_BYTES = 512, 4096
_FIRST_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 8 << 20
_NEAR_MAGIC_BITS = 2
_CHAIN_PREFIX = layout.TLV_HEAD.pack(Tag.OVERLAY_CHAIN, layout.OVERLAY_CHAIN.size, 0)
_TYPE_OFFSET = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed state of a file: one manifest with those it is linked to, and the log behind it. It never changes."""

    dialect: str
    """`wire`, or `runtime` for files of shipped programs."""
    epoch: int
    segments: tuple[Row, ...]
    manifest_offset: int
    manifest_id: int
    manifest_hash: bytes
    end: int
    """Where the manifest or the last commit of its log ends: everything behind it is uncommitted."""
    root: Root | None = None
    records: tuple[Tlv, ...] = ()
    """The Level-1 records of the checkpoint."""
    checkpointed: int = 0
    """How many of the segments the checkpoint lists; the others came after it."""
    checkpoint_end: int = 0
    runtime: RuntimeManifest | None = field(default=None, repr=False)
    newest_records: tuple[Tlv, ...] = ()
    """The Level-1 records of the newest manifest, where it is not the checkpoint itself."""
    logged: Mapping[int, memoryview] = field(default_factory=dict, repr=False, compare=False)
    """The payloads of the segments that the log holds, by their ids."""
    log_head: Row | None = field(default=None, repr=False)
    """The head of the last commit of the log."""
    log_hash: bytes = b""
    log_commits: int = 0

    @property
    def is_checkpoint(self) -> bool:
        """Whether this state ends with a root: no log follows it, and no smaller manifest."""
        return self.checkpoint_end == self.end

    @property
    def hash(self) -> bytes:
        """The content hash of what was committed last."""
        return self.log_hash or self.manifest_hash

    @property
    def next_segment_id(self) -> int:
        """The first id no segment of this file has."""
        return 1 + max(self.manifest_id, *(int(entry.segment_id) for entry in self.segments), 0)

    @property
    def next_epoch(self) -> int:
        """The epoch of the state after this one."""
        if self.epoch >= layout.MAX_EPOCH:
            raise LimitExceededError(f"the epochs of this file have reached {layout.MAX_EPOCH}")
        return self.epoch + 1

    def is_same(self, other: Snapshot) -> bool:
        """Whether this is the same state of the same store; a log may have been folded since."""
        if (self.hash, self.end) == (other.hash, other.end):
            return True
        ours, theirs = (NO_IDENTITY if s.root is None else s.root.identity for s in (self, other))
        return self.epoch == other.epoch and ours == theirs and any(ours.file_id)

    def record(self, tag: int) -> bytes | None:
        """The value of a Level-1 record."""
        return first_value(self.records, tag)

    @property
    def live_count(self) -> int:
        """How many vectors are not deleted, by what was committed last."""
        if self.log_head is not None:
            return int(self.log_head.live_count)
        value = first_value(self.newest_records, Tag.DIMENSION_CATALOG)
        start = layout.DIMENSION_HEAD.size
        if value is not None and len(value) >= start + layout.DIMENSION_ENTRY.size:
            return int(layout.DIMENSION_ENTRY.unpack_from(value, start).vector_count)
        return 0 if self.root is None else self.root.total_vector_count

    def of_type(self, seg_type: int) -> list[Row]:
        """The segments of one type, in the order they were written."""
        return [entry for entry in self.segments if entry.seg_type == seg_type]

    def read(self, reader: RangeReader, entry: Row) -> memoryview:
        """The checked payload of a segment of this state."""
        payload = self.logged.get(entry.segment_id)
        return read_segment(reader, entry, runtime=self.dialect == "runtime") if payload is None else payload


class _NotOurs(Exception):
    """These bytes look like a manifest but do not belong to this file: data that contains another file."""


class _Torn(Exception):
    """This manifest was never completely written."""


def open_snapshot(reader: RangeReader) -> Snapshot:
    """The newest committed state; a torn tail is stepped over, damage is a FormatError."""
    return retry_damaged(reader, lambda: _newest_snapshot(reader))


def _newest_snapshot(reader: RangeReader) -> Snapshot:
    """The root at the end, or else manifests from the end backward, until one is whole and belongs to this file."""
    if reader.size < layout.HEADER_BYTES:
        raise TruncatedError("a vector file has at least one segment", path=reader.name)
    snapshot = _by_root(reader)
    if snapshot is not None:
        return snapshot
    tail = FarRangeReader(reader)  # many small commits are followed without a read for each
    for offset in _manifest_candidates(tail):
        try:
            snapshot = _load_manifest(tail, offset)
        except (_NotOurs, _Torn):
            continue
        for state in _follow_log(tail, snapshot):
            snapshot = state
        _check_tail(tail, snapshot)
        return snapshot
    raise CorruptLayoutError("no committed manifest in this file", path=reader.name)


def earlier_snapshots(reader: RangeReader, newest: Snapshot) -> Iterator[Snapshot]:
    """The states before this one that the file still holds, newest first; each link repeats a hash."""
    state = newest
    if newest.log_commits:
        yield from _states_since(reader, _load_manifest(reader, newest.manifest_offset), newest.epoch)
    while True:
        value = first_value(state.newest_records or state.records, Tag.OVERLAY_CHAIN)
        if value is None:
            return
        chain = container.unpack_chain(value, reader.name)
        if chain.checkpoint_hash == container.UNSET_HASH:
            return
        if not 0 <= chain.prev_manifest_offset < state.manifest_offset:
            raise CorruptLayoutError("a manifest hangs on one behind it", path=reader.name)
        try:
            before = _load_manifest(reader, chain.prev_manifest_offset)
        except (_NotOurs, _Torn, BadMagicError) as error:
            raise CorruptLayoutError("a manifest of the chain is damaged", path=reader.name) from error
        if (before.manifest_id, before.manifest_hash) != (chain.prev_manifest_id, chain.checkpoint_hash):
            raise CorruptLayoutError("a manifest of the chain was exchanged", path=reader.name)
        yield from _states_since(reader, before, state.epoch)
        state = before


def _states_since(reader: RangeReader, manifest: Snapshot, epoch: int) -> Iterator[Snapshot]:
    """The states of a manifest and of the log behind it that came before an epoch, newest first."""
    states = [manifest, *_follow_log(reader, manifest)]
    return reversed([state for state in states if state.epoch < epoch])


def _by_root(reader: RangeReader) -> Snapshot | None:
    """The fast path: the last 4096 bytes are a root."""
    if reader.size < layout.ROOT_BYTES + layout.HEADER_BYTES:
        return None
    data = reader.read(reader.size - layout.ROOT_BYTES, reader.size)
    if data[:4] != layout.ROOT_MAGIC:
        return None
    try:
        root = container.unpack_root(data, reader.name)
    except ChecksumError:
        return None
    offset = root.l1_manifest_offset - layout.HEADER_BYTES
    if not 0 <= offset <= reader.size - layout.ROOT_BYTES - layout.HEADER_BYTES:
        raise CorruptLayoutError("the root points outside its file", path=reader.name)
    whole = offset + layout.HEADER_BYTES + align_up(root.l1_manifest_length, layout.ALIGNMENT)
    end = reader.size if whole + layout.ROOT_BYTES == reader.size else None
    try:
        snapshot = _load_manifest(reader, offset, end)
    except (_NotOurs, _Torn, BadMagicError) as error:
        raise CorruptLayoutError("the manifest before the root is damaged", path=reader.name) from error
    # The last bytes of a log may be a copy of a root: only one that ends here counts.
    return snapshot if snapshot.end == reader.size else None


def _load_manifest(reader: RangeReader, offset: int, end: int | None = None) -> Snapshot:
    header, payload = _manifest_payload(reader, offset, end)
    if _has_root(payload):
        return _checkpoint(reader, offset, header, payload)
    if header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]:
        return _runtime(reader, offset, header, payload)
    return _delta(reader, offset, header, payload)


def _manifest_payload(
    reader: RangeReader, offset: int, likely_end: int | None = None
) -> tuple[Row, memoryview]:
    """The checked header and payload of a manifest; in one read where its end is known."""
    first = reader.read(offset, offset + layout.HEADER_BYTES if likely_end is None else likely_end)
    header = container.unpack_header(first, reader.name)
    if header.seg_type != SegmentType.MANIFEST:
        raise CorruptLayoutError("a manifest is marked as another segment", path=reader.name)
    start = offset + layout.HEADER_BYTES
    end = start + header.payload_length
    if end > reader.size:
        if _is_length_damaged(reader, start, header):
            raise CorruptLayoutError("the length of a manifest is damaged", path=reader.name)
        raise _Torn
    if header.flags & ~_MANIFEST_FLAGS or header.compression:
        raise CorruptLayoutError("a manifest has flags it cannot have", path=reader.name)
    payload = first[layout.HEADER_BYTES :] if end == likely_end else reader.read(start, end)
    runtime = header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]
    if not container.hash_matches(header, payload, runtime=runtime):
        if _is_unwritten(payload, start):
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


def _checkpoint(reader: RangeReader, offset: int, header: Row, payload: memoryview) -> Snapshot:
    root = container.unpack_root(payload[-layout.ROOT_BYTES :], reader.name)
    if root.l1_manifest_offset != offset + layout.HEADER_BYTES:
        raise _NotOurs
    if root.l1_manifest_length > len(payload) - layout.ROOT_BYTES:
        raise CorruptLayoutError("the root overstates its records", path=reader.name)
    records = container.unpack_tlvs(payload[: root.l1_manifest_length], reader.name)
    segments = _directory(records, offset, reader)
    end = min(_manifest_end(offset, header), reader.size)
    about = ("wire", root.epoch, segments, *_place(offset, header), end)
    return Snapshot(*about, root, tuple(records), len(segments), end)


def _delta(reader: RangeReader, offset: int, header: Row, payload: memoryview) -> Snapshot:
    """A small manifest of release 0.1: it lists what is new since the one it is linked to."""
    steps: list[tuple[list[Tlv], int]] = []
    at, head, data = offset, header, payload
    while not _has_root(data):
        records = container.unpack_tlvs(data, reader.name)
        value = first_value(records, Tag.OVERLAY_CHAIN)
        if value is None:
            raise _NotOurs
        chain = container.unpack_chain(value, reader.name)
        steps.append((records, at))
        if not 0 <= chain.prev_manifest_offset < at or not _follows_its_segments(records, at, reader):
            raise _NotOurs
        at = chain.prev_manifest_offset
        try:
            head, data = _manifest_payload(reader, at)
        except (BadMagicError, TruncatedError, _Torn) as error:
            raise CorruptLayoutError("a manifest of the chain is damaged", path=reader.name) from error
        if (head.segment_id, head.content_hash) != (chain.prev_manifest_id, chain.checkpoint_hash):
            raise CorruptLayoutError("a manifest of the chain was exchanged", path=reader.name)
    base = _checkpoint(reader, at, head, data)
    segments = list(base.segments)
    for records, place in reversed(steps):
        segments += _directory(records, place, reader)
    end = min(_manifest_end(offset, header), reader.size)
    about = ("wire", base.epoch + len(steps), tuple(segments), *_place(offset, header), end)
    return Snapshot(
        *about, base.root, base.records, base.checkpointed, base.end, None, newest_records=tuple(steps[0][0])
    )


def _place(offset: int, header: Row) -> tuple[int, int, bytes]:
    """Offset, id and hash of a manifest."""
    return offset, header.segment_id, header.content_hash


def _follows_its_segments(records: list[Tlv], offset: int, reader: RangeReader) -> bool:
    """Whether a small manifest stands right behind the segments it lists; inside other data it does not."""
    entries = _directory(records, offset, reader)
    if not entries:
        return False
    last = entries[-1]
    end = last.file_offset + layout.HEADER_BYTES + (last.compressed_length or last.payload_length)
    return align_up(end, layout.ALIGNMENT) == offset


def _directory(records: list[Tlv], manifest_offset: int, reader: RangeReader) -> tuple[Row, ...]:
    value = first_value(records, Tag.SEGMENT_DIR)
    entries = [] if value is None else container.unpack_directory(value, reader.name)
    for entry in entries:
        stored = entry.compressed_length or entry.payload_length
        if entry.file_offset + layout.HEADER_BYTES + stored > manifest_offset:
            raise _NotOurs
    return tuple(entries)


def _manifest_end(offset: int, header: Row) -> int:
    return align_up(offset + layout.HEADER_BYTES + header.payload_length, layout.ALIGNMENT)


def _runtime(reader: RangeReader, offset: int, header: Row, payload: memoryview) -> Snapshot:
    """The manifest of a shipped program; its segments must be where it lists them, or it belongs elsewhere."""
    listed = decode_runtime_manifest(payload, reader.name)
    entries = []
    for each in listed.segments:
        if each.offset + layout.HEADER_BYTES + each.payload_length > offset:
            raise _NotOurs
        try:
            head = container.read_header(reader, each.offset)
        except BadMagicError as error:
            raise CorruptLayoutError(
                "a listed segment is not where the manifest places it", path=reader.name
            ) from error
        repeated = operator.attrgetter("segment_id", "payload_length", "seg_type")
        if repeated(head) != repeated(each):
            raise CorruptLayoutError("a segment header contradicts the manifest", path=reader.name)
        entries.append(directory_entry(head, each.offset, tier=0))
    end = offset + layout.HEADER_BYTES + header.payload_length
    facts = (listed.dimension, layout.DTYPE_IDS["f32"], listed.total_vectors, listed.epoch)
    root = Root(*facts, profile_id=listed.profile_id, identity=listed.identity)
    about = ("runtime", listed.epoch, tuple(entries), *_place(offset, header), end)
    return Snapshot(*about, root, (), len(entries), end, listed)


def read_segment(reader: RangeReader, entry: Row, *, runtime: bool = False) -> memoryview:
    """The payload of a listed segment: header, directory and hash agree, or a FormatError."""
    stored = entry.compressed_length or entry.payload_length
    place = entry.file_offset, entry.file_offset + layout.HEADER_BYTES + stored

    def read() -> memoryview:
        data = reader.read(*place)
        header = container.unpack_header(data, reader.name)
        check_against_directory(header, entry, reader.name)
        return container.checked_payload(header, data[layout.HEADER_BYTES :], reader.name, runtime=runtime)

    return retry_damaged(reader, read, [place])


def check_against_directory(header: Row, entry: Row, where: str) -> None:
    """A header must repeat the directory entry of its segment."""
    stored = entry.compressed_length or entry.payload_length
    repeated = operator.attrgetter("segment_id", "seg_type", "flags", "compression", "content_hash")
    if repeated(header) != repeated(entry) or header.payload_length != stored:
        name = layout.segment_name(entry.seg_type)
        raise CorruptLayoutError(
            f"the header of {name} segment {entry.segment_id} contradicts the directory", path=where
        )


def directory_entry(header: Row, offset: int, block_count: int = 0, tier: int = 1) -> Row:
    """The directory entry of a segment just written."""
    is_compressed = bool(header.flags & Flag.COMPRESSED)
    sizes = (header.uncompressed_len, header.payload_length) if is_compressed else (header.payload_length, 0)
    about = (header.segment_id, header.seg_type, tier, header.flags, 0, offset, *sizes)
    return layout.DIRECTORY_ENTRY(*about, 0, header.compression, block_count, header.content_hash)


# -- the end of the file ---------------------------------------------------------------------------------


def _manifest_candidates(reader: RangeReader) -> Iterator[int]:
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


def _follow_log(reader: RangeReader, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The state after each commit of the log behind a manifest; a torn last one was never committed."""
    while snapshot.dialect == "wire" and snapshot.end + layout.HEADER_BYTES <= reader.size:
        start = snapshot.end + layout.HEADER_BYTES
        data = reader.read(snapshot.end, start)
        if data[:4] != layout.SEGMENT_MAGIC or data[_TYPE_OFFSET] != SegmentType.LOG:
            return
        header = container.unpack_header(data, reader.name)
        if header.flags:
            raise CorruptLayoutError("a LOG segment has flags it cannot have", path=reader.name)
        payload = reader.read(start, min(start + header.payload_length, reader.size))
        if not container.hash_matches(header, payload):
            if _is_length_damaged(reader, start, header):
                raise CorruptLayoutError("the length of a LOG segment is damaged", path=reader.name)
            if payload.nbytes < header.payload_length or _is_unwritten(payload, start):
                return
            raise ChecksumError(f"LOG segment {header.segment_id} does not match its hash", path=reader.name)
        if _manifest_end(snapshot.end, header) > reader.size:
            return
        snapshot = commit_logged(snapshot, header, snapshot.end, payload, reader.name)
        yield snapshot


def commit_logged(
    snapshot: Snapshot, header: Row, offset: int, payload: memoryview, where: str = ""
) -> Snapshot:
    """The state once a commit was appended to the log of this one."""
    head, pieces = decode_log(payload, where)
    is_next = head.epoch == snapshot.next_epoch and head.previous_hash == snapshot.hash
    if not is_next or header.segment_id < snapshot.next_segment_id:
        raise CorruptLayoutError("a LOG segment does not follow what is before it", path=where or None)
    entries, logged = list(snapshot.segments), dict(snapshot.logged)
    for number, (piece, data) in enumerate(pieces, header.segment_id + 1):
        about = (number, piece.seg_type, piece.tier, 0, 0, offset, data.nbytes, 0, 0, 0, piece.block_count)
        entries.append(layout.DIRECTORY_ENTRY(*about, container.UNSET_HASH))
        logged[number] = data
    return replace(
        snapshot,
        epoch=head.epoch,
        segments=tuple(entries),
        end=_manifest_end(offset, header),
        logged=logged,
        log_head=head,
        log_hash=header.content_hash,
        log_commits=snapshot.log_commits + 1,
    )


def _is_unwritten(stored: memoryview, start: int) -> bool:
    """Whether a sector at the end or a page inside never reached the disk: the bytes are still zero."""
    end = start + stored.nbytes
    last = stored[max(0, (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES - start) :]
    pages = range(align_up(start, _PAGE_BYTES) - start, stored.nbytes - _PAGE_BYTES + 1, _PAGE_BYTES)
    return not any(last) or any(not any(stored[at : at + _PAGE_BYTES]) for at in pages)


def _check_tail(reader: RangeReader, snapshot: Snapshot) -> None:
    """Bytes behind what was committed are a torn write or rubbish; a damaged newer commit is an error."""
    alignment = 1 if snapshot.dialect == "runtime" else layout.ALIGNMENT
    position = align_up(snapshot.end, alignment)
    while position + layout.HEADER_BYTES <= reader.size:
        data = reader.read(position, position + layout.HEADER_BYTES)
        if data[:4] != layout.SEGMENT_MAGIC:
            # A few flipped bits turn a magic into rubbish; real rubbish differs in many.
            changed = int.from_bytes(data[:4], "little") ^ int.from_bytes(layout.SEGMENT_MAGIC, "little")
            if changed.bit_count() <= _NEAR_MAGIC_BITS:
                fact = "the header of a segment behind the manifest is damaged"
                raise CorruptLayoutError(fact, path=reader.name)
            return
        try:
            header = container.unpack_header(data, reader.name)
        except FormatError:
            commits = (SegmentType.MANIFEST, SegmentType.LOG)
            if any((data[_TYPE_OFFSET] ^ kind).bit_count() <= 1 for kind in commits):
                fact = "the header of a newer manifest or commit is damaged"
                raise CorruptLayoutError(fact, path=reader.name) from None
            return
        start = position + layout.HEADER_BYTES
        end = start + header.payload_length
        if end > reader.size:
            return
        is_torn = header.seg_type == SegmentType.LOG and position == snapshot.end
        if not is_torn and header.seg_type != SegmentType.MANIFEST:
            _refuse_commit(reader, start, header)
        position = align_up(end, alignment)


def _refuse_commit(reader: RangeReader, start: int, header: Row) -> None:
    """A commit behind a damaged one, or whose type was damaged, looks uncommitted; its payload shows the difference."""
    end = start + header.payload_length
    first = bytes(reader.read(start, min(end, start + len(_CHAIN_PREFIX))))
    is_commit = first == _CHAIN_PREFIX or first.startswith(layout.LOG_MAGIC)
    if header.checksum_algo == layout.CHECKSUM_IDS["crc32c"]:
        try:
            listed = decode_runtime_manifest(reader.read(start, end)).segments
        except FormatError:
            listed = ()
        is_commit = bool(listed) and listed[0].offset == 0
    if is_commit:
        raise CorruptLayoutError("a newer commit is damaged or marked as another segment", path=reader.name)


def _is_length_damaged(reader: RangeReader, start: int, header: Row) -> bool:
    """Whether a manifest that seems cut off is whole once one bit of its length is corrected."""
    available = reader.size - start
    for bit in range(64):
        length = header.payload_length ^ (1 << bit)
        if 0 < length <= available:
            payload = reader.read(start, start + length)
            if container.hash_matches(header, payload) and header.content_hash != container.UNSET_HASH:
                return True
    return False
