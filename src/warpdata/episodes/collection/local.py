"""A root of episode directories: read like a list from any store, written by episode on this machine."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.io.ranges import FolderReader, SubFolder
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.episodes.collection.edits import EditedSource, Edits, EpisodeEntry
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.facts import facts_table, joined_tables, recorded_facts
from warpdata.episodes.collection.listing import episode_name, episode_path, list_episodes, list_folder
from warpdata.episodes.record.recording import episode_numbers
from warpdata.episodes.salvage.unfinished import Unfinished, unfinished_at
from warpdata.episodes.sources.disk_episode import DirectorySource
from warpdata.errors import require_kind, suggests
from warpdata.formats.episodedir.documents import Folder, read_set_metadata
from warpdata.timeline.episode import Episode

DEFAULT_CACHE_BYTES = 256 << 20
_MAX_OPEN = 1024
_LOOK_SHARE = 16
"""What is loaded is added up when a sixteenth of the open episodes was opened since."""


class LocalSource(EpisodesSource):
    """Finished episodes of a root in id order; edits of the dataset are applied, recordings never change."""

    def __init__(
        self, root: str | os.PathLike[str] | FolderReader, *, edited: bool, cache_bytes: int
    ) -> None:
        require_kind(
            "a root of recordings", root, (str, os.PathLike, FolderReader), "a path or a folder of a store"
        )
        self.folder: Folder = _local(root) if isinstance(root, str | os.PathLike) else root
        self.root: Path | str = self.folder if isinstance(self.folder, Path) else self.folder.name
        self._files: dict[int, list[str]] = {}
        self._edited = edited
        self._cache_bytes = cache_bytes
        self._lock = ThreadLock()
        self._open: OrderedDict[str, Episode] = OrderedDict()
        self._opened_since = 0
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is there."""
        if isinstance(self.folder, Path):
            listing = list_episodes(self.folder)
        else:
            listing, self._files = list_folder(self.folder)
        self._edits: Edits | None = None
        self._metadata: Mapping[str, Any] | None = None
        self.unfinished_numbers = listing.unfinished
        self.recorded = numbers = listing.finished
        self.entries: Sequence[EpisodeEntry] = (
            self.edits.apply(numbers) if self._edited else Edits.plain(numbers)
        )
        self._ids = [entry.id for entry in self.entries]
        with self._lock:
            self._open.clear()

    @property
    def edits(self) -> Edits:
        """The edit log of the root."""
        if self._edits is None:
            self._edits = Edits(self.folder)
        return self._edits

    def place(self, number: int) -> Folder:
        """The directory of a recording."""
        if isinstance(self.folder, Path):
            return episode_path(self.folder, number)
        return SubFolder(self.folder, episode_name(number), self._files.get(number, []))

    @property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""
        return self._ids

    @property
    def name(self) -> str:
        """Where the root is."""
        return str(self.root)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the import of the root kept of its source as a whole; nothing of a root that was recorded."""
        if self._metadata is None:
            self._metadata = read_set_metadata(self.folder)
        return self._metadata

    def address(self) -> dict[str, Any] | None:
        """The root, and whether its edits count."""
        return {"kind": "root", "address": str(self.root), "edited": self._edited}

    def open(self, position: int) -> Episode:
        """The opened episode; the last ones used stay open as long as they fit in the cache."""
        entry = self.entries[position]
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

    @property
    def has_facts(self) -> bool:
        """Whether facts are kept beside the recordings."""
        return isinstance(self.folder, Path)

    @property
    def opens_at_once(self) -> int:
        """One on this machine: opening is work, not waiting."""
        return 1 if isinstance(self.folder, Path) else super().opens_at_once

    def facts(self) -> pa.Table:
        """The facts of all episodes; those of recordings are kept beside them and read again from there."""
        if not isinstance(self.folder, Path):
            return super().facts()
        if not (self._edited and self.edits.log):
            return recorded_facts(
                self.folder, self.recorded, lambda number: Episode(DirectorySource(self.place(number)))
            )
        is_plain = [entry.is_plain for entry in self.entries]
        plain = [position for position, each in enumerate(is_plain) if each]
        position_of = {self.entries[position].parts[0].number: position for position in plain}
        # Each is looked at once: what others have open stays open.
        table = recorded_facts(
            self.folder, list(position_of), lambda number: self._make(self.entries[position_of[number]])
        )
        edited = [position for position, each in enumerate(is_plain) if not each]
        if not edited:
            return table
        whole = joined_tables([table, facts_table(self._make(self.entries[position]) for position in edited)])
        return whole.take(to_arrow(np.argsort([*plain, *edited])))

    def _make(self, entry: EpisodeEntry) -> Episode:
        parts = [DirectorySource(self.place(part.number)) for part in entry.parts]
        return Episode(parts[0] if entry.is_plain else EditedSource(entry, parts))

    def _trim(self) -> None:
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        # What each has loaded grows while it is used: adding it up at every opening would cost more than it saves.
        self._opened_since += 1
        if self._opened_since < len(self._open) // _LOOK_SHARE:
            return
        self._opened_since = 0
        used = sum(episode.source.loaded_bytes() for episode in self._open.values())
        while len(self._open) > 1 and used > self._cache_bytes:
            _, dropped = self._open.popitem(last=False)
            used -= dropped.source.loaded_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopened, (self.folder, self._edited, self._cache_bytes))


@suggests
class LocalDataset(Episodes):
    """The episodes of a root of recordings, and what only a root has: its edits, and what is unfinished."""

    def __init__(
        self,
        root: str | os.PathLike[str] | FolderReader,
        *,
        edited: bool = True,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._local = LocalSource(root, edited=edited, cache_bytes=cache_bytes)
        super().__init__(self._local)

    def refresh(self) -> None:
        """Look again at what is there."""
        self._local.refresh()
        self._facts = None

    @property
    def root(self) -> Path | str:
        """Where the root is."""
        return self._local.root

    @property
    def folder(self) -> Folder:
        """The root as a folder."""
        return self._local.folder

    @property
    def recorded(self) -> list[int]:
        """The numbers of all finished recordings, edited or not."""
        return self._local.recorded

    def place(self, number: int) -> Folder:
        """The directory of a recording."""
        return self._local.place(number)

    @property
    def edits(self) -> Edits:
        """The edit log of this root: `drop`, `undrop`, `set_static`, `trim`, `split`, `concat`, `undo`."""
        return self._local.edits

    @property
    def unfinished(self) -> list[Unfinished]:
        """Recordings that are not finished: still running, or left by a crash, and what they hold."""
        return [unfinished_at(place) for place in self.unfinished_places]

    @property
    def unfinished_places(self) -> list[Folder]:
        """The directories of recordings that are not finished; nothing in them is opened."""
        return [self.place(number) for number in self._local.unfinished_numbers]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopened_dataset, (self._local,))

    def __repr__(self) -> str:
        unfinished = len(self._local.unfinished_numbers)
        more = f", {unfinished} unfinished (`warp salvage {self.root}`)" if unfinished else ""
        return f"<LocalDataset {self.root}: {len(self)} episodes{more}>"


def holds_recordings(folder: Path) -> bool:
    """Whether a folder is a root of recordings; nothing in it is opened."""
    return bool(episode_numbers(folder))


def _local(root: str | os.PathLike[str]) -> Path:
    """A root on this machine; a URL is refused."""
    if isinstance(root, str) and "://" in root:
        raise ValueError(f"{root!r} is a URL: open it with wd.open_recordings({root!r})")
    return Path(os.path.abspath(root))


def _reopened(root: Folder, edited: bool, cache_bytes: int) -> LocalSource:
    return LocalSource(root, edited=edited, cache_bytes=cache_bytes)


def _reopened_dataset(source: LocalSource) -> LocalDataset:
    made = LocalDataset.__new__(LocalDataset)
    made._local = source
    Episodes.__init__(made, source)
    return made
