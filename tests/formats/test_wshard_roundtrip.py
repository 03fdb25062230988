"""Load(save(x)) == x, for any episode, any codec, and for what others can read of it."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.formats import episodes, plain_decoder
from tests.sweeps import enough_examples
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import SchemaMismatchError
from warpdata.formats.wshard import ShardReader, layout

CODECS = st.sampled_from([None, "none", "zstd", "zstd-seekable", "lz4", "auto", "zstd:19"])


@settings(max_examples=enough_examples(50))
@given(episode=episodes.episodes(), compression=CODECS, strict=st.booleans())
def test_lossless(
    tmp_path_factory: pytest.TempPathFactory, episode: wd.WShardEpisode, compression: str, strict: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "roundtrip.wshard"
    wd.save_wshard(
        episode, path, compression, compat="strict" if strict else "default", durable=False, overwrite=True
    )
    loaded = wd.load_wshard(path)
    assert loaded == episode
    again = wd.load_wshard(BytesRangeReader(path.read_bytes()))
    assert again == episode
    plain = plain_decoder.decode(path.read_bytes())
    for name, channel in episode.lanes():
        assert plain[name] == np.ascontiguousarray(channel.data).tobytes()
    assert layout.REWARD in plain
    assert layout.DONE in plain


def test_same_episode_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        wd.save_wshard(episodes.simple(), tmp_path / name, "zstd")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_maximum_compatibility_profile(tmp_path: Path) -> None:
    """The rules that make every existing reader accept the file."""
    wd.save_wshard(episodes.simple(), tmp_path / "a", {"state": "zstd", "cam/rgb": "lz4"})
    data = (tmp_path / "a").read_bytes()
    header, entries = plain_decoder.table(data)
    assert header["flags"] == 0x00A2
    assert header["alignment"] == 64
    assert header["total_file_size"] == len(data)
    names = [entry["name"] for entry in entries]
    assert names[:3] == ["meta/wshard", "meta/episode", "meta/channels"]
    assert {"reward", "done", "time/ticks"} <= set(names)
    position = header["data_section_offset"]
    for entry in entries:
        assert entry["data_offset"] >= position
        assert entry["data_offset"] % 64 == 0
        position = entry["data_offset"] + entry["disk_size"]
        assert entry["flags"] in (0, 3, 5)
        assert not entry["name"].startswith("meta/") or (entry["flags"], entry["content_type"]) == (0, 2)
    assert position == len(data)


def test_lazy_and_zero_copy(tmp_path: Path) -> None:
    wd.save_wshard(episodes.simple(1000), tmp_path / "a")
    episode = wd.load_wshard(tmp_path / "a")
    for name in ("state", "cam/rgb"):
        data = episode.observations[name].data
        assert not data.flags.writeable
        assert not data.flags.owndata
        assert episode.observations[name].data is data
    assert episode.observations["cam/rgb"].data.ctypes.data % 64 == 0


@pytest.mark.parametrize("open_it", [wd.load_wshard, wd.open_episode])
def test_a_dropped_episode_is_closed_without_a_garbage_collection(tmp_path: Path, open_it: Any) -> None:
    episode = wd.WShardEpisode("e", length=3)
    episode.observations["x"] = np.ones((3, 2), np.float32)
    wd.save_wshard(episode, tmp_path / "a.wshard")
    gc.disable()
    try:
        opened = open_it(tmp_path / "a.wshard")
        assert repr(opened)
        tensors = opened if isinstance(opened, wd.WShardEpisode) else opened.source.tensors
        shard = weakref.ref(tensors.observations["x"].row_source.shard)
        if opened is not tensors:
            assert len(opened["x"].values()) == 3
        del opened, tensors
        assert shard() is None
    finally:
        gc.enable()


def test_picked_channels(tmp_path: Path) -> None:
    wd.save_wshard(episodes.simple(), tmp_path / "a")
    episode = wd.load_wshard(tmp_path / "a", channels=["state", "action/ctrl"])
    assert list(episode.observations) == ["state"]
    assert list(episode.actions) == ["ctrl"]
    assert not episode.omens
    whole = wd.load_wshard(tmp_path / "a")
    assert episode.rewards == whole.rewards
    assert episode.terminations == whole.terminations


def test_episode_is_picklable_through_its_file(tmp_path: Path) -> None:
    wd.save_wshard(episodes.simple(20_000), tmp_path / "a")
    episode = wd.load_wshard(tmp_path / "a")
    assert episode == episodes.simple(20_000)
    episode.observations["cam/rgb"][3:9]
    packed = pickle.dumps(episode)
    assert len(packed) < 10_000, "the file is opened again, its bytes do not travel"
    assert pickle.loads(packed) == episodes.simple(20_000)


def test_lanes_by_path_and_by_branch(tmp_path: Path) -> None:
    episode = episodes.simple()
    assert episode.omens["state"]["dreamer"] is episode.omens["state/dreamer"]
    assert episode.uncerts["state"]["dreamer"]["std"] is episode.uncerts["state/dreamer/std"]
    episode.omens["state"]["other"] = np.zeros((20, 4), np.float32)
    assert sorted(episode.omens) == ["state/dreamer", "state/other"]
    episode.omens["ctrl"] = {"m": np.zeros((20, 2), np.float32)}
    assert "ctrl" in episode.omens
    with pytest.raises(KeyError):
        episode.omens["nothing"]


def test_modalities_and_latents(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="m", length=3)
    episode.add_modality("cam0", "rgb", np.zeros((3, 2, 2, 3), np.uint8))
    episode.add_modality("cam0", "depth", np.zeros((3, 2, 2), np.float32), unit="m")
    episode.set_latent_action("genie", np.zeros((3, 16), np.float32), np.arange(3, dtype=np.int32))
    with pytest.raises(ValueError, match="modality"):
        episode.add_modality("cam0", "smell", np.zeros((3, 1)))
    wd.save_wshard(episode, tmp_path / "a")
    loaded = wd.load_wshard(tmp_path / "a")
    assert loaded == episode
    assert set(loaded.modality_groups()["cam0"]) == {"rgb", "depth"}
    assert loaded.observations["cam0/depth"].unit == "m"
    assert loaded.latent_action("genie").row_shape == (16,)
    assert loaded.latent_codebook("genie").data.tolist() == [0, 1, 2]
    shard = ShardReader.open(tmp_path / "a")
    listed = {each["id"]: each for each in shard.read_json("meta/channels")["channels"]}
    assert listed["cam0/rgb"]["content_type_code"] == 6


def test_multi_rate_channels_keep_their_clock(tmp_path: Path) -> None:
    episode = wd.WShardEpisode(id="m", length=3)
    clock = np.array([5, 7, 11, 13, 17], np.int64)
    episode.observations["imu"] = wd.Channel("imu", np.arange(5.0), timestamps_ns=clock)
    wd.save_wshard(episode, tmp_path / "a")
    shard = ShardReader.open(tmp_path / "a")
    assert shard.read_json("meta/channels")["channels"][0]["clock"] == "time/signal/imu/timestamps_ns"
    loaded = wd.load_wshard(tmp_path / "a").observations["imu"]
    assert loaded.length == 5
    assert loaded.timestamps_ns.tolist() == clock.tolist()


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("observations", {"x": np.zeros((4, 2))}, "4 rows"),
        ("observations", {"../evil": np.zeros((3, 2))}, "channel id"),
        ("observations", {"a//b": np.zeros((3, 2))}, "channel id"),
        ("observations", {"a\nb": np.zeros((3, 2))}, "channel id"),
        ("observations", {"": np.zeros((3, 2))}, "channel id"),
        ("rewards", np.zeros(4, np.float32), "4 rows"),
        ("rewards", np.zeros((3, 2), np.float32), "one value per step"),
        ("terminations", np.full(3, 0.5, np.float32), "0 and 1"),
        ("terminations", ["a", "b", "c"], "one number per step"),
        ("terminations", np.full(3, 2, np.uint8), "0 and 1"),
        ("timestamps_ns", np.zeros(2, np.int64), "2 rows"),
        ("timestamps_ns", np.zeros(3), "int64"),
        ("metadata", {"a": np.zeros(3)}, "not JSON"),
        ("metadata", {"a": float("nan")}, "not JSON"),
        ("timebase", wd.Timebase("timestamps_ns"), "needs timestamps_ns"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, field: str, value: object, match: str
) -> None:
    episode = wd.WShardEpisode(id="x", length=3)
    setattr(episode, field, value)
    with pytest.raises(SchemaMismatchError, match=match):
        wd.save_wshard(episode, tmp_path / "a.wshard")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [np.zeros(3, complex), np.array([b"a"]), np.float32(3), None])
def test_channels_of_other_types_are_refused(bad: object) -> None:
    with pytest.raises(SchemaMismatchError):
        wd.Channel("x", bad)


def test_wrong_arguments(tmp_path: Path) -> None:
    episode = episodes.simple()
    with pytest.raises(ValueError, match="compression"):
        wd.save_wshard(episode, tmp_path / "a", "gzip")
    with pytest.raises(ValueError, match="compat"):
        wd.save_wshard(episode, tmp_path / "a", compat="loose")
    with pytest.raises(ValueError, match="timebase"):
        wd.Timebase("frames")
    with pytest.raises(ValueError, match="tick_hz"):
        wd.Timebase("ticks", 0)


def test_progress_ends_at_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    wd.save_wshard(
        episodes.simple(50), tmp_path / "a", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_helpful_reprs() -> None:
    episode = episodes.simple()
    assert "state" in repr(episode)
    assert repr(episode.observations["state"]) == "Channel('state', f32[20,4])"
