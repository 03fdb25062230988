"""Every payload: what is written is read back, and damaged bytes give a FormatError or the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples, thinned
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    UnsupportedVersionError,
)
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
from warpdata.formats.rvf.graph import Adjacency, LayerA
from warpdata.formats.rvf.layout import (
    DIRECTORY_ENTRY,
    ENTRY_POINT,
    INDEX_HEADER,
    OVERLAY_CHAIN,
    PARTITION,
    PREFETCH_HINT,
    ROOT_POINTER,
    RUNTIME_SEGMENT,
    Flag,
    SegmentType,
)
from warpdata.formats.rvf.meta import DELETED, DeleteRange, MetaPayload, OtherEntry, UpdateField
from warpdata.formats.rvf.signing import PublicKey
from warpdata.formats.rvf.vec import VecBlock
from warpdata.formats.rvf.writer import pack_lock, unpack_lock

RNG = np.random.default_rng(5)
IDS = st.lists(st.integers(0, 2**63 - 1), max_size=300, unique=True).map(
    lambda v: np.array(sorted(v), np.uint64)
)


def sample_rows(dtype: str, count: int, dim: int) -> Any:
    values = {
        "f32": RNG.normal(size=(count, dim)), "f16": RNG.normal(size=(count, dim)),
        "bf16": RNG.integers(-100, 100, (count, dim)), "i8": RNG.integers(-128, 128, (count, dim)),
        "u8": RNG.integers(0, 256, (count, dim)), "i4": RNG.integers(-8, 8, (count, dim)),
        "binary": RNG.integers(0, 2, (count, dim)),
    }[dtype]  # fmt: skip
    return values.astype(np.float32)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i8", "u8", "i4", "binary"])
@pytest.mark.parametrize(("count", "dim"), [(1, 1), (7, 3), (130, 16), (1024, 9), (0, 4)])
def test_vectors_of_each_dtype_come_back(dtype: str, count: int, dim: int) -> None:
    values = sample_rows(dtype, count, dim)
    rows = vec.pack_rows(values, dtype)
    ids = np.arange(count, dtype=np.uint64) * 3
    (block,) = vec.decode_vec(vec.encode_vec([VecBlock(rows, ids, dim, dtype, 2)]))
    assert (block.dtype, block.dim, block.tier) == (dtype, dim, 2)
    assert np.array_equal(block.ids, ids)
    expected = values.astype(np.float16).astype(np.float32) if dtype == "f16" else values
    assert np.array_equal(vec.unpack_rows(block.rows, dtype, dim), expected)
    width = vec.column_count(dtype, dim) * vec.column_dtype(dtype).itemsize
    assert rows.nbytes == count * width


@pytest.mark.parametrize("dtype", ["pq", "custom"])
def test_codes_come_back(dtype: str) -> None:
    codes = RNG.integers(0, 256, (50, 6)).astype(np.uint8)
    payload = vec.encode_vec([VecBlock(codes, np.arange(50, dtype=np.uint64), 24, dtype)])
    (block,) = vec.decode_vec(payload, code_bytes=6)
    assert np.array_equal(block.rows, codes)
    with pytest.raises(FormatError, match="QUANT"):
        vec.decode_vec(payload)


@given(IDS)
def test_id_maps_of_any_ids(ids: np.ndarray) -> None:
    rows = np.zeros((len(ids), 2), np.float32)
    (block,) = vec.decode_vec(vec.encode_vec([VecBlock(rows, ids, 2, "f32")]))
    assert np.array_equal(block.ids, ids)


def test_seed_layout_of_a_block() -> None:
    """Restart offsets are there, the first id of each group is absolute, the CRC covers columns and map."""
    ids = np.arange(300, dtype=np.uint64) + 1000
    payload = bytes(vec.encode_vec([VecBlock(np.zeros((300, 1), np.float32), ids, 1, "f32")]))
    (entry,) = vec.read_directory(payload)
    assert entry == (64, 300, 1, 0, 1)
    at = 64 + 1200
    assert layout.ID_MAP_HEAD.unpack_from(payload, at) == (1, 128, 300)
    offsets = np.frombuffer(payload[at + 7 : at + 19], "<u4").tolist()
    assert offsets == [0, 129, 258]
    group = payload[at + 19 + 129 : at + 19 + 131]
    assert group == bytes([1128 & 0x7F | 0x80, 1128 >> 7])
    assert len(payload) % 64 == 0


def adjacency(count: int, seed: int) -> Adjacency:
    rng = np.random.default_rng(seed)
    layers = rng.integers(0, 4, count)
    lists = [
        np.sort(rng.choice(count, rng.integers(0, min(count, 9)), replace=False))
        for layer in layers
        for _ in range(layer)
    ]
    sizes = np.array([len(each) for each in lists], np.int64)
    flat = np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64)
    return Adjacency(count, layers.astype(np.int64), sizes, flat)


@settings(max_examples=enough_examples(40))
@given(st.integers(0, 300), st.integers(0, 1000))
@example(250, 735)  # the last nodes have no list, and hints follow
def test_graphs_come_back(count: int, seed: int) -> None:
    made = adjacency(count, seed)
    header = INDEX_HEADER(0, layout.LAYER_C, 8, 40, count)
    payload = graph.encode_graph(header, made)
    if seed % 2 and count:
        hint = layout.COUNT_U32.pack(1) + layout.PREFETCH_HINT.pack(*PREFETCH_HINT(0, 5, 4096, 2, 1))
        payload += hint.ljust(64, b"\0")
        with pytest.raises(CorruptLayoutError, match="hints"):
            graph.decode_graph(payload[:-32])
    found = graph.decode_graph(payload)
    assert found.header == header
    for name in ("layer_counts", "sizes", "neighbors"):
        assert np.array_equal(getattr(found.adjacency, name), getattr(made, name))
    _, count_of_groups = layout.RESTART_HEAD.unpack_from(payload, 64)
    assert count_of_groups == -(-count // 64)
    assert len(payload) % 64 == 0


@given(
    st.lists(
        st.one_of(st.integers(0, 3000), st.integers(60_000, 70_000), st.integers(0, 2**48 - 1)), max_size=500
    )
)
def test_deletion_bitmaps_come_back(ids: list[int]) -> None:
    expected = np.unique(np.array(ids, np.uint64))
    assert np.array_equal(container.decode_deletions(container.encode_deletions(expected)), expected)


def test_each_container_of_a_deletion_bitmap() -> None:
    every_other = np.arange(0, 65_536, 2, dtype=np.uint64)
    full = np.arange(65_536, 131_072, dtype=np.uint64)
    loners = np.array([200_001, 200_007, 250_000], np.uint64)
    ids = np.concatenate([every_other, full, loners])
    value = container.encode_deletions(ids)
    kinds = [
        kind
        for _, kind, _ in layout.CONTAINER_ENTRY.iter_unpack(value[9 : 9 + 3 * layout.CONTAINER_ENTRY.size])
    ]
    assert kinds == [layout.CONTAINER_BITMAP, layout.CONTAINER_RUN, layout.CONTAINER_ARRAY]
    assert np.array_equal(container.decode_deletions(value), ids)
    with pytest.raises(ValueError, match=r"2\*\*48"):
        container.encode_deletions(np.array([2**48], np.uint64))


ENTRIES = st.one_of(
    st.tuples(st.integers(0, 2**60), st.integers(1, 1000)).map(lambda p: DeleteRange(p[0], p[0] + p[1])),
    st.builds(UpdateField, st.integers(0, 2**62), st.text(max_size=20), st.binary(max_size=40)),
    st.builds(OtherEntry, st.sampled_from([4, 5, 9]), st.binary(min_size=16, max_size=24)),
)


@given(st.lists(ENTRIES, max_size=20))
def test_journals_come_back(entries: list[Any]) -> None:
    found = meta.decode_journal(meta.encode_journal(entries, 7, 3))
    assert (found.epoch, found.prev_segment_id) == (7, 3)
    assert list(found.entries) == entries


@given(st.sets(st.integers(0, 50), max_size=30))
def test_deletions_cover_exactly_their_ids(ids: set[int]) -> None:
    ranges = meta.deletions(np.array(sorted(ids), np.uint64))
    every = np.arange(60, dtype=np.uint64)
    assert set(every[meta.deleted_mask(every, ranges)].tolist()) == ids


VALUES = st.one_of(
    st.text(max_size=10), st.binary(max_size=10), st.integers(-(2**63), 2**63 - 1), st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip


@given(st.dictionaries(st.integers(0, 2**63), VALUES, max_size=10), st.booleans())
def test_metadata_comes_back(values: dict[int, Any], snapshot: bool) -> None:
    schema = {kind: kind for kind in layout_types()}
    rows: dict[int, Any] = {key: {meta.type_of(value): value} for key, value in values.items()}
    rows[7] = None
    rows[8] = {"str": DELETED, "i64": None}
    payload = MetaPayload(5, None if snapshot else 4, schema, {"title": "x"}, rows)
    found = meta.decode_meta(meta.encode_meta(payload))
    assert found == payload
    assert found.is_snapshot is snapshot


def layout_types() -> list[str]:
    return list(layout.META_TYPES)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**64, -(2**63) - 1])
def test_metadata_refuses_what_it_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError):
        meta.type_of(value)
    with pytest.raises(TypeError):
        meta.type_of([1])  # type: ignore[arg-type]


def sample_layer_a() -> LayerA:
    return LayerA(
        INDEX_HEADER(0, 0, 16, 200, 9), (ENTRY_POINT(4, 2),), 2, (((4, (5, 6)), (5, ())), ((4, ()),)),
        RNG.normal(size=(3, 5)).astype(np.float16),
        graph.make_partitions([PARTITION(0, 0, 4, 2, 0), PARTITION(2, 4, 9, 2, 1)]),
    )  # fmt: skip


def test_layer_a_comes_back() -> None:
    made = sample_layer_a()
    payload, offsets = graph.encode_layer_a(made)
    found, seen = graph.decode_layer_a(payload)
    assert seen == offsets
    assert (found.header, found.entry_points, found.max_layer, found.top_layers) == (
        made.header, made.entry_points, 2, made.top_layers,
    )  # fmt: skip
    assert np.array_equal(found.centroids, made.centroids)
    assert np.array_equal(found.partitions, made.partitions)


QUANTS = [
    quant.ScalarQuant(np.array([-1, 0], np.float32), np.array([1, 2], np.float32)),
    quant.BinaryQuant(np.array([0.5, 0, 1], np.float32)),
    quant.ProductQuant(5, RNG.normal(size=(3, 8, 2)).astype(np.float32)),
    quant.ProductQuant(
        4, RNG.normal(size=(2, 4, 2)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)
    ),
]


@pytest.mark.parametrize("made", QUANTS, ids=lambda q: q.kind)
def test_quantisers_come_back(made: Any) -> None:
    found: Any = quant.decode_quant(quant.encode_quant(made))
    assert (type(found), found.dim, found.code_bytes, found.tier) == (
        type(made),
        made.dim,
        made.code_bytes,
        2,
    )
    for name in ("low", "high", "threshold", "codebook", "coarse"):
        if hasattr(made, name):
            assert np.array_equal(getattr(found, name), getattr(made, name))


def test_the_hot_entry_of_the_document() -> None:
    """384 halves with 16 neighbours: 8 + 768 + 2 + 128 = 906 bytes, padded to 960."""
    near = tuple(np.arange(16, dtype=np.uint64) for _ in range(3))
    made = access.HotSet(np.arange(3, dtype=np.uint64), np.ones((3, 384), np.float16), near, 16, "f16")
    assert len(access.encode_hot(made)) == 64 + 3 * 960


def test_sketch_comes_back_and_forgets_with_age() -> None:
    counts = access.AccessSketch()
    counts.add(np.array([3] * 200 + [9] * 10))
    found = access.decode_sketch(access.encode_sketch(counts))
    assert found.estimate(np.array([3, 9, 77])).tolist() == [200, 10, 0]
    assert found.total_accesses == 210
    found.add(np.full(300, 3))
    assert found.estimate(np.array([3])).tolist() == [255]
    found.add(np.arange(layout_decay()) % 5 + 1000)
    assert found.estimate(np.array([3]))[0] < 255


def test_sketches_of_several_blocks_and_wide_counters() -> None:
    """Header, then per block its number and its counters, each block on a 64-byte boundary."""
    counts = access.AccessSketch(8, 2, counter_bits=16)
    counts.add(np.array([3] * 400 + [9] * 10))
    assert counts.estimate(np.array([3])).tolist() == [400]
    again = access.decode_sketch(access.encode_sketch(counts))
    assert (again.counters.dtype, again.total_accesses) == (np.uint16, 410)
    assert np.array_equal(again.counters, counts.counters)
    for bits, dtype in ((8, "<u1"), (16, "<u2")):
        head = layout.SKETCH_HEADER.pack(3, 8, 2, bits, 1, 77).ljust(64, b"\0")
        values = np.arange(48).reshape(3, 2, 8).astype(dtype)
        blocks = [layout.COUNT_U32.pack(n) + values[n].tobytes() for n in range(3)]
        payload = head + b"".join(block.ljust(-(-len(block) // 64) * 64, b"\0") for block in blocks)
        found = access.decode_sketch(payload)
        assert np.array_equal(found.counters, values.sum(axis=0))
        assert found.total_accesses == 77
        with pytest.raises(FormatError):
            access.decode_sketch(payload[: 64 + 128])


def layout_decay() -> int:
    return layout.SKETCH_DECAY_EVERY


def test_keys_and_locks_come_back() -> None:
    key = PublicKey("ed25519", bytes(range(32)), 5, 9)
    assert signing.decode_crypto(signing.encode_crypto(key)) == key
    owner = (123, "host", 456, bytes(range(16)))
    assert unpack_lock(pack_lock(*owner))[1:5] == owner


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("checksum", ["crc32c", "xxh3_128", "shake256"])
def test_segments_come_back(compression: str, checksum: str) -> None:
    payload = b"abc" * 500
    options = SegmentOptions(checksum=checksum, compression=compression, timestamp_ns=5)
    header, stored = container.build(SegmentType.META, 9, payload, options)
    assert (len(stored) + header.alignment_pad) % 64 == 0
    packed = container.pack_header(header) + bytes(stored)
    again = container.unpack_header(packed)
    assert again == header
    assert container.checked_payload(again, packed[64 : 64 + again.payload_length]) == payload
    assert bool(again.flags & Flag.COMPRESSED) is (compression != "none")


def test_directory_and_chain_come_back() -> None:
    entry = DIRECTORY_ENTRY(7, 1, 2, 8, 0, 4096, 100, 50, 0, 2, 3, bytes(range(16)))
    chain = OVERLAY_CHAIN(3, 0, 128, 4, bytes(16))
    tlvs = container.unpack_tlvs(
        container.pack_tlvs([container.pack_chain(chain), container.pack_directory([entry]), (999, b"kept")])
    )
    assert container.unpack_chain(tlvs[0][1]) == chain
    assert container.unpack_directory(tlvs[1][1]) == [entry]
    assert tlvs[2] == (999, b"kept")


def test_root_comes_back() -> None:
    root = Root(
        8,
        1,
        99,
        4,
        1,
        2,
        64,
        200,
        3,
        layout.ROOT_SIGNED,
        ROOT_POINTER(1, 2, 3),
        signature=SignatureFooter("ed25519", b"\1" * 64),
    )
    assert container.unpack_root(container.pack_root(root)) == root
    with pytest.raises(LimitExceededError, match="does not fit"):
        container.pack_root(Root(signature=SignatureFooter("slh-dsa-128s", bytes(7856))))


def test_header_refusals() -> None:
    header, _ = container.build(SegmentType.VEC, 1, b"x")
    for change, error in [
        ({"magic": b"XXXX"}, FormatError), ({"version": 2}, UnsupportedVersionError),
        ({"reserved_0": 1}, FormatError), ({"flags": 0x8000}, FormatError), ({"compression": 2}, FormatError),
        ({"payload_length": 1 << 40}, LimitExceededError), ({"seg_type": 0}, FormatError),
    ]:  # fmt: skip
        with pytest.raises(error):
            container.unpack_header(container.pack_header(header._replace(**change)))
    with pytest.raises(ChecksumError):
        container.checked_payload(header, b"y")


RUNTIME = runtime.RuntimeManifest(
    2, 8, 5, 0, "cosine", (RUNTIME_SEGMENT(1, 0, 10, 1),), np.array([3, 9], np.uint64),
    layout.FILE_IDENTITY(b"1" * 16, b"2" * 16, b"3" * 32, 4),
)  # fmt: skip


def test_runtime_manifest_comes_back() -> None:
    found = runtime.decode_runtime_manifest(runtime.encode_runtime_manifest(RUNTIME))
    assert (found.epoch, found.dimension, found.metric, found.segments, found.identity) == (
        2, 8, "cosine", RUNTIME.segments, RUNTIME.identity,
    )  # fmt: skip
    assert found.deleted.tolist() == [3, 9]


def small_graph() -> bytes:
    return graph.encode_graph(INDEX_HEADER(0, 2, 4, 40, 70), adjacency(70, 3))


THREE = np.arange(3, dtype=np.uint64)
HOT = access.HotSet(THREE[:2], np.ones((2, 3), np.float16), (THREE[1:2], THREE[:1]), 4, "f16")
JOURNAL = [DeleteRange(4, 5), UpdateField(5, "k", b"\0"), DeleteRange(1, 9)]

PAYLOADS: list[tuple[str, bytes, Callable[[bytes], Any]]] = [
    ("vec", bytes(vec.encode_vec([VecBlock(np.ones((3, 2), np.float32), THREE, 2, "f32")])), vec.decode_vec),
    ("graph", small_graph(), graph.decode_graph),
    ("layer_a", graph.encode_layer_a(sample_layer_a())[0], graph.decode_layer_a),
    ("hot", access.encode_hot(HOT), access.decode_hot),
    ("quant", quant.encode_quant(QUANTS[3]), quant.decode_quant),
    ("sketch", access.encode_sketch(access.AccessSketch(8, 2)), access.decode_sketch),
    ("journal", meta.encode_journal(JOURNAL, 1), meta.decode_journal),
    ("meta", meta.encode_meta(MetaPayload(1, None, {"a": "i64"}, {}, {4: {"a": 5}})), meta.decode_meta),
    ("crypto", signing.encode_crypto(PublicKey("ed25519", bytes(32))), signing.decode_crypto),
    ("bitmap", container.encode_deletions(np.array([1, 5, 70_000], np.uint64)), container.decode_deletions),
    ("tlv", container.pack_tlvs([(1, b"abc"), (8, b"")]), container.unpack_tlvs),
    ("runtime", runtime.encode_runtime_manifest(RUNTIME), runtime.decode_runtime_manifest),
]  # fmt: skip


@pytest.mark.parametrize(("name", "payload", "decode"), PAYLOADS, ids=[p[0] for p in PAYLOADS])
def test_cut_and_flipped_payloads_never_raise_anything_else(
    name: str, payload: bytes, decode: Callable[[bytes], Any]
) -> None:
    """Hashes guard payloads in a file; here they are bare, and the decoders alone must stay safe."""
    decode(payload)
    for end in thinned(range(len(payload)), 250):
        try:
            decode(payload[:end])
        except FormatError:
            pass
    data = bytearray(payload)
    for bit in thinned(range(len(payload) * 8), 400):
        data[bit // 8] ^= 1 << bit % 8
        try:
            decode(bytes(data))
        except FormatError:
            pass
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(("name", "payload", "decode"), PAYLOADS, ids=[p[0] for p in PAYLOADS])
@settings(max_examples=enough_examples(60))
@given(noise=st.binary(max_size=300), at=st.integers(0, 400))
def test_noise_in_payloads(
    name: str, payload: bytes, decode: Callable[[bytes], Any], noise: bytes, at: int
) -> None:
    for data in (noise, payload[:at] + noise + payload[at + len(noise) :]):
        try:
            decode(data)
        except FormatError:
            pass
