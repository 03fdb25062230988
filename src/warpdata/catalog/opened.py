"""Artifacts of our own kinds as what they hold: episodes in time, rows of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from warpdata.bytekit.ranges import RangeReader
from warpdata.catalog.artifacts import Artifact
from warpdata.corpora.store_source import StoreShardSource, read_record
from warpdata.episodes.packed import PackedEpisode, is_packed
from warpdata.episodes.shard_episode import ShardEpisode, load_wshard
from warpdata.errors import DatasetError
from warpdata.formats.gamsae.layout import CORPUS_JSON, SHARD_SUFFIX
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.times import as_int, as_int_array, is_many


def episode_of(reader: RangeReader) -> Episode:
    """The episode of a shard in time, lazily."""
    shard = ShardReader.open(reader)
    return PackedEpisode(shard) if is_packed(shard) else ShardEpisode(load_wshard(shard))


class PublishedEpisodes(Sequence[Episode]):
    """The episodes of an artifact by name order; each is opened when it is asked for."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.names = list(artifact.members())

    def open(self, name: str) -> Episode:
        """The episode with this name."""
        return episode_of(self._artifact.member_reader(name))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, key: int) -> Episode: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> list[Episode]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self.open(name) for name in self.names[key]]
        if is_many(key):
            return [self[number] for number in as_int_array(key, "an index").tolist()]
        index, count = as_int(key, "an index"), len(self)
        if not -count <= index < count:
            raise IndexError(f"episode {index} of an artifact with {count} episodes")
        return self.open(self.names[index])

    def __iter__(self) -> Iterator[Episode]:
        return (self.open(name) for name in self.names)

    def __repr__(self) -> str:
        return f"<PublishedEpisodes {self._artifact.name}: {len(self)} episodes>"


def open_corpus(artifact: Artifact, **options: Any) -> StoreShardSource:
    """The rows of an artifact of activation shards, checked by its corpus.json where it has one."""
    names = list(artifact.members())
    corpus = artifact.member_reader(CORPUS_JSON) if CORPUS_JSON in names else None
    shards = [name for name in names if name.endswith(SHARD_SUFFIX)]
    if corpus is not None:
        shards = [shard.name for shard in read_record(corpus).shards]
    return StoreShardSource.open([artifact.member_reader(n) for n in shards], corpus=corpus, **options)


def one_of_kind(artifacts: dict[str, Artifact], kind: str, name: str | None) -> Artifact:
    """The artifact with this name, or the only one of its kind; any other case is an error that lists them."""
    found = [each for each in artifacts.values() if each.kind == kind and name in (None, each.name)]
    if len(found) == 1:
        return found[0]
    known = [each.name for each in artifacts.values() if each.kind == kind]
    fact = f"no artifact {name!r} of kind {kind}" if name else f"{len(known)} artifacts of kind {kind}"
    raise DatasetError(fact, hint=f"Name one of: {', '.join(known)}." if known else "This version has none.")
