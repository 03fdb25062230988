"""Finishing episodes and single signals that a crash left; nothing unread is removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import (
    TEMP_MARK,
    check_case_clash,
    fold_name,
    fsync_folder,
    map_os_errors,
    write_file,
)
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.process.locks import FileLock, is_locked
from warpdata.episodes.collection.edits import episode_path
from warpdata.episodes.collection.local import list_episodes
from warpdata.episodes.record.disk_writer import last_documents
from warpdata.episodes.record.journals import remove_folder, remove_left
from warpdata.episodes.record.tables import TableFile
from warpdata.episodes.salvage.cameras import CameraSalvage, Targets, good_packets
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.episodes.salvage.status import remove_status
from warpdata.episodes.salvage.unfinished import (
    JournaledRows,
    UnfinishedRecording,
    Unreadable,
    has_live_journal,
    locked_folder,
    open_recording,
)
from warpdata.episodes.salvage.work_folder import work_folder, work_folders_in
from warpdata.episodes.statistics import ClockStatistics, ValueStatistics
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    JournalInUseError,
    NoLocksError,
    OutOfSpaceError,
    PermissionError_,
    WarpError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    FileSum,
    check_name,
    read_bytes,
    read_meta,
    read_static,
    signal_file,
)
from warpdata.formats.episodedir.frame_index import marks_of_index, read_frame_index
from warpdata.formats.episodedir.images import suffix_for
from warpdata.formats.episodedir.signal_file import Description, parse_signal

_REASON = "the recorder ended without closing the episode"
DAMAGED = "-damaged"
_BACKUP = ".bak"
_MAX_FILE_BYTES = 1 << 36
_MOMENT_S = 0.2
"""A process that only checks the lock holds it for a moment."""


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """Whether this is an episode directory that was never finished."""
    return os.path.isdir(os.path.join(path, layout.RECORDING_FOLDER))


def salvage_root(root: str | os.PathLike[str]) -> list[LossReceipt]:
    """Salvage every unfinished recording in a root whose recorder is gone; live ones are left alone.

    One that cannot be salvaged stays as it is, does not stop the others, and has a receipt with the reason.
    """
    listing = list_episodes(Path(root))
    for number in listing.finished:  # a recorder that was killed as it removed its journals left them
        remove_left(episode_path(Path(root), number) / layout.RECORDING_FOLDER)
    folders = [episode_path(Path(root), number) for number in listing.unfinished]
    work = [folder / layout.RECORDING_FOLDER for folder in folders] + work_folders_in(Path(root))
    receipts = []
    for each in work:
        receipts += one_of_many(_salvage_held, each)
    return receipts


def one_of_many(salvage: Callable[[Path], LossReceipt], path: Path) -> list[LossReceipt]:
    """No receipt if it was just finished; one with the reason if it is being recorded or cannot be salvaged."""
    try:
        return [salvage(path)]
    except BlobNotFoundError:
        return []
    except JournalInUseError:
        source, why = locked_folder(path), "being recorded by a running process: left alone"
        return [LossReceipt(source=str(source), episode_id=source.name, why=why, is_live=True)]
    except (OutOfSpaceError, PermissionError_):
        raise  # nothing is wrong with the recording: it is finished once there is room
    except WarpError as error:
        source, damage = locked_folder(path), [{"file": path.name, "why": str(error)}]
        return [LossReceipt(source=str(source), episode_id=source.name, why=str(error), damage=damage)]


def salvage_signal(path: str | os.PathLike[str]) -> LossReceipt | None:
    """Finish the recording of a single signal, named by the file it was to make; None without one."""
    work = Path(path)
    if work not in work_folders_in(work.parent):
        work = work_folder(work)
    remove_left(work)
    return _salvage_held(work) if work.is_dir() else None


def salvage_episode(path: str | os.PathLike[str]) -> LossReceipt:
    """Turn the journals of an unfinished episode into its files; every acknowledged record is kept."""
    folder = Path(path)
    remove_left(folder / layout.RECORDING_FOLDER)
    if not is_unfinished(folder):
        hint = "Name one unfinished episode, or give the whole root to `warp salvage`."
        raise BlobNotFoundError(
            "nothing to salvage here", path=folder, hint=hint if folder.is_dir() else None
        )
    return _salvage_held(folder / layout.RECORDING_FOLDER)


def free_name(path: Path, suffix: str) -> Path:
    """`path` with a suffix, and a number if that is taken."""
    tries = (path.with_name(f"{path.name}{suffix}{number or ''}") for number in range(1 << 20))
    return next(each for each in tries if not os.path.lexists(each))


def set_aside(path: Path, suffix: str = _BACKUP) -> Path:
    """Give a file or folder another name, so that it is kept; returns that name."""
    aside = free_name(path, suffix)
    with map_os_errors(path):
        os.rename(path, aside)
        fsync_folder(path.parent)
    return aside


@contextlib.contextmanager
def nobody_else(path: Path, fact: str = "being recorded") -> Iterator[None]:
    """Keep recorders and other salvages away from a folder or journal; JournalInUseError where one is at work."""
    try:
        lock = None if is_locked(path) else FileLock.take_existing(path, timeout_s=_MOMENT_S)
        is_free = lock is not None
    except NoLocksError:
        lock, is_free = None, True
    try:
        work = path / layout.RECORDING_FOLDER
        if not is_free or has_live_journal(work if work.is_dir() else path):
            raise JournalInUseError(fact, path=path, hint="Stop that process first, then salvage.")
        yield
    finally:
        if lock is not None:
            lock.release()


def _salvage_held(work: Path) -> LossReceipt:
    with nobody_else(locked_folder(work)):
        return finish_recording(work)


def finish_recording(work: Path) -> LossReceipt:
    """Finish the recording whose journals are in this folder, for a caller that holds its lock."""
    if not work.is_dir():
        raise BlobNotFoundError("nothing to salvage here: it was finished just now", path=work)
    return _Salvage(work).run()


class _Salvage:
    """One recording on its way from journals to files."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = work.parent
        self.is_episode = work.name == layout.RECORDING_FOLDER
        self.lost = 0
        self.made: dict[str, Any] = {}
        self.aside: Path | None = None

    def run(self) -> LossReceipt:
        if self.is_episode and _is_finished(self.folder):
            signals = read_meta(self.folder)["signals"]
            remove_folder(self.work)
            return self._receipt(signals, "the episode was finished; only its journals were left")
        self.found = open_recording(self.work)
        if self.found.journals or self.found.unreadable:
            for stream, about in sorted(self.found.signals.items()):
                self._signal(stream, about)
        return self._finish()

    def _finish(self) -> LossReceipt:
        found = self.found
        aside = free_name(self.work, DAMAGED) if found.unreadable or self.lost else None
        self.aside = aside or self.aside
        last = found.unreadable[-1] if found.unreadable else None
        why = "nothing was lost" if last is None else f"{last.file}: {last.why}"
        if not found.journals and not found.unreadable:
            why = "nothing was recorded"
        receipt = self._receipt(self.made, why)
        if self.is_episode:
            meta = found.meta or {"schema_version": layout.SCHEMA_VERSION}
            documents = last_documents(
                self.folder, meta, found.static, self.made, _REASON, salvaged=receipt.to_json()
            )
            for path, data in documents.items():
                for left in self.folder.glob(
                    f".{path.name}{TEMP_MARK}*"
                ):  # of one that was killed as it wrote
                    left.unlink(missing_ok=True)
                write_file(path, data)
        remove_status(self.work)
        if aside is None:
            remove_folder(self.work)
        elif any(self.work.iterdir()):
            with map_os_errors(self.work):
                os.rename(self.work, aside)
                fsync_folder(self.folder)
        else:
            remove_folder(self.work)
        return receipt

    def _signal(self, stream: int, about: dict[str, Any]) -> None:
        """Make the files of one signal; one that cannot be made does not take the others with it."""
        try:
            name = self._name(about)
            if name in self.made:
                raise CorruptLayoutError(f"two signals are called {name!r}", path=self.work)
            if self.found.files is None:
                check_case_clash(name, {fold_name(other): other for other in self.made}, self.folder)
            made = (
                self._camera(stream, name, about)
                if about.get("kind") == "image"
                else self._table(stream, name, about)
            )
        except (OutOfSpaceError, PermissionError_):
            raise  # nothing is wrong with the signal: it is finished once there is room
        except (WarpError, UnicodeDecodeError) as error:
            why = error.message if isinstance(error, WarpError) else str(error)
            self.found.unreadable.append(Unreadable(str(about.get("name")), why))
            return
        if made is not None:
            self.made[name] = made

    def _target(self, name: str, suffix: str) -> Path:
        """Where a finished file goes."""
        if self.found.files is None:
            return signal_file(self.folder, name, suffix)
        data, frames = self.found.files
        if suffix != layout.FRAMES_SUFFIX:
            return data
        if frames is None:
            raise CorruptLayoutError("the journal names no frame index", path=self.work)
        return frames

    def _name(self, about: dict[str, Any]) -> str:
        if self.found.files is not None:
            return str(about.get("name"))
        try:
            return check_name(about.get("name"))
        except (ValueError, TypeError) as error:
            raise CorruptLayoutError(
                f"the journal names a signal wrongly ({error})", path=self.work
            ) from None

    def _make_way(self, target: Path) -> None:
        """Keep what has the name of a finished file: with the journals, or beside a file of one's own choosing."""
        if not os.path.lexists(target):
            return
        if self.is_episode:
            aside = free_name(self.work / target.name, ".before")
            with map_os_errors(target):
                os.replace(target, aside)
        elif target.parent != self.folder:
            raise CorruptLayoutError(f"the journal names {str(target)!r} as its frame index", path=self.work)
        else:
            self.aside = set_aside(target)

    def _table(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        description = Description.from_json(about, str(self.work))
        rows = JournaledRows(self.found.journals, stream)
        target, growing = self._target(name, layout.SIGNAL_SUFFIX), self.work / f"{stream}.parquet"
        candidates = [target] if self.is_episode or len(rows) else []
        if rows.missing or self.found.unreadable:
            candidates.append(growing)
        for written in candidates:
            made = _table_that_covers(written, rows, description)
            if made is not None:
                if written is growing:
                    self._make_way(target)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(growing, target)
                return made
        if rows.missing:
            self.lost += rows.missing
            self.found.unreadable.append(Unreadable(name, f"{rows.missing} records are in no journal"))
        if not len(rows):
            return None
        file = TableFile(self.work / f"{stream}.salvaged.parquet", description)
        for stamps, values in _blocks(rows, description):
            file.write(stamps, values)
        self._make_way(target)
        return file.commit(target)

    def _camera(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        try:
            suffix = suffix_for(about["video"]["codec"])
        except (KeyError, TypeError):
            raise CorruptLayoutError("unknown video encoding", path=self.work) from None
        targets = Targets(
            self._target(name, suffix), self._target(name, layout.FRAMES_SUFFIX), not self.is_episode
        )
        camera = CameraSalvage(self.found, stream, about, targets)
        try:
            return camera.finish(self._make_way)
        finally:
            self.lost += camera.lost
            self.found.unreadable += camera.unreadable

    def _receipt(self, signals: dict[str, Any], why: str) -> LossReceipt:
        found = getattr(self, "found", None) or UnfinishedRecording(self.work)
        source = str(self.folder) if self.is_episode else str(self.work)
        if found.files is not None:
            source = str(found.files[0])
        main = found.journals[0].scan if found.journals else None
        return LossReceipt.of_records(
            source, source if self.is_episode or self.made else None, Path(source).name, signals, why,
            steps_lost=self.lost, rows_dropped=found.rows_dropped,
            bytes_dropped=sum(each.size_bytes for each in found.unreadable),
            damage=[each.to_json() for each in found.unreadable],
            last_crc32c=f"{main.last_crc32c:08x}" if main is not None and len(main.records) else None,
            kept_aside=None if self.aside is None else str(self.aside),
        )  # fmt: skip


def _blocks(
    rows: JournaledRows, description: Description
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    is_event = description.kind in ("text", "bytes")
    return rows.events(description.kind) if is_event else rows.numbers(description)


def _table_that_covers(path: Path, rows: JournaledRows, description: Description) -> dict[str, Any] | None:
    """The meta.json entry of a finished signal file that holds every record of the journal; None if it does not.

    A recorder that died while it finished leaves both; the file may have what a damaged journal has lost.
    """
    if not path.is_file():
        return None
    try:
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
        found, stamps, values = parse_signal(data, str(path))
    except WarpError:
        return None
    if found != description or (len(rows) and int(rows.steps[-1]) >= len(stamps)):
        return None
    at = 0
    for times, block in _blocks(rows, description):
        steps = rows.steps[at : at + len(times)]
        at += len(times)
        if not np.array_equal(stamps[steps], times) or not _same(values[steps], block):
            return None
    clock = ClockStatistics()
    clock.add(stamps)
    made = {**description.to_json(), **clock.to_json()}
    if description.kind not in ("text", "bytes"):
        statistics = ValueStatistics(description.shape)
        statistics.add(values)
        made["values"] = statistics.to_json()
    total = FileSum.of(data)
    made["file"] = {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"}
    return made


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype == object or other.dtype == object:
        return list(one) == list(other)
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _is_finished(folder: Path) -> bool:
    """Whether every file of an episode is there and whole: its recorder died while it removed the journals."""
    try:
        meta = read_meta(folder)
        signals = meta.get("signals")
        if not isinstance(signals, dict) or "static_file" not in meta:
            return False
        read_static(folder, _sum(meta["static_file"]))
        return all(_is_whole(folder, check_name(name), about) for name, about in signals.items())
    except (WarpError, KeyError, TypeError, ValueError):
        return False


def _is_whole(folder: Path, name: str, about: dict[str, Any]) -> bool:
    expected = _sum(about["file"])
    if about.get("kind") != "image":
        path = signal_file(folder, name)
        expected.check(read_bytes(path, max_bytes=_MAX_FILE_BYTES), str(path))
        return True
    index = read_frame_index(FileRangeReader(signal_file(folder, name, layout.FRAMES_SUFFIX)), expected)
    video = signal_file(folder, name, suffix_for(about["codec"]))
    return video.stat().st_size == index.video_bytes and bool(
        good_packets(video, marks_of_index(index)).all()
    )


def _sum(stated: Any) -> FileSum:
    return FileSum(int(stated["bytes"]), int(stated["crc32c"], 16))
