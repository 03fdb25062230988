"""A camera whose frames are encoded one by one (JPEG, PNG): decoded on demand, copied as they are."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of, read_only
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.formats.episodedir.pictures import Still, decode_stills, still_of
from warpdata.timeline.memory import ClockedSignal
from warpdata.timeline.meta import Role, SignalMeta

_FEW = 16
"""So many frames at once are a window; more are read once, from front to back."""


class StillsSignal(ClockedSignal):
    """Encoded pictures as a signal; a backend gives `pictures` and the times."""

    def __init__(
        self, name: str, *, role: Role = "observation", clock: str | None = None, has_axis: bool = False
    ) -> None:
        """`has_axis`: frames of a single plane have an axis for it, HxWx1."""
        self.name = name
        self._has_axis = has_axis
        self._role: Role = role
        self._clock_name = clock
        self._still: Still | None = None
        self._meta: SignalMeta | None = None
        self._owner: int | None = None

    @property
    @abstractmethod
    def place(self) -> str:
        """Path of the pictures, for messages."""

    @abstractmethod
    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """The encoded pictures of these records."""

    @property
    def still(self) -> Still:
        """What the pictures are, by the head of the first one."""
        if self._still is None:
            found = still_of(self.pictures(range(1))[0], f"{self.place} ({self.name!r}, picture 0)")
            if self._has_axis and not found.shape.is_colour:
                found = found._replace(shape=found.shape._replace(channels=1))
            self._still = found
        return self._still

    @property
    def meta(self) -> SignalMeta:
        """Shape and element type of one frame."""
        if self._meta is None:
            shape = self.still.shape
            dtype = dtype_of(np.dtype(shape.dtype)).dtype
            self._meta = SignalMeta(dtype, shape.shape, "image", role=self._role, clock=self._clock_name)
        return self._meta

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return np.empty((0, *self.meta.shape), self.meta.dtype)
        rows = indices.tolist()
        return read_only(self._decoded(rows) if len(rows) > _FEW else self._few(rows))

    def _decoded(self, rows: Sequence[int]) -> NDArray[Any]:
        return decode_stills(self.pictures(rows), self.still, f"{self.place} ({self.name!r})", rows)

    def _few(self, rows: list[int]) -> NDArray[Any]:
        """The frames of windows and single samples, which are used again: in the next window, the next epoch."""
        if self._owner is None:
            self._owner = BLOCK_CACHE.new_owner()
            weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False
        meta = self.meta
        out = np.empty((len(rows), *meta.shape), meta.dtype)
        missing = []
        for place, row in enumerate(rows):
            kept = BLOCK_CACHE.get(self._owner, row)
            if kept is None:
                missing.append(place)
            else:
                out[place] = np.frombuffer(kept, meta.dtype).reshape(meta.shape)
        if missing:
            wanted = [rows[place] for place in missing]
            for place, row, frame in zip(missing, wanted, self._decoded(wanted), strict=True):
                out[place] = frame
                BLOCK_CACHE.put(self._owner, row, frame.copy().data.cast("B"))
        return out
