"""The interface of every store: named blobs, read by range, written whole or not at all; digests of files to store.

Around any store: retries with jitter, counts of every request, and budgets that stop before more is spent.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.files import FileStamp, check_regular
from warpdata.bytekit.io.ranges import Range, total_bytes
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.errors import (
    BlobChangedError,
    BudgetExceededError,
    ChecksumError,
    LimitExceededError,
    StoreError,
    TruncatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

Chunks = Callable[[], "Iterator[Buffer]"]
"""Bytes one piece after the other, from the beginning at each call."""

PageSums = NDArray[np.uint32]
"""CRC-32C of each page of a blob."""

PAGE_BYTES = 64 << 10
"""Ranges are fetched, checked and kept in pages of this size."""
MAX_KEY_BYTES = 1000
_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[^\x00-\x1f\x7f/\\]+(?:/(?!\Z)|\Z))+")
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """Size, tag and time of a blob, known without reading it."""

    key: str
    size: int
    etag: str | None
    modified_s: float


@dataclass(frozen=True, slots=True)
class Blob:
    """The whole of one small blob."""

    data: memoryview
    info: BlobInfo


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The hash, the size and the page sums of a file, with its stamp while it was hashed."""

    sha256: str
    size: int
    page_sums: PageSums = field(repr=False)
    stamp: FileStamp | None = field(default=None, repr=False, compare=False)


@runtime_checkable
class BlobStore(Protocol):
    """Named immutable blobs and a few small pointers that move by compare-and-swap."""

    address: str
    """The address of this store without credentials: safe to print."""
    is_local: bool
    """Whether reading needs no network."""

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, in the order requested, or TruncatedError.

        BlobChangedError if the blob is no longer the one that `same_as` describes.
        """

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under an unused name, or ConflictError."""
        return self.compare_and_swap(key, data, None)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Store a file under a name that holds its hash; a file that changed meanwhile is refused."""
        self.put_stream(key, lambda: checked_chunks(path, digest), digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:  # noqa: ARG002
        """Store `size` bytes chunk by chunk under a name that holds their hash, replacing a blob of this name.

        `chunks` may be called again for a retry; an error it raises leaves everything as it was.
        """
        raise self._read_only(key)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:  # noqa: ARG002
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        raise self._read_only(key)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        raise self._unlisted(prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` (empty, or ended by a slash) that have blobs below them, in order.

        Costs what there is directly below it, however many blobs are deeper. One whose blobs are gone may be shown.
        """
        raise self._unlisted(prefix)

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        raise self._read_only(key)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs; absent ones are skipped."""
        for key in keys:
            self.delete(key)

    def close(self) -> None:
        """Close connections."""

    def _read_only(self, key: str) -> StoreError:
        """The error of a store that cannot be written."""
        hint = "Publish to a folder or an object store; an http catalog is read only."
        return StoreError("this catalog is read only", path=blob_name(self.address, key), hint=hint)

    def _unlisted(self, prefix: str) -> StoreError:
        """The error of a store that cannot be listed."""
        hint = "Name the dataset, or use the folder or object store behind this address, which can be listed."
        return StoreError("an http catalog cannot be listed", path=blob_name(self.address, prefix), hint=hint)


def check_key(key: str) -> str:
    """The key itself if it is a safe relative name, else ValueError."""
    if not _KEY.fullmatch(key) or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"not a safe blob name: {key!r}")
    return key


def check_lengths(views: Sequence[memoryview], ranges: Sequence[Range], name: str) -> list[memoryview]:
    """The views if each is as long as its range; a short response is an error, never short data."""
    for view, (start, end) in zip(views, ranges, strict=True):
        if view.nbytes != end - start:
            raise TruncatedError(f"bytes [{start}, {end}) came back as {view.nbytes} bytes", path=name)
    return list(views)


def check_size(chunks: Iterator[Buffer], size: int, name: str) -> Iterator[memoryview]:
    """The chunks, which must be `size` bytes together, or TruncatedError."""
    total = 0
    for chunk in chunks:
        view = memoryview(chunk)
        total += view.nbytes
        if total > size:
            break
        yield view
    if total != size:
        raise TruncatedError(f"expected {size} bytes to store, got {total}", path=name)


def is_strong(etag: str | None) -> TypeGuard[str]:
    """Whether equal tags mean equal bytes; a weak tag only promises equal meaning."""
    return etag is not None and not etag.startswith("W/")


def check_same(current: BlobInfo, same_as: BlobInfo | None, name: str) -> None:
    """BlobChangedError unless a blob is the one that was opened, by size and tag; by time if there are no tags."""
    if same_as is None:
        return
    if same_as.etag is None or current.etag is None:
        is_same = same_as.modified_s == current.modified_s
    else:
        is_same = same_as.etag == current.etag
    if not is_same or same_as.size != current.size:
        raise BlobChangedError("the blob was replaced since it was opened", path=name)


def blob_name(address: str, key: str) -> str:
    """The name of a blob in messages."""
    return f"{address.rstrip('/')}/{key}"


def check_sha256(expected: str, actual: str, name: str) -> None:
    """ChecksumError unless the hashes are equal."""
    if expected != actual:
        raise ChecksumError(f"sha256 mismatch: expected {expected[:12]}…, got {actual[:12]}…", path=name)


def page_count(blob_bytes: int) -> int:
    """The number of pages of a blob."""
    return -(-blob_bytes // PAGE_BYTES)


def page_checksums(data: memoryview) -> list[int]:
    """CRC-32C of each page of bytes that begin at a page."""
    return [crc32c(data[i : i + PAGE_BYTES]) for i in range(0, data.nbytes, PAGE_BYTES)]


def digest_file(path: Path) -> FileDigest:
    """Hash a file and sum its pages, in bounded memory."""
    running, sums, size = RunningSha256(), list[int](), 0
    before = _stamp(path)
    for chunk in _chunks(path):
        running.update(chunk)
        sums += page_checksums(chunk)
        size += chunk.nbytes
    if _stamp(path) != before:
        raise _changed("while it was read", path)
    return FileDigest(running.hexdigest(), size, np.array(sums, np.uint32), before)


def check_unchanged(path: Path, digest: FileDigest) -> None:
    """ChecksumError if the file is not the one that was hashed any more."""
    if _stamp(path) != digest.stamp and digest_file(path).sha256 != digest.sha256:
        raise _changed("since it was added", path)


def checked_chunks(path: Path, digest: FileDigest) -> Iterator[memoryview]:
    """The file again, chunk by chunk; if it changed, an error comes before the last chunk."""
    running, left = RunningSha256(), digest.size
    for chunk in _chunks(path):
        running.update(chunk)
        left -= chunk.nbytes
        if left < 0 or (left == 0 and running.hexdigest() != digest.sha256):
            break
        yield chunk
    if left or running.hexdigest() != digest.sha256:
        raise _changed("while it was published", path)


def _changed(when: str, path: str | Path) -> ChecksumError:
    return ChecksumError(
        f"the file changed {when}", path=path, hint="Add it again once no program writes to it."
    )


def _chunks(path: Path) -> Iterator[memoryview]:
    """The file in chunks of whole pages; each is only valid until the next one."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    check_regular(path)
    try:
        with path.open("rb") as source:
            while count := source.readinto(buffer):
                yield buffer[:count]
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


def _stamp(path: Path) -> FileStamp:
    try:
        return FileStamp.of(path)
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


_MAX_FILES = 1024
_SETTLED_NS, _COARSE_SETTLED_NS = 100_000_000, 2_500_000_000
"""A file younger than this may change again within one tick of its clock, so it is not remembered."""
_seen_lock = ThreadLock()
_seen: OrderedDict[tuple[str, FileStamp], NDArray[np.bool_]] = OrderedDict()


def checked_pages(name: str, stamp: FileStamp, count: int) -> NDArray[np.bool_]:
    """A flag for each page, shared by every reader of the same unchanged file; set it after checking."""
    is_coarse = stamp.changed_ns % 1_000_000_000 == 0
    if time.time_ns() - stamp.changed_ns < (_COARSE_SETTLED_NS if is_coarse else _SETTLED_NS):
        return np.zeros(count, bool)
    with _seen_lock:
        flags = _seen.setdefault((name, stamp), np.zeros(count, bool))
        _seen.move_to_end((name, stamp))
        if len(_seen) > _MAX_FILES:
            _seen.popitem(last=False)
        return flags


T = TypeVar("T")

Listener = Callable[[str, str, int], None]
"""Called with (operation, blob, bytes) after each request."""

_log = logging.getLogger("warpdata.stores")
_DELETES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on requests and bytes; None means no limit."""

    max_bytes: int | None = None
    max_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests and bytes so far."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0


class Meter:
    """Running totals of one reader or publisher, shared by its threads."""

    def __init__(self, budget: Budget | None = None, listener: Listener | None = None) -> None:
        self._budget = budget or Budget()
        self._listener = listener
        self._lock = ThreadLock()
        self._unsized = ThreadLock()
        """Held while a response of unknown size is under way and bytes are limited: no other may spend meanwhile."""
        self._requests = self._read = self._written = self._retries = 0

    @property
    def spent(self) -> Spent:
        """The totals now."""
        return Spent(self._requests, self._read, self._written, self._retries)

    def request(self, operation: str, blob: str, *, read: int = 0, written: int = 0, count: int = 1) -> None:
        """Account for requests about to be made, or raise BudgetExceededError instead."""
        limit = self._budget
        is_turn_needed = read and limit.max_bytes is not None
        with self._unsized if is_turn_needed else contextlib.nullcontext(), self._lock:
            if limit.max_requests is not None and self._requests + count > limit.max_requests:
                fact = f"the budget of {limit.max_requests} requests is used up"
                raise BudgetExceededError(fact, path=blob)
            if limit.max_bytes is not None and self._read + read > limit.max_bytes:
                fact = f"{self._read + read} bytes would exceed the budget of {limit.max_bytes} bytes"
                raise BudgetExceededError(fact, path=blob)
            self._requests += count
            self._read += read
            self._written += written
        _log.debug("%s %s (%d bytes)", operation, blob, read or written)
        if self._listener is not None:
            self._listener(operation, blob, read or written)

    @contextlib.contextmanager
    def spend_unsized(self, wanted: int) -> Iterator[Callable[[], int]]:
        """A response of unknown size is under way: yields a function that returns how many bytes it may have now."""
        limit = self._budget.max_bytes
        with contextlib.nullcontext() if limit is None else self._unsized:
            # A response without a body (not modified) is allowed with nothing left to spend.
            yield lambda: wanted if limit is None else min(wanted, max(1, limit - self._read))

    def too_large(self, blob: str) -> BudgetExceededError:
        """The error for a response that is larger than the rest of the budget."""
        limit = self._budget.max_bytes or 0
        fact = f"this is more than the {max(0, limit - self._read)} bytes left of the budget of {limit} bytes"
        return BudgetExceededError(fact, path=blob)

    def add(self, *, read: int = 0, retries: int = 0) -> None:
        """Count bytes of a response of unknown size, or a retry."""
        with self._lock:
            self._read += read
            self._retries += retries


class Traffic(NamedTuple):
    """Bytes since the process began."""

    network: int = 0
    """Received from stores."""
    cache: int = 0
    """Read from the page cache, each page once."""

    def since(self, before: Traffic) -> Traffic:
        """The difference to earlier counts."""
        return Traffic(self.network - before.network, self.cache - before.cache)


_traffic_lock = ThreadLock()
_traffic = [0, 0]


def count_traffic(*, network: int = 0, cache: int = 0) -> None:
    """Add to the counts of this process."""
    with _traffic_lock:
        _traffic[0] += network
        _traffic[1] += cache


def traffic() -> Traffic:
    """The counts of this process now."""
    with _traffic_lock:
        return Traffic(*_traffic)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to retry; waits are random up to a growing bound.

    No attempt and no wait begins that would end after `max_total_s`, so a server that hangs has failed within
    `max_total_s` and one timeout of its store (80 s by default).
    """

    attempts: int = 6
    first_wait_s: float = 0.1
    max_wait_s: float = 10.0
    max_retry_after_s: float = 60.0
    max_total_s: float = 60.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def run(
        self,
        call: Callable[[], T],
        is_final: Callable[[UnavailableError | TruncatedError, int], bool],
        on_retry: Callable[[], None] = lambda: None,
    ) -> T:
        """Return `call()`, retried after temporary failures unless `is_final(error, attempts)`."""
        attempt, began_s = 0, self.clock()
        while True:
            try:
                return call()
            except (UnavailableError, TruncatedError) as error:
                attempt += 1
                if attempt >= self.attempts or is_final(error, attempt):
                    raise
                retry_after_s = getattr(error, "retry_after_s", None)
                if self.clock() + sum(self._waits(attempt, retry_after_s)) - began_s >= self.max_total_s:
                    times, took_s = "once" if attempt == 1 else f"{attempt} times", self.clock() - began_s
                    error.message += f" (tried {times} in {took_s:.0f} s)"
                    raise
                on_retry()
                self.wait(attempt, retry_after_s)

    def wait(self, attempt: int, retry_after_s: float | None) -> None:
        """Sleep before the next attempt, at least for the Retry-After of the server."""
        wait_s, jitter_s = self._waits(attempt, retry_after_s)
        self.sleep(wait_s + random.uniform(0, jitter_s))

    def _waits(self, attempt: int, retry_after_s: float | None) -> tuple[float, float]:
        """The shortest wait, and the most that is added to it."""
        jitter_s = min(self.max_wait_s, self.first_wait_s * 2**attempt)
        return min(retry_after_s or 0.0, self.max_retry_after_s), jitter_s


class ReliableStore(BlobStore):
    """A store whose temporary failures are retried and whose requests are counted."""

    def __init__(
        self, store: BlobStore, meter: Meter | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.inner = store
        self.address, self.is_local = store.address, store.is_local
        self.meter = meter or Meter()
        self._policy = policy or RetryPolicy()

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        return self._try("HEAD", key, lambda: self.inner.head(key))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""

        def attempt() -> Blob | None:
            allowed = bytes_left()
            try:
                blob = self.inner.get(key, max_bytes=allowed, unless_etag=unless_etag)
            except LimitExceededError:
                if allowed == max_bytes:
                    raise
                raise self.meter.too_large(blob_name(self.address, key)) from None
            except UnavailableError as error:  # the bytes received before it failed were spent all the same
                self.meter.add(read=min(allowed, error.bytes_received))
                raise
            self.meter.add(read=blob.data.nbytes if blob else 0)
            return blob

        with self.meter.spend_unsized(max_bytes) as bytes_left:
            return self._try("GET", key, attempt)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range; a short response is retried."""
        if not ranges:
            return []
        call = partial(self.inner.get_ranges, key, ranges, same_as=same_as)
        return self._try("GET", key, call, read=total_bytes(ranges), count=len(ranges))

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under an unused name, or ConflictError."""
        size = memoryview(data).nbytes
        return self._try("PUT", key, lambda: self.inner.put_if_absent(key, data), written=size)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Store a file under a name that holds its hash."""
        self._try("PUT", key, lambda: self.inner.put_file(key, path, digest), written=digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Store bytes chunk by chunk under a name that holds their hash."""
        self._try("PUT", key, lambda: self.inner.put_stream(key, chunks, size), written=size)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        size = memoryview(data).nbytes
        return self._try("PUT", key, lambda: self.inner.compare_and_swap(key, data, etag), written=size)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        return iter(self._try("LIST", prefix, lambda: list(self.inner.list(prefix))))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        return self._try("LIST", prefix, lambda: self.inner.folders(prefix))

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        self._try("DELETE", key, lambda: self.inner.delete(key))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs; absent ones are skipped."""
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            some = keys[start : start + _DELETES_AT_ONCE]
            self._try("DELETE", some[0], partial(self.inner.delete_all, some))

    def close(self) -> None:
        """Close connections."""
        self.inner.close()

    def _try(
        self,
        operation: str,
        key: str,
        call: Callable[[], T],
        *,
        read: int = 0,
        written: int = 0,
        count: int = 1,
    ) -> T:
        name = blob_name(self.address, key)

        def attempt() -> T:
            self.meter.request(operation, name, read=read, written=written, count=count)
            return call()

        return self._policy.run(
            attempt,
            lambda error, attempts: attempts > 2 and isinstance(error, TruncatedError),
            lambda: self.meter.add(retries=1),
        )
