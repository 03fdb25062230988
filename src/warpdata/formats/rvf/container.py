"""One segment: header, hash, payload, signature footer. MANIFEST payloads: records, deletion bitmap, 4096-byte root."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import codec
from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.checksum import crc32c, shake256, xxh3_128
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from warpdata.bytekit.io.ranges import RangeReader

UNSET_HASH = bytes(16)


@dataclass(frozen=True, slots=True)
class SignatureFooter:
    """A signature and the algorithm that made it."""

    algorithm: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """How a payload is stored: hash, compression, flags and time."""

    flags: int = 0
    checksum: str = "xxh3_128"
    compression: str = "none"
    timestamp_ns: int = 0


PLAIN = SegmentOptions()


def content_hash(algo: int, payload: Buffer) -> bytes:
    """The 16-byte hash of a raw payload as our writer stores it."""
    if algo == layout.CHECKSUM_IDS["crc32c"]:
        return crc32c(payload).to_bytes(4, "little") + bytes(12)
    if algo == layout.CHECKSUM_IDS["xxh3_128"]:
        return xxh3_128(payload, "little")
    if algo == layout.CHECKSUM_IDS["shake256"]:
        return shake256(payload, 16)
    raise CorruptLayoutError(f"unknown checksum algorithm {algo}")


def runtime_hash(payload: Buffer) -> bytes:
    """The hash of shipped programs: CRC-32 (IEEE) rotated by 0, 8, 16 and 24 bits."""
    crc = zlib.crc32(payload)
    turned = (((crc << shift) | (crc >> (32 - shift))) & 0xFFFFFFFF for shift in (0, 8, 16, 24))
    return b"".join(word.to_bytes(4, "little") for word in turned)


def hash_matches(header: Row, payload: Buffer, *, runtime: bool = False) -> bool:
    """Whether the payload has the hash of its header; algorithm 0 is read in each of its known forms."""
    if header.checksum_algo != layout.CHECKSUM_IDS["crc32c"]:
        return bool(content_hash(header.checksum_algo, payload) == header.content_hash)
    if runtime:
        return header.content_hash in (UNSET_HASH, runtime_hash(payload))
    forms = (content_hash(0, payload), runtime_hash(payload), xxh3_128(payload, "little"))
    return header.content_hash in forms


def pack_header(header: Row) -> bytes:
    """The 64 bytes of a header."""
    return layout.HEADER.pack(*header)


def unpack_header(data: Buffer, where: str = "") -> Row:
    """Parse and check the 64 bytes of a header; an unknown type is not an error."""
    view = byte_view(data)
    if view.nbytes < layout.HEADER_BYTES:
        raise TruncatedError(f"a segment header of 64 bytes has only {view.nbytes}", path=where or None)
    header = layout.HEADER.unpack_from(view)
    if header.magic != layout.SEGMENT_MAGIC:
        raise BadMagicError("no segment begins here", path=where or None)
    if header.version != layout.VERSION:
        raise UnsupportedVersionError(f"segment version {header.version}", path=where or None)
    if header.seg_type == SegmentType.INVALID:
        raise CorruptLayoutError("a segment has the invalid type 0", path=where or None)
    if header.reserved_0 or header.reserved_1 or header.flags & layout.RESERVED_FLAGS:
        raise CorruptLayoutError("reserved bits of a segment header are set", path=where or None)
    if header.payload_length > layout.MAX_PAYLOAD_BYTES:
        raise LimitExceededError(f"a payload of {header.payload_length} bytes", path=where or None)
    compressed = bool(header.flags & Flag.COMPRESSED)
    if compressed != (header.compression != 0) or (not compressed and header.uncompressed_len):
        raise CorruptLayoutError("flags and compression of a segment disagree", path=where or None)
    if header.compression not in layout.COMPRESSION_NAMES:
        raise CorruptLayoutError(f"unknown compression {header.compression}", path=where or None)
    return header


def build(
    seg_type: int, segment_id: int, payload: Buffer, options: SegmentOptions = PLAIN
) -> tuple[Row, Buffer]:
    """The header of a payload and the bytes to store for it; the hash is that of the raw payload."""
    view = byte_view(payload)
    if view.nbytes > layout.MAX_PAYLOAD_BYTES:
        raise LimitExceededError(f"a payload of {view.nbytes} bytes; a segment holds less than 4 GiB")
    algo = layout.CHECKSUM_IDS[options.checksum]
    stored: Buffer = view
    is_compressed = options.compression != "none"
    if is_compressed:
        stored = codec.encode(options.compression, view)
    size = byte_view(stored).nbytes
    header = layout.HEADER(
        magic=layout.SEGMENT_MAGIC,
        version=layout.VERSION,
        seg_type=int(seg_type),
        flags=int(options.flags | (Flag.COMPRESSED if is_compressed else 0)),
        segment_id=segment_id,
        payload_length=size,
        timestamp_ns=options.timestamp_ns,
        checksum_algo=algo,
        compression=layout.COMPRESSION_IDS[options.compression],
        reserved_0=0,
        reserved_1=0,
        content_hash=content_hash(algo, view),
        uncompressed_len=view.nbytes if is_compressed else 0,
        alignment_pad=align_up(size, layout.ALIGNMENT) - size,
    )
    return header, stored


def pack_footer(footer: SignatureFooter) -> bytes:
    """A signature footer: algorithm, length, signature, total length."""
    head = layout.FOOTER_HEAD.pack(layout.SIGNATURE_IDS[footer.algorithm], len(footer.signature))
    total = layout.FOOTER_FIXED_BYTES + len(footer.signature)
    return head + footer.signature + layout.FOOTER_TAIL.pack(total)


def unpack_footer(data: Buffer, where: str = "") -> tuple[SignatureFooter, int]:
    """The footer at the start of `data`, and its size."""
    view = byte_view(data)
    if view.nbytes < layout.FOOTER_HEAD.size:
        raise TruncatedError("a signature footer is cut off", path=where or None)
    algo, length = layout.FOOTER_HEAD.unpack_from(view)
    total = layout.FOOTER_FIXED_BYTES + length
    name = layout.SIGNATURE_NAMES.get(algo)
    if name is None or length != layout.SIGNATURE_BYTES[name]:
        raise CorruptLayoutError(f"signature algorithm {algo} with {length} bytes", path=where or None)
    if view.nbytes < total:
        raise TruncatedError("a signature footer is cut off", path=where or None)
    if layout.FOOTER_TAIL.unpack_from(view, total - 4)[0] != total:
        raise CorruptLayoutError("a signature footer states another length at its end", path=where or None)
    return SignatureFooter(name, bytes(view[4 : 4 + length])), total


def checked_payload(header: Row, stored: Buffer, where: str = "", *, runtime: bool = False) -> memoryview:
    """The raw payload of stored bytes, or ChecksumError if it does not have the hash of its header."""
    if header.flags & Flag.ENCRYPTED:
        raise UnsupportedVersionError(
            "an encrypted segment cannot be read without its key",
            path=where or None,
            hint="Ask the owner of the file for one without encryption.",
        )
    payload = byte_view(stored)
    if header.flags & Flag.COMPRESSED:
        name = layout.COMPRESSION_NAMES[header.compression]
        if name == "custom":
            raise UnsupportedVersionError("custom compression cannot be read", path=where or None)
        payload = memoryview(codec.decode(name, stored, header.uncompressed_len))
    if not hash_matches(header, payload, runtime=runtime):
        name = layout.segment_name(header.seg_type)
        raise ChecksumError(f"{name} segment {header.segment_id} does not match its hash", path=where or None)
    return payload


def read_header(reader: RangeReader, offset: int) -> Row:
    """The checked header at an offset."""
    return unpack_header(reader.read(offset, offset + layout.HEADER_BYTES), reader.name)


def segment_end(reader: RangeReader, offset: int, header: Row) -> int:
    """Where the payload and the footer of a segment end, before the padding."""
    end = offset + layout.HEADER_BYTES + header.payload_length
    if not header.flags & Flag.SIGNED:
        return int(end)
    if end + layout.FOOTER_HEAD.size > reader.size:
        raise TruncatedError("a signature footer is cut off", path=reader.name)
    head = layout.FOOTER_HEAD.unpack_from(reader.read(end, end + layout.FOOTER_HEAD.size))
    return int(end + layout.FOOTER_FIXED_BYTES + head.sig_length)


Ids = NDArray[np.uint64]
Tlv = tuple[int, bytes]

NO_IDENTITY = layout.FILE_IDENTITY(bytes(16), bytes(16), bytes(32), 0)
NOWHERE = layout.ROOT_POINTER(0, 0, 0)
_PLAIN_FIELDS = (
    *("dimension", "base_dtype", "total_vector_count", "epoch", "created_ns", "modified_ns"),
    *("l1_manifest_offset", "l1_manifest_length", "profile_id", "flags"),
)
_SINGLE = 0
_FULL = 65_536


@dataclass(frozen=True, slots=True)
class Root:
    """The last 4096 bytes of a file; pointers are (seg_offset, block_offset, entries)."""

    dimension: int = 0
    base_dtype: int = 0
    total_vector_count: int = 0
    epoch: int = 0
    created_ns: int = 0
    modified_ns: int = 0
    l1_manifest_offset: int = 0
    l1_manifest_length: int = 0
    profile_id: int = 0
    flags: int = 0
    entrypoint: Row = NOWHERE
    toplayer: Row = NOWHERE
    centroid: Row = NOWHERE
    quantdict: Row = NOWHERE
    hot_cache: Row = NOWHERE
    prefetch_map: tuple[int, int] = (0, 0)
    signature: SignatureFooter | None = None
    identity: Row = NO_IDENTITY
    reserved: bytes = field(default=bytes(184), repr=False)
    """The bytes behind the identity: kept as they are."""


def pack_root(root: Root) -> bytes:
    """The 4096 bytes of a root with its CRC-32C."""
    pointers = (root.entrypoint, root.toplayer, root.centroid, root.quantdict, root.hot_cache)
    counts = {name: getattr(root, name) for name in _PLAIN_FIELDS}
    values = {"magic": layout.ROOT_MAGIC, "version": layout.ROOT_VERSION, **counts}
    plain = [values[name] for name in layout.ROOT._fields[: len(values)]]
    fixed = layout.ROOT.pack(*plain, *(n for pointer in pointers for n in pointer), *root.prefetch_map)
    signature = b""
    if root.signature is not None:
        size = len(root.signature.signature)
        if size > layout.ROOT_SIGNATURE_MAX_BYTES:
            raise LimitExceededError(f"a signature of {size} bytes does not fit in the root")
        signature = layout.FOOTER_HEAD.pack(layout.SIGNATURE_IDS[root.signature.algorithm], size)
        signature += root.signature.signature
    out = fixed.ljust(layout.ROOT_SIGNATURE_HEAD_OFFSET, b"\0") + signature
    out = out.ljust(layout.ROOT_IDENTITY_OFFSET, b"\0")
    out += layout.FILE_IDENTITY.pack(*root.identity) + root.reserved
    return out + crc32c(out).to_bytes(4, "little")


def unpack_root(data: Buffer, where: str = "") -> Root:
    """Parse and check a root."""
    view = byte_view(data)
    if view.nbytes != layout.ROOT_BYTES:
        raise TruncatedError("a root has 4096 bytes", path=where or None)
    fields = layout.ROOT.unpack_from(view)
    if fields.magic != layout.ROOT_MAGIC:
        raise BadMagicError("no root here", path=where or None)
    if crc32c(view[: layout.ROOT_CRC_OFFSET]) != int.from_bytes(view[layout.ROOT_CRC_OFFSET :], "little"):
        raise ChecksumError("the root does not match its checksum", path=where or None)
    if fields.version != layout.ROOT_VERSION:
        raise UnsupportedVersionError(f"root version {fields.version}", path=where or None)
    pointers = [layout.ROOT_POINTER(*fields[12 + 3 * i : 15 + 3 * i]) for i in range(5)]
    number, size = layout.FOOTER_HEAD.unpack_from(view, layout.ROOT_SIGNATURE_HEAD_OFFSET)
    name = layout.SIGNATURE_NAMES.get(number)
    signature = None
    if fields.flags & layout.ROOT_SIGNED and name and 0 < size <= layout.ROOT_SIGNATURE_MAX_BYTES:
        start = layout.ROOT_SIGNATURE_OFFSET
        signature = SignatureFooter(name, bytes(view[start : start + size]))
    tail = layout.ROOT_IDENTITY_OFFSET + layout.FILE_IDENTITY.size
    names = (*_PLAIN_FIELDS, "entrypoint", "toplayer", "centroid", "quantdict", "hot_cache")
    values = [*(getattr(fields, name) for name in _PLAIN_FIELDS), *pointers]
    return Root(
        **dict(zip(names, values, strict=True)),
        prefetch_map=(fields.prefetch_map_offset, fields.prefetch_map_entries),
        signature=signature,
        identity=layout.FILE_IDENTITY.unpack_from(view, layout.ROOT_IDENTITY_OFFSET),
        reserved=bytes(view[tail : layout.ROOT_CRC_OFFSET]),
    )


def root_message(root: Root, l1_digest: bytes) -> bytes:
    """The bytes that a signature of the root covers: its fields, its identity area and the records before it."""
    plain = pack_root(replace(root, signature=None))
    head = plain[: layout.ROOT_SIGNATURE_HEAD_OFFSET]
    tail = plain[layout.ROOT_IDENTITY_OFFSET : layout.ROOT_CRC_OFFSET]
    return head + tail + l1_digest + b"RVF-v1-ROOT-generic"


def pack_tlvs(records: Iterable[Tlv]) -> bytes:
    """Level-1 records, each padded to 8 bytes."""
    return b"".join(
        layout.TLV_HEAD.pack(tag, len(value), 0) + value + padding_to(len(value), 8) for tag, value in records
    )


def unpack_tlvs(data: Buffer, where: str = "") -> list[Tlv]:
    """Every record of a Level-1 manifest, known or not, in order; zero padding at the end is skipped."""
    view = byte_view(data)
    records: list[Tlv] = []
    position = 0
    while position + layout.TLV_HEAD.size <= view.nbytes:
        tag, length, pad = layout.TLV_HEAD.unpack_from(view, position)
        if tag == 0 and length == 0:
            break
        start = position + layout.TLV_HEAD.size
        if pad or start + length > view.nbytes:
            raise CorruptLayoutError("a manifest record does not fit in its manifest", path=where or None)
        records.append((tag, bytes(view[start : start + length])))
        position = start + length + len(padding_to(length, 8))
    if any(view[position:]):
        raise CorruptLayoutError("bytes follow the records of a manifest", path=where or None)
    return records


class Cursor:
    """A position in a payload that never goes past its end."""

    def __init__(self, view: memoryview, where: str, position: int = 0) -> None:
        self.view, self.position, self.where = view, position, where or None

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        end = self.position + size
        if end > self.view.nbytes:
            raise TruncatedError("a payload is cut off", path=self.where)
        taken, self.position = self.view[self.position : end], end
        return taken

    def integer(self, width: int) -> int:
        """The next `width` bytes as a number."""
        return int.from_bytes(self.take(width), "little")

    def align(self) -> int:
        """Continue at the next boundary, and return it."""
        self.position = align_up(self.position, layout.ALIGNMENT)
        return self.position


def first_value(records: Sequence[Tlv], tag: int) -> bytes | None:
    """The value of the first record with this tag."""
    return next((value for number, value in records if number == tag), None)


def pack_directory(entries: Sequence[Row]) -> Tlv:
    """The segment directory record."""
    return Tag.SEGMENT_DIR, b"".join(layout.DIRECTORY_ENTRY.pack(*entry) for entry in entries)


def unpack_directory(value: bytes, where: str = "") -> list[Row]:
    """The entries of a segment directory."""
    if len(value) % layout.DIRECTORY_ENTRY.size:
        raise CorruptLayoutError("the segment directory is not a whole number of entries", path=where or None)
    return list(layout.DIRECTORY_ENTRY.iter_unpack(value))


def pack_chain(chain: Row) -> Tlv:
    """The record that links a manifest to the one before."""
    return Tag.OVERLAY_CHAIN, layout.OVERLAY_CHAIN.pack(*chain)


def unpack_chain(value: bytes, where: str = "") -> Row:
    """The link to the manifest before."""
    if len(value) != layout.OVERLAY_CHAIN.size:
        raise CorruptLayoutError("the chain record of a manifest has a wrong size", path=where or None)
    return layout.OVERLAY_CHAIN.unpack_from(value)


def encode_deletions(ids: Ids) -> bytes:
    """A deletion bitmap: array, bitmap and run containers keyed by id >> 16; ids are below 2**48."""
    unique = np.unique(ids)
    if unique.size and int(unique[-1]) > layout.MAX_BITMAP_ID:
        raise ValueError("a deletion bitmap holds ids below 2**48")
    keys, starts = np.unique(unique >> np.uint64(16), return_index=True)
    bounds = [*starts.tolist(), len(unique)]
    entries, containers = [], bytearray()
    base = layout.BITMAP_HEAD.size + len(keys) * layout.CONTAINER_ENTRY.size
    base += len(padding_to(base, 8))
    for key, start, end in zip(keys.tolist(), bounds[:-1], bounds[1:], strict=True):
        kind, packed = _pack_container((unique[start:end] & np.uint64(0xFFFF)).astype(np.int64))
        entries.append(layout.CONTAINER_ENTRY.pack(key, kind, base + len(containers)))
        containers += packed + padding_to(len(packed), 8)
    head = layout.BITMAP_HEAD.pack(layout.BITMAP_COOKIE, len(keys)) + b"".join(entries)
    return bytes([_SINGLE]) + head + padding_to(len(head), 8) + bytes(containers)


def _pack_container(low: NDArray[np.int64]) -> tuple[int, bytes]:
    """The smallest of the three containers for sorted 16-bit values."""
    breaks = np.flatnonzero(np.diff(low) != 1)
    firsts = low[np.concatenate(([0], breaks + 1))]
    lasts = low[np.concatenate((breaks, [len(low) - 1]))]
    if 4 * len(firsts) < min(2 * len(low), layout.BITMAP_CONTAINER_BYTES):
        runs = np.stack([firsts, lasts - firsts], axis=1).astype("<u2")
        return layout.CONTAINER_RUN, layout.COUNT_U16.pack(len(firsts)) + runs.tobytes()
    if len(low) <= layout.ARRAY_CONTAINER_MAX:
        return layout.CONTAINER_ARRAY, layout.COUNT_U16.pack(len(low)) + low.astype("<u2").tobytes()
    bits = np.zeros(_FULL, np.uint8)
    bits[low] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    return layout.CONTAINER_BITMAP, layout.COUNT_U16.pack(len(low) % _FULL) + packed


def decode_deletions(value: Buffer, where: str = "") -> Ids:
    """The deleted ids of a bitmap value, ascending."""
    view = byte_view(value)
    if view.nbytes < 1 + layout.BITMAP_HEAD.size:
        raise TruncatedError("a deletion bitmap is cut off", path=where or None)
    if view[0] != _SINGLE:
        raise CorruptLayoutError("a sharded deletion bitmap is not supported", path=where or None)
    bitmap = view[1:]
    cookie, count = layout.BITMAP_HEAD.unpack_from(bitmap)
    end = layout.BITMAP_HEAD.size + count * layout.CONTAINER_ENTRY.size
    if cookie != layout.BITMAP_COOKIE or end > bitmap.nbytes:
        raise CorruptLayoutError("a deletion bitmap contradicts itself", path=where or None)
    pieces = [np.zeros(0, np.uint64)]
    for key, kind, offset in layout.CONTAINER_ENTRY.iter_unpack(bitmap[layout.BITMAP_HEAD.size : end]):
        low = _unpack_container(bitmap, kind, offset, where)
        pieces.append(low.astype(np.uint64) + (np.uint64(key) << np.uint64(16)))
    ids = np.concatenate(pieces)
    if (ids[1:] <= ids[:-1]).any():
        raise CorruptLayoutError("the ids of a deletion bitmap do not ascend", path=where or None)
    return ids


def _unpack_container(bitmap: memoryview, kind: int, offset: int, where: str) -> NDArray[np.int64]:
    if offset + 2 > bitmap.nbytes:
        raise TruncatedError("a deletion bitmap is cut off", path=where or None)
    count = layout.COUNT_U16.unpack_from(bitmap, offset)[0]
    sizes = {
        layout.CONTAINER_ARRAY: 2 * count,
        layout.CONTAINER_BITMAP: layout.BITMAP_CONTAINER_BYTES,
        layout.CONTAINER_RUN: 4 * count,
    }
    size = sizes.get(kind)
    if size is None or offset + 2 + size > bitmap.nbytes:
        raise CorruptLayoutError("a container of a deletion bitmap is damaged", path=where or None)
    data = bitmap[offset + 2 : offset + 2 + size]
    if kind == layout.CONTAINER_BITMAP:
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    values = np.frombuffer(data, "<u2").astype(np.int64)
    if kind == layout.CONTAINER_ARRAY:
        return values
    runs = values.reshape(-1, 2)
    lengths = runs[:, 1] + 1
    if count and (runs.sum(axis=1).max() >= _FULL or lengths.sum() > _FULL):
        raise CorruptLayoutError("a run of a deletion bitmap is too long", path=where or None)
    starts = np.cumsum(lengths) - lengths
    return np.repeat(runs[:, 0] - starts, lengths) + np.arange(int(lengths.sum()))
