"""LEB128, zigzag and delta coding of integer arrays, vectorised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import CorruptLayoutError, TruncatedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_VARINT_BYTES = 10
_BLOCK_BYTES = 1 << 15
"""Bytes decoded at a time: what numpy makes of them stays in the cache of a processor."""
_SHIFTS = np.arange(MAX_VARINT_BYTES, dtype=np.uint64) * np.uint64(7)
_LOW = np.uint64(0x7F)
_SEVEN = np.uint64(7)


def encode_varint(value: int) -> bytes:
    """Unsigned LEB128 of one value."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varints(values: ArrayLike) -> bytes:
    """Unsigned LEB128 of each value, one after the other."""
    return encode_varints_bounds(values)[0]


def encode_varints_bounds(values: ArrayLike) -> tuple[bytes, NDArray[np.int64]]:
    """Unsigned LEB128 and bounds: value i has the bytes from bounds[i] to bounds[i + 1]."""
    numbers = _as_u64(values)
    bounds = np.zeros(numbers.size + 1, np.int64)
    np.cumsum(varint_lengths(numbers), out=bounds[1:])
    out = np.empty(int(bounds[-1]), np.uint8)
    at = bounds[:-1]
    while True:
        out[at] = numbers & _LOW
        more = np.flatnonzero(numbers > _LOW)
        if not len(more):
            return out.tobytes(), bounds
        numbers, at = numbers[more] >> _SEVEN, at[more]
        out[at] |= np.uint8(0x80)
        at += 1


def varint_lengths(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many bytes the LEB128 form of each value takes."""
    lengths = np.ones(values.shape, np.int64)
    at = np.flatnonzero(values > _LOW)
    rest = values[at]  # most are short: only the others are looked at again
    while len(at):
        lengths[at] += 1
        rest >>= _SEVEN
        more = rest > _LOW
        at, rest = at[more], rest[more]
    return lengths


def decode_varints(data: Buffer, count: int | None = None) -> NDArray[np.uint64]:
    """Decode LEB128 values; all of `data`, or exactly the first `count` of them."""
    values, used = decode_varints_prefix(data, count)
    if count is None and used != byte_view(data).nbytes:
        raise TruncatedError("the last varint has no end")
    return values


def decode_varints_prefix(data: Buffer, count: int | None = None) -> tuple[NDArray[np.uint64], int]:
    """Decode up to `count` LEB128 values and return them with the number of bytes they took."""
    raw, used, left = np.frombuffer(byte_view(data), np.uint8), 0, count
    parts: list[NDArray[np.uint64]] = []
    while used < len(raw) and left != 0:
        block = raw[used : used + _BLOCK_BYTES]
        ends = np.flatnonzero(block < 0x80)[:left]
        if not len(ends):
            if len(block) > MAX_VARINT_BYTES:
                raise CorruptLayoutError(f"a varint is longer than {MAX_VARINT_BYTES} bytes")
            break
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        if lengths.max() > MAX_VARINT_BYTES:
            raise CorruptLayoutError(f"a varint is longer than {MAX_VARINT_BYTES} bytes")
        if (block[ends[lengths == MAX_VARINT_BYTES]] > 1).any():  # the tenth byte holds one bit
            raise CorruptLayoutError("a varint does not fit in 64 bits")
        values = (block[starts] & 0x7F).astype(np.uint64)
        longer = np.flatnonzero(lengths > 1)
        for byte in range(1, int(lengths.max())):
            longer = longer[lengths[longer] > byte]
            part = (block[starts[longer] + byte] & 0x7F).astype(np.uint64)
            values[longer] |= part << _SHIFTS[byte]
        parts.append(values)
        used += int(ends[-1]) + 1
        left = None if left is None else left - len(ends)
    if left:
        raise TruncatedError(f"{(count or 0) - left} varints where {count} were expected")
    if len(parts) == 1:
        return parts[0], used
    return np.concatenate([np.zeros(0, np.uint64), *parts]), used


def zigzag_decode(values: ArrayLike) -> NDArray[np.int64]:
    """Signed integers from their zigzag form, in which small magnitudes stay small."""
    unsigned = _as_u64(values)
    sign = (unsigned & np.uint64(1)).astype(np.int64)
    return (unsigned >> np.uint64(1)).view(np.int64) ^ -sign


def delta_encode(values: ArrayLike, restart_interval: int = 0) -> NDArray[np.uint64]:
    """Differences of ascending values; each `restart_interval`-th entry (0: only the first) is absolute."""
    numbers = _as_u64(values)
    if numbers.size and (numbers[1:] < numbers[:-1]).any():
        raise ValueError("delta coding needs ascending values")
    deltas = numbers.copy()
    deltas[1:] -= numbers[:-1]
    if restart_interval:
        deltas[::restart_interval] = numbers[::restart_interval]
    return deltas


def delta_decode(deltas: ArrayLike, restart_interval: int = 0) -> NDArray[np.uint64]:
    """The inverse of `delta_encode`; values that would not ascend are an error."""
    numbers = _as_u64(deltas)
    if numbers.size == 0:
        return numbers.copy()
    interval = restart_interval or numbers.size
    groups = -(-numbers.size // interval)
    padded = np.zeros(groups * interval, np.uint64)
    padded[: numbers.size] = numbers
    values = np.cumsum(padded.reshape(groups, interval), axis=1, dtype=np.uint64).reshape(-1)[: numbers.size]
    if (values[1:] < values[:-1]).any():
        raise CorruptLayoutError("delta-coded values do not ascend")
    return values


def encode_delta_varints(values: ArrayLike, restart_interval: int) -> tuple[bytes, NDArray[np.uint32]]:
    """Delta-coded LEB128 with the byte offset of each restart point."""
    deltas = delta_encode(values, restart_interval)
    data, bounds = encode_varints_bounds(deltas)
    return data, bounds[:-1:restart_interval].astype(np.uint32)


def _as_u64(values: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.uint64)
    if array.dtype.kind not in "ui":
        raise TypeError(f"integers are needed, not {array.dtype}")
    if array.dtype.kind == "i" and (array < 0).any():
        raise ValueError("unsigned integers are needed")
    return np.ascontiguousarray(array.reshape(-1), dtype=np.uint64)
