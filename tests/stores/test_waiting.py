"""Nothing waits without an end: not for a stopped neighbour, a dripping server, or a thread that a fork left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import warpdata as wd
from tests.catalog.test_faults import in_fork
from tests.published import publish_demo
from tests.servers import BUCKET, KEY, SECRET, Proxy, S3Server, s3_store, unique
from tests.stores.test_cache import DATA, opened
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.process import locks
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.bytekit.process.threads import ReadAhead
from warpdata.errors import UnavailableError
from warpdata.stores import blobs, pagecache
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import ReliableStore, digest_file
from warpdata.stores.http import HttpStore


def stranger(path: Path, start: int, length: int = 1) -> int:
    """A lock in the hands of somebody else, who does not go on."""
    fd = os.open(path, os.O_RDWR)
    assert locks.lock_range(fd, start, length)
    return fd


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagecache, "_FOLDER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(pagecache, "_PIN_TIMEOUT_S", 0.3)
    monkeypatch.setattr(blobs, "_HERD_TIMEOUT_S", 0.3)


class TestStoppedNeighbours:
    def test_with_the_whole_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, _, cache = opened(tmp_path)
        cache.stats()
        assert not cache.has_room(1 << 40)
        fd = stranger(tmp_path / "usage", 0)
        assert bytes(reader.read(5, 100_000)) == DATA[5:100_000], "the store is still there"
        waits: list[float] = []
        lock_range = locks.lock_range

        def noted(fd: int, at: int, length: int, timeout_s: float = 0.0, **how: bool) -> bool:
            waits.append(timeout_s)
            return lock_range(fd, at, length, timeout_s=timeout_s, **how)

        with monkeypatch.context() as patched:
            patched.setattr(locks, "lock_range", noted)
            for start in range(10):
                assert bytes(reader.read(start, 9_000)) == DATA[start:9_000]
        assert max(waits) <= 0.1, "he is not waited for again and again"
        with pytest.raises(UnavailableError, match="timed out waiting for the lock of the cache"):
            cache.gc()
        os.close(fd)
        cache._stuck_until_s = 0.0
        assert bytes(reader.read(5, 100_000)) == DATA[5:100_000]
        assert reader.has([(5, 100_000)])

    def test_with_the_pages_that_are_wanted(self, tmp_path: Path) -> None:
        reader, _, _ = opened(tmp_path)
        reader.read(0, 1)
        (map_path,) = tmp_path.rglob("*.pages")
        fd = stranger(map_path, pagecache.PAGE_LOCK_BASE + 2)
        assert bytes(reader.read(0, len(DATA))) == DATA
        assert not reader.has([(0, len(DATA))]), "his pages are his to bring"
        os.close(fd)
        assert bytes(reader.read(0, len(DATA))) == DATA
        assert reader.has([(0, len(DATA))])

    def test_in_the_middle_of_an_eviction(self, tmp_path: Path) -> None:
        reader, _, _ = opened(tmp_path)
        reader.read(0, 1)
        (map_path,) = tmp_path.rglob("*.pages")
        fd = stranger(map_path, pagecache.PIN_LOCK_OFFSET)
        assert bytes(reader.read(0, len(DATA))) == DATA
        os.close(fd)


class TestPagesAskedFor:
    """A page that was asked for is its asker's to bring: others wait for that, but not for ever."""

    def test_one_that_is_never_brought(self, tmp_path: Path) -> None:
        reader, _, _ = opened(tmp_path)
        idle = reader.claim([(0, len(DATA))])
        assert bytes(reader.read(5, 100_000)) == DATA[5:100_000]
        assert bytes(idle().views[0]) == DATA
        assert reader._busy == set()

    def test_one_that_is_forgotten_or_no_longer_missing(self, tmp_path: Path) -> None:
        reader, _, _ = opened(tmp_path)
        del (idle := [reader.claim([(0, len(DATA))])])[0]
        assert reader._busy == set()
        idle.append(reader.claim([(0, 10)]))
        other, _, _ = opened(tmp_path)
        other.load_whole()
        assert bytes(idle[0]().views[0]) == DATA[:10]
        assert reader._busy == set(), "though there was nothing to bring"

    def test_an_error_lets_go(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, _, cache = opened(tmp_path)
        idle = reader.claim([(0, len(DATA))])
        with monkeypatch.context() as patched:
            patched.setattr(cache, "pin_blob", lambda *_, **__: 1 // 0)
            with pytest.raises(ZeroDivisionError) as kept:
                idle()
        assert reader._busy == set()
        assert kept.value.__traceback__ is not None, "whoever keeps the error keeps its frames"

    def test_a_claim_of_the_parent_is_none_in_the_child(self, tmp_path: Path) -> None:
        reader, store, _ = opened(tmp_path)
        idle = [reader.claim([(0, len(DATA))])]

        def one_request() -> int:
            own = [reader.claim([(0, len(DATA))]), reader.claim([(0, len(DATA))])]
            idle.clear()
            is_claimed = len(reader._busy) > 0
            ahead = [bytes(ask().views[0]) for ask in own]
            return 17 if is_claimed and ahead == [DATA, DATA] and len(store.fetched) == 1 else 1

        assert in_fork(one_request) == 17
        assert bytes(idle[0]().views[0]) == DATA

    def test_a_damaged_page_that_a_waiting_stream_asked_for(self) -> None:
        """It was taken for one that is here, whose rows are only looked at when their turn comes."""
        asked: list[int] = []
        begun: list[int] = []

        def ask(task: int) -> Callable[[], None]:
            asked.append(task)
            return lambda: begun.append(task)

        ahead = ReadAhead(
            ask, lambda task, _: task, range(40),
            workers=12, cost=lambda _: 1, max_cost=100, is_here=lambda task: task != 9 or task not in asked, cores=2,
        )  # fmt: skip
        until(lambda: 9 in begun)
        assert next(ahead) == 0
        ahead.close()


class TestForks:
    def test_a_lock_of_the_parent_is_free_in_the_child(self) -> None:
        lock = ThreadLock()

        def take() -> int:
            with lock:
                return 17

        with lock:
            assert in_fork(take) == 17

    def test_reading_ahead_goes_on_in_the_child(self) -> None:
        def slow(task: int) -> int:
            time.sleep(0.02)
            return task

        ahead = ReadAhead(
            lambda task: partial(slow, task),
            lambda task, got: task + got,
            range(40),
            workers=6,
            cost=lambda _: 1,
            max_cost=100,
        )
        assert [next(ahead) for _ in range(3)] == [0, 2, 4]
        assert in_fork(lambda: 17 if list(ahead) == list(range(6, 80, 2)) else 1) == 17
        assert list(ahead) == list(range(6, 80, 2)), "and in the parent"
        ahead.close()

    def test_a_stream_goes_on_in_the_child(self, local_catalog: str, picture_folder: Path) -> None:
        publish_demo(local_catalog, picture_folder, count=20_000)
        with wd.dataset("ws/demo", catalog=local_catalog) as dataset:
            stream = dataset.table().batches(100, columns="id")
            next(stream)
            next(stream)

            def rest() -> int:
                ids = [i for batch in stream for i in batch["id"].to_pylist()]
                return 17 if ids == list(range(200, 20_000)) else 1

            with dataset.table().files._lock:
                assert in_fork(rest) == 17

    def test_references_are_read_in_the_child(self, s3_catalog: str, picture_folder: Path) -> None:
        publish_demo(s3_catalog, picture_folder)
        with wd.dataset("ws/demo", catalog=s3_catalog, mode="remote") as dataset:
            refs = next(dataset.table().batches(40))["image"].refs()
            refs[0].read_bytes()
            expected = [(picture_folder / ref.name).read_bytes() for ref in refs]
            with refs[0]._group._lock, dataset.access.meter._lock:
                assert in_fork(lambda: 17 if [r.read_bytes() for r in refs] == expected else 1) == 17


DRIPS = {
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "status line": b"HTTP/1.1 200 ",
    "one header": b"HTTP/1.1 200 OK\r\nX: ",
    "size of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "words of a refusal": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100000\r\n\r\n",
}
REPEATS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X: y\r\n"),
}


@contextlib.contextmanager
def dripping(begin: bytes, again: bytes) -> Iterator[str]:
    """A server that begins to answer, and then sends a little now and then."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.recv(1 << 16)
                client.sendall(begin)
                while not over.wait(0.02):
                    client.sendall(again)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("begin", "again"),
    [*((begin, b"0") for begin in DRIPS.values()), *REPEATS.values()],
    ids=[*DRIPS, *REPEATS],
)
def test_a_dripping_server_is_left(begin: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes long before the timeout, however busy the machine is; the whole takes too long."""
    monkeypatch.setattr("warpdata.stores.http._PATIENCE", 0.01)
    with dripping(begin, again) as url:
        store = HttpStore(url, timeout_s=30)
        with pytest.raises(UnavailableError, match=f"the response of {url} came too slowly"):
            store.get("x", max_bytes=1 << 20)
        store.close()


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 999],
    ids=["another protocol", "a header without end", "headers without end"],
)  # fmt: skip
def test_a_server_of_another_kind_is_called_so(said: bytes) -> None:
    with dripping(said, b"") as url:
        store = HttpStore(url, timeout_s=30)
        with pytest.raises(UnavailableError, match="its response is not HTTP"):
            store.get("x", max_bytes=1 << 20)
        store.close()


def test_an_object_store_of_another_kind_is_called_so() -> None:
    secrets = {"access_key_id": KEY, "secret_access_key": SECRET}
    with dripping(b"SSH-2.0-OpenSSH\r\n", b"") as url:
        store = open_store(f"s3://{BUCKET}/x?endpoint={url}&region=us-east-1", StoreOptions(secrets=secrets))
        with pytest.raises(UnavailableError, match="its response is not HTTP"):
            store.get("x", max_bytes=1 << 20)
        store.close()


def test_an_answer_that_ends_early_says_so() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    store = HttpStore(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=30)
    with pytest.raises(UnavailableError, match="it broke the connection off"):
        store.get("x", max_bytes=1 << 20)
    store.close()
    thread.join(LIMIT_S)
    listener.close()


def test_a_slow_link_gets_the_time_it_needs(s3_server: S3Server, tmp_path: Path) -> None:
    """A whole answer may take long as long as bytes keep coming: 3 MiB at 1.2 MB/s take longer than the timeout."""
    path = tmp_path / "blob"
    path.write_bytes(os.urandom(3 << 20))
    prefix = unique("slow")
    s3_store(s3_server, prefix).put_file("x", path, digest_file(path))
    secrets = {"access_key_id": KEY, "secret_access_key": SECRET}
    options = StoreOptions(secrets=secrets, timeout_s=1.5)
    with Proxy(s3_server.port, rate=1.2e6) as proxy:
        store = ReliableStore(open_store(f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}", options))
        assert bytes(store.get_ranges("x", [(0, 3 << 20)])[0]) == path.read_bytes()
