"""What operating systems do differently, in one place: each call with what to do where it does not exist.

No other module makes these calls (`tests/architecture/test_system.py`), so no other module can depend on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import byte_view

if TYPE_CHECKING:
    from typing_extensions import Buffer


PAGE_BYTES = mmap.PAGESIZE

_IS_LINUX = sys.platform == "linux"
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)

# ---- the disk ----------------------------------------------------------------------------------------------

_SYNC_FILE_RANGE_WRITE = 2
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS fsync stops at the cache of the drive; this goes on to the disk."""
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Bytes did not reach the disk. The system reports this once: the next sync succeeds."""


def sync(fd: int) -> None:
    """Bring a file, its size and its times to the disk."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno in _LOST:
                raise
            # network disks and some folders do not know it
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Bring the bytes of a file to the disk; its times may come later."""
    if _FULL_SYNC is None and hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync(fd)


def start_writing(fd: int) -> None:
    """Begin to bring the bytes of a file to the disk, without waiting; a later sync takes less time."""
    if _libc is not None:
        _libc.sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def rename_new(source: str, target: str) -> None:
    """Give a file another name, or FileExistsError if anything has that name already."""
    code = _rename(source, target, _RENAME_NOREPLACE)
    if not code:
        return
    if code not in _NOT_SUPPORTED:  # some file systems do not know this call
        raise OSError(code, os.strerror(code), target)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, *_NOT_SUPPORTED):
            raise
        # Without links either: look first, which is as good as it gets there.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target)
        return
    os.unlink(source)


def replace_lazily(source: str, target: str) -> None:
    """Replace a file that is never synced: some systems bring a file to the disk when it replaces another."""
    if _rename(source, target, _RENAME_EXCHANGE):
        os.replace(source, target)
    else:
        os.unlink(source)


_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2


def _rename(source: str, target: str, flag: int) -> int:
    """Rename with a flag of Linux; 0, or the number of the error."""
    rename = getattr(_libc, "renameat2", None)
    names = (os.fsencode(source), os.fsencode(target))
    failed = rename is None or rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flag)
    return (errno.ENOSYS if rename is None else ctypes.get_errno()) if failed else 0


def try_allocate(fd: int, start: int, size_bytes: int) -> bool:
    """Give [start, start + size) its place on the disk; False where the system has no such call."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, start, size_bytes)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return False
    return True


_ZEROS = bytes(1 << 20)


def allocate(fd: int, start: int, size_bytes: int) -> None:
    """Make a file reach to start + size, all of it on the disk: a full disk is an OSError here, no fault later."""
    if try_allocate(fd, start, size_bytes):
        return
    at, end = os.fstat(fd).st_size, start + size_bytes
    while at < end:
        at += os.pwrite(fd, memoryview(_ZEROS)[: end - at], at)


SHARED_MEMORY = "/dev/shm"


def memory_folder(size_bytes: int) -> str | None:
    """A folder of files in memory, which outlive their process; None where so many bytes would fill half of it."""
    try:
        room = os.statvfs(SHARED_MEMORY) if _IS_LINUX else None
    except OSError:
        return None
    is_small = room is None or room.f_bavail * room.f_frsize - size_bytes < room.f_blocks * room.f_frsize // 2
    return None if is_small or not os.access(SHARED_MEMORY, os.W_OK) else SHARED_MEMORY


# ---- reading and writing -----------------------------------------------------------------------------------


try:
    MOST_PIECES = max(16, os.sysconf("SC_IOV_MAX"))
except (ValueError, OSError):
    MOST_PIECES = 16
"""How many pieces one call writes."""
MOST_BYTES = 1 << 30
"""Most bytes of one call: macOS refuses 2 GiB and more, Linux transfers fewer."""


def read_some(fd: int, size_bytes: int, offset: int) -> bytes:
    """What is at `offset`, at most `size_bytes` of it, which may be fewer."""
    return os.pread(fd, min(size_bytes, MOST_BYTES), offset)


read_little = os.pread
"""The same for so few bytes that every system takes them: where a shard is opened, a call more is felt."""


def write_some(fd: int, data: memoryview, offset: int) -> int:
    """Write `data` at `offset`; how many bytes were, which may be fewer."""
    return os.pwrite(fd, data[:MOST_BYTES], offset)


def read_into(fd: int, out: Buffer, offset: int) -> int:
    """Fill `out` with what is at `offset`; how many bytes came, which may be fewer."""
    view = byte_view(out)[:MOST_BYTES]
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    data = os.pread(fd, view.nbytes, offset)
    view[: len(data)] = data
    return len(data)


def write_pieces(fd: int, pieces: Sequence[Buffer], offset: int) -> int:
    """Write all pieces one after the other from `offset` on, in as few calls as the system allows; their bytes."""
    views = [view for view in map(byte_view, pieces) if view.nbytes]
    start = offset
    first = 0
    while first < len(views):
        written = _write_some(fd, views[first : first + MOST_PIECES], offset)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        offset += written
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]
    return offset - start


def _write_some(fd: int, views: list[memoryview], offset: int) -> int:
    if hasattr(os, "pwritev") and sum(view.nbytes for view in views) <= MOST_BYTES:
        return os.pwritev(fd, views, offset)
    return write_some(fd, views[0], offset)


# ---- advice about files: where it cannot be given, nothing happens -----------------------------------------


def will_read(fd: int, start: int, size_bytes: int) -> None:
    """These bytes are needed soon; the advice costs a look at every page, and is left out if the last is in memory."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError, AttributeError):  # the page would have to be read
        if os.preadv(fd, [bytearray(1)], start + size_bytes - 1, os.RWF_NOWAIT):
            return
    os.posix_fadvise(fd, start, size_bytes, os.POSIX_FADV_WILLNEED)


_lseek = ctypes.PyDLL(None).lseek
_lseek.restype, _START = ctypes.c_int64, ctypes.c_int64(0)


def size_by_seeking(fd: int) -> int:
    """The size of an open file, of which the position is moved to the end; -1 if it is unknown.

    This keeps the interpreter lock: threads that wait for it would wake up for nothing at every look.
    """
    size: int = _lseek(fd, _START, os.SEEK_END)
    return size


# ---- mappings ----------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True) if _IS_LINUX else None
"""These calls go through ctypes because it gives up the interpreter lock during them, which mmap does not."""
_MADV_DONTNEED, _MADV_POPULATE_WRITE, _MS_SYNC = 4, 23, 4  # of Linux
_POPULATE_BYTES = 512 << 10
if _libc is not None:
    _libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint)
    _libc.madvise.argtypes = _libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_mapping_calls = ctypes.CDLL(None, use_errno=True)
_mapping_calls.mmap.restype = ctypes.c_void_p
_mapping_calls.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_mapping_calls.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_unmap = _mapping_calls.munmap
_MAP_FAILED = ctypes.c_void_p(-1).value
_LONGER_THAN_ANY_FILE = 1 << 46


class _MappedBytes(ctypes.c_ubyte * _LONGER_THAN_ANY_FILE):  # type: ignore[misc]
    """Where a file is mapped, until nothing looks at it any more. One type for every length: only a part is shown."""

    size_bytes = 0

    def __del__(self, unmap: Any = _unmap, address_of: Any = ctypes.addressof) -> None:
        # At the end of the interpreter the module's names may be gone.
        unmap(address_of(self), self.size_bytes)


def map_to_read(fd: int, size_bytes: int) -> memoryview:
    """The bytes of a file, mapped. Unlike mmap's, they hold no descriptor while they are in use."""
    return _mapped(fd, size_bytes, mmap.PROT_READ).toreadonly()


def map_to_write(fd: int, size_bytes: int) -> memoryview:
    """The same, and what is changed in them is changed in the file."""
    return _mapped(fd, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)


def _mapped(fd: int, size_bytes: int, protection: int) -> memoryview:
    if not size_bytes:
        return memoryview(b"")
    address = _mapping_calls.mmap(None, size_bytes, protection, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mapped = _MappedBytes.from_address(address)
    mapped.size_bytes = size_bytes
    return memoryview(mapped).cast("B")[:size_bytes]


def populate_to_write(window: mmap.mmap, start: int = 0, end: int | None = None) -> bool:
    """Bring the pages of [start, end) of a writable window into memory; False where they will come one by one."""
    anchor = ctypes.c_char.from_buffer(window)
    first = ctypes.addressof(anchor)
    start, end = start // PAGE_BYTES * PAGE_BYTES, len(window) if end is None else end
    steps = range(start, end, _POPULATE_BYTES)  # in steps: meanwhile no thread can map or unmap memory
    done = all(_advise(first + at, min(_POPULATE_BYTES, end - at), _MADV_POPULATE_WRITE) for at in steps)
    del anchor
    return done


def use_huge_pages(memory: mmap.mmap) -> None:
    """Back memory by large pages where the system has them: fewer page faults."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)


def release_pages(address: int, size_bytes: int) -> bool:
    """Drop the whole mapped pages inside a range from this process; they stay in the page cache."""
    start = -(-address // PAGE_BYTES) * PAGE_BYTES
    end = (address + size_bytes) // PAGE_BYTES * PAGE_BYTES
    return _advise(start, end - start, _MADV_DONTNEED)


def _advise(address: int, size_bytes: int, advice: int) -> bool:
    return _libc is not None and size_bytes > 0 and int(_libc.madvise(address, size_bytes, advice)) == 0


def sync_mapped(window: mmap.mmap, fd: int) -> None:
    """Bring what was written to the pages of a window of `fd`, through any mapping, to the disk."""
    if _libc is None:
        window.flush()
        sync_data(fd)
        return
    anchor = ctypes.c_char.from_buffer(window)
    failed = _libc.msync(ctypes.addressof(anchor), len(window), _MS_SYNC)
    code = ctypes.get_errno()
    del anchor
    if failed:
        raise OSError(code, os.strerror(code))


# ---- locks on ranges of bytes ------------------------------------------------------------------------------

_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None) if _IS_LINUX else None
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid. macOS has such locks too, and another struct."""


def set_range_lock(fd: int, kind: int, start: int, size_bytes: int) -> None:
    """Set a lock of fcntl (`LOCK_SH`, `LOCK_EX`, `LOCK_UN`) on a range without waiting; OSError if it is taken.

    The lock belongs to the open file where the system has such locks. Elsewhere it belongs to the process, which
    loses it when it closes the file under any descriptor: enough to keep other processes away.
    """
    if _SET_LOCK is None:
        fcntl.lockf(
            fd, kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB), size_bytes, start, os.SEEK_SET
        )
        return
    kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    fcntl.fcntl(fd, _SET_LOCK, _FLOCK.pack(kinds[kind], os.SEEK_SET, start, size_bytes, 0))


# ---- the machine -------------------------------------------------------------------------------------------


def allowed_descriptors() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes() -> int | None:
    """Memory that the system could hand out without swapping, or None where it is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = [line.split() for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(available[0][1]) * 1024 if available else None


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the second stops while the machine sleeps; on macOS it goes on."""


def seconds_with_sleep() -> float:
    """A clock that only goes on, also while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


def give_way() -> None:
    """Let this thread never interrupt another one when it wakes up: it has much to do, the others little."""
    # A lower priority would be worse: what holds the lock of the interpreter must go on.
    if _IS_LINUX:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


_TASKS = "/proc/self/task"


@contextlib.contextmanager
def kept_scheduling() -> Iterator[None]:
    """Give this thread, and those started meanwhile, the policy this thread has now.

    A video encoder that runs as root makes itself and the thread that opens it real-time threads of the highest
    priority, before which everything else on the machine waits.
    """
    if not hasattr(os, "sched_getscheduler") or not os.path.isdir(_TASKS):
        yield
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    before = set(os.listdir(_TASKS))
    try:
        yield
    finally:
        started = (int(task) for task in os.listdir(_TASKS) if task not in before)
        for task in (0, *started):
            # A thread may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(task) != policy:
                    os.sched_setscheduler(task, policy, priority)
