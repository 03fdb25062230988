"""The one import engine: any episodes into a root of recordings or a folder of shards, one episode at a time.

An episode appears in the target whole or not at all, and carries the notes of its own conversion. So whatever ends a
run, running it again continues, and its result is that of a run nobody interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from warpdata._version import __version__
from warpdata.bytekit.io.commit import TEMP_MARK, map_os_errors, write_file
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.locks import FileLock
from warpdata.convert.each_episode import EpisodeTask, OnError, Progress, check_on_error, in_episode
from warpdata.convert.plain_names import RENAMED, names_behind, under_plain_names
from warpdata.convert.receipt import ConversionReceipt, Note, note_of, noted
from warpdata.episodes.collection.edits import episode_path
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Here, Runner
from warpdata.episodes.collection.local import holds_recordings
from warpdata.episodes.forms.content import ContentSum
from warpdata.episodes.forms.directory import (
    holds_frames,
    is_intact,
    write_directory,
)
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.sources.encoded import encoded_parts
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, FormatError, WarpError, nearest, require_kind
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import read_meta
from warpdata.formats.episodedir.images import VideoOptions
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import PLAIN_TYPES, ReadOnlyDict, SourceAround

if TYPE_CHECKING:
    from warpdata.catalog.build.stored import StoredEpisode

TargetKind = Literal["root", "shards"]

NOTES = "import"
"""The key of an episode's metadata under which the notes of its conversion stand."""
STATE_FILE = ".import.json"
"""In a target that is not complete: what is being imported into it."""
_TEMP = re.compile(r"\.[^/]{1,200}" + re.escape(TEMP_MARK) + r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What is imported, as far as each episode must know."""

    format: str
    source: str
    version: str = ""
    supplied: Mapping[str, Any] = field(default_factory=dict)
    video: VideoOptions | None = None
    """How frames that are not encoded are encoded; None keeps every pixel."""

    def __post_init__(self) -> None:
        require_kind("video", self.video, (VideoOptions, type(None)), "VideoOptions")


def import_episodes(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002 - the word of the commands
    source: str,
    version: str = "",
    supplied: Mapping[str, Any] | None = None,
    kind: TargetKind = "root",
    runner: Runner | None = None,
    on_error: OnError = "stop",
    video: VideoOptions | None = None,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write all episodes into a root of recordings or a folder of shards; running it again continues.

    `runner` says where episodes are converted; other machines must see the target under the same path.
    `on_error="skip"` goes on behind an episode that cannot be read and counts it. `video` encodes cameras that come as
    raw frames, which are kept exactly otherwise; encoded ones are always copied.
    """
    check_on_error(on_error)
    plan = ImportPlan(format, source, version, dict(supplied or {}), video)
    path = Path(os.path.abspath(target))
    place = _target(path, kind)
    is_new = not path.exists()
    with map_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_alone(path))
            stack.callback(place.close)
            place.begin(episodes, plan)
            receipt = _run(episodes, place, plan, runner or Here(), on_error, progress)
            place.finish(episodes, receipt)
    except BaseException:
        if is_new:
            _remove_if_empty(path)
        raise
    return receipt


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else imports into the same target at the same time."""
    lock = FileLock.take(path / ".import.lock", removes=True)
    if lock is None:
        raise ConflictError("another import writes there", path=path, hint="Wait until it is done.")
    try:
        yield
    finally:
        lock.release()


def _remove_if_empty(path: Path) -> None:
    """Leave nothing where nothing was finished."""
    if any(entry.is_file() and entry.name not in (STATE_FILE, ".import.lock") for entry in path.rglob("*")):
        return
    shutil.rmtree(path, ignore_errors=True)


def _run(
    episodes: Episodes,
    place: Target,
    plan: ImportPlan,
    runner: Runner,
    on_error: str,
    progress: Progress | None,
) -> ConversionReceipt:
    ids = episodes.ids
    waiting = [position for position in range(len(ids)) if not place.is_done(position)]
    receipt = ConversionReceipt("import", plan.format, plan.source, str(place.path), plan.version)
    receipt.supplied = dict(plan.supplied)
    receipt.tell_rate(episodes)
    receipt.continued = done = len(ids) - len(waiting)
    if progress is not None:
        progress(done, len(ids))
    entries = _Entries(receipt, place, ids, waiting)
    task = EpisodeTask(episodes, partial(_write, place, plan))
    for position, (error, written) in runner.run(task, waiting):
        if error is None:
            entries.done(position, written)
        else:
            named = in_episode(error, ids[position])
            if on_error == "stop":
                raise named
            entries.failed(position, named)
        done += 1
        if progress is not None:
            progress(done, len(ids))
    entries.rest()
    return receipt


class _Entries:
    """Enters what became of episodes into a receipt in the order of the source, however they come; few are held."""

    def __init__(
        self, receipt: ConversionReceipt, place: Target, ids: Sequence[str], waiting: Sequence[int]
    ) -> None:
        self._receipt, self._place, self._ids = receipt, place, ids
        self._waiting = set(waiting)
        self._early: dict[int, dict[str, Note] | WarpError] = {}
        self._next = 0

    def done(self, position: int, written: Any) -> None:
        """An episode is in the target."""
        self._early[position] = self._place.keep(position, written)
        self._enter()

    def failed(self, position: int, error: WarpError) -> None:
        """An episode is left out."""
        self._early[position] = error
        self._enter()

    def rest(self) -> None:
        """All have come."""
        self._waiting.clear()
        self._enter()

    def _enter(self) -> None:
        while self._next < len(self._ids):
            position = self._next
            found = self._early.pop(position, None)
            if found is None and position in self._waiting:
                return
            if isinstance(found, WarpError):
                self._receipt.skip(self._ids[position], found)
            else:
                self._receipt.add(self._place.notes(position) if found is None else found)
            self._next += 1


def _write(place: Target, plan: ImportPlan, position: int, episode: Episode) -> Any:
    return place.write(position, under_plain_names(episode), plan)


class Target(ABC):
    """Where imported episodes go; it pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def is_done(self, position: int) -> bool:
        """Whether an earlier run finished this episode."""

    @abstractmethod
    def notes(self, position: int) -> dict[str, Note]:
        """The notes of a finished episode."""

    @abstractmethod
    def write(self, position: int, episode: Episode, plan: ImportPlan) -> Any:
        """Convert one episode, in any process; what comes back is given to `keep`."""

    def keep(self, _position: int, written: Any) -> dict[str, Note]:
        """The notes of an episode that was just written; a target without files also remembers what it must."""
        found: dict[str, Note] = written
        return found

    @abstractmethod
    def _is_taken(self) -> bool:
        """Whether there are episodes that no import made."""

    @abstractmethod
    def _folders(self) -> Iterator[Path]:
        """Where temporary files of killed runs may lie."""

    def begin(self, episodes: Episodes, plan: ImportPlan) -> None:
        """Say what is being imported; refuse what is not ours to continue."""
        self._name(episodes)
        stated = {
            "format": plan.format, "source": plan.source, "supplied": dict(plan.supplied),
            "episodes": len(episodes), "ids": hashlib.sha256("\n".join(episodes.ids).encode()).hexdigest(),
            "video": None if plan.video is None else plan.video.codec or "h264",
        }  # fmt: skip
        for name in (STATE_FILE, layout.DATASET_FILE):
            if (self.path / name).exists():
                known = parse_json_object((self.path / name).read_bytes())
                if known.get("import") != stated:
                    raise ConflictError(
                        "something else was imported there", path=self.path, hint="Choose another target."
                    )
                break
        else:
            if self._is_taken():
                raise ConflictError(
                    "there are episodes already", path=self.path, hint="Choose another target."
                )
        self._stated = stated
        write_file(self.path / STATE_FILE, dump_json({"import": stated}))
        for folder in self._folders():
            for entry in folder.iterdir():
                if _TEMP.fullmatch(entry.name):
                    shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(
                        missing_ok=True
                    )

    def close(self) -> None:
        """Let go of what it holds in this process."""
        return

    def _name(self, _: Episodes) -> None:
        """Choose the names of the episodes in the target, where they do not follow from their positions."""
        return

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write down what is known of the whole, and the receipt."""
        os.sync()  # once for all episodes; until here nobody was told that they are safe
        about = {
            "version": 1,
            "metadata": dict(episodes.metadata),
            "receipt": receipt.to_keep(),
            "import": self._stated,
        }
        write_file(self.path / layout.DATASET_FILE, dump_json(about))
        (self.path / STATE_FILE).unlink(missing_ok=True)


class RootTarget(Target):
    """A root of recordings: episode k of the source is directory k."""

    def is_done(self, position: int) -> bool:
        """Whether the directory is there with all its bytes; one that the loss of power damaged is made again."""
        directory = episode_path(self.path, position)
        if directory.is_dir() and not is_intact(directory):
            shutil.rmtree(directory)
        return directory.is_dir()

    def notes(self, position: int) -> dict[str, Note]:
        """From the metadata of the recording."""
        return _notes(read_meta(episode_path(self.path, position)))

    def write(self, position: int, episode: Episode, plan: ImportPlan) -> dict[str, Note]:
        """Copy the episode into its directory."""
        notes: dict[str, Note] = {}

        def meta_of(sums: Mapping[str, ContentSum]) -> Mapping[str, Any]:
            signals = episode.signals
            notes.update({name: _root_note(signals[name], each, plan) for name, each in sums.items()})
            _tell_names(notes, episode)
            return _noted_meta(episode, plan, notes)

        directory = episode_path(self.path, position)
        write_directory(episode, directory, meta_of, video=plan.video, durable=False)
        return notes

    def _is_taken(self) -> bool:
        return holds_recordings(self.path) or any(self.path.glob("*.wshard"))

    def _folders(self) -> Iterator[Path]:
        yield from (entry for entry in self.path.iterdir() if entry.is_dir() and entry.name.isdigit())


class ShardTarget(Target):
    """A folder of shards: one file per episode, named by its id."""

    def _name(self, episodes: Episodes) -> None:
        self._files = [_file_name(each) for each in episodes.ids]
        if len(set(self._files)) != len(self._files):
            raise FormatError("two episodes have the same id", path=episodes.source.name)

    def is_done(self, position: int) -> bool:
        """Whether the file is there; it appears whole."""
        return (self.path / self._files[position]).is_file()

    def notes(self, position: int) -> dict[str, Note]:
        """From the metadata of the shard."""
        return _notes(episode_of_shard(ShardReader.open(self.path / self._files[position])).meta)

    def write(self, position: int, episode: Episode, plan: ImportPlan) -> dict[str, Note]:
        """Pack the episode into its file."""
        around = _Noted(episode, plan)
        pack_episode(Episode(around), self.path / self._files[position], episode_id=episode.id)
        return around.notes

    def _is_taken(self) -> bool:
        return holds_recordings(self.path) or any(self.path.glob("*.wshard"))

    def _folders(self) -> Iterator[Path]:
        yield self.path


class StoredTarget(Target):
    """Blobs of a catalog, stored from any machine: which episodes they are is known here, until a version says it."""

    def __init__(self, name: str, store: Callable[[Episode, str], StoredEpisode]) -> None:
        super().__init__(Path(name))
        self._store = store
        self._kept: dict[int, StoredEpisode] = {}

    @property
    def stored(self) -> list[StoredEpisode]:
        """What is to be published."""
        return list(self._kept.values())

    def is_done(self, position: int) -> bool:
        """An episode is converted again to know what it is; its blob is stored once."""
        return position in self._kept

    def notes(self, position: int) -> dict[str, Note]:
        """Those of an earlier run: there is none."""
        raise KeyError(position)

    def write(self, _position: int, episode: Episode, plan: ImportPlan) -> Any:
        """Store the episode."""
        around = _Noted(episode, plan)
        return self._store(Episode(around), _file_name(episode.id)), around.notes

    def keep(self, position: int, written: Any) -> dict[str, Note]:
        """What was stored."""
        self._kept[position], notes = written
        found: dict[str, Note] = notes
        return found

    def _is_taken(self) -> bool:
        return False

    def _folders(self) -> Iterator[Path]:
        return iter(())


def store_episodes(
    episodes: Episodes,
    target: StoredTarget,
    *,
    format: str,  # noqa: A002 - the word of the commands
    source: str,
    version: str = "",
    supplied: Mapping[str, Any] | None = None,
    runner: Runner | None = None,
    on_error: OnError = "stop",
    video: VideoOptions | None = None,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Convert all episodes into blobs of a catalog, which nothing names before `target.stored` is published."""
    check_on_error(on_error)
    plan = ImportPlan(format, source, version, dict(supplied or {}), video)
    return _run(episodes, target, plan, runner or Here(), on_error, progress)


def _file_name(episode_id: str) -> str:
    return f"{quote(episode_id, safe='-_. @+=,')}.wshard"


def _target(path: Path, kind: str) -> Target:
    if kind not in ("root", "shards"):
        raise ValueError(f"a target is 'root' or 'shards', not {kind!r}.{nearest(kind, ('root', 'shards'))}")
    return RootTarget(path) if kind == "root" else ShardTarget(path)


class _Noted(SourceAround):
    """An episode with the notes of its conversion in its metadata, and an identity that follows from them."""

    def __init__(self, episode: Episode, plan: ImportPlan) -> None:
        super().__init__(episode.source)
        self.notes = {name: note_of(signal) for name, signal in episode.signals.items()}
        _tell_names(self.notes, episode)
        self._meta = _noted_meta(episode, plan, self.notes)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metadata of the source, and the notes."""
        return self._meta


def _noted_meta(episode: Episode, plan: ImportPlan, notes: Mapping[str, Note]) -> dict[str, Any]:
    stated = {name: note.to_json() for name, note in notes.items()}
    identity = hashlib.sha256(dump_json([plan.format, episode.id, stated]))
    plain = {
        key: _plain(value) for key, value in episode.meta.items() if key not in ("signals", "static_file")
    }
    clock = episode.source.step_clock
    renamed = names_behind(episode)
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "uid": identity.hexdigest()[:32],
        "writer": {"name": "warpdata.convert.importing", "version": __version__},
        **plain,
        **({} if clock is None else {"steps": clock.to_json()}),
        NOTES: {
            "format": plan.format, "version": plan.version, "id": episode.id, "signals": stated,
            **({RENAMED: dict(renamed)} if renamed else {}),
        },
    }  # fmt: skip


def _tell_names(notes: dict[str, Note], episode: Episode) -> None:
    """Say of signals that had other names which ones."""
    for name, was in names_behind(episode).items():
        if name in notes:
            notes[name] = replace(notes[name], why=f"called {was!r} in the source")


def _plain(value: Any) -> Any:
    """Metadata as JSON holds it."""
    if isinstance(value, ReadOnlyDict):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if PLAIN_TYPES.issuperset(map(type, value)):
            return value
        return [_plain(each) for each in value]
    return _plain(dict(value)) if isinstance(value, Mapping) else value


def _root_note(signal: Signal, found: ContentSum, plan: ImportPlan) -> Note:
    """What became of a signal in a root, where raw frames may have been encoded."""
    is_raw = signal.meta.kind == "image" and encoded_parts(signal) is None
    if is_raw and plan.video is not None and holds_frames(signal) and plan.video.codec != "ffv1":
        return noted(len(signal), found, "reencoded", f"encoded as {plan.video.codec or 'h264'}")
    return noted(len(signal), found)


def _notes(meta: Mapping[str, Any]) -> dict[str, Note]:
    stated = meta.get(NOTES)
    signals = stated.get("signals") if isinstance(stated, Mapping) else None
    if not isinstance(signals, Mapping):
        raise FormatError("an episode there was not imported by us", hint="Choose another target.")
    return {str(name): Note.from_json(each) for name, each in signals.items()}


__all__ = [
    "ImportPlan", "OnError", "Progress", "StoredTarget", "TargetKind", "import_episodes", "store_episodes",
]  # fmt: skip
