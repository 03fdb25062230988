"""The commands about datasets: from files to a published version and back, as text, JSON and streams."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.cli.main import main


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from PIL import Image

    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for i in range(12):
        Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(tmp_path / f"images/{i:02d}.png")
    for part in range(3):
        ids = list(range(part * 4, part * 4 + 4))
        names = [f"{i:02d}.png" for i in ids]
        pq.write_table(
            pa.table({"id": ids, "image": names, "x": [i / 2 for i in ids]}), f"part{part}.parquet"
        )
    return tmp_path


PUBLISH = ["publish", "ws/name", "--table", "main=part0.parquet", "part1.parquet", "part2.parquet"]
PUBLISH += [
    "--artifact",
    "raw=images/",
    "--bind",
    "main.image=raw:image",
    "--message",
    "first",
    "--tag",
    "v1",
]


@pytest.fixture
def published(workplace: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*PUBLISH, "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["version"])


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0):
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def run_text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def test_publish_again_changes_nothing(published: str, capsys: pytest.CaptureFixture[str]) -> None:
    again = run_json(capsys, *PUBLISH)
    assert (again["version"], again["blobs_sent"], again["is_new"]) == (published, 0, False)
    assert "nothing changed" in run_text(capsys, *PUBLISH)


def test_patterns_work_without_a_shell(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_json(capsys, "publish", "ws/name", "--table", "main=./part*.parquet", "--no-set-latest")
    assert done["is_latest"] is False
    assert main(["info", "ws/name"]) == 1
    assert "error[dataset_not_found]" in capsys.readouterr().err


def test_info_schema_head(published: str, capsys: pytest.CaptureFixture[str]) -> None:
    info = run_json(capsys, "info", "ws/name")
    assert (info["version"], info["total_rows"], info["metadata"]["message"]) == (published, 12, "first")
    assert published in run_text(capsys, "info", "ws/name@v1")
    columns = run_json(capsys, "schema", "ws/name")["columns"]
    assert [(c["name"], c["ref_type"]) for c in columns] == [("id", None), ("image", "image"), ("x", None)]
    assert "image" in run_text(capsys, "schema", "ws/name")
    rows = run_json(capsys, "head", "ws/name", "-n", "3", "--columns", "id,x", "--where", "id > 5")
    assert rows == [{"id": 6, "x": 3.0}, {"id": 7, "x": 3.5}, {"id": 8, "x": 4.0}]
    assert "5 rows" in run_text(capsys, "head", "ws/name")


def warp_bytes(*arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "warpdata", *arguments], capture_output=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stream_in_every_format(published: str) -> None:
    arguments = ["stream", "ws/name", "--batch-size", "5", "--columns", "id,image"]
    arrow = pa.ipc.open_stream(warp_bytes(*arguments)).read_all()
    assert arrow["id"].to_pylist() == list(range(12))
    assert arrow["image"][2].as_py() == "02.png"
    parquet = pq.read_table(io.BytesIO(warp_bytes(*arguments, "--format", "parquet")))
    assert parquet.to_pydict() == arrow.to_pydict()
    lines = warp_bytes(*arguments, "--json", "--limit", "2").decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": 0, "image": "00.png"},
        {"id": 1, "image": "01.png"},
    ]
    halves = [warp_bytes(*arguments, "--format", "ndjson", "--shard", f"{rank}/2") for rank in range(2)]
    assert sorted(json.loads(line)["id"] for half in halves for line in half.splitlines()) == list(range(12))


def test_query(published: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "query", "ws/name", "select sum(x) as s from main where id < 4") == [{"s": 3.0}]
    assert "1 row\n" in run_text(capsys, "query", "ws/name", "select 1 as one")
    assert main(["query", "ws/name", "selec"]) == 1
    capsys.readouterr()
    assert main(["query", "ws/name", "select i from range(2000000) r(i)"]) == 1
    assert "--format ndjson" in capsys.readouterr().err
    out = warp_bytes("query", "ws/name", "select id from main order by id desc limit 2", "--format", "ndjson")
    assert out == b'{"id": 11}\n{"id": 10}\n'


def test_inspect_and_cat(published: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "inspect", "ws/name")
    assert found["bindings"][0]["artifact"] == "raw"
    assert "artifact raw: 12 members" in run_text(capsys, "inspect", "ws/name")
    names = run_json(capsys, "cat", "ws/name", "--artifact", "raw", "--prefix", "0")
    assert names == [f"0{i}.png" for i in range(10)]
    data = warp_bytes("cat", "ws/name", "--artifact", "raw", "--ref", "03.png")
    assert data == (workplace / "images/03.png").read_bytes()
    assert main(["cat", "ws/name", "--artifact", "raw", "--ref", "none.png"]) == 1


def test_log_tag_diff_list(published: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = run_json(capsys, "publish", "ws/name", "--table", "main=part0.parquet", "--message", "second")
    log = run_json(capsys, "versions", "list", "ws/name")
    assert {(v["message"], v["is_latest"]) for v in log} == {("first", False), ("second", True)}
    assert "second" in run_text(capsys, "versions", "list", "ws/name")
    assert run_json(capsys, "tags", "set", "ws/name", "best") == {"best": second["version"], "v1": published}
    assert run_json(capsys, "tags", "delete", "ws/name", "best") == {"v1": published}
    diff = run_json(capsys, "diff", "ws/name@v1", f"@{second['version'][:10]}")
    assert (diff["rows_before"], diff["rows_after"]) == (12, 4)
    text = run_text(capsys, "diff", "ws/name@v1", "ws/name")
    assert "- artifact raw" in text
    assert "2 removed" in text
    listed = run_json(capsys, "catalog", "list", "ws/")
    assert [(d["dataset_id"], d["version"]) for d in listed] == [("ws/name", second["version"])]
    assert "ws/name" in run_text(capsys, "catalog", "list")
    assert main(["catalog", "list", "wss"]) == 1
    assert "Did you mean 'ws'?" in capsys.readouterr().err


def test_text_of_a_publisher_does_not_steer_the_terminal(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Message, description and license are text of others, whichever command prints them."""
    steer = "\x1b[2Jred\x9b2J"
    with wd.DatasetBuilder("ws/steer", catalog=str(workplace / "catalog")) as builder:
        builder.add_table("main", {"x": [1]}).describe(description=steer, license=steer)
        builder.publish(message=steer)
    for command in (["info"], ["versions", "list"], ["inspect"]):
        shown = run_text(capsys, *command, "ws/steer", "--catalog", str(workplace / "catalog"))
        assert shown
        assert all(char == "\n" or char.isprintable() for char in shown), (command, shown)


def test_verify_finds_damage(published: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ok" in run_text(capsys, "verify", "ws/name")
    blob = max((workplace / "catalog/blobs").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    data = bytearray(blob.read_bytes())
    data[700] ^= 1
    blob.write_bytes(data)
    report = run_json(capsys, "verify", "ws/name", code=3)
    assert blob.name in report[0]["findings"][0]["message"]


def test_warm_and_cache(published: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.servers import run_http

    with run_http(workplace / "catalog") as server:
        catalog = ["--catalog", server.url]
        warmed = run_json(capsys, "warm", "ws/name", "--tables", "main", "--shards", "0:2", *catalog)
        assert (warmed["shards"], warmed["shards_skipped"]) == (3, 0)
        assert run_json(capsys, "cache", "stats")["whole_blobs"] == 3
        everything = run_json(capsys, "warm", "ws/name", *catalog)
        assert everything["bytes_present"] > 0
        assert run_json(capsys, "warm", "ws/name", *catalog)["bytes_fetched"] == 0
        assert "were fetched" in run_text(capsys, "warm", "ws/name", "--max-bytes", "1k", *catalog)
    rows = run_json(capsys, "head", "ws/name", "-n", "1", "--mode", "local", *catalog)
    assert rows[0]["id"] == 0
    freed = run_json(capsys, "cache", "gc", "--limit", "0")
    assert freed["freed_bytes"] > 0
    assert freed["blobs"] == 0
    assert "freed" in run_text(capsys, "cache", "gc")


def test_init_writes_a_loader_that_runs(
    published: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_json(capsys, "init", "ws/name")["path"]
    assert path == "ws_name_loader.py"
    assert main(["init", "ws/name"]) == 1
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "Batch 0: 10 rows of id, image, x" in done.stdout
    assert done.stdout.endswith("Smoke test passed!\n")
    code = "import ws_name_loader as l; b = next(l.train_stream(4)); print(b['image'][3].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(4, 4, 3)\n"


def test_gc_remote(published: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stray = workplace / "catalog/blobs/sha256/ff" / ("f" * 64)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"x")
    os.utime(stray, (1, stray.stat().st_mtime - 60))
    assert run_json(capsys, "catalog", "gc", "--dry-run")["young_blobs"] == 1
    assert len(run_json(capsys, "catalog", "gc", "--older-than", "0s")["blobs"]) == 1
    assert "deleted" in run_text(capsys, "catalog", "gc", "--delete", "--older-than", "0s")
    assert not stray.exists()
    assert main(["verify", "ws/name"]) == 0


def test_doctor(workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_json(capsys, "doctor")["is_ok"] is True
    assert "conditional put" in run_text(capsys, "doctor")
    (workplace / "file").write_text("")
    monkeypatch.setenv("WARP_CACHE_DIR", str(workplace / "file/cache"))
    broken = run_json(capsys, "doctor", code=1)
    assert [c["name"] for c in broken["checks"] if c["is_needed"] and not c["is_ok"]] == ["cache folder"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "not-a-name"],
        ["head", "ws/name", "--columns", "nope"],
        ["stream", "ws/name", "--shard", "x"],
        ["warm", "ws/name", "--shards", "x"],
        ["publish", "ws/other", "--table", "nonsense"],
        ["publish", "ws/other", "--bind", "x"],
        ["tags", "set", "ws/name", "deadbeef"],
    ],
)
def test_usage_errors_are_2(published: str, arguments: list[str]) -> None:
    with contextlib.suppress(SystemExit):  # the parser ends with 2 itself
        assert main(arguments) == 2


def test_versions_copy_and_repair(
    published: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = run_json(capsys, "publish", "ws/name", "--table", "main=part0.parquet")["version"]
    third = run_json(capsys, "publish", "ws/name", "--table", "main=part1.parquet")["version"]
    assert {v["version"] for v in run_json(capsys, "versions", "list", "ws/name")} == {
        published, second, third,
    }  # fmt: skip
    copied = run_json(capsys, "copy", "ws/name", "--to", "mirror", "--all")
    assert set(copied["versions"]) == {published, second, third}
    assert "copied" in run_text(capsys, "copy", "ws/name", "--to", "mirror")
    assert run_json(capsys, "versions", "expire", "ws/name", "--keep", "1")["versions"] == [second]
    assert "would be deleted" in run_text(capsys, "versions", "expire", "ws/name", "--keep", "1")
    assert run_json(capsys, "versions", "delete", "ws/name", second[:9])["versions"] == [second]
    assert main(["versions", "delete", "ws/name", published[:9]]) == 1
    assert "v1" in capsys.readouterr().err
    for blob in (workplace / "catalog/blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"damaged")
    assert run_json(capsys, "repair", "ws/name", code=3)["lost"]
    mended = run_json(capsys, "repair", "ws/name@v1", "--from", "mirror")
    assert mended["lost"] == []
    assert "replaced" in run_text(capsys, "repair", "ws/name", "--files", "mirror/blobs")
    assert "ok" in run_text(capsys, "verify", "ws/name", "ws/name@v1")
    assert run_json(capsys, *PUBLISH, "--repair", "--staging", "here")["blobs_replaced"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete", "ws/name"],
        ["delete", "ws/name@12345678", "12345678"],
        ["expire", "ws/name"],
        ["expire", "ws/name@v1", "--keep", "1"],
    ],
)
def test_versions_needs_to_be_told(published: str, arguments: list[str]) -> None:
    assert main(["versions", *arguments]) == 2
