"""Rows that stand for episodes: a reference to a published one, or the shard of a new one as bytes. Knows no Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from warpdata.catalog.build.episodes import EpisodeStore, StoredEpisode, one_episode, packed_bytes
from warpdata.catalog.dataset import reopen_episodes
from warpdata.catalog.read.episodes import PublishedSource
from warpdata.episodes.collection.episodes import with_signals
from warpdata.episodes.collection.jobs import Called
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, nearest
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

KEY, EPISODE = "episode_id", "episode"

_FIELDS = ("dataset", "catalog", "artifact", "member", "hash", "bytes")


def reference_type() -> pa.DataType:
    """The Arrow type of references: the version and its catalogs, the member, and the hash and size of its blob."""
    return pa.struct([(name, pa.int64() if name == "bytes" else pa.string()) for name in _FIELDS])


def open(row: Mapping[str, Any] | bytes) -> Episode:  # noqa: A001 - wd.ray.open, as wd.open
    """The episode of a row, or of the value of its column `episode`; a published one is read lazily."""
    value = row.get(EPISODE, row) if isinstance(row, Mapping) else row
    if isinstance(value, bytes | bytearray | memoryview):
        return episode_of_shard(ShardReader.open(bytes(value)))
    source, member = _published(value)
    return source.open_member(member)


def row(
    episode: Episode | str | os.PathLike[str], episode_id: str | None = None, **columns: Any
) -> dict[str, Any]:
    """A row to publish, of an episode or the path of a recording; the same episode gives the same bytes."""
    opened = one_episode(episode)
    name = episode_id or opened.id
    if not name:
        raise ValueError("the episode has no id: give one with episode_id=")
    return {KEY: name, EPISODE: packed_bytes(opened, name), **columns}


def changed_row(
    change: Callable[[Episode], Any], given: Mapping[str, Any], *, replace: bool = False
) -> dict[str, Any]:
    """A row with what `change` made of its episode; the id and the other columns stay."""
    episode = open(given)
    made = Called(change).on_episode(episode)
    if isinstance(made, Mapping):
        taken = [] if replace or isinstance(made, Episode) else sorted(set(made) & set(episode.signals))
        if taken:
            raise ConflictError(
                f"episode {given[KEY]!r} has a signal {taken[0]!r} already",
                hint="Return it under another name, or pass replace=True.",
            )
        made = with_signals(episode, made)
    elif not isinstance(made, Recorder | WShardEpisode | str | os.PathLike):
        hint = "give an Episode, a recording (its recorder or path), or a dict of arrays by signal"
        raise TypeError(f"for episode {given[KEY]} there came a {type(made).__name__}: {hint}")
    return {**given, EPISODE: packed_bytes(one_episode(made), str(given[KEY]))}


def store_rows(
    rows: Iterable[Mapping[str, Any]], *, key: str, catalog: str, artifact: str, chunk_bytes: int
) -> list[StoredEpisode]:
    """Store the episodes of rows in a catalog; nothing names them yet."""
    with EpisodeStore(catalog, artifact, chunk_bytes=chunk_bytes) as store:
        return [_stored(store, each, key) for each in rows]


def _stored(store: EpisodeStore, given: Mapping[str, Any], key: str) -> StoredEpisode:
    for name in (key, EPISODE):
        if name not in given:
            raise ValueError(
                f"the rows have no column {name!r} but {', '.join(given)}.{nearest(name, given)}"
            )
    episode_id, value = str("" if given[key] is None else given[key]), given[EPISODE]
    if not episode_id:
        raise ValueError(f"a row has no {key!r}")
    if isinstance(value, bytes | bytearray | memoryview):
        return store.store(episode_id, bytes(value))
    return store.store_published(episode_id, *_published(value))


def _published(value: Any) -> tuple[PublishedSource, str]:
    if not isinstance(value, Mapping) or not set(_FIELDS) <= set(value):
        what = type(value).__name__
        hint = "rows come from wd.ray.read_episodes, wd.ray.map_episodes or wd.ray.row"
        raise TypeError(f"a {what} is no episode and no reference to one: {hint}")
    return source_of(value), value["member"]


def source_of(reference: Mapping[str, Any]) -> PublishedSource:
    """The episodes of the version that a reference names, opened once in a process."""
    recipe = {"catalogs": reference["catalog"].split(","), "name": reference["dataset"]}
    return reopen_episodes(json.dumps(recipe, sort_keys=True), reference["artifact"])
