"""`warp corpus`: every verb, as text and as JSON, with its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import shared_golden
from warpdata.cli.main import main
from warpdata.corpora.source import MmapShardSource
from warpdata.formats.gamsae.shard import encode_shard_bytes

VALUES = np.arange(60.0).reshape(20, 3)


@pytest.fixture(name="corpus")
def converted(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", VALUES)
    assert main(["corpus", "convert", str(tmp_path / "a.npy"), str(tmp_path / "c")]) == 0
    return tmp_path / "c"


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> object:
    capsys.readouterr()
    assert main(["corpus", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_info(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = as_json(capsys, "info", str(corpus))
    assert isinstance(facts, dict)
    assert (facts["rows"], facts["width"], facts["dtype"], facts["shards"]) == (20, 3, "f32", 1)
    assert facts["has_checksums"]
    assert facts["is_complete"]
    assert main(["corpus", "info", str(corpus)]) == 0
    assert "240 B" in capsys.readouterr().out


def test_verify_finds_damage(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "verify", str(corpus)) == {"is_damaged": False, "findings": []}
    shard = next(corpus.glob("*.shard"))
    data = bytearray(shard.read_bytes())
    data[50] ^= 1
    shard.write_bytes(data)
    report = as_json(capsys, "verify", str(corpus), code=3)
    assert isinstance(report, dict)
    assert [each["code"] for each in report["findings"]] == ["checksum"]
    shard.write_bytes(data[:-1])
    report = as_json(capsys, "verify", str(corpus), code=3)
    assert isinstance(report, dict)
    assert "truncated" in [each["code"] for each in report["findings"]]
    assert main(["corpus", "verify", str(corpus)]) == 3
    assert "damaged" in capsys.readouterr().out


def test_verify_of_plain_shards_reports_what_is_odd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.shard"
    path.write_bytes(encode_shard_bytes(VALUES) + b"tail")
    report = as_json(capsys, "verify", str(path))
    assert isinstance(report, dict)
    assert [(each["code"], each["is_damage"]) for each in report["findings"]] == [("trailing", False)]
    assert main(["corpus", "info", str(tmp_path / "absent")]) == 1


def test_stats_stored_and_computed_agree(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = as_json(capsys, "stats", str(corpus))
    computed = as_json(capsys, "stats", str(corpus), "--recompute")
    assert isinstance(stored, dict)
    assert stored == computed
    assert stored["mean"] == VALUES.mean(0).tolist()
    assert main(["corpus", "stats", str(corpus)]) == 0
    assert "norm_max" in capsys.readouterr().out


def test_head(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(capsys, "head", str(corpus), "-n", "2", "--start", "7")
    assert rows == [{"row_id": 7, "values": [21.0, 22.0, 23.0]}, {"row_id": 8, "values": [24.0, 25.0, 26.0]}]
    assert main(["corpus", "head", str(corpus)]) == 0
    assert "12 13 14" in capsys.readouterr().out
    assert main(["corpus", "head", str(corpus), "-n", "0"]) == 2
    assert main(["corpus", "head", str(corpus), "--start", "99"]) == 2


def test_head_across_shards_and_odd_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.shard").write_bytes(encode_shard_bytes([[np.nan, np.inf]]))
    (tmp_path / "b.shard").write_bytes(encode_shard_bytes([[1.0, 2.0]]))
    rows = as_json(capsys, "head", str(tmp_path / "a.shard"), str(tmp_path / "b.shard"))
    assert rows == [{"row_id": 0, "values": ["nan", "inf"]}, {"row_id": 1, "values": [1.0, 2.0]}]


def test_sample_is_repeatable(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = as_json(capsys, "sample", str(corpus), "-n", "6", "--seed", "4")
    assert first == as_json(capsys, "sample", str(corpus), "-n", "6", "--seed", "4")
    assert first != as_json(capsys, "sample", str(corpus), "-n", "6", "--seed", "5")
    assert isinstance(first, list)
    assert all(row["values"] == VALUES[row["row_id"]].tolist() for row in first)
    assert main(["corpus", "sample", str(corpus), "-n", "99", "--output", str(tmp_path / "s.npy")]) == 0
    assert sorted(np.load(tmp_path / "s.npy")[:, 0].tolist()) == VALUES[:, 0].tolist()
    nested = as_json(capsys, "sample", str(corpus), "--fraction", "1.0", "-n", "3")
    assert isinstance(nested, list)
    assert [row["row_id"] for row in nested] == [0, 1, 2]


def test_convert_every_way(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = str(tmp_path / "a.safetensors")
    assert main(["corpus", "convert", str(corpus), packed, "--tensor", "x"]) == 0
    done = as_json(capsys, "convert", packed, str(tmp_path / "d"), "--dtype", "bf16")
    assert isinstance(done, dict)
    assert done["rows"] == 20
    assert main(["corpus", "convert", str(tmp_path / "d"), str(tmp_path / "e"), "--dtype", "f32"]) == 0
    with MmapShardSource.open_dir(tmp_path / "e") as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), VALUES)
    assert main(["corpus", "convert", str(corpus), str(tmp_path / "d")]) == 1
    assert main(["corpus", "convert", "x.csv", str(tmp_path / "f")]) == 2


def test_a_bf16_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(shared_golden("residual_bf16"))
    facts = as_json(capsys, "info", folder)
    assert isinstance(facts, dict)
    assert (facts["rows"], facts["dtype"]) == (10, "bf16")
    assert main(["corpus", "convert", folder, str(tmp_path / "c")]) == 0
    info = as_json(capsys, "info", str(tmp_path / "c"))
    assert isinstance(info, dict)
    assert info["provenance"]["model_name"] == "test/model"


def test_usage() -> None:
    for arguments in (["corpus"], ["corpus", "nonsense"], ["corpus", "info"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
