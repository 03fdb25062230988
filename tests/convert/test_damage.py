"""Samples that are cut, flipped or without a file: a typed error that names the place, or the right shape of data."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.convert.foreign import copied, sample
from tests.sweeps import SOAK
from warpdata.convert import dreamer, hdf5, mcap, minari, rosbag2, webdataset, zarr
from warpdata.episodes.collection import Episodes
from warpdata.errors import WarpError

SAMPLES: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "robomimic": (hdf5, ("robomimic", "tfds_dummy", "robomimic_ph__lift_low_dim.hdf5")),
    "maniskill": (hdf5, ("robomimic", "gen_maniskill_style.rgbd.pd_joint_delta_pos.h5")),
    "d4rl": (hdf5, ("d4rl", "hopper_medium_replay-v1.hdf5")),
    "zarr": (zarr, ("zarr_replay_buffer", "lowdim.zarr")),
    "minari-hdf5": (minari, ("minari", "synth", "dict-hdf5-v0")),
    "minari-arrow": (minari, ("minari", "synth", "box-arrow-v0")),
    "minari-parquet": (minari, ("minari", "synth", "dict-parquet-v0")),
    "dreamer": (dreamer, ("dreamerv3", "replay")),
    "mcap-zstd": (mcap, ("mcap", "gen", "ros2_cdr_zstd.mcap")),
    "mcap-json": (mcap, ("mcap", "gen", "json_foxglove.mcap")),
    "mcap-protobuf": (mcap, ("mcap", "gen", "foxglove_protobuf.mcap")),
    "mcap-bag": (mcap, ("mcap", "rosbag2", "rosbag2_tests", "resources", "mcap", "cdr_test")),
    "rosbag2": (rosbag2, ("rosbag2_db3", "gen_v9_sqlite3")),
    "rosbag2-zstd": (rosbag2, ("rosbag2_db3", "gen_v8_sqlite3_filezstd")),
    "webdataset": (webdataset, ("webdataset", "gen", "robot-000000.tar")),
    "webdataset-steps": (webdataset, ("webdataset", "gen", "steps-000001.tar")),
}
ROUNDS = 400 if SOAK else 12


def read_all(episodes: Episodes) -> None:
    _ = episodes.metadata
    for episode in episodes:
        _ = (dict(episode.static), dict(episode.meta), len(episode.steps))
        for signal in episode.signals.values():
            assert len(signal.values()) == len(signal) == len(signal.timestamps)


def harm(path: Path, chance: random.Random) -> None:
    """Cut a file of a sample, flip bits of it (half of the time near its start), or remove it."""
    files = sorted(each for each in [path, *path.rglob("*")] if each.is_file())
    file = chance.choice(files)
    data = bytearray(file.read_bytes())
    how = chance.choice(["cut", "flip", "flip many", "remove"])
    if how == "remove" and len(files) > 1:
        file.unlink()
        return
    if how == "cut":
        data = data[: chance.randrange(len(data))]
    else:
        for _ in range(8 if how == "flip many" else 1):
            near = len(data) if chance.random() < 0.5 else min(len(data), 4096)
            data[chance.randrange(near)] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("name", SAMPLES)
def test_harmed_samples_never_raise_foreign_errors(name: str, tmp_path: Path) -> None:
    module, parts = SAMPLES[name]
    chance = random.Random(name)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = copied(sample(*parts), folder)
        harm(path, chance)
        told = None
        try:
            read_all(module.read(path))
        except WarpError as error:
            told = str(error)
        assert told is None or str(folder) in told
        shutil.rmtree(folder)
