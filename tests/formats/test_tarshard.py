"""Tar shards and member indexes: round trip, golden bytes, specification, damage, foreign tars."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.make_golden_tarshard import FILES, main

from tests.conftest import OWN_GOLDEN, ROOT
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import enough_examples, thinned
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import is_safe_name
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import CorruptLayoutError, FormatError, TruncatedError
from warpdata.formats.tarshard import layout
from warpdata.formats.tarshard.member_index import Member, MemberIndex, pack_index
from warpdata.formats.tarshard.reader import scan_members
from warpdata.formats.tarshard.writer import PackOptions, member_header, pack_shards

SPEC = ROOT / "src/warpdata/formats/tarshard/SPEC.md"
FOLDERS = [OWN_GOLDEN / "tarshard", ROOT / "tests/compat/tarshard/0.1"]


def pack(files: dict[str, bytes], folder: Path, options: PackOptions | None = None):
    items = [(name, lambda data=data: data) for name, data in sorted(files.items())]
    return list(pack_shards(items, folder, options or PackOptions()))


def plain_tar(files: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def scan(data: bytes) -> dict[str, bytes]:
    return {m.name: data[m.offset : m.offset + m.length] for m in scan_members(BytesRangeReader(data))}


def test_spec_and_layout_agree() -> None:
    assert_spec_matches(SPEC, "Tar header", layout.TarHeader, layout.TAR_HEADER)
    assert_spec_matches(SPEC, "Index head", layout.IndexHead, layout.INDEX_HEAD)
    assert_spec_matches(SPEC, "Bucket head", layout.BucketHead, layout.BUCKET_HEAD)
    assert_spec_matches(SPEC, "Member entry", layout.MemberEntry, layout.MEMBER_ENTRY)
    assert_spec_matches(SPEC, "Name fence", layout.NameFence, layout.NAME_FENCE)
    assert layout.BUCKET_HEAD.size + layout.BUCKET_CAPACITY * layout.MEMBER_ENTRY.size <= layout.BUCKET_BYTES


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\\/"),
    min_size=1,
    max_size=140,
)


@settings(max_examples=enough_examples(40))
@given(st.dictionaries(NAMES.filter(is_safe_name), st.binary(max_size=1500), max_size=8))
def test_round_trip_also_in_another_program(files: dict[str, bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for path, members in pack(files, Path(folder)):
            data = path.read_bytes()
            assert {m.name: data[m.offset : m.offset + m.length] for m in members} == files
            assert scan(data) == files
            with tarfile.open(path) as tar:
                assert {i.name: tar.extractfile(i).read() for i in tar} == files


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others_are_read(form: int) -> None:
    files = {"a/b.txt": b"x" * 1000, "c": b"", "n" * 90 + "/" + "m" * 90: b"long"}
    assert scan(plain_tar(files, form)) == files
    dotted = {f"./{name}": data for name, data in files.items()}
    assert scan(plain_tar(dotted, form)) == files


def test_equal_files_give_equal_shards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = [p.read_bytes() for p, _ in pack(FILES, tmp_path / "one")]
    assert first == [p.read_bytes() for p, _ in pack(FILES, tmp_path / "two")]


def test_shards_are_cut_at_their_size(tmp_path: Path) -> None:
    packed = pack({f"{i:03d}": bytes(1000) for i in range(50)}, tmp_path, PackOptions(shard_bytes=10_000))
    assert len(packed) == 8
    assert [m.shard for _, some in packed for m in some] == sorted(
        m.shard for _, some in packed for m in some
    )


def test_compressed_shards_are_frames_of_members(tmp_path: Path) -> None:
    files = {f"{i:03d}.bin": bytes([i]) * 30_000 for i in range(40)}
    ((path, members),) = pack(files, tmp_path, PackOptions(compression="zstd"))
    data = path.read_bytes()
    assert len({m.offset for m in members}) > 3
    for member in members:
        start, end = member.read_range
        raw = zstandard.ZstdDecompressor().decompress(data[start:end])
        assert raw[member.inner_offset : member.inner_offset + member.length] == files[member.name]
    whole = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    assert scan(whole) == files


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.parent.name)
@pytest.mark.parametrize("label", ["plain", "zstd"])
def test_golden(folder: Path, label: str) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    facts = expected[label]
    reader = BytesRangeReader((folder / label / "index.bin").read_bytes())
    index = MemberIndex(reader, facts["bucket_count"], len(expected["files"]))
    assert sorted(index.names()) == sorted(expected["files"])
    for name, content in expected["files"].items():
        (member,) = index.find([name])
        assert member is not None
        found = [
            member.shard,
            member.offset,
            member.length,
            member.crc32c,
            member.frame_bytes,
            member.inner_offset,
        ]
        assert found == facts["members"][name]
        data = (folder / label / facts["shards"][member.shard]).read_bytes()
        raw = data[slice(*member.read_range)]
        if member.frame_bytes:
            raw = zstandard.ZstdDecompressor().decompress(raw)[member.inner_offset :][: member.length]
        assert raw.hex() == content
        assert crc32c(raw) == member.crc32c


def test_the_tool_writes_the_golden_files_again(tmp_path: Path) -> None:
    main(tmp_path)
    for path in (OWN_GOLDEN / "tarshard").rglob("*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(OWN_GOLDEN / "tarshard")).read_bytes() == path.read_bytes()


def test_every_flip_and_cut_of_a_shard_is_noticed_or_harmless() -> None:
    """Headers carry a sum; data is guarded by the member index."""
    good = plain_tar({"a/b": b"hello", "c": b"x" * 600})
    names = {name: len(data) for name, data in scan(good).items()}
    for bit in thinned(range(len(good) * 8), 2000):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = {name: len(data) for name, data in scan(bytes(damaged)).items()}
        except FormatError:
            continue
        assert found == names
    for size in range(0, 3072, 7):
        with pytest.raises(FormatError):
            scan(good[:size])


HOSTILE_NAMES = [
    "/abs",
    "../up",
    "a/../../b",
    "a//b",
    "",
    ".",
    "a/./b",
    "back\\slash",
    "new\nline",
    "x" * 5000,
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_unsafe_names_are_refused(name: str, tmp_path: Path) -> None:
    assert not is_safe_name(name)
    with pytest.raises(FormatError, match="unsafe"):
        member_header(name, 1)
    if name not in ("", "."):
        with pytest.raises(FormatError):
            scan(plain_tar({name: b"x"}, tarfile.PAX_FORMAT))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE]
)
def test_links_and_devices_are_refused(kind: bytes) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("evil")
        info.type = kind
        info.linkname = "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(FormatError, match="plain file"):
        scan(out.getvalue())


def with_header_before(kind: bytes, body: bytes) -> bytes:
    """A tar whose one member has an extended header of this kind."""
    info = tarfile.TarInfo("extended")
    info.type, info.size = kind, len(body)
    padded = body + bytes(-len(body) % 512)
    return info.tobuf(tarfile.USTAR_FORMAT) + padded + plain_tar({"a": b"12345"})


def with_size(field: bytes) -> bytes:
    """A tar whose member says its size in these twelve bytes."""
    tar = bytearray(plain_tar({"a": b"12345"}))
    tar[124:136] = field
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    return bytes(tar)


@pytest.mark.parametrize(
    ("tar", "match"),
    [
        (with_header_before(b"x", b"nothing"), "damaged extended header"),
        (with_header_before(b"x", b"99 path=b\n"), "damaged extended header"),
        (with_header_before(b"x", b"8 path=b"), "damaged extended header"),
        (with_header_before(b"x", b"22 GNU.sparse.major=1\n"), "sparse member"),
        (with_header_before(b"x", b"12 size=abc\n"), "not a number"),
        (with_header_before(b"x", b"11 path=\xff\xff\n"), "not UTF-8"),
        (with_header_before(b"L", b"\xff\0"), "not UTF-8"),
        (with_header_before(b"x", b"x" * (layout.MAX_PAX_BYTES + 1)), "extended header of"),
        (with_size(b"\xff" * 12), "absurd size"),
        (with_size(b"\x80" + (1 << 40).to_bytes(11, "big")), "ends within a member"),
        (with_size(b"0000000009 \0"), "not octal"),
    ],
)
def test_forged_headers_are_refused(tar: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        scan(tar)


def test_sizes_and_headers_that_others_write_are_read() -> None:
    assert scan(with_size(b"\x80" + (5).to_bytes(11, "big"))) == {"a": b"12345"}
    assert scan(with_header_before(b"x", b"10 path=b\n")) == {"b": b"12345"}
    assert scan(with_header_before(b"L", b"long/name\0")) == {"long/name": b"12345"}
    assert scan(with_header_before(b"g", b"10 path=b\n")) == {
        "a": b"12345"
    }  # of the archive, not of its member
    assert scan(with_header_before(b"5", b"")) == {"a": b"12345"}  # a folder


def test_repeated_members_are_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("twice"))
    with pytest.raises(FormatError, match="twice"):
        scan(out.getvalue())
    with pytest.raises(FormatError, match="twice"):
        list(pack_shards([("x", lambda: b""), ("x", lambda: b"")], tmp_path, PackOptions()))


def test_a_tar_without_end_is_refused() -> None:
    good = plain_tar({"a": b"x" * 512})
    with pytest.raises(TruncatedError, match="end mark"):
        scan(good[:1024])


def many(count: int) -> list[Member]:
    return [
        Member(f"folder/{i:07d}.jpg", i % 7, i * 512, 100 + i % 50, i * 2654435761 % 2**32)
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 85, 5000])
def test_every_member_is_found_and_no_other(count: int) -> None:
    members = many(count)
    packed, buckets = pack_index(members)
    index = MemberIndex(BytesRangeReader(packed), buckets, count)
    assert index.find([m.name for m in members]) == members
    assert index.find(["absent", "folder/x"]) == [None, None]
    assert list(index.names()) == sorted(m.name for m in members)
    assert list(index.names("folder/00001")) == sorted(
        m.name for m in members if m.name.startswith("folder/00001")
    )


def test_one_lookup_reads_one_bucket() -> None:
    members = many(20_000)
    packed, buckets = pack_index(members)
    reads: list[tuple[int, int]] = []

    class Counting(BytesRangeReader):
        def read_many(self, ranges):
            reads.extend(ranges)
            return super().read_many(ranges)

    index = MemberIndex(Counting(packed), buckets, len(members))
    assert index.find([members[777].name]) == [members[777]]
    assert [end - start for start, end in reads] == [4096]


def test_every_flip_and_cut_of_an_index_is_noticed_or_harmless() -> None:
    members = many(3)
    packed, buckets = pack_index(members)
    names = [m.name for m in members]
    used = [*range(64), *range(4096, 4096 + 16 + 3 * 48 + 8), *range(8192, len(packed))]
    for byte in used:
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[byte] ^= 1 << bit
            try:
                index = MemberIndex(BytesRangeReader(bytes(damaged)), buckets, 3)
                found, listed = index.find(names), list(index.names())
            except FormatError:
                continue
            assert (found, listed) == (members, sorted(names))
    for size in range(0, len(packed), 11):
        with pytest.raises(FormatError):
            index = MemberIndex(BytesRangeReader(packed[:size]), buckets, 3)
            index.find(names)
            list(index.names())


def test_an_index_holds_each_member_once_and_all_of_them() -> None:
    with pytest.raises(CorruptLayoutError, match="twice"):
        pack_index([*many(3), many(1)[0]])
    packed, buckets = pack_index(many(3))
    assert MemberIndex(BytesRangeReader(packed), buckets, 3).all() == sorted(
        many(3), key=lambda each: each.name
    )
    others, _ = pack_index([each._replace(name=f"other {each.name}") for each in many(3)])
    end = layout.bucket_offset(buckets)
    mixed = others[: layout.HEAD_BYTES] + packed[layout.HEAD_BYTES : end] + others[end:]
    with pytest.raises(CorruptLayoutError, match="does not hold its members"):
        MemberIndex(BytesRangeReader(mixed), buckets, 3).all()


def test_an_index_of_other_counts_is_refused() -> None:
    packed, buckets = pack_index(many(200))
    for counts in ((buckets + 1, 200), (buckets, 10**9), (10**12, 200)):
        with pytest.raises(FormatError):
            index = MemberIndex(BytesRangeReader(packed), *counts)
            index.find(["x"])
            list(index.names())
