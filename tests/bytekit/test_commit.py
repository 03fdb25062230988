from __future__ import annotations

import contextlib
import errno
import os
import resource
import tempfile
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.failing_calls import failing
from warpdata.bytekit.io import commit
from warpdata.errors import ConflictError, OutOfSpaceError, StoreError, WriterClosedError


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with commit.commit_file(target) as out:
        out.write(b"hello ")
        start = out.write(np.arange(3, dtype=np.uint8))
        out.write_at(0, b"J")
        assert names(tmp_path) != ["a.bin"]
        assert not target.exists()
    assert start == 6
    assert target.read_bytes() == b"Jello \x00\x01\x02"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path: Path, stop: type[BaseException]) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(stop), commit.commit_file(target) as out:
        out.write(b"new")
        raise stop
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_without_replace_an_existing_file_is_a_conflict(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(ConflictError), commit.commit_file(target, replace=False) as out:
        out.write(b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]
    with commit.commit_file(tmp_path / "b.bin", replace=False) as out:
        out.write(b"new")
    assert names(tmp_path) == ["a.bin", "b.bin"]


def test_seek_cuts_what_follows(tmp_path: Path) -> None:
    with commit.commit_file(tmp_path / "a") as out:
        out.write(b"abcdef")
        out.seek(2)
        out.write(b"X")
    assert (tmp_path / "a").read_bytes() == b"abX"


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with commit.commit_folder(tmp_path / "d") as folder:
        (folder / "x").write_text("1")
        (folder / "sub").mkdir()
        (folder / "sub" / "y").write_text("2")
        assert not (tmp_path / "d").exists()
    assert (tmp_path / "d" / "sub" / "y").read_text() == "2"
    with pytest.raises(ConflictError), commit.commit_folder(tmp_path / "d"):
        pass
    with pytest.raises(KeyboardInterrupt), commit.commit_folder(tmp_path / "e"):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["d"]


def test_a_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder does not exist"), commit.commit_file(tmp_path / "no" / "a"):
        pass


def test_a_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    """A file size limit makes the kernel refuse writes in the same place a full disk does."""
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    pid = os.fork()
    if pid == 0:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            commit.write_file(target, bytes(5000))
        except OutOfSpaceError:
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_what_a_killed_commit_leaves_can_be_found(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with commit.commit_file(tmp_path / "a") as out:
            out.write(b"x")
            os._exit(0)
    os.waitpid(pid, 0)
    assert not (tmp_path / "a").exists()
    assert len(commit.stale_temps(tmp_path)) == 1


def test_a_disk_that_takes_a_part_gets_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, memoryview(data)[:3], offset))
    with open(tmp_path / "x", "wb") as file:
        commit.write_at(file.fileno(), b"twenty bytes of data", 4)
    assert (tmp_path / "x").read_bytes() == bytes(4) + b"twenty bytes of data"


def test_files_below_folders_that_do_not_exist_yet_get_their_names(tmp_path: Path) -> None:
    """The root itself may be new, and every folder between it and a file."""
    synced: list[str] = []
    files = []
    for number, name in enumerate(("a", "sub/b", "sub/deep/c", "other/d")):
        temp = tmp_path / f"{number}.part"
        temp.write_text(name)
        files.append((temp, tmp_path / "root" / name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "fsync_folder", lambda path: synced.append(os.path.relpath(path, tmp_path)))
        commit.commit_together(files, tmp_path / "root")
    assert [target.read_text() for _, target in files] == ["a", "sub/b", "sub/deep/c", "other/d"]
    assert sorted(synced) == ["root", "root/other", "root/sub", "root/sub/deep"]


def test_many_files_are_synced_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = commit.system.sync
    monkeypatch.setattr(commit.system, "sync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))
    for number in range(20):
        (tmp_path / f"f{number}").write_bytes(bytes(100))
    commit.fsync_tree(tmp_path)
    assert sorted(synced) == sorted(path.stat().st_ino for path in (tmp_path, *tmp_path.iterdir()))
    monkeypatch.setattr(commit, "map_in_threads", _no_threads)
    two = [tmp_path / "f1", tmp_path / "f2"]
    commit.fsync_files(two)
    assert synced[-2:] == [path.stat().st_ino for path in two]


def _no_threads(*_: object) -> None:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


def test_a_folder_is_made_while_others_remove_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers share a staging folder: the last one that leaves removes it as the next one comes."""
    made, real = [], os.mkdir

    def mkdir(path: Any, *mode: Any) -> None:
        made.append(path)
        if len(made) < 5:  # it was there a moment ago, or the folder around it was
            raise (
                FileExistsError(17, "it exists", path) if len(made) % 2 else FileNotFoundError(2, "no", path)
            )
        real(path, *mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    commit.make_folders(tmp_path / "staging")
    assert (tmp_path / "staging").is_dir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(FileExistsError):
            commit.make_folders(tmp_path / name)


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does this and ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("does", ["leaves", "fails"])
def test_a_forked_child_neither_commits_nor_removes(tmp_path: Path, does: str) -> None:
    with contextlib.ExitStack() as ours:
        out = ours.enter_context(commit.commit_file(tmp_path / "a.bin"))
        folder = ours.enter_context(commit.commit_folder(tmp_path / "b"))
        out.write(b"mine")
        (folder / "x").write_bytes(b"mine")

        def child() -> None:
            for write in (lambda: out.write(b"theirs"), lambda: out.write_at(0, b"theirs")):
                with pytest.raises(WriterClosedError, match="forked"):
                    write()
            if does == "leaves":
                with pytest.raises(WriterClosedError, match="forked"):
                    ours.close()
            else:
                stop = SystemExit(0)
                assert not ours.__exit__(SystemExit, stop, None)

        assert in_child(child) == 0
        assert len(names(tmp_path)) == 2
        out.write(b" too")
    assert (tmp_path / "a.bin").read_bytes() == b"mine too"
    assert names(tmp_path / "b") == ["x"]
    assert names(tmp_path) == ["a.bin", "b"]


def test_of_a_write_that_fails_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.pwritev, [3, None, 100, None]

    def write(fd: int, pieces: Any, offset: int) -> int:
        most = left.pop(0) if left else len(pieces[0])
        if most is None:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [pieces[0][:most]], offset)

    monkeypatch.setattr(os, "pwritev", write)
    with commit.commit_file(tmp_path / "a.bin") as out:
        for _ in range(2):
            with pytest.raises(OSError, match="full"):
                out.write(bytes(200))
            assert out.position == 0
        out.write(b"whole")
    assert (tmp_path / "a.bin").read_bytes() == b"whole"


def test_ctrl_c_between_writing_and_counting_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def interrupted(fd: int, pieces: Any, offset: int) -> int:
        real(fd, pieces, offset)
        raise KeyboardInterrupt

    with commit.commit_file(tmp_path / "f") as new:
        new.write(b"first ")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", interrupted)
            with pytest.raises(KeyboardInterrupt):
                new.write(b"lost")
        new.write(b"second")
    assert (tmp_path / "f").read_bytes() == b"first second"


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        with commit.commit_folder(tmp_path / "a", replace=True) as old:
            (old / "x").write_bytes(b"old")
        renew = commit.commit_folder(tmp_path / "a", replace=True)
        with failing("rename", number), pytest.raises(OutOfSpaceError), renew as new:
            (new / "x").write_bytes(b"new")
        assert (tmp_path / "a" / "x").read_bytes() == b"old"
        assert names(tmp_path) == ["a"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 32, 999, 4096, 20_000]), st.booleans()), max_size=12))
def test_a_write_that_fails_leaves_nothing(parts: list[tuple[int, bool]]) -> None:
    real, expected = os.pwritev, b""

    def write(fd: int, pieces: Any, offset: int) -> int:
        if fails:
            real(fd, [bytes(77)], offset)
            raise OSError(errno.ENOSPC, "full")
        return real(fd, pieces, offset)

    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(os, "pwritev", write):
        path = Path(folder) / "a.bin"
        with commit.commit_file(path) as out:
            for number, (size, fails) in enumerate(parts, 1):
                try:
                    out.write(bytes([number]) * size)
                    expected += bytes([number]) * size
                except OSError:
                    assert fails
        assert path.read_bytes() == expected


def test_files_named_from_where_one_stands_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    synced: list[str] = []
    monkeypatch.setattr(commit, "fsync_folder", lambda folder: synced.append(os.path.abspath(folder)))
    targets = [Path("a"), Path("x/y/b")]
    for number, target in enumerate(targets):
        Path(f"temp{number}").write_text(target.name)
    commit.commit_together([(Path(f"temp{at}"), each) for at, each in enumerate(targets)], Path("a").parent)
    assert [each.read_text() for each in targets] == ["a", "b"]
    assert set(synced) == {str(tmp_path), str(tmp_path / "x"), str(tmp_path / "x" / "y")}
