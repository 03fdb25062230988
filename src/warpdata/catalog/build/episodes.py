"""Episodes to publish: recordings are packed with their edits, shards stay as they are.

`EpisodeStore` puts episodes into a catalog before a version names them: many workers store, one publisher commits.
A blob is named by its content, so storing an episode twice leaves one blob; `warp gc-remote` removes what no version
names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.commit import fold_name
from warpdata.catalog.access import Access, AccessOptions, change_catalog, writable_store
from warpdata.catalog.build.artifacts import PackedShard, list_paths, whole_files
from warpdata.catalog.build.staging import Staging, staging_for
from warpdata.catalog.publish.transfer import Upload, send, upload_file, upload_read
from warpdata.catalog.read.episodes import SUFFIX, ArtifactFolder, PublishedSource
from warpdata.catalog.read.filekinds import file_kind, folder_kind
from warpdata.episodes.collection.edits import shown
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.facts import facts_of
from warpdata.episodes.collection.local import LocalDataset, ShardFolderSource
from warpdata.episodes.forms.chunks import write_chunks
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import BadMagicError, ConflictError, DatasetError, WarpError, require_kind
from warpdata.formats.manifest.model import BlobRef
from warpdata.formats.tarshard.reader import is_safe_name
from warpdata.formats.wshard.chunks import list_name, read_chunk_list
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.layout import META_EPISODE, ROLE_CHUNK_LIST, ROLE_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode

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
            yield self.pack_episode(shown(path), path.name), True
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
        if path.stat().st_size <= self._chunk_bytes or _is_chunk(path):
            return files, False
        episode = episode_of_shard(ShardReader.open(path))
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
        count = -(-_packed_size(episode) // self._chunk_bytes)
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
        return shown(path)
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


def _is_chunk(path: Path) -> bool:
    """Whether a file is a chunk or a chunk list already, or no shard at all."""
    try:
        with ShardReader.open(path) as shard:
            return shard.role != ROLE_EPISODE or "chunk_index" in shard.read_json(META_EPISODE)
    except WarpError:
        return True


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


def _packed_size(episode: Episode) -> int:
    """About how many bytes a packed episode takes: numbers are stored as they are, cameras stay encoded."""
    signals = list(episode.signals.values())
    plain = [signal for signal in signals if signal.meta.kind != "image" and not signal.meta.is_object]
    rows = sum(len(signal) * signal.meta.row_bytes for signal in plain)
    return rows + (episode.stored_bytes if len(plain) < len(signals) else 0)


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

    @property
    def content(self) -> frozenset[tuple[str | None, str]]:
        """Its blobs by name and hash."""
        return frozenset((blob.name, blob.hash) for blob in self.blobs)


def merge_stored(stored: Iterable[StoredEpisode]) -> list[StoredEpisode]:
    """Stored episodes by id; ConflictError for one id with two contents."""
    episodes: dict[str, StoredEpisode] = {}
    names: dict[str | None, str] = {}
    for episode in stored:
        require_kind("stored", episode, StoredEpisode, "a StoredEpisode")
        known = episodes.setdefault(episode.id, episode)
        if known.content != episode.content:
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


class EpisodeStore:
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

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return tuple(upload.sha256 for upload in send(self._store, uploads).uploads)


def store_episode(catalog: str, artifact: str, episode: Episode, name: str) -> StoredEpisode:
    """Store one episode in a catalog under the name of its shard."""
    with EpisodeStore(catalog, artifact) as store:
        return store.store(episode.id, episode, name=name)


def packed_bytes(episode: Episode, episode_id: str) -> bytes:
    """An episode as the bytes of its shard; equal episodes give equal bytes."""
    with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
        return pack_episode(episode, Path(folder, "episode"), episode_id=episode_id).read_bytes()
