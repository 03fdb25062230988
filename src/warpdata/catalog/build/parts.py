"""Parts of a version: artifacts and tables, new or added to those of an older one. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.commit import is_safe_name
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process import system
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, DatasetName, writable_store
from warpdata.catalog.build.tables import ParquetOptions, ParquetShard, expand_paths, write_shards
from warpdata.catalog.dataset import Dataset, open_version
from warpdata.catalog.publish.publish import (
    Published,
    PublishOptions,
    Upload,
    Uploads,
    publish,
    upload_file,
    upload_read,
    utc_now,
)
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.episodes import EPISODES_TABLE
from warpdata.episodes.collection.facts import joined_tables, table_of
from warpdata.errors import ConflictError, CorruptLayoutError, DatasetError
from warpdata.formats.gamsae import layout as corpus_layout
from warpdata.formats.gamsae.corpus import parse_corpus
from warpdata.formats.manifest import model
from warpdata.formats.manifest.codec import pack_guide
from warpdata.formats.manifest.model import packed_shards, with_added, with_tail
from warpdata.formats.rvf.verify import goes_on_from
from warpdata.formats.tarshard.member_index import Member, pack_index
from warpdata.formats.tarshard.reader import scan_members
from warpdata.formats.tarshard.writer import PackOptions, pack_shards
from warpdata.sql.columns import schema_fields, schema_from_base64, schema_to_base64
from warpdata.stores.blobstore import FileDigest, check_unchanged, digest_file

_HASH_WORKERS = max(2, min(8, os.cpu_count() or 2))
_COPY_BELOW_BYTES = 16 << 20
"""Smaller files are read at once, so that their checksum is of the bytes that are packed."""
_EXTENSIONS = {
    "image": "jpg jpeg png webp bmp gif tif tiff ppm pgm",
    "audio": "wav flac ogg mp3 opus aiff",
    "video": "mp4 mkv webm avi mov",
    "episode": "wshard",
}
REF_TYPE_OF = {extension: kind for kind, known in _EXTENSIONS.items() for extension in known.split()}
"""The types of references to files by their extensions."""
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


class StagedArtifact:
    """An artifact of a builder; a BlobRef is a shard that is in the catalog already."""

    def __init__(self, kind: str, shards: Sequence[PackedShard | model.BlobRef]) -> None:
        self.kind = kind
        self.shards = shards
        self.files = [shard for shard in shards if isinstance(shard, PackedShard)]
        """The shards that are files of this machine."""
        self.sizes = [s.digest.size if isinstance(s, PackedShard) else s.byte_size for s in shards]
        self.members: dict[str, Member] = {}
        for number, (shard, size) in enumerate(zip(shards, self.sizes, strict=True)):
            if isinstance(shard, PackedShard) and kind in model.TAR_KINDS:
                self.members |= {member.name: member for member in shard.members}
            else:
                self.members[str(shard.name)] = Member(str(shard.name), number, 0, size, -1)

    def blobs(self, uploads: Uploads, numbers: Iterable[int] | None = None) -> list[model.BlobRef]:
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
    if kind not in model.TAR_KINDS:
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
    digests = map_in_threads(digest_file, [path for _, path in named], _HASH_WORKERS)
    return [
        PackedShard(path, name, digest, is_own=is_own)
        for (name, path), digest in zip(named, digests, strict=True)
    ]


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
                raise CorruptLayoutError(f"unsafe file name {relative!r}", path=file, hint="Rename the file.")
            yield relative, file


def _index_tars(paths: Sequence[Path]) -> list[PackedShard]:
    """Tar files as they are, with their members and checksums."""
    shards, seen = [], set()
    digests = map_in_threads(digest_file, paths, _HASH_WORKERS)
    for number, (path, digest) in enumerate(zip(paths, digests, strict=True)):
        with FileRangeReader(path) as reader:
            members = tuple(
                member._replace(crc32c=crc32c(reader.read(*member.read_range)))
                for member in scan_members(reader, number)
            )
        for member in members:
            if member.name in seen:
                raise CorruptLayoutError(f"member {member.name!r} is in two shards", path=path)
            seen.add(member.name)
        shards.append(PackedShard(path, None, digest, members))
    return shards


def check_binding(
    binding: model.Binding,
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


def _check_ranges(binding: model.Binding, values: pa.Array, shard_sizes: Sequence[int]) -> None:
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


_CLOSED_BYTES = 1 << 20
"""A shard of the table of episodes of this size is never written again."""
_ABSORB_ROWS = 4
"""A smaller one is written again with the new rows while it has at most so many times as many rows."""
_HASHED_BYTES = 8 << 20
_CORPUS_DOCUMENTS = {corpus_layout.CORPUS_JSON, corpus_layout.ROWS_PARQUET}
"""Files that describe all others of a corpus: additions bring new ones."""


def publish_part(
    dataset: Dataset,
    name: str,
    kind: str,
    shards_for: Callable[[Dataset], Sequence[model.BlobRef]],
    early: Sequence[Upload],
    options: PublishOptions,
) -> Published:
    """Publish the newest version of a dataset with these shards as one artifact, added or replaced.

    `shards_for` chooses them, given that version; `early` are the blobs of those that are new.
    """
    check_free(dataset, name, kind)

    def build(version: str | None) -> tuple[model.Manifest, list[Upload]]:
        if version is None:
            raise DatasetError("the dataset is gone", path=dataset.id)
        base = open_version(access, access.catalogs[0], DatasetName(dataset.id), version)
        check_free(base, name, kind)
        uploads = Uploads(early)
        shards = sorted(shards_for(base), key=lambda shard: str(shard.name))
        part = model.ArtifactPart(kind, uploads.add_list(packed_shards(tuple(shards))))
        artifacts = {**base.manifest.artifacts, name: part}
        notes = inherited_notes(base)
        return replace(base.manifest, artifacts=artifacts, created_at=utc_now(), metadata=notes), uploads

    options_here = replace(dataset.access.options, catalogs=(dataset.catalog.given,))
    with contextlib.closing(Access(options_here)) as access:
        return publish(writable_store(access), DatasetName(dataset.id), build, options, early)


def publish_files(
    dataset: Dataset, name: str, kind: str, files: Mapping[str, Path], options: PublishOptions
) -> Published:
    """Publish the newest version of a dataset with these files, by their names, as one artifact."""
    uploads = Uploads()
    shards = [uploads.add_file(p, digest_file(p), is_own=False, name=member) for member, p in files.items()]
    return publish_part(dataset, name, kind, lambda _: shards, uploads, options)


def check_free(dataset: Dataset, name: str, kind: str) -> None:
    """DatasetError if another part than such an artifact has the name."""
    held = dataset.manifest.artifacts.get(name)
    if (held is not None and held.kind != kind) or name in dataset.manifest.tables:
        raise DatasetError(f"there is a part called {name!r} that is no {kind}", hint="Choose another name.")


def inherited_notes(base: Dataset) -> dict[str, Any]:
    """The notes of a version, but for those that are about it alone."""
    return {key: value for key, value in base.manifest.metadata.items() if key not in ("message", "parent")}


def new_artifact(staged: StagedArtifact, uploads: Uploads) -> model.ArtifactPart:
    """An artifact of a builder as part of a manifest."""
    shards = uploads.add_list(packed_shards(tuple(staged.blobs(uploads))))
    indexes = (
        (_member_index(list(staged.members.values()), uploads),) if staged.kind in model.TAR_KINDS else ()
    )
    return model.ArtifactPart(staged.kind, shards, indexes)


def grow_artifact(
    artifact: Artifact, staged: StagedArtifact, *, by_number: bool, uploads: Uploads
) -> model.ArtifactPart:
    """An artifact of a version with more shards; shards that are there already are not added again.

    `by_number`: references count its shards, so new ones come last.
    """
    part = artifact.part
    if part.kind != staged.kind:
        fact = f"artifact {artifact.name!r} is of kind {part.kind}, not {staged.kind}"
        raise DatasetError(fact, hint="Add it under another name.")
    if part.is_tar:
        return _grow_tars(artifact, staged, by_number, uploads)
    if part.kind == model.VECTOR_KIND:
        return _grow_vectors(artifact, staged.files, uploads)
    added = staged.blobs(uploads)
    shards: Sequence[model.BlobRef] = part.shards
    if part.kind == model.CORPUS_KIND:
        _check_corpus(artifact, staged)
        replaced = _CORPUS_DOCUMENTS & {str(shard.name) for shard in added}
        if replaced:
            shards = tuple(shard for shard in shards if shard.name not in replaced)
    return replace(part, shards=uploads.add_list(with_added(shards, added, at_end=by_number)))


def _check_corpus(artifact: Artifact, staged: StagedArtifact) -> None:
    """ConflictError unless the description of new shards of a corpus still lists those that are there."""
    files = {shard.name: shard for shard in staged.files}
    document, listed = files.get(corpus_layout.CORPUS_JSON), {}
    if document is not None:
        with FileRangeReader(document.path) as reader:
            record = parse_corpus(bytes(reader.read(0, reader.size)), str(document.path))
        listed = {shard.name: shard.sha256 for shard in record.shards}
    elif not artifact.has([corpus_layout.CORPUS_JSON])[0]:
        return  # shards without a description
    for shard in artifact.part.shards:
        name = str(shard.name)
        if name.endswith(corpus_layout.SHARD_SUFFIX) and listed.get(name) != shard.hash:
            fact = f"corpus {artifact.name!r} has a shard {name!r} that the new corpus.json does not list"
            hint = "Append to the corpus with CorpusWriter.reopen in its folder, and add that folder."
            raise ConflictError(fact, hint=hint)


def _grow_tars(
    artifact: Artifact, staged: StagedArtifact, by_number: bool, uploads: Uploads
) -> model.ArtifactPart:
    """The tar files of a version and those that have new members; the new members get an index of their own."""
    held = artifact.part
    members = list(staged.members.values())
    names = [member.name for member in members]
    there = [name for name, has in zip(names, artifact.has(names), strict=True) if has]
    known = {member.name: member for member in artifact.find(there)}
    for member in members:
        other = known.get(member.name, member)
        if (other.length, other.crc32c) != (member.length, member.crc32c):
            fact = f"artifact {artifact.name!r} has a member {member.name!r} already, with other bytes"
            raise ConflictError(fact, hint="Give the new file another name.")
    fresh = [member for member in members if member.name not in known]
    used = list(range(len(staged.shards))) if by_number else sorted({member.shard for member in fresh})
    count = len(held.shards)
    shards = uploads.add_list(with_tail(held.shards, count, staged.blobs(uploads, used)))
    if not fresh:
        return replace(held, shards=shards)
    position = {number: count + at for at, number in enumerate(used)}
    merged = [member._replace(shard=position[member.shard]) for member in fresh]
    refs, indexes = list(held.indexes), artifact.indexes
    # An index elsewhere would need an address, and only a single one has one. Smaller ones are merged: there are few.
    is_elsewhere = any(ref.is_elsewhere for ref in refs)
    while refs and (is_elsewhere or refs[-1].member_count <= _ABSORB_ROWS * len(merged)):
        refs.pop()
        merged = [*indexes[len(refs)].all(), *merged]
    return replace(held, shards=shards, indexes=(*refs, _member_index(merged, uploads)))


def _member_index(members: Sequence[Member], uploads: Uploads) -> model.MemberIndexRef:
    data, buckets = pack_index(members)
    blob = uploads.add_bytes(data)
    return model.MemberIndexRef(blob.hash, blob.byte_size, bucket_count=buckets, member_count=len(members))


def _grow_vectors(artifact: Artifact, shards: Sequence[PackedShard], uploads: Uploads) -> model.ArtifactPart:
    """Vector files of an artifact as they are now, and new ones; a file that lacks vectors is a ConflictError.

    Of a file that was only appended to, the end is sent; one that was rewritten (an index, fewer bytes) whole.
    """
    held = artifact.part.shards
    files = {file: [held[position] for position in parts] for file, parts in model.vector_files(held).items()}
    for shard in shards:
        file = str(shard.name)
        check_unchanged(shard.path, shard.digest)
        known = files.get(file, [])
        with FileRangeReader(shard.path) as reader:
            kept, start = [], 0
            for part in known:
                end = start + part.byte_size
                if end > reader.size or _sha256(reader, start, end) != part.hash:
                    break
                kept.append(part)
                start = end
            if len(kept) < len(known):
                if not goes_on_from(reader, artifact.member_reader(file)):
                    raise ConflictError(
                        f"{file!r} of artifact {artifact.name!r} is there already, and the new file lacks vectors"
                        " that it has",
                        path=reader.name,
                        hint="Nothing was published. Add the vectors to the file of the newest version (`warp cat"
                        " --artifact … --ref …`); to replace it, keep() the other parts and add this one.",
                    )
                kept, start = [], 0
            files[file] = _append_part(shard, reader, kept, start, uploads)
    return replace(artifact.part, shards=model.list_vector_files(files))


def _append_part(
    shard: PackedShard, reader: RangeReader, kept: list[model.BlobRef], start: int, uploads: Uploads
) -> list[model.BlobRef]:
    """The parts of a vector file: those that are kept, and one for the rest.

    A part at the end that is no larger than the rest is sent again with it, so there are always few.
    """
    if start == reader.size:
        return kept
    while kept and kept[-1].byte_size <= reader.size - start:
        start -= kept.pop().byte_size
    if not kept:
        uploads.append(upload_file(shard.path, shard.digest, is_staged=False))
        return [model.BlobRef(shard.digest.sha256, shard.digest.size)]
    rest = model.BlobRef(_sha256(reader, start, reader.size), reader.size - start)

    def read(low: int, high: int) -> memoryview:
        with FileRangeReader(shard.path) as file:
            return file.read(start + low, start + high)

    uploads.append(upload_read(read, reader.name, rest))
    return [*kept, rest]


def _sha256(reader: RangeReader, start: int, end: int) -> str:
    running = RunningSha256()
    for at in range(start, end, _HASHED_BYTES):
        running.update(reader.read(at, min(at + _HASHED_BYTES, end)))
    return running.hexdigest()


def new_table(files: Sequence[ParquetShard], uploads: Uploads, *, one_guide: bool = True) -> model.TablePart:
    """A table of files as part of a manifest, with one guide for all of them or one for each."""
    schema = files[0].schema
    listed = uploads.add_list(packed_shards(tuple(_table_shards(files, uploads, guided=not one_guide))))
    guide = uploads.add_bytes(pack_guide([file.guide for file in files])) if one_guide else None
    return model.TablePart(listed, tuple(schema_fields(schema)), schema_to_base64(schema), guide)


def _table_shards(
    files: Iterable[ParquetShard], uploads: Uploads, *, guided: bool = True
) -> Iterator[model.TableShard]:
    for file in files:
        blob = uploads.add_file(file.path, file.digest, is_own=file.is_own)
        guide = uploads.add_bytes(pack_guide([file.guide])) if guided else None
        yield model.TableShard(blob.hash, blob.byte_size, row_count=file.rows, guide=guide)


def grow_table(
    name: str,
    base: Dataset,
    files: Sequence[ParquetShard],
    staging: Path,
    uploads: Uploads,
    *,
    add_columns: bool,
) -> model.TablePart:
    """A table of a version with more rows; rows of another schema are cast without loss.

    With new columns all rows of the table are written again.
    """
    held = base.manifest.tables[name]
    own = schema_from_base64(held.schema_ipc)
    if files[0].schema.equals(own):
        return _with_tail(name, base, len(held.shards), files, uploads)
    schema = _join_schemas(name, own, files[0].schema, add_columns=add_columns)
    rows: Iterator[Any] = (_fit_batch(name, batch, schema) for file in files for batch in file.batches())
    if schema.equals(own):
        tail = _written(pa.RecordBatchReader.from_batches(schema, rows), staging)
        return _with_tail(name, base, len(held.shards), tail, uploads)
    older = (batch for table in base.table(name).row_groups() for batch in table.to_batches())
    rows = itertools.chain((_fit_batch(name, batch, schema) for batch in older), rows)
    written = _written(pa.RecordBatchReader.from_batches(schema, rows), staging)
    return new_table(written, uploads, one_guide=False)


def _written(reader: pa.RecordBatchReader, staging: Path) -> list[ParquetShard]:
    return [ParquetShard.read(path, is_own=True) for path in write_shards(reader, staging, ParquetOptions())]


def grow_episodes(
    base: Dataset, rows: Sequence[Mapping[str, Any]], staging: Path, uploads: Uploads
) -> model.TablePart:
    """The table of all episodes with more rows; small files at its end are written again with them."""
    new, held = table_of([dict(row) for row in rows]), base.manifest.tables[EPISODES_TABLE]
    table = base.table(EPISODES_TABLE)
    fitted = _fit_facts(new, schema_from_base64(held.schema_ipc))
    if fitted is None:  # new columns: every row gets them
        whole = joined_tables([table.rows_together(), new])
        return new_table(_written(whole.to_reader(), staging), uploads, one_guide=False)
    kept, count = len(held.shards), fitted.num_rows
    while kept:
        last = held.shards[kept - 1]
        if last.byte_size >= _CLOSED_BYTES or last.row_count > _ABSORB_ROWS * count:
            break
        kept, count = kept - 1, count + last.row_count
    older = []
    for number in range(kept, len(held.shards)):
        file = table.files.file(number)
        older += [file.read(group, None) for group in range(len(file.group_rows))]
    tail = _written(pa.concat_tables([*older, fitted]).to_reader(), staging)
    return _with_tail(EPISODES_TABLE, base, kept, tail, uploads)


def _fit_facts(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Rows in a schema; None if they have values in a column that it lacks or has with another type."""
    for name in table.column_names:
        differs = name not in schema.names or schema.field(name).type != table.schema.field(name).type
        if differs and table.column(name).null_count < table.num_rows:
            return None
    columns = [
        table.column(field.name)
        if field.name in table.column_names and table.schema.field(field.name).type == field.type
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _with_tail(
    name: str, base: Dataset, kept: int, files: Sequence[ParquetShard], uploads: Uploads
) -> model.TablePart:
    """A table with its first shards and others; from here on each shard has a guide of its own."""
    held, tail = base.manifest.tables[name], list(_table_shards(files, uploads))
    if held.guide is None:
        return replace(held, shards=uploads.add_list(with_tail(held.shards, kept, tail)))
    guides = map_in_threads(base.table(name).files.guide, range(kept))
    own = [
        replace(shard, uri=None, guide=None if guide is None else uploads.add_bytes(pack_guide([guide])))
        for shard, guide in zip(held.shards[:kept], guides, strict=True)
    ]
    shards = uploads.add_list(packed_shards((*own, *tail)))
    return replace(held, shards=shards, guide=None)


_types = pa.types
_FAMILIES = re.compile(
    r"(?P<number>u?int|float|double|halffloat|decimal)|(?P<text>(?:large_)?string)|(?P<date>date)|(?P<time>time\d)"
    r"|(?P<bytes>(?:large_|fixed_size_)?binary)|(?P<timestamp>timestamp)|(?P<duration>duration)"
)
"""Families of types by the beginnings of their names: values may fit another type of the family."""


def _join_schemas(name: str, held: pa.Schema, new: pa.Schema, *, add_columns: bool) -> pa.Schema:
    """The schema of a table and of rows that join it; DatasetError naming the first column that does not fit."""
    for schema in (held, new):
        if len(set(schema.names)) < len(schema.names):
            raise DatasetError(f"table {name!r} has two columns of one name, so that no rows can join it")
    columns = []
    for column in held:
        if column.name not in new.names and add_columns:
            column = column.with_nullable(True)
        elif column.name not in new.names:
            raise _misfit(name, f"column {column.name!r} is missing")
        elif not _is_castable(new.field(column.name).type, column.type):
            fact = f"column {column.name!r}: expected {column.type}, got {new.field(column.name).type}"
            raise _misfit(name, fact)
        columns.append(column)
    added = [column.with_nullable(True) for column in new if column.name not in held.names]
    if added and not add_columns:
        raise _misfit(name, f"unknown column {added[0].name!r}")
    return pa.schema([*columns, *added])


def _fit_batch(name: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in another schema; missing columns are null, and a value that would change is a DatasetError."""
    columns = []
    for to in schema:
        is_there = to.name in batch.schema.names
        values = batch.column(to.name) if is_there else pa.nulls(batch.num_rows, to.type)
        try:
            columns.append(cast_exactly(values, to.type))
        except (pa.ArrowException, ValueError) as error:
            fact = f"column {to.name!r}: {values.type} does not fit {to.type} without loss ({error})"
            raise _misfit(name, fact) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_exactly(column: Any, target: pa.DataType) -> Any:
    """A column as another type; ValueError if a value would change."""
    if column.type == target:
        return column
    if _types.is_dictionary(column.type):
        return cast_exactly(column.cast(column.type.value_type), target)
    if _types.is_null(column.type) or column.null_count == len(column):
        return pa.nulls(len(column), target)
    if _types.is_dictionary(target):
        return cast_exactly(column, target.value_type).dictionary_encode().cast(target)
    if _types.is_struct(column.type) and _types.is_struct(target):
        fields = [cast_exactly(pc.struct_field(column, field.name), field.type) for field in target]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=mask)
    if _types.is_null(getattr(column.type, "value_type", None) or column.type) and not len(
        pc.list_flatten(column)
    ):
        return pa.array([None if value is None else [] for value in column.to_pylist()], target)
    converted = column.cast(target)
    back = converted.cast(column.type)
    if _types.is_floating(column.type):  # NaN does not equal itself
        back, column = (pc.if_else(pc.is_nan(values), None, values) for values in (back, column))
    if not back.equals(column):
        raise ValueError("a value would change")
    return converted


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of a type may fit another one."""
    source, target = (kind.value_type if _types.is_dictionary(kind) else kind for kind in (source, target))
    if source == target or _types.is_null(source):
        return True
    if _types.is_timestamp(source) and _types.is_timestamp(
        target
    ):  # a time of day is no moment without its zone
        return (source.tz is None) == (target.tz is None)
    if hasattr(source, "value_field") and hasattr(target, "value_field"):  # lists
        return _is_castable(source.value_type, target.value_type)
    if _types.is_struct(source) and _types.is_struct(target):
        held = {field.name: field.type for field in source}
        return sorted(f.name for f in source) == sorted(f.name for f in target) and all(
            _is_castable(held[field.name], field.type) for field in target
        )
    families = [_FAMILIES.match(str(kind)) for kind in (source, target)]
    return None not in families and len({family and family.lastgroup for family in families}) == 1


def _misfit(name: str, fact: str) -> DatasetError:
    hint = "Convert the rows to the schema of the table, or call extend(add_columns=True) to add columns."
    return DatasetError(f"the new rows do not fit table {name!r}: {fact}", hint=hint)
