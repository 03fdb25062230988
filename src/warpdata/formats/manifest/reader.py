"""A manifest out of untrusted bytes: bounded, checked against its hash, every field looked at."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import FormatError, ManifestCorruptedError
from warpdata.formats.manifest import model
from warpdata.formats.manifest.canonical import version_hash
from warpdata.formats.manifest.fields import (
    blob_of,
    count_of,
    dict_of,
    list_of,
    of_type,
    table_shard_of,
    text_of,
)
from warpdata.formats.manifest.layout import MAX_INDEXES, MAX_MANIFEST_BYTES, MAX_TABLES
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
)
from warpdata.formats.manifest.parts import PartedShards, PartSource, root_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REMEMBER_BYTES = 256 << 10


def parse_manifest(
    data: Buffer, *, expected_hash: str | None = None, parts: PartSource | None = None
) -> Manifest:
    """The manifest in `data`; anything but an intact manifest with this hash is ManifestCorruptedError.

    `parts` fetches the parts of long lists of shards when somebody looks at them.
    """
    raw = bytes(data)
    manifest = _remembered(raw) if len(raw) <= _REMEMBER_BYTES else _parsed(raw)
    if expected_hash is not None and manifest.version_hash != expected_hash:
        raise ManifestCorruptedError(f"the manifest says it is {manifest.version_hash}, not {expected_hash}")
    return manifest if parts is None else _reached(manifest, parts)


def _reached(manifest: Manifest, source: PartSource) -> Manifest:
    """The manifest with its long lists within reach."""
    return replace(
        manifest,
        tables={
            name: replace(part, shards=part.shards.reached(source))
            if isinstance(part.shards, PartedShards)
            else part
            for name, part in manifest.tables.items()
        },
        artifacts={
            name: replace(part, shards=part.shards.reached(source))
            if isinstance(part.shards, PartedShards)
            else part
            for name, part in manifest.artifacts.items()
        },
    )


def _parsed(data: bytes) -> Manifest:
    try:
        raw = parse_json_object(data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the manifest is not JSON: {error}") from None
    stated = text_of(raw, "version_hash", model.HASH)
    if version_hash(raw) != stated:
        hint = "Try `warp cache gc`; if that does not help, the catalog holds a damaged manifest."
        raise ManifestCorruptedError(f"manifest hash mismatch: the content is not {stated}", hint=hint)
    manifest = _manifest(raw, stated)
    _check_bindings(manifest)
    _check_stats(manifest, raw.get("stats", {}))
    return manifest


_remembered = functools.lru_cache(maxsize=64)(_parsed)
"""The same bytes are the same manifest: they need to be checked once."""


def _manifest(raw: dict[str, Any], stated: str) -> Manifest:
    stats = dict_of(raw, "stats", optional=True)
    return Manifest(
        dataset_id=text_of(raw, "dataset_id", model.DATASET_ID),
        tables={_name(k): _table(k, v) for k, v in dict_of(raw, "tables", limit=MAX_TABLES).items()},
        artifacts={
            _name(k): _artifact(k, v)
            for k, v in dict_of(raw, "artifacts", optional=True, limit=MAX_TABLES).items()
        },
        bindings=tuple(_binding(b) for b in list_of(raw, "bindings", optional=True)),
        created_at=stats.get("created_at") if isinstance(stats.get("created_at"), str) else None,
        metadata=dict_of(raw, "metadata", optional=True),
        version_hash=stated,
    )


def _table(name: str, raw: Any) -> TablePart:
    raw = of_type(raw, dict, f"table {name!r}")
    if raw.get("format") != "parquet":
        raise ManifestCorruptedError(f"table {name!r} has the unknown format {raw.get('format')!r}")
    schema = dict_of(raw, "schema")
    shards: Sequence[TableShard] = (
        PartedShards(root_of(raw["parts"]), table_shard_of)
        if "parts" in raw
        else tuple(table_shard_of(shard) for shard in list_of(raw, "shards"))
    )
    fields = tuple(of_type(field, dict, "a field of a schema") for field in list_of(schema, "fields"))
    guide = blob_of(raw["guide"]) if "guide" in raw else None
    return TablePart(shards, fields, of_type(schema.get("ipc"), str, "the Arrow schema"), guide)


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = of_type(raw, dict, f"artifact {name!r}")
    kind = text_of(raw, "kind", model.KIND)
    shards: Sequence[BlobRef] = (
        PartedShards(root_of(raw["parts"]), blob_of)
        if "parts" in raw
        else tuple(blob_of(shard) for shard in list_of(raw, "shards"))
    )
    part = ArtifactPart(kind, shards, _indexes(raw))
    if part.is_tar and not part.indexes:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    if part.is_tar or isinstance(shards, PartedShards):  # whose parts are looked at when they are read
        return part
    names = [shard.name for shard in shards]
    if None in names or len(set(names)) != len(names):
        raise ManifestCorruptedError(f"the shards of artifact {name!r} have no names of their own")
    return part


def _indexes(raw: dict[str, Any]) -> tuple[MemberIndexRef, ...]:
    if "index" in raw and "indexes" in raw:
        raise ManifestCorruptedError("an artifact has one member index and several")
    if "index" in raw:
        return (_index(raw["index"]),)
    found = list_of(raw, "indexes", limit=MAX_INDEXES) if "indexes" in raw else []
    return tuple(_index(each) for each in found)


def _index(raw: Any) -> MemberIndexRef:
    blob = blob_of(raw)
    counts = (count_of(raw, "bucket_count"), count_of(raw, "member_count"))
    return MemberIndexRef(blob.hash, blob.byte_size, blob.uri, blob.name, *counts)


def _binding(raw: Any) -> Binding:
    raw = of_type(raw, dict, "a binding")
    values = [
        of_type(raw.get(key), str, f"{key} of a binding")
        for key in ("table", "column", "artifact", "ref_type")
    ]
    addressing = raw.get("addressing", "member")
    if values[3] not in model.REF_TYPES or addressing not in model.ADDRESSINGS:
        raise ManifestCorruptedError(f"a binding of unknown type {values[3]!r} or addressing {addressing!r}")
    return Binding(values[0], values[1], values[2], values[3], addressing)


def _check_bindings(manifest: Manifest) -> None:
    for binding in manifest.bindings:
        table = manifest.tables.get(binding.table)
        columns = {field.get("name") for field in table.fields} if table else set()
        if binding.column not in columns or binding.artifact not in manifest.artifacts:
            where = f"{binding.table}.{binding.column} -> {binding.artifact}"
            raise ManifestCorruptedError(f"a binding points at nothing: {where}")


def _check_stats(manifest: Manifest, stats: dict[str, Any]) -> None:
    for key, found in (("total_rows", manifest.total_rows), ("total_bytes", manifest.total_bytes)):
        if key in stats and stats[key] != found:
            raise ManifestCorruptedError(f"{key} says {stats[key]}, the shards add up to {found}")


def _name(name: str) -> str:
    if not model.PART_NAME.fullmatch(name):
        raise ManifestCorruptedError(f"not a name for a table or artifact: {name!r}")
    return name
