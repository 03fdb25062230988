"""One segment: its header, its content hash, its payload and its signature footer."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from warpdata.formats.rvf.layout import Flag, Row, SegmentType

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


def pack_segment(header: Row, stored: Buffer, footer: SignatureFooter | None = None) -> bytes:
    """Header, payload, footer and the zero bytes up to the next boundary."""
    tail = b"" if footer is None else pack_footer(footer)
    size = header.payload_length + len(tail)
    return b"".join((pack_header(header), byte_view(stored), tail, padding_to(size, layout.ALIGNMENT)))


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


def read_footer(reader: RangeReader, offset: int, header: Row) -> SignatureFooter | None:
    """The signature of a segment, or None if it has none."""
    if not header.flags & Flag.SIGNED:
        return None
    start = offset + layout.HEADER_BYTES + header.payload_length
    return unpack_footer(reader.read(start, segment_end(reader, offset, header)), reader.name)[0]
