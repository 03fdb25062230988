from __future__ import annotations

import tracemalloc

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit import codec
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError

COMPRESSED = ("zstd", "lz4")


@given(st.binary(max_size=2000), st.sampled_from(codec.CODEC_NAMES), st.sampled_from([None, 1, 5]))
def test_round_trip(data: bytes, name: str, level: int | None) -> None:
    assert codec.decode(name, codec.encode(name, data, level), len(data)) == data


@pytest.mark.parametrize("name", codec.CODEC_NAMES)
@pytest.mark.parametrize("wrong", [-1, 1, 1000])
def test_wrong_size_is_an_error(name: str, wrong: int) -> None:
    packed = codec.encode(name, b"abcd" * 100)
    with pytest.raises(FormatError):
        codec.decode(name, packed, 400 + wrong)


@pytest.mark.parametrize("name", COMPRESSED)
@given(data=st.binary(min_size=1, max_size=200), flip=st.integers(0, 10_000))
def test_flipped_bits_never_escape(name: str, data: bytes, flip: int) -> None:
    packed = bytearray(codec.encode(name, data))
    packed[flip // 8 % len(packed)] ^= 1 << flip % 8
    try:
        assert len(codec.decode(name, packed, len(data))) == len(data)
    except FormatError:
        pass


def test_bomb_is_refused_before_memory_is_taken() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    tracemalloc.start()
    with pytest.raises(LimitExceededError):
        codec.decode("zstd", bomb, 100)
    with pytest.raises(LimitExceededError):
        codec.decode("zstd", bomb[:100], 1 << 40)
    with pytest.raises(LimitExceededError):
        codec.decode("lz4", b"x" * 100, 1 << 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_unknown_size_and_many_frames_are_read_up_to_the_cap() -> None:
    context = zstandard.ZstdCompressor(write_content_size=False)
    unsized = context.compress(b"a" * 5000)
    assert codec.decode("zstd", unsized, 5000) == b"a" * 5000
    frames = zstandard.ZstdCompressor().compress(b"a" * 3000) + zstandard.ZstdCompressor().compress(b"b" * 10)
    assert codec.decode("zstd", frames, 3010) == b"a" * 3000 + b"b" * 10
    for size in (4999, 5001):
        with pytest.raises(CorruptLayoutError):
            codec.decode("zstd", unsized, size)


def test_a_window_too_large_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    context = zstandard.ZstdCompressor(compression_params=parameters)
    stream = context.compressobj()
    packed = stream.compress(bytes(10)) + stream.flush()
    with pytest.raises(FormatError):
        codec.decode("zstd", packed, 10)


def test_streamed_frame_equals_one_frame_with_size() -> None:
    pieces = [np.full(1000, value, np.float32) for value in range(20)]
    packed = b"".join(codec.encode_zstd_stream(pieces, 80_000))
    assert codec.zstd_frame_size(packed) == 80_000
    assert codec.decode("zstd", packed, 80_000) == b"".join(piece.tobytes() for piece in pieces)


def test_unknown_codec_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown codec"):
        codec.encode("gzip", b"")
    with pytest.raises(ValueError, match="unknown codec"):
        codec.decode("gzip", b"", 0)


def _frame(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data, store_size=True))


@pytest.mark.parametrize(
    ("data", "raw_size", "kind"),
    [
        (_frame(b"a" * 100), 99, CorruptLayoutError),
        (_frame(b"a" * 100), 101, CorruptLayoutError),
        (_frame(bytes(range(200)))[:-9], 200, CorruptLayoutError),
        (b"\0" + _frame(b"abc"), 3, CorruptLayoutError),
        (_frame(b"abc"), 1 << 40, LimitExceededError),
        (b"", 0, CorruptLayoutError),
    ],
    ids=["more", "fewer", "cut", "no frame", "bomb", "nothing"],
)
def test_a_damaged_lz4_frame_is_refused(data: bytes, raw_size: int, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        codec.decode_lz4_frame(data, raw_size)


@pytest.mark.parametrize(
    "data",
    [
        zstandard.compress(bytes(500))[:7],
        b"\0" * 12,
        zstandard.compress(bytes(range(200)))[:-20],
        zstandard.compress(b"first") + zstandard.compress(b"second")[:-1],
        zstandard.compress(b"first") + b"behind it",
    ],
    ids=["head alone", "no frame", "cut", "second cut", "garbage behind"],
)
def test_damaged_frames_of_unknown_size_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptLayoutError):
        codec.decode_zstd_bounded(data, 10_000)


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_frames_of_unknown_size_are_read_whole(parts: list[bytes]) -> None:
    data = b"".join(zstandard.ZstdCompressor(write_content_size=False).compress(part) for part in parts)
    assert codec.decode_zstd_bounded(data, 10_000) == b"".join(parts)
