"""Memory of large arrays used again once nobody holds them: new memory is cleared page by page, and the old is lost in
gaps between what other threads hold, so that a process that only ever swaps arrays would grow."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import tell_in_child

SMALLEST = 32 << 10
"""Smaller arrays are made anew: that costs less than to keep account of them."""
MOST_KEPT = 128 << 20
"""Bytes that lie ready while nobody uses them."""


class _Memory(np.ndarray[Any, Any]):
    """Bytes of the pool, from numpy: it asks for large pages, which are quicker to clear and to write all over.

    A class of its own, because a view of a lease over a plain array would hold that array and not the lease.
    """


class _Lease(np.ndarray[Any, Any]):
    """An array over memory of the pool; every view keeps it alive, and when it goes the memory goes back."""


class Buffers:
    """Memory by size. What was handed out comes back by itself when the last array over it is gone."""

    def __init__(self) -> None:
        self.in_child()
        tell_in_child(self)

    def in_child(self) -> None:
        """A forked child begins with none."""
        self._lock = threading.Lock()
        self._free: OrderedDict[int, list[_Memory]] = OrderedDict()
        self._kept = 0
        self._returned: deque[_Memory] = deque()

    @property
    def kept_bytes(self) -> int:
        """Bytes that lie ready."""
        with self._lock:
            self._sort()
            return self._kept

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of this shape and type; what it holds is left over from whoever had it."""
        size = dtype.itemsize * math.prod(shape)
        if size < SMALLEST:
            return np.empty(shape, dtype)
        memory = self._taken(size)
        lease = _Lease(shape, dtype, memory)
        # A finaliser may run inside a method of this class, in the same thread: it takes no lock.
        weakref.finalize(lease, self._returned.append, memory).atexit = False
        return lease.view(np.ndarray)

    def _taken(self, size: int) -> _Memory:
        with self._lock:
            self._sort()
            free = self._free.get(size)
            if free:
                self._free.move_to_end(size)
                self._kept -= size
                return free.pop()
        return _Memory((size,), np.uint8)

    def _sort(self) -> None:
        """Put what came back where it is found; what is over the limit goes, first of sizes not asked for lately."""
        while self._returned:
            memory = self._returned.popleft()
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._kept += memory.nbytes
        while self._kept > MOST_KEPT:
            size, free = next(iter(self._free.items()))
            if free:
                free.pop()
                self._kept -= size
            else:
                del self._free[size]


BUFFERS = Buffers()
"""Those of this process."""
