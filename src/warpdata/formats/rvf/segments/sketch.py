"""SKETCH payloads: count-min counters of how often each block was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.layout import SketchHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_COUNTERS: dict[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2")}


class AccessSketch:
    """How often blocks were asked for: never too low, rarely too high, halved with age."""

    def __init__(
        self, width: int = records.SKETCH_WIDTH, depth: int = records.SKETCH_DEPTH, decay_shift: int = 1,
        counter_bits: int = 8,
    ) -> None:  # fmt: skip
        self.counters: NDArray[Any] = np.zeros((depth, width), _COUNTERS[counter_bits])
        self.total_accesses = 0
        self.decay_shift = decay_shift

    def add(self, block_ids: NDArray[np.integer]) -> None:
        """Count one access of each block id; an id may appear several times."""
        ids, times = np.unique(np.asarray(block_ids), return_counts=True)
        before = self.total_accesses // records.SKETCH_DECAY_EVERY
        wide = np.zeros(self.counters.shape, np.int64)
        for row, columns in enumerate(self._columns(ids)):
            np.add.at(wide[row], columns, times)
        self._raise(wide)
        self.total_accesses += int(times.sum())
        if self.total_accesses // records.SKETCH_DECAY_EVERY > before:
            self.counters >>= self.counters.dtype.type(self.decay_shift)

    def _raise(self, by: NDArray[np.int64]) -> None:
        """Count more, up to what a counter holds."""
        most = np.iinfo(self.counters.dtype).max
        self.counters[...] = np.minimum(by + self.counters, most)

    def estimate(self, block_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """An upper estimate of the accesses of each block id."""
        columns = self._columns(np.asarray(block_ids))
        found = np.stack([self.counters[row][column] for row, column in enumerate(columns)])
        least: NDArray[np.int64] = found.min(axis=0).astype(np.int64)
        return least

    def _columns(self, ids: NDArray[np.integer]) -> list[NDArray[np.int64]]:
        raw = np.ascontiguousarray(ids, "<u8").view(np.uint8).reshape(-1, 8)
        return [self._hash(raw, seed) for seed in records.SKETCH_SEEDS[: len(self.counters)]]

    def _hash(self, raw: NDArray[np.uint8], seed: int) -> NDArray[np.int64]:
        """FNV-1a over the eight bytes of each id, from the offset basis mixed with the row's seed."""
        value = np.full(len(raw), _FNV_OFFSET ^ np.uint64(seed), np.uint64)
        for byte in range(8):
            value = (value ^ raw[:, byte].astype(np.uint64)) * _FNV_PRIME
        return (value % np.uint64(self.counters.shape[1])).astype(np.int64)


def encode_sketch(sketch: AccessSketch) -> bytes:
    """A SKETCH payload with one block of counters."""
    (depth, width), bits = sketch.counters.shape, 8 * sketch.counters.itemsize
    head = records.SKETCH_HEADER.pack(1, width, depth, bits, sketch.decay_shift, sketch.total_accesses)
    body = layout.COUNT_U32.pack(0) + sketch.counters.tobytes()
    return head.ljust(layout.ALIGNMENT, b"\0") + body + padding_to(len(body), layout.ALIGNMENT)


def decode_sketch(payload: Buffer, where: str = "") -> AccessSketch:
    """The counters of a SKETCH payload, in the seed's form or that of the shipped encoder.

    Counters add up, so those of several blocks are read as one sketch of all accesses.
    """
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a SKETCH payload has no header", path=where or None)
    header = SketchHeader._make(records.SKETCH_HEADER.unpack_from(view))
    starts = _block_starts(header, view.nbytes)
    if not starts:
        width, depth, total = records.PLAIN_SKETCH_HEADER.unpack_from(view)
        header, starts = SketchHeader(1, width, depth, 8, 1, total), range(layout.ALIGNMENT, view.nbytes)[:1]
    size = header.width * header.depth * header.counter_bits // 8
    if not size or header.depth > len(records.SKETCH_SEEDS) or not starts or starts[-1] + size > view.nbytes:
        raise CorruptLayoutError("the counters of a SKETCH segment contradict its size", path=where or None)
    sketch = AccessSketch(header.width, header.depth, min(header.decay_shift, 7), header.counter_bits)
    for start in starts:
        counters = np.frombuffer(view[start : start + size], sketch.counters.dtype)
        sketch._raise(counters.reshape(sketch.counters.shape).astype(np.int64))
    sketch.total_accesses = header.total_accesses
    return sketch


def _block_starts(header: SketchHeader, payload_bytes: int) -> range:
    """Where the counters of each block begin; nowhere if this is not a header of the seed's form."""
    if header.counter_bits not in _COUNTERS or not header.block_count:
        return range(0)
    size = layout.COUNT_U32.size + header.width * header.depth * header.counter_bits // 8
    step = align_up(size, layout.ALIGNMENT)
    if layout.ALIGNMENT + (header.block_count - 1) * step + size > payload_bytes:
        return range(0)
    first = layout.ALIGNMENT + layout.COUNT_U32.size
    return range(first, first + header.block_count * step, step)
