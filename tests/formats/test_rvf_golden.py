"""Bytes of the reference encoders and files of shipped programs, read field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import shared_golden
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.formats.rvf import (
    access,
    container,
    graph,
    layout,
    meta,
    quant,
    runtime,
    signing,
    vec,
)
from warpdata.formats.rvf.container import Root, SegmentOptions, SignatureFooter
from warpdata.formats.rvf.layout import FILE_IDENTITY, SegmentType, Tag
from warpdata.formats.rvf.reader import open_snapshot, read_segment
from warpdata.formats.rvf.signing import SigningKey
from warpdata.formats.rvf.vec import VecBlock
from warpdata.formats.rvf.writer import pack_lock, unpack_lock
from warpdata.search.store import VectorStore


def wire(name: str) -> bytes:
    return shared_golden("rvf", "wire", name).read_bytes()


def test_vec_payload_of_the_reference_encoder() -> None:
    first, second = vec.decode_vec(wire("vec_payload.bin"))
    for block, base, ids in (
        (first, 0.5, [10, 20, 30, 40]),
        (second, 0.25, [1000 + 3 * i for i in range(200)]),
    ):
        expected = base + 1000 * np.arange(3)[None] + np.arange(len(ids))[:, None]
        assert (block.dtype, block.dim, block.tier) == ("f32", 3, 1)
        assert block.ids.tolist() == ids
        assert np.array_equal(block.rows, expected.astype(np.float32))


@pytest.mark.parametrize("absolute", [False, True])
def test_index_payload_of_the_reference_encoders(absolute: bool) -> None:
    data = wire("index_rvfindex_payload.bin" if absolute else "index_wire_payload.bin")
    header = graph.unpack_index_header(data)
    assert header == (0, 2, 16, 200, 5)
    found = graph.decode_graph(data).adjacency
    assert found.layer_counts.tolist() == [1, 1, 2, 1, 1]
    lists = np.split(found.neighbors, np.cumsum(found.sizes)[:-1])
    expected = [[j for j in range(5) if j != i] for i in range(5)]
    assert [each.tolist() for each in lists] == [*expected[:3], [4], *expected[3:]]


def test_hot_payload() -> None:
    data = wire("hot_payload.bin")
    found = access.decode_hot(data)
    assert (found.ids.tolist(), found.dtype, found.neighbor_m) == ([10, 20], "f16", 16)
    assert found.vectors.tolist() == [[1, 2, 3, 4], [-1, -2, -3, -4]]
    assert [n.tolist() for n in found.neighbors] == [[20, 30], [10]]
    assert access.encode_hot(found) == data


def test_quant_payloads() -> None:
    scalar = quant.decode_quant(wire("quant_scalar_payload.bin"))
    assert isinstance(scalar, quant.ScalarQuant)
    assert (scalar.low.tolist(), scalar.high.tolist(), scalar.tier) == ([-1, -2, -0.5], [1, 2, 0.5], 0)
    product = quant.decode_quant(wire("quant_pq_payload.bin"))
    assert isinstance(product, quant.ProductQuant)
    assert (product.dim, product.tier) == (4, 1)
    assert product.codebook.tolist() == np.arange(8).reshape(2, 2, 2).tolist()
    for found, name in ((scalar, "quant_scalar_payload.bin"), (product, "quant_pq_payload.bin")):
        ours, theirs = quant.encode_quant(found), wire(name)
        assert ours[: len(theirs)] == theirs
        assert not any(ours[len(theirs) :])


def test_sketch_payload() -> None:
    found = access.decode_sketch(wire("sketch_payload.bin"))
    assert found.total_accesses == 6
    assert found.estimate(np.array([42, 7])).tolist() == [5, 1]
    again = access.AccessSketch(16, 4)
    again.add(np.array([42] * 5 + [7]))
    assert np.array_equal(again.counters, found.counters)


@pytest.mark.parametrize("algo", [0, 1, 2])
def test_segments_of_each_checksum(algo: int) -> None:
    data = wire(f"seg_algo{algo}.bin")
    header = container.unpack_header(data)
    assert (header.seg_type, header.segment_id, header.checksum_algo) == (SegmentType.META, 77, algo)
    assert bytes(container.checked_payload(header, data[64 : 64 + header.payload_length])) == b"hello rvf"
    if algo:
        name = {1: "xxh3_128", 2: "shake256"}[algo]
        ours, stored = container.build(SegmentType.META, 77, b"hello rvf", SegmentOptions(checksum=name))
        padded = bytes(stored) + bytes(ours.alignment_pad)
        assert container.pack_header(ours) + padded == data


def test_known_hashes() -> None:
    assert container.content_hash(1, b"hello rvf").hex() == "a7d6c08fd47ba5dcd97bc155fdce6bc8"
    assert container.content_hash(2, b"hello rvf").hex() == "4da1e6f861645d99438b8c96b89abf43"
    assert container.content_hash(2, b"").hex() == "46b9dd2b0ba88d13233b3feb743eeb24"
    assert container.content_hash(0, b"123456789") == bytes.fromhex("839206e3") + bytes(12)


def test_roots() -> None:
    assert container.pack_root(Root()) == wire("level0_wire_default.bin")
    assert wire("level0_wire_default.bin")[-4:] == bytes.fromhex("FFDD1814")
    data = wire("level0_manifest_sample.bin")
    root = container.unpack_root(data)
    number = list(range(1, 0x45))
    assert root.identity == FILE_IDENTITY(
        bytes(number[:16]),
        bytes(number[16:32]),
        bytes(number[32:64]),
        int.from_bytes(bytes(number[64:]), "little"),
    )
    at = layout.ROOT_SIGNATURE_OFFSET
    assert data[at : at + 4] == bytes.fromhex("DEADBEEF")


def test_manifest_payload_is_reproduced() -> None:
    data = wire("manifest_payload.bin")
    root = container.unpack_root(data[-4096:])
    tlvs = container.unpack_tlvs(data[: root.l1_manifest_length])
    assert [tag for tag, _ in tlvs] == [Tag.SEGMENT_DIR, Tag.OVERLAY_CHAIN, Tag.PROFILE_CONFIG]
    entries = container.unpack_directory(tlvs[0][1])
    assert [layout.segment_name(e.seg_type) for e in entries] == [
        "VEC", "INDEX", "INDEX", "HOT", "QUANT", "QUANT", "SKETCH", "WITNESS",
    ]  # fmt: skip
    chain = container.unpack_chain(tlvs[1][1])
    assert (chain.epoch, chain.prev_manifest_offset, chain.prev_manifest_id) == (1, 0x1122334455667788, 5)
    assert (root.total_vector_count, root.dimension, root.epoch) == (204, 3, 7)
    packed = container.pack_tlvs([container.pack_directory(entries), container.pack_chain(chain), tlvs[2]])
    assert packed + container.pack_root(root) == data


@pytest.mark.parametrize("name", ["wire_full.rvf", "wire_full_unaligned_tail.rvf"])
def test_whole_wire_files(name: str) -> None:
    path = shared_golden("rvf", "wire", name)
    with FileRangeReader(path) as reader:
        snapshot = open_snapshot(reader)
        assert (snapshot.dialect, len(snapshot.segments)) == ("wire", 8)
        for entry in snapshot.segments:
            assert len(read_segment(reader, entry)) == entry.payload_length
    with VectorStore.open(path) as store:
        assert (len(store), store.dim, store.metric) == (204, 3, "l2")
        assert store.get([20]).tolist() == [[1.5, 1001.5, 2001.5]]
        ids, distances = store.search([1.5, 1001.5, 2001.5], k=1)
        assert (ids.tolist(), distances.tolist()) == ([20], [0.0])
        assert store.verify() == []


def test_signature_vectors() -> None:
    about = json.loads(shared_golden("rvf", "wire", "sign_vectors.json").read_text())
    key = SigningKey.from_private("ed25519", bytes.fromhex(about["private_seed"]))
    assert key.public.data.hex() == about["public_key"]
    header = container.unpack_header(bytes.fromhex(about["header_hex"]))
    assert signing.segment_message(header).hex() == about["spec_message_hex"]
    assert key.sign_segment(header).signature.hex() == about["spec_signature"]
    shipped = signing.shipped_message(header, b"hello rvf")
    assert shipped.hex() == about["upstream_message_hex"]
    footer = SignatureFooter("ed25519", bytes.fromhex(about["upstream_signature"]))
    assert container.pack_footer(footer).hex() == about["footer_upstream_hex"]
    assert signing.is_valid(key.public, shipped, footer)
    assert not signing.is_valid(key.public, shipped[:-1] + b"x", footer)


def test_lock_file_of_a_shipped_program() -> None:
    data = shared_golden("rvf", "runtime", "writer.lock.bin").read_bytes()
    owner = unpack_lock(data)
    assert (owner.hostname, owner.pid) == ("vm", 0x2157)
    assert pack_lock(*owner[1:5]) == data


def runtime_files() -> list[str]:
    from tests.conftest import SHARED_GOLDEN

    return sorted(p.stem for p in (SHARED_GOLDEN / "rvf" / "runtime").glob("*.rvf")) or ["absent"]


def expected_of(stem: str) -> tuple[Path, dict[str, Any]]:
    path = shared_golden("rvf", "runtime", f"{stem}.rvf")
    return path, json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("stem", runtime_files())
def test_runtime_files_open_whole(stem: str) -> None:
    path, about = expected_of(stem)
    with VectorStore.open(path) as store:
        assert store.dialect == "runtime"
        assert store.verify() == []
        if "dim" in about:
            assert store.dim == about["dim"]
        metric = {"inner_product": "ip"}.get(about.get("metric", ""), about.get("metric"))
        if metric in ("l2", "ip", "cosine"):
            assert store.metric == metric
        if "file_id" in about:
            root = store._content.snapshot.root
            assert root is not None
            assert root.identity.file_id.hex() == about["file_id"]


@pytest.mark.parametrize("stem", runtime_files())
def test_runtime_files_give_their_vectors(stem: str) -> None:
    path, about = expected_of(stem)
    vectors = about.get("vectors")
    if "vectors_file" in about:
        raw = shared_golden("rvf", "runtime", f"{stem}.f32").read_bytes()
        vectors = np.frombuffer(raw, "<f4").reshape(about["n"], about["dim"])
    if vectors is None:
        pytest.skip("its JSON lists no vectors")
    rule = {"3+7*i": lambda i: 3 + 7 * i, "i": lambda i: i, "0..29": lambda i: i}.get(
        about.get("ids_rule", "")
    )
    ids = about.get("ids") or [rule(i) for i in range(len(vectors))]  # type: ignore[misc]
    gone = set(about.get("deleted_requested", ()))
    live = [i for i in ids if i not in gone]
    with VectorStore.open(path) as store:
        assert store.ids.tolist() == sorted(live)
        assert len(store) == len(live)
        by_id = dict(zip(ids, vectors, strict=True))
        wanted = np.array([by_id[i] for i in live], np.float32)
        assert np.array_equal(store.get(live), wanted)
        for each in gone:
            with pytest.raises(KeyError):
                store.get([each])


def searches(about: dict[str, Any]) -> list[tuple[Any, list[dict[str, Any]]]]:
    if "query_row" in about:
        return [(about["query_row"], about["query_result"])]
    found = [(about["query"], about[name]) for name in ("query_result",) if name in about]
    if isinstance(about.get("after_reopen"), list):
        found.append((about["query"], about["after_reopen"]))
    if "query_of_deleted_vector" in about:
        found.append((about["vectors"][3], about["query_of_deleted_vector"]))
    return found


@pytest.mark.parametrize("stem", runtime_files())
@pytest.mark.parametrize("exact", [False, True])
def test_runtime_files_give_their_search_results(stem: str, exact: bool) -> None:
    path, about = expected_of(stem)
    cases = searches(about)
    if not cases:
        pytest.skip("its JSON lists no search")
    with VectorStore.open(path) as store:
        for query, results in cases:
            if isinstance(query, int):
                query = store.get([query])[0]
            ids, distances = store.search(query, k=len(results), ef=256, exact=exact)
            assert ids.tolist() == [each["id"] for each in results]
            assert distances == pytest.approx([each["distance"] for each in results], rel=1e-5, abs=1e-5)


def test_every_hash_of_every_listed_segment() -> None:
    listed = json.loads(shared_golden("rvf", "SEGMENTS.json").read_text())
    checked = 0
    for name, about in listed.items():
        with FileRangeReader(shared_golden("rvf", *name.split("/"))) as reader:
            for each in about["segments"]:
                header = container.read_header(reader, each["off"])
                assert layout.segment_name(header.seg_type) == each["type"]
                assert (header.segment_id, header.payload_length) == (each["id"], each["len"])
                start = each["off"] + 64
                payload = reader.read(start, start + header.payload_length)
                runtime = "CRC32" in each["hash"] or "zero" in each["hash"]
                assert container.hash_matches(header, payload, runtime=runtime)
                checked += 1
    assert checked > 60


def example_files() -> list[str]:
    from tests.conftest import SHARED_GOLDEN

    return sorted(p.name for p in (SHARED_GOLDEN / "rvf" / "examples").glob("*.rvf")) or ["absent"]


def walked(content: bytes) -> tuple[list[tuple[int, bytes]], dict[int, Any]]:
    """Segments back to back and the newest vector of each id, decoded here, with nothing of the package."""
    segments, rows, at = [], {}, 0
    while at < len(content):
        assert content[at : at + 4] == b"SFVR"
        kind, size = content[at + 5], int.from_bytes(content[at + 16 : at + 24], "little")
        payload = content[at + 64 : at + 64 + size]
        segments.append((kind, payload))
        if kind == 1:
            dim, count = int.from_bytes(payload[:2], "little"), int.from_bytes(payload[2:6], "little")
            table = np.frombuffer(payload[6:], np.dtype([("id", "<u8"), ("v", "<f4", (dim,))]), count)
            rows |= {int(row["id"]): row["v"] for row in table}
        at += 64 + size
    assert at == len(content)
    return segments, rows


@pytest.mark.parametrize("name", example_files())
def test_examples_hold_what_their_bytes_say(name: str, tmp_path: Path) -> None:
    path = shared_golden("rvf", "examples", name)
    segments, rows = walked(path.read_bytes())
    newest = [payload for kind, payload in segments if kind == 5][-1]
    epoch, dim = int.from_bytes(newest[:4], "little"), int.from_bytes(newest[4:6], "little")
    ids = sorted(rows)
    wanted = np.stack([rows[each] for each in ids])
    with VectorStore.open(path) as store:
        assert (store.dialect, store.dim, store.metric, len(store)) == ("runtime", dim, "l2", len(ids))
        assert store.stats()["epoch"] == epoch
        assert int.from_bytes(newest[6:14], "little") == len(ids)
        assert store.ids.tolist() == ids
        assert np.array_equal(store.get(ids), wanted)
        assert store.verify() == []
        listed = {kind for kind, _ in segments}
        assert {s["type"] for s in store.segments()} <= {layout.segment_name(kind) for kind in listed}
        root = store._content.snapshot.root
        assert root is not None
        assert root.identity.file_id == newest[-68:-52]
        for row in (0, len(ids) - 1):
            found, away = store.search(wanted[row], 3)
            true = ((wanted.astype(np.float64) - wanted[row]) ** 2).sum(axis=1)
            assert true[ids.index(found[0])] == 0
            assert away == pytest.approx(np.sort(true)[:3], rel=1e-4, abs=1e-5)
        store.export(tmp_path / "wire.rvf")
    with VectorStore.open(tmp_path / "wire.rvf") as copy:
        assert np.array_equal(copy.get(ids), wanted)
        kept = [s["type"] for s in copy.segments()]
        assert all(layout.segment_name(kind) in kept for kind in listed if kind in (0x0E, 0x0F))


def test_an_example_names_its_parent() -> None:
    identities = []
    for name in ("lineage_parent.rvf", "lineage_child.rvf"):
        with VectorStore.open(shared_golden("rvf", "examples", name)) as store:
            root = store._content.snapshot.root
            assert root is not None
            identities.append(root.identity)
    parent, child = identities
    assert (child.parent_id, child.lineage_depth) == (parent.file_id, 1)
    assert parent.lineage_depth == 0


def test_runtime_journal_is_packed() -> None:
    path, _ = expected_of("node_d8_deleted")
    with FileRangeReader(path) as reader:
        snapshot = open_snapshot(reader)
        (entry,) = snapshot.of_type(SegmentType.JOURNAL)
        found = meta.decode_journal(read_segment(reader, entry, runtime=True))
    assert [e.start for e in found.entries if isinstance(e, meta.DeleteRange)] == [3, 7, 49, 999]


def test_runtime_witness_fold() -> None:
    path, _ = expected_of("node_d8_deleted")
    with FileRangeReader(path) as reader:
        snapshot = open_snapshot(reader)
        first, second = (
            bytes(read_segment(reader, e, runtime=True)) for e in snapshot.of_type(SegmentType.WITNESS)
        )
    assert second[-32:] == runtime.runtime_fold(first)


def test_reference_payload_is_what_we_write_too() -> None:
    """Our encoder differs from the reference in the restart offsets alone: blocks decode to the same."""
    blocks = vec.decode_vec(wire("vec_payload.bin"))
    ours = vec.encode_vec(
        [VecBlock(np.ascontiguousarray(b.rows), b.ids, b.dim, b.dtype, b.tier) for b in blocks]
    )
    for mine, theirs in zip(vec.decode_vec(ours), blocks, strict=True):
        assert np.array_equal(mine.rows, theirs.rows)
        assert np.array_equal(mine.ids, theirs.ids)
