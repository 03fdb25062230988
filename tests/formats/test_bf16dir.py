"""The bf16 directory: the files of other programs, and every way a manifest can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import shared_golden
from warpdata.convert.tables.corpora import folder_to_corpus
from warpdata.corpora.source import MmapShardSource
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    EmptyCorpusError,
    FormatError,
    StoreError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedVersionError,
)
from warpdata.formats.bf16dir.reader import read_directory


def make(folder: Path, rows: int = 5, **changes: Any) -> Path:
    """A directory of two files as other programs write it."""
    folder.mkdir()
    bits = np.arange(rows * 3, dtype="<u2").reshape(rows, 3) + 0x3F80
    shards = []
    for index, part in enumerate((bits[:2], bits[2:])):
        name = f"shard_{index:05d}.bf16"
        (folder / name).write_bytes(part.tobytes())
        shards.append({"file": name, "rows": len(part), "bytes": part.nbytes})
    manifest: dict[str, Any] = {
        "format": "residual_shard_bf16", "format_version": 1, "dtype": "bfloat16", "byte_order": "little",
        "d_model": 3, "total_tokens": rows, "shards": shards, "layer": 2,
    }  # fmt: skip
    manifest.update(changes)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def rows_of(folder: Path, **options: Any) -> np.ndarray:
    with MmapShardSource.open_dir(folder, **options) as source:
        return np.concatenate([batch.rows for batch in source])


def test_files_of_the_other_program() -> None:
    folder = shared_golden("residual_bf16")
    wanted = np.load(folder / "expected_f32.npy")
    np.testing.assert_array_equal(rows_of(folder, dtype="float32"), wanted)
    np.testing.assert_array_equal(rows_of(folder), wanted.astype(np.float64))
    assert rows_of(folder, dtype="stored").dtype.name == "bfloat16"


def test_views_direct_reads_and_conversion_agree(tmp_path: Path) -> None:
    folder = make(tmp_path / "in")
    wanted = rows_of(folder)
    np.testing.assert_array_equal(rows_of(folder, dtype="stored", copy=False).astype(np.float64), wanted)
    assert folder_to_corpus(folder, tmp_path / "out") == 5
    np.testing.assert_array_equal(rows_of(tmp_path / "out"), wanted)
    with MmapShardSource.open_dir(tmp_path / "out") as source:
        assert source.shards.record is not None
        assert source.shards.record.provenance == {"layer": 2}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"format_version": 2}, UnsupportedVersionError),
        ({"dtype": "float16"}, UnsupportedDtypeError),
        ({"byte_order": "big"}, UnsupportedDtypeError),
        ({"d_model": 4}, CorruptLayoutError),
        ({"d_model": -3}, CorruptLayoutError),
        ({"d_model": "3"}, CorruptLayoutError),
        ({"total_tokens": 6}, CorruptLayoutError),
        ({"shards": 7}, CorruptLayoutError),
        ({"shards": [{"file": "../x", "rows": 5, "bytes": 30}]}, CorruptLayoutError),
        ({"shards": [{"file": "absent", "rows": 5, "bytes": 30}]}, BlobNotFoundError),
        ({"shards": [], "total_tokens": 0}, EmptyCorpusError),
    ],
)
def test_wrong_manifests(tmp_path: Path, changes: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        MmapShardSource.open_dir(make(tmp_path / "in", **changes))


def test_wrong_files(tmp_path: Path) -> None:
    folder = make(tmp_path / "in")
    path = folder / "shard_00001.bf16"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(TruncatedError) as caught:
        read_directory(folder)
    assert (caught.value.expected, caught.value.actual) == (18, 17)
    path.write_bytes(good + b"x")
    with pytest.raises(CorruptLayoutError):
        read_directory(folder)


def test_every_flip_of_the_manifest_fails_cleanly(tmp_path: Path) -> None:
    folder = make(tmp_path / "in")
    path = folder / "manifest.json"
    good, wanted = path.read_bytes(), rows_of(folder)
    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = rows_of(folder)
        except (FormatError, StoreError):
            continue
        np.testing.assert_array_equal(found, wanted)
    shutil.rmtree(folder)
