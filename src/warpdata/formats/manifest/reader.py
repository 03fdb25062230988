"""A manifest out of untrusted bytes: bounded, checked against its hash, every field looked at."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, TypeVar

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import FormatError, ManifestCorruptedError
from warpdata.formats.manifest import model
from warpdata.formats.manifest.canonical import version_hash
from warpdata.formats.manifest.layout import MAX_INTEGER, MAX_MANIFEST_BYTES, MAX_SHARDS, MAX_TABLES
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_REMEMBER_BYTES = 256 << 10

_LOCAL_PATH = re.compile(r"(?i)^(file:|/|~|[a-z]:[\\/]|\\\\)")


def parse_manifest(data: Buffer, *, expected_hash: str | None = None) -> Manifest:
    """The manifest in `data`; anything but an intact manifest with this hash is ManifestCorruptedError."""
    raw = bytes(data)
    manifest = _remembered(raw) if len(raw) <= _REMEMBER_BYTES else _parsed(raw)
    if expected_hash is not None and manifest.version_hash != expected_hash:
        raise ManifestCorruptedError(f"the manifest says it is {manifest.version_hash}, not {expected_hash}")
    return manifest


def _parsed(data: bytes) -> Manifest:
    try:
        raw = parse_json_object(data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the manifest is not JSON: {error}") from None
    stated = _text(raw, "version_hash", model.HASH)
    if version_hash(raw) != stated:
        hint = "Try `warp cache gc`; if that does not help, the catalog holds a damaged manifest."
        raise ManifestCorruptedError(f"manifest hash mismatch: the content is not {stated}", hint=hint)
    manifest = _manifest(raw, stated)
    _check_bindings(manifest)
    _check_stats(manifest, raw.get("stats", {}))
    return manifest


_remembered = functools.lru_cache(maxsize=64)(_parsed)
"""The same bytes are the same manifest: they need to be checked once."""


def check_portable(uri: str) -> str:
    """The address itself unless it names a place on one machine only."""
    if _LOCAL_PATH.match(uri) or ".." in uri.split("/"):
        raise ManifestCorruptedError(f"a local path has no place in a manifest: {uri}")
    return uri


def _manifest(raw: dict[str, Any], stated: str) -> Manifest:
    stats = _dict(raw, "stats", optional=True)
    return Manifest(
        dataset_id=_text(raw, "dataset_id", model.DATASET_ID),
        tables={_name(k): _table(k, v) for k, v in _dict(raw, "tables", limit=MAX_TABLES).items()},
        artifacts={
            _name(k): _artifact(k, v)
            for k, v in _dict(raw, "artifacts", optional=True, limit=MAX_TABLES).items()
        },
        bindings=tuple(_binding(b) for b in _list(raw, "bindings", optional=True)),
        created_at=stats.get("created_at") if isinstance(stats.get("created_at"), str) else None,
        metadata=_dict(raw, "metadata", optional=True),
        version_hash=stated,
    )


def _table(name: str, raw: Any) -> TablePart:
    raw = _is(raw, dict, f"table {name!r}")
    if raw.get("format") != "parquet":
        raise ManifestCorruptedError(f"table {name!r} has the unknown format {raw.get('format')!r}")
    schema = _dict(raw, "schema")
    shards = tuple(_table_shard(shard) for shard in _list(raw, "shards"))
    fields = tuple(_is(field, dict, "a field of a schema") for field in _list(schema, "fields"))
    guide = _blob(raw["guide"]) if "guide" in raw else None
    return TablePart(shards, fields, _is(schema.get("ipc"), str, "the Arrow schema"), guide)


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = _is(raw, dict, f"artifact {name!r}")
    kind = _text(raw, "kind", model.KIND)
    shards = tuple(_blob(shard) for shard in _list(raw, "shards"))
    part = ArtifactPart(kind, shards, _index(raw["index"]) if "index" in raw else None)
    if part.is_tar and part.index is None:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    names = [shard.name for shard in shards]
    if not part.is_tar and (None in names or len(set(names)) != len(names)):
        raise ManifestCorruptedError(f"the shards of artifact {name!r} have no names of their own")
    return part


def _table_shard(raw: Any) -> TableShard:
    blob = _blob(raw)
    return TableShard(blob.hash, blob.byte_size, blob.uri, blob.name, row_count=_count(raw, "row_count"))


def _index(raw: Any) -> MemberIndexRef:
    blob = _blob(raw)
    counts = (_count(raw, "bucket_count"), _count(raw, "member_count"))
    return MemberIndexRef(blob.hash, blob.byte_size, blob.uri, blob.name, *counts)


def _blob(raw: Any) -> BlobRef:
    raw = _is(raw, dict, "a blob")
    uri = check_portable(_is(raw["uri"], str, "an address")) if raw.get("uri") else None
    name = _is(raw["name"], str, "the name of a shard") if "name" in raw else None
    if name is not None and not is_safe_member(name):
        raise ManifestCorruptedError(f"the name of a shard is not a safe relative path: {name!r}")
    return BlobRef(_text(raw, "hash", model.HASH), _count(raw, "byte_size"), uri, name)


def _binding(raw: Any) -> Binding:
    raw = _is(raw, dict, "a binding")
    values = [
        _is(raw.get(key), str, f"{key} of a binding") for key in ("table", "column", "artifact", "ref_type")
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


def is_safe_member(name: str) -> bool:
    """Whether a name is a relative path that stays where it is put."""
    parts = name.split("/")
    return (
        bool(name) and not any(p in ("", ".", "..") for p in parts) and not re.search(r"[\x00-\x1f\\]", name)
    )


def _name(name: str) -> str:
    if not model.PART_NAME.fullmatch(name):
        raise ManifestCorruptedError(f"not a name for a table or artifact: {name!r}")
    return name


def _is(value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise ManifestCorruptedError(f"{what} is a {type(value).__name__}")
    return value


def _text(raw: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ManifestCorruptedError(f"{key} is missing or malformed")
    return value


def _count(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise ManifestCorruptedError(f"{key} is missing or not a count")
    return value


def _dict(
    raw: dict[str, Any], key: str, *, optional: bool = False, limit: int = MAX_SHARDS
) -> dict[str, Any]:
    value = raw.get(key, {} if optional else None)
    if not isinstance(value, dict) or len(value) > limit:
        raise ManifestCorruptedError(f"{key} is missing, not an object, or too large")
    return value


def _list(raw: dict[str, Any], key: str, *, optional: bool = False) -> list[Any]:
    value = raw.get(key, [] if optional else None)
    if not isinstance(value, list) or len(value) > MAX_SHARDS:
        raise ManifestCorruptedError(f"{key} is missing, not a list, or too long")
    return value
