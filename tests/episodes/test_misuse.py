"""Misuse is refused at once with the right error, and the object stays usable."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.errors import CorruptLayoutError, RecordingError, SchemaMismatchError, StoreError


@pytest.mark.parametrize(
    "name", ["meta.json/x", "static.json/x", "x.parquet/y", "a/cam.mp4/b", "v.mkv/x", "v.frames.parquet/x"]
)
def test_a_name_that_would_collide_with_a_file_is_refused_at_append(tmp_path: Path, name: str) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        with pytest.raises(ValueError, match="reserved"):
            writer.append(name, 1, 1)
        for fine in ("x.parquet", "cam.mp4", "a/static.json", "...", "-x"):
            writer.append(fine, 1, 1)
    assert len(wd.open_episode(tmp_path / "ep").keys) == 5


def test_static_items_that_json_cannot_hold(tmp_path: Path) -> None:
    inside_itself: list[Any] = []
    inside_itself.append(inside_itself)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for value in (inside_itself, "\ud800", {"\ud800": 1}, float("nan"), np.array([np.inf])):
            with pytest.raises(ValueError, match="'item'"):
                writer.set_static("item", value)
        for value in ({1, 2}, {1: 2}, object(), 1j, np.array(["a"])):
            with pytest.raises(TypeError, match="'item'"):
                writer.set_static("item", value)
        writer.set_static("item", [{"deep": [1, None, "x"]}])
    assert wd.open_episode(tmp_path / "ep").static == {"item": [{"deep": [1, None, "x"]}]}


@pytest.mark.parametrize(
    ("declared", "value", "kind", "words"),
    [
        ({"dtype": "f32"}, "text", SchemaMismatchError, "declared as f32, not as text"),
        ({"dtype": "u8"}, 300, SchemaMismatchError, "does not fit in u8"),
        ({"dtype": "f32"}, 2**24 + 1, SchemaMismatchError, "does not fit in f32"),
        ({"dtype": "f32"}, 1e39, SchemaMismatchError, "does not fit in f32"),
        ({"dtype": "f16"}, np.array([1.0, 7e4]), SchemaMismatchError, "does not fit in f16"),
        ({"dtype": "bf16"}, np.array([1.0, -3.4e38 * 10]), SchemaMismatchError, "does not fit in bf16"),
        ({"dtype": "i32"}, 1.5, SchemaMismatchError, "i32"),
        ({"kind": "vector"}, 1.0, SchemaMismatchError, "is a scalar, not a vector"),
        ({}, [[1.0], [1.0, 2.0]], TypeError, "cannot be recorded"),
        ({}, 2**64, ValueError, "does not fit in 64 bits"),
        ({}, np.empty((0, 3)), ValueError, "without elements"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    tmp_path: Path, declared: dict[str, Any], value: Any, kind: type[Exception], words: str
) -> None:
    """The first one and a later one, by every writer in the same words."""
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.declare("x", **declared)
        with pytest.raises(kind, match=words):
            writer.append("x", value, 1)
        writer.append("other", 1.0, 1)
        writer.declare("y", dtype="f32")
        writer.append("y", np.array([1.0, np.inf, np.nan]), 1)
        with pytest.raises(SchemaMismatchError, match="does not fit in f32"):
            writer.append("y", np.array([1.0, 1e300, 0.0]), 2)
    episode = wd.open_episode(tmp_path / "ep")
    assert list(episode.signals) == ["other", "y"]
    assert len(episode["y"]) == 1


def test_declarations_are_checked(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.set_static("task", "x")
        with pytest.raises(RecordingError, match="static item"):
            writer.declare("task", units="m")
        for wrong in ({"units": 5}, {"names": "ab"}, {"names": [1, 2]}):
            with pytest.raises(TypeError):
                writer.declare("v", **wrong)
        with pytest.raises(ValueError, match="kind"):
            writer.declare("v", kind="sound")
        writer.declare("map", names=["row", "column"], units="m")
        with pytest.raises(SchemaMismatchError, match="names"):
            writer.append("map", np.zeros(3), 0)
        writer.append("map", np.zeros((2, 3)), 0)
        with pytest.raises(TypeError, match="masked"):
            writer.append("m", np.ma.array([1, 2], mask=[False, True]), 0)
    meta = wd.open_episode(tmp_path / "ep")["map"].meta
    assert (meta.names, meta.units, meta.kind) == (("row", "column"), "m", "tensor")


def test_settings_are_checked_when_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="durability"):
        wd.LocalDatasetWriter(tmp_path, durability="sometimes")
    for wrong in ({"gop_size": 0}, {"fps": 0}, {"fps": float("nan")}, {"codec": "mpeg1"}, {"threads": -1}):
        with pytest.raises(ValueError):
            wd.VideoOptions(**wrong)
    with pytest.raises(TypeError):
        wd.VideoOptions(gop_size=2.5)
    with wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "v.parquet", fps=29.97) as writer:
        writer.append(np.zeros((8, 8, 3), np.uint8), 0)
    assert len(wd.VideoSignal(tmp_path / "v.mp4", tmp_path / "v.parquet")) == 1


def test_a_folder_that_is_no_episode_is_said_to_be_none(tmp_path: Path) -> None:
    with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
        writer.append("x", 1, 1)
    with pytest.raises(ValueError, match="holds 1 episodes: name one of them"):
        wd.open_episode(tmp_path / "root")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptLayoutError, match="not an episode"):
        wd.open_episode(tmp_path / "empty")


def test_metadata_is_a_dict_that_does_not_change(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.set_static("nested", {"a": [{"b": 1}]})
        writer.append("x", 1, 1)
    episode = wd.open_episode(tmp_path / "ep")
    for found in (
        episode.meta,
        episode.static,
        episode.time[:].meta,
        wd.Episode.of({}, {"a": {}}, {"b": {}}).meta,
    ):
        assert isinstance(found, dict)
        assert json.loads(json.dumps(found)) == found == pickle.loads(pickle.dumps(found))
        for change in (lambda f=found: f.update(x=1), lambda f=found: f.__setitem__("x", 1), found.clear):
            with pytest.raises(TypeError, match="read-only"):
                change()
    with pytest.raises(TypeError):
        episode.meta["writer"]["name"] = "me"
    with pytest.raises(TypeError):
        episode.static["nested"]["a"][0]["b"] = 2


def test_views_of_episodes_can_be_pickled(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(10):
            writer.append("x", i, i)
    episode = wd.open_episode(tmp_path / "ep")
    for view in (episode.time[2:5], episode.time[2:9:3], episode.time[[4, 4, 7]]):
        again = pickle.loads(pickle.dumps(view))
        assert again["x"].values().tolist() == view["x"].values().tolist()
        assert again["x"].timestamps.tolist() == view["x"].timestamps.tolist()
    with pytest.raises(TypeError, match="max_age_ns"):
        episode.sample([1], max_age_ns=1.5)


def test_a_root_that_cannot_be_listed_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for use in (wd.record, wd.open_recordings, wd.open, wd.check_dataset):
        with pytest.raises(StoreError):
            use(tmp_path / "loop").__enter__().append("x", 1.0, 1)


RECORDERS: dict[str, Any] = {
    "record": lambda path: wd.record(path),
    "shared": lambda path: wd.record(path, episode="e"),
    "episode": wd.DiskEpisodeWriter,
    "root": wd.LocalDatasetWriter,
    "table": wd.SimpleSignalWriter,
    "video": lambda path: wd.VideoSignalWriter(path, "x.parquet"),
    "index": lambda path: wd.VideoSignalWriter("x.mp4", path),
    "file": lambda path: wd.record(f"{path}.wshard"),
    "steps": lambda path: wd.WShardStreamWriter(path, "e", [{"id": "x", "dtype": "f32", "shape": [1]}]),
}


@pytest.mark.parametrize("name", RECORDERS)
def test_a_path_that_no_file_can_have_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="contains a NUL byte"):
        RECORDERS[name]("a\0b")
    with pytest.raises(TypeError):
        RECORDERS[name](7) if name != "file" else RECORDERS["record"](b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="name too long"):
        wd.record(tmp_path / ("x" * 300))
