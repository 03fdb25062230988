"""Streams into every lane, of text and JSON, with times; and what a wrong description or step is answered with."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.episodes.record import steps as steps_module
from warpdata.episodes.record.steps import JournalColumn
from warpdata.errors import PermissionError_, SchemaMismatchError, StoreError, TimestampOrderError
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader

STEPS = 12
CHANNELS: list[dict[str, Any]] = [
    {"id": "joint", "dtype": "f32", "shape": [3], "model": "a word about the sensor"},
    {"id": "said", "dtype": "text", "max_bytes": 20, "compression": "zstd"},
    {"id": "info", "dtype": "json", "lane": "action"},
    {"id": "dream", "lane": "omen", "of": "joint", "model": "dreamer", "dtype": "f32", "shape": [3], "unit": "rad"},
    {"id": "spread", "lane": "uncert", "of": "joint", "model": "dreamer", "type": "std", "dtype": "f32", "shape": [3]},
    {"id": "miss", "lane": "residual", "of": "joint", "model": "dreamer", "dtype": "f32", "shape": [3]},
    {"id": "curve", "lane": "residual", "of": "joint", "type": "sign2nddiff", "dtype": "i8", "shape": [3]},
    {"id": "latent", "lane": "omen", "of": "latent_action", "model": "genie", "dtype": np.float64, "shape": [2]},
    {"id": "said/llm", "lane": "omen", "dtype": "text"},
]  # fmt: skip

JOINT = np.random.default_rng(0).normal(size=(STEPS, 3)).astype(np.float32)
CURVE = wd.sign2nddiff(JOINT)


def step(index: int) -> dict[str, Any]:
    return {
        "joint": JOINT[index], "said": f"gö {index}", "info": None if index == 3 else {"i": [index]},
        "dream": JOINT[index] + 1, "spread": np.full(3, index, np.float32), "miss": JOINT[index] * 2,
        "curve": CURVE[index], "latent": np.full(2, index / 3), "said/llm": "x" * index,
    }  # fmt: skip


def wanted() -> wd.WShardEpisode:
    """The same episode by hand."""
    episode = wd.WShardEpisode("e", length=STEPS)
    rows = [step(index) for index in range(STEPS)]
    model = {"of": "joint", "model": "dreamer"}
    episode.observations["joint"] = wd.Channel("joint", JOINT, model="a word about the sensor")
    episode.observations["said"] = [row["said"] for row in rows]
    episode.actions["info"] = wd.Channel.json("info", [row["info"] for row in rows])
    episode.omens["joint/dreamer"] = wd.Channel("dream", JOINT + 1, about={**model, "unit": "rad"})
    spread = np.array([row["spread"] for row in rows])
    episode.uncerts["joint/dreamer/std"] = wd.Channel("spread", spread, about={**model, "type": "std"})
    episode.residuals["joint/error/dreamer"] = wd.Channel("miss", JOINT * 2, about=model)
    bits = np.frombuffer(wd.pack_residual(CURVE), np.uint8)
    episode.residuals["joint/sign2nddiff"] = wd.Channel(
        "curve", bits, about={"of": "joint", "type": "sign2nddiff"}
    )
    latent = np.array([row["latent"] for row in rows])
    about = {"of": "latent_action", "model": "genie"}
    episode.omens["latent_action/genie"] = wd.Channel("latent", latent, about=about)
    episode.omens["said/llm"] = [row["said/llm"] for row in rows]
    return episode


@pytest.mark.parametrize("finish", ["end", "salvage"])
def test_every_lane(tmp_path: Path, finish: str) -> None:
    path = tmp_path / "a.wshard"
    writer = wd.WShardStreamWriter(path, "e", CHANNELS)
    writer.begin_episode()
    for index in range(STEPS):
        writer.write_timestep(step(index))
    if finish == "end":
        writer.end_episode()
    else:
        writer.close()
        assert wd.salvage(path).is_complete
    assert wd.load_wshard(path) == wanted()


@st.composite
def described(draw: st.DrawFn) -> dict[str, Any]:
    """A channel of what models say: any dtype and shape, named by what it is of or by itself."""
    lane = draw(st.sampled_from(["omen", "uncert", "residual"]))
    words = st.sampled_from(["m", "error", "sign2nddiff", "sign2nddiffs"])
    shape = draw(st.lists(st.integers(1, 8), max_size=2))
    said = {"lane": lane, "dtype": draw(st.sampled_from(DTYPE_NAMES)), "shape": shape}
    if draw(st.booleans()):
        said |= {"of": "joint", "model": draw(words)} | ({} if lane == "omen" else {"type": draw(words)})
        is_signs = lane == "residual" and said["type"] == "sign2nddiff"
    else:
        said["id"] = "/".join(draw(st.lists(words, min_size=1, max_size=3)))
        is_signs = lane == "residual" and said["id"].endswith("/sign2nddiff")
    # Single bytes of these names are bits to every reader.
    return {
        **said,
        "dtype": "i8" if is_signs else "u16" if shape == [] and said["dtype"] == "u8" else said["dtype"],
    }


@settings(max_examples=enough_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=described(), length=st.sampled_from([1, 5, 8, 16, 21]), steps=st.integers(1, 21), data=st.data())
def test_whatever_models_say_comes_back_in_any_cut(
    tmp_path: Path, said: dict[str, Any], length: int, steps: int, data: st.DataObject
) -> None:
    """Rows as they were written, unless they are signs, of which the bits are kept; nothing else is taken for bits."""
    row = dtype_named(said["dtype"]).itemsize * math.prod(said["shape"])
    raw = data.draw(st.binary(min_size=row * length, max_size=row * length))
    if said["dtype"] == "bool":
        raw = bytes(each & 1 for each in raw)
    values = np.frombuffer(raw, dtype_named(said["dtype"]).dtype).reshape(length, *said["shape"])
    named = said.get("type", "" if "of" in said else said["id"].partition("/")[2].rpartition("/")[2])
    is_bits = said["lane"] == "residual" and named == "sign2nddiff"
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        path = Path(folder, "a.wshard")
        writer = wd.WShardStreamWriter(path, "e", [{"id": "joint", "dtype": "f32"}, {"id": "it", **said}])
        writer.begin_episode()
        for index in range(length):
            writer.write_timestep({"joint": 0.0, said.get("id", "it"): values[index]})
        if data.draw(st.booleans()):
            writer.end_episode()
        else:
            writer.close()
            assert wd.salvage(path).is_complete
        whole = wd.load_wshard(path)
        chunked = ChunkedEpisodeReader(wd.chunk_episode(whole, Path(folder, "chunks"), steps))
        assert chunked.episode() == whole
        parts = [(whole, 0), *((each, index * steps) for index, each in enumerate(chunked.iter_chunks()))]
        for episode, start in parts:
            [lane] = [each for each in (episode.omens, episode.uncerts, episode.residuals) if each]
            [(key, channel)] = lane.data.items()
            wanted = values[start : start + episode.length]
            assert channel.data.tobytes() == (wd.pack_residual(wanted) if is_bits else wanted.tobytes())
            assert channel.dtype == ("u8" if is_bits else said["dtype"])
            signals = {"joint"} if is_bits else {"joint", f"{said['lane']}/{key}"}
            assert set(episode.in_time.signals) == signals


def test_times_under_a_tick_timebase_are_kept(tmp_path: Path) -> None:
    row = {"x": np.float32(0)}
    channels = [{"id": "x", "dtype": "f32"}]
    with wd.WShardStreamWriter(tmp_path / "a", "e", channels, timebase=wd.Timebase("ticks", 50.0)) as writer:
        writer.begin_episode()
        for ts_ns in (10, 35, np.int64(70)):
            writer.write_timestep(row, timestamp_ns=ts_ns)
        with pytest.raises(TimestampOrderError, match="every step"):
            writer.write_timestep(row)
    episode = wd.load_wshard(tmp_path / "a")
    assert episode.timestamps_ns.tolist() == [10, 35, 70]
    assert episode.timebase == wd.Timebase("ticks", 50.0)
    with wd.WShardStreamWriter(tmp_path / "b", "e", channels) as writer:
        writer.begin_episode()
        writer.write_timestep(row)
        with pytest.raises(TimestampOrderError, match="without timestamp_ns"):
            writer.write_timestep(row, timestamp_ns=5)
    assert wd.load_wshard(tmp_path / "b").timestamps_ns is None


@pytest.mark.parametrize("ts_ns", [2**63, -(2**63) - 1, 10**30, np.uint64(2**63)])
def test_a_time_that_cannot_be_stored_poisons_nothing(tmp_path: Path, ts_ns: int) -> None:
    row = {"x": np.float32(0)}
    timebase = wd.Timebase("timestamps_ns")
    with wd.WShardStreamWriter(
        tmp_path / "a", "e", [{"id": "x", "dtype": "f32"}], timebase=timebase
    ) as writer:
        writer.begin_episode()
        writer.write_timestep(row, timestamp_ns=-(2**63))
        with pytest.raises(TimestampOrderError, match="64 bits"):
            writer.write_timestep(row, timestamp_ns=ts_ns)
        writer.write_timestep(row, timestamp_ns=2**63 - 1)
    assert wd.load_wshard(tmp_path / "a").timestamps_ns.tolist() == [-(2**63), 2**63 - 1]


@pytest.mark.parametrize(
    ("channels", "match"),
    [
        ([{"dtype": "f32"}], "channel 0 has no 'id'"),
        ([{"id": "x"}], "has no 'dtype'"),
        ([{"id": "x", "dtpe": "f32"}], "there is 'dtpe'. Did you mean 'dtype'"),
        ([{"id": "x", "dtype": "f23"}], "Did you mean 'f32'"),
        ([{"id": "x", "dtype": "f32", "compresion": "zstd"}], "Did you mean 'compression'"),
        ([{"id": "x", "dtype": "f32", "lane": "omenn"}], "Did you mean 'omen'"),
        ([{"id": "x", "dtype": "f32", "shape": 7}], "a list such as"),
        ([{"id": "x", "dtype": "f32", "shape": [2.0]}], "sizes were expected"),
        ([{"id": "x", "dtype": "f32", "compression": "zsdt"}], "Did you mean 'zstd'"),
        ([{"id": "x", "dtype": "f32", "compression": 3}], "a name such as"),
        ([{"id": 3, "dtype": "f32"}], "is a string"),
        ({"id": "x", "dtype": "f32"}, "a list of dicts"),
        (["x"], "a list of dicts"),
        ([{"id": "x", "dtype": "f32"}, {"id": "p", "lane": "omen", "of": "y", "model": "m", "dtype": "f32"}], "'y'"),
        ([{"id": "joint", "dtype": "f32"}, {"id": "p", "lane": "omen", "of": "joitn", "model": "m", "dtype": "f32"}],
         "Did you mean 'joint'"),
        ([{"id": "x", "dtype": "f32"}, {"id": "p", "lane": "omen", "of": "x", "dtype": "f32"}], "no 'model'"),
        ([{"id": "x", "dtype": "f32"}, {"id": "p", "lane": "uncert", "of": "x", "model": "m", "dtype": "f32"}],
         "no 'type'"),
        ([{"id": "p", "lane": "omen", "model": "m", "dtype": "f32"}], "has no 'of'"),
        ([{"id": "x", "dtype": "f32"},
          {"id": "p", "lane": "residual", "of": "x", "type": "sign2nddiff", "dtype": "f32"}], "'i8'"),
        ([{"id": "x/sign2nddiff", "lane": "residual", "dtype": "f32"}], "'i8'"),
        ([{"id": "x", "dtype": "f32"},
          {"id": "p", "lane": "residual", "of": "x", "model": "sign2nddiff", "dtype": "u8"}], "taken for"),
        ([{"id": "x", "dtype": "f32", "shape": [1] * 17}], "17 axes"),
        ([{"id": "x", "dtype": "text", "shape": [2]}], "no shape"),
        ([{"id": "x", "dtype": "text", "max_bytes": 0}], "max_bytes"),
        ([{"id": "x", "dtype": "f32", "clock": "mine"}], "'clock'"),
        ([{"id": "x", "dtype": "f32", "note": {1, 2}}], "not JSON"),
    ],
)  # fmt: skip
def test_wrong_descriptions_are_refused_before_recording(tmp_path: Path, channels: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        wd.WShardStreamWriter(tmp_path / "a", "e", channels)
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_saved_is_refused_before_recording(tmp_path: Path) -> None:
    channels = [{"id": "x", "dtype": "f32"}]
    with pytest.raises(SchemaMismatchError, match="not JSON"):
        wd.WShardStreamWriter(tmp_path / "a", "e", channels, metadata={"when": object()})
    with pytest.raises(SchemaMismatchError, match="block name of"):
        wd.WShardStreamWriter(tmp_path / "a", "e", [{"id": "x" * 5000, "dtype": "f32"}])
    with pytest.raises(StoreError, match="a folder is there"):
        wd.WShardStreamWriter(tmp_path, "e", channels).begin_episode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "options", "match"),
    [
        ({"joitn": 1.0, "said": ""}, {}, "there is 'joitn'. Did you mean 'joint'"),
        ({"joint": 1.0, "said": "", "sayd": ""}, {}, "Did you mean 'said'"),
        ({"joint": 1.0}, {}, "'said' is missing"),
        ({"joint": 1.0, "said": "x" * 11}, {}, "11 bytes, at most 10"),
        ({"joint": 1.0, "said": 3}, {}, "text was expected"),
        ({"joint": 1.0, "said": "\ud800"}, {}, "said"),
        ({"joint": 1.0, "said": ""}, {"reward": "1.5"}, "reward is a number"),
        ({"joint": 1.0, "said": ""}, {"reward": 2 + 1j}, "reward is a number"),
        ({"joint": 1.0, "said": ""}, {"done": np.zeros(2)}, "are bool"),
        ([1.0, ""], {}, "dict of values"),
    ],
)
def test_wrong_steps_are_refused_and_the_writer_goes_on(
    tmp_path: Path, values: Any, options: dict[str, Any], match: str
) -> None:
    channels = [{"id": "joint", "dtype": "f32"}, {"id": "said", "dtype": "text", "max_bytes": 10}]
    with wd.WShardStreamWriter(tmp_path / "a", "e", channels) as writer:
        writer.begin_episode()
        writer.write_timestep({"joint": 0.5, "said": "long enough"[:10]})
        with pytest.raises((ValueError, TypeError), match=match):
            writer.write_timestep(values, **options)
        writer.write_timestep({"joint": 1.5, "said": "b"})
    episode = wd.load_wshard(tmp_path / "a")
    assert episode.observations["joint"].data.tolist() == [0.5, 1.5]
    assert episode.observations["said"].data.tolist() == ["long enoug", "b"]


def test_texts_and_signs_are_read_a_window_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished file is made in little memory, however much room its short texts were given."""
    asked: list[int] = []
    rows = JournalColumn.rows
    monkeypatch.setattr(steps_module, "_WINDOW_BYTES", 4096)

    def watched(column: JournalColumn, low: int, high: int) -> Any:
        asked.append((high - low) * column.spec.row_bytes)
        return rows(column, low, high)

    monkeypatch.setattr(JournalColumn, "rows", watched)
    channels = [
        {"id": "said", "dtype": "text", "max_bytes": 1000},
        {"id": "x", "dtype": "f32"},
        {"id": "curve", "lane": "residual", "of": "x", "type": "sign2nddiff", "dtype": "i8", "shape": [250]},
    ]
    signs = np.random.default_rng(0).integers(-1, 2, (20, 250), np.int8)
    with wd.WShardStreamWriter(tmp_path / "a", "e", channels, durability="none") as writer:
        writer.begin_episode()
        for step in range(20):
            writer.write_timestep({"said": f"word {step}", "x": 0.0, "curve": signs[step]})
    found = wd.load_wshard(tmp_path / "a")
    assert found.observations["said"].data.tolist() == [f"word {step}" for step in range(20)]
    assert found.residuals["x/sign2nddiff"].data.tobytes() == wd.pack_residual(signs)
    assert max(asked) <= 4096


def test_tensors_with_gradients(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    channels = [{"id": "x", "dtype": "bf16", "shape": [2]}]
    with wd.WShardStreamWriter(tmp_path / "a", "e", channels) as writer:
        writer.begin_episode()
        value = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
        writer.write_timestep({"x": value}, reward=torch.tensor(2.0, requires_grad=True))
    episode = wd.load_wshard(tmp_path / "a")
    assert episode.observations["x"].data.astype(float).tolist() == [[1.5, -2.0]]
    assert episode.rewards.data.tolist() == [2.0]


def test_an_end_that_fails_keeps_every_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    writer = wd.WShardStreamWriter(tmp_path / "a.wshard", "e", [{"id": "x", "dtype": "f32", "shape": [0]}])
    writer.begin_episode()
    for _ in range(3):
        writer.write_timestep({"x": np.zeros(0, np.float32)}, reward=1)
    (tmp_path / "a.wshard").mkdir()
    with pytest.raises(StoreError) as told:
        writer.end_episode()
    assert "warp salvage" in str(told.value.hint)
    assert "3 steps, unfinished" in repr(writer)
    (tmp_path / "a.wshard").rmdir()
    assert wd.salvage(tmp_path / "a.wshard.partial").steps_kept == 3
    assert wd.load_wshard(tmp_path / "a.wshard").observations["x"].shape == (3, 0)


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root no mode bit stops a write, so the refusal of the kernel is played."""
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real(path, flags, *more, **options)

    def no_folder(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    episode = wd.WShardEpisode("e", length=1)
    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(Path, "mkdir", no_folder)
    with pytest.raises(PermissionError_, match="read-only"):
        wd.save_wshard(episode, tmp_path / "a")
    with pytest.raises(PermissionError_, match="read-only"):
        wd.WShardStreamWriter(tmp_path / "a", "e", [{"id": "x", "dtype": "f32"}]).begin_episode()
    with pytest.raises(PermissionError_, match="read-only"):
        wd.chunk_episode(episode, tmp_path / "chunks", 5)
