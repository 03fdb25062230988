"""JOURNAL payloads: deletions and metadata updates in their order. LOG payloads: one small commit each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.vec import check_ids

if TYPE_CHECKING:
    from typing_extensions import Buffer

_RANGE_PAYS = 4
"""A run of at least this many ids is stored as a range."""
_MAX_ENTRY_BYTES = 0xFFFF
_UPDATE_FIXED_BYTES = 12


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """The ids [start, end) are deleted."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UpdateField:
    """A metadata field of a vector has a new value, in the bytes of META v1."""

    vector_id: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class OtherEntry:
    """An entry that is kept but not acted upon: moves, remaps and types of the future."""

    entry_type: int
    payload: bytes


JournalEntry = DeleteRange | UpdateField | OtherEntry


@dataclass(frozen=True, slots=True)
class Journal:
    """A decoded JOURNAL payload."""

    epoch: int
    prev_segment_id: int
    entries: tuple[JournalEntry, ...]


def deletions(ids: NDArray[np.uint64]) -> list[DeleteRange]:
    """Ids as the fewest entries: runs become ranges, other ids single deletions."""
    if not ids.size:
        return []
    unique = np.unique(ids)
    breaks = np.flatnonzero(np.diff(unique) != 1)
    firsts = unique[np.concatenate(([0], breaks + 1))].tolist()
    lasts = unique[np.concatenate((breaks, [len(unique) - 1]))].tolist()
    out = []
    for first, last in zip(firsts, lasts, strict=True):
        if last - first + 1 >= _RANGE_PAYS:
            out.append(DeleteRange(first, last + 1))
        else:
            out += [DeleteRange(number, number + 1) for number in range(first, last + 1)]
    return out


def encode_journal(entries: Sequence[JournalEntry], epoch: int, prev_segment_id: int = 0) -> bytes:
    """A JOURNAL payload: 64-byte header, entries on 8-byte boundaries."""
    out = [layout.JOURNAL_HEADER.pack(len(entries), epoch, prev_segment_id, 0)]
    for entry in entries:
        if isinstance(entry, OtherEntry):
            kind, payload = entry.entry_type, entry.payload
        elif isinstance(entry, UpdateField):
            key = entry.key.encode()
            body = layout.COUNT_U64.pack(entry.vector_id) + layout.COUNT_U16.pack(len(key)) + key
            kind = layout.UPDATE_METADATA
            payload = body + layout.COUNT_U16.pack(len(entry.value)) + entry.value
        elif entry.end == entry.start + 1:
            kind, payload = layout.DELETE_VECTOR, layout.COUNT_U64.pack(entry.start)
        else:
            kind, payload = layout.DELETE_RANGE, layout.ID_PAIR.pack(entry.start, entry.end)
        if len(payload) > _MAX_ENTRY_BYTES:
            raise ValueError(f"a journal entry of {len(payload)} bytes; at most 65535 fit")
        packed = layout.JOURNAL_ENTRY_HEAD.pack(kind, 0, len(payload)) + payload
        out.append(packed + padding_to(len(packed), 8))
    return b"".join(out)


def decode_journal(payload: Buffer, where: str = "") -> Journal:
    """The entries of a JOURNAL payload, padded as in the document or packed as by shipped programs."""
    view = byte_view(payload)
    for form, alignment in ((layout.JOURNAL_HEADER, 8), (layout.PACKED_JOURNAL_HEADER, 1)):
        if view.nbytes < form.size:
            continue
        header = form.unpack_from(view)
        entries = _walk(view, form.size, header.entry_count, alignment)
        if entries is None or any(view[20:64] if alignment == 8 else b""):
            continue
        starts = [entry.start for entry in entries if isinstance(entry, DeleteRange)]
        check_ids(np.array(starts, np.uint64), where)
        return Journal(header.journal_epoch, header.prev_journal_seg_id, entries)
    if view.nbytes < layout.PACKED_JOURNAL_HEADER.size:
        raise TruncatedError("a JOURNAL payload has no header", path=where or None)
    raise CorruptLayoutError("the entries of a JOURNAL payload do not fill it", path=where or None)


def _walk(view: memoryview, start: int, count: int, alignment: int) -> tuple[JournalEntry, ...] | None:
    """The entries if `count` of them fill the payload exactly, else None."""
    if count * layout.JOURNAL_ENTRY_HEAD.size > view.nbytes:
        return None
    entries: list[JournalEntry] = []
    position = start
    for _ in range(count):
        body = position + layout.JOURNAL_ENTRY_HEAD.size
        if body > view.nbytes:
            return None
        kind, zero, length = layout.JOURNAL_ENTRY_HEAD.unpack_from(view, position)
        entry = _unpack_entry(kind, bytes(view[body : body + length]))
        if zero or body + length > view.nbytes or entry is None:
            return None
        entries.append(entry)
        position = min(align_up(body + length, alignment), view.nbytes)
    return tuple(entries) if position == view.nbytes else None


def _unpack_entry(kind: int, payload: bytes) -> JournalEntry | None:
    """One entry, or None if its size contradicts its type."""
    if kind == layout.DELETE_VECTOR:
        start = int.from_bytes(payload, "little")
        return DeleteRange(start, start + 1) if len(payload) == 8 else None
    if kind == layout.DELETE_RANGE:
        return DeleteRange(*layout.ID_PAIR.unpack(payload)) if len(payload) == layout.ID_PAIR.size else None
    if kind != layout.UPDATE_METADATA:
        return OtherEntry(kind, payload) if kind else None
    if len(payload) < _UPDATE_FIXED_BYTES:
        return None
    vector_id, key_end = int.from_bytes(payload[:8], "little"), 10 + int.from_bytes(payload[8:10], "little")
    value_start = key_end + 2
    if value_start + int.from_bytes(payload[key_end:value_start], "little") != len(payload):
        return None
    try:
        return UpdateField(vector_id, payload[10:key_end].decode(), payload[value_start:])
    except UnicodeDecodeError:
        return None


def deleted_mask(ids: NDArray[np.uint64], entries: Iterable[JournalEntry]) -> NDArray[np.bool_]:
    """Which of `ids` the entries delete."""
    ranges = [entry for entry in entries if isinstance(entry, DeleteRange)]
    if not ranges or not ids.size:
        return np.zeros(len(ids), bool)
    starts = np.array([r.start for r in ranges], np.uint64)
    ends = np.array([r.end for r in ranges], np.uint64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    at = np.searchsorted(starts, ids, side="right") - 1
    return (at >= 0) & (ids < ends[np.maximum(at, 0)])


def encode_log(
    epoch: int, live_count: int, previous_hash: bytes, pieces: Sequence[tuple[Row, Buffer]]
) -> bytes:
    """A LOG payload: head, one entry per piece, their payloads one after the other, end mark."""
    out = [layout.LOG_HEAD.pack(layout.LOG_MAGIC, epoch, len(pieces), live_count, previous_hash)]
    out += [layout.LOG_PIECE.pack(*piece) for piece, _ in pieces]
    out += [bytes(payload) for _, payload in pieces]
    return b"".join([*out, layout.LOG_END])


def decode_log(payload: Buffer, where: str = "") -> tuple[Row, list[tuple[Row, memoryview]]]:
    """The head of a LOG payload, and its pieces with their payloads, which fill it exactly."""
    view = byte_view(payload)
    if view.nbytes < layout.LOG_HEAD.size:
        raise TruncatedError("a LOG payload has no head", path=where or None)
    head = layout.LOG_HEAD.unpack_from(view)
    start = layout.LOG_HEAD.size + head.piece_count * layout.LOG_PIECE.size
    if head.magic != layout.LOG_MAGIC or head.live_count > layout.MAX_VECTORS or start > view.nbytes:
        raise CorruptLayoutError("a LOG payload contradicts itself", path=where or None)
    pieces = []
    for piece in layout.LOG_PIECE.iter_unpack(view[layout.LOG_HEAD.size : start]):
        if piece.seg_type not in layout.LOG_TYPES or piece.zero:
            raise CorruptLayoutError(
                f"a LOG payload with a piece of type {piece.seg_type}", path=where or None
            )
        pieces.append((piece, view[start : start + piece.payload_length]))
        start += piece.payload_length
    if view[start:] != layout.LOG_END:
        raise CorruptLayoutError("the pieces of a LOG payload do not fill it", path=where or None)
    return head, pieces
