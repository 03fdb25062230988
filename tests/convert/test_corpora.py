"""Converters in and out, each against the foreign library or its files."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from warpdata.convert.tables.corpora import (
    ConvertOptions,
    corpus_to_safetensors,
    folder_to_corpus,
    npy_to_corpus,
    safetensors_to_corpus,
)
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    FormatError,
    TruncatedError,
    UnsupportedDtypeError,
)
from warpdata.formats.gamsae.corpus import verify_folder
from warpdata.formats.gamsae.shard import encode_shard_bytes

VALUES = np.random.default_rng(0).standard_normal((500, 12)).astype(np.float32)


def rows_of(folder: Path) -> np.ndarray:
    assert verify_folder(folder) == []
    with MmapShardSource.open_dir(folder, dtype="stored") as source:
        return np.concatenate([batch.rows for batch in source])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "stored"), [("f4", "f4"), ("f8", "f4"), ("f2", "f2"), (">f4", "f4"), ("i4", "f4")]
)
def test_npy(tmp_path: Path, dtype: str, stored: str, order: str) -> None:
    values = np.asarray(VALUES * 100 if dtype == "i4" else VALUES, dtype=dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", values)
    calls: list[tuple[int, int]] = []
    options = ConvertOptions(shard_bytes=5000, progress=lambda done, total: calls.append((done, total)))
    assert npy_to_corpus(tmp_path / "a.npy", tmp_path / "c", options) == 500
    assert calls[-1] == (500, 500)
    found = rows_of(tmp_path / "c")
    assert found.dtype == np.dtype(stored)
    np.testing.assert_array_equal(found, values.astype(stored))


def test_npy_of_more_axes_and_chosen_dtype(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES.reshape(5, 100, 12))
    npy_to_corpus(tmp_path / "a.npy", tmp_path / "c", ConvertOptions(dtype="bf16"))
    np.testing.assert_array_equal(rows_of(tmp_path / "c"), VALUES.astype(ml_dtypes.bfloat16))


def test_bad_npy_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    good = (tmp_path / "a.npy").read_bytes()
    for size in range(0, len(good), 997):
        (tmp_path / "b.npy").write_bytes(good[:size])
        with pytest.raises(FormatError):
            npy_to_corpus(tmp_path / "b.npy", tmp_path / "c")
    for bit in range(128 * 8):
        (tmp_path / "b.npy").write_bytes(
            good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :]
        )
        try:
            npy_to_corpus(tmp_path / "b.npy", tmp_path / f"ok-{bit}")
        except FormatError:
            assert not (tmp_path / f"ok-{bit}").exists()
    np.save(tmp_path / "objects.npy", np.array([[{}]], object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", np.zeros(5))
    with pytest.raises(UnsupportedDtypeError):
        npy_to_corpus(tmp_path / "objects.npy", tmp_path / "c")
    with pytest.raises(FormatError, match="no matrix"):
        npy_to_corpus(tmp_path / "flat.npy", tmp_path / "c")
    with pytest.raises(BlobNotFoundError):
        npy_to_corpus(tmp_path / "absent.npy", tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_safetensors_both_ways_with_the_library(tmp_path: Path, dtype: type) -> None:
    tensors = {"x": VALUES.astype(dtype), "ids": np.arange(4), "bias": np.ones(3, np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors", metadata={"model": "tiny"})
    assert safetensors_to_corpus(tmp_path / "a.safetensors", tmp_path / "c") == 500
    stored = np.float32 if dtype is np.float64 else dtype
    np.testing.assert_array_equal(rows_of(tmp_path / "c"), VALUES.astype(dtype).astype(stored))
    assert corpus_to_safetensors(tmp_path / "c", tmp_path / "b.safetensors") == 500
    again = safetensors.numpy.load_file(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(again["activations"], VALUES.astype(dtype).astype(stored))
    with safetensors.safe_open(tmp_path / "b.safetensors", "numpy") as file:
        assert file.metadata() == {"model": "tiny"}


def test_bf16_goes_round(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", 12, dtype="bf16", shard_bytes=3000) as writer:
        for start in range(0, 500, 100):
            writer.append(VALUES[start : start + 100])
    corpus_to_safetensors(tmp_path / "c", tmp_path / "a.safetensors", tensor="layer3")
    safetensors_to_corpus(tmp_path / "a.safetensors", tmp_path / "d")
    np.testing.assert_array_equal(rows_of(tmp_path / "d"), VALUES.astype(ml_dtypes.bfloat16))


def test_which_tensor_must_be_said(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": VALUES, "b": VALUES * 2}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="has a, b"):
        safetensors_to_corpus(tmp_path / "a.safetensors", tmp_path / "c")
    safetensors_to_corpus(tmp_path / "a.safetensors", tmp_path / "c", tensor="b")
    np.testing.assert_array_equal(rows_of(tmp_path / "c"), VALUES * 2)
    with pytest.raises(ConflictError):
        safetensors_to_corpus(tmp_path / "a.safetensors", tmp_path / "c", tensor="b")


def test_bad_safetensors_are_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": VALUES[:4]}, path)
    good = path.read_bytes()
    for size in range(0, len(good), 5):
        path.write_bytes(good[:size])
        with pytest.raises(FormatError):
            safetensors_to_corpus(path, tmp_path / "c")
    for bit in range(80 * 8):
        path.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        try:
            safetensors_to_corpus(path, tmp_path / f"ok-{bit}")
        except (FormatError, ValueError):
            assert not (tmp_path / f"ok-{bit}").exists()
    for header in ({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
                   {"a": {"dtype": "F32", "shape": [2**60, 2**60], "data_offsets": [0, 4]}},
                   {"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 0]}}, {"a": 3}):  # fmt: skip
        body = json.dumps(header).encode()
        path.write_bytes(len(body).to_bytes(8, "little") + body + bytes(8))
        with pytest.raises(FormatError):
            safetensors_to_corpus(path, tmp_path / "c")
    path.write_bytes((1 << 40).to_bytes(8, "little") + bytes(100))
    with pytest.raises(FormatError):
        safetensors_to_corpus(path, tmp_path / "c")
    path.write_bytes((100).to_bytes(8, "little"))
    with pytest.raises(TruncatedError):
        safetensors_to_corpus(path, tmp_path / "c")


def test_a_plain_folder_of_shards_gets_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.shard").write_bytes(encode_shard_bytes(VALUES[300:]))
    (tmp_path / "in" / "a.shard").write_bytes(encode_shard_bytes(VALUES[:300]))
    folder_to_corpus(tmp_path / "in", tmp_path / "out", ConvertOptions(provenance={"layer": 1}))
    np.testing.assert_array_equal(rows_of(tmp_path / "out"), VALUES)
    with MmapShardSource.open_dir(tmp_path / "out") as source:
        assert source.shards.run_crcs is not None
        assert source.shards.record is not None
        assert source.shards.record.provenance == {"layer": 1}
