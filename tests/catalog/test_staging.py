"""Where a builder writes on the way: on the catalog's disk, without a second copy, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import warpdata as wd
from tests.published import rows
from warpdata.bytekit import commit


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
