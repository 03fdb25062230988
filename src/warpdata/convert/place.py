"""Where foreign data lies: a file or a folder on this machine, or a folder of a store; looked at cheaply."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError


@dataclass(frozen=True, slots=True)
class Place:
    """A file, a folder, or a folder in a store. Names are relative, with `/`; one that leads outside is refused."""

    path: Path | None
    """On this machine: a file or a folder."""
    folder: FolderReader | None = None
    """In a store."""
    file: str = ""
    """The one file of that folder which is meant, where it is one."""

    @classmethod
    def of(cls, source: str | os.PathLike[str] | FolderReader | Place) -> Place:
        """A place from whatever a caller gives; a URL is opened with `wd.open`, which knows how stores are reached."""
        if isinstance(source, Place):
            return source
        if not isinstance(source, str | os.PathLike):
            return cls(None, source)
        if "://" in os.fspath(source):
            raise ValueError(f"{source!r} is a URL: open it with wd.open({source!r})")
        path = Path(os.path.abspath(source))
        if not path.exists():
            raise BlobNotFoundError("nothing is there", path=path)
        return cls(path)

    @property
    def name(self) -> str:
        """What to call it in messages."""
        if self.path is not None or self.folder is None:
            return str(self.path) if self.path is not None else ""
        address, mark, settings = self.folder.name.partition("?")
        return f"{address.rstrip('/')}/{self.file}{mark}{settings}" if self.file else self.folder.name

    @property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return bool(self.file) or (self.path is not None and self.path.is_file())

    @property
    def suffix(self) -> str:
        """What the name ends in, in lower case."""
        return PurePosixPath(self.name.partition("?")[0].rstrip("/")).suffix.lower()

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name below."""
        if self.path is not None:
            return self.inside(name).is_file()
        if self.file or self.folder is None:
            return False
        return self.folder.exists(check_inside(name, self.name))

    def open(self, name: str = "") -> RangeReader:
        """The bytes of a file below, or of the file itself; one that is missing is named."""
        if self.path is None:
            assert self.folder is not None
            return self.folder.open(check_inside(name or self.file, self.name))
        # As text: a path of its own for each of the files of each episode would cost more than to open it.
        target = f"{self.path}{os.sep}{check_inside(name, self.name)}" if name else self.path
        try:
            return FileRangeReader(target)
        except FileNotFoundError:
            raise BlobNotFoundError("the file is missing", path=target) from None

    def read(self, name: str = "", *, max_bytes: int = 1 << 30) -> bytes:
        """All bytes of a file that cannot be large."""
        reader = self.open(name)
        try:
            if reader.size > max_bytes:
                raise FormatError(
                    f"{reader.size} bytes; a file of this kind has at most {max_bytes}", path=reader.name
                )
            return bytes(reader.read(0, reader.size))
        finally:
            reader.close()

    def head(self, size: int, name: str = "") -> bytes:
        """The first bytes of a file, fewer where it is short; none where it is missing."""
        try:
            reader = self.open(name)
        except BlobNotFoundError:
            return b""
        try:
            return bytes(reader.read(0, min(size, reader.size)))
        finally:
            reader.close()

    def names(self, under: str = "", *, folders_deep: int | None = None) -> list[str]:
        """The files below a folder of this place, in order; links to folders are not followed.

        `folders_deep` looks no further than into that many folders inside each other.
        """
        if self.file:
            return []
        if self.path is None:
            assert self.folder is not None
            prefix = f"{under}/" if under else ""
            names = (name for name in self.folder.names() if name.startswith(prefix))
            most = math.inf if folders_deep is None else folders_deep
            return sorted(name for name in names if name.removeprefix(prefix).count("/") <= most)
        found = []
        top = self.inside(under) if under else self.path
        for place, folders, files in os.walk(top):
            folders.sort()
            if folders_deep is not None and len(Path(place).relative_to(top).parts) >= folders_deep:
                folders.clear()
            found += [
                os.path.relpath(os.path.join(place, file), self.path).replace(os.sep, "/") for file in files
            ]
        return sorted(found)

    def children(self) -> list[str]:
        """The names directly below, without looking further; none of a file."""
        if self.path is not None:
            return sorted(os.listdir(self.path)) if self.path.is_dir() else []
        return sorted({name.partition("/")[0] for name in self.names()})

    def near(self) -> list[str]:
        """The names directly below, and below the folders there, without looking further."""
        if self.path is None:
            return [name for name in self.names() if name.count("/") <= 1]
        found: list[str] = []
        for name in self.children():
            inner = self.path / name
            is_folder = inner.is_dir() and not inner.is_symlink()
            found += [f"{name}/{each}" for each in sorted(os.listdir(inner))] if is_folder else [name]
        return found

    def inside(self, name: str) -> Path:
        """Where a file below lies on this machine."""
        if self.path is None:
            raise ValueError(f"{self.name} is not on this machine")
        return self.path / check_inside(name, self.name)


def _is_file_name(name: str) -> bool:
    """Whether a file could be called so: JSON can hold half a character, which no file has in its name."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def check_inside(name: str, place: str) -> str:
    """`name` if it stays below its place; an absolute name, one with `..` or what is no name was made to do harm."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if (
        not parts
        or name.startswith(("/", "\\"))
        or ".." in parts
        or "\\" in name
        or "\x00" in name
        or ":" in parts[0]
        or not _is_file_name(name)
    ):
        raise CorruptLayoutError(f"the name {name!r} leads out of its folder", path=place)
    return name
