"""Exports by several processes: the same files, byte for byte, and what cannot be read is skipped alike."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.convert.foreign import copied, sample
from tests.convert.sets import made_set
from warpdata.cli import exits
from warpdata.cli.main import main
from warpdata.convert.importing import import_episodes
from warpdata.convert.lerobot.statistics import QUANTILES, FrameCounts
from warpdata.errors import WarpError

FORMATS = ("lerobot", "webdataset", "hdf5", "mcap", "rlds", "zarr", "minari", "dreamer")


def files(place: Path) -> dict[str, str]:
    """The hash of every file below a place, or of the file."""
    listed = [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in listed}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings with encoded cameras, numbers and text."""
    folder = tmp_path_factory.mktemp("jobs")
    import_episodes(wd.open(made_set(folder / "made", 5)), folder / "root", format="lerobot", source="made")
    return folder / "root"


@pytest.mark.parametrize("format_", FORMATS)
def test_the_same_bytes_with_any_number_of_jobs(root: Path, tmp_path: Path, format_: str) -> None:
    receipts = []
    for jobs in (1, 2):
        (tmp_path / str(jobs)).mkdir()
        receipt = wd.export_episodes(root, tmp_path / str(jobs) / "out", format_, jobs=jobs)
        receipts.append({**receipt.to_json(), "target": ""})
    assert receipts[0] == receipts[1]
    assert receipts[0]["episodes"] == 5
    one, several = files(tmp_path / "1" / "out"), files(tmp_path / "2" / "out")
    assert one == several
    assert one


def test_raw_frames_are_encoded_alike(tmp_path: Path) -> None:
    source = sample("robomimic", "gen_lift_image.hdf5")
    found = [
        files(Path(wd.export_episodes(source, tmp_path / str(jobs), "lerobot", jobs=jobs, task="x").target))
        for jobs in (1, 2)
    ]
    assert found[0] == found[1]


def test_formats_of_one_writer_say_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rrd is written by one process"):
        wd.export_episodes(root, tmp_path / "x.rrd", "rrd", jobs=2)


def test_the_command(root: Path, tmp_path: Path) -> None:
    out, more = str(tmp_path / "out"), str(tmp_path / "more")
    assert main(["export", "mcap", str(root), out, "--jobs", "2"]) == exits.OK
    assert main(["convert", str(root), more, "--to", "mcap", "--jobs", "2"]) == exits.OK
    assert files(tmp_path / "out") == files(tmp_path / "more")


@pytest.mark.parametrize(("format_", "broken"), [("lerobot", 0), ("webdataset", 2)])
def test_what_cannot_be_read_is_skipped(tmp_path: Path, format_: str, broken: int) -> None:
    source = copied(sample("lerobot", "v21_video_av1"), tmp_path)
    (source / f"data/chunk-000/episode_{broken:06d}.parquet").write_bytes(b"not a table")
    with pytest.raises(WarpError, match=f"{broken}"):
        wd.export_episodes(source, tmp_path / "no", format_)
    assert not (tmp_path / "no").exists()
    receipt = wd.export_episodes(source, tmp_path / "out", format_, jobs=2, on_error="skip")
    assert [int(each["id"]) for each in receipt.skipped] == [broken]
    assert receipt.episodes == 3
    opened: Any = wd.open(tmp_path / "out")
    assert len(opened) == 3


@pytest.mark.parametrize("shape", [(3, 20, 30, 3), (2, 20, 30), (2, 480, 640, 3), (1, 300, 100, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_statistics_of_frames_are_exact(shape: tuple[int, ...], dtype: Any) -> None:
    frames = np.random.default_rng(0).integers(3, 200, shape).astype(dtype)
    found = FrameCounts.of(frames).statistics(quantiles=True)
    side = max(shape[1:3])
    step = side // 150 if side >= 300 else 1
    plain = frames[:, ::step, ::step].reshape(-1, shape[3] if len(shape) == 4 else 1).astype(np.float64)
    plain /= 255.0 if dtype == np.uint8 else 1.0
    for name, made in (
        ("min", plain.min(0)),
        ("max", plain.max(0)),
        ("mean", plain.mean(0)),
        ("std", plain.std(0)),
    ):
        assert np.allclose(np.array(found[name]).reshape(-1), made)
    for name, share in QUANTILES.items():
        assert np.allclose(np.array(found[name]).reshape(-1), np.quantile(plain, share, axis=0))
    assert found["count"] == [shape[0]]
    half = FrameCounts.of(frames[:1]) + FrameCounts.of(frames[1:]) if shape[0] > 1 else FrameCounts.of(frames)
    assert half.statistics(quantiles=True) == found
