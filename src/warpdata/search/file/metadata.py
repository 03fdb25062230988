"""Metadata of a store as Arrow columns: read by column and row, filtered by SQL, changed by appended segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import SegmentOptions, unpack_header
from warpdata.formats.rvf.layout import Flag, Row, SegmentType
from warpdata.formats.rvf.meta import (
    Buffers,
    ColumnsHead,
    MetaPayload,
    MetaRecords,
    decode_meta,
    encode_columns,
    fit_value,
    join_pieces,
    read_head,
)
from warpdata.formats.rvf.reader import check_against_directory
from warpdata.formats.rvf.writer import NewSegment

if TYPE_CHECKING:
    from warpdata.search.file.content import Content

Ids = NDArray[np.uint64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Record = dict[str, Any]

ID_FIELD = "id"
"""The column of vector ids in conditions; no metadata field has this name."""
SEGMENT_ROWS = 1 << 18
"""Rows of one META segment; a segment stays well below what it may hold."""
_FIRST_READ_BYTES = 32 << 10
_SMALL_BYTES = 64 << 10
"""A smaller segment is read whole, and checked by its hash."""
_KEPT_MASKS = 32
ARROW_TYPES: dict[str, Any] = {
    "str": pa.string(),
    "bytes": pa.binary(),
    "i64": pa.int64(),
    "u64": pa.uint64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
}


class _Source:
    """Rows of metadata in ascending order of id, held in memory: records of META v1 and of journals."""

    def __init__(self, records: Mapping[int, Record], fields: dict[str, str], notes: dict[str, Any]) -> None:
        self.fields, self.notes = fields, notes
        keys = sorted(records)
        self.ids: Ids = np.array(keys, np.uint64)
        self._columns = {
            name: pa.array([records[key].get(name) for key in keys], ARROW_TYPES[kind])
            for name, kind in fields.items()
        }

    def column(self, name: str) -> pa.Array:
        """All values of a field."""
        return self._columns[name]

    def take(self, name: str, rows: Ints) -> pa.Array:
        """The values of some rows."""
        return self._columns[name].take(pa.array(rows))


class _Segment(_Source):
    """A META segment of columns; the head is read at once, columns and pieces when they are needed."""

    def __init__(self, content: Content | None, entry: Row, payload: memoryview | None = None) -> None:
        """A segment of a file, or one that was just written, by its payload."""
        self._entry, self._payload, self._columns = entry, payload, {}
        self._where = ""
        if content is not None:
            self._reader, self._where = content.reader, content.reader.name
            is_plain = not entry.flags & (Flag.COMPRESSED | Flag.ENCRYPTED)
            if not is_plain or entry.payload_length <= _SMALL_BYTES:
                self._payload = content.read(entry)
        size, needed = (
            entry.payload_length if self._payload is None else len(self._payload),
            _FIRST_READ_BYTES,
        )
        for _ in range(2):
            data = self._payload
            if data is None:
                end = entry.file_offset + layout.HEADER_BYTES + min(size, needed)
                data = self._reader.read(entry.file_offset, end)
                check_against_directory(unpack_header(data, self._where), entry, self._where)
                data = data[layout.HEADER_BYTES :]
            head = read_head(data, size, self._where)
            if isinstance(head, ColumnsHead):
                break
            needed = head
        else:
            raise TruncatedError("the head of metadata columns is cut off", path=self._where)
        self._head = head
        self.ids, self.fields, self.notes = self._head.ids, self._head.fields, self._head.notes

    def _read(self, name: str, chunks: Sequence[int]) -> pa.Array:
        """Some pieces of a column as one array."""
        pieces = [self._head.pieces[name][chunk] for chunk in chunks]
        if self._payload is None:
            start = self._entry.file_offset + layout.HEADER_BYTES
            ranges = [(start + piece.offset, start + piece.offset + piece.size) for piece in pieces]
            data = self._reader.read_many(ranges)
        else:
            data = [self._payload[piece.offset : piece.offset + piece.size] for piece in pieces]
        rows = [self._head.rows_of(chunk) for chunk in chunks]
        buffers = join_pieces(self.fields[name], zip(data, rows, pieces, strict=True), self._where)
        held = [None if each is None else pa.py_buffer(each) for each in buffers]
        whole = pa.Array.from_buffers(ARROW_TYPES[self.fields[name]], sum(rows), held)
        try:
            whole.validate(full=True)
        except pa.ArrowException as error:
            raise CorruptLayoutError(f"a metadata column is damaged ({error})", path=self._where) from None
        return whole

    def column(self, name: str) -> pa.Array:
        """All values of a field, read once."""
        if name not in self._columns:
            self._columns[name] = self._read(name, range(len(self._head.pieces[name])))
        return self._columns[name]

    def take(self, name: str, rows: Ints) -> pa.Array:
        """The values of some rows; only their pieces are read."""
        chunks, which = np.unique(rows // self._head.chunk_rows, return_inverse=True)
        if name in self._columns or 2 * len(chunks) > len(self._head.pieces[name]):
            return self.column(name).take(pa.array(rows))
        starts = np.cumsum([0, *(self._head.rows_of(int(chunk)) for chunk in chunks[:-1])])
        return self._read(name, chunks.tolist()).take(pa.array(starts[which] + rows % self._head.chunk_rows))


class Metadata:
    """What is known about each vector besides its numbers; newer segments replace the rows of older ones."""

    def __init__(
        self, sources: Sequence[_Source], where: str = "", fields: Mapping[str, str] | None = None
    ) -> None:
        self.sources = list(sources)
        self._where = where
        self._fields = dict(fields or {})
        self._masks: dict[str, tuple[Ids, Mask]] = {}
        self._joined: dict[str, tuple[Ids, pa.Array]] = {}

    @classmethod
    def of(cls, content: Content) -> Metadata:
        """The metadata of a committed state."""
        old = MetaRecords(content.reader.name)
        segments = []
        for entry in content.snapshot.segments:
            if entry.seg_type == SegmentType.META and content.is_columns(entry):
                segments.append(_Segment(content, entry))
            elif entry.seg_type == SegmentType.META:
                old.apply(decode_meta(content.read(entry), content.reader.name))
            elif entry.seg_type == SegmentType.JOURNAL:
                old.apply_journal(content.journal(entry).entries)
        first = [_Source(old.records, old.fields, old.notes)] if old.is_used else []
        return cls([*first, *segments], content.reader.name)

    @classmethod
    def of_segments(cls, content: Content, entries: Sequence[Row]) -> Metadata:
        """The metadata of some segments of columns alone."""
        return cls([_Segment(content, entry) for entry in entries], content.reader.name)

    @cached_property
    def fields(self) -> dict[str, str]:
        """Field name -> type name (str, bytes, i64, u64, f64, bool)."""
        fields = dict(self._fields)
        for source in self.sources:
            for name, kind in source.fields.items():
                if fields.setdefault(name, kind) != kind:
                    raise CorruptLayoutError(f"the metadata field {name!r} has two types", path=self._where)
        return fields

    @property
    def notes(self) -> dict[str, Any]:
        """Notes about the file as a whole."""
        return {name: value for source in self.sources for name, value in source.notes.items()}

    def with_segment(self, payload: bytes) -> Metadata:
        """This metadata once a segment is committed behind it."""
        return Metadata([*self.sources, _Segment(None, None, memoryview(payload))], self._where)

    # -- reading -------------------------------------------------------------------------------------

    def _locate(self, ids: Ids) -> tuple[Ints, Ints]:
        """The newest source that lists each id (-1 for none), and the row in it."""
        owner, rows = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64)
        for number in range(len(self.sources) - 1, -1, -1):
            known = self.sources[number].ids
            if len(known) == len(ids) and np.array_equal(
                known, ids
            ):  # all of them, as in a file just rewritten
                return np.where(owner < 0, number, owner), np.where(owner < 0, np.arange(len(ids)), rows)
            left = np.flatnonzero(owner < 0)
            if not len(left) or not len(known):
                continue
            at = np.minimum(np.searchsorted(known, ids[left]), len(known) - 1)
            hit = known[at] == ids[left]
            owner[left[hit]], rows[left[hit]] = number, at[hit]
        return owner, rows

    def has(self, ids: Ids) -> Mask:
        """Which ids have a row, though it may be empty."""
        return np.asarray(self._locate(ids)[0] >= 0)

    def records(self, ids: Ids, columns: Sequence[str] | None = None) -> list[Record]:
        """The fields of each id that have a value; only the pieces of these rows are read."""
        wanted = list(self.fields) if columns is None else list(columns)
        for name in wanted:
            if name not in self.fields:
                known = ", ".join(self.fields) or "none"
                raise KeyError(f"no metadata field {name!r}; the fields are: {known}")
        owner, rows = self._locate(ids)
        out: list[Record] = [{} for _ in range(len(ids))]
        for number in np.unique(owner[owner >= 0]).tolist():
            source, mine = self.sources[number], np.flatnonzero(owner == number)
            unique, which = np.unique(rows[mine], return_inverse=True)
            for name in wanted:
                if name in source.fields:
                    values = source.take(name, unique).to_pylist()
                    for at, place in zip(mine.tolist(), which.tolist(), strict=True):
                        if values[place] is not None:
                            out[at][name] = values[place]
        return out

    def column(self, name: str, ids: Ids) -> pa.Array:
        """The values of a field for many ids, null where it is missing; kept for the next condition."""
        kept = self._joined.get(name)
        if kept is not None and kept[0] is ids:
            return kept[1]
        if len(self.sources) == 1 and np.array_equal(self.sources[0].ids, ids):
            self._joined[name] = (ids, self.sources[0].column(name))
            return self._joined[name][1]
        owner, rows = self._locate(ids)
        parts, offsets, total = [], np.zeros(len(self.sources) + 1, np.int64), 0
        for number, source in enumerate(self.sources):
            offsets[number] = total if name in source.fields else -1
            if name in source.fields and (owner == number).any():
                parts.append(source.column(name))
                total += len(source.ids)
        offsets[-1] = -1
        base = offsets[owner]
        missing = (owner < 0) | (base < 0)
        values = pa.concat_arrays([*parts, pa.array([], ARROW_TYPES[self.fields[name]])])
        array = values.take(pa.array(np.where(missing, 0, base + rows), mask=missing))
        self._joined[name] = (ids, array)
        return array

    def mask(self, condition: str, ids: Ids) -> Mask:
        """Which of these ids satisfy an SQL condition; a field without a value is null."""
        from warpdata.sql.engine import matching_rows, parse_condition

        kept = self._masks.get(condition)
        if kept is not None and kept[0] is ids:
            return kept[1]
        names = [ID_FIELD, *self.fields]
        used = set(parse_condition(condition).columns_of(names))
        table = {ID_FIELD: pa.array(ids.astype(np.int64))}
        for name, kind in self.fields.items():
            is_used = name in used
            table[name] = self.column(name, ids) if is_used else pa.nulls(len(ids), ARROW_TYPES[kind])
        mask = np.zeros(len(ids), bool)
        mask[matching_rows(pa.table(table), condition)] = True
        if len(self._masks) >= _KEPT_MASKS:
            self._masks.clear()
        self._masks[condition] = (ids, mask)
        return mask

    # -- writing -------------------------------------------------------------------------------------

    def checked(self, rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], list[Record]]:
        """New records in the types of the fields, and all fields with their types; a conflict is an error."""
        fields = dict(self.fields)
        out = []
        for row in rows:
            record = {}
            for name, value in row.items():
                if not isinstance(name, str) or not name or len(name.encode()) > 4096 or name == ID_FIELD:
                    raise ValueError(f"{name!r} cannot be the name of a metadata field")
                if value is not None:
                    record[name] = fit_value(fields, name, value)
            out.append(record)
        return fields, out

    def added(
        self, ids: Ids, rows: Sequence[Mapping[str, Any]] | None, notes: Mapping[str, Any]
    ) -> bytes | None:
        """The segment for new vectors; ids that have metadata lose it. None if there is nothing to write."""
        fields, records = self.checked(rows or [])
        if rows is None:
            ids = np.sort(ids[self.has(ids)])
            records = [{}] * len(ids)
        else:
            order = np.argsort(ids)
            ids, records = ids[order], [records[at] for at in order.tolist()]
        changed = {name: value for name, value in notes.items() if self.notes.get(name) != value}
        if not len(ids) and not changed:
            return None
        return encode_records(ids, records, fields, changed)

    def updated(self, ids: Ids, rows: Sequence[Mapping[str, Any]]) -> bytes | None:
        """The segment that sets these fields; a field set to None is removed. An id may come twice."""
        fields, checked = self.checked(rows)
        unique, which = np.unique(ids, return_inverse=True)
        records = self.records(unique)
        for at, row, new in zip(which.tolist(), rows, checked, strict=True):
            for name in row:
                records[at].pop(name, None)
            records[at].update(new)
        return encode_records(unique, records, fields, {}) if any(rows) else None

    def rewritten(self, ids: Ids) -> Iterator[bytes]:
        """Segments that stand for all metadata of these vectors, in ascending order of id."""
        if not (self.fields or self.notes):
            return
        ordered = np.sort(ids)
        for start in range(0, max(1, len(ordered)), SEGMENT_ROWS):
            part = ordered[start : start + SEGMENT_ROWS]
            columns = {name: self.column(name, part) for name in self.fields}
            yield _encode(part, self.fields, columns, {} if start else self.notes)

    def merged(self) -> bytes:
        """All rows of these segments as one segment: the newest row of each id."""
        ids = np.unique(np.concatenate([np.zeros(0, np.uint64), *(source.ids for source in self.sources)]))
        return _encode(ids, self.fields, {name: self.column(name, ids) for name in self.fields}, self.notes)

    def payload_v1(self, ids: Ids) -> MetaPayload | None:
        """The metadata of these vectors as shipped programs read it."""
        if not (self.fields or self.notes):
            return None
        records = zip(ids.tolist(), self.records(ids), strict=True)
        kept: dict[int, Record | None] = {key: record for key, record in records if record}
        return MetaPayload(1, None, dict(self.fields), self.notes, kept)


def encode_records(
    ids: Ids, records: Sequence[Record], fields: Mapping[str, str], notes: Mapping[str, Any]
) -> bytes:
    """A segment of these records, ids ascending, with the fields that any of them has."""
    used = {name: kind for name, kind in fields.items() if any(name in record for record in records)}
    columns = {
        name: pa.array([record.get(name) for record in records], ARROW_TYPES[kind])
        for name, kind in used.items()
    }
    return _encode(ids, used, columns, notes)


def _encode(
    ids: Ids, fields: Mapping[str, str], columns: Mapping[str, Any], notes: Mapping[str, Any]
) -> bytes:
    step = layout.COLUMN_CHUNK_ROWS
    pieces: dict[str, list[tuple[Buffers, int]]] = {}
    for name in fields:
        pieces[name] = []
        for start in range(0, len(ids), step):
            part = pa.concat_arrays(
                [columns[name].slice(start, step)]
            )  # a copy, whose buffers begin with its rows
            pieces[name].append((tuple(part.buffers()), part.null_count))
    return encode_columns(ids, fields, pieces, notes)


def meta_segment(payload: bytes, *, is_whole: bool = False, timestamp_ns: int = 0) -> NewSegment:
    """A META segment; a flag marks one that stands for everything before it."""
    options = SegmentOptions(flags=Flag.SNAPSHOT if is_whole else 0, timestamp_ns=timestamp_ns)
    return NewSegment(SegmentType.META, payload, options)
