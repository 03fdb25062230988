"""LeRobot sets in and out: golden sets of the original programs, sets of ours, and sets that are wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import sys
import weakref
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from tests.convert.sets import (
    LEROBOT,
    assert_same,
    change_json,
    copied,
    made_episode,
    made_episodes,
    made_set,
    on_steps,
)
from tests.convert.test_wrong_sets import DATA, LISTED_AS, TOP, put_column
from tests.sweeps import thinned
from warpdata.convert import lerobot
from warpdata.convert.aligning import grid_times
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.features import QUANTILES, FrameCounts
from warpdata.convert.lerobot.write import VideoOut
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    ConflictError,
    CorruptLayoutError,
    LimitExceededError,
    NoStepsError,
    OutOfSpaceError,
    SchemaMismatchError,
    WarpError,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.source import STEPS, StepClock


def golden(name: str) -> Path:
    return shared_golden("foreign", "lerobot", name)


@pytest.mark.parametrize("name", LEROBOT)
def test_golden_sets_open_where_they_lie(name: str) -> None:
    """Against what the original library computed of its own files."""
    expected = json.loads(golden(f"{name}.expected.json").read_text())
    episodes = wd.open(golden(name))
    assert isinstance(episodes, Episodes)
    assert len(episodes) == expected["total_episodes"]
    for episode, said in zip(episodes, expected["episodes"], strict=True):
        assert episode.steps.length == said["length"]
        assert episode.static["robot_type"] == expected["robot_type"]
        for channel, about in said["channels"].items():
            values = episode[channel].values()
            assert values.dtype == about["declared"]
            # The original gives float64 as float32; the hash is of that, in the declared type again.
            seen = values.astype(about["dtype"]).astype(about["declared"])
            assert list(values.shape) == about["shape"]
            assert hashlib.sha256(seen.tobytes()).hexdigest() == about["sha256"], channel
        for channel, about in said["images"].items():
            assert hashlib.sha256(episode[channel].values().tobytes()).hexdigest() == about["sha256_rgb_u8"]
        for channel, about in said["videos"].items():
            frames = episode[channel].values()
            assert len(frames) == said["length"]
            for at, key in ((0, "mean_first"), (-1, "mean_last")):
                assert np.abs(frames[at].reshape(-1, 3).mean(axis=0) - about[key]).max() < 0.6
        seen_tasks = episode["task"].values() if "task" in episode.signals else [episode.static["task"]]
        assert set(seen_tasks) == set(said["tasks"])


@pytest.mark.parametrize("kind", ["root", "shards"])
@pytest.mark.parametrize("name", LEROBOT)
def test_a_set_comes_out_as_it_went_in(name: str, kind: str, tmp_path: Path) -> None:
    source = wd.open(golden(name))
    receipt = wd.import_episodes(golden(name), tmp_path / "ours", to=kind)
    assert receipt.is_exact
    version = source.metadata["lerobot"]["info"]["codebase_version"]
    out = wd.export_episodes(tmp_path / "ours", tmp_path / "back", "lerobot", version=version)
    assert out.is_exact
    again = lerobot.read(tmp_path / "back")
    assert again.metadata == source.metadata  # info, tasks, statistics, files of others
    for a, b in zip(source, again, strict=True):
        assert_same(a, b)
        assert a.meta["lerobot"] == b.meta["lerobot"]  # the row of the episode and its statistics


@pytest.mark.parametrize(
    ("name", "version"), [(LEROBOT[0], "v3.0"), (LEROBOT[1], "v2.1"), (LEROBOT[4], "v2.1")]
)
def test_versions_become_each_other(name: str, version: str, tmp_path: Path) -> None:
    source = lerobot.read(golden(name))
    assert lerobot.write(source, tmp_path / "other", version=version).is_exact
    other = lerobot.read(tmp_path / "other")
    for a, b in zip(source, other, strict=True):
        assert_same(a, b)
    if version == "v3.0":
        stats = other.metadata["lerobot"]["stats"]
        values = np.concatenate([episode["action"].values() for episode in source])
        assert np.allclose(stats["action"]["mean"], values.mean(axis=0), atol=1e-6)
        assert np.allclose(stats["action"]["q99"], np.quantile(values, 0.99, axis=0), atol=1e-6)


def test_v20_is_read(tmp_path: Path) -> None:
    old = copied(golden(LEROBOT[0]), tmp_path / "old")
    change_json(old / "meta/info.json", codebase_version="v2.0")
    (old / "meta/episodes_stats.jsonl").unlink()
    (old / "meta/stats.json").write_text('{"action": {"mean": [NaN, 1.0]}}')
    for a, b in zip(lerobot.read(golden(LEROBOT[0])), lerobot.read(old), strict=True):
        assert_same(a, b)
    lerobot.write(lerobot.read(old), tmp_path / "new", version="v2.1")
    assert len((tmp_path / "new/meta/episodes_stats.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[1.5, -2e-300, 3e+2]", [1.5, -2e-300, 300.0]),
        ("[1.0, NaN]", [1.0, {"__float__": "nan"}]),
        ("[-Infinity]", [{"__float__": "-inf"}]),
        ("[1e999]", [{"__float__": "inf"}]),
        ("[-1E+400]", [{"__float__": "-inf"}]),
        ("[1E400, 1e300]", [{"__float__": "inf"}, 1e300]),
        (f"[{'9' * 250}e99]", [{"__float__": "inf"}]),
    ],
)
def test_statistics_of_an_episode_are_kept_whatever_numbers_they_have(
    text: str, kept: list[object], tmp_path: Path
) -> None:
    source = made_set(tmp_path / "source", version="v2.1")
    line = f'{{"episode_index": 0, "stats": {{"action": {{"mean": {text}, "count": [3]}}}}}}'
    (source / "meta/episodes_stats.jsonl").write_text(line)
    stats = lerobot.read(source)[0].meta["lerobot"]["stats"]
    assert stats == {"action": {"mean": kept, "count": [3]}}
    with pytest.raises(TypeError, match="read-only"):
        stats["action"]["mean"] = []
    wd.import_episodes(source, tmp_path / "ours")
    assert wd.open(tmp_path / "ours")[0].meta["lerobot"]["stats"] == stats


def test_what_is_kept_is_counted_with_the_rows_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows out of a large group hold all of it: the bound is on what is in memory."""
    tables.write_table(str(tmp_path / "rows.parquet"), {"value": np.arange(10_000)})
    monkeypatch.setattr(tables, "_KEPT_BYTES", 200_000)
    read = tables.Tables(Place.of(tmp_path))
    kept = [weakref.ref(read.columns("rows.parquet", ("value",), at, at + 5)) for at in range(10, 60, 5)]
    assert [each() is not None for each in kept] == [False] * 8 + [True] * 2


def test_rows_that_others_pushed_out_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open episode keeps no rows in memory: how many stay is up to the set."""
    source = made_set(tmp_path / "source", version="v2.1")
    episodes = lerobot.read(source)
    expected = [episode["action"].values() for episode in episodes]
    monkeypatch.setattr(tables, "_KEPT_BYTES", 1)
    read = lerobot.read(source)
    opened = list(read)
    for _ in range(2):
        for episode, values in zip(opened, expected, strict=True):
            assert np.array_equal(episode["action"].values(), values)
    assert len(read.source.documents.tables._kept) == 1  # type: ignore[attr-defined]


def test_what_nobody_knows_is_kept(tmp_path: Path) -> None:
    """Keys of other programs in every document, and files of theirs."""
    source = made_set(tmp_path / "source", version="v2.1")
    change_json(source / "meta/info.json", site="lab 3", nested={"a": [1, None, float("nan")]})
    (source / "meta/modality.json").write_text('{"state": {"arm": {"start": 0, "end": 3}}}')
    (source / "meta/calibration.bin").write_bytes(b"\xff\x00\x01")
    rows = [json.loads(line) for line in (source / "meta/episodes.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "operator": f"person {n}", "score": n / 3}) for n, row in enumerate(rows)]
    (source / "meta/episodes.jsonl").write_text("\n".join(lines))
    wd.import_episodes(source, tmp_path / "ours")
    for version in ("v2.1", "v3.0"):
        wd.export_episodes(tmp_path / "ours", tmp_path / version, "lerobot", version=version)
        info = json.loads((tmp_path / version / "meta/info.json").read_text())
        assert info["site"] == "lab 3"
        assert np.isnan(info["nested"]["a"][2])
        for name in ("meta/modality.json", "meta/calibration.bin"):
            assert (tmp_path / version / name).read_bytes() == (source / name).read_bytes()
        for number, episode in enumerate(lerobot.read(tmp_path / version)):
            row = episode.meta["lerobot"]["episode"]
            assert (row["operator"], row["score"]) == (f"person {number}", number / 3)


def test_frames_stand_exactly_on_the_grid_however_many_episodes_there_are(tmp_path: Path) -> None:
    """Begin and end come from frame numbers: nothing adds up."""
    made_set(tmp_path / "set", 40)
    rows = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    first = 0
    for row in rows:
        assert row["videos/observation.images.top/from_timestamp"] == first / 30
        first += row["length"]
        assert row["videos/observation.images.top/to_timestamp"] == first / 30
    file = tmp_path / "set/videos/observation.images.top/chunk-000/file-000.mp4"
    with av.open(str(file)) as video:
        stream = video.streams.video[0]
        shown = [frame.pts * stream.time_base for frame in video.decode(stream)]
    assert [moment * 30 for moment in shown] == list(range(first))


def test_every_episode_may_have_files_of_its_own(tmp_path: Path) -> None:
    made_set(tmp_path / "one")
    made_set(tmp_path / "many", data_files_size_in_mb=0, video_files_size_in_mb=0)
    assert len(list((tmp_path / "many").rglob("file-00?.mp4"))) == 4
    for a, b in zip(lerobot.read(tmp_path / "one"), lerobot.read(tmp_path / "many"), strict=True):
        assert_same(a, b)


def test_raw_frames_say_that_they_were_encoded(tmp_path: Path) -> None:
    episodes = made_episodes(2)
    receipt = lerobot.write(episodes, tmp_path / "video")
    assert receipt.to_json()["signals"]["observation.images.top"]["how"] == "reencoded"
    assert receipt.to_json()["signals"]["action"]["how"] == "kept"
    exact = lerobot.write(episodes, tmp_path / "image", frames_as="image")
    assert exact.to_json()["signals"]["observation.images.top"]["how"] == "reencoded"
    for a, b in zip(episodes, lerobot.read(tmp_path / "image"), strict=True):
        for name in a.signals:
            assert np.array_equal(a[name].values(), b[name].values()), name
            assert a[name].meta.dtype == b[name].meta.dtype
    stored = json.loads((tmp_path / "image/meta/warpdata.json").read_text())
    told = exact.to_json()
    assert stored["receipt"] == {key: told[key] for key in told if key not in ("continued", "target")}


class Counted(ArraySignal):
    """Frames that count how often one of them is read."""

    read = 0

    def _values_in(self, rows: range) -> Any:
        self.read += len(rows)
        return super()._values_in(rows)

    def _values_at(self, indices: Any) -> Any:
        self.read += len(indices)
        return super()._values_at(indices)


def test_raw_frames_are_read_once_for_the_video_and_its_hash(tmp_path: Path) -> None:
    times = grid_times(40, 10)
    frames = np.random.default_rng(1).integers(0, 255, (40, 32, 48, 3), np.uint8)
    camera = Counted(times, frames, on_steps(times, frames, "observation", "image").meta)
    signals = {"camera": camera, "action": on_steps(times, np.arange(40.0), "action")}
    made = Episode.of(signals, {"task": "x", "fps": 10}, id="a", steps=StepClock(STEPS))
    receipt = lerobot.write(Episodes.of([made]), tmp_path / "set")
    assert camera.read <= 40 + 16  # and a few for the statistics
    inner = hashlib.sha256(frames.tobytes()).hexdigest()
    assert receipt.to_json()["signals"]["camera"]["sha256"] == hashlib.sha256(inner.encode()).hexdigest()


def test_other_rates_are_aligned_as_told(tmp_path: Path) -> None:
    """50 Hz joints and a 10 Hz camera at 10 Hz, against values picked by hand."""
    fast, slow = grid_times(50, 50), grid_times(10, 10) + 3_000_000
    joints = np.arange(50, dtype=np.float32)[:, None]
    frames = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 16, 16, 3), np.uint8)
    signals = {
        "joints": ArraySignal(fast, joints, role="observation"),
        "torque": ArraySignal(fast, -joints, role="action"),
        "top": ArraySignal(slow, frames, on_steps(slow, frames, "observation", "image").meta),
    }
    episodes = Episodes.of([Episode.of(signals, {"task": "x"}, id="a")])
    receipt = lerobot.write(episodes, tmp_path / "set", rate=10, frames_as="image", align="linear")
    found = lerobot.read(tmp_path / "set")[0]
    assert set(found.signals) >= {"observation.state", "action", "observation.images.top"}
    start = 3_000_000  # where every signal has a value
    wanted = np.interp(grid_times(10, 10) + start, fast, joints[:, 0])
    assert np.allclose(found["observation.state"].values()[:, 0], wanted[: len(found["action"])], atol=1e-4)
    about = receipt.to_json()
    assert about["supplied"] == {"rate": 10, "align": "linear"}
    assert about["signals"]["joints"]["how"] == "resampled"
    assert about["signals"]["joints"]["max_age_ns"] == 3_000_000


def test_uneven_steps_need_a_rate(tmp_path: Path) -> None:
    times = np.array([0, 10, 95, 100, 240]) * 1_000_000
    signals = {
        "x": on_steps(times, np.arange(5.0), "observation"),
        "u": on_steps(times, np.arange(5.0), "action"),
    }
    uneven = Episodes.of([Episode.of(signals, id="a", steps=StepClock(STEPS))])
    with pytest.raises(NoStepsError, match="off by"):
        lerobot.write(uneven, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert lerobot.write(uneven, tmp_path / "set", rate=20).episodes == 1


def test_the_observation_after_the_last_action_is_not_lost_in_silence(tmp_path: Path) -> None:
    signals = {
        "x": ArraySignal(grid_times(6, 10), np.arange(6.0), role="observation"),
        "u": ArraySignal(grid_times(5, 10), np.arange(5.0), role="action"),
    }
    receipt = lerobot.write(Episodes.of([Episode.of(signals, id="a")]), tmp_path / "set")
    assert "after the last step has no place" in receipt.to_json()["signals"]["x"]["why"][0]
    assert lerobot.read(tmp_path / "set")[0]["observation.state"].values().tolist() == [0, 1, 2, 3, 4]


def test_part_of_a_set_gets_numbers_and_statistics_of_its_own(tmp_path: Path) -> None:
    whole = lerobot.read(golden(LEROBOT[3]))
    receipt = lerobot.write(whole[2:], tmp_path / "part")
    assert any("counted again" in note for note in receipt.notes)
    part = lerobot.read(tmp_path / "part")
    assert part.metadata["lerobot"]["info"]["total_episodes"] == 2
    for name in ("action", "observation.force"):
        values = np.concatenate([episode[name].values() for episode in whole[2:]])
        assert np.allclose(part.metadata["lerobot"]["stats"][name]["max"], values.max(axis=0))
        assert np.array_equal(part[0][name].values(), whole[2][name].values())
    assert part[0]["index"].values()[0] == 0
    frames = [episode["observation.images.front"].values() for episode in (whole[3], part[1])]
    assert np.array_equal(*frames)


def test_episodes_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    other = made_episode(1, camera=False)
    with pytest.raises(SchemaMismatchError, match=r"has no 'observation.images.top'"):
        lerobot.write(Episodes.of([made_episode(0), other]), tmp_path / "set")
    receipt = lerobot.write(Episodes.of([made_episode(0), other]), tmp_path / "set", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == [other.id]
    with pytest.raises(ConflictError):
        lerobot.write(made_episodes(1), tmp_path / "set")
    with pytest.raises(ValueError, match=r"Did you mean 'v3.0'"):
        lerobot.write(made_episodes(1), tmp_path / "new", version="v3")  # type: ignore[arg-type]


# Sets that are wrong.


def everything(folder: Path) -> int:
    return sum(
        len(signal.values()) for episode in lerobot.read(folder) for signal in episode.signals.values()
    )


def error_of(folder: Path) -> str | None:
    """What is said of a set when all of it is read; any other exception fails the test."""
    try:
        everything(folder)
    except WarpError as error:
        return str(error)
    return None


def test_every_cut_and_flip_is_a_typed_error_or_reads(tmp_path: Path) -> None:
    """Originals have no checksums, so a flipped number may pass; nothing else may happen."""
    source = made_set(tmp_path / "source", 2)
    chance = random.Random(7)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    cases = [(file, how, chance.random()) for file in files for how in ("cut", "flip") for _ in range(6)]
    for number, (file, how, where) in enumerate(thinned(cases, 48)):
        broken = copied(source, tmp_path / f"broken{number}")
        data = bytearray((broken / file).read_bytes())
        at = int(where * len(data))
        if how == "cut":
            del data[at:]
        else:
            data[at] ^= 1 << number % 8
        (broken / file).write_bytes(data)
        said = error_of(broken)
        assert said is None or file.name in said or str(broken) in said, said
        target = tmp_path / f"ours{number}"
        try:
            wd.import_episodes(broken, target, format="lerobot")
        except WarpError:
            left = [path for path in target.rglob("*") if path.is_file()] if target.exists() else []
            assert not [path for path in left if ".tmp-" in str(path)]
        else:
            assert len(wd.open_episodes(target)) == 2


def test_a_picture_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    lerobot.write(made_episodes(1), source, frames_as="image")
    file = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    column = table.column("observation.images.top").to_pylist()
    bomb = bytearray(column[0]["bytes"])
    bomb[16:24] = (30_000).to_bytes(4, "big") * 2
    column[0]["bytes"] = bytes(bomb)
    at = table.schema.get_field_index("observation.images.top")
    kind = table.schema.field(at).type
    import pyarrow as pa

    pq.write_table(table.set_column(at, "observation.images.top", pa.array(column, kind)), file)
    with pytest.raises(LimitExceededError, match=r"30000x30000 pixels.*episode 0"):
        everything(source)


def test_a_damaged_line_of_statistics_costs_its_episode_only(tmp_path: Path) -> None:
    """Lines are read when they are asked for: a set has many of them."""
    set_ = made_set(tmp_path / "v21", version="v2.1")
    file = set_ / "meta/episodes_stats.jsonl"
    lines = file.read_bytes().splitlines()
    lines[1] = lines[1][: len(lines[1]) // 2]
    file.write_bytes(b"\n".join(lines))
    episodes = wd.open(set_)
    assert episodes[0].meta["lerobot"]["stats"]
    with pytest.raises(CorruptLayoutError, match=r"episodes_stats\.jsonl"):
        _ = episodes[1].meta
    receipt = wd.import_episodes(set_, tmp_path / "ours", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == [episodes.ids[1]]


@pytest.mark.parametrize("line", [b'{"stats": {}}', b'{"episode_index": "0", "stats": {}}'])
def test_statistics_of_no_episode_are_refused(tmp_path: Path, line: bytes) -> None:
    set_ = made_set(tmp_path / "v21", version="v2.1")
    (set_ / "meta/episodes_stats.jsonl").write_bytes(line)
    with pytest.raises(CorruptLayoutError, match="statistics of no episode"):
        wd.open(set_)


def test_a_disk_that_is_full_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing one file fails there too, which is no reason to leave the others open."""
    opened: list[io.BufferedWriter] = []
    written = VideoOut.add

    class FullFile(io.FileIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(path: Path, mode: str) -> Any:
        if path.suffix != ".mp4":
            return open(path, mode)
        opened.append(io.BufferedWriter(FullFile(path, mode), buffer_size=1 << 20))
        return opened[-1]

    def put(out: VideoOut, *frames: Any) -> None:
        written(out, *frames)
        if len(opened) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.modules[VideoOut.__module__], "open", open_full, raising=False)
    monkeypatch.setattr(VideoOut, "add", put)
    episode = made_episode(0)
    more = {f"observation.images.{name}": episode["observation.images.top"] for name in ("left", "right")}
    both = Episode.of({**episode.signals, **more}, episode.static, id="e", steps=StepClock(STEPS))
    with pytest.raises(OutOfSpaceError):
        lerobot.write(Episodes.of([both]), tmp_path / "set")
    assert [file.closed for file in opened] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_an_episode_of_one_step_needs_a_frame_that_is_its_own(tmp_path: Path) -> None:
    lerobot.write(Episodes.of([made_episode(0, 1), made_episode(1, 4)]), tmp_path / "set")
    put_column(tmp_path / "set" / LISTED_AS, f"{TOP}/from_timestamp", lambda was: [np.nan, was[1]])
    with pytest.raises(CorruptLayoutError, match="has no frame for step 0 of 1"):
        _ = lerobot.read(tmp_path / "set")[0]["observation.images.top"].values()


def test_what_no_set_can_hold_is_refused(tmp_path: Path) -> None:
    whole = made_episode(0, camera=False)

    def with_signal(name: str, values: Any) -> Episodes:
        signal = on_steps(grid_times(9, 30), values, "observation")
        other = Episode.of({**whole.signals, name: signal}, whole.static, id="b", steps=StepClock(STEPS))
        return Episodes.of([whole, other])

    with pytest.raises(SchemaMismatchError, match="there are no episodes to write"):
        lerobot.write(Episodes.of([]), tmp_path / "set")
    with pytest.raises(SchemaMismatchError, match=r"'action' is float64\[5\] in episode b, float64\[2\] in"):
        lerobot.write(with_signal("action", np.zeros((9, 5))), tmp_path / "set")
    with pytest.raises(SchemaMismatchError, match=r"'action' is int64\[2\] in episode b"):
        lerobot.write(with_signal("action", np.zeros((9, 2), np.int64)), tmp_path / "set")
    with pytest.raises(SchemaMismatchError, match=r"two signals would become 'observation\.a\.b'"):
        both = with_signal("a.b", np.zeros(9))[1:].map(
            lambda each: Episode.of(
                {**each.signals, "a/b": each["a.b"]}, each.static, id="c", steps=StepClock(STEPS)
            )
        )
        lerobot.write(both, tmp_path / "set")
    with pytest.raises(KeyError, match=r"names contains 'acton'.*Did you mean 'action'"):
        lerobot.write(Episodes.of([whole]), tmp_path / "set", names={"acton": "x"})
    whole, slow = (
        Episode.of(each.signals, {"task": "x"}, id=each.id, steps=StepClock(STEPS))
        for each in (whole, made_episode(1, fps=15, camera=False))
    )
    with pytest.raises(NoStepsError, match="the steps are not 30 a second"):
        lerobot.write(Episodes.of([whole, slow]), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []
    receipt = lerobot.write(Episodes.of([whole, slow]), tmp_path / "set", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == [slow.id]
    assert len(lerobot.read(tmp_path / "set")) == 1


def test_text_lists_and_structs_come_out_as_they_went_in(tmp_path: Path) -> None:
    source = made_set(tmp_path / "set", 2)
    rows = pq.read_table(source / DATA)
    more = {
        "note": [f"n{k}" for k in range(len(rows))],
        "tags": [["a", "b"][: k % 3] for k in range(len(rows))],
        "pose": [{"x": k, "y": None if k % 2 else "q"} for k in range(len(rows))],
    }
    for name, values in more.items():
        rows = rows.append_column(name, pa.array(values))
    pq.write_table(rows.replace_schema_metadata(None), source / DATA)
    features = json.loads((source / "meta/info.json").read_text())["features"]
    features |= {
        name: {"dtype": kind, "shape": [1]}
        for name, kind in zip(more, ("string", "list", "struct"), strict=True)
    }
    change_json(source / "meta/info.json", features=features)
    episodes = lerobot.read(source)
    assert episodes[1]["note"].values().tolist() == more["note"][7:]
    assert json.loads(episodes[1]["pose"].values()[0]) == {"x": 7, "y": None}
    lerobot.write(episodes, tmp_path / "out")
    again = pq.read_table(tmp_path / "out" / DATA)
    assert {name: again.column(name).to_pylist() for name in more} == more


def test_episodes_without_steps_are_refused(tmp_path: Path) -> None:
    whole, none = made_episode(0, camera=False), made_episode(1, 0, camera=False)
    with pytest.raises(SchemaMismatchError, match=f"episode {none.id} has no steps"):
        lerobot.write(Episodes.of([whole, none]), tmp_path / "set")
    with pytest.raises(SchemaMismatchError, match="none of 1 episodes could be written"):
        lerobot.write(Episodes.of([none]), tmp_path / "set", on_error="skip")
    assert list(tmp_path.iterdir()) == []
    receipt = lerobot.write(Episodes.of([whole, none]), tmp_path / "set", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == [none.id]


@pytest.mark.parametrize("shape", [(3, 20, 30, 3), (2, 20, 30), (2, 480, 640, 3), (1, 300, 100, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_statistics_of_frames_are_exact(shape: tuple[int, ...], dtype: Any) -> None:
    frames = np.random.default_rng(0).integers(3, 200, shape).astype(dtype)
    found = FrameCounts.of(frames).statistics(quantiles=True)
    side = max(shape[1:3])
    step = side // 150 if side >= 300 else 1
    plain = frames[:, ::step, ::step].reshape(-1, shape[3] if len(shape) == 4 else 1).astype(np.float64)
    plain /= 255.0 if dtype == np.uint8 else 1.0
    for name, made in (
        ("min", plain.min(0)),
        ("max", plain.max(0)),
        ("mean", plain.mean(0)),
        ("std", plain.std(0)),
    ):
        assert np.allclose(np.array(found[name]).reshape(-1), made)
    for name, share in QUANTILES.items():
        assert np.allclose(np.array(found[name]).reshape(-1), np.quantile(plain, share, axis=0))
    assert found["count"] == [shape[0]]
    half = FrameCounts.of(frames[:1]) + FrameCounts.of(frames[1:]) if shape[0] > 1 else FrameCounts.of(frames)
    assert half.statistics(quantiles=True) == found
