"""splitmix64 and the permutations made from it: the same bits on every machine and in every release."""

from __future__ import annotations

import operator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
