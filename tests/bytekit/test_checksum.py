from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit import checksum

CASTAGNOLI = 0x82F63B78


def slow_crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (CASTAGNOLI if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_reference_values() -> None:
    assert checksum.crc32c(b"hello") == 0x9A71BB4C
    assert checksum.xxh64(b"signal/obs") == 0x86F8C8413116A0AE
    assert checksum.xxh64(b"meta/manifest") == 0x9A191DCD325813D3
    assert checksum.fnv1a64(b"") == 0xCBF29CE484222325
    assert checksum.fnv1a64(b"a") == 0xAF63DC4C8601EC8C
    assert checksum.xxh3_128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert checksum.sha256_hex(b"abc").startswith("ba7816bf")
    assert checksum.shake256(b"", 4).hex() == "46b9dd2b"


@given(st.binary(max_size=300))
def test_crc32c_is_castagnoli(data: bytes) -> None:
    assert checksum.crc32c(data) == slow_crc32c(data)


@pytest.mark.parametrize("size", [0, 1, 40_000, (4 << 20) + 1])
def test_a_checksum_at_once_is_the_same(size: int) -> None:
    data = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    assert checksum.crc32c_at_once(data) == checksum.crc32c(data)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_checksums_of_neighbours_can_be_joined(first: bytes, second: bytes) -> None:
    joined = checksum.join_crc32c(checksum.crc32c(first), checksum.crc32c(second), len(second))
    assert joined == checksum.crc32c(first + second)


@given(st.binary(max_size=100))
def test_byte_orders_mirror_each_other(data: bytes) -> None:
    assert checksum.xxh3_128(data, "little") == checksum.xxh3_128(data, "big")[::-1]


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_running_forms_equal_whole_forms(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    x128, sha = checksum.RunningXxh3128(), checksum.RunningSha256()
    for piece in pieces:
        x128.update(piece)
        sha.update(piece)
    whole = b"".join(pieces)
    assert x128.digest() == checksum.xxh3_128(whole)
    assert sha.hexdigest() == checksum.sha256_hex(whole)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_any_buffer_is_taken(kind: type) -> None:
    assert checksum.crc32c(kind(b"hello")) == 0x9A71BB4C
