"""The block table: parsed, checked and packed. Nothing here reads the data of a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.checksum import crc32c, fnv1a64, xxh64
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.wshard import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SALVAGE_HINT = "Run `warp salvage` if a streaming recorder wrote it; otherwise restore it from another copy."


class Block(NamedTuple):
    """Where one named block lies and how it is stored."""

    name: str
    codec: str
    is_seekable: bool
    data_offset: int
    disk_size: int
    raw_size: int
    crc32c: int
    content_type: int


class BlockTable(NamedTuple):
    """The header of a shard and its blocks by name, in the order of the table."""

    header: layout.Header
    blocks: dict[str, Block]
    is_checksummed: bool
    """Whether header and table carry our checksum; else only structure and name hashes were checked."""


def unpack_header(start: memoryview, size: int, path: str) -> layout.Header:
    """The header, with everything checked that needs no other byte."""
    if start[:4] != layout.MAGIC:
        if size == 0 or layout.MAGIC.startswith(bytes(start[:4])):
            raise TruncatedError(f"a file of {size} bytes is too short for a shard", path=path)
        raise BadMagicError("not a shard: the file does not begin with SHRD", path=path)
    if len(start) < layout.TABLE_OFFSET:
        raise TruncatedError(f"a file of {size} bytes is too short for a shard", path=path)
    header = layout.Header._make(layout.HEADER.unpack_from(start))
    if header.version != layout.VERSION:
        raise UnsupportedVersionError(f"shard version {header.version} is not known", path=path)
    _check_header(header, size, path)
    return header


def _check_header(header: layout.Header, size: int, path: str) -> None:
    if header.index_entry_size != layout.ENTRY_BYTES:
        raise CorruptLayoutError(f"table entries of {header.index_entry_size} bytes, not 48", path=path)
    if header.entry_count > layout.MAX_ENTRIES:
        raise LimitExceededError(f"{header.entry_count} blocks, at most 10,000,000 are allowed", path=path)
    if header.alignment not in layout.ALIGNMENTS:
        raise CorruptLayoutError(f"alignment {header.alignment} is none of 0, 16, 32, 64", path=path)
    if header.string_table_offset != layout.TABLE_OFFSET + layout.ENTRY_BYTES * header.entry_count:
        raise CorruptLayoutError("the names do not follow the block table", path=path, hint=_SALVAGE_HINT)
    names = header.data_section_offset - header.string_table_offset
    if names < 0:
        raise CorruptLayoutError("the data begins before the names", path=path)
    if names > layout.MAX_STRING_TABLE_BYTES:
        raise LimitExceededError(f"{names} bytes of names, at most 100 MB are allowed", path=path)
    if header.total_file_size != size:
        kind = TruncatedError if size < header.total_file_size else CorruptLayoutError
        raise kind(f"the file has {size} bytes, its header says {header.total_file_size}", path=path)
    if header.data_section_offset > size:
        raise TruncatedError("the file ends inside its block table", path=path)


def parse_table(
    header: layout.Header, head: memoryview, size: int, path: str, *, allow_overlap: bool = False
) -> BlockTable:
    """Read the block table from the first `data_section_offset` bytes of a shard."""
    is_checksummed = _check_mark(header, head, path)
    names = bytes(head[header.string_table_offset : header.data_section_offset])
    default = layout.CODEC_DEFAULTS.get(header.compression_default, "none")
    blocks: dict[str, Block] = {}
    position, is_ordered = header.data_section_offset, True
    for entry in layout.ENTRY.iter_unpack(head[layout.TABLE_OFFSET : header.string_table_offset]):
        name_hash, name_at, name_bytes, flags, offset, disk_size, raw_size, crc, content_type, _ = entry
        name = _name(names[name_at : name_at + name_bytes], name_bytes, path)
        if not is_checksummed:
            _check_name_hash(name, name_hash, path)
        if name in blocks:
            raise CorruptLayoutError("two blocks have this name", block=name, path=path)
        if raw_size > layout.MAX_BLOCK_BYTES or disk_size > layout.MAX_BLOCK_BYTES:
            raise LimitExceededError(f"{max(raw_size, disk_size)} bytes are too many", block=name, path=path)
        codec, is_seekable = _STORAGE.get(flags) or _default_storage(
            flags, default, disk_size == raw_size, name, path
        )
        if codec == "none" and raw_size != disk_size:
            raise CorruptLayoutError("stored raw, but its two sizes differ", block=name, path=path)
        fields = (name, codec, is_seekable, offset, disk_size, raw_size, crc, content_type)
        blocks[name] = tuple.__new__(Block, fields)  # twice as fast as Block(…)
        is_ordered = is_ordered and offset >= position
        position = offset + disk_size
    if not allow_overlap and not (is_ordered and position <= size):
        _check_ranges(blocks.values(), header.data_section_offset, size, path)
    return BlockTable(header, blocks, is_checksummed)


def _check_ranges(blocks: Iterable[Block], position: int, size: int, path: str) -> None:
    """Raise unless the blocks share no byte with each other or the table; their order in the table means nothing."""
    for block in sorted(blocks, key=lambda each: each.data_offset):
        if not block.disk_size:
            continue
        if block.data_offset < position:
            raise CorruptLayoutError(
                "overlaps what is before it", block=block.name, path=path, hint=_SALVAGE_HINT
            )
        position = block.data_offset + block.disk_size
        if position > size:
            raise TruncatedError("lies past the end of the file", block=block.name, path=path)


_STORAGE = {flags: (codec, False) for codec, flags in layout.ENTRY_FLAGS.items()}
_STORAGE[layout.ENTRY_FLAGS["zstd"] | layout.ENTRY_SEEKABLE] = ("zstd", True)


def _default_storage(flags: int, default: str, is_same_size: bool, name: str, path: str) -> tuple[str, bool]:
    """Two existing writers set only the compressed bit, even where nothing was saved and the block is raw."""
    if flags != layout.ENTRY_COMPRESSED:
        raise CorruptLayoutError(f"unknown storage flags 0x{flags:04x}", block=name, path=path)
    return ("none" if is_same_size else default), False


def _name(raw: bytes, size: int, path: str) -> str:
    try:
        return _valid_name(raw, size)
    except FormatError as error:
        raise type(error)(error.message, path=path) from None


@lru_cache(maxsize=4096)
def _valid_name(raw: bytes, size: int) -> str:
    """The name in these bytes; the files of a set have the same names, so they are decoded once."""
    if len(raw) != size:
        raise CorruptLayoutError("the name of a block lies outside the table of names")
    if not 0 < size <= layout.MAX_NAME_BYTES:
        raise LimitExceededError(f"a block name of {size} bytes: {bytes(raw[:60])!r}")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise CorruptLayoutError(f"the block name {raw[:40]!r} is not UTF-8") from None
    if "\0" in name:
        raise CorruptLayoutError(f"the block name {name!r:.40} contains a NUL byte")
    return name


def _check_name_hash(name: str, stated: int, path: str) -> None:
    raw = name.encode()
    if stated not in (xxh64(raw), fnv1a64(raw)):
        raise CorruptLayoutError("the hash of the name is wrong", block=name, path=path)


def _check_mark(header: layout.Header, head: memoryview, path: str) -> bool:
    """Check our table checksum; a file without it has zeros there, anything else is damage."""
    if header.reserved != bytes(8):
        raise CorruptLayoutError("reserved header bytes are not zero", path=path)
    if header.table_mark == bytes(4) and header.table_crc32c == 0:
        return False
    if header.table_mark != layout.MARK:
        raise CorruptLayoutError("the mark of the table checksum is damaged", path=path)
    if table_crc32c(head, header.data_section_offset) != header.table_crc32c:
        raise ChecksumError("header, block table or names were changed", path=path)
    return True


def table_crc32c(head: memoryview, end: int) -> int:
    """The checksum over the first 48 header bytes, the table and the names with their padding."""
    start = crc32c(head[: layout.MARKED_HEADER_BYTES])
    return crc32c(head[layout.TABLE_OFFSET : end], start)


def check_names(names: Iterable[str], path: str) -> None:
    """Raise unless each of these can be the name of a block; which names collide, the table shows."""
    for name in names:
        try:
            raw = name.encode()
        except UnicodeEncodeError:
            raise CorruptLayoutError(f"the block name {name!r:.80} is not UTF-8", path=path) from None
        _name(raw, len(raw), path)


def data_offset_for(names: Sequence[str]) -> int:
    """Where the first block of a shard with these block names begins."""
    text = sum(len(name.encode()) for name in names)
    return align_up(layout.TABLE_OFFSET + layout.ENTRY_BYTES * len(names) + text, layout.ALIGNMENT)


def pack_table(blocks: Sequence[Block], total_file_size: int, role: int, data_offset: int) -> bytes:
    """Header, block table and names of a shard, with our checksum, up to where the data begins."""
    names = [block.name.encode() for block in blocks]
    header = layout.Header(
        magic=layout.MAGIC, version=layout.VERSION, role=role, flags=layout.HEADER_FLAGS,
        alignment=layout.ALIGNMENT, compression_default=0, index_entry_size=layout.ENTRY_BYTES,
        entry_count=len(blocks), string_table_offset=layout.TABLE_OFFSET + layout.ENTRY_BYTES * len(blocks),
        data_section_offset=data_offset, schema_offset=0,
        total_file_size=total_file_size, table_mark=layout.MARK, table_crc32c=0, reserved=bytes(8),
    )  # fmt: skip
    rows, position = [], 0
    for block, name in zip(blocks, names, strict=True):
        rows.append(layout.ENTRY.pack(*_entry(block, name, position)))
        position += len(name)
    body = (b"".join(rows) + b"".join(names)).ljust(header.data_section_offset - layout.TABLE_OFFSET, b"\0")
    head = layout.HEADER.pack(*header) + body
    crc = table_crc32c(memoryview(head), header.data_section_offset)
    return layout.HEADER.pack(*header._replace(table_crc32c=crc)) + body


def _entry(block: Block, name: bytes, name_offset: int) -> layout.Entry:
    flags = layout.ENTRY_FLAGS[block.codec] | (layout.ENTRY_SEEKABLE if block.is_seekable else 0)
    return layout.Entry(
        xxh64(name), name_offset, len(name), flags, block.data_offset, block.disk_size, block.raw_size,
        block.crc32c, block.content_type, 0,
    )  # fmt: skip


# The two hashes of the container, by the names its users know.


def compute_crc32(data: Buffer) -> int:
    """The checksum of a block: CRC-32C (Castagnoli) of its uncompressed bytes."""
    return crc32c(data)


def name_hash(name: str) -> int:
    """The hash of a block name in the table: XXH64 of its UTF-8 bytes."""
    return xxh64(name.encode())
