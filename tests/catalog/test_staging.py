"""Where a builder writes on the way: on the catalog's disk, without a second copy, and nowhere else."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warpdata as wd
from tests.published import rows
from warpdata.bytekit.io import commit
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.process.locks import FileLock
from warpdata.catalog.access import access_options
from warpdata.catalog.build import outbox
from warpdata.catalog.build.staging import Staging
from warpdata.catalog.build.tables import ParquetOptions
from warpdata.errors import NoLocksError, OutOfSpaceError, StoreError
from warpdata.formats.tarshard.writer import PackOptions
from warpdata.settings import Settings
from warpdata.stores.address import open_store


@pytest.fixture
def _no_temp_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")


@pytest.mark.usefixtures("_no_temp_folder")
def test_what_was_staged_becomes_the_blob_itself(
    local_catalog: str, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a staged file was copied")

    monkeypatch.setattr("warpdata.stores.local.LocalStore.put_stream", refuse)
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", rows(50)).add_artifact("pictures", picture_folder)
        staged = {path.stat().st_ino for path in builder._staging.rglob("*") if path.is_file()}
        builder.publish()
        builder.publish()
        assert staged & {path.stat().st_ino for path in Path(local_catalog).glob("blobs/sha256/*/*")}
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


class TestMoreThanMayWait:
    """For a catalog elsewhere little waits on this disk; what is published does not depend on it."""

    @staticmethod
    def fill(builder: wd.DatasetBuilder, pictures: Path, root: Path) -> int:
        """Add tables, tars and episodes; the most bytes that were staged at once."""
        staged = [0]
        small = ParquetOptions(shard_bytes=1, row_group_rows=100)

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, 600, 100):
                files = [f"a/{number % 40:03d}.png" for number in range(start, start + 100)]
                yield pa.record_batch({"i": range(start, start + 100), "file": files})
                found = builder._staging.rglob("*")
                staged.append(sum(path.stat().st_size for path in found if path.is_file()))

        builder.add_table("main", batches(), options=small)
        builder.add_artifact("pictures", pictures, options=PackOptions(shard_bytes=4096))
        builder.bind("main", "file", "pictures", "image")
        builder.add_webdataset("samples", pictures)
        builder.add_episodes("demos", root)
        return max(staged)

    def test_it_is_sent_while_the_rest_is_made(
        self, s3_catalog: str, tmp_path: Path, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            with wd.record(tmp_path / "root", clock="simulated") as recorder:
                recorder.step({"x": np.arange(3.0) + number}, {"a": np.zeros(2)}, reward=1.0, ts_ns=0)
        (picture_folder / "a" / "000.txt").write_text("zero")
        local = str(tmp_path / "catalog")
        with wd.DatasetBuilder("ws/x", catalog=local) as builder:
            self.fill(builder, picture_folder, tmp_path / "root")
            here = builder.publish()
        monkeypatch.setattr(outbox, "STAGED_BYTES", 4000)
        with wd.DatasetBuilder("ws/x", catalog=s3_catalog) as builder:
            assert self.fill(builder, picture_folder, tmp_path / "root") < 12_000
            assert len(builder._outbox.sent) > 8
            there = builder.publish()
            again = builder.publish()
        assert (there.version, there.blobs_sent) == (here.version, here.blobs_sent)
        assert (again.version, again.blobs_sent) == (here.version, 0)
        with wd.dataset("ws/x", catalog=s3_catalog, mode="remote") as ds:
            assert ds.verify() == []
            assert ds.table().select(["i"]).arrow().column("i").to_pylist() == list(range(600))
            assert [each.id for each in ds.episodes] == ds.episodes.ids

    def test_what_it_points_at_is_still_checked(
        self, s3_catalog: str, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "STAGED_BYTES", 1)
        with wd.DatasetBuilder("ws/x", catalog=s3_catalog) as builder:
            builder.add_table("main", {"file": ["a/000.png", "a/none.png"]})
            builder.add_artifact("pictures", picture_folder).bind("main", "file", "pictures")
            with pytest.raises(wd.errors.WarpError, match=r"none\.png"):
                builder.publish()

    def test_what_was_collected_meanwhile_is_said(
        self, s3_catalog: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "STAGED_BYTES", 1)
        with wd.DatasetBuilder("ws/x", catalog=s3_catalog) as builder:
            builder.add_table("main", rows(50))
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
    from warpdata.stores.local import LocalStore

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
