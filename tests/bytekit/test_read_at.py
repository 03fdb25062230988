"""Reads that the system answers in pieces are whole all the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.io.files import FileRangeReader, read_at


def short_reads(patch: pytest.MonkeyPatch, most: int) -> None:
    """From here on the system gives at most so many bytes at a time, as it does above 2 GiB."""
    pread, preadv = os.pread, os.preadv

    def short_preadv(fd: int, buffers: Sequence[Any], offset: int, *flags: int) -> int:
        return preadv(fd, [memoryview(buffers[0]).cast("B")[:most]], offset, *flags)

    patch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, most), offset))
    patch.setattr(os, "preadv", short_preadv)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=enough_examples(50))
@given(
    size=st.integers(0, 300), offset=st.integers(0, 320), wanted=st.integers(0, 320), most=st.integers(1, 80)
)
def test_a_read_ends_only_where_the_file_ends(
    tmp_path: Path, size: int, offset: int, wanted: int, most: int
) -> None:
    data = bytes(i % 251 for i in range(size))
    path = tmp_path / "f"
    path.write_bytes(data)
    out = np.full(wanted, 255, np.uint8)
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.MonkeyPatch.context() as patch:
            short_reads(patch, most)
            count = read_at(fd, out, offset)
            with FileRangeReader(path) as reader:
                assert bytes(reader.read(min(offset, size), size)) == data[offset:]
    finally:
        os.close(fd)
    assert bytes(out[:count]) == data[offset : offset + wanted]
    assert (out[count:] == 255).all()
