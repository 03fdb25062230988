"""VEC payloads: blocks of columnar vectors with their ids. IDS payloads: which block holds an id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit import varint
from warpdata.bytekit.arrays import align_up, byte_view, dtype_named, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.errors import ChecksumError, CorruptLayoutError, FormatError, LimitExceededError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import Row

if TYPE_CHECKING:
    from typing_extensions import Buffer

Ids = NDArray[np.uint64]
Rows = NDArray[Any]

_WHOLE_DTYPES = ("f32", "f16", "bf16", "i8", "u8")
_CRC_BYTES = 4
_BLOCK_NUMBERS = {1: "<u1", 2: "<u2", 4: "<u4"}


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


@dataclass(frozen=True, slots=True)
class IdDirectory:
    """Ids in ascending order, each once, and the block of each."""

    ids: Ids
    blocks: NDArray[Any]
    block_count: int


def column_dtype(dtype: str) -> np.dtype[Any]:
    """The element of one stored column."""
    return dtype_named(dtype if dtype in _WHOLE_DTYPES else "u8").dtype


def column_count(dtype: str, dim: int, code_bytes: int = 0) -> int:
    """How many columns a block of this dtype has."""
    if dtype in _WHOLE_DTYPES:
        return dim
    if dtype == "i4":
        return (dim + 1) // 2
    if dtype == "binary":
        return (dim + 7) // 8
    if not code_bytes:
        raise CorruptLayoutError(f"{dtype} vectors need a QUANT segment with the length of a code")
    return code_bytes


def check_ids(ids: Ids, where: str = "") -> None:
    """LimitExceededError for an id that a store cannot have: it would come back as a negative number."""
    if ids.size and int(ids.max()) > layout.MAX_ID:
        raise LimitExceededError(f"the id {int(ids.max())}; ids are below 2**63", path=where or None)


def encode_vec(blocks: Sequence[VecBlock]) -> memoryview:
    """A VEC payload of these blocks."""
    maps = [encode_id_map(block.ids) for block in blocks]
    position = align_up(layout.COUNT_U32.size + len(blocks) * layout.BLOCK_ENTRY.size, layout.ALIGNMENT)
    entries = []
    for block, id_map in zip(blocks, maps, strict=True):
        if position > layout.MAX_PAYLOAD_BYTES:
            raise LimitExceededError("a VEC segment holds less than 4 GiB")
        number = layout.DTYPE_IDS[block.dtype]
        entries.append(layout.BLOCK_ENTRY(position, len(block.ids), block.dim, number, block.tier))
        position += align_up(block.rows.nbytes + len(id_map) + _CRC_BYTES, layout.ALIGNMENT)
    out = np.zeros(position, np.uint8)
    head = layout.COUNT_U32.pack(len(blocks)) + b"".join(layout.BLOCK_ENTRY.pack(*e) for e in entries)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    for block, id_map, entry in zip(blocks, maps, entries, strict=True):
        start, size = entry.block_offset, block.rows.nbytes
        columns = out[start : start + size].view(block.rows.dtype).reshape(block.rows.shape[1], -1)
        columns[...] = block.rows.T
        end = start + size + len(id_map)
        out[start + size : end] = np.frombuffer(id_map, np.uint8)
        crc = crc32c(out[start:end].data).to_bytes(_CRC_BYTES, "little")
        out[end : end + _CRC_BYTES] = np.frombuffer(crc, np.uint8)
    return out.data


def encode_id_map(ids: Ids) -> bytes:
    """The id map of a block: delta coded with restart offsets, or raw where that is shorter."""
    raw = ids.astype("<u8").tobytes()
    interval = layout.ID_RESTART_INTERVAL
    coded, offsets = varint.encode_delta_varints(ids, interval)
    if len(coded) + offsets.nbytes >= len(raw):
        return layout.ID_MAP_HEAD.pack(layout.IDS_RAW, 0, len(ids)) + raw
    head = layout.ID_MAP_HEAD.pack(layout.IDS_DELTA, interval, len(ids))
    return head + offsets.astype("<u4").tobytes() + coded


def read_directory(payload: Buffer, payload_bytes: int | None = None, where: str = "") -> list[Row]:
    """The block directory at the start of a payload; offsets are checked against `payload_bytes`."""
    view = byte_view(payload)
    total = view.nbytes if payload_bytes is None else payload_bytes
    if view.nbytes < layout.COUNT_U32.size:
        raise TruncatedError("a VEC payload has no block count", path=where or None)
    count = int(layout.COUNT_U32.unpack_from(view)[0])
    end = layout.COUNT_U32.size + count * layout.BLOCK_ENTRY.size
    if end > total:
        raise LimitExceededError(f"{count} blocks in a VEC payload of {total} bytes", path=where or None)
    if view.nbytes < end:
        raise TruncatedError("the block directory is cut off", path=where or None)
    entries = list(layout.BLOCK_ENTRY.iter_unpack(view[4:end]))
    previous = end - 1
    for entry in entries:
        if not previous < entry.block_offset <= total or entry.dtype not in layout.DTYPE_NAMES:
            raise CorruptLayoutError("the block directory contradicts itself", path=where or None)
        previous = entry.block_offset
    return entries


def block_end(entries: Sequence[Row], number: int, payload_bytes: int) -> int:
    """Where the bytes of a block end at the latest: the next block, or the payload."""
    return int(entries[number + 1].block_offset) if number + 1 < len(entries) else payload_bytes


def decode_block(
    data: Buffer, entry: Row, *, code_bytes: int = 0, where: str = "", check: bool = True
) -> VecBlock:
    """One block from its bytes, padding may follow; `check=False` if the whole payload was checked."""
    view = byte_view(data)
    dtype = layout.DTYPE_NAMES[entry.dtype]
    columns = column_count(dtype, entry.dim, code_bytes)
    size = columns * column_dtype(dtype).itemsize * entry.vector_count
    if view.nbytes < size + layout.ID_MAP_HEAD.size + _CRC_BYTES:
        raise TruncatedError(f"a block of {entry.vector_count} vectors is cut off", path=where or None)
    ids, used = _decode_id_map(view, size, entry.vector_count, where, check)
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
    blocks = []
    for number, entry in enumerate(entries):
        data = view[entry.block_offset : block_end(entries, number, view.nbytes)]
        blocks.append(decode_block(data, entry, code_bytes=code_bytes, where=where, check=check))
    return blocks


def _decode_id_map(view: memoryview, start: int, count: int, where: str, check: bool) -> tuple[Ids, int]:
    """The ids and where their map ends. The document's layout is tried first, the CRC decides (see SPEC.md)."""
    encoding, interval, announced = layout.ID_MAP_HEAD.unpack_from(view, start)
    body = start + layout.ID_MAP_HEAD.size
    if announced != count:
        raise CorruptLayoutError(f"{announced} ids for {count} vectors", path=where or None)
    if encoding == layout.IDS_RAW:
        end = body + 8 * count
        if end + _CRC_BYTES > view.nbytes:
            raise TruncatedError("the ids of a block are cut off", path=where or None)
        return np.frombuffer(view[body:end], "<u8"), end
    if encoding != layout.IDS_DELTA or interval == 0:
        raise CorruptLayoutError(f"unknown id encoding {encoding}", path=where or None)
    for skip in (4 * -(-count // interval), 0):
        try:
            deltas, used = varint.decode_varints_prefix(view[body + skip :], count)
        except FormatError:
            continue
        end = body + skip + used
        if check and skip:  # restart offsets point at the restart points
            starts = np.append(0, np.cumsum(varint.varint_lengths(deltas)))[:-1:interval]
            if not np.array_equal(np.frombuffer(view[body : body + skip], "<u4"), starts):
                continue
        if end + _CRC_BYTES <= view.nbytes and crc32c(view[:end]) == int.from_bytes(
            view[end : end + _CRC_BYTES], "little"
        ):
            return varint.delta_decode(deltas, interval), end
    raise ChecksumError("the ids of a vector block do not match its checksum", path=where or None)


def pack_rows(vectors: NDArray[Any], dtype: str) -> Rows:
    """Vectors (f32 or integers) as stored rows of `dtype`; the values must have been checked to fit."""
    if dtype in _WHOLE_DTYPES:
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
    if dtype in _WHOLE_DTYPES:
        return rows.astype(np.float32, order="C")
    if dtype == "i4":
        both = np.empty((len(rows), rows.shape[1] * 2), np.int8)
        both[:, ::2] = (rows << 4).view(np.int8) >> 4
        both[:, 1::2] = rows.view(np.int8) >> 4
        return both[:, :dim].astype(np.float32)
    if dtype == "binary":
        return np.unpackbits(rows, axis=1, bitorder="little", count=dim).astype(np.float32)
    raise ValueError(f"{dtype!r} codes need their quantiser")


def encode_id_directory(directory: IdDirectory) -> bytes:
    """An IDS payload."""
    size = 1 if directory.block_count <= 1 << 8 else 2 if directory.block_count <= 1 << 16 else 4
    head = layout.ID_DIRECTORY_HEAD.pack(len(directory.ids), directory.block_count, size)
    coded = varint.encode_varints(varint.delta_encode(directory.ids))
    numbers = directory.blocks.astype(_BLOCK_NUMBERS[size]).tobytes()
    pad = padding_to(len(coded), layout.ALIGNMENT)
    return b"".join((head.ljust(layout.ALIGNMENT, b"\0"), coded, pad, numbers))


def decode_id_directory(payload: Buffer, where: str = "") -> IdDirectory:
    """The directory of an IDS payload: ids ascend, blocks exist, or a FormatError."""
    view = byte_view(payload)
    if view.nbytes < layout.ALIGNMENT:
        raise TruncatedError("an IDS payload has no header", path=where or None)
    head = layout.ID_DIRECTORY_HEAD.unpack_from(view)
    if head.block_bytes not in _BLOCK_NUMBERS:
        raise CorruptLayoutError(f"block numbers of {head.block_bytes} bytes", path=where or None)
    if head.id_count * (1 + head.block_bytes) > view.nbytes:
        raise LimitExceededError(f"{head.id_count} ids in {view.nbytes} bytes", path=where or None)
    deltas, used = varint.decode_varints_prefix(view[layout.ALIGNMENT :], head.id_count)
    start = layout.ALIGNMENT + align_up(used, layout.ALIGNMENT)
    if start + head.id_count * head.block_bytes > view.nbytes or len(deltas) != head.id_count:
        raise TruncatedError("the block numbers of an IDS payload are cut off", path=where or None)
    numbers = view[start : start + head.id_count * head.block_bytes]
    blocks = np.frombuffer(numbers, _BLOCK_NUMBERS[head.block_bytes])
    ids = varint.delta_decode(deltas)
    check_ids(ids, where)
    if head.id_count and (int(blocks.max()) >= head.block_count or not (ids[1:] > ids[:-1]).all()):
        raise CorruptLayoutError("an id directory contradicts itself", path=where or None)
    return IdDirectory(ids, blocks, head.block_count)
