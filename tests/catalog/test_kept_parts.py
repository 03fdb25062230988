"""Parts of a version in another: they are there, their bindings hold, and so do the references."""

from __future__ import annotations

from pathlib import Path

import pytest

import warpdata as wd
from tests.published import publish_demo, rows
from warpdata.errors import ChecksumError, DatasetError


def blob_files(catalog: str) -> list[Path]:
    return sorted(Path(catalog).glob("blobs/sha256/*/*"))


def test_a_blob_that_is_gone_is_noticed(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with (
        wd.dataset("ws/demo", catalog=local_catalog) as old,
        wd.DatasetBuilder("ws/new", catalog=local_catalog) as builder,
    ):
        (Path(local_catalog) / old.manifest.tables["main"].shards[1].key).unlink()
        with pytest.raises(DatasetError, match="missing or damaged"):
            builder.keep(old).publish()
        assert not (Path(local_catalog) / "datasets/ws/new").exists()


def test_parts_come_over_from_another_catalog(tmp_path: Path, picture_folder: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    publish_demo(one, picture_folder)
    with wd.dataset("ws/demo", catalog=one) as old, wd.DatasetBuilder("ws/demo", catalog=two) as builder:
        done = builder.keep(old).publish()
        assert done.version == old.version
    with wd.dataset("ws/demo", catalog=two) as new:
        assert new.verify() == []
        assert next(iter(new.table().batches(3)))["image"][1].as_numpy()[0, 0, 0] == 5


def test_bindings_are_kept_whatever_else_is_bound(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with (
        wd.dataset("ws/demo", catalog=local_catalog) as old,
        wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder,
    ):
        builder.add_artifact("more", picture_folder)
        builder.add_table("other", {"image": ["a/001.png"]}).bind("other", "image", "more", "image")
        builder.keep(old, tables=["main"], artifacts=[])  # the artifact follows
        builder.keep(old, tables=[], artifacts=["pictures"]).publish()
    with wd.dataset("ws/demo", catalog=local_catalog) as new:
        found = {(b.table, b.column, b.artifact) for b in new.manifest.bindings}
    assert found == {("main", "image", "pictures"), ("other", "image", "more")}


def test_a_binding_into_nothing_is_refused(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with wd.dataset("ws/demo", catalog=local_catalog) as old:
        with (
            wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder,
            pytest.raises(DatasetError, match=r"main\.image points into 'pictures'"),
        ):
            builder.keep(old, tables=["main"], artifacts=[]).publish()
        with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
            builder.keep(old, tables=["main"], artifacts=[], bindings=False).publish()
        with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
            with pytest.raises(DatasetError, match="no table 'mian'") as caught:
                builder.keep(old, tables=["mian"])
            assert "Did you mean 'main'?" in caught.value.hint


def test_references_between_kept_and_new_parts_are_checked(
    local_catalog: str, picture_folder: Path, tmp_path: Path
) -> None:
    publish_demo(local_catalog, picture_folder)
    few = tmp_path / "few" / "a"
    few.mkdir(parents=True)
    (few / "000.png").write_bytes((picture_folder / "a/000.png").read_bytes())
    with wd.dataset("ws/demo", catalog=local_catalog) as old:
        with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
            builder.keep(old, tables=["main"], artifacts=[]).add_artifact("pictures", tmp_path / "few")
            with pytest.raises(DatasetError, match=r"name no member.*a/001\.png"):
                builder.publish()
        with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
            builder.keep(old, tables=[], artifacts=["pictures"])
            builder.add_table("main", {"image": ["a/000.png", "a/999.png"]})
            builder.bind("main", "image", "pictures", "image")
            with pytest.raises(DatasetError, match=r"name no member.*a/999\.png"):
                builder.publish()
        with wd.DatasetBuilder("ws/demo", catalog=local_catalog) as builder:
            builder.keep(old, tables=[], artifacts=["pictures"])
            builder.add_table("main", {"image": ["a/000.png"]})
            builder.bind("main", "image", "pictures", "image").publish()


@pytest.mark.parametrize("kind", ["table", "files", "tar"])
@pytest.mark.parametrize("is_there_already", [False, True])
def test_a_source_that_changes_after_it_was_added_is_noticed(
    tmp_path: Path, kind: str, is_there_already: bool
) -> None:
    import tarfile

    import pyarrow.parquet as pq

    source = tmp_path / {"table": "a.parquet", "files": "a.bin", "tar": "a.tar"}[kind]

    def write(count: int) -> None:
        if kind == "table":
            pq.write_table(rows(count), source)
        elif kind == "files":
            source.write_bytes(b"x" * count)
        else:
            (tmp_path / "member").write_bytes(b"y" * count)
            with tarfile.open(source, "w") as tar:
                tar.add(tmp_path / "member", "member")

    def add(builder: wd.DatasetBuilder) -> wd.DatasetBuilder:
        if kind == "table":
            return builder.add_table("main", source)
        return builder.add_artifact("raw", [source], kind="tar_shards" if kind == "tar" else "files")

    write(10)
    if is_there_already:
        with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
            add(builder).publish()
    with wd.DatasetBuilder("ws/y", catalog=tmp_path / "cat") as builder:
        add(builder)
        write(2000)
        with pytest.raises(ChecksumError, match="changed since it was added"):
            builder.publish()
    assert not (tmp_path / "cat/datasets/ws/y").exists()


def test_a_footer_that_changes_under_the_hash_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts come out of the very bytes that were hashed, never out of what is there a moment later."""
    import pyarrow.parquet as pq

    from warpdata.catalog.build import tables

    source = tmp_path / "a.parquet"
    pq.write_table(rows(10), source)
    digest = tables.digest_file(source)

    def late(_: Path) -> object:
        pq.write_table(rows(11), source)
        return digest

    monkeypatch.setattr(tables, "digest_file", late)
    with (
        wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder,
        pytest.raises(ChecksumError, match="changed"),
    ):
        builder.add_table("main", source)
