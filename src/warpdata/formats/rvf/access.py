"""SKETCH payloads: how often blocks were read. HOT payloads: the vectors read most, with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.vec import column_dtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_COUNTERS: dict[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2")}
HOT_DTYPES = ("f16", "i8", "f32", "bf16", "u8")


class AccessSketch:
    """Count-min counters of block accesses: never too low, rarely too high, halved with age."""

    def __init__(
        self,
        width: int = layout.SKETCH_WIDTH,
        depth: int = layout.SKETCH_DEPTH,
        decay_shift: int = 1,
        counter_bits: int = 8,
    ) -> None:
        self.counters: NDArray[Any] = np.zeros((depth, width), _COUNTERS[counter_bits])
        self.total_accesses = 0
        self.decay_shift = decay_shift

    def add(self, block_ids: NDArray[np.integer]) -> None:
        """Count one access of each block id; an id may appear several times."""
        ids, times = np.unique(np.asarray(block_ids), return_counts=True)
        before = self.total_accesses // layout.SKETCH_DECAY_EVERY
        wide = np.zeros(self.counters.shape, np.int64)
        for row, columns in enumerate(self._columns(ids)):
            np.add.at(wide[row], columns, times)
        self.raise_by(wide)
        self.total_accesses += int(times.sum())
        if self.total_accesses // layout.SKETCH_DECAY_EVERY > before:
            self.counters >>= self.counters.dtype.type(self.decay_shift)

    def raise_by(self, counts: NDArray[np.int64]) -> None:
        """Raise the counters, up to their maximum."""
        most = np.iinfo(self.counters.dtype).max
        self.counters[...] = np.minimum(counts + self.counters, most)

    def estimate(self, block_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """An upper estimate of the accesses of each block id."""
        columns = self._columns(np.asarray(block_ids))
        counts = np.stack([self.counters[row][column] for row, column in enumerate(columns)])
        return np.asarray(counts.min(axis=0), np.int64)

    def _columns(self, ids: NDArray[np.integer]) -> list[NDArray[np.int64]]:
        """One column per row: FNV-1a over the eight bytes of each id, from the basis mixed with the row's seed."""
        raw = np.ascontiguousarray(ids, "<u8").view(np.uint8).reshape(-1, 8)
        columns = []
        for seed in layout.SKETCH_SEEDS[: len(self.counters)]:
            value = np.full(len(raw), _FNV_OFFSET ^ np.uint64(seed), np.uint64)
            for byte in range(8):
                value = (value ^ raw[:, byte].astype(np.uint64)) * _FNV_PRIME
            columns.append((value % np.uint64(self.counters.shape[1])).astype(np.int64))
        return columns


def encode_sketch(sketch: AccessSketch) -> bytes:
    """A SKETCH payload with one block of counters."""
    (depth, width), bits = sketch.counters.shape, 8 * sketch.counters.itemsize
    head = layout.SKETCH_HEADER.pack(1, width, depth, bits, sketch.decay_shift, sketch.total_accesses)
    body = layout.COUNT_U32.pack(0) + sketch.counters.tobytes()
    return head.ljust(layout.ALIGNMENT, b"\0") + body + padding_to(len(body), layout.ALIGNMENT)


def decode_sketch(payload: Buffer, where: str = "") -> AccessSketch:
    """The counters of a SKETCH payload, in the document's form or that of the shipped encoder.

    Counters add up, so those of several blocks are read as one sketch of all accesses.
    """
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a SKETCH payload has no header", path=where or None)
    header = layout.SKETCH_HEADER.unpack_from(view)
    starts = range(0)
    if header.counter_bits in _COUNTERS and header.block_count:
        size = layout.COUNT_U32.size + header.width * header.depth * header.counter_bits // 8
        step = align_up(size, layout.ALIGNMENT)
        if layout.ALIGNMENT + (header.block_count - 1) * step + size <= view.nbytes:
            first = layout.ALIGNMENT + layout.COUNT_U32.size
            starts = range(first, first + header.block_count * step, step)
    if not starts:
        width, depth, total = layout.PLAIN_SKETCH_HEADER.unpack_from(view)
        header = layout.SKETCH_HEADER(1, width, depth, 8, 1, total)
        starts = range(layout.ALIGNMENT, view.nbytes)[:1]
    size = header.width * header.depth * header.counter_bits // 8
    if not size or header.depth > len(layout.SKETCH_SEEDS) or not starts or starts[-1] + size > view.nbytes:
        raise CorruptLayoutError("the counters of a SKETCH segment contradict its size", path=where or None)
    sketch = AccessSketch(header.width, header.depth, min(header.decay_shift, 7), header.counter_bits)
    for start in starts:
        counters = np.frombuffer(view[start : start + size], sketch.counters.dtype)
        sketch.raise_by(counters.reshape(sketch.counters.shape).astype(np.int64))
    sketch.total_accesses = header.total_accesses
    return sketch


@dataclass(frozen=True, slots=True)
class HotSet:
    """Hot vectors, their ids and the ids of their neighbours."""

    ids: NDArray[np.uint64]
    vectors: NDArray[Any]
    neighbors: tuple[NDArray[np.uint64], ...]
    neighbor_m: int
    dtype: str


def encode_hot(hot: HotSet) -> bytes:
    """A HOT payload: row by row, each with its neighbours beside it."""
    header = layout.HOT_HEADER.pack(*hot.vectors.shape, layout.DTYPE_IDS[hot.dtype], hot.neighbor_m)
    pieces = [header.ljust(layout.ALIGNMENT, b"\0")]
    rows = np.ascontiguousarray(hot.vectors, column_dtype(hot.dtype))
    for vector_id, row, neighbors in zip(hot.ids.tolist(), rows, hot.neighbors, strict=True):
        entry = layout.COUNT_U64.pack(vector_id) + row.tobytes()
        entry += layout.COUNT_U16.pack(len(neighbors)) + neighbors.astype("<u8").tobytes()
        pieces += [entry, padding_to(len(entry), layout.ALIGNMENT)]
    return b"".join(pieces)


def decode_hot(payload: Buffer, where: str = "") -> HotSet:
    """The hot set of a HOT payload."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a HOT payload has no header", path=where or None)
    header = layout.HOT_HEADER.unpack_from(view)
    name = layout.DTYPE_NAMES.get(header.dtype, "?")
    if name not in HOT_DTYPES:
        raise CorruptLayoutError(f"hot vectors of dtype {header.dtype}", path=where or None)
    element, count = column_dtype(name), header.vector_count
    row_size = header.dim * element.itemsize
    if count * (10 + row_size) > view.nbytes:
        raise TruncatedError(f"a HOT payload holds fewer than {count} vectors", path=where or None)
    ids = np.zeros(count, np.uint64)
    rows = np.zeros((count, header.dim), element)
    neighbors = []
    position = layout.ALIGNMENT
    for index in range(count):
        head, body = position + 8, position + 8 + row_size
        if body + 2 > view.nbytes:
            raise TruncatedError("a hot vector is cut off", path=where or None)
        ids[index] = layout.COUNT_U64.unpack_from(view, position)[0]
        rows[index] = np.frombuffer(view[head:body], element)
        end = body + 2 + 8 * layout.COUNT_U16.unpack_from(view, body)[0]
        if end > view.nbytes:
            raise TruncatedError("the neighbours of a hot vector are cut off", path=where or None)
        neighbors.append(np.frombuffer(view[body + 2 : end], "<u8"))
        position = align_up(end, layout.ALIGNMENT)
    return HotSet(ids, rows, tuple(neighbors), header.neighbor_m, name)
