"""Files whose hashes are right and whose contents are not: made with our own writer, by somebody unkind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.search.forging import Parts
from tests.sweeps import enough_examples
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import FormatError
from warpdata.formats.rvf.layout import SegmentType
from warpdata.search.store import VectorStore

DIM = 4
RNG = np.random.default_rng(12)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("h") / "h.rvf"
    x = np.random.default_rng(0).normal(size=(150, DIM)).astype(np.float32)
    with VectorStore.create(path, dim=DIM) as store:
        store.add(x, metadata={"n": range(150), "s": ["a", "b", "c"] * 50})
        store.quantize("residual_pq")
        store.build_index("hnsw", m=4, ef_construction=20)
    return path.read_bytes()


def forged(content: bytes, seg_type: int, change: Any) -> bytes:
    """The file with the payloads of one type changed, and every hash made right again."""
    parts = Parts.of(content)
    for part in parts.kind(seg_type):
        payload = bytearray(part.payload)
        change(payload)
        part.payload = bytes(payload)
    return parts.written()


def use(content: bytes) -> None:
    """Everything a reader does; only a FormatError may come out of it."""
    query = np.full(DIM, 0.1, np.float32)
    try:
        cold = VectorStore.open(BytesRangeReader(content))
        for _ in range(3):
            cold.search(query, 5)
        cold.verify()
    except FormatError:
        pass
    try:
        warm = VectorStore.open(BytesRangeReader(content))
        warm.warm()
        warm.search(query, 5)
        warm.search(query, 5, where="n < 100 and s != 'a'")
        warm.get(warm.ids[:3])
    except FormatError:
        pass


TYPES = [
    SegmentType.VEC,
    SegmentType.INDEX,
    SegmentType.QUANT,
    SegmentType.META,
    SegmentType.SKETCH,
    SegmentType.WITNESS,
]


@pytest.mark.parametrize("seg_type", TYPES)
def test_changed_contents_with_right_hashes(honest: bytes, seg_type: int) -> None:
    for round_ in range(enough_examples(24)):

        def change(payload: bytearray, wide: bool = round_ % 3 == 0) -> None:
            limit = len(payload) if wide else min(len(payload), 256)
            for _ in range(int(RNG.integers(1, 4))):
                payload[int(RNG.integers(limit))] = int(
                    RNG.choice([0, 1, 0x7F, 0x80, 0xFF, RNG.integers(256)])
                )

        use(forged(honest, seg_type, change))


def test_an_unchanged_copy_is_still_the_store(honest: bytes) -> None:
    copy = forged(honest, SegmentType.VEC, lambda payload: None)
    a, b = VectorStore.open(BytesRangeReader(honest)), VectorStore.open(BytesRangeReader(copy))
    assert np.array_equal(a.get(a.ids), b.get(b.ids))
    assert np.array_equal(
        a.search(np.zeros(DIM), 9, exact=True)[0], b.search(np.zeros(DIM), 9, exact=True)[0]
    )


def test_absurd_graph_sizes_take_no_memory(honest: bytes) -> None:
    def huge_m(payload: bytearray) -> None:
        payload[2:4] = b"\xff\xff"

    def huge_count(payload: bytearray) -> None:
        payload[8:16] = (1 << 40).to_bytes(8, "little")

    for change in (huge_m, huge_count):
        content = forged(honest, SegmentType.INDEX, change)
        with pytest.raises(FormatError):
            VectorStore.open(BytesRangeReader(content)).warm()
