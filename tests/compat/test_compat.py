"""Old files live for ever: files of every release open and hold what they held."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tools.make_golden_episodedir import plain_values

import warpdata as wd
from tests.conftest import OWN_GOLDEN
from warpdata.formats.wshard import ShardReader

HERE = Path(__file__).parent
SHARDS = sorted((HERE / "wshard").rglob("*.wshard"))


def release_folder(path: Path, kind: str) -> Path:
    return next(parent for parent in path.parents if parent.parent.name == kind)


@pytest.mark.parametrize("path", SHARDS, ids=lambda p: p.relative_to(HERE).as_posix())
def test_shards_of_every_release(path: Path) -> None:
    folder = release_folder(path, "wshard")
    expected = json.loads((folder / "expected.json").read_text())[path.relative_to(folder).as_posix()]
    shard = ShardReader.open(path)
    assert {name: hashlib.sha256(shard.read(name)).hexdigest() for name in shard.names} == expected
    episode = wd.open_episode(path)
    assert all(channel.data.nbytes for _, channel in episode.tensors.lanes())


PACKED = sorted((OWN_GOLDEN / "packed").glob("*.wshard"))


@pytest.mark.parametrize("path", PACKED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_packed_recordings_of_every_release(path: Path) -> None:
    expected = json.loads((path.parent / "expected.json").read_text())[path.name]
    episode = wd.open_episode(path)
    assert dict(episode.static) == expected["static"]
    assert list(episode.signals) == list(expected["signals"])
    for name, about in expected["signals"].items():
        signal = episode[name]
        assert (signal.meta.kind, list(signal.meta.shape)) == (about["kind"], about["shape"])
        assert signal.times_ns.tolist() == about["times"]
        values = hashlib.sha256(repr(plain_values(signal)).encode()).hexdigest()
        assert values == about["sha256"], name
