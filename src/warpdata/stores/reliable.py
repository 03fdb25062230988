"""Retries with jitter around any store, and a meter that sees every attempt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from warpdata.bytekit.io.ranges import Range, total_bytes
from warpdata.errors import LimitExceededError, TruncatedError, UnavailableError
from warpdata.stores.blobstore import Blob, BlobInfo, BlobStore, Chunks, blob_name
from warpdata.stores.digest import FileDigest
from warpdata.stores.meter import Meter

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_TOGETHER = 1000
"""Blobs that are removed, and tried again, together."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try again; waits are random up to a growing bound.

    No attempt and no wait begins that would end after `max_total_s`, so a server that hangs has failed within
    `max_total_s` and one time-out of its store (80 s by default).
    """

    attempts: int = 6
    first_wait_s: float = 0.1
    max_wait_s: float = 10.0
    max_retry_after_s: float = 60.0
    max_total_s: float = 60.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def wait(self, attempt: int, retry_after_s: float | None) -> None:
        """Wait before the next attempt: at least what the server asked for."""
        asked_s, bound_s = self._waits(attempt, retry_after_s)
        self.sleep(asked_s + random.uniform(0, bound_s))

    def is_over(self, began_s: float, attempt: int, retry_after_s: float | None) -> bool:
        """Whether the next wait could end too late."""
        return self.clock() + sum(self._waits(attempt, retry_after_s)) - began_s >= self.max_total_s

    def _waits(self, attempt: int, retry_after_s: float | None) -> tuple[float, float]:
        """What the server asked for, and the most that is added to it."""
        bound_s = min(self.max_wait_s, self.first_wait_s * 2**attempt)
        return min(retry_after_s or 0.0, self.max_retry_after_s), bound_s


class ReliableStore:
    """A store whose passing failures are tried again and whose requests are counted."""

    def __init__(
        self, store: BlobStore, meter: Meter | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.inner = store
        self.meter = meter or Meter()
        self._policy = policy or RetryPolicy()

    @property
    def address(self) -> str:
        """Where the store is, without credentials."""
        return self.inner.address

    @property
    def is_local(self) -> bool:
        """Whether reading needs no network."""
        return self.inner.is_local

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        return self._try("HEAD", key, lambda: self.inner.head(key))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""

        def attempt() -> Blob | None:
            allowed = self.meter.bytes_left(max_bytes)
            try:
                blob = self.inner.get(key, max_bytes=allowed, unless_etag=unless_etag)
            except LimitExceededError:
                if allowed == max_bytes:
                    raise
                raise self.meter.too_large(blob_name(self.address, key)) from None
            except UnavailableError as error:  # what came before it failed was spent all the same
                self.meter.received(min(allowed, error.bytes_received))
                raise
            self.meter.received(blob.data.nbytes if blob else 0)
            return blob

        with self.meter.unsized():
            return self._try("GET", key, attempt)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range; a short answer is asked for again."""
        if not ranges:
            return []
        size, count = total_bytes(ranges), len(ranges)
        return self._try(
            "GET", key, lambda: self.inner.get_ranges(key, ranges, same_as=same_as), read=size, count=count
        )

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under a name nobody has, or ConflictError."""
        size = memoryview(data).nbytes
        return self._try("PUT", key, lambda: self.inner.put_if_absent(key, data), written=size)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Store a file under a name that says its hash."""
        self._try("PUT", key, lambda: self.inner.put_file(key, path, digest), written=digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Store bytes chunk by chunk under a name that says their hash."""
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
        """Remove many blobs; those that are absent are none."""
        for start in range(0, len(keys), _TOGETHER):
            some = keys[start : start + _TOGETHER]
            self._try("DELETE", some[0], partial(self.inner.delete_all, some))

    def close(self) -> None:
        """Give back connections."""
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
        attempt, began_s = 0, self._policy.clock()
        while True:
            name = blob_name(self.address, key)
            self.meter.request(operation, name, read=read, written=written, count=count)
            try:
                return call()
            except (UnavailableError, TruncatedError) as error:
                attempt += 1
                if attempt >= self._policy.attempts or (attempt > 2 and isinstance(error, TruncatedError)):
                    raise
                asked_s = getattr(error, "retry_after_s", None)
                if self._policy.is_over(began_s, attempt, asked_s):
                    raise _out_of_time(error, attempt, self._policy.clock() - began_s) from None
                self.meter.retried()
                self._policy.wait(attempt, asked_s)


def _out_of_time(
    error: UnavailableError | TruncatedError, attempts: int, took_s: float
) -> UnavailableError | TruncatedError:
    """The last failure, which also says how long it was tried."""
    times = "once" if attempts == 1 else f"{attempts} times"
    again = type(error)(f"{error.message} (tried {times} in {took_s:.0f} s)", hint=error.hint)
    again.path = error.path
    return again
