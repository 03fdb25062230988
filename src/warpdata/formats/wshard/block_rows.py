"""Rows of a block that stays in its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.wshard.schema import TensorSpec

if TYPE_CHECKING:
    from warpdata.formats.wshard.reader import ShardReader


class BlockRows:
    """Rows of a block that stays in its shard."""

    def __init__(self, shard: ShardReader, block: str, spec: TensorSpec, length: int) -> None:
        self._shard = shard
        self._block = block
        self._array: NDArray[Any] | None = None
        self.spec = spec
        self.length = length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); all of them come verified against the checksum of the block."""
        if start == 0 and end == self.length:
            data = np.frombuffer(self._shard.view(self._block), self.spec.dtype.dtype)
            return data.reshape(self.length, *self.spec.shape)
        if self._array is not None:
            self._shard.verify_rows(self._block, self.spec.row_bytes, start, end)
            return self._array[start:end]
        if (mapped := self._shard.mapped(self._block)) is not None:
            self._array = np.frombuffer(mapped, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
            return self.rows(start, end)
        return self._shard.rows_as(self._block, self.spec, start, end)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}
