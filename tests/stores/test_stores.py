from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import warpdata as wd
from tests.clouds import ACCOUNT, ACCOUNT_KEY, AZURITE, azure_sas, run_azurite, run_google
from tests.contracts.blob_store import DATA, BlobStoreContract, ReadableStoreContract
from tests.contracts.range_reader import RangeReaderContract
from tests.memory_store import MemoryStore, digest_bytes
from tests.servers import S3Server, free_port, run_http, s3_store, unique
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.catalog.access import AccessOptions
from warpdata.errors import (
    AuthenticationError,
    BucketNotFoundError,
    BudgetExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.settings import Settings
from warpdata.stores import s3
from warpdata.stores.address import StoreOptions, address_in_catalog, open_store
from warpdata.stores.blobs import BlobAddress, BlobReader, LocalBlobReader
from warpdata.stores.blobstore import BlobStore, Budget, Meter, ReliableStore, RetryPolicy
from warpdata.stores.http import HttpStore
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache
from warpdata.stores.webclient import retry_after_s


class TestMemory(BlobStoreContract):
    def make(self, folder: Path) -> BlobStore:
        return MemoryStore()


class TestLocal(BlobStoreContract):
    def make(self, folder: Path) -> BlobStore:
        return LocalStore(folder / "store")


class TestReliable(BlobStoreContract):
    def make(self, folder: Path) -> BlobStore:
        return ReliableStore(LocalStore(folder / "store"), policy=RetryPolicy(sleep=lambda _: None))


class TestS3(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3_server: S3Server) -> None:
        self.server = s3_server

    def make(self, folder: Path) -> BlobStore:
        return s3_store(self.server, unique("contract"))


@pytest.fixture(scope="module")
def google() -> Iterator[Any]:
    with run_google() as server:
        yield server


class TestGoogle(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, google: Any) -> None:
        self.server = google

    def make(self, folder: Path) -> BlobStore:
        address = f"gs://tst/{unique('contract')}?endpoint={self.server.endpoint}"
        return open_store(address, StoreOptions(secrets={"bearer_token": "secret"}))


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_azurite(tmp_path_factory.mktemp("azurite"), free_port()) as endpoint:
        yield endpoint


@pytest.mark.skipif(AZURITE is None, reason="azurite is not installed: npm install -g azurite")
class TestAzure(BlobStoreContract):
    secrets: ClassVar = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}

    @pytest.fixture(autouse=True)
    def _server(self, azurite: str) -> None:
        self.endpoint = azurite

    def make(self, folder: Path) -> BlobStore:
        address = f"az://tst/{unique('contract')}?endpoint={self.endpoint}"
        return open_store(address, StoreOptions(secrets=self.secrets))


class TestAzureWithSas(TestAzure):
    secrets: ClassVar = {"account_name": ACCOUNT, "sas_token": f"?{azure_sas()}"}

    def test_large_blobs_go_in_blocks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3, "_PART_BYTES", 1 << 20)
        store, data = self.make(tmp_path), bytes(range(256)) * 20_000
        store.put_stream("large", lambda: iter([data[:777_777], data[777_777:]]), len(data))
        assert bytes(store.get_ranges("large", [(0, len(data))])[0]) == data

    def test_a_container_that_is_not_there(self) -> None:
        store = open_store(f"az://nope/x?endpoint={self.endpoint}", StoreOptions(secrets=self.secrets))
        with pytest.raises(BucketNotFoundError):
            store.get("a", max_bytes=10)


def publish_two_versions(address: str, secrets: dict[str, str], folder: Path) -> None:
    """The pointer moves from one version to the next, and both can be read."""
    options = AccessOptions((address,), cache_dir=str(folder / "cache"), store=StoreOptions(secrets=secrets))
    for count in (10, 20):
        with wd.DatasetBuilder("ws/x", options=options) as builder:
            builder.add_table("main", {"x": list(range(count))}).publish()
    ds = wd.dataset("ws/x", catalog=address, cache_dir=options.cache_dir, store=options.store)
    assert ds.table().count() == sum(b.num_rows for b in ds.table().batches(3)) == 20
    old = next(v for v in ds.versions() if not v.is_latest)
    opened = wd.dataset(f"ws/x@{old.version}", catalog=address, mode="remote", store=options.store)
    assert opened.table().head(50).num_rows == 10


def test_google_holds_a_catalog(google: Any, tmp_path: Path) -> None:
    address = f"gs://tst/{unique('cat')}?endpoint={google.endpoint}"
    publish_two_versions(address, {"bearer_token": "secret"}, tmp_path)


@pytest.mark.skipif(AZURITE is None, reason="azurite is not installed: npm install -g azurite")
def test_azure_holds_a_catalog(azurite: str, tmp_path: Path) -> None:
    address = f"az://tst/{unique('cat')}?endpoint={azurite}"
    publish_two_versions(address, {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}, tmp_path)


class TestHttp(ReadableStoreContract):
    @pytest.fixture(autouse=True)
    def _serve(self, tmp_path: Path) -> Iterator[None]:
        folder = tmp_path / "www"
        folder.mkdir()
        with run_http(folder) as self.server:
            yield

    def fill(self, blobs: dict[str, bytes], folder: Path) -> BlobStore:
        for key, data in blobs.items():
            path = folder / "www" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return HttpStore(self.server.url)

    def replace(self, store: BlobStore, key: str, data: bytes, folder: Path) -> None:
        (folder / "www" / key).write_bytes(data)

    def test_it_cannot_be_written_or_listed(self, tmp_path: Path) -> None:
        store = HttpStore(self.server.url)
        for call in (
            lambda: store.put_if_absent("x", b""),
            lambda: store.compare_and_swap("x", b"", None),
            lambda: store.put_file("x", tmp_path, digest_bytes(b"")),
            lambda: store.delete("x"),
            lambda: store.list(""),
        ):
            with pytest.raises(StoreError):
                call()

    def test_failures_are_retried_and_retry_after_is_honoured(self, tmp_path: Path) -> None:
        inner = self.fill({"x": DATA}, tmp_path)
        waits: list[float] = []
        store = ReliableStore(inner, policy=RetryPolicy(sleep=waits.append))
        self.server.failures += [(503, {"Retry-After": "7"}), (500, {}), (429, {"Retry-After": "3"})]
        assert bytes(store.get_ranges("x", [(1, 4)])[0]) == DATA[1:4]
        assert 7 <= waits[0] < 8
        assert waits[1] < 1
        assert 3 <= waits[2] < 4
        assert (store.meter.spent.requests, store.meter.spent.retries) == (4, 3)

    @pytest.mark.parametrize(
        ("status", "error"),
        [(401, AuthenticationError), (403, PermissionError_), (503, UnavailableError), (418, StoreError)],
    )
    def test_statuses_are_typed_errors(self, tmp_path: Path, status: int, error: type[Exception]) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        self.server.failures += [(status, {})] * 2  # where HEAD is refused the first byte is asked for
        with pytest.raises(error):
            store.head("x")

    def test_a_redirect_is_followed(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        self.server.failures.append((302, {"Location": "/x"}))
        assert bytes(store.get("x", max_bytes=9999).data) == DATA

    def test_it_reads_after_a_fork(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        wanted = [(0, 9), (50, 70), (100, 101)]
        assert [bytes(v) for v in store.get_ranges("x", wanted)] == [DATA[a:b] for a, b in wanted]
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit(17 if [bytes(v) for v in store.get_ranges("x", wanted)][2] == DATA[100:101] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        assert bytes(store.get_ranges("x", wanted)[1]) == DATA[50:70]

    def test_a_server_without_ranges_is_noticed(self, tmp_path: Path) -> None:
        store = self.fill({"x": DATA}, tmp_path)
        self.server.failures.append((200, {}))
        with pytest.raises(StoreError, match="range"):
            store.get_ranges("x", [(0, 4)])


def test_retry_after_forms() -> None:
    assert retry_after_s("12") == 12
    assert retry_after_s(None) is None
    assert retry_after_s("nonsense") is None
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


def test_a_dead_server_is_unavailable_after_bounded_retries() -> None:
    waits: list[float] = []
    store = ReliableStore(HttpStore("http://127.0.0.1:1"), policy=RetryPolicy(attempts=4, sleep=waits.append))
    with pytest.raises(UnavailableError):
        store.head("x")
    assert len(waits) == 3


def test_wrong_secrets_are_named_and_never_shown(s3_server: S3Server) -> None:
    secrets = {"access_key_id": "testkey", "secret_access_key": "WRONG-SECRET-77"}
    store = open_store(f"s3://tst/x?endpoint={s3_server.endpoint}", StoreOptions(secrets=secrets))
    with pytest.raises(AuthenticationError) as caught:
        store.head("x")
    assert (
        "WRONG-SECRET-77"
        not in f"{caught.value} {caught.value.hint} {store!r} {StoreOptions(secrets=secrets)!r}"
    )


def test_budgets_stop_before_they_are_exceeded() -> None:
    inner = MemoryStore()
    inner.put_if_absent("x", DATA)
    store = ReliableStore(inner, Meter(Budget(max_bytes=1000, max_requests=3)))
    store.get_ranges("x", [(0, 900)])
    with pytest.raises(BudgetExceededError, match="1000 bytes"):
        store.get_ranges("x", [(0, 101)])
    store.get_ranges("x", [(0, 50), (50, 100)])
    with pytest.raises(BudgetExceededError, match="3 requests"):
        store.head("x")
    assert store.meter.spent.bytes_read == 1000


def test_a_listener_sees_every_request() -> None:
    inner = MemoryStore()
    inner.put_if_absent("x", DATA)
    seen: list[tuple[str, str, int]] = []
    ReliableStore(inner, Meter(listener=lambda *event: seen.append(event))).get_ranges("x", [(0, 9)])
    assert seen == [("GET", "memory://scratch/x", 9)]


def test_addresses(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
    assert open_store("gs://bucket/x").address == "gs://bucket/x"
    for bad in (
        "ftp://x/y",
        "s3://user:password@bucket/x",
        "http://user:password@host/x",
        "s3://b/x?wrong=1",
    ):
        with pytest.raises(ValueError, match=r"store|credentials|settings"):
            open_store(bad)
    assert address_in_catalog("s3://b/x?region=r", "s3://b/y/z") == "s3://b/y/z?region=r"
    assert address_in_catalog("https://b/x?sign=1", "https://B:443/y") == "https://B:443/y"
    for catalog, uri in (
        ("s3://b/x", "s3://c/y"),
        ("s3://b/x", "http://b/y"),
        ("http://b/x", "https://b/x"),
        ("http://b/x", "http://b:81/x"),
        ("/folder", "s3://b/x"),
    ):
        assert address_in_catalog(catalog, uri) is None


def _memory(data: bytes) -> tuple[BlobAddress, MemoryStore]:
    store = MemoryStore()
    store.put_if_absent("b", data)
    return BlobAddress(sha256_hex(data), len(data), "b", "blob"), store


class TestDirectReader(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        address, store = _memory(data)
        return BlobReader(address, store, None)


class TestCheckedReader(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        address, store = _memory(data)
        return BlobReader(address, store, None, digest_bytes(data).page_sums)


class TestCachedReader(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        address, store = _memory(data)
        return BlobReader(address, store, PageCache(folder / "cache", 1 << 30), digest_bytes(data).page_sums)


class TestCachedReaderWithoutRoom(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        address, store = _memory(data)
        return BlobReader(address, store, PageCache(folder / "tiny", 1), digest_bytes(data).page_sums)


class TestLocalReader(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        store = LocalStore(folder / "s")
        store.delete("b")
        store.put_if_absent("b", data)
        address = BlobAddress(sha256_hex(data), len(data), "b", "blob")
        return LocalBlobReader(address, store, digest_bytes(data).page_sums)


def test_a_short_answer_is_asked_for_again() -> None:
    address, store = _memory(DATA)
    calls = []

    class Short(MemoryStore):
        def get_ranges(self, key, ranges, **conditions):
            calls.append(ranges)
            if len(calls) < 3:
                raise TruncatedError("short")
            return store.get_ranges(key, ranges)

    reader = BlobReader(address, ReliableStore(Short(), policy=RetryPolicy(sleep=lambda _: None)), None)
    assert bytes(reader.read(3, 9)) == DATA[3:9]
    assert len(calls) == 3


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_empty_endpoint_is_none(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes an empty variable for an address, and panics: it is told which one is meant."""
    monkeypatch.setenv(variable, "")
    settings = Settings.from_env({variable: "", "AWS_REGION": "eu-west-1"})
    store = open_store(
        "s3://bucket/x",
        StoreOptions(settings.s3_endpoint, settings.s3_region),
    )
    assert store._host == "https://s3.eu-west-1.amazonaws.com"  # type: ignore[attr-defined]


@pytest.mark.parametrize("query", ["endpoint=nonsense", "endpoint=http://me:pw@h", "region=a%0Ab"])
def test_what_an_address_says_of_its_bucket_is_checked(query: str) -> None:
    with pytest.raises(ValueError, match=r"address|region|credentials") as raised:
        open_store(f"s3://bucket/x?{query}")
    assert "pw" not in str(raised.value)
