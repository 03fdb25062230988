"""The metadata of a store: records by vector id, a schema that does not change its mind, filter masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError, SchemaMismatchError, nearest
from warpdata.formats.rvf.payloads import layout, meta
from warpdata.formats.rvf.payloads.journal import UpdateField
from warpdata.formats.rvf.payloads.meta import DELETED, MetaPayload
from warpdata.search.filters import ID_FIELD, All, AnyOf, Compare, Filter, Not

Mask = NDArray[np.bool_]
_META_RECORDS = 1 << 18
"""Records of one META segment; a few of them stay well below what a segment may hold."""
_NUMPY = {"i64": np.int64, "u64": np.uint64, "f64": np.float64, "bool": np.bool_}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater,
    ">=": np.greater_equal,
}  # fmt: skip


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
        if self.generation and self.delta_count + 1 < layout.META_MAX_DELTAS:
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
                key, name, meta.REMOVED_FIELD if value is DELETED else meta.pack_value(value, schema[name])
            )
            for key, name, value in fields
        ]
        if all(entry.fits for entry in entries) and self.delta_count + 1 < layout.META_MAX_DELTAS:
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


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """One field for every row: values (codes of sorted texts for str and bytes) and where there is one."""

    kind: str
    values: NDArray[Any]
    present: Mask
    texts: list[Any] | None = None


class FilterColumns:
    """Columns of the fields filters ask for, for rows in a fixed order."""

    def __init__(self, table: MetadataTable, ids: NDArray[np.int64]) -> None:
        self._table = table
        self._ids = ids
        self._columns: dict[str, FieldColumn] = {}

    def mask(self, expression: Filter) -> Mask:
        """Which rows a filter lets through; a field without a value fails every comparison but !=."""
        if isinstance(expression, All):
            return self._combined(expression.parts, np.logical_and, True)
        if isinstance(expression, AnyOf):
            return self._combined(expression.parts, np.logical_or, False)
        if isinstance(expression, Not):
            return ~self.mask(expression.part)
        return self._compare(expression)

    def _combined(self, parts: Sequence[Filter], join: Callable[..., Any], start: bool) -> Mask:
        out = np.full(len(self._ids), start)
        for part in parts:
            join(out, self.mask(part), out=out)
        return out

    def _compare(self, test: Compare) -> Mask:
        if test.field == ID_FIELD:
            column = FieldColumn("i64", self._ids, np.ones(len(self._ids), bool))
        else:
            column = self._column(test.field)
        if test.operator == "in":
            out = np.zeros(len(self._ids), bool)
            for group in _value_groups(test.value):
                out |= _equal_any(column, group)
            return out
        if test.value is None:
            return column.present if test.operator == "!=" else ~column.present
        if test.operator == "!=":
            return ~(_compared(column, "==", test.value) & column.present)
        return _compared(column, test.operator, test.value) & column.present

    def _column(self, name: str) -> FieldColumn:
        found = self._columns.get(name)
        if found is None:
            kind = self._table.schema.get(name)
            if kind is None:
                known = ", ".join(sorted(self._table.schema)) or "there is no metadata"
                guess = nearest(name, self._table.schema)
                raise ValueError(f"no metadata field {name!r}; known fields: {known}.{guess}")
            found = self._columns[name] = _build_column(kind, name, self._table.records, self._ids)
        return found


def _value_groups(values: Sequence[Any]) -> list[list[Any]]:
    texts = [v for v in values if isinstance(v, str | bytes)]
    numbers = [v for v in values if not isinstance(v, str | bytes) and v is not None]
    nulls = [None] if any(v is None for v in values) else []
    return [group for group in (texts, numbers, nulls) if group]


def _equal_any(column: FieldColumn, values: list[Any]) -> Mask:
    if values == [None]:
        return ~column.present
    if column.texts is not None:
        wanted = set(values)
        codes = [code for code, text in enumerate(column.texts) if text in wanted]
        return np.isin(column.values, codes) & column.present
    usable = [v for v in values if not isinstance(v, str | bytes)]
    if not usable:
        return np.zeros(len(column.values), bool)
    if all(isinstance(v, int) for v in usable) and column.kind in ("i64", "u64"):
        low, high = np.iinfo(column.values.dtype).min, np.iinfo(column.values.dtype).max
        inside = np.array([v for v in usable if low <= v <= high], column.values.dtype)
        return np.isin(column.values, inside) & column.present
    out = np.zeros(len(column.values), bool)
    for value in usable:
        out |= _compared(column, "==", value)
    return out & column.present


def _compared(column: FieldColumn, operator: str, value: Any) -> Mask:
    if column.texts is not None:
        return _compared_text(column, operator, value)
    if isinstance(value, str | bytes):
        raise ValueError(f"a {column.kind} field is compared with {value!r}")
    if column.kind in ("i64", "u64") and isinstance(value, float):
        return _compared_whole(column, operator, value)
    if column.kind == "f64" and isinstance(value, int):
        return _compared_float(column, operator, value)
    result: Mask = _COMPARE[operator](column.values, value)
    return result


def _compared_whole(column: FieldColumn, operator: str, value: float) -> Mask:
    """Whole numbers against a float, without making floats of them: times in nanoseconds have more digits."""
    if not math.isfinite(value):
        return np.full(len(column.values), _COMPARE[operator](0.0, value))
    if operator == "==" and not value.is_integer():
        return np.zeros(len(column.values), bool)
    bound = math.floor(value) if operator in ("<=", ">") else math.ceil(value)
    result: Mask = _COMPARE[operator](column.values, bound)
    return result


def _compared_float(column: FieldColumn, operator: str, value: int) -> Mask:
    """Floats against a whole number that no float may equal: then it lies between two of them."""
    near = _nearest_float(value)
    if near == value:
        result: Mask = _COMPARE[operator](column.values, near)
        return result
    if operator == "==":
        return np.zeros(len(column.values), bool)
    is_less: Mask = (np.less_equal if near < value else np.less)(column.values, near)
    return is_less if operator in ("<", "<=") else ~is_less


def _nearest_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _compared_text(column: FieldColumn, operator: str, value: Any) -> Mask:
    """Texts are sorted, so a comparison of texts is one of their codes."""
    wanted = bytes if column.kind == "bytes" else str
    if not isinstance(value, wanted):
        raise ValueError(f"a {column.kind} field is compared with {value!r}")
    allowed = [code for code, text in enumerate(column.texts or []) if _COMPARE_TEXT[operator](text, value)]
    return np.isin(column.values, allowed)


_COMPARE_TEXT: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def _build_column(
    kind: str, name: str, records: Mapping[int, Mapping[str, Any]], ids: NDArray[np.int64]
) -> FieldColumn:
    empty: Mapping[str, Any] = {}
    raw = [records.get(vector_id, empty).get(name) for vector_id in ids.tolist()]
    present = np.array([value is not None for value in raw], bool)
    if kind in _NUMPY:
        values: NDArray[Any] = np.array([0 if value is None else value for value in raw], _NUMPY[kind])
        return FieldColumn(kind, values, present)
    texts = sorted({value for value in raw if value is not None})
    codes = {text: code for code, text in enumerate(texts)}
    coded: NDArray[np.int64] = np.array([-1 if value is None else codes[value] for value in raw], np.int64)
    return FieldColumn(kind, coded, present, texts)
