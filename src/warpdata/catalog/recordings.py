"""Episodes as shards to publish: recordings are packed as the edits show them, shards stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from warpdata.catalog.filekinds import file_kind, folder_kind
from warpdata.catalog.packing import PackedShard, listed
from warpdata.episodes.collection import Episodes
from warpdata.episodes.edits import shown
from warpdata.episodes.facts import facts_of, table_of
from warpdata.episodes.local import LocalDataset
from warpdata.episodes.opening import episode_of_shard
from warpdata.episodes.packed import pack_episode
from warpdata.episodes.packed_chunks import write_chunks
from warpdata.episodes.record import Recorder
from warpdata.episodes.shard_folder import ShardFolderSource
from warpdata.errors import BadMagicError, DatasetError, WarpError
from warpdata.formats.wshard.chunks import list_name, read_chunk_list
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.layout import META_EPISODE, ROLE_CHUNK_LIST, ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

SUFFIX = ".wshard"
CHUNK_BYTES = 1 << 30
"""Longer episodes are published as chunks of about this many bytes, unless told otherwise."""

_KNOWN = (
    "Episodes are a root of recordings, an episode directory, a .wshard file, a chunk list, a folder of .wshard "
    "files, or wd.Episodes."
)


Named = tuple[str, Path]


@dataclass(frozen=True, slots=True)
class StagedEpisodes:
    """Shards to publish, one or several per episode, and the edits through which they are seen."""

    shards: list[Named]
    """The name and the file of each."""
    edits: list[dict[str, Any]]


def staged_episodes(source: Any, staging: Path, chunk_bytes: int = CHUNK_BYTES) -> StagedEpisodes:
    """Every episode of a source as a shard of its own, or as chunks with their list where it is long."""
    return _Staging(staging, chunk_bytes).staged(source)


def staged_episode(
    episode: Episode, episode_id: str, staging: Path, chunk_bytes: int = CHUNK_BYTES
) -> list[Named]:
    """One episode under an id as a shard, or as chunks with their list where it is long."""
    return list(_Staging(staging, chunk_bytes).of_episode(episode, episode_id))


def one_episode(source: Episode | WShardEpisode | Recorder | str | os.PathLike[str]) -> Episode:
    """The episode that something stands for which holds one: an episode, a recorder that is done, or a path."""
    if isinstance(source, Recorder):
        if source.path is None:
            raise DatasetError("nothing was recorded", path=source.target)
        source = source.path
    if isinstance(source, WShardEpisode):
        found: Episode = source.in_time
        return found
    if isinstance(source, Episode):
        return source
    path = Path(os.path.abspath(source))
    kind = _kind_of(path)
    if kind == "directory":
        return shown(path)
    if kind not in ("recordings", "shards"):
        return episode_of_shard(ShardReader.open(path))
    several = LocalDataset(path) if kind == "recordings" else Episodes(ShardFolderSource(path))
    if isinstance(several, LocalDataset):
        _check_finished(several)
    if len(several) != 1:
        raise DatasetError(f"holds {len(several)} episodes, and one is wanted", path=path)
    return several[0]


class _Staging:
    """Where shards are written that are not there yet, and what is known of them."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes is positive, not {chunk_bytes}")
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._edits: list[dict[str, Any]] = []

    def staged(self, source: Any) -> StagedEpisodes:
        several = source if isinstance(source, list | tuple) and source else [source]
        return StagedEpisodes([shard for each in several for shard in self._of_any(each)], self._edits)

    def _of_any(self, source: Any) -> Iterator[Named]:
        if isinstance(source, Episodes):
            yield from self._of_episodes(source)
        elif isinstance(source, Episode):
            yield from self.of_episode(source, source.id)
        else:
            for path in listed(source):
                yield from self._of_path(path)

    def _of_path(self, path: Path) -> Iterator[Named]:
        kind = _kind_of(path)
        if kind == "directory":
            yield from self.of_episode(shown(path), path.name)
        elif kind == "recordings":
            yield from self._of_episodes(LocalDataset(path))
        elif kind == "shards":
            for shard in sorted(path.rglob(f"*{SUFFIX}")):
                yield from self._of_shard(shard, shard.relative_to(path).as_posix(), is_alone=False)
        else:
            yield from self._of_shard(path, path.name, is_alone=True)

    def _of_episodes(self, episodes: Episodes) -> Iterator[Named]:
        if isinstance(episodes, LocalDataset):
            _check_finished(episodes)
            self._edits += episodes.edits.log
        for name, episode in zip(episodes.ids, episodes, strict=True):
            yield from self.of_episode(episode, name)

    def _of_shard(self, path: Path, name: str, *, is_alone: bool) -> Iterator[Named]:
        """A shard as it is, or cut if it is long; a chunk list that stands alone brings its chunks along."""
        if path.stat().st_size > self._chunk_bytes and not _is_chunk(path):
            yield from self.of_episode(episode_of_shard(ShardReader.open(path)), None)
            return
        yield name, path
        if is_alone and file_kind(path) == "chunk-list":
            chunks = read_chunk_list(path)
            yield from ((entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks)

    def of_episode(self, episode: Episode, name: str | None) -> Iterator[Named]:
        name = name or episode.id
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / f"{name}{SUFFIX}"
        count = -(-_size_of(episode) // self._chunk_bytes)
        if target.exists() or (self._folder / list_name(name)).exists():
            raise DatasetError(f"two recordings are called {name!r}")
        if count <= 1:
            yield target.name, pack_episode(episode, target, episode_id=name)
            return
        chunks = write_chunks(episode, self._folder, count=count, episode_id=name)
        yield list_name(name), self._folder / list_name(name)
        yield from ((entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks)


def _is_chunk(path: Path) -> bool:
    """Whether a file is a chunk of an episode already, or the list of them, or no shard at all."""
    try:
        with ShardReader.open(path) as shard:
            return shard.role != ROLE_EPISODE or "chunk_index" in shard.read_json(META_EPISODE)
    except WarpError:
        return True


def _kind_of(path: Path) -> str:
    """What kind of episodes lie there; anything else is an error that says what episodes are."""
    try:
        kind = folder_kind(os.listdir(path), str(path)) if path.is_dir() else file_kind(path)
    except BadMagicError as error:
        if path.is_dir() and next(path.rglob(f"*{SUFFIX}"), None) is not None:
            return "shards"
        raise BadMagicError(error.message, hint=_KNOWN) from None
    if kind not in ("directory", "recordings", "shards", "episode", "chunk-list"):
        raise BadMagicError(f"holds no episodes but is of the kind {kind!r}", path=path, hint=_KNOWN)
    return kind


def _size_of(episode: Episode) -> int:
    """About how many bytes it takes when it is packed: numbers are stored as they are, cameras stay encoded."""
    is_encoded = [each.meta.kind == "image" or each.meta.is_object for each in episode.signals.values()]
    rows = sum(
        len(each) * each.meta.row_bytes
        for each, encoded in zip(episode.signals.values(), is_encoded, strict=True)
        if not encoded
    )
    return rows + (episode.stored_bytes if any(is_encoded) else 0)


def _check_finished(dataset: LocalDataset) -> None:
    if dataset.unfinished:
        raise DatasetError(
            f"{len(dataset.unfinished)} recordings are not finished", path=dataset.root,
            hint=f"Wait for the recorder, or run `warp salvage {dataset.root}`.",
        )  # fmt: skip


def episode_rows(artifact: str, shards: Sequence[PackedShard]) -> list[dict[str, Any]]:
    """What is known of every episode among the shards of an artifact; chunks belong to the list that names them."""
    opened, rows = _opened(artifact, shards)
    folder = _ShardFolder(opened)
    parts = {
        chunk.uri
        for shard in opened.values()
        if shard.role == ROLE_CHUNK_LIST
        for chunk in read_chunk_list(shard, folder).chunks
    }
    for name, shard in opened.items():
        if name not in parts:
            facts = facts_of(episode_of_shard(shard, folder))
            rows.append({**facts, "artifact": artifact, "blob": name})
    for shard in opened.values():
        shard.close()
    return rows


def _opened(
    artifact: str, shards: Sequence[PackedShard]
) -> tuple[dict[str, ShardReader], list[dict[str, Any]]]:
    """The shards of an artifact, open; and a row for each that is none, which says so."""
    opened: dict[str, ShardReader] = {}
    rows: list[dict[str, Any]] = []
    for shard in shards:
        name = shard.name or shard.path.name
        try:
            opened[name] = ShardReader.open(shard.path)
        except WarpError as error:
            row = {
                "id": name.removesuffix(SUFFIX),
                "problems": [str(error)],
                "artifact": artifact,
                "blob": name,
            }
            rows.append(row)
    return opened, rows


def episodes_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The table `episodes` of a version."""
    return table_of(rows)


class _ShardFolder:
    """Staged shards as files below one place."""

    name = "staged episodes"

    def __init__(self, shards: dict[str, ShardReader]) -> None:
        self._shards = shards

    def open(self, name: str) -> Any:
        return self._shards[name].range_reader

    def exists(self, name: str) -> bool:
        return name in self._shards

    def names(self) -> list[str]:
        return list(self._shards)
