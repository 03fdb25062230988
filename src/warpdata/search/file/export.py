"""Write the rows of a store to another file, in our dialect or in the one that shipped programs open."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import NewFile, commit_file
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.errors import LimitExceededError, nearest
from warpdata.formats.rvf import layout, segment
from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf.graph import Trailer, encode_runtime_graph, renumbered
from warpdata.formats.rvf.layout import FILE_IDENTITY, HEADER, RUNTIME_SEGMENT, Row, SegmentType
from warpdata.formats.rvf.meta import encode_meta
from warpdata.formats.rvf.runtime import (
    RuntimeManifest,
    encode_runtime_manifest,
    encode_runtime_vec,
    encode_runtime_witness,
)
from warpdata.search.file.rewrite import LiveRows, RewritePlan, foreign_entries, rewrite

if TYPE_CHECKING:
    from warpdata.search.file.content import Content

DIALECTS = ("wire", "runtime")
_MAX_ROWS_BYTES = 1 << 30
_INGEST = 1


@dataclass(frozen=True, slots=True, repr=False)
class ExportReceipt(Receipt):
    """What an export wrote, what of the store the new file has, and what it does not have."""

    path: str
    dialect: str
    vectors: int
    kept: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the new file has everything that the store has."""
        return not self.dropped

    def lines(self) -> Iterator[str]:
        """The receipt for a person."""
        yield f"wrote {self.vectors} vectors to {self.path}"
        if self.dropped:
            yield f"not in the new file: {', '.join(self.dropped)}"

    def to_json(self) -> dict[str, Any]:
        """The receipt for a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The store that is exported: its state, its live rows, and whether its graph covers exactly those."""

    content: Content
    rows: LiveRows
    base_ids: NDArray[np.int64]
    """The ids of the graph's nodes, in their order."""
    is_covered: bool


def check_dialect(dialect: str) -> None:
    """Refuse a dialect nobody speaks."""
    if dialect not in DIALECTS:
        known = ", ".join(DIALECTS)
        raise ValueError(f"unknown dialect {dialect!r}; use one of {known}.{nearest(str(dialect), DIALECTS)}")


def export_rows(path: str, source: ExportSource, dialect: str, *, overwrite: bool) -> ExportReceipt:
    """A new file with these rows, `wire` or `runtime`."""
    check_dialect(dialect)
    if dialect == "runtime":
        return _write_runtime(path, source, overwrite)
    content, rows = source.content, source.rows
    next_id = int(rows.ids.max(initial=0)) + 1
    profile = replace(content.profile, next_id=next_id, row_segments=(), code_segments=())
    rewrite(path, content, rows, RewritePlan(profile), replace_file=overwrite)
    has = [
        ("metadata", rows.metadata is not None), ("index", profile.index is not None),
        ("codes", profile.codes is not None), ("other segments", bool(foreign_entries(content))),
    ]  # fmt: skip
    lost = [
        ("signatures", content.is_signed), ("index", profile.index is None and _has(content, SegmentType.INDEX)),
    ]  # fmt: skip
    return ExportReceipt(path, dialect, len(rows.ids), _said(has), _said(lost))


def _has(content: Content, seg_type: SegmentType) -> bool:
    return bool(content.snapshot.of_type(seg_type))


def _said(facts: list[tuple[str, bool]]) -> tuple[str, ...]:
    return tuple(name for name, is_so in facts if is_so)


def _write_runtime(path: str, source: ExportSource, overwrite: bool) -> ExportReceipt:
    """VEC segments, metadata, the graph, a witness and a manifest; back to back, f32, CRC-32 hashes."""
    content, rows = source.content, source.rows
    if rows.vectors.shape[1] > layout.MAX_DIM:
        raise LimitExceededError(f"{rows.vectors.shape[1]} dimensions")
    order = np.argsort(rows.ids)
    ids, vectors = rows.ids[order], rows.vectors[order]
    step = max(1, _MAX_ROWS_BYTES // (8 + 4 * vectors.shape[1]))
    graph = _runtime_graph(source)
    with commit_file(path, replace=overwrite) as out:
        listed: list[Row] = []

        def add(seg_type: int, payload: bytes) -> None:
            listed.append(_append(out, seg_type, len(listed) + 1, payload))

        for start in range(0, max(len(ids), 1), step):
            add(SegmentType.VEC, encode_runtime_vec(ids[start : start + step], vectors[start : start + step]))
        if rows.metadata is not None:
            add(SegmentType.META, encode_meta(rows.metadata))
        if graph is not None:
            add(SegmentType.INDEX, graph)
        text = f"ingest:count={len(ids)},epoch=1"
        add(SegmentType.WITNESS, encode_runtime_witness(text, time.time_ns(), _INGEST, None))
        identity = FILE_IDENTITY(secrets.token_bytes(16), bytes(16), bytes(32), 0)
        manifest = RuntimeManifest(
            1, vectors.shape[1], len(ids), 0, content.profile.metric, tuple(listed), np.zeros(0, np.uint64),
            identity,
        )  # fmt: skip
        _append(out, SegmentType.MANIFEST, len(listed) + 1, encode_runtime_manifest(manifest))
    has_index = content.profile.index is not None or _has(content, SegmentType.INDEX)
    has = [("metadata", rows.metadata is not None), ("index", graph is not None)]
    lost = [
        ("index", has_index and graph is None), ("codes", content.profile.codes is not None),
        ("signatures", content.is_signed),
        ("other segments", bool(foreign_entries(content))),
    ]  # fmt: skip
    return ExportReceipt(path, "runtime", len(ids), _said(has), _said(lost))


def _runtime_graph(source: ExportSource) -> bytes | None:
    """The graph of the store with its nodes in the order of ids; None if there is none, or rows came after it."""
    content, plan = source.content, source.content.profile.index
    if not source.is_covered or plan is None or plan.kind != "hnsw":
        return None
    payload, layer = content.graph(), content.layer_a
    if payload is None or layer is None or not layer.entry_points:
        return None
    order = np.argsort(source.base_ids)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    entry = layer.entry_points[0]
    trailer = Trailer(
        2 * plan.m, entry.layer, int(rank[entry.node_id]), source.base_ids[order].astype(np.uint64)
    )
    header = payload.header._replace(layer_level=records.LAYER_C)
    return encode_runtime_graph(header, renumbered(payload.adjacency, rank), trailer)


def _append(out: NewFile, seg_type: int, segment_id: int, payload: bytes) -> Row:
    header = HEADER(
        layout.SEGMENT_MAGIC, layout.VERSION, int(seg_type), 0, segment_id, len(payload), 0,
        layout.CHECKSUM_IDS["crc32c"], 0, 0, 0, segment.runtime_hash(payload), 0, 0,
    )  # fmt: skip
    offset = out.write(segment.pack_header(header))
    out.write(payload)
    return RUNTIME_SEGMENT(segment_id, offset, len(payload), int(seg_type))
