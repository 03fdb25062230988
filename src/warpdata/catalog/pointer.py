"""The small moving parts of a catalog: `latest` and tags, moved by compare-and-swap."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import BlobStore

_LOCK_S = 30.0
_SETTLE_S = 0.5


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
        raise ManifestCorruptedError(f"the pointer is not JSON ({error})", path=name) from None
    version, sequence, previous = raw.get("version"), raw.get("sequence"), raw.get("previous")
    good = isinstance(version, str) and HASH.fullmatch(version) and isinstance(sequence, int)
    if not good or not (previous is None or (isinstance(previous, str) and HASH.fullmatch(previous))):
        raise ManifestCorruptedError("the pointer does not name a version", path=name)
    return Pointer(str(version), int(str(sequence)), previous)


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
        if store.is_conditional:
            store.compare_and_swap(key, pack_pointer(after), seen.etag)
        else:
            _swap_with_lock(store, key, after, seen)
    except ConflictError:
        return _after_conflict(store, key, after, seen)
    return after


def _after_conflict(store: BlobStore, key: str, after: Pointer, seen: PointerState) -> Pointer:
    """A conflict that is our own write whose answer was lost is no conflict."""
    now = read_pointer(store, key).pointer
    if now == after:
        return after
    expected = seen.pointer.version[:12] if seen.pointer else "nothing"
    found = now.version[:12] if now else "nothing"
    fact = f"the pointer moved from {expected} to {found} while {after.version[:12]} was being published"
    hint = "The version is stored. Look at the other one, then publish again or move the tag."
    raise ConflictError(fact, path=f"{store.address}/{key}", hint=hint)


def _swap_with_lock(store: BlobStore, key: str, after: Pointer, seen: PointerState) -> None:
    """For stores without conditional writes: a lock blob with owner and expiry, believed once settled."""
    lock_key, owner = f"{key}.lock", secrets.token_hex(8)
    held = _read_lock(store, lock_key)
    if held is not None and held[1] > time.time():
        raise ConflictError("another publisher holds the lock", path=f"{store.address}/{lock_key}")
    store.delete(lock_key)
    store.put_if_absent(lock_key, dump_json({"owner": owner, "expires_s": int(time.time() + _LOCK_S)}))
    time.sleep(_SETTLE_S)
    try:
        held = _read_lock(store, lock_key)
        if held is None or held[0] != owner or read_pointer(store, key).pointer != seen.pointer:
            raise ConflictError("another publisher was quicker", path=f"{store.address}/{key}")
        store.delete(key)
        store.put_if_absent(key, pack_pointer(after))
    finally:
        held = _read_lock(store, lock_key)
        if held is not None and held[0] == owner:
            store.delete(lock_key)


def _read_lock(store: BlobStore, key: str) -> tuple[str, float] | None:
    try:
        blob = store.get(key, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return None
    if blob is None:
        return None
    raw = parse_json_object(blob.data)
    return str(raw.get("owner")), float(raw.get("expires_s", 0))
