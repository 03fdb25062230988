"""The outline of an episode that was made before: enough to make it again over the same blocks, with nothing checked
twice."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from warpdata.formats.wshard.block_rows import BlockRows
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import ChannelMap, LaneMap, WShardEpisode
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.schema import ChannelRows, TensorSpec, own_copy

_MAPS = {
    "observations": ChannelMap, "actions": ChannelMap, "omens": LaneMap, "uncerts": LaneMap, "residuals": LaneMap,
}  # fmt: skip
_FLAGS = ("rewards", "terminations", "truncations")
_COPIED = ("metadata", "models", "about")


class _Rows(NamedTuple):
    """Rows of one block."""

    block: str
    spec: TensorSpec
    length: int


class _Channel(NamedTuple):
    name: str
    rows: _Rows
    clock: _Rows | None
    about: dict[str, Any]


class Outline(NamedTuple):
    """Everything of an episode but the shard it lies in."""

    fields: dict[str, Any]
    copied: dict[str, Any]
    maps: dict[str, tuple[type[ChannelMap], list[_Channel]]]
    flags: dict[str, _Channel]
    clock: _Rows | None


def outline_of(episode: WShardEpisode) -> Outline | None:
    """The outline of an episode just loaded; None where it holds more than rows of blocks."""
    if episode.blocks:
        return None
    later = {*_MAPS, *_FLAGS, *_COPIED, "blocks"}
    fields = {name: value for name, value in episode.__dict__.items() if name not in later}
    clock = episode.clock_source
    try:
        return Outline(
            fields | {"timestamps_ns": None},
            {name: own_copy(getattr(episode, name)) for name in _COPIED},
            {
                name: (kind, [_channel(each) for each in getattr(episode, name).data.values()])
                for name, kind in _MAPS.items()
            },
            {name: _channel(flag) for name in _FLAGS if (flag := getattr(episode, name)) is not None},
            None if clock is None else _rows(clock),
        )
    except TypeError:
        return None


def made_again(outline: Outline, shard: ShardReader) -> WShardEpisode:
    """The episode of this outline over a shard whose head is the same."""
    episode = WShardEpisode.of_later(outline.fields, partial(_made, outline, shard))
    if outline.clock is not None:
        episode.set_clock(BlockRows(shard, *outline.clock))
    return episode


def _made(outline: Outline, shard: ShardReader, name: str) -> Any:
    """One field of the episode of this outline."""
    if name in outline.maps:
        kind, channels = outline.maps[name]
        made = kind()
        made.data = {channel.name: _over(shard, channel) for channel in channels}
        return made
    if name in outline.copied:
        return own_copy(outline.copied[name])
    flag = outline.flags.get(name)
    return {} if name == "blocks" else None if flag is None else _over(shard, flag)


def _over(shard: ShardReader, channel: _Channel) -> Channel:
    clock = None if channel.clock is None else BlockRows(shard, *channel.clock)
    about = own_copy(channel.about) if channel.about else None
    return Channel.over(channel.name, BlockRows(shard, *channel.rows), clock=clock, about=about)


def _channel(channel: Channel) -> _Channel:
    clock = channel.clock_source
    return _Channel(
        channel.name,
        _rows(channel.row_source),
        None if clock is None else _rows(clock),
        own_copy(channel.about),
    )


def _rows(rows: ChannelRows) -> _Rows:
    if not isinstance(rows, BlockRows):
        raise TypeError("not the rows of a block")
    return _Rows(rows.block, rows.spec, rows.length)
