"""The manifest format: round trip, golden bytes, specification, damage, hostile input."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.make_golden_manifest import example, guide_shards, main

from tests.conftest import OWN_GOLDEN, ROOT
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import thinned
from warpdata.bytekit.checksum import crc32c, sha256_hex
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.catalog.access import parse_name
from warpdata.catalog.publish.signing import check_signature
from warpdata.errors import FormatError, ManifestCorruptedError, UntrustedError
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.codec import (
    Guide,
    ShardGuide,
    directory_end,
    pack_guide,
    pack_manifest,
    parse_manifest,
    to_json,
    version_hash,
)
from warpdata.formats.manifest.model import canonical_json, parts_of

SPEC = ROOT / "src/warpdata/formats/manifest/SPEC.md"
FOLDERS = [OWN_GOLDEN / "manifest", ROOT / "tests/compat/manifest/0.1"]


def test_spec_and_layout_agree() -> None:
    assert_spec_matches(SPEC, "Guide header", layout.GuideHeader, layout.GUIDE_HEADER)
    assert_spec_matches(SPEC, "Guide entry", layout.GuideEntry, layout.GUIDE_ENTRY)


def test_round_trip() -> None:
    found = parse_manifest(pack_manifest(example()))
    assert to_json(found) == to_json(example())
    assert found.total_rows == 17


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.parent.name)
def test_golden(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), expected_hash=expected["version_hash"])
    assert manifest.version_hash == expected["version_hash"]
    assert sorted(manifest.blobs()) == expected["blobs"]
    assert (manifest.total_rows, manifest.total_bytes) == (expected["total_rows"], expected["total_bytes"])
    guide = Guide(BytesRangeReader((folder / "guide.bin").read_bytes()), 2)
    found = [guide.shard(i) for i in range(2)]
    assert [{"sums": g.page_sums.tolist(), "tail": g.tail.decode()} for g in found] == expected["guide"]


def test_golden_long_lists() -> None:
    folder = OWN_GOLDEN / "manifest"
    expected = json.loads((folder / "expected.json").read_text())["long"]
    parts = json.loads((folder / "long.parts.json").read_text())
    manifest = parse_manifest(
        (folder / "long.json").read_bytes(),
        expected_hash=expected["version_hash"],
        parts=lambda refs: [parts[ref.hash].encode() for ref in refs],
    )
    assert (manifest.total_rows, manifest.total_bytes) == (expected["total_rows"], expected["total_bytes"])
    for name, part in manifest.artifacts.items():
        names = "\n".join(str(shard.name) for shard in part.shards)
        assert sha256_hex(names.encode()) == expected["names"][name]
    shards = manifest.tables["main"].shards
    assert [shard.row_count for shard in shards] == list(range(300))
    assert {
        ref.hash
        for p in [*manifest.artifacts.values(), *manifest.tables.values()]
        for ref in parts_of(p.shards)
    } == set(parts)
    (place,) = manifest.artifacts["episodes"].shards.places(["ep/0123.wshard"])
    assert (place[0], shards[7].guide.byte_size) == (123, 300)


def test_golden_several_indexes() -> None:
    folder = OWN_GOLDEN / "manifest"
    expected = json.loads((folder / "expected.json").read_text())["indexed"]
    data = (folder / "indexed.json").read_bytes()
    manifest = parse_manifest(data, expected_hash=expected["version_hash"])
    assert sorted(manifest.blobs()) == expected["blobs"]
    assert manifest.artifacts["raw"].member_count == expected["members"] == 5
    assert [each.member_count for each in manifest.artifacts["raw"].indexes] == [3, 2]
    assert pack_manifest(manifest) == data


def test_golden_signature() -> None:
    pytest.importorskip("cryptography")
    folder = OWN_GOLDEN / "manifest"
    data, signature = (folder / "manifest.json").read_bytes(), (folder / "notes.sig.json").read_bytes()
    manifest = parse_manifest(data)
    trusted = (json.loads(signature)["public_key"],)
    name = parse_name(manifest.dataset_id)
    found = check_signature(signature, data, name, manifest.version_hash, trusted)
    assert (found.covers, found.public_key) == ("content and notes", trusted[0])
    other = data.replace(b'"ratio": 0.5', b'"ratio": 0.6')
    assert other != data
    for manifest_file, version in ((other, manifest.version_hash), (data, "0" * 64)):
        with pytest.raises(UntrustedError, match="wrong"):
            check_signature(signature, manifest_file, name, version, trusted)


def test_the_tool_writes_the_golden_files_again(tmp_path: Path) -> None:
    main(tmp_path)
    for path in (OWN_GOLDEN / "manifest").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(codec="ascii"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(JSON, st.randoms())
def test_canonicalization_is_deterministic(value: object, random: object) -> None:
    """Manifest canonicalization is deterministic: the order of keys never matters, and it is valid JSON."""

    def shuffled(item: object) -> object:
        if isinstance(item, dict):
            keys = list(item)
            random.shuffle(keys)
            return {key: shuffled(item[key]) for key in keys}
        return [shuffled(one) for one in item] if isinstance(item, list) else item

    packed = canonical_json(value)
    assert packed == canonical_json(shuffled(value))
    assert json.loads(packed) == value


def test_canonical_examples() -> None:
    """What RFC 8785 says about order and escapes."""
    assert canonical_json({"b": 1, "a": [True, None]}) == b'{"a":[true,null],"b":1}'
    assert canonical_json('\u20ac$\u000f\nA\'\u0042"\\\\"/') == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    # A lone composition exclusion (U+FB33) is not in normal form C, so it is refused rather than reordered.
    with pytest.raises(ManifestCorruptedError, match="normal form"):
        canonical_json(keys)
    del keys["\ufb33"]
    assert list(json.loads(canonical_json(keys))) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600"]


def test_version_hash_is_stable() -> None:
    """Version hash is stable across runs, and does not know place, time or notes."""
    raw = to_json(example())
    assert raw["version_hash"] == json.loads((FOLDERS[0] / "expected.json").read_text())["version_hash"]
    moved = copy.deepcopy(raw)
    moved["tables"]["main"]["shards"][0]["uri"] = "s3://elsewhere/x"
    moved["tables"]["main"]["guide"]["uri"] = "http://mirror/x"
    moved["artifacts"]["raw"]["index"].pop("uri")
    moved["stats"]["created_at"] = "1999-01-01"
    moved["metadata"] = {"other": 1.5}
    moved["version_hash"] = "0" * 64
    assert version_hash(moved) == raw["version_hash"]
    for change in (
        lambda m: m["tables"]["main"]["shards"].reverse(),
        lambda m: m["tables"]["main"]["shards"][0].update(row_count=11),
        lambda m: m["tables"]["main"]["schema"].update(ipc="eA=="),
        lambda m: m["bindings"].clear(),
        lambda m: m.update(unknown="field"),
    ):
        changed = copy.deepcopy(raw)
        change(changed)
        assert version_hash(changed) != raw["version_hash"]


def test_a_table_called_uri_keeps_its_name() -> None:
    raw = to_json(example())
    raw["tables"] = {"uri": raw["tables"]["main"]}
    other = copy.deepcopy(raw)
    other["tables"] = {"url": other["tables"]["uri"]}
    assert version_hash(raw) != version_hash(other)


def resigned(change) -> bytes:
    raw = to_json(example())
    change(raw)
    raw["version_hash"] = version_hash(raw)
    return json.dumps(raw).encode()


HOSTILE = {
    "absolute path": lambda m: m["tables"]["main"]["shards"][0].update(uri="/etc/passwd"),
    "file address": lambda m: m["tables"]["main"]["shards"][0].update(uri="file:///home/user/x"),
    "upward path": lambda m: m["tables"]["main"]["shards"][0].update(uri="../../x"),
    "home path": lambda m: m["tables"]["main"]["shards"][0].update(uri="~/x"),
    "drive": lambda m: m["tables"]["main"]["shards"][0].update(uri="C:\\x"),
    "bad hash": lambda m: m["tables"]["main"]["shards"][0].update(hash="xyz"),
    "negative size": lambda m: m["tables"]["main"]["shards"][0].update(byte_size=-1),
    "no rows": lambda m: m["tables"]["main"]["shards"][0].pop("row_count"),
    "boolean count": lambda m: m["tables"]["main"]["shards"][0].update(row_count=True),
    "wrong totals": lambda m: m["stats"].update(total_rows=1),
    "dangling binding": lambda m: m["bindings"][0].update(artifact="none"),
    "binding to no column": lambda m: m["bindings"][0].update(column="none"),
    "unknown ref": lambda m: m["bindings"][0].update(ref_type="magic"),
    "tables a list": lambda m: m.update(tables=[]),
    "unsafe part name": lambda m: m["tables"].update({"../x": m["tables"]["main"]}),
    "unsafe shard name": lambda m: m["artifacts"]["episodes"]["shards"][0].update(name="../../x"),
    "nameless shard": lambda m: m["artifacts"]["episodes"]["shards"][0].pop("name"),
    "no indexes": lambda m: m["artifacts"]["raw"].update(indexes=[m["artifacts"]["raw"].pop("index")] * 0),
    "too many indexes": lambda m: m["artifacts"]["raw"].update(
        indexes=[m["artifacts"]["raw"].pop("index")] * 65
    ),
    "index and indexes": lambda m: m["artifacts"]["raw"].update(indexes=[m["artifacts"]["raw"]["index"]]),
    "an index of nothing": lambda m: m["artifacts"]["raw"].update(
        indexes=[m["artifacts"]["raw"].pop("index"), {}]
    ),
    "no index": lambda m: m["artifacts"]["raw"].pop("index"),
    "bad id": lambda m: m.update(dataset_id="../x"),
    "other format": lambda m: m["tables"]["main"].update(format="csv"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests_are_refused(name: str) -> None:
    with pytest.raises(ManifestCorruptedError):
        parse_manifest(resigned(HOSTILE[name]))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"a":1,"a":2}', b'{"version_hash":"x"}', b"\xff", b'{"a":' * 9999]
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestCorruptedError):
        parse_manifest(data)


@pytest.mark.parametrize(
    "value", [1.5, 2**53, "e\u0301", "\ud800", {1: "x"}, json.loads("[" * 40 + "]" * 40)]
)
def test_inexact_values_have_no_place_in_the_hash(value: object) -> None:
    with pytest.raises(ManifestCorruptedError):
        parse_manifest(resigned(lambda m: m.update(extra=value)))


def resealed(change: Callable[[list[layout.GuideEntry]], None]) -> bytes:
    """A guide of two shards whose directory was changed by somebody who made its checksum fit again."""
    good = pack_guide(guide_shards())
    start, end = layout.GUIDE_HEADER.size, directory_end(2)
    entries = [layout.GuideEntry(*fields) for fields in layout.GUIDE_ENTRY.iter_unpack(good[start:end])]
    change(entries)
    directory = b"".join(layout.GUIDE_ENTRY.pack(*entry) for entry in entries)
    header = layout.GuideHeader(*layout.GUIDE_HEADER.unpack(good[:start]))
    header = header._replace(directory_crc32c=crc32c(directory))
    return layout.GUIDE_HEADER.pack(*header) + directory + good[end:]


@pytest.mark.parametrize(
    ("field", "by", "match"),
    [
        ("sums_offset", 4, "out of place"),
        ("sums_offset", -4, "out of place"),
        ("tail_offset", 1, "out of place"),
        ("page_count", 1, "out of place"),
        ("tail_bytes", 1, "end where"),
        ("tail_bytes", layout.MAX_TAIL_BYTES + 1, "too large"),
    ],
)
def test_sections_of_a_guide_lie_where_they_must(field: str, by: int, match: str) -> None:
    def change(entries: list[layout.GuideEntry]) -> None:
        entries[1] = entries[1]._replace(**{field: getattr(entries[1], field) + by})

    Guide(BytesRangeReader(resealed(lambda entries: None)), 2).shard(1)
    with pytest.raises(FormatError, match=match):
        Guide(BytesRangeReader(resealed(change)), 2)


def test_every_flip_of_a_manifest_is_noticed_or_harmless() -> None:
    good = pack_manifest(example())
    parsed = to_json(parse_manifest(good))
    for bit in thinned(range(len(good) * 8), 1250):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = to_json(parse_manifest(bytes(damaged)))
        except ManifestCorruptedError:
            continue
        assert version_hash(found) == version_hash(parsed)
    for size in range(len(good) - 2):
        with pytest.raises(ManifestCorruptedError):
            parse_manifest(good[:size])


def test_another_version_than_asked_for_is_refused() -> None:
    with pytest.raises(ManifestCorruptedError, match="hash mismatch: expected 0000"):
        parse_manifest(pack_manifest(example()), expected_hash="0" * 64)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2**32 - 1), max_size=9), st.binary(max_size=40)), max_size=6)
)
def test_guide_round_trip(shards: list[tuple[list[int], bytes]]) -> None:
    packed = pack_guide([ShardGuide(np.array(sums, np.uint32), tail) for sums, tail in shards])
    guide = Guide(BytesRangeReader(packed), len(shards))
    for number, (sums, tail) in enumerate(shards):
        found = guide.shard(number)
        assert (found.page_sums.tolist(), found.tail) == (sums, tail)


def test_every_flip_and_cut_of_a_guide_is_noticed() -> None:
    good = pack_guide(guide_shards())
    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            guide = Guide(BytesRangeReader(bytes(damaged)), 2)
            [guide.shard(i) for i in range(2)]
    for size in range(len(good)):
        with pytest.raises(FormatError):
            Guide(BytesRangeReader(good[:size]), 2)


def test_a_large_guide_is_read_by_shard() -> None:
    shards = [ShardGuide(np.arange(300_000, dtype=np.uint32) + i, b"t%d" % i) for i in range(8)]
    reads: list[tuple[int, int]] = []

    class Counting(BytesRangeReader):
        def read(self, start: int, end: int) -> memoryview:
            reads.append((start, end))
            return super().read(start, end)

    guide = Guide(Counting(pack_guide(shards)), 8)
    assert guide.shard(5).tail == b"t5"
    assert len(reads) == 2
    assert sum(end - start for start, end in reads) < 1_300_000
