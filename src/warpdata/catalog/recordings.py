"""Recordings as shards to publish: episode directories and roots are packed, as the edits show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from warpdata.episodes.edits import shown
from warpdata.episodes.local import LocalDataset, holds_recordings
from warpdata.episodes.packed import pack_episode
from warpdata.errors import DatasetError
from warpdata.formats.episodedir.layout import META_FILE
from warpdata.timeline.episode import Episode


def packed_recordings(paths: Sequence[Path], staging: Path) -> list[Path]:
    """The paths with every recording among them packed into a shard of its own; other files stay as they are."""
    return [shard for path in paths for shard in _shards_of(path, staging)]


def _shards_of(path: Path, staging: Path) -> Iterator[Path]:
    if (path / META_FILE).is_file():
        yield _packed(shown(path), path.name, staging)
    elif holds_recordings(path):
        dataset = LocalDataset(path)
        _check_finished(dataset)
        for name, episode in zip(dataset.ids, dataset, strict=True):
            yield _packed(episode, name, staging)
    else:
        yield path


def _check_finished(dataset: LocalDataset) -> None:
    if dataset.unfinished:
        raise DatasetError(
            f"{len(dataset.unfinished)} recordings are not finished", path=dataset.root,
            hint=f"Wait for the recorder, or run `warp salvage {dataset.root}`.",
        )  # fmt: skip


def _packed(episode: Episode, name: str, staging: Path) -> Path:
    staging.mkdir(parents=True, exist_ok=True)
    target = staging / f"{name}.wshard"
    if target.exists():
        raise DatasetError(f"two recordings are called {name!r}")
    return pack_episode(episode, target)
