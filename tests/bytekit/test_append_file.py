"""Files that only grow: whole appends, torn tails, forks, and records found by their sealed headers."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from warpdata.bytekit.io.append_file import AppendFile, SealedHeader, records
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.bytekit.process import system
from warpdata.errors import FormatError, OutOfSpaceError, StoreError, TruncatedError, WriterClosedError


class Head(NamedTuple):
    magic: bytes
    size: int
    crc32c: int


HEAD = SealedHeader(Head, struct.Struct("<4sII"), b"TEST")


def body_bytes(head: Head) -> int:
    return head.size


def packed(*bodies: bytes) -> bytes:
    return b"".join(HEAD.pack(len(body)) + body for body in bodies)


def test_appends_lie_one_behind_the_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AppendFile.open(path)
    assert log.append(b"one", b"", b"two") == 0
    assert log.append(b"three", sync=True) == 6
    log.overwrite(b"O", 0)
    log.sync()
    back = bytearray(5)
    log.read_into(back, 6)
    assert back == b"three"
    with pytest.raises(TruncatedError):
        log.read_into(bytearray(6), 6)
    log.close()
    log.close()
    assert path.read_bytes() == b"Onetwothree"
    for call in (lambda: log.append(b"x"), log.sync, lambda: log.cut(0), lambda: log.overwrite(b"x", 0)):
        with pytest.raises(WriterClosedError):
            call()


def test_going_on_behind_what_is_there_or_where_a_crash_tore(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"whole torn")
    for end, wanted in ((None, b"whole torn+"), (5, b"whole+"), (0, b"+")):
        log = AppendFile.open(path, end=end)
        log.append(b"+")
        log.close()
        assert path.read_bytes() == wanted


@pytest.mark.parametrize("broken", ["write_pieces", "sync_data"])
def test_a_failed_append_leaves_the_file_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    log = AppendFile.open(tmp_path / "log")
    log.append(b"kept")

    def fails(fd: int, *_: Any) -> int:
        os.pwrite(fd, b"half", 4)
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(system, broken, fails)
        with pytest.raises(OutOfSpaceError):
            log.append(b"half of this", sync=True)
    assert (tmp_path / "log").read_bytes() == b"kept"
    log.append(b"more")
    assert (tmp_path / "log").read_bytes() == b"keptmore"


def test_a_child_does_not_write(tmp_path: Path) -> None:
    log = AppendFile.open(tmp_path / "log")
    log.append(b"a")
    pid = os.fork()
    if pid == 0:
        try:
            log.append(b"b")
        except WriterClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.append(b"c")
    assert (tmp_path / "log").read_bytes() == b"ac"


def test_what_cannot_be_opened_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        AppendFile.open(tmp_path / "missing" / "log")


def test_records_are_found_up_to_the_torn_one() -> None:
    bodies = [b"first", b"", b"third"]
    whole = packed(*bodies)
    ends = [0]
    for body in bodies:
        ends.append(ends[-1] + HEAD.size + len(body))
    for size in range(len(whole) + 1):
        found: list[bytes] = []
        reader = BytesRangeReader(whole[:size])
        try:
            for _, start, end in records(reader, 0, HEAD, body_bytes):
                found.append(bytes(reader.read(start, end)))
        except FormatError:
            assert size not in ends
        else:
            assert size in ends
        assert found == bodies[: sum(end <= size for end in ends) - 1]


def test_every_flipped_bit_of_a_header_is_found() -> None:
    good = packed(b"body")
    for bit in range(HEAD.size * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            list(records(BytesRangeReader(bytes(bad)), 0, HEAD, body_bytes))
