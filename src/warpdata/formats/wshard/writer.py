"""Write the blocks of a shard: compression chosen per block, data first, table last."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from warpdata.bytekit.arrays import byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import (
    ZSTD_DEFAULT_LEVEL,
    encode,
    encode_seekable,
    encode_zstd_stream,
    seek_table_size,
)
from warpdata.bytekit.io.commit import NewFile
from warpdata.bytekit.io.ranges import BytesRangeReader, RangeReader
from warpdata.errors import LimitExceededError, nearest, require_word
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.layout import Block, data_offset_for, pack_table
from warpdata.formats.wshard.rows import ChannelRows, PieceChecksums

COMPRESSIONS = ("none", "zstd", "zstd-seekable", "lz4", "auto")
_LEVELS = {"zstd": (-100, 22), "lz4": (0, 16)}


@dataclass(frozen=True, slots=True)
class Compression:
    """How to store one block: codec, level, and whether its frames can be entered by row.

    `"zstd"` is one frame, which every program reads; frames to enter are chosen by name or by `"auto"`.
    """

    codec: str = "none"
    level: int | None = None
    frames: str = "auto"

    def __post_init__(self) -> None:
        require_word("compression", self.codec, ("none", "zstd", "lz4", "auto"))
        require_word("frames", self.frames, ("auto", "seekable", "single"))
        if self.level is None:
            return
        if isinstance(self.level, bool) or not isinstance(self.level, int):
            raise TypeError(f"a compression level is a whole number, not {type(self.level).__name__}")
        if self.codec not in _LEVELS:
            raise ValueError(f"{self.codec!r} has no levels")
        low, high = _LEVELS[self.codec]
        if not low <= self.level <= high:
            raise ValueError(f"levels of {self.codec} go from {low} to {high}, not to {self.level}")

    @classmethod
    def parse(cls, text: str | Compression | None) -> Compression:
        """From a name, with a level behind a colon if wanted: `"zstd"`, `"zstd:19"`, `"zstd-seekable"`, `"auto"` …"""
        if text is None or isinstance(text, Compression):
            return text or cls()
        if not isinstance(text, str):
            raise TypeError(f"compression is a name such as 'zstd' or 'zstd:19', not {text!r}")
        name, colon, level = text.partition(":")
        require_word("compression", name, COMPRESSIONS)
        if colon and not level.removeprefix("-").isdecimal():
            raise ValueError(f"the level in {text!r} is not a number")
        frames = "seekable" if name == "zstd-seekable" else "auto"
        return cls(name.removesuffix("-seekable"), int(level) if level else None, frames)


CompressionChoice = str | Compression | Mapping[str, str | Compression] | None


def check_choice(choice: CompressionChoice) -> None:
    """Raise ValueError or TypeError unless this is a valid choice of compression."""
    for each in choice.values() if isinstance(choice, Mapping) else (choice,):
        Compression.parse(each)


def check_compat(compat: str) -> str:
    """The word itself if it is a valid `compat`, or ValueError."""
    require_word("compat", compat, ("default", "strict"))
    return compat


class Chooser:
    """Which compression each block gets: one for all, or by channel id or block name."""

    def __init__(self, choice: CompressionChoice, blocks: Collection[str], *, strict: bool) -> None:
        self._strict = strict
        many = choice if isinstance(choice, Mapping) else {}
        self._by_name = {name: Compression.parse(each) for name, each in many.items()}
        self._default = Compression.parse(None if isinstance(choice, Mapping) else choice)
        known = {*blocks, *(block.partition("/")[2] for block in blocks)}
        for name in self._by_name:
            if name not in known:
                raise ValueError(
                    f"compression names no channel of this episode: {name!r}.{nearest(str(name), known)}"
                )

    @property
    def is_raw(self) -> bool:
        """Whether every block is stored as it is, so that the size of the file is known."""
        return self._default.codec == "none" and not self._by_name

    def __call__(self, block: str, raw_size: int) -> Compression:
        choice = self._by_name.get(block) or self._by_name.get(block.partition("/")[2]) or self._default
        if not self._strict:
            return choice
        # One existing reader refuses compressed blocks above this, raw ones it takes at any size.
        if raw_size > layout.STRICT_MAX_COMPRESSED_BYTES:
            return Compression()
        return Compression(choice.codec, choice.level, "single")


WINDOW_BYTES = 1 << 20
"""Small enough that what is checksummed or compressed is still in the cache when it is written."""
AUTO_LEVEL = 1
AUTO_SAMPLE_BYTES = 1 << 20
AUTO_KEEP_RATIO = 0.9


class ShardWriter:
    """Fills a new file with blocks; `finish` writes header and table once all sizes are known."""

    def __init__(self, out: NewFile, names: Sequence[str], *, role: int = layout.ROLE_EPISODE) -> None:
        self._out = out
        self._role = role
        self._blocks: list[Block] = []
        self._pieces: dict[str, PieceChecksums] = {}
        self._chosen: dict[str, Compression] = {}
        self._room: dict[str, int] = {}
        self._seek_tables: dict[str, bytes] = {}
        # Names for every block of piece checksums, or of a seek table, that may turn out to be needed.
        self._data_offset = data_offset_for([*names, *(layout.PIECES_PREFIX + name for name in names)])
        out.write(bytes(self._data_offset))

    def add_bytes(self, name: str, data: bytes, content_type: int = layout.CONTENT_RAW) -> None:
        """Add a small block, stored raw."""
        self.add_copy(name, BytesRangeReader(data), content_type)

    def add_copy(self, name: str, reader: RangeReader, content_type: int = layout.CONTENT_RAW) -> None:
        """Add a raw block of any size from a reader, a window at a time."""
        _check_size(name, reader.size)
        offset, checksum = self._align(), 0
        for start in range(0, reader.size, WINDOW_BYTES):
            window = reader.read(start, min(start + WINDOW_BYTES, reader.size))
            checksum = crc32c(window, checksum)
            self._out.write(window)
        self._record(name, offset, reader.size, checksum, content_type, Compression())

    def add_stored(self, block: Block, stored: memoryview) -> None:
        """Add a block of another shard exactly as it is stored there."""
        offset = self._align()
        self._out.write(stored)
        self._blocks.append(block._replace(data_offset=offset))

    def make_room(self, name: str, rows: ChannelRows, compression: Compression) -> None:
        """Choose how a tensor is stored, before any is added, and keep a place for the seek table that it may get.

        Those tables stand before all data: remote readers have them with the first request.
        """
        how = self._chosen[name] = _choose(rows, compression)
        if how.frames == "seekable":
            self._room[name] = self._align()
            self._out.write(bytes(seek_table_size(-(-rows.length // _rows_per_frame(rows)))))

    def add_rows(self, name: str, rows: ChannelRows, content_type: int = layout.CONTENT_RAW) -> None:
        """Add a tensor block from any source of rows, a window at a time; raw unless `make_room` chose otherwise."""
        raw_size = rows.length * rows.spec.row_bytes
        _check_size(name, raw_size)
        how = self._chosen.get(name, Compression())
        offset = self._align()
        checksum = self._compress(name, rows, raw_size, how)
        if checksum is None:
            self._out.seek(offset)
            how = Compression()
            checksum = self._copy_rows(name, rows, raw_size)
        self._record(name, offset, raw_size, checksum, content_type, how)

    def finish(self) -> None:
        """Add piece checksums and seek tables, then write header, table and names at the start of the file."""
        for name, pieces in self._pieces.items():
            self.add_bytes(layout.PIECES_PREFIX + name, pieces.pack())
        for name, table in self._seek_tables.items():
            offset, size = self._room[name], len(table)
            self._out.write_at(offset, table)
            self._blocks.append(
                Block(layout.SEEK_PREFIX + name, "none", False, offset, size, size, crc32c(table), 0)
            )
        self._blocks.sort(key=lambda block: block.data_offset)
        self._out.write_at(0, pack_table(self._blocks, self._out.position, self._role, self._data_offset))

    def _align(self) -> int:
        self._out.write(padding_to(self._out.position, layout.ALIGNMENT))
        return self._out.position

    def _record(self, name: str, offset: int, raw_size: int, crc: int, kind: int, how: Compression) -> None:
        stored = how.codec, how.frames == "seekable", offset, self._out.position - offset
        self._blocks.append(Block(name, *stored, raw_size, crc, kind))

    def _copy_rows(self, name: str, rows: ChannelRows, raw_size: int) -> int:
        """Write rows as they are; returns their checksum."""
        row = rows.spec.row_bytes
        per_piece = max(1, layout.PIECE_BYTES // max(1, row)) if raw_size > layout.PIECES_FROM_BYTES else 1
        checksum, piece_bytes, sums = 0, per_piece * row, []
        for window in _windows(rows, per_piece):
            if raw_size > layout.PIECES_FROM_BYTES:
                starts = range(0, len(window), piece_bytes)
                sums += [crc32c(window[start : start + piece_bytes]) for start in starts]
            else:
                checksum = crc32c(window, checksum)
            self._out.write(window)
        if not sums:
            return checksum
        self._pieces[name] = PieceChecksums(per_piece, np.array(sums, np.uint32))
        return self._pieces[name].join(piece_bytes, raw_size)

    def _compress(self, name: str, rows: ChannelRows, raw_size: int, how: Compression) -> int | None:
        """Write rows compressed; returns their checksum, or None where that saves nothing."""
        if how.codec == "none" or raw_size < layout.MIN_COMPRESSED_BYTES:
            return None
        checksum, start, data = 0, self._out.position, b""

        def add_up(windows: Iterator[memoryview]) -> Iterator[memoryview]:
            nonlocal checksum
            for window in windows:
                checksum = crc32c(window, checksum)
                yield window

        level = ZSTD_DEFAULT_LEVEL if how.level is None else how.level
        if how.frames == "seekable":
            per_frame = _rows_per_frame(rows)
            encoded = encode_seekable(add_up(_windows(rows, per_frame, per_frame)), level)
        elif raw_size <= layout.SEEKABLE_FROM_BYTES or how.codec == "lz4":
            whole = add_up(_windows(rows, rows.length, rows.length))
            encoded = (encode(how.codec, window, how.level) for window in whole)
        else:
            encoded = encode_zstd_stream(add_up(_windows(rows, 1)), raw_size, level)
        for data in encoded:
            self._out.write(data)
            if self._out.position - start >= raw_size:
                return None
        disk_size = self._out.position - start
        if raw_size > max(layout.MAX_EXPANDED_BYTES, disk_size * layout.MAX_LARGE_RATIO):
            return None  # readers refuse what expands so much
        if how.frames == "seekable":
            self._seek_tables[name] = data  # the table is what such a block ends with
        return checksum


def _check_size(name: str, raw_size: int) -> None:
    if raw_size > layout.MAX_BLOCK_BYTES:
        raise LimitExceededError(f"{raw_size} bytes, a block may have 64 GiB", block=name)


def _rows_per_frame(rows: ChannelRows) -> int:
    return max(1, layout.FRAME_BYTES // rows.spec.row_bytes)


def _windows(rows: ChannelRows, multiple: int, count: int | None = None) -> Iterator[memoryview]:
    """The rows as flat bytes in windows of `count` rows, or about WINDOW_BYTES in whole multiples."""
    if count is None:
        count = max(1, WINDOW_BYTES // max(1, multiple * rows.spec.row_bytes)) * multiple
    for start in range(0, rows.length, max(1, count)):
        yield byte_view(np.ascontiguousarray(rows.rows(start, min(start + count, rows.length))))


def _choose(rows: ChannelRows, wanted: Compression) -> Compression:
    """The compression a block really gets: `auto` decided, and seekable if large; lz4 only if small."""
    raw_size = rows.length * rows.spec.row_bytes
    codec, level = wanted.codec, wanted.level
    if codec == "auto":
        codec, level = ("zstd", AUTO_LEVEL) if _is_compressible(rows, raw_size) else ("none", None)
    if codec == "lz4" and raw_size > layout.LZ4_MAX_BLOCK_BYTES:
        codec, level = "zstd", 1
    big = raw_size > layout.SEEKABLE_FROM_BYTES and wanted.frames == wanted.codec == "auto"
    seekable = codec == "zstd" and (big or wanted.frames == "seekable") and rows.spec.row_bytes > 0
    return Compression(codec, level, "seekable" if seekable else "single")


def _is_compressible(rows: ChannelRows, raw_size: int) -> bool:
    if raw_size < layout.MIN_COMPRESSED_BYTES:
        return False
    count = max(1, min(rows.length, AUTO_SAMPLE_BYTES // rows.spec.row_bytes) // 4)
    starts = sorted({rows.length * part // 4 for part in range(4)})
    parts = [np.ascontiguousarray(rows.rows(start, min(start + count, rows.length))) for start in starts]
    sample = b"".join(map(byte_view, parts))
    return len(encode("zstd", sample, AUTO_LEVEL)) <= AUTO_KEEP_RATIO * len(sample)
