"""Files whose every hash is right and of which one statement is false: each is refused where it is met, by name.

`test_hostile.py` changes bytes at random; this is the list of what they can hit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search.forging import Part, Parts, with_small_manifest
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import ChecksumError, CorruptLayoutError, FormatError, LimitExceededError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import ENTRY_POINT, SegmentType, Tag
from warpdata.formats.rvf.meta import (
    DeleteRange,
    MetaPayload,
    UpdateField,
    encode_journal,
    encode_meta,
    pack_value,
    type_of,
)
from warpdata.formats.rvf.quant import ProductQuant, ScalarQuant, decode_quant, encode_quant
from warpdata.formats.rvf.vec import (
    IdDirectory,
    VecBlock,
    decode_id_directory,
    encode_id_directory,
    encode_vec,
)
from warpdata.search.file.metadata import encode_records
from warpdata.search.store import VectorStore

ROWS, DIM, M = 240, 16, 4


def vectors() -> Any:
    rng = np.random.default_rng(3)
    centers = 4 * rng.normal(size=(12, DIM))
    return (centers[np.arange(ROWS) % 12] + 0.3 * rng.normal(size=(ROWS, DIM))).astype(np.float32)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A graph with all its layers, codes beside the vectors, an id directory, hot vectors."""
    path = tmp_path_factory.mktemp("forged") / "h.rvf"
    x = vectors()
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(x, metadata={"n": range(ROWS)})
        store.build_index("hnsw", m=M, ef_construction=20)
        for _ in range(300):
            store.search(x[3], 5)
        store.quantize("residual_pq")
    return path.read_bytes()


# -- what is done with a file ----------------------------------------------------------------------------


def first(store: VectorStore) -> None:
    """The first query looks into partitions, which are chosen by codes."""
    store.search(vectors()[3], 5)
    assert store.stats()["queries_from_parts"] == 1


def second(store: VectorStore) -> None:
    """From the second query on layer B and the hot vectors are looked at."""
    first(store)
    store.search(vectors()[3], 5)


def filtered(store: VectorStore) -> None:
    """A query with a filter goes to the blocks that the id directory names."""
    found, _ = store.search(vectors()[3], 5, where=[3, 15, 27])
    assert sorted(found.tolist()) == [3, 15, 27]


def one(store: VectorStore) -> None:
    """One vector is read from the block that the id directory names."""
    assert np.array_equal(store.get([3]), vectors()[3:4])


def warm(store: VectorStore) -> None:
    """Everything is read, and the graph is walked."""
    store.warm()
    store.search(vectors()[3], 5)


def metadata(store: VectorStore) -> None:
    assert store.metadata([3]) == [{"n": 3}]


USES = (first, second, filtered, one, warm, metadata)

# -- what is false ---------------------------------------------------------------------------------------

Forge = Callable[[Parts], None]


def rows_of(parts: Parts) -> Part:
    return parts.kind(SegmentType.VEC)[0]


def codes_of(parts: Parts) -> Part:
    return parts.kind(SegmentType.VEC)[1]


def dictionary(change: Callable[[ProductQuant], Any]) -> Forge:
    def forge(parts: Parts) -> None:
        part = parts.one(SegmentType.QUANT)
        found = decode_quant(part.payload)
        assert isinstance(found, ProductQuant)
        part.payload = encode_quant(change(found))

    return forge


def no_dictionary(parts: Parts) -> None:
    parts.segments.remove(parts.one(SegmentType.QUANT))


def rows_that_are_codes(parts: Parts) -> None:
    """The rows are codes, and the dictionary they are codes of is not that of the profile."""
    parts.profile(codes=None)
    codes = bytes(np.arange(16, dtype=np.uint8))
    change = {"rows": np.frombuffer(codes, np.uint8)[None], "dtype": "pq"}
    parts.blocks(rows_of(parts), lambda _, b: replace(b, **change, ids=b.ids[:1]))


def codes_of_another_type(parts: Parts) -> None:
    parts.blocks(
        codes_of(parts), lambda _, b: VecBlock(np.zeros((len(b.ids), DIM), np.float32), b.ids, DIM, "f32")
    )


def blocks_of_another_dimension(parts: Parts) -> None:
    parts.blocks(rows_of(parts), lambda _, b: replace(b, rows=b.rows[:, :-1], dim=DIM - 1))


def empty_blocks(parts: Parts) -> None:
    parts.blocks(rows_of(parts), lambda _, b: replace(b, rows=b.rows[:0], ids=b.ids[:0]))


def ids_from(start: int) -> Forge:
    def forge(parts: Parts) -> None:
        parts.blocks(rows_of(parts), lambda _, b: replace(b, ids=b.ids + np.uint64(start)))

    return forge


def id_directory(change: Callable[[IdDirectory], IdDirectory]) -> Forge:
    def forge(parts: Parts) -> None:
        part = parts.one(SegmentType.IDS)
        part.payload = encode_id_directory(change(decode_id_directory(part.payload)))

    return forge


def turned(directory: IdDirectory) -> IdDirectory:
    return replace(directory, blocks=(directory.blocks + 1) % directory.block_count)


def blocks_without_end(parts: Parts) -> None:
    """The directory and the id directory agree on four thousand million blocks."""
    rows_of(parts).entry = rows_of(parts).entry._replace(block_count=2**32 - 1)
    id_directory(lambda ids: replace(ids, block_count=2**32 - 1))(parts)


def layers(change: Callable[[bytes], bytes]) -> Forge:
    return lambda parts: parts.record(Tag.INDEX_LAYERS, change)


def without_layer(number: int) -> Forge:
    size = layout.LAYER_ENTRY.size
    start = layout.LAYER_BITS.size
    return layers(
        lambda value: (
            value[:start]
            + b"".join(value[at : at + size] for at in range(start, len(value), size) if value[at] != number)
        )
    )


def root(change: Callable[[Any], Any]) -> Forge:
    def forge(parts: Parts) -> None:
        parts.root = change(parts.root)

    return forge


def covers(count: int) -> Forge:
    """Layer A covers as many rows as it says, which are not as many as there are."""

    def forge(parts: Parts) -> None:
        parts.layer_a(header={"node_count": count})
        parts.partitions(-1, id_end=count)

    return forge


def partition(cell: int, **fields: int) -> Forge:
    return lambda parts: parts.partitions(cell, **fields)


def both(*forges: Forge) -> Forge:
    def forge(parts: Parts) -> None:
        for each in forges:
            each(parts)

    return forge


def graph(layer: int, **header: int) -> Forge:
    return lambda parts: parts.graph(layer, header)


def graph_of_fewer(layer: int, count: int = 30) -> Forge:
    def forge(parts: Parts) -> None:
        few = np.ones(count, np.int64)
        parts.graph(
            layer, {"node_count": count}, node_count=count, layer_counts=few, sizes=0 * few, neighbors=few[:0]
        )

    return forge


def node_without_layers(parts: Parts) -> None:
    lists = parts.lists(2)
    alone = int(np.flatnonzero(lists.layer_counts == 1)[0])
    at = int(lists.layer_counts[:alone].sum())
    gone = np.arange(lists.starts[at], lists.starts[at] + lists.sizes[at])
    counts = lists.layer_counts.copy()
    counts[alone] = 0
    parts.graph(
        2, layer_counts=counts, sizes=np.delete(lists.sizes, at), neighbors=np.delete(lists.neighbors, gone)
    )


def neighbour_below(parts: Parts) -> None:
    """A list of an upper level names a node that is only on the ground."""
    lists = parts.lists(2)
    high = int(np.flatnonzero(lists.layer_counts > 1)[0])
    at = int(lists.layer_counts[:high].sum()) + 1
    found = lists.neighbors.copy()
    found[lists.starts[at] : lists.starts[at] + lists.sizes[at]] = np.flatnonzero(lists.layer_counts == 1)[0]
    parts.graph(2, neighbors=found)


def entry(node: int, layer: int = 0) -> Forge:
    return lambda parts: parts.layer_a(entry_points=(ENTRY_POINT(node, layer),))


def deleted(start: int, end: int) -> Forge:
    def forge(parts: Parts) -> None:
        parts.add(SegmentType.JOURNAL, encode_journal([DeleteRange(start, end)], 9))

    return forge


def old_metadata(parts: Parts, *changes: MetaPayload) -> None:
    """Metadata as the first releases wrote it, and changes behind it."""
    whole = MetaPayload(1, None, {"n": "i64"}, {}, {n: {"n": n} for n in range(ROWS)})
    parts.one(SegmentType.META).payload = encode_meta(whole)
    for change in changes:
        parts.add(SegmentType.META, encode_meta(change))


def change_of_metadata(**fields: Any) -> Forge:
    change: dict[str, Any] = {"generation": 2, "base_generation": 1, "schema": {}, **fields}
    return lambda parts: old_metadata(parts, MetaPayload(**change))


def float_among_integers(parts: Parts) -> None:
    """One value of another type, and the hash that goes with it."""
    payload = bytearray(encode_meta(MetaPayload(1, None, {"n": "f64"}, {}, {3: {"n": 1.5}})))
    payload[layout.META_HEADER.size + 2] = layout.META_TYPES["i64"]
    payload[-32:] = hashlib.sha256(payload[: -32 - len(layout.META_END)]).digest()
    parts.one(SegmentType.META).payload = bytes(payload)


def updated(name: str, value: Any) -> Forge:
    def forge(parts: Parts) -> None:
        old_metadata(parts)
        change = UpdateField(3, name, pack_value(value, type_of(value)))
        parts.add(SegmentType.JOURNAL, encode_journal([change], 9))

    return forge


def columns(change: Callable[[bytearray, Any], None]) -> Forge:
    """Change the columns of the metadata, with a head that has its checksum."""

    def forge(parts: Parts) -> None:
        part = parts.one(SegmentType.META)
        payload = bytearray(part.payload)
        change(payload, layout.COLUMNS_HEAD.unpack_from(payload))
        head = layout.COLUMNS_HEAD.unpack_from(payload)
        pieces = head.column_count * -(-head.row_count // max(1, head.chunk_rows)) * layout.COLUMN_PIECE.size
        start = layout.COLUMNS_HEAD.size
        covered = payload[: start - 4] + payload[start : start + head.schema_bytes + head.id_bytes + pieces]
        payload[start - 4 : start] = crc32c(bytes(covered)).to_bytes(4, "little")
        part.payload = bytes(payload)

    return forge


def put(offset: Callable[[Any], int], value: int, size: int) -> Forge:
    def change(payload: bytearray, head: Any) -> None:
        payload[offset(head) : offset(head) + size] = value.to_bytes(size, "little")

    return columns(change)


def _ids_at(head: Any) -> int:
    return int(layout.COLUMNS_HEAD.size + head.schema_bytes)


def _piece_at(head: Any) -> int:
    return int(_ids_at(head) + head.id_bytes)


def another_type_of_column(parts: Parts) -> None:
    parts.add(SegmentType.META, encode_records(np.array([3], np.uint64), [{"n": "x"}], {"n": "str"}, {}))


def profile(**fields: Any) -> Forge:
    return lambda parts: parts.profile(**fields)


CORRUPT, LIMIT = CorruptLayoutError, LimitExceededError
Use = Callable[[VectorStore], None]


def no_restart_points(parts: Parts) -> None:
    part = parts.index(2)
    head = layout.RESTART_HEAD.pack(0, 0)
    part.payload = part.payload[: layout.ALIGNMENT] + head + part.payload[layout.ALIGNMENT + len(head) :]


FORGERIES: dict[str, tuple[Forge, Use, type[FormatError], str]] = {
    # codes and their dictionary
    "a dictionary of another kind": (
        dictionary(lambda _: ScalarQuant(np.zeros(DIM, np.float32), np.ones(DIM, np.float32))),
        first, CORRUPT, "the quantiser does not fit the store",
    ),
    "a dictionary of fewer dimensions": (
        dictionary(lambda q: replace(q, dim=DIM - 1, coarse=q.coarse[:, :-1])),
        one, CORRUPT, "the quantiser does not fit the store",
    ),
    "no dictionary of rows": (rows_that_are_codes, warm, CORRUPT, "need a QUANT segment"),
    # rows
    "blocks of another dimension": (blocks_of_another_dimension, first, CORRUPT, "a block of 15 dimensions in a"),
    "blocks of another dimension, all": (blocks_of_another_dimension, warm, CORRUPT, "a block of 15 dimensions in a"),
    "empty blocks in partitions": (empty_blocks, first, CORRUPT, "a partition and its block differ in size"),
    "empty blocks in the id directory": (empty_blocks, one, CORRUPT, "a partition and its block differ in size"),
    "empty blocks in the graph": (empty_blocks, warm, CORRUPT, "the partitions do not fit their vectors"),
    "ids that would be negative": (ids_from(2**63), warm, LIMIT, "ids are below 2"),
    "ids that would be negative, in parts": (ids_from(2**63), first, LIMIT, "ids are below 2"),
    "a deletion behind all ids": (deleted(2**64 - 1, 2**64), one, LIMIT, "ids are below 2"),
    # the id directory
    "an id directory that is not there": (profile(id_segment=99), one, CORRUPT, "the id directory is missing"),
    "an id directory of more blocks": (
        id_directory(lambda d: replace(d, block_count=d.block_count + 1)), one, CORRUPT, "does not fit the blocks",
    ),
    "an id directory of blocks without end": (blocks_without_end, one, CORRUPT, "does not fit the blocks"),
    "an id directory that names other blocks": (
        id_directory(turned), one, CORRUPT, "the id directory does not fit the blocks",
    ),
    "an id directory that hides rows from a filter": (
        id_directory(turned), filtered, CORRUPT, "the id directory does not fit the blocks",
    ),
    "an id directory of ids that would be negative": (
        id_directory(lambda d: replace(d, ids=d.ids + np.uint64(2**63))), one, LIMIT, "ids are below 2",
    ),
    # layers
    "a layer that is not there": (
        layers(lambda v: v[:16] + (99).to_bytes(8, "little") + v[24:]), first, CORRUPT, "a layer of the index is",
    ),
    "half a layer": (layers(lambda v: v[:-1]), first, CORRUPT, "the layer record of the index is damaged"),
    "a layer record without a head": (layers(lambda v: v[:3]), first, CORRUPT, "the layer record of the index is"),
    "a root that points beside the centroids": (
        root(lambda r: replace(r, centroid=r.centroid._replace(block_offset=r.centroid.block_offset + 64))),
        first, CORRUPT, "points beside the centroids",
    ),
    "a root that counts too many vectors": (
        root(lambda r: replace(r, total_vector_count=2**64 - 1)), first, CORRUPT, "more than there are bytes of them",
    ),
    "centroids of fewer dimensions": (
        lambda p: p.layer_a(centroids=np.zeros((20, DIM // 2), np.float16)), first, CORRUPT, "the centroids do not fit",
    ),
    # partitions
    "a partition in no segment": (partition(2, segment_ref=99), first, CORRUPT, "a block of a segment that does not"),
    "a partition in no block": (partition(2, block_ref=99), first, CORRUPT, "a block that does not exist"),
    "a partition in no block, by a filter": (
        partition(2, block_ref=99), filtered, CORRUPT, "a partition names a block that does not exist",
    ),
    "a partition that overlaps another": (partition(2, id_end=200), first, CORRUPT, "the partition map contradicts"),
    "a partition of a centroid that is none": (
        partition(2, centroid_id=99), first, CORRUPT, "the partition map contradicts itself",
    ),
    "a partition of fewer than no rows": (
        both(partition(1, id_end=0), partition(2, id_start=0)),
        first, CORRUPT, "the partition map contradicts itself",
    ),
    "no partitions": (
        lambda p: p.layer_a(partitions=p.map()[:0], header={"node_count": 0}), first, CORRUPT, "the partition map",
    ),
    "partitions of more rows": (covers(ROWS + 1), first, CORRUPT, "a partition and its block differ in size"),
    "partitions of more rows beside a graph": (covers(ROWS + 1), warm, CORRUPT, "the partitions do not fit their"),
    "partitions of more rows and no graph": (
        both(without_layer(2), covers(ROWS + 1)), warm, CORRUPT, "the partitions do not fit their vectors",
    ),
    # the graph
    "a graph of fewer rows": (graph_of_fewer(2), warm, CORRUPT, "the graph does not fit its vectors"),
    "a graph of no rows": (
        both(graph_of_fewer(2, 0), profile(row_segments=[], code_segments=[])), warm, CORRUPT, "does not fit",
    ),
    "a graph without an entry": (
        lambda p: p.layer_a(entry_points=()), warm, CORRUPT, "the graph has no entry point",
    ),
    "an entry behind the graph": (entry(ROWS), warm, CORRUPT, "not on its top level"),
    "an entry below the top": (entry(0, 9), warm, CORRUPT, "the entry point of the graph is not on its top level"),
    "a graph too wide": (graph(2, m=1025), warm, LIMIT, "a graph with 1025 neighbours per node"),
    "a graph too narrow": (graph(2, m=1), warm, CORRUPT, "more neighbours than fit"),
    "a graph without width": (graph(2, m=0), warm, CORRUPT, "a node of the graph has no layer"),
    "a node without a layer": (node_without_layers, warm, CORRUPT, "a node of the graph has no layer"),
    "a neighbour below": (neighbour_below, warm, CORRUPT, "a neighbour of the graph is not on its level"),
    "no restart points": (no_restart_points, warm, CORRUPT, "restart points do not cover the nodes"),
    # the profile and the metadata
    "a profile that is no JSON": (
        lambda p: p.record(Tag.PROFILE_CONFIG, lambda _: b"{"), one, CORRUPT, "not valid JSON",
    ),
    "a metric that is none": (profile(metric="cosin"), one, CORRUPT, "metric is one of .*Did you mean 'cosine'"),
    "a dtype that is none": (profile(dtype="f33"), one, CORRUPT, "dtype is one of .*Did you mean 'f32'"),
    "an index of an unknown kind": (profile(index={"kind": "tree"}), one, CORRUPT, "kind of an index is one of"),
    "an index of half a neighbour": (profile(index={"kind": "hnsw", "m": 4.5}), one, CORRUPT, "not float"),
    "an index of one neighbour": (profile(index={"kind": "hnsw", "m": 1}), one, CORRUPT, "2 <= m <= 256"),
    "codes of an unknown kind": (profile(codes={"kind": "tree"}), one, CORRUPT, "kind of a quantisation is one of"),
    "codes of no kind": (profile(codes={"kind": []}), one, CORRUPT, "kind of a quantisation is one of"),
    "codes beside no word": (profile(codes={"kind": "pq", "keep_full": "no"}), one, CORRUPT, "keep_full is True or"),
    "codes of half a byte": (profile(codes={"kind": "pq", "code_bytes": 0.5}), one, CORRUPT, "not float"),
    "a plan with a field that is none": (profile(codes={"king": "pq"}), one, CORRUPT, "unexpected keyword argument"),
    "codes of some rows": (profile(code_segments=[3, 4]), first, CORRUPT, "some rows have codes and others"),
    "segments that are no list": (profile(row_segments=3), one, CORRUPT, "not iterable"),
    "ids that go on below zero": (profile(next_id=-5), one, CORRUPT, "the next id is -5"),
    "a metadata change out of turn": (
        change_of_metadata(base_generation=99), metadata, CORRUPT, "a metadata change does not follow the one before",
    ),
    "a metadata value of another type": (float_among_integers, metadata, CORRUPT, "a value of 'n' contradicts the"),
    "a metadata update of another type": (updated("n", "text"), metadata, CORRUPT, "'n' holds i64, not str"),
    "a metadata field of two types": (change_of_metadata(schema={"n": "str"}), metadata, CORRUPT, "'n' has two types"),
    "a column of two types": (another_type_of_column, metadata, CORRUPT, "'n' has two types"),
    "columns of a later version": (put(lambda _: 8, 9, 2), metadata, CORRUPT, "unknown layout of metadata columns"),
    "columns of more rows": (put(lambda _: 16, ROWS + 1, 8), metadata, CORRUPT, "do not fit its rows"),
    "columns without pieces": (put(lambda _: 12, 0, 4), metadata, LIMIT, "more than it can hold"),
    "columns of ids without end": (put(_ids_at, 2**63 - 1, 8), metadata, LIMIT, "ids are below 2"),
    "columns of too many ids": (put(lambda h: _ids_at(h) + 8, 2**40, 8), metadata, CORRUPT, "do not fit its rows"),
    "a piece outside": (put(_piece_at, 2**31, 4), metadata, CORRUPT, "outside its segment"),
    "a piece of another size": (put(lambda h: _piece_at(h) + 4, 16, 4), metadata, ChecksumError, "does not match its"),
    "a piece without its checksum": (put(lambda h: _piece_at(h) + 12, 7, 4), metadata, ChecksumError, "does not match"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_false_statement_is_refused_where_it_is_met(honest: bytes, name: str) -> None:
    forge, use, kind, words = FORGERIES[name]
    parts = Parts.of(honest)
    forge(parts)
    content = BytesRangeReader(parts.written(), name="forged.rvf")
    with pytest.raises(kind, match=words) as refused:
        use(VectorStore.open(content))
    assert refused.value.path == "forged.rvf"


@pytest.mark.parametrize("name", FORGERIES)
def test_whatever_else_is_done_with_it_ends_well_or_by_name(honest: bytes, name: str, tmp_path: Path) -> None:
    parts = Parts.of(honest)
    FORGERIES[name][0](parts)
    content = parts.written()
    for use in USES:
        try:
            use(VectorStore.open(BytesRangeReader(content)))
        except (FormatError, KeyError):  # an id that a forger took away is not there
            continue
    path = tmp_path / "forged.rvf"
    path.write_bytes(content)
    try:
        with VectorStore.open(path, mode="a", durable=False) as store:
            store.add(vectors()[:2])
            store.update([3], [{"n": 9}])
            store.delete([5])
            store.compact()
    except (FormatError, KeyError):
        return
    with VectorStore.open(path) as again:
        assert again.verify() == []


def test_an_honest_file_taken_apart_is_still_the_store(honest: bytes) -> None:
    copy = Parts.of(honest).written()
    for use in USES:
        use(VectorStore.open(BytesRangeReader(copy)))
    a, b = VectorStore.open(BytesRangeReader(honest)), VectorStore.open(BytesRangeReader(copy))
    assert np.array_equal(a.get(a.ids), b.get(b.ids))
    assert b.verify() == []


@pytest.mark.parametrize("change", [{"epoch": 2**32 - 1}, {"total_vector_count": 0}])
def test_counters_at_their_ends(honest: bytes, change: dict[str, int], tmp_path: Path) -> None:
    """What could not be counted any more is refused, and nothing of it stays."""
    parts = Parts.of(honest)
    root(lambda r: replace(r, **change))(parts)
    path = tmp_path / "f.rvf"
    path.write_bytes(parts.written())
    with VectorStore.open(path, mode="a", durable=False) as store:
        with pytest.raises(LimitExceededError, match=r"have reached 4294967295|counts -1 vectors"):
            store.delete([5])
        assert np.array_equal(store.get([5]), vectors()[5:6])
        if "epoch" in change:
            with pytest.raises(LimitExceededError, match="have reached"):
                store.add(vectors()[:1])
            with pytest.raises(LimitExceededError, match="have reached"):
                store.compact()


def test_what_a_graph_was_built_with_does_not_matter(honest: bytes) -> None:
    parts = Parts.of(honest)
    graph(2, ef_construction=2**32 - 1)(parts)
    warm(VectorStore.open(BytesRangeReader(parts.written())))


def test_a_small_manifest_of_no_vectors(honest: bytes, tmp_path: Path) -> None:
    """Commits of the first release list only what is new; a segment of no blocks is nothing new."""
    path = tmp_path / "s.rvf"
    path.write_bytes(with_small_manifest(honest, SegmentType.VEC, bytes(encode_vec([]))))
    with VectorStore.open(path, mode="a") as store:
        assert store.add(vectors()[:1]).tolist() == [ROWS]


CODED = {
    "no dictionary": (no_dictionary, "need a QUANT segment|quantiser of these codes is missing"),
    "too few coarse centroids": (
        dictionary(lambda q: replace(q, coarse=q.coarse[:2])),
        "a coarse centroid that does",
    ),
    "too few centroids": (
        dictionary(lambda q: replace(q, codebook=q.codebook[:, :7])),
        "names a centroid that does",
    ),
}


@pytest.mark.parametrize("name", CODED)
def test_codes_instead_of_vectors(tmp_path: Path, name: str) -> None:
    with VectorStore.create(tmp_path / "c.rvf", dim=DIM, durable=False) as store:
        store.add(vectors())
        store.quantize("residual_pq", keep_full=False)
    parts = Parts.of((tmp_path / "c.rvf").read_bytes())
    forge, words = CODED[name]
    forge(parts)
    with pytest.raises(CorruptLayoutError, match=words):
        warm(VectorStore.open(BytesRangeReader(parts.written())))
