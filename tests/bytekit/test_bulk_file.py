"""Large files past the page cache: whatever is written in whatever pieces, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.io import bulk_file
from warpdata.bytekit.io.bulk_file import BulkFile
from warpdata.bytekit.process import system

PIECES = st.lists(st.integers(0, 9000), max_size=8)


def written(path: Path, sizes: list[int], size_bytes: int) -> bytes:
    """Bytes of these sizes, given to the file in turns as a copy and in its own memory."""
    data = os.urandom(sum(sizes))
    at = 0
    with BulkFile(path, size_bytes) as out:
        for number, size in enumerate(sizes):
            piece = data[at : at + size]
            if number % 2:
                out.write(piece)
            else:
                done = 0
                while done < size:
                    room = out.room()[: size - done]
                    room[:] = piece[done : done + room.nbytes]
                    out.filled(room.nbytes)
                    done += room.nbytes
            at += size
            assert out.position == at
    assert path.read_bytes() == data
    return data


@pytest.mark.parametrize("buffer", [4096, 12288])
@settings(max_examples=enough_examples(30), deadline=None)
@given(sizes=PIECES)
def test_every_byte_arrives(sizes: list[int], buffer: int, tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_file, "_BUFFER_BYTES", buffer)
        patch.setattr(bulk_file, "_PIECE_BYTES", 1000)
        for size_bytes in (0, bulk_file.DIRECT_FROM_BYTES):
            written(tmp_path_factory.mktemp("bulk") / "file", sizes, size_bytes)


def test_a_file_system_that_cannot_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any, flags: int) -> int:
        del path, flags
        return -1

    monkeypatch.setattr(system, "open_past_cache", refused)
    written(tmp_path / "at once", [5 << 20, 100, 7], 6 << 20)
    monkeypatch.undo()
    direct: list[int] = []

    def write(fd: int, data: Any) -> int:
        if system.DIRECT and not direct:
            direct.append(fd)
            raise OSError(errno.EINVAL, "not here")
        return real(fd, data)

    real = os.write
    monkeypatch.setattr(os, "write", write)
    written(tmp_path / "later", [5 << 20, 100, 7], 6 << 20)


def test_a_full_disk_is_told_and_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        BulkFile(tmp_path / "there", 1 << 30)

    def full(fd: int, data: Any) -> int:
        del fd, data
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"), BulkFile(tmp_path / "new", 2 << 20) as out:
        out.write(bytes(2 << 20))


def test_the_last_part_may_be_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    with BulkFile(tmp_path / "new", 2 << 20, jobs.append) as out:
        out.write(bytes(3 << 20) + b"end")
    for job in jobs:
        job()
    assert (tmp_path / "new").read_bytes() == bytes(3 << 20) + b"end"

    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with BulkFile(tmp_path / "other", 2 << 20, jobs.append) as out:
        out.write(bytes(1 << 20))
        monkeypatch.setattr(os, "write", full)
        if not system.DIRECT:
            return
    with pytest.raises(OSError, match="no space"):
        jobs[-1]()
