"""Episodes and prediction lanes to publish: recordings are packed with their edits, shards stay as they are.

`EpisodeStore` puts episodes into a catalog before a version names them: many workers store, one publisher commits.
A blob is named by its content, so storing an episode twice leaves one blob; `warp catalog gc` removes what no version
names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.commit import fold_name, is_safe_name, make_folders, write_file
from warpdata.bytekit.io.ranges import Closing
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.locks import FileLock
from warpdata.catalog.access import (
    Access,
    AccessOptions,
    Staging,
    change_catalog,
    staging_for,
    writable_store,
)
from warpdata.catalog.build.parts import PackedShard, check_free, list_paths, publish_part, whole_files
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.publish.publish import (
    Published,
    PublishOptions,
    Upload,
    Uploads,
    upload_file,
    upload_missing,
    upload_read,
)
from warpdata.catalog.read.episodes import (
    ABOUT,
    LANE_NAME,
    PART_PREFIX,
    SUFFIX,
    ArtifactFolder,
    LaneAbout,
    LanePlace,
    PublishedSource,
    check_lane_shard,
    signal_name,
)
from warpdata.catalog.read.filekinds import file_kind, folder_kind
from warpdata.episodes.collection.edits import with_edits
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.facts import facts_of
from warpdata.episodes.collection.jobs import Called, Here, Runner, code_name
from warpdata.episodes.collection.local import LocalDataset, ShardFolderSource
from warpdata.episodes.forms.shard import pack_episode, write_chunks
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import (
    BadMagicError,
    ConflictError,
    DatasetError,
    NoLocksError,
    WarpError,
    nearest,
    require_kind,
)
from warpdata.formats.manifest.model import LANE_KIND, BlobRef
from warpdata.formats.wshard.chunks import list_name, read_chunk_list
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.layout import META_EPISODE, ROLE_CHUNK_LIST, ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.stores.blobstore import digest_file
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta, numeric_kind
from warpdata.timeline.signal import Signal

CHUNK_BYTES = 1 << 30
"""Longer episodes are published as chunks of about this many bytes by default."""

_KNOWN = (
    "Episodes are a root of recordings, an episode directory, a .wshard file, a chunk list, a folder of .wshard "
    "files, or wd.Episodes."
)

NamedFile = tuple[str, Path]


class EpisodePacker:
    """Every episode of a source as a shard of its own, or as chunks with their list if it is long."""

    def __init__(self, folder: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes is positive, not {chunk_bytes}")
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._names: set[str] = set()
        self._folded: set[str] = set()
        self.edits: list[dict[str, Any]] = []
        """The edits that the packed episodes include."""

    def pack(self, source: Any) -> Iterator[tuple[list[NamedFile], bool]]:
        """The files of each episode, and whether they were packed here, as soon as they are there."""
        for one in source if isinstance(source, list | tuple) and source else [source]:
            if isinstance(one, Episodes):
                yield from self._pack_all(one)
            elif isinstance(one, Episode):
                yield self.pack_episode(one, one.id), True
            else:
                for path in list_paths(one):
                    yield from self._pack_path(path)

    def _pack_path(self, path: Path) -> Iterator[tuple[list[NamedFile], bool]]:
        kind = _episode_kind(path)
        if kind == "directory":
            yield self.pack_episode(with_edits(path), path.name), True
        elif kind == "recordings":
            yield from self._pack_all(LocalDataset(path))
        elif kind == "shards":
            for shard in sorted(path.rglob(f"*{SUFFIX}")):
                yield self._shard_files(shard, [(shard.relative_to(path).as_posix(), shard)])
        else:
            files = [(path.name, path)]
            if file_kind(path) == "chunk-list":
                chunks = read_chunk_list(path)
                files += [(entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks]
            yield self._shard_files(path, files)

    def _pack_all(self, episodes: Episodes) -> Iterator[tuple[list[NamedFile], bool]]:
        if isinstance(episodes, LocalDataset):
            _check_finished(episodes)
            self.edits += episodes.edits.log
        for name, episode in zip(episodes.ids, episodes, strict=True):
            yield self.pack_episode(episode, name), True

    def _shard_files(self, path: Path, files: list[NamedFile]) -> tuple[list[NamedFile], bool]:
        """A shard as it is, or in chunks if it is long and not a chunk already."""
        if path.stat().st_size <= self._chunk_bytes:
            return files, False
        try:
            shard = ShardReader.open(path)
            if shard.role != ROLE_EPISODE or "chunk_index" in shard.read_json(META_EPISODE):
                return files, False
        except WarpError:  # no shard at all
            return files, False
        episode = episode_of_shard(shard)
        return self.pack_episode(episode, episode.id), True

    def pack_episode(self, episode: Episode, name: str) -> list[NamedFile]:
        """The shard of an episode, or its chunk list and the chunks."""
        if name in self._names:
            raise DatasetError(f"two recordings are called {name!r}")
        # Some disks do not distinguish ids that differ in case only: such an episode gets a folder of its own.
        folder = self._folder / str(len(self._names)) if fold_name(name) in self._folded else self._folder
        self._names.add(name)
        self._folded.add(fold_name(name))
        folder.mkdir(parents=True, exist_ok=True)
        # Numbers are stored as they are, cameras stay encoded.
        signals = list(episode.signals.values())
        plain = [signal for signal in signals if signal.meta.kind != "image" and not signal.meta.is_object]
        size = sum(len(signal) * signal.meta.row_bytes for signal in plain)
        size += episode.stored_bytes if len(plain) < len(signals) else 0
        count = -(-size // self._chunk_bytes)
        if count <= 1:
            target = folder / f"{name}{SUFFIX}"
            return [(target.name, pack_episode(episode, target, episode_id=name, overwrite=True))]
        chunks = write_chunks(episode, folder, count=count, episode_id=name)
        files = [(entry.uri, chunks.chunk_path(entry)) for entry in chunks.chunks]
        return [(list_name(name), folder / list_name(name)), *files]


def one_episode(source: Episode | WShardEpisode | Recorder | str | os.PathLike[str]) -> Episode:
    """The episode of a source that holds one: an episode, a finished recorder, or a path."""
    if isinstance(source, Recorder):
        if source.path is None:
            raise DatasetError("nothing was recorded", path=source.target)
        source = source.path
    if isinstance(source, WShardEpisode):
        episode: Episode = source.in_time
        return episode
    if isinstance(source, Episode):
        return source
    path = Path(os.path.abspath(source))
    kind = _episode_kind(path)
    if kind == "directory":
        return with_edits(path)
    if kind not in ("recordings", "shards"):
        return episode_of_shard(ShardReader.open(path))
    episodes = LocalDataset(path) if kind == "recordings" else Episodes(ShardFolderSource(path))
    if isinstance(episodes, LocalDataset):
        _check_finished(episodes)
    if len(episodes) != 1:
        raise DatasetError(f"expected one episode, got {len(episodes)}", path=path)
    return episodes[0]


def episode_rows(artifact: str, shards: Sequence[PackedShard]) -> list[dict[str, Any]]:
    """The facts of every episode among the shards of an artifact; a shard that cannot be read has its problem."""
    readers: dict[str, ShardReader] = {}
    rows: list[dict[str, Any]] = []
    for shard in shards:
        name = shard.name or shard.path.name
        try:
            readers[name] = ShardReader.open(shard.path)
        except WarpError as error:
            row = {"id": name.removesuffix(SUFFIX), "problems": [str(error)]}
            rows.append({**row, "artifact": artifact, "blob": name})
    folder = _ShardFolder(readers)
    lists = [reader for reader in readers.values() if reader.role == ROLE_CHUNK_LIST]
    chunks = {chunk.uri for reader in lists for chunk in read_chunk_list(reader, folder).chunks}
    for name, reader in readers.items():
        if name not in chunks:
            facts = facts_of(episode_of_shard(reader, folder))
            rows.append({**facts, "artifact": artifact, "blob": name})
    for reader in readers.values():
        reader.close()
    return rows


class _ShardFolder:
    """Open shards as files of one folder."""

    name = "staged episodes"

    def __init__(self, shards: Mapping[str, ShardReader]) -> None:
        self._shards = shards

    def open(self, name: str) -> Any:
        return self._shards[name].range_reader

    def exists(self, name: str) -> bool:
        return name in self._shards

    def names(self) -> list[str]:
        return list(self._shards)


def _episode_kind(path: Path) -> str:
    """The kind of episodes at a path; BadMagicError for anything else."""
    try:
        kind = folder_kind(os.listdir(path), str(path)) if path.is_dir() else file_kind(path)
    except BadMagicError as error:
        if path.is_dir() and next(path.rglob(f"*{SUFFIX}"), None) is not None:
            return "shards"
        raise BadMagicError(error.message, hint=_KNOWN) from None
    if kind not in ("directory", "recordings", "shards", "episode", "chunk-list"):
        raise BadMagicError(f"holds no episodes but is of the kind {kind!r}", path=path, hint=_KNOWN)
    return kind


def _check_finished(dataset: LocalDataset) -> None:
    if dataset.unfinished:
        fact = f"{len(dataset.unfinished)} recordings are not finished"
        hint = f"Wait for the recorder, or run `warp salvage {dataset.root}`."
        raise DatasetError(fact, path=dataset.root, hint=hint)


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode whose blobs are in a catalog."""

    id: str
    blobs: tuple[BlobRef, ...]
    """Its shard, or its chunk list and the chunks, by their names in the artifact."""
    facts: Mapping[str, Any]
    """Its row of the table `episodes`."""
    sent: tuple[str, ...] = ()
    """The hashes of the blobs that were not there before."""


def merge_stored(stored: Iterable[StoredEpisode]) -> list[StoredEpisode]:
    """Stored episodes by id; ConflictError for one id with two contents."""
    episodes: dict[str, StoredEpisode] = {}
    names: dict[str | None, str] = {}
    for episode in stored:
        require_kind("stored", episode, StoredEpisode, "a StoredEpisode")
        known = episodes.setdefault(episode.id, episode)
        contents = [{(blob.name, blob.hash) for blob in one.blobs} for one in (known, episode)]
        if contents[0] != contents[1]:
            fact = f"episode {episode.id!r} was made twice, with different bytes"
            hint = "Make its computation deterministic, or give each result an id of its own; nothing was published."
            raise ConflictError(fact, hint=hint)
        if known.sent != episode.sent:
            episodes[episode.id] = replace(known, sent=tuple(dict.fromkeys([*known.sent, *episode.sent])))
        for blob in episode.blobs:
            other = names.setdefault(blob.name, episode.id)
            if other != episode.id:
                fact = f"episodes {other!r} and {episode.id!r} would both be stored as {blob.name!r}"
                raise ConflictError(fact, hint="Give them ids that differ; nothing was published.")
    return [episodes[key] for key in sorted(episodes)]


class EpisodeStore(Closing):
    """Stores episodes of one artifact in a catalog; each worker has its own, and closes it."""

    def __init__(
        self,
        catalog: str | os.PathLike[str] | None,
        artifact: str,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        options: AccessOptions | None = None,
    ) -> None:
        self._access = Access(change_catalog(options, catalog))
        self._store = writable_store(self._access)
        self._artifact = artifact
        self._chunk_bytes = chunk_bytes
        self._staging: Staging | None = None
        self._count = 0

    def store(self, episode_id: str, content: Episode | bytes, *, name: str | None = None) -> StoredEpisode:
        """Store an episode under an id; it is packed unless it is the bytes of a shard with that id.

        `name`: the name of its shard in the artifact, by default from the id.
        """
        if not episode_id or not is_safe_name(f"{episode_id}{SUFFIX}"):
            raise DatasetError(f"invalid id of an episode: {episode_id!r}", hint="Choose another.")
        if isinstance(content, Episode):
            return self._pack(episode_id, content, name)
        with ShardReader.open(content) as shard:
            episode = episode_of_shard(shard)
            if episode.id != episode_id or len(content) > self._chunk_bytes:
                return self._pack(episode_id, episode, name)
        path = self._new_folder() / SUFFIX
        path.write_bytes(content)
        return self.store_files([(name or f"{episode_id}{SUFFIX}", path)])

    def store_published(self, episode_id: str, source: PublishedSource, member: str) -> StoredEpisode:
        """Store an episode of another version as it is, copying only blobs that are missing in this catalog."""
        artifact, episode = source.artifact, source.open_member(member)
        if episode.id != episode_id:
            return self._pack(episode_id, episode)
        names, shard = [member], ShardReader.open(artifact.member_reader(member))
        if shard.role == ROLE_CHUNK_LIST:
            names += [chunk.uri for chunk in read_chunk_list(shard, ArtifactFolder(artifact)).chunks]
        blobs, uploads = [], []
        for part in artifact.find(names):
            held = artifact.part.shards[part.shard]
            blobs.append(BlobRef(held.hash, held.byte_size, name=part.name))
            uploads.append(upload_read(artifact.reader_of(part).read, f"member {part.name!r}", blobs[-1]))
        facts = {**facts_of(episode), "artifact": self._artifact, "blob": member}
        return StoredEpisode(episode_id, tuple(blobs), facts, self._send(uploads))

    def store_files(self, files: list[NamedFile]) -> StoredEpisode:
        """Store the packed files of one episode, which are then removed from this disk."""
        shards = whole_files(files, is_own=True)
        (row,) = episode_rows(self._artifact, shards)
        sent = self._send([upload_file(shard.path, shard.digest, is_staged=True) for shard in shards])
        for shard in shards:
            shard.path.unlink(missing_ok=True)
        blobs = tuple(BlobRef(shard.digest.sha256, shard.digest.size, name=shard.name) for shard in shards)
        return StoredEpisode(str(row["id"]), blobs, row, sent)

    def close(self) -> None:
        """Remove staged files and close the catalog."""
        if self._staging is not None:
            self._staging.close()
        self._access.close()

    def _new_folder(self) -> Path:
        """A folder for one episode; from the disk of a local catalog its files are moved into place."""
        if self._staging is None:
            options = self._access.options
            self._staging = staging_for(options.catalogs[0], options.cache_dir, None)
        self._count += 1
        folder = self._staging.path / str(self._count)
        folder.mkdir()
        return folder

    def _pack(self, episode_id: str, episode: Episode, name: str | None = None) -> StoredEpisode:
        files = EpisodePacker(self._new_folder(), self._chunk_bytes).pack_episode(episode, episode_id)
        return self.store_files([(name, files[0][1])] if name and len(files) == 1 else files)

    def _send(self, uploads: list[Upload]) -> tuple[str, ...]:
        return tuple(upload.sha256 for upload, _ in upload_missing(self._store, uploads, PublishOptions()))


def store_episode(catalog: str, artifact: str, episode: Episode, name: str) -> StoredEpisode:
    """Store one episode in a catalog under the name of its shard."""
    with EpisodeStore(catalog, artifact) as store:
        return store.store(episode.id, episode, name=name)


def packed_bytes(episode: Episode, episode_id: str) -> bytes:
    """An episode as the bytes of its shard; equal episodes give equal bytes."""
    with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
        return pack_episode(episode, Path(folder, "episode"), episode_id=episode_id).read_bytes()


Predict = Callable[[Episode], Any]


@dataclass(frozen=True, slots=True)
class LaneMade:
    """Result of computing a lane."""

    published: Published
    computed: int
    """Episodes that were computed now."""
    resumed: int
    """Episodes that an earlier run, which was stopped, had computed."""
    reused: int
    """Episodes that had not changed since the lane was last published."""
    without: tuple[str, ...]
    """Episodes that do not have the signals."""

    @property
    def version(self) -> str:
        """The version that has the lane."""
        return self.published.version

    def __str__(self) -> str:
        return str(self.published)


@dataclass(frozen=True)
class LaneTask:
    """Computes the predictions about the episode at a position; it travels to other processes."""

    sources: Mapping[str, PublishedSource]
    places: Sequence[LanePlace]
    about: LaneAbout
    function: Called

    def __call__(self, position: int) -> bytes | tuple[str, ...]:
        """A shard of predictions; of an episode that lacks the signals, those that it has."""
        place, about = self.places[position], self.about
        episode = self.sources[place.artifact].open_member(place.member)
        of = list(about.signals.values())
        if not set(of) <= set(episode.signals):
            return (episode.id, *episode.signals)
        predicted = self.function.on_episode(episode)
        if not isinstance(predicted, Mapping):
            if len(of) > 1:
                raise TypeError(
                    f"the lane is of {', '.join(of)}: give a dictionary with a prediction for each"
                )
            predicted = {of[0]: predicted}
        if set(predicted) != set(of):
            wrong = min(str(name) for name in set(predicted) ^ set(of))
            fact = f"the function gave {', '.join(map(str, predicted))}, the lane is of {', '.join(of)}: {wrong!r}"
            raise ValueError(fact)
        signals = {
            name: _prediction(predicted[truth], episode.signals[truth], truth, about.name)
            for name, truth in about.signals.items()
        }
        note = {"name": about.name, "revision": about.revision, "source": place.sha256}
        return packed_bytes(Episode.of(signals, meta={"lane": note}, id=episode.id), episode.id)


def make_lane(
    dataset: Dataset,
    name: str,
    of: tuple[str, ...],
    revision: str | None,
    function: Predict,
    options: PublishOptions,
    progress: Callable[[int, int], None] | None = None,
    runner: Runner | None = None,
) -> LaneMade:
    """Compute missing predictions, keep current ones, publish both on top of the newest version."""
    if not LANE_NAME.fullmatch(name):
        raise ValueError(f"not a name for a lane: {name!r}; use letters, digits, `_`, `-` and `.`")
    if not of or len(set(of)) != len(of):
        raise ValueError(f"of names the signals that are predicted, each once, not {list(of)}")
    if revision == "":
        raise ValueError("a revision is a word that changes when the predictions do")
    signals = {signal_name(truth, name): truth for truth in of}
    about = LaneAbout(name, signals, revision or code_name(function))
    check_free(dataset, f"{PART_PREFIX}{name}", LANE_KIND)
    places = dataset.episode_places()
    # Finished episodes wait here for the others; a later run of the same lane resumes from them.
    identity = dump_json({"dataset": dataset.id, "catalog": dataset.catalog.place, **about.to_json()})
    cache = Path(os.path.expanduser(dataset.access.options.cache_dir))
    folder = cache / "lanes" / sha256_hex(identity)[:24]
    with _lock_lane(folder):
        current = _current(dataset, about, places)
        files = {
            place: folder / f"{sha256_hex(place.lane_member.encode())[:40]}{SUFFIX}"
            for place in places
            if place not in current
        }
        missing = [at for at, p in enumerate(places) if p in files and not _is_intact(files[p], about, p)]
        resumed, done = len(files) - len(missing), len(places) - len(missing)
        without: dict[int, str] = {}
        seen: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if progress is not None:
            progress(done, len(places))
        task = LaneTask(dataset.episode_sources(), places, about, Called(function))
        for position, result in (runner or Here()).run(task, missing):
            if isinstance(result, bytes):
                write_file(files[places[position]], result, durable=False)
            else:
                without[position], *names = result
                seen |= dict.fromkeys(names)
                del files[places[position]]
            done += 1
            if progress is not None:
                progress(done, len(places))
        if not files and not current:
            known = [signal for signal in seen if signal not in about.signals]
            hint = "".join(nearest(signal, known) for signal in of if signal not in seen)
            fact = f"no episode of {dataset.id} has {' and '.join(map(repr, of))}"
            raise DatasetError(f"{fact}; there are {', '.join(known) or 'no episodes'}.{hint}")
        published = _publish(dataset, about, files, options)
        shutil.rmtree(folder, ignore_errors=True)
    lacking = tuple(without[position] for position in sorted(without))
    return LaneMade(published, len(missing) - len(without), resumed, len(current), lacking)


def _lock_lane(folder: Path) -> contextlib.AbstractContextManager[object]:
    """The lock of a lane: a second computation on this machine would remove the files of the first."""
    make_folders(folder.parent)
    try:
        lock = FileLock.take(folder.with_suffix(".lock"), removes=True)
    except NoLocksError:
        return contextlib.nullcontext()
    if lock is None:
        hint = "Wait until it is done: what it publishes is not computed again."
        raise ConflictError("this lane is being computed by another process", path=folder, hint=hint)
    return lock


def _current(dataset: Dataset, about: LaneAbout, places: Sequence[LanePlace]) -> set[LanePlace]:
    """The bytes for which the published lane is current."""
    lane = dataset.lanes.get(about.name)
    if lane is None or lane.about != about:
        return set()
    return {place for place, has in zip(places, lane.has(places), strict=True) if has}


def _is_intact(path: Path, about: LaneAbout, place: LanePlace) -> bool:
    """Whether a file holds these predictions, all of them readable."""
    try:
        with ShardReader.open(path) as shard:
            source = episode_of_shard(shard).source
            check_lane_shard(source, about, place, str(path))
            for signal in source.signals.values():
                signal.values()
                _ = signal.timestamps
    except (WarpError, OSError):
        return False
    return True


def _prediction(predicted: Any, truth: Signal, of: str, model: str) -> Signal:
    """A prediction as a signal of numbers with the shape of the recorded signal."""
    if isinstance(predicted, Signal):
        times, values = predicted.timestamps, predicted.values()
    else:
        times, values = truth.timestamps, as_array(predicted)
        if values.dtype.name == "bfloat16":
            values = values.astype(np.float32)
        if values.ndim == 0 or len(values) != len(truth):
            raise ValueError(
                f"a prediction of {of!r} has shape {values.shape}; give a row for each of its {len(truth)} records, "
                "or a Signal with times of its own"
            )
    shape = truth.meta.shape
    if values.dtype.kind not in "biuf":
        raise TypeError(f"a prediction of {of!r} is numbers, not {values.dtype}")
    if values.shape[1:] != shape:
        fact = f"a prediction of {of!r} has values of shape {list(values.shape[1:])}"
        raise ValueError(f"{fact}, those of the signal have {list(shape)}")
    kind, units, names = numeric_kind(shape), truth.meta.units, truth.meta.names
    meta = SignalMeta(values.dtype, shape, kind, units, names, role="prediction", of=of, model=model)
    return ArraySignal(np.array(times), np.ascontiguousarray(values), meta)


def _publish(
    dataset: Dataset, about: LaneAbout, files: Mapping[LanePlace, Path], options: PublishOptions
) -> Published:
    uploads = Uploads()
    text = replace(uploads.add_bytes(dump_json(about.to_json())), name=ABOUT)
    fresh = {
        place: uploads.add_file(path, digest_file(path), is_own=False, name=place.lane_member)
        for place, path in files.items()
    }

    def shards_for(base: Dataset) -> list[BlobRef]:
        """The new predictions, and those of the published lane that are current."""
        places = base.episode_places()
        shards = [text, *(fresh[place] for place in places if place in fresh)]
        kept = [place for place in _current(base, about, places) if place not in fresh]
        if kept:
            artifact = base.lanes[about.name].artifact
            members = artifact.find([place.lane_member for place in kept])
            shards += [replace(artifact.part.shards[member.shard], uri=None) for member in members]
        return shards

    return publish_part(dataset, f"{PART_PREFIX}{about.name}", LANE_KIND, shards_for, uploads, options)
