"""What every conversion tells: the receipt kept in the target, where the rate is from, and names that had to change."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.convert.sets import made_episodes
from tests.convert.test_contract import in_folder
from warpdata.cli.console import Exit
from warpdata.cli.main import main
from warpdata.convert import hdf5, mcap, rlds, webdataset
from warpdata.convert.rlds import records
from warpdata.convert.rlds.records import Values, build_example, pack_record
from warpdata.convert.tables import npz
from warpdata.episodes.collection.episodes import Episodes
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import STEPS, StepClock


def in_mcap(target: Path) -> Any:
    (record,) = (
        each
        for each in mcap.read(target)[0].meta["messages"]["metadata"]
        if each["name"] == "warpdata.receipt"
    )
    return json.loads(record["metadata"]["receipt"])


def test_a_file_keeps_its_own_receipt(tmp_path: Path) -> None:
    receipt = wd.export_episodes(made_episodes(1, camera=False), tmp_path / "set.mcap", "mcap")
    stated, stored = receipt.to_json(), in_mcap(tmp_path / "set.mcap")
    assert stored["receipt"] == {key: stated[key] for key in stated if key not in ("continued", "target")}
    mcap.write(wd.open(tmp_path / "set.mcap"), tmp_path / "again.mcap")  # there is one receipt: the new one
    assert in_mcap(tmp_path / "again.mcap")["receipt"]["source"] == str(tmp_path / "set.mcap")


def rlds_set(folder: Path) -> Path:
    """A set that does not say its rate."""
    plain = Episodes.of([
        Episode.of(dict(each.signals), {"task": "push"}, id=each.id, steps=StepClock(STEPS))
        for each in made_episodes(2, camera=False)
    ])  # fmt: skip
    rlds.write(plain, folder, name="made")
    (folder / "warpdata.json").unlink()
    return folder


def test_an_assumed_rate_is_told(tmp_path: Path) -> None:
    source = rlds_set(tmp_path / "source")
    for receipt in (
        wd.import_episodes(source, tmp_path / "root"),
        wd.export_episodes(source, tmp_path / "set", "lerobot"),
    ):
        assert any("10 steps a second are assumed" in note for note in receipt.notes)
        assert "fps" not in receipt.supplied
    assert json.loads((tmp_path / "root" / "dataset.json").read_bytes())["receipt"]["notes"]


def test_a_rate_that_the_user_says_counts_in_every_conversion(tmp_path: Path) -> None:
    source, five = rlds_set(tmp_path / "source"), {"fps": 5}
    said = [
        wd.import_episodes(source, tmp_path / "root", fps=5.0),
        wd.export_episodes(source, tmp_path / "one", "lerobot", source_options=five),
        wd.export_episodes(rlds.read(source, fps=5), tmp_path / "two", "lerobot"),
        wd.export_episodes(tmp_path / "root", tmp_path / "three", "lerobot"),
    ]
    for receipt in said:
        assert receipt.supplied["fps"] == 5
        assert not any("assumed" in note for note in receipt.notes)
    assert (
        main(["convert", str(source), str(tmp_path / "four"), "--to", "lerobot", "--read", "fps=5"])
        == Exit.OK
    )
    assert main(["export", "lerobot", str(source), str(tmp_path / "five"), "--read", "fps=5"]) == Exit.OK
    for name in ("one", "two", "three", "four", "five"):
        assert json.loads((tmp_path / name / "meta" / "info.json").read_bytes())["fps"] == 5
        assert in_folder(tmp_path / name / "meta")["receipt"]["supplied"]["fps"] == 5


def test_a_rate_that_the_set_has_kept_is_its_rate(tmp_path: Path) -> None:
    rlds.write(made_episodes(2, camera=False), tmp_path / "set")
    (episode, _) = wd.open(tmp_path / "set")
    assert (episode.meta["fps"], episode.meta["fps_from"]) == (30, "source")
    wd.export_episodes(tmp_path / "set", tmp_path / "other", "lerobot", source_options={"fps": 15})
    assert json.loads((tmp_path / "other" / "meta" / "info.json").read_bytes())["fps"] == 15


def test_options_that_would_do_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = rlds_set(tmp_path / "source")
    wd.import_episodes(source, tmp_path / "root")
    for words, why in (
        (["export", "lerobot", str(tmp_path / "root"), "out", "--read", "fps=5"], "opened without 'fps'"),
        (["convert", str(source), str(tmp_path / "x"), "--rate", "5"], "--rate"),
        (["convert", str(source), str(tmp_path / "x"), "--task", "push"], "--task"),
        (["convert", str(source), str(tmp_path / "x.zarr"), "--codec", "h264"], "no option 'video'"),
        (["convert", str(source), str(tmp_path / "x.zarr"), "--catalog", "here"], "--catalog"),
    ):
        assert main(words) == Exit.USAGE, words
        assert why in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def odd_names(folder: Path) -> Path:
    folder.mkdir()
    arrays = {"joint pos": np.arange(6.0).reshape(3, 2), "arm+grip": np.arange(3), "arm_grip": np.ones(3)}
    np.savez(folder / "a.npz", **arrays)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("kind", ["root", "shards"])
def test_names_that_cannot_stay_are_told_and_come_out_again(kind: str, tmp_path: Path) -> None:
    source = odd_names(tmp_path / "source")
    receipt = wd.import_episodes(source, tmp_path / "ours", format="npz", to=kind, fps=10)
    assert receipt.is_exact
    assert receipt.signals["joint_pos"].why == ["called 'joint pos' in the source"]
    (episode,) = wd.open(tmp_path / "ours")
    assert set(episode.signals) == {"joint_pos", "arm_grip", "arm_grip.2"}
    np.testing.assert_array_equal(episode["joint_pos"].values(), np.arange(6.0).reshape(3, 2))
    assert episode["arm_grip"].values().tolist() == [1, 1, 1]
    assert episode["arm_grip.2"].values().tolist() == [0, 1, 2]
    wd.export_episodes(tmp_path / "ours", tmp_path / "out.zarr", "zarr")
    (again,) = wd.open(tmp_path / "out.zarr")
    for name, before in npz.read(source)[0].signals.items():
        np.testing.assert_array_equal(again[name].values(), before.values())


def test_new_names_in_the_target_are_told(tmp_path: Path) -> None:
    episodes = made_episodes(1, camera=False)
    assert hdf5.write(episodes, tmp_path / "a.hdf5").signals["action"].why == ["called 'actions' there"]
    assert "called 'action' there" not in rlds.write(episodes, tmp_path / "b").signals["action"].why


def test_compressed_records_are_known_by_their_bytes(tmp_path: Path) -> None:
    number = Values("ints", numbers=np.zeros(1, np.int64))
    example = build_example({"steps/is_first": number, "steps/n": number})
    path = tmp_path / "episodes-00000-of-00001"
    path.write_bytes(gzip.compress(pack_record(example) * 64))
    episodes = wd.open(path)
    assert len(episodes) == 64
    assert episodes[63]["n"].values().tolist() == [0]
    (tmp_path / "other").write_bytes(gzip.compress(bytes(1000)))
    assert not records.is_tfrecord((tmp_path / "other").read_bytes())


def test_samples_of_single_fields_come_out_as_they_went_in(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        for number in range(3):
            path = tmp_path / f"{number}.mp"
            path.write_bytes(bytes([number] * 9))
            archive.add(path, f"{number:06d}.mp")
    wd.import_episodes(tmp_path / "in.tar", tmp_path / "ours")
    ours = wd.open(tmp_path / "ours")
    assert [len(episode.steps) for episode in ours] == [1, 1, 1]
    assert webdataset.write(ours, tmp_path / "out").is_exact
    assert [each["mp"].values()[0] for each in wd.open(tmp_path / "out")] == [
        bytes([n] * 9) for n in range(3)
    ]


def test_a_foreign_set_is_checked_where_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = rlds_set(tmp_path / "source")
    assert main(["check", str(source)]) == Exit.OK
    assert "2 episodes" in capsys.readouterr().out
    assert main(["check", f"{source}#train-000001"]) == Exit.OK
    (file,) = source.glob("*.tfrecord-*")
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)
    for command in ("check", "show"):
        assert main([command, str(source)]) == Exit.DAMAGED
        printed = capsys.readouterr().out
        assert "train-000001" in printed
        assert "checksum mismatch" in printed
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    assert main(["check", str(tmp_path / "notes.txt")]) != Exit.OK


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("dreamer", "out", {}),
        ("dreamer", "out", {"final_observation": "drop"}),
        ("minari", "out", {}),
        ("minari", "out", {"final_observation": "drop"}),
        ("zarr", "out.zarr", {}),
        ("rlds", "out", {}),
        ("webdataset", "out", {}),
        ("hdf5", "out.hdf5", {}),
        ("lerobot", "out", {}),
    ],
)
def test_a_signal_that_is_kept_has_its_values_and_no_others(
    tmp_path: Path, name: str, target: str, options: dict[str, Any]
) -> None:
    """Recorded by step, without an observation after the last action: some formats need one."""
    with wd.record(tmp_path / "root", static={"task": "t"}, clock="simulated") as rec:
        for step in range(1, 6):
            row = np.full(2, step, np.float32)
            rec.step({"state": row}, row, reward=float(step), terminated=step == 5, ts_ns=step * 10**8)
    receipt = wd.export_episodes(tmp_path / "root", tmp_path / target, name, **options)
    notes = receipt.signals

    def by_role(episode: wd.Episode) -> dict[str, list[Any]]:
        """The values of each role that are not 0: rows that were added for padding are."""
        return {
            each.meta.role: [row.tolist() for row in np.asarray(each.values()) if row.any()]
            for each in episode.signals.values()
            if each.meta.role in ("observation", "action", "reward", "terminated")
        }

    before, after = by_role(wd.open(tmp_path / "root")[0]), by_role(wd.open(tmp_path / target)[0])
    for signal, role in {"state": "observation", "action": "action", "reward": "reward"}.items():
        assert (notes[signal].how == "kept") == (after[role] == before[role]), signal
    assert notes["terminated"].how != "kept" or after["terminated"] == before["terminated"]
