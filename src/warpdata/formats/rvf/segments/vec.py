"""VEC payloads: columnar blocks with their id maps, and the row-major payloads of shipped programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.errors import ChecksumError, CorruptLayoutError, FormatError, LimitExceededError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records
from warpdata.formats.rvf.segments.ids import check_ids
from warpdata.formats.rvf.segments.layout import BlockEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]
Rows = NDArray[Any]

_ELEMENT = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i8": "i8", "u8": "u8"}
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class VecBlock:
    """Vectors in stored form, one row each, and their ids in ascending order.

    A row is `dim` elements for f32, f16, bf16, i8 and u8. It is packed bytes for i4 (two values per byte,
    the lower nibble first), binary (eight per byte, the lowest bit first), pq and custom codes.
    """

    rows: Rows
    ids: Ids
    dim: int
    dtype: str
    tier: int = layout.TIER_WARM


def column_dtype(dtype: str) -> np.dtype[Any]:
    """The element of one stored column."""
    return dtype_named(_ELEMENT.get(dtype, "u8")).dtype


def column_count(dtype: str, dim: int, code_bytes: int = 0) -> int:
    """How many columns a block of this dtype has."""
    if dtype in _ELEMENT:
        return dim
    if dtype == "i4":
        return (dim + 1) // 2
    if dtype == "binary":
        return (dim + 7) // 8
    if not code_bytes:
        raise CorruptLayoutError(f"{dtype} vectors need a QUANT segment that says how long a code is")
    return code_bytes


def row_bytes(dtype: str, dim: int, code_bytes: int = 0) -> int:
    """How many bytes one stored vector takes."""
    return column_count(dtype, dim, code_bytes) * column_dtype(dtype).itemsize


def encode_vec(blocks: Sequence[VecBlock]) -> memoryview:
    """A VEC payload of these blocks."""
    maps = [encode_id_map(block.ids) for block in blocks]
    entries, size = _directory(blocks, maps)
    out = np.zeros(size, np.uint8)
    head = layout.COUNT_U32.pack(len(blocks)) + b"".join(records.BLOCK_ENTRY.pack(*e) for e in entries)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    for block, id_map, entry in zip(blocks, maps, entries, strict=True):
        _write_block(out, block, id_map, entry.block_offset)
    return out.data


def _directory(blocks: Sequence[VecBlock], maps: Sequence[bytes]) -> tuple[list[BlockEntry], int]:
    position = align_up(layout.COUNT_U32.size + len(blocks) * records.BLOCK_ENTRY.size, layout.ALIGNMENT)
    entries = []
    for block, id_map in zip(blocks, maps, strict=True):
        if position > layout.MAX_PAYLOAD_BYTES:
            raise LimitExceededError("a VEC segment holds less than 4 GiB")
        number = layout.DTYPE_IDS[block.dtype]
        entries.append(BlockEntry(position, len(block.ids), block.dim, number, block.tier))
        position += align_up(block.rows.nbytes + len(id_map) + _CRC_BYTES, layout.ALIGNMENT)
    return entries, position


def _write_block(out: NDArray[np.uint8], block: VecBlock, id_map: bytes, start: int) -> None:
    size = block.rows.nbytes
    columns = out[start : start + size].view(block.rows.dtype).reshape(block.rows.shape[1], -1)
    columns[...] = block.rows.T
    out[start + size : start + size + len(id_map)] = np.frombuffer(id_map, np.uint8)
    end = start + size + len(id_map)
    crc = crc32c(out[start:end].data).to_bytes(_CRC_BYTES, "little")
    out[end : end + _CRC_BYTES] = np.frombuffer(crc, np.uint8)


def encode_id_map(ids: Ids) -> bytes:
    """The id map of a block: delta coded with restart offsets, or raw where that is shorter."""
    raw = ids.astype("<u8").tobytes()
    interval = records.ID_RESTART_INTERVAL
    coded, offsets = varint.encode_delta_varints(ids, interval)
    if len(coded) + offsets.nbytes >= len(raw):
        return records.ID_MAP_HEAD.pack(records.IDS_RAW, 0, len(ids)) + raw
    head = records.ID_MAP_HEAD.pack(records.IDS_DELTA, interval, len(ids))
    return head + offsets.astype("<u4").tobytes() + coded


def read_directory(payload: Buffer, payload_bytes: int | None = None, where: str = "") -> list[BlockEntry]:
    """The block directory at the start of a payload; offsets are checked against `payload_bytes`."""
    view = byte_view(payload)
    total = view.nbytes if payload_bytes is None else payload_bytes
    count = directory_count(view, total, where)
    end = layout.COUNT_U32.size + count * records.BLOCK_ENTRY.size
    if view.nbytes < end:
        raise TruncatedError("the block directory is cut off", path=where or None)
    entries = [BlockEntry._make(e) for e in records.BLOCK_ENTRY.iter_unpack(view[4:end])]
    previous = end - 1
    for entry in entries:
        if not previous < entry.block_offset <= total or entry.dtype not in layout.DTYPE_NAMES:
            raise CorruptLayoutError("the block directory contradicts itself", path=where or None)
        previous = entry.block_offset
    return entries


def directory_count(head: Buffer, payload_bytes: int, where: str = "") -> int:
    """How many blocks the first bytes of a payload announce, bounded by its size."""
    view = byte_view(head)
    if view.nbytes < layout.COUNT_U32.size:
        raise TruncatedError("a VEC payload has no block count", path=where or None)
    count = int(layout.COUNT_U32.unpack_from(view)[0])
    if layout.COUNT_U32.size + count * records.BLOCK_ENTRY.size > payload_bytes:
        raise LimitExceededError(
            f"{count} blocks in a VEC payload of {payload_bytes} bytes", path=where or None
        )
    return count


def block_end(entries: Sequence[BlockEntry], number: int, payload_bytes: int) -> int:
    """Where the bytes of a block end at the latest: the next block, or the payload."""
    return entries[number + 1].block_offset if number + 1 < len(entries) else payload_bytes


def decode_block(
    data: Buffer, entry: BlockEntry, *, code_bytes: int = 0, where: str = "", check: bool = True
) -> VecBlock:
    """One block from its bytes, padding may follow; `check=False` if the whole payload was checked."""
    view = byte_view(data)
    dtype = layout.DTYPE_NAMES[entry.dtype]
    columns = column_count(dtype, entry.dim, code_bytes)
    size = columns * column_dtype(dtype).itemsize * entry.vector_count
    if view.nbytes < size + records.ID_MAP_HEAD.size + _CRC_BYTES:
        raise TruncatedError(f"a block of {entry.vector_count} vectors is cut off", path=where or None)
    ids, used = _decode_id_map(view, size, entry.vector_count, where)
    if check and crc32c(view[:used]) != int.from_bytes(view[used : used + _CRC_BYTES], "little"):
        raise ChecksumError("a vector block does not match its checksum", path=where or None)
    check_ids(ids, where)
    stored = np.frombuffer(view[:size], column_dtype(dtype)).reshape(columns, entry.vector_count)
    return VecBlock(stored.T, ids, entry.dim, dtype, entry.tier)


def decode_vec(
    payload: Buffer, *, code_bytes: int = 0, where: str = "", check: bool = True
) -> list[VecBlock]:
    """Every block of a VEC payload."""
    view = byte_view(payload)
    entries = read_directory(view, where=where)
    return [
        decode_block(
            view[entry.block_offset : block_end(entries, number, view.nbytes)], entry,
            code_bytes=code_bytes, where=where, check=check,
        )
        for number, entry in enumerate(entries)
    ]  # fmt: skip


def _decode_id_map(view: memoryview, start: int, count: int, where: str) -> tuple[Ids, int]:
    """The ids and where their map ends. The seed layout is tried first, the CRC decides (see SPEC.md)."""
    encoding, interval, announced = records.ID_MAP_HEAD.unpack_from(view, start)
    body = start + records.ID_MAP_HEAD.size
    if announced != count:
        raise CorruptLayoutError(f"{announced} ids for {count} vectors", path=where or None)
    if encoding == records.IDS_RAW:
        end = body + 8 * count
        if end + _CRC_BYTES > view.nbytes:
            raise TruncatedError("the ids of a block are cut off", path=where or None)
        return np.frombuffer(view[body:end], "<u8"), end
    if encoding != records.IDS_DELTA or interval == 0:
        raise CorruptLayoutError(f"unknown id encoding {encoding}", path=where or None)
    return _decode_delta_ids(view, body, count, interval, where)


def _decode_delta_ids(view: memoryview, body: int, count: int, interval: int, where: str) -> tuple[Ids, int]:
    offsets = 4 * -(-count // interval)
    for skip in (offsets, 0):
        try:
            deltas, used = varint.decode_varints_prefix(view[body + skip :], count)
            end = body + skip + used
            _check_offsets(view[body : body + skip], deltas, interval)
            if end + _CRC_BYTES > view.nbytes:
                continue
            if crc32c(view[:end]) == int.from_bytes(view[end : end + _CRC_BYTES], "little"):
                return varint.delta_decode(deltas, interval), end
        except FormatError:
            continue
    raise ChecksumError("the ids of a vector block do not match its checksum", path=where or None)


def _check_offsets(stored: memoryview, deltas: Ids, interval: int) -> None:
    if not stored.nbytes:
        return
    ends = np.cumsum(varint.varint_lengths(deltas))
    starts = np.concatenate(([0], ends[:-1]))[::interval]
    if not np.array_equal(np.frombuffer(stored, "<u4"), starts):
        raise CorruptLayoutError("restart offsets do not point at restart points")


def encode_runtime_vec(ids: Ids, rows: NDArray[np.float32]) -> bytes:
    """The payload of shipped programs: row-major f32 with inline ids."""
    count, dim = rows.shape
    out = np.zeros(count, _runtime_row(dim))
    out["id"], out["vector"] = ids, rows
    return records.RUNTIME_VEC_HEAD.pack(dim, count) + out.tobytes()


def decode_runtime_vec(payload: Buffer, where: str = "") -> VecBlock:
    """The vectors of shipped programs; the swapped header of the WASM export is recognised by its size."""
    view = byte_view(payload)
    if view.nbytes < records.RUNTIME_VEC_HEAD.size:
        raise TruncatedError("a VEC payload has no header", path=where or None)
    dim, count = records.RUNTIME_VEC_HEAD.unpack_from(view)
    size = view.nbytes - records.RUNTIME_VEC_HEAD.size
    if size != count * (8 + 4 * dim):
        count, dim = records.WASM_VEC_HEAD.unpack_from(view)
    if size != count * (8 + 4 * dim) or not 0 < dim <= layout.MAX_DIM:
        raise CorruptLayoutError("the size of a VEC payload contradicts its header", path=where or None)
    rows = np.frombuffer(view[records.RUNTIME_VEC_HEAD.size :], _runtime_row(dim))
    check_ids(rows["id"], where)
    return VecBlock(rows["vector"], rows["id"], dim, "f32")


def _runtime_row(dim: int) -> np.dtype[Any]:
    return np.dtype([("id", "<u8"), ("vector", "<f4", (dim,))])


def pack_rows(vectors: NDArray[Any], dtype: str) -> Rows:
    """Vectors (f32 or integers) as stored rows of `dtype`; the values must have been checked to fit."""
    if dtype in _ELEMENT:
        return np.ascontiguousarray(vectors, column_dtype(dtype))
    if dtype == "i4":
        nibbles = vectors.astype(np.int8).view(np.uint8) & 0xF
        if nibbles.shape[1] % 2:
            nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
        return np.ascontiguousarray(nibbles[:, ::2] | (nibbles[:, 1::2] << 4))
    if dtype == "binary":
        return np.packbits(vectors.astype(bool), axis=1, bitorder="little")
    raise ValueError(f"vectors are not stored as {dtype!r} directly; quantise them")


def unpack_rows(rows: Rows, dtype: str, dim: int) -> NDArray[np.float32]:
    """Stored rows as f32 vectors."""
    if dtype in _ELEMENT:
        return rows.astype(np.float32, order="C")
    if dtype == "i4":
        both = np.empty((len(rows), rows.shape[1] * 2), np.int8)
        both[:, ::2] = (rows << 4).view(np.int8) >> 4
        both[:, 1::2] = rows.view(np.int8) >> 4
        return both[:, :dim].astype(np.float32)
    if dtype == "binary":
        return np.unpackbits(rows, axis=1, bitorder="little", count=dim).astype(np.float32)
    raise ValueError(f"{dtype!r} codes need their quantiser")
