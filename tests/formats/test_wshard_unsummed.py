"""Large raw blocks without checksums for their windows, as other programs write them: checked when first touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.formats.episodes import as_others_write_it
from tests.formats.test_wshard_kept import metered
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.errors import ChecksumError
from warpdata.formats.wshard import ShardReader, layout
from warpdata.formats.wshard.verify import verify_shard

STEPS = 200
BIG = np.arange(STEPS * 20_000, dtype=np.uint32).view(np.uint8).reshape(STEPS, 80_000)[:, :20_000].copy()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    episode = wd.WShardEpisode(id="e", length=STEPS)
    episode.observations["big"] = BIG
    wd.save_wshard(episode, folder / "ours")
    as_others_write_it(folder / "ours", folder / "theirs", "signal/big")
    assert BIG.nbytes > layout.PIECES_FROM_BYTES
    return folder / "theirs"


@pytest.fixture
def damaged(theirs: Path, tmp_path: Path) -> Path:
    """One bit of the last row is wrong."""
    data, block = bytearray(theirs.read_bytes()), ShardReader.open(theirs).block("signal/big")
    data[block.data_offset + block.disk_size - 1] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    return tmp_path / "damaged"


SOURCES = {
    "file": lambda path: path,
    "memory": lambda path: BytesRangeReader(path.read_bytes()),
    "positioned reads": FileRangeReader,
    "store": lambda path: metered(path)[0],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("choice", ["block", True])
def test_no_window_of_a_damaged_block_is_handed_out(damaged: Path, source: str, choice: Any) -> None:
    channel = wd.load_wshard(SOURCES[source](damaged), verify=choice).observations["big"]
    for key in (0, slice(3, 9), [5, 100], slice(None, None, 50), (..., 0)):
        with pytest.raises(ChecksumError, match="signal/big"):
            channel[key]
    shard = ShardReader.open(SOURCES[source](damaged), verify=choice)
    with pytest.raises(ChecksumError, match="signal/big"):
        shard.read_rows("signal/big", 0, 1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("choice", ["window", False])
def test_windows_alone_where_the_caller_says_so(damaged: Path, source: str, choice: Any) -> None:
    channel = wd.load_wshard(SOURCES[source](damaged), verify=choice).observations["big"]
    assert np.array_equal(channel[3:9], BIG[3:9])
    if choice == "window":
        with pytest.raises(ChecksumError):
            _ = channel.data


def test_the_whole_is_read_once(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept where it fits the budget, else checked and then read by range; never twice."""
    for budget in (BLOCK_CACHE.max_bytes, 1 << 20):
        monkeypatch.setattr(BLOCK_CACHE, "_max_bytes", budget)
        file, meter = metered(theirs)
        channel = wd.load_wshard(file).observations["big"]
        opened = meter.spent.bytes_read
        for row in range(20):
            assert np.array_equal(channel[row], BIG[row])
        windows = 0 if budget > BIG.nbytes else 20 * BIG[0].nbytes
        assert meter.spent.bytes_read - opened <= BIG.nbytes + windows + 1


def test_a_window_alone_costs_itself(theirs: Path) -> None:
    file, meter = metered(theirs)
    channel = wd.load_wshard(file, verify="window").observations["big"]
    opened = meter.spent.bytes_read
    assert np.array_equal(channel[3:9], BIG[3:9])
    assert meter.spent.bytes_read - opened == BIG[3:9].nbytes


def test_published_blocks_are_checked_too(theirs: Path, damaged: Path, tmp_path: Path) -> None:
    for name, path in (("sound", theirs), ("damaged", damaged)):
        (tmp_path / f"{name}.wshard").write_bytes(path.read_bytes())
        with wd.DatasetBuilder(f"t/{name}", catalog=tmp_path / "catalog") as builder:
            builder.add_artifact("episodes", tmp_path / f"{name}.wshard", kind="wshard_episodes")
            builder.publish(message=name)
    with wd.dataset("t/sound", catalog=tmp_path / "catalog") as dataset:
        assert np.array_equal(dataset.episodes[0].tensors.observations["big"][3:9], BIG[3:9])
    with wd.dataset("t/damaged", catalog=tmp_path / "catalog") as dataset:
        episode = dataset.episodes[0]
        with pytest.raises(ChecksumError, match="signal/big"):
            episode.tensors.observations["big"][3:9]
        with pytest.raises(ChecksumError, match="signal/big"):
            episode["big"][3]


def test_the_choice_is_checked_and_travels(theirs: Path) -> None:
    import pickle

    for wrong in ("blocks", "windows", None, 3):
        with pytest.raises(ValueError, match="one of block, window, not"):
            wd.load_wshard(theirs, verify=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean 'block'"):
        wd.load_wshard(theirs, verify="blck")  # type: ignore[arg-type]
    shard = pickle.loads(pickle.dumps(ShardReader.open(theirs, verify="window")))
    assert shard._verify == "window"


def test_verify_says_it(theirs: Path) -> None:
    found = {each.code: each for each in verify_shard(theirs)}
    assert not found["no_piece_checksums"].is_damage
    assert "whole block" in found["no_piece_checksums"].message
