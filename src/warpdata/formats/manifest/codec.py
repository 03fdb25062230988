"""Manifests, pointers and guides as bytes: parse untrusted ones, pack the model, long lists of shards in parts."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c, sha256_hex
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    ConflictError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    ManifestCorruptedError,
)
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.layout import MAX_INDEXES, MAX_MANIFEST_BYTES, MAX_POINTER_BYTES, MAX_TABLES
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
    PartRef,
    S,
    TablePart,
    TableShard,
    blob_json,
    canonical_json,
    count_of,
    dict_of,
    list_of,
    of_type,
    read_blob,
    text_of,
    with_guides,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


class PartedShards(LongList[S], Generic[S]):
    """The shards of a long list; parts are fetched when they are read."""

    def __init__(self, root: PartRef, kind: type[S], source: PartSource | None = None) -> None:
        self.root = root
        self.kind = kind
        self._source = source
        self._lock = ThreadLock()
        self._known: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    def with_source(self, source: PartSource) -> PartedShards[S]:
        """The list with a source of its parts."""
        return PartedShards(self.root, self.kind, source)

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
        if _ends_part(entry, len(held)):
            parts.append(make_part(held, number))
            held = []
    return [*parts, make_part(held, number)] if held or not parts else parts


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
    guide = read_blob(raw["guide"], BlobRef) if "guide" in raw else None
    ipc = of_type(schema.get("ipc"), str, "the Arrow schema")
    return TablePart(_shards(raw, TableShard), fields, ipc, guide)


def _shards(raw: dict[str, Any], kind: type[S]) -> Sequence[S]:
    if "parts" in raw:
        return PartedShards(read_part(raw["parts"]), kind)
    return tuple(read_blob(shard, kind) for shard in list_of(raw, "shards"))


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = of_type(raw, dict, f"artifact {name!r}")
    if "index" in raw and "indexes" in raw:
        raise ManifestCorruptedError("an artifact has one member index and several")
    indexes = [raw["index"]] if "index" in raw else list_of(raw, "indexes", optional=True, limit=MAX_INDEXES)
    refs = tuple(read_blob(index, MemberIndexRef) for index in indexes)
    part = ArtifactPart(text_of(raw, "kind", KIND), _shards(raw, BlobRef), refs)
    if part.is_tar and not part.indexes:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    if not part.is_tar and not isinstance(
        part.shards, PartedShards
    ):  # whose parts are checked when they are read
        names = [shard.name for shard in part.shards]
        if None in names or len(set(names)) != len(names):
            raise ManifestCorruptedError(f"the shards of artifact {name!r} have no unique names")
    return part


def _binding(raw: Any) -> Binding:
    raw = {"addressing": "member", **of_type(raw, dict, "a binding")}
    names = Binding.__dataclass_fields__
    binding = Binding(*[of_type(raw.get(name), str, f"{name} of a binding") for name in names])
    if binding.ref_type not in REF_TYPES or binding.addressing not in ADDRESSINGS:
        kinds = f"{binding.ref_type!r} or addressing {binding.addressing!r}"
        raise ManifestCorruptedError(f"a binding of unknown type {kinds}")
    return binding


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The JSON object of a manifest, its version hash included."""
    raw: dict[str, Any] = {
        "dataset_id": manifest.dataset_id,
        "tables": {name: _part_json(part) for name, part in manifest.tables.items()},
        "artifacts": {name: _part_json(part) for name, part in manifest.artifacts.items()},
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


def _part_json(part: TablePart | ArtifactPart) -> dict[str, Any]:
    shards = part.shards
    raw: dict[str, Any] = (
        {"parts": blob_json(shards.root)}
        if isinstance(shards, PartedShards)
        else {"shards": [_placed_json(shard) for shard in shards]}
    )
    if isinstance(part, TablePart):
        schema = {"fields": [dict(field) for field in part.fields], "ipc": part.schema_ipc}
        raw |= {"format": part.format, "schema": schema}
        return raw if part.guide is None else {**raw, "guide": _placed_json(part.guide)}
    raw["kind"] = part.kind
    if len(part.indexes) == 1:
        raw["index"] = _placed_json(part.indexes[0])
    elif part.indexes:
        raw["indexes"] = [blob_json(index) for index in part.indexes]
    return raw


def _placed_json(blob: BlobRef) -> dict[str, Any]:
    return {"uri": blob.uri or blob.key, **blob_json(blob)}


@dataclass(frozen=True, slots=True)
class Pointer:
    """The version a name points at; `sequence` grows with every move."""

    version: str
    sequence: int
    previous: str | None = None


def pack_pointer(pointer: Pointer) -> bytes:
    """The JSON of a pointer."""
    return dump_json(asdict(pointer)) + b"\n"


def unpack_pointer(data: memoryview | bytes, path: str) -> Pointer:
    """A pointer from untrusted bytes."""
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        previous = None if raw.get("previous") is None else text_of(raw, "previous", HASH)
        return Pointer(text_of(raw, "version", HASH), count_of(raw, "sequence"), previous)
    except (FormatError, ManifestCorruptedError) as error:
        hint = (
            "Delete this file, then publish again or set the tag again; versions still open by their hashes."
        )
        raise ManifestCorruptedError(f"the pointer is damaged: {error}", path=path, hint=hint) from None


def directory_end(shard_count: int) -> int:
    """Where the sections of a guide of so many shards begin."""
    return layout.GUIDE_HEADER.size + shard_count * layout.GUIDE_ENTRY.size


@dataclass(frozen=True, slots=True)
class ShardGuide:
    """What is known of one shard before any of it is read."""

    page_sums: NDArray[np.uint32]
    tail: bytes


def pack_guide(shards: Sequence[ShardGuide]) -> bytes:
    """The bytes of a guide."""
    sections, entries = [], []
    position = directory_end(len(shards))
    for shard in shards:
        sums = shard.page_sums.astype("<u4").tobytes()
        places = (position, len(shard.page_sums), position + len(sums), len(shard.tail))
        entries.append(layout.GuideEntry(*places, crc32c(sums), crc32c(shard.tail)))
        sections += [sums, shard.tail]
        position += len(sums) + len(shard.tail)
    directory = b"".join(layout.GUIDE_ENTRY.pack(*entry) for entry in entries)
    header = layout.GuideHeader(
        layout.GUIDE_MAGIC, layout.GUIDE_PAGE_BYTES, crc32c(directory), len(shards), position
    )
    return layout.GUIDE_HEADER.pack(*header) + directory + b"".join(sections)


class Guide:
    """A guide being read: small ones at once, large ones shard by shard."""

    def __init__(self, reader: RangeReader, shard_count: int) -> None:
        self._reader = reader
        end = reader.size if reader.size <= layout.GUIDE_AT_ONCE_BYTES else directory_end(shard_count)

        def read() -> list[layout.GuideEntry]:
            self._head = reader.read(0, min(end, reader.size))
            return _directory(self._head, reader, shard_count)

        self._entries = retry_damaged(reader, read)

    def shard(self, number: int) -> ShardGuide:
        """What is known of shard `number`."""
        entry = self._entries[number]

        def read() -> ShardGuide:
            sums, tail = self._sections(entry)
            if crc32c(sums) != entry.sums_crc32c or crc32c(tail) != entry.tail_crc32c:
                self._head = memoryview(b"")  # sections are read one by one from now on
                raise ChecksumError(f"the guide to shard {number} is damaged", path=self._reader.name)
            return ShardGuide(np.frombuffer(sums, "<u4"), bytes(tail))

        return retry_damaged(self._reader, read, [(entry.sums_offset, entry.tail_offset + entry.tail_bytes)])

    def _sections(self, entry: layout.GuideEntry) -> tuple[memoryview, memoryview]:
        sums_end = entry.sums_offset + 4 * entry.page_count
        tail_end = entry.tail_offset + entry.tail_bytes
        if tail_end <= self._head.nbytes:
            return self._head[entry.sums_offset : sums_end], self._head[entry.tail_offset : tail_end]
        both = self._reader.read(entry.sums_offset, tail_end)
        return both[: sums_end - entry.sums_offset], both[entry.tail_offset - entry.sums_offset :]


def _directory(head: memoryview, reader: RangeReader, shard_count: int) -> list[layout.GuideEntry]:
    end = directory_end(shard_count)
    if head.nbytes < end:
        raise CorruptLayoutError("the guide is too short for its shards", path=reader.name)
    header = layout.GuideHeader(*layout.GUIDE_HEADER.unpack(head[: layout.GUIDE_HEADER.size]))
    if header.magic != layout.GUIDE_MAGIC:
        raise BadMagicError("not a guide", path=reader.name)
    good = (layout.GUIDE_PAGE_BYTES, shard_count, reader.size)
    if (header.page_bytes, header.shard_count, header.file_bytes) != good:
        raise CorruptLayoutError("the guide does not fit its table", path=reader.name)
    directory = bytes(head[layout.GUIDE_HEADER.size : end])
    if crc32c(directory) != header.directory_crc32c:
        raise ChecksumError("the directory of the guide is damaged", path=reader.name)
    entries = [layout.GuideEntry(*fields) for fields in layout.GUIDE_ENTRY.iter_unpack(directory)]
    position = end  # sections follow each other without holes and overlaps, and end where the guide ends
    for entry in entries:
        if entry.tail_bytes > layout.MAX_TAIL_BYTES:
            raise LimitExceededError("a tail in the guide is too large", path=reader.name)
        if entry.sums_offset != position or entry.tail_offset != position + 4 * entry.page_count:
            raise CorruptLayoutError("the sections of the guide are out of place", path=reader.name)
        position = entry.tail_offset + entry.tail_bytes
    if position != reader.size:
        raise CorruptLayoutError("the guide does not end where its sections do", path=reader.name)
    return entries
