"""Write an episode as one shard: lossless, readable by every existing program, committed atomically."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.arrays import align_up
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
    suggests,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import FLAGS, WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import Block, data_offset_for, pack_table, valid_name
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import (
    CONTENT_TYPES,
    ArrayRows,
    ChannelRows,
    EncodedRows,
    FunctionRows,
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
from warpdata.formats.wshard.writer import Chooser, CompressionChoice, ShardWriter, check_compat

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
        return {name: each.size for part in parts for name, each in part.items()}


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
        _check_about(episode)
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


def _check_about(episode: WShardEpisode) -> None:
    """Raise if the user's keys collide with those of the format."""
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
    blocks: dict[str, dict[str, Any]] = {
        layout.META_WSHARD: _meta_wshard(episode),
        layout.META_EPISODE: _meta_episode(episode),
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


def _meta_episode(episode: WShardEpisode) -> dict[str, Any]:
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
    return meta


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
