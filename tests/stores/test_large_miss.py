"""What the page cache keeps of a miss of any length, and what it says when it cannot."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from tests.memory_store import MemoryStore
from warpdata.bytekit.checksum import sha256_hex
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.blobstore import PAGE_BYTES
from warpdata.stores.pagecache import PageCache


def reader_of(data: bytes, folder: Path) -> BlobReader:
    store = MemoryStore()
    store.put_if_absent("b", data)
    return BlobReader(
        BlobAddress(sha256_hex(data), len(data), "b", "blob"), store, PageCache(folder, 1 << 30)
    )


@pytest.mark.parametrize("pages", [1023, 1024, 1025, 1100])
def test_a_contiguous_miss_is_kept_whole(tmp_path: Path, pages: int) -> None:
    data = bytes(pages * PAGE_BYTES - 5)
    reader = reader_of(data, tmp_path)
    assert reader.read(0, len(data)).nbytes == len(data)
    assert reader.missing_bytes() == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EINVAL])
def test_a_failing_disk_is_said_once_and_fails_no_read(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", fail)
    data = bytes(range(256)) * 1024
    reader = reader_of(data, tmp_path)
    with caplog.at_level(logging.WARNING, "warpdata.stores"):
        for _ in range(3):
            assert bytes(reader.read(5, 200_000)) == data[5:200_000]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "without the cache" in caplog.text
