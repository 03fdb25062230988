"""Values of a manifest out of untrusted JSON, each looked at before it is believed."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from warpdata.errors import ManifestCorruptedError
from warpdata.formats.manifest import model
from warpdata.formats.manifest.layout import MAX_INTEGER, MAX_SHARDS
from warpdata.formats.manifest.model import BlobRef, TableShard

T = TypeVar("T")

_UNSAFE = re.compile(r"[\x00-\x1f\\]|(?:\A|/)\.{0,2}(?:/|\Z)")
"""A control character or backslash, or a step that is empty, `.` or `..`."""
_LOCAL_PATH = re.compile(r"(?i)^(file:|/|~|[a-z]:[\\/]|\\\\)")
_SETTINGS = re.compile(r"[?#\\\s\x00-\x1f\x7f]|://[^/]*@")
"""A query or fragment, a character that parsers of addresses read differently, or a user name."""


def check_uri(uri: str) -> str:
    """Return the uri of a blob; ManifestCorruptedError if it names a local path or how to reach a server.

    Readers add their own credentials to a request, so a manifest must not choose the server of a bucket.
    """
    if _LOCAL_PATH.match(uri) or ".." in uri.split("/"):
        raise ManifestCorruptedError(f"a local path has no place in a manifest: {uri}")
    if match := _SETTINGS.search(uri):
        raise ManifestCorruptedError(
            f"invalid uri in a manifest: {uri[: match.start()]!r} is followed by a query, a fragment, a user name"
            " or a forbidden character",
            hint="Publish blobs under plain addresses; percent-encode special characters of a path.",
        )
    return uri


def is_safe_member(name: str) -> bool:
    """Whether a name is a relative path that stays where it is put."""
    return not _UNSAFE.search(name)


def blob_of(raw: Any) -> BlobRef:
    """A blob by hash and size."""
    raw = of_type(raw, dict, "a blob")
    uri = check_uri(of_type(raw["uri"], str, "an address")) if raw.get("uri") else None
    name = of_type(raw["name"], str, "the name of a shard") if "name" in raw else None
    if name is not None and not is_safe_member(name):
        raise ManifestCorruptedError(f"the name of a shard is not a safe relative path: {name!r}")
    return BlobRef(text_of(raw, "hash", model.HASH), count_of(raw, "byte_size"), uri, name)


def table_shard_of(raw: Any) -> TableShard:
    """One parquet file of a table, with a guide of its own where it has one."""
    blob = blob_of(raw)
    guide = blob_of(raw["guide"]) if "guide" in raw else None
    rows = count_of(raw, "row_count")
    return TableShard(blob.hash, blob.byte_size, blob.uri, blob.name, row_count=rows, guide=guide)


def of_type(value: Any, kind: type[T], what: str) -> T:
    """The value if it is of this kind."""
    if not isinstance(value, kind):
        raise ManifestCorruptedError(f"{what} is a {type(value).__name__}")
    return value


def text_of(raw: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    """A string that matches."""
    value = raw.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ManifestCorruptedError(f"{key} is missing or malformed")
    return value


def count_of(raw: dict[str, Any], key: str) -> int:
    """An exact number that is not negative."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise ManifestCorruptedError(f"{key} is missing or not a count")
    return value


def dict_of(
    raw: dict[str, Any], key: str, *, optional: bool = False, limit: int = MAX_SHARDS
) -> dict[str, Any]:
    """An object that is not too large."""
    value = raw.get(key, {} if optional else None)
    if not isinstance(value, dict) or len(value) > limit:
        raise ManifestCorruptedError(f"{key} is missing, not an object, or too large")
    return value


def list_of(raw: dict[str, Any], key: str, *, optional: bool = False, limit: int = MAX_SHARDS) -> list[Any]:
    """A list that is not too long."""
    value = raw.get(key, [] if optional else None)
    if not isinstance(value, list) or len(value) > limit:
        raise ManifestCorruptedError(f"{key} is missing, not a list, or too long")
    return value
