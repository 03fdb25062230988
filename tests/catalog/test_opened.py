"""What was recorded, harvested and indexed opens from a published version as it does from a disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.catalog.table import Table
from warpdata.errors import DatasetError


def record(root: Path, count: int) -> None:
    writer = wd.LocalDatasetWriter(root)
    for number in range(count):
        with writer.new_episode() as episode:
            episode.set_static("task", f"task {number}")
            for i in range(20):
                episode.append("joints", np.full(3, number * 100 + i, np.float32), i * 10)
                episode.append("camera", np.full((16, 24, 3), i * 10, np.uint8), i * 10)


def publish(tmp_path: Path, kind: str, source: object, catalog: str) -> wd.Dataset:
    with wd.DatasetBuilder("lab/parts", catalog=catalog) as builder:
        builder.add_artifact("part", source, kind=kind).publish()
    return wd.dataset("lab/parts", catalog=catalog, cache_dir=str(tmp_path / "cache"))


def test_ids_of_a_version_are_looked_up_once(
    tmp_path: Path, s3_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is asked for an episode: of a hundred thousand, each look is noticed."""
    record(tmp_path / "root", 3)
    with publish(tmp_path, "wshard_episodes", tmp_path / "root", s3_catalog) as ds:
        looks: list[object] = []
        whole = Table.rows_together
        monkeypatch.setattr(Table, "rows_together", lambda view: looks.append(view) or whole(view))
        for number in (0, 2, 1, 0):
            assert ds.episodes[number].static["task"] == f"task {number}"
            assert ds.episodes_of("part").ids[number] == f"{number:012d}"
        assert len(looks) == 1
        ds.episodes.ids.clear()
        assert len(ds.episodes.ids) == 3


def test_a_root_of_recordings_is_published_and_opened_in_time(tmp_path: Path, s3_catalog: str) -> None:
    record(tmp_path / "root", 2)
    with publish(tmp_path, "wshard_episodes", tmp_path / "root", s3_catalog) as ds:
        episodes, local = ds.episodes, wd.LocalDataset(tmp_path / "root")
        assert episodes.ids == ["000000000000", "000000000001"]
        for remote, disk in zip(episodes, local, strict=True):
            assert remote.keys == disk.keys
            assert remote.static == disk.static
            for name in disk.signals:
                assert np.array_equal(remote[name].values(), disk[name].values())
                assert np.array_equal(remote[name].timestamps, disk[name].timestamps)
        assert [len(episodes[:]), len(episodes[[1, 0]]), len(episodes)] == [2, 2, 2]
        assert episodes[-1].static["task"] == "task 1"
        with pytest.raises(IndexError):
            episodes[2]


def test_edits_are_published_as_readers_see_them(tmp_path: Path, local_catalog: str) -> None:
    record(tmp_path / "root", 3)
    edits = wd.LocalDataset(tmp_path / "root").edits
    edits.drop(0)
    edits.trim(1, 50, 100)
    edits.set_static(2, "task", "another")
    with publish(tmp_path, "wshard_episodes", tmp_path / "root", local_catalog) as ds:
        trimmed, renamed = ds.episodes
        assert trimmed["joints"].timestamps.tolist() == [50, 60, 70, 80, 90]
        assert trimmed["camera"][0][0].mean() == pytest.approx(50, abs=3)
        assert renamed.static["task"] == "another"
        version = ds.version_hash
    with publish(tmp_path, "wshard_episodes", tmp_path / "root", local_catalog) as again:
        assert again.version_hash == version


def test_unfinished_recordings_are_not_left_out_in_silence(tmp_path: Path, local_catalog: str) -> None:
    record(tmp_path / "root", 1)
    open_one = wd.LocalDatasetWriter(tmp_path / "root").new_episode()
    open_one.append("x", 1.0, 1)
    with pytest.raises(DatasetError, match="not finished"):
        publish(tmp_path, "wshard_episodes", tmp_path / "root", local_catalog)
    open_one.close()
    with publish(tmp_path, "wshard_episodes", tmp_path / "root", local_catalog) as ds:
        assert len(ds.episodes) == 2


def test_one_directory_is_an_episode_too(tmp_path: Path, local_catalog: str) -> None:
    record(tmp_path / "root", 1)
    folder = tmp_path / "root/000000000000/000000000000"
    with publish(tmp_path, "wshard_episodes", [folder], local_catalog) as ds:
        assert ds.episodes.open("000000000000")["joints"][3][1] == 30


def test_a_chunked_episode_opens_by_its_chunk_list(tmp_path: Path, s3_catalog: str) -> None:
    made = wd.WShardEpisode(id="long", length=30)
    made.observations["x"] = np.arange(30, dtype=np.float32)
    listed = wd.chunk_episode(made, tmp_path / "chunks", steps=10)
    assert listed.path is not None
    with publish(tmp_path, "wshard_episodes", tmp_path / "chunks", s3_catalog) as ds:
        whole = ds.episodes.open("long")
        assert whole["x"].values().tolist() == list(range(30))
        assert ds.episodes.ids == ["long"]
        with pytest.raises(KeyError, match="absent"):
            ds.episodes.open("absent")


def test_a_corpus_streams_from_a_published_version(tmp_path: Path, s3_catalog: str) -> None:
    rows = np.random.default_rng(1).normal(size=(500, 16)).astype(np.float32)
    with wd.CorpusWriter(tmp_path / "corpus", 16, shard_bytes=8192) as writer:
        writer.append(rows)
    with publish(tmp_path, "activation_shards", tmp_path / "corpus", s3_catalog) as ds:
        source = ds.corpus(dtype="float32")
        assert np.array_equal(np.concatenate([batch.rows for batch in source]), rows)
        shuffled = wd.ShuffledRows(ds.corpus(dtype="float32"), seed=3, batch_size=50)
        local = wd.ShuffledRows(
            wd.MmapShardSource.open_dir(tmp_path / "corpus", dtype="float32"), seed=3, batch_size=50
        )
        for here, there in zip(local, shuffled, strict=True):
            assert np.array_equal(here.row_ids, there.row_ids)
            assert np.array_equal(here.rows, there.rows)


def test_a_vector_file_answers_from_a_published_version(tmp_path: Path, s3_catalog: str) -> None:
    vectors = np.random.default_rng(2).normal(size=(300, 8)).astype(np.float32)
    with wd.VectorStore.create(tmp_path / "index.rvf", dim=8) as store:
        store.add(vectors)
    with publish(tmp_path, "vector_index", tmp_path / "index.rvf", s3_catalog) as ds:
        found, distances = ds.vectors().search(vectors[7], k=2)
        assert found[0] == 7
        assert distances[0] == 0


def test_a_part_that_is_not_there_is_named(tmp_path: Path, local_catalog: str) -> None:
    (tmp_path / "x.bin").write_bytes(b"x")
    with publish(tmp_path, "files", tmp_path / "x.bin", local_catalog) as ds:
        for ask in (lambda: ds.episodes, ds.corpus, ds.vectors):
            with pytest.raises(DatasetError, match="0 artifacts of kind"):
                ask()
        with pytest.raises(DatasetError, match="no artifact 'part' of kind"):
            ds.episodes_of("part")
