"""`latest` and tags, moved by compare-and-swap; the removal lock of collectors and deleters.

SPEC.md of formats/manifest has the protocol and why it holds. Ages are differences of times of the store; the clock of
this machine only measures how long something took.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.system import seconds_with_sleep
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    FormatError,
    ManifestCorruptedError,
    PointerMovedError,
    StoreError,
)
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH, count_of, text_of
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")

REMOVALS_KEY = "removals.json"
PROBE = "probe/"
LIFETIME_S = 900.0
"""A lock that is older, by the store's clock, belongs to a dead process. Its holder stops after half of that.

Half is more than a request takes that is retried until it fails (`RetryPolicy`).
"""
_POLL_S = 2.0


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


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def removal_count(store: BlobStore) -> int:
    """How many removals began so far; returns once none is running."""
    is_waiting = False
    while True:
        count, is_running, _ = _read_lock(store)
        if not is_running:
            return count
        if not is_waiting:
            _log.warning("waiting: unused blobs of %s are being removed", store.address)
            is_waiting = True
        _sleep(_POLL_S)


@contextlib.contextmanager
def removing(store: BlobStore) -> Iterator[Callable[[], bool]]:
    """Hold the removal lock. Yields a function that returns whether the holder may still remove something."""
    owner = secrets.token_hex(12)
    while True:
        count, is_running, held = _read_lock(store)
        began_s = seconds_with_sleep()
        body = dump_json({"count": count + 1, "running": True, "owner": owner})
        if not is_running and _swap(store, body, held):
            break
        _sleep(_POLL_S)
    try:
        yield lambda: seconds_with_sleep() - began_s < LIFETIME_S / 2
    finally:
        try:
            held = _get_lock(store)
            if held is not None and owner.encode() in bytes(held.data):
                _swap(store, dump_json({"count": count + 1, "running": False, "owner": owner}), held)
        except StoreError as error:
            _log.warning("the removal lock stays until it expires: %s", error)


def store_time_s(store: BlobStore) -> float:
    """The time of the store, from a blob that is put for the purpose."""
    key = f"{PROBE}{secrets.token_hex(12)}"
    with contextlib.suppress(ConflictError):  # the name is random: the response was lost
        store.put_if_absent(key, b"clock\n")
    try:
        return store.head(key).modified_s
    finally:
        store.delete(key)


def _read_lock(store: BlobStore) -> tuple[int, bool, Blob | None]:
    """The number of removals, whether one is running, and the lock as it is stored."""
    held = _get_lock(store)
    if held is None:
        return 0, False, None
    try:
        raw = parse_json_object(held.data, max_bytes=MAX_POINTER_BYTES)
    except FormatError:
        raw = {}
    count, is_running = raw.get("count"), raw.get("running")
    if type(count) is not int or type(is_running) is not bool:
        hint = "Delete it if no collector is running."
        raise ManifestCorruptedError(
            "the removal lock is damaged", path=f"{store.address}/{REMOVALS_KEY}", hint=hint
        )
    return count, is_running and store_time_s(store) - held.info.modified_s <= LIFETIME_S, held


def _get_lock(store: BlobStore) -> Blob | None:
    try:
        return store.get(REMOVALS_KEY, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return None


def _swap(store: BlobStore, body: bytes, held: Blob | None) -> bool:
    """Whether the lock is ours now, also if the response to our own write was lost."""
    try:
        store.compare_and_swap(REMOVALS_KEY, body, held.info.etag if held else None)
    except ConflictError:
        now = _get_lock(store)
        return now is not None and bytes(now.data) == body
    return True
