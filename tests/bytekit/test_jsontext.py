from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FLOATS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_round_trip(value: dict[str, object]) -> None:
    try:
        packed = dump_json(value)
    except UnicodeEncodeError:
        return
    assert parse_json_object(packed) == value


@given(st.binary(max_size=200))
def test_any_bytes_fail_cleanly(data: bytes) -> None:
    try:
        parse_json_object(data)
    except FormatError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"3",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":[-2.5e400]}',
        b'{"a":1,"a":2}',
        b"\xff\xfe",
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"9" * 10_000 + b"}",
        b'{"a":1}x',
    ],
)
def test_absurd_json_is_a_format_error(text: bytes) -> None:
    with pytest.raises(CorruptLayoutError):
        parse_json_object(text)


def test_size_is_bounded() -> None:
    with pytest.raises(LimitExceededError):
        parse_json_object(b'{"a":"' + b"x" * 100 + b'"}', max_bytes=50)


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        dump_json({"a": float("nan")})
