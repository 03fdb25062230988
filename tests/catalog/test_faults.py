"""Faults against the real S3 server: races, kills, cut and slow connections, damaged blobs, leaks."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warpdata as wd
from tests.clouds import run_google
from tests.published import publish_demo, rows
from tests.servers import BUCKET, SECRET, Proxy, S3Server, s3_store
from tests.sweeps import SOAK
from warpdata.errors import BlobNotFoundError, ChecksumError, ConflictError, StoreError, WarpError
from warpdata.formats.manifest.codec import parse_manifest
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import RetryPolicy

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["warpdata.catalog.build.builder", "warpdata.loading.tables.stream", "tests.catalog.test_faults"]
)


def test_two_publishers_race_for_latest(s3_catalog: str) -> None:
    """One wins, the other gets ConflictError, and no version is lost."""
    with wd.DatasetBuilder("ws/race", catalog=s3_catalog) as builder:
        builder.add_table("main", rows(3)).publish()
    for attempt in range(3):
        results: dict[int, object] = {}
        builders = [
            wd.DatasetBuilder("ws/race", catalog=s3_catalog).add_table("main", rows(10 + attempt * 2 + i))
            for i in range(2)
        ]
        barrier = threading.Barrier(2)

        def run(number: int, builders=builders, barrier=barrier, results=results) -> None:
            barrier.wait()
            try:
                results[number] = builders[number].publish().version
            except ConflictError as conflict:
                results[number] = conflict

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        versions = {v.version for v in wd.dataset("ws/race", catalog=s3_catalog, mode="remote").versions()}
        assert len(versions) == 3 + attempt * 2, "both versions are stored"
        won = [v for v in results.values() if isinstance(v, str)]
        assert wd.dataset("ws/race", catalog=s3_catalog, mode="remote").version in won
        lost = [e for e in results.values() if isinstance(e, ConflictError)]
        assert len(won) + len(lost) == 2
        for error in lost:
            assert won[0][:12] in str(error)
        for builder in builders:
            builder.close()


def test_the_loser_of_a_race_may_try_again(s3_catalog: str) -> None:
    builders = [
        wd.DatasetBuilder("ws/race", catalog=s3_catalog).add_table("main", rows(5 + i)) for i in range(3)
    ]
    threads = [threading.Thread(target=lambda b=b: b.publish(retries=20)) for b in builders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ds = wd.dataset("ws/race", catalog=s3_catalog, mode="remote")
    assert len(ds.versions()) == 3


def _publish(catalog: str, number: int, environment: dict[str, str], **options: Any) -> None:
    os.environ.update(environment)
    with wd.DatasetBuilder("ws/kill", catalog=catalog) as builder:
        for part in range(4):
            builder.add_table(
                f"part{part}", pa.table({"x": range(number * 100 + part, number * 100 + part + 50)})
            )
        builder.publish(**options)


def check_readers(store, complete: set[str]) -> str | None:
    """Whatever is visible is whole: every version listed has every blob."""
    from warpdata.catalog.publish.pointers import read_pointer

    pointer = read_pointer(store, "datasets/ws/kill/latest.json").pointer
    if pointer is None:
        return None
    if pointer.version not in complete:
        blob = store.get(f"datasets/ws/kill/versions/{pointer.version}.json", max_bytes=1 << 20)
        manifest = parse_manifest(blob.data, expected_hash=pointer.version)
        for ref in manifest.blobs().values():
            assert store.head(ref.key).size == ref.byte_size
        complete.add(pointer.version)
    return pointer.version


def test_publish_survives_kills(s3_catalog: str, s3_server: S3Server) -> None:
    """Killed at random points, readers always see a whole version; the rerun sends only what is missing."""
    store = s3_store(s3_server, s3_catalog.rpartition("/")[2])
    dice = random.Random(4)
    environment = s3_server.environment()
    complete: set[str] = set()
    number = finished = 0
    kills = 100 if SOAK else 25
    for _ in range(kills):
        process = FORKS.Process(target=_publish, args=(s3_catalog, number, environment))
        process.start()
        process.join(dice.uniform(0.03, 0.25))
        with contextlib.suppress(ProcessLookupError):  # it may have ended a moment ago
            process.kill()
        process.join()
        check_readers(store, complete)
        if process.exitcode == 0:
            finished += 1
            number += 1
    with wd.DatasetBuilder("ws/kill", catalog=s3_catalog) as builder:
        for part in range(4):
            builder.add_table(
                f"part{part}", pa.table({"x": range(number * 100 + part, number * 100 + part + 50)})
            )
        uploads = builder._build(None)[1]
        there = sum(_is_there(store, upload.sha256) for upload in uploads)
        done = builder.publish()
    assert done.blobs_sent == len(uploads) - there
    assert check_readers(store, complete) == done.version
    ds = wd.dataset("ws/kill", catalog=s3_catalog, mode="remote")
    assert ds.verify() == []
    assert finished < kills


def test_publishers_finish_under_429_beside_killed_ones(
    s3_catalog: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed publisher holds nothing that the next one would wait for."""
    store = s3_store(s3_server, s3_catalog.rpartition("/")[2])
    dice = random.Random(7)
    finished, tries, complete = 0, 8, set()
    with Proxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        environment = {**s3_server.environment(), "AWS_ENDPOINT_URL": proxy.endpoint}
        proxy.storm = random.Random(5)
        for number in range(tries):
            killed = FORKS.Process(target=_publish, args=(s3_catalog, 100 + number, environment))
            killed.start()
            killed.join(dice.uniform(0.05, 0.4))
            with contextlib.suppress(ProcessLookupError):
                killed.kill()
            killed.join()
            with contextlib.suppress(WarpError):
                _publish(s3_catalog, number, {}, retries=20)
                finished += 1
            check_readers(store, complete)
        proxy.storm = None
        assert proxy.refused > tries
        assert wd.dataset("ws/kill", catalog=s3_catalog, mode="remote").verify() == []
    assert finished >= tries - 1


def _is_there(store, sha256: str) -> bool:
    try:
        store.head(f"blobs/sha256/{sha256[:2]}/{sha256}")
    except BlobNotFoundError:
        return False
    return True


@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_cut_connections_are_retried_and_never_wrong(
    s3_catalog: str, s3_server: S3Server, picture_folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_demo(s3_catalog, picture_folder, count=60_000, shards=6)
    monkeypatch.setattr("warpdata.stores.blobstore.RetryPolicy.wait", lambda *_: time.sleep(0.01))
    with Proxy(s3_server.port, cut_every=9) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        ds = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
        found = [
            i for batch in ds.table().batches(1000, columns=["id", "name"]) for i in batch["id"].to_pylist()
        ]
        refs = next(iter(ds.table().batches(40)))["image"].refs()
        assert [r.read_bytes() for r in refs] == [(picture_folder / r.name).read_bytes() for r in refs]
        assert proxy.cuts > 0
    assert found == list(range(60_000))
    assert ds.spent.retries > 0


def test_a_slow_connection_is_only_slow(
    s3_catalog: str, s3_server: S3Server, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_demo(s3_catalog, picture_folder, count=2000)
    with Proxy(s3_server.port, delay_s=0.02, rate=2e6) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote")
        assert [i for b in ds.table().batches(500) for i in b["id"].to_pylist()] == list(range(2000))


def test_a_dead_store_is_an_error_in_bounded_time(
    s3_catalog: str, s3_server: S3Server, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_demo(s3_catalog, picture_folder)
    monkeypatch.setattr("warpdata.stores.blobstore.RetryPolicy.wait", lambda *_: None)
    with Proxy(s3_server.port, cut_every=1) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(WarpError):
            wd.dataset("ws/demo", catalog=s3_catalog)


@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_damaged_blobs_are_errors_that_name_shard_and_hash(
    s3_catalog: str, s3_server: S3Server, picture_folder: Path, mode: str, tmp_path: Path
) -> None:
    publish_demo(s3_catalog, picture_folder)
    store = s3_store(s3_server, s3_catalog.rpartition("/")[2])
    whole = wd.dataset("ws/demo", catalog=s3_catalog, cache_dir=str(tmp_path / "other"))
    whole.warm()
    manifest = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote").manifest
    for blob, where in (
        (manifest.tables["main"].shards[1], 2000),
        (manifest.artifacts["pictures"].shards[0], 540),
    ):
        data = bytearray(store.get(blob.key, max_bytes=1 << 24).data)
        data[where] ^= 0x40
        store.delete(blob.key)
        store.put_if_absent(blob.key, bytes(data))
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
    with pytest.raises(ChecksumError, match=f"shard 1 .sha256 {manifest.tables['main'].shards[1].hash}"):
        list(ds.table().batches(1000, columns=["id"]))
    with pytest.raises(ChecksumError, match=r"a/000\.png.*pictures.*sha256"):
        ds.ref("pictures", "a/000.png").read_bytes()
    assert ds.ref("pictures", "a/020.png").read_bytes() == (picture_folder / "a/020.png").read_bytes()
    assert len(ds.verify()) == 2
    assert len(whole.verify()) == 2, "what is cached does not hide damage in the store"
    store.delete(manifest.tables["main"].shards[2].key)
    gone = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote")
    with pytest.raises((BlobNotFoundError, ChecksumError), match="shard"):
        list(gone.table().batches(1000))


def test_every_flip_in_a_published_shard_is_noticed(tmp_path: Path) -> None:
    """Page sums cover every byte that is read, whatever the payload's own format checks."""
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", {"x": [1, 2, 3], "y": ["a", "b", "c"]}).publish()
    ds = wd.dataset("ws/x", catalog=tmp_path / "cat")
    path = tmp_path / "cat" / ds.manifest.tables["main"].shards[0].key
    good = path.read_bytes()
    for byte in range(0, len(good), 3):
        path.unlink()
        path.write_bytes(good[:byte] + bytes([good[byte] ^ 1 << byte % 8]) + good[byte + 1 :])
        with wd.dataset("ws/x", catalog=tmp_path / "cat") as damaged, pytest.raises(ChecksumError):
            damaged.table().arrow()
    for size in (0, 10, len(good) - 1):
        path.unlink()
        path.write_bytes(good[:size])
        with wd.dataset("ws/x", catalog=tmp_path / "cat") as damaged, pytest.raises(WarpError):
            damaged.table().arrow()


def test_a_page_checked_before_is_checked_again_when_its_file_changes(tmp_path: Path) -> None:
    """Remembering what was checked never hides a later change, even one that keeps size and time."""
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_table("main", {"x": list(range(1000))}).publish()
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
        path = tmp_path / "cat" / ds.manifest.tables["main"].shards[0].key
    time.sleep(0.15)
    for _ in range(2):
        with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds:
            assert ds.table().arrow().num_rows == 1000
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 8]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with wd.dataset("ws/x", catalog=tmp_path / "cat") as ds, pytest.raises(ChecksumError):
        ds.table().arrow()


READ_EVERYTHING = """
import sys, warpdata as wd
ds = wd.dataset("ws/demo", catalog=sys.argv[1], mode=sys.argv[2])
assert sum(b.num_rows for b in ds.table().batches(100)) == 1000
assert len(next(iter(ds.table().batches(5)))["image"][0].read_bytes()) > 10
"""

STRACE = shutil.which("strace")


def traced(catalog: str, mode: str, calls: str, log: Path) -> list[str]:
    command = [STRACE, "-f", "-qq", "-e", f"trace={calls}", "-o", str(log)]
    done = subprocess.run(
        [*command, sys.executable, "-B", "-c", READ_EVERYTHING, catalog, mode], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_local_mode_makes_no_socket_call(s3_catalog: str, picture_folder: Path, tmp_path: Path) -> None:
    publish_demo(s3_catalog, picture_folder)
    wd.dataset("ws/demo", catalog=s3_catalog).warm()
    assert traced(s3_catalog, "local", "network", tmp_path / "trace") == []
    online = traced(s3_catalog, "auto", "network", tmp_path / "trace2")
    assert [line for line in online if "AF_INET" in line], "the check can fail"


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_remote_mode_opens_no_file_for_writing(s3_catalog: str, picture_folder: Path, tmp_path: Path) -> None:
    publish_demo(s3_catalog, picture_folder)
    pattern = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|creat|mkdir|rename|link|truncate")
    calls = "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat"
    calls += ",link,linkat,symlink,symlinkat,truncate"
    written = [
        line for line in traced(s3_catalog, "remote", calls, tmp_path / "trace") if pattern.search(line)
    ]
    assert [line for line in written if "/dev/" not in line and "ENOENT" not in line] == []
    cached = [line for line in traced(s3_catalog, "auto", calls, tmp_path / "trace2") if pattern.search(line)]
    assert [line for line in cached if "blobs" in line], "the check can fail"


def in_fork(call) -> int:
    """What `call` returns in a forked process, as its exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        code = 99
        try:
            code = call()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_a_forked_process_reads_an_object_store(s3_catalog: str, picture_folder: Path, mode: str) -> None:
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
    ds.table().head(1)

    def read() -> int:
        ids = [i for batch in ds.table().batches(70) for i in batch["id"].to_pylist()]
        image = next(iter(ds.table().batches(5)))["image"][3]
        fresh = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
        assert image.read_bytes() == (picture_folder / image.name).read_bytes()
        return 17 if ids == list(range(1000)) and fresh.table().head(3).num_rows == 3 else 1

    assert in_fork(read) == 17
    assert ds.table().filter("id < 10").count() == 10, "and the parent goes on"


def test_a_store_of_google_says_what_to_do_after_a_fork() -> None:
    with run_google() as server:
        store = open_store(
            f"gs://tst/x?endpoint={server.endpoint}", StoreOptions(secrets={"bearer_token": "t"})
        )
        store.put_if_absent("a", b"x")

        def read() -> int:
            try:
                store.head("a")
            except StoreError as error:
                return 17 if "multiprocessing_context='spawn'" in error.hint else 1
            return 2

        assert in_fork(read) == 17


def test_dataloader_workers_read_an_object_store_by_default(s3_catalog: str, picture_folder: Path) -> None:
    """torch starts workers by fork: nothing special needs to be said."""
    torch = pytest.importorskip("torch")
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog)
    assert ds.table().head(2).num_rows == 2
    loader = torch.utils.data.DataLoader(ds.to_torch(100, columns=["id"]), batch_size=None, num_workers=2)
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(1000))


@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_retry_after_of_an_object_store_is_honoured(
    s3_catalog: str, s3_server: S3Server, picture_folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt, asked_s: waits.append(asked_s))
    publish_demo(s3_catalog, picture_folder, count=1000, shards=1)
    with Proxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        ds = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
        proxy.slow_down(reads=2, retry_after_s=7)
        assert ds.table().select("id").head(10)["id"].to_pylist() == list(range(10))
    assert waits == [7.0, 7.0]
    assert ds.spent.retries == 2


def test_a_wait_is_at_least_what_the_server_asked_for() -> None:
    slept: list[float] = []
    policy = RetryPolicy(sleep=slept.append)
    for attempt, asked_s in ((1, 7.0), (9, None), (1, 1e9)):
        policy.wait(attempt, asked_s)
    (asked, guessed, capped) = slept
    assert 7 <= asked <= 7.2
    assert 0 <= guessed <= 10
    assert 60 <= capped <= 60.2


def test_spawned_workers_read_an_object_store(s3_catalog: str, picture_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    publish_demo(s3_catalog, picture_folder)
    data = wd.dataset("ws/demo", catalog=s3_catalog).to_torch(100, columns=["id"])
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(1000))


def test_credentials_never_appear(
    s3_catalog: str,
    s3_server: S3Server,
    picture_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog)
    list(ds.table().batches(100))
    texts = [caplog.text, repr(ds), repr(ds.access.options), repr(ds.recipe), repr(ds.manifest)]
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            texts.append(path.read_bytes().decode("latin-1"))
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": SECRET + "wrong"}
    for command in (["info", "ws/demo"], ["doctor"], ["info", "ws/none"], ["--debug", "head", "ws/demo"]):
        run = [sys.executable, "-m", "warpdata", *command, "--catalog", s3_catalog]
        done = subprocess.run(run, capture_output=True, text=True, env=environment)
        texts += [done.stdout, done.stderr]
    assert not [text for text in texts if SECRET in text]
    store = s3_store(s3_server, s3_catalog.rpartition("/")[2])
    for info in store.list("datasets/"):
        assert SECRET.encode() not in bytes(store.get(info.key, max_bytes=1 << 20).data)
    assert BUCKET in ds.catalog.address
