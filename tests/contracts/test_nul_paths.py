"""A path with a NUL byte, which no system has, is refused with its name wherever a path is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main

BAD = "a\0b"
CHANNELS = [{"id": "a", "dtype": "f32", "shape": []}]


def shard() -> wd.WShardEpisode:
    made = wd.WShardEpisode("ep", length=2)
    made.observations["state"] = wd.Channel("state", np.zeros((2, 1), np.float32))
    return made


def published() -> None:
    builder = wd.DatasetBuilder("lab/x", catalog=BAD)
    builder.add_table("main", {"a": [1]})
    builder.publish()


def camera(path: str, frames: str) -> Any:
    return wd.episodes.VideoSignalWriter(path, frames)


CALLS: dict[str, Callable[[], Any]] = {
    "record": lambda: wd.record(BAD),
    "record one file": lambda: wd.record(f"{BAD}.wshard"),
    "record below": lambda: wd.record(f"below/{BAD}"),
    "DiskEpisodeWriter": lambda: wd.DiskEpisodeWriter(BAD),
    "LocalDatasetWriter": lambda: wd.episodes.LocalDatasetWriter(BAD),
    "SimpleSignalWriter": lambda: wd.episodes.SimpleSignalWriter(f"{BAD}.parquet"),
    "VideoSignalWriter": lambda: camera(f"{BAD}.mp4", "a.frames"),
    "VideoSignalWriter, frames": lambda: camera("a.mp4", f"{BAD}.frames"),
    "WShardStreamWriter": lambda: wd.WShardStreamWriter(BAD, "e", CHANNELS).begin_episode(),
    "save_wshard": lambda: wd.save_wshard(shard(), BAD),
    "load_wshard": lambda: wd.load_wshard(BAD),
    "chunk_episode": lambda: wd.chunk_episode(shard(), BAD, 1),
    "ChunkedEpisodeWriter": lambda: wd.ChunkedEpisodeWriter(BAD, "e"),
    "ChunkedEpisodeReader": lambda: wd.ChunkedEpisodeReader(BAD),
    "pack_episode": lambda: wd.pack_episode("root#0", BAD),
    "pack_episode, source": lambda: wd.pack_episode(BAD, "out.wshard"),
    "unpack_episode": lambda: wd.unpack_episode("packed.wshard", BAD),
    "unpack_episode, source": lambda: wd.unpack_episode(BAD, "out"),
    "open": lambda: wd.open(BAD),
    "open_episode": lambda: wd.open_episode(BAD),
    "open_recordings": lambda: wd.open_recordings(BAD),
    "open_corpus": lambda: wd.open_corpus(BAD),
    "open_vectors": lambda: wd.open_vectors(BAD),
    "open_vectors, writing": lambda: wd.open_vectors(BAD, "a"),
    "open_dataset": lambda: wd.open_dataset("lab/x", catalog=BAD),
    "DiskEpisode": lambda: wd.episodes.DiskEpisode(BAD),
    "VectorStore.create": lambda: wd.VectorStore.create(BAD, dim=2),
    "VectorStore.export": lambda: wd.open_vectors("vectors.rvf").export(BAD),
    "CorpusWriter": lambda: wd.CorpusWriter(BAD, 2),
    "CorpusWriter.reopen": lambda: wd.CorpusWriter.reopen(BAD),
    "MmapShardSource": lambda: wd.MmapShardSource.open_dir(BAD),
    "ActivationShardWriter": lambda: wd.ActivationShardWriter(BAD, 2),
    "publish": published,
    "salvage": lambda: wd.salvage(BAD),
    "check_dataset": lambda: wd.check_dataset(BAD),
    "import_episodes": lambda: wd.import_episodes(BAD, "out"),
    "import_episodes, target": lambda: wd.import_episodes("root", BAD),
    "export_site": lambda: wd.viewer.export_site("root", BAD),
    "SigningKey.save": lambda: wd.search.SigningKey.generate("ed25519").save(BAD),
    "SigningKey.load": lambda: wd.search.SigningKey.load(BAD),
    "embed": lambda: wd.embed("root", "state", output=BAD),
    **{
        f"export {name}": (lambda name=name: wd.export_episodes("root", BAD, name))
        for name in ("lerobot", "rlds", "zarr", "dreamer", "webdataset", "mcap", "wav")
    },
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each source."""
    folder = tmp_path_factory.mktemp("nul")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with wd.record("root", clock="simulated") as rec:
            for step in range(4):
                rec.step({"state": np.full(2, step, float)}, np.ones(2), ts_ns=step * 10**8)
        wd.pack_episode("root#0", "packed.wshard")
        with wd.VectorStore.create("vectors.rvf", dim=2) as store:
            store.add(np.eye(2))
    return folder


@pytest.mark.parametrize("name", CALLS)
def test_a_nul_in_a_path_is_named(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(here)
    before = sorted(os.listdir(here))
    with pytest.raises((ValueError, wd.WarpError)) as caught:
        CALLS[name]()
    assert "embedded null" not in str(caught.value)
    assert (
        "NUL" in str(caught.value) or r"\x00" in str(caught.value) or isinstance(caught.value, wd.WarpError)
    )
    assert sorted(os.listdir(here)) == before


def test_a_command_reports_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    for words in (["show", BAD], ["pack", "root#0", "-o", BAD], ["salvage", BAD], ["verify", BAD]):
        assert main(words) in (1, 2)
        assert "embedded null" not in capsys.readouterr().err
