"""Who needs what of a catalog and who is about to remove what: small blobs that say so before anything is done.

SPEC.md of formats/manifest has the protocol and why it holds. All ages are differences of times the store itself
wrote; the clock of this machine is only asked how long something took.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.system import seconds_with_sleep
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import BlobInfo, BlobStore

_log = logging.getLogger("warpdata.catalog")

KEEP, DROP = "claims/keep/", "claims/drop/"
_PROBE = "probe/"
LIFETIME_S = {KEEP: 24 * 3600.0, DROP: 900.0, _PROBE: 24 * 3600.0}
"""How long a claim counts, by the store's clock; its owner stops relying on it after half of that.

Half of the shortest is more than a request takes that is tried again until it fails (`RetryPolicy`).
"""

MAX_CLAIM_BYTES = 64 << 20
_POLL_S = 2.0


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


@dataclass(slots=True)
class Claim:
    """What one process said about some keys, until it withdraws it or dies."""

    store: BlobStore
    kind: str
    keys: frozenset[str]
    key: str = ""
    _began_s: float = field(default=0.0, repr=False)

    @property
    def is_fresh(self) -> bool:
        """Whether its owner may still act on it."""
        return seconds_with_sleep() - self._began_s < LIFETIME_S[self.kind] / 2

    def announce(self) -> None:
        """Say it, or say it again under a new name, so that its age begins anew."""
        old, self.key = self.key, f"{self.kind}{secrets.token_hex(12)}.json"
        self._began_s = seconds_with_sleep()
        _put_own(self.store, self.key, dump_json({"keys": sorted(self.keys)}) + b"\n")
        if old:
            self.store.delete(old)

    def renew(self) -> None:
        """Say it again, and wait for whoever may have taken the old one for dead; then look at everything again."""
        self.announce()
        wait_for_removers(self)

    def is_held(self) -> bool:
        """Whether nobody took it for dead and removed it."""
        try:
            self.store.head(self.key)
        except BlobNotFoundError:
            return False
        return True

    def withdraw(self) -> None:
        """Say that it is over; a claim that cannot be removed runs out by itself."""
        try:
            self.store.delete(self.key)
        except StoreError as error:
            _log.warning("a claim stays until it runs out: %s", error)


@contextlib.contextmanager
def keeping(store: BlobStore, keys: Collection[str]) -> Iterator[Claim]:
    """These keys are needed: nobody removes them from here on, and whoever was removing them is done."""
    claim = Claim(store, KEEP, frozenset(keys))
    claim.announce()
    try:
        wait_for_removers(claim)
        yield claim
    finally:
        claim.withdraw()


def wait_for_removers(claim: Claim) -> None:
    """Return once nobody is about to remove what was claimed."""
    has_said = False
    while rivals := _others(claim, DROP):
        now_s = store_time_s(claim.store)
        if not any(_is_live(info, now_s) for info in rivals):
            return
        if not has_said:
            _log.warning("waiting: unused blobs of %s are being removed", claim.store.address)
            has_said = True
        _sleep(_POLL_S)


@contextlib.contextmanager
def dropping(store: BlobStore, keys: Collection[str]) -> Iterator[tuple[Claim, frozenset[str]]]:
    """These keys are about to be removed: the claim, and those of them that nobody needs right now.

    Whatever says that a key is in use (pointers, manifests) must be read inside, after the claims of others.
    """
    claim = Claim(store, DROP, frozenset(keys))
    claim.announce()
    try:
        now_s = store.head(claim.key).modified_s
        needed: set[str] = set()
        for info in list(store.list(KEEP)):
            if _is_live(info, now_s):
                needed |= _claimed(store, info)
            else:
                # Its owner is dead, or will see that this is gone and begin again.
                store.delete(info.key)
        yield claim, claim.keys - needed
    finally:
        claim.withdraw()


def pause() -> None:
    """Give others time to be done."""
    _sleep(_POLL_S)


def wait_for_collectors(claim: Claim) -> None:
    """Return once nobody else is removing blobs: versions must not go while a collector looks at them."""
    while _live(claim, [each for each in _drops(claim) if any(map(is_blob, each[1]))]):
        _sleep(_POLL_S)


def deletes_versions_now(claim: Claim) -> bool:
    """Whether somebody else is deleting versions: what a collector reads meanwhile is no one state."""
    return bool(_live(claim, [each for each in _drops(claim) if any(map(is_manifest, each[1]))]))


def is_blob(key: str) -> bool:
    """Whether a key lies in the blob area."""
    return key.startswith("blobs/")


def is_manifest(key: str) -> bool:
    """Whether a key is that of a manifest."""
    stem, dot, suffix = key.rpartition("/")[2].partition(".")
    return f"{dot}{suffix}" == ".json" and bool(HASH.fullmatch(stem))


def _drops(claim: Claim) -> list[tuple[BlobInfo, frozenset[str]]]:
    found = [info for info in claim.store.list(DROP) if info.key != claim.key]
    return [(info, _claimed(claim.store, info)) for info in found]


def _live(claim: Claim, found: list[tuple[BlobInfo, frozenset[str]]]) -> list[BlobInfo]:
    if not found:
        return []
    now_s = store_time_s(claim.store)
    return [info for info, _ in found if _is_live(info, now_s)]


def sweep_claims(store: BlobStore) -> int:
    """Remove what dead processes claimed or asked the time with; how many there were."""
    found = [info for kind in LIFETIME_S for info in store.list(kind)]
    if not found:
        return 0
    now_s = store_time_s(store)
    dead = [info for info in found if not _is_live(info, now_s)]
    for info in dead:
        store.delete(info.key)
    return len(dead)


def store_time_s(store: BlobStore) -> float:
    """What time it is where blobs get their times: a blob is put there and asked for its age."""
    key = f"{_PROBE}{secrets.token_hex(12)}"
    _put_own(store, key, b"what time is it?\n")
    try:
        return store.head(key).modified_s
    finally:
        store.delete(key)


def time_s(store: BlobStore, *, must_ask: bool) -> float:
    """The store's time; who only looks and may not write there looks with this machine's clock."""
    try:
        return store_time_s(store)
    except StoreError:
        if must_ask:
            raise
        return time.time()


def _put_own(store: BlobStore, key: str, data: bytes) -> None:
    """Put a blob under a name only we can know: if it is there already, an answer was lost."""
    with contextlib.suppress(ConflictError):
        store.put_if_absent(key, data)


def _others(claim: Claim, kind: str) -> Sequence[BlobInfo]:
    """Claims of others of one kind that name a key of ours."""
    found = [info for info in claim.store.list(kind) if info.key != claim.key]
    return [info for info in found if claim.keys & _claimed(claim.store, info)]


def _is_live(info: BlobInfo, now_s: float) -> bool:
    kind = info.key.rpartition("/")[0] + "/"
    return now_s - info.modified_s <= LIFETIME_S[kind]


def _claimed(store: BlobStore, info: BlobInfo) -> frozenset[str]:
    """The keys a claim names; one that is withdrawn by now names none."""
    try:
        blob = store.get(info.key, max_bytes=MAX_CLAIM_BYTES)
    except BlobNotFoundError:
        return frozenset()
    assert blob is not None
    try:
        keys = parse_json_object(blob.data, max_bytes=MAX_CLAIM_BYTES).get("keys")
    except FormatError as error:
        keys, fact = None, f"a claim is damaged ({error})"
    else:
        fact = "a claim names no keys"
    if not isinstance(keys, list):
        hint = "Delete it if no publisher and no collector is running."
        raise ManifestCorruptedError(fact, path=f"{store.address}/{info.key}", hint=hint)
    return frozenset(map(str, keys))
