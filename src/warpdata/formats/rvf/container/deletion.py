"""The deletion bitmap of a manifest: array, bitmap and run containers keyed by id >> 16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]
_SINGLE = 0
_FULL = 65_536


def encode_deletions(ids: Ids) -> bytes:
    """A deletion bitmap value; ids must lie below 2**48."""
    unique = np.unique(ids)
    if unique.size and int(unique[-1]) > layout.MAX_BITMAP_ID:
        raise ValueError("a deletion bitmap holds ids below 2**48")
    keys, starts = np.unique(unique >> np.uint64(16), return_index=True)
    bounds = [*starts.tolist(), len(unique)]
    entries, containers = [], bytearray()
    base = layout.BITMAP_HEAD.size + len(keys) * layout.CONTAINER_ENTRY.size
    base += len(padding_to(base, 8))
    for key, start, end in zip(keys.tolist(), bounds[:-1], bounds[1:], strict=True):
        kind, packed = _pack_container((unique[start:end] & np.uint64(0xFFFF)).astype(np.uint16))
        entries.append(layout.CONTAINER_ENTRY.pack(key, kind, base + len(containers)))
        containers += packed + padding_to(len(packed), 8)
    head = layout.BITMAP_HEAD.pack(layout.BITMAP_COOKIE, len(keys)) + b"".join(entries)
    return bytes([_SINGLE]) + head + padding_to(len(head), 8) + bytes(containers)


def _pack_container(low: NDArray[np.uint16]) -> tuple[int, bytes]:
    """The smallest of the three containers for sorted 16-bit values."""
    wide = low.astype(np.int64)
    breaks = np.flatnonzero(np.diff(wide) != 1)
    firsts = np.concatenate(([0], breaks + 1))
    lasts = np.concatenate((breaks, [len(low) - 1]))
    if 2 + 4 * len(firsts) < 2 + min(2 * len(low), layout.BITMAP_CONTAINER_BYTES):
        runs = np.stack([wide[firsts], wide[lasts] - wide[firsts]], axis=1).astype("<u2")
        return layout.CONTAINER_RUN, layout.COUNT_U16.pack(len(firsts)) + runs.tobytes()
    if len(low) <= layout.ARRAY_CONTAINER_MAX:
        return layout.CONTAINER_ARRAY, layout.COUNT_U16.pack(len(low)) + low.astype("<u2").tobytes()
    bits = np.zeros(_FULL, np.uint8)
    bits[low] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    return layout.CONTAINER_BITMAP, layout.COUNT_U16.pack(len(low) % _FULL) + packed


def decode_deletions(value: Buffer, where: str = "") -> Ids:
    """The deleted ids of a bitmap value, ascending."""
    view = byte_view(value)
    if view.nbytes < 1 + layout.BITMAP_HEAD.size:
        raise TruncatedError("a deletion bitmap is cut off", path=where or None)
    if view[0] != _SINGLE:
        raise CorruptLayoutError("a sharded deletion bitmap is not supported", path=where or None)
    bitmap = view[1:]
    cookie, count = layout.BITMAP_HEAD.unpack_from(bitmap)
    end = layout.BITMAP_HEAD.size + count * layout.CONTAINER_ENTRY.size
    if cookie != layout.BITMAP_COOKIE or end > bitmap.nbytes:
        raise CorruptLayoutError("a deletion bitmap contradicts itself", path=where or None)
    found = [np.zeros(0, np.uint64)]
    for key, kind, offset in layout.CONTAINER_ENTRY.iter_unpack(bitmap[layout.BITMAP_HEAD.size : end]):
        low = _unpack_container(bitmap, kind, offset, where)
        found.append(low.astype(np.uint64) + (np.uint64(key) << np.uint64(16)))
    ids = np.concatenate(found)
    if (ids[1:] <= ids[:-1]).any():
        raise CorruptLayoutError("the ids of a deletion bitmap do not ascend", path=where or None)
    return ids


def _unpack_container(bitmap: memoryview, kind: int, offset: int, where: str) -> NDArray[np.int64]:
    if offset + 2 > bitmap.nbytes:
        raise TruncatedError("a deletion bitmap is cut off", path=where or None)
    count = layout.COUNT_U16.unpack_from(bitmap, offset)[0]
    size = {
        layout.CONTAINER_ARRAY: 2 * count,
        layout.CONTAINER_BITMAP: layout.BITMAP_CONTAINER_BYTES,
        layout.CONTAINER_RUN: 4 * count,
    }.get(kind)
    if size is None or offset + 2 + size > bitmap.nbytes:
        raise CorruptLayoutError("a container of a deletion bitmap is damaged", path=where or None)
    data = bitmap[offset + 2 : offset + 2 + size]
    if kind == layout.CONTAINER_ARRAY:
        return np.frombuffer(data, "<u2").astype(np.int64)
    if kind == layout.CONTAINER_BITMAP:
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    runs = np.frombuffer(data, "<u2").reshape(-1, 2).astype(np.int64)
    lengths = runs[:, 1] + 1
    if count and (runs.sum(axis=1).max() >= _FULL or lengths.sum() > _FULL):
        raise CorruptLayoutError("a run of a deletion bitmap is too long", path=where or None)
    starts = np.cumsum(lengths) - lengths
    return np.repeat(runs[:, 0] - starts, lengths) + np.arange(int(lengths.sum()))
