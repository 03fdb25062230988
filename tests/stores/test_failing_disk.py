"""Disks that fail at any call: a folder says so in an error of ours, and a cache is done without."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.failing_calls import failing
from tests.memory_store import MemoryStore, digest_bytes
from warpdata.bytekit.checksum import sha256_hex
from warpdata.errors import ConflictError, StoreError, WarpError
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.blobstore import PAGE_BYTES, digest_file
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache

CALLS = (
    "open", "stat", "fstat", "scandir", "listdir", "mkdir", "unlink", "rename", "replace", "link",
    "ftruncate", "write", "pwrite", "pwritev", "pread", "fsync", "utime",
)  # fmt: skip
"""Those of the system that stores make; a call that one of them does not make cannot fail there."""
CODES = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EMFILE)
DATA = np.random.default_rng(1).bytes(3 * PAGE_BYTES + 100)


def put_file(store: LocalStore, folder: Path) -> None:
    path = folder / "source"
    path.write_bytes(DATA)
    store.put_file("a/new", path, digest_file(path))


STORE: dict[str, Callable[[LocalStore, Path], Any]] = {
    "head": lambda store, _: store.head("a/old").size,
    "get": lambda store, _: bytes(store.get("a/old", max_bytes=9).data),  # type: ignore[union-attr]
    "ranges": lambda store, _: [bytes(view) for view in store.get_ranges("a/old", [(0, 2), (1, 3)])],
    "list": lambda store, _: [info.key for info in store.list("")],
    "folders": lambda store, _: store.folders(""),
    "temps": lambda store, _: store.stale_temps(0.0, ["a"]),
    "put": lambda store, _: store.put_if_absent("a/new", b"new").size,
    "swap": lambda store, _: store.compare_and_swap("a/old", b"new", store.head("a/old").etag).size,
    "file": put_file,
    "delete": lambda store, _: store.delete("a/old"),
    "delete all": lambda store, _: store.delete_all(["a/old", "b"]),
}
RIGHT = {
    "head": 3, "get": b"old", "ranges": [b"ol", b"ld"], "list": ["a/old"], "folders": ["a"], "temps": [],
    "put": 3, "swap": 3,
}  # fmt: skip


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("work", STORE)
def test_a_folder_says_what_fails(work: str, code: int, tmp_path: Path) -> None:
    failures = 0
    for call in CALLS:
        number, count = 0, [1]
        while count[0] > number:
            number += 1
            folder = tmp_path / f"{call}-{number}"
            store = LocalStore(folder / "store")
            store.put_if_absent("a/old", b"old")
            failed: WarpError | None = None
            try:
                with failing(call, number, code) as count:
                    assert STORE[work](store, folder) == RIGHT.get(work)
            except WarpError as error:
                failed = error
                failures += 1
            assert failed is None or isinstance(failed, StoreError)
            assert failed is None or str(folder) in str(failed), "it is said where"
            if work not in ("swap", "delete", "delete all"):
                assert (folder / "store/a/old").read_bytes() == b"old"
    assert failures, "nothing failed"


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_read_does_without_the_cache(code: int, tmp_path: Path) -> None:
    source = MemoryStore()
    source.put_if_absent("b", DATA)
    address = BlobAddress(sha256_hex(DATA), len(DATA), "b", "blob")
    sums = digest_bytes(DATA).page_sums
    for call in CALLS:
        number, count = 0, [1]
        while count[0] > number:
            number += 1
            cache = PageCache(tmp_path / f"{call}-{number}", 1 << 20)
            reader = BlobReader(address, source, cache, sums)
            with failing(call, number, code) as count:
                assert bytes(reader.read(5, PAGE_BYTES + 9)) == DATA[5 : PAGE_BYTES + 9]
                assert bytes(reader.read(0, len(DATA))) == DATA
            cache.close()
            # And whatever it left there is no harm to those who come later.
            later = BlobReader(address, source, PageCache(cache.folder, 1 << 20), sums)
            assert bytes(later.read(0, len(DATA))) == DATA
            assert later.has([(0, len(DATA))])


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    cache = PageCache(tmp_path, 1 << 20)
    cache.keep_member("aabb", memoryview(b"x"))
    with failing("unlink", 1, errno.EACCES), pytest.raises(StoreError, match="may not be written"):
        cache.gc(0)
    assert cache.gc(0) > 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not show descriptors")
def test_a_blob_that_no_file_can_hold_leaves_nothing_open(tmp_path: Path) -> None:
    cache = PageCache(tmp_path, 1 << 20)
    before: list[str] = []
    for _ in range(3):
        with pytest.raises(StoreError):
            cache.pin_blob("ab" * 32, 1 << 62)
        before = before or os.listdir("/proc/self/fd")
    assert len(os.listdir("/proc/self/fd")) == len(before)


class TestOtherThings:
    """What is no file where a blob should be."""

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a")
        store = LocalStore(tmp_path)
        for read in (lambda: store.get("a", max_bytes=1), lambda: store.get_ranges("a", [(0, 1)])):
            with pytest.raises(StoreError, match="but a pipe"):
                read()
        with pytest.raises(StoreError, match="a pipe is there"):
            store.put_if_absent("a", b"x")

    def test_a_folder_is_neither_read_nor_removed(self, tmp_path: Path) -> None:
        (tmp_path / "a/b").mkdir(parents=True)
        store = LocalStore(tmp_path)
        for call in (lambda: store.get("a", max_bytes=1), lambda: store.delete("a")):
            with pytest.raises(StoreError, match=r"directory|permitted|written"):
                call()
        assert (tmp_path / "a/b").is_dir()

    def test_what_lies_below_a_file_is_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        store = LocalStore(tmp_path)
        store.delete("a/b")
        assert store.folders("a/") == []
        with pytest.raises(StoreError):
            store.put_if_absent("a/b", b"x")
        with pytest.raises(ConflictError):
            store.put_if_absent("a", b"y")
