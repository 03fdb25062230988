"""META payloads ("META v1"): typed fields per vector, as a snapshot or as a change of the one before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import ChecksumError, CorruptLayoutError, LimitExceededError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.cursor import PayloadCursor
from warpdata.formats.rvf.segments.layout import MetaHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

Value = str | bytes | int | float | bool | None
Fields = Mapping[str, Value]
_DIGEST_BYTES = 32
_WHAT = "a META payload"
_U64_MAX = (1 << 64) - 1


class DeletedField:
    """The value of a field that a change takes away."""


DELETED = DeletedField()
REMOVED_FIELD = bytes([records.VALUE_DELETE_FIELD])
"""Its bytes."""


_OF_ANY_TYPE = (records.VALUE_NULL, records.VALUE_DELETE_FIELD)


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
        if not value.isascii():
            _check_text(value)
        return "str"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, int):
        if -(1 << 63) <= value < (1 << 63):
            return "i64"
        if value <= _U64_MAX and value > 0:
            return "u64"
        raise ValueError(f"the integer {value} does not fit in 64 bits")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"metadata holds finite numbers, not {value}")
        return "f64"
    raise TypeError(f"metadata holds str, bytes, int, float and bool, not {type(value).__name__}")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text {value!r} is not valid Unicode") from None


def pack_value(value: Value, kind: str) -> bytes:
    """The bytes of a value of a field of this type."""
    if value is None:
        return bytes([records.VALUE_NULL])
    tag = bytes([records.META_TYPES[kind]])
    if kind in ("str", "bytes"):
        raw = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]
        if len(raw) > records.META_MAX_VALUE_BYTES:
            raise ValueError(f"a metadata value of {len(raw)} bytes; at most 16 MiB fit")
        return tag + layout.COUNT_U32.pack(len(raw)) + raw
    if kind == "bool":
        return tag + bytes([bool(value)])
    form = {"i64": records.VALUE_I64, "u64": records.VALUE_U64, "f64": records.VALUE_F64}[kind]
    return tag + form.pack(value)


def encode_meta(payload: MetaPayload) -> bytes:
    """A META payload with its end mark and SHA-256."""
    if len(payload.schema) > records.META_MAX_FIELDS or len(payload.records) > records.META_MAX_RECORDS:
        raise LimitExceededError(
            f"metadata of {len(payload.records)} vectors in {len(payload.schema)} fields",
            hint="Keep large tables in parquet, and their row numbers as ids here.",
        )
    out = bytearray(
        records.META_HEADER.pack(
            records.META_MAGIC, records.META_VERSION, records.META_SNAPSHOT if payload.is_snapshot else 0,
            payload.generation,
            records.META_NO_BASE if payload.base_generation is None else payload.base_generation,
            len(payload.schema), len(payload.file_fields), len(payload.records),
        )
    )  # fmt: skip
    numbers = {name: number for number, name in enumerate(payload.schema)}
    for name, kind in payload.schema.items():
        raw = name.encode()
        out += records.META_FIELD.pack(numbers[name], records.META_TYPES[kind], 1, len(raw)) + raw
    for key in sorted(payload.file_fields):
        raw, value = key.encode(), payload.file_fields[key]
        out += layout.COUNT_U16.pack(len(raw)) + raw
        out += pack_value(value, "str" if value is None else type_of(value))
    for vector_id in sorted(payload.records):
        out += _pack_record(vector_id, payload.records[vector_id], payload.schema, numbers)
    digest = hashlib.sha256(out).digest()
    return bytes(out) + records.META_END + digest


def _pack_record(
    vector_id: int, fields: dict[str, Any] | None, schema: Mapping[str, str], numbers: Mapping[str, int]
) -> bytes:
    if fields is None:
        return records.META_RECORD_HEAD.pack(vector_id, records.META_DELETE, 0)
    out = bytearray(records.META_RECORD_HEAD.pack(vector_id, records.META_UPSERT, len(fields)))
    for name in sorted(fields, key=numbers.__getitem__):
        value = fields[name]
        out += layout.COUNT_U16.pack(numbers[name])
        out += REMOVED_FIELD if value is DELETED else pack_value(value, schema[name])
    return bytes(out)


def decode_meta(payload: Buffer, where: str = "") -> MetaPayload:
    """The fields of a META payload; its end mark and SHA-256 are checked first."""
    view = byte_view(payload)
    header = _checked_header(view, where)
    body = view[: view.nbytes - len(records.META_END) - _DIGEST_BYTES]
    cursor = _MetaCursor(body, _WHAT, where, records.META_HEADER.size)
    names, schema = _read_schema(cursor, header.schema_count)
    file_fields = {cursor.text(2): cursor.value() for _ in range(header.file_meta_count)}
    found = dict(_read_records(cursor, header.record_count, names, schema))
    if cursor.position != cursor.view.nbytes or len(found) != header.record_count:
        raise CorruptLayoutError("the records of a META payload do not fill it", path=where or None)
    base = None if header.flags & records.META_SNAPSHOT else header.base_generation
    return MetaPayload(header.generation, base, schema, file_fields, found)


def _checked_header(view: memoryview, where: str) -> MetaHeader:
    tail = len(records.META_END) + _DIGEST_BYTES
    if view.nbytes < records.META_HEADER.size + tail:
        raise TruncatedError("a META payload is cut off", path=where or None)
    header = MetaHeader._make(records.META_HEADER.unpack_from(view))
    if header.magic != records.META_MAGIC or header.version != records.META_VERSION:
        raise CorruptLayoutError("this META layout is not supported (META v1 is)", path=where or None)
    if view[-tail:-_DIGEST_BYTES] != records.META_END:
        raise TruncatedError("a META payload has no end mark", path=where or None)
    if not _hash_matches(view, tail):
        raise ChecksumError("a META payload does not match its SHA-256", path=where or None)
    if (
        header.schema_count > records.META_MAX_FIELDS
        or header.record_count > records.META_MAX_RECORDS
        or header.record_count * records.META_RECORD_HEAD.size > view.nbytes
        or (header.schema_count + header.file_meta_count) * 3 > view.nbytes
    ):
        raise LimitExceededError("a META payload announces more than it can hold", path=where or None)
    return header


def _hash_matches(view: memoryview, tail: int) -> bool:
    """Whether the hash is that of what comes before the end mark; the first releases hashed the mark too."""
    running = hashlib.sha256(view[:-tail])
    if running.digest() == view[-_DIGEST_BYTES:]:
        return True
    running.update(view[-tail:-_DIGEST_BYTES])
    return running.digest() == view[-_DIGEST_BYTES:]


def _read_schema(cursor: _MetaCursor, count: int) -> tuple[dict[int, str], dict[str, str]]:
    names: dict[int, str] = {}
    schema: dict[str, str] = {}
    for _ in range(count):
        number, kind, _, length = records.META_FIELD.unpack(cursor.take(records.META_FIELD.size))
        name = cursor.decoded(length)
        if kind not in records.META_TYPE_NAMES or number in names or name in schema:
            raise CorruptLayoutError("the schema of a META payload contradicts itself", path=cursor.where)
        names[number] = name
        schema[name] = records.META_TYPE_NAMES[kind]
    return names, schema


def _read_records(
    cursor: _MetaCursor, count: int, names: Mapping[int, str], schema: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    for _ in range(count):
        vector_id, op, fields = records.META_RECORD_HEAD.unpack(cursor.take(records.META_RECORD_HEAD.size))
        if op == records.META_DELETE and not fields:
            yield vector_id, None
            continue
        if op != records.META_UPSERT or fields > len(names):
            raise CorruptLayoutError("a metadata record contradicts the schema", path=cursor.where)
        found: dict[str, Any] = {}
        for _ in range(fields):
            name = names.get(layout.COUNT_U16.unpack(cursor.take(2))[0])
            if name is None:
                raise CorruptLayoutError("a metadata record names an unknown field", path=cursor.where)
            start = cursor.position
            found[name] = cursor.value()
            if cursor.view[start] not in (records.META_TYPES[schema[name]], *_OF_ANY_TYPE):
                raise CorruptLayoutError(f"a value of {name!r} contradicts the schema", path=cursor.where)
        yield vector_id, found


class _MetaCursor(PayloadCursor):
    """Reads texts and values."""

    def decoded(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise CorruptLayoutError("a metadata text is not UTF-8", path=self.where) from None

    def text(self, width: int) -> str:
        return self.decoded(int.from_bytes(self.take(width), "little"))

    def value(self) -> Any:
        tag = self.take(1)[0]
        if tag == records.META_TYPES["str"]:
            return self.text(4)
        if tag == records.META_TYPES["bytes"]:
            return bytes(self.take(int.from_bytes(self.take(4), "little")))
        if tag == records.META_TYPES["i64"]:
            return records.VALUE_I64.unpack(self.take(8))[0]
        if tag == records.META_TYPES["u64"]:
            return records.VALUE_U64.unpack(self.take(8))[0]
        if tag == records.META_TYPES["f64"]:
            return records.VALUE_F64.unpack(self.take(8))[0]
        if tag == records.META_TYPES["bool"]:
            return bool(self.take(1)[0])
        if tag == records.VALUE_NULL:
            return None
        if tag == records.VALUE_DELETE_FIELD:
            return DELETED
        raise CorruptLayoutError(f"unknown metadata value {tag}", path=self.where)


def unpack_value(data: bytes, where: str = "") -> Any:
    """One value from its bytes, which it must fill."""
    cursor = _MetaCursor(byte_view(data), _WHAT, where)
    value = cursor.value()
    if cursor.position != len(data):
        raise CorruptLayoutError("bytes follow a metadata value", path=where or None)
    return value
