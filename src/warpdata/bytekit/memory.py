"""Memory of large arrays, kept and used again."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process import system

_LARGE_BYTES, _HUGE_BYTES = 1 << 18, 1 << 22


class RecycledArrays:
    """Large arrays whose memory is used again once nothing refers to them: new memory costs a fault per page.

    Memory that does not fit is released before more is taken: no more is held than was in use at one time.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of any content."""
        count = math.prod(shape)
        size = dtype.itemsize * count
        if size < _LARGE_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        # Mapped by itself: on the heap, beside short-lived buffers of decoders, it would leave holes that grow.
        memory = self._take(size)
        if memory is None:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if size >= _HUGE_BYTES:
                system.use_huge_pages(memory)
        # Views of this array, and tensors over it, refer to it and not to the memory.
        array = np.frombuffer(memory, dtype, count)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array.reshape(shape)

    def _take(self, size: int) -> mmap.mmap | None:
        """Free memory of about a size. Threads may call it at once: what one has taken out no other sees."""
        with contextlib.suppress(IndexError):  # nothing is free
            for _ in range(len(self._free)):
                memory = self._free.pop()
                if size <= len(memory) <= 2 * size:
                    return memory
                self._free.appendleft(memory)
            while size > 0:
                size -= len(self._free.popleft())
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecycledArrays, ())
