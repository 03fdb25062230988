"""`warp vectors`, as a user runs it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.cli.main import main
from warpdata.search.store import VectorStore


@pytest.fixture
def warp(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["vectors", *arguments]) == code
        done = capsys.readouterr()
        if "--json" in arguments and code in (0, 3):
            return json.loads(done.out)
        return done.out + done.err

    return run


def rows(count: int = 60) -> Any:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


def test_what_was_added_before_an_error_is_told(
    warp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdata.search.columns._BATCH_ROWS", 20)
    x = rows()
    x[50] = np.nan
    np.save(tmp_path / "x.npy", x)
    warp("create", "f.rvf", "--dim", "4")
    said = warp("add", "f.rvf", "x.npy", code=2)
    assert "added the first 40 vectors of x.npy; they stay in f.rvf" in said
    assert "NaN" in said
    assert warp("info", "f.rvf", "--json")["vectors"] == 40


def test_from_create_to_sign(warp: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows())
    assert "created" in warp("create", "f.rvf", "--dim", "4", "--metric", "cosine")
    assert warp("add", "f.rvf", "x.npy", "--json") == {"added": 60, "vectors": 60}
    found = warp("search", "f.rvf", ",".join(str(v) for v in rows()[3]), "-k", "2", "--json")
    assert found[0]["id"] == 3
    assert found[0]["distance"] == pytest.approx(0, abs=1e-5)
    np.save(tmp_path / "q.npy", rows()[:2])
    assert [r[0]["id"] for r in warp("search", "f.rvf", "q.npy", "--exact", "--json")] == [0, 1]
    assert "query 1" in warp("search", "f.rvf", "q.npy")
    assert "indexed 60" in warp("index", "f.rvf", "--kind", "hnsw")
    about = warp("info", "f.rvf", "--json")
    assert (about["vectors"], about["dialect"], about["index"]) == (60, "wire", "hnsw")
    assert "dialect  wire" in warp("info", "f.rvf")
    assert warp("compact", "f.rvf", "--compression", "zstd", "--json")["file_bytes"] > 0
    assert warp("sign", "f.rvf", "--key", "k.json", "--json")["new_key"] is True
    assert warp("sign", "f.rvf", "--key", "k.json", "--json")["new_key"] is False
    assert warp("verify", "f.rvf", "--key", "k.json", "--json")["damages"] == []
    assert "0 damaged" in warp("verify", "f.rvf")
    warp("export", "f.rvf", "r.rvf", "--dialect", "runtime")
    assert warp("info", "r.rvf", "--json")["dialect"] == "runtime"
    warp("export", "f.rvf", "v.npy")
    assert np.array_equal(np.load(tmp_path / "v.npy"), rows())
    warp("index", "f.rvf", "--kind", "ivf", "--quantize", "pq", "--drop-full", "--sign", "k.json")
    assert warp("verify", "f.rvf", "--key", "k.json", "--json")["damages"] == []
    assert warp("info", "f.rvf", "--json")["codes"] == "pq"


def test_parquet_with_ids_and_metadata(warp: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"v": rows(20).tolist(), "key": range(100, 120), "tag": ["a", "b"] * 10})
    pq.write_table(table, tmp_path / "t.parquet")
    warp("create", "f.rvf", "--dim", "4")
    warp("add", "f.rvf", "t.parquet", "--column", "v", "--id-column", "key", "--metadata-column", "tag")
    found = warp("search", "f.rvf", "0,0,0,0", "-k", "50", "--where", "tag == 'b'", "--json")
    assert sorted(r["id"] for r in found) == list(range(101, 120, 2))
    text = warp("add", "f.rvf", "t.parquet", "--column", "nope", code=2)
    assert "it has v, key, tag" in text


def test_lines_of_json_on_standard_input(warp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(text: str, *arguments: str, code: int = 0) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return warp(*arguments, code=code)

    warp("create", "f.rvf", "--dim", "2")
    lines = '{"vector": [1, 2], "id": 7, "metadata": {"a": 1}}\n{"vector": [3, 4], "id": 9}\n'
    command = [sys.executable, "-m", "warpdata", "vectors", "add", "f.rvf", "-"]
    assert subprocess.run(command, input=lines, capture_output=True, text=True, cwd=tmp_path).returncode == 0
    assert [r["id"] for r in run("[1, 2]\n", "search", "f.rvf", "-", "--json")] == [7, 9]
    several = run("[[1, 2], [3, 4]]\n", "search", "f.rvf", "-", "-k", "1", "--json")
    assert [[r["id"] for r in each] for each in several] == [[7], [9]]
    for wrong in (
        '{"id": 1}',
        "nonsense",
        "[1]\n[1, 2]",
        '["a", "b"]',
        '{"vector": [1, 2], "id": 1}\n[1, 2]',
    ):
        run(wrong, "add", "f.rvf", "-", code=2)


def test_exit_codes(warp: Any, tmp_path: Path) -> None:
    assert "error[not_found]" in warp("info", "absent.rvf", code=1)
    assert "hint" in warp("search", "absent.rvf", "1,2", code=1)
    warp("create", "f.rvf", "--dim", "4")
    assert "error[conflict]" in warp("create", "f.rvf", "--dim", "4", code=1)
    warp("create", "f.rvf", "--dim", "4", "--overwrite")
    np.save(tmp_path / "x.npy", rows())
    warp("add", "f.rvf", "x.npy")
    assert "4 dimensions" in warp("search", "f.rvf", "1,2", code=2)
    assert "neither a file" in warp("search", "f.rvf", "what", code=2)
    assert "no column" in warp("search", "f.rvf", "1,2,3,4", "--where", "a = 1", code=1)
    (tmp_path / "bad.npy").write_bytes(b"not numpy")
    assert "error[corrupt_layout]" in warp("add", "f.rvf", "bad.npy", code=1)
    content = bytearray((tmp_path / "f.rvf").read_bytes())
    with VectorStore.open("f.rvf") as store:
        rows_at = next(each["offset"] for each in store.segments() if each["type"] == "VEC")
    content[rows_at + 200] ^= 1
    (tmp_path / "f.rvf").write_bytes(content)
    damages = warp("verify", "f.rvf", "--json", code=3)["damages"]
    assert damages[0]["code"] == "checksum"
    with pytest.raises(SystemExit) as usage:
        main(["vectors"])
    assert usage.value.code == 2


def test_inspect_and_verify_know_vector_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "f.rvf")
    assert main(["vectors", "create", path, "--dim", "4"]) == 0
    np.save(tmp_path / "x.npy", rows())
    assert main(["vectors", "add", path, str(tmp_path / "x.npy")]) == 0
    capsys.readouterr()
    assert main(["inspect", path]) == 0
    assert "dialect  wire" in capsys.readouterr().out
    assert main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dialect"] == "wire"
    assert main(["verify", path]) == 0
    content = bytearray(Path(path).read_bytes())
    with VectorStore.open(path) as store:
        rows_at = next(each["offset"] for each in store.segments() if each["type"] == "VEC")
    content[rows_at + 200] ^= 1
    Path(path).write_bytes(content)
    assert main(["verify", path]) == 3


@pytest.mark.parametrize("where", ["rows", "end", "cut"])
def test_damage_has_its_own_exit_code(warp: Any, tmp_path: Path, where: str) -> None:
    np.save(tmp_path / "x.npy", rows())
    warp("create", "v.rvf", "--dim", "4")
    warp("add", "v.rvf", "x.npy")
    place = warp("info", "v.rvf", "--json")["segment_list"][0]["offset"]
    data = bytearray((tmp_path / "v.rvf").read_bytes())
    if where == "cut":
        del data[: len(data) // 2]
    else:
        at = len(data) - 60 if where == "end" else place + 200
        data[at : at + 8] = b"\xff" * 8
        if where == "end":
            data[: len(data) // 2] = bytes(len(data) // 2)
    (tmp_path / "v.rvf").write_bytes(data)
    assert "damaged" in warp("verify", "v.rvf", code=3)


def test_another_file_is_no_damaged_vector_file(warp: Any, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# hello" * 500)
    assert "no committed manifest" in warp("verify", "README.md", code=1)
