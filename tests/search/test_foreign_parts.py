"""Segments that other programs write: codes with their dictionaries, overlays of graphs, profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.errors import CorruptLayoutError, UnsupportedVersionError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.manifest import Root
from warpdata.formats.rvf.payloads.domain import DomainProfile, encode_domain
from warpdata.formats.rvf.payloads.graph import Adjacency
from warpdata.formats.rvf.payloads.overlay import Edge, Overlay, encode_overlay
from warpdata.formats.rvf.payloads.quant import BinaryQuant, ProductQuant, ScalarQuant, encode_quant
from warpdata.formats.rvf.payloads.vec import VecBlock, encode_vec
from warpdata.formats.rvf.signing import SigningKey, segment_message
from warpdata.formats.rvf.snapshot import Snapshot
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender
from warpdata.search.overlays import overlaid
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


# -- overlays --------------------------------------------------------------------------------------------


def indexed(path: Path) -> VectorStore:
    store = VectorStore.create(path, dim=3)
    store.add(np.random.default_rng(1).normal(size=(60, 3)))
    store.build_index("hnsw", m=4, ef_construction=40)
    return store


def append(store: VectorStore, *overlays: Overlay) -> None:
    appender = store._appender
    assert appender is not None
    for overlay in overlays:
        new = NewSegment(SegmentType.OVERLAY, encode_overlay(overlay))
        store._commit(appender, [new], appender.state)


def graph_of(path: Path) -> Any:
    with VectorStore.open(path) as store:
        store.warm()
        graph = store._searcher.warm().graph
        assert graph is not None
        adjacency = graph.adjacency()
        ground = np.cumsum(adjacency.layer_counts) - adjacency.layer_counts
        starts = adjacency.starts
        return [adjacency.neighbors[starts[at] : starts[at] + adjacency.sizes[at]].tolist() for at in ground]


def test_overlays_change_the_graph_that_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "o.rvf"
    with indexed(path) as store:
        before = graph_of(path)
        parent = store._content.layers[2].segment_id
        gone, room = before[0][0], next(n for n, held in enumerate(before) if len(held) < 8)
        new = next(n for n in range(60) if n not in before[room] and n != room)
        append(store, Overlay(2, 1, parent, (Edge("remove", 0, gone), Edge("reweight", 1, 2, 0.5))))
        last = store._content.snapshot.segments[-1].segment_id
        append(store, Overlay(3, 2, last, (Edge("add", room, new, 1.0),)), Overlay(9, 8, 12345))
        assert [overlay.epoch for overlay in store.overlays()] == [2, 3, 9]
        assert store.verify() == []
    after = graph_of(path)
    assert gone not in after[0]
    assert set(after[room]) - set(before[room]) == {new}
    with VectorStore.open(path, mode="a") as store:
        for dialect in ("wire", "runtime"):
            assert "overlays" in store.export(tmp_path / dialect, dialect=dialect).dropped
        store.compact()
        assert store.overlays() == []


def test_an_overlay_of_a_node_without_lists() -> None:
    lists = Adjacency(3, np.array([1, 1, 0]), np.array([1, 1]), np.array([1, 0]))
    kept = overlaid(lists, [Overlay(2, 1, 7, (Edge("add", 0, 2, 1.0),))], 4, "x.rvf")
    assert (kept.sizes.tolist(), kept.neighbors.tolist()) == ([2, 1], [1, 2, 0])
    with pytest.raises(CorruptLayoutError, match="without neighbour lists"):
        overlaid(lists, [Overlay(2, 1, 7, (Edge("add", 2, 0, 1.0),))], 4, "x.rvf")


def test_overlays_that_contradict_their_graph(tmp_path: Path) -> None:
    path = tmp_path / "o.rvf"
    with indexed(path) as store:
        parent = store._content.layers[2].segment_id
        append(store, Overlay(2, 1, parent, (Edge("add", 0, 60, 1.0),)))
    with VectorStore.open(path) as store, pytest.raises(CorruptLayoutError, match="does not exist"):
        store.warm()


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


# -- profiles --------------------------------------------------------------------------------------------

TEXT = DomainProfile(2, "text", schema=b'{"lang": "en"}')


def test_a_profile_is_known_and_kept(tmp_path: Path) -> None:
    path = foreign(
        tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), (SegmentType.PROFILE, encode_domain(TEXT)),
        profile_id=2,
    )  # fmt: skip
    with VectorStore.open(path) as store:
        assert store.domain == replace(TEXT, magic=0x52545854)
        assert store.search(MEANT[1], 1)[0].tolist() == [11]
        assert "other segments" in store.export(tmp_path / "out.rvf").kept
    with VectorStore.open(tmp_path / "out.rvf") as again:
        assert again.domain == replace(TEXT, magic=0x52545854)
        assert again._content.snapshot.root is not None
        assert again._content.snapshot.root.profile_id == 2
    with VectorStore.create(tmp_path / "ours.rvf", dim=3) as ours:
        assert ours.domain is None


def test_a_distance_of_its_own_is_refused_not_guessed(tmp_path: Path) -> None:
    odd = replace(TEXT, distance=b"edit distance")
    path = foreign(
        tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), (SegmentType.PROFILE, encode_domain(odd))
    )
    with VectorStore.open(path) as store:
        with pytest.raises(UnsupportedVersionError, match="way of its own"):
            store.search(MEANT[1], 1)
        with pytest.raises(UnsupportedVersionError, match="way of its own"):
            store.search(MEANT[1], 1, exact=True)
        assert np.allclose(store.get(IDS), MEANT)


def test_a_profile_that_the_root_does_not_name(tmp_path: Path) -> None:
    path = foreign(
        tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), (SegmentType.PROFILE, encode_domain(TEXT)),
        profile_id=4,
    )  # fmt: skip
    with VectorStore.open(path) as store, pytest.raises(CorruptLayoutError, match="another profile"):
        store.search(MEANT[1], 1)


def test_signatures_of_a_profile(tmp_path: Path) -> None:
    key = SigningKey.generate()
    path = foreign(
        tmp_path / "p.rvf", vec(MEANT.astype(np.float32), "f32"), profile_id=1,
        sign=lambda header: key.sign(segment_message(header, "rvdna")),
    )  # fmt: skip
    with VectorStore.open(path) as store:
        found = store.verify([key.public])
        assert [damage.part.split()[0] for damage in found] == [layout.segment_name(SegmentType.MANIFEST)]
