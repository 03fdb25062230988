"""META v1 payloads of shipped programs and of our first releases: typed fields per vector."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import byte_view
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    TruncatedError,
)
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.journal import UpdateField
from warpdata.formats.rvf.layout import Row

if TYPE_CHECKING:
    from typing_extensions import Buffer

Value = str | bytes | int | float | bool | None
_DIGEST_BYTES = 32
_TAIL_BYTES = len(layout.META_END) + _DIGEST_BYTES
_U64_MAX = (1 << 64) - 1


class DeletedField:
    """The value of a field that a change removes."""


DELETED = DeletedField()


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


class _Cursor:
    """A position in a META payload that never goes past its end."""

    def __init__(self, view: memoryview, where: str, position: int = 0) -> None:
        self.view, self.position, self.where = view, position, where or None

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > self.view.nbytes:
            raise TruncatedError("a META payload is cut off", path=self.where)
        taken, self.position = self.view[self.position : end], end
        return taken

    def integer(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

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
