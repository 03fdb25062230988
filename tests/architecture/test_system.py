"""What not every system has is called in one place, `bytekit/process/system.py`, with what to do elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import every, mentions, parsed
from tests.architecture.stubs import only_on_linux
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"
HOME = {"bytekit/process/system.py"}
LOCKS = HOME | {"bytekit/process/locks.py"}

MODULES = ("os", "fcntl", "mmap", "select", "signal", "_socket", "resource", "time", "errno")
DIFFERENT = {
    "fsync", "preadv", "pwritev", "readv", "writev", "pread", "pwrite", "sendfile", "madvise", "msync", "SEEK_DATA",
    "SEEK_HOLE", "sched_yield", "process_cpu_count", "sync_file_range", "fallocate", "renameat2", "prctl",
}  # fmt: skip
"""What macOS has too and does otherwise, what some Pythons there lack, and what only the library of C has."""
LINUX_ONLY = DIFFERENT.union(*map(only_on_linux, MODULES))
PREFIXES = ("MADV_", "MS_", "F_OFD_", "F_FULLFSYNC", "F_NOCACHE", "SC_")
PATHS = ("/proc", "/sys/", "/dev/shm", "/run/")
FORKS = {"getpid", "register_at_fork"}
"""Only `bytekit/process/forks.py` tells a parent from its children; whoever must know is told by it."""

MODULES_OF_ONE_PLACE = {"ctypes": HOME, "fcntl": LOCKS, "resource": HOME}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def linux_only(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names of such calls, also as text for getattr, and paths that only Linux has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.alias):
            name = node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if name.startswith(PATHS):
                yield node.lineno, name
        else:
            continue
        if name in LINUX_ONLY or (name.isidentifier() and name.startswith(PREFIXES)):
            yield node.lineno, name


def imported(tree: ast.AST) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@every(sorted(PACKAGE.rglob("*.py")))
def test_what_only_linux_has_is_in_one_place(path: Path) -> None:
    words = set(re.findall(r"\w+", path.read_text()))
    if relative(path) not in HOME and (words & LINUX_ONLY or mentions(path, {*PREFIXES, *PATHS})):
        assert list(linux_only(parsed(path))) == []
    for name, places in MODULES_OF_ONE_PLACE.items():
        assert relative(path) in places or not mentions(path, {name}) or name not in imported(parsed(path))


@every(sorted(PACKAGE.rglob("*.py")))
def test_one_place_knows_of_forks(path: Path) -> None:
    if relative(path) == "bytekit/process/forks.py" or not mentions(path, FORKS):
        return
    names = {n.attr for n in ast.walk(parsed(path)) if isinstance(n, ast.Attribute)}
    names |= {n.name for n in ast.walk(parsed(path)) if isinstance(n, ast.alias)}
    assert not names & FORKS


@every(sorted(PACKAGE.rglob("*.py")))
def test_properties_that_stay_have_no_lock(path: Path) -> None:
    """That of Python 3.11 holds one for all instances while a value is made: a child forked meanwhile would hang."""
    if relative(path) == "bytekit/process/forks.py" or not mentions(path, {"cached_property"}):
        return
    homes = {
        node.module
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and "cached_property" in {each.name for each in node.names}
    }
    assert homes <= {"warpdata.bytekit.process.forks"}
    names = {n.attr for n in ast.walk(parsed(path)) if isinstance(n, ast.Attribute)}
    assert "cached_property" not in names


@pytest.mark.parametrize(
    "code",
    [
        "os.fdatasync(fd)",
        "getattr(os, 'posix_fallocate', None)",
        "from os import preadv",
        "mmap.mmap(-1, 1).madvise(mmap.MADV_DONTNEED)",
        "open('/proc/meminfo')",
        "fcntl.fcntl(fd, fcntl.F_OFD_SETLK, x)",
        "fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)",
        "os.open(folder, os.O_TMPFILE)",
        "os.copy_file_range(a, b, 10)",
        "mmap.mmap(-1, 1, mmap.MAP_PRIVATE | mmap.MAP_POPULATE)",
        "select.epoll()",
        "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1)",
        "resource.prlimit(0, resource.RLIMIT_NOFILE)",
        "time.clock_gettime(time.CLOCK_BOOTTIME)",
        "os.sysconf('SC_AVPHYS_PAGES')",
        "os.timerfd_create(time.CLOCK_MONOTONIC)",
        "Path('/dev/shm') / name",
    ],
)
def test_the_rule_sees_them(code: str) -> None:
    assert list(linux_only(ast.parse(code)))
