"""Read everything of a file and report every damage; compare a file with an earlier state of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import shake256
from warpdata.errors import FileFinding, FormatError
from warpdata.formats.rvf import container, layout, signing
from warpdata.formats.rvf.access import decode_hot, decode_sketch
from warpdata.formats.rvf.graph import decode_graph, decode_layer_a, unpack_index_header
from warpdata.formats.rvf.layout import Row, SegmentType, Tag
from warpdata.formats.rvf.meta import decode_columns, decode_journal, decode_meta, deleted_mask
from warpdata.formats.rvf.quant import decode_quant
from warpdata.formats.rvf.reader import Snapshot, open_snapshot
from warpdata.formats.rvf.runtime import decode_runtime_vec
from warpdata.formats.rvf.signing import PublicKey, decode_crypto
from warpdata.formats.rvf.vec import block_end, decode_block, decode_id_directory, decode_vec, read_directory

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader

Ids = NDArray[np.uint64]
_VALUES = {layout.DTYPE_IDS[name] for name in ("f32", "f16", "bf16", "i8", "u8", "i4", "binary")}


def verify_file(
    reader: RangeReader, snapshot: Snapshot, code_bytes: int, keys: Sequence[PublicKey] = ()
) -> list[FileFinding]:
    """Every segment's hash, structure and signature; with keys, unsigned and foreign segments count too.

    `code_bytes` is the length of product codes.
    """
    findings = []
    for entry in snapshot.segments:
        part = f"{layout.segment_name(entry.seg_type)} {entry.segment_id}"
        try:
            _verify_segment(reader, snapshot, entry, code_bytes)
        except FormatError as error:
            findings.append(FileFinding.of(error, part))
        problem = _signature_problem(reader, entry, keys, snapshot) if keys else ""
        if problem:
            findings.append(FileFinding("signature", f"{part} {problem}", part))
    if keys and not _root_is_signed(reader, snapshot, keys):
        text = "the root is not signed by these keys"
        findings.append(FileFinding("signature", text, f"MANIFEST {snapshot.manifest_id}"))
    return findings


def _verify_segment(reader: RangeReader, snapshot: Snapshot, entry: Row, code_bytes: int) -> None:
    runtime = snapshot.dialect == "runtime"
    payload = snapshot.read(reader, entry)
    if runtime:
        if entry.seg_type == SegmentType.VEC:
            decode_runtime_vec(payload, reader.name)
    elif entry.seg_type == SegmentType.VEC:
        decode_vec(payload, code_bytes=code_bytes, where=reader.name)
    elif entry.seg_type == SegmentType.INDEX:
        is_a = unpack_index_header(payload, reader.name).layer_level == layout.LAYER_A
        (decode_layer_a if is_a else decode_graph)(payload, reader.name)
    elif entry.seg_type == SegmentType.META:
        is_columns = bytes(payload[:8]) == layout.COLUMNS_MAGIC
        (decode_columns if is_columns else decode_meta)(payload, reader.name)
    elif entry.seg_type in _DECODERS:
        _DECODERS[entry.seg_type](payload, reader.name)


_DECODERS: dict[int, Callable[[memoryview, str], Any]] = {
    SegmentType.JOURNAL: decode_journal,
    SegmentType.QUANT: decode_quant,
    SegmentType.HOT: decode_hot,
    SegmentType.IDS: decode_id_directory,
    SegmentType.SKETCH: decode_sketch,
    SegmentType.CRYPTO: decode_crypto,
}


def _signature_problem(reader: RangeReader, entry: Row, keys: Sequence[PublicKey], snapshot: Snapshot) -> str:
    try:
        header = container.read_header(reader, entry.file_offset)
        if not header.flags & layout.Flag.SIGNED:
            return "is not signed"
        start = entry.file_offset + layout.HEADER_BYTES
        end = start + header.payload_length
        last = container.segment_end(reader, entry.file_offset, header)
        footer = container.unpack_footer(reader.read(end, last), reader.name)[0]
    except FormatError as error:
        return f"has a damaged signature ({error.message})"
    stored = reader.read(start, end)
    number = 0 if snapshot.root is None else snapshot.root.profile_id
    profile = layout.DOMAIN_NAMES.get(number, signing.PROFILE)
    messages = {
        signing.segment_message(header),
        signing.segment_message(header, profile),
        signing.shipped_message(header, stored),
    }
    is_valid = any(signing.is_valid(key, message, footer) for key in keys for message in messages)
    return "" if is_valid else "is not signed by these keys"


def _root_is_signed(reader: RangeReader, snapshot: Snapshot, keys: Sequence[PublicKey]) -> bool:
    root = snapshot.root
    if root is None or not snapshot.is_checkpoint or not root.flags & layout.ROOT_SIGNED:
        return False
    start = root.l1_manifest_offset
    packed = reader.read(start, start + root.l1_manifest_length)
    footer = root.signature
    if footer is None:
        value = snapshot.record(Tag.MANIFEST_SIGNATURE)
        if value is None:
            return False
        footer = container.unpack_footer(value, reader.name)[0]
        packed = packed[: len(packed) - len(container.pack_tlvs([(Tag.MANIFEST_SIGNATURE, value)]))]
    message = container.root_message(replace(root, l1_manifest_length=len(packed)), shake256(packed, 32))
    return any(signing.is_valid(key, message, footer) for key in keys)


# -- a later state of the same file ----------------------------------------------------------------------


def goes_on_from(newer: RangeReader, older: RangeReader) -> bool:
    """Whether `newer` is the same store at a later time, and has every vector of `older` unchanged."""
    after, before = open_snapshot(newer), open_snapshot(older)
    if after.root is None or before.root is None or after.epoch <= before.epoch:
        return False
    name = after.root.identity.file_id
    if not any(name) or name != before.root.identity.file_id or after.root.dimension != before.root.dimension:
        return False
    try:
        new, old = _live_rows(newer, after), _live_rows(older, before)
    except FormatError:
        return False
    if len(new[0]) != after.live_count or len(old[0]) != before.live_count or len(new[0]) < len(old[0]):
        return False
    at = np.minimum(np.searchsorted(new[0], old[0]), max(0, len(new[0]) - 1))
    return all(bool(np.array_equal(theirs[at], ours)) for theirs, ours in zip(new, old, strict=True))


def _live_rows(reader: RangeReader, snapshot: Snapshot) -> tuple[Ids, Ids]:
    """The ids of all vectors that are not deleted, ascending, and a hash of the bytes of each."""
    ids: list[Ids] = [np.zeros(0, np.uint64)]
    hashes: list[Ids] = [np.zeros(0, np.uint64)]
    for entry in snapshot.of_type(SegmentType.VEC):
        payload = snapshot.read(reader, entry)
        blocks = read_directory(payload, where=reader.name)
        for at, block in enumerate(blocks):
            if block.dtype in _VALUES:  # codes are of rows that are elsewhere too, or of none we can compare
                data = payload[block.block_offset : block_end(blocks, at, payload.nbytes)]
                decoded = decode_block(data, block, where=reader.name, check=False)
                stored = np.ascontiguousarray(decoded.rows).view(np.uint8).reshape(len(decoded.ids), -1)
                weights = np.random.default_rng(7).integers(1, 1 << 63, stored.shape[1], dtype=np.uint64)
                ids.append(decoded.ids)
                hashes.append(np.einsum("ij,j->i", stored, weights, dtype=np.uint64, casting="unsafe"))
    # The newest row of an id is the last one listed.
    every, last = np.unique(np.concatenate(ids)[::-1], return_index=True)
    bitmap = snapshot.record(Tag.DELETION_BITMAP)
    dead = np.zeros(len(every), bool)
    if bitmap is not None:
        dead = np.isin(every, container.decode_deletions(bitmap, reader.name))
    for entry in snapshot.of_type(SegmentType.JOURNAL):
        dead |= deleted_mask(every, decode_journal(snapshot.read(reader, entry), reader.name).entries)
    return every[~dead], np.concatenate(hashes)[::-1][last][~dead]
