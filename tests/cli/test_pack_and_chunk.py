"""Two pairs of verbs: pack and unpack between a directory and one file, chunk and join between one file and several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_video import scene
from warpdata.cli.main import main as warp
from warpdata.formats.wshard.chunks import read_chunk_list


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    for number in range(2):
        with wd.record("root", static={"number": number}, clock="simulated") as rec:
            for k in range(25):
                rec.step({"x": [float(k), 0.5]}, {"u": -float(k)}, reward=1.0, ts_ns=k * 100)
                rec.append("cam", scene(k, 16, 48), k * 100 + 7)
                rec.append("event", f"e{k}", k * 100 + 3)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def same(a: wd.Episode, b: wd.Episode) -> bool:
    return list(a.signals) == list(b.signals) and all(
        np.array_equal(a[name].values(), b[name].values())
        and np.array_equal(a[name].times_ns, b[name].times_ns)
        for name in a.signals
    )


def test_pack_and_unpack_are_each_other_s_way_back(here: Path) -> None:
    folder = here / "root" / f"{0:012d}" / f"{1:012d}"
    assert warp(["pack", "root#1", "-o", "one.wshard"]) == 0
    assert warp(["pack", str(folder)]) == 0
    assert Path(f"{folder}.wshard").read_bytes() == Path("one.wshard").read_bytes()
    assert warp(["unpack", "one.wshard"]) == 0
    assert files(here / "one") == files(folder)
    assert warp(["publish", "lab/x", "root"]) == 0
    assert warp(["pack", "lab/x#1"]) == 0  # brought here
    assert Path("1.wshard").read_bytes() == Path("one.wshard").read_bytes()
    assert warp(["unpack", "lab/x#1", "-o", "down"]) == 0
    assert files(here / "down") == files(folder)


@pytest.mark.parametrize("form", ["packed", "by step", "in the root"])
def test_chunk_and_join_are_each_other_s_way_back(here: Path, form: str) -> None:
    whole = wd.open("root#1")
    address = "root#1"
    if form == "packed":
        address = str(wd.pack_episode(whole, "e.wshard"))
    elif form == "by step":
        wd.save_wshard(whole.tensors, "e.wshard")
        address = "e.wshard"
        whole = wd.open("e.wshard")
    assert warp(["chunk", address, "--steps", "10", "--output", "parts"]) == 0
    (listed,) = Path("parts").glob("*_manifest.wshard")
    assert [each.length for each in read_chunk_list(listed).chunks] == [10, 10, 5]
    assert same(wd.open(listed), whole)
    assert warp(["join", str(listed), "-o", "again.wshard"]) == 0
    again = wd.open("again.wshard")
    assert same(again, whole)
    assert (again.id, dict(again.static)) == (whole.id, dict(whole.static))
    if form != "by step":  # cameras were cut into groups of pictures and joined, the rest is as if never cut
        assert warp(["chunk", "again.wshard", "--steps", "10", "--output", "more"]) == 0


def test_each_verb_says_which_one_was_meant(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wd.pack_episode(wd.open("root#1"), "packed.wshard")
    wd.save_wshard(wd.open("root#1").tensors, "rows.wshard")
    assert warp(["chunk", "rows.wshard", "--steps", "10"]) == 0
    listed = str(next(Path("rows").glob("*_manifest.wshard")))
    for words, says in (
        (["pack", listed], "warp join"),
        (["pack", "rows.wshard"], "one file already"),
        (["unpack", "rows.wshard"], "warp chunk"),
        (["unpack", listed], "warp join"),
        (["join", "rows.wshard"], "not a chunk list"),
    ):
        capsys.readouterr()
        assert warp(words) == 2
        assert says in capsys.readouterr().err


def test_nothing_is_replaced_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wd.save_wshard(wd.open("root#1").tensors, "rows.wshard")
    assert warp(["chunk", "rows.wshard", "--steps", "10", "--output", "parts"]) == 0
    listed = str(next(Path("parts").glob("*_manifest.wshard")))
    wd.pack_episode(wd.open("root#0"), "packed.wshard")
    writes = [
        ["pack", "root#1", "-o", "out.wshard"],
        ["unpack", "packed.wshard", "-o", "directory"],
        ["join", listed, "-o", "joined.wshard"],
        ["chunk", "rows.wshard", "--steps", "7", "--output", "parts"],
    ]
    Path("out.wshard").write_bytes(b"mine")
    Path("joined.wshard").write_bytes(b"mine")
    assert warp(["unpack", "packed.wshard", "-o", "directory"]) == 0
    before = {name: files(here / name) for name in ("directory", "parts")}
    for words in writes:
        capsys.readouterr()
        assert warp(words) == 1
        assert "--overwrite" in capsys.readouterr().err
    assert Path("out.wshard").read_bytes() == Path("joined.wshard").read_bytes() == b"mine"
    assert before == {name: files(here / name) for name in ("directory", "parts")}
    for words in writes:
        assert warp([*words, "--overwrite"]) == 0
    assert wd.open("out.wshard")["number"] == 1
    assert len(read_chunk_list(listed).chunks) == 4
    Path("photos").mkdir()
    Path("photos/a.jpeg").write_bytes(b"1")
    assert warp(["unpack", "packed.wshard", "-o", "photos", "--overwrite"]) == 1  # no episode: it stays
    assert files(here / "photos") == {"a.jpeg": b"1"}


def test_chunks_do_not_go_into_an_episode(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `unpack` makes has the name that `chunk` would choose."""
    wd.pack_episode(wd.open("root#0"), "packed.wshard")
    assert warp(["unpack", "packed.wshard"]) == 0
    before = files(here / "packed")
    for more in ([], ["--overwrite"]):
        capsys.readouterr()
        assert warp(["chunk", "packed.wshard", "--steps", "5", *more]) == 1
        assert "--output" in capsys.readouterr().err
    assert files(here / "packed") == before
