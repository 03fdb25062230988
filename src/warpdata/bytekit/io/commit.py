"""Files and folders that appear whole or not at all: temp, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.io.files import check_path, kind_of_file
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import OwnProcess
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.errors import ConflictError, OutOfSpaceError, PermissionError_, StoreError, WriterClosedError

if TYPE_CHECKING:
    from typing_extensions import Buffer


TEMP_MARK = ".tmp-"
"""Part of the name of every file that is not committed yet; what a crash leaves behind carries it."""

_NAME_CHARS = 120
_MOST_NAME_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_SYNCS_AT_ONCE = 8
_FOLDER_TRIES = 100
_REPLACE_HINT = "Choose another path, or pass overwrite=True (--overwrite) where it is offered."
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_at(fd: int, data: Buffer, offset: int) -> None:
    """Write all of `data` at `offset`; a disk that takes only a part of it is an error, as one that takes nothing."""
    view = byte_view(data)
    while view.nbytes:
        written = system.write_some(fd, view, offset)
        offset += written
        view = view[written:]


def _check_process(own: OwnProcess, path: str | os.PathLike[str]) -> None:
    """What is not committed belongs to the process that began it: a forked child has the same file and temp name."""
    if not own:
        raise WriterClosedError(
            "this is written by the process that forked this one", path=path, hint="Write in one process."
        )


class NewFile:
    """A file being written; it has its final name only once the commit around it succeeds."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.position = 0
        self._reserved_bytes = 0
        self._own = OwnProcess()

    def reserve(self, size_bytes: int) -> None:
        """Allocate what this file will need: a full disk shows now, and renaming over a file is quick."""
        if size_bytes and system.try_allocate(self.fd, 0, size_bytes):
            self._reserved_bytes = size_bytes

    def finish(self) -> None:
        """Give back what was reserved and not written."""
        if self._reserved_bytes > self.position:
            os.ftruncate(self.fd, self.position)

    def write(self, *pieces: Buffer) -> int:
        """Append all pieces and return the offset they begin at; on failure nothing of them stays."""
        _check_process(self._own, self.path)
        start = self.position
        try:
            self.position += system.write_pieces(self.fd, pieces, start)
        except BaseException:
            self._cut(start)  # also what Ctrl-C kept from being counted
            raise
        return start

    def tell(self) -> int:
        """Offset of the next `write`, for libraries that call it."""
        return self.position

    def write_at(self, offset: int, data: Buffer) -> None:
        """Write all of `data` at `offset`; the position for `write` stays."""
        _check_process(self._own, self.path)
        write_at(self.fd, data, offset)

    def seek(self, position: int) -> None:
        """Go on at `position`: what was written after it is cut off."""
        if position != self.position:
            self._cut(position)

    def _cut(self, position: int) -> None:
        os.ftruncate(self.fd, position)
        self._reserved_bytes = 0
        self.position = position


def check_free(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise ConflictError if something has the name of a target that is not to be replaced."""
    if not overwrite and os.path.exists(path):
        raise ConflictError("target exists", path=path, hint=_REPLACE_HINT)


@contextlib.contextmanager
def commit_file(
    path: str | os.PathLike[str], *, durable: bool = True, replace: bool = True
) -> Iterator[NewFile]:
    """Write a file under a temporary name and give it its own on success; on any failure nothing changes.

    A link stays and the file it names is replaced; what is no regular file is refused.
    """
    target = writable_path(path)
    check_free(target, overwrite=replace)
    temp, own = _temp_name(target), OwnProcess()
    with map_os_errors(path):
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                new = NewFile(fd, os.fspath(path))
                yield new
                _check_process(own, path)
                new.finish()
                if durable:
                    system.sync(fd)
            finally:
                os.close(fd)
            _move(temp, target, replace=replace)
        except BaseException:
            if own:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temp)
            raise
        if durable:
            fsync_folder(os.path.dirname(target))


def writable_path(path: str | os.PathLike[str]) -> str:
    """Where a file written to `path` goes: a link is followed, and anything but a regular file is refused."""
    target = check_path(path)
    with map_os_errors(path):
        try:
            mode = os.stat(target).st_mode
        except FileNotFoundError:
            return os.path.realpath(target)
        if not stat.S_ISREG(mode):
            raise StoreError(
                f"{kind_of_file(mode)} is there, not a file", path=path, hint="Write to another path."
            )
        return os.path.realpath(target)


@contextlib.contextmanager
def commit_folder(
    path: str | os.PathLike[str], *, durable: bool = True, replace: bool = False
) -> Iterator[Path]:
    """Fill a folder under a temporary name and give it its own on success; a folder there is a conflict.

    With `replace` the new one takes its place, and the old one is removed.
    """
    target = os.fspath(path).rstrip("/")
    check_free(target, overwrite=replace)
    temp, own = Path(_temp_name(target)), OwnProcess()
    with map_os_errors(target):
        temp.mkdir()
        try:
            yield temp
            _check_process(own, target)
            if durable:
                fsync_tree(temp)
            old = _temp_name(target) if os.path.lexists(target) else None
            if old is not None and not replace:
                raise ConflictError("target exists", path=target, hint=_REPLACE_HINT)
            if old is not None:
                os.rename(target, old)
            try:
                os.rename(temp, target)
            except BaseException:
                if old is not None:
                    os.rename(old, target)
                raise
            if old is not None:
                shutil.rmtree(old)
        except BaseException:
            if own:
                shutil.rmtree(temp, ignore_errors=True)
            raise
        if durable:
            fsync_folder(os.path.dirname(target))


def link_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Give a finished file a second name, in place of what is there; OSError where that cannot be."""
    target = os.fspath(path)
    fsync_file(source)
    temp = _temp_name(target)
    os.link(source, temp)
    try:
        os.replace(temp, target)
    finally:
        # Replacing a name by another name of the same file does nothing and leaves both.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
    fsync_folder(os.path.dirname(target))


def link_or_copy(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """A finished file under another name too; a copy of it where the file system has no links."""
    with map_os_errors(path):
        try:
            # A name of the file: a name of a link would follow the link.
            os.link(os.path.realpath(source), path)
        except FileExistsError:
            raise ConflictError("the file exists already", path=path) from None
        except OSError:
            shutil.copy2(source, path)


def make_folders(path: str | os.PathLike[str]) -> None:
    """Make a folder and those around it, where others may be removing the same ones because they are empty."""
    for tries_left in reversed(range(_FOLDER_TRIES)):
        try:
            os.makedirs(path, exist_ok=True)
        except (FileExistsError, FileNotFoundError):
            # There a moment ago and gone now, unless something else has the name.
            if not tries_left or (os.path.lexists(path) and not os.path.isdir(path)):
                raise
        else:
            return


def commit_together(files: Sequence[tuple[Path, Path]], root: Path) -> None:
    """Give finished and synced files their names in this order; each folder below `root` is synced once, last."""
    top, made = os.path.abspath(root), set()
    folders = {top: None}
    for temp, target in files:
        with map_os_errors(target):
            folder = os.path.dirname(os.path.abspath(target))
            if folder not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)
                while folder not in folders:
                    folders[folder] = None
                    folder = os.path.dirname(folder) if folder.startswith(f"{top}/") else top
            os.replace(temp, target)
    for folder in folders:
        with map_os_errors(folder):
            fsync_folder(folder)


def write_file(path: str | os.PathLike[str], data: Buffer, *, durable: bool = True) -> None:
    """Replace the file at `path` by one that holds `data`, atomically."""
    with commit_file(path, durable=durable) as out:
        out.write(data)


def put_file(path: str | os.PathLike[str], data: Buffer) -> None:
    """Write a new file into a folder that is committed as a whole: it needs no name of its own before."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            written = os.write(fd, data)
            view = byte_view(data)[written:]
            while view.nbytes:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
    except OSError as error:
        raise os_error(error, path) from error


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names inside a folder survive power loss."""
    fd = os.open(os.fspath(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        system.sync(fd)
    finally:
        os.close(fd)


def fsync_file(path: str | os.PathLike[str]) -> None:
    """Make the bytes of a finished file survive power loss."""
    _with_file(path, system.sync)


def start_writing(path: str | os.PathLike[str]) -> None:
    """Let the disk begin with the bytes of a finished file, without waiting; it is synced later."""
    _with_file(path, system.start_writing)


def _with_file(path: str | os.PathLike[str], call: Callable[[int], None]) -> None:
    with map_os_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            call(fd)
        finally:
            os.close(fd)


def fsync_files(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Make the bytes of several finished files survive power loss, all on their way at once."""
    for path in paths:
        start_writing(path)
    fsync_started(paths)


def fsync_started(paths: Sequence[str | os.PathLike[str]]) -> None:
    """The same once `start_writing` was called for each.

    A file system that keeps a journal then writes it once for many of them.
    """
    try:
        map_in_threads(fsync_file, paths, min(len(paths) // 2, _SYNCS_AT_ONCE))
    except RuntimeError:  # the interpreter is ending and starts no thread any more
        for path in paths:
            fsync_file(path)


def fsync_tree(path: Path) -> None:
    """Make every file and name below a folder survive power loss."""
    folders = list(os.walk(path))
    fsync_files([os.path.join(folder, name) for folder, _, names in folders for name in names])
    for folder, _, _ in folders:
        fsync_folder(folder)


def stale_temps(folder: str | os.PathLike[str]) -> Sequence[Path]:
    """What a killed commit left in `folder`: never visible to readers, safe to delete."""
    return sorted(entry for entry in Path(folder).iterdir() if TEMP_MARK in entry.name)


def remove_temps_of(path: str | os.PathLike[str]) -> None:
    """Remove leftovers of killed commits of exactly this file. Only for callers that hold its lock."""
    folder, name = os.path.split(os.path.abspath(path))
    if len(name) > _NAME_CHARS:
        return  # a shortened name may be that of another file
    ours = re.compile(re.escape(f".{name}{TEMP_MARK}") + r"[0-9a-f]{12}")
    for entry in stale_temps(folder):
        if ours.fullmatch(entry.name) and entry.is_file():
            with contextlib.suppress(OSError):
                entry.unlink()


class _OsErrorsMapped:
    """A class, not a generator: every file of every episode goes through one."""

    __slots__ = ("_path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise os_error(error, self._path) from error
        if isinstance(error, ValueError):
            path = check_path(self._path)
            if isinstance(error, UnicodeEncodeError) and not path.isprintable():
                hint = "Rename the folder, or write to another place."
                raise StoreError("the path is not valid UTF-8", path=path, hint=hint) from None


def map_os_errors(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[None]:
    """Turn the operating system's errors about `path` into ours."""
    return _OsErrorsMapped(path)


def os_error(error: OSError, path: str | os.PathLike[str]) -> StoreError:
    """Our error for an OSError met while writing `path`."""
    if error.errno in _NO_SPACE:
        return OutOfSpaceError("no space left on the disk", path=path)
    if isinstance(error, PermissionError):
        return PermissionError_("this path may not be written", path=path)
    if error.errno == errno.EROFS:
        return PermissionError_("the file system is read-only", path=path, hint="Write to another place.")
    if isinstance(error, FileNotFoundError):
        return StoreError("the folder does not exist", path=path, hint="Create the folder first.")
    return StoreError(f"cannot write ({error.strerror or error})", path=path)


def _move(temp: str, target: str, *, replace: bool) -> None:
    if replace:
        os.replace(temp, target)
        return
    try:
        system.rename_new(temp, target)
    except FileExistsError:
        raise ConflictError("target exists", path=target, hint=_REPLACE_HINT) from None


def _temp_name(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:_NAME_CHARS]}{TEMP_MARK}{secrets.token_hex(6)}")


def fold_name(name: str) -> str:
    """What a name has in common with all that such a disk takes for it."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def is_safe_name(name: str) -> bool:
    """Whether a name is a relative path that stays inside the folder it is put in."""
    parts = name.split("/")
    bad = any(part in ("", ".", "..") for part in parts) or _CONTROL.search(name)
    return bool(name) and not bad and len(name.encode("utf-8", "surrogatepass")) <= _MOST_NAME_BYTES


def check_case_clash(name: str, taken: dict[str, str], folder: str | os.PathLike[str]) -> None:
    """Note in `taken` that `name` is used, or ConflictError where the disk of `folder` takes it for one that is."""
    other = taken.setdefault(fold_name(name), name)
    if other != name and not is_case_sensitive(folder):
        raise ConflictError(
            f"this disk takes {name!r} and {other!r} for one name", path=folder,
            hint="Use names that differ in more than case.",
        )  # fmt: skip


def is_case_sensitive(folder: str | os.PathLike[str]) -> bool:
    """Whether the disk of a folder has two files where names differ in case only; it is tried."""
    tried = os.path.join(folder, f".case{TEMP_MARK}{secrets.token_hex(6)}")
    with map_os_errors(folder):
        os.close(os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            return not os.path.lexists(os.path.join(folder, os.path.basename(tried).swapcase()))
        finally:
            os.unlink(tried)
