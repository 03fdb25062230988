"""Write an episode as one shard: lossless, readable by every existing program, committed atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.commit import commit_file
from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.ranges import RangeReader
from warpdata.errors import SchemaMismatchError, WarpError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import ArrayRows, Channel, RowSource
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.schema import TensorSpec, check_channel_id
from warpdata.formats.wshard.writer import Compression, ShardWriter

_RESERVE_FROM_BYTES = 1 << 20

CompressionChoice = str | Compression | Mapping[str, str | Compression] | None


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    rows: RowSource


def save_wshard(
    episode: WShardEpisode,
    path: str | os.PathLike[str],
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    durable: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Save an episode so that load_wshard gives it back equal; the file appears whole or not at all."""
    if compat not in ("default", "strict"):
        raise ValueError(f"compat is 'default' or 'strict', not {compat!r}")
    try:
        episode.validate()
        meta, tensors = metadata_blocks(episode), list(_tensors(episode))
    except WarpError as error:
        raise type(error)(error.message, hint=error.hint, path=path) from None
    names = [*meta, *(tensor.name for tensor in tensors), *episode.blocks]
    choose = _Chooser(compression, strict=compat == "strict")
    with commit_file(path, durable=durable) as out:
        if choose.is_raw:
            out.reserve(_expected_bytes(tensors))
        writer = ShardWriter(out, names, on_rows=_counted(tensors, progress))
        for name, value in meta.items():
            writer.add_bytes(name, dump_json(value), layout.CONTENT_JSON)
        for tensor in tensors:
            writer.add_rows(tensor.name, tensor.rows, choose(tensor.name))
        for name, data in episode.blocks.items():
            if isinstance(data, RangeReader):
                writer.add_copy(name, data, _content_type(name))
            else:
                writer.add_bytes(name, bytes(data), _content_type(name))
        writer.finish()


def _expected_bytes(tensors: list[_Tensor]) -> int:
    """At least what a raw file takes: data, table, metadata, padding and piece checksums."""
    data = sum(each.rows.length * each.rows.spec.row_bytes for each in tensors)
    return data + data // 1024 + (1 << 20) if data > _RESERVE_FROM_BYTES else 0


def _counted(
    tensors: list[_Tensor], progress: Callable[[int, int], None] | None
) -> Callable[[int], None] | None:
    """Adds up what was read of the data and reports it as (done, total) bytes."""
    if progress is None:
        return None
    total = sum(each.rows.length * each.rows.spec.row_bytes for each in tensors)
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


class _Chooser:
    """Which compression each block gets: one for all, or by channel id or block name."""

    def __init__(self, choice: CompressionChoice, *, strict: bool) -> None:
        self._frames = "single" if strict else "auto"
        self._strict = strict
        many = choice if isinstance(choice, Mapping) else {}
        self._by_name = {name: Compression.parse(each, self._frames) for name, each in many.items()}
        self._default = Compression.parse(None if isinstance(choice, Mapping) else choice, self._frames)

    @property
    def is_raw(self) -> bool:
        """Whether every block is stored as it is, so that the size of the file is known."""
        return self._default.codec == "none" and not self._by_name

    def __call__(self, block: str) -> Compression:
        found = self._by_name.get(block) or self._by_name.get(block.partition("/")[2]) or self._default
        return Compression(found.codec, found.level, "single") if self._strict else found


def metadata_blocks(episode: WShardEpisode) -> dict[str, dict[str, Any]]:
    """The JSON of the meta blocks of an episode."""
    blocks: dict[str, dict[str, Any]] = {
        layout.META_WSHARD: _meta_wshard(episode),
        layout.META_EPISODE: _meta_episode(episode),
        layout.META_CHANNELS: _meta_channels(episode),
    }
    if episode.models:
        blocks[layout.META_MODELS] = {"models": episode.models}
    for value in blocks.values():
        _require_json(value)
    return blocks


def _require_json(value: dict[str, Any]) -> None:
    try:
        dump_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"metadata is not JSON: {error}") from None


def _meta_wshard(episode: WShardEpisode) -> dict[str, Any]:
    exact = {}
    if episode.rewards is not None and episode.rewards.dtype != "f32":
        exact["reward"] = {"dtype": str(episode.rewards.dtype)}
    for name, flag in ((layout.DONE, episode.terminations), (layout.TRUNCATED, episode.truncations)):
        if flag is not None:
            exact[name] = {"dtype": str(flag.dtype)}
    absent = [
        name
        for name, flag in ((layout.REWARD, episode.rewards), (layout.DONE, episode.terminations))
        if flag is None
    ]
    lanes = [
        {"block": name, "dtype": str(channel.dtype), "shape": list(channel.shape)}
        for name, channel in episode.lanes()
        if not name.startswith(("signal/", "action/"))
    ]
    return {
        "format": "W-SHARD", "version": 1, "writer": f"warpdata {__version__}", "residual_edges": "pad",
        "timebase": episode.timebase.to_json(), "lanes": lanes, "exact": exact, "absent": absent,
    }  # fmt: skip


def _meta_episode(episode: WShardEpisode) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "episode_id": episode.id,
        "env_id": episode.env_id,
        "length_T": episode.length,
        "timebase": episode.timebase.to_json(),
        **episode.about,
    }
    if episode.chunk_index is not None:
        meta["chunk_index"] = episode.chunk_index
        if episode.total_chunks is not None:
            meta["total_chunks"] = episode.total_chunks
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
        _check_id(channel_id)
        if lane in ("signal", "action"):
            channels.append(_channel_json(lane, channel_id, channel))
    return {"channels": channels, "modality_groups": _modality_groups(episode)}


def _channel_json(lane: str, channel_id: str, channel: Channel) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": channel_id,
        "dtype": str(channel.dtype),
        "shape": list(channel.shape),
        "signal_block": f"{lane}/{channel_id}",
    }
    if channel.clock_source is not None:
        described["clock"] = clock_block(lane, channel_id)
    if channel.modality in layout.CONTENT_TYPE_OF_MODALITY:
        described["content_type_code"] = layout.CONTENT_TYPE_OF_MODALITY[channel.modality]
    return {**channel.about, **described}


def _modality_groups(episode: WShardEpisode) -> dict[str, list[dict[str, str]]]:
    return {
        group: [{"channel_id": channel.name, "modality": kind} for kind, channel in kinds.items()]
        for group, kinds in episode.modality_groups().items()
    }


def clock_block(lane: str, channel_id: str) -> str:
    """The name of the block that holds a channel's own clock."""
    return f"time/{lane}/{channel_id}/timestamps_ns"


def _check_id(channel_id: str) -> None:
    try:
        check_channel_id(channel_id)
    except ValueError as error:
        raise SchemaMismatchError(str(error)) from None


def _tensors(episode: WShardEpisode) -> Iterator[_Tensor]:
    lanes = [_Tensor(name, channel.row_source) for name, channel in episode.lanes()]
    yield from (each for each in lanes if each.name.startswith(("signal/", "action/")))
    yield from _flags(episode)
    yield _time(episode)
    for block, channel in episode.lanes():
        lane, _, channel_id = block.partition("/")
        if channel.clock_source is not None:
            if lane not in ("signal", "action"):
                raise SchemaMismatchError(
                    "only observations and actions have clocks of their own", block=block
                )
            yield _Tensor(clock_block(lane, channel_id), channel.clock_source)
    yield from (each for each in lanes if not each.name.startswith(("signal/", "action/")))


def _flags(episode: WShardEpisode) -> Iterator[_Tensor]:
    reward = episode.rewards
    if reward is None or reward.dtype == "f32":
        yield _Tensor(layout.REWARD, _zeros("f32", episode.length) if reward is None else reward.row_source)
    else:
        # Existing readers take `reward` for f32 whatever it is; the exact values go beside it.
        with np.errstate(over="ignore", invalid="ignore"):
            yield _Tensor(layout.REWARD, _array("f32", reward.data.astype(np.float32)))
        yield _Tensor(layout.EXACT_REWARD, reward.row_source)
    yield _Tensor(layout.DONE, _flag_rows(episode.terminations, layout.DONE, episode.length))
    if episode.truncations is not None:
        yield _Tensor(layout.TRUNCATED, _flag_rows(episode.truncations, layout.TRUNCATED, episode.length))


def _flag_rows(flag: Channel | None, name: str, length: int) -> RowSource:
    if flag is None:
        return _zeros("u8", length)
    if flag.dtype not in ("bool", "u8"):
        raise SchemaMismatchError(
            f"is {flag.dtype}, bool or u8 was expected", block=name, hint="Convert it with .astype(bool)."
        )
    if length and flag.data.view(np.uint8).max() > 1:
        raise SchemaMismatchError("holds values other than 0 and 1", block=name)
    return flag.row_source


def _time(episode: WShardEpisode) -> _Tensor:
    if episode.timestamps_ns is not None:
        stamps = np.asarray(episode.timestamps_ns)
        if stamps.dtype != np.int64:
            raise SchemaMismatchError(f"is {stamps.dtype}, int64 was expected", block=layout.TIMESTAMPS_NS)
        return _Tensor(layout.TIMESTAMPS_NS, _array("i64", stamps))
    if episode.timebase.type == "timestamps_ns":
        raise SchemaMismatchError("the timebase needs timestamps_ns", hint="Set episode.timestamps_ns.")
    return _Tensor(layout.TICKS, _array("i32", np.arange(episode.length, dtype=np.int32)))


def _zeros(dtype: str, length: int) -> ArrayRows:
    return _array(dtype, np.zeros(length, dtype_named(dtype).dtype))


def _array(dtype: str, array: Any) -> ArrayRows:
    return ArrayRows(array, TensorSpec(dtype_named(dtype), ()))
