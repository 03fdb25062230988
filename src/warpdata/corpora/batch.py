"""What a row source gives: rows and their ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]
RowIds = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Some rows of a corpus: `row_ids[k]` is the stable global id of `rows[k]`."""

    rows: Rows
    row_ids: RowIds

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def is_empty(self) -> bool:
        """True if there is no row."""
        return not len(self.row_ids)


@runtime_checkable
class RowSource(Protocol):
    """Rows in a fixed global order with stable ids, the same on every run, platform and backend."""

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""

    @property
    def width(self) -> int:
        """Columns of a row."""

    @property
    def batch_rows(self) -> int:
        """The most rows `next_batch` gives at a time."""

    def next_batch(self) -> RowBatch | None:
        """The next rows, or None after the last."""

    def reset(self) -> None:
        """Begin again at the first row."""

    def __iter__(self) -> Iterator[RowBatch]:
        """The batches from here to the end."""
