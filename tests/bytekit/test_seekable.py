from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit import codec
from warpdata.errors import FormatError


def unpack(block: bytes, raw_size: int) -> codec.SeekTable:
    size = codec.seek_table_bytes(block[-codec.FOOTER_BYTES :])
    return codec.unpack_seek_table(block[-size:], len(block), raw_size)


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12), st.data())
def test_any_range_comes_from_its_frames(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    block = b"".join(codec.encode_seekable(pieces))
    table = unpack(block, len(whole))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    first, last = table.frames_for(start, end)
    stored = memoryview(block)[table.disk_starts[first] : table.disk_starts[last]]
    raw = table.decode_frames(first, last, stored) if last > first else b""
    skip = start - table.raw_starts[first] if last > first else 0
    assert raw[skip : skip + end - start] == whole[start:end]


def test_other_zstd_readers_see_the_same_bytes() -> None:
    block = b"".join(codec.encode_seekable([b"ab" * 500, b"cd" * 400]))
    with zstandard.ZstdDecompressor().stream_reader(block, read_across_frames=True) as stream:
        assert stream.read() == b"ab" * 500 + b"cd" * 400


def test_every_flip_of_the_table_is_noticed_or_harmless() -> None:
    pieces = [b"ab" * 50, b"cd" * 40, b"e" * 30]
    block = b"".join(codec.encode_seekable(pieces))
    size = codec.seek_table_bytes(block[-codec.FOOTER_BYTES :])
    good = unpack(block, 210)
    for bit in range((len(block) - size) * 8, len(block) * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            table = unpack(bytes(damaged), 210)
        except FormatError:
            continue
        assert table.raw_starts == good.raw_starts


def test_a_block_without_table_is_refused() -> None:
    with pytest.raises(FormatError):
        codec.seek_table_bytes(bytes(9))
