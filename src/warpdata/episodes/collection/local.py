"""Roots of episode directories and folders of shards: read like a list from any store, written on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import absolute_path
from warpdata.bytekit.io.ranges import FolderReader, RangeReader, SubFolder
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.forks import Reopens, ThreadLock, cached_property
from warpdata.episodes.collection.edits import (
    EditedSource,
    Edits,
    EpisodeEntry,
)
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.facts import facts_table, joined_tables, recorded_facts
from warpdata.episodes.record.recording import episode_numbers
from warpdata.episodes.salvage.live import LiveEpisode
from warpdata.episodes.salvage.unfinished import Unfinished, is_recorded, unfinished_at
from warpdata.episodes.sources.disk_episode import DirectorySource
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import BlobNotFoundError, StoreError, WarpError, require_kind, suggests
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    Folder,
    episode_name,
    episode_path,
    read_bytes,
    read_set_metadata,
)
from warpdata.formats.journal.layout import WORK_SUFFIX
from warpdata.formats.wshard.chunks import claims_chunks, read_chunk_list
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

DEFAULT_CACHE_BYTES = 256 << 20
_MAX_OPEN = 1024
_LOOK_SHARE = 16
"""Loaded bytes are summed when a sixteenth of the open episodes was opened since."""
_SETTLED_NS = 2_000_000_000
"""A folder changed more recently than this may change again within the same tick of its clock."""
_LISTING_VERSION = 1
_LIVE_POLL_S = 0.05

SUFFIX = ".wshard"
_LIST_SUFFIX = "_manifest"
_CHUNK = re.compile(r"(.*)_chunk_[0-9]{4,}")


# Listing a root without looking into folders that did not change.


@dataclass(frozen=True, slots=True)
class Listing:
    """Numbers of finished and unfinished episodes, in order."""

    finished: list[int]
    unfinished: list[int]


def list_folder(folder: FolderReader) -> tuple[Listing, dict[int, list[str]]]:
    """All episodes below a place that can list its files, and the files of each."""
    files: dict[int, list[str]] = {}
    for name in folder.names():
        block, _, rest = name.partition("/")
        episode, _, file = rest.partition("/")
        if file and _is_number(block) and _is_number(episode) and name.startswith(episode_name(int(episode))):
            files.setdefault(int(episode), []).append(file)
    listing = Listing([], [])
    marks = (f"{layout.RECORDING_FOLDER}/", layout.FOREIGN_UNFINISHED)
    for number in sorted(files):
        if any(file.startswith(marks) for file in files[number]):
            listing.unfinished.append(number)
        elif {layout.META_FILE, layout.STATIC_FILE} & set(files[number]):
            listing.finished.append(number)
    return listing, files


def list_episodes(root: Path) -> Listing:
    """All episodes below a root; blocks that did not change since the last time are not read."""
    known, listing = _read_listing(root), Listing([], [])
    fresh: dict[str, Any] = {}
    for block, mtime_ns in _blocks(root):
        entry = known.get(block)
        if entry is None or entry["mtime_ns"] != mtime_ns:
            with os.scandir(root / block) as entries:
                numbers = sorted(int(entry.name) for entry in entries if _is_number(entry.name))
            states = {number: _state(episode_path(root, number)) for number in numbers}
        else:  # unfinished episodes may have been finished since
            states = dict.fromkeys(_expand(entry["finished"]), True)
            waiting = _expand(entry["unfinished"])
            states |= {number: _state(episode_path(root, number)) or False for number in waiting}
        finished = sorted(number for number, state in states.items() if state)
        unfinished = sorted(number for number, state in states.items() if state is False)
        fresh[block] = {
            "mtime_ns": mtime_ns,
            "finished": _ranges(finished),
            "unfinished": _ranges(unfinished),
        }
        listing.finished.extend(finished)
        listing.unfinished.extend(unfinished)
    settled = {
        block: entry for block, entry in fresh.items() if time.time_ns() - entry["mtime_ns"] > _SETTLED_NS
    }
    if settled != known:
        body = {"version": _LISTING_VERSION, "blocks": settled, "crc32c": crc32c(dump_json(settled))}
        with contextlib.suppress(WarpError):  # a root that cannot be written is simply listed again next time
            write_file(root / layout.LISTING_FILE, dump_json(body), durable=False)
    return listing


def _blocks(root: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(root) as entries:
            return sorted(
                (e.name, e.stat().st_mtime_ns) for e in entries if _is_number(e.name) and e.is_dir()
            )
    except FileNotFoundError:
        raise BlobNotFoundError("no such dataset root", path=root) from None
    except OSError as error:
        raise StoreError(f"cannot list ({error.strerror})", path=root) from None


def _state(folder: Path) -> bool | None:
    """True if finished, False if not, None if this is no episode."""
    is_recording = (folder / layout.RECORDING_FOLDER).exists()
    if (folder / layout.META_FILE).exists():
        return not is_recording and not (folder / layout.FOREIGN_UNFINISHED).exists()
    if is_recording:
        return False
    return True if (folder / layout.STATIC_FILE).exists() else None


def _is_number(name: str) -> bool:
    return len(name) == layout.DIGITS and name.isascii() and name.isdigit()


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Sorted numbers as [first, last] pairs."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _expand(ranges: list[list[int]]) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def _read_listing(root: Path) -> dict[str, Any]:
    """The listing written last time; empty where it cannot be trusted."""
    try:
        body = parse_json_object(read_bytes(root / layout.LISTING_FILE))
        blocks = body.get("blocks")
        if body.get("version") != _LISTING_VERSION or body.get("crc32c") != crc32c(dump_json(blocks)):
            return {}
        return blocks if isinstance(blocks, dict) else {}
    except (OSError, WarpError):
        return {}


# A root of recordings.


class LocalSource(Reopens, EpisodesSource):
    """Finished episodes of a root in id order; edits of the dataset are applied, recordings never change."""

    ids: Sequence[str] = ()

    def __init__(
        self, root: str | os.PathLike[str] | FolderReader, *, edited: bool, cache_bytes: int
    ) -> None:
        require_kind(
            "a root of recordings", root, (str, os.PathLike, FolderReader), "a path or a folder of a store"
        )
        self.folder: Folder = _local(root) if isinstance(root, str | os.PathLike) else root
        self.has_facts = isinstance(self.folder, Path)  # kept beside the recordings
        if isinstance(self.folder, Path):
            self.opens_at_once = 1  # opening is work here, not waiting
        self.root = self.folder if isinstance(self.folder, Path) else self.folder.name
        self.name = str(self.root)
        self.reopen_by(LocalSource, self.folder, edited=edited, cache_bytes=cache_bytes)
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
        self.__dict__.pop("metadata", None)
        self.unfinished_numbers = listing.unfinished
        self.recorded = numbers = listing.finished
        self.entries: Sequence[EpisodeEntry] = (
            self.edits.apply(numbers) if self._edited else Edits.plain(numbers)
        )
        self.ids = [entry.id for entry in self.entries]
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

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What the import of the root kept of its source as a whole; empty for a root that was recorded."""
        return read_set_metadata(self.folder)

    def address(self) -> dict[str, Any] | None:
        """The root, and whether its edits count."""
        return {"kind": "root", "address": str(self.root), "edited": self._edited}

    def open(self, position: int) -> Episode:
        """The opened episode; the last ones used stay open as long as they fit in the cache."""
        entry = self.entries[position]
        with self._lock:
            episode = self._open.get(entry.id)
            if episode is not None:
                self._open.move_to_end(entry.id)
                return episode
        episode = self._make(entry)
        with self._lock:
            self._open[entry.id] = episode
            self._trim()
        return episode

    def facts(self) -> pa.Table:
        """The facts of all episodes; those of recordings are kept beside them and read again from there."""
        folder = self.folder
        if not isinstance(folder, Path):
            return super().facts()
        plain, edited = {}, []
        for at, entry in enumerate(self.entries):
            if entry.is_plain:
                plain[entry.parts[0].number] = at
            else:
                edited.append(at)
        # Each is looked at once: what others have open stays open.
        table = recorded_facts(folder, list(plain), lambda number: self._make(self.entries[plain[number]]))
        if not edited:
            return table
        whole = joined_tables([table, facts_table(self._make(self.entries[at]) for at in edited)])
        return whole.take(to_arrow(np.argsort([*plain.values(), *edited])))

    def _make(self, entry: EpisodeEntry) -> Episode:
        parts = [DirectorySource(self.place(part.number)) for part in entry.parts]
        return Episode(parts[0] if entry.is_plain else EditedSource(entry, parts))

    def _trim(self) -> None:
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        # Loaded bytes grow while episodes are used: summing them at every opening would cost more than it saves.
        self._opened_since += 1
        if self._opened_since < len(self._open) // _LOOK_SHARE:
            return
        self._opened_since = 0
        used = sum(episode.source.loaded_bytes() for episode in self._open.values())
        while len(self._open) > 1 and used > self._cache_bytes:
            _, dropped = self._open.popitem(last=False)
            used -= dropped.source.loaded_bytes()


@suggests
class LocalDataset(Episodes):
    """The episodes of a root of recordings, and what only a root has: its edits, and what is unfinished."""

    def __init__(
        self,
        root: str | os.PathLike[str] | FolderReader | LocalSource,
        *,
        edited: bool = True,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        if not isinstance(root, LocalSource):
            root = LocalSource(root, edited=edited, cache_bytes=cache_bytes)
        self._local = root
        super().__init__(root)

    def refresh(self) -> None:
        """Look again at what is there."""
        self._local.refresh()
        self._facts = None

    @property
    def root(self) -> Path | str:
        """Path or URL of the root."""
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

    def live(self, episode: str | None = None, *, timeout_s: float = 0.0) -> LiveEpisode:
        """The episode that is being recorded, to follow: the one of this id, or the one begun last.

        Waits up to `timeout_s` for a recording to begin.
        """
        if not isinstance(self.folder, Path):
            raise ValueError(f"live recordings are read on their own machine, not from {self.root}")
        return open_live(self.folder, episode, timeout_s=timeout_s)

    def __reduce__(self) -> tuple[Any, ...]:
        return (LocalDataset, (self._local,))

    def __repr__(self) -> str:
        unfinished = len(self._local.unfinished_numbers)
        more = f", {unfinished} unfinished (`warp salvage {self.root}`)" if unfinished else ""
        return f"<LocalDataset {self.root}: {len(self)} episodes{more}>"


@suggests
def open_live(
    target: str | os.PathLike[str], episode: str | None = None, *, timeout_s: float = 0.0
) -> LiveEpisode:
    """Open what is being recorded into a root, a directory or one `.wshard` file; the target is that of `wd.record`.

    Of a root it is the episode of this id, or the one begun last. Waits up to `timeout_s` for a recording to begin.
    """
    path, deadline = absolute_path(target), time.monotonic() + timeout_s
    while True:
        if path.suffix == SUFFIX:
            places = [path.with_name(path.name + WORK_SUFFIX)]
        elif (path / layout.RECORDING_FOLDER).is_dir():
            places = [path]
        else:
            numbers = list_episodes(path).unfinished if path.is_dir() else []
            places = [episode_path(path, number) for number in reversed(numbers)]
        for place in places:
            if episode in (None, place.name) and is_recorded(place / layout.RECORDING_FOLDER):
                return LiveEpisode(place)
        if time.monotonic() >= deadline:
            which = "no episode is" if episode is None else f"episode {episode!r} is not"
            raise BlobNotFoundError(f"{which} being recorded here", path=path)
        time.sleep(_LIVE_POLL_S)


def holds_recordings(folder: Path) -> bool:
    """Whether a folder is a root of recordings; nothing in it is opened."""
    return bool(episode_numbers(folder))


def _local(root: str | os.PathLike[str]) -> Path:
    """A root on this machine; a URL is refused."""
    if isinstance(root, str) and "://" in root:
        raise ValueError(f"{root!r} is a URL: open it with wd.open_recordings({root!r})")
    return Path(os.path.abspath(root))


# A folder of shards, one episode each.


class ShardFolderSource(EpisodesSource):
    """The episodes of shard files by their names; each is opened on first use."""

    def __init__(
        self, folder: str | os.PathLike[str] | FolderReader, names: Sequence[str] | None = None
    ) -> None:
        self._folder = os.path.abspath(folder) if isinstance(folder, str | os.PathLike) else folder
        self.name = self._folder if isinstance(self._folder, str) else self._folder.name
        if isinstance(self._folder, str):
            self.opens_at_once = 1  # opening is work here, not waiting
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardFolderSource, (self._folder, self.names))  # the same files, also if the folder changes

    @cached_property
    def names(self) -> list[str]:
        """The files, without the chunks of chunk lists."""
        return shards_in(self._folder) if self._names is None else list(self._names)

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

    def bytes_of(self, position: int) -> str | RangeReader:
        """The file of an episode."""
        name, folder = self.names[position], self._folder
        return os.path.join(folder, name) if isinstance(folder, str) else folder.open(name)

    def address(self) -> dict[str, Any] | None:
        """The folder and the files."""
        return {"kind": "shards", "address": self.name, "names": self.names}


def shards_in(folder: str | os.PathLike[str] | FolderReader) -> list[str]:
    """The shards of a folder that are episodes, by name; chunks belong to the list beside them.

    Of a folder in a store by names alone: opening every file would cost a request each.
    """
    ending = _LIST_SUFFIX + SUFFIX
    there = folder.names() if isinstance(folder, FolderReader) else os.listdir(folder)
    names = dict.fromkeys(sorted(name for name in there if name.endswith(SUFFIX) and "/" not in name))
    if isinstance(folder, FolderReader):
        lists = [name for name in names if name.endswith(ending)]
    else:
        lists = [name for name in names if claims_chunks(Path(folder, name))]
        for name in lists:
            with contextlib.suppress(WarpError):  # damage is reported when the file is opened
                for chunk in read_chunk_list(Path(folder, name)).chunks:
                    names.pop(chunk.uri, None)
    listed = {name.removesuffix(ending) for name in lists}
    chunks = {name: _CHUNK.fullmatch(name.removesuffix(SUFFIX)) for name in names}
    return [name for name, match in chunks.items() if match is None or match[1] not in listed]
