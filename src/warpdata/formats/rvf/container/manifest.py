"""MANIFEST payloads: Level-1 records, and the 4096-byte root that ends a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.container.layout import (
    DirectoryEntry,
    FileIdentity,
    OverlayChain,
    RootFields,
    RootPointer,
    Tag,
)
from warpdata.formats.rvf.container.segment import SignatureFooter

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_IDENTITY = FileIdentity(bytes(16), bytes(16), bytes(32), 0)
NOWHERE = RootPointer(0, 0, 0)

Tlv = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Root:
    """What the last 4096 bytes of a file say."""

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
    entrypoint: RootPointer = NOWHERE
    toplayer: RootPointer = NOWHERE
    centroid: RootPointer = NOWHERE
    quantdict: RootPointer = NOWHERE
    hot_cache: RootPointer = NOWHERE
    prefetch_map: tuple[int, int] = (0, 0)
    signature: SignatureFooter | None = None
    identity: FileIdentity = NO_IDENTITY
    reserved: bytes = field(default=bytes(184), repr=False)
    """The bytes behind the identity: kept as they are."""


def pack_root(root: Root) -> bytes:
    """The 4096 bytes of a root with its CRC-32C."""
    out = bytearray(layout.ROOT_BYTES)
    layout.ROOT.pack_into(
        out, 0, layout.ROOT_MAGIC, layout.ROOT_VERSION, root.flags, root.l1_manifest_offset,
        root.l1_manifest_length, root.total_vector_count, root.dimension, root.base_dtype, root.profile_id,
        root.epoch, root.created_ns, root.modified_ns, *root.entrypoint, *root.toplayer, *root.centroid,
        *root.quantdict, *root.hot_cache, *root.prefetch_map,
    )  # fmt: skip
    if root.signature is not None:
        _put_signature(out, root.signature)
    layout.FILE_IDENTITY.pack_into(out, layout.ROOT_IDENTITY_OFFSET, *root.identity)
    start = layout.ROOT_IDENTITY_OFFSET + layout.FILE_IDENTITY.size
    out[start : layout.ROOT_CRC_OFFSET] = root.reserved
    crc = crc32c(byte_view(out)[: layout.ROOT_CRC_OFFSET])
    out[layout.ROOT_CRC_OFFSET :] = crc.to_bytes(4, "little")
    return bytes(out)


def _put_signature(out: bytearray, signature: SignatureFooter) -> None:
    number, size = layout.SIGNATURE_IDS[signature.algorithm], len(signature.signature)
    if size > layout.ROOT_SIGNATURE_MAX_BYTES:
        raise LimitExceededError(f"a signature of {size} bytes does not fit in the root")
    layout.FOOTER_HEAD.pack_into(out, layout.ROOT_SIGNATURE_HEAD_OFFSET, number, size)
    out[layout.ROOT_SIGNATURE_OFFSET : layout.ROOT_SIGNATURE_OFFSET + size] = signature.signature


def unpack_root(data: Buffer, where: str = "") -> Root:
    """Parse and check a root."""
    view = byte_view(data)
    if view.nbytes != layout.ROOT_BYTES:
        raise TruncatedError("a root has 4096 bytes", path=where or None)
    fields = RootFields._make(layout.ROOT.unpack_from(view))
    if fields.magic != layout.ROOT_MAGIC:
        raise BadMagicError("no root here", path=where or None)
    if crc32c(view[: layout.ROOT_CRC_OFFSET]) != int.from_bytes(view[layout.ROOT_CRC_OFFSET :], "little"):
        raise ChecksumError("the root does not match its checksum", path=where or None)
    if fields.version != layout.ROOT_VERSION:
        raise UnsupportedVersionError(f"root version {fields.version}", path=where or None)
    entry, top, centroid, quant, hot = (RootPointer._make(fields[12 + 3 * i : 15 + 3 * i]) for i in range(5))
    identity = FileIdentity._make(layout.FILE_IDENTITY.unpack_from(view, layout.ROOT_IDENTITY_OFFSET))
    start = layout.ROOT_IDENTITY_OFFSET + layout.FILE_IDENTITY.size
    return Root(
        fields.dimension, fields.base_dtype, fields.total_vector_count, fields.epoch, fields.created_ns,
        fields.modified_ns, fields.l1_manifest_offset, fields.l1_manifest_length, fields.profile_id,
        fields.flags, entry, top, centroid, quant, hot,
        (fields.prefetch_map_offset, fields.prefetch_map_entries),
        _take_signature(view, fields.flags), identity, bytes(view[start : layout.ROOT_CRC_OFFSET]),
    )  # fmt: skip


def _take_signature(view: memoryview, flags: int) -> SignatureFooter | None:
    number, size = layout.FOOTER_HEAD.unpack_from(view, layout.ROOT_SIGNATURE_HEAD_OFFSET)
    name = layout.SIGNATURE_NAMES.get(number)
    if not flags & layout.ROOT_SIGNED or name is None or not 0 < size <= layout.ROOT_SIGNATURE_MAX_BYTES:
        return None
    start = layout.ROOT_SIGNATURE_OFFSET
    return SignatureFooter(name, bytes(view[start : start + size]))


def root_message(root: Root, l1_digest: bytes) -> bytes:
    """What a signature of the root covers: its fields, its identity area and the records before it."""
    plain = pack_root(replace(root, signature=None))
    head = plain[: layout.ROOT_SIGNATURE_HEAD_OFFSET]
    tail = plain[layout.ROOT_IDENTITY_OFFSET : layout.ROOT_CRC_OFFSET]
    return head + tail + l1_digest + b"RVF-v1-ROOT-generic"


def pack_tlvs(records: Iterable[Tlv]) -> bytes:
    """Level-1 records, each padded to 8 bytes."""
    out = []
    for tag, value in records:
        out.append(layout.TLV_HEAD.pack(tag, len(value), 0) + value + padding_to(len(value), 8))
    return b"".join(out)


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


def pack_directory(entries: Sequence[DirectoryEntry]) -> Tlv:
    """The segment directory record."""
    return Tag.SEGMENT_DIR, b"".join(layout.DIRECTORY_ENTRY.pack(*entry) for entry in entries)


def unpack_directory(value: bytes, where: str = "") -> list[DirectoryEntry]:
    """The entries of a segment directory."""
    if len(value) % layout.DIRECTORY_ENTRY.size:
        raise CorruptLayoutError("the segment directory is not a whole number of entries", path=where or None)
    return [DirectoryEntry._make(each) for each in layout.DIRECTORY_ENTRY.iter_unpack(value)]


def pack_chain(chain: OverlayChain) -> Tlv:
    """The record that hangs a manifest on the one before."""
    return Tag.OVERLAY_CHAIN, layout.OVERLAY_CHAIN.pack(*chain)


def unpack_chain(value: bytes, where: str = "") -> OverlayChain:
    """The link to the manifest before."""
    if len(value) != layout.OVERLAY_CHAIN.size:
        raise CorruptLayoutError("the chain record of a manifest has a wrong size", path=where or None)
    return OverlayChain._make(layout.OVERLAY_CHAIN.unpack(value))


def first_value(records: Sequence[Tlv], tag: int) -> bytes | None:
    """The value of the first record with this tag."""
    return next((value for each, value in records if each == tag), None)
