"""A folder of shards, one episode each, as episodes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import WarpError
from warpdata.formats.episodedir.documents import read_set_metadata
from warpdata.formats.wshard.chunks import claims_chunks, read_chunk_list
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

SUFFIX = ".wshard"
_LIST_SUFFIX = "_manifest"
_CHUNK = re.compile(r"(.*)_chunk_[0-9]{4,}")


class ShardFolderSource(EpisodesSource):
    """The episodes of shard files by their names; each is opened on first use."""

    def __init__(
        self, folder: str | os.PathLike[str] | FolderReader, names: Sequence[str] | None = None
    ) -> None:
        self._folder = os.path.abspath(folder) if isinstance(folder, str | os.PathLike) else folder
        if names is not None:
            self.names = list(names)

    @cached_property
    def names(self) -> list[str]:
        """The files, without the chunks of chunk lists."""
        folder = self._folder
        return shards_in(folder) if isinstance(folder, str) else _shards_of_store(folder)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of every episode: the name of its file."""
        return [name.removesuffix(SUFFIX).removesuffix(_LIST_SUFFIX) for name in self.names]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What the import of the folder kept of its source as a whole."""
        return read_set_metadata(Path(self._folder) if isinstance(self._folder, str) else self._folder)

    def open(self, position: int) -> Episode:
        """The episode of a file."""
        folder = None if isinstance(self._folder, str) else self._folder
        return episode_of_shard(ShardReader.open(self.bytes_of(position)), folder)

    @property
    def opens_at_once(self) -> int:
        """One on this machine: opening is work, not waiting."""
        return 1 if isinstance(self._folder, str) else super().opens_at_once

    def bytes_of(self, position: int) -> str | RangeReader:
        """The file of an episode."""
        name, folder = self.names[position], self._folder
        return os.path.join(folder, name) if isinstance(folder, str) else folder.open(name)

    @property
    def name(self) -> str:
        """The folder."""
        return self._folder if isinstance(self._folder, str) else self._folder.name

    def address(self) -> dict[str, Any] | None:
        """The folder and the files."""
        return {"kind": "shards", "address": self.name, "names": self.names}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardFolderSource, (self._folder, self.names))


def shards_in(folder: str | os.PathLike[str]) -> list[str]:
    """The shards of a folder on this machine that are episodes, by name; chunks belong to the list that names them."""
    names = dict.fromkeys(path.name for path in sorted(Path(folder).glob(f"*{SUFFIX}")))
    for name in [each for each in names if claims_chunks(Path(folder, each))]:
        with contextlib.suppress(WarpError):  # a damaged one: that is seen when it is opened
            for chunk in read_chunk_list(Path(folder, name)).chunks:
                names.pop(chunk.uri, None)
    return list(names)


def _shards_of_store(folder: FolderReader) -> list[str]:
    """The same in a store, by names alone: opening every file would cost a request each."""
    names = sorted(name for name in folder.names() if name.endswith(SUFFIX) and "/" not in name)
    lists = {
        name.removesuffix(_LIST_SUFFIX + SUFFIX) for name in names if name.endswith(_LIST_SUFFIX + SUFFIX)
    }
    chunks = {name: _CHUNK.fullmatch(name.removesuffix(SUFFIX)) for name in names}
    return [name for name in names if not ((found := chunks[name]) and found[1] in lists)]
