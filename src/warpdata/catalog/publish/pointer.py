"""The small moving parts of a catalog: `latest` and tags, moved by compare-and-swap."""

from __future__ import annotations

from dataclasses import dataclass

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    FormatError,
    ManifestCorruptedError,
    PointerMovedError,
)
from warpdata.formats.manifest.fields import count_of, text_of
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import BlobStore

_DAMAGED = (
    "Delete this file, then publish again or set the tag again; until then versions open by their hashes."
)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version a name points at; `sequence` grows with every move."""

    version: str
    sequence: int
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class PointerState:
    """A pointer as it was read: None when the name points nowhere yet."""

    pointer: Pointer | None
    etag: str | None


def pack_pointer(pointer: Pointer) -> bytes:
    """The JSON of a pointer."""
    fields = {"version": pointer.version, "sequence": pointer.sequence, "previous": pointer.previous}
    return dump_json(fields) + b"\n"


def unpack_pointer(data: memoryview | bytes, name: str) -> Pointer:
    """A pointer from untrusted bytes."""
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the pointer is not JSON ({error})", path=name, hint=_DAMAGED) from None
    try:
        previous = None if raw.get("previous") is None else text_of(raw, "previous", HASH)
        return Pointer(text_of(raw, "version", HASH), count_of(raw, "sequence"), previous)
    except ManifestCorruptedError as error:
        fact = f"the pointer does not name a version: {error}"
        raise ManifestCorruptedError(fact, path=name, hint=_DAMAGED) from None


def read_pointer(store: BlobStore, key: str) -> PointerState:
    """The pointer now, straight from the store."""
    try:
        blob = store.get(key, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return PointerState(None, None)
    assert blob is not None
    return PointerState(unpack_pointer(blob.data, f"{store.address}/{key}"), blob.info.etag)


def move_pointer(store: BlobStore, key: str, version: str, seen: PointerState) -> Pointer:
    """Point at `version`, unless somebody moved the pointer since it was seen: then ConflictError."""
    before = seen.pointer
    if before is not None and before.version == version:
        return before
    after = Pointer(version, before.sequence + 1 if before else 1, before.version if before else None)
    try:
        store.compare_and_swap(key, pack_pointer(after), seen.etag)
    except ConflictError as conflict:
        return _after_conflict(store, key, after, seen, conflict)
    return after


def _after_conflict(
    store: BlobStore, key: str, after: Pointer, seen: PointerState, conflict: ConflictError
) -> Pointer:
    """A conflict that is our own write whose answer was lost is no conflict."""
    now = read_pointer(store, key).pointer
    if now == after or (
        now is not None and (now.sequence, now.previous) == (after.sequence + 1, after.version)
    ):
        return after  # and somebody may have gone on from it
    if now == seen.pointer:
        raise conflict
    expected = seen.pointer.version[:12] if seen.pointer else "nothing"
    found = now.version[:12] if now else "nothing"
    fact = f"the pointer moved from {expected} to {found} while {after.version[:12]} was being published"
    hint = "The version is stored. Look at the other one, then publish again or move the tag."
    raise PointerMovedError(fact, path=f"{store.address}/{key}", hint=hint)
