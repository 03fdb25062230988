"""What the toolbox says when the system or the data does not go along."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from warpdata.bytekit import codec, commit, pages, system
from warpdata.bytekit.align import align_up
from warpdata.bytekit.codec import decode_zstd_frames, encode_zstd_frame
from warpdata.bytekit.commit import commit_file, commit_folder, os_error
from warpdata.bytekit.dtype import DType, dtype_named
from warpdata.bytekit.view import byte_view
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
    with pytest.raises(ConflictError, match="exists already"), commit_file(target, replace=False) as out:
        out.write(b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_folder_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with pytest.raises(ConflictError, match="exists already"), commit_folder(target, durable=False) as temp:
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


def test_memory_is_asked_for_honestly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.fits_free_memory(1)
    monkeypatch.setattr(system, "available_bytes", lambda: 1 << 30)
    assert not pages.fits_free_memory(1 << 60)
    monkeypatch.setattr(system, "available_bytes", lambda: None)
    assert pages.fits_free_memory(1 << 60), "a system that does not say is believed to have enough"


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
