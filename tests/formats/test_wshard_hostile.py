"""Files made to hurt: typed errors with a hint, before memory is taken."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

import warpdata as wd
from tests.formats import episodes
from warpdata.bytekit.checksum import crc32c, xxh64
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    StoreError,
    TruncatedError,
    UnsupportedVersionError,
)
from warpdata.formats.wshard import ShardReader, ShardWriter, layout
from warpdata.formats.wshard.layout import Block, pack_table, table_crc32c


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    wd.save_wshard(episodes.simple(), tmp_path / "good")
    return (tmp_path / "good").read_bytes()


def with_header(data: bytes, **changes: object) -> bytes:
    """The same file with other header fields and a table checksum that fits them."""
    header = layout.Header(*layout.HEADER.unpack(data[:64]))._replace(**changes)
    head = layout.HEADER.pack(*header) + data[64:]
    end = min(header.data_section_offset, len(data))
    fixed = header._replace(table_crc32c=table_crc32c(memoryview(head), end))
    return layout.HEADER.pack(*fixed) + data[64:]


def with_entry(data: bytes, index: int, **changes: object) -> bytes:
    """The same file with one entry changed and a table checksum that fits it."""
    at = 64 + 48 * index
    entry = layout.Entry(*layout.ENTRY.unpack(data[at : at + 48]))._replace(**changes)
    return with_header(data[:at] + layout.ENTRY.pack(*entry) + data[at + 48 :])


def opened(data: bytes) -> wd.WShardEpisode:
    tracemalloc.start()
    try:
        episode = wd.load_wshard(BytesRangeReader(data, "x.wshard"))
        for _, channel in episode.lanes():
            assert channel.data is not None
        return episode
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20, "memory was taken before the limit was checked"


HEADERS: list[tuple[dict[str, object], type[FormatError]]] = [
    ({"magic": b"ZIPP"}, BadMagicError),
    ({"version": 3}, UnsupportedVersionError),
    ({"role": 1}, CorruptLayoutError),
    ({"role": 4}, CorruptLayoutError),
    ({"index_entry_size": 0}, CorruptLayoutError),
    ({"index_entry_size": 64}, CorruptLayoutError),
    ({"entry_count": 2**32 - 1}, LimitExceededError),
    ({"entry_count": 0}, CorruptLayoutError),
    ({"entry_count": 10_000_000}, CorruptLayoutError),
    ({"alignment": 3}, CorruptLayoutError),
    ({"string_table_offset": 2**63}, CorruptLayoutError),
    ({"data_section_offset": 2**63}, LimitExceededError),
    ({"data_section_offset": 0}, CorruptLayoutError),
    ({"total_file_size": 10}, CorruptLayoutError),
    ({"total_file_size": 2**60}, TruncatedError),
    ({"reserved": b"12345678"}, CorruptLayoutError),
    ({"table_mark": b"WDC2"}, CorruptLayoutError),
]


@pytest.mark.parametrize(("changes", "kind"), HEADERS, ids=lambda v: str(v)[:40])
def test_absurd_headers(good: bytes, changes: dict[str, object], kind: type[FormatError]) -> None:
    with pytest.raises(kind, match=r"x\.wshard") as caught:
        opened(with_header(good, **changes))
    assert caught.value.hint


ENTRIES: list[tuple[dict[str, object], type[FormatError]]] = [
    ({"name_offset": 2**31}, CorruptLayoutError),
    ({"name_bytes": 65535}, CorruptLayoutError),
    ({"name_bytes": 0}, LimitExceededError),
    ({"flags": 0xFFFF}, CorruptLayoutError),
    ({"flags": 0x0002}, CorruptLayoutError),
    ({"flags": 0x000D}, CorruptLayoutError),
    ({"data_offset": 0}, CorruptLayoutError),
    ({"data_offset": 2**63}, TruncatedError),
    ({"data_offset": 2**64 - 1}, TruncatedError),
    ({"disk_size": 2**40}, LimitExceededError),
    ({"raw_size": 2**63}, LimitExceededError),
    ({"raw_size": 1}, CorruptLayoutError),
    ({"raw_size": 2**35, "flags": 3}, CorruptLayoutError),
    ({"raw_size": 2**35, "flags": 5}, CorruptLayoutError),
    ({"raw_size": 2**35, "flags": 0x0B}, CorruptLayoutError),
]


@pytest.mark.parametrize(("changes", "kind"), ENTRIES, ids=lambda v: str(v)[:40])
def test_absurd_entries(good: bytes, changes: dict[str, object], kind: type[FormatError]) -> None:
    with pytest.raises(kind, match=r"x\.wshard"):
        opened(with_entry(good, 3, **changes))


def test_overlapping_blocks_name_the_way_out(good: bytes) -> None:
    at = 64 + 48 * 3
    first = layout.Entry(*layout.ENTRY.unpack(good[at : at + 48]))
    with pytest.raises(CorruptLayoutError, match="overlaps") as caught:
        opened(with_entry(good, 4, data_offset=first.data_offset))
    assert "salvage" in caught.value.hint


def raw_shard(blocks: list[tuple[str, bytes, int, int]], *, seal: bool = True) -> bytes:
    """A shard of arbitrary blocks: name, stored bytes, entry flags, raw size."""
    table, position, body = [], 8192, b""
    for name, stored, flags, raw_size in blocks:
        codec = {0: "none", 3: "zstd", 5: "lz4", 11: "zstd"}[flags]
        checksum = crc32c(stored)
        table.append(
            Block(name, codec, flags == 11, position + len(body), len(stored), raw_size, checksum, 0)
        )
        body += stored
    head = pack_table(table, position + len(body), layout.ROLE_EPISODE, position)
    return head + body


def test_duplicate_names() -> None:
    data = raw_shard([("a", b"1", 0, 1), ("a", b"2", 0, 1)])
    with pytest.raises(CorruptLayoutError, match="two blocks"):
        ShardReader.open(BytesRangeReader(data))


@pytest.mark.parametrize("flags", [3, 11])
def test_decompression_bombs(flags: int) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    shard = ShardReader.open(BytesRangeReader(raw_shard([("bomb", bomb, flags, 100)])))
    tracemalloc.start()
    with pytest.raises(FormatError, match="bomb"):
        shard.read("bomb")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def write_meta(folder: Path, **replaced: object) -> bytes:
    """An episode whose metadata blocks are these values, valid or not."""
    meta: dict[str, object] = {
        "meta/wshard": {"format": "W-SHARD", "version": 1},
        "meta/episode": {"episode_id": "e", "length_T": 2},
        "meta/channels": {
            "channels": [{"id": "x", "dtype": "f32", "shape": [3], "signal_block": "signal/x"}]
        },
    }
    meta |= {f"meta/{key}": value for key, value in replaced.items()}
    with commit_file(folder / "m") as out:
        writer = ShardWriter(out, [*meta, "signal/x"])
        for name, value in meta.items():
            writer.add_bytes(name, value if isinstance(value, bytes) else dump_json(value))
        writer.add_bytes("signal/x", np.zeros((2, 3), np.float32).tobytes())
        writer.finish()
    return (folder / "m").read_bytes()


def channel(**changes: object) -> dict[str, object]:
    return {"channels": [{"id": "x", "dtype": "f32", "shape": [3], "signal_block": "signal/x", **changes}]}


BAD_META: list[dict[str, object]] = [
    {"episode": b"not json"},
    {"episode": b"[" * 50_000},
    {"episode": b'{"length_T": ' + b"9" * 5000 + b"}"},
    {"episode": {"length_T": -1}},
    {"episode": {"length_T": "2"}},
    {"episode": {"length_T": True}},
    {"episode": {"length_T": 2**60}},
    {"episode": {"length_T": 3}},
    {"episode": {}},
    {"episode": {"length_T": 2, "episode_id": 7}},
    {"episode": {"length_T": 2, "metadata": []}},
    {"episode": {"length_T": 2, "timestep_range": [0, 99]}},
    {"episode": {"length_T": 2, "timestep_range": "all"}},
    {"episode": {"length_T": 2, "chunk_index": -1}},
    {"episode": {"length_T": 2, "timebase": {"type": "moons"}}},
    {"episode": {"length_T": 2, "timebase": {"tick_hz": "fast"}}},
    {"episode": {"length_T": 2, "timebase": {"tick_hz": -1}}},
    {"channels": b"\xff"},
    {"channels": {"channels": 3}},
    {"channels": {"channels": [3]}},
    {"channels": channel(dtype="f99")},
    {"channels": channel(dtype=7)},
    {"channels": channel(dtype="f64")},
    {"channels": channel(shape=[4])},
    {"channels": channel(shape=[-3])},
    {"channels": channel(shape=[2**40, 2**40])},
    {"channels": channel(shape=[1] * 100)},
    {"channels": channel(shape="3")},
    {"channels": channel(shape=[3.0])},
    {"channels": channel(signal_block="elsewhere/x")},
    {"channels": channel(clock="time/none")},
    {"channels": {"channels": channel()["channels"] * 2}},
    {"wshard": {"lanes": 3}},
    {"wshard": {"lanes": [{"block": "omen/x/m", "dtype": "?"}]}},
    {"wshard": {"exact": {"done": 3}}},
    {"wshard": {"exact": {"done": {"dtype": "f99"}}}},
    {"wshard": {"absent": 3}},
    {"models": {"models": 3}},
]


@pytest.mark.parametrize("replaced", BAD_META, ids=lambda v: json.dumps(v, default=str)[:60])
def test_absurd_metadata_names_its_block(tmp_path: Path, replaced: dict[str, object]) -> None:
    data = write_meta(tmp_path, **replaced)
    with pytest.raises(FormatError, match="block '"):
        opened(data)


def test_metadata_of_the_test_itself_is_fine(tmp_path: Path) -> None:
    assert opened(write_meta(tmp_path)).observations["x"].data.shape == (2, 3)


def test_missing_metadata_is_said() -> None:
    with pytest.raises(CorruptLayoutError, match="no episode"):
        wd.load_wshard(BytesRangeReader(raw_shard([("signal/x", b"1234", 0, 4)])))


def test_fnv_hashes_are_accepted_only_without_our_mark(good: bytes) -> None:
    header = layout.Header(*layout.HEADER.unpack(good[:64]))
    plain = layout.HEADER.pack(*header._replace(table_mark=bytes(4), table_crc32c=0)) + good[64:]
    assert opened(plain).id == "ep"
    entry = layout.Entry(*layout.ENTRY.unpack(good[64:112]))
    assert entry.name_hash == xxh64(b"meta/wshard")
    wrong = plain[:64] + layout.ENTRY.pack(*entry._replace(name_hash=1)) + plain[112:]
    with pytest.raises(CorruptLayoutError, match="hash"):
        opened(wrong)


@pytest.mark.parametrize("name", [b"a\xff", b"a\x00b"])
def test_names_that_are_no_names(good: bytes, name: bytes) -> None:
    header = layout.Header(*layout.HEADER.unpack(good[:64]))
    at = header.string_table_offset
    with pytest.raises(CorruptLayoutError):
        opened(with_header(good[:at] + name + good[at + len(name) :]))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 10, 63])
def test_files_that_are_too_short(size: int, good: bytes) -> None:
    with pytest.raises(TruncatedError):
        ShardReader.open(BytesRangeReader(good[:size], "x"))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError):
        wd.load_wshard(tmp_path / "none.wshard")
    with pytest.raises(StoreError):
        wd.load_wshard(tmp_path)
    (tmp_path / "text").write_text("hello, this is no shard at all")
    with pytest.raises(BadMagicError):
        wd.load_wshard(tmp_path / "text")


@pytest.mark.parametrize("call", [wd.load_wshard, wd.open_episode, ShardReader.open])
def test_an_empty_file_is_truncated(tmp_path: Path, call: Callable[[Path], object]) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(TruncatedError):
        call(tmp_path / "empty")
