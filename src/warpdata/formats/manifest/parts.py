"""Long lists of shards in content-addressed parts: a tree whose borders follow from the content.

The same list is the same tree, however it was built; a change rewrites the parts it touches and those above
them. A reader fetches the parts it needs.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar, overload

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import ConflictError, FormatError, ManifestCorruptedError
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.model import (
    HASH,
    BlobRef,
    LongList,
    Manifest,
    TablePart,
    TableShard,
    canonical_json,
    count_of,
    list_of,
    of_type,
    shard_json,
    text_of,
)

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
