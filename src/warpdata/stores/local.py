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
from warpdata.bytekit.io.files import FileRangeReader, kind_of_file
from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process import locks
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
)
from warpdata.stores.blobstore import Blob, BlobInfo, Chunks, blob_name, check_key, check_same
from warpdata.stores.digest import FileDigest, checked_chunks

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMP = re.compile(rf"\..*{re.escape(commit.TEMP_MARK)}[0-9a-f]{{12}}")
_LOCKS = ".locks"
_LOCK_TIMEOUT_S = 60.0
"""Moving a pointer takes milliseconds; whoever holds the lock for longer was stopped."""
STAGING = ".staging"
"""Where publishers prepare files on the same disk; no part of the store."""


class LocalStore:
    """Blobs as files below one folder; readers see a whole file or none."""

    is_local = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
        self.address = str(self.folder)

    def path(self, key: str) -> Path:
        """The file of a blob, whether it exists or not."""
        return Path(self.file(key))

    def file(self, key: str) -> str:
        """The file of a blob as text: opening a dataset asks often enough for it to matter."""
        return f"{self.address}/{check_key(key)}"

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        with _mapped(self.path(key)):
            return _info(key, os.stat(self.path(key)))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        path = self.file(key)
        with _mapped(path), open(path, "rb", buffering=0, opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise StoreError(f"not a regular file but {kind_of_file(found.st_mode)}", path=path)
            info = _info(key, found)
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
            found = reader.read_many(ranges)
            check_same(_info(key, reader.stat()), same_as, self.file(key))  # written to meanwhile
            return found

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under a name nobody has, or ConflictError."""
        path = self._parent_made(key)
        with commit.commit_file(path, replace=False) as out:
            out.write(data)
        return self.head(key)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Copy a file under a name that says its hash; it appears whole or not at all."""
        self.put_stream(key, lambda: checked_chunks(path, digest), digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Write bytes chunk by chunk under a name that says their hash; they appear whole or not at all."""
        with commit.commit_file(self._parent_made(key)) as out:
            for chunk in chunks():
                out.write(chunk)
            if out.position != size:
                raise TruncatedError(f"{out.position} bytes came of {size}", path=out.path)

    def adopt_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Give a finished file of our own its name here without copying it; it keeps its old name too."""
        target = self._parent_made(key)
        try:
            commit.link_file(path, target)
        except OSError:
            # Another disk, or a file system without links.
            self.put_file(key, path, digest)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        path = self._parent_made(key)
        with self._locked():
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
            with contextlib.suppress(BlobNotFoundError), _mapped(self.folder / path):
                yield _info(path, os.stat(self.folder / path))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        try:
            with _mapped(self.folder / prefix), os.scandir(self.folder / prefix) as entries:
                found = [each.name for each in entries if each.is_dir()]
        except BlobNotFoundError:
            return []
        return sorted(name for name in found if name not in (_LOCKS, STAGING))

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        path = self.path(key)
        with commit.map_os_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs; those that are absent are none."""
        for key in keys:
            self.delete(key)

    def close(self) -> None:
        """Nothing is held open."""

    def stale_temps(self, older_than_s: float, folders: Sequence[str]) -> Sequence[Path]:
        """Files of writers that were killed, at the top and below `folders`: invisible to readers, safe to delete."""
        below = [walked for each in (*folders, STAGING) for walked in os.walk(self.folder / each)]
        found = [Path(folder) / name for folder, _, names in below for name in names]
        with _mapped(self.folder):
            found += [self.folder / name for name in os.listdir(self.folder)]
            return [p for p in found if _TEMP.fullmatch(p.name) and _is_older(p, older_than_s)]

    def _files(self, prefix: str) -> Iterator[str]:
        start = self.folder / prefix.rpartition("/")[0]
        for folder, folders, names in os.walk(start, onerror=functools.partial(_raise_unless_gone, start)):
            folders[:] = [f for f in folders if f not in (_LOCKS, STAGING)]
            for name in names:
                key = os.path.relpath(os.path.join(folder, name), self.folder)
                if key.startswith(prefix) and commit.TEMP_MARK not in name:
                    yield key

    def _parent_made(self, key: str) -> Path:
        path = self.path(key)
        with commit.map_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One pointer moves at a time in this folder; the lock dies with its process."""
        path = self.folder / _LOCKS / "pointers"
        with commit.map_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locks.hold_lock(path, timeout_s=_LOCK_TIMEOUT_S):
            yield


def _is_older(path: Path, than_s: float) -> bool:
    """Whether a file was written before; one that its writer finished or gave up meanwhile is gone."""
    try:
        return path.lstat().st_mtime < than_s
    except FileNotFoundError:
        return False


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would be waited for until somebody writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _raise_unless_gone(top: Path, error: OSError) -> None:
    """A folder that cannot be read is not an empty one: whoever removes what is not listed must be told."""
    with contextlib.suppress(BlobNotFoundError), _mapped(error.filename or top):
        raise error


def _info(key: str, found: os.stat_result) -> BlobInfo:
    tag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return BlobInfo(key, found.st_size, tag, found.st_mtime)


@contextlib.contextmanager
def _mapped(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such blob", path=path) from None
    except PermissionError:
        raise PermissionError_("this blob may not be read", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None
