"""Foreign sets by URL: opened and imported where they lie, as those on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.convert.foreign import sample
from tests.convert.sets import tree
from tests.servers import BUCKET, S3Server, run_http, s3_store, unique
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BadMagicError, BlobNotFoundError, StoreError

FILES = (
    "mcap/gen/ros2_cdr_zstd.mcap", "robomimic/gen_lift_image.hdf5", "webdataset/gen/robot-000000.tar",
)  # fmt: skip
NAMED = (
    "lerobot/v30_061_video_h264",
    "lerobot/v21_video_av1",
    "rlds/tfrecord/synth_arm/1.0.0",
    "minari/synth/dict-hdf5-v0",
)
"""Folders whose files follow from what they say: no list is needed, which a web server does not give."""
LISTED = ("dreamerv3/replay", "rosbag2_db3/gen_v9_sqlite3", "zarr_replay_buffer/pusht_like.zarr")


def assert_same_as_here(address: str, here: Path) -> None:
    found, expected = wd.open(address), wd.open(here)
    assert isinstance(found, Episodes)
    assert len(found) == len(expected)
    for name in list(expected[0].signals)[:3]:
        np.testing.assert_array_equal(found[0].signals[name].rows(0, 3), expected[0].signals[name].rows(0, 3))


def test_from_a_web_server(tmp_path: Path) -> None:
    with run_http(sample()) as server:
        for each in (*FILES, *NAMED):
            assert_same_as_here(f"{server.url}/{each}", sample(*each.split("/")))
        for each in ("nothing/there", "PROVENANCE.md"):
            with pytest.raises((BlobNotFoundError, BadMagicError)):
                wd.open(f"{server.url}/{each}")
        with pytest.raises((StoreError, BlobNotFoundError)):
            wd.open(f"{server.url}/{LISTED[0]}")
        wd.import_episodes(f"{server.url}/{NAMED[0]}", tmp_path / "there")
    wd.import_episodes(sample(*NAMED[0].split("/")), tmp_path / "here")
    there, here = tree(tmp_path / "there"), tree(tmp_path / "here")
    kept = [name for name in here if name.endswith((".parquet", ".mp4", "static.json"))]
    assert kept
    assert all(there[name] == here[name] for name in kept)


def test_from_a_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = unique("foreign")
    store = s3_store(s3_server, prefix)
    for each in (FILES[0], NAMED[0], *LISTED):
        place = sample(*each.split("/"))
        for path in [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]:
            store.put_if_absent(path.relative_to(sample()).as_posix(), path.read_bytes())
        assert_same_as_here(f"s3://{BUCKET}/{prefix}/{each}", place)
