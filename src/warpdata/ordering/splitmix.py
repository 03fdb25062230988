"""splitmix64 and the permutations made from it: the same bits on every machine and in every release."""

from __future__ import annotations

import operator

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


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
    """`count` different ids below `total` in a random order, or all of them where there are not more."""
    if count >= total:
        return keyed_permutation(total, stream_key(seed))
    if 2 * count > total:
        return keyed_permutation(total, stream_key(seed))[:count]
    draws = splitmix64(np.arange(4 * count + 64, dtype=np.uint64) ^ np.uint64(stream_key(seed)))
    ids = (draws % np.uint64(total)).astype(np.int64)
    first = np.sort(np.unique(ids, return_index=True)[1])
    return ids[first[:count]]
