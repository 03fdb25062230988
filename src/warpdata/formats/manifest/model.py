"""A dataset version as values: tables, artifacts, bindings, statistics and notes."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

DATASET_ID = re.compile(r"[a-z0-9_-]{1,100}/[a-z0-9_-]{1,100}")
PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
HASH = re.compile(r"[a-f0-9]{64}")
KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")

TAR_KINDS = ("tar_shards", "webdataset_shards")
EPISODE_KIND = "wshard_episodes"
CORPUS_KIND = "activation_shards"
VECTOR_KIND = "vector_index"
FILE_KIND = "files"
LANE_KIND = "prediction_lane"
"""What models say about the episodes of a version; made by `add_lane`, not added as files."""
KINDS = (*TAR_KINDS, EPISODE_KIND, CORPUS_KIND, VECTOR_KIND, FILE_KIND)
"""What we publish; a manifest of another program may have other kinds, which are files to us."""
REF_TYPES = ("file", "image", "audio", "video", "episode")
ADDRESSINGS = ("member", "range")


@dataclass(frozen=True, slots=True)
class BlobRef:
    """One immutable blob by its hash; `uri` is only a hint where it was published."""

    hash: str
    byte_size: int
    uri: str | None = None
    name: str | None = None

    @property
    def key(self) -> str:
        """The name of the blob in the blob area of a catalog."""
        return blob_key(self.hash)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has an address of its own, outside the blob area of its catalog."""
        return self.uri is not None and "://" in self.uri


@dataclass(frozen=True, slots=True)
class TableShard(BlobRef):
    """One parquet file of a table."""

    row_count: int = 0
    guide: BlobRef | None = None
    """A guide to this file alone, where the table has none for all of them."""


S = TypeVar("S", bound=BlobRef, covariant=True)


class LongList(Sequence[S]):
    """A list of shards that lies in blobs of its own; what is known of all of them is known at once."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Rows of all shards."""

    @property
    @abstractmethod
    def byte_size(self) -> int:
        """Bytes of all shards."""

    @abstractmethod
    def part_blobs(self) -> list[BlobRef]:
        """The blobs the list itself lies in."""


def parts_of(shards: Sequence[BlobRef]) -> list[BlobRef]:
    """The blobs a list of shards itself lies in: none of a short one, which is in the manifest."""
    return shards.part_blobs() if isinstance(shards, LongList) else []


def _bytes_of(shards: Sequence[BlobRef]) -> int:
    if isinstance(shards, LongList):
        return shards.byte_size
    return sum(shard.byte_size for shard in shards)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A table: parquet shards in row order, the Arrow schema, and a guide to read them by range."""

    shards: Sequence[TableShard]
    fields: tuple[Mapping[str, Any], ...]
    schema_ipc: str
    guide: BlobRef | None = None
    format: str = "parquet"

    def blobs(self) -> list[BlobRef]:
        """Every blob of the table."""
        guides = [shard.guide for shard in self.shards if shard.guide]
        return [*parts_of(self.shards), *self.shards, *guides, *([self.guide] if self.guide else [])]

    @property
    def row_count(self) -> int:
        """Rows of all shards."""
        if isinstance(self.shards, LongList):
            return self.shards.row_count
        return sum(shard.row_count for shard in self.shards)

    @property
    def byte_size(self) -> int:
        """Bytes of all shards."""
        return _bytes_of(self.shards)


@dataclass(frozen=True, slots=True)
class MemberIndexRef(BlobRef):
    """The member index of a tar artifact: the counts let one lookup be one read."""

    bucket_count: int = 0
    member_count: int = 0


@dataclass(frozen=True, slots=True)
class ArtifactPart:
    """Raw payload: shards of one kind; tar kinds have member indexes, others name each shard."""

    kind: str
    shards: Sequence[BlobRef]
    indexes: tuple[MemberIndexRef, ...] = ()
    """Of a tar kind: one, and a further one for what was added since; each member is in one of them."""

    def blobs(self) -> list[BlobRef]:
        """Every blob of the artifact."""
        return [*parts_of(self.shards), *self.shards, *self.indexes]

    @property
    def member_count(self) -> int:
        """How many members there are."""
        if self.is_tar:
            return sum(index.member_count for index in self.indexes)
        return len(self.shards)

    @property
    def is_tar(self) -> bool:
        """Whether members are inside the shards."""
        return self.kind in TAR_KINDS

    @property
    def byte_size(self) -> int:
        """Bytes of all shards."""
        return _bytes_of(self.shards)


@dataclass(frozen=True, slots=True)
class Binding:
    """A column of a table whose values point into an artifact."""

    table: str
    column: str
    artifact: str
    ref_type: str
    addressing: str = "member"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that defines one dataset version."""

    dataset_id: str
    tables: Mapping[str, TablePart]
    artifacts: Mapping[str, ArtifactPart] = field(default_factory=dict)
    bindings: tuple[Binding, ...] = ()
    created_at: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version_hash: str = ""

    @property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.row_count for table in self.tables.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all table and artifact shards."""
        tables = sum(part.byte_size for part in self.tables.values())
        return tables + sum(part.byte_size for part in self.artifacts.values())

    def blobs(self) -> dict[str, BlobRef]:
        """Every blob of the version by hash, guides and indexes included."""
        parts: list[TablePart | ArtifactPart] = [*self.tables.values(), *self.artifacts.values()]
        return {blob.hash: blob for part in parts for blob in part.blobs()}


def blob_key(sha256: str) -> str:
    """The name of a blob in the blob area of a catalog."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"
