"""A folder of shards, one episode each, as episodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from warpdata.episodes.collection import EpisodesSource
from warpdata.episodes.opening import episode_of_shard
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode


class ShardFolderSource(EpisodesSource):
    """The episodes of shard files by their names; each is opened when it is asked for."""

    def __init__(self, folder: str, paths: Sequence[str]) -> None:
        self._folder = os.path.abspath(folder)
        self._paths = [os.path.abspath(path) for path in paths]

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of every episode: the name of its file."""
        return [Path(path).name.removesuffix(".wshard").removesuffix("_manifest") for path in self._paths]

    def open(self, position: int) -> Episode:
        """The episode of a file."""
        return episode_of_shard(ShardReader.open(self._paths[position]))

    @property
    def name(self) -> str:
        """The folder."""
        return self._folder

    def address(self) -> dict[str, Any] | None:
        """The files."""
        return {"kind": "shards", "address": self._folder, "paths": list(self._paths)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardFolderSource, (self._folder, self._paths))
