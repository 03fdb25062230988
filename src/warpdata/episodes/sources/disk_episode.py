"""Open an episode directory: names and metadata at once, signals on first use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.ranges import FolderReader
from warpdata.episodes.sources.signals import SimpleSignal, VideoSignal
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    JournalInUseError,
    StoreError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FileSum, Folder, read_meta, read_static
from warpdata.formats.episodedir.names import files_below, find_signals, signal_file
from warpdata.formats.episodedir.signal_file import Description, Summary
from warpdata.formats.journal.layout import SIGNALS_JOURNAL
from warpdata.timeline.episode import Episode
from warpdata.timeline.lazy_signals import LazySignals, ReadOnlyDict
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, StepClock

DiskSignal = SimpleSignal | VideoSignal


def DiskEpisode(directory: str | os.PathLike[str] | FolderReader) -> Episode:  # noqa: N802 - the document's name
    """An episode directory, here or in a store, as an episode."""
    return Episode(DirectorySource(directory))


class DirectorySource(EpisodeSource):
    """An episode directory, here or in a store; reading is safe in threads, after a fork, and after pickling."""

    def __init__(self, directory: str | os.PathLike[str] | FolderReader) -> None:
        if not isinstance(directory, str | os.PathLike | FolderReader):
            raise TypeError(f"an episode is an Episode or a path, not {type(directory).__name__}")
        # Absolute: files are opened on first use, and the working directory may differ by then.
        self.folder: Folder = (
            Path(os.path.abspath(directory)) if isinstance(directory, str | os.PathLike) else directory
        )
        self.path: Path | str = self.folder if isinstance(self.folder, Path) else self.folder.name
        check_finished(self.folder)
        self._known_meta: ReadOnlyDict | None = None
        self._known_static: ReadOnlyDict | None = None
        self._suffixes: dict[str, str] = {}
        self._signals = LazySignals(self._signal_names, self._open_signal)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The signals by name."""
        return self._signals

    @property
    def place(self) -> str | None:
        """Path or URL of the directory."""
        return str(self.path)

    @property
    def step_clock(self) -> StepClock | None:
        """The steps that were declared while recording."""
        try:
            return super().step_clock
        except FormatError:  # damage of one file never prevents reading the others
            return None

    @property
    def meta(self) -> Mapping[str, Any]:
        """System metadata from meta.json, read-only."""
        if self._known_meta is None:
            self._known_meta = ReadOnlyDict(read_meta(self.folder))
        return self._known_meta

    @property
    def static(self) -> Mapping[str, Any]:
        """The static items from static.json, read-only."""
        if self._known_static is None:
            self._known_static = ReadOnlyDict(self._checked_static())
        return self._known_static

    @property
    def id(self) -> str:
        """The name of the directory: the number of the episode in its dataset."""
        return os.path.basename(str(self.path).partition("?")[0].rstrip("/"))

    def described(self) -> Mapping[str, Any]:
        """Signal entries of meta.json; empty if the file is damaged or foreign."""
        return self.stated() or {}

    def stated(self) -> Mapping[str, Any] | None:
        """Signal entries of meta.json, maybe empty; None without any."""
        try:
            found = self.meta.get("signals")
        except FormatError:
            return None
        return found if isinstance(found, dict) else None

    def loaded_bytes(self) -> int:
        """How many bytes of signals this episode keeps in memory."""
        opened = list(self._signals.opened.values())
        return sum(each.loaded_bytes for each in opened if isinstance(each, SimpleSignal | VideoSignal))

    def stored_bytes(self) -> int:
        """Bytes on disk; of an episode in a store, by its metadata."""
        if isinstance(self.folder, Path):
            return _bytes_below(str(self.folder))
        signals = [each for each in self.described().values() if isinstance(each, dict)]
        return sum(each.get("video_bytes", 0) + each.get("file", {}).get("bytes", 0) for each in signals)

    def _signal_names(self) -> Iterable[str]:
        stated = self.stated()
        self._suffixes = find_signals(_files(self.folder)) if stated is None else _suffixes(stated)
        return self._suffixes

    def _open_signal(self, name: str) -> DiskSignal:
        about = self.described().get(name)
        known: dict[str, Any] = {}
        if isinstance(about, dict):
            summary, expected = _summary(about, f"{self.path}/meta.json")
            known = {"summary": summary, "expected": expected}
        here = self.folder if isinstance(self.folder, Path) else Path()
        known["folder"] = None if isinstance(self.folder, Path) else self.folder
        suffix = self._suffixes[name]
        if suffix == layout.SIGNAL_SUFFIX:
            return SimpleSignal(signal_file(here, name), name=name, **known)
        frames = signal_file(here, name, layout.FRAMES_SUFFIX)
        return VideoSignal(signal_file(here, name, suffix), frames, name=name, **known)

    def _checked_static(self) -> dict[str, Any]:
        try:
            stated = self.meta.get("static_file")
        except FormatError:
            stated = None
        place = f"{self.path}/{layout.STATIC_FILE}"
        return read_static(self.folder, None if stated is None else file_sum(stated, place))

    def __reduce__(self) -> tuple[Any, ...]:
        return (DirectorySource, (self.folder,))


def _bytes_below(folder: str) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                total += entry.stat().st_size
            elif entry.is_dir(follow_symlinks=False):
                total += _bytes_below(entry.path)
    return total


def _files(folder: Folder) -> Iterable[str]:
    return files_below(folder) if isinstance(folder, Path) else folder.names()


def check_finished(folder: Folder) -> None:
    """Raise unless this is a finished episode directory."""
    if not isinstance(folder, Path):
        if folder.exists(f"{layout.RECORDING_FOLDER}/{SIGNALS_JOURNAL}"):
            raise JournalInUseError(
                "the episode is not finished", path=folder.name, hint="Salvage it where it was recorded."
            )
        return
    try:
        inside = set(os.listdir(folder))  # one look instead of one per name
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such episode directory", path=folder) from None
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=folder) from None
    if layout.RECORDING_FOLDER in inside:
        raise JournalInUseError(
            "the episode is not finished", path=folder,
            hint=f"Wait until its recorder is done; if it was killed, run `warp salvage {folder}`.",
        )  # fmt: skip
    if layout.FOREIGN_UNFINISHED in inside:
        raise JournalInUseError("the episode is not finished", path=folder, hint="Record it again.")
    if not inside & {layout.META_FILE, layout.STATIC_FILE}:
        _check_signals(folder, inside)


def _check_signals(folder: Path, inside: Iterable[str]) -> None:
    """A folder without documents is an episode only if it has signals of its own."""
    is_root = any(len(name) == layout.DIGITS and name.isdigit() for name in inside)
    if is_root or not find_signals(files_below(folder)):
        hint = f"Open it with wd.LocalDataset({str(folder)!r})." if is_root else "Check the path."
        raise CorruptLayoutError("not an episode directory", path=folder, hint=hint)


def file_sum(stated: Any, path: str) -> FileSum:
    """Size and checksum as meta.json states them."""
    try:
        return FileSum(int(stated["bytes"]), int(stated["crc32c"], 16))
    except (KeyError, TypeError, ValueError):
        raise CorruptLayoutError("the file entry in meta.json is damaged", path=path) from None


def _suffixes(described: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, about in described.items():
        kind = about.get("kind") if isinstance(about, dict) else None
        suffix = layout.SIGNAL_SUFFIX
        if kind == "image":
            suffix = ".mkv" if about.get("codec") == "ffv1" else ".mp4"
        found[name] = suffix
    return found


def _summary(about: dict[str, Any], path: str) -> tuple[Summary, FileSum]:
    try:
        made = Summary(
            Description.from_json(about, path), int(about["count"]), about["first_ts_ns"], about["last_ts_ns"]
        )
        return made, file_sum(about["file"], path)
    except (KeyError, TypeError, ValueError):
        raise ChecksumError("the signal entry in meta.json is damaged", path=path) from None
