"""Segments that other programs write: codes with their dictionaries, and segments that are opaque."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import Root
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.quant import BinaryQuant, ProductQuant, ScalarQuant, encode_quant
from warpdata.formats.rvf.reader import Snapshot
from warpdata.formats.rvf.signing import SigningKey, segment_message
from warpdata.formats.rvf.vec import VecBlock, encode_vec
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender
from warpdata.search.store import VectorStore

IDS = np.arange(10, 14, dtype=np.uint64)
LOW, HIGH = np.array([-1, 0, 5], np.float32), np.array([1, 10, 6], np.float32)
CODES = np.array([[0, 0, 0], [255, 255, 255], [128, 51, 255], [64, 102, 0]], np.uint8)
MEANT = LOW + CODES.astype(np.float32) / 255 * (HIGH - LOW)


def foreign(
    path: Path, *segments: tuple[int, bytes], dim: int = 3, profile_id: int = 0, sign: Any = None
) -> Path:
    """A wire file that no profile of ours describes."""
    with path.open("wb+") as file:
        appender = SegmentAppender(file.fileno(), str(path), None)
        entries = [
            appender.append(NewSegment(kind, payload, block_count=1), sign) for kind, payload in segments
        ]
        appender.commit_checkpoint(entries, Root(dim, 0, 4, 1, profile_id=profile_id), [])
    return path


def vec(rows: Any, dtype: str, tier: int = 1, dim: int = 3) -> tuple[int, bytes]:
    return SegmentType.VEC, bytes(encode_vec([VecBlock(np.asarray(rows), IDS, dim, dtype, tier)]))


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_scalar_codes_come_back_as_vectors(tmp_path: Path, dtype: str) -> None:
    codes = CODES if dtype == "u8" else (CODES.astype(np.int16) - 128).astype(np.int8)
    quant = SegmentType.QUANT, encode_quant(ScalarQuant(LOW, HIGH))
    path = foreign(tmp_path / "f.rvf", quant, vec(codes, dtype))
    with VectorStore.open(path) as store:
        assert np.allclose(store.get(IDS), MEANT, atol=1e-6)
        ids, away = store.search(MEANT[2], 1)
        assert (ids.tolist(), away.tolist()) == ([12], pytest.approx([0], abs=1e-6))
        store.export(tmp_path / "out.rvf")
    with VectorStore.open(tmp_path / "out.rvf") as again:
        assert np.allclose(again.get(IDS), MEANT, atol=1e-6)


def test_integers_without_a_dictionary_are_integers(tmp_path: Path) -> None:
    with VectorStore.open(foreign(tmp_path / "f.rvf", vec(CODES, "u8"))) as store:
        assert np.array_equal(store.get(IDS), CODES)


def test_the_dictionary_of_the_tier_counts(tmp_path: Path) -> None:
    mine, other = ScalarQuant(LOW, HIGH, tier=1), ScalarQuant(LOW - 9, HIGH + 9, tier=2)
    for order in ((mine, other), (other, mine)):
        quants = [(SegmentType.QUANT, encode_quant(each)) for each in order]
        with VectorStore.open(foreign(tmp_path / "f.rvf", *quants, vec(CODES, "u8"))) as store:
            assert np.allclose(store.get(IDS), MEANT, atol=1e-6)


def test_binary_and_product_codes_of_other_programs(tmp_path: Path) -> None:
    threshold = np.array([0.5, -1, 2], np.float32)
    quant = SegmentType.QUANT, encode_quant(BinaryQuant(threshold))
    path = foreign(tmp_path / "b.rvf", quant, vec(np.array([[0], [7], [1], [4]], np.uint8), "binary"))
    with VectorStore.open(path) as store:
        assert store.get([11]).tolist() == [(threshold + 1).tolist()]
        assert store.get([12])[0].tolist() == [1.5, -2, 1]
    book = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    quant = SegmentType.QUANT, encode_quant(ProductQuant(4, book))
    path = foreign(
        tmp_path / "p.rvf",
        quant,
        vec(np.array([[0, 0], [1, 1], [0, 1], [1, 0]], np.uint8), "pq", dim=4),
        dim=4,
    )
    with VectorStore.open(path) as store:
        assert store.get([12])[0].tolist() == [0, 1, 6, 7]


def test_a_dictionary_of_another_size_is_an_error(tmp_path: Path) -> None:
    quant = SegmentType.QUANT, encode_quant(ScalarQuant(LOW[:2], HIGH[:2]))
    with (
        VectorStore.open(foreign(tmp_path / "f.rvf", quant, vec(CODES, "u8"))) as store,
        pytest.raises(CorruptLayoutError, match="does not fit"),
    ):
        store.get(IDS)


def test_a_link_of_another_program_that_leads_nowhere(tmp_path: Path) -> None:
    """The states end there; a file of ours would be damaged."""
    path = tmp_path / "f.rvf"
    with path.open("wb+") as file:
        appender = SegmentAppender(file.fileno(), str(path), None)
        entry = appender.append(NewSegment(*vec(MEANT.astype(np.float32), "f32"), block_count=1))
        appender.last = Snapshot("wire", 6, (), 1 << 60, 5, b"\xab" * 16, 0)
        appender.commit_checkpoint([entry], Root(3, 0, 4, 7), [])
    with VectorStore.open(path) as store:
        assert store.epochs() == [7]
        with pytest.raises(ValueError, match="no state of epoch 6"):
            store.at(6)


OPAQUE = [
    SegmentType.OVERLAY,
    SegmentType.WITNESS,
    SegmentType.PROFILE,
    SegmentType.REFCOUNT,
    SegmentType.DELTA,
    0xF7,
]


@pytest.mark.parametrize("kind", OPAQUE)
def test_segments_of_other_programs_are_listed_and_survive(tmp_path: Path, kind: int) -> None:
    payload = bytes(range(256)) * 3
    path = foreign(tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), (kind, payload), profile_id=2)
    with VectorStore.open(path) as store:
        assert store.verify() == []
        assert store.search(MEANT[1], 1)[0].tolist() == [11]
        assert "other segments" in store.export(tmp_path / "out.rvf").kept
        assert "other segments" in store.export(tmp_path / "theirs.rvf", dialect="runtime").dropped
    with VectorStore.open(tmp_path / "out.rvf", mode="a") as store:
        store.build_index()
        store.compact()
        assert store._content.snapshot.root is not None
        assert store._content.snapshot.root.profile_id == 2
        kept = [entry for entry in store._content.snapshot.segments if entry.seg_type == kind]
        assert [bytes(store._content.read(entry)) for entry in kept] == [payload]
        assert layout.segment_name(kind) in {segment["type"] for segment in store.segments()}


def test_signatures_of_a_profile(tmp_path: Path) -> None:
    key = SigningKey.generate()
    path = foreign(
        tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), profile_id=1,
        sign=lambda header: key.sign(segment_message(header, "rvdna")),
    )  # fmt: skip
    with VectorStore.open(path) as store:
        found = store.verify([key.public])
        assert [damage.part.split()[0] for damage in found] == [layout.segment_name(SegmentType.MANIFEST)]
