"""Metadata of a store: records by vector id, a fixed schema, rows that satisfy a condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.formats.rvf import layout, meta
from warpdata.formats.rvf.journal import UpdateField
from warpdata.formats.rvf.meta import DELETED, MetaPayload

_META_RECORDS = 1 << 18
"""Records of one META segment; a few of them stay well below what a segment may hold."""
ID_FIELD = "id"
"""The column of vector ids in conditions; no metadata field has this name."""


class MetadataTable:
    """What is known about each vector besides its numbers."""

    def __init__(self) -> None:
        self.schema: dict[str, str] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.file_fields: dict[str, Any] = {}
        self.generation = 0
        self.delta_count = 0
        """How many changes hang on the newest snapshot."""

    def apply(self, payload: MetaPayload, where: str = "") -> None:
        """Take over a META segment: a snapshot replaces everything, a change must follow the one before."""
        if payload.is_snapshot:
            self.schema, self.records, self.delta_count = {}, {}, 0
        elif payload.base_generation != self.generation:
            raise CorruptLayoutError("a metadata change does not follow the one before", path=where or None)
        else:
            self.delta_count += 1
        for name, kind in payload.schema.items():
            if self.schema.setdefault(name, kind) != kind:
                raise CorruptLayoutError(f"the metadata field {name!r} has two types", path=where or None)
        self.generation = payload.generation
        self.file_fields.update(payload.file_fields)
        for vector_id, fields in payload.records.items():
            self._merge(vector_id, fields)

    def apply_update(self, update: UpdateField, where: str = "") -> None:
        """Take over a metadata update of a journal."""
        value = meta.unpack_value(update.value, where)
        if value is not DELETED and value is not None:
            try:
                value = _fitted(self.schema, update.key, value)
            except SchemaMismatchError as error:
                raise CorruptLayoutError(error.message, path=where or None) from None
        self._merge(update.vector_id, {update.key: value})

    def apply_journal(self, updates: Iterable[UpdateField], where: str = "") -> None:
        """Take over the updates of one journal."""
        for update in updates:
            self.apply_update(update, where)
        self.delta_count += 1

    def _merge(self, vector_id: int, fields: Mapping[str, Any] | None) -> None:
        if fields is None:
            self.records.pop(vector_id, None)
            return
        record = self.records.setdefault(vector_id, {})
        for name, value in fields.items():
            if value is DELETED:
                record.pop(name, None)
            else:
                record[name] = value

    def checked(self, rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """New records in the types of the schema, and the schema they need; a conflict is an error."""
        schema = dict(self.schema)
        out = []
        for row in rows:
            record = {}
            for name, value in row.items():
                if not isinstance(name, str) or not name or len(name.encode()) > 4096 or name == ID_FIELD:
                    raise ValueError(f"{name!r} cannot be the name of a metadata field")
                if value is not None:
                    record[name] = _fitted(schema, name, value)
            out.append(record)
        return schema, out

    def added(self, ids: Sequence[int], rows: Sequence[Mapping[str, Any]] | None) -> MetaPayload | None:
        """The META payload for new vectors, to be applied once it is committed; known ids lose what they had."""
        schema, checked = self.checked(rows or [])
        if rows is None:
            gone = [key for key in ids if key in self.records]
            return self.change(dict.fromkeys(gone), schema) if gone else None
        found: dict[int, dict[str, Any] | None] = {}
        for key, record in zip(ids, checked, strict=True):
            found[key] = {**dict.fromkeys(self.records.get(key, ()), DELETED), **record}
        return self.change(found, schema)

    def change(self, records: Mapping[int, dict[str, Any] | None], schema: dict[str, str]) -> MetaPayload:
        """The META payload that changes these records; a snapshot of all once enough changes hang on the last."""
        payload = MetaPayload(self.generation + 1, self.generation, schema, {}, dict(records))
        if self.generation and self.delta_count + 1 < 64:
            return payload
        whole = MetadataTable()
        whole.apply(self.snapshot())
        whole.generation = self.generation
        whole.apply(payload)
        return whole.snapshot()

    def updates(
        self, ids: Sequence[int], rows: Sequence[Mapping[str, Any]]
    ) -> list[UpdateField] | MetaPayload:
        """What sets these fields: entries of a journal, or a META payload where one is too long for them."""
        schema, checked = self.checked(rows)
        fields = [
            (key, name, record.get(name, DELETED))
            for key, row, record in zip(ids, rows, checked, strict=True)
            for name in row
        ]
        entries = [
            UpdateField(
                key,
                name,
                bytes([layout.VALUE_DELETE_FIELD])
                if value is DELETED
                else meta.pack_value(value, schema[name]),
            )
            for key, name, value in fields
        ]
        if (
            all(len(entry.value) + len(entry.key.encode()) < 65_000 for entry in entries)
            and self.delta_count + 1 < 64
        ):
            return entries
        records: dict[int, dict[str, Any] | None] = {}
        for key, name, value in fields:
            records[key] = {**(records.get(key) or {}), name: value}
        return self.change(records, schema)

    def snapshot(self, keep: Iterable[int] | None = None) -> MetaPayload:
        """The META payload that stands for everything, or for the vectors in `keep`."""
        chosen = self.records if keep is None else {i: self.records[i] for i in keep if i in self.records}
        records: dict[int, dict[str, Any] | None] = dict(chosen)
        return MetaPayload(self.generation + 1, None, dict(self.schema), dict(self.file_fields), records)


def split_metadata(whole: MetaPayload) -> Iterator[MetaPayload]:
    """A snapshot of much metadata as several payloads: a smaller snapshot, and what follows it."""
    ids = list(whole.records)
    if not (ids or whole.schema or whole.file_fields):
        return
    for number, start in enumerate(range(0, max(1, len(ids)), _META_RECORDS)):
        records = {key: whole.records[key] for key in ids[start : start + _META_RECORDS]}
        base, about = (whole.generation + number - 1, {}) if number else (None, whole.file_fields)
        yield MetaPayload(whole.generation + number, base, whole.schema, about, records)


def _fitted(schema: dict[str, str], name: str, value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    kind = meta.type_of(value)
    wanted = schema.setdefault(name, kind)
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
