"""Point clouds, sound, RGBA and 16-bit colour, and names beyond ASCII, through everything an episode goes through."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.conftest import ROOT
from tests.waiting import until
from warpdata.episodes.forms.shard import write_chunks
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.formats.episodedir.signal_file import parse_signal, table_bytes
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.ragged import as_objects, join_sound

STEP_NS = 20_000_000
RATE = 8000
KINDS = ("cloud", "boxes", "mic", "stereo", "rgba", "deep", "grau/α", "温度")


def value(name: str, step: int) -> Any:
    """Every value is a function of its name and number."""
    numbers = np.random.default_rng([len(name), step])
    if name == "cloud":
        return numbers.normal(size=(step % 7, 4)).astype(np.float32)
    if name == "boxes":
        return numbers.integers(0, 1000, (step * 3 % 5, 2, 2))
    if name == "mic":
        return (20_000 * np.sin(np.arange(160) / 9 + step)).astype(np.int16)
    if name == "stereo":
        return numbers.normal(size=(100 + step, 2)).astype(np.float32)
    if name == "rgba":
        return numbers.integers(0, 256, (24, 33, 4)).astype(np.uint8)
    if name == "deep":
        return numbers.integers(0, 1 << 16, (23, 32, 3)).astype(np.uint16)
    if name == "grau/α":
        return numbers.integers(0, 1 << 16, (16, 16, 4)).astype(np.uint16)
    return float(step)


def declare(recorder: Any) -> None:
    recorder.declare("cloud", ragged=True, names=["x", "y", "z", "intensity"], units="m")
    recorder.declare("boxes", ragged=True)
    recorder.declare("mic", kind="sound", rate_hz=RATE)
    recorder.declare("stereo", kind="sound", rate_hz=RATE)


def record(root: Path, steps: int = 20, names: tuple[str, ...] = KINDS) -> Path:
    with wd.record(root, clock="simulated") as recorder:
        declare(recorder)
        for step in range(steps):
            for name in names:
                recorder.append(name, value(name, step), step * STEP_NS)
            state = np.float32([step, 1])
            recorder.step({"joints": state}, {"torque": state}, reward=0.5, ts_ns=step * STEP_NS)
    return root


def assert_all(episode: Any, steps: int = 20, names: tuple[str, ...] = KINDS) -> None:
    for name in names:
        found = episode[name]
        assert found.timestamps.tolist() == [step * STEP_NS for step in range(steps)], name
        for step, got in enumerate(found.values()):
            wanted = np.asarray(value(name, step))
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
            assert np.array_equal(got, wanted), (name, step)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("kinds") / "root")


def test_recorded_packed_and_unpacked(root: Path, tmp_path: Path) -> None:
    episode = wd.open(root)[0]
    assert_all(episode)
    packed = wd.pack_episode(episode, tmp_path / "one.wshard")
    wd.unpack_episode(packed, tmp_path / "directory")
    for again in (wd.open_episode(packed), wd.open_episode(tmp_path / "directory")):
        assert_all(again)
        assert {name: again[name].meta for name in KINDS} == {name: episode[name].meta for name in KINDS}
    cloud, mic = episode["cloud"].meta, episode["mic"].meta
    assert (cloud.kind, cloud.rows, cloud.names[3], cloud.units) == (
        "ragged",
        (np.float32, (4,)),
        "intensity",
        "m",
    )
    assert (mic.kind, mic.rows, mic.rate_hz) == ("sound", (np.int16, ()), RATE)
    assert [episode[name].meta.kind for name in ("rgba", "deep", "grau/α")] == ["image"] * 3


def test_into_one_file_and_chunks(tmp_path: Path) -> None:
    record(tmp_path / "one.wshard")
    episode = wd.open_episode(tmp_path / "one.wshard")
    assert_all(episode)
    write_chunks(episode, tmp_path / "chunks", steps=7)
    assert_all(wd.open(tmp_path / "chunks")[0])


def test_published_and_streamed(root: Path, tmp_path: Path) -> None:
    with wd.DatasetBuilder("lab/kinds", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("demos", root)
        builder.publish()
    with wd.dataset("lab/kinds", catalog=tmp_path / "catalog") as published:
        assert_all(published.episodes[0])


def test_flat_rows_and_samples(root: Path) -> None:
    cloud = wd.open(root)[0]["cloud"]
    rows, offsets = cloud.flat()
    assert rows.shape == (int(offsets[-1]), 4)
    assert all(
        np.array_equal(rows[a:b], value("cloud", k)) for k, (a, b) in enumerate(itertools.pairwise(offsets))
    )
    times = np.array([-1, 0, 3 * STEP_NS + 5, 6 * STEP_NS])
    samples = wd.open(root)[0].sample(times, ["cloud", "温度"])
    assert samples["cloud"].shape == (4, 6, 4)
    assert samples.mask["cloud"].sum(axis=1).tolist() == [0, 0, 3, 6]
    assert np.array_equal(samples["cloud"][2, :3], value("cloud", 3))
    assert not samples["cloud"][2, 3:].any()
    assert samples.age_ns["cloud"].tolist()[2:] == [5, 0]
    with pytest.raises(TypeError, match="ragged"):
        wd.open(root)[0]["温度"].flat()
    with pytest.raises(ValueError, match="linear"):
        wd.open(root)[0].sample(times, ["cloud"], align="linear")


@pytest.mark.parametrize("form", ["root", "shard"])
def test_windows_pad_and_mask(root: Path, tmp_path: Path, form: str) -> None:
    episodes: Any = wd.open(root)
    if form == "shard":
        wd.pack_episode(episodes[0], tmp_path / "one.wshard")
        episodes = wd.open(tmp_path)
    fields = {"cloud": wd.Field("cloud", past=3, pad=6), "mic": wd.Field("mic", pad=200), "image": "rgba"}
    windows = wd.Windows(episodes, fields, anchor="torque")
    for sample in (0, 5, 19):
        found = windows[sample]
        assert found["cloud"].shape == (3, 6, 4)
        assert found.mask["cloud"].shape == (3, 6)
        for row, step in enumerate(range(sample - 2, sample + 1)):
            count = max(step, 0) % 7 if step >= 0 else 0
            assert found.mask["cloud"][row].sum() == count
            assert np.array_equal(
                found["cloud"][row, :count],
                value("cloud", step)[:count] if count else found["cloud"][row, :0],
            )
            assert not found["cloud"][row, count:].any()
        assert found["mic"].shape == (200,)
        assert np.array_equal(found["mic"][found.mask["mic"]], value("mic", sample))
    loader = wd.Loader(windows, batch_size=7, seed=3, normalize={"cloud": "mean_std"})
    every = np.concatenate([value("cloud", step) for step in range(20)])
    for batch in loader:
        assert batch["cloud"].shape[1:] == (3, 6, 4)
        assert not np.asarray(batch["cloud"])[~np.asarray(batch.mask["cloud"])].any()
    first = np.asarray(
        next(iter(wd.Loader(windows, batch_size=20, shuffle=False, normalize={"cloud": "mean_std"})))["cloud"]
    )
    assert np.allclose(first[6, 2, :6] * every.std(axis=0) + every.mean(axis=0), value("cloud", 6), atol=0.2)


def test_windows_refuse_what_does_not_fit(root: Path) -> None:
    episodes = wd.open(root)
    with pytest.raises(ValueError, match=r"pad=6"):
        _ = wd.Windows(episodes, {"cloud": "cloud"}, anchor="torque")[0]
    with pytest.raises(ValueError, match="pad is for ragged"):
        _ = wd.Windows(episodes, {"joints": wd.Field("joints", pad=3)}, anchor="torque")[0]
    short = wd.Windows(episodes, {"cloud": wd.Field("cloud", pad=2)}, anchor="torque")
    with pytest.raises(SchemaMismatchError, match=r"6 rows, pad is 2"):
        _ = short[6]
    cut = wd.Windows(episodes, {"cloud": wd.Field("cloud", pad=2, longer="cut")}, anchor="torque")
    assert np.array_equal(cut[6]["cloud"], value("cloud", 6)[:2])


def test_a_mixture_pads_to_the_longest(root: Path) -> None:
    sources = {
        str(size): (wd.Windows(wd.open(root), {"cloud": wd.Field("cloud", pad=size)}, anchor="torque"), 1.0)
        for size in (6, 9)
    }
    batch = next(iter(wd.Loader(wd.Mixture(sources), batch_size=16, seed=1)))
    assert batch["cloud"].shape == (16, 9, 4)
    assert batch.mask["cloud"].shape == (16, 9)
    assert batch.age_ns["cloud"].shape == (16,)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.zeros((2, 3), np.float32), r"f32\[n, 4\]"),
        (np.zeros((2, 4)), "float64"),
        (np.float32(1), "float32"),
        ("text", "str"),
        (np.zeros((2, 4, 1), np.float32), r"2, 4, 1"),
    ],
)
def test_other_rows_are_refused(tmp_path: Path, bad: Any, reason: str) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        recorder.declare("cloud", ragged=True)
        recorder.append("cloud", value("cloud", 3), 0)
        with pytest.raises(SchemaMismatchError, match=reason):
            recorder.append("cloud", bad, 1)
        recorder.append("cloud", [], 2)
    assert wd.open(tmp_path / "root")[0]["cloud"].values()[1].shape == (0, 4)


def test_declarations_that_make_no_sense(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        for wrong in (
            {"kind": "sound"},
            {"rate_hz": 8000},
            {"kind": "sound", "rate_hz": -1},
            {"kind": "sound", "rate_hz": 1, "dtype": "bool"},
            {"ragged": True, "kind": "image"},
        ):
            with pytest.raises((ValueError, TypeError)):
                recorder.declare("x", **wrong)
        recorder.declare("x", ragged=True)
        with pytest.raises(SchemaMismatchError, match="row type"):
            recorder.append("x", [], 0)
        recorder.declare("y", kind="sound", rate_hz=8000)
        for block in (np.zeros(4, np.int64), np.zeros((4, 2, 2), np.int16)):
            with pytest.raises(SchemaMismatchError, match="block of sound"):
                recorder.append("y", block, 0)
        with pytest.raises(ValueError, match="lossless"):
            recorder.declare("z", kind="image", video=wd.VideoOptions(codec="h264"))
            recorder.append("z", value("rgba", 0), 0)
        recorder.append("kept", 1.0, 0)


@pytest.mark.parametrize("name", ["温度", "größe/α", "камера", "é", "🤖"])
def test_names_beyond_ascii(tmp_path: Path, name: str) -> None:
    with wd.record(tmp_path / "root", static={"ort/ü": "Köln"}, clock="simulated") as recorder:
        recorder.append(name, 1.0, 0)
        recorder.step({f"o{name}": 1.0}, {f"a{name}": 2.0}, ts_ns=0)
    episode = wd.open(tmp_path / "root")[0]
    packed = wd.open_episode(wd.pack_episode(episode, tmp_path / "one.wshard"))
    for found in (episode, packed):
        assert found[name][0] == (1.0, 0)
        assert found.steps.actions[f"a{name}"][0] == 2.0
        assert found.static["ort/ü"] == "Köln"


@pytest.mark.parametrize(
    "name", ["e\u0301", "a b", "a\u00a0b", "a\u202eb", "a\x00", "a\nb", "\ud800", "a\\b", "ä/../b", "ö" * 101]
)
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder, pytest.raises(ValueError):
        recorder.append(name, 1.0, 0)


CHILD = """
import sys
from pathlib import Path
import warpdata as wd
from tests.episodes.test_kinds import STEP_NS, declare, value
counts = open(sys.argv[2], "r+b", buffering=0)
with wd.record(Path(sys.argv[1]), clock="simulated") as recorder:
    declare(recorder)
    for step in range(100_000):
        for name in ("cloud", "mic", "stereo", "rgba"):
            recorder.append(name, value(name, step), step * STEP_NS)
        counts.seek(0)
        counts.write((step + 1).to_bytes(8, "little"))
"""


@pytest.mark.parametrize("target", ["root", "one.wshard"])
@pytest.mark.parametrize("least", [1, 40])
def test_nothing_acknowledged_is_lost_when_killed(tmp_path: Path, target: str, least: int) -> None:
    counter = tmp_path / "acknowledged"
    counter.write_bytes(bytes(8))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / target), str(counter)], cwd=ROOT)
    until(lambda: int.from_bytes(counter.read_bytes(), "little") >= least, "nothing is recorded")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    acknowledged = int.from_bytes(counter.read_bytes(), "little")
    wd.salvage(tmp_path / target)
    opened: Any = wd.open(tmp_path / target)
    episode = opened if isinstance(opened, Episode) else opened[0]
    for name in ("cloud", "mic", "stereo", "rgba"):
        assert len(episode[name]) >= acknowledged
        for step, got in enumerate(episode[name].values()[:acknowledged]):
            assert np.array_equal(got, value(name, step)), (name, step)


def test_an_unfinished_recording_is_read(tmp_path: Path) -> None:
    recorder = wd.record(tmp_path / "root", clock="simulated")
    declare(recorder)
    for step in range(5):
        recorder.append("cloud", value("cloud", step), step * STEP_NS)
    from warpdata.episodes.salvage.live import live_episode

    folder = next(path for path in (tmp_path / "root").glob("*/*") if path.is_dir())
    live = live_episode(folder)
    assert live is not None
    assert_all(live, 5, ("cloud",))
    recorder.close()


# Exports.

RAGGED = {"cloud", "boxes", "mic", "stereo"}
HOLDS = dict.fromkeys(["mcap", "webdataset", "webdataset by step", "hdf5", "zarr", "rlds"], RAGGED)
PIXELS = ("rgba", "deep")


@pytest.mark.parametrize(
    "target",
    ["mcap", "webdataset", "webdataset by step", "lerobot", "rlds", "hdf5", "zarr", "minari", "dreamer"],
)
def test_exports_hold_or_name_what_they_leave_out(root: Path, tmp_path: Path, target: str) -> None:
    if target in ("mcap", "hdf5", "zarr"):
        pytest.importorskip({"hdf5": "h5py"}.get(target, target))
    name, _, is_by_step = target.partition(" ")
    receipt = wd.export_episodes(root, tmp_path / "out", name, **({"per": "step"} if is_by_step else {}))
    holds = HOLDS.get(target, set())
    assert {name for name in RAGGED if "dropped" in receipt.signals[name].counts} == RAGGED - holds
    episode, again = wd.open(root)[0], wd.open(tmp_path / "out")[0]
    there = {each.rpartition("/")[2].rpartition(".")[2]: again[each] for each in again.signals}
    for name in holds:
        assert there[name].meta.rows == episode[name].meta.rows
        if name in ("mic", "stereo") and target != "mcap":  # by step: the samples until the next one
            ours, theirs = (np.concatenate(list(each.values())) for each in (episode[name], there[name]))
            assert np.array_equal(ours, theirs), name
        else:
            for step, got in enumerate(there[name].values()[:20]):
                assert np.array_equal(got, value(name, step)), (name, step)
    if target == "mcap":
        assert again["mic"].meta.rate_hz == RATE
    for name in PIXELS:
        found = there[name].values()[:20]
        assert np.array_equal(found, np.stack([value(name, step) for step in range(20)])), name


def test_sound_is_exported_as_wav(root: Path, tmp_path: Path) -> None:
    receipt = wd.export_episodes(root, tmp_path / "out", "wav")
    assert "dropped" in receipt.signals["cloud"].counts
    assert not receipt.is_exact
    with wave.open(str(tmp_path / "out" / "000000000000" / "mic.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        samples = np.frombuffer(file.readframes(-1), np.int16)
    assert np.array_equal(samples, np.concatenate([value("mic", step) for step in range(20)]))
    soundfile = pytest.importorskip("soundfile")
    stereo, rate = soundfile.read(tmp_path / "out" / "000000000000" / "stereo.wav", dtype="float32")
    assert rate == RATE
    assert np.array_equal(stereo, np.concatenate([value("stereo", step) for step in range(20)]))


def test_pauses_are_silent() -> None:
    blocks = [np.full(100, 7, np.uint8)] * 3
    late = ArraySignal.ragged([0, 100_000_000, 1_100_000_000], blocks, rate_hz=1000)
    sound = join_sound(late)
    assert (len(sound.samples), sound.silent, sound.start_ns) == (1200, 900, 0)
    assert sound.samples[250] == 128
    assert sound.samples[1150] == 7
    uneven = ArraySignal.ragged([0, 105_000_000, 190_000_000], blocks, rate_hz=1000)
    assert join_sound(uneven).silent == 0
    with pytest.raises(TypeError, match="not a sound"):
        join_sound(ArraySignal.ragged([0], [np.zeros(3)]))


# Damage.


def test_offsets_that_are_wrong_are_refused(root: Path, tmp_path: Path) -> None:
    from warpdata.episodes.forms.shard import shard_of
    from warpdata.formats.wshard.rows import ArrayRows

    for change in ([0, 9], [-1, 0], [19, -1]):
        shard = shard_of(wd.open(root)[0])
        rows = shard.blocks["aux/offsets/cloud"]
        offsets = rows.rows(0, rows.length).copy()
        offsets[change[0]] = change[1] if change[1] >= 0 else offsets[-1] + 5
        shard.blocks["aux/offsets/cloud"] = ArrayRows(offsets, rows.spec)
        wd.save_wshard(shard, tmp_path / f"{change[0]}.wshard")
        episode = wd.open_episode(tmp_path / f"{change[0]}.wshard")
        assert len(episode["温度"].values()) == 20
        with pytest.raises(CorruptLayoutError, match="offsets"):
            episode["cloud"].values()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1 << 40, 1 << 40]},
        {"shape": [3]},
        {"dtype": "f64"},
        {"kind": "sound"},
        {"kind": "vector"},
        {"kind": "sound", "sample_rate_hz": 0},
        {"sample_rate_hz": 8000},
        {"dtype": "text"},
    ],
)
def test_a_description_that_is_not_that_of_the_values_is_refused(change: dict[str, Any]) -> None:
    about = {"kind": "ragged", "dtype": "f32", "shape": [4]}
    values = as_objects(value("cloud", step) for step in range(1, 6))
    table = pq.read_table(pa.BufferReader(table_bytes(about, np.arange(5), values)))
    stated = {b"warpdata": json.dumps({**about, **change}).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(stated), sink)
    with pytest.raises(CorruptLayoutError):
        parse_signal(bytes(sink.getvalue()), "forged")


def test_lists_of_another_writer_may_vary_in_length() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"timestamp": [1, 2, 3], "value": [[1.0], [], [2.0, 3.0]]}), sink)
    description, _, values = parse_signal(bytes(sink.getvalue()), "foreign")
    assert (description.kind, description.shape) == ("ragged", ())
    assert [each.tolist() for each in values] == [[1.0], [], [2.0, 3.0]]
