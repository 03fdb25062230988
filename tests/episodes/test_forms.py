"""One episode in every form it can have: the same object with the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import warpdata as wd
from tests.contracts.episode import EpisodeContract, in_memory, record_into
from tests.servers import run_http
from warpdata.timeline.episode import Episode


def directory(folder: Path) -> Path:
    record_into(folder / "root")
    return folder / "root" / "000000000000" / "000000000000"


class TestMemory(EpisodeContract):
    @pytest.fixture
    def episode(self) -> Episode:
        return in_memory()


class TestDirectory(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        return wd.open_episode(directory(tmp_path))


class TestEditedDirectory(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        directory(tmp_path)
        root = wd.LocalDataset(tmp_path / "root")
        root.edits.set_static(0, "task", "other")
        root.edits.set_static(0, "task", "count")
        root.refresh()
        return root[0]


class TestSteps(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        wd.save_wshard(wd.open_episode(directory(tmp_path)).tensors, tmp_path / "e.wshard")
        return wd.open_episode(tmp_path / "e.wshard")


class TestPacked(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        wd.pack_episode(directory(tmp_path), tmp_path / "e.wshard")
        return wd.open_episode(tmp_path / "e.wshard")


class TestRecordedIntoOneFile(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        record_into(tmp_path / "e.wshard")
        return wd.open_episode(tmp_path / "e.wshard")


class TestChunks(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        tensors = wd.open_episode(directory(tmp_path)).tensors
        return wd.open_episode(wd.chunk_episode(tensors, tmp_path / "chunks", steps=5))


class TestPackedChunks(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Episode:
        whole = wd.open_episode(directory(tmp_path))
        return wd.open_episode(wd.chunk_episode(whole, tmp_path / "chunks", steps=5))


class TestPublishedChunks(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Iterator[Episode]:
        directory(tmp_path)
        with wd.DatasetBuilder("lab/counting", catalog=tmp_path / "catalog") as builder:
            builder.add_episodes("demo", tmp_path / "root", chunk_bytes=1000).publish()
        with wd.dataset("lab/counting", catalog=tmp_path / "catalog") as dataset:
            assert len(list(dataset.artifact("demo").members())) > 2
            yield dataset.episodes[0]


class TestUrl(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Iterator[Episode]:
        wd.pack_episode(directory(tmp_path), tmp_path / "e.wshard")
        with run_http(tmp_path) as server:
            yield wd.open_episode(f"{server.url}/e.wshard")


class TestPublished(EpisodeContract):
    @pytest.fixture
    def episode(self, tmp_path: Path) -> Iterator[Episode]:
        directory(tmp_path)
        with wd.DatasetBuilder("lab/counting", catalog=tmp_path / "catalog") as builder:
            builder.add_episodes("demo", tmp_path / "root").publish()
        with wd.dataset("lab/counting", catalog=tmp_path / "catalog") as dataset:
            yield dataset.episodes[0]
