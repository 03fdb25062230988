"""Memory of large arrays used again once nobody holds them: new memory would be cleared page by page each time."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.forks import tell_in_child

SMALLEST = 1 << 20
"""Smaller arrays are made anew: that costs nothing."""
MOST_KEPT = 256 << 20
"""Bytes that lie ready while nobody uses them."""


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
        self._free: dict[int, list[bytearray]] = {}
        self._kept = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of this shape and type; what it holds is left over from whoever had it."""
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if size < SMALLEST:
            return np.empty(shape, dtype)
        memory = self._taken(size)
        lease = _Lease(shape, dtype, memory)
        weakref.finalize(lease, self._given_back, memory).atexit = False
        return lease.view(np.ndarray)

    def _taken(self, size: int) -> bytearray:
        with self._lock:
            free = self._free.get(size)
            if free:
                self._kept -= size
                return free.pop()
        return bytearray(size)

    def _given_back(self, memory: bytearray) -> None:
        # A finaliser may run inside a method above, in the same thread: waiting for the lock would be for ever.
        if self._lock.acquire(blocking=False):
            try:
                if self._kept + len(memory) <= MOST_KEPT:
                    self._free.setdefault(len(memory), []).append(memory)
                    self._kept += len(memory)
            finally:
                self._lock.release()


BUFFERS = Buffers()
"""Those of this process."""
