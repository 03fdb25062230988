"""Read blocks, and rows of blocks, of one shard through a RangeReader; every byte handed out was verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import FOOTER_BYTES, SeekTable, decode, seek_table_bytes, unpack_seek_table
from warpdata.bytekit.io.files import LocalRangeReader, open_source
from warpdata.bytekit.io.ranges import (
    Range,
    RangeReader,
    drop_cached,
    prefetch,
    resident,
)
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.bytekit.process.forks import Reopens
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    add_path,
    naming,
    require_word,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.layout import Block, BlockTable, parse_table, unpack_header
from warpdata.formats.wshard.rows import BlockRows, PieceChecksums
from warpdata.formats.wshard.schema import EpisodeSchema, TensorSpec, read_schema, tensor_specs

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

HEAD_BYTES = 64 << 10
"""The first read of a shard: header, table, names and usually all of the metadata."""
LOCAL_HEAD_BYTES = 8 << 10
"""The first read on this machine, where another read costs little and a copy of 64 KiB does not."""
CHECK_STEP_BYTES = 32 << 20
"""A block that is only checked, not handed out, is read so much at a time."""
_SMALL_BYTES = 128 << 10
"""Blocks that are decompressed or fetched, and held, as a whole."""

Source = str | os.PathLike[str] | RangeReader | bytes | BinaryIO
Verify = Literal["block", "window"] | bool
"""What is held against a checksum before it is handed out.

`"block"` (or True): every byte. A window of a large raw block without checksums for windows (files of other
programs) costs one reading of the whole block, once per reader. `"window"`: such a window is read alone and
unchecked, everything else is checked. False: the bytes of blocks are trusted.
"""


class ShardReader(Reopens):
    """An open shard: its table was read and checked, its blocks are read on demand.

    With `table` the file's own table is not read; for files whose table is damaged.
    """

    # Opening is short enough for these to be felt: what an instance does not have yet stands here.
    _owner = 0
    _specs: dict[str, TensorSpec] | None = None
    _schema: EpisodeSchema | None = None
    _head = memoryview(b"")

    def __init__(
        self, reader: RangeReader, *, verify: Verify = "block", table: BlockTable | None = None
    ) -> None:
        if verify != "block" and not isinstance(verify, bool):
            require_word("verify", verify, ("block", "window"))
        self.range_reader = reader
        self._verify = verify
        self.is_local: bool = getattr(reader, "is_local", False)
        self.path = reader.name
        if table is None:
            try:
                table = self._read_table()
            except FormatError as error:
                if not drop_cached(reader, 0, min(reader.size, HEAD_BYTES)):
                    raise add_path(error, self.path) from None
                with naming(self.path):
                    table = self._read_table()
        self.table = table
        self._verified: set[str] = set()
        self._pieces: dict[str, PieceChecksums | None] = {}
        self._seek_tables: dict[str, SeekTable] = {}
        self._numbers: dict[str, NDArray[np.int64]] = {}

    def _read_table(self) -> BlockTable:
        """Read the head of the file: header, block table and names."""
        first, size = LOCAL_HEAD_BYTES if self.is_local else HEAD_BYTES, self.range_reader.size
        self._head = head = self.range_reader.read(0, first if first < size else size)
        header = unpack_header(head, size)
        if header.data_section_offset > len(head):
            head = self.range_reader.read(0, header.data_section_offset)
        return parse_table(header, head, size)

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
    def role(self) -> int:
        """What kind of shard this is: 5 an episode, 4 a chunk list."""
        return self.table.header.role

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.range_reader.size

    def __contains__(self, name: object) -> bool:
        return name in self.table.blocks

    def block(self, name: str) -> Block:
        """Where and how a block is stored."""
        block = self.table.blocks.get(name)
        if block is None:
            raise BlobNotFoundError(
                "no such block", block=name, path=self.path, hint="`warp inspect` lists the blocks of a file."
            )
        return block

    def read(self, name: str) -> bytes:
        """The decompressed, verified bytes of a block."""
        return bytes(self.view(name))

    def view(self, name: str) -> memoryview:
        """Like `read`, without a copy where the block is stored raw: a read-only view of the file."""
        block = self.block(name)
        kept: memoryview | None = BLOCK_CACHE.get(self._owner, name) if self._owner else None
        if kept is not None:
            return kept
        try:
            return self._view(block)
        except FormatError as error:
            return self._read_again(error, self._view, block)

    def _retry(self, call: Callable[..., T], block: Block, *args: Any) -> T:
        """Return `call(block, *args)`; a damaged block is read once more."""
        try:
            return call(block, *args)
        except FormatError as error:
            return self._read_again(error, call, block, *args)

    def _read_again(self, error: FormatError, call: Callable[..., T], block: Block, *args: Any) -> T:
        """Return `call(block, *args)` without cached copies of the block; where there are none, raise the error."""
        low, high = block.data_offset, block.data_offset + block.disk_size
        if not drop_cached(self.range_reader, low, high):
            raise add_path(error, self.path, block.name) from None
        self._head = self._head[:low]
        self._seek_tables.pop(block.name, None)
        try:
            return call(block, *args)
        except FormatError as again:
            raise add_path(again, self.path, block.name) from None

    def _view(self, block: Block) -> memoryview:
        name, codec, is_seekable, _, disk_size, raw_size, checksum, _ = block
        data = self._stored(block, 0, disk_size)
        if is_seekable:
            table = self._seek_table(block)
            data = memoryview(table.decode_frames(0, table.frame_count, data[: table.disk_starts[-1]]))
        elif codec != "none":
            data = memoryview(decode(codec, data, raw_size))
        if self._verify and name not in self._verified:
            if crc32c(data) != checksum:
                raise ChecksumError("checksum mismatch", block=name, path=self.path)
            self._verified.add(name)
        return data

    def whole(self, name: str) -> memoryview:
        """Like `view`, but a decoded block is kept for the next call."""
        data = self.view(name)
        if self.block(name).codec != "none":
            self._keep(name, data)
        return data

    def numbers(self, name: str) -> NDArray[np.int64]:
        """A block of times or offsets in memory of its own: it is used for long, and a file may be cut meanwhile."""
        if name not in self._numbers:
            self._numbers[name] = np.frombuffer(bytes(self.view(name)), np.int64)
        return self._numbers[name]

    def _keep(self, key: Hashable, data: memoryview) -> None:
        if not self._owner:
            self._owner = BLOCK_CACHE.new_owner()
        BLOCK_CACHE.put(self._owner, key, data)

    def read_stored(self, name: str) -> memoryview:
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
            raise add_path(error, self.path, name) from None

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
        spec = self.specs.get(name)
        if spec is None:
            self.block(name)
            raise CorruptLayoutError("the metadata does not describe it", block=name, path=self.path)
        return spec

    def read_rows(self, name: str, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) of a tensor block, reading and verifying only the bytes that hold them."""
        return self.rows_as(name, self.spec(name), start, end)

    def rows_as(self, name: str, spec: TensorSpec, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) of a block that holds rows of this dtype and shape."""
        block, row = self.block(name), spec.row_bytes
        if row == 0:
            return np.zeros((end - start, *spec.shape), spec.dtype.dtype)
        if not 0 <= start <= end <= block.raw_size // row:
            raise IndexError(f"rows [{start}, {end}) of {block.raw_size // row} in block {name!r}")
        data = self._retry(self._window, block, row, start * row, end * row)
        return np.frombuffer(data, spec.dtype.dtype).reshape(end - start, *spec.shape)

    def rows_of(self, name: str, spec: TensorSpec, length: int) -> BlockRows:
        """The rows of a block, read on demand."""
        return BlockRows(self, name, spec, length)

    def map_block(self, name: str) -> memoryview | None:
        """All bytes of a block where looking at them costs nothing, else None; large ones are not yet verified.

        Large raw blocks of this machine, and small blocks, which are verified.
        """
        block = self.block(name)
        is_raw = block.codec == "none"
        if block.raw_size <= (layout.PIECES_FROM_BYTES if is_raw and self.is_local else _SMALL_BYTES):
            return self.whole(name)
        if not is_raw or block.raw_size <= layout.PIECES_FROM_BYTES:
            return None
        if not self.is_local:
            return resident(self.range_reader, block.data_offset, block.data_offset + block.disk_size)
        return self._stored(block, 0, block.disk_size)

    @property
    def guard(self) -> Callable[[], None] | None:
        """What raises TruncatedError if the mapped file was cut; for users of `map_block`, before they touch them."""
        return getattr(self.range_reader, "check_not_truncated", None)

    def check_not_truncated(self) -> None:
        """Raise TruncatedError if the mapped file was cut."""
        if (guard := self.guard) is not None:
            guard()

    def is_verified(self, name: str) -> bool:
        """Whether every byte of a raw block was verified by this reader, or is trusted."""
        if not self._verify or name in self._verified:
            return True
        pieces = self._pieces.get(name)
        if pieces is not None and pieces.is_checked():
            self._verified.add(name)
        return name in self._verified

    def verify_rows(self, name: str, row_bytes: int, start: int, end: int) -> None:
        """Check what holds rows [start, end) of a large raw block, unless it was checked before."""
        if not self._verify or name in self._verified:
            return
        block, pieces = self.block(name), self.pieces(name, row_bytes)
        if pieces is None:
            self._retry(self.check_block, block)
        elif not pieces.is_checked(start, end):
            self._retry(self._window, block, row_bytes, start * row_bytes, end * row_bytes)

    def _window(self, block: Block, row: int, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a block of rows of `row` bytes, reading no more than is needed to verify them."""
        if block.is_seekable:
            out = np.empty(end - start, np.uint8)
            self._copy_frames(block, start, out)
            return out.data
        if block.codec != "none":
            return self._window_of_whole(block, start, end)
        if not self._verify or block.name in self._verified:
            kept = BLOCK_CACHE.get(self._owner, block.name) if self._owner else None
            return self._stored(block, start, end) if kept is None else memoryview(bytes(kept[start:end]))
        if block.raw_size <= layout.PIECES_FROM_BYTES:
            return self._window_of_whole(block, start, end)
        pieces = self.pieces(block.name, row)
        if pieces is None:
            if self._verify != "window" and not self.is_local and block.raw_size <= BLOCK_CACHE.max_bytes:
                return self._window_of_whole(block, start, end)
            self.check_block(block)
            return self._stored(block, start, end)
        low, high = pieces.span(start, end, row, block.raw_size)
        data = self._stored(block, low, high)
        pieces.check(data, low, row, block.name, self.path)
        return data[start - low : end - low]

    def _window_of_whole(self, block: Block, start: int, end: int) -> memoryview:
        """Bytes [start, end) of a block that can only be had whole; it is kept, so that the next window is cheap."""
        whole = self.view(block.name)
        if self.is_local and block.codec == "none":
            return whole[start:end]
        self._keep(block.name, whole)
        window = whole[start:end]
        # A reference to a few rows must not keep the whole block in memory.
        return window if 2 * len(window) >= len(whole) else memoryview(bytes(window))

    def pieces(self, name: str, row_bytes: int) -> PieceChecksums | None:
        """The piece checksums of a raw block, one for each of its pieces, or None if the file has none for it."""
        if name not in self._pieces:
            aux = layout.PIECES_PREFIX + name
            pieces = PieceChecksums.unpack(self.view(aux), self.path) if aux in self else None
            if (
                pieces is not None
                and len(pieces.checksums) * pieces.rows * row_bytes < self.block(name).raw_size
            ):
                raise CorruptLayoutError("has fewer piece checksums than pieces", block=name, path=self.path)
            self._pieces[name] = pieces
        return self._pieces[name]

    def copy_frames(self, name: str, start: int, out: NDArray[np.uint8]) -> None:
        """Bytes of a seekable block from `start` on into `out`; its frames are kept, for windows that overlap."""
        block = self.block(name)
        self._retry(self._copy_frames, block, start, out)

    def _copy_frames(self, block: Block, start: int, out: NDArray[np.uint8]) -> None:
        table, end = self._seek_table(block), start + len(out)
        numbers = range(*table.frames_for(start, end))
        frames = {n: BLOCK_CACHE.get(self._owner, (block.name, n)) for n in numbers}
        missing = [number for number, frame in frames.items() if frame is None]
        if missing:  # neighbours with one read
            base = table.disk_starts[missing[0]]
            stored = self._stored(block, base, table.disk_starts[missing[-1] + 1])
        for number in numbers:
            low, frame = table.raw_starts[number], frames[number]
            if frame is None:
                part = stored[table.disk_starts[number] - base : table.disk_starts[number + 1] - base]
                frame = memoryview(table.decode_frames(number, number + 1, part))
                self._keep((block.name, number), frame)
            begin, stop = max(start, low), min(end, low + len(frame))
            out[begin - start : stop - start] = np.frombuffer(frame, np.uint8)[begin - low : stop - low]

    def bring(self, name: str, row: int, runs: Sequence[Range]) -> None:
        """Bring what holds these runs of rows into a cache, if there is one, all of it at the same time."""
        block = self.block(name)
        base = block.data_offset
        stored = {self._retry(self._stored_for, block, row, start * row, end * row) for start, end in runs}
        prefetch(
            self.range_reader, [(base + start, base + end) for start, end in sorted(stored) if end > start]
        )

    def _stored_for(self, block: Block, row: int, start: int, end: int) -> Range:
        """The stored bytes of a block that are read for its bytes [start, end)."""
        kept: Collection[Hashable] = BLOCK_CACHE.of(self._owner) if self._owner else ()
        if block.is_seekable:
            table = self._seek_table(block)
            missing = [n for n in range(*table.frames_for(start, end)) if (block.name, n) not in kept]
            return (table.disk_starts[missing[0]], table.disk_starts[missing[-1] + 1]) if missing else (0, 0)
        if block.codec == "none":
            pieces = self.pieces(block.name, row) if block.raw_size > layout.PIECES_FROM_BYTES else None
            if pieces is not None:
                return pieces.span(start, end, row, block.raw_size)
            if self.is_verified(block.name) or self._verify == "window":
                return start, end
        return (0, 0) if block.name in kept else (0, block.disk_size)

    def _seek_table(self, block: Block) -> SeekTable:
        table = self._seek_tables.get(block.name) or self._table_ahead(block)
        if table is None:
            size = block.disk_size
            length = seek_table_bytes(self._stored(block, max(0, size - FOOTER_BYTES), size))
            if length > size:
                raise CorruptLayoutError("its seek table is larger than the block")
            table = unpack_seek_table(self._stored(block, size - length, size), size, block.raw_size)
        self._seek_tables[block.name] = table
        return table

    def _table_ahead(self, block: Block) -> SeekTable | None:
        """The seek table that stands before all data, where it saves a request; None where it is of no use."""
        name = layout.SEEK_PREFIX + block.name
        if self.is_local or name not in self:
            return None
        try:
            table = self.view(name)
            if seek_table_bytes(table[-FOOTER_BYTES:]) == len(table):
                return unpack_seek_table(table, block.disk_size, block.raw_size)
        except FormatError:
            pass  # the block has its own, whose error is raised
        return None

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
        return self.range_reader.read(low, high) if low < high else memoryview(b"")

    def close(self) -> None:
        """Close the file; returned arrays stay valid."""
        self.__del__()
        self.range_reader.close()

    def __del__(self) -> None:
        if self._owner:
            BLOCK_CACHE.forget(self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardReader({self.path!r}, {len(self.names)} blocks, {self.range_reader.size} bytes)"
