"""The calls that differ between systems: what they do here, and what is done where they do not exist."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from warpdata.bytekit.io.commit import write_at
from warpdata.bytekit.io.files import FileRangeReader, read_at
from warpdata.bytekit.process import system
from warpdata.formats.journal.writer import map_window, sync_range

EVERYWHERE = ("here", "elsewhere")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.fixture(params=EVERYWHERE)
def _somewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "elsewhere":
        leave_linux(monkeypatch)


def leave_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fdatasync", "posix_fallocate", "posix_fadvise", "preadv", "pwritev", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("_libc", "_SET_LOCK"):
        monkeypatch.setattr(system, name, None)


def test_the_main_jobs_run_without_the_calls_of_linux(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bytekit.elsewhere", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("_somewhere")
class TestEverywhere:
    def test_syncing(self, fd: int) -> None:
        os.write(fd, b"x" * 10)
        system.sync(fd)
        system.sync_data(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            system.sync_data(9999)

    def test_allocated_space_is_zero_and_keeps_what_is_there(self, fd: int) -> None:
        os.write(fd, b"kept")
        system.allocate(fd, 4096, 3 << 20)
        assert os.fstat(fd).st_size == 4096 + (3 << 20)
        assert os.pread(fd, 8, 0) == b"kept\0\0\0\0"
        assert os.fstat(fd).st_blocks * 512 >= 3 << 20, "on the disk, not a hole"
        system.allocate(fd, 0, 100)
        assert os.fstat(fd).st_size == 4096 + (3 << 20)

    def test_a_full_disk_is_an_error_when_space_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        for name in ("posix_fallocate", "pwrite"):
            if hasattr(os, name):
                monkeypatch.setattr(os, name, full)
        with open("/dev/null", "wb") as out, pytest.raises(OSError, match="full"):
            system.allocate(out.fileno(), 0, 1 << 20)

    def test_a_window_is_written_and_synced(self, fd: int, tmp_path: Path) -> None:
        size = 4 * mmap.ALLOCATIONGRANULARITY
        window = map_window(fd, 0, size)
        system.populate_to_write(window)
        window[100:104] = b"here"
        sync_range(fd, 90, 5000)
        assert (tmp_path / "file").read_bytes()[100:104] == b"here"
        with pytest.raises((OSError, ValueError)):
            sync_range(9999, 0, 10)

    def test_a_file_replaces_another_or_none(self, tmp_path: Path) -> None:
        new, old = tmp_path / "new", tmp_path / "old"
        for text in ("first", "second"):
            new.write_text(text)
            system.replace_lazily(str(new), str(old))
            assert [path.name for path in tmp_path.iterdir() if path.name != "file"] == ["old"]
            assert old.read_text() == text
        with pytest.raises(FileNotFoundError):
            system.replace_lazily(str(new), str(old))
        assert old.read_text() == "second"

    def test_reading(self, fd: int) -> None:
        os.write(fd, bytes(range(100)))
        out = bytearray(50)
        assert system.read_into(fd, out, 60) == 40
        assert out[:40] == bytes(range(60, 100))
        assert system.read_into(fd, out, 100) == 0

    @pytest.mark.parametrize("count", [0, 1, 3, 2500])
    def test_any_number_of_pieces_is_written(self, fd: int, count: int) -> None:
        pieces = [bytes([i % 251]) * (i % 7) for i in range(count)]
        whole = b"".join(pieces)
        assert system.write_pieces(fd, pieces, 10) == len(whole)
        assert os.pread(fd, len(whole) + 1, 10) == whole

    def test_advice_is_never_an_error(self, fd: int) -> None:
        system.will_read(fd, 0, 100)
        assert system.release_pages(0, 0) is False

    def test_advice_is_left_out_for_bytes_in_memory(self, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
        advised: list[tuple[int, int]] = []
        places: list[int] = []
        monkeypatch.setattr(os, "posix_fadvise", lambda _, *span: advised.append(span[:2]), raising=False)
        monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
        monkeypatch.setattr(os, "preadv", lambda *call: places.append(call[2]) or 1, raising=False)
        system.will_read(fd, 10, 100)
        assert (places, advised) == ([109], [])

        def preadv(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "preadv", preadv, raising=False)
        system.will_read(fd, 10, 100)
        assert advised == [(10, 100)]

    def test_range_locks_tell_processes_apart(self, fd: int, tmp_path: Path) -> None:
        system.set_range_lock(fd, fcntl.LOCK_EX, 10, 5)

        def another(kind: int, start: int) -> int:
            child = os.fork()
            if child == 0:
                code = 2
                try:
                    other = os.open(tmp_path / "file", os.O_RDWR)
                    system.set_range_lock(other, kind, start, 1)
                    code = 0
                except (BlockingIOError, PermissionError):
                    code = 1
                finally:
                    os._exit(code)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        assert [another(fcntl.LOCK_SH, 9), another(fcntl.LOCK_SH, 10), another(fcntl.LOCK_EX, 14)] == [
            0,
            1,
            1,
        ]
        system.set_range_lock(fd, fcntl.LOCK_UN, 10, 5)
        system.set_range_lock(fd, fcntl.LOCK_SH, 10, 5)
        assert [another(fcntl.LOCK_SH, 10), another(fcntl.LOCK_EX, 10)] == [0, 1]

    def test_the_machine(self) -> None:
        assert 1 <= system.usable_cores() <= (os.cpu_count() or 1)
        with system.kept_scheduling():
            pass


@given(st.lists(st.binary(max_size=9), max_size=20), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_a_disk_that_takes_less_than_it_is_given(pieces: list[bytes], takes: list[int]) -> None:
    """Against the plain join, however few bytes each call takes."""
    written = bytearray()
    given_out = itertools.cycle(takes)

    def some(fd: int, views: list[memoryview], offset: int) -> int:
        assert offset == len(written)
        assert len(views) <= 3
        taken = b"".join(views)[: next(given_out)]
        written.extend(taken)
        return len(taken)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(system, "_write_some", some)
        patched.setattr(system, "MOST_PIECES", 3)
        assert system.write_pieces(-1, pieces, 0) == len(written)
    assert bytes(written) == b"".join(pieces)


def test_a_disk_that_takes_nothing_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_write_some", lambda *_: 0)
    with pytest.raises(OSError, match="No space") as caught:
        system.write_pieces(-1, [b"x"], 0)
    assert caught.value.errno == errno.ENOSPC


def test_a_file_system_that_cannot_allocate_is_filled(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert system.try_allocate(fd, 0, 100) is False
    system.allocate(fd, 0, 100)
    assert os.pread(fd, 200, 0) == bytes(100)


def test_no_call_is_asked_for_more_than_macos_allows(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There 2 GiB and more in one call are an error, where Linux gives or takes a part."""
    most = 1000
    monkeypatch.setattr(system, "MOST_BYTES", most)
    plain = {name: getattr(os, name) for name in ("pread", "pwrite", "preadv", "pwritev")}

    def refusing(name: str) -> Callable[..., Any]:
        def call(fd: int, what: Any, *rest: Any) -> Any:
            pieces = what if isinstance(what, list) else [bytes(what) if name == "pread" else what]
            if sum(memoryview(piece).nbytes for piece in pieces) > most:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return plain[name](fd, what, *rest)

        return call

    for name in plain:
        monkeypatch.setattr(os, name, refusing(name))
    data = os.urandom(5500)
    assert system.write_pieces(fd, [data[:300], data[300:400], data[400:4400], data[4400:]], 7) == 5500
    write_at(fd, data, 6000)
    assert FileRangeReader(f"/dev/fd/{fd}").read(7, 5507) == data
    for start in (7, 6000):
        out = bytearray(5500)
        assert read_at(fd, out, start) == 5500
        assert out == data


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_bytes_that_a_full_sync_lost_are_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The next sync would say that all is well."""

    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(system, "_FULL_SYNC", 51)
    monkeypatch.setattr(system.fcntl, "fcntl", failing)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for call in (system.sync, system.sync_data):
        with pytest.raises(OSError) as caught:
            call(7)
        assert caught.value.errno == code
