"""Checksums and hashes by name, whole and running. The adapter of crc32c and xxhash."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Literal, Protocol

import crc32c as _crc32c
import xxhash as _xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

ByteOrder = Literal["little", "big"]

_CASTAGNOLI = 0x82F63B78
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_U64 = (1 << 64) - 1


class _Crc32c(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


crc32c: _Crc32c = _crc32c.crc32c
"""CRC-32C (Castagnoli) of a contiguous buffer, going on from `value`; bound directly, for speed."""


_AT_ONCE_BYTES = 4 << 20


def crc32c_at_once(data: memoryview, value: int = 0) -> int:
    """The same without letting other threads run meanwhile, unless that would be for long.

    A checksum of a frame takes less time than getting back to a thread that gave way.
    """
    if data.nbytes > _AT_ONCE_BYTES:
        return crc32c(data, value)
    checksum: int = _crc32c.crc32c(data, value, gil_release_mode=0)
    return checksum


def join_crc32c(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two neighbours from the checksums of both and the length of the second."""
    return _apply(_shift(second_bytes), first) ^ second


@functools.lru_cache(maxsize=256)
def _shift(length_bytes: int) -> tuple[int, ...]:
    """What appending so many zero bytes does to each bit of a checksum: a linear map, by its columns."""
    columns = tuple(1 << bit for bit in range(32))
    for power in range(length_bytes.bit_length()):
        if length_bytes >> power & 1:
            columns = tuple(_apply(_doubled_shift(power), column) for column in columns)
    return columns


@functools.lru_cache(maxsize=64)
def _doubled_shift(power: int) -> tuple[int, ...]:
    """The map for 2**power zero bytes: that of half as many, applied twice."""
    if power == 0:
        bit = (_CASTAGNOLI, *(1 << bit for bit in range(31)))
        for _ in range(3):
            bit = tuple(_apply(bit, column) for column in bit)
        return bit
    half = _doubled_shift(power - 1)
    return tuple(_apply(half, column) for column in half)


def _apply(columns: tuple[int, ...], value: int) -> int:
    out = 0
    for column in columns:
        if value & 1:
            out ^= column
        value >>= 1
        if not value:
            break
    return out


def xxh64(data: Buffer, seed: int = 0) -> int:
    """XXH64 of a buffer as an unsigned integer."""
    return int(_xxhash.xxh64_intdigest(data, seed))


def xxh3_128(data: Buffer, byteorder: ByteOrder = "big") -> bytes:
    """XXH3-128 of a buffer: 16 bytes, canonical (big-endian) or little-endian."""
    digest: bytes = _xxhash.xxh3_128_digest(data)
    return digest if byteorder == "big" else digest[::-1]


def sha256_hex(data: Buffer) -> str:
    """SHA-256 of a buffer as 64 lowercase hex digits."""
    return hashlib.sha256(data).hexdigest()


def shake256(data: Buffer, size: int) -> bytes:
    """The first `size` bytes of SHAKE-256 of a buffer."""
    return hashlib.shake_256(data).digest(size)


def fnv1a64(data: bytes) -> int:
    """FNV-1a 64-bit hash of a short byte string."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _U64
    return value


RunningXxh3128 = _xxhash.xxh3_128
"""XXH3-128 of a stream of pieces: `update`, `digest` and `hexdigest`, canonical (big-endian)."""
RunningSha256 = hashlib.sha256
"""SHA-256 of a stream of pieces: `update` and `hexdigest`."""
