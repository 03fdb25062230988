"""The contract every BlobStore keeps; a test class inherits it and says how to make an empty store."""

from __future__ import annotations

import threading
from abc import abstractmethod
from pathlib import Path

import pytest

from warpdata.errors import (
    BlobChangedError,
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    LimitExceededError,
    TruncatedError,
)
from warpdata.stores.blobstore import BlobStore, digest_file

DATA = bytes(range(256)) * 20


class ReadableStoreContract:
    """What also a read-only store keeps; `fill` brings blobs there by whatever means it has."""

    @abstractmethod
    def fill(self, blobs: dict[str, bytes], folder: Path) -> BlobStore: ...

    @abstractmethod
    def replace(self, store: BlobStore, key: str, data: bytes, folder: Path) -> None:
        """Put other bytes under the same name."""

    def test_gets_what_was_put(self, tmp_path: Path) -> None:
        store = self.fill({"a/b.bin": DATA, "empty": b""}, tmp_path)
        assert isinstance(store, BlobStore)
        blob = store.get("a/b.bin", max_bytes=len(DATA))
        assert blob is not None
        assert bytes(blob.data) == DATA
        assert (blob.info.size, store.head("a/b.bin").size) == (len(DATA), len(DATA))
        empty = store.get("empty", max_bytes=0)
        assert empty is not None
        assert bytes(empty.data) == b""

    def test_an_unchanged_tag_spares_the_body(self, tmp_path: Path) -> None:
        store = self.fill({"p": b"one"}, tmp_path)
        blob = store.get("p", max_bytes=10)
        assert blob is not None
        assert store.get("p", max_bytes=10, unless_etag=blob.info.etag) is None
        assert store.get("p", max_bytes=10, unless_etag='"another"') is not None

    def test_ranges_are_exact_and_in_order(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        ranges = [(5, 9), (0, 0), (0, len(DATA)), (len(DATA) - 1, len(DATA)), (100, 100), (7, 300)]
        assert [bytes(v) for v in store.get_ranges("x", ranges)] == [DATA[a:b] for a, b in ranges]
        assert store.get_ranges("x", []) == []

    @pytest.mark.parametrize("wanted", [(0, len(DATA) + 1), (len(DATA) + 5, len(DATA) + 9)])
    def test_past_the_end_is_never_short(self, tmp_path: Path, wanted: tuple[int, int]) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        with pytest.raises(TruncatedError):
            store.get_ranges("x", [wanted])

    def test_ranges_are_of_the_blob_that_was_opened_or_an_error(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA, "y": DATA}, tmp_path)
        opened = store.head("x")
        assert bytes(store.get_ranges("x", [(3, 9), (0, 4)], same_as=opened)[0]) == DATA[3:9]
        for other in (DATA[::-1], DATA[:7], DATA * 2):
            self.replace(store, "x", other, tmp_path)
            for wanted in ([(3, 5)], [(0, 2), (3, 5), (6, 7)], [(0, len(DATA))]):
                with pytest.raises(BlobChangedError) as caught:
                    store.get_ranges("x", wanted, same_as=opened)
                assert "again" in caught.value.hint
            assert bytes(store.get_ranges("x", [(3, 5)], same_as=store.head("x"))[0]) == other[3:5]

    def test_missing_is_not_found(self, tmp_path: Path) -> None:
        store = self.fill({"x": b"1"}, tmp_path)
        for call in (
            lambda: store.head("no/such"),
            lambda: store.get("no/such", max_bytes=9),
            lambda: store.get_ranges("no/such", [(0, 1)]),
        ):
            with pytest.raises(BlobNotFoundError):
                call()

    def test_a_blob_larger_than_allowed_is_refused(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        with pytest.raises(LimitExceededError):
            store.get("x", max_bytes=len(DATA) - 1)

    @pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/./b", "", "a/../../b", "a\x00b", "x" * 2000])
    def test_unsafe_names_are_refused(self, tmp_path: Path, key: str) -> None:
        store = self.fill({"x": b"1"}, tmp_path)
        with pytest.raises(ValueError, match="safe"):
            store.get(key, max_bytes=1)

    def test_the_address_can_be_printed(self, tmp_path: Path) -> None:
        store = self.fill({"x": b"1"}, tmp_path)
        assert "secret" not in store.address + repr(store)


class BlobStoreContract(ReadableStoreContract):
    @abstractmethod
    def make(self, folder: Path) -> BlobStore: ...

    def fill(self, blobs: dict[str, bytes], folder: Path) -> BlobStore:
        store = self.make(folder)
        for key, data in blobs.items():
            store.put_if_absent(key, data)
        return store

    def replace(self, store: BlobStore, key: str, data: bytes, folder: Path) -> None:
        store.put_stream(key, lambda: iter([data]), len(data))

    def test_put_if_absent_happens_once(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        store.put_if_absent("k", b"first")
        with pytest.raises(ConflictError):
            store.put_if_absent("k", b"second")
        blob = store.get("k", max_bytes=100)
        assert blob is not None
        assert bytes(blob.data) == b"first"

    def test_compare_and_swap_needs_the_tag(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        one = store.compare_and_swap("p", b"1", None)
        two = store.compare_and_swap("p", b"2", one.etag)
        for stale in (one.etag, None):
            with pytest.raises(ConflictError):
                store.compare_and_swap("p", b"3", stale)
        assert two.etag == store.head("p").etag
        store.compare_and_swap("p", b"4", two.etag)
        assert bytes(store.get("p", max_bytes=9).data) == b"4"

    def test_one_of_many_writers_wins(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        start = store.compare_and_swap("p", b"0", None)
        won: list[int] = []
        barrier = threading.Barrier(4)

        def race(number: int) -> None:
            barrier.wait()
            try:
                store.compare_and_swap("p", b"w%d" % number, start.etag)
            except ConflictError:
                return
            won.append(number)

        threads = [threading.Thread(target=race, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert bytes(store.get("p", max_bytes=9).data) == b"w%d" % won[0]

    def test_lists_by_prefix_in_order(self, tmp_path: Path) -> None:
        store = self.fill({k: b"1" for k in ("b/2", "b/1", "a", "bc/x")}, tmp_path)
        assert [info.key for info in store.list("b/")] == ["b/1", "b/2"]
        assert [info.key for info in store.list("")] == ["a", "b/1", "b/2", "bc/x"]
        assert [info.key for info in store.list("b")] == ["b/1", "b/2", "bc/x"]
        assert list(store.list("zzz/")) == []

    def test_folders_are_those_directly_below(self, tmp_path: Path) -> None:
        keys = ("a", "b/1", "b/c/2", "b/c/3", "b/d/e/f", "bc/x", "b-d/x", "b/c.x")
        store = self.fill(dict.fromkeys(keys, b"1"), tmp_path)
        assert list(store.folders("")) == ["b", "b-d", "bc"]
        assert list(store.folders("b/")) == ["c", "d"]
        assert list(store.folders("b/c/")) == []
        assert list(store.folders("none/")) == []

    def test_many_are_deleted_together(self, tmp_path: Path) -> None:
        store = self.fill({f"d/{n}": b"1" for n in range(7)} | {"e": b"1"}, tmp_path)
        store.delete_all([])
        store.delete_all(["d/1", "d/never", "d/5", "d/1"])
        assert [info.key for info in store.list("")] == ["d/0", "d/2", "d/3", "d/4", "d/6", "e"]

    def test_names_are_found_by_how_they_begin(self, tmp_path: Path) -> None:
        keys = sorted(f"f/{a}{b}{c}" for a in "08af" for b in "0-~" for c in ("", ".json", "x/x"))
        store = self.fill(dict.fromkeys(keys, b"1"), tmp_path)
        for prefix in (
            "f",
            "f/",
            "f/0",
            "f/0-",
            "f/a~",
            "f/a~.js",
            "f/f",
            "f/f0/x",
            "f/zz",
            "f/0-.json",
            "f/00/",
        ):
            assert [info.key for info in store.list(prefix)] == [
                key for key in keys if key.startswith(prefix)
            ]

    def test_delete_is_idempotent(self, tmp_path: Path) -> None:
        store = self.fill({"x": b"1"}, tmp_path)
        store.delete("x")
        store.delete("x")
        with pytest.raises(BlobNotFoundError):
            store.head("x")

    def test_files_arrive_whole(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        path = tmp_path / "file.bin"
        path.write_bytes(DATA * 5000)
        store.put_file("blobs/x", path, digest_file(path))
        assert store.head("blobs/x").size == len(DATA) * 5000
        assert (
            bytes(store.get_ranges("blobs/x", [(9_000_000, 9_000_100)])[0])
            == (DATA * 5000)[9_000_000:9_000_100]
        )

    @pytest.mark.parametrize("change", ["flip", "cut", "grow"])
    def test_a_file_that_changed_is_refused(self, tmp_path: Path, change: str) -> None:
        store = self.make(tmp_path)
        path = tmp_path / "file.bin"
        path.write_bytes(DATA * 5000)
        digest = digest_file(path)
        data = bytearray(DATA * 5000)
        if change == "flip":
            data[-1] ^= 1
        path.write_bytes(data[:-10] if change == "cut" else data + b"x" if change == "grow" else data)
        with pytest.raises(ChecksumError, match="changed"):
            store.put_file("blobs/x", path, digest)
        with pytest.raises(BlobNotFoundError):
            store.head("blobs/x")

    def test_streams_arrive_whole_in_place_of_what_was_there(self, tmp_path: Path) -> None:
        store = self.fill({"blobs/x": b"damaged"}, tmp_path)
        pieces = [DATA * 500, b"", DATA * 3, b"end"]
        store.put_stream("blobs/x", lambda: iter(pieces), sum(map(len, pieces)))
        size = store.head("blobs/x").size
        assert bytes(store.get_ranges("blobs/x", [(0, size)])[0]) == b"".join(pieces)

    @pytest.mark.parametrize("fault", ["error", "short", "long"])
    def test_a_stream_that_fails_changes_nothing(self, tmp_path: Path, fault: str) -> None:
        store = self.fill({"blobs/x": b"before"}, tmp_path)

        def chunks():
            yield DATA
            if fault == "error":
                raise ChecksumError("the source is damaged")

        size = len(DATA) + {"error": 5, "short": 5, "long": -5}[fault]
        with pytest.raises((ChecksumError, TruncatedError)):
            store.put_stream("blobs/x", chunks, size)
        assert bytes(store.get("blobs/x", max_bytes=100).data) == b"before"
