"""Corpus shards and folders with `warp verify` and `warp inspect`, and corpora as .npy files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.cli.main import main
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.formats.gamsae.shard import encode_shard_bytes

VALUES = np.arange(60, dtype=np.float32).reshape(20, 3) / 8


@pytest.fixture(name="corpus")
def harvested(tmp_path: Path) -> Path:
    with CorpusWriter(tmp_path / "c", 3, shard_bytes=120) as writer:
        writer.append(VALUES)
    return tmp_path / "c"


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_sound_shard_is_sound(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tmp_path / "alone.shard"
    alone.write_bytes(encode_shard_bytes(VALUES))
    shard = next(corpus.glob("*.shard"))
    reports = as_json(capsys, "verify", str(alone), str(shard), str(corpus))
    assert [report["findings"] for report in reports] == [[], [], []]
    assert main(["verify", str(shard)]) == 0
    assert "ok" in capsys.readouterr().out
    assert as_json(capsys, "inspect", str(alone))["rows"] == 20


def test_a_changed_byte_is_found_where_corpus_json_knows_it(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(corpus.glob("*.shard"))[1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    for path in (shard, corpus):
        (report,) = as_json(capsys, "verify", str(path), code=3)
        assert [(each["code"], shard.name in each["part"]) for each in report["findings"]] == [
            ("checksum", True)
        ]
    assert as_json(capsys, "corpus", "verify", str(shard), code=3)["is_damaged"]
    shard.write_bytes(data[:-1])
    (report,) = as_json(capsys, "verify", str(shard), code=3)
    assert report["findings"][0]["code"] == "truncated"
    shard.unlink()
    (report,) = as_json(capsys, "verify", str(corpus), code=3)
    assert "not_found" in [each["code"] for each in report["findings"]]


@pytest.mark.parametrize(("stored", "wanted"), [("f32", "<f4"), ("f16", "<f2"), ("bf16", "<f4")])
def test_a_corpus_becomes_a_matrix_and_one_again(tmp_path: Path, stored: str, wanted: str) -> None:
    with CorpusWriter(tmp_path / "c", 3, dtype=stored, shard_bytes=50) as writer:
        writer.append(VALUES)
    out = tmp_path / "out.npy"
    assert main(["corpus", "convert", str(tmp_path / "c"), str(out)]) == 0
    found = np.load(out, allow_pickle=False)
    assert found.dtype == np.dtype(wanted)
    np.testing.assert_array_equal(found, VALUES)
    assert main(["corpus", "convert", str(out), str(tmp_path / "d")]) == 0
    with MmapShardSource.open_dir(tmp_path / "d") as source:
        np.testing.assert_array_equal(np.concatenate([batch.rows for batch in source]), VALUES)


def test_nothing_is_replaced_unasked(corpus: Path, tmp_path: Path) -> None:
    for name in ("out.npy", "out.safetensors"):
        out = tmp_path / name
        out.write_bytes(b"precious")
        assert main(["corpus", "convert", str(corpus), str(out)]) == 1
        assert out.read_bytes() == b"precious"
        assert main(["corpus", "convert", str(corpus), str(out), "--overwrite"]) == 0
        assert out.stat().st_size > 60 * 4
    assert main(["corpus", "convert", str(corpus), str(tmp_path / "h.npy"), "--dtype", "f16"]) == 0
    assert np.load(tmp_path / "h.npy").dtype == np.float16
    assert main(["corpus", "convert", str(corpus), str(tmp_path / "b.npy"), "--dtype", "bf16"]) == 2
    assert main(["corpus", "convert", str(corpus), str(tmp_path / "x.csv")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "h.npy", "out.npy", "out.safetensors"]
