"""What the toolbox says when the system or the data does not go along."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.failing_calls import failing
from warpdata.bytekit import codec
from warpdata.bytekit.arrays import DType, align_up, byte_view, dtype_named
from warpdata.bytekit.codec import decode_zstd_frames, encode_zstd_frame
from warpdata.bytekit.io import commit
from warpdata.bytekit.io.commit import commit_file, commit_folder, os_error
from warpdata.bytekit.io.files import FileRangeReader, LocalRangeReader
from warpdata.bytekit.process import system
from warpdata.errors import (
    ConflictError,
    CorruptLayoutError,
    LimitExceededError,
    OutOfSpaceError,
    PermissionError_,
    StoreError,
)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (errno.ENOSPC, OutOfSpaceError, "no space"),
        (errno.EDQUOT, OutOfSpaceError, "no space"),
        (errno.EFBIG, OutOfSpaceError, "no space"),
        (errno.EACCES, PermissionError_, "may not be written"),
        (errno.ENOENT, StoreError, "folder does not exist"),
        (errno.EIO, StoreError, "Input/output"),
    ],
)
def test_errors_of_the_system_are_ours(code: int, kind: type[StoreError], said: str) -> None:
    error = os_error(OSError(code, os.strerror(code)), "a/b")
    assert type(error) is kind
    assert said in str(error)
    assert error.path == "a/b"


def test_a_failed_commit_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), commit_file(target) as out:
        out.write(b"new")
        _ = 1 / 0
    with pytest.raises(ConflictError, match="target exists"), commit_file(target, replace=False) as out:
        out.write(b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_folder_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with pytest.raises(ConflictError, match="target exists"), commit_folder(target, durable=False) as temp:
        (temp / "mine").touch()
        target.mkdir()
    assert list(tmp_path.iterdir()) == [target]


def test_space_that_was_reserved_and_not_used_is_given_back(tmp_path: Path) -> None:
    with commit_file(tmp_path / "file", durable=False) as out:
        out.reserve(1 << 20)
        out.write(b"little")
    assert (tmp_path / "file").read_bytes() == b"little"


def test_a_disk_too_full_to_reserve_shows_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(commit.system, "try_allocate", full)
    with pytest.raises(OutOfSpaceError), commit_file(tmp_path / "file") as out:
        out.reserve(1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_frames_that_do_not_hold_what_the_table_says() -> None:
    frames = [encode_zstd_frame(b"a" * 100), encode_zstd_frame(b"b" * 50)]
    data, ends = memoryview(b"".join(frames)), [len(frames[0]), len(frames[0]) + len(frames[1])]
    assert decode_zstd_frames(data, ends, [100, 50]) == b"a" * 100 + b"b" * 50
    with pytest.raises(CorruptLayoutError, match="51 bytes of the seek table"):
        decode_zstd_frames(data, ends, [100, 51])
    with pytest.raises(CorruptLayoutError, match="damaged zstd frame"):
        decode_zstd_frames(memoryview(b"\0" * len(data)), ends, [100, 50])


def test_a_block_too_large_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = codec.encode("lz4", b"x" * 1000)

    class Poor:
        LZ4BlockError = codec._lz4.LZ4BlockError

        @staticmethod
        def decompress(*_: object, **__: object) -> bytes:
            raise MemoryError

    monkeypatch.setattr(codec, "_lz4", Poor)
    with pytest.raises(LimitExceededError, match="not enough memory"):
        codec.decode("lz4", packed, 1000)


def test_only_whole_arrays_are_seen_as_bytes() -> None:
    assert bytes(byte_view(np.arange(3, dtype="<u2"))) == b"\0\0\1\0\2\0"
    assert byte_view(np.empty((0, 3))).nbytes == 0
    with pytest.raises(ValueError, match="C-contiguous"):
        byte_view(np.zeros((4, 4))[:, ::2])


def test_small_things() -> None:
    assert (align_up(7, 0), align_up(7, 1), align_up(7, 8), align_up(8, 8)) == (7, 7, 8, 8)
    assert DType("f32") != object()
    assert (str(dtype_named("u8")), repr(dtype_named("u8"))) == ("u8", "DType('u8')")
    with pytest.raises(ValueError, match="f33"):
        dtype_named("f33")


def test_a_drive_that_does_not_know_the_full_sync_is_synced_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, whose fsync stops at the cache of the drive."""
    asked: list[int] = []

    def command(fd: int, number: int, *_: int) -> int:
        asked.append(number)
        if len(asked) > 1:
            raise OSError(errno.ENOTSUP, "not here")
        return 0

    plain: list[int] = []
    monkeypatch.setattr(system, "_FULL_SYNC", 51)
    monkeypatch.setattr(system.fcntl, "fcntl", command)
    monkeypatch.setattr(os, "fsync", plain.append)
    system.sync(7)
    assert (asked, plain) == ([51], [])
    system.sync(8)
    assert (asked, plain) == ([51, 51], [8])


FAILING_READS = {
    "a few bytes": lambda reader: reader.read(0, 3),
    "many bytes": lambda reader: reader.read_into(0, memoryview(bytearray(100_000))),
    "several ranges": lambda reader: reader.read_many([(0, 3), (90_000, 90_003)]),
}


@pytest.mark.parametrize("reader", [FileRangeReader, LocalRangeReader])
@pytest.mark.parametrize("read", FAILING_READS)
def test_a_disk_that_fails_while_it_is_read_is_an_error_of_ours(
    reader: Any, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with reader(path) as opened:
        for name in ("read_some", "read_little", "read_into"):
            monkeypatch.setattr(system, name, fail)
        with pytest.raises(StoreError, match="Input/output") as caught:
            FAILING_READS[read](opened)
        assert str(path) in str(caught.value)


def test_a_file_that_is_gone_once_it_is_open(tmp_path: Path) -> None:
    """As files on a network may be."""
    (tmp_path / "file").touch()
    with failing("fstat", 1, errno.ESTALE), pytest.raises(StoreError, match=r"cannot read \(Stale"):
        FileRangeReader(tmp_path / "file")
    opened = FileRangeReader(tmp_path / "file")
    with failing("fstat", 1, errno.ESTALE), pytest.raises(StoreError, match=r"cannot read \(Stale"):
        opened.stat()
    opened.close()


def test_a_second_name_is_a_copy_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    commit.link_or_copy(source, tmp_path / "second")
    assert (tmp_path / "second").stat().st_ino == source.stat().st_ino
    with pytest.raises(ConflictError, match="exists already"):
        commit.link_or_copy(source, tmp_path / "second")
    with failing("link", 1, errno.EPERM):
        commit.link_or_copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"x"
    assert (tmp_path / "copy").stat().st_ino != source.stat().st_ino


@pytest.mark.parametrize("call", ["open", "write"])
def test_a_file_of_a_folder_that_cannot_be_written(call: str, tmp_path: Path) -> None:
    with failing(call, 1, errno.EROFS), pytest.raises(PermissionError_, match="read-only") as caught:
        commit.put_file(tmp_path / "file", b"x")
    assert caught.value.hint == "Write to another place."


def test_a_file_of_a_folder_is_written_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes the system takes at a time."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:3]))
    commit.put_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_only_what_killed_commits_of_the_same_file_left_is_removed(tmp_path: Path) -> None:
    kept = {".a.tmp-0123456789ab2", ".b.tmp-0123456789ab", ".a.tmp-xyz", "a"}
    for name in (".a.tmp-0123456789ab", ".a.tmp-ba9876543210", *kept):
        (tmp_path / name).touch()
    (tmp_path / ".a.tmp-00000000abcd").mkdir()
    commit.remove_temps_of(tmp_path / "a")
    assert {path.name for path in tmp_path.iterdir()} == kept | {".a.tmp-00000000abcd"}
    long = "n" * 200
    for name in (f".{long}{commit.TEMP_MARK}0123456789ab", f".{long[:100]}{commit.TEMP_MARK}0123456789ab"):
        (tmp_path / name).touch()
    commit.remove_temps_of(tmp_path / long)
    assert len(list(tmp_path.iterdir())) == len(kept) + 3, "a shortened name may be that of another file"
