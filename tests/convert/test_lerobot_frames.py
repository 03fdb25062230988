"""Items as LeRobot's training code expects them, against a slow obvious reference."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from tests.convert.sets import LEROBOT, made_episodes, made_set
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.cameras import FileVideo

torch = pytest.importorskip("torch", reason="this Python tests without torch")

DELTAS = {
    "action": [-0.1, 0.0, 0.05, 0.1],
    "observation.images.front": [-0.05, 0.0],
    "observation.images.wrist": [0.0],
    "observation.counter": [0.0, 0.25],
}


def reference(episodes: Episodes, index: int, deltas: dict[str, list[float]], fps: float) -> dict[str, Any]:
    """One item, as slowly as it can be said."""
    before = 0
    for episode in episodes:
        if index < before + episode.steps.length:
            break
        before += episode.steps.length
    row, count = index - before, episode.steps.length
    item: dict[str, Any] = {}
    for name, signal in episode.signals.items():
        if name == "task":
            continue
        values = signal.values()
        is_camera = signal.meta.kind == "image"
        if is_camera:
            values = np.asarray(values, np.float32).transpose(0, 3, 1, 2) / np.float32(255)
        elif values.dtype.kind == "f":
            values = values.astype(np.float32)
        if name not in deltas:
            item[name] = values[row]
            continue
        wanted = [row + round(delta * fps) for delta in deltas[name]]
        item[f"{name}_is_pad"] = np.array([not 0 <= at < count for at in wanted])
        chosen = np.stack([values[min(max(at, 0), count - 1)] for at in wanted])
        is_video = is_camera and isinstance(signal, FileVideo)
        item[name] = chosen[0] if is_video and len(chosen) == 1 else chosen
    texts = episode.steps["task"].data if "task" in episode.signals else [episode.static["task"]] * count
    item["task"] = texts[row]
    return item


@pytest.mark.parametrize("name", [LEROBOT[0], LEROBOT[1], LEROBOT[4]])
@pytest.mark.parametrize("deltas", [{}, DELTAS], ids=["alone", "windows"])
def test_items_are_those_of_the_original(name: str, deltas: dict[str, list[float]]) -> None:
    place = shared_golden("foreign", "lerobot", name)
    frames = wd.lerobot_dataset(place, delta_timestamps=deltas)
    assert len(frames) == 158
    chosen = [0, 1, 39, 40, 63, 64, 65, 100, 157]
    for index, item in zip(chosen, frames.__getitems__(chosen), strict=True):
        expected = reference(wd.open(place), index, deltas, 20)
        assert set(item) == set(expected)
        for key, value in expected.items():
            if key == "task":
                assert item[key] == value
                continue
            assert item[key].shape == value.shape, key
            assert np.array_equal(item[key].numpy(), value), key
            kind = value.dtype.kind
            assert item[key].dtype == {"f": torch.float32, "i": torch.int64, "b": torch.bool}[kind], key
        assert frames[index].keys() == item.keys()


def test_meta_answers_what_policies_ask() -> None:
    frames = wd.lerobot_dataset(shared_golden("foreign", "lerobot", LEROBOT[3]))
    meta = frames.meta
    assert meta.fps == 20
    assert meta.features["action"]["shape"] == [7]
    assert meta.camera_keys == ["observation.images.front", "observation.images.wrist"]
    assert meta.stats["action"]["mean"].shape == (7,)
    assert meta.stats["observation.images.front"]["mean"].shape == (3, 1, 1)
    assert meta.episodes["dataset_from_index"] == [0, 40, 65, 125]
    assert meta.episodes[1]["dataset_to_index"] == 65
    assert meta.tasks.iloc[1].name == "open the drawer"
    assert isinstance(frames, torch.utils.data.Dataset)
    with pytest.raises(KeyError, match="Did you mean 'action'"):
        wd.lerobot_dataset(frames.source, delta_timestamps={"actoin": [0]})
    with pytest.raises(ValueError, match="no multiples"):
        wd.lerobot_dataset(frames.source, delta_timestamps={"action": [0.01]})


def test_any_episodes_serve(tmp_path: Path) -> None:
    """Recordings, parts of sets and episodes in memory; statistics then come from the data."""
    episodes = made_episodes(3)
    frames = wd.lerobot_dataset(episodes, image_transforms=lambda frame: frame * 2)
    assert frames[8]["observation.images.top"].shape == (3, 32, 48)
    assert frames[8]["episode_index"] == 1
    assert frames[8]["task"] == "task 1"
    raw = episodes[1]["observation.images.top"].values()[1].transpose(2, 0, 1).astype(np.float32) / 255
    assert np.array_equal(frames[8]["observation.images.top"].numpy(), raw * 2)
    actions = np.concatenate([each["action"].values() for each in episodes]).astype(np.float32)
    assert np.allclose(frames.meta.stats["action"]["std"], actions.std(axis=0), atol=1e-6)
    assert list(frames.meta.tasks.index) == ["task 0", "task 1"]
    made_set(tmp_path / "set")
    wd.import_episodes(tmp_path / "set", tmp_path / "ours")
    part = wd.lerobot_dataset(tmp_path / "ours", episodes=[2, 0])
    assert len(part) == 9 + 7
    assert part[0]["episode_index"] == 2
    with pytest.raises(IndexError):
        part[16]


def test_workers_and_copies_read_the_same(tmp_path: Path) -> None:
    frames = wd.lerobot_dataset(made_set(tmp_path / "set"))
    again = pickle.loads(pickle.dumps(frames))
    assert np.array_equal(again[9]["action"], frames[9]["action"])
    loader = torch.utils.data.DataLoader(copy.copy(frames), batch_size=8, num_workers=1)
    seen = torch.cat([batch["index"] for batch in loader])
    assert seen.tolist() == list(range(len(frames)))
