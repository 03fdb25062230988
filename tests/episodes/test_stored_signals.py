"""The signal contract over everything that is stored: parquet, video, shards, chunks, packed directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from tests.contracts.signal import SignalContract
from tests.timeline.test_signals import STAMPS, Made, vectors
from warpdata.episodes.forms.shard import write_chunks
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.ragged import as_objects

COUNT = len(STAMPS)


def pictures(shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray[Any, Any]:
    """Smooth images, each clearly different from the one before."""
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    base = [(rows * 2 + columns * 3 + 17 * i) % 256 for i in range(COUNT)]
    flat = np.stack(base).astype(dtype) * (200 if dtype == "uint16" else 1)
    return np.repeat(flat[..., None], 3, axis=3) if len(shape) == 3 else flat


def recorded(folder: Path, values: Any) -> Path:
    with wd.DiskEpisodeWriter(folder / "ep") as writer:
        for value, ts_ns in zip(values, STAMPS, strict=True):
            writer.append("x", value, ts_ns)
    return folder / "ep"


class TestParquetVector(SignalContract):
    def make(self, folder: Path) -> Made:
        return wd.open_episode(recorded(folder, vectors()))["x"], STAMPS, vectors()


def clouds() -> list[Any]:
    """Arrays of none to six rows."""
    return [np.arange(3 * (i % 7), dtype=np.float32).reshape(-1, 3) + i for i in range(COUNT)]


def recorded_clouds(folder: Path) -> Path:
    with wd.DiskEpisodeWriter(folder / "ep") as writer:
        writer.declare("x", ragged=True)
        for value, ts_ns in zip(clouds(), STAMPS, strict=True):
            writer.append("x", value, ts_ns)
    return folder / "ep"


class TestRagged(SignalContract):
    def make(self, folder: Path) -> Made:
        return wd.open_episode(recorded_clouds(folder))["x"], STAMPS, as_objects(clouds())


class TestRaggedInMemory(SignalContract):
    def make(self, folder: Path) -> Made:
        return ArraySignal.ragged(STAMPS, clouds()), STAMPS, as_objects(clouds())


class TestPackedRagged(SignalContract):
    def make(self, folder: Path) -> Made:
        shard = wd.pack_episode(recorded_clouds(folder), folder / "one.wshard")
        return wd.open_episode(shard)["x"], STAMPS, as_objects(clouds())


class TestRaggedChunks(SignalContract):
    def make(self, folder: Path) -> Made:
        write_chunks(wd.open_episode(recorded_clouds(folder)), folder / "chunks", count=3)
        return wd.open(folder / "chunks")[0]["x"], STAMPS, as_objects(clouds())


class TestParquetBool(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.arange(COUNT) % 3 == 0
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestParquetBf16Tensor(SignalContract):
    def make(self, folder: Path) -> Made:
        import ml_dtypes

        values = np.arange(COUNT * 8).reshape(-1, 2, 2, 2).astype(ml_dtypes.bfloat16)
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestParquetText(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.array([f"größe {i}" for i in range(COUNT)], object)
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestParquetBytes(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.array([bytes(range(i)) for i in range(COUNT)], object)
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestSingleFile(SignalContract):
    def make(self, folder: Path) -> Made:
        with wd.SimpleSignalWriter(folder / "x.parquet") as writer:
            for value, ts_ns in zip(vectors(), STAMPS, strict=True):
                writer.append(value, ts_ns)
        return wd.SimpleSignal(folder / "x.parquet"), STAMPS, vectors()


class TestVideo(SignalContract):
    def make(self, folder: Path) -> Made:
        return wd.open_episode(recorded(folder, pictures((34, 46, 3))))["x"], STAMPS, None


class TestOddVideoFile(SignalContract):
    def make(self, folder: Path) -> Made:
        with wd.VideoSignalWriter(folder / "x.mp4", folder / "x.frames.parquet", gop_size=4) as writer:
            for value, ts_ns in zip(pictures((33, 47, 3)), STAMPS, strict=True):
                writer.append(value, ts_ns)
        return wd.VideoSignal(folder / "x.mp4", folder / "x.frames.parquet"), STAMPS, None


class TestDepth(SignalContract):
    def make(self, folder: Path) -> Made:
        values = pictures((19, 31), "uint16")
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestGray(SignalContract):
    def make(self, folder: Path) -> Made:
        values = pictures((20, 30))
        return wd.open_episode(recorded(folder, values))["x"], STAMPS, values


class TestPackedVideo(SignalContract):
    def make(self, folder: Path) -> Made:
        wd.pack_episode(recorded(folder, pictures((34, 46, 3))), folder / "e.wshard")
        return wd.open_episode(folder / "e.wshard")["x"], STAMPS, None


class TestPackedVector(SignalContract):
    def make(self, folder: Path) -> Made:
        wd.pack_episode(recorded(folder, vectors()), folder / "e.wshard")
        return wd.open_episode(folder / "e.wshard")["x"], STAMPS, vectors()


def shard_episode() -> wd.WShardEpisode:
    episode = wd.WShardEpisode("e", length=COUNT, timebase=wd.Timebase("timestamps_ns"))
    episode.timestamps_ns = np.array(STAMPS)
    episode.observations["x"] = vectors()
    return episode


class TestShard(SignalContract):
    def make(self, folder: Path) -> Made:
        wd.save_wshard(shard_episode(), folder / "e.wshard")
        return wd.open_episode(folder / "e.wshard")["x"], STAMPS, vectors()


class TestCompressedShard(SignalContract):
    def make(self, folder: Path) -> Made:
        wd.save_wshard(shard_episode(), folder / "e.wshard", "zstd")
        return wd.open_episode(folder / "e.wshard")["x"], STAMPS, vectors()


class TestChunked(SignalContract):
    def make(self, folder: Path) -> Made:
        listed = wd.chunk_episode(shard_episode(), folder / "chunks", 4)
        return wd.open_episode(listed.path)["x"], STAMPS, vectors()


class TestTwoEpisodesAsOne(SignalContract):
    def make(self, folder: Path) -> Made:
        for part in (slice(0, 5), slice(5, None)):
            with wd.LocalDatasetWriter(folder / "root").new_episode() as writer:
                for value, ts_ns in zip(vectors()[part], STAMPS[part], strict=True):
                    writer.append("x", value, ts_ns)
        dataset = wd.LocalDataset(folder / "root")
        dataset.edits.concat([0, 1])
        dataset.refresh()
        return dataset[0]["x"], STAMPS, vectors()


class TestMovedEpisode(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.concatenate([vectors(), vectors()])
        for _ in range(2):
            with wd.LocalDatasetWriter(folder / "root").new_episode() as writer:
                for value, ts_ns in zip(vectors(), STAMPS, strict=True):
                    writer.append("x", value, ts_ns)
        dataset = wd.LocalDataset(folder / "root")
        dataset.edits.concat([0, 1], gap_ns=50)
        dataset.refresh()
        later = [ts_ns - STAMPS[0] + STAMPS[-1] + 50 for ts_ns in STAMPS]
        return dataset[0]["x"], [*STAMPS, *later], values
