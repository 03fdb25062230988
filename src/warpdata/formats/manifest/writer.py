"""From the model to the JSON of a manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from warpdata.formats.manifest.canonical import version_hash
from warpdata.formats.manifest.model import (
    ArtifactPart,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
)
from warpdata.formats.manifest.parts import PartedShards, part_json


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The JSON object of a manifest, its version hash included."""
    raw: dict[str, Any] = {
        "dataset_id": manifest.dataset_id,
        "tables": {name: _table(part) for name, part in manifest.tables.items()},
        "artifacts": {name: _artifact(part) for name, part in manifest.artifacts.items()},
        "bindings": [
            {
                "table": b.table,
                "column": b.column,
                "artifact": b.artifact,
                "ref_type": b.ref_type,
                "addressing": b.addressing,
            }
            for b in manifest.bindings
        ],
        "stats": {"total_rows": manifest.total_rows, "total_bytes": manifest.total_bytes},
        "metadata": dict(manifest.metadata),
    }
    if manifest.created_at is not None:
        raw["stats"]["created_at"] = manifest.created_at
    raw["version_hash"] = version_hash(raw)
    return raw


def pack_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: readable JSON with sorted keys."""
    return json.dumps(to_json(manifest), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _table(part: TablePart) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "format": part.format,
        **_shards(part.shards),
        "schema": {"fields": [dict(field) for field in part.fields], "ipc": part.schema_ipc},
    }
    if part.guide is not None:
        raw["guide"] = _blob(part.guide)
    return raw


def _artifact(part: ArtifactPart) -> dict[str, Any]:
    raw: dict[str, Any] = {"kind": part.kind, **_shards(part.shards)}
    if len(part.indexes) == 1:
        raw["index"] = _blob(part.indexes[0])
    elif part.indexes:  # a reader that knows of one only refuses the version instead of missing members
        raw["indexes"] = [{k: v for k, v in _blob(each).items() if k != "uri"} for each in part.indexes]
    return raw


def _shards(shards: Sequence[BlobRef]) -> dict[str, Any]:
    """The shards themselves, or where the parts of their list begin."""
    if isinstance(shards, PartedShards):
        return {"parts": part_json(shards.root)}
    return {"shards": [_blob(shard) for shard in shards]}


def _blob(blob: BlobRef) -> dict[str, Any]:
    raw: dict[str, Any] = {"uri": blob.uri or blob.key, "hash": blob.hash, "byte_size": blob.byte_size}
    if blob.name is not None:
        raw["name"] = blob.name
    if isinstance(blob, TableShard):
        raw["row_count"] = blob.row_count
        if blob.guide is not None:
            raw["guide"] = {"hash": blob.guide.hash, "byte_size": blob.guide.byte_size}
    if isinstance(blob, MemberIndexRef):
        raw |= {"bucket_count": blob.bucket_count, "member_count": blob.member_count}
    return raw
