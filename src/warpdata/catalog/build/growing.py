"""A version that goes on from the newest one: what is added joins what is there, and nothing else is touched.

Publishing so costs what is added, not what is there; and whoever is overtaken builds on the newer version again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, writable_catalog
from warpdata.catalog.build.fitting import fit_batch, joined_schema
from warpdata.catalog.build.packing import digested
from warpdata.catalog.build.recordings import episodes_table
from warpdata.catalog.build.sources import ParquetFacts, ParquetOptions, parquet_facts, write_shards
from warpdata.catalog.dataset import Dataset, opened_version
from warpdata.catalog.names import DatasetName, check_tag
from warpdata.catalog.publish.pointer import read_pointer
from warpdata.catalog.publish.publish import Published, PublishOptions, pause, publish_after, with_early
from warpdata.catalog.publish.transfer import Upload, send, upload_bytes, upload_file
from warpdata.catalog.read.artifact_contents import EPISODES_TABLE
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.rowgroups import schema_fields, schema_from_base64, schema_to_base64
from warpdata.episodes.collection.facts import joined_tables
from warpdata.errors import ConflictError, DatasetError, PointerMovedError
from warpdata.formats.gamsae import layout as corpus_layout
from warpdata.formats.gamsae.corpus import CorpusRecord
from warpdata.formats.manifest.fields import blob_of, table_shard_of
from warpdata.formats.manifest.guide import ShardGuide, pack_guide
from warpdata.formats.manifest.model import (
    CORPUS_KIND,
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
)
from warpdata.formats.manifest.parts import Packed, find_shard, with_added, with_tail
from warpdata.formats.tarshard.member_index import Member, pack_index
from warpdata.stores.blobstore import FileDigest

_CLOSED_BYTES = 1 << 20
"""A shard of the table of episodes that is as large is left alone for ever."""

_ABSORB_ROWS = 4
"""A smaller one before the new rows is written anew with them while it has at most so many times as many rows."""

Build = Callable[["Dataset | None"], "tuple[Manifest, list[Upload]]"]
"""The version that goes on from another one, or the first one, and the blobs that may be new."""


def publish_grown(
    access: Access, name: DatasetName, build: Build, early: Sequence[Upload], options: PublishOptions
) -> Published:
    """Publish what goes on from the newest version; when that is overtaken, go on from the newer one.

    `early` are the blobs that are needed in any case: they are sent first.
    """
    for tag in options.tags:
        check_tag(tag)
    catalog = writable_catalog(access)
    store = catalog.store
    assert store is not None
    sent = send(store, early, progress=options.progress, workers=options.workers).uploads
    for attempt in range(options.retries + 1):
        try:
            seen = read_pointer(store, name.latest_key)
            newest = None if seen.pointer is None else seen.pointer.version
            base = None if newest is None else opened_version(access, catalog, name, newest)
            manifest, uploads = build(base)
            if attempt < options.retries and read_pointer(store, name.latest_key).pointer != seen.pointer:
                pause(
                    attempt
                )  # another publisher was faster: store no version that would not become the latest
                continue
            bases = () if base is None else (name.version_key(base.version),)
            given = replace(options, retries=0, bases=bases)
            return with_early(publish_after(store, name, seen, manifest, uploads, given), sent)
        except PointerMovedError:
            if attempt == options.retries:
                raise
            pause(attempt)
    raise AssertionError("the last attempt returns or raises")


def grown_artifact(
    name: str, base: Dataset, kind: str, added: Sequence[BlobRef], uploads: list[Upload]
) -> ArtifactPart:
    """An artifact of a version with more shards; what is there with the same bytes is not added again."""
    held = base.manifest.artifacts[name]
    _check_kind(name, held, kind)
    by_number = any(b.artifact == name and b.addressing == "range" for b in base.manifest.bindings)
    packed = with_added(_without_documents(held, added), added, blob_of, at_end=by_number)
    uploads += [upload_bytes(data) for data in packed.blobs.values()]
    return replace(held, shards=packed.shards)


_DOCUMENTS = {CORPUS_KIND: {corpus_layout.CORPUS_JSON, corpus_layout.ROWS_PARQUET}}
"""Files that speak of all others of their artifact: what is added brings them anew."""


def _without_documents(held: ArtifactPart, added: Sequence[BlobRef]) -> Sequence[BlobRef]:
    """The shards of an artifact but for those that are brought anew."""
    anew = _DOCUMENTS.get(held.kind, set()) & {str(shard.name) for shard in added}
    return held.shards if not anew else tuple(shard for shard in held.shards if shard.name not in anew)


def check_grown_corpus(name: str, held: ArtifactPart, record: CorpusRecord | None) -> None:
    """Raise unless the description that comes with new shards of a corpus still lists those that are there."""
    if record is None and find_shard(held.shards, corpus_layout.CORPUS_JSON) is None:
        return  # shards that nothing describes
    listed = {} if record is None else {shard.name: shard.sha256 for shard in record.shards}
    for shard in held.shards:
        if str(shard.name).endswith(corpus_layout.SHARD_SUFFIX) and listed.get(str(shard.name)) != shard.hash:
            fact = f"corpus {name!r} has a shard {shard.name!r} that the new corpus.json does not list"
            raise ConflictError(
                fact, hint="Append to it with CorpusWriter.reopen where it lies, and add that folder."
            )


def _check_kind(name: str, held: ArtifactPart, kind: str) -> None:
    if held.kind != kind:
        fact = f"artifact {name!r} is of kind {held.kind}, not {kind}"
        raise DatasetError(fact, hint="Add it under another name.")


def new_members(name: str, base: Dataset, kind: str, members: Sequence[Member]) -> list[Member]:
    """Those of the members of tar files that an artifact of a version has not; other bytes are a ConflictError."""
    _check_kind(name, base.manifest.artifacts[name], kind)
    names = [member.name for member in members]
    artifact = base.artifact(name)
    there = [each for each, has in zip(names, artifact.has(names), strict=True) if has]
    held = {member.name: member for member in artifact.find(there)}
    fresh = []
    for member in members:
        known = held.get(member.name)
        if known is None:
            fresh.append(member)
        elif (known.length, known.crc32c) != (member.length, member.crc32c):
            fact = f"artifact {name!r} has a member {member.name!r} already, with other bytes"
            raise ConflictError(fact, hint="Give the new file another name.")
    return fresh


def grown_tars(
    artifact: Artifact,
    added: Sequence[BlobRef],
    numbers: Sequence[int],
    fresh: Sequence[Member],
    uploads: list[Upload],
) -> ArtifactPart:
    """An artifact of tar files with more of them at its end; `numbers` are theirs in the members that are new.

    The members get an index of their own. A smaller one before it is written anew with them, so there are few.
    """
    held = artifact.part
    packed = with_tail(held.shards, len(held.shards), added, blob_of)
    uploads += [upload_bytes(data) for data in packed.blobs.values()]
    if not fresh:
        return replace(held, shards=packed.shards)
    place = {number: len(held.shards) + at for at, number in enumerate(numbers)}
    members = [member._replace(shard=place[member.shard]) for member in fresh]
    refs, known = list(held.indexes), artifact.member_indexes()
    # An index that lies elsewhere would need an address, and only a single one has one.
    is_far = any(ref.is_elsewhere for ref in refs)
    while refs and (is_far or refs[-1].member_count <= _ABSORB_ROWS * len(members)):
        refs.pop()
        members = [*known[len(refs)].all(), *members]
    index = member_index(members, lambda data: _blob(data, uploads))
    return replace(held, shards=packed.shards, indexes=(*refs, index))


def member_index(members: Sequence[Member], kept: Callable[[bytes], BlobRef]) -> MemberIndexRef:
    """The index of members of tar files; `kept` makes its bytes a blob."""
    data, buckets = pack_index(members)
    blob = kept(data)
    return MemberIndexRef(blob.hash, blob.byte_size, bucket_count=buckets, member_count=len(members))


def _blob(data: bytes, uploads: list[Upload]) -> BlobRef:
    upload = upload_bytes(data)
    uploads.append(upload)
    return BlobRef(upload.sha256, upload.size)


def new_names(name: str, base: Dataset, members: Sequence[str]) -> set[str]:
    """Those of the members that an artifact of a version has not."""
    if name not in base.artifacts:
        return set(members)
    return {member for member, has in zip(members, base.artifact(name).has(members), strict=True) if not has}


def grown_table(
    name: str,
    base: Dataset,
    facts: Sequence[ParquetFacts],
    digests: Sequence[FileDigest],
    uploads: list[Upload],
) -> TablePart:
    """A table of a version with more files of the same schema behind those it has."""
    held = base.manifest.tables[name]
    tail = [_with_guide(f, d, uploads) for f, d in zip(facts, digests, strict=True)]
    return _with_tail(name, base, len(held.shards), tail, uploads)


def fits_table(name: str, base: Dataset, facts: Sequence[ParquetFacts]) -> bool:
    """Whether files have exactly the schema of a table, so that they can join it as they are."""
    held = schema_from_base64(base.manifest.tables[name].schema_ipc)
    return bool(facts[0].schema.remove_metadata().equals(held))


def cast_table(
    name: str,
    base: Dataset,
    batches: Iterable[pa.RecordBatch],
    staging: Path,
    uploads: list[Upload],
    *,
    add_columns: bool,
) -> TablePart:
    """A table and rows of another schema, cast without loss; with new columns all rows are written again."""
    held = base.manifest.tables[name]
    batches = iter(batches)
    first = next(batches)
    own = schema_from_base64(held.schema_ipc)
    schema = joined_schema(name, own, first.schema.remove_metadata(), add_columns=add_columns)
    rows: Iterator[Any] = (fit_batch(name, batch, schema) for batch in itertools.chain([first], batches))
    if not schema.equals(own):
        older = (batch for table in base.table(name).row_groups() for batch in table.to_batches())
        rows = itertools.chain((fit_batch(name, batch, schema) for batch in older), rows)
    facts, shards = _written(pa.RecordBatchReader.from_batches(schema, rows), staging, uploads)
    if schema.equals(own):
        return _with_tail(name, base, len(held.shards), shards, uploads)
    stored = facts[0].schema.remove_metadata()
    return TablePart(
        _packed_tail((), 0, shards, uploads), tuple(schema_fields(stored)), schema_to_base64(stored)
    )


def grown_episodes(
    base: Dataset, rows: Sequence[Mapping[str, Any]], staging: Path, uploads: list[Upload]
) -> TablePart:
    """The table of all episodes with more rows at its end; small files at its end are written anew with them."""
    new, held = episodes_table([dict(row) for row in rows]), base.manifest.tables[EPISODES_TABLE]
    schema = schema_from_base64(held.schema_ipc)
    fitted = _fitted(new, schema)
    if fitted is None:  # columns nobody had before: every row gets them
        whole = joined_tables([base.table(EPISODES_TABLE).rows_together(), new])
        facts, shards = _written(whole.to_reader(), staging, uploads)
        found = facts[0].schema.remove_metadata()
        fresh = _packed_tail((), 0, shards, uploads)
        return TablePart(fresh, tuple(schema_fields(found)), schema_to_base64(found))
    kept, count = len(held.shards), fitted.num_rows
    while kept and _is_absorbed(held.shards[kept - 1], count):
        kept -= 1
        count += held.shards[kept].row_count
    files = base.table(EPISODES_TABLE).files
    older = [_rows_of(files.file(number)) for number in range(kept, len(held.shards))]
    _, shards = _written(pa.concat_tables([*older, fitted]).to_reader(), staging, uploads)
    return _with_tail(EPISODES_TABLE, base, kept, shards, uploads)


def grown_notes(base: Dataset, notes: Mapping[str, Any]) -> dict[str, Any]:
    """The notes of a version, but for those that are about it alone, and new ones."""
    held = {key: value for key, value in base.manifest.metadata.items() if key not in ("message", "parent")}
    return {**held, **notes}


def grown_bindings(base: Dataset, added: Sequence[Binding]) -> tuple[Binding, ...]:
    """The bindings of a version and more; a column that is bound anew points where the new one says."""
    by_column = {(b.table, b.column): b for b in [*base.manifest.bindings, *added]}
    return tuple(by_column[key] for key in sorted(by_column))


def _is_absorbed(shard: TableShard, rows: int) -> bool:
    return shard.byte_size < _CLOSED_BYTES and shard.row_count <= _ABSORB_ROWS * rows


def _rows_of(file: Any) -> pa.Table:
    groups = range(len(file.group_starts))
    return pa.concat_tables([file.read(group, None, file.fetch(group, None)) for group in groups])


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Rows in a schema that has room for them; None where it has not."""
    columns = []
    for name in table.column_names:
        if name not in schema.names and table.column(name).null_count < table.num_rows:
            return None
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if column.type != field.type and column.null_count < table.num_rows:
            return None
        columns.append(column if column.type == field.type else pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _written(
    reader: pa.RecordBatchReader, staging: Path, uploads: list[Upload]
) -> tuple[list[ParquetFacts], list[TableShard]]:
    paths = list(write_shards(reader, staging, ParquetOptions()))
    digests = digested(paths)
    facts = [parquet_facts(path) for path in paths]
    uploads += [
        upload_file(path, digest, is_staged=True) for path, digest in zip(paths, digests, strict=True)
    ]
    return facts, [_with_guide(f, d, uploads) for f, d in zip(facts, digests, strict=True)]


def _with_guide(facts: ParquetFacts, digest: FileDigest, uploads: list[Upload]) -> TableShard:
    """A file of a table with a guide of its own."""
    guide = _own_guide(ShardGuide(digest.page_sums, facts.tail), uploads)
    return TableShard(digest.sha256, digest.size, row_count=facts.rows, guide=guide)


def _own_guide(guide: ShardGuide, uploads: list[Upload]) -> BlobRef:
    return _blob(pack_guide([guide]), uploads)


def _with_tail(
    name: str, base: Dataset, kept: int, tail: Sequence[TableShard], uploads: list[Upload]
) -> TablePart:
    held = base.manifest.tables[name]
    if held.guide is None:
        return replace(held, shards=_packed_tail(held.shards, kept, tail, uploads))
    # One guide for all files would have to be written anew with every new one: from here on each has its own.
    files = base.table(name).files
    guides = map_in_threads(files.guide, range(kept))
    own = [
        replace(shard, uri=None, guide=None if guide is None else _own_guide(guide, uploads))
        for shard, guide in zip(held.shards[:kept], guides, strict=True)
    ]
    return replace(held, shards=_packed_tail((), 0, [*own, *tail], uploads), guide=None)


def _packed_tail(
    shards: Sequence[TableShard], kept: int, tail: Sequence[TableShard], uploads: list[Upload]
) -> Sequence[TableShard]:
    packed: Packed[TableShard] = with_tail(shards, kept, tail, table_shard_of)
    uploads += [upload_bytes(data) for data in packed.blobs.values()]
    return packed.shards
