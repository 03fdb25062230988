"""Write the rows of a store to another file, in our dialect or in the one that shipped programs open."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import NewFile, commit_file
from warpdata.episodes.salvage.receipt import Receipt
from warpdata.errors import LimitExceededError
from warpdata.formats.rvf import layout, segment
from warpdata.formats.rvf.graph import Trailer, encode_runtime_graph, renumbered
from warpdata.formats.rvf.layout import Row, SegmentType
from warpdata.formats.rvf.meta import encode_meta
from warpdata.formats.rvf.runtime import (
    RuntimeManifest,
    encode_runtime_manifest,
    encode_runtime_vec,
    encode_runtime_witness,
)
from warpdata.search.file.content import Content
from warpdata.search.file.rewrite import LiveRows, RewritePlan, foreign_entries, rewrite

Ints = NDArray[np.int64]
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


def export_rows(
    path: str, content: Content, rows: LiveRows, nodes: Ints | None, dialect: str, *, overwrite: bool
) -> ExportReceipt:
    """A new file with these rows, `wire` or `runtime`; `nodes` are the ids of the graph if it covers exactly those."""
    profile = content.profile
    has_metadata = bool(rows.metadata.fields or rows.metadata.notes)
    has_index = bool(content.snapshot.of_type(SegmentType.INDEX)) or profile.index is not None
    others = bool(foreign_entries(content))
    if dialect == "runtime":
        keeps_index = _write_runtime(path, content, rows, nodes, overwrite)
        kept = {"metadata": has_metadata, "index": keeps_index}
        lost = {
            "index": has_index and not keeps_index,
            "codes": profile.codes is not None,
            "signatures": content.is_signed,
            "other segments": others,
        }
    else:
        next_id = int(rows.ids.max(initial=0)) + 1
        new = replace(profile, next_id=next_id, row_segments=(), code_segments=())
        rewrite(path, content, rows, RewritePlan(new), replace_file=overwrite)
        kept = {
            "metadata": has_metadata,
            "index": profile.index is not None,
            "codes": profile.codes is not None,
            "other segments": others,
        }
        lost = {"signatures": content.is_signed, "index": has_index and profile.index is None}
    names = [tuple(name for name, is_so in facts.items() if is_so) for facts in (kept, lost)]
    return ExportReceipt(path, dialect, len(rows.ids), names[0], names[1])


def _write_runtime(path: str, content: Content, rows: LiveRows, nodes: Ints | None, overwrite: bool) -> bool:
    """VEC segments, metadata, the graph, a witness and a manifest; back to back. Whether there is a graph."""
    if rows.vectors.shape[1] > layout.MAX_DIM:
        raise LimitExceededError(f"{rows.vectors.shape[1]} dimensions")
    order = np.argsort(rows.ids)
    ids, vectors = rows.ids[order], rows.vectors[order]
    step = max(1, _MAX_ROWS_BYTES // (8 + 4 * vectors.shape[1]))
    graph, about = _runtime_graph(content, nodes), rows.metadata.payload_v1(ids)
    with commit_file(path, replace=overwrite) as out:
        listed: list[Row] = []

        def add(seg_type: int, payload: bytes) -> None:
            listed.append(_append(out, seg_type, len(listed) + 1, payload))

        for start in range(0, max(len(ids), 1), step):
            add(SegmentType.VEC, encode_runtime_vec(ids[start : start + step], vectors[start : start + step]))
        if about is not None:
            add(SegmentType.META, encode_meta(about))
        if graph is not None:
            add(SegmentType.INDEX, graph)
        text = f"ingest:count={len(ids)},epoch=1"
        add(SegmentType.WITNESS, encode_runtime_witness(text, time.time_ns(), _INGEST, None))
        identity = layout.FILE_IDENTITY(secrets.token_bytes(16), bytes(16), bytes(32), 0)
        none = np.zeros(0, np.uint64)
        facts = (1, vectors.shape[1], len(ids), 0, content.profile.metric)
        manifest = RuntimeManifest(*facts, tuple(listed), none, identity)
        _append(out, SegmentType.MANIFEST, len(listed) + 1, encode_runtime_manifest(manifest))
    return graph is not None


def _runtime_graph(content: Content, nodes: Ints | None) -> bytes | None:
    """The graph of the store with its nodes in the order of ids; None if there is none, or rows came after it."""
    plan = content.profile.index
    if nodes is None or plan is None or plan.kind != "hnsw":
        return None
    payload, layer = content.graph(), content.layer_a
    if payload is None or layer is None or not layer.entry_points:
        return None
    order = np.argsort(nodes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    entry = content.profile.graph_entry or tuple(layer.entry_points[0])
    trailer = Trailer(2 * plan.m, entry[1], int(rank[entry[0]]), nodes[order].astype(np.uint64))
    header = payload.header._replace(layer_level=layout.LAYER_C)
    return encode_runtime_graph(header, renumbered(payload.adjacency, rank), trailer)


def _append(out: NewFile, seg_type: int, segment_id: int, payload: bytes) -> Row:
    options = segment.SegmentOptions(checksum="crc32c")
    header, _ = segment.build(seg_type, segment_id, payload, options)
    header = header._replace(content_hash=segment.runtime_hash(payload), alignment_pad=0)
    offset = out.write(segment.pack_header(header))
    out.write(payload)
    return layout.RUNTIME_SEGMENT(segment_id, offset, len(payload), int(seg_type))
