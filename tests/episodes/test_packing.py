"""Packing: cameras of other writers play from inside a shard, edits go along, what cannot be played is noticed."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_video import COUNT, foreign_episode, number_in, scene
from tests.episodes.told import changed_at
from warpdata.cli.main import main
from warpdata.errors import ConflictError, CorruptLayoutError, RecordingError
from warpdata.formats.wshard.episode import load_wshard
from warpdata.formats.wshard.save import save_wshard


def check_camera(camera: wd.Signal) -> None:
    assert camera.timestamps.tolist() == list(range(0, COUNT * 10, 10))
    assert [number_in(frame) for frame, _ in camera] == list(range(COUNT))
    assert [number_in(camera[i][0]) for i in (59, 0, 31, 29, 30, 58)] == [59, 0, 31, 29, 30, 58]


def test_a_camera_of_the_existing_program_plays_from_the_shard(tmp_path: Path) -> None:
    """Its frames are reordered and its index has only times: the rest is found while packing."""
    folder = tmp_path / "root" / f"{0:012d}" / f"{0:012d}"
    foreign_episode(folder)
    shard = wd.pack_episode(folder, tmp_path / "e.wshard")
    check_camera(wd.open_episode(shard)["cam"])
    assert main(["verify", "--full", str(shard)]) == 0
    again = wd.unpack_episode(shard, tmp_path / "again")
    check_camera(wd.open_episode(again)["cam"])
    assert (again / "cam.mp4").read_bytes() == (folder / "cam.mp4").read_bytes()
    with wd.DatasetBuilder("w/foreign", catalog=tmp_path / "catalog") as builder:
        builder.add_artifact("main", tmp_path / "root", kind="wshard_episodes")
        builder.publish()
    with wd.dataset("w/foreign", catalog=str(tmp_path / "catalog")) as dataset:
        check_camera(dataset.episodes_of("main")[0]["cam"])


def test_a_shard_packed_before_plays_too(tmp_path: Path) -> None:
    """Earlier versions packed the bare index: the packets are found by walking through the video."""
    foreign_episode(tmp_path / "ep")
    shard = wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard")
    episode = load_wshard(shard)
    episode.blocks["aux/frames/cam"] = (tmp_path / "ep" / "cam.frames.parquet").read_bytes()
    save_wshard(episode, shard, overwrite=True)
    check_camera(wd.open_episode(shard)["cam"])


def test_a_foreign_matroska_video(tmp_path: Path) -> None:
    import av
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "ep").mkdir()
    (tmp_path / "ep" / "static.json").write_text("{}")
    with av.open(str(tmp_path / "ep" / "cam.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": "30"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for i in range(COUNT):
            frame = av.VideoFrame.from_ndarray(scene(i), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    stamps = pa.array(range(0, COUNT * 10, 10), pa.int64())
    pq.write_table(pa.table({"ts_ns": stamps}), tmp_path / "ep" / "cam.frames.parquet")
    check_camera(wd.open_episode(tmp_path / "ep")["cam"])
    check_camera(wd.open_episode(wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard"))["cam"])


def test_verify_notices_a_camera_that_cannot_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block has its checksum, but the index speaks of another video."""
    for name, count in (("one", 12), ("two", 15)):
        with wd.DiskEpisodeWriter(tmp_path / name) as writer:
            for i in range(count):
                writer.append("cam", scene(i, 16, 24), i)
    shards = [wd.pack_episode(tmp_path / name, tmp_path / f"{name}.wshard") for name in ("one", "two")]
    assert main(["verify", *map(str, shards)]) == 0
    mixed = load_wshard(shards[0])
    mixed.blocks["aux/frames/cam"] = load_wshard(shards[1]).blocks["aux/frames/cam"]
    save_wshard(mixed, tmp_path / "mixed.wshard")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "mixed.wshard")]) == 3
    assert "unplayable_camera" in capsys.readouterr().out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    for _ in range(3):
        with wd.LocalDatasetWriter(path, durability="none").new_episode() as writer:
            writer.set_static("task", "pick")
            for i in range(20):
                writer.append("x", float(i), i * 10)
                writer.append("cam", scene(i, 16, 24), i * 10)
    return path


def packed(root: Path, number: int, **options: bool) -> wd.Episode:
    folder = root / f"{0:012d}" / f"{number:012d}"
    return wd.open_episode(
        wd.pack_episode(folder, root.parent / f"{number}.wshard", overwrite=True, **options)
    )


def test_an_edited_episode_packs_as_it_is_shown(root: Path) -> None:
    edits = wd.LocalDataset(root).edits
    edits.set_static(0, "task", "place")
    edits.trim(1, 50, 150)
    edits.set_static(1, "note", "short")
    shown = {0: (20, "place"), 1: (10, "pick"), 2: (20, "pick")}
    for number, (count, task) in shown.items():
        episode, before = packed(root, number), packed(root, number, raw=True)
        assert (len(episode["x"]), len(episode["cam"]), episode.static["task"]) == (count, count, task)
        assert (len(before["x"]), before.static["task"]) == (20, "pick")
        assert ("edited" in episode.meta or "note" in episode.static) == (number < 2)
        assert (episode.meta["uid"] == before.meta["uid"]) == (number == 2)
    video = (root / f"{0:012d}" / f"{0:012d}" / "cam.mp4").read_bytes()
    shard = load_wshard(root.parent / "0.wshard")
    packed(root, 0)
    shard = load_wshard(root.parent / "0.wshard")
    assert bytes(shard.blocks["video/cam.mp4"]) == video, "an edit of facts alone does not touch the camera"
    assert not list(root.parent.glob(".warpdata-*"))


def test_what_edits_show_in_another_way_must_be_chosen(root: Path) -> None:
    edits = wd.LocalDataset(root).edits
    edits.drop(0)
    edits.split(1, 100)
    edits.concat([f"{1:012d}-2", 2], gap_ns=10)
    for number, word in ((0, "dropped"), (1, "-1"), (2, "\\+")):
        with pytest.raises(ConflictError, match=word) as caught:
            packed(root, number)
        assert "raw" in caught.value.hint
        assert len(packed(root, number, raw=True)["x"]) == 20
    dataset = wd.LocalDataset(root)
    halves = [
        wd.open_episode(wd.pack_episode(each, root.parent / f"{each.id}.wshard"))["x"] for each in dataset
    ]
    assert [len(each) for each in halves] == [10, 30]
    folder = str(root / f"{0:012d}" / f"{0:012d}")
    assert main(["pack", folder, "--output", str(root.parent / "a.wshard")]) == 1
    assert main(["pack", folder, "--raw", "--output", str(root.parent / "a.wshard")]) == 0


def test_a_single_edited_episode_is_published_as_it_is_shown(root: Path, tmp_path: Path) -> None:
    wd.LocalDataset(root).edits.set_static(0, "task", "place")
    with wd.DatasetBuilder("w/one", catalog=tmp_path / "catalog") as builder:
        builder.add_artifact("main", root / f"{0:012d}" / f"{0:012d}", kind="wshard_episodes")
        builder.publish()
    with wd.dataset("w/one", catalog=str(tmp_path / "catalog")) as dataset:
        assert dataset.episodes_of("main")[0].static["task"] == "place"


def test_an_edit_cannot_give_a_static_item_the_name_of_a_signal(root: Path) -> None:
    edits = wd.LocalDataset(root).edits
    with pytest.raises(RecordingError, match="'x' is a signal"):
        edits.set_static(0, "x", 5)
    with wd.LocalDatasetWriter(root).new_episode() as writer:
        writer.set_static("x", "a word here")
        writer.append("other", 1.0, 10_000)
    with pytest.raises(RecordingError, match="'x' is a signal"):
        edits.concat([0, 3])
    assert not (root / "edits.jsonl").exists()
    edits.set_static(0, "y", 5)
    assert np.array_equal(wd.LocalDataset(root)[0]["x"].values(), np.arange(20.0))


ODD_FACTS: list[tuple[tuple[str, ...], Any]] = [
    (("signals",), None),
    (("signals",), []),
    (("signals", "state"), "x"),
    (("signals", "state", "count"), "many"),
    (("signals", "state", "count"), [1]),
    (("signals", "state", "shape"), [7]),
    (("meta",), 5),
    (("version",), 99),
]


@pytest.mark.parametrize(("place", "value"), ODD_FACTS)
def test_a_shard_that_says_odd_things_of_its_recording(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(3):
            writer.append("state", np.arange(3.0) + i, i)
    shard = wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard")
    episode = load_wshard(shard)
    about = json.loads(bytes(episode.blocks["meta/directory"]))
    episode.blocks["meta/directory"] = json.dumps(changed_at(about, place, value)).encode()
    save_wshard(episode, shard, overwrite=True)
    words = {"version": "packed in version 99", "shape": "72 bytes are no rows of"}.get(place[-1], "damaged")
    with pytest.raises(CorruptLayoutError, match=words):
        wd.open_episode(shard)["state"].values()


def test_a_file_that_is_there_is_not_packed_over(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("state", 1.0, 1)
    target = tmp_path / "e.wshard"
    target.write_bytes(b"mine")
    with pytest.raises(ConflictError, match="target exists"):
        wd.pack_episode(tmp_path / "ep", target)
    assert target.read_bytes() == b"mine"
    assert wd.open_episode(wd.pack_episode(tmp_path / "ep", target, overwrite=True))["state"].values() == [
        1.0
    ]


def test_what_is_no_packed_recording_is_not_unpacked(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(3):
            writer.append("state", np.arange(3.0) + i, i)
    episode = load_wshard(wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard"))
    del episode.blocks["meta/directory"]
    save_wshard(episode, tmp_path / "rows.wshard")
    with pytest.raises(ValueError, match="not a packed recording"):
        wd.unpack_episode(tmp_path / "rows.wshard", tmp_path / "again")
    assert not (tmp_path / "again").exists()
