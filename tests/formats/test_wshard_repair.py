"""Files of the existing streaming writers: blocks interleaved by flush, with ranges that overlap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.checksum import crc32c, xxh64
from warpdata.bytekit.io.commit import commit_file
from warpdata.errors import ConflictError, CorruptLayoutError
from warpdata.formats.wshard import ShardReader, ShardWriter, layout
from warpdata.formats.wshard.rows import PieceChecksums

CHANNELS = [
    {"id": "joint", "dtype": "f32", "shape": [7]},
    {"id": "rgb", "dtype": "u8", "shape": [4, 4, 3]},
]
ACTIONS = {"joint": (7,)}


def stream_data(steps: int) -> dict[str, np.ndarray]:
    """The blocks in the order that writer flushes them."""
    rng = np.random.default_rng(3)
    return {
        "signal/joint": rng.normal(size=(steps, 7)).astype(np.float32),
        "action/joint": rng.normal(size=(steps, 7)).astype(np.float32),
        "signal/rgb": rng.integers(0, 255, (steps, 4, 4, 3), np.uint8),
        "reward": rng.normal(size=steps).astype(np.float32),
        "done": (np.arange(steps) == steps - 1).astype(np.uint8),
        "time/ticks": np.arange(steps, dtype=np.int32),
    }


def reserved() -> int:
    names = sum(len(f"signal/{c['id']}") + len(f"action/{c['id']}") for c in CHANNELS)
    return align_up(64 + 48 * (7 + 2 * len(CHANNELS)) + names + 200, 32)


def flushes(data: dict[str, np.ndarray], interval: int) -> bytes:
    steps = len(data["done"])
    return b"".join(
        block[start : start + interval].tobytes()
        for start in range(0, steps, interval)
        for block in data.values()
    )


def finished_file(data: dict[str, np.ndarray], interval: int) -> bytes:
    """A finished file as that writer leaves it: offset of the first flush, size of all flushes."""
    steps, start = len(data["done"]), reserved()
    stream = flushes(data, interval)
    entries, offset = {}, start
    for name, block in data.items():
        entries[name] = (offset, block.nbytes)
        offset += block[:interval].nbytes
    body = bytearray(stream)
    metas = {
        "meta/wshard": {"format": "W-SHARD", "wshard_version": "0.1", "streaming": True},
        "meta/episode": {
            "episode_id": "py",
            "env_id": "E",
            "length_T": steps,
            "timebase": {"dt_ns": 20000000},
        },
        "meta/channels": {"channels": [{**c, "signal_block": f"signal/{c['id']}"} for c in CHANNELS]},
    }
    for name, value in metas.items():
        body += bytes(align_up(start + len(body), 32) - start - len(body))
        text = json.dumps(value).encode()
        entries[name] = (start + len(body), len(text))
        body += text
    whole = bytes(start) + bytes(body)
    names = sorted(entries)
    table, strings = b"", b""
    for name in names:
        at, size = entries[name]
        table += layout.ENTRY.pack(
            xxh64(name.encode()),
            len(strings),
            len(name),
            0,
            at,
            size,
            size,
            crc32c(whole[at : at + size]),
            0,
            0,
        )
        strings += name.encode()
    header = layout.Header(
        b"SHRD",
        2,
        5,
        0,
        32,
        0,
        48,
        len(names),
        64 + 48 * len(names),
        start,
        0,
        len(whole),
        bytes(4),
        0,
        bytes(8),
    )
    head = layout.HEADER.pack(*header) + table + strings
    return head + whole[len(head) :]


@pytest.mark.parametrize(("steps", "interval"), [(1000, 64), (128, 64), (65, 64)])
def test_a_finished_stream_is_put_in_order(tmp_path: Path, steps: int, interval: int) -> None:
    data = stream_data(steps)
    path = tmp_path / "py.wshard"
    path.write_bytes(finished_file(data, interval))
    with pytest.raises(CorruptLayoutError, match="overlaps") as caught:
        wd.load_wshard(path)
    assert "salvage" in caught.value.hint
    receipt = wd.salvage(path)
    assert receipt.steps_kept == steps
    assert receipt.is_complete
    episode = wd.load_wshard(path)
    assert episode.id == "py"
    assert episode.timebase.tick_hz == 50.0
    assert np.array_equal(episode.observations["joint"].data, data["signal/joint"])
    assert np.array_equal(episode.observations["rgb"].data, data["signal/rgb"])
    assert np.array_equal(episode.actions["joint"].data, data["action/joint"])
    assert np.array_equal(episode.rewards.data, data["reward"])
    assert np.array_equal(episode.terminations.data, data["done"])
    assert wd.salvage(path).why.startswith("the file is whole")


@pytest.mark.parametrize("steps", [1, 50, 64])
def test_a_stream_of_one_flush_is_read_as_it_is(tmp_path: Path, steps: int) -> None:
    """Its table is sorted by name and its data is not, which is no fault."""
    data = stream_data(steps)
    path = tmp_path / "py.wshard"
    path.write_bytes(finished_file(data, 64))
    episode = wd.load_wshard(path)
    assert np.array_equal(episode.observations["joint"].data, data["signal/joint"])
    assert np.array_equal(episode.observations["rgb"].data, data["signal/rgb"])
    assert np.array_equal(episode.actions["joint"].data, data["action/joint"])
    assert np.array_equal(episode.rewards.data, data["reward"])
    wd.save_wshard(episode, tmp_path / "again.wshard")
    assert wd.load_wshard(tmp_path / "again.wshard") == episode


def test_an_unfinished_stream_gives_its_complete_flushes(tmp_path: Path) -> None:
    data = stream_data(1000)
    del data["action/joint"]
    partial = tmp_path / "py.wshard.partial"
    partial.write_bytes(bytes(reserved()) + flushes({k: v[:960] for k, v in data.items()}, 64) + b"torn")
    with pytest.raises(CorruptLayoutError, match="has no description") as caught:
        wd.salvage(partial)
    assert "channels" in caught.value.hint
    receipt = wd.salvage(partial, channels=CHANNELS, flush_interval=64)
    assert (receipt.steps_kept, receipt.bytes_dropped) == (960, 4)
    assert not receipt.is_complete
    episode = wd.load_wshard(tmp_path / "py.wshard")
    assert np.array_equal(episode.observations["rgb"].data, data["signal/rgb"][:960])
    assert np.array_equal(episode.observations["joint"].data, data["signal/joint"][:960])
    with pytest.raises(ConflictError):
        wd.salvage(partial, channels=CHANNELS)


def test_other_damage_is_not_called_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "x.wshard"
    data = bytearray(finished_file(stream_data(100), 64))
    text = b'"streaming": true'
    at = data.find(text)
    data[at : at + len(text)] = b'"streaming":false'
    path.write_bytes(data)
    with pytest.raises(CorruptLayoutError, match="streaming writer"):
        wd.salvage(path)


@pytest.mark.parametrize(
    ("block", "rows", "match"),
    [
        ("signal/other", np.zeros((100, 7), np.float32), "its contents are unknown"),
        ("signal/rgb", np.zeros((100, 3), np.uint8), "its contents are unknown"),
        ("reward", np.zeros(200, np.float32), "does not hold one row per step"),
    ],
)
def test_a_stream_that_does_not_add_up_is_refused_and_stays(
    tmp_path: Path, block: str, rows: np.ndarray, match: str
) -> None:
    path = tmp_path / "x.wshard"
    path.write_bytes(finished_file({**stream_data(100), block: rows}, 64))
    before = path.read_bytes()
    with pytest.raises(CorruptLayoutError, match=match):
        wd.salvage(path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x.wshard", before)]


@pytest.mark.parametrize(
    ("channel", "says"),
    [
        ({"id": "a", "dtype": "f32", "shape": [-7]}, "list of sizes"),
        ({"id": "a", "dtype": "u8", "shape": [-9]}, "list of sizes"),
        ({"id": "a", "dtype": "f32", "shape": 5}, "list of sizes"),
        ({"id": "a", "dtype": "f32", "shape": "ab"}, "list of sizes"),
        ({"id": "a", "dtype": "f32", "shape": [True]}, "list of sizes"),
        ({"id": "a", "dtype": "f32", "lane": "signl"}, "Did you mean 'signal'"),
        ({"id": "a", "dtype": "f33"}, "Did you mean 'f32'"),
        ({"id": "../a", "dtype": "f32"}, "no channel id"),
        ({"dtype": "f32"}, "has no 'id'"),
        ({"id": "a"}, "has no 'dtype'"),
    ],
)
def test_a_wrong_description_of_a_partial_file_is_refused(
    tmp_path: Path, channel: dict[str, object], says: str
) -> None:
    partial = tmp_path / "py.wshard.partial"
    partial.write_bytes(bytes(5000))
    with pytest.raises(ValueError, match=says):
        wd.salvage(partial, channels=[channel], flush_interval=3)
    with pytest.raises(TypeError, match="list of dicts"):
        wd.salvage(partial, channels=[5], flush_interval=3)
    with pytest.raises(ValueError, match="the same id"):
        wd.salvage(partial, channels=[CHANNELS[0], CHANNELS[0]], flush_interval=3)
    with pytest.raises(ValueError, match="flush_interval"):
        wd.salvage(partial, channels=CHANNELS, flush_interval=0)
    partial.write_bytes(bytes(50))
    with pytest.raises(CorruptLayoutError, match="shorter than the space"):
        wd.salvage(partial, channels=CHANNELS, flush_interval=3)
    assert [path.name for path in tmp_path.iterdir()] == [partial.name], "nothing was made, nothing removed"


@pytest.mark.parametrize("data", [b"", b"1234567", bytes(8)], ids=["none", "cut", "pieces of no rows"])
def test_lists_of_piece_checksums_that_are_none(data: bytes) -> None:
    with pytest.raises(CorruptLayoutError, match="piece checksums"):
        PieceChecksums.unpack(memoryview(data), "x.wshard")


@pytest.mark.parametrize("count", [0, 1, 4])
def test_fewer_piece_checksums_than_pieces(tmp_path: Path, count: int) -> None:
    episode = wd.WShardEpisode("e", length=5)
    episode.observations["x"] = rows = np.arange(5 << 18, dtype=np.uint8).reshape(5, 1 << 18)
    wd.save_wshard(episode, tmp_path / "whole")
    shard, aux = ShardReader.open(tmp_path / "whole"), layout.PIECES_PREFIX + "signal/x"
    with commit_file(tmp_path / "few") as out:
        writer = ShardWriter(out, shard.names)
        for name in shard.names:
            if name == aux:
                writer.add_bytes(name, shard.read(name)[: 4 + 4 * count])
            else:
                writer.add_stored(shard.block(name), shard.read_stored(name))
        writer.finish()
    for row in (0, 4):
        with pytest.raises(CorruptLayoutError, match=r"signal/x.*fewer piece checksums"):
            wd.load_wshard(tmp_path / "few").observations["x"][row]
    assert np.array_equal(wd.load_wshard(tmp_path / "few").observations["x"].data, rows)
