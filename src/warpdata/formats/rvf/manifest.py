"""MANIFEST payloads: Level-1 records, the deletion bitmap, and the 4096-byte root that ends a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import Row, Tag
from warpdata.formats.rvf.segment import SignatureFooter

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]
Tlv = tuple[int, bytes]

NO_IDENTITY = layout.FILE_IDENTITY(bytes(16), bytes(16), bytes(32), 0)
NOWHERE = layout.ROOT_POINTER(0, 0, 0)
_PLAIN_FIELDS = (
    "dimension",
    "base_dtype",
    "total_vector_count",
    "epoch",
    "created_ns",
    "modified_ns",
    "l1_manifest_offset",
    "l1_manifest_length",
    "profile_id",
    "flags",
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
