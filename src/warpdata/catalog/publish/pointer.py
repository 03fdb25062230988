"""`latest` and tags: small files that name a version and move by compare-and-swap."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    FormatError,
    ManifestCorruptedError,
    PointerMovedError,
)
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH, count_of, text_of
from warpdata.stores.blobstore import BlobStore


@dataclass(frozen=True, slots=True)
class Pointer:
    """The version a name points at; `sequence` grows with every move."""

    version: str
    sequence: int
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class PointerState:
    """A pointer as it was read: None while the name points nowhere."""

    pointer: Pointer | None
    etag: str | None


def pack_pointer(pointer: Pointer) -> bytes:
    """The JSON of a pointer."""
    return dump_json(asdict(pointer)) + b"\n"


def unpack_pointer(data: memoryview | bytes, path: str) -> Pointer:
    """A pointer from untrusted bytes."""
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        previous = None if raw.get("previous") is None else text_of(raw, "previous", HASH)
        return Pointer(text_of(raw, "version", HASH), count_of(raw, "sequence"), previous)
    except (FormatError, ManifestCorruptedError) as error:
        hint = (
            "Delete this file, then publish again or set the tag again; versions still open by their hashes."
        )
        raise ManifestCorruptedError(f"the pointer is damaged: {error}", path=path, hint=hint) from None


def read_pointer(store: BlobStore, key: str) -> PointerState:
    """The pointer in the store now."""
    try:
        blob = store.get(key, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return PointerState(None, None)
    assert blob is not None
    return PointerState(unpack_pointer(blob.data, f"{store.address}/{key}"), blob.info.etag)


def move_pointer(store: BlobStore, key: str, version: str, seen: PointerState) -> Pointer:
    """Point at `version`; PointerMovedError if the pointer moved since it was seen."""
    before = seen.pointer
    if before is not None and before.version == version:
        return before
    after = Pointer(version, before.sequence + 1 if before else 1, before.version if before else None)
    try:
        store.compare_and_swap(key, pack_pointer(after), seen.etag)
        return after
    except ConflictError:
        now = read_pointer(store, key).pointer
        follows = now is not None and (now.sequence, now.previous) == (after.sequence + 1, version)
        if now == after or follows:
            return after  # our own write, whose response was lost
        if now == before:
            raise
    names = [pointer.version[:12] if pointer else "nothing" for pointer in (before, now)]
    fact = f"the pointer moved from {names[0]} to {names[1]} while {version[:12]} was being published"
    hint = "The version is stored. Look at the other one, then publish again or move the tag."
    raise PointerMovedError(fact, path=f"{store.address}/{key}", hint=hint)
