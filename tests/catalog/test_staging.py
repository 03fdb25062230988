"""Where a builder writes on the way: on the catalog's disk, without a second copy, and nowhere else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.published import rows
from warpdata.bytekit.io import commit
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.process.locks import FileLock
from warpdata.catalog.access import Staging, access_options
from warpdata.errors import NoLocksError, OutOfSpaceError, StoreError
from warpdata.settings import Settings
from warpdata.stores.address import open_store
from warpdata.stores.local import LocalStore


@pytest.fixture
def _no_temp_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")


@pytest.mark.usefixtures("_no_temp_folder")
def test_what_was_staged_becomes_the_blob_itself(
    local_catalog: str, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_stream = LocalStore.put_stream
    copied: list[str] = []
    monkeypatch.setattr(
        LocalStore,
        "put_stream",
        lambda self, key, *given: (copied.append(key), put_stream(self, key, *given)),
    )
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", rows(50)).add_artifact("pictures", picture_folder)
        staged = {path.stat().st_ino for path in builder._staging.rglob("shard-*")}
        builder.publish()
        builder.publish()
        blobs = {path.stat().st_ino: path.name for path in Path(local_catalog).glob("blobs/sha256/*/*")}
        assert staged <= blobs.keys()
        assert not {blobs[inode] for inode in staged} & {key.rpartition("/")[2] for key in copied}
    assert not (Path(local_catalog) / ".staging").exists()
    with wd.dataset("ws/x", catalog=local_catalog) as ds:
        assert ds.verify() == []
        assert ds.table().arrow().num_rows == 50


def test_another_disk_gets_a_copy(
    tmp_path: Path, local_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_disk(*_: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(commit, "link_file", another_disk)
    with wd.DatasetBuilder("ws/x", catalog=local_catalog, staging=tmp_path / "chosen") as builder:
        builder.add_table("main", rows(50))
        assert builder._staging.parent == tmp_path / "chosen"
        builder.publish()
    assert not (tmp_path / "chosen").exists()
    assert wd.dataset("ws/x", catalog=local_catalog).verify() == []


@pytest.mark.usefixtures("_no_temp_folder")
def test_for_a_remote_catalog_it_is_the_cache_folder(s3_catalog: str, tmp_path: Path) -> None:
    with wd.DatasetBuilder("ws/x", catalog=s3_catalog) as builder:
        builder.add_table("main", rows(50))
        assert builder._staging.parent == tmp_path / "cache/staging"
        builder.publish()
    assert not (tmp_path / "cache/staging").exists()
    assert wd.dataset("ws/x", catalog=s3_catalog, mode="remote").verify() == []


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOLCK, NoLocksError), (errno.ENOSPC, OutOfSpaceError), (errno.EROFS, StoreError)],
    ids=["no locks", "no room", "read only"],
)
def test_a_disk_that_cannot_take_it_is_told_once(
    local_catalog: str, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StoreError]
) -> None:
    """It was tried again without an end, with one more folder each time."""
    tries: list[str] = []

    def fails(path: object, **_: object) -> None:
        tries.append(os.fspath(path))  # type: ignore[call-overload]
        assert len(tries) < 5
        with map_os_errors(path):  # type: ignore[arg-type]
            raise NoLocksError("no locks") if code == errno.ENOLCK else OSError(code, os.strerror(code))

    monkeypatch.setattr("warpdata.bytekit.process.locks.FileLock.take", fails)
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder, pytest.raises(error):
        builder.add_table("main", rows(5))
    assert len(tries) == 1
    assert not list(Path(local_catalog).rglob("warpdata-staging-*"))


def test_a_catalog_whose_path_is_not_unicode_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"lab\xff")
    with (
        wd.DatasetBuilder("ws/x", catalog=folder) as builder,
        pytest.raises(StoreError, match="the path is not valid UTF-8") as caught,
    ):
        builder.add_table("main", rows(5)).publish()
    assert "lab" in str(caught.value)


@pytest.mark.parametrize("gone", ["own", "another"])
def test_folders_come_and_go_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """A folder that a sweeper took is made again; one that its owner removed is none to be swept."""
    other = tmp_path / "warpdata-staging-other"
    other.mkdir()
    (other / "owner.lock").touch()
    take, removed = FileLock.take, []

    def late(path: Path, **options: Any) -> FileLock | None:
        if not removed and (path.parent == other) == (gone == "another"):
            removed.append(path.parent)
            shutil.rmtree(path.parent)
        return take(path, **options)

    monkeypatch.setattr(FileLock, "take", late)
    staging = Staging(tmp_path)
    assert removed
    assert list(tmp_path.iterdir()) == [staging.path]
    staging.close()
    assert not list(tmp_path.iterdir())


class TestEpisodesForARemoteCatalog:
    """They are sent one by one, so that this disk holds one of them; the version does not depend on it."""

    @staticmethod
    def record(root: Path) -> Path:
        for number in range(3):
            with wd.record(root, clock="simulated") as recorder:
                recorder.step({"x": np.arange(3.0) + number}, {"a": np.zeros(2)}, reward=1.0, ts_ns=0)
        return root

    def test_they_are_sent_as_they_are_packed(self, s3_catalog: str, tmp_path: Path) -> None:
        root = self.record(tmp_path / "root")
        published = []
        for catalog in (str(tmp_path / "catalog"), s3_catalog):
            with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
                builder.add_episodes("demos", root)
                staged = [path for path in builder._staging.rglob("*.wshard") if path.is_file()]
                assert len(staged) == (0 if catalog == s3_catalog else 3)
                published.append(builder.publish())
                again = builder.publish()
            assert (again.version, again.blobs_sent) == (published[0].version, 0)
        here, there = published
        assert (there.version, there.blobs_sent, there.bytes_sent) == (
            here.version, here.blobs_sent, here.bytes_sent,
        )  # fmt: skip
        with wd.dataset("ws/x", catalog=s3_catalog, mode="remote") as ds:
            assert ds.verify() == []
            assert [each.id for each in ds.episodes] == ds.episodes.ids

    def test_one_that_was_collected_meanwhile_is_an_error(self, s3_catalog: str, tmp_path: Path) -> None:
        with wd.DatasetBuilder("ws/x", catalog=s3_catalog) as builder:
            builder.add_episodes("demos", self.record(tmp_path / "root"))
            store = open_store(s3_catalog, access_options(Settings.from_env()).store)
            store.delete_all([info.key for info in store.list("blobs/")])
            with pytest.raises(wd.errors.DatasetError, match="missing") as caught:
                builder.publish()
            assert "add or store the part again" in caught.value.hint


def test_a_damaged_blob_is_replaced_by_the_staged_file(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", rows(50)).publish()
        for path in Path(local_catalog).glob("blobs/sha256/*/*"):
            data = bytearray(path.read_bytes())
            data[9] ^= 1
            path.unlink()
            path.write_bytes(data)
        assert builder.publish().blobs_sent == 0, "only looked at by size unless asked"
        done = builder.publish(repair=True)
        assert (done.blobs_sent, done.blobs_replaced, done.is_new) == (2, 2, False)
    assert wd.dataset("ws/x", catalog=local_catalog).verify() == []


def test_the_staging_folder_is_no_part_of_the_catalog(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", rows(5))
        assert list(builder._staging.rglob("*.parquet"))
        assert list(LocalStore(local_catalog).list("")) == []


def test_an_empty_name_is_no_staging_folder(local_catalog: str) -> None:
    """A variable that is not set must not mean the folder for temporary files."""
    with (
        wd.DatasetBuilder("ws/x", catalog=local_catalog, staging="") as builder,
        pytest.raises(ValueError, match="staging names no folder"),
    ):
        builder.add_table("main", {"x": [1]})
