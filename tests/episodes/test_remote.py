"""Episodes by URL: a directory, a shard and a chunk list in a store are the same objects as on this machine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.contracts.signal import SignalContract
from tests.episodes.test_stored_signals import clouds, pictures, recorded, recorded_clouds, shard_episode
from tests.episodes.test_video import foreign_episode
from tests.servers import S3Server, run_http, s3_store, unique
from tests.timeline.test_signals import STAMPS, vectors
from warpdata.cli.main import main
from warpdata.errors import BlobNotFoundError, ChecksumError, JournalInUseError, StoreError
from warpdata.timeline.ragged import as_objects


class OverHttp(SignalContract):
    """`publish` fills a folder and names the episode in it."""

    values: Any = None

    def publish(self, folder: Path) -> str:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        folder = tmp_path_factory.mktemp("published")
        name = cls().publish(folder)
        with run_http(folder) as server:
            yield wd.open_episode(f"{server.url}/{name}")["x"], STAMPS, cls.values


class TestRemoteVector(OverHttp):
    values = vectors()

    def publish(self, folder: Path) -> str:
        return recorded(folder, vectors()).name


class TestRemoteVideo(OverHttp):
    def publish(self, folder: Path) -> str:
        return recorded(folder, pictures((34, 46, 3))).name


class TestRemotePackedVideo(OverHttp):
    def publish(self, folder: Path) -> str:
        wd.pack_episode(recorded(folder, pictures((34, 46, 3))), folder / "e.wshard")
        return "e.wshard"


class TestRemotePackedRagged(OverHttp):
    values = as_objects(clouds())

    def publish(self, folder: Path) -> str:
        wd.pack_episode(recorded_clouds(folder), folder / "e.wshard")
        return "e.wshard"


class TestRemoteChunks(OverHttp):
    values = vectors()

    def publish(self, folder: Path) -> str:
        listed = wd.chunk_episode(shard_episode(), folder / "chunks", 4)
        assert listed.path is not None
        return f"chunks/{listed.path.name}"


def record_all_kinds(folder: Path) -> Path:
    with wd.LocalDatasetWriter(folder / "root").new_episode() as writer:
        writer.set_static("task", "far away")
        for i in range(30):
            writer.append("arm/state", np.full(7, i, "f4"), i * 10)
            writer.append("events", f"event {i}", i * 10)
            writer.append("cam/left", np.full((16, 24, 3), i * 8, np.uint8), i * 10)
            writer.append("depth", np.full((8, 8), i * 1000, np.uint16), i * 10)
    return Path(writer.path)


def check_same(remote: wd.Episode, local: wd.Episode) -> None:
    assert set(remote.keys) == set(local.keys)
    assert dict(remote.static) == dict(local.static)
    assert dict(remote.meta) == dict(local.meta)
    for name in local.signals:
        assert remote[name].meta == local[name].meta
        assert np.array_equal(remote[name].values(), local[name].values())
    assert (remote.start_ts, remote.last_ts) == (local.start_ts, local.last_ts)
    there, here = remote.sample([55, 105]), local.sample([55, 105])
    assert all(np.array_equal(there[name], here[name]) for name in here)


def test_a_directory_over_http(tmp_path: Path) -> None:
    folder = record_all_kinds(tmp_path)
    with run_http(tmp_path) as server:
        url = f"{server.url}/{folder.relative_to(tmp_path)}"
        remote = wd.open_episode(url)
        assert remote.id == folder.name
        check_same(remote, wd.open_episode(folder))
        check_same(wd.open_episode(url + "/"), wd.open_episode(folder))
        check_same(pickle.loads(pickle.dumps(remote)), wd.open_episode(folder))
        server.requests.clear()
        fresh = wd.open_episode(url)
        assert len(fresh["cam/left"]) == 30
        assert not [path for _, path, _ in server.requests if "left" in path], (
            "what is there comes from meta.json"
        )
        with pytest.raises(BlobNotFoundError):
            wd.open_episode(f"{server.url}/absent")
        assert wd.open_episode(f"file://{folder}").keys == remote.keys


def test_episodes_of_http_and_s3_are_read_after_a_fork(
    tmp_path: Path, s3_server: S3Server, s3_catalog: str
) -> None:
    folder = record_all_kinds(tmp_path)
    prefix = upload(s3_server, folder)
    with run_http(tmp_path) as server:
        for url in (
            f"{server.url}/{folder.relative_to(tmp_path)}",
            f"{s3_catalog.rsplit('/', 1)[0]}/{prefix}",
        ):
            remote = wd.open_episode(url)
            expected = remote["cam/left"][[3, 17, 29]].values()

            def child(remote: wd.Episode = remote, expected: Any = expected) -> bool:
                return bool(np.array_equal(remote["cam/left"][[3, 17, 29]].values(), expected))

            assert in_child(child)


def in_child(work: Any) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def upload(server: S3Server, folder: Path) -> str:
    prefix = unique("episode")
    store = s3_store(server, prefix)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put_if_absent(str(path.relative_to(folder)), path.read_bytes())
    return prefix


def test_directories_in_an_object_store(tmp_path: Path, s3_server: S3Server, s3_catalog: str) -> None:
    bucket = s3_catalog.rsplit("/", 1)[0]
    folder = record_all_kinds(tmp_path)
    prefix = upload(s3_server, folder)
    remote = wd.open_episode(f"{bucket}/{prefix}")
    check_same(remote, wd.open_episode(folder))
    check_same(pickle.loads(pickle.dumps(remote)), wd.open_episode(folder))
    endpoint = f"{bucket}/{prefix}?endpoint={s3_server.endpoint}"
    assert wd.open_episode(endpoint).keys == remote.keys
    foreign_episode(tmp_path / "foreign")
    there = wd.open_episode(f"{bucket}/{upload(s3_server, tmp_path / 'foreign')}")
    here = wd.open_episode(tmp_path / "foreign")
    for name in here.signals:
        assert np.array_equal(there[name].values(), here[name].values())
    listed = wd.chunk_episode(shard_episode(), tmp_path / "chunks", 4)
    assert listed.path is not None
    chunks = wd.open_episode(f"{bucket}/{upload(s3_server, tmp_path / 'chunks')}/{listed.path.name}")
    assert np.array_equal(pickle.loads(pickle.dumps(chunks))["x"].values(), vectors())


def test_damage_and_unfinished_recordings_are_named(tmp_path: Path) -> None:
    folder = record_all_kinds(tmp_path)
    path = folder / "arm" / "state.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with run_http(tmp_path) as server:
        url = f"{server.url}/{folder.relative_to(tmp_path)}"
        remote = wd.open_episode(url)
        with pytest.raises(ChecksumError, match=r"state\.parquet"):
            remote["arm/state"].values()
        assert len(remote["events"].values()) == 30
        writer = wd.DiskEpisodeWriter(tmp_path / "open")
        writer.append("x", 1, 1)
        with pytest.raises(JournalInUseError):
            wd.open_episode(f"{server.url}/open")
        writer.abort()


def test_a_root_in_an_object_store_is_read_like_one_on_this_machine(
    tmp_path: Path, s3_server: S3Server, s3_catalog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        record_all_kinds(tmp_path)
    root = tmp_path / "root"
    wd.LocalDataset(root).edits.set_static(1, "task", "edited")
    wd.LocalDataset(root).edits.trim(2, 50, 200)
    open_one = wd.LocalDatasetWriter(root).new_episode()
    open_one.append("x", 1, 1)
    url = f"{s3_catalog.rsplit('/', 1)[0]}/{upload(s3_server, root)}"
    open_one.abort()
    there, here = wd.open_recordings(url), wd.open_recordings(root)
    assert (len(there), there.ids, [each.id for each in there]) == (3, here.ids, [each.id for each in here])
    for remote, local in zip(there, here, strict=True):
        check_same(remote, local)
    assert [each.static["task"] for each in there[[0, 1]]] == ["far away", "edited"]
    assert [os.path.basename(each.path) for each in there.unfinished] == [f"{3:012d}"]
    check_same(pickle.loads(pickle.dumps(there))[-1], here[-1])
    assert there.open(0).keys == here.open(0).keys
    with pytest.raises(StoreError, match="read only"):
        there.edits.drop(0)
    with pytest.raises(ValueError, match="open_recordings"):
        wd.LocalDataset(url)
    assert wd.check_dataset(url).to_json()["by_rule"]["unfinished"] == 1
    assert main(["episodes", url]) == 0
    assert "3 episodes, 1 unfinished" in capsys.readouterr().out
    with pytest.raises(BlobNotFoundError):
        wd.check_dataset(url + "-absent")
    assert len(wd.open_recordings(f"file://{root}")) == 3


def test_a_folder_of_shards_in_an_object_store(
    tmp_path: Path, s3_server: S3Server, s3_catalog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    for number in range(3):
        made = wd.WShardEpisode(f"ep_{number}", length=6)
        made.observations["x"] = np.full((6, 2), number, np.float32)
        made.actions["u"] = np.zeros(6, np.float32)
        if number < 2:
            folder.mkdir(exist_ok=True)
            wd.save_wshard(made, folder / f"ep_{number}.wshard")
        else:
            wd.chunk_episode(made, folder, 4)
    with wd.VectorStore.create(tmp_path / "shards" / "v.rvf", dim=2) as store:
        store.add(np.ones((2, 2), np.float32))
    url = f"{s3_catalog.rsplit('/', 1)[0]}/{upload(s3_server, folder)}"
    found = wd.open(url)
    assert found.ids == wd.open(folder).ids == ["ep_0", "ep_1", "ep_2"]
    assert [float(each["x"].values().sum()) for each in found] == [0.0, 12.0, 24.0]
    assert wd.open(f"{url}#ep_2").steps.length == 6
    assert pickle.loads(pickle.dumps(found))[1]["x"].values().sum() == 12.0
    assert len(wd.open(f"{url}/v.rvf")) == 2
    assert main(["show", url, "ep_1"]) == 0
    assert main(["check", url]) == 0
    assert main(["episodes", url]) == 0
    assert "3 episodes" in capsys.readouterr().out
