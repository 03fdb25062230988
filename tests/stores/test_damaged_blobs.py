"""Blobs that are not as they were published, in a folder, a store or a cache: no byte of them is believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.memory_store import MemoryStore, digest_bytes
from warpdata.bytekit.checksum import sha256_hex
from warpdata.errors import BlobNotFoundError, ChecksumError
from warpdata.stores.blobs import BlobAddress, BlobReader, LocalBlobReader
from warpdata.stores.blobstore import PAGE_BYTES
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache

DATA = np.random.default_rng(3).bytes(2 * PAGE_BYTES + 5)
ADDRESS = BlobAddress(sha256_hex(DATA), len(DATA), "b", "blob")
SUMS = digest_bytes(DATA).page_sums
BAD = DATA[:PAGE_BYTES] + bytes([DATA[PAGE_BYTES] ^ 1]) + DATA[PAGE_BYTES + 1 :]

Open = Callable[[bytes, Path], BlobReader]


def in_folder(data: bytes, folder: Path) -> BlobReader:
    store = LocalStore(folder / "store")
    store.put_if_absent("b", data)
    return LocalBlobReader(ADDRESS, store, SUMS)


def in_store(data: bytes, folder: Path) -> BlobReader:
    store = MemoryStore()
    store.put_if_absent("b", data)
    return BlobReader(ADDRESS, store, None, SUMS)


def through_cache(data: bytes, folder: Path) -> BlobReader:
    store = MemoryStore()
    store.put_if_absent("b", data)
    return BlobReader(ADDRESS, store, PageCache(folder / "cache", 1 << 20), SUMS)


@pytest.mark.parametrize("opened", [in_folder, in_store, through_cache])
def test_a_byte_that_changed(opened: Open, tmp_path: Path) -> None:
    reader = opened(BAD, tmp_path)
    assert bytes(reader.read(0, PAGE_BYTES)) == DATA[:PAGE_BYTES], "the other pages are as they were"
    for start, end in ((PAGE_BYTES, PAGE_BYTES + 1), (PAGE_BYTES + 1, len(DATA)), (0, len(DATA))):
        with pytest.raises(ChecksumError, match="checksum mismatch in page 1"):
            reader.read(start, end)
    with pytest.raises(ChecksumError):
        reader.verify()
    if opened is not in_store:
        with pytest.raises(ChecksumError):
            reader.load_whole()
    reader.close()


@pytest.mark.parametrize("opened", [in_folder, in_store, through_cache])
def test_a_sound_one(opened: Open, tmp_path: Path) -> None:
    reader = opened(DATA, tmp_path)
    reader.verify()
    path = reader.load_whole()
    assert (path is None) == (opened is in_store)
    assert path is None or path.read_bytes() == DATA
    reader.close()


def test_another_size_in_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ChecksumError, match=f"expected {len(DATA)} bytes, got {len(DATA) - 1}"):
        in_folder(DATA[:-1], tmp_path)


def test_bytes_that_fit_their_sums_and_not_their_hash(tmp_path: Path) -> None:
    """Sums are the publisher's word for pages; the whole is still compared with its name."""
    store = MemoryStore()
    store.put_if_absent("b", BAD)
    cache = PageCache(tmp_path, 1 << 20)
    reader = BlobReader(ADDRESS, store, cache, digest_bytes(BAD).page_sums)
    with pytest.raises(ChecksumError, match="sha256 mismatch"):
        reader.load_whole()


@pytest.mark.parametrize("cached", [True, False])
def test_one_that_is_gone_is_named_with_a_way_out(cached: bool, tmp_path: Path) -> None:
    cache = PageCache(tmp_path, 1 << 20) if cached else None
    reader = BlobReader(ADDRESS, MemoryStore(), cache, SUMS)
    with pytest.raises(BlobNotFoundError, match="not in its store") as caught:
        reader.read(0, 1)
    assert "Publish the version again" in caught.value.hint
    assert ADDRESS.sha256 in str(caught.value)
