"""A dataset version as values: tables, artifacts, long lists of shards; untrusted JSON; canonical JSON."""

from __future__ import annotations

import bisect
import hashlib
import json
import re
import unicodedata
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar, overload

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.errors import ConflictError, FormatError, ManifestCorruptedError
from warpdata.formats.manifest import layout
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
        return (
            shards.byte_size if isinstance(shards, PartedShards) else sum(shard.byte_size for shard in shards)
        )


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
        return (
            shards.row_count if isinstance(shards, PartedShards) else sum(shard.row_count for shard in shards)
        )

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
    return shards.part_blobs() if isinstance(shards, PartedShards) else []


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


_REMEMBERED_PARTS = 2048
_TOGETHER = 64
"""Parts that are fetched at the same time when a list is read."""
_CUT_BELOW = (1 << 32) // layout.PART_CUT_ONE_IN


PartSource = Callable[[Sequence[BlobRef]], Sequence[bytes | memoryview]]
"""Fetches the bytes of parts, all of them together."""

Entry = BlobRef
"""A shard, or a part."""


def read_part(raw: Any) -> PartRef:
    """A part as the manifest or the part above names it, from untrusted JSON."""
    ref = read_blob(raw, PartRef, "a part")
    if ref.level > layout.MAX_PART_LEVEL or ref.byte_size > layout.MAX_PART_BYTES:
        raise ManifestCorruptedError("a part is too large or of an unknown kind")
    return ref


class PartedShards(Sequence[S], Generic[S]):
    """The shards of a long list, stored in blobs of its own; parts are fetched when they are read."""

    def __init__(self, root: PartRef, kind: type[S], source: PartSource | None = None) -> None:
        self.root = root
        self.kind = kind
        self.row_count, self.byte_size = root.total_rows, root.total_bytes
        self._source = source
        self._lock = ThreadLock()
        self._known: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    def __len__(self) -> int:
        return self.root.count

    @overload
    def __getitem__(self, key: int) -> S: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[S]: ...
    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return tuple(self[number] for number in range(len(self))[key])
        number = range(len(self))[key]
        ref = self.root
        while ref.level:
            for child in self.entries([ref])[0]:
                if number < child.count:
                    ref = child
                    break
                number -= child.count
        return self.entries([ref])[0][number]

    def __iter__(self) -> Iterator[S]:
        yield from self.shards_of(self.leaves())

    def places(self, names: Sequence[str]) -> list[tuple[int, S] | None]:
        """The positions and shards of these names, None for missing ones; a level is fetched at once."""
        if not self.root.is_sorted:
            positions: dict[str | None, tuple[int, S]] = {}
            for number, shard in enumerate(self):
                if shard.name is None or shard.name in positions:
                    raise ManifestCorruptedError("the shards of a list have no unique names")
                positions[shard.name] = number, shard
            return [positions.get(name) for name in names]
        shards_by_name: dict[str, tuple[int, S]] = {}
        level: list[tuple[PartRef, int, list[str]]] = [(self.root, 0, sorted(set(names)))] if names else []
        while level:
            below: list[tuple[PartRef, int, list[str]]] = []
            for (ref, before, wanted), entries in zip(
                level, self._many([ref for ref, *_ in level]), strict=True
            ):
                if ref.level == 0:
                    there = {
                        str(shard.name): (before + number, shard) for number, shard in enumerate(entries)
                    }
                    shards_by_name |= {name: there[name] for name in wanted if name in there}
                    continue
                start = 0
                for child in entries:
                    end = bisect.bisect_right(wanted, str(child.last), start)
                    if end > start:
                        below.append((child, before, wanted[start:end]))
                    start, before = end, before + child.count
            level = below
        return [shards_by_name.get(name) for name in names]

    def part_blobs(self) -> list[BlobRef]:
        """The blobs of the list itself."""
        return list(self.unseen_parts(set()))

    def unseen_parts(self, seen: set[str]) -> Iterator[PartRef]:
        """Its parts but for those in `seen` and those below them; adds them to `seen`.

        Parts that many versions share are so read once.
        """
        level: list[PartRef] = [] if self.root.hash in seen else [self.root]
        while level:
            seen.update(ref.hash for ref in level)
            yield from level
            children = {c.hash: c for entries in self._many([r for r in level if r.level]) for c in entries}
            level = [child for child in children.values() if child.hash not in seen]

    def leaves(self) -> list[PartRef]:
        """The parts that hold shards, in order."""
        level = [self.root]
        while level[0].level:
            level = [child for entries in self._many(level) for child in entries]
        return level

    def shards_of(self, leaves: Iterable[PartRef]) -> Iterator[S]:
        """The shards of some leaves."""
        for entries in self._many([ref for ref in leaves if ref.level == 0]):
            yield from entries

    def _many(self, refs: Sequence[PartRef]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(refs), _TOGETHER):
            yield from self.entries(refs[start : start + _TOGETHER])

    def entries(self, refs: Sequence[PartRef]) -> list[tuple[Any, ...]]:
        """The entries of parts, fetched together: shards at level 0, else parts."""
        with self._lock:
            known = {ref.hash: self._known[ref.hash] for ref in refs if ref.hash in self._known}
        missing = list({ref.hash: ref for ref in refs if ref.hash not in known}.values())
        if missing:
            if self._source is None:
                hint = "This is a bug of warpdata: please report it."
                raise ManifestCorruptedError("a long list of shards is out of reach", hint=hint)
            for ref, data in zip(missing, self._source(missing), strict=True):
                known[ref.hash] = self._parse(ref, data)
        with self._lock:
            for ref in refs:
                self._known[ref.hash] = known[ref.hash]
                self._known.move_to_end(ref.hash)
            while len(self._known) > _REMEMBERED_PARTS:
                self._known.popitem(last=False)
        return [known[ref.hash] for ref in refs]

    def _parse(self, ref: PartRef, data: bytes | memoryview) -> tuple[Entry, ...]:
        """A part from untrusted bytes: it must have its hash and the totals of the part above."""
        if len(data) != ref.byte_size or sha256_hex(data) != ref.hash:
            hint = "Run `warp repair` on the dataset, or `warp cache gc` if only the cache of this machine is damaged."
            raise ManifestCorruptedError("a part of a manifest is damaged", path=ref.key, hint=hint)
        try:
            raw = parse_json_object(data, max_bytes=layout.MAX_PART_BYTES)
        except FormatError as error:
            raise ManifestCorruptedError(f"a part is not JSON: {error}", path=ref.key) from None
        items = list_of(raw, "entries", limit=layout.PART_MAX_ENTRIES)
        entries = tuple(read_part(item) if ref.level else read_blob(item, self.kind) for item in items)
        if _summed(entries, ref.hash, ref.byte_size, ref.level) != ref:
            raise ManifestCorruptedError(
                "a part differs from its description in the part above", path=ref.key
            )
        return entries

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartedShards):
            return self.root == other.root
        if isinstance(other, tuple | list):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"<{len(self)} shards in parts below {self.root.hash[:12]}>"


def unseen_blobs(manifest: Manifest, seen_parts: set[str]) -> Iterator[BlobRef]:
    """Every blob of a version, but of long lists only those below parts that are not in `seen_parts`."""
    for part in manifest.parts:
        if not isinstance(part.shards, PartedShards):
            yield from part.blobs()
            continue
        new = list(part.shards.unseen_parts(seen_parts))
        yield from (*new, *with_guides(part.shards.shards_of(new)), *part.beside)


def differing(old: Sequence[S], new: Sequence[S]) -> tuple[list[S], list[S]]:
    """The shards that only one of two lists has; leaves that both have are not read."""
    if isinstance(old, PartedShards) and isinstance(new, PartedShards):
        leaves = [{ref.hash: ref for ref in shards.leaves()} for shards in (old, new)]
        old = [*old.shards_of(ref for sha256, ref in leaves[0].items() if sha256 not in leaves[1])]
        new = [*new.shards_of(ref for sha256, ref in leaves[1].items() if sha256 not in leaves[0])]
    sides = [{(shard.hash, shard.name): shard for shard in shards} for shards in (old, new)]
    return (
        [shard for shard in old if (shard.hash, shard.name) not in sides[1]],
        [shard for shard in new if (shard.hash, shard.name) not in sides[0]],
    )


@dataclass(frozen=True, slots=True)
class Packed(Generic[S]):
    """A list of shards as a manifest holds it, and its new parts."""

    shards: Sequence[S]
    blobs: Mapping[str, bytes]
    """The bytes of new parts by hash."""


def packed_shards(shards: Sequence[S]) -> Packed[S]:
    """A list of shards, in parts if it is long and all of them are in the blob area of the catalog."""
    is_flat = isinstance(shards, PartedShards) or len(shards) <= layout.FLAT_SHARDS
    if is_flat or any(shard.is_elsewhere for shard in shards):
        return Packed(shards, {})
    return _pack(None, list(shards))


def with_added(base: Sequence[S], added: Sequence[S], *, at_end: bool = False) -> Packed[S]:
    """A list with more shards by name: in order where the list is, else behind it; equal ones are there once."""
    fresh = _new_by_name(base, added)
    if not fresh:
        return Packed(base, {})
    if not isinstance(base, PartedShards):
        joined = [*base, *fresh]
        if not at_end and _are_sorted(base):
            joined.sort(key=lambda shard: str(shard.name))
        return packed_shards(tuple(joined))
    leaves = base.leaves()
    if at_end or not base.root.is_sorted:
        return _pack(base, [*leaves, *fresh])
    fresh.sort(key=lambda shard: str(shard.name))
    entries: list[Entry] = []
    start = 0
    for number, leaf in enumerate(leaves):
        end = start
        while end < len(fresh) and (number == len(leaves) - 1 or str(fresh[end].name) <= str(leaf.last)):
            end += 1
        if end == start:
            entries.append(leaf)
            continue
        entries += sorted([*base.entries([leaf])[0], *fresh[start:end]], key=lambda entry: str(entry.name))
        start = end
    return _pack(base, entries)


def with_tail(base: Sequence[S], kept: int, tail: Sequence[S]) -> Packed[S]:
    """The first `kept` shards of a list, then others."""
    if not isinstance(base, PartedShards):
        return packed_shards((*base[:kept], *tail))
    entries: list[Entry] = []
    for leaf in base.leaves():
        if kept > 0:
            entries += [leaf] if leaf.count <= kept else base.entries([leaf])[0][:kept]
        kept -= leaf.count
    return _pack(base, [*entries, *tail])


def _new_by_name(base: Sequence[S], added: Sequence[S]) -> list[S]:
    """Those of the shards that are not in a list yet; ConflictError for a name with other bytes."""
    if any(shard.name is None for shard in added):
        raise ValueError("shards without names cannot be added to a list by name")
    names = [str(shard.name) for shard in added]
    known: dict[str, S] = {}
    if isinstance(base, PartedShards):
        known = {
            name: place[1] for name, place in zip(names, base.places(names), strict=True) if place is not None
        }
    else:
        known = {str(shard.name): shard for shard in base}
    fresh: dict[str, S] = {}
    for name, shard in zip(names, added, strict=True):
        held = fresh.get(name) or known.get(name)
        if held is not None and held.hash != shard.hash:
            fact = f"{name!r} is there already with other bytes ({held.hash[:12]}, not {shard.hash[:12]})"
            hint = "Nothing was published. Give the new one another name, or publish the whole list again."
            raise ConflictError(fact, hint=hint)
        if held is None:
            fresh[name] = shard
    return list(fresh.values())


def _pack(base: PartedShards[S] | None, entries: Sequence[Entry]) -> Packed[S]:
    """Shards and unchanged leaves of an older list as a list in parts, unless it is short."""
    new: dict[str, bytes] = {}

    def make_part(held: Sequence[Entry], level: int) -> PartRef:
        data = canonical_json({"entries": [blob_json(entry) for entry in held]})
        ref = _summed(held, sha256_hex(data), len(data), level)
        new[ref.hash] = data
        return ref

    # The last leaf of the older list ended because the list did, not by its content.
    unfinished = base.leaves()[-1] if base is not None else None
    number, level = 0, _cut(entries, 0, make_part, base, unfinished)
    while len(level) > 1:
        number += 1
        level = _cut(level, number, make_part)

    def source(refs: Sequence[BlobRef]) -> list[bytes | memoryview]:
        older = [ref for ref in refs if ref.hash not in new]
        assert base is not None or not older
        fetched = iter(base._source(older) if base is not None and base._source and older else [])
        return [new[ref.hash] if ref.hash in new else next(fetched) for ref in refs]

    kind: Any = type(entries[0]) if base is None else base.kind
    shards: PartedShards[S] = PartedShards(level[0], kind, source)
    if len(shards) <= layout.FLAT_SHARDS:
        return Packed(tuple(shards), {})
    return Packed(shards, new)


def _cut(
    entries: Sequence[Entry],
    number: int,
    make_part: Callable[[Sequence[Entry], int], PartRef],
    base: PartedShards[Any] | None = None,
    unfinished: PartRef | None = None,
) -> list[PartRef]:
    """Entries as the parts of level `number`; leaves of `base` that stay as they are need not be read."""
    parts: list[PartRef] = []
    waiting, held = deque(entries), list[Entry]()
    while waiting:
        entry = waiting.popleft()
        if isinstance(entry, PartRef) and entry.level == number:
            if not held and (entry != unfinished or not waiting):
                parts.append(entry)
            else:
                assert base is not None
                waiting.extendleft(reversed(base.entries([entry])[0]))
            continue
        held.append(entry)
        if (count := len(held)) < layout.PART_MIN_ENTRIES:
            continue
        name = entry.last if isinstance(entry, PartRef) else entry.name
        drawn = hashlib.sha256(f"{entry.hash} {name or ''}".encode()).digest()
        if count >= layout.PART_MAX_ENTRIES or int.from_bytes(drawn[:4], "big") < _CUT_BELOW:
            parts.append(make_part(held, number))
            held = []
    return [*parts, make_part(held, number)] if held or not parts else parts


def _are_sorted(entries: Sequence[Entry]) -> bool:
    """Whether every entry has a name and the names ascend."""
    before: str | None = None
    for entry in entries:
        first, last = (entry.first, entry.last) if isinstance(entry, PartRef) else (entry.name, entry.name)
        if first is None or (before is not None and first <= before):
            return False
        before = last
    return True


def _summed(entries: Sequence[Any], sha256: str, size: int, level: int) -> PartRef:
    """The description of a part from its entries."""
    if any(entry.level != level - 1 if isinstance(entry, PartRef) else level for entry in entries):
        raise ManifestCorruptedError("a part holds entries of another level")
    if level and not entries:
        raise ManifestCorruptedError("a part holds no entries")
    is_sorted = bool(entries) and _are_sorted(entries)
    return PartRef(
        sha256,
        size,
        level=level,
        count=sum(entry.count for entry in entries) if level else len(entries),
        total_bytes=sum(entry.total_bytes if level else entry.byte_size for entry in entries),
        total_rows=sum(entry.total_rows if level else getattr(entry, "row_count", 0) for entry in entries),
        is_sorted=is_sorted,
        first=(entries[0].first if level else entries[0].name) if is_sorted else None,
        last=(entries[-1].last if level else entries[-1].name) if is_sorted else None,
    )
