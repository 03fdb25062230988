"""The order of an epoch as a function of the position: blocks in a random order, mixed a few at a time.

Rows 0 … total − 1 are cut into blocks of `block_rows`. The blocks are permuted, `blocks_in_play` of them at a time are
one pool, and the rows of a pool are permuted again. Every step is a keyed bijection that is computed by index, so any
position costs the same and nothing is kept in memory. One row per block is a full shuffle.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

import numpy as np

from warpdata.bytekit.lazy import cached_property
from warpdata.ordering.bijection import permuted, restored
from warpdata.ordering.quality import ShuffleQuality, quality_of
from warpdata.ordering.splitmix import I64, stream_key

BLOCKS_STREAM = 3
POOL_STREAM = 4
BLOCK_ORDER_VERSION = 1


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Everything an order depends on besides seed and epoch; `block_rows` of 0 is the order of the rows themselves."""

    total_rows: int
    block_rows: int
    blocks_in_play: int

    def __post_init__(self) -> None:
        if self.total_rows < 0 or self.block_rows < 0 or self.blocks_in_play < 1:
            raise ValueError("a shuffle has rows, rows per block and at least one block in play")

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.total_rows // self.block_rows) if self.block_rows else 0

    def fingerprint(self) -> str:
        """Eight characters that differ for shapes whose orders differ."""
        text = f"{BLOCK_ORDER_VERSION}|{self.total_rows}|{self.block_rows}|{self.blocks_in_play}"
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:6]).decode()


class BlockOrder:
    """Every row exactly once, in an order that is a pure function of (shape, seed, epoch)."""

    def __init__(self, shape: BlockShape, seed: int, epoch: int) -> None:
        self.shape = shape
        self.seed = seed
        self.epoch = epoch
        self.total_rows = shape.total_rows

    def row_ids(self, start: int, stop: int) -> I64:
        """The rows at positions [start, stop)."""
        return self.rows_at(np.arange(start, stop, dtype=np.int64))

    def rows_at(self, positions: I64) -> I64:
        """The row at each position."""
        shape = self.shape
        if not shape.block_rows or not len(positions):
            return positions.astype(np.int64)
        if shape.block_rows == 1:
            return permuted(positions, shape.total_rows, self._blocks_key)
        pools = self._place_of(positions) // shape.blocks_in_play
        first = int(pools.min())
        if first == int(
            pools.max()
        ):  # nearly always, and np.unique loads a good part of numpy when first used
            return self._in_pool(positions, first)
        out = np.empty(len(positions), np.int64)
        for pool in np.unique(pools).tolist():
            chosen = pools == pool
            out[chosen] = self._in_pool(positions[chosen], pool)
        return out

    def pool_at(self, position: int) -> int:
        """The pool of a position: rows of one pool come from the same blocks."""
        return int(self._place_of(np.array([position], np.int64))[0]) // self.shape.blocks_in_play

    def pool_end(self, pool: int) -> int:
        """The position after the last row of a pool."""
        return min(self._start_of((pool + 1) * self.shape.blocks_in_play), self.shape.total_rows)

    def pool_blocks(self, pool: int) -> I64:
        """The blocks of a pool by number, ascending; empty after the last pool."""
        size = self.shape.blocks_in_play
        places = np.arange(pool * size, min((pool + 1) * size, self.shape.blocks), dtype=np.int64)
        return np.sort(permuted(places, self.shape.blocks, self._blocks_key)) if len(places) else places

    def _in_pool(self, positions: I64, pool: int) -> I64:
        shape = self.shape
        low = self._start_of(pool * shape.blocks_in_play)
        high = self.pool_end(pool)
        mixed = low + permuted(
            positions - low, high - low, stream_key(self.seed, self.epoch, POOL_STREAM, pool)
        )
        places = self._place_of(mixed)
        starts = places * shape.block_rows - np.where(places > self._short_place, self._missing, 0)
        return permuted(places, shape.blocks, self._blocks_key) * shape.block_rows + mixed - starts

    @cached_property
    def _blocks_key(self) -> int:
        return stream_key(self.seed, self.epoch, BLOCKS_STREAM)

    @cached_property
    def _missing(self) -> int:
        """How many rows the last block lacks."""
        return self.shape.blocks * self.shape.block_rows - self.shape.total_rows

    @cached_property
    def _short_place(self) -> int:
        """Where the last block, which may be short, is put."""
        last = np.array([self.shape.blocks - 1], np.int64)
        return int(restored(last, self.shape.blocks, self._blocks_key)[0])

    def _start_of(self, place: int) -> int:
        """The position at which the block at a place begins."""
        return place * self.shape.block_rows - (self._missing if place > self._short_place else 0)

    def _place_of(self, positions: I64) -> I64:
        """The place of the block that a position before mixing belongs to."""
        rows = self.shape.block_rows
        after = positions >= self._start_of(self._short_place + 1)
        return np.where(after, positions + self._missing, positions) // rows

    def quality(self, batch_size: int, batches: int = 16) -> ShuffleQuality:
        """How far the order is from a uniform shuffle, measured on batches spread over the epoch."""
        shape = self.shape
        rows = max(1, shape.block_rows)
        first = np.arange(-(-shape.total_rows // rows), dtype=np.int64) * rows
        sizes = np.minimum(rows, shape.total_rows - first)
        in_play = min(len(first), shape.blocks_in_play) if shape.block_rows != 1 else len(first)
        return quality_of(self.row_ids, (first, sizes), in_play, batch_size, batches)
