"""Samples that are cut, flipped or without a file: a typed error that names the place, or the right shape of data."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.convert.foreign import copied, sample
from tests.sweeps import SOAK
from warpdata.convert import dreamer, hdf5, lerobot, mcap, minari, rlds, rosbag2, webdataset, zarr
from warpdata.episodes.collection.episodes import Episodes
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


HOSTILE: list[Any] = [
    None, -1, 2**63, 10**30, 1.5, True, "", "x", [], {}, [None], {"a": None}, "../../etc/passwd", "n" * 5000, "\ud800",
]  # fmt: skip
FORGED: list[tuple[str, str, tuple[str | int, ...], Any]] = [
    ("lerobot", "meta/info.json", ("data_path",), None),
    ("lerobot", "meta/info.json", ("data_path",), "data/{secret}.parquet"),
    ("lerobot", "meta/info.json", ("data_path",), "\ud800"),
    ("rlds", "dataset_info.json", ("splits",), True),
    ("rlds", "dataset_info.json", ("splits", 0, "filepathTemplate"), "\ud800"),
    ("zarr", "data/action/.zarray", ("compressor",), {"id": "unheard-of"}),
    ("zarr", "data/action/.zarray", ("dtype",), "\ud800"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small episodes, as sets of other programs that have documents in JSON."""
    here = tmp_path_factory.mktemp("forged")
    for number in range(2):
        with wd.record(here / "root", static={"task": "pick"}, clock="simulated") as rec:
            for k in range(12):
                state = np.array([k, number, 0.5], np.float32)
                rec.step({"state": state}, np.float32([k, 1]), reward=1.0, ts_ns=k * 50_000_000)
    for name in ("lerobot", "rlds", "minari", "zarr"):
        wd.export_episodes(here / "root", here / name, name)
    return here


def documents(folder: Path) -> dict[Path, Any]:
    """The files of a set that are JSON."""
    found = {}
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        with contextlib.suppress(ValueError):
            value = json.loads(file.read_text())
            if isinstance(value, dict | list):
                found[file] = value
    return found


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a document has values, but for the whole of it."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def forged(file: Path, at: tuple[str | int, ...], value: Any) -> bytes:
    """A document with another value at a place."""
    made = json.loads(file.read_text())
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return json.dumps(made).encode()


def said_of(name: str, folder: Path, file: Path, data: bytes) -> str | None:
    """What reading a set says while a file of it holds this; None where it reads."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        read_all(READERS[name].read(folder))
    except WarpError as error:
        return str(error)
    finally:
        file.write_bytes(before)
    return None


READERS: dict[str, ModuleType] = {"lerobot": lerobot, "rlds": rlds, "minari": minari, "zarr": zarr}


@pytest.mark.parametrize(("name", "document", "at", "value"), FORGED)
def test_a_forged_document_is_refused_by_name(
    exported: Path, name: str, document: str, at: tuple[str | int, ...], value: Any
) -> None:
    file = exported / name / document
    told = said_of(name, exported / name, file, forged(file, at, value))
    assert told is not None
    assert str(exported / name) in told


@pytest.mark.parametrize("name", READERS)
def test_forged_documents_never_raise_foreign_errors(exported: Path, name: str) -> None:
    folder, chance = exported / name, random.Random(name)
    every = [(file, at) for file, value in documents(folder).items() for at in places(value)]
    for _ in range(2 * ROUNDS):
        file, at = chance.choice(every)
        told = said_of(name, folder, file, forged(file, at, chance.choice(HOSTILE)))
        assert told is None or str(folder) in told
