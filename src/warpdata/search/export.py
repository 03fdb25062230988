"""Write the rows of a store to another file, in our dialect or in the one that shipped programs open."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from warpdata.bytekit.commit import NewFile, commit_file
from warpdata.errors import LimitExceededError
from warpdata.formats.rvf import layout, segment
from warpdata.formats.rvf.layout import FileIdentity, SegmentHeader, SegmentType
from warpdata.formats.rvf.payloads.layout import RuntimeSegment
from warpdata.formats.rvf.payloads.runtime import RuntimeManifest, encode_runtime_manifest
from warpdata.formats.rvf.payloads.vec import encode_runtime_vec
from warpdata.formats.rvf.payloads.witness import encode_runtime_witness
from warpdata.search.rewrite import LiveRows, RewritePlan, rewrite

if TYPE_CHECKING:
    from warpdata.search.content import Content

_MAX_ROWS_BYTES = 1 << 30
_INGEST = 1


def export_rows(path: str, content: Content, rows: LiveRows, dialect: str) -> None:
    """A new file with these rows, `wire` or `runtime`."""
    if dialect == "runtime":
        write_runtime(path, rows, content.profile.metric)
    elif dialect == "wire":
        next_id = int(rows.ids.max(initial=0)) + 1
        profile = replace(content.profile, next_id=next_id, row_segments=(), code_segments=())
        rewrite(path, content, rows, RewritePlan(profile, "export"))
    else:
        raise ValueError(f"unknown dialect {dialect!r}; use wire or runtime")


def write_runtime(path: str, rows: LiveRows, metric: str) -> None:
    """A new file with these rows: VEC segments, a witness, a manifest; back to back, f32, CRC-32 hashes."""
    if rows.vectors.shape[1] > layout.MAX_DIM:
        raise LimitExceededError(f"{rows.vectors.shape[1]} dimensions")
    order = np.argsort(rows.ids)
    ids, vectors = rows.ids[order], rows.vectors[order]
    step = max(1, _MAX_ROWS_BYTES // (8 + 4 * vectors.shape[1]))
    with commit_file(path) as out:
        listed: list[RuntimeSegment] = []
        for start in range(0, max(len(ids), 1), step):
            payload = encode_runtime_vec(ids[start : start + step], vectors[start : start + step])
            listed.append(_append(out, SegmentType.VEC, len(listed) + 1, payload))
        text = f"ingest:count={len(ids)},epoch=1"
        witness = encode_runtime_witness(text, time.time_ns(), _INGEST, None)
        listed.append(_append(out, SegmentType.WITNESS, len(listed) + 1, witness))
        identity = FileIdentity(secrets.token_bytes(16), bytes(16), bytes(32), 0)
        manifest = RuntimeManifest(
            1, vectors.shape[1], len(ids), 0, metric, tuple(listed), np.zeros(0, np.uint64), identity
        )
        _append(out, SegmentType.MANIFEST, len(listed) + 1, encode_runtime_manifest(manifest))


def _append(out: NewFile, seg_type: int, segment_id: int, payload: bytes) -> RuntimeSegment:
    header = SegmentHeader(
        layout.SEGMENT_MAGIC, layout.VERSION, int(seg_type), 0, segment_id, len(payload), 0,
        layout.CHECKSUM_IDS["crc32c"], 0, 0, 0, segment.runtime_hash(payload), 0, 0,
    )  # fmt: skip
    offset = out.write(segment.pack_header(header))
    out.write(payload)
    return RuntimeSegment(segment_id, offset, len(payload), int(seg_type))
