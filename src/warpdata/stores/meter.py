"""Counts of what a reader spends, and hard budgets that stop it before it spends more."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import BudgetExceededError

_log = logging.getLogger("warpdata.stores")

Listener = Callable[[str, str, int], None]
"""Called with (operation, blob, bytes) after each request."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on what may be spent; None means no limit."""

    max_bytes: int | None = None
    max_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent so far."""

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
        self._turn = ThreadLock()
        """Held while an answer of unknown size is under way and bytes are limited: nobody spends meanwhile."""
        self._requests = self._read = self._written = self._retries = 0

    @property
    def spent(self) -> Spent:
        """The totals now."""
        return Spent(self._requests, self._read, self._written, self._retries)

    def request(self, operation: str, blob: str, *, read: int = 0, written: int = 0, count: int = 1) -> None:
        """Account for requests about to be made, or raise BudgetExceededError instead."""
        with self._turn if read and self._budget.max_bytes is not None else contextlib.nullcontext():
            self._account(operation, blob, read, written, count)

    def unsized(self) -> contextlib.AbstractContextManager[None]:
        """While an answer is under way whose size is not known."""
        return contextlib.nullcontext() if self._budget.max_bytes is None else self._turn

    def bytes_left(self, wanted: int) -> int:
        """How many bytes of `wanted` an answer of unknown size may have; only within `unsized`."""
        if self._budget.max_bytes is None:
            return wanted
        # An answer that nothing has changed has no bytes: it may be asked for with nothing left to spend.
        return min(wanted, max(1, self._budget.max_bytes - self._read))

    def too_large(self, blob: str) -> BudgetExceededError:
        """The error for an answer that is larger than what is left."""
        limit = self._budget.max_bytes or 0
        fact = f"this is more than the {max(0, limit - self._read)} bytes left of the budget of {limit} bytes"
        return BudgetExceededError(fact, path=blob)

    def _account(self, operation: str, blob: str, read: int, written: int, count: int) -> None:
        with self._lock:
            self._check(blob, read, count)
            self._requests += count
            self._read += read
            self._written += written
        _log.debug("%s %s (%d bytes)", operation, blob, read or written)
        if self._listener is not None:
            self._listener(operation, blob, read or written)

    def received(self, count: int) -> None:
        """Bytes of an answer whose size was not known beforehand; only within `unsized`."""
        with self._lock:
            self._read += count

    def retried(self) -> None:
        """One request failed and will be made again."""
        with self._lock:
            self._retries += 1

    def _check(self, blob: str, read: int, count: int) -> None:
        limit = self._budget
        if limit.max_requests is not None and self._requests + count > limit.max_requests:
            raise BudgetExceededError(f"the budget of {limit.max_requests} requests is used up", path=blob)
        if limit.max_bytes is not None and self._read + read > limit.max_bytes:
            fact = f"{self._read + read} bytes would exceed the budget of {limit.max_bytes} bytes"
            raise BudgetExceededError(fact, path=blob)


class Traffic(NamedTuple):
    """Bytes since the process began."""

    network: int = 0
    """Received from stores."""
    cache: int = 0
    """Found in the page cache when they were first asked for; what is read again counts no more."""

    def since(self, before: Traffic) -> Traffic:
        """What came after another look."""
        return Traffic(self.network - before.network, self.cache - before.cache)


_lock = ThreadLock()
_counts = [0, 0]


def count_traffic(*, network: int = 0, cache: int = 0) -> None:
    """Add to the counts."""
    with _lock:
        _counts[0] += network
        _counts[1] += cache


def traffic() -> Traffic:
    """The counts now."""
    with _lock:
        return Traffic(*_counts)
