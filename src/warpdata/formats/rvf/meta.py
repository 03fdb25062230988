"""JOURNAL, LOG and META payloads; META as columns of Arrow buffers (ours), and META v1 of shipped programs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    TruncatedError,
)
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import Cursor
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


Value = str | bytes | int | float | bool | None
_DIGEST_BYTES = 32
_TAIL_BYTES = len(layout.META_END) + _DIGEST_BYTES
_U64_MAX = (1 << 64) - 1


DELETED: Any = object()
"""The value of a field that a change removes."""


@dataclass(frozen=True, slots=True)
class MetaPayload:
    """A decoded META payload."""

    generation: int
    base_generation: int | None
    schema: dict[str, str]
    """Field name -> type name (str, bytes, i64, u64, f64, bool)."""
    file_fields: dict[str, Value] = field(default_factory=dict)
    records: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    """Vector id -> fields; None deletes the record."""

    @property
    def is_snapshot(self) -> bool:
        """Whether this payload stands alone."""
        return self.base_generation is None


def type_of(value: Value) -> str:
    """The META type of a Python value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the text {value!r} is not valid Unicode") from None
        return "str"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, int):
        if -(1 << 63) <= value < (1 << 63):
            return "i64"
        if 0 < value <= _U64_MAX:
            return "u64"
        raise ValueError(f"the integer {value} does not fit in 64 bits")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"metadata holds finite numbers, not {value}")
        return "f64"
    raise TypeError(f"metadata holds str, bytes, int, float and bool, not {type(value).__name__}")


def pack_value(value: Value, kind: str) -> bytes:
    """The bytes of a value of a field of this type."""
    if value is None:
        return bytes([layout.VALUE_NULL])
    tag = bytes([layout.META_TYPES[kind]])
    if kind in ("str", "bytes"):
        raw = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]
        if len(raw) > layout.META_MAX_VALUE_BYTES:
            raise ValueError(f"a metadata value of {len(raw)} bytes; at most 16 MiB fit")
        return tag + layout.COUNT_U32.pack(len(raw)) + raw
    return tag + (bytes([bool(value)]) if kind == "bool" else layout.VALUE_FORMS[kind].pack(value))


def encode_meta(payload: MetaPayload) -> bytes:
    """A META payload with its end mark and SHA-256."""
    if len(payload.schema) > layout.META_MAX_FIELDS or len(payload.records) > layout.META_MAX_RECORDS:
        raise LimitExceededError(
            f"metadata of {len(payload.records)} vectors in {len(payload.schema)} fields",
            hint="Keep large tables in parquet, and their row numbers as ids here.",
        )
    base = payload.base_generation
    flags, base = (layout.META_SNAPSHOT, layout.META_NO_BASE) if base is None else (0, base)
    sizes = len(payload.schema), len(payload.file_fields), len(payload.records)
    head = (layout.META_MAGIC, layout.META_VERSION, flags, payload.generation, base)
    out = bytearray(layout.META_HEADER.pack(*head, *sizes))
    numbers = {name: number for number, name in enumerate(payload.schema)}
    for name, kind in payload.schema.items():
        raw = name.encode()
        out += layout.META_FIELD.pack(numbers[name], layout.META_TYPES[kind], 1, len(raw)) + raw
    for key in sorted(payload.file_fields):
        raw, value = key.encode(), payload.file_fields[key]
        out += layout.COUNT_U16.pack(len(raw)) + raw
        out += pack_value(value, "str" if value is None else type_of(value))
    for vector_id in sorted(payload.records):
        fields = payload.records[vector_id]
        if fields is None:
            out += layout.META_RECORD_HEAD.pack(vector_id, layout.META_DELETE, 0)
            continue
        out += layout.META_RECORD_HEAD.pack(vector_id, layout.META_UPSERT, len(fields))
        for name in sorted(fields, key=numbers.__getitem__):
            value = fields[name]
            out += layout.COUNT_U16.pack(numbers[name])
            removed = value is DELETED
            out += bytes([layout.VALUE_DELETE_FIELD]) if removed else pack_value(value, payload.schema[name])
    return bytes(out) + layout.META_END + hashlib.sha256(out).digest()


def decode_meta(payload: Buffer, where: str = "") -> MetaPayload:
    """The fields of a META payload; its end mark and SHA-256 are checked first."""
    view = byte_view(payload)
    header = _checked_header(view, where)
    cursor = _Cursor(view[: view.nbytes - _TAIL_BYTES], where, layout.META_HEADER.size)
    names: dict[int, str] = {}
    schema: dict[str, str] = {}
    for _ in range(header.schema_count):
        number, kind, _, length = layout.META_FIELD.unpack_from(cursor.take(layout.META_FIELD.size))
        name = cursor.text(length)
        if kind not in layout.META_TYPE_NAMES or number in names or name in schema:
            raise CorruptLayoutError("the schema of a META payload contradicts itself", path=where or None)
        names[number], schema[name] = name, layout.META_TYPE_NAMES[kind]
    file_fields = {cursor.text(cursor.integer(2)): cursor.value() for _ in range(header.file_meta_count)}
    records = dict(_read_record(cursor, names, schema) for _ in range(header.record_count))
    if cursor.position != cursor.view.nbytes or len(records) != header.record_count:
        raise CorruptLayoutError("the records of a META payload do not fill it", path=where or None)
    base = None if header.flags & layout.META_SNAPSHOT else header.base_generation
    return MetaPayload(header.generation, base, schema, file_fields, records)


def _checked_header(view: memoryview, where: str) -> Row:
    if view.nbytes < layout.META_HEADER.size + _TAIL_BYTES:
        raise TruncatedError("a META payload is cut off", path=where or None)
    header = layout.META_HEADER.unpack_from(view)
    if header.magic != layout.META_MAGIC or header.version != layout.META_VERSION:
        raise CorruptLayoutError("this META layout is not supported (META v1 is)", path=where or None)
    if view[-_TAIL_BYTES:-_DIGEST_BYTES] != layout.META_END:
        raise TruncatedError("a META payload has no end mark", path=where or None)
    # The first releases hashed the end mark too.
    running = hashlib.sha256(view[:-_TAIL_BYTES])
    if running.digest() != view[-_DIGEST_BYTES:]:
        running.update(layout.META_END)
        if running.digest() != view[-_DIGEST_BYTES:]:
            raise ChecksumError("a META payload does not match its SHA-256", path=where or None)
    if (
        header.schema_count > layout.META_MAX_FIELDS
        or header.record_count > layout.META_MAX_RECORDS
        or header.record_count * layout.META_RECORD_HEAD.size > view.nbytes
        or (header.schema_count + header.file_meta_count) * 3 > view.nbytes
    ):
        raise LimitExceededError("a META payload announces more than it can hold", path=where or None)
    return header


def _read_record(
    cursor: _Cursor, names: Mapping[int, str], schema: Mapping[str, str]
) -> tuple[int, dict[str, Any] | None]:
    head = layout.META_RECORD_HEAD.unpack_from(cursor.take(layout.META_RECORD_HEAD.size))
    if head.op == layout.META_DELETE and not head.field_count:
        return head.vector_id, None
    if head.op != layout.META_UPSERT or head.field_count > len(names):
        raise CorruptLayoutError("a metadata record contradicts the schema", path=cursor.where)
    fields: dict[str, Any] = {}
    for _ in range(head.field_count):
        name = names.get(cursor.integer(2))
        if name is None:
            raise CorruptLayoutError("a metadata record names an unknown field", path=cursor.where)
        start = cursor.position
        fields[name] = cursor.value()
        allowed = (layout.META_TYPES[schema[name]], layout.VALUE_NULL, layout.VALUE_DELETE_FIELD)
        if cursor.view[start] not in allowed:
            raise CorruptLayoutError(f"a value of {name!r} contradicts the schema", path=cursor.where)
    return head.vector_id, fields


class _Cursor(Cursor):
    """A position in a META payload."""

    def text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise CorruptLayoutError("a metadata text is not UTF-8", path=self.where) from None

    def value(self) -> Any:
        tag = self.integer(1)
        kind = layout.META_TYPE_NAMES.get(tag, "")
        if kind == "str":
            return self.text(self.integer(4))
        if kind == "bytes":
            return bytes(self.take(self.integer(4)))
        if kind == "bool":
            return bool(self.integer(1))
        if kind:
            form = layout.VALUE_FORMS[kind]
            return form.unpack(self.take(form.size))[0]
        if tag in (layout.VALUE_NULL, layout.VALUE_DELETE_FIELD):
            return None if tag == layout.VALUE_NULL else DELETED
        raise CorruptLayoutError(f"unknown metadata value {tag}", path=self.where)


def unpack_value(data: bytes, where: str = "") -> Any:
    """One value from its bytes, which it must fill."""
    cursor = _Cursor(byte_view(data), where)
    value = cursor.value()
    if cursor.position != len(data):
        raise CorruptLayoutError("bytes follow a metadata value", path=where or None)
    return value


def fit_value(fields: dict[str, str], name: str, value: Any) -> Any:
    """A value in the type of its field, which a new field takes from it; SchemaMismatchError where it has another."""
    if hasattr(value, "item"):
        value = value.item()
    kind = type_of(value)
    wanted = fields.setdefault(name, kind)
    if kind == wanted:
        return value
    if wanted == "f64" and kind in ("i64", "u64"):
        return float(value)
    if wanted == "u64" and kind == "i64" and value >= 0:
        return value
    raise SchemaMismatchError(
        f"the metadata field {name!r} holds {wanted}, not {kind} ({value!r})",
        hint="Convert the value, or use another field name.",
    )


class MetaRecords:
    """Records of META v1 segments and journals, put together in their order."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._generation = 0
        self.fields: dict[str, str] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.notes: dict[str, Any] = {}
        self.is_used = False

    def apply(self, payload: MetaPayload) -> None:
        """A snapshot replaces everything, a change must follow the one before."""
        self.is_used = True
        if payload.is_snapshot:
            self.fields, self.records = {}, {}
        elif payload.base_generation != self._generation:
            raise CorruptLayoutError("a metadata change does not follow the one before", path=self._where)
        for name, kind in payload.schema.items():
            if self.fields.setdefault(name, kind) != kind:
                raise CorruptLayoutError(f"the metadata field {name!r} has two types", path=self._where)
        self._generation = payload.generation
        self.notes.update(payload.file_fields)
        for vector_id, fields in payload.records.items():
            if fields is None:
                self.records.pop(vector_id, None)
            else:
                self._merge(vector_id, fields)

    def apply_journal(self, entries: Iterable[Any]) -> None:
        """The metadata updates of a journal."""
        for entry in entries:
            if isinstance(entry, UpdateField):
                self.is_used = True
                value = unpack_value(entry.value, self._where)
                if value is not DELETED and value is not None:
                    try:
                        value = fit_value(self.fields, entry.key, value)
                    except SchemaMismatchError as error:
                        raise CorruptLayoutError(error.message, path=self._where) from None
                self._merge(entry.vector_id, {entry.key: value})

    def _merge(self, vector_id: int, fields: Mapping[str, Any]) -> None:
        record = self.records.setdefault(vector_id, {})
        for name, value in fields.items():
            record.pop(name, None)
            if value is not DELETED and value is not None:
                record[name] = value


Ids = NDArray[np.uint64]
Buffers = tuple["Buffer | None", ...]
"""Buffers of an Arrow array: validity (None without nulls), offsets for texts and bytes, values."""

_CRC_FIELD_BYTES = 4
_LONG_KINDS = ("str", "bytes")
_MAX_TEXT_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ColumnsHead:
    """The head of a payload: its ids, fields, notes of the file, and the place of each piece."""

    ids: Ids
    fields: dict[str, str]
    """Field name -> type name (str, bytes, i64, u64, f64, bool)."""
    notes: dict[str, Any]
    chunk_rows: int
    pieces: dict[str, list[Row]]
    """The pieces of each field, one per `chunk_rows` rows; offsets count from the payload."""

    def rows_of(self, chunk: int) -> int:
        """How many rows a piece has."""
        return min(self.chunk_rows, len(self.ids) - chunk * self.chunk_rows)


def encode_columns(
    ids: Ids,
    fields: Mapping[str, str],
    pieces: Mapping[str, Sequence[tuple[Buffers, int]]],
    notes: Mapping[str, Any],
) -> bytes:
    """A payload of these rows, ids ascending; each piece is the buffers of its rows and how many are null."""
    rows = layout.COLUMN_CHUNK_ROWS
    flags, coded = _encode_ids(ids)
    texts = [
        [name, type_of(value), value.hex() if isinstance(value, bytes) else str(value)]
        for name, value in sorted(notes.items())
    ]
    schema = dump_json({"fields": [[name, kind] for name, kind in fields.items()], "notes": texts})
    count = sum(len(pieces[name]) for name in fields)
    start = align_up(
        layout.COLUMNS_HEAD.size + len(schema) + len(coded) + count * layout.COLUMN_PIECE.size, 8
    )
    body, directory = bytearray(), bytearray()
    for name, kind in fields.items():
        for chunk, (buffers, nulls) in enumerate(pieces[name]):
            packed = _pack_piece(kind, min(rows, len(ids) - chunk * rows), buffers, nulls)
            offset = start + len(body)
            if offset + len(packed) > layout.MAX_PAYLOAD_BYTES:
                raise LimitExceededError("a META segment holds less than 4 GiB")
            directory += layout.COLUMN_PIECE.pack(offset, len(packed), nulls, crc32c(packed))
            body += packed
    fixed = (layout.COLUMNS_MAGIC, layout.COLUMNS_VERSION, flags, rows, len(ids))
    head = layout.COLUMNS_HEAD.pack(*fixed, len(schema), len(coded), len(fields), 0)[:-_CRC_FIELD_BYTES]
    tail = schema + coded + bytes(directory)
    crc = crc32c(head + tail).to_bytes(_CRC_FIELD_BYTES, "little")
    return (head + crc + tail).ljust(start, b"\0") + bytes(body)


def _encode_ids(ids: Ids) -> tuple[int, bytes]:
    """Runs of (first id, count), or delta varints where those are shorter."""
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    starts = np.concatenate(([0], breaks)) if len(ids) else breaks
    if 16 * len(starts) > len(ids):
        return 0, varint.encode_varints(varint.delta_encode(ids))
    lengths = np.diff(np.append(starts, len(ids)))
    return layout.COLUMNS_ID_RUNS, np.stack([ids[starts], lengths.astype(np.uint64)], 1).astype(
        "<u8"
    ).tobytes()


def _note_value(kind: str, text: str) -> Any:
    if kind in ("i64", "u64", "f64"):
        return float(text) if kind == "f64" else int(text)
    return {"bytes": bytes.fromhex, "bool": "True".__eq__}.get(kind, str)(text)


def _sizes(kind: str, rows: int, nulls: int) -> tuple[int, int, int]:
    """Bytes of validity, offsets and values of a piece; the values of texts and bytes take the rest (-1)."""
    bits = (rows + 7) // 8
    validity = align_up(bits, 8) if nulls else 0
    if kind in _LONG_KINDS:
        return validity, align_up(4 * (rows + 1), 8), -1
    return validity, 0, bits if kind == "bool" else 8 * rows


def _pack_piece(kind: str, rows: int, buffers: Buffers, nulls: int) -> bytes:
    if nulls == rows:
        return b""
    validity, offsets, _ = _sizes(kind, rows, nulls)
    bits = (rows + 7) // 8
    out = b""
    if nulls and buffers[0] is not None:
        out = bytes(byte_view(buffers[0])[:bits]).ljust(validity, b"\0")
    values = b"" if buffers[-1] is None else byte_view(buffers[-1])
    if kind in _LONG_KINDS and buffers[1] is not None:
        places = byte_view(buffers[1])[: 4 * (rows + 1)]
        size = int.from_bytes(places[-4:], "little")
        return out + bytes(places).ljust(offsets, b"\0") + bytes(values[:size])
    return out + bytes(values[: bits if kind == "bool" else 8 * rows])


def read_head(data: Buffer, payload_bytes: int, where: str = "") -> ColumnsHead | int:
    """The checked head at the start of a payload, or how many bytes of it are needed."""
    view = byte_view(data)
    if view.nbytes < layout.COLUMNS_HEAD.size:
        raise TruncatedError("a META payload has no header", path=where or None)
    head = layout.COLUMNS_HEAD.unpack_from(view)
    is_known = head.magic == layout.COLUMNS_MAGIC and head.version == layout.COLUMNS_VERSION
    if not is_known or head.chunk_rows % 8:
        raise CorruptLayoutError("unknown layout of metadata columns", path=where or None)
    chunks = -(-head.row_count // head.chunk_rows) if head.chunk_rows else 0
    starts = [layout.COLUMNS_HEAD.size, head.schema_bytes, head.id_bytes]
    schema_at, ids_at, pieces_at = np.cumsum(np.array(starts, object)).tolist()
    end = pieces_at + head.column_count * chunks * layout.COLUMN_PIECE.size
    if end > payload_bytes or not head.chunk_rows:
        raise LimitExceededError("a META payload announces more than it can hold", path=where or None)
    if view.nbytes < end:
        return int(end)
    fixed = layout.COLUMNS_HEAD.size - _CRC_FIELD_BYTES
    if crc32c(b"".join((view[:fixed], view[layout.COLUMNS_HEAD.size : end]))) != head.head_crc:
        raise ChecksumError("the head of metadata columns does not match its checksum", path=where or None)
    ids = _decode_ids(view[ids_at:pieces_at], head, where)
    try:
        schema = parse_json_object(view[schema_at:ids_at])
        fields = {str(name): str(kind) for name, kind in schema["fields"]}
        notes = {str(name): _note_value(kind, text) for name, kind, text in schema["notes"]}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptLayoutError(f"the schema of metadata is damaged ({error})", path=where or None) from None
    if len(fields) != head.column_count or not set(fields.values()) <= set(layout.META_TYPES):
        raise CorruptLayoutError("the schema of metadata contradicts itself", path=where or None)
    listed = list(layout.COLUMN_PIECE.iter_unpack(view[pieces_at:end]))
    for piece in listed:
        if piece.offset + piece.size > payload_bytes or piece.offset < end:
            raise CorruptLayoutError(
                "a piece of a metadata column is outside its segment", path=where or None
            )
    pieces = {name: listed[at * chunks : (at + 1) * chunks] for at, name in enumerate(fields)}
    return ColumnsHead(ids, fields, notes, head.chunk_rows, pieces)


def _decode_ids(data: memoryview, head: Row, where: str) -> Ids:
    """The ids of the rows: ascending, as many as the head counts."""
    if head.flags & layout.COLUMNS_ID_RUNS:
        if data.nbytes % 16:
            raise CorruptLayoutError("the ids of metadata are cut off", path=where or None)
        runs = np.frombuffer(data, "<u8").reshape(-1, 2)
        lengths = runs[:, 1]
        if (lengths > head.row_count).any() or int(lengths.astype(object).sum()) != head.row_count:
            raise CorruptLayoutError("the ids of metadata do not fit its rows", path=where or None)
        if head.row_count > layout.MAX_VECTORS:
            raise LimitExceededError(f"metadata of {head.row_count} vectors", path=where or None)
        counts = lengths.astype(np.int64)
        before = np.cumsum(counts) - counts
        ids = np.repeat(runs[:, 0] - before.astype(np.uint64), counts)
        ids = ids + np.arange(head.row_count, dtype=np.uint64)
    else:
        if head.row_count > data.nbytes:
            raise LimitExceededError(f"{head.row_count} ids in {data.nbytes} bytes", path=where or None)
        ids = varint.delta_decode(varint.decode_varints(data, head.row_count))
    check_ids(ids, where)
    if (ids[1:] <= ids[:-1]).any():
        raise CorruptLayoutError("the ids of metadata do not ascend", path=where or None)
    return ids


def join_pieces(kind: str, pieces: Iterable[tuple[Buffer, int, Row]], where: str = "") -> Buffers:
    """The Arrow buffers of some pieces as one array, checked; each piece comes with its bytes and its rows."""
    is_long, has_nulls, total = kind in _LONG_KINDS, False, 0
    valid: list[Buffer] = []
    values: list[Buffer] = []
    places: list[NDArray[np.int32]] = [np.zeros(1, np.int32)]
    sizes = [(1, 0)]
    for data, rows, piece in pieces:
        view, bits = byte_view(data), (rows + 7) // 8
        if crc32c(view) != piece.crc:
            raise ChecksumError("a metadata column does not match its checksum", path=where or None)
        validity, offsets, size = _sizes(kind, rows, piece.nulls)
        start, has_nulls = validity + offsets, has_nulls or bool(piece.nulls)
        if piece.nulls >= rows:
            view = byte_view(bytes(start + max(0, size)))
        if view.nbytes < start or (size >= 0 and view.nbytes - start != size):
            raise CorruptLayoutError("a piece of a metadata column has a wrong size", path=where or None)
        valid.append(view[:bits] if validity else b"\xff" * bits)
        values.append(view[start:])
        if is_long:
            ends = np.frombuffer(view[validity : validity + 4 * (rows + 1)], "<i4")
            if ends[0] != 0 or ends[-1] != view.nbytes - start:
                raise CorruptLayoutError("the offsets of a metadata column are damaged", path=where or None)
            places.append(ends[1:])
            sizes.append((rows, total))
            total += view.nbytes - start
    joined = (b"".join(valid) if has_nulls else None, b"".join(values))
    if not is_long:
        return joined
    if total > _MAX_TEXT_BYTES:
        raise LimitExceededError(f"{total} bytes in one metadata column", path=where or None)
    rows_of, before = np.array(sizes, np.int32).T
    bounds = np.concatenate(places) + np.repeat(before, rows_of)
    if (bounds[1:] < bounds[:-1]).any():
        raise CorruptLayoutError("the offsets of a metadata column are damaged", path=where or None)
    return joined[0], bounds.tobytes(), joined[1]


def decode_columns(payload: Buffer, where: str = "") -> ColumnsHead:
    """The head of a payload, once every piece of it was checked."""
    view = byte_view(payload)
    head = read_head(view, view.nbytes, where)
    if isinstance(head, int):
        raise TruncatedError("a META payload is cut off", path=where or None)
    for name, pieces in head.pieces.items():
        parts = [
            (view[piece.offset : piece.offset + piece.size], head.rows_of(chunk), piece)
            for chunk, piece in enumerate(pieces)
        ]
        join_pieces(head.fields[name], parts, where)
    return head
