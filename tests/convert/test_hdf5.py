"""HDF5 sets: read as the originals do, by slices only, and robomimic's written again as they were."""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.convert.foreign import copied, expected, hdf5_content, imported, same_channel, sample
from warpdata.convert import hdf5
from warpdata.convert.place import Place
from warpdata.convert.tables import npz
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    TruncatedError,
    WarpError,
)

ROBOMIMIC = [
    "gen_lift_image.hdf5",
    "gen_libero_style_demo.hdf5",
    "tfds_dummy/robomimic_mg__can_low_dim.hdf5",
    "tfds_dummy/robomimic_ph__lift_low_dim.hdf5",
]


def robomimic_file(path: Path, demos: int = 2, steps: int = 5) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(demos):
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = steps
            group["actions"] = np.full((steps, 2), number, np.float64)
            group["rewards"] = np.arange(steps, dtype=np.float64)
            group["dones"] = np.zeros(steps, np.int64)
            seen = np.arange((steps + 1) * 3, dtype=np.float32).reshape(-1, 3)
            group["obs/object"], group["next_obs/object"] = seen[:-1], seen[1:]
    return path


@pytest.mark.parametrize("name", ["gen_lift_image", "tfds_dummy/robomimic_ph__lift_low_dim"])
def test_robomimic_is_read_as_its_own_library_reads_it(name: str) -> None:
    episodes = hdf5.read(sample("robomimic", f"{name}.hdf5"))
    told = expected("robomimic", f"{name}.expected.json")["episodes"]
    assert episodes.ids == [each["demo"] for each in told]
    for each in told:
        episode = episodes[each["demo"]]
        assert len(episode.steps) == each["length"]
        for channel, about in each["channels"].items():
            if channel.startswith("next_obs/"):
                values = episode[f"obs/{channel.removeprefix('next_obs/')}"].values()[1:]
            elif channel.startswith("obs/"):
                values = episode[channel].values()[:-1]
            else:
                values = episode[channel].values()
            assert same_channel(values, about), channel


def test_roles_times_and_facts_of_robomimic() -> None:
    episode = hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))["demo_3"]
    steps = episode.steps
    assert list(steps.actions) == ["actions"]
    assert "obs/agentview_image" in steps.observations
    assert episode["obs/agentview_image"].meta.kind == "image"
    assert episode["states"].meta.role == "other"
    assert steps.final_observations.keys() == steps.observations.keys()
    assert steps.times_ns[:2].tolist() == [0, 50_000_000]
    assert dict(episode.static) == {"env_id": "Lift", "split": "valid"}
    assert (episode.meta["fps"], episode.meta["fps_from"]) == (20.0, "source")


def test_demos_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    episodes = hdf5.read(robomimic_file(tmp_path / "many.hdf5", demos=12))
    assert episodes.ids == [f"demo_{number}" for number in range(12)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "straight") for name in ROBOMIMIC),
        (ROBOMIMIC[0], "root"),
        (ROBOMIMIC[3], "root"),
        (ROBOMIMIC[1], "shards"),
    ],
)
def test_robomimic_comes_out_as_it_went_in(name: str, kind: str, tmp_path: Path) -> None:
    source = sample("robomimic", name)
    episodes = hdf5.read(source)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "hdf5")
    receipt = hdf5.write(episodes, tmp_path / "out.hdf5")
    assert receipt.is_exact, str(receipt)
    assert hdf5_content(tmp_path / "out.hdf5") == hdf5_content(source)


def test_part_of_a_set_has_its_own_total_and_masks(tmp_path: Path) -> None:
    episodes = hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))
    hdf5.write(episodes[1:], tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert sorted(file["data"]) == ["demo_1", "demo_2", "demo_3"]
        assert file["data"].attrs["total"] == 25 + 60 + 33
        assert file["mask/train"][()].tolist() == [b"demo_1", b"demo_2"]


def test_other_episodes_become_robomimic(tmp_path: Path) -> None:
    name = "gen_maniskill_style.rgbd.pd_joint_delta_pos.h5"
    episodes = hdf5.read(sample("robomimic", name))
    receipt = hdf5.write(episodes, tmp_path / "out.hdf5")
    assert receipt.is_exact
    with h5py.File(tmp_path / "out.hdf5") as file:
        demo = file["data/demo_0"]
        assert demo.attrs["num_samples"] == 39
        assert "env_args" in file["data"].attrs
        qpos = episodes[0]["obs/agent/qpos"].values()
        np.testing.assert_array_equal(demo["obs/agent/qpos"][()], qpos[:-1])
        np.testing.assert_array_equal(demo["next_obs/agent/qpos"][()], qpos[1:])
        np.testing.assert_array_equal(demo["dones"][()], episodes[0]["terminated"].values())
    again = hdf5.read(tmp_path / "out.hdf5")[0]
    np.testing.assert_array_equal(again["obs/agent/qpos"].values(), qpos)
    assert again.static["env_id"] == "PickCube-v1"


def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path: Path) -> None:
    source = robomimic_file(tmp_path / "in.hdf5")
    (tmp_path / "out.hdf5").write_bytes(b"mine")
    with pytest.raises(WarpError):
        hdf5.write(hdf5.read(source), tmp_path / "out.hdf5")
    assert (tmp_path / "out.hdf5").read_bytes() == b"mine"
    with h5py.File(source, "a") as file:
        file["data/demo_1/next_obs/object"][0, 0] = 99
    with pytest.raises(CorruptLayoutError):
        hdf5.write(hdf5.read(source), tmp_path / "other.hdf5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.hdf5", "out.hdf5"]


def test_libero_tells_its_task() -> None:
    episode = hdf5.read(sample("robomimic", "gen_libero_style_demo.hdf5"))[0]
    assert episode.static["task"] == "pick up the red cube"
    assert episode.meta["hdf5"]["layout"] == "libero"


def test_maniskill_has_an_observation_more_than_actions() -> None:
    name = "gen_maniskill_style.rgbd.pd_joint_delta_pos"
    episodes = hdf5.read(sample("robomimic", f"{name}.h5"))
    for traj, channels in expected("robomimic", f"{name}.expected.json")["episodes"].items():
        episode = episodes[traj]
        for channel, about in channels.items():
            assert same_channel(episode[channel].values(), about), channel
    assert len(episodes[0].steps) + 1 == len(episodes[0]["obs/agent/qpos"])
    assert dict(episodes[1].static) == {
        "env_id": "PickCube-v1", "seed": 1, "success": True, "control_mode": "pd_joint_delta_pos",
    }  # fmt: skip


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((32, 48, 3), shade, np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_aloha_with_and_without_compression(is_compressed: bool, tmp_path: Path) -> None:
    frames = [jpeg(shade) for shade in (10, 60, 200)]
    width = max(map(len, frames)) + 7
    for number in range(2):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = False, is_compressed
            file["observations/qpos"] = np.arange(42, dtype=np.float32).reshape(3, 14)
            file["action"] = np.zeros((3, 14), np.float32)
            if is_compressed:
                padded = np.zeros((3, width), np.uint8)
                for row, data in enumerate(frames):
                    padded[row, : len(data)] = np.frombuffer(data, np.uint8)
                file["observations/images/top"] = padded
                file["compress_len"] = np.array([[len(data) for data in frames]])
            else:
                file["observations/images/top"] = np.full((3, 32, 48, 3), 7, np.uint8)
    episodes = hdf5.read(tmp_path)
    assert episodes.ids == ["episode_0", "episode_1"]
    camera = episodes[1]["observations/images/top"]
    assert camera.meta.shape == (32, 48, 3)
    assert episodes[1].meta["fps"] == 50.0
    if is_compressed:
        assert camera.pictures(range(3)) == frames
        assert [int(frame.mean()) for frame in camera.values()] == [10, 60, 200]
        kept = imported(episodes, tmp_path / "ours", "root")
        assert len(kept[0]["observations/images/top"]) == 3


def test_d4rl_is_cut_where_episodes_end() -> None:
    for name, about in expected("d4rl", "expected.json")["files"].items():
        if not (sample("d4rl") / name).exists():
            continue
        episodes = hdf5.read(sample("d4rl", name), split="done")
        assert [len(episode.steps) for episode in episodes] == about["episode_lengths"], name
        for channel, told in about["channels"].items():
            if channel != "next_observations" and not channel.startswith("metadata/"):
                rows = [episode[channel].values()[: len(episode.steps)] for episode in episodes]
                assert same_channel(np.concatenate(rows), told), channel


def test_antmaze_goes_on_behind_its_goal() -> None:
    episodes = hdf5.read(sample("d4rl", "antmaze-medium-diverse-v0.hdf5"))
    assert [len(episode.steps) for episode in episodes] == [67]


def test_d4rl_keeps_what_follows_the_last_step_and_its_metadata() -> None:
    path = sample("d4rl", "hopper_medium_replay-v1.hdf5")
    episodes = hdf5.read(path)
    with h5py.File(path) as file:
        last = file["next_observations"][39]
    np.testing.assert_array_equal(episodes[0].steps.final_observations["observations"], last)
    assert set(episodes.metadata["hdf5"]["arrays"]) == {"metadata/algorithm", "metadata/iteration"}


def test_d4rl_without_timeouts_is_cut_by_what_follows_or_by_time(tmp_path: Path) -> None:
    seen = np.arange(10, dtype=np.float32).reshape(-1, 1)
    with h5py.File(tmp_path / "walker.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = seen, np.zeros((10, 1)), np.zeros(10)
        file["terminals"] = np.zeros(10, bool)
    cut = hdf5.read(tmp_path / "walker.hdf5", max_episode_steps=4)
    assert [len(episode.steps) for episode in cut] == [4, 4, 2]
    shutil.copy(tmp_path / "walker.hdf5", tmp_path / "hopper.hdf5")
    with h5py.File(tmp_path / "hopper.hdf5", "a") as file:
        following = seen + 1
        following[5] = 77
        file["next_observations"] = following
    assert [len(episode.steps) for episode in hdf5.read(tmp_path / "hopper.hdf5")] == [6, 4]


def test_a_mapping_says_what_is_what(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        for number in (10, 9):
            group = file.create_group(f"runs/run{number}")
            group["q"], group["u"], group["secret"] = np.zeros((4, 2)), np.ones((3, 1)), np.zeros(99)
            group["what"] = "push"
            group["t"] = np.array([1.0, 1.5, 2.5, 2.75])
    mapping = {
        "episodes": "runs/run*", "signals": {"joints": "q", "torque": {"from": "u", "role": "action"}, "t": "t"},
        "static": {"task": "what"}, "times": "t",
    }  # fmt: skip
    episodes = hdf5.read(tmp_path / "own.h5", mapping=mapping)
    assert episodes.ids == ["run9", "run10"]
    episode = episodes[0]
    assert list(episode.steps.actions) == ["torque"]
    assert episode.static["task"] == "push"
    assert episode["joints"].timestamps.tolist() == [10**9, 15 * 10**8, 25 * 10**8, 35 * 10**8]
    with pytest.raises(CorruptLayoutError, match="Did you mean 'q'"):
        _ = hdf5.read(tmp_path / "own.h5", mapping={"episodes": "runs/*", "signals": {"a": "q2"}})[0]


def test_an_unknown_layout_is_told_with_what_is_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["stuff"] = np.zeros(3)
    with pytest.raises(FormatError, match="stuff") as caught:
        hdf5.read(tmp_path / "own.h5")
    assert "mapping" in caught.value.hint
    with pytest.raises(ValueError, match="Did you mean 'robomimic'"):
        hdf5.read(tmp_path / "own.h5", layout="robomimc")  # type: ignore[arg-type]


def test_windows_read_only_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = robomimic_file(tmp_path / "a.hdf5", steps=1000)
    asked: list[int] = []
    original = h5py.Dataset.__getitem__

    def spy(self: h5py.Dataset, key: Any) -> Any:
        if isinstance(key, slice):
            asked.append(key.stop - key.start)
        return original(self, key)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", spy)
    episodes = hdf5.read(path)
    episode = episodes[0]
    assert (len(episodes), len(episode.steps), asked) == (2, 1000, [])
    assert episode.steps["actions"][10:14].shape == (4, 2)
    assert episode.steps["obs/object"][10:14].shape == (4, 3)
    assert asked
    assert max(asked) == 4


def test_episodes_and_signals_pickle_by_address(tmp_path: Path) -> None:
    episodes = hdf5.read(robomimic_file(tmp_path / "a.hdf5", steps=2000))
    for thing in (episodes, episodes[1], episodes[1]["obs/object"]):
        assert len(pickle.dumps(thing)) < 5000
    again = pickle.loads(pickle.dumps(episodes[1]))
    np.testing.assert_array_equal(again["obs/object"].values(), episodes[1]["obs/object"].values())


def test_next_observations_that_contradict_are_told_or_kept(tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1/next_obs/object"][2, 1] = -1
    episode = hdf5.read(path)["demo_1"]
    np.testing.assert_array_equal(episode["obs/object"].rows(0, 3), np.arange(9).reshape(3, 3))
    with pytest.raises(CorruptLayoutError, match=r"step 2 of 'obs/object'.*demo_1") as caught:
        episode["obs/object"].values()
    assert "next_obs='keep'" in caught.value.hint
    kept = hdf5.read(path, next_obs="keep")["demo_1"]
    assert (len(kept["obs/object"]), kept["next_obs/object"].values()[2, 1]) == (5, -1)


def test_damaged_episodes_are_skipped_and_named_where_asked(tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5", demos=3)
    with h5py.File(path, "a") as file:
        file["data/demo_1/next_obs/object"][2, 1] = -1
    receipt = hdf5.write(hdf5.read(path), tmp_path / "out.hdf5", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == ["demo_1"]
    assert hdf5.read(tmp_path / "out.hdf5").ids == ["demo_0", "demo_2"]
    with pytest.raises(CorruptLayoutError):
        hdf5.write(hdf5.read(path), tmp_path / "none.hdf5")


@pytest.mark.parametrize("number", [np.inf, np.nan, "many"])
def test_what_is_no_number_states_none(number: Any, tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5", demos=2)
    plain = hdf5.read(path)["demo_1"]["actions"].values()
    with h5py.File(path, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = number
    np.testing.assert_array_equal(hdf5.read(path)["demo_1"]["actions"].values(), plain)


def test_what_is_no_hdf5_or_a_cut_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_bytes(b"nothing of the kind")
    cut = copied(sample("robomimic", "gen_lift_image.hdf5"), tmp_path)
    cut.write_bytes(cut.read_bytes()[:300_000])
    with pytest.raises(TruncatedError, match="gen_lift_image"):
        hdf5.read(cut)
    assert not hdf5.matches(Place.of(tmp_path / "a.hdf5"))


def test_wrong_words_are_told(tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5")
    with pytest.raises(ValueError, match="next_obs is one of merge, keep, not 'drop'"):
        hdf5.read(path, next_obs="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="split is one of auto, done, timeout, not 'never'"):
        hdf5.read(path, split="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compression is one of gzip, none, not 'zip'"):
        hdf5.write(hdf5.read(path), tmp_path / "out.hdf5", compression="zip")  # type: ignore[arg-type]


def test_several_actions_become_one_vector_or_are_refused(tmp_path: Path) -> None:
    arm, hand = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4, dtype=np.float64)
    np.savez(tmp_path / "a.npz", arm=arm, hand=hand, seen=np.zeros((4, 3)), flat=np.zeros((4, 2, 2)))

    def episodes(*actions: str) -> Any:
        signals: dict[str, Any] = {name: {"from": name, "role": "action"} for name in actions}
        return npz.read(tmp_path / "a.npz", mapping={"signals": {"seen": "seen", **signals}})

    receipt = hdf5.write(episodes("arm", "hand"), tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        demo = file["data/demo_0"]
        assert demo["actions"][()].tolist() == np.column_stack([arm, hand]).tolist()
        np.testing.assert_array_equal(demo["action_dict/arm"][()], arm)
        assert (demo["rewards"][()].tolist(), demo["dones"][()].tolist()) == ([0] * 4, [0, 0, 0, 1])
    assert "zeros, which robomimic needs" in receipt.signals["rewards"].why[0]
    for wrong in ((), ("arm", "flat")):
        with pytest.raises(CorruptLayoutError, match="no actions that make one vector"):
            hdf5.write(episodes(*wrong), tmp_path / "none.hdf5")
        assert not (tmp_path / "none.hdf5").exists()


def test_arrays_of_all_episodes_are_cut_where_a_mapping_says(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["q"], file["u"], file["stop"] = np.arange(5.0), np.zeros((5, 1)), np.array([2, 5])
        file["late"] = np.array([2, 6])
    mapping = {"signals": {"q": "q", "u": {"from": "u", "role": "action"}}, "ends": "stop"}
    episodes = hdf5.read(tmp_path / "a.h5", mapping=mapping)
    assert episodes.ids == ["a-000000", "a-000001"]
    assert [episode["q"].values().tolist() for episode in episodes] == [[0, 1], [2, 3, 4]]
    with pytest.raises(CorruptLayoutError, match=r"a\.h5"):
        _ = hdf5.read(tmp_path / "a.h5", mapping={**mapping, "ends": "late"}).ids


def name_of_other_bytes(file: h5py.File) -> None:
    for group in (file, file["data/demo_1"]):
        scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(group.id, b"na\xffme", h5py.h5t.NATIVE_INT32, scalar).write(np.array(3, np.int32))


def text_of_other_bytes(file: h5py.File) -> None:
    for group in (file, file["data"], file["data/demo_1"]):
        group.attrs.create("env_args", b"\xff\xfe", dtype=h5py.string_dtype())


def arrays_without_values(file: h5py.File) -> None:
    file["mask/train"] = h5py.Empty("S8")
    file["beside"] = h5py.Empty("f8")
    file["data/demo_1/obs/nothing"] = h5py.Empty("f4")


@pytest.mark.parametrize("change", [name_of_other_bytes, text_of_other_bytes, arrays_without_values])
def test_odd_metadata_comes_in_and_goes_out(change: Callable[[h5py.File], None], tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "odd.hdf5")
    with h5py.File(path, "a") as file:
        change(file)
    episodes = imported(hdf5.read(path), tmp_path / "ours", "root", "hdf5")
    assert hdf5.write(episodes, tmp_path / "out.hdf5").is_exact
    assert len(hdf5.read(tmp_path / "out.hdf5")) == 2
