"""Files as other programs write them, made here byte by byte: whatever order, dtype or alphabet they use."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.bytekit.checksum import crc32c, xxh64
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import CorruptLayoutError, SchemaMismatchError, TimestampOrderError, TruncatedError
from warpdata.formats.wshard import ShardReader, layout
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader, chunk_episode
from warpdata.formats.wshard.verify import verify_shard


def stranger(
    blocks: dict[str, bytes], *, order: list[int] | None = None, shift: dict[str, int] | None = None
) -> bytes:
    """A shard without our mark: blocks lie in the order of `order`, the table lists them as they are given."""
    names = list(blocks)
    start = 64 + 48 * len(names) + sum(len(name.encode()) for name in names)
    body, places = b"", {}
    for index in order or range(len(names)):
        places[names[index]] = start + len(body)
        body += blocks[names[index]]
    table, strings = b"", b""
    for name in names:
        raw, data = name.encode(), blocks[name]
        at = places[name] + (shift or {}).get(name, 0)
        table += layout.ENTRY.pack(
            xxh64(raw), len(strings), len(raw), 0, at, len(data), len(data), crc32c(data), 0, 0
        )
        strings += raw
    header = layout.Header(
        b"SHRD",
        2,
        5,
        0,
        0,
        0,
        48,
        len(names),
        64 + 48 * len(names),
        start,
        0,
        start + len(body),
        bytes(4),
        0,
        bytes(8),
    )
    return layout.HEADER.pack(*header) + table + strings + body


def episode_blocks(length: int, channels: list[dict[str, Any]], **blocks: Any) -> dict[str, bytes]:
    meta = {
        "meta/wshard": {"format": "W-SHARD", "wshard_version": "0.1"},
        "meta/episode": {"episode_id": "theirs", "length_T": length, "timebase": {"dt_ns": 20_000_000}},
        "meta/channels": {"channels": channels},
    }
    stored = {name: json.dumps(value, ensure_ascii=False).encode() for name, value in meta.items()}
    return stored | {name: np.asarray(value).tobytes() for name, value in blocks.items()}


STATE = np.arange(8, dtype=np.float32).reshape(4, 2)
LISTED = [{"id": "state", "dtype": "f32", "shape": [2], "signal_block": "signal/state"}]


def check_saved_again(episode: wd.WShardEpisode, folder: Path) -> wd.WShardEpisode:
    wd.save_wshard(episode, folder / "again.wshard", durable=False)
    again = wd.load_wshard(folder / "again.wshard")
    assert again == episode
    return again


@settings(max_examples=enough_examples(60))
@given(order=st.permutations(range(6)))
def test_the_order_of_the_table_means_nothing(order: list[int]) -> None:
    blocks = episode_blocks(
        4, LISTED, **{"signal/state": STATE, "reward": np.ones(4, np.float32), "done": np.zeros(4, np.uint8)}
    )
    episode = wd.load_wshard(stranger(blocks, order=list(order)))
    assert np.array_equal(episode.observations["state"].data, STATE)
    assert episode.rewards.data.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
@pytest.mark.parametrize("shift", [-1, 1])
def test_overlap_is_refused_in_any_order(order: list[int], shift: int) -> None:
    blocks = episode_blocks(
        4, LISTED, **{"signal/state": STATE, "reward": np.ones(4, np.float32), "done": np.zeros(4, np.uint8)}
    )
    with pytest.raises((CorruptLayoutError, TruncatedError)):
        wd.load_wshard(stranger(blocks, order=order, shift={"signal/state": shift}))


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8", "<f2"])
def test_rewards_of_any_dtype(tmp_path: Path, dtype: str) -> None:
    rewards = np.array([0, 1, -2, 3], dtype)
    blocks = episode_blocks(4, LISTED, **{"signal/state": STATE, "reward": rewards})
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert again.rewards.data.dtype == rewards.dtype
    assert again.rewards.data.tolist() == rewards.tolist()


@pytest.mark.parametrize("dtype", ["u1", "?", "<f4", "<f8", "<i4", "<i8", "<i2"])
def test_flags_of_any_dtype(tmp_path: Path, dtype: str) -> None:
    done = np.array([0, 0, 1, 1], dtype)
    blocks = episode_blocks(4, LISTED, **{"signal/state": STATE, "done": done})
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert again.terminations.data.tolist() == done.tolist()
    assert again.terminations.data.dtype.itemsize == done.dtype.itemsize
    from tests.formats import plain_decoder

    stored = plain_decoder.decode((tmp_path / "again.wshard").read_bytes())
    assert stored["done"] == bytes([0, 0, 1, 1]), "other programs read one byte per step"
    assert wd.load_wshard(tmp_path / "again.wshard").in_time["done"][3][0]


@pytest.mark.parametrize("name", ["关节", "joint pos", "Gelenk/Stellung/α/β/γ", "🤖", "a.b-c_d"])
def test_names_of_any_alphabet(tmp_path: Path, name: str) -> None:
    listed = [{"id": name, "dtype": "f32", "shape": [2], "signal_block": f"signal/{name}"}]
    blocks = episode_blocks(4, listed, **{f"signal/{name}": STATE, f"omen/{name}/m": STATE})
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert np.array_equal(again.observations[name].data, STATE)
    assert np.array_equal(again.omens[f"{name}/m"].data, STATE)
    picked = wd.load_wshard(tmp_path / "again.wshard", channels=[name])
    assert list(picked.observations) == [name]
    listed_chunks = wd.chunk_episode(again, tmp_path / "chunks", 3)
    assert wd.open_episode(listed_chunks).tensors == again


def test_a_listed_channel_without_its_block_does_not_vanish() -> None:
    listed = [*LISTED, {"id": "gone", "dtype": "f32", "shape": [3], "signal_block": "signal/gone"}]
    data = stranger(episode_blocks(4, listed, **{"signal/state": STATE}))
    with pytest.raises(CorruptLayoutError, match="'gone' is listed"):
        wd.load_wshard(data)
    assert np.array_equal(wd.load_wshard(data, channels=["state"]).observations["state"].data, STATE)
    empty = wd.load_wshard(stranger(episode_blocks(0, listed, **{"signal/state": STATE[:0]})))
    assert empty.observations["gone"].data.shape == (0, 3)


def test_an_action_listed_as_a_signal_is_an_action() -> None:
    listed = [*LISTED, {"id": "ctrl", "dtype": "i16", "shape": [2], "signal_block": "signal/ctrl"}]
    ctrl = np.arange(8, dtype=np.int16).reshape(4, 2)
    blocks = episode_blocks(4, listed, **{"signal/state": STATE, "action/ctrl": ctrl, "action/state": STATE})
    episode = wd.load_wshard(stranger(blocks))
    assert np.array_equal(episode.actions["ctrl"].data, ctrl)
    assert np.array_equal(episode.actions["state"].data, STATE), "stored like the signal of its name"
    assert list(episode.observations) == ["state"]


def test_what_others_say_about_an_episode_is_kept(tmp_path: Path) -> None:
    blocks = episode_blocks(4, LISTED, **{"signal/state": STATE})
    meta = json.loads(blocks["meta/episode"]) | {"source": "sim", "lab": {"room": 4}}
    episode = wd.load_wshard(stranger(blocks | {"meta/episode": json.dumps(meta).encode()}))
    assert check_saved_again(episode, tmp_path).about == {"source": "sim", "lab": {"room": 4}}


def test_only_some_channels() -> None:
    blocks = episode_blocks(
        4, LISTED, **{"signal/state": STATE, "reward": np.ones(4, np.float32), "done": np.zeros(4, np.uint8)}
    )
    data = stranger(blocks)
    with pytest.raises(TypeError, match=r"channels=\['state'\]"):
        wd.load_wshard(data, channels="state")
    with pytest.raises(ValueError, match="Did you mean 'state'"):
        wd.load_wshard(data, channels=["statr"])
    none = wd.load_wshard(data, channels=[])
    assert (len(none.observations), none.rewards.length, none.terminations.length) == (0, 4, 4)
    assert list(wd.load_wshard(data, channels=["reward", "state"]).observations) == ["state"]


def test_sources_that_are_not_paths(tmp_path: Path) -> None:
    data = stranger(episode_blocks(4, LISTED, **{"signal/state": STATE}))
    path = tmp_path / "a.wshard"
    path.write_bytes(data)
    with path.open("rb") as file, path.open("rb", buffering=0) as unbuffered:
        file.seek(5)
        sources: list[Any] = [data, bytearray(data), io.BytesIO(data), file, unbuffered]
        for source in sources:
            for read in (wd.load_wshard, lambda given: wd.open_episode(given).tensors):
                assert np.array_equal(read(source).observations["state"].data, STATE)
        assert file.tell() == 5
    with path.open() as text, pytest.raises(TypeError, match="binary mode"):
        wd.load_wshard(text)
    for wrong in (7, None, object(), io.StringIO("x")):
        with pytest.raises(TypeError):
            wd.load_wshard(wrong)


@pytest.mark.parametrize(
    ("reward", "dtype"),
    [
        (np.array([0, 1, 0, 1], bool), "u8"),
        (np.array([0, 3, 127, 1], np.uint8), "u8"),
        (np.array([0, -1, 1, -128], np.int8), "i8"),
        (np.zeros(4, bool), "i8"),
    ],
)
def test_rewards_of_one_byte(tmp_path: Path, reward: Any, dtype: str) -> None:
    blocks = episode_blocks(4, LISTED, **{"signal/state": STATE, "reward": reward})
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert again.rewards is not None
    assert again.rewards.dtype == dtype
    assert again.rewards.data.tolist() == reward.tolist()


def test_times_that_are_announced_and_not_there(tmp_path: Path) -> None:
    blocks = episode_blocks(4, LISTED, **{"signal/state": STATE})
    said = {"episode_id": "theirs", "length_T": 4, "timebase": {"type": "timestamps_ns", "dt_ns": 20_000_000}}
    blocks["meta/episode"] = json.dumps(said).encode()
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert again.timebase == wd.Timebase("ticks", 50)
    assert again.times_ns().tolist() == [0, 20_000_000, 40_000_000, 60_000_000]


@settings(max_examples=enough_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), min_size=1, max_size=12),
    flag=st.sampled_from(["done", "truncated"]),
    dtype=st.sampled_from(["u1", "<f2", "<f4", "<f8"]),
    compression=st.sampled_from(["none", "zstd", "zstd-seekable", "lz4"]),
    steps=st.integers(1, 13),
    data=st.data(),
)
def test_whatever_opens_can_be_saved_again(
    tmp_path: Path, times: list[int], flag: str, dtype: str, compression: str, steps: int, data: st.DataObject
) -> None:
    """Times that stand still or go back and flags between 0 and 1 are what another program said: no value changes."""
    length = len(times)
    bits = data.draw(st.binary(min_size=length * int(dtype[-1]), max_size=length * int(dtype[-1])))
    state = np.arange(length * 2, dtype=np.float32).reshape(length, 2)
    blocks = episode_blocks(
        length,
        LISTED,
        **{
            "signal/state": state,
            flag: np.frombuffer(bits, dtype),
            "time/timestamps_ns": np.array(times, "<i8"),
        },
    )
    episode = wd.load_wshard(stranger(blocks))
    held = episode.terminations if flag == "done" else episode.truncations
    assert held.data.tobytes() == bits
    assert episode.timestamps_ns.tolist() == times
    assert not any(each.is_damage for each in verify_shard(BytesRangeReader(stranger(blocks)), full=True))
    copies = (copy.copy(episode), copy.deepcopy(episode), dataclasses.replace(episode), episode.clone())
    for made in (episode, *copies, pickle.loads(pickle.dumps(dataclasses.replace(episode)))):
        wd.save_wshard(made, tmp_path / "again.wshard", compression, durable=False, overwrite=True)
        again = wd.load_wshard(tmp_path / "again.wshard")
        assert again == episode
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        joined = ChunkedEpisodeReader(chunk_episode(again, folder, steps)).episode()
        assert joined == episode
        wd.save_wshard(joined, tmp_path / "joined.wshard", durable=False, overwrite=True)
        assert wd.load_wshard(tmp_path / "joined.wshard") == episode


def test_new_times_must_increase_and_new_flags_be_true_or_false(tmp_path: Path) -> None:
    blocks = episode_blocks(
        4, LISTED, **{"signal/state": STATE, "time/timestamps_ns": np.array([3, 3, 1, 2])}
    )
    episode = wd.load_wshard(stranger(blocks))
    for times in ([3, 3, 1, 2], np.array([0, 1, 1, 2]), np.array([0, 2, 1, 3])):
        episode.timestamps_ns = times
        with pytest.raises(TimestampOrderError, match="not later"):
            wd.save_wshard(episode, tmp_path / "a.wshard")
        with pytest.raises(TimestampOrderError, match="not later"):
            chunk_episode(episode, tmp_path / "chunks", 3)
    episode.timestamps_ns = np.arange(4.0)
    with pytest.raises(SchemaMismatchError, match="float64"):
        chunk_episode(episode, tmp_path / "chunks", 3)
    episode.timestamps_ns = np.arange(4)
    for flags in (np.array([0, 0.5, 1, 1], "f4"), np.array([0, 0, 0, 255], "u1")):
        episode.terminations = flags
        with pytest.raises(SchemaMismatchError, match="0 and 1"):
            wd.save_wshard(episode, tmp_path / "a.wshard")
        with pytest.raises(SchemaMismatchError, match="0 and 1"):
            chunk_episode(episode, tmp_path / "chunks", 4)
    assert not (tmp_path / "a.wshard").exists()


def test_rows_with_times_of_their_own_are_not_cut_by_times_that_go_back(tmp_path: Path) -> None:
    listed = [*LISTED, {"id": "c", "dtype": "u8", "shape": [], "clock": "time/signal/c/timestamps_ns"}]
    own = {"signal/c": np.arange(3, dtype="u1"), "time/signal/c/timestamps_ns": np.array([9, 5, 7])}
    blocks = episode_blocks(4, listed, **{"signal/state": STATE, **own})
    episode = wd.load_wshard(stranger(blocks))
    check_saved_again(episode, tmp_path)
    chunk_episode(episode, tmp_path / "one", 4)
    with pytest.raises(SchemaMismatchError, match="clock of its own") as told:
        chunk_episode(episode, tmp_path / "two", 2)
    assert told.value.hint


def test_what_lies_in_a_file_cannot_be_changed_in_place(tmp_path: Path) -> None:
    """Saving takes the rows from the file, so a change that only memory knows of would be lost."""
    episode = wd.WShardEpisode("a", length=6, timebase="timestamps_ns")
    episode.observations["x"], episode.observations["word"] = np.arange(6.0), list("abcdef")
    episode.rewards, episode.timestamps_ns = np.ones(6, np.float32), np.arange(6)
    wd.save_wshard(episode, tmp_path / "a.wshard", "zstd")
    whole = wd.load_wshard(tmp_path / "a.wshard")
    chunks = ChunkedEpisodeReader(chunk_episode(episode, tmp_path / "chunks", 4)).episode()
    for loaded in (whole, chunks):
        held = [loaded.observations["x"], loaded.observations["word"], loaded.rewards]
        for array in [*(each.data for each in held), loaded.timestamps_ns]:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 2
        loaded.observations["x"].data = loaded.observations["x"].data + 1
        wd.save_wshard(loaded, tmp_path / "b.wshard", overwrite=True)
        assert wd.load_wshard(tmp_path / "b.wshard").observations["x"].data.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("opened", ["path", "bytes"])
def test_blocks_of_other_programs_go_along_to_another_process(tmp_path: Path, opened: str) -> None:
    raw = stranger(episode_blocks(4, LISTED, **{"signal/state": STATE, "theirs/notes": np.arange(3)}))
    (tmp_path / "a.wshard").write_bytes(raw)
    episode = wd.load_wshard(raw if opened == "bytes" else tmp_path / "a.wshard")
    assert list(episode.blocks) == ["theirs/notes"]
    assert pickle.loads(pickle.dumps(episode)) == episode
    assert pickle.loads(pickle.dumps(episode.in_time)).tensors == episode


def test_what_is_left_of_a_damaged_file_keeps_its_odd_values(tmp_path: Path) -> None:
    times, done = np.array([9, 9, 3, 1]), np.array([0, 255, 7, 1], np.uint8)
    listed = [*LISTED, {"id": "other", "dtype": "f32", "shape": [2], "signal_block": "signal/other"}]
    named = {"signal/state": STATE, "signal/other": STATE + 50, "done": done, "time/timestamps_ns": times}
    raw = bytearray(stranger(episode_blocks(4, listed, **named)))
    raw[raw.index((STATE + 50).tobytes()) + 3] ^= 1
    (tmp_path / "a.wshard").write_bytes(raw)
    receipt = wd.salvage(tmp_path / "a.wshard", tmp_path / "b.wshard")
    assert [each["block"] for each in receipt.damage] == ["signal/other"]
    assert receipt.time_kept_s == 8e-9
    left = wd.load_wshard(tmp_path / "b.wshard")
    assert left.timestamps_ns.tolist() == times.tolist()
    assert left.terminations.data.tolist() == done.tolist()
    assert np.array_equal(left.observations["state"].data, STATE)


@pytest.mark.parametrize("block", ["reward", "done", "time/timestamps_ns"])
def test_numbers_that_are_listed_as_text_stay_numbers(tmp_path: Path, block: str) -> None:
    numbers = {
        "reward": np.arange(4, dtype="<f4"), "done": np.array([0, 0, 0, 1], "u1"),
        "time/timestamps_ns": np.arange(4, dtype="<i8"),
    }  # fmt: skip
    blocks = episode_blocks(
        4, LISTED, **{"signal/state": STATE, "aux/ends/x": np.arange(4, dtype="<i8")}, **numbers
    )
    lane = {"block": block, "dtype": "u8", "shape": [], "encoding": "text", "ends": "aux/ends/x"}
    blocks["meta/wshard"] = json.dumps({"format": "W-SHARD", "version": 1, "lanes": [lane]}).encode()
    again = check_saved_again(wd.load_wshard(stranger(blocks)), tmp_path)
    assert again.rewards.data.tolist() == [0, 1, 2, 3]
    assert again.terminations.data.tolist() == [0, 0, 0, 1]
    assert again.timestamps_ns.tolist() == [0, 1, 2, 3]


def test_a_block_of_no_bytes_may_be_said_to_lie_anywhere(tmp_path: Path) -> None:
    listed = [*LISTED, {"id": "none", "dtype": "f32", "shape": [0], "signal_block": "signal/none"}]
    blocks = episode_blocks(4, listed, **{"signal/state": STATE, "signal/none": np.zeros((4, 0), "<f4")})
    data = bytearray(stranger(blocks))
    at = (
        layout.TABLE_OFFSET
        + layout.ENTRY_BYTES * ShardReader.open(bytes(data)).names.index("signal/none")
        + 0x10
    )
    data[at : at + 8] = (len(data) + 100).to_bytes(8, "little")
    again = check_saved_again(wd.load_wshard(bytes(data)), tmp_path)
    assert again.observations["none"].data.shape == (4, 0)
