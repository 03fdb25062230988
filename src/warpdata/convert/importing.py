"""The import engine: any episodes into a root of recordings, a folder of shards or a catalog, one episode at a time.

An episode appears in the target whole or not at all, with the notes of its conversion in its metadata. An interrupted
run is continued by running it again, and ends with the same result.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from warpdata._version import __version__
from warpdata.bytekit.io.commit import TEMP_MARK, map_os_errors, write_file
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.locks import FileLock
from warpdata.convert.exporting import EpisodeTask, OnError, Progress, check_on_error
from warpdata.convert.plain_names import RENAMED, names_behind, with_plain_names
from warpdata.convert.receipt import ConversionReceipt, Note, metadata_of, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Here, Runner, in_order
from warpdata.episodes.collection.local import holds_recordings
from warpdata.episodes.forms.content import ContentSum
from warpdata.episodes.forms.directory import holds_frames, is_intact, write_directory
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.sources.encoded import encoded_parts
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, FormatError, WarpError, require_kind, require_word
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import VideoOptions, episode_path, read_meta
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import PLAIN_TYPES, ReadOnlyDict, SourceAround

if TYPE_CHECKING:
    from warpdata.catalog.build.episodes import StoredEpisode

TargetKind = Literal["root", "shards"]
NOTES = "import"
"""Key of episode metadata with the notes of its conversion."""
STATE_FILE = ".import.json"
"""File of an incomplete target: what is being imported into it."""
_LOCK_FILE = ".import.lock"
_TEMP = re.compile(r"\.[^/]{1,200}" + re.escape(TEMP_MARK) + r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """Facts of an import that every episode needs."""

    format: str
    source: str
    version: str = ""
    supplied: Mapping[str, Any] = field(default_factory=dict)
    video: VideoOptions | None = None
    """Encoding of raw frames; None keeps every pixel."""

    def __post_init__(self) -> None:
        require_kind("video", self.video, (VideoOptions, type(None)), "VideoOptions")


def import_episodes(
    episodes: Episodes,
    target: str | os.PathLike[str] | StoredTarget,
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

    `runner` converts the episodes; other machines must see the target under the same path, or share a catalog
    (`StoredTarget`). `on_error="skip"` counts episodes that cannot be read and goes on. `video` encodes cameras with
    raw frames, which are kept exactly otherwise; encoded ones are always copied.
    """
    check_on_error(on_error)
    require_word("a target", kind, ("root", "shards"))
    plan = ImportPlan(format, source, version, dict(supplied or {}), video)
    convert = partial(_convert_all, episodes, plan, runner or Here(), on_error, progress)
    if isinstance(target, StoredTarget):
        return convert(target)
    path = Path(os.path.abspath(target))
    place, is_new = FolderTarget(path, kind, episodes), not path.exists()
    with map_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock.take(path / _LOCK_FILE, removes=True)
        if lock is None:
            fact = "another import writes into this target"
            raise ConflictError(fact, path=path, hint="Wait until it is done.")
        try:
            place.begin(plan)
            receipt = convert(place)
            place.finish(episodes, receipt)
        finally:
            lock.release()
    except BaseException:
        own = (STATE_FILE, _LOCK_FILE)
        if is_new and not any(file.is_file() and file.name not in own for file in path.rglob("*")):
            shutil.rmtree(path, ignore_errors=True)
        raise
    return receipt


def _convert_all(
    episodes: Episodes,
    plan: ImportPlan,
    runner: Runner,
    on_error: str,
    progress: Progress | None,
    place: Target,
) -> ConversionReceipt:
    ids = episodes.ids
    waiting = [position for position in range(len(ids)) if not place.is_done(position)]
    receipt = ConversionReceipt("import", plan.format, plan.source, str(place.path), plan.version)
    receipt.supplied = dict(plan.supplied)
    receipt.add_rate(episodes)
    receipt.continued = len(ids) - len(waiting)
    if progress is not None:
        progress(receipt.continued, len(ids))
    results = in_order(runner, EpisodeTask(episodes, partial(place.write, plan)), waiting)
    unfinished, done = set(waiting), receipt.continued
    for position, episode_id in enumerate(ids):
        if position not in unfinished:
            receipt.add(place.notes(position))
            continue
        error, written = next(results)[1]
        if error is None:
            receipt.add(place.keep(written))
        else:
            named: WarpError = type(error)(f"episode {episode_id}: {error.message}", hint=error.hint)
            named.path = error.path
            if on_error == "stop":
                raise named
            receipt.skip(episode_id, named)
        done += 1
        if progress is not None:
            progress(done, len(ids))
    return receipt


class Target(ABC):
    """Destination of imported episodes; it pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_done(self, _position: int) -> bool:
        """Whether an earlier run finished this episode."""
        return False

    def notes(self, position: int) -> dict[str, Note]:
        """The notes of an episode that an earlier run finished."""
        raise KeyError(position)

    @abstractmethod
    def write(self, plan: ImportPlan, position: int, episode: Episode) -> Any:
        """Convert one episode, in any process; the result is given to `keep`."""

    def keep(self, written: Any) -> dict[str, Note]:
        """The notes of an episode that was just written."""
        notes: dict[str, Note] = written
        return notes


class FolderTarget(Target):
    """A folder of this machine: episode k of the source is directory k of a root, or a shard named by its id."""

    def __init__(self, path: Path, kind: TargetKind, episodes: Episodes) -> None:
        super().__init__(path)
        self._is_root, self._ids = kind == "root", list(episodes.ids)
        if not self._is_root and len(set(self._ids)) != len(self._ids):
            raise FormatError("two episodes have the same id", path=episodes.source.name)

    def _place(self, position: int) -> Path:
        if self._is_root:
            return episode_path(self.path, position)
        return self.path / _file_name(self._ids[position])

    def is_done(self, position: int) -> bool:
        """Whether the episode exists with all its bytes; one that a power failure damaged is removed."""
        place = self._place(position)
        if self._is_root and place.is_dir() and not is_intact(place):
            shutil.rmtree(place)
        return place.exists()

    def notes(self, position: int) -> dict[str, Note]:
        """The notes in the metadata of an episode."""
        place = self._place(position)
        meta = read_meta(place) if self._is_root else episode_of_shard(ShardReader.open(place)).meta
        signals = metadata_of(meta, NOTES).get("signals")
        if not isinstance(signals, Mapping):
            fact = "an episode of the target was not imported by warpdata"
            raise FormatError(fact, hint="Choose another target.")
        return {str(name): Note.from_json(note) for name, note in signals.items()}

    def begin(self, plan: ImportPlan) -> None:
        """Write the state file; refuse a folder that holds something else, and remove temporary files."""
        self._stated = {
            "format": plan.format,
            "source": plan.source,
            "supplied": dict(plan.supplied),
            "episodes": len(self._ids),
            "ids": hashlib.sha256("\n".join(self._ids).encode()).hexdigest(),
            "video": None if plan.video is None else plan.video.codec or "h264",
        }
        states = [name for name in (STATE_FILE, layout.DATASET_FILE) if (self.path / name).exists()]
        fact = ""
        if states and parse_json_object((self.path / states[0]).read_bytes()).get(NOTES) != self._stated:
            fact = "something else was imported into this target"
        elif not states and (holds_recordings(self.path) or any(self.path.glob("*.wshard"))):
            fact = "the target holds episodes already"
        if fact:
            raise ConflictError(fact, path=self.path, hint="Choose another target.")
        write_file(self.path / STATE_FILE, dump_json({NOTES: self._stated}))
        numbered = [entry for entry in self.path.iterdir() if entry.is_dir() and entry.name.isdigit()]
        for folder in (self.path, *numbered):  # what killed runs left
            for entry in folder.iterdir():
                if _TEMP.fullmatch(entry.name) and entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif _TEMP.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)

    def write(self, plan: ImportPlan, position: int, episode: Episode) -> dict[str, Note]:
        """Copy the episode into its directory, or pack it into its file."""
        episode = with_plain_names(episode)
        if not self._is_root:
            noted, notes = _with_notes(episode, plan)
            pack_episode(noted, self._place(position), episode_id=episode.id)
            return notes
        notes = {}

        def meta_of(sums: Mapping[str, ContentSum]) -> Mapping[str, Any]:
            for name, total in sums.items():
                signal, video = episode.signals[name], plan.video
                notes[name] = note_of(signal, known=total)
                is_raw = (
                    signal.meta.kind == "image" and encoded_parts(signal) is None and holds_frames(signal)
                )
                if is_raw and video is not None and video.codec != "ffv1":
                    why = f"encoded as {video.codec or 'h264'}"
                    notes[name] = replace(notes[name], how="reencoded", why=why)
            return _noted_meta(episode, plan, notes)

        write_directory(episode, self._place(position), meta_of, video=plan.video, durable=False)
        return notes

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the metadata of the set, and the receipt."""
        os.sync()  # once for all episodes: none of them was reported as safe before
        kept = {"version": 1, "metadata": dict(episodes.metadata), "receipt": receipt.to_keep()}
        write_file(self.path / layout.DATASET_FILE, dump_json({**kept, NOTES: self._stated}))
        (self.path / STATE_FILE).unlink(missing_ok=True)


class StoredTarget(Target):
    """Blobs of a catalog, stored from any machine; this process collects them for a version."""

    def __init__(self, name: str, store: Callable[[Episode, str], StoredEpisode]) -> None:
        super().__init__(Path(name))
        self._store = store
        self.stored: list[StoredEpisode] = []
        """The episodes to publish, in order."""

    def write(self, plan: ImportPlan, _position: int, episode: Episode) -> Any:
        """Store the episode."""
        noted, notes = _with_notes(with_plain_names(episode), plan)
        return self._store(noted, _file_name(episode.id)), notes

    def keep(self, written: Any) -> dict[str, Note]:
        """Collect a stored episode; its notes."""
        stored, notes = written
        self.stored.append(stored)
        return dict(notes)


def _file_name(episode_id: str) -> str:
    return f"{quote(episode_id, safe='-_. @+=,')}.wshard"


def _with_notes(episode: Episode, plan: ImportPlan) -> tuple[Episode, dict[str, Note]]:
    """An episode with the notes of its conversion in its metadata, and the notes."""
    notes = {name: note_of(signal) for name, signal in episode.signals.items()}
    return Episode(SourceAround(episode.source, meta=_noted_meta(episode, plan, notes))), notes


def _noted_meta(episode: Episode, plan: ImportPlan, notes: dict[str, Note]) -> dict[str, Any]:
    """Metadata of an imported episode; the notes of renamed signals get their names in the source."""
    renamed = names_behind(episode)
    for name, was in renamed.items():
        if name in notes:
            notes[name] = replace(notes[name], why=f"called {was!r} in the source")
    stated = {name: note.to_json() for name, note in notes.items()}
    identity = hashlib.sha256(dump_json([plan.format, episode.id, stated]))
    kept = {key: value for key, value in episode.meta.items() if key not in ("signals", "static_file")}
    clock = episode.source.step_clock
    about = {"format": plan.format, "version": plan.version, "id": episode.id, "signals": stated}
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "uid": identity.hexdigest()[:32],
        "writer": {"name": "warpdata.convert.importing", "version": __version__},
        **{key: _plain(value) for key, value in kept.items()},
        **({} if clock is None else {"steps": clock.to_json()}),
        NOTES: {**about, **({RENAMED: dict(renamed)} if renamed else {})},
    }


def _plain(value: Any) -> Any:
    """Metadata as JSON holds it."""
    if isinstance(value, ReadOnlyDict):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not PLAIN_TYPES.issuperset(map(type, value)):
        return [_plain(item) for item in value]
    return value
