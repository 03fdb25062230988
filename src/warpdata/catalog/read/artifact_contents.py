"""Artifacts of our own kinds as what they hold: episodes in time, rows of a corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.arrow_arrays import text_to_arrow
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.catalog.build.recordings import SUFFIX
from warpdata.catalog.lanes.lane import Lane, LanedSource, LanePlace
from warpdata.catalog.read.artifacts import Artifact
from warpdata.corpora.source import SourceKeywords, StoreShardSource
from warpdata.episodes.collection.episodes import EpisodesSource, Origin
from warpdata.episodes.sources.opening import episode_of_shard
from warpdata.errors import DatasetError
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import EpisodeSource, SourceAround

EPISODES_TABLE = "episodes"
"""The table with what is known of every episode of a version."""


class ArtifactFolder:
    """The members of an artifact as files below one place."""

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
    """The episode a member holds, in time and lazily; the chunks of a chunk list are members too."""
    return episode_of_shard(ShardReader.open(artifact.reader_of(member)), ArtifactFolder(artifact))


class PublishedSource(EpisodesSource):
    """The episodes of an artifact; what is known of them comes from the table of the version."""

    def __init__(
        self,
        artifact: Artifact,
        table: Callable[[Sequence[str] | None], pa.Table] | None,
        recipe: Any,
        metadata: Mapping[str, Any] | None = None,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self._artifact = artifact
        self._lanes = lanes
        self._table = table
        self._recipe = recipe
        self._metadata = metadata or {}
        self._known: pa.Table | None = None

    @property
    def artifact(self) -> Artifact:
        """Where the shards of the episodes are."""
        return self._artifact

    @cached_property
    def _names(self) -> pa.Table | None:
        """Ids and members only: a few bytes of each episode, while all facts of it may be kilobytes."""
        if self._table is None:
            return None
        return self._known if self._known is not None else self._mine(self._table(["id", "artifact", "blob"]))

    @cached_property
    def members(self) -> list[str]:
        """The member of every episode, in order."""
        if self._names is not None:
            return [str(name) for name in self._names.column("blob").to_pylist()]
        return list(self._artifact.members())

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""
        if self._names is not None:
            return [str(each) for each in self._names.column("id").to_pylist()]
        return [name.removesuffix(SUFFIX) for name in self.members]

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        return self.open_member(self.members[position])

    def open_member(self, name: str) -> Episode:
        """The episode that a member of the artifact holds."""
        found = self._artifact.find([name])[0]
        source = episode_of(self._artifact, found).source
        if self._lanes:
            source = self._with_lanes(source, LanePlace(self._artifact.name, name, self._hash_of(found)))
        return Episode(PublishedEpisode(source, self._recipe, self._artifact.name, name))

    def _with_lanes(self, source: EpisodeSource, place: LanePlace) -> EpisodeSource:
        """An episode with what models said about these very bytes of it."""
        current = [lane for lane in self._lanes if lane.has([place])[0]]
        return LanedSource(source, current, place) if current else source

    def _hash_of(self, member: Member) -> str:
        return self._artifact.part.shards[member.shard].hash

    def places(self) -> list[LanePlace]:
        """The bytes of every episode, in order."""
        found = self._artifact.find(self.members)
        return [LanePlace(self._artifact.name, each.name, self._hash_of(each)) for each in found]

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        """Which bytes of the lanes that have such signals lie beside each episode."""
        used = [lane for lane in self._lanes if signals is None or lane.signals.keys() & set(signals)]
        if not used:
            return None
        places = self.places()
        each = zip(*(lane.hashes(places) for lane in used), strict=True)
        return [
            " ".join(f"{lane.name}:{sha256}" for lane, sha256 in zip(used, hashes, strict=True) if sha256)
            for hashes in each
        ]

    @property
    def has_facts(self) -> bool:
        """Whether the version has a table of its episodes."""
        return self._table is not None

    def facts(self) -> pa.Table:
        """The table of the version, as far as it speaks of this artifact."""
        if self._table is None:
            return super().facts()
        if self._known is None:
            self._known = self._mine(self._table(None))
        return self._known

    def _mine(self, whole: pa.Table) -> pa.Table:
        names = whole.column("artifact")
        mine = text_to_arrow([self._artifact.name], pa.string()).cast(names.type)
        return whole.filter(pc.is_in(names, mine))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the import of the version kept of its source as a whole."""
        return self._metadata

    @property
    def name(self) -> str:
        """The artifact, and the version of the dataset that it is of."""
        return f"artifact {self._artifact.name!r} of {self._recipe['name']}"

    def origin(self, position: int) -> Origin:
        """The dataset, its version, and the hash of the blob that holds the episode."""
        dataset, _, version = str(self._recipe["name"]).partition("@")
        member = self._artifact.find([self.members[position]])[0]
        return Origin(dataset, version, self._artifact.part.shards[member.shard].hash)

    def address(self) -> dict[str, Any] | None:
        """The version and the artifact; no credentials."""
        return {"kind": "published", "recipe": self._recipe, "artifact": self._artifact.name}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_published_again, (self._recipe, self._artifact.name))


class PublishedEpisode(SourceAround):
    """A published episode, which pickles to the name of its dataset, version, artifact and member."""

    def __init__(self, inner: EpisodeSource, recipe: Any, artifact: str, member: str) -> None:
        super().__init__(inner)
        self._again = (recipe, artifact, member)

    @property
    def address(self) -> str | None:
        """The dataset, its version, and the id in it."""
        return f"{self._again[0]['name']}#{self.id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_episode_again, self._again)


def _episode_again(recipe: Any, artifact: str, member: str) -> EpisodeSource:
    return _published_again(recipe, artifact).open_member(member).source


def _published_again(recipe: Any, artifact: str) -> PublishedSource:
    from warpdata.catalog.dataset import reopened_episodes  # which needs this module first

    return reopened_episodes(json.dumps(recipe), artifact)


def open_corpus(artifact: Artifact, **options: Unpack[SourceKeywords]) -> StoreShardSource:
    """The rows of an artifact of activation shards, checked by its corpus.json where it has one."""
    return StoreShardSource.open_folder(ArtifactFolder(artifact), **options)


def one_of_kind(artifacts: dict[str, Artifact], kind: str, name: str | None) -> Artifact:
    """The artifact with this name, or the only one of its kind; any other case is an error that lists them."""
    found = [each for each in artifacts.values() if each.kind == kind and name in (None, each.name)]
    if len(found) == 1:
        return found[0]
    known = [each.name for each in artifacts.values() if each.kind == kind]
    fact = f"no artifact {name!r} of kind {kind}" if name else f"{len(known)} artifacts of kind {kind}"
    raise DatasetError(fact, hint=f"Name one of: {', '.join(known)}." if known else "This version has none.")
