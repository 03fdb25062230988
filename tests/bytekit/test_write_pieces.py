"""Many pieces written one after the other: every byte arrives, however few the system takes at a time."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.bytekit.process.system import write_pieces


def written(path: Path, pieces: list[bytes], offset: int) -> bytes:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        assert write_pieces(fd, pieces, offset) == sum(map(len, pieces))
    finally:
        os.close(fd)
    return path.read_bytes()


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_any_number_of_pieces(tmp_path: Path, count: int) -> None:
    pieces = [bytes([i % 251]) * (i % 7) for i in range(count)]
    assert written(tmp_path / "x", pieces, 3)[3:] == b"".join(pieces)


@given(st.lists(st.binary(max_size=9), max_size=30), st.randoms(use_true_random=False))
def test_a_disk_that_takes_a_part(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], dice: random.Random
) -> None:
    whole = os.pwritev

    def some(fd: int, views: list[memoryview], offset: int) -> int:
        joined = b"".join(views)
        return whole(fd, [joined[: dice.randint(1, len(joined))]], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", some)
        assert written(tmp_path_factory.mktemp("w") / "x", pieces, 0) == b"".join(pieces)
