"""A vector file that grows: what was appended joins what is published, and nothing that is there is lost."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.catalog.build.builder import DatasetBuilder
from warpdata.cli.main import main
from warpdata.errors import ConflictError, CorruptLayoutError

NAME, DIM = "lab/vectors", 16


def rows(first: int, count: int) -> np.ndarray:
    return np.random.default_rng(first).standard_normal((count, DIM)).astype(np.float32)


def make(path: Path, count: int = 500) -> Path:
    path.parent.mkdir(exist_ok=True)
    with wd.VectorStore.create(path, dim=DIM) as store:
        store.add(rows(0, count), metadata=[{"n": n} for n in range(count)])
    return path


def add(path: Path, first: int, count: int) -> None:
    with wd.VectorStore.open(path, mode="a") as store:
        store.add(rows(first, count), metadata=[{"n": first + n} for n in range(count)])


def grow(catalog: str, path: Path, **options: Any) -> Any:
    with DatasetBuilder(NAME, catalog=catalog) as builder:
        return builder.extend().add_artifact("vectors", [path], kind="vector_index").publish(**options)


def check(catalog: str, path: Path, version: str | None = None) -> list[int]:
    """What is published answers as the file does; the sizes of its parts, in the order of the file."""
    name = NAME if version is None else f"{NAME}@{version}"
    with wd.dataset(name, catalog=catalog) as ds, wd.VectorStore.open(path) as local, ds.vectors() as far:
        assert far.ids.tolist() == local.ids.tolist()
        assert far.metadata(far.ids) == local.metadata(local.ids)
        assert np.array_equal(far.get(far.ids), local.get(local.ids))
        query = rows(7, 1)[0]
        assert far.search(query, k=5)[0].tolist() == local.search(query, k=5)[0].tolist()
        assert far.verify() == []
        assert ds.verify() == []
        return [shard.byte_size for shard in reversed(ds.manifest.artifacts["vectors"].shards)]


def test_what_was_appended_is_sent_and_nothing_else(local_catalog: str, tmp_path: Path) -> None:
    path = make(tmp_path / "v.rvf", 5000)
    first = grow(local_catalog, path)
    kept = tmp_path / "before.rvf"
    shutil.copy(path, kept)
    before = path.stat().st_size
    add(path, 5000, 20)
    second = grow(local_catalog, path)
    assert second.bytes_sent == path.stat().st_size - before < before / 5
    assert check(local_catalog, path) == [before, path.stat().st_size - before]
    assert check(local_catalog, kept, first.version) == [before]
    again = grow(local_catalog, path)
    assert (again.version, again.is_new) == (second.version, False)


def test_many_small_growths_are_few_parts(local_catalog: str, tmp_path: Path) -> None:
    path = make(tmp_path / "v.rvf", 2000)
    grow(local_catalog, path)
    for number in range(12):
        add(path, 2000 + number * 10, 10)
        grow(local_catalog, path)
    sizes = check(local_catalog, path)
    assert sum(sizes) == path.stat().st_size
    assert len(sizes) <= 6
    assert all(a > b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("what", ["compact", "index"])
def test_a_file_that_was_written_anew_is_sent_whole(local_catalog: str, tmp_path: Path, what: str) -> None:
    path = make(tmp_path / "v.rvf")
    with wd.VectorStore.open(path, mode="a") as store:
        store.delete([1, 2])
    grow(local_catalog, path)
    with wd.VectorStore.open(path, mode="a") as store:
        store.add(rows(500, 30), metadata=[{"n": 500 + n} for n in range(30)])
        store.compact() if what == "compact" else store.build_index("flat")
    grown = grow(local_catalog, path)
    assert grown.is_new
    assert check(local_catalog, path) == [path.stat().st_size]


def test_a_file_that_lacks_what_is_there_is_a_conflict(local_catalog: str, tmp_path: Path) -> None:
    """Two went on from the same version; the second would hide what the first added."""
    path = make(tmp_path / "a" / "v.rvf")
    grow(local_catalog, path)
    other = tmp_path / "v.rvf"
    shutil.copy(path, other)
    add(path, 500, 3)
    published = grow(local_catalog, path)
    add(other, 500, 2)
    add(other, 502, 2)
    for rewrite in (False, True):
        if rewrite:
            with wd.VectorStore.open(other, mode="a") as store:
                store.compact()
        with pytest.raises(ConflictError, match="lacks vectors"):
            grow(local_catalog, other, retries=3)
    stranger = make(tmp_path / "b" / "v.rvf", 600)
    with pytest.raises(ConflictError, match="lacks vectors"):
        grow(local_catalog, stranger)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.version == published.version


def test_the_file_of_the_newest_version_is_gone_on_with(
    local_catalog: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Whoever has no copy of the file takes it out of the catalog, whole, and adds to that."""
    path = make(tmp_path / "v.rvf")
    grow(local_catalog, path)
    add(path, 500, 3)
    grow(local_catalog, path)
    assert main(["cat", NAME, "--artifact", "vectors", "--ref", "v.rvf", "--catalog", local_catalog]) == 0
    copy = tmp_path / "elsewhere" / "v.rvf"
    copy.parent.mkdir()
    copy.write_bytes(capfdbinary.readouterr().out)
    assert copy.read_bytes() == path.read_bytes()
    add(copy, 503, 4)
    grow(local_catalog, copy)
    check(local_catalog, copy)


def test_growth_goes_on_from_whatever_is_newest(local_catalog: str, tmp_path: Path) -> None:
    """Somebody else published meanwhile, and his work stays."""
    path = make(tmp_path / "v.rvf")
    grow(local_catalog, path)
    with DatasetBuilder(NAME, catalog=local_catalog) as builder:
        builder.extend().add_table("main", {"x": [1, 2]}).publish()
    add(path, 500, 3)
    grow(local_catalog, path)
    check(local_catalog, path)
    with wd.dataset(NAME, catalog=local_catalog) as ds:
        assert ds.table("main").rows_together().num_rows == 2


def test_no_part_passes_for_the_file(local_catalog: str, tmp_path: Path) -> None:
    """A reader that knows no parts opens the first shard: it must not find an older state there."""
    path = make(tmp_path / "v.rvf")
    grow(local_catalog, path)
    add(path, 500, 3)
    grow(local_catalog, path)
    with wd.dataset(NAME, catalog=local_catalog) as ds, pytest.raises(CorruptLayoutError):
        wd.VectorStore.open(ds.artifact("vectors").shard_reader(0))


def test_parts_are_read_from_afar(s3_catalog: str, tmp_path: Path) -> None:
    path = make(tmp_path / "v.rvf")
    grow(s3_catalog, path)
    add(path, 500, 3)
    grow(s3_catalog, path)
    assert len(check(s3_catalog, path)) == 2
