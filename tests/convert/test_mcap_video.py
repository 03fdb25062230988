"""Video in messages: packets become a camera without being decoded, and come out as they were."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.convert.foreign import imported
from tests.convert.sets import made_episodes
from tests.convert.test_mcap import content, log_of
from warpdata.convert import mcap
from warpdata.convert.importing import import_episodes
from warpdata.convert.mcap.write import VIDEO, video_message
from warpdata.convert.messages import LogChannel
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.formats.episodedir.documents import VideoOptions

CAMERA = "observation.images.top"
CODECS = ("h264", "h265", "av1")


def recorded(folder: Path, codec: str) -> Any:
    """An episode with a camera encoded by a real encoder."""
    import_episodes(
        made_episodes(1), folder, format="x", source="x", video=VideoOptions(codec=codec, gop_size=3)
    )
    return wd.open(folder)


def packets(path: Path) -> list[tuple[int, bytes]]:
    """The packets of the camera in a file that we wrote."""
    found = []
    for topic, log, _, _, data, *_ in content(path)[1]:
        if topic == f"/{CAMERA}":
            size = int.from_bytes(data[28:32], "little")  # behind the stamp and the frame's name
            found.append((log, data[32 : 32 + size]))
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_cameras_become_compressed_video_and_come_back(codec: str, tmp_path: Path) -> None:
    before = recorded(tmp_path / "ours", codec)
    receipt = mcap.write(before, tmp_path / "one.mcap")
    assert receipt.is_exact
    (after,) = mcap.read(tmp_path / "one.mcap")
    assert after[CAMERA].meta == before[0][CAMERA].meta
    np.testing.assert_array_equal(after[CAMERA].values(), before[0][CAMERA].values())
    np.testing.assert_array_equal(after[CAMERA].timestamps, before[0][CAMERA].timestamps)
    schemas = {schema[0] for *_, schema, _, _ in content(tmp_path / "one.mcap")[1]}
    assert "foxglove_msgs/msg/CompressedVideo" in schemas
    assert all(data.startswith(b"\0\0\0\1") for _, data in packets(tmp_path / "one.mcap")) or codec == "av1"


def foreign(path: Path, listed: list[tuple[int, bytes]], codec: str, form: str) -> Path:
    """The same packets as another program records them."""
    if form == "json":
        channel = LogChannel("/t", "foxglove.CompressedVideo", "jsonschema", b"{}", "json")
        made = [
            (
                log,
                log,
                json.dumps(
                    {
                        "timestamp": {"sec": 0, "nsec": log},
                        "frame_id": "c",
                        "format": codec,
                        "data": base64.b64encode(data).decode(),
                    }
                ).encode(),
            )
            for log, data in listed
        ]
    else:
        definition = VIDEO.encode()
        channel = LogChannel("/t", "foxglove_msgs/msg/CompressedVideo", "ros2msg", definition, "cdr")
        made = [(log, log, video_message(log, codec, data)) for log, data in listed]
    return log_of(path, made, channel)


@pytest.mark.parametrize("kind", ["straight", "root", "shards"])
@pytest.mark.parametrize("form", ["cdr", "json"])
@pytest.mark.parametrize("codec", CODECS)
def test_video_of_others_is_copied(codec: str, form: str, kind: str, tmp_path: Path) -> None:
    before = recorded(tmp_path / "first", codec)
    mcap.write(before, tmp_path / "one.mcap")
    listed = packets(tmp_path / "one.mcap")
    if codec != "av1":  # start codes of three bytes where there were four
        listed[1] = (listed[1][0], listed[1][1][1:])
    path = foreign(tmp_path / "theirs.mcap", listed, codec, form)
    episodes = mcap.read(path)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "mcap")
    camera = episodes[0]["t/data"]
    assert camera.meta.kind == "image"
    run = encoded_run(camera)
    assert run is not None
    assert run.stream.codec == {"h265": "hevc"}.get(codec, codec)
    np.testing.assert_array_equal(camera.values(), before[0][CAMERA].values())
    assert mcap.write(episodes, tmp_path / "out.mcap").is_exact
    again = encoded_run(mcap.read(tmp_path / "out.mcap")[0]["t/data"])
    assert again is not None
    assert list(again.packets()) == list(run.packets())


def test_packets_that_do_not_begin_with_a_keyframe_stay_bytes(tmp_path: Path) -> None:
    mcap.write(recorded(tmp_path / "first", "h264"), tmp_path / "one.mcap")
    listed = packets(tmp_path / "one.mcap")
    for number, wrong in enumerate([listed[1:], [(0, b"no packet"), *listed[1:]], [(0, b"")]]):
        path = foreign(tmp_path / f"{number}.mcap", wrong, "h264", "cdr")
        (episode,) = mcap.read(path)
        assert episode["t/data"].meta.kind == "bytes"
        assert [bytes(each) for each in episode["t/data"].values()] == [data for _, data in wrong]
