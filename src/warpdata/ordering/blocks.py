"""The order of an epoch as a function of the position: blocks in a random order, mixed a few at a time.

Rows 0 … total - 1 are cut into blocks of `block_rows`. The blocks are permuted, `blocks_in_play` of them at a time are
one pool, and the rows of a pool are permuted again. Every step is a keyed bijection that is computed by index, so any
position costs the same and nothing is kept in memory. One row per block is a full shuffle. Permutations are made from
splitmix64: the same bits on every machine and in every release.
"""

from __future__ import annotations

import base64
import hashlib
import operator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.process.forks import cached_property
from warpdata.errors import nearest

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_TABLE_BELOW = 1 << 16
"""Up to this count a permutation is a sorted table: small, and no better shuffle exists."""
_ROUNDS = 6


def splitmix64(values: npt.ArrayLike) -> U64:
    """splitmix64 of every value, modulo 2^64."""
    z = np.array(values, np.uint64)
    with np.errstate(over="ignore"):  # numpy warns of a single value that wraps, though wrapping is the point
        z += np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    return z ^ (z >> np.uint64(31))


def splitmix64_of(value: int) -> int:
    """splitmix64 of one integer."""
    z = (value + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def stream_key(*parts: int) -> int:
    """One 64-bit key for a tuple of integers, such as (seed, epoch, purpose)."""
    key = 0
    for part in parts:
        key = splitmix64_of(key ^ (operator.index(part) & _MASK))
    return key


def keyed_permutation(count: int, key: int) -> I64:
    """The permutation of range(count) that sorts splitmix64(i XOR key); ties cannot occur."""
    marks = splitmix64(np.arange(count, dtype=np.uint64) ^ np.uint64(key))
    return np.argsort(marks, kind="stable")


def random_ids(total: int, count: int, seed: int) -> I64:
    """`count` different ids below `total` in a random order, or all of them if there are not more."""
    if 2 * count > total:
        return keyed_permutation(total, stream_key(seed))[:count]
    draws = splitmix64(np.arange(4 * count + 64, dtype=np.uint64) ^ np.uint64(stream_key(seed)))
    ids = (draws % np.uint64(total)).astype(np.int64)
    first = np.sort(np.unique(ids, return_index=True)[1])
    return ids[first[:count]]


def permute(indices: I64, count: int, key: int, *, back: bool = False) -> I64:
    """Indices below `count` under the permutation of this key, or `back` under its inverse, without a full table."""
    return _table(count, key)[back][indices] if count <= _TABLE_BELOW else _walk(indices, count, key, back)


@lru_cache(maxsize=64)
def _table(count: int, key: int) -> tuple[I64, I64]:
    """A permutation and its inverse."""
    table = keyed_permutation(count, key)
    inverse = np.empty(count, np.int64)
    inverse[table] = np.arange(count)
    return table, inverse


def _walk(indices: I64, count: int, key: int, back: bool) -> I64:
    """A Feistel network over the next power of four, repeated until the result is below `count`."""
    keys = []
    for _ in range(_ROUNDS):
        key = splitmix64_of(key)
        keys.append(np.uint64(key))
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    out = np.array(indices, np.uint64)
    flat, rest = out.reshape(-1), np.arange(out.size)
    while rest.size:
        left, right = flat[rest] >> half, flat[rest] & mask
        for part in reversed(keys) if back else keys:
            if back:
                left, right = right ^ (splitmix64(left ^ part) & mask), left
            else:
                left, right = right, left ^ (splitmix64(right ^ part) & mask)
        flat[rest] = mixed = (left << half) | right
        rest = rest[mixed >= np.uint64(count)]
    return out.astype(np.int64)


BLOCKS_STREAM = 3
POOL_STREAM = 4
BLOCK_ORDER_VERSION = 1
_SHUFFLES = ("blocks", "full")


def check_shuffle(shuffle: object) -> None:
    """Raise ValueError for an unknown kind of shuffle."""
    if shuffle is not True and shuffle is not False and shuffle not in _SHUFFLES:
        near = nearest(str(shuffle), _SHUFFLES)
        raise ValueError(f"shuffle is True, 'blocks', 'full' or False, not {shuffle!r}.{near}")


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Blocks a batch draws from, beside those of a uniform shuffle; 1.0 is uniform."""

    blocks_in_play: int
    blocks_per_batch: float
    uniform_blocks_per_batch: float
    same_block_pairs: float
    """Share of row pairs of one batch that were neighbours in one block on disk."""
    uniform_same_block_pairs: float

    @property
    def score(self) -> float:
        """blocks_per_batch over its uniform value."""
        return self.blocks_per_batch / self.uniform_blocks_per_batch


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

    def row_ids(self, start: int, stop: int) -> I64:
        """The rows at positions [start, stop)."""
        return self.rows_at(np.arange(start, stop, dtype=np.int64))

    def rows_at(self, positions: I64) -> I64:
        """The row at each position."""
        shape = self.shape
        if not shape.block_rows or not len(positions):
            return positions.astype(np.int64)
        if shape.block_rows == 1:
            return permute(positions, shape.total_rows, self._blocks_key)
        pools = self._place_of(positions) // shape.blocks_in_play
        first = int(pools.min())
        if first == int(pools.max()):  # nearly always, and np.unique loads a good part of numpy on first use
            return self._in_pool(positions, first)
        out = np.empty(len(positions), np.int64)
        for pool in np.unique(pools).tolist():
            here = pools == pool
            out[here] = self._in_pool(positions[here], pool)
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
        return np.sort(permute(places, self.shape.blocks, self._blocks_key)) if len(places) else places

    def _in_pool(self, positions: I64, pool: int) -> I64:
        shape = self.shape
        low, high = self._start_of(pool * shape.blocks_in_play), self.pool_end(pool)
        key = stream_key(self.seed, self.epoch, POOL_STREAM, pool)
        mixed = low + permute(positions - low, high - low, key)
        places = self._place_of(mixed)
        starts = places * shape.block_rows - np.where(places > self._short_place, self._missing, 0)
        return permute(places, shape.blocks, self._blocks_key) * shape.block_rows + mixed - starts

    @cached_property
    def _blocks_key(self) -> int:
        return stream_key(self.seed, self.epoch, BLOCKS_STREAM)

    @cached_property
    def _missing(self) -> int:
        """How many rows the last block lacks."""
        return self.shape.blocks * self.shape.block_rows - self.shape.total_rows

    @cached_property
    def _short_place(self) -> int:
        """The place of the last block, which may be short."""
        last = np.array([self.shape.blocks - 1], np.int64)
        return int(permute(last, self.shape.blocks, self._blocks_key, back=True)[0])

    def _start_of(self, place: int) -> int:
        """The position at which the block at a place begins."""
        return place * self.shape.block_rows - (self._missing if place > self._short_place else 0)

    def _place_of(self, positions: I64) -> I64:
        """The place of the block of each position before mixing."""
        after = positions >= self._start_of(self._short_place + 1)
        return np.where(after, positions + self._missing, positions) // self.shape.block_rows

    def quality(self, batch_size: int, batches: int = 16) -> ShuffleQuality:
        """How far the order is from a uniform shuffle, measured on batches spread over the epoch."""
        total, rows = self.shape.total_rows, max(1, self.shape.block_rows)
        firsts = np.arange(-(-total // rows), dtype=np.int64) * rows
        sizes = np.minimum(rows, total - firsts)
        batch_size = min(batch_size, total)
        distinct, pairs = [], []
        for start in np.unique(np.linspace(0, total - batch_size, batches).astype(np.int64)).tolist():
            counts = np.bincount(self.row_ids(start, start + batch_size) // rows)
            distinct.append(int(np.count_nonzero(counts)))
            pairs.append(float((counts * (counts - 1)).sum()) / max(1, batch_size * (batch_size - 1)))
        missed = np.exp(batch_size * np.log1p(-np.minimum(sizes / total, 1 - 1e-12)))
        in_play = min(len(firsts), self.shape.blocks_in_play) if self.shape.block_rows != 1 else len(firsts)
        return ShuffleQuality(
            blocks_in_play=in_play,
            blocks_per_batch=float(np.mean(distinct)),
            uniform_blocks_per_batch=float((1 - missed).sum()),
            same_block_pairs=float(np.mean(pairs)),
            uniform_same_block_pairs=float((sizes * (sizes - 1.0)).sum() / max(1.0, total * (total - 1.0))),
        )
