"""Versions that go on from the newest one: what is added joins it, whoever else adds something at the same time."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.catalog.test_trust import new_key
from tests.sweeps import SOAK
from warpdata.catalog.access import Access, access_options, parse_name
from warpdata.catalog.build import builder
from warpdata.catalog.build import parts as growing
from warpdata.catalog.manage import versions as expiry
from warpdata.catalog.manage.copies import copy_dataset, mend_version
from warpdata.catalog.manage.versions import (
    collect,
    delete_tag,
    expire_versions,
    list_datasets,
    list_versions,
    tag_version,
)
from warpdata.catalog.publish import publish
from warpdata.catalog.publish.pointers import read_list
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    DatasetError,
    ManifestCorruptedError,
    PointerMovedError,
)
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.model import PartedShards
from warpdata.settings import Settings

NAME = "lab/arm"


def read_names(artifact: Any, names: list[str]) -> list[memoryview]:
    return artifact.read(artifact.find(names))


def episode(number: int, *, value: float = 0.0, **static: Any) -> Any:
    """A recording of a few steps."""
    return {"number": number, "value": value, "static": {"task": f"task {number % 3}", **static}}


def recordings(folder: Path, *made: dict[str, Any]) -> Path:
    """Packed episodes as files in a folder; the same episode is the same bytes in every folder of a test."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in made:
        name = f"ep-{each['number']:05d}"
        kept = folder.parent / "made" / f"{name}-{each['value']}-{len(each['static'])}"
        if not kept.exists():
            _record(kept, name, each)
        shutil.copy(kept, folder / f"{name}.wshard")
    return folder


def _record(path: Path, name: str, made: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    root = path.with_suffix(".root")
    with wd.LocalDatasetWriter(root).new_episode() as one:
        for key, value in made["static"].items():
            one.set_static(key, value)
        for step in range(3):
            one.append("joints", np.full(2, made["value"] + step, np.float32), step * 10)
    (found,) = wd.LocalDataset(root)
    wd.pack_episode(found, path, episode_id=name)


def extend(catalog: str, folder: Path, **options: Any) -> Any:
    with wd.DatasetBuilder(NAME, catalog=catalog) as builder:
        return builder.extend().add_episodes("episodes", sorted(folder.glob("*"))).publish(**options)


def grow(catalog: str, tmp_path: Path, *numbers: int, **options: Any) -> Any:
    return extend(catalog, recordings(tmp_path / "new", *map(episode, numbers)), **options)


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few entries, so that small datasets have trees."""
    for name, value in (("FLAT_SHARDS", 4), ("PART_MIN_ENTRIES", 2), ("PART_MAX_ENTRIES", 6)):
        monkeypatch.setattr(layout, name, value)


def files(folder: Path, *names: str, text: str = "") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"bytes of {name}{text}")
    return [folder / name for name in names]


def grow_files(catalog: str, folder: Path, *names: str, text: str = "", **options: Any) -> Any:
    with wd.DatasetBuilder(NAME, catalog=catalog) as builder:
        builder.extend().add_artifact("raw", files(folder, *names, text=text), kind="files")
        return builder.publish(**options)


def test_new_episodes_join_those_that_are_there(local_catalog: str, tmp_path: Path) -> None:
    first = grow(local_catalog, tmp_path, 5, 7)
    second = grow(local_catalog, tmp_path, 6, 9, message="more")
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.version == second.version
        assert ds.episodes.ids == ["ep-00005", "ep-00007", "ep-00006", "ep-00009"]
        assert list(ds.artifact("episodes").members()) == [f"ep-0000{n}.wshard" for n in (5, 6, 7, 9)]
        assert [each.static["task"] for each in ds.episodes] == ["task 2", "task 1", "task 0", "task 0"]
        assert ds.episodes.where("task = 'task 0'").ids == ["ep-00006", "ep-00009"]
        assert ds.episodes["ep-00009"]["joints"].values().shape == (3, 2)
        assert ds.verify() == []
        line = ds.versions()
        assert {each.version: each.parent for each in line} == {
            first.version: None, second.version: first.version,
        }  # fmt: skip
        assert line[0].message == "more"


def test_what_is_there_already_is_not_added_again(local_catalog: str, tmp_path: Path) -> None:
    grow(local_catalog, tmp_path, 1, 2)
    second = grow(local_catalog, tmp_path, 2, 3)
    again = grow(local_catalog, tmp_path, 3, 1)
    assert again.version == second.version
    assert not again.is_new
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.episodes.ids == ["ep-00001", "ep-00002", "ep-00003"]
        assert len(ds.versions()) == 2


def test_the_same_id_with_other_bytes_publishes_nothing(local_catalog: str, tmp_path: Path) -> None:
    first = grow(local_catalog, tmp_path, 1, 2)
    folder = recordings(tmp_path / "new", episode(3), episode(2, value=9.0))
    with pytest.raises(ConflictError, match=r"ep-00002\.wshard' is there already with other bytes"):
        extend(local_catalog, folder, retries=5)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.version == first.version
        assert len(ds.versions()) == 1


def test_a_new_fact_is_a_column_of_all(local_catalog: str, tmp_path: Path) -> None:
    grow(local_catalog, tmp_path, 1, 2)
    extend(local_catalog, recordings(tmp_path / "new", episode(3, operator="ada")))
    extend(local_catalog, recordings(tmp_path / "new", episode(4)))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.table("episodes").arrow().column("operator").to_pylist() == [None, None, "ada", None]
        assert ds.episodes.where("operator = 'ada'").ids == ["ep-00003"]
        assert ds.episodes.ids == [f"ep-{n:05d}" for n in (1, 2, 3, 4)]
        assert ds.verify() == []


def test_small_files_of_the_table_are_joined_and_large_ones_left_alone(
    local_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        grow(local_catalog, tmp_path, number)
        with wd.dataset(NAME, catalog=local_catalog) as ds:
            rows = [shard.row_count for shard in ds.manifest.tables["episodes"].shards]
            assert ds.episodes.ids == [f"ep-{n:05d}" for n in range(number + 1)]
            assert len(rows) <= 4
    monkeypatch.setattr(growing, "_CLOSED_BYTES", 1)
    grow(local_catalog, tmp_path, 50)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert [shard.row_count for shard in ds.manifest.tables["episodes"].shards] == [*rows, 1]
        assert all(shard.guide is not None for shard in ds.manifest.tables["episodes"].shards)


def test_rows_join_a_table_and_may_point_at_old_and_new_files(local_catalog: str, tmp_path: Path) -> None:
    with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
        builder.add_artifact("raw", files(tmp_path / "a", "one", "two"), kind="files")
        builder.add_table("main", {"x": [1, 2], "file": ["one", "two"]}).bind("main", "file", "raw")
        builder.describe(license="MIT").publish(message="first")

    def more(names: list[str], rows: dict[str, Any]) -> Any:
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            builder.extend().add_table("main", rows)
            if names:
                builder.add_artifact("raw", files(tmp_path / "b", *names), kind="files")
            return builder.publish()

    more(["three"], {"x": [3, 4], "file": ["three", "one"]})
    more([], {"x": [5], "file": ["two"]})
    with pytest.raises(DatasetError, match="name no member of 'raw', the first is 'four'"):
        more([], {"x": [6], "file": ["four"]})
    with pytest.raises(DatasetError, match="do not fit table"):
        more([], {"x": ["six"], "file": ["one"]})
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.table().arrow().column("x").to_pylist() == [1, 2, 3, 4, 5]
        (batch,) = ds.table().batch_dicts()
        assert [ref.read_bytes() for ref in batch["file"]] == [
            f"bytes of {name}".encode() for name in ("one", "two", "three", "one", "two")
        ]
        assert ds.manifest.metadata["license"] == "MIT"
        assert "message" not in ds.manifest.metadata
        assert ds.verify() == []


def test_what_cannot_be_extended_says_so(local_catalog: str, tmp_path: Path) -> None:
    folder = files(tmp_path / "t", "a.txt", "b.txt")[0].parent
    with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
        builder.add_artifact("raw", folder).publish()
    with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
        builder.extend().add_artifact("raw", folder.glob("*"), kind="files")
        with pytest.raises(DatasetError, match="of kind tar_shards, not files"):
            builder.publish()
    with (
        wd.DatasetBuilder(NAME, catalog=local_catalog) as builder,
        wd.dataset(NAME, catalog=local_catalog) as ds,
    ):
        with pytest.raises(ValueError, match="extend"):
            builder.extend().keep(ds)
        with pytest.raises(DatasetError, match="nothing to publish"):
            builder.publish()


@pytest.fixture
def overtake(local_catalog: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Before each of the next attempts to publish, another publisher adds one of these folders."""
    monkeypatch.setattr(publish, "_PAUSE_S", 0.0)
    publish_after = publish.Publication.publish_after
    rivals: list[Path] = []

    def overtaken(*args: Any) -> Any:
        if rivals:
            with monkeypatch.context() as patch:
                patch.setattr(publish.Publication, "publish_after", publish_after)
                extend(local_catalog, rivals.pop(0))
        return publish_after(*args)

    monkeypatch.setattr(publish.Publication, "publish_after", overtaken)
    return lambda *folders: rivals.extend(folders)


def test_an_overtaken_publisher_builds_on_the_newer_version(
    local_catalog: str, tmp_path: Path, overtake: Callable[..., None]
) -> None:
    grow(local_catalog, tmp_path, 1)
    overtake(*(recordings(tmp_path / f"rival-{n}", episode(n)) for n in (10, 11, 12, 13)))
    mine = recordings(tmp_path / "mine", episode(2))
    with pytest.raises(PointerMovedError):
        extend(local_catalog, mine, retries=1)
    extend(local_catalog, mine, retries=2)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.episodes.ids == [f"ep-{n:05d}" for n in (1, 10, 11, 12, 13, 2)]


def test_an_overtaken_version_is_whole_and_goes_when_it_expires(
    local_catalog: str, tmp_path: Path, overtake: Callable[..., None]
) -> None:
    """It was stored before `latest` moved on: it is listed and opens by its hash, but was never the latest."""
    first = grow(local_catalog, tmp_path, 1)
    overtake(recordings(tmp_path / "rival", episode(10)))
    with pytest.raises(PointerMovedError, match="was being published"):
        extend(local_catalog, recordings(tmp_path / "mine", episode(2)))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        latest = ds.version
        assert ds.episodes.ids == ["ep-00001", "ep-00010"]
        (stored,) = {each.version for each in ds.versions()} - {first.version, latest}
    with wd.dataset(f"{NAME}@{stored}", catalog=local_catalog) as ds:
        assert ds.episodes.ids == ["ep-00001", "ep-00002"]
        assert ds.verify() == []
    done = expire_versions(access_to(local_catalog), parse_name(NAME), keep_last=0, delete=True)
    assert set(done.versions) == {first.version, stored}
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert (ds.version, ds.verify()) == (latest, [])


def test_the_first_version_may_be_overtaken_too(
    local_catalog: str, tmp_path: Path, overtake: Callable[..., None]
) -> None:
    """What was built on nothing is built again on what is there by then: no episode is there twice."""
    overtake(recordings(tmp_path / "rival", episode(1), episode(2, operator="ann")))
    extend(local_catalog, recordings(tmp_path / "mine", episode(1), episode(3)), retries=1)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.episodes.ids == [f"ep-{n:05d}" for n in (1, 2, 3)]
        assert ds.table("episodes").arrow()["id"].to_pylist() == ds.episodes.ids


@pytest.mark.parametrize("extends", [True, False])
def test_the_table_of_episodes_follows_what_a_builder_gets(
    extends: bool, local_catalog: str, tmp_path: Path
) -> None:
    with wd.DatasetBuilder(NAME, catalog=local_catalog) as one:
        if extends:
            one.extend()
        for number in (1, 2, 3):
            folder = recordings(
                tmp_path / f"new-{number}", episode(number, **({"hand": "left"} if number == 3 else {}))
            )
            one.add_episodes(f"part{number}", sorted(folder.glob("*")))
            assert one.manifest().tables["episodes"].row_count == number
            one.publish()
            with wd.dataset(NAME, catalog=local_catalog) as ds:
                assert ds.episodes.ids == [f"ep-{n:05d}" for n in range(1, number + 1)]
                assert ds.table("episodes").arrow()["id"].to_pylist() == ds.episodes.ids


WRITER = textwrap.dedent(
    """
    import sys, pathlib, warpdata as wd
    catalog, folder, writer, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    for round in range(count):
        with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
            path = folder / f"w{writer:03d}-r{round:03d}.bin"
            path.write_bytes(f"{writer} {round}".encode())
            builder.extend().add_artifact("raw", [path], kind="files").publish(retries=100)
    """
)


def test_many_processes_publish_at_once_and_nothing_is_lost(local_catalog: str, tmp_path: Path) -> None:
    writers, rounds = (5, 4) if SOAK else (3, 3)
    folder = tmp_path / "files"
    folder.mkdir()
    command = [sys.executable, "-c", WRITER, local_catalog, str(folder)]
    running = [
        subprocess.Popen([*command, str(number), str(rounds)], stderr=subprocess.PIPE)
        for number in range(writers)
    ]
    for each in running:
        _, error = each.communicate(timeout=240)
        assert each.returncode == 0, error.decode()[-2000:]
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        expected = {f"w{w:03d}-r{r:03d}.bin" for w in range(writers) for r in range(rounds)}
        assert set(ds.artifact("raw").members()) == expected
        assert ds.verify() == []
        every = {each.version: each.parent for each in ds.versions()}
        line: list[str | None] = [ds.version]
    while (parent := every[line[-1]]) is not None:
        line.append(parent)
    assert len(line) == writers * rounds, "from the newest version every other that was latest is reached"
    store = Access(access_options(Settings.from_env(), catalogs=(local_catalog,))).catalogs[0].store
    assert set(read_list(store, parse_name(NAME)).versions) >= set(line)


def publish_one(catalog: str, value: int, **options: Any) -> Any:
    """A version of its own, which goes on from nothing."""
    with wd.DatasetBuilder(NAME, catalog=catalog) as builder:
        return builder.add_table("main", {"x": [value]}).publish(message=str(value), **options)


def test_versions_that_replace_each_other_are_a_line_too(local_catalog: str, monkeypatch) -> None:
    monkeypatch.setattr(publish, "_MAX_PAUSE_S", 0.03)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda value: publish_one(local_catalog, value, retries=20), range(12)))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        parents = {each.version: each.parent for each in ds.versions()}
        assert set(parents) == {each.version for each in made}
        line: list[str | None] = [ds.version]
    while line[-1] is not None:
        line.append(parents[line[-1]])
    assert len(line) == 13, "from the newest version every other one is reached"


def test_a_version_overtaken_at_the_last_moment_follows_the_one_that_overtook_it(
    local_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = publish_one(local_catalog, 0)
    bring, rivals = publish.Publication.put_version, iter([1])

    def overtaken(*args: Any) -> Any:
        for rival in rivals:
            publish_one(local_catalog, rival)
        return bring(*args)

    monkeypatch.setattr(publish.Publication, "put_version", overtaken)
    publish_one(local_catalog, 2, retries=1)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        line = ds.versions()
    assert [each.message for each in line] == ["2", "1", "0"]
    assert [each.parent for each in line] == [line[1].version, first.version, None]
    rivals = iter([3])
    with pytest.raises(ConflictError, match=r"not .* as expected"):
        publish_one(local_catalog, 4, retries=5, expect_latest=line[0].version)


def test_no_version_is_listed_before_the_one_it_goes_on_from(
    local_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is overtaken has built his version before the one that it follows."""
    for value, second in enumerate((10, 30, 20, 30, 25, 40)):
        monkeypatch.setattr(builder, "utc_now", lambda second=second: f"2026-01-01T00:00:{second}+00:00")
        publish_one(local_catalog, value, retries=1)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert [each.message for each in ds.versions()] == list("543210")


# Long lists: every operation on a catalog knows parts.


def access_to(catalog: str) -> Access:
    return Access(access_options(Settings.from_env(), catalogs=(catalog,)))


def names(count: int, letter: str = "f") -> list[str]:
    return [f"{letter}{number:04d}" for number in range(count)]


def test_ten_new_files_among_many_write_little(local_catalog: str, tmp_path: Path) -> None:
    grow_files(local_catalog, tmp_path / "old", *names(700))
    before = {
        path: path.stat().st_size for path in (Path(local_catalog) / "blobs").rglob("*") if path.is_file()
    }
    done = grow_files(local_catalog, tmp_path / "new", *names(10, "f0400-"))
    after = {
        path: path.stat().st_size for path in (Path(local_catalog) / "blobs").rglob("*") if path.is_file()
    }
    new = after.keys() - before.keys()
    assert len(new) <= 10 + 6
    assert sum(after[path] for path in new) < 100_000
    assert done.blobs_sent <= len(new)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert isinstance(ds.manifest.artifacts["raw"].shards, PartedShards)
        assert len(ds.artifact("raw")) == 710
        assert read_names(ds.artifact("raw"), ["f0400-0007"])[0] == b"bytes of f0400-0007"
        manifest = Path(local_catalog) / parse_name(NAME).version_key(ds.version)
        assert manifest.stat().st_size < 3000


def test_the_history_of_a_list_does_not_show_in_its_version(tmp_path: Path, short_lists: None) -> None:
    versions = set()
    for catalog, order in (("a", [0, 1, 2]), ("b", [2, 0, 1]), ("c", [[0, 1, 2]])):
        for batch in order:
            wanted = [n for b in (batch if isinstance(batch, list) else [batch]) for n in names(40)[b::3]]
            done = grow_files(str(tmp_path / catalog), tmp_path / "files", *wanted)
        versions.add(done.version)
    assert len(versions) == 1


def test_parts_are_used_until_no_version_names_them(
    local_catalog: str, tmp_path: Path, short_lists: None
) -> None:
    for start in range(0, 60, 20):
        grow_files(local_catalog, tmp_path / "files", *names(60)[start : start + 20])
    access = access_to(local_catalog)
    catalog = access.catalogs[0]
    assert collect(catalog, delete=True, grace_s=-60).blobs == ()
    done = expire_versions(access, parse_name(NAME), keep_last=1, older_than_s=0, delete=True)
    assert len(done.versions) == 2
    gone = collect(catalog, delete=True, grace_s=-60)
    assert gone.blobs, "parts that only the older versions had"
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.verify() == []
        assert sorted(ds.artifact("raw").members()) == names(60)
        held = {path.name for path in (Path(local_catalog) / "blobs").rglob("*") if path.is_file()}
        assert held == set(ds.manifest.blobs())


def test_an_unreadable_part_stops_the_collector(
    local_catalog: str, tmp_path: Path, short_lists: None
) -> None:
    grow_files(local_catalog, tmp_path / "files", *names(30))
    orphan = Path(local_catalog) / "blobs" / "sha256" / "00" / ("0" * 64)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x")
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        root = ds.manifest.artifacts["raw"].shards.root
    path = Path(local_catalog) / root.key
    whole = path.read_bytes()
    for damage in (whole[:-2] + b"  ", None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(wd.WarpError):
            collect(access_to(local_catalog).catalogs[0], delete=True, grace_s=-60)
        assert orphan.exists()


def test_parts_are_copied_with_every_version(local_catalog: str, tmp_path: Path, short_lists: None) -> None:
    for start in range(0, 60, 20):
        grow_files(local_catalog, tmp_path / "files", *names(60)[start : start + 20])
    target = str(tmp_path / "copy")
    copied = copy_dataset(access_to(local_catalog), access_to(target), parse_name(NAME), all_versions=True)
    assert len(copied.versions) == 3
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        every = [each.version for each in ds.versions()]
    for version in every:
        with wd.dataset(f"{NAME}@{version}", catalog=target) as ds:
            assert ds.verify() == []
    shutil.rmtree(local_catalog)
    with wd.dataset(NAME, catalog=target) as ds:
        assert sorted(ds.artifact("raw").members()) == names(60)
    assert collect(access_to(target).catalogs[0], delete=True, grace_s=-60).blobs == ()


def test_damaged_parts_are_found_and_mended(local_catalog: str, tmp_path: Path, short_lists: None) -> None:
    grow_files(local_catalog, tmp_path / "files", *names(30))
    target = str(tmp_path / "copy")
    copy_dataset(access_to(local_catalog), access_to(target), parse_name(NAME))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        refs = ds.manifest.artifacts["raw"].shards.part_blobs()
        shard = ds.manifest.artifacts["raw"].shards[7]
    assert len(refs) > 4
    for number, ref in enumerate([refs[0], refs[-1], refs[2], shard]):
        path = Path(target) / ref.key
        data = path.read_bytes()
        path.unlink()
        if number:
            path.write_bytes(data[:-1] + b"?")
    with pytest.raises(ManifestCorruptedError), wd.dataset(NAME, catalog=target) as ds:
        list(ds.artifact("raw").members())
    with pytest.raises(wd.WarpError):
        mend_version(access_to(target), parse_name(NAME))
    mended = mend_version(access_to(target), parse_name(NAME), sources=[access_to(local_catalog)])
    assert set(mended.replaced) == {refs[0].hash, refs[-1].hash, refs[2].hash, shard.hash}
    assert mended.lost == ()
    with wd.dataset(NAME, catalog=target) as ds:
        assert ds.verify() == []


def test_verify_names_a_damaged_part(local_catalog: str, tmp_path: Path, short_lists: None) -> None:
    grow_files(local_catalog, tmp_path / "files", *names(30))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.verify() == []
        path = Path(local_catalog) / ds.manifest.artifacts["raw"].shards.part_blobs()[1].key
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"?")
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        (found,) = ds.verify()
        assert "artifact 'raw': a part of a manifest is damaged" in found
    path.unlink()
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        (found,) = ds.verify()
        assert "a part of the manifest is missing" in found


def test_a_diff_names_what_was_added_and_reads_few_parts(local_catalog: str, tmp_path: Path) -> None:
    first = grow_files(local_catalog, tmp_path / "files", *names(700))
    second = grow_files(local_catalog, tmp_path / "files", "f0300x", "g")
    with wd.dataset(f"{NAME}@{first.version}", catalog=local_catalog) as ds:
        asked: list[str] = []
        other = wd.dataset(f"{NAME}@{second.version}", catalog=local_catalog)
        for each in (ds, other):
            shards = each.manifest.artifacts["raw"].shards
            assert isinstance(shards, PartedShards)
            source = shards._source
            shards._source = lambda refs, source=source: (asked.extend(r.hash for r in refs), source(refs))[1]
        diff = ds.diff(other)
        assert diff.artifacts[0].shards_added == ("f0300x", "g")
        assert diff.artifacts[0].shards_removed == ()
        assert (diff.bytes_added, diff.bytes_removed) == (len("bytes of f0300x") + len("bytes of g"), 0)
        assert diff.bytes_shared == ds.manifest.total_bytes
        assert len(asked) <= 8
        other.close()


def test_a_long_list_is_kept_by_the_version_that_names_it(
    local_catalog: str, tmp_path: Path, short_lists: None
) -> None:
    grow_files(local_catalog, tmp_path / "files", *names(30))
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        with wd.DatasetBuilder("lab/other", catalog=local_catalog) as builder:
            done = builder.keep(ds).add_table("main", {"x": [1]}).publish()
        assert done.blobs_sent == 2
        target = str(tmp_path / "elsewhere")
        with wd.DatasetBuilder("lab/other", catalog=target) as builder:
            builder.keep(ds).publish()
    for catalog in (local_catalog, target):
        with wd.dataset("lab/other", catalog=catalog) as ds:
            assert ds.verify() == []
            assert sorted(ds.artifact("raw").members()) == names(30)


def test_a_blob_that_is_gone_from_a_kept_long_list_is_noticed(
    local_catalog: str, tmp_path: Path, short_lists: None
) -> None:
    grow_files(local_catalog, tmp_path / "files", *names(30))
    with (
        wd.dataset(NAME, catalog=local_catalog) as ds,
        wd.DatasetBuilder("lab/other", catalog=local_catalog) as builder,
    ):
        blob = Path(local_catalog) / ds.manifest.artifacts["raw"].shards[7].key
        good = blob.read_bytes()
        builder.keep(ds)
        blob.unlink()
        with pytest.raises(DatasetError, match=f"missing or damaged.*{blob.name}"):
            builder.publish()
        blob.write_bytes(b"x" * len(good))
        with pytest.raises(DatasetError, match="missing or damaged"):
            builder.publish(repair=True)
        assert not (Path(local_catalog) / "datasets/lab/other").exists()
        blob.write_bytes(good)
        assert builder.publish(repair=True).is_new


def test_signatures_cover_parts(local_catalog: str, tmp_path: Path, short_lists: None) -> None:
    pytest.importorskip("cryptography")
    key = new_key(tmp_path / "key.pem")
    grow_files(local_catalog, tmp_path / "files", *names(30))
    done = grow_files(local_catalog, tmp_path / "files", *names(30, "g"), sign_key=key)
    given = {"catalog": local_catalog, "verify": "require", "trusted_keys": (done.signed_by,)}
    with wd.dataset(NAME, **given) as ds:
        assert ds.signature.covers == "content and notes"
        leaf = ds.manifest.artifacts["raw"].shards.part_blobs()[-1]
    path = Path(local_catalog) / leaf.key
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data.replace(b"g00", b"h00"))
    with wd.dataset(NAME, **given) as ds, pytest.raises(ManifestCorruptedError):
        list(ds.artifact("raw").members())


def test_the_list_of_versions_follows_the_catalog(local_catalog: str, tmp_path: Path) -> None:
    every = [grow_files(local_catalog, tmp_path / "files", f"x{number}").version for number in range(15)]
    store, name = access_to(local_catalog).catalogs[0].store, parse_name(NAME)
    assert read_list(store, name).versions == tuple(every)
    access = access_to(local_catalog)
    expire_versions(access, name, keep_last=2, delete=True)
    assert set(read_list(store, name).versions) == set(every[-2:])


class Counted:
    """A store that counts what it is asked for."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.asked = inner, []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def counted(*args: Any, **options: Any) -> Any:
            self.asked.append((name, args[0] if args else ""))
            return found(*args, **options)

        return counted


def counted_access(catalog: str) -> tuple[Access, Any, Counted]:
    access = access_to(catalog)
    store = Counted(access.catalogs[0].store)
    return access, replace(access.catalogs[0], store=store), store


def looked_at(store: Counted) -> list[str]:
    """Versions whose manifests were read."""
    return [key for call, key in store.asked if call == "get" and "/versions/" in key]


def test_a_list_of_versions_opens_no_manifest(local_catalog: str, tmp_path: Path) -> None:
    """What it shows is what the manifests say, however it was found."""
    every = [
        grow_files(
            local_catalog, tmp_path / "files", f"x{n}", message=f"no {n}" + "!" * 300 * (n == 4)
        ).version
        for n in range(15)
    ]
    name = parse_name(NAME)
    access, catalog, store = counted_access(local_catalog)
    found = list_versions(access, catalog, name)
    assert [each.version for each in found] == every[::-1]
    assert looked_at(store) == [name.version_key(every[4])], "its message is too long for the list"
    for limit in (1, 4, 6, 7, 15, 40):
        access, catalog, store = counted_access(local_catalog)
        assert list_versions(access, catalog, name, limit=limit) == found[:limit]
        assert not [key for call, key in store.asked if call == "list" and "versions/" in key]
    head = access.catalogs[0].store.get(name.list_key, max_bytes=1 << 20)
    bare = {key: value for key, value in json.loads(bytes(head.data)).items() if key != "about"}
    access.catalogs[0].store.compare_and_swap(name.list_key, json.dumps(bare).encode(), head.info.etag)
    access, catalog, store = counted_access(local_catalog)
    assert list_versions(access, catalog, name) == found
    assert len(looked_at(store)) > 1, "an older writer does not say what it knows"


def test_a_list_that_is_behind_is_not_believed(local_catalog: str, tmp_path: Path, monkeypatch) -> None:
    first = grow_files(local_catalog, tmp_path / "files", "a")
    with monkeypatch.context() as patch:
        patch.setattr("warpdata.catalog.publish.pointers.note_version", lambda *_, **__: None)
        second = grow_files(local_catalog, tmp_path / "files", "b")
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert [each.version for each in ds.versions(limit=1)] == [second.version]
        assert [each.version for each in ds.versions()] == [second.version, first.version]
        with pytest.raises(ValueError, match="at least 1"):
            ds.versions(limit=0)


def test_expiring_goes_by_rounds_and_leaves_what_is_named(
    local_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_ROUND", 4)
    every = [grow_files(local_catalog, tmp_path / "files", f"x{n}").version for n in range(12)]
    access, name = access_to(local_catalog), parse_name(NAME)
    tag_version(access.catalogs[0].store, name, every[3], "good")
    found = expire_versions(access, name, keep_last=2, delete=True)
    assert set(found.versions) == {*every[:3], *every[4:10]}
    assert found.kept == 3
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert {each.version for each in ds.versions()} == {every[3], *every[10:]}
        assert ds.tags() == {"good": every[3]}
        delete_tag(ds.catalog, name, "good")
        assert ds.tags() == {}
        assert read_list(ds.catalog.store, name).tags == {}


def test_datasets_are_listed_without_their_versions(local_catalog: str, tmp_path: Path) -> None:
    grow_files(local_catalog, tmp_path / "files", "a")
    with wd.DatasetBuilder("other/set", catalog=local_catalog) as builder:
        builder.add_table("main", {"x": [1]}).publish()
    _, catalog, store = counted_access(local_catalog)
    assert [each.dataset_id for each in list_datasets(catalog)] == ["lab/arm", "other/set"]
    assert [each.dataset_id for each in list_datasets(catalog, "other")] == ["other/set"]
    assert not [key for call, key in store.asked if call == "list"]


def test_a_version_nobody_wrote_down_is_found_again(local_catalog: str, tmp_path: Path, monkeypatch) -> None:
    """Its publisher died before he could: the next one lists all."""
    first = grow_files(local_catalog, tmp_path / "files", "a")
    with monkeypatch.context() as patch:
        patch.setattr("warpdata.catalog.publish.pointers.note_version", lambda *_, **__: None)
        second = grow_files(local_catalog, tmp_path / "files", "b")
    third = grow_files(local_catalog, tmp_path / "files", "c")
    store = access_to(local_catalog).catalogs[0].store
    found = read_list(store, parse_name(NAME))
    assert set(found.versions) == {first.version, second.version, third.version}


def test_a_warmed_long_list_is_read_offline(s3_catalog: str, tmp_path: Path, short_lists: None) -> None:
    grow_files(s3_catalog, tmp_path / "files", *names(30))
    grow_files(s3_catalog, tmp_path / "files", "more")
    given = {"catalog": s3_catalog, "cache_dir": str(tmp_path / "warm")}
    with wd.dataset(NAME, **given) as ds:
        assert read_names(ds.artifact("raw"), ["more", "f0007"]) == [b"bytes of more", b"bytes of f0007"]
        ds.warm()
    with wd.dataset(NAME, mode="local", **given) as ds:
        assert sorted(ds.artifact("raw").members()) == sorted([*names(30), "more"])
        assert read_names(ds.artifact("raw"), ["f0029"]) == [b"bytes of f0029"]


def tar_index_members(catalog: str) -> list[int]:
    with wd.dataset(NAME, catalog=catalog) as ds:
        return [index.member_count for index in ds.manifest.artifacts["raw"].indexes]


def test_tar_files_are_added_to_without_reading_what_is_there(local_catalog: str, tmp_path: Path) -> None:
    """Against a plain dict of everything that was ever added."""
    known: dict[str, bytes] = {}
    rng = random.Random(3)
    for turn, count in enumerate([300, 3, 1, 2, 40, 5, 1]):
        folder = tmp_path / str(turn)
        folder.mkdir()
        for number in range(count):
            name = f"{turn}-{number}.txt"
            known[name] = rng.randbytes(rng.randrange(200))
            (folder / name).write_bytes(known[name])
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            sent = builder.extend().add_artifact("raw", folder).publish().bytes_sent
        if turn == 1:
            assert sent < 60_000
        with wd.dataset(NAME, catalog=local_catalog) as ds:
            artifact = ds.artifact("raw")
            names = sorted(known)
            assert list(artifact.members()) == names
            assert len(artifact) == len(names)
            assert [bytes(each) for each in read_names(artifact, names)] == [known[name] for name in names]
            assert artifact.has(["none", names[5]]) == [False, True]
            some = ["1-0.txt", "1-1.txt", "1-2.txt"] if turn else []
            assert list(artifact.members("1-")) == some
            assert ds.verify() == []
    indexes = tar_index_members(local_catalog)
    assert indexes[0] == 300, "the large one was left alone"
    assert sum(indexes) == len(known)
    assert len(indexes) <= 4
    with pytest.raises(BlobNotFoundError), wd.dataset(NAME, catalog=local_catalog) as ds:
        ds.artifact("raw").find(["none"])


def test_members_of_tar_files_are_there_once(local_catalog: str, tmp_path: Path) -> None:
    def extend(folder: Path) -> str:
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            return builder.extend().add_artifact("raw", folder).publish().version

    first = extend(files(tmp_path / "a", "one", "two")[0].parent)
    assert extend(tmp_path / "a") == first, "nothing is new"
    (tmp_path / "a" / "three").write_bytes(b"3")
    assert extend(tmp_path / "a") != first
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert list(ds.artifact("raw").members()) == ["one", "three", "two"]
        assert bytes(read_names(ds.artifact("raw"), ["three"])[0]) == b"3"
        newest = ds.version
    (tmp_path / "a" / "two").write_bytes(b"other")
    with pytest.raises(ConflictError, match="'two' already, with other bytes"):
        extend(tmp_path / "a")
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.version == newest


def test_tables_point_into_tar_files_that_are_added(local_catalog: str, tmp_path: Path) -> None:
    for turn, names in enumerate((["a.txt", "b.txt"], ["c.txt"])):
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            builder.extend().add_artifact("raw", files(tmp_path / str(turn), *names)[0].parent)
            builder.add_table("main", {"file": names})
            if not turn:
                builder.bind("main", "file", "raw")
            builder.publish()
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        found = [ref.read_bytes() for batch in ds.table().batch_dicts() for ref in batch["file"]]
        assert found == [f"bytes of {name}".encode() for name in ("a.txt", "b.txt", "c.txt")]


def test_webdataset_tars_are_added_to(local_catalog: str, tmp_path: Path) -> None:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for suffix in ("jpg", "cls"):
                info = tarfile.TarInfo(f"s{number}.{suffix}")
                info.size = 1
                tar.addfile(info, io.BytesIO(str(number).encode()))
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            builder.extend().add_webdataset("main", [tmp_path / f"{number}.tar"]).publish()
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        rows = ds.table().rows_together().to_pylist()
        assert [(row["__key__"], row["cls"]) for row in rows] == [("s0", 0), ("s1", 1)]
        assert bytes(read_names(ds.artifact("main_shards"), ["s1.jpg"])[0]) == b"1"


def test_a_corpus_grows_with_its_description(local_catalog: str, tmp_path: Path) -> None:
    def grow(folder: Path, value: float) -> Any:
        is_new = not folder.exists()
        with wd.CorpusWriter(folder, 4, dtype="f32") if is_new else wd.CorpusWriter.reopen(folder) as corpus:
            corpus.append(np.full((10, 4), value, np.float32))
        with wd.DatasetBuilder(NAME, catalog=local_catalog) as builder:
            return builder.extend().add_artifact("acts", folder, kind="activation_shards").publish()

    for turn in range(3):
        grow(tmp_path / "corpus", turn)
        with wd.dataset(NAME, catalog=local_catalog) as ds, ds.corpus(dtype="float32") as source:
            assert source.total_rows == 10 * (turn + 1)
            rows = np.concatenate([batch.rows for batch in source])
            assert rows[:, 0].tolist() == [float(each) for each in range(turn + 1) for _ in range(10)]
            version = ds.version
    with pytest.raises(ConflictError, match=r"does not list"):
        grow(tmp_path / "another", 7)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.version == version
        assert ds.verify() == []
