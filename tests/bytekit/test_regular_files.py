"""Only regular files are written or read: whatever else stands at a path is refused, never replaced or waited for."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io.commit import commit_file, write_file
from warpdata.bytekit.io.files import FileRangeReader, LocalRangeReader, MmapRangeReader
from warpdata.episodes.salvage.unfinished import STATUS_FILE, read_status
from warpdata.errors import ConflictError, FormatError, StoreError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.frame_index import read_marks


def episode() -> wd.WShardEpisode:
    made = wd.WShardEpisode("e", length=3)
    made.observations["x"] = np.zeros((3, 2))
    return made


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    place = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may not be long
    try:
        place.bind(path.name)
    finally:
        os.chdir(here)
        place.close()


def device(path: Path) -> None:
    """A device of our own: code that is broken must not take the machine's with it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def folder(path: Path) -> None:
    path.mkdir()


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def write_shard(path: Path) -> None:
    wd.save_wshard(episode(), path, overwrite=True)


def write_vectors(path: Path) -> None:
    with wd.VectorStore.create(path, dim=2, overwrite=True) as store:
        store.add(np.zeros((1, 2), np.float32))


def write_corpus_shard(path: Path) -> None:
    with wd.ActivationShardWriter(path, 2, dtype="f32", overwrite=True) as writer:
        writer.append(np.zeros((1, 2), np.float32))


def write_bytes(path: Path) -> None:
    write_file(path, b"bytes")


def begin_stream(path: Path) -> None:
    wd.WShardStreamWriter(path, "e", [{"id": "x", "dtype": "f32"}]).begin_episode()


PLACES = [pipe, listening, device, folder, link_to_a_pipe, loop]
WRITERS = [write_shard, write_vectors, write_corpus_shard, write_bytes, begin_stream]
READERS: list[Callable[[Path], object]] = [
    wd.load_wshard, wd.open_episode, wd.open_vectors, wd.open_corpus,
    FileRangeReader, LocalRangeReader, MmapRangeReader,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("write", WRITERS)
def test_nothing_but_a_file_is_written(
    tmp_path: Path, place: Callable[[Path], None], write: Callable[[Path], None]
) -> None:
    path = tmp_path / "a"
    place(path)
    before = {entry.name: os.lstat(entry) for entry in tmp_path.iterdir()}
    with pytest.raises(StoreError) as caught:
        write(path)
    assert str(path) in str(caught.value) or os.path.realpath(path) in str(caught.value)
    after = {entry.name: os.lstat(entry) for entry in tmp_path.iterdir()}
    assert {name: stat.S_IFMT(each.st_mode) for name, each in after.items()} == {
        name: stat.S_IFMT(each.st_mode) for name, each in before.items()
    }
    assert {name: each.st_ino for name, each in after.items()} == {
        name: each.st_ino for name, each in before.items()
    }


@pytest.mark.parametrize("place", [pipe, listening, device, link_to_a_pipe, loop])
@pytest.mark.parametrize("read", READERS)
def test_nothing_but_a_file_is_read(
    tmp_path: Path, place: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    place(tmp_path / "a.shard")
    with pytest.raises(wd.WarpError):
        read(tmp_path / "a.shard")


@pytest.mark.parametrize("write", [write_shard, write_vectors, write_corpus_shard, write_bytes])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_file_is_written(
    tmp_path: Path, write: Callable[[Path], None], is_there: bool
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "links").mkdir()
    target, link = tmp_path / "data" / "target", tmp_path / "links" / "link"
    link.symlink_to("../data/target")
    if is_there:
        target.write_bytes(b"old")
    write(link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() not in (b"", b"old")
    assert [entry.name for entry in (tmp_path / "links").iterdir()] == ["link"]
    assert not [entry for entry in (tmp_path / "data").iterdir() if ".tmp-" in entry.name]


def test_a_link_to_a_file_is_a_conflict_where_nothing_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(ConflictError), commit_file(tmp_path / "link", replace=False) as out:
        out.write(b"new")
    assert (tmp_path / "target").read_bytes() == b"old"


def test_a_failure_leaves_the_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(RuntimeError), commit_file(tmp_path / "link") as out:
        out.write(b"new")
        raise RuntimeError
    assert (tmp_path / "target").read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "target"]


@pytest.mark.parametrize("place", [pipe, listening, device, folder, link_to_a_pipe, loop])
@pytest.mark.parametrize("name", ["e_chunk_0000.wshard", "e_chunk_0001.wshard", "e_manifest.wshard"])
def test_chunks_take_the_place_of_files_only(
    tmp_path: Path, place: Callable[[Path], None], name: str
) -> None:
    place(tmp_path / name)
    before = {entry.name: os.lstat(entry).st_ino for entry in tmp_path.iterdir()}
    with pytest.raises(StoreError, match=name.partition("_")[0]):
        wd.chunk_episode(episode(), tmp_path, 2)
    after = {entry.name: os.lstat(entry).st_ino for entry in tmp_path.iterdir()}
    assert before.items() <= after.items()


def test_chunks_are_written_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("e_chunk_0001.wshard", "e_manifest.wshard"):
        (tmp_path / name).symlink_to(f"data/{name}")
    for _ in range(2):
        listed = wd.chunk_episode(episode(), tmp_path, 2, overwrite=True)
        assert wd.open_episode(listed).tensors == episode()
        assert (tmp_path / "e_chunk_0001.wshard").is_symlink()
        assert (tmp_path / "e_manifest.wshard").is_symlink()


@pytest.mark.parametrize("place", PLACES)
def test_a_recording_is_refused_before_it_begins(tmp_path: Path, place: Callable[[Path], None]) -> None:
    place(tmp_path / "a.wshard")
    with pytest.raises(StoreError):
        wd.record(tmp_path / "a.wshard", overwrite=True)


def test_pipes_in_a_root_are_not_waited_for(tmp_path: Path) -> None:
    """Where a root keeps what it knows, where a recorder says how it fares and marks frames, and in an episode."""
    for _ in range(3):
        with wd.record(tmp_path) as recorder:
            recorder.append("x", np.zeros(2), 1)
    meta = sorted(tmp_path.rglob("meta.json"))[1]
    for name in (layout.LISTING_FILE, layout.FACTS_FILE):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    assert len(wd.open_recordings(tmp_path).facts) == 3
    meta.unlink()
    os.mkfifo(meta)
    report = wd.check_dataset(tmp_path, mute=["no-actions"])
    assert [(each.rule, each.episode) for each in report.findings] == [("damaged-file", meta.parent.name)]
    os.mkfifo(tmp_path / STATUS_FILE)
    assert read_status(tmp_path) is None
    os.mkfifo(tmp_path / "1.marks")
    with pytest.raises(FormatError, match="pipe"):
        read_marks(str(tmp_path / "1.marks"))


def test_pipes_among_other_files_are_not_waited_for(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.wshard")
    for name in ("b.wshard", "table.csv", "table.parquet", "table.jsonl", "c.wshard.partial", "v.rvf.lock"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(StoreError, match="pipe"):
        list(wd.open(tmp_path))
    for name in ("table.csv", "table.parquet", "table.jsonl"):
        builder = wd.DatasetBuilder("t/pipes", catalog=tmp_path / "catalog")
        with builder, pytest.raises(StoreError, match="pipe"):
            builder.add_table("main", tmp_path / name)
    with pytest.raises(StoreError, match="pipe"):
        begin_stream(tmp_path / "c.wshard")
    with pytest.raises(StoreError, match="pipe"):
        write_vectors(tmp_path / "v.rvf")
