"""Long lists of shards in content-addressed parts: a tree whose borders follow from the content.

The same list is the same tree, whoever built it in whatever steps; a change rewrites the parts it touches and
those above them. A reader fetches what it looks at.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import ConflictError, FormatError, ManifestCorruptedError
from warpdata.formats.manifest import layout, model
from warpdata.formats.manifest.canonical import canonical_json
from warpdata.formats.manifest.fields import count_of, list_of, of_type, text_of
from warpdata.formats.manifest.model import ArtifactPart, BlobRef, LongList, Manifest, TablePart, TableShard

S = TypeVar("S", bound=BlobRef)

_REMEMBERED_PARTS = 2048
_TOGETHER = 64
"""How many parts are fetched at the same time when a list is gone through."""

_CUT_BELOW = (1 << 32) // layout.PART_CUT_ONE_IN


@dataclass(frozen=True, slots=True)
class PartRef(BlobRef):
    """One part of a list: how high it lies, and what is below it."""

    level: int = 0
    count: int = 0
    total_bytes: int = 0
    total_rows: int = 0
    is_sorted: bool = False
    """Whether the names below it ascend."""
    first: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Names, in order, that can only be below one part, and how many shards are before it."""

    ref: PartRef
    before: int
    names: list[str]

    def in_children(self, children: Sequence[PartRef]) -> Iterator[_Lookup]:
        """The same names, each with the one part of the next level that it can be in."""
        start, before = 0, self.before
        for child in children:
            end = bisect.bisect_right(self.names, str(child.last), start)
            if end > start:
                yield _Lookup(child, before, self.names[start:end])
            start, before = end, before + child.count


PartSource = Callable[[Sequence[BlobRef]], Sequence[bytes | memoryview]]
"""Fetches the bytes of parts, all of them together."""

Entry = BlobRef
"""A shard, or a part."""


def root_of(raw: Any) -> PartRef:
    """The uppermost part of a list, as a manifest names it."""
    return _part_of(of_type(raw, dict, "the parts of a list"))


def part_json(ref: PartRef) -> dict[str, Any]:
    """How a part is named in the manifest and in the part above it."""
    raw: dict[str, Any] = {
        "hash": ref.hash, "byte_size": ref.byte_size, "level": ref.level, "count": ref.count,
        "total_bytes": ref.total_bytes, "total_rows": ref.total_rows, "sorted": ref.is_sorted,
    }  # fmt: skip
    if ref.is_sorted:
        raw |= {"first": ref.first, "last": ref.last}
    return raw


class PartedShards(LongList[S], Generic[S]):
    """The shards of a long list, fetched part by part as somebody looks at them."""

    def __init__(self, root: PartRef, item_of: Callable[[Any], S], source: PartSource | None = None) -> None:
        self.root = root
        self._item_of = item_of
        self._source = source
        self._lock = ThreadLock()
        self._known: OrderedDict[str, tuple[Entry, ...]] = OrderedDict()

    def reached(self, source: PartSource) -> PartedShards[S]:
        """The same list, its parts fetched from `source`."""
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
        while True:
            entries = self.entries(ref)
            if ref.level == 0:
                return entries[number]
            for child in entries:
                assert isinstance(child, PartRef)
                if number < child.count:
                    ref = child
                    break
                number -= child.count

    def __iter__(self) -> Iterator[S]:
        for ref in self._below(self.root, 0):
            yield from self.entries(ref)  # type: ignore[misc]

    def find(self, names: Sequence[str]) -> list[int | None]:
        """Where the shards of these names stand, None for those that are not there."""
        return [None if place is None else place[0] for place in self.places(names)]

    def places(self, names: Sequence[str]) -> list[tuple[int, S] | None]:
        """The shards of these names and where they stand, None for those that are not there.

        A level is fetched at once, and every part is looked at once, however many of its shards are asked for.
        """
        if not self.root.is_sorted:
            positions = self._positions()
            return [positions.get(name) for name in names]
        found: dict[str, tuple[int, S]] = {}
        level = [_Lookup(self.root, 0, sorted(set(names)))] if names else []
        while level:
            below: list[_Lookup] = []
            for look, entries in zip(level, self.many([look.ref for look in level]), strict=True):
                if look.ref.level == 0:
                    there: dict[str, tuple[int, Any]] = {
                        str(entry.name): (look.before + number, entry) for number, entry in enumerate(entries)
                    }
                    found |= {name: there[name] for name in look.names if name in there}
                else:
                    below += look.in_children([entry for entry in entries if isinstance(entry, PartRef)])
            level = below
        return [found.get(name) for name in names]

    def part_blobs(self) -> list[BlobRef]:
        """The blobs the list itself lies in."""
        return list(self.unseen_parts(set()))

    def unseen_parts(self, seen: set[str]) -> Iterator[PartRef]:
        """Its parts but for those in `seen` and what is below them; all of them are in `seen` afterwards.

        Parts that many versions share are so gone through once.
        """
        level: list[PartRef] = [] if self.root.hash in seen else [self.root]
        while level:
            seen.update(ref.hash for ref in level)
            yield from level
            below: dict[str, PartRef] = {}
            for entries in self.many([ref for ref in level if ref.level > 0]):
                below |= {
                    child.hash: child
                    for child in entries
                    if isinstance(child, PartRef) and child.hash not in seen
                }
            level = list(below.values())

    def leaf_shards(self, refs: Iterable[PartRef]) -> Iterator[S]:
        """The shards of those of the parts that hold shards."""
        for entries in self.many([ref for ref in refs if ref.level == 0]):
            yield from entries  # type: ignore[misc]

    def many(self, refs: Sequence[PartRef]) -> Iterator[tuple[Entry, ...]]:
        """What each of many parts holds."""
        for start in range(0, len(refs), _TOGETHER):
            yield from self._fetched(refs[start : start + _TOGETHER])

    def entries(self, ref: PartRef) -> tuple[Entry, ...]:
        """What a part holds: shards at level 0, else parts."""
        return self._fetched([ref])[0]

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

    def _below(self, ref: PartRef, level: int) -> Iterator[PartRef]:
        """The parts of one level in order, those that follow fetched along."""
        if ref.level == level:
            self._fetched([ref])
            yield ref
            return
        children = [child for child in self.entries(ref) if isinstance(child, PartRef)]
        for start in range(0, len(children), _TOGETHER):
            group = children[start : start + _TOGETHER]
            self._fetched(group)
            for child in group:
                yield from self._below(child, level)

    def _positions(self) -> dict[str, tuple[int, S]]:
        """Every name with its shard and where it stands: for lists that are in no order."""
        found: dict[str, tuple[int, S]] = {}
        for number, shard in enumerate(self):
            if shard.name is None or shard.name in found:
                raise ManifestCorruptedError("the shards of a list have no names of their own")
            found[shard.name] = number, shard
        return found

    def _fetched(self, refs: Sequence[PartRef]) -> list[tuple[Entry, ...]]:
        with self._lock:
            found = {ref.hash: self._known[ref.hash] for ref in refs if ref.hash in self._known}
        missing = list({ref.hash: ref for ref in refs if ref.hash not in found}.values())
        if missing:
            if self._source is None:
                hint = "This is a bug of warpdata: please report it."
                raise ManifestCorruptedError("a long list of shards is out of reach", hint=hint)
            for ref, data in zip(missing, self._source(missing), strict=True):
                found[ref.hash] = self._parsed(ref, data)
        with self._lock:
            for ref in refs:
                self._known[ref.hash] = found[ref.hash]
                self._known.move_to_end(ref.hash)
            while len(self._known) > _REMEMBERED_PARTS:
                self._known.popitem(last=False)
        return [found[ref.hash] for ref in refs]

    def _parsed(self, ref: PartRef, data: bytes | memoryview) -> tuple[Entry, ...]:
        """A part out of untrusted bytes: it must be what its hash and whoever names it say."""
        if len(data) != ref.byte_size or sha256_hex(data) != ref.hash:
            hint = "Run `warp repair` on the dataset, or `warp cache gc` if only this machine has it wrong."
            raise ManifestCorruptedError("a part of a manifest is damaged", path=ref.key, hint=hint)
        try:
            raw = parse_json_object(data, max_bytes=layout.MAX_PART_BYTES)
        except FormatError as error:
            raise ManifestCorruptedError(f"a part is not JSON: {error}", path=ref.key) from None
        items = list_of(raw, "entries", limit=layout.PART_MAX_ENTRIES)
        entries: tuple[Entry, ...] = tuple(
            self._item_of(item) if ref.level == 0 else _part_of(of_type(item, dict, "a part"))
            for item in items
        )
        if _summed(entries, ref) != ref:
            raise ManifestCorruptedError("a part is not what it is said to be", path=ref.key)
        return entries


def unseen_blobs(manifest: Manifest, seen_parts: set[str]) -> Iterator[BlobRef]:
    """Every blob of a version, but for long lists only what is below parts that are not in `seen_parts`."""
    every: list[TablePart | ArtifactPart] = [*manifest.tables.values(), *manifest.artifacts.values()]
    for part in every:
        if not isinstance(part.shards, PartedShards):
            yield from part.blobs()
            continue
        new = list(part.shards.unseen_parts(seen_parts))
        yield from new
        for shard in part.shards.leaf_shards(new):
            yield shard
            if isinstance(shard, TableShard) and shard.guide is not None:
                yield shard.guide
        if isinstance(part, ArtifactPart):
            yield from part.indexes
        elif part.guide is not None:
            yield part.guide


def differing(old: Sequence[S], new: Sequence[S]) -> tuple[list[S], list[S]]:
    """The shards only one of two lists has; parts that both have are not looked at."""
    if not (isinstance(old, PartedShards) and isinstance(new, PartedShards)):
        return _only_in(old, new), _only_in(new, old)
    sides: list[dict[str, PartRef]] = [{old.root.hash: old.root}, {new.root.hash: new.root}]
    lists = (old, new)
    for level in range(max(old.root.level, new.root.level), 0, -1):
        both = sides[0].keys() & sides[1].keys()
        sides = [{h: ref for h, ref in side.items() if h not in both} for side in sides]
        for side, shards in zip(sides, lists, strict=True):
            here = [ref for ref in side.values() if ref.level == level]
            for ref, entries in zip(here, shards.many(here), strict=True):
                del side[ref.hash]
                side.update({entry.hash: entry for entry in entries if isinstance(entry, PartRef)})
    both = sides[0].keys() & sides[1].keys()
    leaves = [[ref for h, ref in side.items() if h not in both] for side in sides]
    before, after = ([*shards.leaf_shards(refs)] for shards, refs in zip(lists, leaves, strict=True))
    return _only_in(before, after), _only_in(after, before)


def _only_in(one: Sequence[S], other: Sequence[S]) -> list[S]:
    known = {(shard.hash, shard.name) for shard in other}
    return [shard for shard in one if (shard.hash, shard.name) not in known]


@dataclass(frozen=True, slots=True)
class Packed(Generic[S]):
    """A list of shards as a manifest holds it, and the parts that are new."""

    shards: Sequence[S]
    blobs: Mapping[str, bytes]
    """The bytes of new parts by hash."""


def packed_shards(shards: Sequence[S], item_of: Callable[[Any], S]) -> Packed[S]:
    """A list of shards in parts if it is long and all of them are where the catalog keeps blobs."""
    if isinstance(shards, PartedShards) or len(shards) <= layout.FLAT_SHARDS:
        return Packed(shards, {})
    if any(shard.is_elsewhere for shard in shards):
        return Packed(shards, {})
    return _Packing[S](None, item_of).packed(shards)


def with_added(
    base: Sequence[S], added: Sequence[S], item_of: Callable[[Any], S], *, at_end: bool = False
) -> Packed[S]:
    """A list with shards of new names at their places by name, where it is in order; else, or if asked, at its end.

    A name that is there with the same hash is not added again; with another hash it is a ConflictError.
    """
    fresh = _fresh(base, added)
    if not fresh:
        return packed_shards(base, item_of)
    if isinstance(base, PartedShards):
        packing = _Packing(base, item_of)
        if base.root.is_sorted and not at_end:
            in_order = sorted(fresh, key=lambda shard: str(shard.name))
            return packing.packed(list(packing.merged(base.root, in_order)))
        return packing.packed([base.root, *fresh])
    joined = [*base, *fresh]
    if _are_sorted(base) and not at_end:
        joined.sort(key=lambda shard: str(shard.name))
    return packed_shards(tuple(joined), item_of)


def with_tail(base: Sequence[S], kept: int, tail: Sequence[S], item_of: Callable[[Any], S]) -> Packed[S]:
    """The first `kept` shards of a list, then others."""
    if isinstance(base, PartedShards):
        packing = _Packing(base, item_of)
        return packing.packed([*packing.head(base.root, kept), *tail])
    return packed_shards((*base[:kept], *tail), item_of)


def find_shard(shards: Sequence[BlobRef], name: str) -> int | None:
    """Where the shard of this name stands in a list; None where there is none."""
    if isinstance(shards, PartedShards):
        return shards.find([name])[0]
    return next((number for number, shard in enumerate(shards) if shard.name == name), None)


def _fresh(base: Sequence[S], added: Sequence[S]) -> list[S]:
    """Those of the shards that are not there yet, each once."""
    if any(shard.name is None for shard in added):
        raise ValueError("shards without names cannot be added to a list by name")
    fresh: dict[str, S] = {}
    there = _by_names(base, [str(shard.name) for shard in added])
    for shard in added:
        assert shard.name is not None
        held = fresh.get(shard.name) or there.get(shard.name)
        if held is None:
            fresh[shard.name] = shard
        elif held.hash != shard.hash:
            fact = (
                f"{shard.name!r} is there already with other bytes ({held.hash[:12]}, not {shard.hash[:12]})"
            )
            hint = "Nothing was published. Give the new one another name, or publish the whole list anew."
            raise ConflictError(fact, hint=hint)
    return list(fresh.values())


def _by_names(base: Sequence[S], names: Sequence[str]) -> dict[str, S]:
    """Those of the names that are in a list."""
    if not isinstance(base, PartedShards):
        return {str(shard.name): shard for shard in base}
    found = zip(names, base.find(names), strict=True)
    return {name: base[number] for name, number in found if number is not None}


class _Packing(Generic[S]):
    """Entries packed into parts, level by level; parts of an older list pass whole where nothing changed."""

    def __init__(self, base: PartedShards[S] | None, item_of: Callable[[Any], S]) -> None:
        self._base = base
        self._item_of = item_of
        self._blobs: dict[str, bytes] = {}
        self._made: dict[str, tuple[Entry, ...]] = {}
        # The last part of each level ended because the list did, not by its content.
        self._unfinished = {base.root.hash} if base is not None else set()

    def packed(self, entries: Sequence[Entry]) -> Packed[S]:
        """The list these entries are, in parts unless it is short."""
        level, found = 0, self._level(entries, 0)
        while len(found) > 1:
            level += 1
            found = self._level(found, level)
        root = found[0]
        while root.level > 0 and len(below := self._entries(root)) == 1:
            root = self._as_part(below[0])
        if root.count <= layout.FLAT_SHARDS:
            flat = PartedShards(root, self._item_of, self._source)
            return Packed(tuple(flat), {})
        used = self._used(root)
        return Packed(PartedShards(root, self._item_of, self._source), used)

    def merged(self, ref: PartRef, added: Sequence[S]) -> Iterator[Entry]:
        """What is below a part, with shards put in by name; parts that get none stay whole."""
        if not added:
            yield ref
            return
        entries = self._entries(ref)
        if ref.level == 0:
            every: list[Entry] = [*entries, *added]
            yield from sorted(every, key=lambda entry: str(entry.name))
            return
        start = 0
        for number, child in enumerate(entries):
            part = self._as_part(child)
            end = start
            is_last = number == len(entries) - 1
            while end < len(added) and (is_last or str(added[end].name) <= str(part.last)):
                end += 1
            yield from self.merged(part, added[start:end])
            start = end

    def head(self, ref: PartRef, count: int) -> Iterator[Entry]:
        """The first shards below a part; parts that are all kept stay whole."""
        if count >= ref.count:
            yield ref
            return
        entries = self._entries(ref)
        if ref.level == 0:
            yield from entries[:count]
            return
        for child in entries:
            if count <= 0:
                return
            part = self._as_part(child)
            yield from self.head(part, count)
            count -= part.count

    def _level(self, entries: Sequence[Entry], level: int) -> list[PartRef]:
        """Entries of lower levels packed into parts of this level; higher ones pass where a part begins."""
        waiting: deque[Entry] = deque(entries)
        current: list[Entry] = []
        found: list[PartRef] = []
        while waiting:
            entry = waiting.popleft()
            if isinstance(entry, PartRef) and entry.level >= level:
                if not current and (entry.hash not in self._unfinished or not waiting):
                    found.append(entry)
                else:
                    waiting.extendleft(reversed(self._entries(entry)))
                continue
            current.append(entry)
            if _ends_part(entry, len(current)):
                found.append(self._made_part(current, level))
                current = []
        if current or not found:
            found.append(self._made_part(current, level))
        return found

    def _made_part(self, entries: list[Entry], level: int) -> PartRef:
        raw = {"entries": [_entry_json(entry) for entry in entries]}
        data = canonical_json(raw)
        ref = _summed(entries, PartRef(sha256_hex(data), len(data), level=level))
        self._blobs[ref.hash] = data
        self._made[ref.hash] = tuple(entries)
        return ref

    def _entries(self, ref: PartRef) -> tuple[Entry, ...]:
        made = self._made.get(ref.hash)
        if made is not None:
            return made
        assert self._base is not None
        entries = self._base.entries(ref)
        if ref.hash in self._unfinished and ref.level > 0:
            self._unfinished.add(entries[-1].hash)
        return entries

    def _source(self, refs: Sequence[BlobRef]) -> list[bytes | memoryview]:
        """Parts that were made here, and those of the older list."""
        older = [ref for ref in refs if ref.hash not in self._blobs]
        assert self._base is not None or not older
        found = dict(zip((ref.hash for ref in older), self._older(older), strict=True))
        return [self._blobs[ref.hash] if ref.hash in self._blobs else found[ref.hash] for ref in refs]

    def _older(self, refs: Sequence[BlobRef]) -> Sequence[bytes | memoryview]:
        if not refs:
            return []
        assert self._base is not None
        assert self._base._source is not None
        return self._base._source(refs)

    def _used(self, root: PartRef) -> dict[str, bytes]:
        """The new parts the list is made of: some were made on the way only."""
        used: dict[str, bytes] = {}
        todo: list[Entry] = [root]
        while todo:
            entry = todo.pop()
            if isinstance(entry, PartRef) and entry.hash in self._blobs:
                used[entry.hash] = self._blobs[entry.hash]
                todo += self._made[entry.hash]
        return used

    @staticmethod
    def _as_part(entry: Entry) -> PartRef:
        assert isinstance(entry, PartRef)
        return entry


def _ends_part(entry: Entry, count: int) -> bool:
    """Whether a part ends behind this entry, which is its `count`-th."""
    if count < layout.PART_MIN_ENTRIES:
        return False
    if count >= layout.PART_MAX_ENTRIES:
        return True
    name = entry.last if isinstance(entry, PartRef) else entry.name
    drawn = hashlib.sha256(f"{entry.hash} {name or ''}".encode()).digest()
    return int.from_bytes(drawn[:4], "big") < _CUT_BELOW


def _are_sorted(entries: Sequence[Entry]) -> bool:
    """Whether every entry has a name and the names ascend."""
    before: str | None = None
    for entry in entries:
        first, last = (entry.first, entry.last) if isinstance(entry, PartRef) else (entry.name, entry.name)
        if first is None or (before is not None and first <= before):
            return False
        before = last
    return True


def _summed(entries: Sequence[Entry], ref: PartRef) -> PartRef:
    """A part as its entries say it must be."""
    parts = [entry for entry in entries if isinstance(entry, PartRef)]
    if len(parts) not in (0, len(entries)) or any(part.level != ref.level - 1 for part in parts):
        raise ManifestCorruptedError("a part holds entries of another level", path=ref.key)
    if bool(parts) != (ref.level > 0):
        raise ManifestCorruptedError("a part is at another level than it is said to be", path=ref.key)
    is_sorted = bool(entries) and _are_sorted(entries)
    if parts:
        sums = (
            sum(p.count for p in parts),
            sum(p.total_bytes for p in parts),
            sum(p.total_rows for p in parts),
        )
        names = parts[0].first, parts[-1].last
    else:
        rows = sum(entry.row_count for entry in entries if isinstance(entry, TableShard))
        sums = len(entries), sum(entry.byte_size for entry in entries), rows
        names = (entries[0].name, entries[-1].name) if entries else (None, None)
    return PartRef(
        ref.hash, ref.byte_size, level=ref.level, count=sums[0], total_bytes=sums[1], total_rows=sums[2],
        is_sorted=is_sorted, first=names[0] if is_sorted else None, last=names[1] if is_sorted else None,
    )  # fmt: skip


def _entry_json(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, PartRef):
        return part_json(entry)
    raw: dict[str, Any] = {"hash": entry.hash, "byte_size": entry.byte_size}
    if entry.name is not None:
        raw["name"] = entry.name
    if isinstance(entry, TableShard):
        raw["row_count"] = entry.row_count
        if entry.guide is not None:
            raw["guide"] = {"hash": entry.guide.hash, "byte_size": entry.guide.byte_size}
    return raw


def _part_of(raw: dict[str, Any]) -> PartRef:
    level, is_sorted = count_of(raw, "level"), raw.get("sorted")
    if level > layout.MAX_PART_LEVEL or not isinstance(is_sorted, bool):
        raise ManifestCorruptedError("a part is of an unknown kind")
    size = count_of(raw, "byte_size")
    if size > layout.MAX_PART_BYTES:
        raise ManifestCorruptedError("a part is too large")
    names = [
        of_type(raw.get(key), str, f"the {key} name of a part") for key in ("first", "last") if is_sorted
    ]
    first, last = names if is_sorted else (None, None)
    return PartRef(
        text_of(raw, "hash", model.HASH), size, level=level, count=count_of(raw, "count"),
        total_bytes=count_of(raw, "total_bytes"), total_rows=count_of(raw, "total_rows"),
        is_sorted=is_sorted, first=first, last=last,
    )  # fmt: skip
