"""The removal lock of a catalog: collectors and deleters hold it, publishers check that none ran meanwhile.

SPEC.md of formats/manifest has the protocol and why it holds. Ages are differences of times of the store; the clock of
this machine only measures how long something took.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.system import seconds_with_sleep
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")

KEY = "removals.json"
PROBE = "probe/"
LIFETIME_S = 900.0
"""A lock that is older, by the store's clock, belongs to a dead process. Its holder stops after half of that.

Half is more than a request takes that is retried until it fails (`RetryPolicy`).
"""
_POLL_S = 2.0


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def removal_count(store: BlobStore) -> int:
    """How many removals began so far; returns once none is running."""
    is_waiting = False
    while True:
        count, is_running, _ = _read(store)
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
        count, is_running, held = _read(store)
        began_s = seconds_with_sleep()
        body = dump_json({"count": count + 1, "running": True, "owner": owner})
        if not is_running and _swap(store, body, held):
            break
        _sleep(_POLL_S)
    try:
        yield lambda: seconds_with_sleep() - began_s < LIFETIME_S / 2
    finally:
        try:
            held = _get(store)
            if held is not None and owner.encode() in bytes(held.data):
                _swap(store, dump_json({"count": count + 1, "running": False, "owner": owner}), held)
        except StoreError as error:
            _log.warning("the removal lock stays until it expires: %s", error)


def store_time_s(store: BlobStore) -> float:
    """The time of the store, from a blob that is put for the purpose."""
    key = f"{PROBE}{secrets.token_hex(12)}"
    with contextlib.suppress(ConflictError):  # nobody else knows the name: the response was lost
        store.put_if_absent(key, b"clock\n")
    try:
        return store.head(key).modified_s
    finally:
        store.delete(key)


def _read(store: BlobStore) -> tuple[int, bool, Blob | None]:
    """The number of removals, whether one is running, and the lock as it is stored."""
    held = _get(store)
    if held is None:
        return 0, False, None
    try:
        raw = parse_json_object(held.data, max_bytes=MAX_POINTER_BYTES)
    except FormatError:
        raw = {}
    count, is_running = raw.get("count"), raw.get("running")
    if type(count) is not int or type(is_running) is not bool:
        hint = "Delete it if no collector is running."
        raise ManifestCorruptedError("the removal lock is damaged", path=f"{store.address}/{KEY}", hint=hint)
    return count, is_running and store_time_s(store) - held.info.modified_s <= LIFETIME_S, held


def _get(store: BlobStore) -> Blob | None:
    try:
        return store.get(KEY, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return None


def _swap(store: BlobStore, body: bytes, held: Blob | None) -> bool:
    """Whether the lock is ours now; a conflict with our own write, whose response was lost, is none."""
    try:
        store.compare_and_swap(KEY, body, held.info.etag if held else None)
    except ConflictError:
        now = _get(store)
        return now is not None and bytes(now.data) == body
    return True
