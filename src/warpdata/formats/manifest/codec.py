"""The JSON of a manifest: parse untrusted bytes against their hash, pack the model, long lists of shards in parts."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import ConflictError, FormatError, ManifestCorruptedError
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.layout import MAX_INDEXES, MAX_MANIFEST_BYTES, MAX_TABLES
from warpdata.formats.manifest.model import (
    ADDRESSINGS,
    DATASET_ID,
    HASH,
    KIND,
    PART_NAME,
    REF_TYPES,
    ArtifactPart,
    Binding,
    BlobRef,
    LongList,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
    blob_of,
    canonical_json,
    count_of,
    dict_of,
    list_of,
    of_type,
    shard_json,
    table_shard_of,
    text_of,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

S = TypeVar("S", bound=BlobRef)

_REMEMBERED_PARTS = 2048
_TOGETHER = 64
"""Parts that are fetched at the same time when a list is read."""
_CUT_BELOW = (1 << 32) // layout.PART_CUT_ONE_IN


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


PartSource = Callable[[Sequence[BlobRef]], Sequence[bytes | memoryview]]
"""Fetches the bytes of parts, all of them together."""

Entry = BlobRef
"""A shard, or a part."""


def root_of(raw: Any) -> PartRef:
    """A part as the manifest or the part above names it, from untrusted JSON."""
    raw = of_type(raw, dict, "a part")
    level, size, is_sorted = count_of(raw, "level"), count_of(raw, "byte_size"), raw.get("sorted")
    if level > layout.MAX_PART_LEVEL or size > layout.MAX_PART_BYTES or not isinstance(is_sorted, bool):
        raise ManifestCorruptedError("a part is too large or of an unknown kind")
    names = [
        of_type(raw.get(k), str, f"the {k} name of a part") if is_sorted else None for k in ("first", "last")
    ]
    return PartRef(
        text_of(raw, "hash", HASH),
        size,
        level=level,
        count=count_of(raw, "count"),
        total_bytes=count_of(raw, "total_bytes"),
        total_rows=count_of(raw, "total_rows"),
        is_sorted=is_sorted,
        first=names[0],
        last=names[1],
    )


def part_json(ref: PartRef) -> dict[str, Any]:
    """The JSON of a part in the manifest and in the part above it."""
    raw = {key: value for key, value in asdict(ref).items() if key not in ("uri", "name", "is_sorted")}
    raw["sorted"] = ref.is_sorted
    return (
        raw if ref.is_sorted else {key: value for key, value in raw.items() if key not in ("first", "last")}
    )


class PartedShards(LongList[S], Generic[S]):
    """The shards of a long list; parts are fetched when they are read."""

    def __init__(self, root: PartRef, item_of: Callable[[Any], S], source: PartSource | None = None) -> None:
        self.root = root
        self._item_of = item_of
        self._source = source
        self._lock = ThreadLock()
        self._known: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    def with_source(self, source: PartSource) -> PartedShards[S]:
        """The list with a source of its parts."""
        return PartedShards(self.root, self._item_of, source)

    @property
    def row_count(self) -> int:
        """Rows of all shards."""
        return self.root.total_rows

    @property
    def byte_size(self) -> int:
        """Bytes of all shards."""
        return self.root.total_bytes

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
        entries = tuple(root_of(item) if ref.level else self._item_of(item) for item in items)
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
        yield from new
        for shard in part.shards.shards_of(new):
            yield shard
            if isinstance(shard, TableShard) and shard.guide is not None:
                yield shard.guide
        if not isinstance(part, TablePart):
            yield from part.indexes
        elif part.guide is not None:
            yield part.guide


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


def packed_shards(shards: Sequence[S], item_of: Callable[[Any], S]) -> Packed[S]:
    """A list of shards, in parts if it is long and all of them are in the blob area of the catalog."""
    is_flat = isinstance(shards, PartedShards) or len(shards) <= layout.FLAT_SHARDS
    if is_flat or any(shard.is_elsewhere for shard in shards):
        return Packed(shards, {})
    return _pack(None, list(shards), item_of)


def with_added(
    base: Sequence[S], added: Sequence[S], item_of: Callable[[Any], S], *, at_end: bool = False
) -> Packed[S]:
    """A list with more shards by name: in order where the list is, else behind it; equal ones are there once."""
    fresh = _new_by_name(base, added)
    if not fresh:
        return Packed(base, {})
    if not isinstance(base, PartedShards):
        joined = [*base, *fresh]
        if not at_end and _are_sorted(base):
            joined.sort(key=lambda shard: str(shard.name))
        return packed_shards(tuple(joined), item_of)
    leaves = base.leaves()
    if at_end or not base.root.is_sorted:
        return _pack(base, [*leaves, *fresh], item_of)
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
    return _pack(base, entries, item_of)


def with_tail(base: Sequence[S], kept: int, tail: Sequence[S], item_of: Callable[[Any], S]) -> Packed[S]:
    """The first `kept` shards of a list, then others."""
    if not isinstance(base, PartedShards):
        return packed_shards((*base[:kept], *tail), item_of)
    entries: list[Entry] = []
    for leaf in base.leaves():
        if kept > 0:
            entries += [leaf] if leaf.count <= kept else base.entries([leaf])[0][:kept]
        kept -= leaf.count
    return _pack(base, [*entries, *tail], item_of)


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


def _pack(base: PartedShards[S] | None, entries: Sequence[Entry], item_of: Callable[[Any], S]) -> Packed[S]:
    """Shards and unchanged leaves of an older list as a list in parts, unless it is short."""
    new: dict[str, bytes] = {}

    def make_part(held: Sequence[Entry], level: int) -> PartRef:
        data = canonical_json(
            {"entries": [part_json(e) if isinstance(e, PartRef) else shard_json(e) for e in held]}
        )
        ref = _summed(held, sha256_hex(data), len(data), level)
        new[ref.hash] = data
        return ref

    # The last leaf of the older list ended because the list did, not by its content.
    unfinished = base.leaves()[-1] if base is not None else None
    waiting, current, level = deque(entries), list[Entry](), list[PartRef]()
    while waiting:
        entry = waiting.popleft()
        if isinstance(entry, PartRef):
            if not current and (entry != unfinished or not waiting):
                level.append(entry)
            else:
                assert base is not None
                waiting.extendleft(reversed(base.entries([entry])[0]))
            continue
        current.append(entry)
        if _ends_part(entry, len(current)):
            level.append(make_part(current, 0))
            current = []
    if current or not level:
        level.append(make_part(current, 0))
    while len(level) > 1:
        level = _cut(level, lambda held: make_part(held, held[0].level + 1))

    def source(refs: Sequence[BlobRef]) -> list[bytes | memoryview]:
        older = [ref for ref in refs if ref.hash not in new]
        assert base is not None or not older
        fetched = iter(base._source(older) if base is not None and base._source and older else [])
        return [new[ref.hash] if ref.hash in new else next(fetched) for ref in refs]

    shards = PartedShards(level[0], item_of, source)
    if len(shards) <= layout.FLAT_SHARDS:
        return Packed(tuple(shards), {})
    return Packed(shards, new)


def _cut(entries: Sequence[PartRef], make_part: Callable[[list[PartRef]], PartRef]) -> list[PartRef]:
    """The parts of the next level."""
    parts: list[PartRef] = []
    held: list[PartRef] = []
    for entry in entries:
        held.append(entry)
        if _ends_part(entry, len(held)):
            parts.append(make_part(held))
            held = []
    return [*parts, make_part(held)] if held else parts


def _ends_part(entry: Entry, count: int) -> bool:
    """Whether a part ends behind this entry, which is its `count`-th."""
    if count < layout.PART_MIN_ENTRIES:
        return False
    name = entry.last if isinstance(entry, PartRef) else entry.name
    drawn = hashlib.sha256(f"{entry.hash} {name or ''}".encode()).digest()
    return count >= layout.PART_MAX_ENTRIES or int.from_bytes(drawn[:4], "big") < _CUT_BELOW


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


_REMEMBER_BYTES = 256 << 10


def version_hash(raw: dict[str, Any]) -> str:
    """The hash of a manifest's content: 64 hex digits that do not depend on place, time or notes."""
    hashed = {key: value for key, value in raw.items() if key not in ("version_hash", "metadata")}
    for group in ("tables", "artifacts"):
        if isinstance(hashed.get(group), dict):
            hashed[group] = {name: _without_uris(part) for name, part in hashed[group].items()}
    if isinstance(hashed.get("stats"), dict):
        hashed["stats"] = {key: value for key, value in hashed["stats"].items() if key != "created_at"}
    return sha256_hex(canonical_json(hashed))


def _without_uris(part: Any) -> Any:
    """A table or artifact whose blobs have no address; only blobs lose the key."""

    def bare(blob: Any) -> Any:
        return {k: v for k, v in blob.items() if k != "uri"} if isinstance(blob, dict) else blob

    if not isinstance(part, dict):
        return part
    out = {key: bare(value) if key in ("index", "guide") else value for key, value in part.items()}
    if isinstance(out.get("shards"), list):
        out["shards"] = [bare(shard) for shard in out["shards"]]
    return out


def parse_manifest(
    data: Buffer, *, expected_hash: str | None = None, parts: PartSource | None = None
) -> Manifest:
    """The manifest in `data`; anything but an intact manifest with this hash is ManifestCorruptedError.

    `parts` fetches the parts of long lists of shards when they are read.
    """
    raw = bytes(data)
    manifest = _parse_cached(raw) if len(raw) <= _REMEMBER_BYTES else _parse(raw)
    if expected_hash is not None and manifest.version_hash != expected_hash:
        fact = f"manifest hash mismatch: expected {expected_hash}, got {manifest.version_hash}"
        raise ManifestCorruptedError(fact)
    if parts is None:
        return manifest

    def within_reach(part: Any) -> Any:
        shards = part.shards
        return replace(part, shards=shards.with_source(parts)) if isinstance(shards, PartedShards) else part

    return replace(
        manifest,
        tables={name: within_reach(part) for name, part in manifest.tables.items()},
        artifacts={name: within_reach(part) for name, part in manifest.artifacts.items()},
    )


def _parse(data: bytes) -> Manifest:
    try:
        raw = parse_json_object(data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the manifest is not JSON: {error}") from None
    stated = text_of(raw, "version_hash", HASH)
    if (actual := version_hash(raw)) != stated:
        hint = "Try `warp cache gc`; if that does not help, the catalog holds a damaged manifest."
        raise ManifestCorruptedError(f"manifest hash mismatch: expected {stated}, got {actual}", hint=hint)
    stats = dict_of(raw, "stats", optional=True)
    artifacts = dict_of(raw, "artifacts", optional=True, limit=MAX_TABLES)
    manifest = Manifest(
        dataset_id=text_of(raw, "dataset_id", DATASET_ID),
        tables={name: _table(name, part) for name, part in dict_of(raw, "tables", limit=MAX_TABLES).items()},
        artifacts={name: _artifact(name, part) for name, part in artifacts.items()},
        bindings=tuple(_binding(b) for b in list_of(raw, "bindings", optional=True)),
        created_at=stats.get("created_at") if isinstance(stats.get("created_at"), str) else None,
        metadata=dict_of(raw, "metadata", optional=True),
        version_hash=stated,
    )
    for name in [*manifest.tables, *manifest.artifacts]:
        if not PART_NAME.fullmatch(name):
            raise ManifestCorruptedError(f"invalid name of a table or artifact: {name!r}")
    for binding in manifest.bindings:
        table = manifest.tables.get(binding.table)
        columns = {field.get("name") for field in table.fields} if table else set()
        if binding.column not in columns or binding.artifact not in manifest.artifacts:
            target = f"{binding.table}.{binding.column} -> {binding.artifact}"
            raise ManifestCorruptedError(f"a binding points at nothing: {target}")
    for key, total in (("total_rows", manifest.total_rows), ("total_bytes", manifest.total_bytes)):
        if key in stats and stats[key] != total:
            raise ManifestCorruptedError(f"{key} mismatch: expected {total} by the shards, got {stats[key]}")
    return manifest


_parse_cached = functools.lru_cache(maxsize=64)(_parse)
"""The same bytes are the same manifest and need to be checked once."""


def _table(name: str, raw: Any) -> TablePart:
    raw = of_type(raw, dict, f"table {name!r}")
    if raw.get("format") != "parquet":
        raise ManifestCorruptedError(f"table {name!r} has the unknown format {raw.get('format')!r}")
    schema = dict_of(raw, "schema")
    fields = tuple(of_type(field, dict, "a field of a schema") for field in list_of(schema, "fields"))
    guide = blob_of(raw["guide"]) if "guide" in raw else None
    ipc = of_type(schema.get("ipc"), str, "the Arrow schema")
    return TablePart(_shards(raw, table_shard_of), fields, ipc, guide)


def _shards(raw: dict[str, Any], item_of: Any) -> Any:
    if "parts" in raw:
        return PartedShards(root_of(raw["parts"]), item_of)
    return tuple(item_of(shard) for shard in list_of(raw, "shards"))


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = of_type(raw, dict, f"artifact {name!r}")
    if "index" in raw and "indexes" in raw:
        raise ManifestCorruptedError("an artifact has one member index and several")
    indexes = [raw["index"]] if "index" in raw else list_of(raw, "indexes", optional=True, limit=MAX_INDEXES)
    part = ArtifactPart(text_of(raw, "kind", KIND), _shards(raw, blob_of), tuple(map(_index, indexes)))
    if part.is_tar and not part.indexes:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    if not part.is_tar and not isinstance(
        part.shards, PartedShards
    ):  # whose parts are checked when they are read
        names = [shard.name for shard in part.shards]
        if None in names or len(set(names)) != len(names):
            raise ManifestCorruptedError(f"the shards of artifact {name!r} have no unique names")
    return part


def _index(raw: Any) -> MemberIndexRef:
    blob = blob_of(raw)
    counts = (count_of(raw, "bucket_count"), count_of(raw, "member_count"))
    return MemberIndexRef(blob.hash, blob.byte_size, blob.uri, blob.name, *counts)


def _binding(raw: Any) -> Binding:
    raw = of_type(raw, dict, "a binding")
    keys = ("table", "column", "artifact", "ref_type")
    table, column, artifact, ref_type = (of_type(raw.get(key), str, f"{key} of a binding") for key in keys)
    addressing = raw.get("addressing", "member")
    if ref_type not in REF_TYPES or addressing not in ADDRESSINGS:
        raise ManifestCorruptedError(f"a binding of unknown type {ref_type!r} or addressing {addressing!r}")
    return Binding(table, column, artifact, ref_type, addressing)


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The JSON object of a manifest, its version hash included."""
    raw: dict[str, Any] = {
        "dataset_id": manifest.dataset_id,
        "tables": {name: _table_json(part) for name, part in manifest.tables.items()},
        "artifacts": {name: _artifact_json(part) for name, part in manifest.artifacts.items()},
        "bindings": [asdict(binding) for binding in manifest.bindings],
        "stats": {"total_rows": manifest.total_rows, "total_bytes": manifest.total_bytes},
        "metadata": dict(manifest.metadata),
    }
    if manifest.created_at is not None:
        raw["stats"]["created_at"] = manifest.created_at
    raw["version_hash"] = version_hash(raw)
    return raw


def pack_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: readable JSON with sorted keys."""
    return json.dumps(to_json(manifest), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _table_json(part: TablePart) -> dict[str, Any]:
    schema = {"fields": [dict(field) for field in part.fields], "ipc": part.schema_ipc}
    raw: dict[str, Any] = {"format": part.format, **_shards_json(part.shards), "schema": schema}
    return raw if part.guide is None else {**raw, "guide": _blob_json(part.guide)}


def _artifact_json(part: ArtifactPart) -> dict[str, Any]:
    raw: dict[str, Any] = {"kind": part.kind, **_shards_json(part.shards)}
    if len(part.indexes) == 1:
        raw["index"] = _blob_json(part.indexes[0])
    elif part.indexes:
        raw["indexes"] = [
            {k: v for k, v in _blob_json(index).items() if k != "uri"} for index in part.indexes
        ]
    return raw


def _shards_json(shards: Sequence[BlobRef]) -> dict[str, Any]:
    """The shards themselves, or the root of the parts of their list."""
    if isinstance(shards, PartedShards):
        return {"parts": part_json(shards.root)}
    return {"shards": [_blob_json(shard) for shard in shards]}


def _blob_json(blob: BlobRef) -> dict[str, Any]:
    raw = {"uri": blob.uri or blob.key, **shard_json(blob)}
    if isinstance(blob, MemberIndexRef):
        raw |= {"bucket_count": blob.bucket_count, "member_count": blob.member_count}
    return raw
