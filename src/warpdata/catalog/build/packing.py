"""What a builder accepts as an artifact: folders, tar files and files of any kind, as shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.process import system
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.build.sources import expand_paths
from warpdata.errors import CorruptLayoutError, DatasetError
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.tarshard.reader import is_safe_name, scan_members
from warpdata.formats.tarshard.writer import PackOptions, pack_shards
from warpdata.stores.blobstore import DigestedFile, FileDigest, digest_file

_KEY_SPLIT = "."
_HASH_WORKERS = max(2, min(8, os.cpu_count() or 2))
_COPY_BELOW_BYTES = 16 << 20
"""Smaller files are read at once, so that their sum is of the very bytes that are packed."""


@dataclass(frozen=True, slots=True)
class PackedShard:
    """One shard of an artifact on this disk; opaque shards have a name instead of members."""

    path: Path
    name: str | None
    digest: FileDigest
    """What the file was when it was added: everything said of it is about these bytes."""
    members: tuple[Member, ...] = ()


Finished = Callable[[Path, FileDigest], None]
"""Told of every file that was written and hashed; it may take it away."""


def pack_artifact(
    source: Any, *, is_tar: bool, staging: Path, finished: Finished, options: PackOptions | None = None
) -> list[PackedShard]:
    """The shards of an artifact: tar files are indexed, folders are packed, other kinds stay files."""
    paths = listed(source)
    if not is_tar:
        return _opaque(paths)
    if all(path.is_file() and path.suffix == ".tar" for path in paths):
        return _indexed(paths)
    staging.mkdir(parents=True, exist_ok=True)
    packed = pack_shards(_files(paths), staging, options or PackOptions())
    shards = []
    for path, members in packed:
        shards.append(PackedShard(path, None, digest_file(path), tuple(members)))
        finished(path, shards[-1].digest)
    return shards


def webdataset_rows(shards: Sequence[PackedShard]) -> tuple[list[str], list[dict[str, str]]]:
    """The samples of webdataset shards: extensions in order of appearance, and per sample its members."""
    extensions: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    for shard in shards:
        for member in shard.members:
            folder, slash, base = member.name.rpartition("/")
            stem, dot, extension = base.partition(_KEY_SPLIT)
            if not dot or not stem:
                continue
            extensions.setdefault(extension.lower())
            key = f"{folder}{slash}{stem}"
            rows.setdefault(key, {"__key__": key})[extension.lower()] = member.name
    return list(extensions), list(rows.values())


def listed(source: Any) -> list[Path]:
    """The files and folders a caller means: a path, a pattern, or several paths."""
    if isinstance(source, str | os.PathLike):
        path = Path(os.path.expanduser(os.fspath(source)))
        return [path] if path.exists() else expand_paths(source, "")
    found = [Path(os.path.expanduser(os.fspath(one))) for one in source]
    if not found or not all(path.exists() for path in found):
        raise DatasetError("a file of the artifact does not exist", path=str(found[:1]))
    return found


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every file below the folders (and the files themselves), by sorted relative name."""
    found: dict[str, Path] = {}
    for path in paths:
        for name, file in _below(path):
            if name in found:
                raise CorruptLayoutError(f"two files would be called {name!r}", path=file)
            found[name] = file
    _check_any(found, paths)
    for name in sorted(found):
        yield name, lambda file=found[name]: _mapped(file)  # type: ignore[misc]


def _below(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            relative = file.relative_to(path).as_posix()
            if file.is_symlink() or not file.is_file():
                raise CorruptLayoutError("links and devices cannot be published", path=file)
            if not is_safe_name(relative) or not _is_unicode(relative):
                raise CorruptLayoutError(f"unsafe file name {relative!r}", path=file)
            yield relative, file


def _is_unicode(name: str) -> bool:
    """Whether a name of a file can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _COPY_BELOW_BYTES:
            return file.read()
        return system.map_to_read(file.fileno(), size)


def _indexed(paths: Sequence[Path]) -> list[PackedShard]:
    """Tar files as they are, with their members found and summed."""
    shards, seen = [], set()
    for number, (path, digest) in enumerate(zip(paths, digested(paths), strict=True)):
        with DigestedFile(path, digest) as reader:
            members = [
                Member(m.name, number, m.offset, m.length, crc32c(reader.read(m.offset, m.offset + m.length)))
                for m in scan_members(reader)
            ]
        for member in members:
            if member.name in seen:
                raise CorruptLayoutError(f"member {member.name!r} is in two shards", path=path)
            seen.add(member.name)
        shards.append(PackedShard(path, None, digest, tuple(members)))
    return shards


def _opaque(paths: Sequence[Path]) -> list[PackedShard]:
    found = sorted(pair for path in paths for pair in _below(path))
    _check_any(found, paths)
    return whole_files(found)


def _check_any(found: Collection[Any], paths: Sequence[Path]) -> None:
    if not found:
        raise DatasetError("the artifact has no files", path=str(paths[0]))


def whole_files(named: Sequence[tuple[str, Path]]) -> list[PackedShard]:
    """Files under their names as shards, in this order."""
    check_names(named)
    digests = digested([path for _, path in named])
    return [PackedShard(path, name, digest) for (name, path), digest in zip(named, digests, strict=True)]


def check_names(named: Sequence[tuple[str, Path]]) -> None:
    """CorruptLayoutError unless the names are all different and safe."""
    seen: set[str] = set()
    for name, path in named:
        if name in seen:
            raise CorruptLayoutError(f"two files of the artifact are called {name!r}", path=path)
        if not is_safe_name(name):
            raise CorruptLayoutError(f"unsafe file name {name!r}", path=path)
        seen.add(name)


def digested(paths: Sequence[Path]) -> list[FileDigest]:
    """Hash files, several at a time."""
    return map_in_threads(digest_file, paths, workers=_HASH_WORKERS)
