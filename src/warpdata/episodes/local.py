"""A root of episode directories: read like a list wherever it lies, written by episode on this machine."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpdata.bytekit.folders import FolderReader, SubFolder
from warpdata.bytekit.locks import ThreadLock
from warpdata.episodes.disk_episode import DiskEpisode
from warpdata.episodes.disk_writer import DiskEpisodeWriter
from warpdata.episodes.edits import EditedEpisode, Edits, Entry
from warpdata.episodes.listing import episode_name, episode_path, list_episodes, list_folder
from warpdata.episodes.recorder import Durability
from warpdata.episodes.unfinished import Unfinished, unfinished_at
from warpdata.errors import ConflictError
from warpdata.formats.episodedir.documents import Folder
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.timeline.episode import Episode
from warpdata.timeline.sequence import EpisodeSequence

DEFAULT_CACHE_BYTES = 256 << 20
_MAX_OPEN = 1024


class LocalDataset(EpisodeSequence):
    """Finished episodes of a root in id order; edits of the dataset are applied, recordings never change."""

    def __init__(
        self,
        root: str | os.PathLike[str] | FolderReader,
        *,
        edited: bool = True,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.folder: Folder = _local(root) if isinstance(root, str | os.PathLike) else root
        self.root: Path | str = self.folder if isinstance(self.folder, Path) else self.folder.name
        self._files: dict[int, list[str]] = {}
        self._edited = edited
        self._cache_bytes = cache_bytes
        self._lock = ThreadLock()
        self._open: OrderedDict[str, Episode] = OrderedDict()
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is there."""
        if isinstance(self.folder, Path):
            listing = list_episodes(self.folder)
        else:
            listing, self._files = list_folder(self.folder)
        self._edits: Edits | None = None
        self._unfinished = listing.unfinished
        self.recorded = numbers = listing.finished
        self._entries: Sequence[Entry] = self.edits.apply(numbers) if self._edited else Edits.plain(numbers)
        with self._lock:
            self._open.clear()

    @property
    def edits(self) -> Edits:
        """The edit log of this root: `drop`, `undrop`, `set_static`, `trim`, `split`, `concat`, `undo`."""
        if self._edits is None:
            self._edits = Edits(self.folder)
        return self._edits

    @property
    def unfinished(self) -> list[Unfinished]:
        """Recordings that are not finished: still running, or left by a crash, and what they hold."""
        return [unfinished_at(self.place(number)) for number in self._unfinished]

    def place(self, number: int) -> Folder:
        """The directory of a recording."""
        if isinstance(self.folder, Path):
            return episode_path(self.folder, number)
        return SubFolder(self.folder, episode_name(number), self._files.get(number, []))

    @property
    def ids(self) -> list[str]:
        """The id of every episode, in order."""
        return [entry.id for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def _at(self, position: int) -> Episode:
        return self._episode(self._entries[position])

    def open(self, episode_id: str | int) -> Episode:
        """The episode with this id."""
        wanted = f"{episode_id:012d}" if isinstance(episode_id, int) else episode_id
        for entry in self._entries:
            if entry.id == wanted:
                return self._episode(entry)
        raise KeyError(f"no episode {wanted!r} in {self.root}")

    def _episode(self, entry: Entry) -> Episode:
        """The opened episode; the last ones used stay open as long as they fit in the cache."""
        with self._lock:
            found = self._open.get(entry.id)
            if found is not None:
                self._open.move_to_end(entry.id)
                return found
        made = self._make(entry)
        with self._lock:
            self._open[entry.id] = made
            self._trim()
        return made

    def _make(self, entry: Entry) -> Episode:
        parts = [DiskEpisode(self.place(part.number)) for part in entry.parts]
        return parts[0] if entry.is_plain else EditedEpisode(entry, parts)

    def _trim(self) -> None:
        used = sum(_loaded_bytes(episode) for episode in self._open.values())
        while len(self._open) > 1 and (used > self._cache_bytes or len(self._open) > _MAX_OPEN):
            _, dropped = self._open.popitem(last=False)
            used -= _loaded_bytes(dropped)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopened, (self.folder, self._edited, self._cache_bytes))

    def __repr__(self) -> str:
        return f"<LocalDataset {self.root}: {len(self)} episodes>"


class LocalDatasetWriter:
    """Adds episodes to a root; any number of processes may do so at once."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        video: VideoOptions | None = None,
        durability: str = "100ms",
    ) -> None:
        self.root = _local(root)
        self._video = video
        Durability.parse(durability)
        self._durability = durability

    def new_episode(self) -> DiskEpisodeWriter:
        """Claim the next free id and return the writer of its episode."""
        number = self._next()
        while True:
            try:
                return DiskEpisodeWriter(
                    episode_path(self.root, number), video=self._video, durability=self._durability
                )
            except ConflictError:
                number += 1

    def _next(self) -> int:
        """One past the highest id any block knows; the exclusive mkdir settles who gets it."""
        blocks = _numbers(self.root)
        for block in reversed(blocks):
            inside = _numbers(episode_path(self.root, block).parent)
            if inside:
                return inside[-1] + 1
        return 0

    def __repr__(self) -> str:
        return f"<LocalDatasetWriter {self.root}>"

    def __enter__(self) -> LocalDatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open between episodes."""


def holds_recordings(folder: Path) -> bool:
    """Whether a folder is a root of recordings; nothing in it is opened."""
    return bool(_numbers(folder))


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if len(name) == 12 and name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _loaded_bytes(episode: Episode) -> int:
    return episode.loaded_bytes() if isinstance(episode, DiskEpisode | EditedEpisode) else 0


def _local(root: str | os.PathLike[str]) -> Path:
    """A root on this machine; a URL needs to be told how its store is reached."""
    if isinstance(root, str) and "://" in root:
        raise ValueError(f"{root!r} is a URL: open it with wd.open_recordings({root!r})")
    return Path(os.path.abspath(root))


def _reopened(root: Folder, edited: bool, cache_bytes: int) -> LocalDataset:
    return LocalDataset(root, edited=edited, cache_bytes=cache_bytes)
