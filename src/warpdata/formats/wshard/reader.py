"""Read blocks, and rows of blocks, of one shard through a RangeReader; every byte handed out was verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import FOOTER_BYTES, SeekTable, decode, seek_table_bytes, unpack_seek_table
from warpdata.bytekit.io.files import LocalRangeReader, open_source
from warpdata.bytekit.io.ranges import (
    Range,
    RangeReader,
    check_not_truncated,
    drop_cached,
    prefetch,
    resident,
    retry_damaged,
)
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, FormatError, nearest
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.layout import Block, parse_table, unpack_header
from warpdata.formats.wshard.rows import BlockRows, PieceChecksums
from warpdata.formats.wshard.schema import EpisodeSchema, TensorSpec, read_schema, tensor_specs

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

HEAD_BYTES = 64 << 10
"""The first read of a shard: header, table, names and usually all of the metadata."""

LOCAL_HEAD_BYTES = 8 << 10
"""The same on this machine, where another read costs little and a copy of 64 KiB does not."""

CHECK_STEP_BYTES = 32 << 20
"""A block that is only checked, not handed out, is read so much at a time."""

_SMALL_BYTES = 128 << 10
"""Blocks that are decompressed or fetched, and held, as a whole."""

Source = str | os.PathLike[str] | RangeReader | bytes | BinaryIO
Verify = Literal["block", "window"] | bool
"""What is held against a checksum before it is handed out.

`"block"` (or True): every byte. A window of a large raw block without checksums for windows (files of other
programs) costs one reading of the whole block, once per reader. `"window"`: the same, but such a window is read
alone and unchecked. False: the bytes of blocks are trusted.
"""


class ShardReader:
    """An open shard: its table was read and checked, its blocks are read on demand."""

    # Opening is short enough for these to be felt: what an instance does not have yet stands here.
    _owner = 0
    _specs: dict[str, TensorSpec] | None = None
    _schema: EpisodeSchema | None = None
    _sizes: dict[str, int] | None = None

    def __init__(self, reader: RangeReader, *, verify: Verify = "block") -> None:
        self._reader = reader
        if verify not in ("block", "window", True, False):
            near = nearest(str(verify), ("block", "window"))
            raise ValueError(f"verify is 'block', 'window' or False, not {verify!r}.{near}")
        self._verify = verify
        self._is_local: bool = getattr(reader, "is_local", False)
        self.path = reader.name
        retry_damaged(reader, self._open_table, [(0, min(reader.size, HEAD_BYTES))])
        self._verified: set[str] = set()
        self._pieces: dict[str, PieceChecksums | None] = {}
        self._seek_tables: dict[str, SeekTable] = {}

    def _open_table(self) -> None:
        """Read the head of the file: header, block table and names."""
        first, size = LOCAL_HEAD_BYTES if self._is_local else HEAD_BYTES, self._reader.size
        self._head = start = self._reader.read(0, first if first < size else size)
        header = unpack_header(start, size, self.path)
        self.table = parse_table(header, self._whole_head(header), size, self.path)

    @classmethod
    def open(cls, source: Source, *, verify: Verify = "block") -> ShardReader:
        """Open a shard by path, from bytes, an open binary file or any RangeReader; what is checked: see `Verify`."""
        # A check for a string is much cheaper than one for a protocol.
        reader = LocalRangeReader(source) if isinstance(source, str) else open_source(source)
        return cls(reader, verify=verify)

    @property
    def names(self) -> list[str]:
        """The names of all blocks, in the order of the table."""
        return list(self.table.blocks)

    @property
    def sizes(self) -> dict[str, int]:
        """Decompressed bytes of every block by name, in the order of the table."""
        if self._sizes is None:
            self._sizes = {name: block.raw_size for name, block in self.table.blocks.items()}
        return self._sizes

    @property
    def role(self) -> int:
        """What kind of shard this is: 5 an episode, 4 a chunk list."""
        return self.table.header.role

    @property
    def range_reader(self) -> RangeReader:
        """Where the bytes come from."""
        return self._reader

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self._reader.size

    @property
    def is_local(self) -> bool:
        """Whether looking at the bytes costs nothing."""
        return self._is_local

    def name_hashes(self) -> dict[str, int]:
        """The hash the table stores for each block name."""
        header = self.table.header
        head = self._whole_head(header)[layout.TABLE_OFFSET : header.string_table_offset]
        return dict(zip(self.names, (fields[0] for fields in layout.ENTRY.iter_unpack(head)), strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self.table.blocks

    def block(self, name: str) -> Block:
        """Where and how a block is stored."""
        found = self.table.blocks.get(name)
        if found is None:
            raise BlobNotFoundError(
                "no such block", block=name, path=self.path, hint="`warp inspect` lists the blocks of a file."
            )
        return found

    def raw_size(self, name: str) -> int:
        """How many bytes a block has when it is decompressed."""
        return self.block(name).raw_size

    def read(self, name: str) -> bytes:
        """The decompressed, verified bytes of a block."""
        return bytes(self.view(name))

    def view(self, name: str) -> memoryview:
        """Like `read`, without a copy where the block is stored raw: a read-only view of the file."""
        if self._owner and (kept := BLOCK_CACHE.get(self._owner, name)) is not None:
            return kept
        block = self.block(name)
        return self._retry(block, partial(self._view, block))

    def _retry(self, block: Block, call: Callable[[], T]) -> T:
        """Return `call()`, which reads a block; a damaged block is read once more without cached copies of it."""
        try:
            return call()
        except FormatError:
            low, high = block.data_offset, block.data_offset + block.disk_size
            if not drop_cached(self._reader, low, high):
                raise
            self._head = self._head[:low]
            self._seek_tables.pop(block.name, None)
        return call()

    def _view(self, block: Block) -> memoryview:
        name = block.name
        if block.is_seekable:
            data = self._frames(block, 0, block.raw_size)
        elif block.codec != "none":
            data = memoryview(self._decode(block, self._stored(block, 0, block.disk_size)))
        else:
            data = self._stored(block, 0, block.disk_size)
        if self._verify and name not in self._verified:
            if crc32c(data) != block.crc32c:
                raise ChecksumError("checksum mismatch", block=name, path=self.path)
            self._verified.add(name)
        return data

    def whole(self, name: str) -> memoryview:
        """Like `view`, but a decoded block is kept for the next call."""
        data = self.view(name)
        if self.block(name).codec != "none":
            self._keep(name, data)
        return data

    def _keep(self, name: str, data: memoryview) -> None:
        if not self._owner:
            self._owner = BLOCK_CACHE.new_owner()
        BLOCK_CACHE.put(self._owner, name, data)

    def stored(self, name: str) -> memoryview:
        """The bytes of a block as stored, compressed or not, verified by decoding them once."""
        self.view(name)
        block = self.block(name)
        return self._stored(block, 0, block.disk_size)

    def read_json(self, name: str) -> dict[str, Any]:
        """A block that holds a JSON object, parsed."""
        data = self.view(name)
        try:
            return parse_json_object(data)
        except FormatError as error:
            raise self._name(error, name) from None

    def read_rows(self, name: str, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) of a tensor block, reading and verifying only the bytes that hold them."""
        return self.rows_as(name, self.spec(name), start, end)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Dtype and row shape of every tensor block; empty where the shard is no episode."""
        if self._specs is None:
            self._specs = tensor_specs(self, self.schema) if self.role == layout.ROLE_EPISODE else {}
        return self._specs

    @property
    def schema(self) -> EpisodeSchema:
        """Everything the metadata of the episode states; parts of it may be shared by readers and must not change."""
        if self._schema is None:
            self._schema = read_schema(self)
        return self._schema

    def spec(self, name: str) -> TensorSpec:
        """The dtype and shape of a tensor block, from the metadata of the episode."""
        found = self.specs.get(name)
        if found is None:
            self.block(name)
            raise CorruptLayoutError("the metadata does not describe it", block=name, path=self.path)
        return found

    def rows_as(self, name: str, spec: TensorSpec, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) of a block that holds rows of this dtype and shape."""
        block = self.block(name)
        row = spec.row_bytes
        if row == 0:
            return np.zeros((end - start, *spec.shape), spec.dtype.dtype)
        if not 0 <= start <= end <= block.raw_size // row:
            raise IndexError(f"rows [{start}, {end}) of {block.raw_size // row} in block {name!r}")
        data = self._range(block, row, start * row, end * row)
        return np.frombuffer(data, spec.dtype.dtype).reshape(end - start, *spec.shape)

    def rows_of(self, name: str, spec: TensorSpec, length: int) -> BlockRows:
        """The rows of a block, read on demand."""
        return BlockRows(self, name, spec, length)

    def mapped(self, name: str) -> memoryview | None:
        """The bytes of a large raw block where looking at them costs nothing, not yet verified; else None."""
        block = self.block(name)
        if block.codec != "none" or block.raw_size <= layout.PIECES_FROM_BYTES:
            return None
        if not self._is_local:
            return resident(self._reader, block.data_offset, block.data_offset + block.disk_size)
        return self._stored(block, 0, block.disk_size)

    def check_not_truncated(self) -> None:
        """Raise TruncatedError if the mapped file was cut; for users of `mapped` bytes, before they touch them."""
        check_not_truncated(self._reader)

    def small_view(self, name: str) -> memoryview | None:
        """All bytes of a small block, decompressed and verified; None of a larger one."""
        block = self.block(name)
        is_mapped = block.codec == "none" and self._is_local
        if block.raw_size > (layout.PIECES_FROM_BYTES if is_mapped else _SMALL_BYTES):
            return None
        return self.view(name)

    def is_verified(self, name: str) -> bool:
        """Whether every byte of a raw block was verified by this reader, or is trusted."""
        if not self._verify or name in self._verified:
            return True
        pieces = self._pieces.get(name)
        if pieces is not None and pieces.is_all_checked:
            self._verified.add(name)
        return name in self._verified

    def verify_rows(self, name: str, row_bytes: int, start: int, end: int) -> None:
        """Check what holds rows [start, end) of a large raw block, unless it was checked before."""
        if not self._verify or name in self._verified:
            return
        block, pieces = self.block(name), self.pieces(name, row_bytes)
        if pieces is not None and not pieces.is_checked(start, end):
            self._range(block, row_bytes, start * row_bytes, end * row_bytes)
        if pieces is None:
            self._retry(block, partial(self.check_block, block))

    def _range(self, block: Block, row: int, start: int, end: int) -> memoryview:
        return self._retry(block, partial(self._read_range, block, row, start, end))

    def _read_range(self, block: Block, row: int, start: int, end: int) -> memoryview:
        if block.codec == "none":
            return self._raw_range(block, row, start, end)
        if block.is_seekable:
            return self._frames(block, start, end)
        return self._window_of_whole(block, start, end)

    def _window_of_whole(self, block: Block, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a block that can only be had whole; it is kept, so that the next window is cheap."""
        whole = self.view(block.name)
        if self._is_local and block.codec == "none":
            return whole[start:end]
        self._keep(block.name, whole)
        window = whole[start:end]
        # A reference to a few rows must not keep the whole block in memory.
        return window if 2 * len(window) >= len(whole) else memoryview(bytes(window))

    def _raw_range(self, block: Block, row: int, start: int, end: int) -> memoryview:
        if not self._verify or block.name in self._verified:
            kept = BLOCK_CACHE.get(self._owner, block.name) if self._owner else None
            return self._stored(block, start, end) if kept is None else memoryview(bytes(kept[start:end]))
        if block.raw_size <= layout.PIECES_FROM_BYTES:
            return self._window_of_whole(block, start, end)
        pieces = self.pieces(block.name, row)
        if pieces is None:
            if self._verify != "window" and not self._is_local and block.raw_size <= BLOCK_CACHE.max_bytes:
                return self._window_of_whole(block, start, end)
            self.check_block(block)
            return self._stored(block, start, end)
        low, high = pieces.span(start, end, row, block.raw_size)
        data = self._stored(block, low, high)
        pieces.check(data, low, row, block.name, self.path)
        return data[start - low : end - low]

    def pieces(self, name: str, row_bytes: int) -> PieceChecksums | None:
        """The piece checksums of a raw block, one for each of its pieces, or None if the file has none for it."""
        if name not in self._pieces:
            aux = layout.PIECES_PREFIX + name
            found = PieceChecksums.unpack(self.view(aux), self.path) if aux in self else None
            if found is not None and len(found.checksums) * found.rows * row_bytes < self.raw_size(name):
                raise CorruptLayoutError("has fewer piece checksums than pieces", block=name, path=self.path)
            self._pieces[name] = found
        return self._pieces[name]

    def is_seekable(self, name: str) -> bool:
        """Whether a block is compressed in frames that are decoded one by one."""
        return self.block(name).is_seekable

    def copy_frames(self, name: str, start: int, out: NDArray[np.uint8]) -> None:
        """Bytes of a seekable block from `start` on into `out`; its frames are kept, for windows that overlap."""
        block = self.block(name)
        table, end = self._seek_table(block), start + len(out)
        first, last = table.frames_for(start, end)
        if not self._owner:
            self._owner = BLOCK_CACHE.new_owner()
        found = [BLOCK_CACHE.get(self._owner, (name, number)) for number in range(first, last)]
        self._decode_missing(block, table, first, found)
        for number, frame in enumerate(found, first):
            assert frame is not None
            low = table.raw_starts[number]
            begin, stop = max(start, low), min(end, low + len(frame))
            out[begin - start : stop - start] = np.frombuffer(frame, np.uint8)[begin - low : stop - low]

    def bring(self, name: str, row: int, runs: Sequence[Range]) -> None:
        """Bring what holds these runs of rows into a cache, if there is one, all of it at the same time."""
        block = self.block(name)
        stored = {self._stored_for(block, row, start * row, end * row) for start, end in runs}
        base = block.data_offset
        prefetch(self._reader, [(base + start, base + end) for start, end in sorted(stored) if end > start])

    def _stored_for(self, block: Block, row: int, start: int, end: int) -> Range:
        """The stored bytes of a block that are read for its bytes [start, end)."""
        if block.is_seekable:
            table = self._seek_table(block)
            kept: Collection[Hashable] = BLOCK_CACHE.of(self._owner) if self._owner else ()
            missing = [n for n in range(*table.frames_for(start, end)) if (block.name, n) not in kept]
            return (table.disk_starts[missing[0]], table.disk_starts[missing[-1] + 1]) if missing else (0, 0)
        if block.codec == "none":
            pieces = self.pieces(block.name, row) if block.raw_size > layout.PIECES_FROM_BYTES else None
            if pieces is not None:
                return pieces.span(start, end, row, block.raw_size)
            if self.is_verified(block.name) or self._verify == "window":
                return start, end
        kept_whole = self._owner and BLOCK_CACHE.get(self._owner, block.name) is not None
        return (0, 0) if kept_whole else (0, block.disk_size)

    def _decode_missing(
        self, block: Block, table: SeekTable, first: int, frames: list[memoryview | None]
    ) -> None:
        """Decode the frames that are None, neighbours with one read, and keep them."""
        missing = [index for index, frame in enumerate(frames) if frame is None]
        if not missing:
            return
        low = first + missing[0]
        base = table.disk_starts[low]
        stored = self._stored(block, base, table.disk_starts[first + missing[-1] + 1])
        for index in missing:
            number = first + index
            part = stored[table.disk_starts[number] - base : table.disk_starts[number + 1] - base]
            try:
                frame = memoryview(table.decode_frames(number, number + 1, part))
            except FormatError as error:
                raise self._name(error, block.name) from None
            frames[index] = frame
            BLOCK_CACHE.put(self._owner, (block.name, number), frame)

    def _frames(self, block: Block, start: int, end: int) -> memoryview:
        table = self._seek_table(block)
        first, last = table.frames_for(start, end)
        if first >= last:
            return memoryview(b"")
        stored = self._stored(block, table.disk_starts[first], table.disk_starts[last])
        try:
            raw = table.decode_frames(first, last, stored)
        except FormatError as error:
            raise self._name(error, block.name) from None
        skip = start - table.raw_starts[first]
        return memoryview(raw)[skip : skip + end - start]

    def _seek_table(self, block: Block) -> SeekTable:
        if block.name not in self._seek_tables and (ahead := self._table_ahead(block)) is not None:
            self._seek_tables[block.name] = ahead
        if block.name not in self._seek_tables:
            size = block.disk_size
            try:
                length = seek_table_bytes(self._stored(block, max(0, size - FOOTER_BYTES), size))
                if length > size:
                    raise CorruptLayoutError("its seek table is larger than the block")
                found = unpack_seek_table(self._stored(block, size - length, size), size, block.raw_size)
            except FormatError as error:
                raise self._name(error, block.name) from None
            self._seek_tables[block.name] = found
        return self._seek_tables[block.name]

    def _table_ahead(self, block: Block) -> SeekTable | None:
        """The seek table that stands before all data, where it saves a request; None where it is of no use."""
        name = layout.SEEK_PREFIX + block.name
        if self._is_local or name not in self:
            return None
        try:
            table = self.view(name)
            if seek_table_bytes(table[-FOOTER_BYTES:]) == len(table):
                return unpack_seek_table(table, block.disk_size, block.raw_size)
        except FormatError:
            pass  # the block has its own, whose error is raised
        return None

    def _decode(self, block: Block, stored: memoryview) -> bytes:
        try:
            return decode(block.codec, stored, block.raw_size)
        except FormatError as error:
            raise self._name(error, block.name) from None

    def _name(self, error: FormatError, block: str) -> FormatError:
        """The same error with the names of the block and the file."""
        return type(error)(error.message, block=block, path=self.path)

    def check_block(self, block: Block) -> None:
        """Compare a raw block with its checksum, in parts of bounded size; ChecksumError if it differs."""
        if self._verify == "window":
            return
        checksum = 0
        for start in range(0, block.disk_size, CHECK_STEP_BYTES):
            end = min(start + CHECK_STEP_BYTES, block.disk_size)
            checksum = crc32c(self._stored(block, start, end), checksum)
        if checksum != block.crc32c:
            raise ChecksumError("checksum mismatch", block=block.name, path=self.path)
        self._verified.add(block.name)

    def _stored(self, block: Block, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a block as stored."""
        low, high = block.data_offset + start, block.data_offset + end
        if high <= len(self._head):
            return self._head[low:high]
        # A block of no bytes may have any offset.
        return self._reader.read(low, high) if low < high else memoryview(b"")

    def _whole_head(self, header: layout.Header) -> memoryview:
        if header.data_section_offset <= len(self._head):
            return self._head
        return self._reader.read(0, header.data_section_offset)

    def close(self) -> None:
        """Close the file; returned arrays stay valid."""
        self.__del__()
        self._reader.close()

    def __del__(self) -> None:
        if self._owner:
            BLOCK_CACHE.forget(self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardReader({self.path!r}, {len(self.names)} blocks, {self._reader.size} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(ShardReader, verify=self._verify), (self._reader,))
