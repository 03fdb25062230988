"""The recorder: one episode by `with`, into a root or into one file, in time and by step, mixed freely."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from warpdata.bytekit.io.commit import remove_temps_of, writable_path
from warpdata.episodes.collection.local import LocalDatasetWriter
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.provenance import environment
from warpdata.episodes.record.clock import Clock, RecordingClock
from warpdata.episodes.record.disk_writer import RECORDING_SUFFIX, DiskEpisodeWriter
from warpdata.episodes.record.journals import remove_left
from warpdata.episodes.record.recording import RecordingWriter
from warpdata.episodes.record.stream_writer import check_no_file
from warpdata.episodes.record.threads import Durability
from warpdata.episodes.record.values import Hints
from warpdata.errors import (
    ConflictError,
    RecordingError,
    WarpError,
    require_word,
    suggests,
)
from warpdata.formats.episodedir.documents import check_name, plain_static
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.formats.episodedir.video import check_options
from warpdata.formats.wshard.writer import CompressionChoice, check_choice, check_compat
from warpdata.timeline.meta import Role
from warpdata.timeline.source import OUTCOMES, STEPS, Outcome, StepClock

if TYPE_CHECKING:
    from types import TracebackType

SHARD_SUFFIX = ".wshard"
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")


class Recorder(RecordingWriter):
    """Records one episode: into one file where `target` ends in `.wshard`, else as a new episode of a root.

    Use it with `with`, as `wd.record(target, …)`. Any thread may append. Nothing is on disk before the first record.

    `clock`: `monotonic` and `wall` are read where a call gives no `ts_ns`, `simulated` times are always given.
    `step_clock` names the signal whose records are the steps (default: what `step` records, or the
    clock the actions share); `outcome="next"`: rewards and flags come with the next observation.
    `durability` is what power loss may take: `"100ms"` (or another period), nothing with `"record"`, everything the
    kernel has not written with `"none"`. `compression` and `compat` are those of `save_wshard`, for one file.
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
    ) -> None:
        super().__init__()
        require_word("clock", clock, get_args(Clock))
        require_word("outcome", outcome, OUTCOMES)
        if step_clock is not None and not isinstance(step_clock, str):
            raise TypeError(f"step_clock is the name of a signal or clock, not {type(step_clock).__name__}")
        Durability.parse(durability)
        check_choice(compression)
        environment(os.getcwd())  # now, because the first record must not wait for it
        self.target = Path(os.path.abspath(target))
        self._clock: Clock = clock
        self._outcome: Outcome = outcome
        self._step_clock = step_clock
        self._video = video
        self._durability = durability
        self._compression = compression
        self._compat = check_compat(compat)
        self._overwrite = overwrite
        self._static: dict[str, Any] = {}
        self._declared: dict[str, dict[str, Any]] = {}
        self._roles: dict[str, Role] = {}
        self._writer: DiskEpisodeWriter | None = None
        self._is_new = not self._is_file and not self.target.exists()
        self._check_target()
        self.mark(**dict(static or {}))

    def _leave_to_parent(self) -> None:
        """In a forked child: a recorder that has not begun is the child's own."""
        reason = self._closed
        super()._leave_to_parent()
        if self._writer is None:
            self._closed = reason

    @property
    def path(self) -> Path | None:  # type: ignore[override]
        """Path of the episode; None in a root before the first record."""
        if self._is_file:
            return self.target
        return None if self._writer is None else self._writer.path

    def append(self, signal: str, value: Any, ts_ns: int | None = None) -> None:
        """Add a copy of `value` to a signal; when this returns, the record survives a crash.

        Times of one signal increase; without `ts_ns` the clock is read.
        """
        (self._writer or self._begin()).append(signal, value, ts_ns)

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
        row = [
            *((name, value, "observation") for name, value in leaves("observation", observations)),
            *((name, value, "action") for name, value in leaves("action", actions)),
        ]
        flags = (("reward", reward), ("terminated", terminated), ("truncated", truncated))
        row += [(name, value, name) for name, value in flags if value is not None]
        if not row:
            raise ValueError("a step needs observations, actions, or what they led to")
        with self._lock:
            for name, _, role in row:
                self._take_role(name, role)  # type: ignore[arg-type]
            (self._writer or self._begin()).append_row([(name, value) for name, value, _ in row], ts_ns)

    def declare(
        self,
        signal: str,
        *,
        dtype: Any = None,
        role: str | None = None,
        of: str | None = None,
        model: str | None = None,
        clock: str | None = None,
        kind: str | None = None,
        units: str | None = None,
        names: Sequence[str] | None = None,
        video: VideoOptions | None = None,
    ) -> None:
        """Say what a signal is before its first record: type, role, units, axis names, how it is encoded."""
        about: dict[str, Any] = {
            "dtype": dtype, "role": role, "of": of, "model": model, "clock": clock, "kind": kind,
            "units": units, "names": names,
        }  # fmt: skip
        Hints.of_caller(**about)
        if kind == "image" or video is not None:
            check_options(video or self._video or VideoOptions())
        with self._lock:
            self._check_open()
            self._declare(check_name(signal), {**about, "video": video})

    def set_static(self, name: str, value: Any) -> None:
        """Set an item that does not change in time, once."""
        with self._lock:
            if name in self._static:
                raise RecordingError(f"static item {name!r} is set already")
            self.mark(**{name: value})

    def mark(self, **facts: Any) -> None:
        """Say something of the episode, such as `success=True`; the last word on an item counts."""
        with self._lock:
            self._check_open()
            for name, value in facts.items():
                plain_static(check_name(name), value)  # what cannot be kept is refused now
                if self._writer is not None:
                    self._writer.mark(name, value)
                self._static[name] = value

    def discard(self) -> None:
        """Remove the whole episode; every later call raises WriterClosedError."""
        with self._lock:
            self._check_open()
            self._closed = "discarded"
            if self._writer is not None:
                self._remove(self._writer)

    def counts(self) -> dict[str, int]:
        """How many records each signal has so far."""
        return {} if self._writer is None else self._writer.counts()

    def close(self) -> None:
        """Finish the episode; an episode without records leaves nothing behind."""
        self._close_once(lambda: self._finish(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed is None:
            self._close_once(lambda: self._finish(None if kind is None else f"{kind.__name__}: {error}"))

    def __repr__(self) -> str:
        return f"<Recorder {self.path or self.target}: {self._closed or 'recording'}>"

    # How it is done.

    @property
    def _is_file(self) -> bool:
        return self.target.name.endswith(SHARD_SUFFIX)

    @property
    def _work(self) -> Path:
        """The directory in which a recording into one file is made."""
        return self.target.with_name(self.target.name + RECORDING_SUFFIX)

    def _check_target(self) -> None:
        if not self._is_file:
            return
        remove_left(self._work)
        if self._work.exists():
            raise ConflictError(
                "a recording is under way here, or was never finished", path=self._work,
                hint=f"Wait for its recorder; if it was killed, run `warp salvage {self.target}`.",
            )  # fmt: skip
        if not self._overwrite:
            check_no_file(self.target)
        writable_path(self.target)

    def _begin(self) -> DiskEpisodeWriter:
        with self._lock:
            self._check_open()
            if self._writer is None:
                writer = self._new_writer()
                for name, value in self._static.items():
                    writer.mark(name, value)
                for name, about in self._declared.items():
                    writer.declare(name, **about)
                self._writer = writer
            return self._writer

    def _new_writer(self) -> DiskEpisodeWriter:
        meta: dict[str, Any] = {}
        clock = RecordingClock(self._clock)
        if self._step_clock is not None or self._outcome != "same":
            meta["steps"] = StepClock(self._step_clock or STEPS, self._outcome).to_json()
        if self._is_file:
            writer = DiskEpisodeWriter(
                self._work, video=self._video, durability=self._durability, meta=meta, wait=False, clock=clock
            )
            remove_temps_of(
                self.target
            )  # of one that was killed as it packed; no other process packs meanwhile
            return writer
        root = LocalDatasetWriter(self.target, video=self._video, durability=self._durability)
        return root.new_episode(meta=meta, wait=False, clock=clock)

    def _take_role(self, name: str, role: Role) -> None:
        known = self._roles.get(name)
        if known == role:
            return
        if known is not None:
            raise RecordingError(
                f"signal {name!r} has the role {known} and cannot be {role} too; give one of them another name"
            )
        if self.counts().get(name):
            raise RecordingError(
                f"signal {name!r} was recorded by append() before; record it by step() from its first record on"
            )
        about = self._declared.get(name, {})
        if about.get("role") not in (None, role):
            raise RecordingError(f"signal {name!r} was declared as a {about['role']}, not as a {role}")
        self._declare(name, {**about, "role": role, "clock": about.get("clock") or STEPS})
        self._roles[name] = role

    def _declare(self, name: str, about: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.declare(name, **about)
        self._declared[name] = about

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

    def _remove(self, writer: DiskEpisodeWriter) -> None:
        """Remove the episode, and the folders that were made for it and are empty again."""
        writer.abort()
        with contextlib.suppress(OSError):
            for folder in (writer.path.parent, self.target) if self._is_new else ():
                folder.rmdir()

    def _finish(self, interrupted: str | None) -> None:
        if self._writer is None:
            return
        if any(self._writer.counts().values()):
            self._writer.finish(interrupted, self._pack if self._is_file else None)
        else:
            self._remove(self._writer)  # every record was refused: there is no episode


record = Recorder
"""The verb for `with wd.record(target) as rec`."""


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an observation or action by signal name; without None and empty arrays."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from nested(plain_name(key), inner)
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


def plain_name(key: Any) -> str:
    """A key as a signal's name, which may have several parts: what may not stand there becomes `_`."""
    return "/".join(plain_part(part) for part in str(key).split("/"))


def plain_part(key: Any) -> str:
    """A key as one part of a signal's name: what may not stand there becomes `_`."""
    part = _STRANGE.sub("_", str(key))
    return part if part.strip(".") else "_"
