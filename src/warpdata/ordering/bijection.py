"""Keyed permutations that are computed one index at a time, without a table of all of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from warpdata.ordering.splitmix import I64, U64, keyed_permutation, splitmix64, splitmix64_of

_TABLE_BELOW = 1 << 16
"""So few are permuted by sorting: a table of them is small, and no better shuffle exists."""
_ROUNDS = 6


def permuted(indices: I64, count: int, key: int) -> I64:
    """Where each index below `count` goes under the permutation of this key."""
    if count <= _TABLE_BELOW:
        return _table(count, key)[indices]
    return _walked(indices, count, _round_keys(key))


def restored(indices: I64, count: int, key: int) -> I64:
    """What `permuted` took to these indices."""
    if count <= _TABLE_BELOW:
        return _inverse(count, key)[indices]
    return _walked(indices, count, _round_keys(key), back=True)


@lru_cache(maxsize=64)
def _table(count: int, key: int) -> I64:
    return keyed_permutation(count, key)


@lru_cache(maxsize=16)
def _inverse(count: int, key: int) -> I64:
    table = _table(count, key)
    out = np.empty(count, np.int64)
    out[table] = np.arange(count)
    return out


def _round_keys(key: int) -> list[np.uint64]:
    keys = []
    for _ in range(_ROUNDS):
        key = splitmix64_of(key)
        keys.append(np.uint64(key))
    return keys


def _walked(indices: I64, count: int, keys: list[np.uint64], *, back: bool = False) -> I64:
    """A Feistel network over the next power of four, walked along until it is below `count`."""
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    out = np.array(indices, np.uint64)
    rest = np.arange(out.size)
    flat = out.reshape(-1)
    while rest.size:
        found = _unmixed(flat[rest], half, keys) if back else _mixed(flat[rest], half, keys)
        flat[rest] = found
        rest = rest[found >= np.uint64(count)]
    return out.astype(np.int64)


def _mixed(values: U64, half: np.uint64, keys: list[np.uint64]) -> U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (splitmix64(right ^ key) & mask)
    return (left << half) | right


def _unmixed(values: U64, half: np.uint64, keys: list[np.uint64]) -> U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in reversed(keys):
        left, right = right ^ (splitmix64(left ^ key) & mask), left
    return (left << half) | right
