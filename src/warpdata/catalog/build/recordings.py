"""Episodes as shards to publish: recordings are packed as the edits show them, shards stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from warpdata.bytekit.io.commit import fold_name
from warpdata.catalog.build.packing import PackedShard, listed
from warpdata.catalog.read.filekinds import file_kind, folder_kind
from warpdata.episodes.collection.edits import shown
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.facts import facts_of, table_of
from warpdata.episodes.collection.local import LocalDataset, ShardFolderSource
from warpdata.episodes.forms.chunks import write_chunks
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.sources.shard_episode import episode_of_shard
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


def staged_episode(
    episode: Episode, episode_id: str, staging: Path, chunk_bytes: int = CHUNK_BYTES
) -> list[Named]:
    """One episode under an id as a shard, or as chunks with their list where it is long."""
    return StagedEpisodes(staging, chunk_bytes).of_episode(episode, episode_id)


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


class StagedEpisodes:
    """Every episode of a source as a shard of its own, or as chunks with their list where it is long."""

    def __init__(self, folder: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes is positive, not {chunk_bytes}")
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._names: set[str] = set()
        self._folded: set[str] = set()
        self.named: list[Named] = []
        """The name and the file of every shard, in order."""
        self.given: list[Named] = []
        """Those of them that lay there already."""
        self.edits: list[dict[str, Any]] = []
        """The edits through which the episodes are seen."""

    def packed(self, source: Any) -> Iterator[list[Named]]:
        """The files of each episode that had to be packed, as soon as they are there."""
        for each in source if isinstance(source, list | tuple) and source else [source]:
            for shards in self._of_any(each):
                self.named += shards
                if shards[0][1].is_relative_to(self._folder):
                    yield shards
                else:
                    self.given += shards

    def _of_any(self, source: Any) -> Iterator[list[Named]]:
        if isinstance(source, Episodes):
            yield from self._of_episodes(source)
        elif isinstance(source, Episode):
            yield self.of_episode(source, source.id)
        else:
            for path in listed(source):
                yield from self._of_path(path)

    def _of_path(self, path: Path) -> Iterator[list[Named]]:
        kind = _kind_of(path)
        if kind == "directory":
            yield self.of_episode(shown(path), path.name)
        elif kind == "recordings":
            yield from self._of_episodes(LocalDataset(path))
        elif kind == "shards":
            for shard in sorted(path.rglob(f"*{SUFFIX}")):
                yield self._of_shard(shard, shard.relative_to(path).as_posix(), is_alone=False)
        else:
            yield self._of_shard(path, path.name, is_alone=True)

    def _of_episodes(self, episodes: Episodes) -> Iterator[list[Named]]:
        if isinstance(episodes, LocalDataset):
            _check_finished(episodes)
            self.edits += episodes.edits.log
        for name, episode in zip(episodes.ids, episodes, strict=True):
            yield self.of_episode(episode, name)

    def _of_shard(self, path: Path, name: str, *, is_alone: bool) -> list[Named]:
        """A shard as it is, or cut if it is long; a chunk list that stands alone brings its chunks along."""
        if path.stat().st_size > self._chunk_bytes and not _is_chunk(path):
            return self.of_episode(episode_of_shard(ShardReader.open(path)), None)
        if not is_alone or file_kind(path) != "chunk-list":
            return [(name, path)]
        chunks = read_chunk_list(path)
        return [(name, path), *((entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks)]

    def of_episode(self, episode: Episode, name: str | None) -> list[Named]:
        """The shard of an episode, or its chunk list and the chunks."""
        name = name or episode.id
        if name in self._names:
            raise DatasetError(f"two recordings are called {name!r}")
        # Some disks take ids that differ in case only for one: each of these gets a folder of its own.
        folder = self._folder / str(len(self._names)) if fold_name(name) in self._folded else self._folder
        self._names.add(name)
        self._folded.add(fold_name(name))
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{name}{SUFFIX}"
        count = -(-_size_of(episode) // self._chunk_bytes)
        if count <= 1:
            return [(target.name, pack_episode(episode, target, episode_id=name, overwrite=True))]
        chunks = write_chunks(episode, folder, count=count, episode_id=name)
        listed_there = (list_name(name), folder / list_name(name))
        return [listed_there, *((entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks)]


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
