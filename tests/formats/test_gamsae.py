"""GAMSAE01 shards: round trip, golden bytes, SPEC and layout, bit flips and truncations, foreign files."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.conftest import OWN_GOLDEN, ROOT, SHARED_GOLDEN, shared_golden
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import enough_examples, thinned
from warpdata.bytekit.checksum import fnv1a64, sha256_hex
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.corpora.source import FixedOrderSource, MmapShardSource, StoreShardSource
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    EmptyCorpusError,
    FormatError,
    OutOfSpaceError,
    SchemaMismatchError,
    TruncatedError,
    UnsupportedDtypeError,
    WidthMismatchError,
    WriterClosedError,
)
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus import load_corpus, pack_corpus, verify_folder, verify_shard
from warpdata.formats.gamsae.shard import ActivationShardWriter, encode_shard_bytes

SPEC = ROOT / "src/warpdata/formats/gamsae/SPEC.md"
STORED = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

KINDS: list[tuple[str, type[Exception]]] = [
    ("unsupported dtype tag", UnsupportedDtypeError),
    ("is truncated", TruncatedError),
    ("wrong magic", BadMagicError),
    ("no shards / no rows", EmptyCorpusError),
    ("has width", WidthMismatchError),
    ("I/O error", BlobNotFoundError),
]


def sections() -> Iterator[tuple[str, list[str]]]:
    path = SHARED_GOLDEN / "gamsae" / "expected.txt"
    if not path.exists():
        yield "absent", []
        return
    for part in re.split(r"^## ", path.read_text(), flags=re.M)[1:]:
        title, *lines = part.strip().splitlines()
        yield title, [line for line in lines if line.strip()]


def described(source: FixedOrderSource) -> list[str]:
    """The lines the reference program prints for a source."""
    lines = [f"ok total={source.total_rows} width={source.width} batch_rows={source.batch_rows}"]
    ids = bits = b""
    count = 0
    for batch in source:
        lines.append(f"  batch rows={len(batch)} first_id={batch.row_ids[0]} last_id={batch.row_ids[-1]}")
        ids += batch.row_ids.astype("<u8").tobytes()
        bits += batch.rows.astype("<f8").tobytes()
        count += 1
    lines.append(f"fnv_ids={fnv1a64(ids):016x} fnv_f64bits={fnv1a64(bits):016x} batches={count}")
    return lines


def expect(open_source: type, arguments: object, lines: list[str]) -> None:
    if lines[0].startswith("ERR"):
        kind = next(kind for text, kind in KINDS if text in lines[0])
        with pytest.raises(kind) as caught:
            open_source(arguments)
        if isinstance(caught.value, TruncatedError):
            expected, actual = map(int, re.findall(r"expects (\d+) bytes, file has (\d+)", lines[0])[0])
            assert (caught.value.expected, caught.value.actual) == (expected, actual)
    else:
        with open_source(arguments) as source:
            assert described(source) == lines


@pytest.mark.parametrize(("title", "lines"), list(sections()), ids=lambda x: x if isinstance(x, str) else "")
def test_every_file_of_the_reference_program(title: str, lines: list[str], tmp_path: Path) -> None:
    folder = shared_golden("gamsae")
    verb, *names = title.split()
    if "overflow_add_wraps" in title:
        lines = [f"ERR is truncated: header expects {2**64 - 1} bytes, file has 96"]
    if verb == "read":
        expect(MmapShardSource.open, [folder / name for name in names], lines)  # type: ignore[arg-type]
        return
    if names[0] == "wide":
        pytest.skip("this folder is not among the files; the test below makes one of its shape")
    folder = tmp_path if names[0] == "empty" else folder / names[0]
    mapped = [line.removeprefix("mmap ") for line in lines[: len(lines) // 2]]
    stored = [line.removeprefix("objstore ") for line in lines[len(lines) // 2 :]]
    for kind, wanted in ((MmapShardSource, mapped), (StoreShardSource, stored)):
        expect(kind.open_dir, folder, wanted)  # type: ignore[arg-type]


def test_foreign_bits_are_kept() -> None:
    values = np.load(shared_golden("gamsae", "edge_values_4x8.input_f64.npy"))
    assert encode_shard_bytes(values) == shared_golden("gamsae", "edge_values_4x8.shard").read_bytes()


def test_a_wide_corpus_bounds_its_batches_by_the_window(tmp_path: Path) -> None:
    (tmp_path / "a.shard").write_bytes(encode_shard_bytes(np.ones((1200, 2304))))
    with MmapShardSource.open_dir(tmp_path) as source:
        assert [len(batch) for batch in source] == [1024, 176]
    with StoreShardSource.open_dir(tmp_path) as source:
        assert [len(batch) for batch in source] == [910, 290]


@given(
    npst.arrays(np.float64, npst.array_shapes(min_dims=2, max_dims=2, max_side=6),
                elements=st.floats(width=64, allow_nan=True)),
    st.sampled_from(sorted(STORED)),
)  # fmt: skip
def test_round_trip(values: np.ndarray, dtype: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(STORED[dtype]).astype(np.float64)
    if dtype != "f32" and (np.isfinite(values) & ~np.isfinite(wanted)).any():
        with pytest.raises(SchemaMismatchError, match=f"out of range for {dtype}"):
            encode_shard_bytes(values, dtype=dtype)
        return
    packed = encode_shard_bytes(values, dtype=dtype)
    with StoreShardSource.open([BytesRangeReader(packed)]) as source:
        rows = np.concatenate([batch.rows for batch in source])
    np.testing.assert_array_equal(rows, wanted)


def test_golden_bytes_and_values() -> None:
    for folder in (OWN_GOLDEN / "gamsae", ROOT / "tests/compat/gamsae/0.1"):
        wanted = json.loads((folder / "expected.json").read_text())
        for name in sorted(path.name for path in folder.glob("*.shard")):
            assert sha256_hex((folder / name).read_bytes()) == wanted[name]["sha256"]
            with MmapShardSource.open([folder / name]) as source:
                assert np.concatenate([b.rows for b in source]).tolist() == wanted[name]["rows"]
        with MmapShardSource.open_dir(folder / "corpus") as source:
            assert np.concatenate([b.rows for b in source]).tolist() == wanted["corpus"]["rows"]
        assert verify_folder(folder / "corpus") == []


def test_the_tool_makes_the_golden_files(tmp_path: Path) -> None:
    from tools.make_golden_gamsae import make

    make(tmp_path)
    for path in sorted((OWN_GOLDEN / "gamsae").rglob("*.shard")):
        assert (tmp_path / path.relative_to(OWN_GOLDEN / "gamsae")).read_bytes() == path.read_bytes()
    assert (tmp_path / "expected.json").read_text() == (OWN_GOLDEN / "gamsae/expected.json").read_text()


def test_spec_and_layout_agree() -> None:
    assert_spec_matches(SPEC, "Header", layout.ShardHeader, layout.SHARD_HEADER)
    assert_spec_matches(SPEC, "Journal frame", layout.JournalFrame, layout.JOURNAL_FRAME)
    text = SPEC.read_text()
    for name, tag in layout.DTYPE_TAGS.items():
        assert re.search(rf"^\| {tag} \| {name} \|", text, re.M)
    assert layout.SHARD_MAGIC.decode() in text
    assert str(layout.CHECKSUM_BLOCK_BYTES) in text


def read_all(data: bytes) -> tuple[int, np.ndarray] | None:
    try:
        with StoreShardSource.open([BytesRangeReader(data)], dtype="stored") as source:
            return source.width, np.concatenate([batch.rows for batch in source])
    except FormatError:
        return None


@pytest.mark.parametrize("dtype", sorted(STORED))
def test_every_header_flip_and_truncation_fails_cleanly(dtype: str) -> None:
    """Without corpus.json rows carry no checksum; the header must still never lie about sizes."""
    good = encode_shard_bytes(np.arange(12.0).reshape(3, 4), dtype=dtype)
    for bit in range(layout.HEADER_BYTES * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        found = read_all(bytes(damaged))
        if found is not None:
            assert found[1].nbytes <= len(good) - layout.HEADER_BYTES
            assert found[1].tobytes() == good[layout.HEADER_BYTES : layout.HEADER_BYTES + found[1].nbytes]
    for size in range(len(good)):
        with pytest.raises(TruncatedError) as caught:
            StoreShardSource.open([BytesRangeReader(good[:size])])
        assert caught.value.actual == size


def corpus_rows(folder: Path) -> np.ndarray:
    with MmapShardSource.open_dir(folder) as source:
        return np.concatenate([batch.rows for batch in source])


def test_with_corpus_json_every_flip_of_every_file_is_found(tmp_path: Path) -> None:
    golden = OWN_GOLDEN / "gamsae" / "corpus"
    good = corpus_rows(golden)
    folder = tmp_path / "corpus"
    shutil.copytree(golden, folder)
    for path in [*sorted(folder.glob("*.shard")), folder / "corpus.json"]:
        original = path.read_bytes()
        step = 1 if path.suffix == ".shard" else 11
        for bit in thinned(range(0, len(original) * 8, step), 300):
            damaged = bytearray(original)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                rows = corpus_rows(folder)
            except FormatError:
                continue
            np.testing.assert_array_equal(rows, good)
            if path.suffix == ".json":
                assert pack_corpus(load_corpus(folder)) == original, f"bit {bit} changed the meaning unseen"
                continue
            assert bit // 8 in range(28, 32), "only the reserved word may be overlooked by readers"
            assert verify_folder(folder)
        path.write_bytes(original)


def test_with_corpus_json_every_truncation_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    shutil.copytree(OWN_GOLDEN / "gamsae" / "corpus", folder)
    for path in [*sorted(folder.glob("*.shard")), folder / "corpus.json"]:
        original = path.read_bytes()
        for size in range(0, len(original), 3):
            path.write_bytes(original[:size])
            with pytest.raises(FormatError):
                corpus_rows(folder)
        path.write_bytes(original)


def test_verify_names_what_is_wrong_and_what_is_odd(tmp_path: Path) -> None:
    good = encode_shard_bytes(np.ones((2, 3)))
    odd = tmp_path / "odd.shard"
    odd.write_bytes(good[:28] + b"\x07\0\0\0" + good[32:] + b"tail")
    assert [(each.code, each.is_damage) for each in verify_shard(odd)] == [
        ("reserved", False),
        ("trailing", False),
    ]
    (tmp_path / "short.shard").write_bytes(good[:-1])
    assert [(each.code, each.is_damage) for each in verify_shard(tmp_path / "short.shard")] == [
        ("truncated", True)
    ]


def test_shard_writer_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.shard"
    with ActivationShardWriter(path, 3) as writer:
        writer.append(np.ones((2, 3)))
        assert not path.exists()
        writer.append(np.full((1, 3), 2.0))
    assert path.read_bytes() == encode_shard_bytes(np.array([[1.0] * 3, [1.0] * 3, [2.0] * 3]))
    with pytest.raises(WriterClosedError):
        writer.append(np.ones((1, 3)))
    with pytest.raises(KeyError), ActivationShardWriter(tmp_path / "b.shard", 3) as writer:
        raise KeyError
    with pytest.raises(SchemaMismatchError), ActivationShardWriter(tmp_path / "c.shard", 3) as writer:
        writer.append(np.ones((1, 4)))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.shard"]


def test_rows_stay_whole_when_a_piece_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, most = os.pwritev, [8, 0]

    def write(fd: int, pieces: Any, offset: int) -> int:
        if not (count := most.pop(0)):
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [pieces[0][:count]], offset)

    with ActivationShardWriter(tmp_path / "a.shard", 3) as writer:
        writer.append(np.ones((2, 3)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", write)
            with pytest.raises(OutOfSpaceError):
                writer.append(np.full((200_000, 3), 2.0))
        writer.append(np.full((1, 3), 3.0))
    assert (tmp_path / "a.shard").read_bytes() == encode_shard_bytes(
        np.array([[1.0] * 3, [1.0] * 3, [3.0] * 3])
    )


@settings(max_examples=enough_examples(100))
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    read_all(data)
    read_all(layout.SHARD_MAGIC + data)


def test_errors_carry_what_the_document_says(tmp_path: Path) -> None:
    header = layout.SHARD_HEADER.pack(layout.SHARD_MAGIC, 1, 1, 9, 0)
    (tmp_path / "tag.shard").write_bytes(header + bytes(4))
    (tmp_path / "one.shard").write_bytes(encode_shard_bytes(np.ones((2, 1))))
    (tmp_path / "three.shard").write_bytes(encode_shard_bytes(np.ones((2, 3))))
    with pytest.raises(UnsupportedDtypeError) as tagged:
        MmapShardSource.open([tmp_path / "tag.shard"])
    with pytest.raises(WidthMismatchError) as wide:
        MmapShardSource.open([tmp_path / "one.shard", tmp_path / "three.shard"])
    for error in (wide.value, pickle.loads(pickle.dumps(wide.value))):
        assert (error.expected, error.found, error.path) == (1, 3, str(tmp_path / "three.shard"))
    assert pickle.loads(pickle.dumps(tagged.value)).tag == 9
