"""How many bytes came over a network and how many were in the page cache, counted for the whole process."""

from __future__ import annotations

from typing import NamedTuple

from warpdata.bytekit.process.locks import ThreadLock


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
