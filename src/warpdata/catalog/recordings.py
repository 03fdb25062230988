"""Episodes as shards to publish: recordings are packed as the edits show them, shards stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from warpdata.catalog.packing import PackedShard, listed
from warpdata.episodes.collection import Episodes
from warpdata.episodes.edits import shown
from warpdata.episodes.facts import facts_of, table_of
from warpdata.episodes.local import LocalDataset, holds_recordings
from warpdata.episodes.opening import episode_of_shard
from warpdata.episodes.packed import pack_episode
from warpdata.errors import DatasetError, WarpError
from warpdata.formats.episodedir.layout import META_FILE
from warpdata.formats.wshard.chunks import read_chunk_list
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

SUFFIX = ".wshard"


def packed_recordings(source: Any, staging: Path) -> list[Path]:
    """Every episode of a source as a shard of its own: Episodes, roots, directories, shards, folders of shards."""
    if isinstance(source, Episodes):
        if isinstance(source, LocalDataset):
            _check_finished(source)
        return list(_pack_all(source, staging))
    return [shard for path in listed(source) for shard in _shards_of(path, staging)]


def _shards_of(path: Path, staging: Path) -> Iterator[Path]:
    if (path / META_FILE).is_file():
        yield _packed(shown(path), path.name, staging)
    elif holds_recordings(path):
        dataset = LocalDataset(path)
        _check_finished(dataset)
        yield from _pack_all(dataset, staging)
    else:
        yield path


def _pack_all(episodes: Episodes, staging: Path) -> Iterator[Path]:
    for name, episode in zip(episodes.ids, episodes, strict=True):
        yield _packed(episode, name, staging)


def _check_finished(dataset: LocalDataset) -> None:
    if dataset.unfinished:
        raise DatasetError(
            f"{len(dataset.unfinished)} recordings are not finished", path=dataset.root,
            hint=f"Wait for the recorder, or run `warp salvage {dataset.root}`.",
        )  # fmt: skip


def _packed(episode: Episode, name: str, staging: Path) -> Path:
    staging.mkdir(parents=True, exist_ok=True)
    target = staging / f"{name}{SUFFIX}"
    if target.exists():
        raise DatasetError(f"two recordings are called {name!r}")
    return pack_episode(episode, target, episode_id=name)


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
