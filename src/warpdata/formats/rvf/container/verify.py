"""Read everything of a file and report every damage, instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.checksum import shake256
from warpdata.errors import FileFinding, FormatError
from warpdata.formats.rvf.container import layout, manifest, segment, signing
from warpdata.formats.rvf.container.layout import DirectoryEntry, SegmentHeader, SegmentType, Tag
from warpdata.formats.rvf.container.reader import read_segment
from warpdata.formats.rvf.container.segment import SignatureFooter
from warpdata.formats.rvf.container.snapshot import Snapshot
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments import vec
from warpdata.formats.rvf.segments.graph import decode_graph, unpack_index_header
from warpdata.formats.rvf.segments.hot import decode_hot
from warpdata.formats.rvf.segments.ids import decode_id_directory
from warpdata.formats.rvf.segments.journal import decode_journal
from warpdata.formats.rvf.segments.layer_a import decode_layer_a
from warpdata.formats.rvf.segments.meta import decode_meta
from warpdata.formats.rvf.segments.quant import ProductQuant, ResidualQuant, decode_quant
from warpdata.formats.rvf.segments.sketch import decode_sketch
from warpdata.formats.rvf.segments.witness import PublicKey, decode_crypto

if TYPE_CHECKING:
    from warpdata.bytekit.io.ranges import RangeReader


def verify_file(reader: RangeReader, snapshot: Snapshot, keys: Sequence[PublicKey] = ()) -> list[FileFinding]:
    """Every segment's hash, structure and signature; with keys, unsigned and foreign segments count too."""
    code_bytes = _code_bytes(reader, snapshot)
    found: list[FileFinding] = []
    for entry in snapshot.segments:
        found += _checked(reader, snapshot, entry, code_bytes)
    if keys:
        found += _verify_signatures(reader, snapshot, keys)
    return found


def _checked(
    reader: RangeReader, snapshot: Snapshot, entry: DirectoryEntry, code_bytes: int
) -> list[FileFinding]:
    try:
        _verify_segment(reader, snapshot, entry, code_bytes)
    except FormatError as error:
        return [FileFinding.of(error, f"{layout.segment_name(entry.seg_type)} {entry.segment_id}")]
    return []


def _code_bytes(reader: RangeReader, snapshot: Snapshot) -> int:
    """How long a product code is: the newest dictionary of the right size says it."""
    dim = 0 if snapshot.root is None else snapshot.root.dimension
    entries = [] if snapshot.dialect == "runtime" else snapshot.of_type(SegmentType.QUANT)
    for entry in reversed(entries):
        try:
            found = decode_quant(read_segment(reader, entry), reader.name)
        except FormatError:
            continue
        if isinstance(found, ProductQuant | ResidualQuant) and found.dim == dim:
            return found.code_bytes
    return 0


def _verify_segment(reader: RangeReader, snapshot: Snapshot, entry: DirectoryEntry, code_bytes: int) -> None:
    runtime = snapshot.dialect == "runtime"
    payload = read_segment(reader, entry, runtime=runtime)
    if runtime:
        if entry.seg_type == SegmentType.VEC:
            vec.decode_runtime_vec(payload, reader.name)
        return
    if entry.seg_type == SegmentType.VEC:
        vec.decode_vec(payload, code_bytes=code_bytes, where=reader.name)
        return
    decoder = _DECODERS.get(entry.seg_type)
    if decoder is not None:
        decoder(payload, reader.name)


def _decode_index(payload: memoryview, where: str) -> None:
    header = unpack_index_header(payload, where)
    if header.layer_level == records.LAYER_A:
        decode_layer_a(payload, where)
    else:
        decode_graph(payload, where)


_DECODERS: dict[int, Callable[[memoryview, str], Any]] = {
    SegmentType.INDEX: _decode_index,
    SegmentType.JOURNAL: decode_journal,
    SegmentType.QUANT: decode_quant,
    SegmentType.META: decode_meta,
    SegmentType.HOT: decode_hot,
    SegmentType.IDS: decode_id_directory,
    SegmentType.SKETCH: decode_sketch,
    SegmentType.CRYPTO: decode_crypto,
}


def _verify_signatures(
    reader: RangeReader, snapshot: Snapshot, keys: Sequence[PublicKey]
) -> list[FileFinding]:
    found = []
    for entry in snapshot.segments:
        problem = _signature_problem(reader, entry, keys, _profile_name(snapshot))
        if problem:
            name = layout.segment_name(entry.seg_type)
            found.append(
                FileFinding("signature", f"{name} {entry.segment_id} {problem}", f"{name} {entry.segment_id}")
            )
    if not _root_is_signed(reader, snapshot, keys):
        text = "the root is not signed by these keys"
        found.append(FileFinding("signature", text, f"MANIFEST {snapshot.manifest_id}"))
    return found


def _profile_name(snapshot: Snapshot) -> str:
    number = 0 if snapshot.root is None else snapshot.root.profile_id
    return records.DOMAIN_NAMES.get(number, signing.PROFILE)


def _signature_problem(
    reader: RangeReader, entry: DirectoryEntry, keys: Sequence[PublicKey], profile: str
) -> str:
    try:
        header = segment.read_header(reader, entry.file_offset)
        footer = segment.read_footer(reader, entry.file_offset, header)
    except FormatError as error:
        return f"has a damaged signature ({error.message})"
    if footer is None:
        return "is not signed"
    start = entry.file_offset + layout.HEADER_BYTES
    stored = reader.read(start, start + header.payload_length)
    return "" if _is_signed(header, stored, footer, keys, profile) else "is not signed by these keys"


def _is_signed(
    header: SegmentHeader,
    stored: memoryview,
    footer: SignatureFooter,
    keys: Sequence[PublicKey],
    profile: str,
) -> bool:
    messages = {
        signing.segment_message(header), signing.segment_message(header, profile),
        signing.shipped_message(header, stored),
    }  # fmt: skip
    return any(signing.is_valid(key, message, footer) for key in keys for message in messages)


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
        footer = segment.unpack_footer(value, reader.name)[0]
        tlv = manifest.pack_tlvs([(Tag.MANIFEST_SIGNATURE, value)])
        packed = packed[: len(packed) - len(tlv)]
    message = manifest.root_message(replace(root, l1_manifest_length=len(packed)), shake256(packed, 32))
    return any(signing.is_valid(key, message, footer) for key in keys)
