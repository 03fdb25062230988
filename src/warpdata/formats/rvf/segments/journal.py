"""JOURNAL payloads: deletions and metadata updates in the order they happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.ids import check_ids
from warpdata.formats.rvf.segments.layout import JournalHeader

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

    @property
    def fits(self) -> bool:
        """Whether a journal entry can hold it."""
        return _UPDATE_FIXED_BYTES + len(self.key.encode()) + len(self.value) <= _MAX_ENTRY_BYTES


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
    """Ids as the fewest entries: runs become ranges, loners single deletions."""
    if not ids.size:
        return []
    ordered = np.sort(ids)
    unique = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    breaks = np.flatnonzero(np.diff(unique) != 1)
    firsts = unique[np.concatenate(([0], breaks + 1))].tolist()
    lasts = unique[np.concatenate((breaks, [len(unique) - 1]))].tolist()
    out = []
    for first, last in zip(firsts, lasts, strict=True):
        if last - first + 1 >= _RANGE_PAYS:
            out.append(DeleteRange(first, last + 1))
        else:
            out += [DeleteRange(each, each + 1) for each in range(first, last + 1)]
    return out


def encode_journal(entries: Sequence[JournalEntry], epoch: int, prev_segment_id: int = 0) -> bytes:
    """A JOURNAL payload: 64-byte header, entries on 8-byte boundaries."""
    out = [records.JOURNAL_HEADER.pack(len(entries), epoch, prev_segment_id, 0)]
    for entry in entries:
        kind, payload = _pack_entry(entry)
        if len(payload) > _MAX_ENTRY_BYTES:
            raise ValueError(f"a journal entry of {len(payload)} bytes; at most 65535 fit")
        packed = records.JOURNAL_ENTRY_HEAD.pack(kind, 0, len(payload)) + payload
        out.append(packed + padding_to(len(packed), 8))
    return b"".join(out)


def _pack_entry(entry: JournalEntry) -> tuple[int, bytes]:
    if isinstance(entry, OtherEntry):
        return entry.entry_type, entry.payload
    if isinstance(entry, UpdateField):
        if not entry.fits:
            raise ValueError(f"a metadata value of {len(entry.value)} bytes is too long for a journal")
        key = entry.key.encode()
        body = layout.COUNT_U64.pack(entry.vector_id) + layout.COUNT_U16.pack(len(key)) + key
        return records.UPDATE_METADATA, body + layout.COUNT_U16.pack(len(entry.value)) + entry.value
    if entry.end == entry.start + 1:
        return records.DELETE_VECTOR, layout.COUNT_U64.pack(entry.start)
    return records.DELETE_RANGE, records.ID_PAIR.pack(entry.start, entry.end)


def decode_journal(payload: Buffer, where: str = "") -> Journal:
    """The entries of a JOURNAL payload; none deletes an id that no vector can have."""
    found = _decode(byte_view(payload), where)
    starts = [entry.start for entry in found.entries if isinstance(entry, DeleteRange)]
    check_ids(np.array(starts, np.uint64), where)
    return found


def _decode(view: memoryview, where: str) -> Journal:
    """The entries, padded as the document says or packed as shipped programs do."""
    if view.nbytes >= records.JOURNAL_HEADER.size:
        header = JournalHeader._make(records.JOURNAL_HEADER.unpack_from(view))
        entries = _walk(view, records.JOURNAL_HEADER.size, header.entry_count, 8)
        if entries is not None and not any(view[20 : records.JOURNAL_HEADER.size]):
            return Journal(header.journal_epoch, header.prev_journal_seg_id, entries)
    if view.nbytes < records.PACKED_JOURNAL_HEADER.size:
        raise TruncatedError("a JOURNAL payload has no header", path=where or None)
    count, epoch, previous = records.PACKED_JOURNAL_HEADER.unpack_from(view)
    entries = _walk(view, records.PACKED_JOURNAL_HEADER.size, count, 1)
    if entries is None:
        raise CorruptLayoutError("the entries of a JOURNAL payload do not fill it", path=where or None)
    return Journal(epoch, previous, entries)


def _walk(view: memoryview, start: int, count: int, alignment: int) -> tuple[JournalEntry, ...] | None:
    """The entries if `count` of them fill the payload exactly, else None."""
    if count * records.JOURNAL_ENTRY_HEAD.size > view.nbytes:
        return None
    entries: list[JournalEntry] = []
    position = start
    for _ in range(count):
        body = position + records.JOURNAL_ENTRY_HEAD.size
        if body > view.nbytes:
            return None
        kind, zero, length = records.JOURNAL_ENTRY_HEAD.unpack_from(view, position)
        entry = _unpack_entry(kind, bytes(view[body : body + length]))
        if zero or body + length > view.nbytes or entry is None:
            return None
        entries.append(entry)
        position = min(align_up(body + length, alignment), view.nbytes)
    return tuple(entries) if position == view.nbytes else None


def _unpack_entry(kind: int, payload: bytes) -> JournalEntry | None:
    """One entry, or None if its size contradicts its type."""
    if kind == records.DELETE_VECTOR:
        if len(payload) != 8:
            return None
        start = int.from_bytes(payload, "little")
        return DeleteRange(start, start + 1)
    if kind == records.DELETE_RANGE:
        return DeleteRange(*records.ID_PAIR.unpack(payload)) if len(payload) == records.ID_PAIR.size else None
    if kind == records.UPDATE_METADATA:
        return _unpack_update(payload)
    return OtherEntry(kind, payload) if kind else None


def _unpack_update(payload: bytes) -> UpdateField | None:
    if len(payload) < _UPDATE_FIXED_BYTES:
        return None
    vector_id, key_end = int.from_bytes(payload[:8], "little"), 10 + int.from_bytes(payload[8:10], "little")
    value_start = key_end + 2
    size = int.from_bytes(payload[key_end:value_start], "little")
    if value_start + size != len(payload):
        return None
    try:
        return UpdateField(vector_id, payload[10:key_end].decode(), payload[value_start:])
    except UnicodeDecodeError:
        return None


def deleted_mask(ids: NDArray[np.uint64], entries: Iterable[JournalEntry]) -> NDArray[np.bool_]:
    """Which of `ids` the entries delete."""
    ranges = [e for e in entries if isinstance(e, DeleteRange)]
    if not ranges or not ids.size:
        return np.zeros(len(ids), bool)
    starts = np.array([r.start for r in ranges], np.uint64)
    ends = np.array([r.end for r in ranges], np.uint64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    at = np.searchsorted(starts, ids, side="right") - 1
    return (at >= 0) & (ids < ends[np.maximum(at, 0)])
