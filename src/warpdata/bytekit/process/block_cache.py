"""Blocks that were costly to bring or to decode, kept within one budget of bytes of the whole process."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable

from warpdata.bytekit.process.forks import run_in_child

DEFAULT_BYTES = 192 << 20
"""Enough for what a shuffle of small images has in play; `wd.keep_decoded` says otherwise."""


class KeptBlocks:
    """The most recently used blocks of all open readers; a reader's blocks go when it goes."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners = itertools.count(1)
        self._clear()
        run_in_child(self._clear)  # the parent may have been changing this at the moment of the fork

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, Hashable], memoryview] = OrderedDict()
        self._names: dict[int, set[Hashable]] = {}
        self._gone: deque[int] = deque()
        self._bytes = 0

    @property
    def max_bytes(self) -> int:
        """How many bytes are kept at most; a block larger than this is never kept."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"a budget of {value} bytes")
        with self._lock:
            self._max_bytes = value
            self._trim()

    @property
    def held_bytes(self) -> int:
        """How many bytes are kept now."""
        with self._lock:
            self._bury()
            return self._bytes

    def new_owner(self) -> int:
        """A number no other reader of this process has."""
        return next(self._owners)

    def of(self, owner: int) -> Collection[Hashable]:
        """What is kept of a reader, at this moment."""
        return self._names.get(owner, ())

    def get(self, owner: int, name: Hashable) -> memoryview | None:
        """A block of a reader if it is still here."""
        with self._lock:
            found = self._blocks.get((owner, name))
            if found is not None:
                self._blocks.move_to_end((owner, name))
            return found

    def put(self, owner: int, name: Hashable, block: memoryview) -> None:
        """Keep a block, and let go of those that were not used for longest."""
        with self._lock:
            self._bury()
            if block.nbytes > self._max_bytes or (owner, name) in self._blocks:
                return
            self._blocks[owner, name] = block
            self._names.setdefault(owner, set()).add(name)
            self._bytes += block.nbytes
            self._trim()

    def forget(self, owner: int) -> None:
        """Let go of the blocks of a reader that is gone; safe to call from a finaliser."""
        # The collector may run in the middle of any method above, where waiting for the lock would be for ever.
        self._gone.append(owner)
        if self._lock.acquire(blocking=False):
            try:
                self._bury()
            finally:
                self._lock.release()

    def _bury(self) -> None:
        while self._gone:
            owner = self._gone.popleft()
            for name in self._names.pop(owner, ()):
                self._bytes -= self._blocks.pop((owner, name)).nbytes

    def _trim(self) -> None:
        while self._bytes > self._max_bytes:
            (owner, name), block = self._blocks.popitem(last=False)
            self._names[owner].discard(name)
            self._bytes -= block.nbytes


KEPT = KeptBlocks()
"""Those of this process."""
