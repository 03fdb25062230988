"""META payloads of our own layout: metadata as columns of Arrow buffers, read by column and by range of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import ChecksumError, CorruptLayoutError, LimitExceededError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import Row
from warpdata.formats.rvf.meta import type_of
from warpdata.formats.rvf.vec import check_ids

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]
Buffers = tuple["Buffer | None", ...]
"""Buffers of an Arrow array: validity (None without nulls), offsets for texts and bytes, values."""

_CRC_FIELD_BYTES = 4
_LONG_KINDS = ("str", "bytes")


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
    texts = [[name, type_of(value), _note_text(value)] for name, value in sorted(notes.items())]
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


def _note_text(value: Any) -> str:
    return (
        value.hex() if isinstance(value, bytes) else repr(value) if isinstance(value, float) else str(value)
    )


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
    if head.magic != layout.COLUMNS_MAGIC or head.version != layout.COLUMNS_VERSION:
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


def piece_buffers(data: Buffer, kind: str, rows: int, piece: Row, where: str = "") -> Buffers:
    """The Arrow buffers of a piece, checked; empty if every row is null."""
    view = byte_view(data)
    if crc32c(view) != piece.crc:
        raise ChecksumError("a metadata column does not match its checksum", path=where or None)
    if piece.nulls >= rows:
        return ()
    validity, offsets, values = _sizes(kind, rows, piece.nulls)
    start = validity + offsets
    if view.nbytes < start or (values >= 0 and view.nbytes - start != values):
        raise CorruptLayoutError("a piece of a metadata column has a wrong size", path=where or None)
    valid = view[:validity] if validity else None
    if values >= 0:
        return valid, view[start:]
    places = np.frombuffer(view[validity : validity + 4 * (rows + 1)], "<i4")
    if places[0] != 0 or (np.diff(places) < 0).any() or places[-1] != view.nbytes - start:
        raise CorruptLayoutError("the offsets of a metadata column are damaged", path=where or None)
    return valid, view[validity:start], view[start:]


def decode_columns(payload: Buffer, where: str = "") -> ColumnsHead:
    """The head of a payload, once every piece of it was checked."""
    view = byte_view(payload)
    head = read_head(view, view.nbytes, where)
    if isinstance(head, int):
        raise TruncatedError("a META payload is cut off", path=where or None)
    for name, pieces in head.pieces.items():
        for chunk, piece in enumerate(pieces):
            data = view[piece.offset : piece.offset + piece.size]
            piece_buffers(data, head.fields[name], head.rows_of(chunk), piece, where)
    return head
