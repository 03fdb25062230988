"""Long lists of shards in parts: one list is one tree however it came about, and only what changed is new."""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.checksum import sha256_hex
from warpdata.errors import ConflictError, ManifestCorruptedError
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.codec import pack_manifest, parse_manifest
from warpdata.formats.manifest.model import (
    ArtifactPart,
    BlobRef,
    Manifest,
    PartedShards,
    PartRef,
    TableShard,
    blob_json,
    canonical_json,
    packed_shards,
    read_part,
    with_added,
    with_tail,
)


def shard(name: str, size: int = 7) -> BlobRef:
    return BlobRef(sha256_hex(f"bytes of {name}".encode()), size, name=name)


def shards(count: int) -> list[BlobRef]:
    return [shard(f"{number:08d}.wshard", number % 1000) for number in range(count)]


def find_shard(parted: PartedShards, name: str) -> int | None:
    (place,) = parted.places([name])
    return None if place is None else place[0]


class Kept:
    """A store of parts that counts what is asked of it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []

    def __call__(self, refs: Sequence[BlobRef]) -> list[bytes]:
        self.asked += [ref.hash for ref in refs]
        return [self.blobs[ref.hash] for ref in refs]

    def opened(self, packed) -> PartedShards:
        """The list as a reader finds it: through the manifest's JSON."""
        self.blobs |= packed.blobs
        assert isinstance(packed.shards, PartedShards)
        self.asked.clear()
        root = read_part(json.loads(canonical_json(blob_json(packed.shards.root))))
        return PartedShards(root, packed.shards.kind, self)


def test_a_short_list_stays_in_the_manifest() -> None:
    few = tuple(shards(layout.FLAT_SHARDS))
    assert packed_shards(few).shards == few
    assert isinstance(packed_shards((*few, shard("z"))).shards, PartedShards)
    elsewhere = (*few, BlobRef("a" * 64, 1, "s3://other/place/x", "z"))
    assert packed_shards(elsewhere).shards == elsewhere


def test_a_long_list_reads_like_a_tuple_and_fetches_what_is_looked_at() -> None:
    kept, every = Kept(), shards(20_000)
    parted = kept.opened(packed_shards(tuple(every)))
    assert (len(parted), parted.byte_size) == (20_000, sum(s.byte_size for s in every))
    assert kept.asked == []
    assert parted[12_345] == every[12_345]
    assert find_shard(parted, every[12_345].name) == 12_345
    assert len(kept.asked) == parted.root.level + 1, "one part of each level"
    assert parted[-1] == every[-1]
    assert parted[5:2000:700] == tuple(every[5:2000:700])
    assert find_shard(parted, "00001234.wshard ") is None
    assert find_shard(parted, "zzz") is None
    wanted = [every[n].name for n in (19_999, 5, 5, 7000)] + ["", "00000005.wshard0"]
    assert [place and place[0] for place in parted.places(wanted)] == [19_999, 5, 5, 7000, None, None]
    assert parted.places([]) == []
    with pytest.raises(IndexError):
        parted[20_000]
    assert tuple(parted) == tuple(every)
    assert parted == kept.opened(packed_shards(tuple(every)))
    assert {ref.hash for ref in parted.part_blobs()} == set(kept.blobs)


def test_ten_new_ones_among_many_write_few_parts() -> None:
    kept, every = Kept(), shards(20_000)
    parted = kept.opened(packed_shards(tuple(every)))
    for new in (
        [shard(f"{number:08d}.wshard") for number in range(20_000, 20_010)],
        [shard(f"{number:08d}.wshard.b") for number in range(0, 20_000, 2000)],
    ):
        kept.asked.clear()
        packed = with_added(parted, new)
        assert sum(map(len, packed.blobs.values())) < 500_000
        assert len(packed.blobs) <= 3 * 10 + 5
        assert len(set(kept.asked)) <= 3 * 10 + 5
        scratch = packed_shards(tuple(sorted([*every, *new], key=lambda s: s.name)))
        assert packed.shards == scratch.shards


@st.composite
def histories(draw):
    """Sizes of a list as it grows, and where the new ones go."""
    seed = draw(st.integers(0, 2**32))
    steps = draw(st.lists(st.integers(0, 900), min_size=1, max_size=5))
    return random.Random(seed), steps


@settings(max_examples=enough_examples(12), deadline=None)
@given(histories())
def test_any_history_gives_the_tree_of_the_whole_list(history) -> None:
    """The slow obvious reference: pack all that is there, from nothing."""
    dice, steps = history
    kept = Kept()
    names: list[str] = []
    current: Sequence[BlobRef] = ()
    for step in steps:
        style = dice.random()
        new = [
            f"{dice.randrange(10**9):09d}" if style < 0.7 else f"{len(names) + i:012d}" for i in range(step)
        ]
        new = [name for name in dict.fromkeys(new) if name not in set(names)]
        for name in new:
            bisect.insort(names, name)
        again = dice.sample(names, min(3, len(names)))
        packed = with_added(current, [shard(name) for name in dice.sample(new, len(new)) + again])
        reference = packed_shards(tuple(shard(name) for name in names))
        assert packed.shards == reference.shards
        current = kept.opened(packed) if isinstance(packed.shards, PartedShards) else packed.shards
        assert tuple(current) == tuple(shard(name) for name in names)


@settings(max_examples=enough_examples(12), deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700)), max_size=6))
def test_any_history_of_tails_gives_the_tree_of_the_whole_list(seed: int, steps) -> None:
    dice, kept = random.Random(seed), Kept()
    rows: list[TableShard] = []
    current: Sequence[TableShard] = ()
    for dropped, added in steps:
        stay = max(0, len(rows) - dropped)
        tail = [
            TableShard(sha256_hex(dice.randbytes(4)), dice.randrange(9), row_count=dice.randrange(99),
                       guide=BlobRef("c" * 64, 3) if dice.random() < 0.5 else None)
            for _ in range(added)
        ]  # fmt: skip
        rows = rows[:stay] + tail
        packed = with_tail(current, stay, tail)
        assert packed.shards == packed_shards(tuple(rows)).shards
        current = kept.opened(packed) if isinstance(packed.shards, PartedShards) else packed.shards
        assert tuple(current) == tuple(rows)


def test_the_same_name_with_other_bytes_is_a_conflict() -> None:
    kept, every = Kept(), shards(1000)
    parted = kept.opened(packed_shards(tuple(every)))
    other = BlobRef("0" * 64, 7, name=every[500].name)
    for base in (parted, tuple(every)):
        with pytest.raises(ConflictError, match="there already with other bytes"):
            with_added(base, [other])
        assert with_added(base, [every[500]]).blobs in (
            {},
            dict(packed_shards(tuple(every)).blobs),
        )


def test_lists_without_an_order_keep_the_one_they_have() -> None:
    kept, every = Kept(), shards(1000)
    random.Random(1).shuffle(every)
    parted = kept.opened(packed_shards(tuple(every)))
    grown = with_added(parted, [shard("a"), shard("b")])
    assert tuple(grown.shards) == (*every, shard("a"), shard("b"))
    assert find_shard(grown.shards, every[77].name) == 77


def damaged(change) -> tuple[PartedShards, Kept]:
    """A list whose leaf was changed by somebody who made every hash above it fit again."""
    kept = Kept()
    parted = kept.opened(packed_shards(tuple(shards(300))))
    assert parted.root.level == 1
    above = json.loads(kept.blobs[parted.root.hash])
    entry = above["entries"][0]
    leaf = json.loads(kept.blobs[entry["hash"]])
    change(leaf, entry, above)
    data = canonical_json(leaf)
    kept.blobs[sha256_hex(data)] = data
    entry |= {"hash": sha256_hex(data), "byte_size": len(data)}
    top = canonical_json(above)
    kept.blobs[sha256_hex(top)] = top
    raw = blob_json(parted.root) | {"hash": sha256_hex(top), "byte_size": len(top)}
    return PartedShards(read_part(raw), BlobRef, kept), kept


HOSTILE = {
    "a shard too few": lambda leaf, entry, above: leaf["entries"].pop(),
    "another size": lambda leaf, entry, above: leaf["entries"][0].update(byte_size=99),
    "a negative size": lambda leaf, entry, above: leaf["entries"][0].update(byte_size=-1),
    "two of one name": lambda leaf, entry, above: leaf["entries"][1].update(name=leaf["entries"][0]["name"]),
    "an unsafe name": lambda leaf, entry, above: leaf["entries"][0].update(name="../x"),
    "no hash": lambda leaf, entry, above: leaf["entries"][0].pop("hash"),
    "no entries": lambda leaf, entry, above: leaf.pop("entries"),
    "too many entries": lambda leaf, entry, above: leaf.update(entries=leaf["entries"] * 20),
    "another level": lambda leaf, entry, above: entry.update(level=1),
    "a high level": lambda leaf, entry, above: entry.update(level=99),
    "a huge part": lambda leaf, entry, above: entry.update(byte_size=1 << 40),
    "a count that is none": lambda leaf, entry, above: entry.update(count=True),
    "not said whether sorted": lambda leaf, entry, above: entry.pop("sorted"),
    "another last name": lambda leaf, entry, above: entry.update(last="zzz"),
    "a shard that is a word": lambda leaf, entry, above: leaf["entries"].insert(0, "x"),
    "a part that is a word": lambda leaf, entry, above: above["entries"].append("x"),
    "no entry at all": lambda leaf, entry, above: above["entries"].clear(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_part_that_is_not_what_it_is_said_to_be(name: str) -> None:
    parted, _ = damaged(HOSTILE[name])
    if name == "a huge part":
        above = json.loads(parted._source([parted.root])[0])
        above["entries"][0]["byte_size"] = 1 << 40
        with pytest.raises(ManifestCorruptedError, match="too large"):
            read_part(above["entries"][0])
        return
    with pytest.raises(ManifestCorruptedError):
        list(parted)


def test_a_part_that_is_no_json() -> None:
    kept, data = Kept(), b"{" * 9
    kept.blobs[sha256_hex(data)] = data
    raw = blob_json(kept.opened(packed_shards(tuple(shards(300)))).root)
    root = read_part(raw | {"hash": sha256_hex(data), "byte_size": len(data)})
    with pytest.raises(ManifestCorruptedError, match="a part is not JSON"):
        list(PartedShards(root, BlobRef, kept))


def test_shards_without_names_of_their_own_are_not_found_by_name() -> None:
    alike = [shard("b"), *shards(300), shard("b")]
    parted = Kept().opened(packed_shards(tuple(alike)))
    with pytest.raises(ManifestCorruptedError, match="have no unique names"):
        find_shard(parted, "b")
    with pytest.raises(ValueError, match="shards without names cannot be added to a list by name"):
        with_added(tuple(shards(3)), [BlobRef("a" * 64, 1)])


def test_lists_are_equal_by_what_they_hold() -> None:
    every = shards(300)
    parted = Kept().opened(packed_shards(tuple(every)))
    assert parted == every
    assert parted != every[:-1]
    assert parted != [*every[:-1], shard("z")]
    assert parted != "a word"
    assert hash(parted) == hash(Kept().opened(packed_shards(tuple(every))))


def test_every_flipped_byte_of_a_part_is_found() -> None:
    kept = Kept()
    parted = kept.opened(packed_shards(tuple(shards(300))))
    key = parted.root.hash
    whole = kept.blobs[key]
    for place in range(len(whole)):
        kept.blobs[key] = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(ManifestCorruptedError, match="damaged"):
            PartedShards(parted.root, BlobRef, kept)[0]


def test_a_manifest_with_parts_is_small_and_reads_them_when_asked() -> None:
    kept, every = Kept(), tuple(shards(5000))
    packed = packed_shards(every)
    kept.opened(packed)
    made = Manifest("ws/x", {}, {"episodes": ArtifactPart("wshard_episodes", packed.shards)})
    data = pack_manifest(made)
    assert len(data) < 2000
    found = parse_manifest(data, parts=kept)
    assert found.total_bytes == sum(each.byte_size for each in every)
    assert kept.asked == []
    assert tuple(found.artifacts["episodes"].shards) == every
    assert found.blobs().keys() == {each.hash for each in every} | kept.blobs.keys()
    with pytest.raises(ManifestCorruptedError, match="out of reach"):
        parse_manifest(data).artifacts["episodes"].shards[0]


def test_shared_parts_are_gone_through_once() -> None:
    kept = Kept()
    first = kept.opened(packed_shards(tuple(shards(5000))))
    second = kept.opened(with_added(first, [shard("zzz")]))
    seen: set[str] = set()
    every = list(first.unseen_parts(seen))
    assert all(isinstance(ref, PartRef) for ref in every)
    more = list(second.unseen_parts(seen))
    assert 0 < len(more) <= 4
    assert {each.name for each in second.shards_of(more)} >= {"zzz"}
    assert list(second.unseen_parts(seen)) == []
