"""A file that is not as it was hashed any more is noticed, whoever reads it and whatever was done to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from warpdata.errors import ChecksumError, StoreError, WarpError
from warpdata.stores import blobstore
from warpdata.stores.blobstore import (
    PAGE_BYTES,
    FileDigest,
    check_unchanged,
    checked_chunks,
    digest_file,
)

DATA = np.random.default_rng(2).bytes(3 * PAGE_BYTES + 7)


def flipped(at: int) -> bytes:
    return DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]


CHANGES = {
    "first byte": flipped(0),
    "last byte": flipped(len(DATA) - 1),
    "cut": DATA[:-1],
    "cut at a page": DATA[: 2 * PAGE_BYTES],
    "empty": b"",
    "longer": DATA + b"x",
    "a page longer": DATA + bytes(PAGE_BYTES),
}


def send(path: Path, expected: FileDigest) -> None:
    assert b"".join(bytes(chunk) for chunk in checked_chunks(path, expected)) == DATA


@pytest.mark.parametrize("use", [check_unchanged, send])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(
    change: str, use: Callable[[Path, FileDigest], None], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    expected = digest_file(path)
    use(path, expected)
    os.utime(path, ns=(1, 1))
    use(path, expected)  # only touched
    path.write_bytes(CHANGES[change])
    with pytest.raises(ChecksumError, match="the file changed") as caught:
        use(path, expected)
    assert "no program writes to it" in caught.value.hint


def test_a_change_while_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    chunks = blobstore._chunks

    def disturbed(source: Path) -> Iterator[memoryview]:
        for chunk in chunks(source):
            yield chunk
            source.write_bytes(flipped(0) + b"x")

    monkeypatch.setattr(blobstore, "_chunks", disturbed)
    with pytest.raises(ChecksumError, match="changed while it was read"):
        digest_file(path)


@pytest.mark.parametrize("use", [check_unchanged, send])
def test_a_file_that_is_gone(use: Callable[[Path, FileDigest], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    expected = digest_file(path)
    path.unlink()
    with pytest.raises(WarpError, match=r"no such file|No such file") as caught:
        use(path, expected)
    assert isinstance(caught.value, StoreError)
    with pytest.raises(StoreError, match="No such file"):
        digest_file(path)
