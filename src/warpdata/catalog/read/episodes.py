"""Artifacts of our own kinds as their contents: published episodes, rows of a corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.arrow_arrays import text_to_arrow
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.lanes import SUFFIX, Lane, LanedSource, LanePlace
from warpdata.corpora.source import SourceKeywords, StoreShardSource
from warpdata.episodes.collection.episodes import EpisodesSource, Origin
from warpdata.episodes.sources.opening import episode_of_shard
from warpdata.errors import DatasetError
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import EpisodeSource, SourceAround

EPISODES_TABLE = "episodes"
"""The table with the facts of every episode of a version."""


class ArtifactFolder:
    """The members of an artifact as files of one folder."""

    def __init__(self, artifact: Artifact) -> None:
        self.name = f"artifact {artifact.name!r}"
        self._artifact = artifact

    def open(self, name: str) -> RangeReader:
        """The bytes of a member, or BlobNotFoundError."""
        return self._artifact.member_reader(name)

    def exists(self, name: str) -> bool:
        """Whether there is a member of this name."""
        return self._artifact.has([name])[0]

    def names(self) -> list[str]:
        """The names of all members."""
        return list(self._artifact.members())


def episode_of(artifact: Artifact, member: Member) -> Episode:
    """The episode of a member, read lazily; the chunks of a chunk list are members too."""
    return episode_of_shard(ShardReader.open(artifact.reader_of(member)), ArtifactFolder(artifact))


class PublishedSource(EpisodesSource):
    """The episodes of an artifact; their facts come from the table of the version."""

    def __init__(
        self,
        artifact: Artifact,
        table: Callable[[Sequence[str] | None], pa.Table] | None,
        recipe: Any,
        metadata: Mapping[str, Any] | None = None,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self.artifact = artifact
        self._lanes = lanes
        self._table = table
        self._recipe = recipe
        self._metadata = metadata or {}
        self._facts: pa.Table | None = None

    @cached_property
    def _names(self) -> pa.Table | None:
        """Ids and members only: a few bytes of each episode, while all its facts may be kilobytes."""
        if self._table is None:
            return None
        return (
            self._facts
            if self._facts is not None
            else self._own_rows(self._table(["id", "artifact", "blob"]))
        )

    @cached_property
    def members(self) -> list[str]:
        """The member of every episode, in order."""
        if self._names is not None:
            return [str(name) for name in self._names.column("blob").to_pylist()]
        return list(self.artifact.members())

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""
        if self._names is not None:
            return [str(episode_id) for episode_id in self._names.column("id").to_pylist()]
        return [name.removesuffix(SUFFIX) for name in self.members]

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return self.open_member(self.members[position])

    def open_member(self, name: str) -> Episode:
        """The episode of a member of the artifact, with its current lanes."""
        member = self.artifact.find([name])[0]
        source = episode_of(self.artifact, member).source
        if self._lanes:
            place = LanePlace(self.artifact.name, name, self.artifact.part.shards[member.shard].hash)
            current = [lane for lane in self._lanes if lane.has([place])[0]]
            source = LanedSource(source, current, place) if current else source
        return Episode(PublishedEpisode(source, self._recipe, self.artifact.name, name))

    def places(self) -> list[LanePlace]:
        """The bytes of every episode, in order."""
        shards = self.artifact.part.shards
        members = self.artifact.find(self.members)
        return [LanePlace(self.artifact.name, m.name, shards[m.shard].hash) for m in members]

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        """The hashes of the predictions beside each episode, of lanes that have such signals."""
        used = [lane for lane in self._lanes if signals is None or lane.signals.keys() & set(signals)]
        if not used:
            return None
        places = self.places()
        return [
            " ".join(f"{lane.name}:{sha256}" for lane, sha256 in zip(used, hashes, strict=True) if sha256)
            for hashes in zip(*(lane.hashes(places) for lane in used), strict=True)
        ]

    @property
    def has_facts(self) -> bool:
        """Whether the version has a table of its episodes."""
        return self._table is not None

    def facts(self) -> pa.Table:
        """The rows of this artifact in the table of the version."""
        if self._table is None:
            return super().facts()
        if self._facts is None:
            self._facts = self._own_rows(self._table(None))
        return self._facts

    def _own_rows(self, whole: pa.Table) -> pa.Table:
        names = whole.column("artifact")
        own = text_to_arrow([self.artifact.name], pa.string()).cast(names.type)
        return whole.filter(pc.is_in(names, own))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the source that the version was imported from."""
        return self._metadata

    @property
    def name(self) -> str:
        """The artifact, and the version of its dataset."""
        return f"artifact {self.artifact.name!r} of {self._recipe['name']}"

    def origin(self, position: int) -> Origin:
        """The dataset, its version, and the hash of the blob of the episode."""
        dataset, _, version = str(self._recipe["name"]).partition("@")
        member = self.artifact.find([self.members[position]])[0]
        return Origin(dataset, version, self.artifact.part.shards[member.shard].hash)

    def address(self) -> dict[str, Any] | None:
        """The version and the artifact; no credentials."""
        return {"kind": "published", "recipe": self._recipe, "artifact": self.artifact.name}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen_source, (self._recipe, self.artifact.name))


class PublishedEpisode(SourceAround):
    """A published episode, which pickles to the names of its dataset, version, artifact and member."""

    def __init__(self, inner: EpisodeSource, recipe: Any, artifact: str, member: str) -> None:
        super().__init__(inner)
        self._recipe = recipe
        self._member = (artifact, member)

    @property
    def address(self) -> str | None:
        """The dataset, its version, and the id in it."""
        return f"{self._recipe['name']}#{self.id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen_episode, (self._recipe, *self._member))


def _reopen_episode(recipe: Any, artifact: str, member: str) -> EpisodeSource:
    return _reopen_source(recipe, artifact).open_member(member).source


def _reopen_source(recipe: Any, artifact: str) -> PublishedSource:
    from warpdata.catalog.dataset import reopen_episodes  # which imports this module

    return reopen_episodes(json.dumps(recipe), artifact)


def open_corpus(artifact: Artifact, **options: Unpack[SourceKeywords]) -> StoreShardSource:
    """The rows of an artifact of activation shards, checked by its corpus.json if it has one."""
    return StoreShardSource.open_folder(ArtifactFolder(artifact), **options)


def one_of_kind(artifacts: Mapping[str, Artifact], kind: str, name: str | None) -> Artifact:
    """The artifact with this name, or the only one of its kind; otherwise an error that lists them."""
    known = [artifact.name for artifact in artifacts.values() if artifact.kind == kind]
    matches = [known_name for known_name in known if name in (None, known_name)]
    if len(matches) == 1:
        return artifacts[matches[0]]
    fact = f"no artifact {name!r} of kind {kind}" if name else f"{len(known)} artifacts of kind {kind}"
    raise DatasetError(fact, hint=f"Name one of: {', '.join(known)}." if known else "This version has none.")
