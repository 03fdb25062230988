"""Which sample comes at which position: windows alone, or several of them by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import nearest
from warpdata.loading.windows.aligning import Int64s
from warpdata.loading.windows.schema import FieldSchema
from warpdata.loading.windows.windows import Windows
from warpdata.ordering.blocks import BlockOrder, BlockShape
from warpdata.ordering.quality import ShuffleQuality

Shuffle = Literal["blocks", "full"] | bool

BLOCK_BYTES = 1 << 20
FEWEST, MOST = 16, 256
"""Samples of a block: enough to read a stretch at once, few enough to mix well."""
IN_PLAY, IMAGES_IN_PLAY = 256, 128
_AHEAD = 2048
"""Positions of an epoch that are looked up at once."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Samples of a stretch of an epoch: of which source, in which epoch of the source, which sample."""

    source: Int64s
    epoch: Int64s
    sample: Int64s

    def __len__(self) -> int:
        return len(self.sample)

    def __getitem__(self, key: slice | NDArray[np.bool_]) -> Chosen:
        return Chosen(self.source[key], self.epoch[key], self.sample[key])

    @staticmethod
    def joined(parts: Sequence[Chosen]) -> Chosen:
        """Several stretches as one."""
        return Chosen(
            *(np.concatenate([getattr(p, n) for p in parts]) for n in ("source", "epoch", "sample"))
        )


class Course(Protocol):
    """All positions of all epochs: a pure function."""

    @property
    def sources(self) -> Sequence[Windows]:
        """The windows that samples come from."""

    @property
    def names(self) -> Sequence[str]:
        """What the sources are called."""

    @property
    def id(self) -> str:
        """The identity of all samples."""

    @property
    def data_id(self) -> str:
        """The identity of the episodes alone, whatever is made of them; "" where they grow."""

    def fingerprint(self) -> str:
        """Differs where the order differs, besides seed and epoch."""

    def __len__(self) -> int:
        """Samples of an epoch."""

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch."""

    def quality(self, batch_size: int) -> ShuffleQuality:
        """How far the order is from uniform."""


def window_shape(schema: Mapping[str, FieldSchema], total: int, shuffle: Shuffle) -> BlockShape:
    """The blocks of a shuffle: a function of the fields alone, never of where the bytes lie."""
    if shuffle is False:
        return BlockShape(total, 0, 1)
    if shuffle == "full":
        return BlockShape(total, 1, 1)
    if shuffle is not True and shuffle != "blocks":
        known = ("blocks", "full")
        raise ValueError(
            f"shuffle is True, 'blocks', 'full' or False, not {shuffle!r}.{nearest(str(shuffle), known)}"
        )
    step = sum(each.sample_bytes // max(1, each.rows) for each in schema.values())
    has_images = any(each.is_image for each in schema.values())
    rows = max(FEWEST, min(MOST, BLOCK_BYTES // max(1, step)))
    return BlockShape(total, rows, IMAGES_IN_PLAY if has_images else IN_PLAY)


class PlainCourse:
    """Windows in a shuffled order; every sample once per epoch."""

    def __init__(self, windows: Windows, seed: int, shuffle: Shuffle, total: int | None = None) -> None:
        self.sources = [windows]
        self.names = [""]
        self._seed = seed
        self.shape = window_shape(windows.schema, len(windows) if total is None else total, shuffle)
        self._orders: dict[int, BlockOrder] = {}
        self._ahead: tuple[int, int, Int64s] = (-1, 0, np.empty(0, np.int64))

    @property
    def id(self) -> str:
        """The identity of the windows; of those that grow, of the samples this course has."""
        windows = self.sources[0]
        return windows.prefix_id(len(self)) if windows.follow else windows.id

    @property
    def data_id(self) -> str:
        """The identity of the episodes; "" where they grow."""
        return "" if self.sources[0].follow else self.sources[0].data_id

    def fingerprint(self) -> str:
        """That of the shape."""
        return self.shape.fingerprint()

    def __len__(self) -> int:
        return self.shape.total_rows

    def order(self, epoch: int) -> BlockOrder:
        """The order of an epoch."""
        found = self._orders.get(epoch)
        if found is None:
            found = BlockOrder(self.shape, self._seed, epoch)
            self._orders = {epoch: found}
        return found

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch."""
        samples = self._rows(epoch, start, stop)
        return Chosen(np.zeros(len(samples), np.int64), np.full(len(samples), epoch, np.int64), samples)

    def _rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """The rows of a stretch; those that follow are found along with it, which costs no more than one."""
        known_epoch, low, rows = self._ahead
        if epoch != known_epoch or not low <= start <= stop <= low + len(rows):
            low, rows = start, self.order(epoch).row_ids(start, max(stop, min(start + _AHEAD, len(self))))
            self._ahead = (epoch, low, rows)
        return rows[start - low : stop - low].copy()

    def at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Epoch and sample at positions that count on over all epochs."""
        epochs, inside = np.divmod(positions, max(1, len(self)))
        samples = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            samples[here] = self.order(epoch).rows_at(inside[here])
        return epochs, samples

    def quality(self, batch_size: int) -> ShuffleQuality:
        """How far the order is from uniform."""
        return self.order(0).quality(batch_size)
