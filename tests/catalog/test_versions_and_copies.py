"""Versions that go, catalogs that are copied, blobs that are mended."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.published import publish_demo, rows
from tests.servers import S3Server, run_http, s3_store
from warpdata.bytekit.io.commit import TEMP_MARK
from warpdata.catalog.access import Access, AccessOptions, access_options, parse_duration, parse_name
from warpdata.catalog.manage.copies import copy_dataset, mend_version
from warpdata.catalog.manage.versions import collect, delete_versions, expire_versions, list_tags, set_tag
from warpdata.catalog.read.resolve import Resolver
from warpdata.errors import (
    DatasetError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OutOfSpaceError,
)
from warpdata.settings import Settings
from warpdata.stores.local import LocalStore

X = parse_name("ws/x")


def publish(catalog: str, count: int, **options: Any) -> str:
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        return str(builder.add_table("main", rows(count)).publish(**options).version)


def access_to(catalog: str) -> Access:
    return Access(access_options(Settings.from_env(), catalogs=(catalog,)))


def age(catalog: str, version: str, days: float) -> None:
    path = Path(catalog) / f"datasets/ws/x/versions/{version}.json"
    then = path.stat().st_mtime - days * 86400
    os.utime(path, (then, then))


def versions(catalog: str) -> set[str]:
    return {v.version for v in wd.dataset("ws/x", catalog=catalog).versions()}


def blobs(catalog: str) -> set[str]:
    return {path.name for path in Path(catalog).glob("blobs/sha256/*/*")}


def test_deleted_versions_are_reclaimed(local_catalog: str) -> None:
    one, two, three = (publish(local_catalog, count) for count in (5, 6, 7))
    access = access_to(local_catalog)
    done = delete_versions(access, X, [one[:10], two])
    assert (set(done.versions), done.kept) == ({one, two}, 1)
    assert versions(local_catalog) == {three}
    assert list(Path(local_catalog).glob(f"datasets/ws/x/versions/{one}*")) == [], "cards and all"
    with pytest.raises(DatasetNotFoundError):
        wd.dataset(f"ws/x@{one[:12]}", catalog=local_catalog)
    assert len(collect(access.catalogs[0], grace_s=-1, delete=True).blobs) == 4
    with wd.dataset("ws/x", catalog=local_catalog) as ds:
        assert ds.verify() == []
        assert blobs(local_catalog) == set(ds.manifest.blobs())


def test_what_something_points_at_stays(local_catalog: str) -> None:
    one, two = publish(local_catalog, 5, tags=("good",)), publish(local_catalog, 6)
    access = access_to(local_catalog)
    for version, what in ((one, "tag 'good'"), (two, "latest")):
        with pytest.raises(DatasetError, match=f"{what} points at"):
            delete_versions(access, X, [version])
    with pytest.raises(DatasetNotFoundError, match="no version"):
        delete_versions(access, X, ["0" * 12])
    assert expire_versions(access, X, delete=True).versions == ()
    assert versions(local_catalog) == {one, two}


def test_what_names_no_single_version_or_time_deletes_nothing(local_catalog: str) -> None:
    made = {publish(local_catalog, count) for count in (5, 6)}
    access = access_to(local_catalog)
    with pytest.raises(ValueError, match="several versions"):
        delete_versions(access, X, [""])
    for version in made:
        with pytest.raises(DatasetNotFoundError, match="no version"):
            delete_versions(access, X, [version[:7]])
    for wrong in ({"keep_last": -1}, {"older_than_s": -1.0}):
        with pytest.raises(ValueError, match="not negative"):
            expire_versions(access, X, delete=True, **wrong)
    with pytest.raises(DatasetNotFoundError, match="ws/y is not published"):
        expire_versions(access, parse_name("ws/y"), delete=True)
    assert versions(local_catalog) == made


def test_expiry_by_number_and_age(local_catalog: str) -> None:
    made = [publish(local_catalog, 5 + i) for i in range(6)]
    for i, version in enumerate(made):
        age(local_catalog, version, days=60 - 10 * i)
    access = access_to(local_catalog)
    found = expire_versions(access, X, older_than_s=parse_duration("35d"))
    assert (found.versions, found.is_deleted) == ((made[2], made[1], made[0]), False)
    assert versions(local_catalog) == set(made), "only listed"
    assert set(expire_versions(access, X, keep_last=2).versions) == set(made[:4])
    both = expire_versions(access, X, keep_last=5, older_than_s=parse_duration("1w"), delete=True)
    assert both.versions == (made[0],)
    assert versions(local_catalog) == set(made[1:])
    assert [parse_duration(text) for text in ("90m", "2", "1.5h", "3 s")] == [5400, 172800, 5400, 3]
    with pytest.raises(ValueError, match="duration"):
        parse_duration("soon")


@pytest.mark.parametrize("everything", [False, True])
def test_a_copy_is_the_same_dataset(tmp_path: Path, picture_folder: Path, everything: bool) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    old = publish_demo(one, picture_folder, count=400, tags=("v1",), message="first")
    new = publish_demo(one, picture_folder, count=800)
    source, target = access_to(one), access_to(two)
    name = parse_name("ws/demo")
    done = copy_dataset(source, target, name, all_versions=everything)
    assert done.versions == ((old.version, new.version) if everything else (new.version,))
    with wd.dataset("ws/demo", catalog=two) as ds:
        assert ds.version == new.version
        assert ds.verify() == []
        assert len(ds.versions()) == (2 if everything else 1)
        assert ds.tags() == ({"v1": old.version} if everything else {})
    if everything:
        for path in (Path(one) / "datasets").rglob("versions/*"):
            assert (Path(two) / path.relative_to(one)).read_bytes() == path.read_bytes()
    again = copy_dataset(source, target, name, all_versions=everything)
    assert (again.blobs_sent, again.versions) == (0, done.versions)


def test_one_old_version_is_copied_without_moving_latest(
    tmp_path: Path, s3_catalog: str, s3_server: S3Server
) -> None:
    local = str(tmp_path / "one")
    one, two = publish(local, 5), publish(local, 6)
    source, target = access_to(local), access_to(s3_catalog)
    copy_dataset(source, target, X)
    done = copy_dataset(source, target, parse_name(f"ws/x@{one[:10]}"))
    assert done.is_latest is False
    assert wd.dataset("ws/x", catalog=s3_catalog, mode="remote").version == two
    back = str(tmp_path / "back")
    copy_dataset(access_to(s3_catalog), access_to(back), X, all_versions=True)
    assert versions(back) == {one, two}
    assert wd.dataset("ws/x", catalog=back).verify() == []
    assert list(s3_store(s3_server, s3_catalog.rpartition("/")[2]).list("claims/")) == []


def test_a_damaged_source_is_never_copied(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    publish(one, 5)
    path = max(Path(one).glob("blobs/sha256/*/*"), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(wd.errors.ChecksumError, match="sha256 mismatch"):
        copy_dataset(access_to(one), access_to(two), X)
    assert path.name not in blobs(two)
    assert not (Path(two) / "datasets").exists()


def damage(catalog: str) -> list[str]:
    """One blob flipped, one cut, one gone."""
    paths = sorted(Path(catalog).glob("blobs/sha256/*/*"))[:3]
    for number, path in enumerate(paths):
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.unlink()
        if number < 2:
            path.write_bytes(data[: len(data) - number])
    return [path.name for path in paths]


@pytest.mark.parametrize("origin", ["catalog", "files", "cache"])
def test_damaged_and_missing_blobs_are_mended(
    tmp_path: Path, local_catalog: str, picture_folder: Path, origin: str
) -> None:
    publish_demo(local_catalog, picture_folder)
    name = parse_name("ws/demo")
    mirror = str(tmp_path / "mirror")
    copy_dataset(access_to(local_catalog), access_to(mirror), name)
    if origin == "cache":
        from tests.servers import run_http

        with run_http(Path(mirror)) as server:
            wd.dataset("ws/demo", catalog=server.url).warm()
    bad = damage(local_catalog)
    options: dict[str, Any] = {
        "catalog": {"sources": [access_to(mirror)]},
        "files": {"files": [Path(mirror) / "blobs"]},
        "cache": {},
    }[origin]
    if origin != "cache":
        lost = mend_version(access_to(local_catalog), name)
        assert set(lost.lost) == set(bad)
        assert lost.replaced == ()
    done = mend_version(access_to(local_catalog), name, **options)
    assert (set(done.replaced), done.lost) == (set(bad), ())
    assert wd.dataset("ws/demo", catalog=local_catalog).verify() == []
    assert mend_version(access_to(local_catalog), name).replaced == ()


def test_a_damaged_manifest_is_mended_or_named(local_catalog: str, tmp_path: Path) -> None:
    version = publish(local_catalog, 5)
    mirror = str(tmp_path / "mirror")
    copy_dataset(access_to(local_catalog), access_to(mirror), X)
    path = Path(local_catalog) / f"datasets/ws/x/versions/{version}.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"row_count": 5', b'"row_count": 6'))
    with pytest.raises(ManifestCorruptedError):
        mend_version(access_to(local_catalog), X)
    with pytest.raises(ManifestCorruptedError, match="stored manifest is damaged") as caught:
        publish(local_catalog, 5)
    assert "--repair" in caught.value.hint
    assert mend_version(access_to(local_catalog), X, sources=[access_to(mirror)]).is_manifest_replaced
    assert path.read_bytes() == good
    path.write_bytes(b"{}")
    assert publish(local_catalog, 5, repair=True) == version
    assert wd.dataset("ws/x", catalog=local_catalog).version == version


def test_a_mender_says_what_kept_it(
    local_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a source that refuses is no missing copy."""
    publish(local_catalog, 5)
    mirror = str(tmp_path / "mirror")
    copy_dataset(access_to(local_catalog), access_to(mirror), X)
    for path in Path(local_catalog).glob("blobs/sha256/*/*"):
        path.unlink()

    def full(*_: object) -> None:
        raise OutOfSpaceError("no space is left", path=local_catalog)

    with monkeypatch.context() as patch, pytest.raises(OutOfSpaceError):
        patch.setattr(LocalStore, "put_stream", full)
        mend_version(access_to(local_catalog), X, sources=[access_to(mirror)])
    with pytest.raises(DatasetError, match="no catalog"):
        mend_version(access_to(local_catalog), X, sources=[access_to(str(tmp_path / "typo"))])
    assert len(mend_version(access_to(local_catalog), X, sources=[access_to(mirror)]).replaced) == 2


@pytest.mark.parametrize("tag", [None, "v1"])
def test_a_pointer_to_nothing_and_one_that_is_damaged_are_told(
    local_catalog: str, tmp_path: Path, tag: str | None
) -> None:
    version = publish(local_catalog, 5, tags=("v1",))
    mirror = str(tmp_path / "mirror")
    copy_dataset(access_to(local_catalog), access_to(mirror), X)
    manifest = Path(local_catalog) / f"datasets/ws/x/versions/{version}.json"
    manifest.unlink()
    name = parse_name("ws/x" if tag is None else f"ws/x@{tag}")
    tries: list[Callable[[], Any]] = [
        lambda: wd.dataset(str(name), catalog=local_catalog),
        lambda: mend_version(access_to(local_catalog), name, sources=[access_to(mirror)]),
    ]
    for each in tries:
        with pytest.raises(
            ManifestCorruptedError, match=f"{tag or 'latest'}.*{version[:12]}.*gone"
        ) as caught:
            each()
        assert "warp copy" in caught.value.hint
    copy_dataset(access_to(mirror), access_to(local_catalog), X)
    assert wd.dataset(str(name), catalog=local_catalog).version == version
    pointer = Path(local_catalog) / (X.latest_key if tag is None else X.tag_key(tag))
    pointer.write_bytes(b"")
    with pytest.raises(ManifestCorruptedError, match=re.escape(str(pointer))) as caught:
        wd.dataset(str(name), catalog=local_catalog)
    assert "Delete this file" in caught.value.hint
    pointer.unlink()
    publish(local_catalog, 5, tags=("v1",))
    assert wd.dataset(str(name), catalog=local_catalog).version == version


def test_a_pointer_that_moves_on_while_its_version_goes(
    local_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publish(local_catalog, 5)
    then = Resolver._open
    moves = iter([lambda: (publish(local_catalog, 6), delete_versions(access_to(local_catalog), X, [one]))])

    def late(*args: Any) -> Any:
        for move in moves:
            move()
        return then(*args)

    monkeypatch.setattr(Resolver, "_open", late)
    assert wd.dataset("ws/x", catalog=local_catalog).table().row_count == 6


def test_many_blobs_are_looked_up_by_listing(local_catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.catalog.publish import publish as transfer

    publish(local_catalog, 5)
    head, looked_up = LocalStore.head, list[str]()
    monkeypatch.setattr(transfer, "_MAX_HEADS", 0)
    monkeypatch.setattr(LocalStore, "head", lambda store, key: looked_up.append(key) or head(store, key))
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", rows(5)).add_table("more", rows(9))
        assert builder.publish().blobs_sent == 2
    assert not [key for key in looked_up if key.startswith("blobs/")]


def test_publishing_again_brings_back_what_a_collector_took(local_catalog: str) -> None:
    publish(local_catalog, 5)
    gone = next(Path(local_catalog).glob("blobs/sha256/*/*"))
    gone.unlink()
    publish(local_catalog, 5)
    assert wd.dataset("ws/x", catalog=local_catalog).verify() == []


def test_leftovers_and_probes_of_the_dead_are_collected(local_catalog: str) -> None:
    one = publish(local_catalog, 5)
    publish(local_catalog, 6)
    (Path(local_catalog) / f"datasets/ws/x/versions/{one}.json").unlink()  # a deleter died here
    access = Access(AccessOptions((local_catalog,)))
    probe = Path(local_catalog) / "probe/dead"
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.write_text("clock")
    os.utime(probe, (1, 1))
    assert len(collect(access.catalogs[0], grace_s=-1).leftovers) == 2
    found = collect(access.catalogs[0], grace_s=-1, delete=True)
    assert len(found.leftovers) == 2
    assert not probe.exists()
    assert list(Path(local_catalog).glob(f"datasets/ws/x/versions/{one}*")) == []
    assert list_tags(access.catalogs[0], X) == {}


def test_a_file_that_its_writer_finishes_meanwhile_stops_no_collector(local_catalog: str) -> None:
    """Between the listing and the look at it, it is gone."""
    publish(local_catalog, 5)
    gone = Path(local_catalog) / f"blobs/.ab{TEMP_MARK}0123456789ab"
    access = access_to(local_catalog)
    listed, os_listdir = str(gone.name), os.listdir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda folder: [*os_listdir(folder), listed])
        assert collect(access.catalogs[0], grace_s=-1).temporary_files == 0


def test_the_error_of_the_error_table_has_the_builtins_name() -> None:
    with pytest.raises(PermissionError):
        raise wd.PermissionError("the bucket policy forbids this")
    assert wd.PermissionError is wd.errors.PermissionError_


def test_a_tag_is_set_where_its_version_is(local_catalog: str, tmp_path: Path) -> None:
    publish(local_catalog, 5)
    mine = str(tmp_path / "mine")
    access = Access(access_options(Settings.from_env(), catalogs=(mine, local_catalog)))
    with pytest.raises(DatasetError, match=r"is in .*, but tags are set in .*mine") as caught:
        set_tag(access, access.catalogs[0], X, "v1")
    assert "warp copy" in caught.value.hint
    assert not Path(mine).exists()


def test_a_hash_is_looked_for_in_every_catalog_each_time(local_catalog: str, tmp_path: Path) -> None:
    """Once its manifest is in the cache, the first catalog does not pass for the one that has the blobs."""
    version = publish(local_catalog, 5)
    with run_http(Path(local_catalog)) as server:
        for name in (f"ws/x@{version}", f"ws/x@{version}", f"ws/x@{version[:10]}"):
            with wd.dataset(name, catalog=[str(tmp_path / "mine"), server.url]) as ds:
                assert ds.catalog.address == server.url
                assert ds.table().head(5).num_rows == 5
            shutil.rmtree(tmp_path / "cache/blobs", ignore_errors=True)


def test_buckets_of_one_name_on_two_servers_are_two_catalogs(s3_catalog: str, tmp_path: Path) -> None:
    """Neither does the older `latest` of one pass for the past of the other, nor are its blobs there."""
    place = s3_catalog.partition("?")[0]
    copy = str(tmp_path / place.removeprefix("s3://"))
    for count in (5, 6):
        publish(copy, count)
    publish(s3_catalog, 7)
    with run_http(tmp_path) as server, wd.dataset("ws/x", catalog=f"{place}?endpoint={server.url}") as other:
        assert wd.dataset("ws/x", catalog=s3_catalog).table().row_count == 7, "not a rollback"
        with wd.DatasetBuilder("ws/kept", catalog=s3_catalog) as builder:
            assert builder.keep(other).publish().blobs_sent == 2
    assert wd.dataset("ws/kept", catalog=s3_catalog).table().head(9).num_rows == 6


def test_a_file_that_is_being_written_is_no_garbage_without_a_grace_period(local_catalog: str) -> None:
    publish(local_catalog, 5)
    access = access_to(local_catalog)
    store = access.catalogs[0].store
    assert store is not None

    def chunks() -> Iterator[bytes]:
        yield b"half"
        collect(access.catalogs[0], grace_s=-60, delete=True)
        yield b"half"

    store.put_stream(f"blobs/sha256/ab/{'ab' * 32}", chunks, 8)
    assert store.head(f"blobs/sha256/ab/{'ab' * 32}").size == 8


def test_who_only_looks_what_would_expire_need_not_write(
    local_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publish(local_catalog, 5)
    publish(local_catalog, 6)

    def refused(*_: object) -> None:
        raise wd.PermissionError("the file system is read-only", path=local_catalog)

    monkeypatch.setattr(LocalStore, "put_if_absent", refused)
    assert expire_versions(access_to(local_catalog), X, keep_last=1).versions == (one,)
    with pytest.raises(wd.PermissionError):
        expire_versions(access_to(local_catalog), X, keep_last=1, delete=True)
