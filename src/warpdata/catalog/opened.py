"""Artifacts of our own kinds as what they hold: episodes in time, rows of a corpus."""

from __future__ import annotations

from typing import Any

from warpdata.bytekit.ranges import RangeReader
from warpdata.catalog.artifacts import Artifact
from warpdata.corpora.store_source import StoreShardSource
from warpdata.episodes.opening import episode_of_shard
from warpdata.errors import DatasetError
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.sequence import EpisodeSequence


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
        return name in self.names()

    def names(self) -> list[str]:
        """The names of all members."""
        return list(self._artifact.members())


def episode_of(artifact: Artifact, member: Member) -> Episode:
    """The episode a member holds, in time and lazily; the chunks of a chunk list are members too."""
    return episode_of_shard(ShardReader.open(artifact.reader_of(member)), ArtifactFolder(artifact))


class PublishedEpisodes(EpisodeSequence):
    """The episodes of an artifact by name order; each is opened when it is asked for."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.names = list(artifact.members())

    def open(self, name: str) -> Episode:
        """The episode with this name."""
        return episode_of(self._artifact, self._artifact.find([name])[0])

    def __len__(self) -> int:
        return len(self.names)

    def _at(self, position: int) -> Episode:
        return self.open(self.names[position])

    def __repr__(self) -> str:
        return f"<PublishedEpisodes {self._artifact.name}: {len(self)} episodes>"


def open_corpus(artifact: Artifact, **options: Any) -> StoreShardSource:
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
