"""What chooses nothing, or what cannot be, is refused by name: never a success that did nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import warpdata as wd
from warpdata.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published table and artifact, a recording, and a corpus."""
    folder = tmp_path_factory.mktemp("selections")
    with wd.record(folder / "root", clock="simulated") as recorder:
        for i in range(20):
            recorder.step({"x": np.zeros(2, np.float32)}, {"a": 1.0}, ts_ns=i * 10_000_000)
    with wd.CorpusWriter(folder / "corpus", 4) as corpus:
        corpus.append(np.zeros((10, 4), np.float32))
    (folder / "raw").mkdir()
    (folder / "raw" / "one.bin").write_bytes(bytes(10))
    with wd.DatasetBuilder("a/b", catalog=str(folder / "catalog")) as builder:
        builder.add_table("main", pa.table({"id": [1, 2, 3]})).add_artifact("raw", folder / "raw").publish()
    return folder


REFUSED = [
    "warm a/b --shards=5:2", "warm a/b --shards=1:1", "warm a/b --shards=9:12", "warm a/b --shards=-9:-5",
    "warm a/b --shards=1-2:", "warm a/b --shards=1", "warm a/b --shards=", "warm a/b --shards=--",
    "warm a/b --tables=", "warm a/b --tables=,", "warm a/b --artifacts=",
    "head a/b --columns=", "stream a/b --columns=", "head a/b --where=",
    "replay root --fast --start=5s --end=2s", "replay root --fast --start=100s", "replay root --fast --end=0s",
    "replay root --speed=nan", "record --demo new --duration=nan", "record --demo new --duration=0s",
    "corpus head corpus --start=10", "corpus head corpus --start=-1", "corpus sample corpus --fraction=0",
    "catalog gc --older-than=-1s", "catalog gc --older-than=nan", "catalog gc --delete --older-than=inf",
    "publish a/c root --retries=-1", "versions list a/b --limit=0", "catalog list --catalog=missing",
    "catalog gc --catalog=missing", "catalog gc --catalog=root", "catalog list --catalog=root",
]  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_it_is_refused(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("WARP_CATALOG", "catalog")
    before = _files(place)
    try:
        code = main(line.split())
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code in (1, 2)
    assert "error" in capsys.readouterr().err
    assert _files(place) == before, "and nothing was written"


def _files(place: Path) -> list[Path]:
    """All but the list of its episodes that a root keeps."""
    return sorted(path for path in place.rglob("*") if path.name != ".listing.json")


@pytest.mark.parametrize("line", ["warm a/b --shards=:", "warm a/b --shards=-1:", "warm a/b --shards=0:50"])
def test_parts_that_are_there_are_taken(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("WARP_CATALOG", "catalog")
    assert main(line.split()) == 0
    assert not capsys.readouterr().out.startswith("0 blobs")


def test_the_same_in_python(place: Path) -> None:
    with wd.dataset("a/b", catalog=str(place / "catalog")) as ds:
        with pytest.raises(ValueError, match="shard range 5:2 is empty; numbers of shards: main 1, raw 1"):
            ds.warm(shards=slice(5, 2))
        with pytest.raises(ValueError, match="no table and no artifact"):
            ds.warm([])
        with pytest.raises(TypeError, match="slice"):
            ds.warm(shards=3)  # type: ignore[arg-type]


class TestWhatIsNoCatalog:
    @pytest.mark.parametrize("command", ["catalog gc", "catalog list"])
    def test_it_is_not_gone_through(
        self,
        command: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Also where it has folders of the same names: pictures in `datasets`, an image store in `blobs/sha256`."""
        (tmp_path / "datasets/cats/images").mkdir(parents=True)
        (tmp_path / "blobs/sha256").mkdir(parents=True)
        (tmp_path / "blobs/sha256" / ("ab" * 32)).write_bytes(b"x")
        walked: list[str] = []
        monkeypatch.setattr(os, "walk", lambda top, *_, **__: walked.append(str(top)) or iter(()))
        assert main([*command.split(), "--catalog", str(tmp_path)]) == 1
        assert "no catalog" in capsys.readouterr().err
        assert walked == []
        assert not (tmp_path / "probe").exists()

    def test_it_does_not_hide_the_other_catalogs(
        self, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["catalog", "list", "--catalog", f"{tmp_path / 'new'},{place / 'catalog'}"]) == 0
        assert "a/b" in capsys.readouterr().out

    def test_what_lies_beside_a_catalog_is_left_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A catalog in a folder that has other things too."""
        with wd.DatasetBuilder("a/b", catalog=str(tmp_path)) as builder:
            builder.add_table("main", pa.table({"id": [1]})).publish()
        marks = [f".work.tmp-{'a1' * 6}", "notes.tmp-old", f"blobs/sha256/{'ab' * 32}"]
        for name in (f"mine/{marks[0]}", marks[1], marks[2], f"blobs/sha256/aa/{'bb' * 32}"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
            os.utime(tmp_path / name, (1, 1))
        ours = tmp_path / f".datasets.json.tmp-{'c0' * 6}"
        ours.write_bytes(b"x")
        os.utime(ours, (1, 1))
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert main(["catalog", "gc", "--delete", "--catalog", str(tmp_path)]) == 0
        after = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert before - after == {ours}
