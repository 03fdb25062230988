"""Location of foreign data: a file or a folder on this machine, or in a store."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.jsontext import MAX_JSON_BYTES, parse_json_object
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, WarpError, naming


@dataclass(frozen=True, slots=True)
class Place:
    """A file or a folder. Names inside are relative, with `/`; one that leads outside is refused."""

    path: Path | None
    """On this machine: a file or a folder."""
    folder: FolderReader | None = None
    """In a store."""
    file: str = ""
    """The one file of `folder` that is meant, if it is one."""

    @classmethod
    def of(cls, source: str | os.PathLike[str] | FolderReader | Place) -> Place:
        """A place from a path or a folder of a store; a URL is opened with `wd.open`."""
        if isinstance(source, Place):
            return source
        if not isinstance(source, str | os.PathLike):
            return cls(None, source)
        if "://" in os.fspath(source):
            raise ValueError(f"{source!r} is a URL: open it with wd.open({source!r})")
        path = Path(os.path.abspath(source))
        if not path.exists():
            raise BlobNotFoundError("no such file or folder", path=path)
        return cls(path)

    @property
    def name(self) -> str:
        """Path or URL, for messages."""
        if self.path is not None or self.folder is None:
            return str(self.path or "")
        address, mark, settings = self.folder.name.partition("?")
        return f"{address.rstrip('/')}/{self.file}{mark}{settings}" if self.file else self.folder.name

    @property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return bool(self.file) or (self.path is not None and self.path.is_file())

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name inside."""
        if self.path is not None:
            return self.inside(name).is_file()
        return not self.file and self.folder is not None and self.folder.exists(check_inside(name, self.name))

    def open(self, name: str = "") -> RangeReader:
        """The bytes of a file inside, or of the file itself."""
        if self.path is None:
            assert self.folder is not None
            return self.folder.open(check_inside(name or self.file, self.name))
        # As text: a Path object for each file of each episode would cost more than to open it.
        target = f"{self.path}{os.sep}{check_inside(name, self.name)}" if name else self.path
        try:
            return FileRangeReader(target)
        except FileNotFoundError:
            raise BlobNotFoundError("the file is missing", path=target) from None

    def read(self, name: str = "", *, max_bytes: int = 1 << 30) -> bytes:
        """All bytes of a file of at most `max_bytes`."""
        with contextlib.closing(self.open(name)) as reader:
            if reader.size > max_bytes:
                fact = f"the file has {reader.size} bytes, expected at most {max_bytes}"
                raise FormatError(fact, path=reader.name)
            return bytes(reader.read(0, reader.size))

    def read_json(self, name: str = "", *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
        """The JSON object in a file of at most `max_bytes`; an error names the file."""
        data = self.read(name, max_bytes=max_bytes)
        with naming(f"{self.name}/{name}" if name else self.name):
            return parse_json_object(data, max_bytes=max_bytes, allow_nan=True)

    def head(self, size: int, name: str = "") -> bytes:
        """The first bytes of a file; fewer if it is short, none if it is missing."""
        with contextlib.suppress(BlobNotFoundError), contextlib.closing(self.open(name)) as reader:
            return bytes(reader.read(0, min(size, reader.size)))
        return b""

    def names(self, under: str = "", *, folders_deep: int | None = None) -> list[str]:
        """The files below a folder of this place, sorted; links to folders are not followed.

        `folders_deep` limits how many folders inside each other are listed.
        """
        if self.file:
            return []
        if self.path is None:
            assert self.folder is not None
            prefix = f"{under}/" if under else ""
            names = (name for name in self.folder.names() if name.startswith(prefix))
            most = math.inf if folders_deep is None else folders_deep
            return sorted(name for name in names if name.removeprefix(prefix).count("/") <= most)
        files = []
        top = self.inside(under) if under else self.path
        for folder, folders, here in os.walk(top):
            folders.sort()
            if folders_deep is not None and len(Path(folder).relative_to(top).parts) >= folders_deep:
                folders.clear()
            files += [os.path.relpath(os.path.join(folder, file), self.path) for file in here]
        return sorted(file.replace(os.sep, "/") for file in files)

    def children(self) -> list[str]:
        """The names directly inside; none of a file."""
        if self.path is not None:
            return sorted(os.listdir(self.path)) if self.path.is_dir() else []
        return sorted({name.partition("/")[0] for name in self.names()})

    def inside(self, name: str) -> Path:
        """Path of a file inside, on this machine."""
        if self.path is None:
            raise ValueError(f"{self.name} is not on this machine")
        return self.path / check_inside(name, self.name)


def check_inside(name: str, place: str) -> str:
    """`name` if it stays inside its place: absolute names, `..` and invalid file names are refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    is_bad = not parts or name.startswith("/") or ".." in parts or ":" in parts[0]
    try:
        os.fsencode(name)  # JSON can hold half a character, which no file name can
    except UnicodeEncodeError:
        is_bad = True
    if is_bad or "\\" in name or "\x00" in name:
        raise CorruptLayoutError(f"the name {name!r} leads out of its folder", path=place)
    return name


@contextlib.contextmanager
def foreign_errors(kinds: tuple[type[BaseException], ...], fact: str, path: str) -> Iterator[None]:
    """Turn the exceptions of a library about damaged bytes into CorruptLayoutError."""
    try:
        yield
    except WarpError:
        raise
    except kinds as error:
        raise CorruptLayoutError(f"{fact} ({str(error)[:200] or type(error).__name__})", path=path) from None
