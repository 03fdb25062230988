"""The dialect of shipped programs: private manifest, row-major vectors, witness, copy-on-write parents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import BadMagicError, CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import NO_IDENTITY
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.vec import VecBlock, check_ids

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class RuntimeManifest:
    """The manifest of a shipped program."""

    epoch: int
    dimension: int
    total_vectors: int
    profile_id: int
    metric: str
    segments: tuple[Row, ...]
    deleted: Ids
    identity: Row = NO_IDENTITY


def encode_runtime_manifest(manifest: RuntimeManifest) -> bytes:
    """The manifest payload as shipped programs write it."""
    metric = layout.METRIC_IDS[manifest.metric]
    head = layout.RUNTIME_MANIFEST_HEAD.pack(
        manifest.epoch,
        manifest.dimension,
        manifest.total_vectors,
        len(manifest.segments),
        manifest.profile_id,
        metric,
        0,
    )
    listed = b"".join(layout.RUNTIME_SEGMENT.pack(*segment) for segment in manifest.segments)
    deleted = layout.COUNT_U32.pack(len(manifest.deleted)) + manifest.deleted.astype("<u8").tobytes()
    identity = layout.RUNTIME_IDENTITY_MAGIC + layout.FILE_IDENTITY.pack(*manifest.identity)
    return head + listed + deleted + identity


def decode_runtime_manifest(payload: Buffer, where: str = "") -> RuntimeManifest:
    """The manifest of a shipped program, or that of the WASM export (recognised by its size)."""
    view = byte_view(payload)
    if view.nbytes < layout.WASM_MANIFEST_HEAD.size:
        raise TruncatedError("a manifest has no header", path=where or None)
    wasm = layout.WASM_MANIFEST_HEAD.unpack_from(view)
    listed = view[layout.WASM_MANIFEST_HEAD.size :]
    if listed.nbytes == wasm.seg_count * layout.RUNTIME_SEGMENT.size:
        segments = tuple(layout.RUNTIME_SEGMENT.iter_unpack(listed))
        none = np.zeros(0, np.uint64)
        return RuntimeManifest(
            wasm.epoch, wasm.dimension, wasm.total_vectors, wasm.profile_id, "l2", segments, none
        )
    if view.nbytes < layout.RUNTIME_MANIFEST_HEAD.size:
        raise TruncatedError("a manifest has no header", path=where or None)
    head = layout.RUNTIME_MANIFEST_HEAD.unpack_from(view)
    start = layout.RUNTIME_MANIFEST_HEAD.size
    end = start + head.seg_count * layout.RUNTIME_SEGMENT.size
    if end + layout.COUNT_U32.size > view.nbytes or head.metric not in layout.METRIC_NAMES:
        raise CorruptLayoutError("a manifest contradicts its size", path=where or None)
    segments = tuple(layout.RUNTIME_SEGMENT.iter_unpack(view[start:end]))
    count = layout.COUNT_U32.unpack_from(view, end)[0]
    ids_end = end + layout.COUNT_U32.size + 8 * count
    if ids_end > view.nbytes:
        raise CorruptLayoutError("the deleted ids of a manifest are cut off", path=where or None)
    deleted = np.frombuffer(view[end + layout.COUNT_U32.size : ids_end], "<u8")
    check_ids(deleted, where)
    identity, tail, magic = NO_IDENTITY, view[ids_end:], layout.RUNTIME_IDENTITY_MAGIC
    if tail.nbytes:
        if tail[:4] != magic or tail.nbytes != len(magic) + layout.FILE_IDENTITY.size:
            raise CorruptLayoutError("bytes of an unknown kind end a manifest", path=where or None)
        identity = layout.FILE_IDENTITY.unpack_from(tail, len(magic))
    about = (head.epoch, head.dimension, head.total_vectors, head.profile_id)
    return RuntimeManifest(*about, layout.METRIC_NAMES[head.metric], segments, deleted, identity)


def encode_runtime_vec(ids: Ids, rows: NDArray[np.float32]) -> bytes:
    """The vectors of shipped programs: row-major f32 with inline ids."""
    count, dim = rows.shape
    out = np.zeros(count, _row_dtype(dim))
    out["id"], out["vector"] = ids, rows
    return layout.RUNTIME_VEC_HEAD.pack(dim, count) + out.tobytes()


def decode_runtime_vec(payload: Buffer, where: str = "") -> VecBlock:
    """The vectors of shipped programs; the swapped header of the WASM export is recognised by its size."""
    view = byte_view(payload)
    if view.nbytes < layout.RUNTIME_VEC_HEAD.size:
        raise TruncatedError("a VEC payload has no header", path=where or None)
    dim, count = layout.RUNTIME_VEC_HEAD.unpack_from(view)
    size = view.nbytes - layout.RUNTIME_VEC_HEAD.size
    if size != count * (8 + 4 * dim):
        count, dim = layout.WASM_VEC_HEAD.unpack_from(view)
    if size != count * (8 + 4 * dim) or not 0 < dim <= layout.MAX_DIM:
        raise CorruptLayoutError("the size of a VEC payload contradicts its header", path=where or None)
    rows = np.frombuffer(view[layout.RUNTIME_VEC_HEAD.size :], _row_dtype(dim))
    check_ids(rows["id"], where)
    return VecBlock(rows["vector"], rows["id"], dim, "f32")


def _row_dtype(dim: int) -> np.dtype[Any]:
    return np.dtype([("id", "<u8"), ("vector", "<f4", (dim,))])


def runtime_fold(payload: bytes) -> bytes:
    """The 32-byte mix that links the witness records of shipped programs (it has no security value)."""
    out = bytearray(32)
    for index, byte in enumerate(payload):
        low, high = index % 32, (index + 13) % 32
        out[low] = (out[low] + byte) & 0xFF
        turned = ((out[low] << 3) | (out[low] >> 5)) & 0xFF
        out[high] = (out[high] + turned) & 0xFF
    return bytes(out)


def encode_runtime_witness(text: str, timestamp_ns: int, witness_type: int, previous: bytes | None) -> bytes:
    """The witness payload of shipped programs; `previous` is the payload before it."""
    head = layout.RUNTIME_WITNESS_HEAD.pack(witness_type, timestamp_ns, len(text))
    return head + text.encode("ascii") + (bytes(32) if previous is None else runtime_fold(previous))


def decode_cow_map(payload: Buffer, where: str = "") -> tuple[bytes, str]:
    """The id and the file name of the parent that holds the other vectors."""
    view = byte_view(payload)
    if view.nbytes < layout.COW_MAP_HEAD.size:
        raise TruncatedError("a copy-on-write map is cut off", path=where or None)
    head = layout.COW_MAP_HEAD.unpack_from(view)
    if head.magic != layout.COW_MAP_MAGIC:
        raise BadMagicError("not a copy-on-write map", path=where or None)
    end = layout.COW_MAP_HEAD.size + head.name_length
    if end + head.map_length != view.nbytes:
        raise CorruptLayoutError("a copy-on-write map contradicts its size", path=where or None)
    try:
        return head.parent_id, str(view[layout.COW_MAP_HEAD.size : end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptLayoutError("the name of a parent file is not UTF-8", path=where or None) from None


def decode_membership(payload: Buffer, where: str = "") -> Ids:
    """The ids of the parent that are visible, ascending."""
    view = byte_view(payload)
    if view.nbytes < layout.MEMBERSHIP_HEAD.size:
        raise TruncatedError("a membership filter is cut off", path=where or None)
    head = layout.MEMBERSHIP_HEAD.unpack_from(view)
    if head.magic != layout.MEMBERSHIP_MAGIC:
        raise BadMagicError("not a membership filter", path=where or None)
    end = head.filter_offset + head.filter_bytes
    if end != view.nbytes or head.vector_count > 8 * head.filter_bytes:
        raise CorruptLayoutError("a membership filter contradicts its size", path=where or None)
    bits = np.unpackbits(np.frombuffer(view[head.filter_offset : end], np.uint8), bitorder="little")
    ids = np.flatnonzero(bits[: head.vector_count]).astype(np.uint64)
    if len(ids) != head.member_count:
        raise CorruptLayoutError("a membership filter miscounts its members", path=where or None)
    return ids
