"""A folder as a store: atomic renames for blobs, a file lock for pointers."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.bytekit.io import commit
from warpdata.bytekit.io.files import FileRangeReader, check_path, kind_of_file
from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process import locks
from warpdata.errors import BlobNotFoundError, ConflictError, LimitExceededError, PermissionError_, StoreError
from warpdata.stores.blobstore import (
    Blob,
    BlobInfo,
    BlobStore,
    Chunks,
    FileDigest,
    blob_name,
    check_key,
    check_same,
    check_size,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMP = re.compile(rf"\..*{re.escape(commit.TEMP_MARK)}[0-9a-f]{{12}}")
_LOCKS = ".locks"
_LOCK_TIMEOUT_S = 60.0
"""Moving a pointer takes milliseconds; a process that holds the lock for longer was stopped."""
STAGING = ".staging"
"""Folder for files that publishers prepare on the same disk; not part of the store."""


class LocalStore(BlobStore):
    """Blobs as files below one folder; readers see a whole file or none."""

    is_local = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.abspath(os.path.expanduser(check_path(folder))))
        self.address = str(self.folder)

    def path(self, key: str) -> Path:
        """The file of a blob, whether it exists or not."""
        return Path(self.file(key))

    def file(self, key: str) -> str:
        """The file of a blob as text, which is quicker to make than a Path."""
        return f"{self.address}/{check_key(key)}"

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        with _map_errors(self.path(key)):
            return _info(key, os.stat(self.path(key)))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        path = self.file(key)
        opener = lambda path, flags: os.open(path, flags | os.O_NONBLOCK)  # noqa: E731 - a pipe may have no writer
        with _map_errors(path), open(path, "rb", buffering=0, opener=opener) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"not a regular file but {kind_of_file(status.st_mode)}", path=path)
            info = _info(key, status)
            if unless_etag is not None and info.etag == unless_etag:
                return None
            if info.size > max_bytes:
                raise LimitExceededError(f"{info.size} bytes where {max_bytes} are allowed", path=path)
            return Blob(memoryview(file.read(info.size)), info)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range."""
        with FileRangeReader(self.path(key)) as reader:
            check_same(_info(key, reader.stat()), same_as, self.file(key))
            views = reader.read_many(ranges)
            check_same(_info(key, reader.stat()), same_as, self.file(key))  # written to meanwhile
            return views

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under an unused name, or ConflictError."""
        path = self._make_parent(key)
        with commit.commit_file(path, replace=False) as out:
            out.write(data)
        return self.head(key)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Write bytes chunk by chunk under a name that holds their hash; they appear whole or not at all."""
        path = self._make_parent(key)
        with commit.commit_file(path) as out:
            for chunk in check_size(chunks(), size, str(path)):
                out.write(chunk)

    def adopt_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Give a finished file of our own its name here without copying it; it keeps its old name too."""
        target = self._make_parent(key)
        try:
            commit.link_file(path, target)
        except OSError:
            # Another disk, or a file system without links.
            self.put_file(key, path, digest)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        path, lock = self._make_parent(key), self.folder / _LOCKS / "pointers"
        with commit.map_os_errors(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
        with locks.hold_lock(lock, timeout_s=_LOCK_TIMEOUT_S):
            try:
                current = self.head(key).etag
            except BlobNotFoundError:
                current = None
            if current != etag:
                raise ConflictError("the blob is not as expected", path=blob_name(self.address, key))
            commit.write_file(path, data)
            return self.head(key)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        for path in sorted(self._files(prefix)):
            with contextlib.suppress(BlobNotFoundError), _map_errors(self.folder / path):
                yield _info(path, os.stat(self.folder / path))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        try:
            with _map_errors(self.folder / prefix), os.scandir(self.folder / prefix) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        except BlobNotFoundError:
            return []
        return sorted(name for name in names if name not in (_LOCKS, STAGING))

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        path = self.path(key)
        with commit.map_os_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()

    def close(self) -> None:
        """Nothing is held open."""

    def stale_temps(self, older_than_s: float, folders: Sequence[str]) -> Sequence[Path]:
        """Files of writers that were killed, at the top and below `folders`: invisible to readers, safe to delete."""
        below = [entry for top in (*folders, STAGING) for entry in os.walk(self.folder / top)]
        paths = [Path(folder) / name for folder, _, names in below for name in names]
        with _map_errors(self.folder):
            paths += [self.folder / name for name in os.listdir(self.folder)]
        stale = []
        for path in filter(lambda path: _TEMP.fullmatch(path.name), paths):
            with contextlib.suppress(FileNotFoundError), _map_errors(path):
                stale += [path] if path.lstat().st_mtime < older_than_s else []
        return stale

    def _files(self, prefix: str) -> Iterator[str]:
        start = self.folder / prefix.rpartition("/")[0]
        for folder, folders, names in os.walk(start, onerror=functools.partial(_raise_unless_gone, start)):
            folders[:] = [f for f in folders if f not in (_LOCKS, STAGING)]
            for name in names:
                key = os.path.relpath(os.path.join(folder, name), self.folder)
                if key.startswith(prefix) and commit.TEMP_MARK not in name:
                    yield key

    def _make_parent(self, key: str) -> Path:
        path = self.path(key)
        with commit.map_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _raise_unless_gone(top: Path, error: OSError) -> None:
    """A folder that cannot be read is an error, not an empty one: garbage collection trusts listings."""
    with contextlib.suppress(BlobNotFoundError), _map_errors(error.filename or top):
        raise error


def _info(key: str, status: os.stat_result) -> BlobInfo:
    tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return BlobInfo(key, status.st_size, tag, status.st_mtime)


@contextlib.contextmanager
def _map_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such blob", path=path) from None
    except PermissionError:
        raise PermissionError_("this blob may not be read", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None
