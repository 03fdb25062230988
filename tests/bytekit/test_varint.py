from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit import varint
from warpdata.errors import CorruptLayoutError, FormatError, TruncatedError

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def slow_leb128(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


@given(st.lists(U64 | st.integers(0, 63).map(lambda bit: 1 << bit), max_size=50))
def test_encodes_as_leb128_and_back(values: list[int]) -> None:
    packed = varint.encode_varints(np.array(values, np.uint64))
    assert packed == b"".join(slow_leb128(value) for value in values)
    assert packed == b"".join(map(varint.encode_varint, values))
    assert varint.decode_varints(packed).tolist() == values
    again, bounds = varint.encode_varints_bounds(np.array(values, np.uint64))
    assert [again[a:b] for a, b in itertools.pairwise(bounds.tolist())] == list(map(slow_leb128, values))


@given(st.lists(U64, min_size=1, max_size=20), st.data())
def test_prefix_stops_after_count(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(values)))
    packed = varint.encode_varints(np.array(values, np.uint64))
    found, used = varint.decode_varints_prefix(packed, count)
    assert found.tolist() == values[:count]
    assert used == sum(len(slow_leb128(value)) for value in values[:count])


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_fail_cleanly(data: bytes) -> None:
    try:
        varint.decode_varints(data)
    except FormatError:
        pass


def test_damage_is_named() -> None:
    with pytest.raises(TruncatedError):
        varint.decode_varints(b"\x80")
    with pytest.raises(TruncatedError):
        varint.decode_varints(b"\x01", 2)
    with pytest.raises(CorruptLayoutError, match="10 bytes"):
        varint.decode_varints(b"\x80" * 10 + b"\x01")
    with pytest.raises(CorruptLayoutError, match="64 bits"):
        varint.decode_varints(b"\xff" * 9 + b"\x02")


@given(st.lists(I64, max_size=50))
def test_zigzag_is_decoded(values: list[int]) -> None:
    packed = [2 * value if value >= 0 else -2 * value - 1 for value in values]
    assert varint.zigzag_decode(np.array(packed, np.uint64)).tolist() == values


@given(st.lists(U64, max_size=60).map(sorted), st.integers(0, 9))
def test_delta_round_trip(values: list[int], interval: int) -> None:
    deltas = varint.delta_encode(np.array(values, np.uint64), interval)
    assert varint.delta_decode(deltas, interval).tolist() == values


@given(st.lists(U64, min_size=1, max_size=60).map(sorted), st.integers(1, 9))
def test_restart_points_can_be_entered(values: list[int], interval: int) -> None:
    packed, offsets = varint.encode_delta_varints(np.array(values, np.uint64), interval)
    for group, offset in enumerate(offsets.tolist()):
        expected = values[group * interval : (group + 1) * interval]
        deltas, _ = varint.decode_varints_prefix(packed[offset:], len(expected))
        assert varint.delta_decode(deltas).tolist() == expected


def test_delta_reference() -> None:
    assert varint.delta_encode([100, 105, 108, 120, 200]).tolist() == [100, 5, 3, 12, 80]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="ascending"):
        varint.delta_encode([2, 1])
    with pytest.raises(ValueError, match="unsigned"):
        varint.encode_varints([-1])
    with pytest.raises(TypeError):
        varint.encode_varints([1.5])
    with pytest.raises(CorruptLayoutError):
        varint.delta_decode(np.array([5, 2**64 - 2], np.uint64))
