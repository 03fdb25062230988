"""Parts, episodes and tags whose names differ in case only: some disks would take what is kept of them for one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.bytekit.io import filenames
from warpdata.bytekit.io.filenames import folded
from warpdata.catalog.access import Access, access_options
from warpdata.catalog.manage.copying import copy_dataset
from warpdata.catalog.manage.history import delete_tag, list_tags, set_tag
from warpdata.catalog.names import parse_name
from warpdata.catalog.read import resolve
from warpdata.errors import BlobNotFoundError, ConflictError, DatasetNotFoundError, OfflineError
from warpdata.settings import Settings
from warpdata.stores.local import LocalStore


def staged(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def test_nothing_that_is_staged_has_the_name_of_something_else(tmp_path: Path) -> None:
    for number, name in enumerate(("Ep", "ep")):
        made = wd.WShardEpisode(id=name, length=3)
        made.observations["x"] = np.full((3, 2), number, np.float32)
        wd.save_wshard(made, tmp_path / f"{number}.wshard")
    episodes = [wd.open_episode(tmp_path / f"{number}.wshard") for number in (0, 1)]
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2")
    with wd.DatasetBuilder("a/b", catalog=tmp_path / "catalog", staging=tmp_path / "staging") as builder:
        builder.add_table("main", {"x": [1]}).add_table("Main", {"x": [2]})
        builder.add_artifact("raw", tmp_path / "one").add_artifact("Raw", tmp_path / "two")
        builder.add_episodes("demos", episodes)
        before = staged(tmp_path / "staging")
        builder.manifest()
        for names in (before, staged(tmp_path / "staging")):
            assert len({folded(name) for name in names}) == len(names) >= 5
        builder.publish()
    with wd.dataset("a/b", catalog=str(tmp_path / "catalog")) as ds:
        assert [ds.table(name).head(1).to_pylist() for name in ("main", "Main")] == [[{"x": 1}], [{"x": 2}]]
        found = {each.id: each.steps.observations["x"][0, 0] for each in ds.episodes}
        assert found == {"Ep": 0, "ep": 1}


def as_it_lies(path: str) -> str:
    """The path with every name as a disk that is blind to case finds it."""
    found = "/"
    for part in Path(path).parts[1:]:
        names = os.listdir(found) if os.path.isdir(found) else []
        alike = [name for name in names if folded(name) == folded(part)]
        found = os.path.join(found, alike[0] if alike and part not in names else part)
    return found


@pytest.fixture
def case_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores and caches lie on a disk that finds `Best` when it is asked for `best`."""
    plain, remembered = LocalStore.file, resolve._Memory._pointer_path
    monkeypatch.setattr(LocalStore, "file", lambda self, key: as_it_lies(plain(self, key)))
    monkeypatch.setattr(
        resolve._Memory, "_pointer_path", lambda self, *asked: Path(as_it_lies(str(remembered(self, *asked))))
    )
    monkeypatch.setattr(filenames, "tells_apart", lambda folder: False)


def publish(catalog: Path, value: int, *tags: str, extends: bool = False) -> str:
    with wd.DatasetBuilder("a/b", catalog=catalog) as builder:
        builder.add_table("main", {"x": [value]})
        return (builder.extend() if extends else builder).publish(tags=tags).version


def opened(catalog: Path) -> Access:
    return Access(access_options(Settings.from_env(), catalogs=(str(catalog),)))


def tags_of(catalog: Path) -> dict[str, str]:
    return list_tags(opened(catalog).catalogs[0], parse_name("a/b"))


Write = Callable[[Path], object]
WRITES: dict[str, Write] = {
    "publish": lambda catalog: publish(catalog, 2, "best"),
    "extend": lambda catalog: publish(catalog, 2, "best", extends=True),
    "two at once": lambda catalog: publish(catalog, 2, "New", "new"),
    "tag": lambda catalog: set_tag(
        opened(catalog), opened(catalog).catalogs[0], parse_name(f"a/b@{publish(catalog, 2)}"), "best"
    ),
    "tag of the same version": lambda catalog: set_tag(
        opened(catalog), opened(catalog).catalogs[0], parse_name("a/b@Best"), "best"
    ),
    "copy": lambda catalog: copy_dataset(
        opened(catalog.parent / "other"), opened(catalog), parse_name("a/b")
    ),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_tag_never_takes_the_place_of_another(tmp_path: Path, case_blind: None, how: str) -> None:
    catalog = tmp_path / "catalog"
    publish(tmp_path / "other", 3, "best")
    first = publish(catalog, 1, "Best")
    with pytest.raises(ConflictError, match="for one name"):
        WRITES[how](catalog)
    assert tags_of(catalog) == {"Best": first}
    assert publish(catalog, 4, "Best") == tags_of(catalog)["Best"], "its own name moves"


@pytest.mark.parametrize("how", WRITES)
def test_other_disks_hold_both(tmp_path: Path, how: str) -> None:
    catalog = tmp_path / "catalog"
    publish(tmp_path / "other", 3, "best")
    first = publish(catalog, 1, "Best")
    WRITES[how](catalog)
    assert tags_of(catalog)["Best"] == first
    assert len(tags_of(catalog)) >= 2


def test_a_tag_is_found_and_deleted_by_its_own_name_only(tmp_path: Path, case_blind: None) -> None:
    version = publish(tmp_path, 1, "Best")
    assert wd.dataset("a/b@Best", catalog=str(tmp_path)).version == version
    with pytest.raises(DatasetNotFoundError):
        wd.dataset("a/b@best", catalog=str(tmp_path))
    with pytest.raises(BlobNotFoundError, match="no tag 'best'"):
        delete_tag(opened(tmp_path).catalogs[0], parse_name("a/b"), "best")
    assert tags_of(tmp_path) == {"Best": version}
    delete_tag(opened(tmp_path).catalogs[0], parse_name("a/b"), "Best")
    assert tags_of(tmp_path) == {}


def test_what_a_cache_remembers_of_one_tag_is_not_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Offline, the tag that was seen last must not answer for the one that was asked for."""
    upper, lower = (publish(tmp_path / "catalog", value, tag) for value, tag in ((1, "Best"), (2, "best")))
    request.getfixturevalue("case_blind")
    cache = str(tmp_path / "cache")
    with run_http(tmp_path / "catalog") as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with wd.dataset("a/b@Best", catalog=address, cache_dir=cache) as ds:
            assert ds.version == upper
        with pytest.raises(OfflineError):
            wd.dataset("a/b@best", catalog=address, cache_dir=cache, mode="local")
        with wd.dataset("a/b@best", catalog=address, cache_dir=cache) as ds:
            assert ds.version == lower
    for tag, version in (("Best", upper), ("best", lower)):
        with wd.dataset(f"a/b@{tag}", catalog=address, cache_dir=cache, mode="local") as ds:
            assert ds.version == version
