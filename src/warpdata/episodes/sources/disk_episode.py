"""Open an episode directory: names and metadata at once, signals on first use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.io.files import check_path
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.process.forks import cached_property
from warpdata.episodes.sources.cameras import StoredSignal, VideoSignal, open_bytes, signal_meta
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    JournalInUseError,
    StoreError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    Description,
    FileSum,
    Folder,
    Summary,
    files_below,
    find_signals,
    read_meta,
    read_static,
    signal_file,
    suffix_for,
)
from warpdata.formats.episodedir.signal_file import read_signal, read_summary
from warpdata.formats.journal.layout import SIGNALS_JOURNAL
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import MappedRows, Record, Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, StepClock


class SimpleSignal(StoredSignal):
    """Numbers, text, bytes, or values of varying length in a parquet file; values are read on first use."""

    loaded_bytes = 0
    _data: tuple[NDArray[np.int64], NDArray[Any]] | None = None

    @cached_property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind, from the footer of the file."""
        return signal_meta(self._about().description, self.name)

    def __len__(self) -> int:
        return self._about().count

    def file_bytes(self) -> RangeReader:
        """The bytes of the file."""
        return open_bytes(self.path, self.folder)

    def _about(self) -> Summary:
        if self._summary is None:
            with contextlib.closing(self.file_bytes()) as reader:
                self._summary = read_summary(reader)
        return self._summary

    def _loaded(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        if self._data is None:
            about = self._about()
            stamps, values = read_signal(self.file_bytes(), self._expected)
            if len(stamps) != about.count or (len(stamps) and int(stamps[-1]) != about.last_ts_ns):
                raise CorruptLayoutError(
                    "the records do not match the metadata of the episode", path=self.path
                )
            self._data = read_only(stamps), read_only(values)
            arrays = values if about.description.is_ragged else (values,)
            self.loaded_bytes = stamps.nbytes + sum(array.nbytes for array in arrays)
        return self._data

    def _clock(self) -> NDArray[np.int64]:
        return self._loaded()[0]

    def _edge(self, index: int) -> int:
        self._about()  # the footer has both times
        return super()._edge(index)

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return read_only(self._loaded()[1][indices])

    def _values_in(self, rows: range) -> NDArray[Any]:
        return self._loaded()[1][rows.start : rows.stop : rows.step]

    def _record(self, index: int) -> Record:
        stamps, values = self._loaded()
        return values[index], int(stamps[index])

    def _in_memory(self) -> MappedRows | None:
        return MappedRows(self._loaded()[1])

    def _bring(self, indices: NDArray[np.int64]) -> None:  # noqa: ARG002
        if self._is_far():
            self._loaded()


def DiskEpisode(directory: str | os.PathLike[str] | FolderReader) -> Episode:  # noqa: N802 - the document's name
    """An episode directory, here or in a store, as an episode."""
    return Episode(DirectorySource(directory))


class DirectorySource(EpisodeSource):
    """An episode directory, here or in a store; reading is safe in threads, after a fork, and after pickling.

    Its id is the name of the directory: the number of the episode in its dataset.
    """

    def __init__(self, directory: str | os.PathLike[str] | FolderReader) -> None:
        if not isinstance(directory, str | os.PathLike | FolderReader):
            raise TypeError(f"an episode is an Episode or a path, not {type(directory).__name__}")
        # Absolute: files are opened on first use, and the working directory may differ by then.
        self.folder: Folder = (
            Path(os.path.abspath(directory)) if isinstance(directory, str | os.PathLike) else directory
        )
        self.path: Path | str = self.folder if isinstance(self.folder, Path) else self.folder.name
        self.reopen_by(DirectorySource, self.folder)
        check_finished(self.folder)
        self._suffixes: dict[str, str] = {}
        self._signals = LazySignals(self._signal_names, self._open_signal)
        name, place = os.path.basename(str(self.path).partition("?")[0].rstrip("/")), str(self.path)
        super().__init__(name, self._signals, self._read_static, lambda: read_meta(self.folder), place=place)

    def _read_static(self) -> dict[str, Any]:
        try:
            entry = self.meta.get("static_file")
        except FormatError:
            entry = None
        place = f"{self.path}/{layout.STATIC_FILE}"
        return read_static(self.folder, None if entry is None else FileSum.from_json(entry, place))

    @property
    def step_clock(self) -> StepClock | None:
        """The steps that were declared while recording."""
        try:
            return super().step_clock
        except FormatError:  # damage of one file never prevents reading the others
            return None

    def loaded_bytes(self) -> int:
        """How many bytes of signals this episode keeps in memory."""
        opened = list(self._signals.opened.values())
        return sum(signal.loaded_bytes for signal in opened if isinstance(signal, StoredSignal))

    def stored_bytes(self) -> int:
        """Bytes on disk; of an episode in a store, by its metadata."""
        if isinstance(self.folder, Path):
            files = (os.path.join(place, name) for place, _, names in os.walk(self.folder) for name in names)
            return sum(os.stat(file).st_size for file in files if os.path.isfile(file))
        entries = [entry for entry in (self._entries() or {}).values() if isinstance(entry, dict)]
        return sum(entry.get("video_bytes", 0) + entry.get("file", {}).get("bytes", 0) for entry in entries)

    def _entries(self) -> Mapping[str, Any] | None:
        """Signal entries of meta.json; None if the file is damaged or foreign."""
        try:
            entries = self.meta.get("signals")
        except FormatError:
            return None
        return entries if isinstance(entries, dict) else None

    def _signal_names(self) -> Iterable[str]:
        entries, folder = self._entries(), self.folder
        if entries is None:
            self._suffixes = find_signals(files_below(folder) if isinstance(folder, Path) else folder.names())
        else:
            self._suffixes = {name: _suffix(entry) for name, entry in entries.items()}
        return self._suffixes

    def _open_signal(self, name: str) -> Signal:
        entry = (self._entries() or {}).get(name)
        here = self.folder if isinstance(self.folder, Path) else Path()
        known: dict[str, Any] = {"name": name, "folder": None if here is self.folder else self.folder}
        if isinstance(entry, dict):
            known["summary"], known["expected"] = _read_entry(entry, f"{self.path}/meta.json")
        suffix = self._suffixes[name]
        data = signal_file(here, name, suffix)
        if suffix == layout.SIGNAL_SUFFIX:
            return SimpleSignal(data, **known)
        return VideoSignal(data, signal_file(here, name, layout.FRAMES_SUFFIX), **known)


def _suffix(entry: Any) -> str:
    """The end of the data file of a signal by its entry in meta.json."""
    if not isinstance(entry, dict) or entry.get("kind") != "image":
        return layout.SIGNAL_SUFFIX
    return str(entry.get(layout.SUFFIX_KEY) or suffix_for(str(entry.get("codec"))))


def _read_entry(entry: dict[str, Any], path: str) -> tuple[Summary, FileSum]:
    try:
        edges = (entry["first_ts_ns"], entry["last_ts_ns"])
        summary = Summary(Description.from_json(entry, path), int(entry["count"]), *edges)
        return summary, FileSum.from_json(entry["file"], path)
    except (KeyError, TypeError, ValueError):
        raise ChecksumError("the signal entry in meta.json is damaged", path=path) from None


def check_finished(folder: Folder) -> None:
    """Raise unless this is a finished episode directory."""
    unfinished = "the episode is not finished"
    if not isinstance(folder, Path):
        if folder.exists(f"{layout.RECORDING_FOLDER}/{SIGNALS_JOURNAL}"):
            raise JournalInUseError(unfinished, path=folder.name, hint="Salvage it where it was recorded.")
        return
    try:
        names = set(os.listdir(check_path(folder)))
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such episode directory", path=folder) from None
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=folder) from None
    if layout.RECORDING_FOLDER in names:
        hint = f"Wait until its recorder is done; if it was killed, run `warp salvage {folder}`."
        raise JournalInUseError(unfinished, path=folder, hint=hint)
    if layout.FOREIGN_UNFINISHED in names:
        raise JournalInUseError(unfinished, path=folder, hint="Record it again.")
    if names & {layout.META_FILE, layout.STATIC_FILE}:
        return
    is_root = any(len(name) == layout.DIGITS and name.isdigit() for name in names)
    if is_root or not find_signals(files_below(folder)):
        hint = f"Open it with wd.LocalDataset({str(folder)!r})." if is_root else "Check the path."
        raise CorruptLayoutError("not an episode directory", path=folder, hint=hint)
