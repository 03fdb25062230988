"""Files by URL: read through the page cache, and never a mixture of two that had the same address."""

from __future__ import annotations

import contextlib
import email.utils
import http.server
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.memory_store import MemoryStore
from tests.servers import BUCKET, S3Server, run_http, s3_store, serving, unique
from warpdata._api import store_folder, url_cache
from warpdata.bytekit.io.ranges import FarRangeReader
from warpdata.errors import BlobChangedError
from warpdata.stores.blobs import StoreFile, StoreFolder
from warpdata.stores.blobstore import PAGE_BYTES, Meter, ReliableStore

SIZE = 5 * PAGE_BYTES + 17
OLD = np.random.default_rng(1).bytes(SIZE)
NEW = np.random.default_rng(2).bytes(SIZE)
Put = Callable[[bytes], None]


class _Plain(http.server.SimpleHTTPRequestHandler):
    """A server with ranges that has no tags and knows no conditions, as simple ones do."""

    data = b""
    modified_s = 0.0
    etag: str | None = None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        data, body, status = type(self).data, type(self).data, 200
        if wanted := self.headers.get("Range"):
            start, _, last = wanted.removeprefix("bytes=").partition("-")
            body, status = data[int(start) : int(last) + 1], 206
        if status == 206 and not body:
            status = 416
        self.send_response(status)
        if type(self).etag is not None:
            self.send_header("ETag", type(self).etag)
        self.send_header("Last-Modified", email.utils.formatdate(type(self).modified_s, usegmt=True))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=["s3", "http", "untagged", "weak"])
def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[str, Put]]:
    """A URL of a file, and what puts another one there."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        prefix = unique("url")
        store = s3_store(server, prefix)
        yield f"s3://{BUCKET}/{prefix}/x", lambda data: store.put_stream("x", lambda: iter([data]), len(data))
        store.close()
    elif request.param == "http":
        (tmp_path / "www").mkdir()
        with run_http(tmp_path / "www") as web:
            yield f"{web.url}/x", lambda data: (tmp_path / "www" / "x").write_bytes(data) and None
    else:
        kind = type("Handler", (_Plain,), {"etag": 'W/"same"' if request.param == "weak" else None})

        def put(data: bytes) -> None:
            kind.data, kind.modified_s = data, kind.modified_s + 10
            kind.etag = kind.etag and f'W/"{kind.modified_s}"'

        with serving(kind) as web:
            yield f"{web.url}/x", put


def opened(url: str) -> StoreFile | FarRangeReader:
    folder, _, name = url.rpartition("/")
    return store_folder(folder).open(name)


def test_a_file_that_is_replaced_between_reads_is_never_mixed(place: tuple[str, Put]) -> None:
    url, put = place
    for other in (NEW, NEW[: SIZE // 2], NEW + NEW, b"short"):
        put(OLD)
        reader = opened(url)
        assert bytes(reader.read(100, 200)) == OLD[100:200]
        copy = pickle.loads(pickle.dumps(reader))
        put(other)
        for again in (reader, copy):
            for start in range(0, SIZE, PAGE_BYTES // 2):
                with contextlib.suppress(BlobChangedError):  # or what is kept of the old one
                    assert bytes(again.read(start, min(start + 300, SIZE))) == OLD[start : start + 300]
            with pytest.raises(BlobChangedError):
                again.read_many([(0, SIZE), (5, 9)])
        fresh = opened(url)
        assert bytes(fresh.read(0, fresh.size)) == other


def test_a_file_that_is_removed_between_reads(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(OLD)
    with run_http(tmp_path) as web:
        reader = opened(f"{web.url}/x")
        (tmp_path / "x").unlink()
        with pytest.raises(BlobChangedError, match="removed"):
            reader.read(0, 10)


def test_what_was_read_is_found_again_by_its_tag(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(OLD)
    with run_http(tmp_path) as web:
        for turn in range(3):
            reader = opened(f"{web.url}/x")
            assert bytes(reader.read(10, SIZE - 10)) == OLD[10:-10]
            assert [method for method, _, _ in web.requests] == ["HEAD", "GET", *["HEAD"] * turn]
        (tmp_path / "x").write_bytes(NEW)
        assert bytes(opened(f"{web.url}/x").read(10, SIZE - 10)) == NEW[10:-10]


def test_without_a_cache_every_byte_comes_from_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_MODE", "remote")
    assert url_cache() is None
    (tmp_path / "x").write_bytes(OLD)
    with run_http(tmp_path) as web:
        for _ in range(2):
            assert bytes(opened(f"{web.url}/x").read(0, SIZE)) == OLD
        assert [method for method, _, _ in web.requests] == ["HEAD", "GET"] * 2
    assert not os.path.exists(tmp_path / "cache")


def test_small_reads_of_a_far_file_without_a_cache_come_out_of_few_answers() -> None:
    meter, store = Meter(), MemoryStore()
    store.is_local = False
    store.put_if_absent("x", OLD)
    reader = StoreFolder("memory://far", lambda _: ReliableStore(store, meter)).open("x")
    for start in range(0, SIZE - 20, 977):
        assert bytes(reader.read(start, start + 20)) == OLD[start : start + 20]
    assert meter.spent.requests <= 1 + 2


def test_an_episode_by_url_says_that_it_was_replaced(tmp_path: Path) -> None:
    for number, name in enumerate(("a.wshard", "b.wshard")):
        episode = wd.WShardEpisode(id="one", length=400)
        for channel in "xy":
            episode.observations[channel] = np.full((400, 300), number, np.float32)
        wd.save_wshard(episode, tmp_path / name, compression="none")
    with run_http(tmp_path) as web:
        first = wd.open_episode(f"{web.url}/a.wshard")
        assert first.steps.observations["x"][0, 0] == 0
        os.replace(tmp_path / "b.wshard", tmp_path / "a.wshard")
        with pytest.raises(BlobChangedError):
            first.steps.observations["y"][:]
        assert wd.open_episode(f"{web.url}/a.wshard").steps.observations["y"][399, 299] == 1
