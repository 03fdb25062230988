"""The one recorder: into a root or into one file, by step and in time; nothing is left where nothing was recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import warpdata as wd
from warpdata.episodes.record import recorder as record
from warpdata.episodes.record import recording
from warpdata.errors import ConflictError, RecordingError, SchemaMismatchError, WriterClosedError
from warpdata.formats.wshard import ShardReader


@pytest.mark.parametrize("name", ["root", "one.wshard"])
def test_a_failure_before_the_first_record_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ZeroDivisionError), wd.record(tmp_path / name, static={"task": "x"}) as rec:
        rec.declare("a", dtype="float32")
        rec.mark(success=False)
        raise ZeroDivisionError
    with wd.record(tmp_path / name):
        pass
    with pytest.raises(TypeError), wd.record(tmp_path / name) as rec:
        rec.append("x", object())
    assert list(tmp_path.iterdir()) == []


def test_every_with_adds_an_episode(tmp_path: Path) -> None:
    for number in range(3):
        with wd.record(tmp_path, static={"n": number}) as rec:
            rec.append("x", number)
    assert [episode["n"] for episode in wd.open_recordings(tmp_path)] == [0, 1, 2]


def test_one_file_appears_whole_and_is_not_replaced_unasked(tmp_path: Path) -> None:
    target = tmp_path / "ep.wshard"
    with wd.record(target, clock="simulated") as rec:
        rec.step({"x": 1.0}, {"u": 2.0}, ts_ns=0)
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["ep.wshard"]
    assert wd.open_episode(target).id == "ep"
    with pytest.raises(ConflictError, match="exists"):
        wd.record(target)
    with wd.record(target, overwrite=True, clock="simulated") as rec:
        rec.append("y", 1.0, 5)
    assert list(wd.open_episode(target).signals) == ["y"]


def test_types_are_numpys_and_an_int_is_no_float(tmp_path: Path) -> None:
    with wd.record(tmp_path, clock="simulated") as rec:
        for number, dtype in enumerate(("float32", np.float32, "f4", "f32", np.dtype("<f4"))):
            rec.declare(f"x{number}", dtype=dtype)
            rec.append(f"x{number}", 1, 0)
            rec.append(f"x{number}", 2.5, 1)
        rec.append("plain", 1, 0)
        with pytest.raises(SchemaMismatchError, match="holds int64") as error:
            rec.append("plain", 2.5, 1)
        assert "declare('plain', dtype=" in error.value.hint
        rec.declare("whole", dtype="uint8")
        with pytest.raises(SchemaMismatchError):
            rec.append("whole", 0.5, 0)
        with pytest.raises(SchemaMismatchError, match="does not fit"):
            rec.append("whole", 300, 0)
        with pytest.raises(ValueError, match="no such element type"):
            rec.declare("bad", dtype="float31")
    episode = wd.open_recordings(tmp_path)[0]
    for number in range(5):
        assert episode[f"x{number}"].values().dtype == np.float32
        assert episode[f"x{number}"].values().tolist() == [1.0, 2.5]


def test_roles_are_recorded_and_one_name_has_one(tmp_path: Path) -> None:
    with wd.record(tmp_path, clock="simulated") as rec:
        rec.declare("guess", role="prediction", of="state", model="dreamer")
        rec.append("guess", 1.0, 0)
        rec.step({"state": 1.0}, {"push": 2.0}, ts_ns=0)
        rec.append("note", "hello", 3)
        rec.append("action/old", 1.0, 3)
        with pytest.raises(RecordingError, match="role observation and cannot be action"):
            rec.step({"state": 1.0}, {"state": 2.0}, ts_ns=1)
        with pytest.raises(ValueError, match="unknown role"):
            rec.declare("z", role="actoin")
        with pytest.raises(ValueError, match="go with the roles"):
            rec.declare("z", role="action", model="m")
    roles = {n: s.meta.role for n, s in wd.open_recordings(tmp_path)[0].signals.items()}
    assert roles == {
        "guess": "prediction", "state": "observation", "push": "action", "note": "event", "action/old": "action"
    }  # fmt: skip
    meta = wd.open_recordings(tmp_path)[0]["guess"].meta
    assert (meta.of, meta.model) == ("state", "dreamer")


def test_the_clock_is_named(tmp_path: Path) -> None:
    with wd.record(tmp_path) as rec:
        rec.append("x", 1.0)
        rec.append("x", 2.0)
    with wd.record(tmp_path, clock="wall") as rec:
        rec.append("x", 1.0)
    with pytest.raises(ValueError, match="pass ts_ns"), wd.record(tmp_path, clock="simulated") as rec:
        rec.append("x", 1.0)
    monotonic, wall = (episode.meta["clock"] for episode in wd.open_recordings(tmp_path))
    assert (monotonic["name"], wall["name"], wall["wall_offset_ns"]) == ("monotonic", "wall", 0)
    first = wd.open_recordings(tmp_path)[0]
    seen = first.first_ts_ns + monotonic["wall_offset_ns"]
    assert abs(seen - first.meta["created_ts_ns"]) < 60 * 10**9
    with pytest.raises(TypeError, match="step_clock is the name"):
        wd.record(tmp_path / "other", step_clock=5)


def test_marks_discards_and_closed_recorders(tmp_path: Path) -> None:
    with wd.record(tmp_path, static={"task": "pick"}) as rec:
        rec.append("x", 1.0)
        rec.mark(success=False)
        rec.mark(success=True, note=b"bytes")
        with pytest.raises(RecordingError, match="set already"):
            rec.set_static("task", "place")
    assert dict(wd.open_recordings(tmp_path)[0].static) == {"task": "pick", "success": True, "note": b"bytes"}
    with pytest.raises(WriterClosedError):
        rec.append("x", 2.0)
    with wd.record(tmp_path) as rec:
        rec.append("x", 1.0)
        rec.discard()
    assert len(wd.open_recordings(tmp_path)) == 1


def test_what_was_seen_after_the_last_action(tmp_path: Path) -> None:
    for target in (tmp_path / "root", tmp_path / "e.wshard"):
        with wd.record(target, clock="simulated") as rec:
            for k in range(3):
                rec.step({"state": np.float32(k)}, {"push": 2000 + k}, reward=1000.0 + k, ts_ns=k)
            rec.step({"state": np.float32(3)}, ts_ns=3)
    for episode in (wd.open_recordings(tmp_path / "root")[0], wd.open_episode(tmp_path / "e.wshard")):
        steps = episode.steps
        assert steps.length == 3
        assert steps.observations["state"].data.tolist() == [0, 1, 2]
        assert steps.final_observations == {"state": 3}
        assert episode["state"].values().tolist() == [0, 1, 2, 3]


CODE = """
import os, signal, sys
import numpy as np
import warpdata as wd
from warpdata.episodes.record import recorder as record
from warpdata.episodes.record import recording
rec = wd.record(sys.argv[1], static={"task": "die"}, clock="simulated").__enter__()
for k in range(50):
    rec.step({"state": np.float32(k)}, {"push": 2000 + k}, reward=1000.0 + k, ts_ns=k)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_recording_of_one_file_is_salvaged(tmp_path: Path) -> None:
    target = tmp_path / "ep.wshard"
    done = subprocess.run([sys.executable, "-c", CODE, str(target)], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    with pytest.raises(ConflictError, match="never finished"):
        wd.record(target)
    receipt = wd.salvage(target)
    assert receipt.is_complete
    episode = wd.open_episode(target)
    assert episode.steps.rewards is not None
    assert episode.steps.rewards.data.tolist() == [1000.0 + k for k in range(50)]
    assert episode["task"] == "die"
    assert [path.name for path in tmp_path.iterdir()] == ["ep.wshard"]


@pytest.mark.parametrize("moment", ["complete", "store", "packed", "tidy"])
def test_a_recorder_killed_while_it_makes_the_file_loses_nothing(tmp_path: Path, moment: str) -> None:
    """Files that were complete, linked, packed, or not yet removed: salvage ends with the one file."""
    target = tmp_path / "ep.wshard"
    child = os.fork()
    if child == 0:
        die_at(moment)
        with wd.record(target, clock="simulated", static={"task": "die"}) as rec:
            for k in range(25):
                rec.append("cam", np.full((16, 16, 3), 10 * k, np.uint8), k)
                rec.append("words", f"at {k}", k)
                rec.step({"deep/state": np.float32(k)}, {"push": 2000 + k}, reward=1000.0 + k, ts_ns=k)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert target.exists() == (moment in ("packed", "tidy"))
    receipt = wd.salvage(target)
    assert receipt.is_complete
    names = ("cam", "words", "deep/state", "push", "reward")
    assert moment == "tidy" or receipt.channels == dict.fromkeys(names, 25)
    episode = wd.open_episode(target)
    assert episode.steps.rewards is not None
    assert episode.steps.rewards.data.tolist() == [1000.0 + k for k in range(25)]
    assert [round(float(frame.mean()) / 10) for frame, _ in episode["cam"]] == list(range(25))
    assert (episode.id, episode["task"], episode["words"][24][0]) == ("ep", "die", "at 24")
    assert [path.name for path in tmp_path.iterdir()] == ["ep.wshard"]


def die_at(moment: str) -> None:
    """Have this process killed as it gets there."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pack = record.pack_episode
    if moment == "complete":
        recording.link_or_copy = die
    elif moment == "store":
        record.pack_episode = die
    elif moment == "packed":
        record.pack_episode = lambda *args, **options: die(pack(*args, **options))
    else:
        recording.remove_files = die


@pytest.mark.parametrize("wrong", ["u", "words", "cam", "late", "new"])
def test_a_step_is_recorded_whole_or_not_at_all(tmp_path: Path, wrong: str) -> None:
    picture = np.zeros((16, 16, 3), np.uint8)
    row = {"x": 1.0, "words": "a", "cam": picture, "late": 1}
    with wd.record(tmp_path, clock="simulated") as rec:
        rec.step(row, {"u": 0}, ts_ns=1)
        if wrong == "late":
            rec.append("late", 1, 5)
        before = rec.counts()
        bad = {
            "u": (row, {"u": 0.5}), "words": ({**row, "words": 7}, {"u": 1}),
            "cam": ({**row, "cam": picture[:8]}, {"u": 1}), "late": (row, {"u": 1}),
            "new": ({**row, "new": object()}, {"u": 1}),
        }  # fmt: skip
        observations, actions = bad[wrong]
        with pytest.raises((RecordingError, TypeError)):
            rec.step(observations, actions, reward=1.0, ts_ns=2)
        assert {name: count for name, count in rec.counts().items() if count} == before
        rec.step({"x": 2.0}, {"u": 1}, reward=1.0, ts_ns=2)
    episode = wd.open_recordings(tmp_path)[0]
    assert episode["x"].timestamps.tolist() == episode["u"].timestamps.tolist() == [1, 2]
    assert "new" not in episode


def test_a_signal_is_recorded_by_append_or_by_step(tmp_path: Path) -> None:
    with wd.record(tmp_path, clock="simulated") as rec:
        rec.append("x", 1.0, 0)
        with pytest.raises(RecordingError, match=r"'x' was recorded by append\(\) before"):
            rec.step({"x": 2.0}, {"u": 1.0}, ts_ns=1)
        rec.step({"y": 2.0}, {"u": 1.0}, ts_ns=1)
        rec.append("y", 3.0, 2)  # between steps, on the same clock
    assert wd.open_recordings(tmp_path)[0]["y"].values().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("about", "word"),
    [({"role": "obsrvation"}, "observation"), ({"dtype": "flaot32"}, "float32"), ({"kind": "imge"}, "image")],
)
def test_a_misspelt_word_of_declare_is_told(tmp_path: Path, about: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{word}'"), wd.record(tmp_path) as rec:
        rec.declare("x", **about)


@pytest.mark.parametrize("outcome", ["same", "next"])
def test_what_one_action_earned_is_not_earned_again_by_others(
    tmp_path: Path, outcome: Literal["same", "next"]
) -> None:
    """Rewards at some steps only, and a recorder that died before the outcome of its last step."""
    with wd.record(tmp_path / "root", clock="simulated", outcome=outcome) as rec:
        for k in range(10):
            earned = {4: 1.0, 6: 2.0}.get(k)
            rec.step({"x": np.float32(k)}, {"a": np.float32(k)}, reward=earned, ts_ns=k * 1000)
    [episode] = wd.LocalDataset(tmp_path / "root")
    rows = [4, 6] if outcome == "same" else [3, 5]  # what came with an observation was earned before it
    rewards = episode.steps.rewards
    assert np.flatnonzero(rewards.mask).tolist() == rows
    assert rewards[rows].tolist() == [1.0, 2.0]
    assert np.isnan(np.delete(rewards.data, rows)).all()
    assert episode.steps.total_reward == 3.0 == wd.open(tmp_path / "root").facts["total_reward"][0].as_py()
    tensors = episode.tensors
    assert tensors is not None
    assert np.flatnonzero(np.isfinite(tensors.rewards.data)).tolist() == rows


def test_how_a_file_is_stored_is_checked_before_it_is_recorded(tmp_path: Path) -> None:
    for wrong in ("zsdt", "zstd:99", {"x": "zsdt"}):
        with pytest.raises(ValueError, match=r"zst"):
            wd.record(tmp_path / "e.wshard", compression=wrong)
    with pytest.raises(ValueError, match="Did you mean 'strict'"):
        wd.record(tmp_path / "e.wshard", compat="stict")
    assert list(tmp_path.iterdir()) == []


def test_a_compression_of_no_signal_keeps_what_was_recorded(tmp_path: Path) -> None:
    target = tmp_path / "e.wshard"
    with (
        pytest.raises(RecordingError, match="'joitn'") as caught,
        wd.record(target, compression={"joitn": "zstd"}) as rec,
    ):
        rec.append("joint", np.zeros(3, np.float32), 1)
    assert "warp salvage" in str(caught.value.hint)
    wd.salvage(target)
    assert len(wd.open_episode(target).signals["joint"]) == 1


def test_a_strict_file_has_no_frames_to_enter(tmp_path: Path) -> None:
    how = {"compression": "zstd-seekable", "compat": "strict"}
    with wd.record(tmp_path / "e.wshard", **how) as rec:
        for step in range(100):
            rec.append("joint", np.zeros(30, np.float32), step)
    shard = ShardReader.open(tmp_path / "e.wshard")
    stored = [shard.block(name) for name in shard.names]
    assert any(block.codec == "zstd" for block in stored)
    assert not any(block.is_seekable for block in stored)
