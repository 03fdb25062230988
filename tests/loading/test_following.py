"""Windows over a root that grows, and over an episode that is being recorded."""

from __future__ import annotations

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import until
from warpdata._api.state import loader_of_state
from warpdata.episodes.salvage.live import live_episode

MS = 1_000_000


def write(writer, start: int, stop: int) -> None:
    for i in range(start, stop):
        writer.append("joints", np.full(2, i, np.float32), i * 10 * MS)
        if i % 2 == 0:
            writer.append("action", np.full(1, i, np.float32), i * 10 * MS)


def windows_of(root, **options) -> wd.Windows:
    fields = {
        "state": wd.Field("joints", past=2), "action": wd.Field("action", horizon=4),
        "soon": wd.Field("joints", offsets_s=[0.0, 0.094], align="nearest"),
    }  # fmt: skip
    return wd.Windows(wd.open_recordings(root), fields, anchor="action", follow=True, **options)


def record(root, count: int) -> None:
    with wd.LocalDatasetWriter(root).new_episode() as writer:
        write(writer, 0, count)


def contents(windows: wd.Windows, count: int) -> list[bytes]:
    """Every value and mask of the first samples."""
    found = []
    for number in range(count):
        sample = windows[number]
        found.append(b"".join(sample[name].tobytes() + sample.mask[name].tobytes() for name in sample))
    return found


def ids(batches) -> list[list[int]]:
    return [batch.sample_id.tolist() for batch in batches]


def flat(lists: list[list[int]]) -> list[int]:
    return [each for inner in lists for each in inner]


def test_new_episodes_come_after_all_that_were_known(tmp_path) -> None:
    record(tmp_path, 40)
    windows = windows_of(tmp_path)
    loader = wd.Loader(windows, 4, seed=1)
    assert len(windows) == 20
    before = contents(windows, 20)
    first = ids(loader)
    assert sorted(flat(first)) == list(range(20))
    record(tmp_path, 30)
    batches = iter(loader)
    second = [next(batches).sample_id.tolist() for _ in range(3)]
    state = loader.state_dict()
    assert state["samples"] == len(windows) == 35
    assert contents(windows, 20) == before
    record(tmp_path, 30)  # the epoch that has begun is not changed by what comes now
    second += ids(batches)
    assert sorted(flat(second)) == list(range(35))
    again = wd.Loader(windows_of(tmp_path), 4, seed=1)
    again.load_state_dict(state)
    assert ids(again) == second[3:]
    assert len(flat(ids(again))) == 50


def test_an_episode_that_is_recorded_gives_what_cannot_change_any_more(tmp_path) -> None:
    record(tmp_path, 20)
    writer = wd.LocalDatasetWriter(tmp_path).new_episode()
    write(writer, 0, 1)
    windows = windows_of(tmp_path)
    assert len(windows) == 10
    seen = contents(windows, 10)
    for start, stop in ((1, 15), (15, 24), (24, 31)):
        write(writer, start, stop)
        windows.refresh()
        known = contents(windows, len(windows))
        assert known[: len(seen)] == seen
        assert len(known) > len(seen)
        seen = known
        for number in range(10, len(windows)):
            assert windows[number].mask["action"].all()
            assert windows[number].mask["soon"].all()
    prefix = windows.prefix_id(len(windows))
    count = len(windows)
    writer.close()
    assert windows.refresh() > 0
    assert len(windows) == 10 + 16
    assert contents(windows, count) == seen
    assert windows.prefix_id(count) == prefix == windows_of(tmp_path).prefix_id(count)


def test_a_state_of_a_root_that_lost_an_episode_is_refused(tmp_path) -> None:
    for _ in range(3):
        record(tmp_path, 20)
    loader = wd.Loader(windows_of(tmp_path), 4)
    next(iter(loader))
    state = loader.state_dict()
    wd.open_recordings(tmp_path).edits.drop(0)
    with pytest.raises(ValueError, match="another version of the data"):
        wd.Loader(windows_of(tmp_path), 4).load_state_dict(state)


def test_why_names_the_samples_of_a_run_that_followed(tmp_path) -> None:
    record(tmp_path / "root", 40)
    loader = wd.Loader(windows_of(tmp_path / "root"), 4, seed=1)
    batch = next(iter(loader))
    loader.save_state(tmp_path / "state.json")
    record(tmp_path / "root", 30)
    found = loader_of_state(tmp_path / "state.json").why(0)
    assert [each.sample_id for each in found] == batch.sample_id.tolist()
    assert [each.ts_ns for each in found] == batch.ts_ns.tolist()
    wd.open_recordings(tmp_path / "root").edits.drop(0)
    with pytest.raises(ValueError, match="another version of the data"):
        loader_of_state(tmp_path / "state.json")


def test_only_a_root_can_be_followed(tmp_path) -> None:
    record(tmp_path, 20)
    chosen = wd.open_recordings(tmp_path)[:1]
    with pytest.raises(TypeError, match="whole root"):
        wd.Windows(chosen, {"x": "joints"}, anchor="joints", follow=True)


def test_the_camera_of_an_episode_that_is_recorded(tmp_path) -> None:
    """Frames come once they are encoded, and stay what they are when the recording is finished."""
    fields = {"image": wd.Field("camera", past=2), "state": wd.Field("joints")}
    record(tmp_path, 20)
    with wd.LocalDatasetWriter(tmp_path, video=wd.VideoOptions(gop_size=4)).new_episode() as writer:
        windows = wd.Windows(
            wd.open_recordings(tmp_path), {"state": wd.Field("joints")}, anchor="joints", follow=True
        )
        assert len(windows) == 20
        for i in range(40):
            writer.append("joints", np.full(2, i, np.float32), i * 10 * MS)
            writer.append("camera", np.full((32, 48, 3), 5 * i, np.uint8), i * 10 * MS)
        folder = writer.path
        until(lambda: (live := live_episode(folder)) is not None and len(live.get("camera", ())) >= 8)
        live = live_episode(folder)["camera"]
        stamps, frames = live.timestamps.copy(), live.values().copy()
    finished = wd.Windows(wd.open_recordings(tmp_path)[1:], fields, anchor="camera")
    assert len(finished) == 40
    for row, (stamp, frame) in enumerate(zip(stamps, frames, strict=True)):
        sample = finished[row]
        assert finished.at(0, int(stamp)).sample_id == sample.sample_id
        assert np.array_equal(sample["image"][-1], frame)


def test_a_mixture_does_not_grow(tmp_path) -> None:
    record(tmp_path, 4)
    windows = windows_of(tmp_path)
    with pytest.raises(ValueError, match="'a' grows"):
        wd.Mixture({"a": (windows, 1.0)})
