"""Parts, episodes and tags whose names differ in case only: some disks would take what is kept of them for one file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.bytekit.io import commit
from warpdata.bytekit.io.commit import fold_name
from warpdata.catalog.read import resolve
from warpdata.errors import OfflineError
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
            assert len({fold_name(name) for name in names}) == len(names) >= 5
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
        alike = [name for name in names if fold_name(name) == fold_name(part)]
        found = os.path.join(found, alike[0] if alike and part not in names else part)
    return found


@pytest.fixture
def case_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores and caches lie on a disk that finds `Best` when it is asked for `best`."""
    plain, remembered = LocalStore.file, resolve._Memory.pointer_path
    monkeypatch.setattr(LocalStore, "file", lambda self, key: as_it_lies(plain(self, key)))
    monkeypatch.setattr(
        resolve._Memory, "pointer_path", lambda self, *asked: Path(as_it_lies(str(remembered(self, *asked))))
    )
    monkeypatch.setattr(commit, "is_case_sensitive", lambda folder: False)


def publish(catalog: Path, value: int, *tags: str) -> str:
    with wd.DatasetBuilder("a/b", catalog=catalog) as builder:
        builder.add_table("main", {"x": [value]})
        return builder.publish(tags=tags).version


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
