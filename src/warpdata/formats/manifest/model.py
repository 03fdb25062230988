"""A dataset version as values: tables, artifacts, bindings and notes; checks of untrusted JSON; the canonical JSON."""

from __future__ import annotations

import json
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from warpdata.errors import ManifestCorruptedError
from warpdata.formats.manifest.layout import MAX_INTEGER, MAX_SHARDS

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
"""Predictions of models for the episodes of a version; made by `add_lane`, not added as files."""
KINDS = (*TAR_KINDS, EPISODE_KIND, CORPUS_KIND, VECTOR_KIND, FILE_KIND)
"""Kinds that can be published; any other kind in a manifest is read as files."""
REF_TYPES = ("file", "image", "audio", "video", "episode")
ADDRESSINGS = ("member", "range")

_MAX_DEPTH = 32
_VECTOR_PART = re.compile(r"(.+)\.part(\d{3})")
_UNSAFE_NAME = re.compile(r"[\x00-\x1f\\]|(?:\A|/)\.{0,2}(?:/|\Z)")
"""A control character or backslash, or a step that is empty, `.` or `..`."""
_LOCAL_PATH = re.compile(r"(?i)^(file:|/|~|[a-z]:[\\/]|\\\\)")
_UNSAFE_URI = re.compile(r"[?#\\\s\x00-\x1f\x7f]|://[^/]*@")
"""A query or fragment, a character that URL parsers treat differently, or a user name."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BlobRef:
    """One immutable blob by its hash; `uri` is only a hint where it was published."""

    hash: str
    byte_size: int
    uri: str | None = None
    name: str | None = None
    without: ClassVar[frozenset[str]] = frozenset()
    """Fields that the JSON of this kind does not have."""

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
    """A guide to this file alone, if the table has none for all of them."""


@dataclass(frozen=True, slots=True)
class MemberIndexRef(BlobRef):
    """The member index of a tar artifact; with the counts one lookup is one read."""

    bucket_count: int = 0
    member_count: int = 0


@dataclass(frozen=True, slots=True)
class PartRef(BlobRef):
    """One part of a list: its level, and the totals of the shards below it."""

    level: int = 0
    count: int = 0
    total_bytes: int = 0
    total_rows: int = 0
    is_sorted: bool = False
    """Whether the names below it ascend."""
    first: str | None = None
    last: str | None = None
    without = frozenset({"uri", "name"})


S = TypeVar("S", bound=BlobRef)
L = TypeVar("L", bound=BlobRef, covariant=True)


class LongList(Sequence[L]):
    """A list of shards that is stored in blobs of its own, with totals that are known at once."""

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
        """The blobs of the list itself."""


class VersionPart:
    """A table or an artifact: shards, and blobs beside them."""

    __slots__ = ()
    shards: Sequence[BlobRef]

    @property
    def beside(self) -> Sequence[BlobRef]:
        """Its blobs beside the shards and their guides."""
        raise NotImplementedError

    def blobs(self) -> list[BlobRef]:
        """Every blob of it."""
        return [*parts_of(self.shards), *with_guides(self.shards), *self.beside]

    @property
    def byte_size(self) -> int:
        """Bytes of all shards."""
        shards = self.shards
        return shards.byte_size if isinstance(shards, LongList) else sum(shard.byte_size for shard in shards)


@dataclass(frozen=True, slots=True)
class TablePart(VersionPart):
    """A table: parquet shards in row order, the Arrow schema, and a guide to read them by range."""

    shards: Sequence[TableShard]
    fields: tuple[Mapping[str, Any], ...]
    schema_ipc: str
    guide: BlobRef | None = None
    format: str = "parquet"
    what: ClassVar[str] = "table"

    @property
    def beside(self) -> Sequence[BlobRef]:
        """The guide to all shards, if there is one."""
        return [] if self.guide is None else [self.guide]

    @property
    def row_count(self) -> int:
        """Rows of all shards."""
        shards = self.shards
        return shards.row_count if isinstance(shards, LongList) else sum(shard.row_count for shard in shards)

    item_count = row_count


@dataclass(frozen=True, slots=True)
class ArtifactPart(VersionPart):
    """Raw payload: shards of one kind; tar kinds have member indexes, others name each shard."""

    kind: str
    shards: Sequence[BlobRef]
    indexes: tuple[MemberIndexRef, ...] = ()
    """Of a tar kind: one, and further ones for files that were added since; each member is in one of them."""
    what: ClassVar[str] = "artifact"

    @property
    def beside(self) -> Sequence[BlobRef]:
        """The member indexes."""
        return self.indexes

    @property
    def is_tar(self) -> bool:
        """Whether members are inside the shards."""
        return self.kind in TAR_KINDS

    @property
    def member_count(self) -> int:
        """The number of members."""
        return sum(index.member_count for index in self.indexes) if self.is_tar else len(self.shards)

    item_count = member_count


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
    def parts(self) -> list[TablePart | ArtifactPart]:
        """All tables, then all artifacts."""
        return [*self.tables.values(), *self.artifacts.values()]

    @property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.row_count for table in self.tables.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all table and artifact shards."""
        return sum(part.byte_size for part in self.parts)

    def blobs(self) -> dict[str, BlobRef]:
        """Every blob of the version by hash, guides and indexes included."""
        return {blob.hash: blob for part in self.parts for blob in part.blobs()}


def blob_key(sha256: str) -> str:
    """The name of a blob in the blob area of a catalog."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"


def parts_of(shards: Sequence[BlobRef]) -> list[BlobRef]:
    """The blobs of a list of shards itself; a short list is in the manifest and has none."""
    return shards.part_blobs() if isinstance(shards, LongList) else []


def with_guides(shards: Iterable[BlobRef]) -> Iterator[BlobRef]:
    """Shards, each with its own guide if it has one."""
    for shard in shards:
        yield shard
        if isinstance(shard, TableShard) and shard.guide is not None:
            yield shard.guide


def vector_files(shards: Sequence[BlobRef]) -> dict[str, list[int]]:
    """Vector file -> positions of its parts in the list, in the order of its bytes (SPEC, *Vector indexes*)."""
    files: dict[str, dict[int, int]] = {}
    for position, shard in enumerate(shards):
        match = _VECTOR_PART.fullmatch(str(shard.name))
        file, number = (str(shard.name), 0) if match is None else (match[1], int(match[2]))
        files.setdefault(file, {})[number] = position
    return {file: [parts[number] for number in sorted(parts)] for file, parts in files.items()}


def list_vector_files(files: Mapping[str, Sequence[BlobRef]]) -> tuple[BlobRef, ...]:
    """The shards of vector files; of a file in parts the last comes first, so that no reader takes it for the file."""
    shards = []
    for file, parts in files.items():
        if len(parts) == 1:
            shards.append(replace(parts[0], name=file))
        else:
            named = [replace(part, name=f"{file}.part{number:03d}") for number, part in enumerate(parts)]
            shards += reversed(named)
    return tuple(shards)


def check_uri(uri: str) -> str:
    """Return the uri of a blob; ManifestCorruptedError if it names a local path or how to reach a server.

    Readers add their own credentials to a request, so a manifest must not choose the server of a bucket.
    """
    if _LOCAL_PATH.match(uri) or ".." in uri.split("/"):
        raise ManifestCorruptedError(f"a local path has no place in a manifest: {uri}")
    if match := _UNSAFE_URI.search(uri):
        raise ManifestCorruptedError(
            f"invalid uri in a manifest: {uri[: match.start()]!r} is followed by a query, a fragment, a user name"
            " or a forbidden character",
            hint="Publish blobs under plain addresses; percent-encode special characters of a path.",
        )
    return uri


def read_blob(raw: Any, kind: type[S], label: str = "a blob") -> S:
    """A blob of a kind from untrusted JSON; unknown keys are ignored."""
    raw = of_type(raw, dict, label)
    return kind(**{name: _FIELDS[name](raw, _KEYS.get(name, name)) for name in _STORED[kind]})


def blob_json(blob: BlobRef) -> dict[str, Any]:
    """The JSON of a blob without its address."""
    values = {_KEYS.get(name, name): getattr(blob, name) for name in _STORED[type(blob)]}
    values.pop("uri", None)
    return {
        key: blob_json(value) if isinstance(value, BlobRef) else value
        for key, value in values.items()
        if value is not None
    }


_STORED = {
    kind: tuple(field.name for field in fields(kind) if field.name not in kind.without)
    for kind in (BlobRef, TableShard, MemberIndexRef, PartRef)
}
"""The fields of each kind of blob that its JSON has."""


def of_type(value: Any, kind: type[T], label: str) -> T:
    """The value if it is of this type."""
    if not isinstance(value, kind):
        raise ManifestCorruptedError(f"{label} is a {type(value).__name__}")
    return value


def text_of(raw: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    """A string that matches a pattern."""
    value = raw.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ManifestCorruptedError(f"{key} is missing or malformed")
    return value


def count_of(raw: dict[str, Any], key: str) -> int:
    """An exact integer that is not negative."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise ManifestCorruptedError(f"{key} is missing or not a count")
    return value


def dict_of(
    raw: dict[str, Any], key: str, *, optional: bool = False, limit: int = MAX_SHARDS
) -> dict[str, Any]:
    """An object of bounded size."""
    value = raw.get(key, {} if optional else None)
    if not isinstance(value, dict) or len(value) > limit:
        raise ManifestCorruptedError(f"{key} is missing, not an object, or too large")
    return value


def list_of(raw: dict[str, Any], key: str, *, optional: bool = False, limit: int = MAX_SHARDS) -> list[Any]:
    """A list of bounded length."""
    value = raw.get(key, [] if optional else None)
    if not isinstance(value, list) or len(value) > limit:
        raise ManifestCorruptedError(f"{key} is missing, not a list, or too long")
    return value


def _name_of(raw: dict[str, Any], key: str) -> str | None:
    name = of_type(raw[key], str, "the name of a shard") if key in raw else None
    if name is not None and _UNSAFE_NAME.search(name):
        raise ManifestCorruptedError(f"the name of a shard is not a safe relative path: {name!r}")
    return name


def _border_of(raw: dict[str, Any], key: str) -> str | None:
    return of_type(raw.get(key), str, f"the {key} name of a part") if raw.get("sorted") is True else None


_KEYS = {"is_sorted": "sorted"}
"""Keys in JSON that are not the names of their fields."""
_FIELDS: Mapping[str, Callable[[dict[str, Any], str], Any]] = {
    "hash": lambda raw, key: text_of(raw, key, HASH),
    "uri": lambda raw, key: check_uri(of_type(raw[key], str, "an address")) if raw.get(key) else None,
    "name": _name_of,
    "guide": lambda raw, key: read_blob(raw[key], BlobRef) if key in raw else None,
    "is_sorted": lambda raw, key: of_type(raw.get(key), bool, "sorted"),
    "first": _border_of,
    "last": _border_of,
    **dict.fromkeys(("byte_size", "row_count", "bucket_count", "member_count"), count_of),
    **dict.fromkeys(("level", "count", "total_bytes", "total_rows"), count_of),
}
"""How each field of a blob is read from untrusted JSON and checked."""


def canonical_json(value: Any) -> bytes:
    """RFC 8785 JSON of objects, lists, strings, booleans, null and exact integers; other values are refused."""
    _check_canonical(value, 0)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # Keys in code point order are in UTF-16 order too, unless some are beyond ASCII.
    return text.encode() if text.isascii() else _sorted_json(value).encode()


def _check_canonical(value: Any, depth: int) -> None:
    """ManifestCorruptedError for a value without an exact spelling."""
    if isinstance(value, str):
        is_valid = value.isascii() or not any(0xD800 <= ord(char) <= 0xDFFF for char in value)
        if not is_valid or not unicodedata.is_normalized("NFC", value):
            raise ManifestCorruptedError("a string of the manifest is not Unicode in normal form C")
    elif isinstance(value, dict | list | tuple):
        if depth >= _MAX_DEPTH:
            raise ManifestCorruptedError("the manifest is nested too deeply")
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise ManifestCorruptedError("a key of the manifest is not a string")
        for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            _check_canonical(item, depth + 1)
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ManifestCorruptedError("an integer of the manifest is too large to be exact in JSON")
    elif value is not None:
        raise ManifestCorruptedError(
            f"a {type(value).__name__} has no place in the hashed part of a manifest"
        )


def _sorted_json(value: Any) -> str:
    """Checked values with keys in the order of their UTF-16 code units."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{_sorted_json(key)}:{_sorted_json(value[key])}" for key in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_sorted_json(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
