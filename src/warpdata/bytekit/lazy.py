"""Values made on first use and kept: names of a package, and decoded blocks within one budget of bytes."""

from __future__ import annotations

import importlib
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from warpdata.bytekit.process.forks import run_in_child
from warpdata.errors import nearest


def lazy_names(
    package: str, homes: Mapping[str, str], inside: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: names by the module they live in, and modules inside it."""

    def get(name: str) -> Any:
        if name in inside:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            known = nearest(name, [*homes, *inside])
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{known}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted([*homes, *inside])


DEFAULT_BYTES = 192 << 20
"""Enough for what a shuffle of small images has in play; `wd.keep_decoded` changes it."""


class BlockCache:
    """The most recently used blocks of all open readers; a reader's blocks go when it goes."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._owners = itertools.count(1)
        self._clear()
        run_in_child(self._clear)  # the parent may have been changing this at the moment of the fork

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, Hashable], Any] = OrderedDict()
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

    def get(self, owner: int, name: Hashable) -> Any:
        """A block of a reader if it is still here."""
        with self._lock:
            block = self._blocks.get((owner, name))
            if block is not None:
                self._blocks.move_to_end((owner, name))
            return block

    def put(self, owner: int, name: Hashable, block: Any) -> None:
        """Keep a block, anything with `nbytes`, and drop those that were not used for longest."""
        with self._lock:
            self._bury()
            if block.nbytes > self._max_bytes or (owner, name) in self._blocks:
                return
            self._blocks[owner, name] = block
            self._names.setdefault(owner, set()).add(name)
            self._bytes += block.nbytes
            self._trim()

    def drop(self, owner: int, name: Hashable) -> None:
        """Drop a block that is not needed any more."""
        with self._lock:
            self._bury()
            if (owner, name) in self._blocks:
                self._names[owner].discard(name)
                self._bytes -= self._blocks.pop((owner, name)).nbytes

    def forget(self, owner: int) -> None:
        """Drop the blocks of a reader that is gone; safe to call from a finaliser."""
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


BLOCK_CACHE = BlockCache()
"""Those of this process."""
