"""The writers that record: `wd.record` into a root or one file, and those of the documents."""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from warpdata.bytekit.io.commit import check_free, map_os_errors, remove_temps_of, writable_path
from warpdata.bytekit.io.files import absolute_path
from warpdata.bytekit.process.locks import FileLock, make_locked_folder
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.provenance import environment, first_meta
from warpdata.episodes.record.recording import (
    Declared,
    Recording,
    claim_directory,
    claim_episode,
    free_paths,
    remove_folder,
    remove_leftovers,
)
from warpdata.episodes.record.shared import SharedEpisode, join_in_folder, join_in_root
from warpdata.episodes.record.status import OnSlow, used_bytes
from warpdata.episodes.record.tables import TableFile, owner
from warpdata.episodes.record.threads import Durability, interrupts_wait
from warpdata.episodes.record.values import Clock, Hints, RecordingClock, as_numbers
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.errors import (
    ConflictError,
    JournalInUseError,
    OutOfSpaceError,
    RecordingError,
    SchemaMismatchError,
    WarpError,
    WriterClosedError,
    require_word,
    suggests,
)
from warpdata.formats.episodedir.documents import (
    Description,
    FrameShape,
    VideoOptions,
    check_name,
    choose_codec,
    plain_part,
    suffix_for,
)
from warpdata.formats.episodedir.frame_index import write_empty_index
from warpdata.formats.journal.layout import WORK_SUFFIX
from warpdata.formats.journal.reader import work_folder
from warpdata.formats.wshard.save import CompressionChoice, check_choice, check_compat
from warpdata.timeline.meta import Role
from warpdata.timeline.source import OUTCOMES, STEPS, Outcome, StepClock
from warpdata.timeline.times import as_int
from warpdata.timeline.writing import EpisodeWriter, SignalWriter

if TYPE_CHECKING:
    pass

SHARD_SUFFIX = ".wshard"
_WRITER = "warpdata.DiskEpisodeWriter"


class Recorder(Recording):
    """Records one episode: into one file where `target` ends in `.wshard`, else as a new episode of a root.

    Use it with `with`, as `wd.record(target, …)`. Any thread may append. Nothing is on disk before the first record.

    `clock`: `monotonic` and `wall` are read where a call gives no `ts_ns`, `simulated` times are always given.
    `step_clock` names the signal whose records are the steps (default: what `step` records, or the
    clock the actions share); `outcome="next"`: rewards and flags come with the next observation.
    `durability` is what power loss may take: `"100ms"` (or another period), nothing with `"record"`, everything the
    kernel has not written with `"none"`. `compression` and `compat` are those of `save_wshard`, for one file.

    `episode` names an episode that several processes record: the first one makes it, the others join. Each has signals
    of its own. It is finished when the last process closes its recorder, or when its owner calls `end_episode`: the
    process that made it, or any one if that is gone.

    `min_free` is a floor in bytes: where less is free on the disk, records are refused with OutOfSpaceError, and
    everything before is kept. It is watched twice a second, and warnings are logged ahead of it.

    An append that waits for longer than `slow_ms` is logged, and `on_slow(signal, seconds)` is called.
    """

    @suggests
    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        static: Mapping[str, Any] | None = None,
        clock: Clock = "monotonic",
        step_clock: str | None = None,
        outcome: Outcome = "same",
        video: VideoOptions | None = None,
        durability: str = "100ms",
        compression: CompressionChoice = None,
        compat: str = "default",
        overwrite: bool = False,
        episode: str | None = None,
        min_free: int = 0,
        slow_ms: float = 100.0,
        on_slow: OnSlow | None = None,
    ) -> None:
        require_word("clock", clock, get_args(Clock))
        require_word("outcome", outcome, OUTCOMES)
        if step_clock is not None and not isinstance(step_clock, str):
            raise TypeError(f"step_clock is the name of a signal or clock, not {type(step_clock).__name__}")
        super().__init__(durability, video)
        check_choice(compression)
        environment(os.getcwd())  # now, because the first record must not wait for it
        self.target = absolute_path(target)
        self._clock_name: Clock = clock
        if step_clock is not None or outcome != "same":
            self._meta["steps"] = StepClock(step_clock or STEPS, outcome).to_json()
        self._compression = compression
        self._compat = check_compat(compat)
        self._overwrite = overwrite
        self._roles: dict[str, Role] = {}
        self._is_file = self.target.name.endswith(SHARD_SUFFIX)
        self._directory: Path | None = None
        self._episode = episode
        self._min_free = as_int(min_free, "min_free")
        self._slow_s, self._on_slow = slow_ms / 1e3, on_slow
        self._shared: SharedEpisode | None = None
        self.receipt: LossReceipt | None = None
        """Of an episode of several processes, once this process has finished it: what each of them recorded."""
        if self._is_file:
            self._directory = self.target.with_name(self.target.name + WORK_SUFFIX)
            self._check_file(self._directory)
        self._is_new = not self._is_file
        # Not `Path.exists`: since Python 3.14 that hides what is wrong with a name.
        with map_os_errors(self.target), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(self.target)
            self._is_new = False
        self.mark(**dict(static or {}))
        if episode is not None:  # now: the others wait for this process to close
            self._begin()

    @property
    def path(self) -> Path | None:  # type: ignore[override]
        """Path of the episode; None in a root before the first record."""
        if self._is_file:
            return self.target
        return self._directory if self._shared is None else self._shared.directory

    def step(
        self,
        observations: Any = None,
        actions: Any = None,
        *,
        reward: Any = None,
        terminated: bool | None = None,
        truncated: bool | None = None,
        ts_ns: int | None = None,
    ) -> None:
        """Add one row: what was observed, what was chosen then, and what it led to; all at one time.

        Observations and actions are dicts by signal name (nested ones are joined by `/`), or one value each, called
        `observation` and `action`. A call with observations alone adds what was seen after the last action. A row is
        recorded whole or, where one of its values is refused, not at all.
        """
        row: list[tuple[str, Any, Role]] = [
            *((name, value, "observation") for name, value in leaves("observation", observations)),
            *((name, value, "action") for name, value in leaves("action", actions)),
        ]
        flags: tuple[tuple[Role, Any], ...] = (
            ("reward", reward),
            ("terminated", terminated),
            ("truncated", truncated),
        )
        row += [(name, value, name) for name, value in flags if value is not None]
        if not row:
            raise ValueError("a step needs observations, actions, or what they led to")
        with self._lock:
            for name, _, role in row:
                self._take_role(name, role)
            self.append_row([(name, value) for name, value, _ in row], ts_ns)

    def _take_role(self, name: str, role: Role) -> None:
        known = self._roles.get(name)
        if known == role:
            return
        if known is not None:
            raise RecordingError(
                f"signal {name!r} has the role {known} and cannot be {role} too; give one of them another name"
            )
        self._check_open()
        if name in self._signals:
            raise RecordingError(
                f"signal {name!r} was recorded by append() before; record it by step() from its first record on"
            )
        declared = self._declared.get(name) or Declared(Hints(), self._video)
        hints = declared.hints
        if hints.role not in (None, role):
            raise RecordingError(f"signal {name!r} was declared as a {hints.role}, not as a {role}")
        self._declare(name, replace(declared, hints=replace(hints, role=role, clock=hints.clock or STEPS)))
        self._roles[name] = role

    def end_episode(self, timeout_s: float = 30.0) -> bool:
        """Close, and make the other processes of the episode stop too; whether it is finished now.

        Only the owner may: the process that made the episode, or any one if that is gone. The others refuse later
        records, and have the timeout to close their recorders. If some do not, the last one that closes finishes it.
        """
        if self._shared is not None:
            self._check_open()
            self._shared.end()
            self._leave_timeout_s = timeout_s
        self.close()
        return self._shared is None or self._shared.is_finished

    def discard(self) -> None:
        """Remove the whole episode, of several processes only the records of this one."""
        super().discard()
        if self._shared is not None:
            self.receipt = self._shared.leave(0.0, self._store)

    def mark(self, **facts: Any) -> None:
        """Set items that do not change in time, such as `success=True`; the last value of an item counts."""
        for name in facts if self._shared is not None else ():
            if self._shared is not None and self._shared.is_signal(check_name(name)):
                raise RecordingError(f"{name!r} is a signal of this episode")
        super().mark(**facts)

    def __repr__(self) -> str:
        return f"<Recorder {self.path or self.target}: {self._closed or 'recording'}>"

    _leave_timeout_s = 0.0

    def _check_file(self, work: Path) -> None:
        remove_leftovers(work)
        if work.exists() and self._episode is None:
            raise ConflictError(
                "a recording is under way here, or was never finished",
                path=work,
                hint=f"Wait for its recorder; if it was killed, run `warp salvage {self.target}`.",
            )
        if not self._overwrite:
            check_no_file(self.target)
        writable_path(self.target)

    def _claim(self) -> tuple[Path, FileLock | None]:
        self._clock = RecordingClock(self._clock_name)
        folder = next(folder for folder in (self.target, *self.target.parents) if folder.is_dir())
        free = shutil.disk_usage(folder).free
        if free < self._min_free:
            fact = f"not enough free space to record: {free} bytes are free, min_free is {self._min_free}"
            hint = "Free space on the disk, or record to another one."
            raise OutOfSpaceError(fact, path=self.target, hint=hint)
        self._meta = {**first_meta(_WRITER, None, None), **self._meta, "clock": self._clock.facts()}
        if self._episode is not None:
            return self._join(self._episode)
        if self._is_file:
            assert self._directory is not None
            claimed = claim_directory(self._directory)
            # Left by a recorder that was killed while it packed; no other process packs meanwhile.
            remove_temps_of(self.target)
            return claimed
        with map_os_errors(self.target):
            work, lock = claim_episode(self.target)
        self._directory = work.parent
        return work, lock

    def _join(self, episode: str) -> tuple[Path, FileLock | None]:
        """Claim a part of an episode that several processes record."""
        self._meta |= {"episode": episode, "process": owner()}
        if self._is_file:
            assert self._directory is not None
            shared = join_in_folder(self._directory, episode, self._clock_name)
            if shared is None:
                raise ConflictError(
                    "a recording of one process is under way here, or was never finished",
                    path=self._directory,
                    hint=f"Wait for its recorder; if it was killed, run `warp salvage {self.target}`.",
                )
            if not self._overwrite and self.target.exists():  # finished while this process waited to join
                shared.withdraw()
                check_no_file(self.target)
        else:
            shared = join_in_root(self.target, episode, self._clock_name)
        self._shared, self._directory = shared, shared.part
        return shared.work, shared.lock

    def _needed_bytes(self) -> int:
        place = self._directory if self._shared is None else self._shared.directory
        return used_bytes(place) if self._is_file and place is not None else 0  # packing makes a copy

    def _reserve(self, signal: str) -> None:
        if self._shared is not None:
            self._shared.reserve(signal)

    def _report(self) -> None:
        super()._report()
        process = None if self._shared is None else self._shared.ended_by()
        if self._shared is not None and process not in (None, self._shared.part.name):
            self._end(WriterClosedError, f"the episode was ended by process {str(process).partition('-')[0]}")

    def _documents(self, folder: Path, signals: dict[str, Any]) -> Mapping[Path, bytes]:
        if self._shared is not None:
            self._meta["marked_ns"] = self._marked_ns
        return super()._documents(folder, signals)

    def _unclaim(self) -> None:
        assert self._directory is not None
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._shared is not None:
            return
        with contextlib.suppress(OSError):  # folders that were made for it and are empty again
            for folder in (self._directory.parent, self.target) if self._is_new else ():
                folder.rmdir()

    def _finish(self) -> None:
        if self._journal is None:
            return
        assert self._directory is not None
        if not any(recorder.count for recorder in self._recorders.values()) and not (
            self._shared and self._static
        ):
            self._drop()  # every record was refused: there is no episode
        elif self._is_file and self._shared is None:
            self._commit_by(self._pack)
        else:
            self._commit(self._directory)
        if self._shared is not None:
            receipt = self._shared.leave(self._leave_timeout_s, self._store)
            if receipt is not None and self._is_file:
                target = str(self.target)
                receipt = replace(receipt, source=target, output=target, episode_id=self.target.stem)
            self.receipt = receipt

    def _store(self, directory: Path) -> None:
        """Make the one file of a finished directory, if that is wanted."""
        if self._is_file:
            self._pack(directory)
            remove_folder(directory)

    def _pack(self, directory: Path) -> None:
        try:
            pack_episode(
                directory, self.target, self._compression, compat=self._compat, episode_id=self.target.stem,
                overwrite=self._overwrite,
            )  # fmt: skip
        except ValueError as error:
            if isinstance(error, WarpError):
                raise
            # A name for which a compression was chosen: which signals there are is known only now.
            hint = f"Everything recorded is kept: run `warp salvage {self.target}`."
            raise RecordingError(str(error), path=self.target, hint=hint) from None


class DiskEpisodeWriter(Recording, EpisodeWriter):
    """Writes one episode into a new directory; every acknowledged record survives a crash.

    The writer of the document. `wd.record` adds steps, roles and one-file targets.
    """

    path: Path

    @suggests
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        video: VideoOptions | None = None,
        durability: str = "100ms",
        created_ts_ns: int | None = None,
        uid: str | None = None,
        meta: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> None:
        """`wait`: wait until the beginning survives power loss."""
        super().__init__(durability, video)
        self.path = absolute_path(directory)
        self._meta = {**first_meta(_WRITER, created_ts_ns, uid), **(meta or {})}
        self._begin(wait=wait)

    def _claim(self) -> tuple[Path, FileLock | None]:
        return claim_directory(self.path)

    def _unclaim(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def uid(self) -> str:
        """The identity of the episode."""
        return str(self._meta["uid"])

    def append(self, signal_name: str, data: Any, ts_ns: int | None = None) -> None:
        """Add a copy of `data` to a signal at `ts_ns`; when this returns, the record survives a crash."""
        super().append(signal_name, data, ts_ns)

    def set_static(self, name: str, data: Any) -> None:
        """Set an item that does not change in time, once; a signal of that name is an error."""
        super().set_static(name, data)

    def _finish(self) -> None:
        self._commit(self.path)

    def abort(self) -> None:
        """Remove the whole episode; every later call raises WriterClosedError."""
        self.discard()

    def __repr__(self) -> str:
        return f"<DiskEpisodeWriter {self.path}: {self._closed or 'recording'}>"


class LocalDatasetWriter:
    """Adds episodes to a root; any number of processes may do so at once."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        video: VideoOptions | None = None,
        durability: str = "100ms",
    ) -> None:
        if isinstance(root, str) and "://" in root:
            raise ValueError(f"{root!r} is a URL: open it with wd.open_recordings({root!r})")
        self.root = absolute_path(root)
        self.video = video
        Durability.parse(durability)
        self.durability = durability

    def new_episode(self, *, meta: Mapping[str, Any] | None = None, wait: bool = True) -> DiskEpisodeWriter:
        """Claim the next free id and return the writer of its episode; `meta` adds to its metadata."""
        for path in free_paths(self.root):
            with contextlib.suppress(ConflictError):
                return DiskEpisodeWriter(
                    path, video=self.video, durability=self.durability, meta=meta, wait=wait
                )
        raise AssertionError  # there is always another number

    def __repr__(self) -> str:
        return f"<LocalDatasetWriter {self.root}>"

    def __enter__(self) -> LocalDatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open between episodes."""


class _SignalWriter(Recording, SignalWriter):
    """One signal in files of its own, made by the first record."""

    path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames: str | os.PathLike[str] | None,
        durability: str,
        *,
        overwrite: bool,
    ) -> None:
        super().__init__(durability)
        self.path = absolute_path(path)
        self._name = self.path.stem
        self._frames = None if frames is None else absolute_path(frames)
        self._overwrite = overwrite
        self._hints = Hints()
        self._check_targets()

    def append(self, data: Any, ts_ns: int) -> None:  # type: ignore[override]
        """Add a copy of `data` at `ts_ns`; when this returns, the record survives a crash."""
        recorder = self._signals.get(self._name)
        if recorder is None:
            with interrupts_wait(), self._lock:
                self._check_open()
                recorder = self._signals.get(self._name)
                if recorder is None:
                    self._check_first(data)
                    self._begin()
                    recorder = self._make(self._name, data, ts_ns, Declared(self._hints, self._video))
        recorder.append(data, ts_ns)

    def abort(self) -> None:
        """Remove what was written; every later call raises WriterClosedError."""
        self.discard()

    def _finish(self) -> None:
        if not any(recorder.count for recorder in self._recorders.values()):
            if self._journal is not None:
                self._drop()
            self._check_targets()
            target = self._frames or self.path
            with map_os_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            self._write_empty()
            return
        try:
            self._check_targets()
        except BaseException:
            self._leave()
            raise
        self._commit(self.path.parent)

    @abstractmethod
    def _check_first(self, data: Any) -> None:
        """Raise unless this writer can store values like this one."""

    @abstractmethod
    def _write_empty(self) -> None:
        """Write the files of a signal without records."""

    def _check_targets(self) -> None:
        if not self._overwrite:
            for path in filter(None, (self.path, self._frames)):
                check_no_file(path)

    def _claim(self) -> tuple[Path, FileLock | None]:
        work = work_folder(self.path)
        remove_leftovers(work)
        with map_os_errors(work):
            work.parent.mkdir(parents=True, exist_ok=True)
            try:
                return work, make_locked_folder(work)
            except FileExistsError:
                hint = "Wait for its recorder; if it was killed, run `warp salvage`, then record again."
                fact = "a recording is under way here, or was never finished"
                raise JournalInUseError(fact, path=work, hint=hint) from None

    def _unclaim(self) -> None:
        """The folder of the journals is all there is."""

    def _facts(self) -> dict[str, Any]:
        files = {"data": self.path.name}
        if self._frames is not None:
            is_beside = self._frames.parent == self.path.parent
            files["frames"] = self._frames.name if is_beside else str(self._frames)
        return {"files": files}

    def _targets(self, _folder: Path, _name: str, _suffix: str) -> tuple[Path, Path]:
        return self.path, self._frames or self.path

    def _documents(self, _folder: Path, _signals: dict[str, Any]) -> Mapping[Path, bytes]:
        return {}

    def _on_published(self) -> None:
        """There are no documents."""


class SimpleSignalWriter(_SignalWriter):
    """Writes scalars, vectors, tensors, text or bytes to one parquet file, which appears at close.

    The writer of the document: a recording of one signal, without the directory of an episode around it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        units: str | None = None,
        names: Sequence[str] | None = None,
        durability: str = "100ms",
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, None, durability, overwrite=overwrite)
        self._hints = Hints.check(units=units, names=names)

    def _check_first(self, data: Any) -> None:
        if isinstance(data, str | bytes | bytearray | memoryview):
            return
        array = as_numbers(data)
        if array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8:
            raise SchemaMismatchError("images are written by VideoSignalWriter", path=self.path)
        if array.ndim == 2:  # an image in an episode, but this file is a table
            self._hints = replace(self._hints, kind="tensor")

    def _write_empty(self) -> None:
        """The type of its values is not known."""
        TableFile(self.path.with_name(f".{self.path.name}.part"), Description("scalar", "f64", ())).commit(
            self.path
        )


class VideoSignalWriter(_SignalWriter):
    """Encodes images into a video file and its frame index, which appear at close.

    The writer of the document: a recording of one camera. A thread encodes; where it falls behind, `append` waits.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        frames_path: str | os.PathLike[str],
        codec: str | None = None,
        gop_size: int = 10,
        fps: float = 30,
        *,
        quality: int | None = None,
        preset: str | None = None,
        durability: str = "100ms",
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, frames_path, durability, overwrite=overwrite)
        self.frames_path = absolute_path(frames_path)
        self._hints = Hints("image")
        self._video = VideoOptions(codec, gop_size, fps, quality, preset)

    def _check_first(self, data: Any) -> None:
        if isinstance(data, str | bytes | bytearray | memoryview):
            raise TypeError(f"an image is an array, not a {type(data).__name__}")
        shape = FrameShape.of(as_numbers(data))
        suffix = suffix_for(choose_codec(shape, self._video))
        if suffix != self.path.suffix:
            raise ValueError(f"images like this are stored in a {suffix} file, not {self.path.name!r}")

    def _write_empty(self) -> None:
        """Without a frame there is no size and so no video: only an index of no frames."""
        write_empty_index(str(self.frames_path))


def check_no_file(path: str | os.PathLike[str]) -> None:
    """Raise ConflictError if a file is at the path of a new recording."""
    if os.path.lexists(path) and not os.path.isdir(path):
        check_free(path)


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an observation or action by signal name; without None and empty arrays."""
    if isinstance(value, Mapping):
        for key, inner in value.items():  # a key may have several parts
            yield from nested("/".join(plain_part(part) for part in str(key).split("/")), inner)
    else:
        yield from nested(name, value)


def nested(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, their names joined by `/`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from nested(f"{name}/{plain_part(key)}", inner)
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from nested(f"{name}/{number}", inner)
    elif value is not None and not (isinstance(value, np.ndarray) and value.size == 0):
        yield name, value
