"""One episode recorded by several processes: each records a part, and the last one to leave joins the parts.

A part is an ordinary episode directory with its own journals, inside the folder `.recording` of the shared episode.
So a process that dies hurts no other: its part is salvaged when the episode is finished. The lock of the episode
directory is held for a moment to join or leave, and while the parts are joined; the lock of a part is held by its
process.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from warpdata.bytekit.io.commit import make_folders, map_os_errors, write_file
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.locks import FileLock, hold_lock
from warpdata.episodes.provenance import first_meta
from warpdata.episodes.record.recording import claim_directory, claim_episode, remove_files
from warpdata.episodes.record.tables import owner
from warpdata.episodes.record.values import Clock
from warpdata.episodes.salvage.finish import join_parts
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.episodes.salvage.unfinished import PARTS_FOLDER, SHARED_FILE, is_recorded
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    NoLocksError,
    RecordingError,
    UnavailableError,
    WarpError,
    WriterClosedError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import check_name, episode_path, read_bytes

EPISODES_FOLDER = ".episodes"
"""In a root: one file for each named episode, with the number of its directory."""

_NAMES, _ENDED, _OWNER = "names", "ended", "owner"
_WRITER = "warpdata.Recorder"
_LOCK_S = 600.0
"""Joining waits as long for a process that is finishing the same episode."""
_LOOK_S = 0.02
_MAX_BYTES = 1 << 20


class SharedEpisode:
    """The membership of one recorder in a shared episode."""

    def __init__(self, directory: Path, work: Path, lock: FileLock | None, entry: Path | None) -> None:
        self.directory = directory
        self.work, self.lock = work, lock
        """The folder for the journals of this process, and the lock of its part."""
        self.part = work.parent
        self._entry = entry
        """The file that holds the number of the episode in a root."""
        self._shared = directory / layout.RECORDING_FOLDER

    def reserve(self, signal: str) -> None:
        """Take the name of a signal for this process; RecordingError if a running one has it.

        That of a process that died or left is taken over: its records and those of this process become one signal.
        """
        path = self._name_file(signal)
        with _locked(self.directory):
            try:
                other = read_bytes(path, max_bytes=_MAX_BYTES).decode(errors="replace")
            except BlobNotFoundError:
                other = self.part.name
            if other != self.part.name and self._is_recording(other):
                raise RecordingError(
                    f"signal {signal!r} is recorded by another process of this episode ({_pid(other)})",
                    path=self.directory,
                    hint="Give the signal another name in one of the processes.",
                )
            write_file(path, self.part.name.encode(), durable=False)

    def _is_recording(self, part: str) -> bool:
        return is_recorded(self._shared / PARTS_FOLDER / part / layout.RECORDING_FOLDER)

    def is_signal(self, name: str) -> bool:
        """Whether any process has a signal of this name."""
        return self._name_file(name).exists()

    def _name_file(self, signal: str) -> Path:
        return self._shared / _NAMES / signal.replace("/", "%")

    def ended_by(self) -> str | None:
        """The part whose process ended the episode for everyone; None while it may be recorded."""
        try:
            return (self._shared / _ENDED).read_text()
        except OSError:
            return None

    def end(self) -> None:
        """Make every other process stop recording; they notice within a second. RecordingError unless it may."""
        owner_part = read_bytes(self._shared / _OWNER, max_bytes=_MAX_BYTES).decode(errors="replace")
        if owner_part != self.part.name and self._is_recording(owner_part):
            raise RecordingError(
                f"the episode belongs to process {_pid(owner_part)}: only that one can end it for all",
                path=self.directory,
                hint="Close this recorder: the others go on.",
            )
        write_file(self._shared / _ENDED, self.part.name.encode(), durable=False)

    @property
    def is_finished(self) -> bool:
        """Whether the parts are joined, by this process or another."""
        return not (self._shared / SHARED_FILE).exists()

    def withdraw(self) -> None:
        """Give up a part in which nothing was recorded."""
        remove_files(self.part)
        if self.lock is not None:
            self.lock.release()
        self.leave(0.0, lambda _: None)

    def leave(self, timeout_s: float, finish: Callable[[Path], None]) -> LossReceipt | None:
        """Finish the episode unless other processes record it; None if they do.

        With a timeout, waits so long for the others. `finish` is called with the directory of the finished episode.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(BlobNotFoundError), _locked(self.directory):
                if self.is_finished:
                    return None  # another process finished it after this one had closed its part
                parts = [part for part in (self._shared / PARTS_FOLDER).iterdir() if part != self.part]
                if not any(is_recorded(part / layout.RECORDING_FOLDER) for part in parts):
                    return self._finish(finish)
            if time.monotonic() >= deadline or not self.directory.exists():
                return None
            time.sleep(_LOOK_S)

    def _finish(self, finish: Callable[[Path], None]) -> LossReceipt | None:
        if any((self._shared / PARTS_FOLDER).iterdir()):
            receipt = join_parts(self._shared)
            if receipt.steps_kept or not receipt.is_complete:
                finish(self.directory)
                return receipt
        # No process recorded anything: there is no episode.
        remove_files(self.directory)
        if self._entry is not None:
            self._entry.unlink(missing_ok=True)
        return None


def join_in_root(root: Path, name: str, clock: Clock) -> SharedEpisode:
    """Join the named episode of a root; the first process makes it."""
    if "/" in check_name(name):
        raise ValueError(f"episode name {name!r} is refused: use letters, digits, '_', '.' and '-'")
    folder = root / EPISODES_FOLDER
    with map_os_errors(folder):
        make_folders(folder)
    entry = folder / f"{name}.json"
    while True:
        with hold_lock(folder / "lock", timeout_s=_LOCK_S):
            directory = _entry_directory(root, entry)
            if directory is None:
                work, lock = claim_episode(root)
                with _owned(lock, work):
                    _begin(work, name, clock)
                    write_file(entry, dump_json({"episode": name, "number": int(work.parent.name)}))
                    return _join(work.parent, clock, entry, is_owner=True)
        with contextlib.suppress(BlobNotFoundError), _locked(directory):
            if (directory / layout.RECORDING_FOLDER / SHARED_FILE).exists():
                return _join(directory, clock, entry)
            if directory.exists():
                hint = "Choose another name for the next episode."
                raise ConflictError(f"episode {name!r} is finished", path=directory, hint=hint)


def join_in_folder(directory: Path, name: str, clock: Clock) -> SharedEpisode | None:
    """Join the shared episode made in this directory, or make it; None if another recording is there."""
    while True:
        try:
            work, lock = claim_directory(directory)
        except ConflictError:
            with contextlib.suppress(BlobNotFoundError), _locked(directory):
                is_shared = (directory / layout.RECORDING_FOLDER / SHARED_FILE).exists()
                return _join(directory, clock, None) if is_shared else None
        else:
            with _owned(lock, work):
                _begin(work, name, clock)
                return _join(directory, clock, None, is_owner=True)


def _entry_directory(root: Path, entry: Path) -> Path | None:
    """The directory of a named episode; None if there is none, or everything in it was discarded."""
    try:
        number = parse_json_object(read_bytes(entry, max_bytes=_MAX_BYTES))["number"]
        directory = episode_path(root, int(number))
    except (WarpError, KeyError, TypeError, ValueError):
        return None
    return directory if directory.exists() else None


def _begin(work: Path, name: str, clock: Clock) -> None:
    """Make the folder of journals that of a shared episode."""
    with map_os_errors(work):
        (work / _NAMES).mkdir()
        (work / PARTS_FOLDER).mkdir()
    meta = {**first_meta(_WRITER, None, None), "episode": name, "clock_name": clock}
    write_file(work / SHARED_FILE, dump_json(meta))


def _join(directory: Path, clock: Clock, entry: Path | None, *, is_owner: bool = False) -> SharedEpisode:
    """Make a part in a shared episode, for a caller that holds its lock."""
    shared = directory / layout.RECORDING_FOLDER
    if (shared / _ENDED).exists():
        raise WriterClosedError("the episode was ended by its owner", path=directory)
    stated = parse_json_object(read_bytes(shared / SHARED_FILE, max_bytes=_MAX_BYTES)).get("clock_name")
    if stated != clock:
        raise ConflictError(
            f"clock differs between processes: expected {stated!r}, got {clock!r}",
            path=directory,
            hint=f"Pass clock={stated!r}.",
        )
    part = shared / PARTS_FOLDER / f"{owner()['pid']}-{secrets.token_hex(4)}"
    work, lock = claim_directory(part)
    if is_owner:
        write_file(shared / _OWNER, part.name.encode())
    return SharedEpisode(directory, work, lock, entry)


def _pid(part: str) -> str:
    """The process of a part."""
    return part.partition("-")[0]


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a shared episode; BlobNotFoundError if it is gone."""
    lock = FileLock.take(directory, timeout_s=_LOCK_S, make=False)
    if lock is None:
        raise UnavailableError("timed out waiting for the lock of the episode", path=directory)
    with lock:
        yield


@contextlib.contextmanager
def _owned(lock: FileLock | None, work: Path) -> Iterator[None]:
    """Hold the lock of a directory just made; without locks nothing keeps processes apart."""
    if lock is None:
        shutil.rmtree(work.parent, ignore_errors=True)
        raise NoLocksError("this file system has no locks: one process can record here", path=work)
    with lock:
        yield
