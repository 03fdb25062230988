"""The one spelling of a manifest (RFC 8785) and the hash that names its version."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from warpdata.bytekit.checksum import sha256_hex
from warpdata.errors import ManifestCorruptedError
from warpdata.formats.manifest.layout import MAX_INTEGER

_MAX_DEPTH = 32


def canonical_json(value: Any) -> bytes:
    """RFC 8785 JSON of objects, lists, strings, booleans, null and exact integers; the rest is refused."""
    _check(value, 0)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # Keys in code point order are in UTF-16 order too, unless some are beyond ASCII.
    return text.encode() if text.isascii() else _spelled(value).encode()


def version_hash(raw: dict[str, Any]) -> str:
    """The hash of a manifest's content: 64 hex digits that do not depend on place, time or notes."""
    return sha256_hex(canonical_json(hashed_part(raw)))


def hashed_part(raw: dict[str, Any]) -> dict[str, Any]:
    """A manifest without its own hash, its notes, every address and the time it was made."""
    kept = {key: value for key, value in raw.items() if key not in ("version_hash", "metadata")}
    for group in ("tables", "artifacts"):
        if isinstance(kept.get(group), dict):
            kept[group] = {name: _without_uris(part) for name, part in kept[group].items()}
    if isinstance(kept.get("stats"), dict):
        kept["stats"] = {key: value for key, value in kept["stats"].items() if key != "created_at"}
    return kept


def _without_uris(part: Any) -> Any:
    """A table or artifact whose blobs have no address; only blobs lose the key, names are never touched."""
    if not isinstance(part, dict):
        return part
    out = dict(part)
    if isinstance(out.get("shards"), list):
        out["shards"] = [_without_uri(shard) for shard in out["shards"]]
    for key in ("index", "guide"):
        if key in out:
            out[key] = _without_uri(out[key])
    return out


def _without_uri(blob: Any) -> Any:
    return {k: v for k, v in blob.items() if k != "uri"} if isinstance(blob, dict) else blob


def _check(value: Any, depth: int) -> None:
    """Refuse what has no exact spelling."""
    if isinstance(value, str):
        if not value.isascii():
            _check_text(value)
    elif isinstance(value, dict | list | tuple):
        _check_items(value, depth)
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ManifestCorruptedError("an integer of the manifest is too large to be exact in JSON")
    elif value is not None:
        raise ManifestCorruptedError(
            f"a {type(value).__name__} has no place in the hashed part of a manifest"
        )


def _check_items(value: Any, depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise ManifestCorruptedError("the manifest is nested too deeply")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ManifestCorruptedError("a key of the manifest is not a string")
        for key in value:
            _check(key, depth)
        value = value.values()
    for item in value:
        _check(item, depth + 1)


def _check_text(value: str) -> None:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise ManifestCorruptedError("a string of the manifest holds half a character")
    if not unicodedata.is_normalized("NFC", value):
        raise ManifestCorruptedError("a string of the manifest is not in normal form C")


def _spelled(value: Any) -> str:
    """Values that were checked, with keys in the order of their UTF-16 code units."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{_spelled(key)}:{_spelled(value[key])}" for key in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_spelled(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
