"""SQL conditions on metadata, evaluated over Arrow columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warpdata.search.file.metadata import ID_FIELD, MetadataTable
from warpdata.sql.engine import matching_rows, parse_condition

Mask = NDArray[np.bool_]

_ARROW = {
    "str": pa.string(), "bytes": pa.binary(), "i64": pa.int64(), "u64": pa.uint64(), "f64": pa.float64(),
    "bool": pa.bool_(),
}  # fmt: skip


class MetadataColumns:
    """Metadata of rows in a fixed order as Arrow columns, each made when a condition first names it."""

    def __init__(self, table: MetadataTable, ids: NDArray[np.int64]) -> None:
        self._table = table
        self._ids = ids
        self._columns: dict[str, pa.Array] = {ID_FIELD: pa.array(ids)}

    def mask(self, condition: str) -> Mask:
        """Which rows satisfy an SQL condition; a field without a value is null."""
        types = {name: _ARROW[kind] for name, kind in self._table.schema.items()}
        names = [ID_FIELD, *types]
        used = set(parse_condition(condition).columns_of(names))
        for name in used - self._columns.keys():
            records = self._table.records
            values = [records[key].get(name) if key in records else None for key in self._ids.tolist()]
            self._columns[name] = pa.array(values, types[name])
        unused = {name: pa.nulls(len(self._ids), types[name]) for name in types if name not in used}
        columns = {name: unused[name] if name in unused else self._columns[name] for name in names}
        out = np.zeros(len(self._ids), bool)
        out[matching_rows(pa.table(columns), condition)] = True
        return out
