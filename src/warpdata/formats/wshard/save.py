"""Write an episode as one shard: lossless, readable by every existing program, committed atomically."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.codec import (
    ZSTD_DEFAULT_LEVEL,
    encode,
    encode_seekable,
    encode_zstd_stream,
    seek_table_size,
)
from warpdata.bytekit.io.commit import NewFile, commit_file
from warpdata.bytekit.io.ranges import BytesRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    SchemaMismatchError,
    TimestampOrderError,
    WarpError,
    nearest,
    require_word,
    suggests,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.episode import FLAGS, Channel, WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import Block, data_offset_for, pack_table, valid_name
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import (
    CONTENT_TYPES,
    ArrayRows,
    ChannelRows,
    EncodedRows,
    FunctionRows,
    PieceChecksums,
    is_stored,
    is_text,
)
from warpdata.formats.wshard.schema import (
    CHANNEL_KEYS,
    EPISODE_KEYS,
    check_channel_id,
    fits_own_block,
    tensor_spec,
)

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
    for stated in choice.values() if isinstance(choice, Mapping) else (choice,):
        Compression.parse(stated)


def check_compat(compat: str) -> str:
    """The word itself if it is a valid `compat`, or ValueError."""
    require_word("compat", compat, ("default", "strict"))
    return compat


class Chooser:
    """Which compression each block gets: one for all, or by channel id or block name."""

    def __init__(self, choice: CompressionChoice, blocks: Collection[str], *, strict: bool) -> None:
        self._strict = strict
        many = choice if isinstance(choice, Mapping) else {}
        self._by_name = {name: Compression.parse(stated) for name, stated in many.items()}
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


_RESERVE_FROM_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
"""Other blocks of at most this size are stored before the tensors, so that the first remote read has them."""
_CHANNEL_LANES = ("signal/", "action/")


class _Tensor(NamedTuple):
    rows: ChannelRows
    content_type: int = layout.CONTENT_RAW

    @property
    def size(self) -> int:
        return self.rows.length * self.rows.spec.row_bytes


class ShardPlan(NamedTuple):
    """Every block of a shard to be, in the order of the file: metadata, small blocks, tensors, and other bytes."""

    meta: dict[str, bytes]
    small: dict[str, RangeReader]
    tensors: dict[str, _Tensor]
    blocks: dict[str, RangeReader]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every block behind the metadata."""
        parts: tuple[Mapping[str, _Tensor | RangeReader], ...] = (self.small, self.tensors, self.blocks)
        return {name: tensor.size for part in parts for name, tensor in part.items()}


@suggests
def save_wshard(
    episode: WShardEpisode,
    path: str | os.PathLike[str] | BinaryIO,
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    overwrite: bool = False,
    durable: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Save an episode so that load_wshard gives it back equal; the file appears whole or not at all.

    A file that exists is a ConflictError unless `overwrite`. `path` may be a binary file that is open for writing,
    such as a BytesIO: it gets the bytes at once, at its position. What could not be read back is refused before
    anything is written. `compat="strict"` writes nothing that one of the existing programs cannot read.
    """
    strict = check_compat(compat) == "strict"
    if not isinstance(path, str | os.PathLike) and (
        not hasattr(path, "write") or isinstance(path, io.TextIOBase)
    ):
        raise TypeError(f"expected a path or a binary file, got {type(path).__name__}")
    plan = plan_shard(episode, path if isinstance(path, str | os.PathLike) else "<stream>")
    choose = Chooser(compression, plan.sizes, strict=strict)
    if isinstance(path, str | os.PathLike):
        with commit_file(path, durable=durable, replace=overwrite) as out:
            _write_plan(plan, out, choose, progress)
        return
    with tempfile.TemporaryFile() as file:
        out = NewFile(file.fileno(), "<stream>")
        _write_plan(plan, out, choose, progress)
        out.finish()
        shutil.copyfileobj(file, path)


def _write_plan(
    plan: ShardPlan, out: NewFile, choose: Chooser, progress: Callable[[int, int], None] | None
) -> None:
    total = sum(tensor.size for tensor in plan.tensors.values())
    if choose.is_raw and total > _RESERVE_FROM_BYTES:
        out.reserve(total + total // 1024 + (1 << 20))  # at least: data, table, metadata, padding, checksums
    tensors = plan.tensors if progress is None else _count_rows(plan.tensors, total, progress)
    writer = ShardWriter(out, [*plan.meta, *plan.sizes])
    for name, data in plan.meta.items():
        writer.add_bytes(name, data, layout.CONTENT_JSON)
    for name, reader in plan.small.items():
        writer.add_copy(name, reader, _content_type(name))
    for name, tensor in tensors.items():
        writer.make_room(name, tensor.rows, choose(name, tensor.size))
    for name, tensor in tensors.items():
        writer.add_rows(name, tensor.rows, tensor.content_type)
    for name, reader in plan.blocks.items():
        writer.add_copy(name, reader, _content_type(name))
    writer.finish()


def _count_rows(
    tensors: dict[str, _Tensor], total: int, progress: Callable[[int, int], None]
) -> dict[str, _Tensor]:
    """The tensors, with a call of `progress` as (done, total) bytes whenever rows are read."""
    done = 0

    def watch(rows: ChannelRows) -> ChannelRows:
        def read(start: int, end: int) -> Any:
            nonlocal done
            done += (end - start) * rows.spec.row_bytes
            progress(min(done, total), total)
            return rows.rows(start, end)

        return FunctionRows(rows.spec, rows.length, read)

    return {name: tensor._replace(rows=watch(tensor.rows)) for name, tensor in tensors.items()}


def _content_type(block: str) -> int:
    """What a block that is not a tensor holds, by its name."""
    if block.startswith("meta/"):
        return layout.CONTENT_JSON
    return layout.CONTENT_TYPE_OF_MODALITY["video"] if block.startswith("video/") else layout.CONTENT_RAW


def plan_shard(episode: WShardEpisode, path: str | os.PathLike[str]) -> ShardPlan:
    """The blocks of the file of an episode, or the error that every reader would raise."""
    if not isinstance(episode, WShardEpisode):
        hint = "; episode.tensors is one" if hasattr(episode, "tensors") else ""
        raise TypeError(f"save_wshard saves a WShardEpisode, not {type(episode).__name__}{hint}")
    try:
        episode.validate()
        # Raise if the user's keys collide with those of the format.
        named: list[tuple[str | None, frozenset[str]]] = [(None, EPISODE_KEYS & episode.about.keys())]
        named += [
            (block, CHANNEL_KEYS & channel.about.keys())
            for block, channel in episode.lanes()
            if block.startswith(_CHANNEL_LANES)
        ]
        for block, taken in named:
            if taken:
                hint = "Give the channel timestamps_ns instead." if "clock" in taken else "Use another key."
                raise SchemaMismatchError(
                    f"about has the key {min(taken)!r}, which the format uses itself", block=block, hint=hint
                )
        meta = _metadata_blocks(episode)
        tensors = dict(_tensors(episode))
        plan = ShardPlan(meta, {}, tensors, {})
        for name, data in episode.blocks.items():
            if name in tensors or name in meta:
                raise SchemaMismatchError("two blocks have this name", block=name)
            if hasattr(data, "rows") and hasattr(data, "spec"):  # rows of a tensor are stored like one
                tensors[name] = _Tensor(data)
                continue
            reader = _block_bytes(name, data)
            (plan.small if reader.size <= _SMALL_BYTES else plan.blocks)[name] = reader
    except WarpError as error:
        raise type(error)(error.message, hint=error.hint, path=path) from None
    _check_plan(episode, plan, os.fspath(path))
    return plan


def _block_bytes(name: str, data: Any) -> RangeReader:
    if isinstance(data, RangeReader):
        return data
    try:
        return BytesRangeReader(data)
    except TypeError:
        raise SchemaMismatchError(f"holds {type(data).__name__}, bytes were expected", block=name) from None


class _Head(BytesRangeReader):
    """The first bytes of a file that is not written: the blocks behind them are empty."""

    def __init__(self, head: bytes, size: int, path: str) -> None:
        super().__init__(head, path)
        self.size = size


def _check_plan(episode: WShardEpisode, plan: ShardPlan, path: str) -> None:
    """Raise SchemaMismatchError unless a file of these blocks would open again as the same episode."""
    sizes = {name: len(data) for name, data in plan.meta.items()}
    sizes |= plan.sizes
    large = [layout.PIECES_PREFIX + name for name, size in sizes.items() if size > layout.PIECES_FROM_BYTES]
    try:
        for name in large:
            if name in sizes:
                raise CorruptLayoutError("two blocks have this name", block=name)
            sizes[name] = layout.PIECES_HEADER.size
        for name in sizes:
            try:
                valid_name(name.encode(), len(name.encode()))
            except UnicodeEncodeError:
                raise CorruptLayoutError(f"the block name {name!r:.80} is not UTF-8") from None
        start = position = data_offset_for(list(sizes))
        table, head = [], bytearray()
        for name, size in sizes.items():
            table.append(Block(name, "none", False, position, size, size, 0, 0))
            head += bytes(position - start - len(head)) + plan.meta[name] if name in plan.meta else b""
            position = align_up(position + size, layout.ALIGNMENT)
        packed = pack_table(table, position, layout.ROLE_EPISODE, start)
        read = load_wshard(ShardReader(_Head(packed + bytes(head), position, path), verify=False))
    except FormatError as error:
        raise SchemaMismatchError(
            f"would be refused by every reader: {error.message}",
            hint="Change the episode so that it can be read back.",
        ) from None
    try:
        expected, actual = _facts(episode), _facts(read)
    except ValueError as error:
        raise SchemaMismatchError(
            f"metadata is not JSON: {error}", hint="Use strings as keys.", path=path
        ) from None
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            values = f"{expected.get(name)!r:.80} would be read as {actual.get(name)!r:.80}"
            raise SchemaMismatchError(
                f"{name} would not come back as it is: {values}",
                hint="Give it a value that the format has a place for.",
                path=path,
            )


def _facts(episode: WShardEpisode) -> dict[str, Any]:
    names = ("chunk_index", "total_chunks", "timestep_range")
    placed = {name: getattr(episode, name) for name in names}
    return {**episode.describe(), **placed, "blocks": sorted(episode.blocks)}


def _metadata_blocks(episode: WShardEpisode) -> dict[str, bytes]:
    """The JSON of the meta blocks of an episode."""
    meta: dict[str, Any] = {
        "episode_id": episode.id,
        "env_id": episode.env_id,
        "length_T": episode.length,
        "timebase": episode.timebase.to_json(),
        **episode.about,
    }
    for name in ("chunk_index", "total_chunks"):
        if getattr(episode, name) is not None:
            meta[name] = getattr(episode, name)
    if episode.timestep_range is not None:
        # Chunk files have always stored the last step of the range, not the one after it.
        meta["timestep_range"] = [episode.timestep_range[0], episode.timestep_range[1] - 1]
    if episode.metadata:
        meta["metadata"] = episode.metadata
    blocks: dict[str, dict[str, Any]] = {
        layout.META_WSHARD: _meta_wshard(episode),
        layout.META_EPISODE: meta,
        layout.META_CHANNELS: _meta_channels(episode),
    }
    if episode.models:
        blocks[layout.META_MODELS] = {"models": episode.models}
    try:
        return {name: dump_json(value) for name, value in blocks.items()}
    except (TypeError, ValueError, RecursionError) as error:
        hint = "Use dicts, lists, strings, numbers, booleans and None."
        raise SchemaMismatchError(f"metadata is not JSON: {error}", hint=hint) from None


def _meta_wshard(episode: WShardEpisode) -> dict[str, Any]:
    flags = dict(episode.flags())
    exact = {
        name: {"dtype": str(flag.dtype), **_about(flag)}
        for name, flag in flags.items()
        if name != layout.REWARD or flag.dtype != "f32" or flag.about
    }
    lanes = [
        {"block": name, **_type_json(name, channel), **_about(channel)}
        for name, channel in episode.lanes()
        if not name.startswith(_CHANNEL_LANES)
    ]
    absent = [name for name in (layout.REWARD, layout.DONE) if name not in flags]
    return {
        "format": "W-SHARD", "version": 1, "writer": f"warpdata {__version__}", "residual_edges": "pad",
        "timebase": episode.timebase.to_json(), "lanes": lanes, "exact": exact, "absent": absent,
    }  # fmt: skip


def _about(channel: Channel) -> dict[str, Any]:
    return {"about": channel.about} if channel.about else {}


def _type_json(block: str, channel: Channel) -> dict[str, Any]:
    """Dtype and shape as every reader takes them; text is bytes to readers that do not know `ends`."""
    if is_text(channel.dtype):
        ends = layout.ENDS_PREFIX + block
        return {"dtype": "u8", "shape": [], "encoding": str(channel.dtype), "ends": ends}
    return {"dtype": str(channel.dtype), "shape": list(channel.row_shape)}


def _meta_channels(episode: WShardEpisode) -> dict[str, Any]:
    channels = []
    for block, channel in episode.lanes():
        channel_id = block.partition("/")[2]
        try:
            check_channel_id(channel_id)
        except ValueError as error:
            raise SchemaMismatchError(str(error), block=block) from None
        if not block.startswith(_CHANNEL_LANES):
            continue
        entry = {**channel.about, "id": channel_id, **_type_json(block, channel), "signal_block": block}
        if channel.clock_source is not None:
            entry["clock"] = _clock_block(block)
        if isinstance(kind := channel.modality, str) and kind in layout.CONTENT_TYPE_OF_MODALITY:
            entry["content_type_code"] = layout.CONTENT_TYPE_OF_MODALITY[kind]
        elif is_text(channel.dtype):
            entry["content_type_code"] = CONTENT_TYPES[str(channel.dtype)]
        channels.append(entry)
    groups = {
        group: [{"channel_id": channel.name, "modality": kind} for kind, channel in kinds.items()]
        for group, kinds in episode.modality_groups().items()
    }
    return {"channels": channels, "modality_groups": groups}


def _clock_block(block: str) -> str:
    """The name of the block that holds a channel's own clock."""
    return f"time/{block}/timestamps_ns"


def _tensors(episode: WShardEpisode) -> Iterator[tuple[str, _Tensor]]:
    """The tensor blocks in the order of the file: channels, flags, times, clocks, ends of text, lanes of models."""
    times = _time_tensor(episode)
    lanes: dict[str, _Tensor] = {}
    for block, channel in episode.lanes():
        rows, kind = channel.row_source, layout.CONTENT_RAW
        if is_text(channel.dtype):
            rows, kind = EncodedRows(rows, block), CONTENT_TYPES[str(channel.dtype)]
        lanes[block] = _Tensor(rows, kind)
    yield from ((block, tensor) for block, tensor in lanes.items() if block.startswith(_CHANNEL_LANES))
    yield from _flag_tensors(episode)
    yield times
    for block, channel in episode.lanes():
        if channel.clock_source is not None:
            if not block.startswith(_CHANNEL_LANES):
                raise SchemaMismatchError(
                    "only observations and actions have clocks of their own", block=block
                )
            _check_increasing(channel.clock_source, block)
            yield _clock_block(block), _Tensor(channel.clock_source)
    for block, tensor in lanes.items():
        if isinstance(tensor.rows, EncodedRows):
            yield layout.ENDS_PREFIX + block, _array("i64", tensor.rows.ends)
    yield from ((block, tensor) for block, tensor in lanes.items() if not block.startswith(_CHANNEL_LANES))


def _flag_tensors(episode: WShardEpisode) -> Iterator[tuple[str, _Tensor]]:
    """Rewards and flags in the dtypes existing readers take them for; what that would change is kept beside them."""
    for field, name in FLAGS.items():
        flag: Channel | None = getattr(episode, field)
        dtype = "f32" if name == layout.REWARD else "u8"
        if flag is None:
            if name != layout.TRUNCATED:
                yield name, _array(dtype, np.zeros(episode.length, tensor_spec(dtype).dtype.dtype))
            continue
        if is_text(flag.dtype) or flag.clock_source is not None:
            raise SchemaMismatchError("holds one number per step, without a clock of its own", block=name)
        if name != layout.REWARD and not is_stored(flag.row_source) and not is_truth(flag):
            raise SchemaMismatchError(
                "holds values other than 0 and 1", block=name, hint="Give an array of bool."
            )
        if fits_own_block(name, flag.dtype):
            yield name, _Tensor(flag.row_source)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            plain = flag.data.astype(np.float32) if name == layout.REWARD else (flag.data != 0).view(np.uint8)
        yield name, _array(dtype, plain)
        yield layout.EXACT[name], _Tensor(flag.row_source)


def is_truth(flag: Channel) -> bool:
    """Whether all values of a flag are 0 or 1."""
    values = flag.data.view(np.uint8) if flag.dtype == "bool" else flag.data
    return not np.any((values != 0) & (values != 1))


def _time_tensor(episode: WShardEpisode) -> tuple[str, _Tensor]:
    if (clock := episode.clock_source) is not None:
        _check_increasing(clock, layout.TIMESTAMPS_NS)
        return layout.TIMESTAMPS_NS, _Tensor(clock)
    if episode.timebase.type == "timestamps_ns":
        raise SchemaMismatchError("the timebase needs timestamps_ns", hint="Set episode.timestamps_ns.")
    try:
        episode.check_rate()
    except LimitExceededError as error:
        raise SchemaMismatchError(error.message, hint="Give it timestamps_ns, or fewer steps.") from None
    return layout.TICKS, _array("i32", np.arange(episode.length, dtype=np.int32))


def _check_increasing(clock: ChannelRows, block: str) -> None:
    """Times in a file are saved as they are; new ones increase, or nothing could be looked up in them."""
    if is_stored(clock):
        return
    stamps = clock.rows(0, clock.length)
    if stamps.dtype != np.int64:
        raise SchemaMismatchError(f"is {stamps.dtype}, int64 was expected", block=block)
    late = np.flatnonzero(stamps[1:] <= stamps[:-1])
    if len(late):
        at = int(late[0])
        raise TimestampOrderError(
            f"{int(stamps[at + 1])} at step {at + 1} is not later than {int(stamps[at])} before it",
            block=block,
            hint="Give times that increase; those of a loaded episode are saved as they are.",
        )


def _array(dtype: str, array: Any) -> _Tensor:
    return _Tensor(ArrayRows(array, tensor_spec(dtype)))
