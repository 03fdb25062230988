"""inspect, verify, salvage, chunk, join, pack, unpack, spec: as a user would call them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.formats import episodes
from warpdata.cli.main import main


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = main([str(each) for each in arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def warp(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "ep.wshard"
    wd.save_wshard(episodes.simple(), path, {"cam/rgb": "zstd"})
    return path


def test_inspect(warp: Run, shard: Path) -> None:
    code, text, _ = warp("inspect", shard)
    assert code == 0
    for word in (
        "signal/state",
        "f32",
        "20×4",
        "action/ctrl",
        "lanes: signal, action, omen, uncert, residual",
        "█",
    ):
        assert word in text
    code, text, _ = warp("inspect", shard, "--json")
    report = json.loads(text)
    blocks = {each["name"]: each for each in report["blocks"]}
    assert blocks["signal/state"]["shape"] == [20, 4]
    assert blocks["signal/state"]["dtype"] == "f32"
    assert report["episode"]["length"] == 20
    assert report["table_checksum"] is True


def test_inspect_says_what_windows_are_verified_by(warp: Run, tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="e", length=100)
    episode.observations["big"] = np.zeros((100, 20_000), np.uint8)
    wd.save_wshard(episode, tmp_path / "ours")
    assert "pieces" in warp("inspect", tmp_path / "ours")[1]
    episodes.as_others_write_it(tmp_path / "ours", tmp_path / "theirs", "signal/big")
    assert wd.load_wshard(tmp_path / "theirs") == episode
    assert "pieces" not in warp("inspect", tmp_path / "theirs")[1]
    assert "reads the whole block" in warp("verify", tmp_path / "theirs")[1]


def test_verify(warp: Run, shard: Path, tmp_path: Path) -> None:
    assert warp("verify", "--full", shard)[0] == 0
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    bad = tmp_path / "bad.wshard"
    bad.write_bytes(data)
    code, text, _ = warp("verify", shard, bad, tmp_path / "none")
    assert code == 3
    assert "error[checksum]" in text
    assert "error[not_found]" in text
    code, text, _ = warp("verify", "--json", bad)
    report = json.loads(text)
    assert code == 3
    assert report[0]["findings"][0]["code"] == "checksum"


@pytest.mark.parametrize("value", [2, 255])
def test_full_verify_names_values_that_nothing_new_may_have(warp: Run, tmp_path: Path, value: int) -> None:
    from warpdata.bytekit.io.commit import commit_file
    from warpdata.bytekit.jsontext import dump_json
    from warpdata.formats.wshard import ShardWriter

    with commit_file(tmp_path / "f") as out:
        writer = ShardWriter(
            out, ["meta/wshard", "meta/episode", "meta/channels", "done", "time/timestamps_ns"]
        )
        writer.add_bytes("meta/wshard", dump_json({"version": 1}))
        writer.add_bytes("meta/episode", dump_json({"length_T": 2}))
        writer.add_bytes("meta/channels", dump_json({"channels": []}))
        writer.add_bytes("done", bytes([0, value]))
        writer.add_bytes("time/timestamps_ns", np.array([5, 5], np.int64).tobytes())
        writer.finish()
    assert warp("verify", tmp_path / "f")[0] == 0
    code, text, _ = warp("verify", "--full", tmp_path / "f")
    assert code == 0
    assert "note[flag_value]" in text
    assert "note[clock_order]" in text
    (tmp_path / "shards").mkdir()
    (tmp_path / "f").rename(tmp_path / "shards" / "f.wshard")
    for address in ("shards", "shards#f"):
        code, text, _ = warp("verify", "--full", tmp_path / address)
        assert code == 0
        assert "note[clock_order]" in text


def interrupted(path: Path) -> None:
    writer = wd.WShardStreamWriter(path, "e", [{"id": "x", "dtype": "f32", "shape": [2]}])
    writer.begin_episode()
    for index in range(5):
        writer.write_timestep({"x": np.full(2, index, np.float32)})
    writer.close()


def test_salvage(warp: Run, tmp_path: Path) -> None:
    interrupted(tmp_path / "a.wshard")
    code, text, _ = warp("inspect", tmp_path / "a.wshard.partial")
    assert code == 0
    assert "5 records" in text
    partial = tmp_path / "a.wshard.partial"
    assert warp("verify", partial)[0] == 0
    data = partial.read_bytes()
    partial.write_bytes(data[:-32])
    code, text, _ = warp("verify", partial)
    assert code == 3
    assert "what followed is gone" in text
    partial.write_bytes(data + b"a record that was being written")
    assert warp("verify", partial)[0] == 0
    code, text, _ = warp("salvage", tmp_path / "a.wshard")
    assert code == 0
    assert "5 steps kept" in text
    assert wd.load_wshard(tmp_path / "a.wshard").length == 5


def test_salvage_with_loss_exits_with_3(warp: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        interrupted(tmp_path / f"{name}.wshard")
    partial = tmp_path / "a.wshard.partial"
    partial.write_bytes(partial.read_bytes()[:-35])
    code, text, _ = warp("salvage", "--json", partial, tmp_path / "b.wshard")
    assert code == 3
    receipts = json.loads(text)
    assert [each["steps_kept"] for each in receipts] == [4, 5]
    assert receipts[0]["bytes_dropped"] > 0
    code, _, error = warp("salvage", tmp_path / "nothing.wshard")
    assert code == 1
    assert "error[not_found]" in error


def test_chunk_and_join(warp: Run, shard: Path, tmp_path: Path) -> None:
    code, text, _ = warp("chunk", shard, "--steps", 6, "--json")
    listed = json.loads(text)["chunk_list"]
    assert code == 0
    assert warp("verify", "--full", listed)[0] == 0
    shown = warp("inspect", listed)[1]
    assert "chunk-list" in shown
    said = json.loads(warp("inspect", "--json", listed)[1])["chunk_list"]["chunks"]
    assert sum(each["length"] for each in said) == wd.load_wshard(shard).length
    assert all(each["uri"] in shown and (Path(listed).parent / each["uri"]).exists() for each in said)
    code, _, _ = warp("join", listed, "--output", tmp_path / "again.wshard")
    assert code == 0
    assert wd.load_wshard(tmp_path / "again.wshard") == wd.load_wshard(shard)
    chunk = next(Path(listed).parent.glob("*_chunk_0001.wshard"))
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    code, _, error = warp("join", listed)
    assert code == 1
    assert "error[checksum]" in error
    assert warp("verify", listed)[0] == 3


def test_spec(warp: Run) -> None:
    assert "SHRD" in warp("spec", "wshard")[1]
    assert "journal" in warp("spec")[1].split()


def test_errors_have_code_and_hint(warp: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("this is not a shard")
    code, _, error = warp("inspect", tmp_path / "x")
    assert code == 1
    assert error.startswith("error[bad_magic]")
    assert "hint:" in error
    assert "Traceback" not in error
    code, _, error = warp("--debug", "inspect", tmp_path / "x")
    assert "Traceback" in error
    code, _, error = warp("chunk", tmp_path / "x", "--steps", 0)
    assert code == 1
