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

from warpdata.bytekit.varint import encode_varint
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
    """How numbers of a type lie in a file: physical type, how many bytes, what they mean
    where that does not say it, and as which type they are stored."""

    kind: int
    size: int
    meaning: int | None = None
    width: str = ""


PHYSICAL = {
    "bool": Physical(_BOOLEAN, 1), "f32": Physical(_FLOAT, 4), "f64": Physical(_DOUBLE, 8),
    "f16": Physical(_BYTES_OF_FIXED_LENGTH, 2),
    "u8": Physical(_INT32, 4, 11, "<i4"), "u16": Physical(_INT32, 4, 12, "<i4"),
    "u32": Physical(_INT32, 4, 13, "<u4"), "u64": Physical(_INT64, 8, 14),
    "i8": Physical(_INT32, 4, 15, "<i4"), "i16": Physical(_INT32, 4, 16, "<i4"),
    "i32": Physical(_INT32, 4), "i64": Physical(_INT64, 8),
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
    is_shared: bool = False
    """Whether the next file is likely to have the same column, as signals have that share a clock."""


def plain_bytes(columns: Sequence[PlainColumn]) -> int:
    """How large the values are as they are stored."""
    return sum(each.values.size * PHYSICAL[each.dtype].size for each in columns)


class _Stored(NamedTuple):
    """A column as it is stored: its page, and what the footer says of it around the place where it lies."""

    data: bytes
    about: bytes
    more: bytes


def plain_file(columns: Sequence[PlainColumn], description: bytes, arrow_schema: bytes = b"") -> bytes:
    """A whole file of at least one row; `description` is ours, `arrow_schema` says how Arrow shows lists."""
    stored = [_shared(each) if each.is_shared else _stored(each) for each in columns]
    schema = _schema(tuple([(each.name, each.dtype, each.per_row is not None) for each in columns]))
    chunks = tuple([(len(each.data), each.about, each.more) for each in stored])
    footer = _footer(schema, chunks, len(columns[0].values), description, arrow_schema)
    return b"".join([layout.PARQUET_MAGIC, *[each.data for each in stored], footer])


@functools.lru_cache(maxsize=64)
def _footer(
    schema: bytes, stored: tuple[tuple[int, bytes, bytes], ...], rows: int, description: bytes, arrow: bytes
) -> bytes:
    """All that follows the pages: the same in the next episode, where that is as long."""
    chunks, at = [], len(layout.PARQUET_MAGIC)
    for length, about, more in stored:
        place = _zigzag(at)
        chunks.append(b"\x26" + place + about + place + more)
        at += length
    count, size = _zigzag(rows), _zigzag(at - len(layout.PARQUET_MAGIC))
    group = b"".join((b"\x19", _list(_STRUCT, chunks), b"\x16", size, b"\x16", count, b"\0"))
    end = _end(len(chunks), description, arrow)
    footer = b"".join((b"\x15\x04", schema, b"\x16", count, b"\x19", _list(_STRUCT, [group]), end))
    return b"".join((footer, len(footer).to_bytes(4, "little"), layout.PARQUET_MAGIC))


def _shared(column: PlainColumn) -> _Stored:
    values = column.values
    return _kept(column.name, column.dtype, column.is_sorted, values.tobytes(), values.dtype.str)


@functools.lru_cache(maxsize=64)
def _kept(name: str, dtype: str, is_sorted: bool, data: bytes, stored_as: str) -> _Stored:
    """The columns of single numbers that were stored last, each at most as large as a plain file."""
    return _stored(PlainColumn(name, dtype, np.frombuffer(data, stored_as), is_sorted=is_sorted))


@functools.lru_cache(maxsize=512)
def _schema(columns: tuple[tuple[str, str, bool], ...]) -> bytes:
    elements = [_struct((4, _BINARY, _binary(b"schema")), (5, _I32, _zigzag(len(columns))))]
    for name, dtype, is_list in columns:
        elements += _elements(name.encode(), dtype, is_list)
    return b"\x19" + _list(_STRUCT, elements)


def _end(columns: int, description: bytes, arrow_schema: bytes) -> bytes:
    """What comes behind the row groups: what is said of the whole, who wrote it, and how columns are sorted."""
    pairs = [b"\x18%b\x18%b\0" % (_binary(layout.SCHEMA_KEY), _binary(description))]
    if arrow_schema:
        pairs.append(_arrow_pair(arrow_schema))
    return b"\x19" + _list(_STRUCT, pairs) + _last(columns)


@functools.lru_cache(maxsize=512)
def _arrow_pair(schema: bytes) -> bytes:
    return b"\x18%b\x18%b\0" % (_binary(b"ARROW:schema"), _binary(base64.b64encode(schema)))


@functools.lru_cache(maxsize=64)
def _last(columns: int) -> bytes:
    by_type = _struct((1, _STRUCT, b"\0"))
    return _struct(
        (6, _BINARY, _binary(_CREATED_BY)), (7, _LIST, _list(_STRUCT, [by_type] * columns)), last=5
    )


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


def _stored(column: PlainColumn) -> _Stored:
    values, page = column.values, _page(column)
    data = _page_head(values.size, page) + page
    stated = b""
    if column.is_sorted:
        low, high = values[0].tobytes(), values[-1].tobytes()
        found = _struct((3, _I64, b"\0"), (5, _BINARY, _binary(high)), (6, _BINARY, _binary(low)))
        stated = bytes([12 - 9 << 4 | _STRUCT]) + found
    about = _chunk(column.name, column.dtype, column.per_row is not None, values.size, len(data))
    return _Stored(data, about, stated + b"\0\0")


@functools.lru_cache(maxsize=512)
def _chunk(name: str, dtype: str, is_list: bool, values: int, stored_bytes: int) -> bytes:
    """The metadata of a chunk, up to where its page lies."""
    head, count, size = _chunk_head(name, dtype, is_list), _zigzag(values), _zigzag(stored_bytes)
    return b"".join((b"\x1c", head, b"\x16", count, b"\x16", size, b"\x16", size, b"\x26"))


def _page(column: PlainColumn) -> bytes:
    """The values of a column, before them where lists begin."""
    values = column.values
    if column.dtype == "bool":
        data = np.packbits(values, bitorder="little").tobytes()
    else:
        width = PHYSICAL[column.dtype].width
        data = (values.astype(width) if width else values).tobytes()
    return data if column.per_row is None else _levels(values.size, column.per_row) + data


@functools.lru_cache(maxsize=64)
def _levels(count: int, per_row: int) -> bytes:
    """Where lists begin, and that all of it is there."""
    follows = np.ones(-(-count // 8) * 8, np.bool_)
    follows[:count:per_row] = False
    begins = encode_varint(len(follows) // 8 << 1 | 1) + np.packbits(follows, bitorder="little").tobytes()
    there = encode_varint(count << 1) + b"\x01"
    return b"".join((len(begins).to_bytes(4, "little"), begins, len(there).to_bytes(4, "little"), there))


def _page_head(count: int, page: bytes) -> bytes:
    """PageHeader: a data page, its size twice, its checksum, and how many values lie in it in which encoding."""
    crc = zlib.crc32(page)
    size = _zigzag(len(page))
    signed = encode_varint(crc << 1 if crc < 1 << 31 else ((1 << 32) - crc << 1) - 1)
    return b"".join(
        (b"\x15\0\x15", size, b"\x15", size, b"\x15", signed, b"\x1c\x15", _zigzag(count), _PLAIN_VALUES)
    )


_PLAIN_VALUES = bytes([0x15, _PLAIN << 1, 0x15, _RLE << 1, 0x15, _RLE << 1, 0, 0])
"""The end of a PageHeader: encodings of the values and of the levels."""


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
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + encode_varint(count)
    return head + b"".join(items)


def _binary(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


@functools.lru_cache(maxsize=4096)
def _zigzag(value: int) -> bytes:
    """Sizes, counts and places, of which there are few in files that are alike."""
    return encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)
