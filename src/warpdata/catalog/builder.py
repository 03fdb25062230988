"""Describe a dataset version from what is on this machine, then publish it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.commit import write_file
from warpdata.catalog import sources
from warpdata.catalog.access import Access, AccessOptions, access_options, catalog_tuple
from warpdata.catalog.bindings import check_binding, default_ref_type
from warpdata.catalog.names import parse_name
from warpdata.catalog.packing import PackedShard, listed, pack_artifact, read_packed, webdataset_rows
from warpdata.catalog.publish import Published, PublishOptions, Upload, publish
from warpdata.catalog.recordings import packed_recordings
from warpdata.catalog.rowgroups import schema_fields, schema_to_base64
from warpdata.catalog.sources import ParquetFacts, ParquetOptions
from warpdata.catalog.staging import Staging
from warpdata.errors import DatasetError
from warpdata.formats.manifest import model
from warpdata.formats.manifest.guide import ShardGuide, pack_guide
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
)
from warpdata.formats.tarshard.member_index import Member, pack_index
from warpdata.formats.tarshard.writer import PackOptions
from warpdata.settings import Settings
from warpdata.stores.digest import FileDigest, digest_file
from warpdata.stores.parallel import run_parallel

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

_HASH_WORKERS = max(2, min(8, os.cpu_count() or 2))


@dataclass(slots=True)
class _StagedTable:
    facts: list[ParquetFacts]


@dataclass(slots=True)
class _StagedArtifact:
    kind: str
    shards: list[PackedShard]
    members: dict[str, Member] = field(default_factory=dict)


class DatasetBuilder:
    """Tables, artifacts and the bindings between them; `publish` makes them a version of a dataset."""

    def __init__(
        self,
        dataset_id: str,
        *,
        catalog: str | os.PathLike[str] | None = None,
        options: AccessOptions | None = None,
    ) -> None:
        self.name = parse_name(dataset_id)
        if str(self.name) != self.name.dataset_id:
            raise ValueError(f"publish to {self.name.dataset_id}, not to one version of it")
        base = options or access_options(Settings.from_env())
        self._options = access_options_with(base, catalog)
        self._owned = Staging()
        self._staging = self._owned.path
        self._tables: dict[str, _StagedTable] = {}
        self._artifacts: dict[str, _StagedArtifact] = {}
        self._kept_tables: dict[str, TablePart] = {}
        self._kept_artifacts: dict[str, ArtifactPart] = {}
        self._bindings: list[Binding] = []
        self._metadata: dict[str, Any] = {}

    def add_table(
        self, name: str, source: Any, *, optimize: bool = False, options: ParquetOptions | None = None
    ) -> DatasetBuilder:
        """A table from parquet files, a pattern, a folder, Arrow data, or a pandas or polars frame."""
        self._new_part(name)
        options = options or ParquetOptions()
        paths = sources.parquet_paths(source, self._staging / "tables" / name, options)
        if optimize:
            paths = sources.rewrite(paths, self._staging / "optimized" / name, options)
        facts = run_parallel(sources.parquet_facts, paths)
        sources.same_schema(facts, name)
        self._tables[name] = _StagedTable(facts)
        return self

    def add_artifact(
        self, name: str, source: Any, *, kind: str = "tar_shards", options: PackOptions | None = None
    ) -> DatasetBuilder:
        """Raw payload: a folder or tar files for tar kinds, plain files for every other kind.

        Recordings (episode directories, or whole roots with their edits) are packed for `wshard_episodes`.
        """
        self._new_part(name)
        if not model.KIND.fullmatch(kind):
            raise ValueError(f"not a kind of artifact: {kind!r}")
        is_tar = kind in model.TAR_KINDS
        staging = self._staging / "artifacts" / name
        if kind == model.EPISODE_KIND:
            source = packed_recordings(listed(source), staging)
        shards = pack_artifact(source, is_tar=is_tar, staging=staging, options=options)
        members = {m.name: m for shard in shards for m in shard.members}
        if not is_tar:
            members = {
                s.name: Member(s.name, i, 0, s.path.stat().st_size, -1)
                for i, s in enumerate(shards)
                if s.name
            }
        self._artifacts[name] = _StagedArtifact(kind, shards, members)
        return self

    def add_webdataset(self, name: str, tars: Any, *, artifact: str | None = None) -> DatasetBuilder:
        """Existing webdataset tars as they are, and a table of their samples with a column per extension."""
        artifact = artifact or f"{name}_shards"
        self.add_artifact(artifact, tars, kind="webdataset_shards")
        staged = self._artifacts[artifact]
        extensions, rows = webdataset_rows(staged.shards)
        columns: dict[str, list[Any]] = {"__key__": [row["__key__"] for row in rows]}
        for extension in extensions:
            inline = _INLINE.get(extension)
            names = [row.get(extension) for row in rows]
            if inline is None:
                columns[extension] = names
            else:
                columns[extension] = [
                    None if n is None else inline(read_packed(staged.shards, staged.members[n]).decode())
                    for n in names
                ]
        self.add_table(name, columns)
        for extension in extensions:
            if extension not in _INLINE:
                self.bind(name, extension, artifact, default_ref_type(extension))
        return self

    def bind(
        self, table: str, column: str, artifact: str, ref_type: str = "file", *, addressing: str = "member"
    ) -> DatasetBuilder:
        """Say that a column points into an artifact; every value is checked before anything is published."""
        if ref_type not in model.REF_TYPES or addressing not in model.ADDRESSINGS:
            raise ValueError(f"unknown ref_type {ref_type!r} or addressing {addressing!r}")
        self._bindings.append(Binding(table, column, artifact, ref_type, addressing))
        return self

    def describe(self, **metadata: Any) -> DatasetBuilder:
        """Notes that travel with the version but are not part of its identity: description, license, …"""
        self._metadata |= metadata
        return self

    def keep(
        self, dataset: Dataset, *, tables: Iterable[str] | None = None, artifacts: Iterable[str] | None = None
    ) -> DatasetBuilder:
        """Parts of an existing version as they are: nothing of them is read or sent again."""
        manifest = dataset.manifest
        for name in manifest.tables if tables is None else tables:
            self._new_part(name)
            self._kept_tables[name] = manifest.tables[name]
        for name in manifest.artifacts if artifacts is None else artifacts:
            self._new_part(name)
            self._kept_artifacts[name] = manifest.artifacts[name]
        here = {b.column for b in self._bindings}
        kept = (b for b in manifest.bindings if b.table in self._kept_tables and b.column not in here)
        self._bindings += [b for b in kept if b.artifact in {*self._kept_artifacts, *self._artifacts}]
        return self

    def manifest(self) -> Manifest:
        """The version as it would be published now."""
        return self._built()[0]

    def publish(self, *, set_latest: bool = True, **options: Any) -> Published:
        """Send what is missing, then the manifest, then move the pointers; running it again is harmless."""
        manifest, uploads = self._built()
        access = Access(self._options)
        try:
            return publish(
                access, self.name, manifest, uploads, PublishOptions(set_latest=set_latest, **options)
            )
        finally:
            access.close()

    def close(self) -> None:
        """Delete what was staged."""
        self._owned.close()

    def __repr__(self) -> str:
        return (
            f"<DatasetBuilder {self.name}: tables {[*self._tables, *self._kept_tables]}, "
            f"artifacts {[*self._artifacts, *self._kept_artifacts]}>"
        )

    def __enter__(self) -> DatasetBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_part(self, name: str) -> None:
        if not model.PART_NAME.fullmatch(name):
            raise ValueError(f"not a name for a table or artifact: {name!r}")
        taken = {*self._tables, *self._artifacts, *self._kept_tables, *self._kept_artifacts}
        if name in taken:
            raise ValueError(f"there is a part called {name!r} already")

    def _built(self) -> tuple[Manifest, list[Upload]]:
        if not (self._tables or self._kept_tables or self._artifacts or self._kept_artifacts):
            raise DatasetError("there is nothing to publish", hint="Add a table or an artifact first.")
        for binding in self._bindings:
            self._check(binding)
        uploads: list[Upload] = []
        tables = {**self._kept_tables, **{n: self._table(n, t, uploads) for n, t in self._tables.items()}}
        artifacts = {n: self._artifact(n, a, uploads) for n, a in self._artifacts.items()}
        manifest = Manifest(
            dataset_id=self.name.dataset_id,
            tables=tables,
            artifacts={**self._kept_artifacts, **artifacts},
            bindings=tuple(sorted(self._bindings, key=lambda b: (b.table, b.column))),
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            metadata=self._metadata,
        )
        return manifest, uploads

    def _check(self, binding: Binding) -> None:
        table = self._tables.get(binding.table)
        artifact = self._artifacts.get(binding.artifact)
        known_table = table is not None or binding.table in self._kept_tables
        if not known_table or (artifact is None and binding.artifact not in self._kept_artifacts):
            raise DatasetError(
                f"a binding names no part of this version: {binding.table} -> {binding.artifact}"
            )
        if table is not None and artifact is not None:
            sizes = [shard.path.stat().st_size for shard in artifact.shards]
            check_binding(binding, [facts.path for facts in table.facts], artifact.members, sizes)

    def _table(self, name: str, staged: _StagedTable, uploads: list[Upload]) -> TablePart:
        digests = _digested([facts.path for facts in staged.facts])
        shards = []
        for facts, digest in zip(staged.facts, digests, strict=True):
            uploads.append(Upload(facts.path, digest))
            shards.append(TableShard(digest.sha256, digest.size, row_count=facts.rows))
        guide = pack_guide(
            [ShardGuide(d.page_sums, f.tail) for f, d in zip(staged.facts, digests, strict=True)]
        )
        schema = staged.facts[0].schema.remove_metadata()
        return TablePart(
            tuple(shards), tuple(schema_fields(schema)), schema_to_base64(schema),
            self._written(f"guide-{name}", guide, uploads),
        )  # fmt: skip

    def _artifact(self, name: str, staged: _StagedArtifact, uploads: list[Upload]) -> ArtifactPart:
        digests = _digested([shard.path for shard in staged.shards])
        uploads += [Upload(shard.path, digest) for shard, digest in zip(staged.shards, digests, strict=True)]
        shards = tuple(
            BlobRef(digest.sha256, digest.size, name=shard.name)
            for shard, digest in zip(staged.shards, digests, strict=True)
        )
        if staged.kind not in model.TAR_KINDS:
            return ArtifactPart(staged.kind, shards)
        packed, buckets = pack_index(list(staged.members.values()))
        blob = self._written(f"index-{name}", packed, uploads)
        index = MemberIndexRef(
            blob.hash, blob.byte_size, bucket_count=buckets, member_count=len(staged.members)
        )
        return ArtifactPart(staged.kind, shards, index)

    def _written(self, name: str, data: bytes, uploads: list[Upload]) -> BlobRef:
        path = self._staging / name
        write_file(path, data, durable=False)
        digest = digest_file(path)
        uploads.append(Upload(path, digest))
        return BlobRef(digest.sha256, digest.size)


_INLINE: dict[str, Any] = {"cls": lambda text: int(text.strip()), "txt": str, "json": str}
"""Extensions of webdataset whose content is a value of the table rather than a file."""


def access_options_with(base: AccessOptions, catalog: str | os.PathLike[str] | None) -> AccessOptions:
    """The options with another catalog, if one is given."""
    given = catalog_tuple(catalog)
    if given is None:
        return base
    return AccessOptions(
        given, base.mode, base.cache_dir, base.cache_bytes, base.prefetch, base.budget, base.verify,
        base.trusted_keys, base.allow_foreign_uris, base.store,
    )  # fmt: skip


def _digested(paths: Sequence[Path]) -> list[FileDigest]:
    return run_parallel(digest_file, paths, workers=_HASH_WORKERS)
