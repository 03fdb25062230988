"""Write an episode as one shard: lossless, readable by every existing program, committed atomically."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.arrays import align_up, dtype_named
from warpdata.bytekit.io.commit import NewFile, commit_file
from warpdata.bytekit.io.ranges import BytesRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json, plain_json
from warpdata.errors import (
    FormatError,
    LimitExceededError,
    SchemaMismatchError,
    TimestampOrderError,
    WarpError,
    suggests,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode, fits_own_block, make_episode
from warpdata.formats.wshard.layout import (
    Block,
    check_names,
    data_offset_for,
    pack_table,
    parse_table,
    unpack_header,
)
from warpdata.formats.wshard.rows import (
    CONTENT_TYPES,
    ArrayRows,
    ChannelRows,
    EncodedRows,
    is_stored,
    is_text,
)
from warpdata.formats.wshard.schema import (
    CHANNEL_KEYS,
    EPISODE_KEYS,
    EpisodeSchema,
    TensorSpec,
    check_channel_id,
    read_schema,
)
from warpdata.formats.wshard.writer import Chooser, CompressionChoice, ShardWriter, check_compat


class PlannedRows:
    """Rows of which only dtype, shape and number are known."""

    def __init__(self, spec: TensorSpec, length: int) -> None:
        self.spec = spec
        self.length = length

    def rows(self, start: int, end: int) -> Any:
        """A plan has no rows."""
        raise NotImplementedError


class PlannedShard:
    """A shard that is about to be written: its metadata, and the names and sizes of its blocks."""

    role = layout.ROLE_EPISODE

    def __init__(self, meta: Mapping[str, bytes], sizes: Mapping[str, int], path: str) -> None:
        self.path = path
        self.sizes = sizes
        self._meta = meta

    @property
    def schema(self) -> EpisodeSchema:
        return read_schema(self)

    def view(self, name: str) -> memoryview:
        return memoryview(self._meta.get(name, b""))

    def rows_of(self, _name: str, spec: TensorSpec, length: int) -> ChannelRows:
        return PlannedRows(spec, length)


def check_plan(
    episode: WShardEpisode, meta: Mapping[str, bytes], sizes: list[tuple[str, int]], path: str
) -> None:
    """Raise SchemaMismatchError unless a file of these blocks would open again as the same episode."""
    try:
        _check_table([*((name, len(data)) for name, data in meta.items()), *sizes], path)
        planned = {name: len(data) for name, data in meta.items()} | dict(sizes)
        read = make_episode(PlannedShard(meta, planned, path))
    except FormatError as error:
        raise SchemaMismatchError(
            f"would be refused by every reader: {error.message}",
            hint="Change the episode so that it can be read back.",
        ) from None
    try:
        wanted, found = _described(episode), _described(read)
    except ValueError as error:
        raise SchemaMismatchError(
            f"metadata is not JSON: {error}", hint="Use strings as keys.", path=path
        ) from None
    for field, value in wanted.items():
        if value != found[field]:
            raise SchemaMismatchError(
                f"{field} would not come back as it is: {value!r:.80} would be read as {found[field]!r:.80}",
                hint="Give it a value that the format has a place for.",
                path=path,
            )


def _check_table(blocks: list[tuple[str, int]], path: str) -> None:
    """Pack a table of these blocks and read it by the rules of every table."""
    pieces = [
        (layout.PIECES_PREFIX + name, 4 + size // layout.PIECE_BYTES)
        for name, size in blocks
        if size > layout.PIECES_FROM_BYTES
    ]
    check_names([name for name, _ in blocks + pieces], path)
    start = position = data_offset_for([name for name, _ in blocks + pieces])
    table = []
    for name, size in blocks + pieces:
        table.append(Block(name, "none", False, position, size, size, 0, 0))
        position = align_up(position + size, layout.ALIGNMENT)
    packed = memoryview(pack_table(table, position, layout.ROLE_EPISODE, start))
    parse_table(unpack_header(packed, position, path), packed, position, path)


def _described(episode: WShardEpisode) -> dict[str, Any]:
    """Everything of an episode but its rows, in a form that can be compared."""
    described: dict[str, Any] = {
        name: plain_json(getattr(episode, name))
        for name in ("id", "env_id", "length", "metadata", "models", "chunk_index", "total_chunks", "about")
    }
    described["timebase"] = episode.timebase
    described["timestep_range"] = None if episode.timestep_range is None else tuple(episode.timestep_range)
    for name in ("observations", "actions", "omens", "uncerts", "residuals"):
        channels: dict[str, Channel] = getattr(episode, name).data
        described |= {f"{name}[{key!r}]": _channel(each) for key, each in channels.items()}
        described[name] = sorted(channels)
    for name in ("rewards", "terminations", "truncations"):
        flag: Channel | None = getattr(episode, name)
        described[name] = None if flag is None else _channel(flag)
    described["blocks"] = sorted(episode.blocks)
    described["timestamps_ns"] = episode.clock_source is not None
    return described


def _channel(channel: Channel) -> tuple[Any, ...]:
    clock = channel.clock_source
    return (
        str(channel.dtype), channel.row_shape, channel.length, plain_json(channel.about),
        None if clock is None else clock.length,
    )  # fmt: skip


_RESERVE_FROM_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
"""Other blocks of at most this size are stored before the tensors, so that the first remote read has them."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    rows: ChannelRows
    content_type: int = layout.CONTENT_RAW

    @property
    def raw_size(self) -> int:
        return self.rows.length * self.rows.spec.row_bytes


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Every block of a shard to be, in the order of the file: metadata, small blocks, tensors, and other bytes."""

    meta: dict[str, bytes]
    small: dict[str, RangeReader]
    tensors: list[_Tensor]
    blocks: dict[str, RangeReader]

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Name and size of every block behind the metadata."""
        small, others = ([(name, each.size) for name, each in b.items()] for b in (self.small, self.blocks))
        return small + [(each.name, each.raw_size) for each in self.tensors] + others


@suggests
def save_wshard(
    episode: WShardEpisode,
    path: str | os.PathLike[str] | BinaryIO,
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    durable: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Save an episode so that load_wshard gives it back equal; the file appears whole or not at all.

    `path` may be a binary file that is open for writing, such as a BytesIO: it gets the bytes at once, at its position.
    What could not be read back is refused before anything is written. `compat="strict"` writes nothing that one of
    the existing programs cannot read.
    """
    strict = check_compat(compat) == "strict"
    if not isinstance(path, str | os.PathLike) and (
        not hasattr(path, "write") or isinstance(path, io.TextIOBase)
    ):
        raise TypeError(f"expected a path or a binary file, got {type(path).__name__}")
    plan = plan_shard(episode, path if isinstance(path, str | os.PathLike) else "<stream>")
    choose = Chooser(compression, [block for block, _ in plan.sizes], strict=strict)
    if isinstance(path, str | os.PathLike):
        with commit_file(path, durable=durable) as out:
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
    if choose.is_raw:
        out.reserve(_expected_bytes(plan.tensors))
    names = [*plan.meta, *(name for name, _ in plan.sizes)]
    writer = ShardWriter(out, names, on_rows=_counted(plan.tensors, progress))
    for name, data in plan.meta.items():
        writer.add_bytes(name, data, layout.CONTENT_JSON)
    for name, reader in plan.small.items():
        writer.add_copy(name, reader, _content_type(name))
    chosen = {tensor.name: choose(tensor.name, tensor.raw_size) for tensor in plan.tensors}
    for tensor in plan.tensors:
        writer.make_room(tensor.name, tensor.rows, chosen[tensor.name])
    for tensor in plan.tensors:
        writer.add_rows(tensor.name, tensor.rows, chosen[tensor.name], tensor.content_type)
    for name, reader in plan.blocks.items():
        writer.add_copy(name, reader, _content_type(name))
    writer.finish()


def plan_shard(episode: WShardEpisode, path: str | os.PathLike[str]) -> ShardPlan:
    """The blocks of the file of an episode, or the error that every reader would raise."""
    if not isinstance(episode, WShardEpisode):
        hint = "; episode.tensors is one" if hasattr(episode, "tensors") else ""
        raise TypeError(f"save_wshard saves a WShardEpisode, not {type(episode).__name__}{hint}")
    try:
        episode.validate()
        _check_rate(episode)
        _check_about(episode)
        meta = {name: _json_bytes(value) for name, value in metadata_blocks(episode).items()}
        others = {name: data for name, data in episode.blocks.items() if not _is_rows(data)}
        blocks = {name: _block_bytes(name, data) for name, data in others.items()}
        rows = [_Tensor(name, data) for name, data in episode.blocks.items() if _is_rows(data)]
        small = {name: each for name, each in blocks.items() if each.size <= _SMALL_BYTES}
        large = {name: each for name, each in blocks.items() if name not in small}
        plan = ShardPlan(meta, small, [*_tensors(episode), *rows], large)
    except WarpError as error:
        raise type(error)(error.message, hint=error.hint, path=path) from None
    check_plan(episode, meta, plan.sizes, os.fspath(path))
    return plan


def _check_rate(episode: WShardEpisode) -> None:
    try:
        if episode.timestamps_ns is None:
            episode.check_rate()
    except LimitExceededError as error:
        raise SchemaMismatchError(error.message, hint="Give it timestamps_ns, or fewer steps.") from None


def _is_rows(data: Any) -> bool:
    """Whether a block is given as rows of a tensor: then it is stored like one."""
    return hasattr(data, "rows") and hasattr(data, "spec")


def _block_bytes(name: str, data: Any) -> RangeReader:
    if isinstance(data, RangeReader):
        return data
    try:
        return BytesRangeReader(data)
    except TypeError:
        raise SchemaMismatchError(f"holds {type(data).__name__}, bytes were expected", block=name) from None


def _check_about(episode: WShardEpisode) -> None:
    """Raise if the user's keys collide with those of the format."""
    if taken := sorted(EPISODE_KEYS & episode.about.keys()):
        raise SchemaMismatchError(
            f"about has the key {taken[0]!r}, which the format uses itself", hint="Use another key."
        )
    for block, channel in episode.lanes():
        if block.startswith(("signal/", "action/")) and (
            taken := sorted(CHANNEL_KEYS & channel.about.keys())
        ):
            hint = "Give the channel timestamps_ns instead." if taken[0] == "clock" else "Use another key."
            raise SchemaMismatchError(
                f"about has the key {taken[0]!r}, which the format uses itself", block=block, hint=hint
            )


def _expected_bytes(tensors: list[_Tensor]) -> int:
    """At least what a raw file takes: data, table, metadata, padding and piece checksums."""
    data = sum(each.raw_size for each in tensors)
    return data + data // 1024 + (1 << 20) if data > _RESERVE_FROM_BYTES else 0


def _counted(
    tensors: list[_Tensor], progress: Callable[[int, int], None] | None
) -> Callable[[int], None] | None:
    """Adds up what was read of the data and reports it as (done, total) bytes."""
    if progress is None:
        return None
    total = sum(each.raw_size for each in tensors)
    done = 0

    def count(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress(min(done, total), total)

    return count


def _content_type(block: str) -> int:
    """What a block that is not a tensor holds, by its name."""
    if block.startswith("meta/"):
        return layout.CONTENT_JSON
    return layout.CONTENT_TYPE_OF_MODALITY["video"] if block.startswith("video/") else layout.CONTENT_RAW


def metadata_blocks(episode: WShardEpisode) -> dict[str, dict[str, Any]]:
    """The JSON of the meta blocks of an episode."""
    blocks: dict[str, dict[str, Any]] = {
        layout.META_WSHARD: _meta_wshard(episode),
        layout.META_EPISODE: _meta_episode(episode),
        layout.META_CHANNELS: _meta_channels(episode),
    }
    if episode.models:
        blocks[layout.META_MODELS] = {"models": episode.models}
    return blocks


def _json_bytes(value: dict[str, Any]) -> bytes:
    try:
        return dump_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        hint = "Use dicts, lists, strings, numbers, booleans and None."
        raise SchemaMismatchError(f"metadata is not JSON: {error}", hint=hint) from None


def _meta_wshard(episode: WShardEpisode) -> dict[str, Any]:
    exact = {}
    for name, flag in _flags_of(episode):
        if flag is not None and (name != layout.REWARD or flag.dtype != "f32" or flag.about):
            exact[name] = {"dtype": str(flag.dtype), **({"about": flag.about} if flag.about else {})}
    absent = [name for name, flag in _flags_of(episode) if flag is None and name != layout.TRUNCATED]
    lanes = [
        _lane_json(name, channel)
        for name, channel in episode.lanes()
        if not name.startswith(("signal/", "action/"))
    ]
    return {
        "format": "W-SHARD", "version": 1, "writer": f"warpdata {__version__}", "residual_edges": "pad",
        "timebase": episode.timebase.to_json(), "lanes": lanes, "exact": exact, "absent": absent,
    }  # fmt: skip


def _flags_of(episode: WShardEpisode) -> list[tuple[str, Channel | None]]:
    return [
        (layout.REWARD, episode.rewards),
        (layout.DONE, episode.terminations),
        (layout.TRUNCATED, episode.truncations),
    ]


def _lane_json(block: str, channel: Channel) -> dict[str, Any]:
    about = {"about": channel.about} if channel.about else {}
    return {"block": block, **_type_json(block, channel), **about}


def _type_json(block: str, channel: Channel) -> dict[str, Any]:
    """Dtype and shape as every reader takes them; text is bytes to those who do not know where each value ends."""
    if is_text(channel.dtype):
        return {
            "dtype": "u8", "shape": [], "encoding": str(channel.dtype), "ends": layout.ENDS_PREFIX + block
        }  # fmt: skip
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
        lane, _, channel_id = block.partition("/")
        _check_id(channel_id, block)
        if lane in ("signal", "action"):
            channels.append(_channel_json(lane, channel_id, channel))
    return {"channels": channels, "modality_groups": _modality_groups(episode)}


def _channel_json(lane: str, channel_id: str, channel: Channel) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": channel_id,
        **_type_json(f"{lane}/{channel_id}", channel),
        "signal_block": f"{lane}/{channel_id}",
    }
    if channel.clock_source is not None:
        described["clock"] = clock_block(lane, channel_id)
    if isinstance(kind := channel.modality, str) and kind in layout.CONTENT_TYPE_OF_MODALITY:
        described["content_type_code"] = layout.CONTENT_TYPE_OF_MODALITY[kind]
    elif is_text(channel.dtype):
        described["content_type_code"] = CONTENT_TYPES[str(channel.dtype)]
    return {**channel.about, **described}


def _modality_groups(episode: WShardEpisode) -> dict[str, list[dict[str, str]]]:
    return {
        group: [{"channel_id": channel.name, "modality": kind} for kind, channel in kinds.items()]
        for group, kinds in episode.modality_groups().items()
    }


def clock_block(lane: str, channel_id: str) -> str:
    """The name of the block that holds a channel's own clock."""
    return f"time/{lane}/{channel_id}/timestamps_ns"


def _check_id(channel_id: str, block: str) -> None:
    try:
        check_channel_id(channel_id)
    except ValueError as error:
        raise SchemaMismatchError(str(error), block=block) from None


def _tensors(episode: WShardEpisode) -> Iterator[_Tensor]:
    lanes = [_lane(name, channel) for name, channel in episode.lanes()]
    yield from (each for each in lanes if each.name.startswith(("signal/", "action/")))
    yield from _flags(episode)
    yield _time(episode)
    for block, channel in episode.lanes():
        if channel.clock_source is not None:
            lane, _, channel_id = block.partition("/")
            if lane not in ("signal", "action"):
                raise SchemaMismatchError(
                    "only observations and actions have clocks of their own", block=block
                )
            _check_increasing(channel.clock_source, block)
            yield _Tensor(clock_block(lane, channel_id), channel.clock_source)
    for each in lanes:
        if isinstance(each.rows, EncodedRows):
            yield _Tensor(layout.ENDS_PREFIX + each.name, _array("i64", each.rows.ends))
    yield from (each for each in lanes if not each.name.startswith(("signal/", "action/")))


def _lane(block: str, channel: Channel) -> _Tensor:
    if is_text(channel.dtype):
        return _Tensor(block, EncodedRows(channel.row_source, block), CONTENT_TYPES[str(channel.dtype)])
    return _Tensor(block, channel.row_source)


def _flags(episode: WShardEpisode) -> Iterator[_Tensor]:
    """Rewards and flags in the dtypes existing readers take them for; what that would change is kept beside them."""
    for name, flag in _flags_of(episode):
        if flag is None:
            if name != layout.TRUNCATED:
                yield _Tensor(name, _zeros("f32" if name == layout.REWARD else "u8", episode.length))
            continue
        if is_text(flag.dtype) or flag.clock_source is not None:
            raise SchemaMismatchError("holds one number per step, without a clock of its own", block=name)
        if name != layout.REWARD and not is_stored(flag.row_source):
            _check_flag(flag, name)
        if fits_own_block(name, flag.dtype):
            yield _Tensor(name, flag.row_source)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            plain = flag.data.astype(np.float32) if name == layout.REWARD else (flag.data != 0).view(np.uint8)
        yield _Tensor(name, _array("f32" if name == layout.REWARD else "u8", plain))
        yield _Tensor(layout.EXACT[name], flag.row_source)


def _check_flag(flag: Channel, name: str) -> None:
    values = flag.data.view(np.uint8) if flag.dtype == "bool" else flag.data
    if np.any((values != 0) & (values != 1)):
        raise SchemaMismatchError(
            "holds values other than 0 and 1", block=name, hint="Say what is true with an array of bool."
        )


def _time(episode: WShardEpisode) -> _Tensor:
    if (clock := episode.clock_source) is not None:
        _check_increasing(clock, layout.TIMESTAMPS_NS)
        return _Tensor(layout.TIMESTAMPS_NS, clock)
    if episode.timebase.type == "timestamps_ns":
        raise SchemaMismatchError("the timebase needs timestamps_ns", hint="Set episode.timestamps_ns.")
    return _Tensor(layout.TICKS, _array("i32", np.arange(episode.length, dtype=np.int32)))


def _check_increasing(clock: ChannelRows, block: str) -> None:
    """Times that somebody stored are theirs to say; new ones increase, or nobody could look anything up in them."""
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


def _zeros(dtype: str, length: int) -> ArrayRows:
    return _array(dtype, np.zeros(length, dtype_named(dtype).dtype))


def _array(dtype: str, array: Any) -> ArrayRows:
    return ArrayRows(array, TensorSpec(dtype_named(dtype), ()))
