"""Catalogs that somebody forged, damaged or put out of reach: each door says which of it, and believes nothing."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warpdata as wd
from tests.catalog.test_trust import new_key
from tests.memory_store import MemoryStore
from tests.servers import run_http
from warpdata.bytekit.io.commit import TEMP_MARK
from warpdata.catalog.access import Access, Catalog, access_options, parse_name
from warpdata.catalog.manage import versions as history
from warpdata.catalog.manage import versions as remotegc
from warpdata.catalog.manage.copies import copy_dataset, mend_version
from warpdata.catalog.publish.pointers import read_list
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    CorruptLayoutError,
    DatasetError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    PermissionError_,
    StoreError,
    WriterClosedError,
)
from warpdata.formats.manifest.codec import version_hash
from warpdata.settings import Settings
from warpdata.sql.columns import schema_fields, schema_to_base64

NAME = parse_name("ws/x")


def publish(catalog: Path, *values: int, **options: Any) -> str:
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        return builder.add_table("main", {"a": list(values)}).publish(**options).version


def access_to(catalog: str | Path, **changes: Any) -> Access:
    return Access(access_options(Settings.from_env(), catalogs=(str(catalog),), **changes))


def test_a_manifest_of_another_dataset(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    shutil.copytree(tmp_path / "datasets/ws/x", tmp_path / "datasets/ws/y")
    with pytest.raises(ManifestCorruptedError, match="the manifest is of ws/x"):
        wd.dataset("ws/y", catalog=tmp_path)


def test_the_beginning_of_several_versions(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    for digit in "01":
        (tmp_path / f"datasets/ws/x/versions/{digit * 56:a>64}.json").write_text("{}")
    with pytest.raises(ValueError, match="several versions; give more digits"):
        wd.dataset("ws/x@aaaaaaaa", catalog=tmp_path)
    with pytest.raises(ManifestCorruptedError):
        wd.dataset("ws/x@aaaaaaaa0", catalog=tmp_path)


def test_a_short_hash_where_nothing_is_written_down(tmp_path: Path) -> None:
    one, two = publish(tmp_path / "c", 1), publish(tmp_path / "c", 2)
    (tmp_path / "c/datasets/ws/x/versions.json").unlink()
    with run_http(tmp_path / "c") as server:
        assert wd.dataset(f"ws/x@{one[:8]}", catalog=server.url, cache_dir=tmp_path / "1").version == one
        (tmp_path / "c/datasets/ws/x/latest.json").unlink()
        with pytest.raises(StoreError, match=f"{two[:8]} cannot be looked up") as raised:
            wd.dataset(f"ws/x@{two[:8]}", catalog=server.url, cache_dir=tmp_path / "2")
        assert "64 digits" in raised.value.hint


@pytest.mark.parametrize("damage", [b"{", b"{}", b'{"versions": ["x"], "tags": {}}'])
def test_a_damaged_list_is_written_anew_by_the_next_publisher(tmp_path: Path, damage: bytes) -> None:
    one = publish(tmp_path, 1, tags=["good"])
    (tmp_path / NAME.list_key).write_bytes(damage)
    two = publish(tmp_path, 2)
    found = read_list(access_to(tmp_path).catalogs[0].store, NAME)
    assert found is not None
    assert (set(found.versions), found.tags) == ({one, two}, {"good": one})


def test_a_tag_that_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    publish(tmp_path, 1, tags=["good"])
    with pytest.raises(BlobNotFoundError, match="no tag 'goood'") as raised:
        history.delete_tag(access_to(tmp_path).catalogs[0], NAME, "goood")
    assert "Did you mean 'good'" in raised.value.hint


def test_a_signature_of_our_key_that_is_none_of_ours(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key.pem")
    version = publish(tmp_path / "c", 1, sign_key=key)
    path = tmp_path / "c" / NAME.version_key(version, ".sig.json")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "signature": said["signature"][::-1].strip("=") + "=="}))
    with pytest.raises(ConflictError, match="has another signature"):
        publish(tmp_path / "c", 1, sign_key=key)


OFFLINE: list[Callable[[Access, Catalog], Any]] = [
    lambda access, catalog: history.list_tags(catalog, NAME),
    lambda access, catalog: history.list_datasets(catalog),
    lambda access, catalog: remotegc.collect(catalog),
    lambda access, catalog: copy_dataset(access, access_to("copy"), NAME),
]


@pytest.mark.parametrize("ask", OFFLINE)
def test_a_catalog_that_may_not_be_asked(ask: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    publish(tmp_path / "c", 1)
    with run_http(tmp_path / "c") as server:
        with wd.dataset("ws/x", catalog=server.url, cache_dir=tmp_path / "cache") as ds:
            assert ds.table().head(1)["a"].to_pylist() == [1]
        access = access_to(server.url, mode="local", cache_dir=tmp_path / "cache")
        with pytest.raises(OfflineError, match=r"not reachable offline"):
            ask(access, access.catalogs[0])


def test_what_cannot_be_published_to(tmp_path: Path) -> None:
    with (
        wd.DatasetBuilder("ws/x", catalog="http://127.0.0.1:9/x", staging=tmp_path) as builder,
        pytest.raises(StoreError, match="cannot be published to"),
    ):
        builder.add_table("main", {"a": [1]}).publish()
    for nowhere in ("", " , ", []):
        with pytest.raises(ValueError, match="no catalog is given"):
            wd.DatasetBuilder("ws/x", catalog=nowhere)


def test_a_version_with_blobs_elsewhere_is_not_copied(tmp_path: Path) -> None:
    version = publish(tmp_path / "c", 1)
    folder = tmp_path / "c" / NAME.folder
    raw = json.loads((folder / f"versions/{version}.json").read_text())
    for shard in raw["tables"]["main"]["shards"]:
        shard["uri"] = f"http://127.0.0.1:9/{shard['uri']}"
    raw["version_hash"] = version_hash(raw)
    (folder / f"versions/{raw['version_hash']}.json").write_text(json.dumps(raw))
    pointer = {"version": raw["version_hash"], "sequence": 2, "previous": version}
    (folder / "latest.json").write_text(json.dumps(pointer))
    with pytest.raises(DatasetError, match="names blobs outside its catalog"):
        copy_dataset(access_to(tmp_path / "c"), access_to(tmp_path / "copy"), NAME)
    assert not (tmp_path / "copy" / NAME.latest_key).exists()


@pytest.mark.parametrize("name", ["ws/none", "ws/x@none", f"ws/x@{'0' * 64}", "ws/x@00000000"])
def test_what_is_not_there_is_not_mended(tmp_path: Path, name: str) -> None:
    publish(tmp_path, 1)
    with pytest.raises(DatasetNotFoundError, match="is not published"):
        mend_version(access_to(tmp_path), parse_name(name))


def test_who_only_looks_for_garbage_needs_not_write() -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, key: str, data: Any) -> Any:
            raise PermissionError_("it may not be written", path=key)

    store = ReadOnly()
    key = f"blobs/sha256/aa/{'a' * 64}"
    MemoryStore.put_stream(store, key, lambda: iter([b"unused"]), 6)
    found = remotegc.collect(Catalog(store.address, store), grace_s=-60.0)
    assert found.blobs == (key,)
    with pytest.raises(PermissionError_):
        remotegc.collect(Catalog(store.address, store), grace_s=-60.0, delete=True)
    assert store.head(key).size == 6


def test_files_of_killed_writers_go_with_the_garbage(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    held = next(path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    old, young = (held.with_name(f".{held.name}{TEMP_MARK}{digit * 12}") for digit in "01")
    for left in (old, young):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    catalog = access_to(tmp_path).catalogs[0]
    assert remotegc.collect(catalog).temporary_files == 1
    assert old.exists(), "nothing goes unasked"
    assert remotegc.collect(catalog, delete=True).temporary_files == 1
    assert [path.exists() for path in (old, young, held)] == [False, True, True]


def test_a_member_that_two_tars_have(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for name in ("one.tar", "two.tar"):
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.add(tmp_path / "a.txt", "a.txt")
    with (
        wd.DatasetBuilder("ws/x", catalog=tmp_path / "c") as builder,
        pytest.raises(CorruptLayoutError, match="is in two shards"),
    ):
        builder.add_artifact("raw", [tmp_path / "one.tar", tmp_path / "two.tar"])


def test_builders_that_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 1)
    with wd.dataset("ws/x", catalog=tmp_path) as ds, wd.DatasetBuilder("ws/x", catalog=tmp_path) as builder:
        with pytest.raises(ValueError, match="keep\\(\\) is for parts of others"):
            wd.DatasetBuilder("ws/x", catalog=tmp_path).extend().keep(ds)
        with pytest.raises(ValueError, match="keep\\(\\) is for parts of others"):
            builder.keep(ds).extend()
        monkeypatch.setattr("warpdata.bytekit.process.forks._generation", -1)  # as in a forked child
        for use in (builder.publish, lambda: builder.add_table("more", {"a": [1]})):
            with pytest.raises(WriterClosedError, match="belongs to the process that made it"):
                use()


@pytest.mark.parametrize(
    ("table", "artifact", "meant"), [("mian", "raw", "main"), ("main", "rwa", "raw"), ("more", "raw", None)]
)
def test_what_joins_a_version_points_at_parts_that_are_there(
    tmp_path: Path, table: str, artifact: str, meant: str | None
) -> None:
    (tmp_path / "a.txt").write_text("a")
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "c") as builder:
        builder.add_table("main", {"file": ["a.txt"]}).add_artifact("raw", [tmp_path / "a.txt"], kind="files")
        builder.publish()
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "c") as builder:
        builder.extend().add_table("more", {"file": ["a.txt"]}).bind(table, "file", artifact)
        if meant is None:
            assert builder.publish().is_new
            return
        with pytest.raises(DatasetError, match=f"names no part of this version.*Did you mean {meant!r}"):
            builder.publish()


def forge(catalog: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Publish five rows, and then a manifest of the same shard that `change` changed."""
    version = publish(catalog, 1, 2, 3, 4, 5)
    folder = catalog / "datasets/ws/x"
    raw = json.loads((folder / f"versions/{version}.json").read_text())
    change(raw)
    raw["stats"]["total_rows"] = sum(s["row_count"] for s in raw["tables"]["main"]["shards"])
    raw["version_hash"] = version_hash(raw)
    (folder / f"versions/{raw['version_hash']}.json").write_text(json.dumps(raw))
    pointer = {"version": raw["version_hash"], "sequence": 2, "previous": version}
    (folder / "latest.json").write_text(json.dumps(pointer))
    return str(raw["version_hash"])


READS: dict[str, Callable[[wd.Dataset], object]] = {
    "head": lambda ds: ds.table().head(2),
    "take": lambda ds: ds.table().take([0]),
    "batches": lambda ds: list(ds.table().batches(2)),
    "padded": lambda ds: next(iter(ds.table().batches(2, rank=1, world=2, tail="pad"))),
    "shuffled": lambda ds: next(iter(ds.table().batches(2, shuffle=True))),
    "fully shuffled": lambda ds: next(iter(ds.table().batches(2, shuffle="full"))),
    "sql": lambda ds: ds.sql("select count(a) from main").arrow(),
    "filter": lambda ds: ds.table().filter("a is not null").count(),
    "count": lambda ds: ds.table().count(),
}


@pytest.mark.parametrize("read", list(READS))
@pytest.mark.parametrize("rows", [0, 4, 6, (1 << 53) - 1])
def test_another_number_of_rows_than_the_shard_has(tmp_path: Path, rows: int, read: str) -> None:
    if (rows, read) == (0, "take"):
        pytest.skip("no row can be named")
    forge(tmp_path, lambda raw: raw["tables"]["main"]["shards"][0].update(row_count=rows))
    with (
        wd.dataset("ws/x", catalog=tmp_path) as ds,
        pytest.raises(ManifestCorruptedError, match=rf"row_count mismatch: the manifest has {rows} rows"),
    ):
        READS[read](ds)


@pytest.mark.parametrize("read", list(READS))
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("a", pa.string())]), "schema mismatch in column 'a'"),
        (pa.schema([("a", pa.int64()), ("b", pa.int8())]), "schema mismatch: the manifest has columns"),
    ],
)
def test_another_schema_than_the_shard_has(tmp_path: Path, schema: pa.Schema, words: str, read: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["tables"]["main"]["schema"] = {"fields": schema_fields(schema), "ipc": schema_to_base64(schema)}

    forge(tmp_path, change)
    with (
        wd.dataset("ws/x", catalog=tmp_path) as ds,
        pytest.raises(ManifestCorruptedError, match=words),
    ):
        READS[read](ds)


def test_verify_compares_footers_with_the_manifest(tmp_path: Path) -> None:
    forge(tmp_path, lambda raw: raw["tables"]["main"]["shards"][0].update(row_count=6))
    with wd.dataset("ws/x", catalog=tmp_path) as ds:
        (problem,) = ds.verify()
    assert "row_count mismatch" in problem
