"""The JSON file of a manifest: parse untrusted bytes against their hash, pack the model."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import FormatError, ManifestCorruptedError
from warpdata.formats.manifest import model
from warpdata.formats.manifest.layout import MAX_INDEXES, MAX_MANIFEST_BYTES, MAX_TABLES
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    blob_of,
    canonical_json,
    count_of,
    dict_of,
    list_of,
    of_type,
    table_shard_of,
    text_of,
)
from warpdata.formats.manifest.parts import PartedShards, PartSource, part_json, root_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REMEMBER_BYTES = 256 << 10


def version_hash(raw: dict[str, Any]) -> str:
    """The hash of a manifest's content: 64 hex digits that do not depend on place, time or notes."""
    hashed = {key: value for key, value in raw.items() if key not in ("version_hash", "metadata")}
    for group in ("tables", "artifacts"):
        if isinstance(hashed.get(group), dict):
            hashed[group] = {name: _without_uris(part) for name, part in hashed[group].items()}
    if isinstance(hashed.get("stats"), dict):
        hashed["stats"] = {key: value for key, value in hashed["stats"].items() if key != "created_at"}
    return sha256_hex(canonical_json(hashed))


def _without_uris(part: Any) -> Any:
    """A table or artifact whose blobs have no address; only blobs lose the key."""

    def bare(blob: Any) -> Any:
        return {k: v for k, v in blob.items() if k != "uri"} if isinstance(blob, dict) else blob

    if not isinstance(part, dict):
        return part
    out = {key: bare(value) if key in ("index", "guide") else value for key, value in part.items()}
    if isinstance(out.get("shards"), list):
        out["shards"] = [bare(shard) for shard in out["shards"]]
    return out


def parse_manifest(
    data: Buffer, *, expected_hash: str | None = None, parts: PartSource | None = None
) -> Manifest:
    """The manifest in `data`; anything but an intact manifest with this hash is ManifestCorruptedError.

    `parts` fetches the parts of long lists of shards when they are read.
    """
    raw = bytes(data)
    manifest = _parse_cached(raw) if len(raw) <= _REMEMBER_BYTES else _parse(raw)
    if expected_hash is not None and manifest.version_hash != expected_hash:
        fact = f"manifest hash mismatch: expected {expected_hash}, got {manifest.version_hash}"
        raise ManifestCorruptedError(fact)
    if parts is None:
        return manifest

    def within_reach(part: Any) -> Any:
        shards = part.shards
        return replace(part, shards=shards.with_source(parts)) if isinstance(shards, PartedShards) else part

    return replace(
        manifest,
        tables={name: within_reach(part) for name, part in manifest.tables.items()},
        artifacts={name: within_reach(part) for name, part in manifest.artifacts.items()},
    )


def _parse(data: bytes) -> Manifest:
    try:
        raw = parse_json_object(data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the manifest is not JSON: {error}") from None
    stated = text_of(raw, "version_hash", model.HASH)
    if (actual := version_hash(raw)) != stated:
        hint = "Try `warp cache gc`; if that does not help, the catalog holds a damaged manifest."
        raise ManifestCorruptedError(f"manifest hash mismatch: expected {stated}, got {actual}", hint=hint)
    stats = dict_of(raw, "stats", optional=True)
    artifacts = dict_of(raw, "artifacts", optional=True, limit=MAX_TABLES)
    manifest = Manifest(
        dataset_id=text_of(raw, "dataset_id", model.DATASET_ID),
        tables={name: _table(name, part) for name, part in dict_of(raw, "tables", limit=MAX_TABLES).items()},
        artifacts={name: _artifact(name, part) for name, part in artifacts.items()},
        bindings=tuple(_binding(b) for b in list_of(raw, "bindings", optional=True)),
        created_at=stats.get("created_at") if isinstance(stats.get("created_at"), str) else None,
        metadata=dict_of(raw, "metadata", optional=True),
        version_hash=stated,
    )
    for name in [*manifest.tables, *manifest.artifacts]:
        if not model.PART_NAME.fullmatch(name):
            raise ManifestCorruptedError(f"invalid name of a table or artifact: {name!r}")
    for binding in manifest.bindings:
        table = manifest.tables.get(binding.table)
        columns = {field.get("name") for field in table.fields} if table else set()
        if binding.column not in columns or binding.artifact not in manifest.artifacts:
            target = f"{binding.table}.{binding.column} -> {binding.artifact}"
            raise ManifestCorruptedError(f"a binding points at nothing: {target}")
    for key, total in (("total_rows", manifest.total_rows), ("total_bytes", manifest.total_bytes)):
        if key in stats and stats[key] != total:
            raise ManifestCorruptedError(f"{key} mismatch: expected {total} by the shards, got {stats[key]}")
    return manifest


_parse_cached = functools.lru_cache(maxsize=64)(_parse)
"""The same bytes are the same manifest and need to be checked once."""


def _table(name: str, raw: Any) -> TablePart:
    raw = of_type(raw, dict, f"table {name!r}")
    if raw.get("format") != "parquet":
        raise ManifestCorruptedError(f"table {name!r} has the unknown format {raw.get('format')!r}")
    schema = dict_of(raw, "schema")
    fields = tuple(of_type(field, dict, "a field of a schema") for field in list_of(schema, "fields"))
    guide = blob_of(raw["guide"]) if "guide" in raw else None
    ipc = of_type(schema.get("ipc"), str, "the Arrow schema")
    return TablePart(_shards(raw, table_shard_of), fields, ipc, guide)


def _shards(raw: dict[str, Any], item_of: Any) -> Any:
    if "parts" in raw:
        return PartedShards(root_of(raw["parts"]), item_of)
    return tuple(item_of(shard) for shard in list_of(raw, "shards"))


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = of_type(raw, dict, f"artifact {name!r}")
    if "index" in raw and "indexes" in raw:
        raise ManifestCorruptedError("an artifact has one member index and several")
    indexes = [raw["index"]] if "index" in raw else list_of(raw, "indexes", optional=True, limit=MAX_INDEXES)
    part = ArtifactPart(text_of(raw, "kind", model.KIND), _shards(raw, blob_of), tuple(map(_index, indexes)))
    if part.is_tar and not part.indexes:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    if not part.is_tar and not isinstance(
        part.shards, PartedShards
    ):  # whose parts are checked when they are read
        names = [shard.name for shard in part.shards]
        if None in names or len(set(names)) != len(names):
            raise ManifestCorruptedError(f"the shards of artifact {name!r} have no unique names")
    return part


def _index(raw: Any) -> MemberIndexRef:
    blob = blob_of(raw)
    counts = (count_of(raw, "bucket_count"), count_of(raw, "member_count"))
    return MemberIndexRef(blob.hash, blob.byte_size, blob.uri, blob.name, *counts)


def _binding(raw: Any) -> Binding:
    raw = of_type(raw, dict, "a binding")
    keys = ("table", "column", "artifact", "ref_type")
    table, column, artifact, ref_type = (of_type(raw.get(key), str, f"{key} of a binding") for key in keys)
    addressing = raw.get("addressing", "member")
    if ref_type not in model.REF_TYPES or addressing not in model.ADDRESSINGS:
        raise ManifestCorruptedError(f"a binding of unknown type {ref_type!r} or addressing {addressing!r}")
    return Binding(table, column, artifact, ref_type, addressing)


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The JSON object of a manifest, its version hash included."""
    raw: dict[str, Any] = {
        "dataset_id": manifest.dataset_id,
        "tables": {name: _table_json(part) for name, part in manifest.tables.items()},
        "artifacts": {name: _artifact_json(part) for name, part in manifest.artifacts.items()},
        "bindings": [asdict(binding) for binding in manifest.bindings],
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


def _table_json(part: TablePart) -> dict[str, Any]:
    schema = {"fields": [dict(field) for field in part.fields], "ipc": part.schema_ipc}
    raw: dict[str, Any] = {"format": part.format, **_shards_json(part.shards), "schema": schema}
    return raw if part.guide is None else {**raw, "guide": _blob_json(part.guide)}


def _artifact_json(part: ArtifactPart) -> dict[str, Any]:
    raw: dict[str, Any] = {"kind": part.kind, **_shards_json(part.shards)}
    if len(part.indexes) == 1:
        raw["index"] = _blob_json(part.indexes[0])
    elif part.indexes:
        raw["indexes"] = [
            {k: v for k, v in _blob_json(index).items() if k != "uri"} for index in part.indexes
        ]
    return raw


def _shards_json(shards: Sequence[BlobRef]) -> dict[str, Any]:
    """The shards themselves, or the root of the parts of their list."""
    if isinstance(shards, PartedShards):
        return {"parts": part_json(shards.root)}
    return {"shards": [_blob_json(shard) for shard in shards]}


def _blob_json(blob: BlobRef) -> dict[str, Any]:
    raw = {"uri": blob.uri or blob.key, **model.shard_json(blob)}
    if isinstance(blob, MemberIndexRef):
        raw |= {"bucket_count": blob.bucket_count, "member_count": blob.member_count}
    return raw
