"""A warmed cache that can only be read is as good as any other; so is one on a disk without locks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.published import publish_demo
from tests.stores.test_cache import DATA, opened
from warpdata.bytekit.process import system
from warpdata.errors import OfflineError, PermissionError_
from warpdata.stores.blobs import BlobReader
from warpdata.stores.blobstore import PAGE_BYTES
from warpdata.stores.pagecache import PageCache

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make everything below a folder read-only, for root too."""
    frozen: list[str] = []
    names: dict[int, Any] = {}
    real_open = os.open

    def refused(
        call: Callable[..., Any], changes: Callable[..., bool] = lambda *_: True
    ) -> Callable[..., Any]:
        def guarded(path: Any, *args: Any, **options: Any) -> Any:
            name = names.get(path, "") if isinstance(path, int) else os.fspath(path)
            if any(str(name).startswith(each) for each in frozen) and changes(*args):
                raise OSError(errno.EROFS, "Read-only file system", name)
            done = call(path, *args, **options)
            if call is real_open:
                names[done] = name
            return done

        return guarded

    def apply(folder: Path) -> None:
        frozen.append(str(folder))
        monkeypatch.setattr(os, "open", refused(os.open, lambda flags, *_: bool(flags & _WRITING)))
        for name in ("utime", "unlink", "mkdir", "rename", "replace", "ftruncate", "pwrite"):
            monkeypatch.setattr(os, name, refused(getattr(os, name)))

    return apply


def offline(reader: BlobReader, folder: Path) -> BlobReader:
    return BlobReader(reader.address, None, PageCache(folder, 1 << 30), reader._sums)


class TestFrozen:
    def test_what_is_there_is_read(self, tmp_path: Path, freeze: Callable[[Path], None]) -> None:
        reader, _, cache = opened(tmp_path)
        reader.load_whole()
        cache.close()
        freeze(tmp_path)
        again = offline(reader, tmp_path)
        assert bytes(again.read(0, len(DATA))) == DATA
        assert again.has([(0, len(DATA))])
        assert again.missing_bytes() == 0
        assert again.load_whole() is not None
        again.verify()

    def test_what_is_not_there_is_said_to_be_missing(
        self, tmp_path: Path, freeze: Callable[[Path], None]
    ) -> None:
        reader, _, cache = opened(tmp_path)
        reader.read(0, 10)
        cache.close()
        freeze(tmp_path)
        again = offline(reader, tmp_path)
        assert bytes(again.read(3, 9)) == DATA[3:9]
        with pytest.raises(OfflineError, match="not in the cache"):
            again.read(0, len(DATA))
        other, _, _ = opened(tmp_path, DATA[::-1])
        with pytest.raises(OfflineError, match="not in the cache"):
            offline(other, tmp_path).read(0, 10)

    def test_with_a_store_the_rest_comes_from_there(
        self, tmp_path: Path, freeze: Callable[[Path], None]
    ) -> None:
        reader, store, cache = opened(tmp_path)
        reader.read(0, 10)
        cache.close()
        freeze(tmp_path)
        again, _, _ = opened(tmp_path, store=store)
        store.fetched.clear()
        assert bytes(again.read(0, len(DATA))) == DATA
        assert store.fetched == [(PAGE_BYTES, len(DATA))], "only what is not there"

    def test_what_it_will_cost_is_known(self, tmp_path: Path, freeze: Callable[[Path], None]) -> None:
        """Nothing is kept, so a page that two reads share comes twice."""
        reader, store, cache = opened(tmp_path)
        reader.read(0, 10)
        cache.close()
        freeze(tmp_path)
        again, _, _ = opened(tmp_path, store=store)
        middle = PAGE_BYTES + PAGE_BYTES // 2
        reads = [[(0, middle)], [(middle, len(DATA))]]
        expected = again.costs(reads)
        store.fetched.clear()
        for ask in [again.claim(read) for read in reads]:
            ask()
        assert [end - start for start, end in store.fetched] == expected
        assert sum(expected) > len(DATA) - PAGE_BYTES

    def test_damage_is_noticed(self, tmp_path: Path, freeze: Callable[[Path], None]) -> None:
        reader, store, cache = opened(tmp_path)
        reader.read(0, len(DATA))
        cache.close()
        (data_path,) = tmp_path.rglob("*.data")
        damaged = bytearray(data_path.read_bytes())
        damaged[5] ^= 1
        data_path.write_bytes(damaged)
        freeze(tmp_path)
        with pytest.raises(OfflineError):
            offline(reader, tmp_path).read(0, 10)
        again, _, _ = opened(tmp_path, store=store)
        assert bytes(again.read(0, 10)) == DATA[:10]

    def test_what_would_change_it_is_refused(self, tmp_path: Path, freeze: Callable[[Path], None]) -> None:
        reader, _, cache = opened(tmp_path)
        reader.read(0, 10)
        cache.close()
        freeze(tmp_path)
        again = PageCache(tmp_path, 1 << 30)
        assert again.stats().blobs == 1
        assert not again.has_room(1)
        with pytest.raises(PermissionError_, match="only be read"):
            again.gc(0)
        with pytest.raises(PermissionError_):
            again.keep_member("ab" * 16, memoryview(b"x"))

    @pytest.mark.parametrize("mode", ["local", "auto"])
    def test_a_dataset(
        self, s3_catalog: str, picture_folder: Path, tmp_path: Path, freeze: Callable[[Path], None], mode: str
    ) -> None:
        publish_demo(s3_catalog, picture_folder)
        where = {"catalog": s3_catalog, "cache_dir": str(tmp_path / "cache")}
        with wd.dataset("ws/demo", **where) as dataset:
            dataset.warm()
            expected = dataset.table().arrow()
            refs = next(dataset.table().batches(4))["image"].refs()
            pictures = [ref.read_bytes() for ref in refs]
        freeze(tmp_path / "cache")
        with wd.dataset("ws/demo", mode=mode, **where) as dataset:
            assert dataset.table().arrow().equals(expected)
            refs = next(dataset.table().batches(4))["image"].refs()
            assert [ref.read_bytes() for ref in refs] == pictures
            assert mode == "auto" or dataset.spent.requests == 0


def test_a_cache_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(system, "set_range_lock", no_locks)
    reader, store, cache = opened(tmp_path)
    assert bytes(reader.read(0, len(DATA))) == DATA
    store.fetched.clear()
    assert bytes(reader.read(0, len(DATA))) == DATA
    assert not store.fetched
    assert cache.gc(0) > 0
    cache.close()
