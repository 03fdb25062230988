"""Write the blocks of a shard: compression chosen per block, data first, table last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import LimitExceededError, nearest
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.layout import Block, data_offset_for, pack_table
from warpdata.formats.wshard.rows import ChannelRows, PieceChecksums, WatchedRows, rows_per_piece

COMPRESSIONS = ("none", "zstd", "zstd-seekable", "lz4", "auto")
COMPATS = ("default", "strict")
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
        if self.codec not in ("none", "zstd", "lz4", "auto"):
            raise _unknown(self.codec)
        if self.frames not in ("auto", "seekable", "single"):
            raise ValueError(
                f"frames is auto, seekable or single, not {self.frames!r}."
                + nearest(str(self.frames), ("auto", "seekable", "single"))
            )
        if self.level is not None:
            self._check_level(self.level)

    def _check_level(self, level: int) -> None:
        if isinstance(level, bool) or not isinstance(level, int):
            raise TypeError(f"a compression level is a whole number, not {type(level).__name__}")
        if self.codec not in _LEVELS:
            raise ValueError(f"{self.codec!r} has no levels")
        low, high = _LEVELS[self.codec]
        if not low <= level <= high:
            raise ValueError(f"levels of {self.codec} go from {low} to {high}, not to {level}")

    @classmethod
    def parse(cls, text: str | Compression | None) -> Compression:
        """From a name, with a level behind a colon if wanted: `"zstd"`, `"zstd:19"`, `"zstd-seekable"`, `"auto"` …"""
        if text is None or isinstance(text, Compression):
            return text or cls()
        if not isinstance(text, str):
            raise TypeError(f"compression is a name such as 'zstd' or 'zstd:19', not {text!r}")
        name, colon, level = text.partition(":")
        if name not in COMPRESSIONS:
            raise _unknown(name)
        if colon and not level.removeprefix("-").isdecimal():
            raise ValueError(f"the level in {text!r} is not a number")
        frames = "seekable" if name == "zstd-seekable" else "auto"
        return cls(name.removesuffix("-seekable"), int(level) if level else None, frames)


def _unknown(name: object) -> ValueError:
    return ValueError(
        f"compression is {', '.join(COMPRESSIONS[:-1])} or {COMPRESSIONS[-1]}, not {name!r}."
        + nearest(str(name), COMPRESSIONS)
    )


CompressionChoice = str | Compression | Mapping[str, str | Compression] | None


def check_choice(choice: CompressionChoice) -> None:
    """Raise ValueError or TypeError unless this is a valid choice of compression."""
    for each in choice.values() if isinstance(choice, Mapping) else (choice,):
        Compression.parse(each)


def check_compat(compat: str) -> str:
    """The word itself if it is a valid `compat`, or ValueError."""
    if compat not in COMPATS:
        raise ValueError(f"compat is 'default' or 'strict', not {compat!r}." + nearest(str(compat), COMPATS))
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
        found = self._by_name.get(block) or self._by_name.get(block.partition("/")[2]) or self._default
        if not self._strict:
            return found
        # One existing reader refuses compressed blocks above this, raw ones it takes at any size.
        if raw_size > layout.STRICT_MAX_COMPRESSED_BYTES:
            return Compression()
        return Compression(found.codec, found.level, "single")


WINDOW_BYTES = 1 << 20
"""Small enough that what is checksummed or compressed is still in the cache when it is written."""
AUTO_LEVEL = 1
AUTO_SAMPLE_BYTES = 1 << 20
AUTO_KEEP_RATIO = 0.9


class _Stored(NamedTuple):
    codec: str
    is_seekable: bool
    raw_size: int
    crc32c: int


class ShardWriter:
    """Fills a new file with blocks; `finish` writes header and table once all sizes are known."""

    def __init__(
        self,
        out: NewFile,
        names: Sequence[str],
        *,
        role: int = layout.ROLE_EPISODE,
        on_rows: Callable[[int], None] | None = None,
    ) -> None:
        self._out = out
        self._on_rows = on_rows
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
        offset = self._align()
        self._out.write(data)
        stored = _Stored("none", False, len(data), crc32c(data))
        self._record(name, offset, stored, content_type)

    def add_copy(self, name: str, reader: RangeReader, content_type: int = layout.CONTENT_RAW) -> None:
        """Add a raw block of any size from a reader, a window at a time."""
        if reader.size > layout.MAX_BLOCK_BYTES:
            raise LimitExceededError(f"{reader.size} bytes, a block may have 64 GiB", block=name)
        offset, checksum = self._align(), 0
        for start in range(0, reader.size, WINDOW_BYTES):
            window = reader.read(start, min(start + WINDOW_BYTES, reader.size))
            checksum = crc32c(window, checksum)
            self._out.write(window)
        self._record(name, offset, _Stored("none", False, reader.size, checksum), content_type)

    def add_stored(self, block: Block, stored: memoryview) -> None:
        """Add a block of another shard exactly as it is stored there."""
        offset = self._align()
        self._out.write(stored)
        self._blocks.append(block._replace(data_offset=offset))

    def make_room(self, name: str, rows: ChannelRows, compression: Compression) -> None:
        """Keep a place before all data for the seek table of a block that may get one: remote readers then have it
        with the first request."""
        how = _chosen(rows, rows.length * rows.spec.row_bytes, compression)
        self._chosen[name] = how
        if how.frames == "seekable":
            self._room[name] = self._align()
            self._out.write(bytes(seek_table_size(-(-rows.length // _rows_per_frame(rows)))))

    def add_rows(self, name: str, rows: ChannelRows, compression: Compression, content_type: int = 0) -> None:
        """Add a tensor block from any source of rows, a window at a time."""
        raw_size = rows.length * rows.spec.row_bytes
        if raw_size > layout.MAX_BLOCK_BYTES:
            raise LimitExceededError(f"{raw_size} bytes, a block may have 64 GiB", block=name)
        rows = rows if self._on_rows is None else WatchedRows(rows, self._on_rows)
        offset = self._align()
        how = self._chosen.get(name) or _chosen(rows, raw_size, compression)
        stored = self._compressed(name, rows, raw_size, how)
        if stored is None:
            self._out.seek(offset)
            stored = self._raw(name, rows, raw_size)
        self._record(name, offset, stored, content_type)

    def finish(self) -> None:
        """Add piece checksums and seek tables, then write header, table and names at the start of the file."""
        for name, pieces in self._pieces.items():
            self.add_bytes(layout.PIECES_PREFIX + name, pieces.pack())
        for name, offset in self._room.items():
            if (table := self._seek_tables.get(name)) is not None:
                self._out.write_at(offset, table)
                size = len(table)
                self._blocks.append(
                    Block(layout.SEEK_PREFIX + name, "none", False, offset, size, size, crc32c(table), 0)
                )
        self._blocks.sort(key=lambda block: block.data_offset)
        self._out.write_at(0, pack_table(self._blocks, self._out.position, self._role, self._data_offset))

    def _align(self) -> int:
        self._out.write(padding_to(self._out.position, layout.ALIGNMENT))
        return self._out.position

    def _record(self, name: str, offset: int, stored: _Stored, content_type: int) -> None:
        disk_size = self._out.position - offset
        self._blocks.append(
            Block(name, stored.codec, stored.is_seekable, offset, disk_size, stored.raw_size, stored.crc32c,
                  content_type)
        )  # fmt: skip

    def _raw(self, name: str, rows: ChannelRows, raw_size: int) -> _Stored:
        per_piece = rows_per_piece(rows.spec.row_bytes)
        piece_bytes = per_piece * rows.spec.row_bytes
        if raw_size <= layout.PIECES_FROM_BYTES or not piece_bytes:
            return self._small(rows, raw_size)
        checksums: list[int] = []
        for window in _windows(rows, per_piece):
            starts = range(0, len(window), piece_bytes)
            checksums += [crc32c(window[start : start + piece_bytes]) for start in starts]
            self._out.write(window)
        self._pieces[name] = PieceChecksums(per_piece, np.array(checksums, np.uint32))
        return _Stored("none", False, raw_size, self._pieces[name].joined(piece_bytes, raw_size))

    def _small(self, rows: ChannelRows, raw_size: int) -> _Stored:
        running = _Checksummed()
        for window in running(_windows(rows, 1)):
            self._out.write(window)
        return _Stored("none", False, raw_size, running.value)

    def _compressed(self, name: str, rows: ChannelRows, raw_size: int, how: Compression) -> _Stored | None:
        """The block compressed, or None where that saves nothing."""
        if how.codec == "none" or raw_size < layout.MIN_COMPRESSED_BYTES:
            return None
        running = _Checksummed()
        start, data = self._out.position, b""
        for data in _encoded(running, rows, raw_size, how):
            self._out.write(data)
            if self._out.position - start >= raw_size:
                return None
        disk_size = self._out.position - start
        if raw_size > max(layout.MAX_EXPANDED_BYTES, disk_size * layout.MAX_LARGE_RATIO):
            return None  # readers refuse what expands so much
        if how.frames == "seekable":
            self._seek_tables[name] = data  # the table is what such a block ends with
        return _Stored(how.codec, how.frames == "seekable", raw_size, running.value)


class _Checksummed:
    """Passes windows on and keeps their checksum."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self, windows: Iterator[memoryview]) -> Iterator[memoryview]:
        for window in windows:
            self.value = crc32c(window, self.value)
            yield window


def _encoded(running: _Checksummed, rows: ChannelRows, raw_size: int, how: Compression) -> Iterator[bytes]:
    level = ZSTD_DEFAULT_LEVEL if how.level is None else how.level
    if how.frames == "seekable":
        per_frame = _rows_per_frame(rows)
        yield from encode_seekable(running(_windows(rows, per_frame, per_frame)), level)
    elif raw_size <= layout.SEEKABLE_FROM_BYTES or how.codec == "lz4":
        (window,) = running(_windows(rows, rows.length, rows.length))
        yield encode(how.codec, window, how.level)
    else:
        yield from encode_zstd_stream(running(_windows(rows, 1)), raw_size, level)


def _rows_per_frame(rows: ChannelRows) -> int:
    return max(1, layout.FRAME_BYTES // rows.spec.row_bytes)


def _windows(rows: ChannelRows, multiple: int, count: int | None = None) -> Iterator[memoryview]:
    """The rows as flat bytes in windows of `count` rows, or about WINDOW_BYTES in whole multiples."""
    if count is None:
        count = max(1, WINDOW_BYTES // max(1, multiple * rows.spec.row_bytes)) * multiple
    for start in range(0, rows.length, max(1, count)):
        yield byte_view(np.ascontiguousarray(rows.rows(start, min(start + count, rows.length))))


def _chosen(rows: ChannelRows, raw_size: int, wanted: Compression) -> Compression:
    """The compression a block really gets: `auto` decided, and seekable if large; lz4 only if small."""
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
    row = rows.spec.row_bytes
    count = max(1, min(rows.length, AUTO_SAMPLE_BYTES // row) // 4)
    starts = sorted({rows.length * part // 4 for part in range(4)})
    sample = b"".join(_bytes(rows.rows(start, min(start + count, rows.length))) for start in starts)
    return len(encode("zstd", sample, AUTO_LEVEL)) <= AUTO_KEEP_RATIO * len(sample)


def _bytes(array: NDArray[Any]) -> bytes:
    return bytes(byte_view(np.ascontiguousarray(array)))
