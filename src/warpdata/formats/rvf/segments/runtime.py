"""The dialect of shipped programs: private manifest, copy-on-write parents, membership filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import BadMagicError, CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.container.layout import FileIdentity
from warpdata.formats.rvf.container.manifest import NO_IDENTITY
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.ids import check_ids
from warpdata.formats.rvf.segments.layout import (
    CowMapHead,
    MembershipHead,
    RuntimeManifestHead,
    RuntimeSegment,
    WasmManifestHead,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class RuntimeManifest:
    """What the manifest of a shipped program says."""

    epoch: int
    dimension: int
    total_vectors: int
    profile_id: int
    metric: str
    segments: tuple[RuntimeSegment, ...]
    deleted: NDArray[np.uint64]
    identity: FileIdentity = NO_IDENTITY


def encode_runtime_manifest(manifest: RuntimeManifest) -> bytes:
    """The manifest payload as shipped programs write it."""
    head = records.RUNTIME_MANIFEST_HEAD.pack(
        manifest.epoch, manifest.dimension, manifest.total_vectors, len(manifest.segments),
        manifest.profile_id, layout.METRIC_IDS[manifest.metric], 0,
    )  # fmt: skip
    listed = b"".join(records.RUNTIME_SEGMENT.pack(*segment) for segment in manifest.segments)
    deleted = layout.COUNT_U32.pack(len(manifest.deleted)) + manifest.deleted.astype("<u8").tobytes()
    identity = records.RUNTIME_IDENTITY_MAGIC + layout.FILE_IDENTITY.pack(*manifest.identity)
    return head + listed + deleted + identity


def decode_runtime_manifest(payload: Buffer, where: str = "") -> RuntimeManifest:
    """The manifest of a shipped program, or that of the WASM export (recognised by its size)."""
    view = byte_view(payload)
    if view.nbytes < records.WASM_MANIFEST_HEAD.size:
        raise TruncatedError("a manifest has no header", path=where or None)
    wasm = WasmManifestHead._make(records.WASM_MANIFEST_HEAD.unpack_from(view))
    listed = view[records.WASM_MANIFEST_HEAD.size :]
    if listed.nbytes == wasm.seg_count * records.RUNTIME_SEGMENT.size:
        segments = tuple(RuntimeSegment._make(s) for s in records.RUNTIME_SEGMENT.iter_unpack(listed))
        none = np.zeros(0, np.uint64)
        return RuntimeManifest(
            wasm.epoch, wasm.dimension, wasm.total_vectors, wasm.profile_id, "l2", segments, none
        )
    return _decode_full(view, where)


def _decode_full(view: memoryview, where: str) -> RuntimeManifest:
    if view.nbytes < records.RUNTIME_MANIFEST_HEAD.size:
        raise TruncatedError("a manifest has no header", path=where or None)
    head = RuntimeManifestHead._make(records.RUNTIME_MANIFEST_HEAD.unpack_from(view))
    start = records.RUNTIME_MANIFEST_HEAD.size
    end = start + head.seg_count * records.RUNTIME_SEGMENT.size
    if end + layout.COUNT_U32.size > view.nbytes or head.metric not in layout.METRIC_NAMES:
        raise CorruptLayoutError("a manifest contradicts its size", path=where or None)
    segments = tuple(RuntimeSegment._make(s) for s in records.RUNTIME_SEGMENT.iter_unpack(view[start:end]))
    count = layout.COUNT_U32.unpack_from(view, end)[0]
    ids_end = end + layout.COUNT_U32.size + 8 * count
    if ids_end > view.nbytes:
        raise CorruptLayoutError("the deleted ids of a manifest are cut off", path=where or None)
    deleted = np.frombuffer(view[end + layout.COUNT_U32.size : ids_end], "<u8")
    check_ids(deleted, where)
    return RuntimeManifest(
        head.epoch, head.dimension, head.total_vectors, head.profile_id, layout.METRIC_NAMES[head.metric],
        segments, deleted, _identity(view[ids_end:], where),
    )  # fmt: skip


def _identity(tail: memoryview, where: str) -> FileIdentity:
    magic = records.RUNTIME_IDENTITY_MAGIC
    if not tail.nbytes:
        return NO_IDENTITY
    if tail[:4] != magic or tail.nbytes != len(magic) + layout.FILE_IDENTITY.size:
        raise CorruptLayoutError("bytes of an unknown kind end a manifest", path=where or None)
    return FileIdentity._make(layout.FILE_IDENTITY.unpack_from(tail, len(magic)))


def decode_cow_map(payload: Buffer, where: str = "") -> tuple[bytes, str]:
    """The id and the file name of the parent that holds the other vectors."""
    view = byte_view(payload)
    if view.nbytes < records.COW_MAP_HEAD.size:
        raise TruncatedError("a copy-on-write map is cut off", path=where or None)
    head = CowMapHead._make(records.COW_MAP_HEAD.unpack_from(view))
    if head.magic != records.COW_MAP_MAGIC:
        raise BadMagicError("not a copy-on-write map", path=where or None)
    end = records.COW_MAP_HEAD.size + head.name_length
    if end + head.map_length != view.nbytes:
        raise CorruptLayoutError("a copy-on-write map contradicts its size", path=where or None)
    try:
        return head.parent_id, str(view[records.COW_MAP_HEAD.size : end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptLayoutError("the name of a parent file is not UTF-8", path=where or None) from None


def decode_membership(payload: Buffer, where: str = "") -> NDArray[np.uint64]:
    """The ids of the parent that are visible, ascending."""
    view = byte_view(payload)
    if view.nbytes < records.MEMBERSHIP_HEAD.size:
        raise TruncatedError("a membership filter is cut off", path=where or None)
    head = MembershipHead._make(records.MEMBERSHIP_HEAD.unpack_from(view))
    if head.magic != records.MEMBERSHIP_MAGIC:
        raise BadMagicError("not a membership filter", path=where or None)
    end = head.filter_offset + head.filter_bytes
    if end != view.nbytes or head.vector_count > 8 * head.filter_bytes:
        raise CorruptLayoutError("a membership filter contradicts its size", path=where or None)
    bits = np.unpackbits(np.frombuffer(view[head.filter_offset : end], np.uint8), bitorder="little")
    ids = np.flatnonzero(bits[: head.vector_count]).astype(np.uint64)
    if len(ids) != head.member_count:
        raise CorruptLayoutError("a membership filter miscounts its members", path=where or None)
    return ids
