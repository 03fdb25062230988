"""Episodes whose blobs are in a catalog before a version names them: many workers store, one publisher commits.

A blob is named by its content, so storing an episode twice, or by two workers at once, leaves one blob. Nothing is
visible until a version names it; what no version ever names is removed by `warp gc-remote`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpdata.catalog.access import Access, AccessOptions, access_options, catalog_tuple, writable_catalog
from warpdata.catalog.build.packing import whole_files
from warpdata.catalog.build.recordings import CHUNK_BYTES, SUFFIX, Named, episode_rows, staged_episode
from warpdata.catalog.build.staging import Staging, staging_for
from warpdata.catalog.publish.transfer import Upload, send, upload_file, upload_read
from warpdata.catalog.read.artifact_contents import ArtifactFolder, PublishedSource
from warpdata.catalog.read.artifacts import Artifact
from warpdata.episodes.collection.facts import facts_of
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, DatasetError, require_kind
from warpdata.formats.manifest.model import BlobRef
from warpdata.formats.tarshard.reader import is_safe_name
from warpdata.formats.wshard.chunks import read_chunk_list
from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
from warpdata.formats.wshard.reader import ShardReader
from warpdata.settings import Settings
from warpdata.timeline.episode import Episode


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode that is in a catalog, and what a version says of it."""

    id: str
    blobs: tuple[BlobRef, ...]
    """Its shard, or its chunk list and the chunks, each under its name in the artifact."""
    facts: Mapping[str, Any]
    """Its row of the table `episodes`."""
    sent: tuple[str, ...] = ()
    """The hashes of the blobs that were not there before."""

    @property
    def content(self) -> frozenset[tuple[str | None, str]]:
        """What it is, by name and hash."""
        return frozenset((blob.name, blob.hash) for blob in self.blobs)


def agreed(stored: Iterable[StoredEpisode]) -> list[StoredEpisode]:
    """Stored episodes by id, each once; one id with two contents is a ConflictError."""
    found: dict[str, StoredEpisode] = {}
    names: dict[str | None, str] = {}
    for each in stored:
        require_kind("what was stored", each, StoredEpisode, "a StoredEpisode")
        known = found.setdefault(each.id, each)
        if known.content != each.content:
            fact = f"episode {each.id!r} was made twice, and not the same"
            hint = "Make what computes it deterministic, or give each result an id of its own; nothing was published."
            raise ConflictError(fact, hint=hint)
        if known.sent != each.sent:
            found[each.id] = replace(known, sent=tuple(dict.fromkeys([*known.sent, *each.sent])))
        for blob in each.blobs:
            other = names.setdefault(blob.name, each.id)
            if other != each.id:
                fact = f"episodes {other!r} and {each.id!r} would both be stored as {blob.name!r}"
                raise ConflictError(fact, hint="Give them ids that differ; nothing was published.")
    return [found[key] for key in sorted(found)]


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
        base = options or access_options(Settings.from_env())
        given = catalog_tuple(catalog)
        self._access = Access(base if given is None else replace(base, catalogs=given))
        found = writable_catalog(self._access)
        assert found.store is not None
        self._store = found.store
        self._artifact = artifact
        self._chunk_bytes = chunk_bytes
        self._staging: Staging | None = None
        self._count = 0

    def store(self, episode_id: str, content: Episode | bytes, *, name: str | None = None) -> StoredEpisode:
        """Store an episode under an id, by packing it unless it is the bytes of a shard with that id already.

        `name`: what its shard is called in the artifact, if not after the id.
        """
        if not episode_id or not is_safe_name(f"{episode_id}{SUFFIX}"):
            raise DatasetError(f"an episode cannot have the id {episode_id!r}", hint="Choose another.")
        if isinstance(content, Episode):
            return self._packed(episode_id, content, name)
        with ShardReader.open(content) as shard:
            opened = episode_of_shard(shard)
            if opened.id != episode_id or len(content) > self._chunk_bytes:
                return self._packed(episode_id, opened, name)
        path = self._folder() / SUFFIX
        path.write_bytes(content)
        return self._staged(episode_id, [(name or f"{episode_id}{SUFFIX}", path)])

    def store_published(self, episode_id: str, source: PublishedSource, member: str) -> StoredEpisode:
        """Store an episode of another version as it is, copying only what this catalog has not."""
        artifact, opened = source.artifact, source.open_member(member)
        if opened.id != episode_id:
            return self._packed(episode_id, opened)
        names = [member, *_chunks_of(artifact, member)]
        blobs, uploads = [], []
        for each in artifact.find(names):
            held = artifact.part.shards[each.shard]
            blob = BlobRef(held.hash, held.byte_size, name=each.name)
            blobs.append(blob)
            uploads.append(upload_read(artifact.reader_of(each).read, f"member {each.name!r}", blob))
        facts = {**facts_of(opened), "artifact": self._artifact, "blob": member}
        return StoredEpisode(episode_id, tuple(blobs), facts, self._send(uploads))

    def close(self) -> None:
        """Remove what was staged, and close the catalog."""
        if self._staging is not None:
            self._staging.close()
        self._access.close()

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folder(self) -> Path:
        """A new folder for one episode; on the disk of a local catalog its files move into place."""
        if self._staging is None:
            options = self._access.options
            self._staging = staging_for(options.catalogs[0], options.cache_dir, None)
        self._count += 1
        made = self._staging.path / str(self._count)
        made.mkdir()
        return made

    def _packed(self, episode_id: str, episode: Episode, name: str | None = None) -> StoredEpisode:
        staged = staged_episode(episode, episode_id, self._folder(), self._chunk_bytes)
        is_whole = len(staged) == 1
        return self._staged(episode_id, [(name, staged[0][1])] if name and is_whole else staged)

    def _staged(self, episode_id: str, named: list[Named]) -> StoredEpisode:
        shards = whole_files(named)
        rows = episode_rows(self._artifact, shards)
        assert [row["id"] for row in rows] == [episode_id]
        sent = self._send([upload_file(each.path, each.digest, is_staged=True) for each in shards])
        for each in shards:  # a worker stores many: what the catalog did not take is not kept until it ends
            each.path.unlink(missing_ok=True)
        blobs = tuple(BlobRef(each.digest.sha256, each.digest.size, name=each.name) for each in shards)
        return StoredEpisode(episode_id, blobs, rows[0], sent)

    def _send(self, uploads: list[Upload]) -> tuple[str, ...]:
        return tuple(upload.sha256 for upload in send(self._store, uploads).uploads)


def store_episode(catalog: str, artifact: str, episode: Episode, name: str) -> StoredEpisode:
    """Store one episode in a catalog, its shard under a name."""
    with EpisodeStore(catalog, artifact) as store:
        return store.store(episode.id, episode, name=name)


def packed_bytes(episode: Episode, episode_id: str) -> bytes:
    """An episode as the bytes of its shard: the same episode gives the same bytes."""
    with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
        return pack_episode(episode, Path(folder, "episode"), episode_id=episode_id).read_bytes()


def _chunks_of(artifact: Artifact, member: str) -> list[str]:
    shard = ShardReader.open(artifact.member_reader(member))
    if shard.role != ROLE_CHUNK_LIST:
        return []
    return [chunk.uri for chunk in read_chunk_list(shard, ArtifactFolder(artifact)).chunks]
