"""The invariants of published datasets, under the names the specification gives their tests."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.published import publish_demo, rows
from tests.servers import run_http
from tests.waiting import until
from warpdata.errors import (
    BudgetExceededError,
    DatasetError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    TooLargeError,
)


def files_below(folder: Path) -> list[str]:
    return (
        sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        if folder.exists()
        else []
    )


def test_remote_schema_no_pull(s3_catalog: str, picture_folder: Path) -> None:
    """Schema retrieval works without any downloads."""
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog)
    assert ds.table("main").schema().names == ["id", "value", "name", "image"]
    assert ds.spent.requests <= 3
    assert ds.spent.bytes_read < 10_000


def test_remote_stream_batches(s3_catalog: str, picture_folder: Path) -> None:
    """Streaming works without pull."""
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote")
    batches = list(ds.table("main").batches(300, columns=["id"]))
    assert [b.num_rows for b in batches] == [300, 300, 300, 100]
    assert np.concatenate([b["id"].to_numpy() for b in batches]).tolist() == list(range(1000))


def test_ref_open_remote(s3_catalog: str, picture_folder: Path) -> None:
    """ImageRef/FileRef .open() works remotely."""
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote")
    ref = next(iter(ds.table("main").batches(10)))["image"][3]
    assert isinstance(ref, wd.ImageRef)
    assert ref.as_pil().size == (8, 8)
    assert ref.open().read() == (picture_folder / "a/003.png").read_bytes()


def test_cache_no_redownload(s3_catalog: str, picture_folder: Path) -> None:
    """Same blob hash is not re-downloaded when cached, whatever address served it."""
    publish_demo(s3_catalog, picture_folder)
    first = wd.dataset("ws/demo", catalog=s3_catalog)
    assert sum(b.num_rows for b in first.table().batches(100)) == 1000
    again = wd.dataset("ws/demo", catalog=s3_catalog)
    list(again.table().batches(100))
    assert again.spent.requests == 1, "only the pointer is asked for again"
    assert again.spent.bytes_read == 0, "and it has not changed"
    publish_demo(f"{s3_catalog}-mirror", picture_folder)
    mirror = wd.dataset("ws/demo", catalog=f"{s3_catalog}-mirror")
    list(mirror.table().batches(100))
    assert mirror.spent.requests == 1


def test_publish_idempotent(s3_catalog: str, picture_folder: Path) -> None:
    """Publishing same version is a no-op."""
    first = publish_demo(s3_catalog, picture_folder)
    again = publish_demo(s3_catalog, picture_folder)
    assert again.version == first.version
    assert (again.blobs_sent, again.is_new, first.is_new) == (0, False, True)
    assert [v.version for v in wd.dataset("ws/demo", catalog=s3_catalog).versions()] == [first.version]


def test_an_unchanged_publish_sends_no_blob_and_asks_for_none(local_catalog: str) -> None:
    for _ in range(2):
        with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
            done = builder.add_table("main", rows(50)).publish()
    assert done.blobs_sent == 0


def test_local_mode_opens_no_socket(
    s3_catalog: str, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_demo(s3_catalog, picture_folder)
    wd.dataset("ws/demo", catalog=s3_catalog).warm()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("warpdata.catalog.access.open_store", refuse)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="local")
    assert ds.is_remembered
    assert sum(b.num_rows for b in ds.table().batches(100)) == 1000
    assert next(iter(ds.table().batches(5)))["image"][0].as_numpy().shape == (8, 8, 3)
    assert ds.sql("select count(*) from main").arrow().column(0)[0].as_py() == 1000


def test_local_mode_fails_fast_when_something_is_missing(s3_catalog: str, picture_folder: Path) -> None:
    publish_demo(s3_catalog, picture_folder)
    with pytest.raises(OfflineError, match="never seen"):
        wd.dataset("ws/demo", catalog=s3_catalog, mode="local")
    wd.dataset("ws/demo", catalog=s3_catalog).table().head(1)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="local")
    with pytest.raises(OfflineError, match="not in the cache"):
        list(ds.table().batches(100))


def test_remote_mode_writes_nothing(s3_catalog: str, picture_folder: Path, tmp_path: Path) -> None:
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode="remote")
    list(ds.table().batches(100))
    ref = next(iter(ds.table().batches(5)))["image"][0]
    ref.read_bytes()
    with pytest.raises(DatasetError, match=r"mode=.remote. writes none"):
        ref.local_path()
    assert not (tmp_path / "cache").exists()


def test_a_member_becomes_a_file_wherever_the_catalog_is(
    local_catalog: str, s3_catalog: str, picture_folder: Path, tmp_path: Path
) -> None:
    for catalog in (local_catalog, s3_catalog):
        publish_demo(catalog, picture_folder)
        ref = wd.dataset("ws/demo", catalog=catalog).ref("pictures", "a/007.png")
        path = ref.local_path()
        assert path.read_bytes() == (picture_folder / "a/007.png").read_bytes()
        assert path.suffix == ".png"
        assert path.is_relative_to(tmp_path / "cache"), "in the cache, not in the catalog"


def test_readers_change_nothing_in_the_catalog(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    before = files_below(Path(local_catalog))
    ds = wd.dataset("ws/demo", catalog=local_catalog)
    list(ds.table().filter("id > 5").batches(100))
    ds.sql("select 1 from main").arrow()
    ds.verify()
    assert files_below(Path(local_catalog)) == before


def test_an_http_catalog_reads_like_any_other(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with run_http(Path(local_catalog)) as server, wd.dataset("ws/demo", catalog=server.url) as ds:
        assert sum(b.num_rows for b in ds.table().batches(100)) == 1000
        assert next(iter(ds.table().batches(3)))["image"][1].as_numpy()[0, 0, 0] == 5
        assert [v.version for v in ds.versions()] == [ds.version]
        server.requests.clear()
        with wd.dataset("ws/demo", catalog=server.url) as again:
            assert again.version == ds.version
        assert len(server.requests) == 1


def test_first_batch_is_few_requests(s3_catalog: str, picture_folder: Path) -> None:
    publish_demo(s3_catalog, picture_folder)
    ds = wd.dataset("ws/demo", catalog=s3_catalog)
    next(iter(ds.table().batches(50, columns=["id", "value"])))
    assert ds.spent.requests <= 6


def test_names_that_are_not_there(local_catalog: str, picture_folder: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="not published") as caught:
        wd.dataset("ws/none", catalog=local_catalog)
    assert "spelling" in caught.value.hint
    publish_demo(local_catalog, picture_folder)
    for name in ("ws/demo@nosuchtag", "ws/demo@0123456789abcdef"):
        with pytest.raises(DatasetNotFoundError) as caught:
            wd.dataset(name, catalog=local_catalog)
        assert "warp versions list ws/demo" in caught.value.hint
    for bad in ("nope", "WS/x", "ws/x@", "a/b/c", "ws/demo@-"):
        with pytest.raises(ValueError, match="not a"):
            wd.dataset(bad, catalog=local_catalog)
    with pytest.raises(DatasetError, match="no table"):
        wd.dataset("ws/demo", catalog=local_catalog).table("other")


def test_versions_by_hash_prefix_and_tag(local_catalog: str, picture_folder: Path) -> None:
    old = publish_demo(local_catalog, picture_folder, count=400, tags=("v1",), message="first")
    new = publish_demo(local_catalog, picture_folder, count=800, message="second")
    for name, version in (
        ("ws/demo", new.version),
        (f"ws/demo@{old.version[:8]}", old.version),
        (f"ws/demo@{old.version}", old.version),
        ("ws/demo@v1", old.version),
    ):
        assert wd.dataset(name, catalog=local_catalog).version == version
    history = wd.dataset("ws/demo", catalog=local_catalog).versions()
    assert {v.message for v in history} == {"first", "second"}
    assert next(v for v in history if v.is_latest).parent == old.version


def test_several_catalogs_are_searched_in_order(tmp_path: Path, picture_folder: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    publish_demo(two, picture_folder, name="ws/only-two")
    with wd.DatasetBuilder("ws/both", catalog=one) as builder:
        first = builder.add_table("main", rows(5)).publish()
    with wd.DatasetBuilder("ws/both", catalog=two) as builder:
        builder.add_table("main", rows(6)).publish()
    assert wd.dataset("ws/both", catalog=[one, two]).version == first.version
    assert wd.dataset("ws/only-two", catalog=[one, two]).catalog.address == two


def test_names_of_versions_that_are_none_are_explained(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/named", catalog=local_catalog) as builder:
        version = builder.add_table("main", rows(5)).publish().version
    with pytest.raises(DatasetNotFoundError) as caught:
        wd.dataset(f"ws/named@{version[:7]}", catalog=local_catalog)
    assert "first 8 characters" in caught.value.hint
    assert wd.dataset("ws/named@latest", catalog=local_catalog).version == version
    with pytest.raises(DatasetNotFoundError) as caught:
        wd.dataset("ws/named@best", catalog=local_catalog)
    assert caught.value.hint == "Run `warp versions list ws/named` to see its versions."
    assert wd.dataset(f"ws/named@{version[:8]}", catalog=local_catalog).version == version


def test_guards_keep_large_tables_out_of_memory(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    table = wd.dataset("ws/demo", catalog=local_catalog).table()
    assert len(table.pandas()) == len(table.polars()) == 1000
    for call in (table.pandas, table.polars, table.arrow):
        with pytest.raises(TooLargeError, match="1000 rows") as caught:
            call(max_rows=999)
        assert "batches()" in caught.value.hint


def test_budgets_stop_a_reader(s3_catalog: str, picture_folder: Path) -> None:
    publish_demo(s3_catalog, picture_folder, count=20_000)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, max_bytes="100kB")
    with pytest.raises(BudgetExceededError):
        list(ds.table().batches(100))
    assert ds.spent.bytes_read <= 100_000
    with pytest.raises(BudgetExceededError):
        wd.dataset("ws/demo", catalog=f"{s3_catalog}", max_requests=0, mode="remote")


@pytest.mark.parametrize("mode", ["remote", "auto"])
@pytest.mark.parametrize("columns", [["id"], None])
@pytest.mark.parametrize("limit", [None, 3000])
@pytest.mark.parametrize("prefetch", ["off", "auto"])
def test_a_plan_says_what_a_pass_reads(
    s3_catalog: str,
    picture_folder: Path,
    mode: str,
    columns: list[str] | None,
    limit: int | None,
    prefetch: str,
) -> None:
    """To the byte: from a store, from a store through a cache, and from a cache that has it all."""
    publish_demo(s3_catalog, picture_folder, count=20_000)
    ds = wd.dataset("ws/demo", catalog=s3_catalog, mode=mode)
    for _ in range(2):
        plan = ds.plan("main", columns=columns, batch_size=500, limit=limit, prefetch=prefetch)
        assert plan.rows == (limit or 20_000)
        before = ds.spent
        list(ds.table().batches(500, columns=columns, limit=limit, prefetch=prefetch))
        assert ds.spent.requests - before.requests == plan.requests
        assert ds.spent.bytes_read - before.bytes_read == plan.bytes_to_read
    assert (plan.bytes_to_read == 0) == (mode == "auto")


@pytest.mark.parametrize("prefetch", ["off", "1", "4", "auto", "aggressive"])
def test_a_plan_counts_pages_that_many_row_groups_share(
    s3_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: str
) -> None:
    """Row groups of a fraction of a page and of several, in a cache that has some of them."""
    random = np.random.default_rng(sum(prefetch.encode()))
    paths = []
    for number in range(3):
        table = pa.table({name: random.integers(0, 1 << 62, 30_000) for name in "abcd"})
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=[300, 2_000, 12_000][number], compression="none")
    with wd.DatasetBuilder("ws/pages", catalog=s3_catalog) as builder:
        builder.add_table("main", paths)
        builder.publish()
    for turn in range(4):
        monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / f"cache-{turn}"))
        with wd.dataset("ws/pages", catalog=s3_catalog) as ds:
            ds.table().take(random.integers(0, 90_000, int(random.choice([0, 1, 20]))))
        columns = sorted(random.choice(list("abcd"), int(random.integers(1, 5)), replace=False).tolist())
        with wd.dataset("ws/pages", catalog=s3_catalog) as ds:
            plan, before = ds.plan("main", columns=columns, prefetch=prefetch), ds.spent
            list(ds.table().batches(1000, columns=columns, prefetch=prefetch))
            assert ds.spent.bytes_read - before.bytes_read == plan.bytes_to_read
            assert ds.spent.requests - before.requests == plan.requests


def test_a_plan_of_a_folder(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder, count=20_000)
    ds = wd.dataset("ws/demo", catalog=local_catalog)
    plan, before = ds.plan("main"), ds.spent
    list(ds.table().batches(500))
    assert ds.spent.requests - before.requests == plan.requests
    assert ds.spent.bytes_read - before.bytes_read == plan.bytes_to_read


def test_a_damaged_manifest_in_the_catalog_is_refused(local_catalog: str, picture_folder: Path) -> None:
    done = publish_demo(local_catalog, picture_folder)
    path = Path(local_catalog) / f"datasets/ws/demo/versions/{done.version}.json"
    path.write_text(path.read_text().replace('"row_count": 250', '"row_count": 251', 1))
    with pytest.raises(ManifestCorruptedError, match="mismatch"):
        wd.dataset("ws/demo", catalog=local_catalog)


def test_a_damaged_manifest_in_the_cache_is_fetched_again(
    s3_catalog: str, picture_folder: Path, tmp_path: Path
) -> None:
    publish_demo(s3_catalog, picture_folder)
    wd.dataset("ws/demo", catalog=s3_catalog)
    (kept,) = (tmp_path / "cache/manifests/ws/demo").iterdir()
    kept.write_bytes(kept.read_bytes()[:-50])
    assert wd.dataset("ws/demo", catalog=s3_catalog).spent.requests == 2


def test_foreign_addresses_need_permission(tmp_path: Path, picture_folder: Path) -> None:
    import json

    from warpdata.formats.manifest.codec import version_hash

    one, two = tmp_path / "one", tmp_path / "two"
    done = publish_demo(str(two), picture_folder)
    with run_http(two) as far, run_http(one) as near:
        raw = json.loads((two / f"datasets/ws/demo/versions/{done.version}.json").read_text())
        for shard in raw["tables"]["main"]["shards"]:
            shard["uri"] = f"{far.url}/{shard['uri']}"
        raw["tables"]["main"].pop("guide")
        raw["version_hash"] = version_hash(raw)
        folder = one / "datasets/ws/demo"
        (folder / "versions").mkdir(parents=True)
        (folder / f"versions/{raw['version_hash']}.json").write_text(json.dumps(raw))
        pointer = {"version": raw["version_hash"], "sequence": 1, "previous": None}
        (folder / "latest.json").write_text(json.dumps(pointer))
        with (
            wd.dataset("ws/demo", catalog=near.url) as ds,
            pytest.raises(DatasetError, match="outside its catalog"),
        ):
            ds.table().head(1)
        with wd.dataset("ws/demo", catalog=near.url, allow_foreign_uris=True) as ds:
            assert ds.table().head(2)["id"].to_pylist() == [0, 1]


def cached_bytes(ds: wd.Dataset) -> int:
    shards = ds.manifest.tables["main"].shards
    return sum(s.byte_size - ds.access.reader(ds.catalog, s, "shard").missing_bytes() for s in shards)


def publish_wide(catalog: str) -> bytes:
    wide = np.random.default_rng(0).bytes(2_000_000)
    table = {"id": list(range(1000)), "wide": [wide[i * 2000 : i * 2000 + 2000] for i in range(1000)]}
    with wd.DatasetBuilder("ws/wide", catalog=catalog) as builder:
        builder.add_table("main", table).publish()
    return wide


def is_whole(ds: wd.Dataset) -> bool:
    return cached_bytes(ds) == ds.manifest.tables["main"].byte_size


READS = {
    "batches": lambda ds: list(ds.table().batches(100, columns=["id"])),
    "head": lambda ds: ds.table().select("id").head(1),
    "sql": lambda ds: ds.sql("select max(id) from main").arrow(),
    "filter": lambda ds: ds.table().select("id").filter("id > 3").head(1),
    "count": lambda ds: ds.table().filter("id > 3").count(),
    "take": lambda ds: ds.table().take([3], "id"),
}


@pytest.mark.parametrize("read", READS)
def test_hybrid_mode_brings_whole_shards_behind_what_is_read(
    s3_catalog: str, tmp_path: Path, read: str
) -> None:
    """Aggressive prefetch and cache: one column was read, then everything can be read offline."""
    wide = publish_wide(s3_catalog)
    options = {"catalog": s3_catalog, "cache_dir": str(tmp_path / "hybrid")}
    with wd.dataset("ws/wide", mode="hybrid", **options) as ds:
        READS[read](ds)
        until(lambda: is_whole(ds), "the rest never comes", pause_s=0.02)
    offline = wd.dataset("ws/wide", mode="local", **options)
    assert b"".join(offline.table().arrow()["wide"].to_pylist()) == wide


@pytest.mark.parametrize("read", READS)
def test_other_modes_bring_what_is_read(s3_catalog: str, read: str) -> None:
    publish_wide(s3_catalog)
    with wd.dataset("ws/wide", catalog=s3_catalog) as ds:
        READS[read](ds)
        time.sleep(0.2)
        assert not is_whole(ds)


def test_hybrid_mode_spends_no_budget_on_what_was_not_asked(s3_catalog: str) -> None:
    publish_wide(s3_catalog)
    with wd.dataset("ws/wide", catalog=s3_catalog, mode="hybrid", max_bytes="1MB") as ds:
        ds.table().select("id").head(1)
        time.sleep(0.5)
        assert not is_whole(ds)
        assert ds.spent.bytes_read < 1_000_000


def test_hybrid_mode_evicts_nothing_for_what_was_not_asked(
    s3_catalog: str, picture_folder: Path, tmp_path: Path
) -> None:
    publish_demo(s3_catalog, picture_folder, count=60_000, shards=3)
    options = {"mode": "hybrid", "cache_dir": str(tmp_path / "small"), "cache_bytes": 700_000}
    with wd.dataset("ws/demo", catalog=s3_catalog, **options) as ds:
        for _ in range(2):
            assert sum(b.num_rows for b in ds.table().batches(1000, columns=["id"])) == 60_000
        assert ds.access.cache.stats().used_bytes <= 700_000


def test_a_budget_holds_for_a_catalog_on_this_disk(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with wd.dataset("ws/demo", catalog=local_catalog) as ds:
        for _ in ds.table().batches(100):
            pass
        needed = ds.spent.bytes_read
    with wd.dataset("ws/demo", catalog=local_catalog, max_bytes=needed) as ds:
        assert sum(batch.num_rows for batch in ds.table().batches(100)) == 1000
    with (
        wd.dataset("ws/demo", catalog=local_catalog, max_bytes=needed - 1) as ds,
        pytest.raises(BudgetExceededError),
    ):
        list(ds.table().batches(100))
