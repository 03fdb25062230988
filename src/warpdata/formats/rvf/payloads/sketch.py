"""SKETCH payloads: count-min counters of how often each block was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import padding
from warpdata.bytekit.view import byte_view
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.payloads import layout as records

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_COUNTER_MAX = 255


class AccessSketch:
    """How often blocks were asked for: never too low, rarely too high, halved with age."""

    def __init__(
        self, width: int = records.SKETCH_WIDTH, depth: int = records.SKETCH_DEPTH, decay_shift: int = 1
    ) -> None:
        self.counters: NDArray[np.uint8] = np.zeros((depth, width), np.uint8)
        self.total_accesses = 0
        self.decay_shift = decay_shift

    def add(self, block_ids: NDArray[np.integer]) -> None:
        """Count one access of each block id; an id may appear several times."""
        ids, times = np.unique(np.asarray(block_ids), return_counts=True)
        before = self.total_accesses // records.SKETCH_DECAY_EVERY
        for row, columns in enumerate(self._columns(ids)):
            wide = self.counters[row].astype(np.int64)
            np.add.at(wide, columns, times)
            self.counters[row] = np.minimum(wide, _COUNTER_MAX)
        self.total_accesses += int(times.sum())
        if self.total_accesses // records.SKETCH_DECAY_EVERY > before:
            self.counters >>= np.uint8(self.decay_shift)

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
    depth, width = sketch.counters.shape
    head = records.SKETCH_HEADER.pack(1, width, depth, 8, sketch.decay_shift, sketch.total_accesses)
    body = layout.COUNT_U32.pack(0) + sketch.counters.tobytes()
    return head.ljust(layout.ALIGNMENT, b"\0") + body + padding(len(body), layout.ALIGNMENT)


def decode_sketch(payload: Buffer, where: str = "") -> AccessSketch:
    """The counters of a SKETCH payload, in the seed's form or that of the shipped encoder."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("a SKETCH payload has no header", path=where or None)
    count, width, depth, bits, shift, total = records.SKETCH_HEADER.unpack_from(view)
    start = layout.ALIGNMENT + layout.COUNT_U32.size
    if count != 1 or bits != 8 or view.nbytes < start + width * depth:
        width, depth, total = records.PLAIN_SKETCH_HEADER.unpack_from(view)
        shift, start = 1, layout.ALIGNMENT
    if not width or not 0 < depth <= len(records.SKETCH_SEEDS) or view.nbytes < start + width * depth:
        raise CorruptLayoutError("the counters of a SKETCH segment contradict its size", path=where or None)
    sketch = AccessSketch(width, depth, min(shift, 7))
    counters = np.frombuffer(view[start : start + width * depth], np.uint8)
    sketch.counters = counters.reshape(depth, width).copy()
    sketch.total_accesses = total
    return sketch
