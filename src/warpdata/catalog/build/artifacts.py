"""Artifacts to publish: folders, tar files and files of any kind as shards; bindings of tables to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.process import system
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.build.tables import expand_paths
from warpdata.catalog.publish.transfer import Upload, Uploads
from warpdata.errors import CorruptLayoutError, DatasetError
from warpdata.formats.manifest.model import TAR_KINDS, Binding, BlobRef
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.tarshard.reader import is_safe_name, scan_members
from warpdata.formats.tarshard.writer import PackOptions, pack_shards
from warpdata.stores.blobstore import DigestedFile, FileDigest, digest_file

_HASH_WORKERS = max(2, min(8, os.cpu_count() or 2))
_COPY_BELOW_BYTES = 16 << 20
"""Smaller files are read at once, so that their checksum is of the bytes that are packed."""
_REF_TYPES = {
    "image": {"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"},
    "audio": {"wav", "flac", "ogg", "mp3", "opus", "aiff"},
    "video": {"mp4", "mkv", "webm", "avi", "mov"},
    "episode": {"wshard"},
}
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


@dataclass(frozen=True, slots=True)
class PackedShard:
    """One file of an artifact; a shard that is not a tar file has a name instead of members."""

    path: Path
    name: str | None
    digest: FileDigest
    """Of the file when it was added."""
    members: tuple[Member, ...] = ()
    is_own: bool = False
    """Whether the builder wrote the file."""


@dataclass(frozen=True, slots=True)
class StagedArtifact:
    """An artifact of a builder; a BlobRef is a shard that is in the catalog already."""

    kind: str
    shards: Sequence[PackedShard | BlobRef]
    members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, (shard, size) in enumerate(zip(self.shards, self.sizes, strict=True)):
            if isinstance(shard, PackedShard) and self.kind in TAR_KINDS:
                self.members.update({member.name: member for member in shard.members})
            else:
                self.members[str(shard.name)] = Member(str(shard.name), number, 0, size, -1)

    @property
    def files(self) -> list[PackedShard]:
        """The shards that are files of this machine."""
        return [shard for shard in self.shards if isinstance(shard, PackedShard)]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each shard."""
        return [s.digest.size if isinstance(s, PackedShard) else s.byte_size for s in self.shards]

    def blobs(self, uploads: Uploads, numbers: Iterable[int] | None = None) -> list[BlobRef]:
        """Its shards, or some of them, as blobs to upload."""
        blobs = []
        for shard in self.shards if numbers is None else [self.shards[number] for number in numbers]:
            if isinstance(shard, PackedShard):
                shard = uploads.add_file(shard.path, shard.digest, is_own=shard.is_own, name=shard.name)
            else:
                uploads.append(Upload(shard.hash, shard.byte_size))
            blobs.append(shard)
        return blobs


def pack_artifact(
    source: Any, kind: str, staging: Path, options: PackOptions | None = None
) -> StagedArtifact:
    """The shards of an artifact: tar files are indexed, folders are packed, other kinds stay files."""
    paths = list_paths(source)
    if kind not in TAR_KINDS:
        files = sorted(pair for path in paths for pair in _files_below(path))
        if not files:
            raise DatasetError("the artifact has no files", path=str(paths[0]))
        return StagedArtifact(kind, whole_files(files))
    if all(path.is_file() and path.suffix == ".tar" for path in paths):
        return StagedArtifact(kind, _index_tars(paths))
    staging.mkdir(parents=True, exist_ok=True)
    packed = pack_shards(_contents(paths), staging, options or PackOptions())
    return StagedArtifact(
        kind, [PackedShard(path, None, digest_file(path), tuple(members), True) for path, members in packed]
    )


def webdataset_rows(shards: Sequence[PackedShard]) -> tuple[list[str], list[dict[str, str]]]:
    """The samples of webdataset shards: extensions in order of appearance, and per sample its members."""
    extensions: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    for member in (member for shard in shards for member in shard.members):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if dot and stem:
            extensions.setdefault(extension.lower())
            key = f"{folder}{slash}{stem}"
            rows.setdefault(key, {"__key__": key})[extension.lower()] = member.name
    return list(extensions), list(rows.values())


def list_paths(source: Any) -> list[Path]:
    """The files and folders of a path, a pattern, or several paths."""
    if isinstance(source, str | os.PathLike):
        path = Path(os.path.expanduser(os.fspath(source)))
        return [path] if path.exists() else expand_paths(source)
    paths = [Path(os.path.expanduser(os.fspath(one))) for one in source]
    if not paths or not all(path.exists() for path in paths):
        raise DatasetError("a file of the artifact does not exist", path=str(paths[:1]))
    return paths


def whole_files(named: Sequence[tuple[str, Path]], *, is_own: bool = False) -> list[PackedShard]:
    """Files with their names as shards, in this order; names must be unique and safe."""
    seen: set[str] = set()
    for name, path in named:
        if name in seen:
            raise CorruptLayoutError(f"two files of the artifact are called {name!r}", path=path)
        if not is_safe_name(name):
            raise CorruptLayoutError(f"unsafe file name {name!r}", path=path)
        seen.add(name)
    digests = digest_files([path for _, path in named])
    return [
        PackedShard(path, name, digest, is_own=is_own)
        for (name, path), digest in zip(named, digests, strict=True)
    ]


def digest_files(paths: Sequence[Path]) -> list[FileDigest]:
    """Hash files, several at a time."""
    return map_in_threads(digest_file, paths, workers=_HASH_WORKERS)


def _contents(paths: Sequence[Path]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every file below the folders (and the files themselves), by sorted relative name."""
    files: dict[str, Path] = {}
    for path in paths:
        for name, file in _files_below(path):
            if name in files:
                raise CorruptLayoutError(f"two files would be called {name!r}", path=file)
            files[name] = file
    if not files:
        raise DatasetError("the artifact has no files", path=str(paths[0]))

    def read(path: Path) -> Any:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size < _COPY_BELOW_BYTES else system.map_to_read(file.fileno(), size)

    for name in sorted(files):
        yield name, lambda path=files[name]: read(path)  # type: ignore[misc]


def _files_below(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            relative = file.relative_to(path).as_posix()
            if file.is_symlink() or not file.is_file():
                raise CorruptLayoutError("links and devices cannot be published", path=file)
            is_unicode = relative.encode("utf-8", "replace").decode() == relative
            if not is_safe_name(relative) or not is_unicode:
                raise CorruptLayoutError(f"unsafe file name {relative!r}", path=file)
            yield relative, file


def _index_tars(paths: Sequence[Path]) -> list[PackedShard]:
    """Tar files as they are, with their members and checksums."""
    shards, seen = [], set()
    for number, (path, digest) in enumerate(zip(paths, digest_files(paths), strict=True)):
        with DigestedFile(path, digest) as reader:
            members = tuple(
                Member(m.name, number, m.offset, m.length, crc32c(reader.read(m.offset, m.offset + m.length)))
                for m in scan_members(reader)
            )
        for member in members:
            if member.name in seen:
                raise CorruptLayoutError(f"member {member.name!r} is in two shards", path=path)
            seen.add(member.name)
        shards.append(PackedShard(path, None, digest, members))
    return shards


def default_ref_type(extension: str) -> str:
    """The type of references to files with an extension."""
    last = extension.rpartition(".")[2].lower()
    return next((kind for kind, known in _REF_TYPES.items() if last in known), "file")


def check_binding(
    binding: Binding,
    columns: Iterable[pa.Array],
    has_members: Callable[[Sequence[str]], Sequence[bool]],
    shard_sizes: Sequence[int],
) -> None:
    """DatasetError for the first value of a bound column that names no member, or that is outside its shard."""
    for values in columns:
        if binding.addressing == "range":
            _check_ranges(binding, values, shard_sizes)
            continue
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if not any(test(values.type) for test in _TEXTS):
            raise DatasetError(f"column {binding.column!r} holds {values.type}, not names of members")
        values = values.cast(pa.large_string()).drop_null()
        names = pc.unique(values)
        known = names.filter(pa.array(list(has_members(names.to_pylist())), pa.bool_()))
        dangling = values.filter(pc.invert(pc.is_in(values, value_set=known)))
        if len(dangling):
            fact = f"{len(dangling)} values of {binding.table}.{binding.column} name no member of {binding.artifact!r}"
            hint = "Correct the column or the files."
            raise DatasetError(f"{fact}, the first is {dangling[0].as_py()!r}", hint=hint)


def _check_ranges(binding: Binding, values: pa.Array, shard_sizes: Sequence[int]) -> None:
    names = {"shard", "offset", "length"}
    if not pa.types.is_struct(values.type) or not names <= {field.name for field in values.type}:
        raise DatasetError(f"column {binding.column!r} is not a struct of shard, offset and length")
    for value in values.drop_null().to_pylist():
        shard, start, length = value["shard"], value["offset"], value["length"]
        good = None not in (shard, start, length) and 0 <= shard < len(shard_sizes)
        if not good or start < 0 or length < 0 or start + length > shard_sizes[shard]:
            raise DatasetError(
                f"{binding.table}.{binding.column} points outside {binding.artifact!r}: {value}"
            )
