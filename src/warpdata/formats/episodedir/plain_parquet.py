"""Small parquet files made here: values as they are, one row group, a checksum for every page.

A file of a few kilobytes takes a general writer longer than everything else that is done for its signal. These are
ordinary files to every reader; larger ones are encoded and compressed by Arrow.
"""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.episodedir import layout

MAX_PLAIN_BYTES = 16 << 10
"""Of the values of all columns together: more is worth compressing."""

_CREATED_BY = b"warpdata"
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Types of the compact protocol."""
_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTES_OF_FIXED_LENGTH = 0, 1, 2, 4, 5, 7
_REQUIRED, _REPEATED = 0, 2
_PLAIN, _RLE = 0, 3
_LIST_TYPE = 3
_FLOAT16 = 15


class Physical(NamedTuple):
    """How numbers of a type lie in a file: physical type, what they mean where that does not say it, and how wide."""

    kind: int
    meaning: int | None = None
    width: str = ""


PHYSICAL = {
    "bool": Physical(_BOOLEAN), "f32": Physical(_FLOAT), "f64": Physical(_DOUBLE),
    "f16": Physical(_BYTES_OF_FIXED_LENGTH),
    "u8": Physical(_INT32, 11, "<i4"), "u16": Physical(_INT32, 12, "<i4"), "u32": Physical(_INT32, 13, "<u4"),
    "u64": Physical(_INT64, 14), "i8": Physical(_INT32, 15, "<i4"), "i16": Physical(_INT32, 16, "<i4"),
    "i32": Physical(_INT32), "i64": Physical(_INT64),
}  # fmt: skip
"""By the names of element types; bf16 is stored as u16."""


class PlainColumn(NamedTuple):
    """One column: numbers of a type, one or a fixed number of them in a row."""

    name: str
    dtype: str
    values: NDArray[Any]
    per_row: int | None = None
    """Of lists: how many."""
    is_sorted: bool = False
    """Then the first and the last number are stated in the footer."""


def plain_bytes(columns: Sequence[PlainColumn]) -> int:
    """How large the values are as they are stored."""
    return sum(each.values.size * max(1, np.dtype(PHYSICAL[each.dtype].width or each.values.dtype).itemsize)
               for each in columns)  # fmt: skip


def plain_file(columns: Sequence[PlainColumn], description: bytes, arrow_schema: bytes = b"") -> bytes:
    """A whole file of at least one row; `description` is ours, `arrow_schema` says how Arrow shows lists."""
    rows = len(columns[0].values)
    pieces, chunks, at = [layout.PARQUET_MAGIC], [], len(layout.PARQUET_MAGIC)
    for column in columns:
        page = _page(column)
        head = _page_head(column.values.size, page)
        size = len(head) + len(page)
        chunks.append(_chunk(column, _zigzag(at), _zigzag(size)))
        pieces += [head, page]
        at += size
    count = _zigzag(rows)
    schema = _schema(tuple((each.name, each.dtype, each.per_row is not None) for each in columns))
    end = _end(len(columns), description, arrow_schema)
    group = b"".join(
        (
            b"\x19",
            _list(_STRUCT, chunks),
            b"\x16",
            _zigzag(at - len(layout.PARQUET_MAGIC)),
            b"\x16",
            count,
            b"\0",
        )
    )
    footer = b"".join((b"\x15\x04", schema, b"\x16", count, b"\x19", _list(_STRUCT, [group]), end))
    pieces += [footer, len(footer).to_bytes(4, "little"), layout.PARQUET_MAGIC]
    return b"".join(pieces)


@functools.lru_cache(maxsize=512)
def _schema(columns: tuple[tuple[str, str, bool], ...]) -> bytes:
    elements = [_struct((4, _BINARY, _binary(b"schema")), (5, _I32, _zigzag(len(columns))))]
    for name, dtype, is_list in columns:
        elements += _elements(name.encode(), dtype, is_list)
    return b"\x19" + _list(_STRUCT, elements)


@functools.lru_cache(maxsize=512)
def _end(columns: int, description: bytes, arrow_schema: bytes) -> bytes:
    """What comes behind the row groups: what is said of the whole, who wrote it, and how columns are sorted."""
    stated = {layout.SCHEMA_KEY: description}
    if arrow_schema:
        stated[b"ARROW:schema"] = base64.b64encode(arrow_schema)
    pairs = [_struct((1, _BINARY, _binary(key)), (2, _BINARY, _binary(text))) for key, text in stated.items()]
    by_type = _struct((1, _STRUCT, b"\0"))
    return _struct(
        (5, _LIST, _list(_STRUCT, pairs)), (6, _BINARY, _binary(_CREATED_BY)),
        (7, _LIST, _list(_STRUCT, [by_type] * columns)), last=4,
    )  # fmt: skip


def _elements(name: bytes, dtype: str, is_list: bool) -> list[bytes]:
    if not is_list:
        return [_leaf(name, dtype)]
    return [
        _struct((3, _I32, _zigzag(_REQUIRED)), (4, _BINARY, _binary(name)), (5, _I32, _zigzag(1)),
                (6, _I32, _zigzag(_LIST_TYPE))),
        _struct((3, _I32, _zigzag(_REPEATED)), (4, _BINARY, _binary(b"list")), (5, _I32, _zigzag(1))),
        _leaf(b"element", dtype),
    ]  # fmt: skip


def _leaf(name: bytes, dtype: str) -> bytes:
    physical = PHYSICAL[dtype]
    fields: list[tuple[int, int, bytes]] = [(1, _I32, _zigzag(physical.kind))]
    if dtype == "f16":
        fields.append((2, _I32, _zigzag(2)))
    fields += [(3, _I32, _zigzag(_REQUIRED)), (4, _BINARY, _binary(name))]
    if physical.meaning is not None:
        fields.append((6, _I32, _zigzag(physical.meaning)))
    if dtype == "f16":
        fields.append((10, _STRUCT, _struct((_FLOAT16, _STRUCT, b"\0"))))
    return _struct(*fields)


def _page(column: PlainColumn) -> bytes:
    """The values of a column, before them where lists begin."""
    values = np.ascontiguousarray(column.values).reshape(-1)
    if column.dtype == "bool":
        data = np.packbits(values, bitorder="little").tobytes()
    else:
        width = PHYSICAL[column.dtype].width
        data = (values.astype(width) if width else values).tobytes()
    if column.per_row is None:
        return data
    count = values.size
    follows = np.ones(-(-count // 8) * 8, np.bool_)
    follows[: count : column.per_row] = False
    begins = _varint(len(follows) // 8 << 1 | 1) + np.packbits(follows, bitorder="little").tobytes()
    there = _varint(count << 1) + b"\x01"
    return b"".join(
        (len(begins).to_bytes(4, "little"), begins, len(there).to_bytes(4, "little"), there, data)
    )


def _page_head(count: int, page: bytes) -> bytes:
    """PageHeader: a data page, its size twice, its checksum, and how many values lie in it in which encoding."""
    crc = zlib.crc32(page)
    size, signed = _zigzag(len(page)), _zigzag(crc - (1 << 32) if crc >> 31 else crc)
    return b"".join(
        (b"\x15\0\x15", size, b"\x15", size, b"\x15", signed, b"\x1c\x15", _zigzag(count), _PLAIN_VALUES)
    )


_PLAIN_VALUES = bytes([0x15, _PLAIN << 1, 0x15, _RLE << 1, 0x15, _RLE << 1, 0, 0])
"""The end of a PageHeader: encodings of the values and of the levels."""


def _chunk(column: PlainColumn, at: bytes, size: bytes) -> bytes:
    """ColumnChunk: where it begins, and its metadata, most of which is the same for every file."""
    stated = b""
    if column.is_sorted:
        low, high = (column.values[end].tobytes() for end in (0, -1))
        found = _struct((3, _I64, b"\0"), (5, _BINARY, _binary(high)), (6, _BINARY, _binary(low)))
        stated = bytes([12 - 9 << 4 | _STRUCT]) + found
    head = _chunk_head(column.name, column.dtype, column.per_row is not None)
    count = _zigzag(column.values.size)
    return b"".join(
        (
            b"\x26",
            at,
            b"\x1c",
            head,
            b"\x16",
            count,
            b"\x16",
            size,
            b"\x16",
            size,
            b"\x26",
            at,
            stated,
            b"\0\0",
        )
    )


@functools.lru_cache(maxsize=512)
def _chunk_head(name: str, dtype: str, is_list: bool) -> bytes:
    """Of the metadata of a chunk: type, encodings, path and codec (none)."""
    path = [name.encode(), b"list", b"element"] if is_list else [name.encode()]
    return _struct(
        (1, _I32, _zigzag(PHYSICAL[dtype].kind)), (2, _LIST, _list(_I32, [_zigzag(_PLAIN), _zigzag(_RLE)])),
        (3, _LIST, _list(_BINARY, [_binary(each) for each in path])), (4, _I32, b"\0"),
    )[:-1]  # fmt: skip


def _struct(*fields: tuple[int, int, bytes], last: int = 0) -> bytes:
    """Fields in order, each with its number, and the end; `last` is the number of a field that stands before."""
    pieces = []
    for number, kind, content in fields:
        pieces += [bytes([number - last << 4 | kind]), content]
        last = number
    return b"".join([*pieces, b"\0"])


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)
    return head + b"".join(items)


def _binary(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
