"""Whose turn it is to go on from the newest version: many writers queue up instead of undoing each other's work.

A turn is a courtesy. What keeps writers from losing anything is that `latest` moves by compare-and-swap; a turn
that is lost, or held by somebody who died, costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Iterator

from warpdata.bytekit.jsontext import dump_json
from warpdata.catalog.claims import store_time_s
from warpdata.errors import BlobNotFoundError, ConflictError, StoreError
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.stores.blobstore import BlobStore

LIFETIME_S = 60.0
"""Whoever holds a turn for longer, by the store's clock, is taken for dead."""

_LOOKS = 10
"""How often to find somebody else at it before asking the store what time it is."""


_MAX_PAUSE_S = 4.0


@contextlib.contextmanager
def turn(store: BlobStore, key: str) -> Iterator[None]:
    """It is our turn inside; where a store has no conditional writes, everybody's."""
    if not store.is_conditional:
        yield
        return
    mine = dump_json({"holder": secrets.token_hex(12)}) + b"\n"
    _take(store, key, mine)
    began_s = time.monotonic()
    try:
        yield
    finally:
        if time.monotonic() - began_s < LIFETIME_S / 2:
            with contextlib.suppress(StoreError):
                store.delete(key)


def _take(store: BlobStore, key: str, mine: bytes) -> None:
    looks = 0
    while True:
        try:
            store.put_if_absent(key, mine)
            return
        except ConflictError:
            looks += 1
        if looks == 1 and _is_held(store, key, mine):  # an answer was lost
            return
        if looks % _LOOKS == 0 and _took_from_the_dead(store, key, mine):
            return
        # Many who wait look seldom, so that whoever has the turn is not held up; one of them comes soon anyway.
        _sleep(random.uniform(0.02, min(_MAX_PAUSE_S, 0.05 * 1.3**looks)))


def _took_from_the_dead(store: BlobStore, key: str, mine: bytes) -> bool:
    try:
        held = store.head(key)
        if store_time_s(store) - held.modified_s <= LIFETIME_S:
            return False
        store.compare_and_swap(key, mine, held.etag)
    except BlobNotFoundError:
        return False
    except ConflictError:
        return _is_held(store, key, mine)  # an answer was lost
    return True


def _is_held(store: BlobStore, key: str, mine: bytes) -> bool:
    try:
        held = store.get(key, max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        return False
    return held is not None and bytes(held.data) == mine


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
