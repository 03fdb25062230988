"""Describe a dataset version from what is on this machine, then publish it."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warpdata.bytekit.io.commit import make_folders, write_file
from warpdata.bytekit.jsontext import dump_json, plain_json
from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import (
    Access,
    AccessOptions,
    access_options,
    catalog_tuple,
    writable_catalog,
)
from warpdata.catalog.build import sources
from warpdata.catalog.build.bindings import check_binding, default_ref_type
from warpdata.catalog.build.growing import (
    cast_table,
    check_grown_corpus,
    fits_table,
    grown_artifact,
    grown_bindings,
    grown_episodes,
    grown_notes,
    grown_table,
    grown_tars,
    member_index,
    new_members,
    new_names,
    publish_grown,
)
from warpdata.catalog.build.outbox import Outbox
from warpdata.catalog.build.packing import (
    PackedShard,
    check_names,
    digested,
    pack_artifact,
    webdataset_rows,
    whole_files,
)
from warpdata.catalog.build.recordings import CHUNK_BYTES, StagedEpisodes, episode_rows, episodes_table
from warpdata.catalog.build.sources import ParquetFacts, ParquetOptions
from warpdata.catalog.build.staging import Staging, staging_for
from warpdata.catalog.build.stored import StoredEpisode, agreed
from warpdata.catalog.build.vector_parts import grown_vectors
from warpdata.catalog.dataset import Dataset, opened_version
from warpdata.catalog.names import parse_name, parse_size
from warpdata.catalog.publish.pointer import read_pointer
from warpdata.catalog.publish.publish import Published, PublishOptions, publish, with_early
from warpdata.catalog.publish.transfer import Progress, Upload, send, upload_blob, upload_bytes, upload_file
from warpdata.catalog.read.artifact_contents import EPISODES_TABLE
from warpdata.catalog.read.rowgroups import schema_fields, schema_to_base64
from warpdata.catalog.table import StreamRequest
from warpdata.errors import DatasetError, WriterClosedError, nearest, require_kind, require_word, suggests
from warpdata.formats.gamsae.corpus import CorpusRecord, parse_corpus
from warpdata.formats.gamsae.layout import CORPUS_JSON
from warpdata.formats.manifest import model
from warpdata.formats.manifest.fields import blob_of, table_shard_of
from warpdata.formats.manifest.guide import ShardGuide, pack_guide
from warpdata.formats.manifest.layout import MAX_NOTE_LEVELS
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    LongList,
    Manifest,
    TablePart,
    TableShard,
)
from warpdata.formats.manifest.parts import Packed, packed_shards
from warpdata.formats.tarshard.member_index import Member
from warpdata.formats.tarshard.writer import PackOptions
from warpdata.settings import Settings
from warpdata.stores.address import place_of
from warpdata.stores.blobstore import DigestedFile, FileDigest, check_unchanged, digest_file

if TYPE_CHECKING:
    from warpdata.episodes.collection.episodes import Episodes

_CHECK_ROWS = 65_536
"""Rows of a kept table that are looked at together when its references are checked."""


@dataclass(frozen=True, slots=True)
class _StagedTable:
    facts: list[ParquetFacts]
    digests: list[FileDigest]


@dataclass(frozen=True, slots=True)
class _StagedArtifact:
    kind: str
    shards: list[PackedShard]
    members: dict[str, Member] = field(default_factory=dict)
    stored: tuple[BlobRef, ...] = ()
    """Shards that are in the catalog already."""


@dataclass(frozen=True, slots=True)
class _KeptTable:
    part: TablePart
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class _KeptArtifact:
    part: ArtifactPart
    dataset: Dataset


class DatasetBuilder:
    """Tables, artifacts and the bindings between them; `publish` makes them a version of a dataset.

    What has to be written anew on the way (tables out of memory, packed folders) is staged on the disk of a local
    catalog, from where it moves into place, else in the cache folder; `staging` names another folder. For a catalog
    elsewhere no more than 1 GiB waits there: what comes beyond is sent while the rest is made.
    """

    @suggests
    def __init__(
        self,
        dataset_id: str,
        *,
        catalog: str | os.PathLike[str] | None = None,
        staging: str | os.PathLike[str] | None = None,
        options: AccessOptions | None = None,
    ) -> None:
        self.name = parse_name(dataset_id)
        if str(self.name) != self.name.dataset_id:
            raise ValueError(f"publish to {self.name.dataset_id}, not to one version of it")
        given = catalog_tuple(catalog)
        base = options or access_options(Settings.from_env())
        self._options = base if given is None else replace(base, catalogs=given)
        self._chosen_staging = staging
        self._owned: Staging | None = None
        self._outbox = Outbox(self._options)
        self._tables: dict[str, _StagedTable] = {}
        self._artifacts: dict[str, _StagedArtifact] = {}
        self._kept_tables: dict[str, _KeptTable] = {}
        self._kept_artifacts: dict[str, _KeptArtifact] = {}
        self._bindings: list[Binding] = []
        self._kept_bindings: list[Binding] = []
        self._metadata: dict[str, Any] = {}
        self._extends = False
        self._adds_columns = False
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._places = 0
        self._is_ours = True
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """In a forked child: what is staged belongs to the process that made the builder, and so does publishing it."""
        self._is_ours = False

    @property
    def catalog(self) -> str:
        """Where it publishes to."""
        return self._options.catalogs[0]

    @property
    def _staging(self) -> Path:
        """The folder for what is written on the way, made when it is needed."""
        self._check_ours()
        if self._owned is None:
            options = self._options
            self._owned = staging_for(options.catalogs[0], options.cache_dir, self._chosen_staging)
        return self._owned.path

    def _place(self, name: str) -> Path:
        """A new name in the staging folder: some disks take names that differ in case only for one."""
        self._places += 1
        return self._staging / str(self._places) / name

    @suggests
    def add_table(
        self, name: str, source: Any, *, optimize: bool = False, options: ParquetOptions | None = None
    ) -> DatasetBuilder:
        """A table from parquet files, a pattern, a folder, Arrow data, or a pandas or polars frame.

        Types stay as they are, but for those that parquet lacks: `date64` becomes `date32`, `timestamp[s]` becomes
        `timestamp[ms]`, `time32[s]` becomes `time32[ms]`, and views inside lists become plain text or bytes.
        """
        self._new_part(name)
        options = ParquetOptions() if options is None else options
        require_kind("options", options, ParquetOptions, "a ParquetOptions")
        return self._set_table(name, source, options, optimize=optimize)

    def _set_table(
        self, name: str, source: Any, options: ParquetOptions, *, optimize: bool = False
    ) -> DatasetBuilder:
        shards = sources.table_shards(source, self._place(name), options, optimize=optimize)
        if isinstance(shards, list):
            digests = digested(shards)
            facts = map_in_threads(_facts, list(zip(shards, digests, strict=True)))
        else:
            facts, digests = [], []
            for path in shards:
                digests.append(digest_file(path))
                facts.append(_facts((path, digests[-1])))
                self._outbox.put(path, digests[-1])
        sources.same_schema(facts, name)
        self._tables[name] = _StagedTable(facts, digests)
        return self

    @suggests
    def add_artifact(
        self, name: str, source: Any, *, kind: str = "tar_shards", options: PackOptions | None = None
    ) -> DatasetBuilder:
        """Raw payload: a folder or tar files for tar kinds, plain files for every other kind.

        Recordings (episode directories, or whole roots with their edits) are packed for `wshard_episodes`.
        """
        self._new_part(name)
        require_kind("options", options, (PackOptions, type(None)), "a PackOptions")
        if kind == model.EPISODE_KIND:
            return self._add_episodes(name, source, CHUNK_BYTES)
        if kind not in model.KINDS:
            known = ", ".join(model.KINDS)
            raise ValueError(
                f"not a kind of artifact: {kind!r}; there are {known}.{nearest(kind, model.KINDS)}"
            )
        is_tar = kind in model.TAR_KINDS
        staging = self._place(name)
        shards = pack_artifact(
            source, is_tar=is_tar, staging=staging, finished=self._outbox.put, options=options
        )
        members = {m.name: m for shard in shards for m in shard.members}
        if not is_tar:
            members = _whole_files(shards)
        self._artifacts[name] = _StagedArtifact(kind, shards, members)
        return self

    @suggests
    def add_episodes(self, name: str, source: Any, *, chunk_bytes: str | int = CHUNK_BYTES) -> DatasetBuilder:
        """Episodes: a root of recordings with its edits, directories, shards, folders of shards, or `Episodes`.

        Their ids are kept. The version gets a table `episodes` with what is known of each, and remembers the edits.
        An episode longer than `chunk_bytes` (1 GiB) is published as chunks, which open as one episode.
        """
        self._new_part(name)
        return self._add_episodes(name, source, parse_size(chunk_bytes))

    def _add_episodes(self, name: str, source: Any, chunk_bytes: int) -> DatasetBuilder:
        staging = self._place(name)
        episodes = StagedEpisodes(staging, chunk_bytes)
        shards: dict[str | None, PackedShard] = {}
        rows: list[dict[str, Any]] = []
        for packed in episodes.packed(source):
            made = whole_files(packed)
            rows += episode_rows(name, made)
            for each in made:
                self._outbox.put(each.path, each.digest)
            shards |= {each.name: each for each in made}
        given = whole_files(episodes.given)
        self._rows[name] = rows + episode_rows(name, given)
        shards |= {each.name: each for each in given}
        check_names(episodes.named)
        ordered = [shards[each] for each, _ in episodes.named]
        self._artifacts[name] = _StagedArtifact(model.EPISODE_KIND, ordered, _whole_files(ordered))
        if episodes.edits:
            self._metadata["edits"] = {**self._metadata.get("edits", {}), name: episodes.edits}
        return self

    def add_stored_episodes(self, name: str, stored: Iterable[StoredEpisode]) -> DatasetBuilder:
        """Episodes that workers stored in this catalog already (`EpisodeStore`), in the order of their ids.

        So the version does not depend on who stored what and when. The same episode may be given twice; the same id
        with other bytes is a ConflictError.
        """
        self._new_part(name)
        episodes = agreed(stored)
        blobs = tuple(blob for each in episodes for blob in each.blobs)
        members = {b.name: Member(b.name, i, 0, b.byte_size, -1) for i, b in enumerate(blobs) if b.name}
        self._artifacts[name] = _StagedArtifact(model.EPISODE_KIND, [], members, blobs)
        self._rows[name] = [{**each.facts, "artifact": name} for each in episodes]
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
                    None if n is None else inline(self._member(staged, n).decode()) for n in names
                ]
        self.add_table(name, columns)
        for extension in extensions:
            if extension not in _INLINE:
                self.bind(name, extension, artifact, default_ref_type(extension))
        return self

    def _member(self, staged: _StagedArtifact, name: str) -> bytes:
        member = staged.members[name]
        shard = staged.shards[member.shard]
        return self._outbox.read(shard.path, shard.digest, *member.read_range)

    def bind(
        self, table: str, column: str, artifact: str, ref_type: str = "file", *, addressing: str = "member"
    ) -> DatasetBuilder:
        """Say that a column points into an artifact; every value is checked before anything is published."""
        require_word("ref_type", ref_type, model.REF_TYPES)
        require_word("addressing", addressing, model.ADDRESSINGS)
        self._bindings.append(Binding(table, column, artifact, ref_type, addressing))
        return self

    def describe(self, **metadata: Any) -> DatasetBuilder:
        """Notes that travel with the version but are not part of its identity: description, license, …"""
        for name, value in metadata.items():
            try:
                note = plain_json(value, MAX_NOTE_LEVELS)
                dump_json(note)
            except (TypeError, ValueError) as error:
                raise ValueError(f"the note {name!r} cannot be written as JSON: {error}") from None
            self._metadata[name] = note
        return self

    def keep(
        self,
        dataset: Dataset,
        *,
        tables: Iterable[str] | None = None,
        artifacts: Iterable[str] | None = None,
        bindings: bool = True,
    ) -> DatasetBuilder:
        """Parts of an existing version as they are, with the bindings of its tables unless told otherwise.

        Nothing of them is sent again where it is in the catalog; from another catalog it is copied at `publish`,
        until when the dataset must stay open.
        """
        if self._extends:
            raise ValueError("extend() keeps the newest version by itself; keep() is for parts of others")
        require_kind("what is kept", dataset, Dataset, "parts of a dataset (wd.dataset)")
        manifest = dataset.manifest
        chosen = _names_of("table", manifest.tables, tables)
        for name in chosen:
            self._new_part(name)
            self._kept_tables[name] = _KeptTable(manifest.tables[name], dataset)
        for name in _names_of("artifact", manifest.artifacts, artifacts):
            self._new_part(name)
            self._kept_artifacts[name] = _KeptArtifact(manifest.artifacts[name], dataset)
        if bindings:
            self._kept_bindings += [b for b in manifest.bindings if b.table in chosen]
        return self

    def extend(self, *, add_columns: bool = False) -> DatasetBuilder:
        """Go on from the newest version, whatever it is when this is published: everything in it stays.

        Episodes and files that are added to an artifact of that version join it, and so do rows that are added to a
        table; a name that is there already with other bytes is a ConflictError, but for a vector file that has more
        vectors by now, of which only what was appended is sent. What is published so costs what is
        added, not what is there; `publish(retries=…)` goes on from the newer version when somebody was quicker.
        Rows of another schema are cast to that of their table if nothing is lost. `add_columns`: rows may have columns
        that the table lacks, or lack some; all rows of the table are then written again, with nulls in their place.
        """
        if self._kept_tables or self._kept_artifacts:
            raise ValueError("extend() keeps the newest version by itself; keep() is for parts of others")
        self._extends = True
        self._adds_columns = add_columns
        return self

    def revise(self, dataset: Dataset, episodes: Episodes) -> DatasetBuilder:
        """An existing version with other episodes in the place of its own; all else is kept as it is."""
        require_kind("what is revised", dataset, Dataset, "a dataset (wd.dataset)")
        manifest = dataset.manifest
        own = [name for name, part in manifest.artifacts.items() if part.kind == model.EPISODE_KIND]
        if len(own) != 1:
            raise DatasetError(
                f"{dataset.id} has {len(own)} artifacts of episodes; only one can be revised at once"
            )
        self.keep(
            dataset,
            tables=[name for name in manifest.tables if name != EPISODES_TABLE],
            artifacts=[name for name in manifest.artifacts if name not in own],
        )
        return self.add_episodes(own[0], episodes)

    def manifest(self) -> Manifest:
        """The version as it would be published now."""
        if not self._extends:
            return self._built()[0]
        access = Access(self._options)
        try:
            return self._grown(self._newest(access))[0]
        finally:
            access.close()

    @suggests
    def publish(
        self,
        *,
        set_latest: bool = True,
        tags: Sequence[str] = (),
        message: str = "",
        sign_key: str | os.PathLike[str] | None = None,
        retries: int = 0,
        expect_latest: str | None = None,
        repair: bool = False,
        progress: Progress | None = None,
        workers: int = 4,
    ) -> Published:
        """Send what is missing, then the manifest, then move the pointers; running it again is harmless.

        But for rows that join a table (`extend`): every run adds them.

        `retries`: how often to move `latest` after all when somebody else moved it meanwhile (after `extend`: how
        often to go on from the newer version instead); writers with retries queue up, so that versions are a line;
        `expect_latest`: the version it must still point at, by its hash or the first digits; `repair`: read back
        what is there already and replace what is damaged (after `extend` of what is added: for the version it goes
        on from there is `warp repair`).
        """
        self._check_ours()
        require_kind("message", message, str, "a text")
        try:
            message.encode()
        except UnicodeEncodeError:
            raise ValueError(f"message is not valid Unicode: {message!r}") from None
        options = PublishOptions(
            set_latest, (tags,) if isinstance(tags, str) else tuple(tags), message,
            None if sign_key is None else Path(sign_key), retries, expect_latest,
            repair=repair, progress=progress, workers=workers,
        )  # fmt: skip
        access = Access(self._options)
        try:
            if self._extends:
                published = publish_grown(access, self.name, self._grown, self._early(access), options)
            else:
                manifest, uploads = self._built()
                self._check_long_lists(access, options)
                options = replace(options, bases=tuple(sorted(self._long_bases())))
                published = publish(access, self.name, manifest, uploads, options)
            sent, self._outbox.sent = self._outbox.sent, []
            return with_early(published, sent)
        finally:
            access.close()

    def _early(self, access: Access) -> list[Upload]:
        """The blobs that are needed whatever is there when it is published; of files that grew, what is new by now."""
        early: list[Upload] = []
        for name, each in self._artifacts.items():
            if each.kind != model.VECTOR_KIND:
                self._shards(each, early)
            elif (base := self._newest(access)) is not None and name in base.artifacts:
                self._grown_artifact(name, each, base, early)
        return early

    def _newest(self, access: Access) -> Dataset | None:
        """The newest version now."""
        catalog = writable_catalog(access)
        assert catalog.store is not None
        pointer = read_pointer(catalog.store, self.name.latest_key).pointer
        return None if pointer is None else opened_version(access, catalog, self.name, pointer.version)

    def close(self) -> None:
        """Delete what was staged."""
        self._outbox.close()
        if self._owned is not None:
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

    def _check_ours(self) -> None:
        if not self._is_ours:
            raise WriterClosedError(
                "this builder belongs to the process that made it",
                path=str(self.name),
                hint="Make a DatasetBuilder in this process.",
            )

    def _new_part(self, name: str) -> None:
        self._check_ours()
        if not model.PART_NAME.fullmatch(name):
            raise ValueError(f"not a name for a table or artifact: {name!r}")
        taken = {*self._tables, *self._artifacts, *self._kept_tables, *self._kept_artifacts}
        if name in taken:
            raise ValueError(f"there is a part called {name!r} already")

    def _built(self) -> tuple[Manifest, list[Upload]]:
        if not (self._tables or self._kept_tables or self._artifacts or self._kept_artifacts):
            raise DatasetError("there is nothing to publish", hint="Add a table or an artifact first.")
        with self._episode_facts():
            return self._described()

    def _described(self) -> tuple[Manifest, list[Upload]]:
        bindings = self._all_bindings()
        for binding in bindings:
            self._check(binding)
        uploads: list[Upload] = []
        tables = {n: _without_places(t.part) for n, t in self._kept_tables.items()}
        tables |= {n: self._table(n, t, uploads) for n, t in self._tables.items()}
        artifacts = {n: _without_places(a.part) for n, a in self._kept_artifacts.items()}
        artifacts |= {n: self._artifact(n, a, uploads) for n, a in self._artifacts.items()}
        kept_parts: list[_KeptTable | _KeptArtifact] = [
            *self._kept_tables.values(),
            *self._kept_artifacts.values(),
        ]
        for kept in kept_parts:
            uploads += self._kept_uploads(kept)
        manifest = Manifest(
            dataset_id=self.name.dataset_id,
            tables=tables,
            artifacts=artifacts,
            bindings=tuple(sorted(bindings, key=lambda b: (b.table, b.column))),
            created_at=_now(),
            metadata=self._metadata,
        )
        return manifest, uploads

    def _grown(self, base: Dataset | None) -> tuple[Manifest, list[Upload]]:
        """What was added here, on top of a version."""
        if base is None:
            return self._built()
        if not (self._tables or self._artifacts):
            raise DatasetError("there is nothing to publish", hint="Add a table or an artifact first.")
        for binding in grown_bindings(base, self._bindings):
            if binding in self._bindings or binding.table in self._tables:
                self._check_grown(binding, base)
        uploads: list[Upload] = []
        tables, artifacts = dict(base.manifest.tables), dict(base.manifest.artifacts)
        for name, staged in self._artifacts.items():
            artifacts[name] = (
                self._grown_artifact(name, staged, base, uploads)
                if name in artifacts
                else self._artifact(name, staged, uploads)
            )
        for name, table in self._tables.items():
            if name in tables and not fits_table(name, base, table.facts):
                batches = self._batches(table)
                tables[name] = cast_table(
                    name, base, batches, self._place("cast"), uploads, add_columns=self._adds_columns
                )
            elif name in tables:
                uploads += [self._upload(f.path, d) for f, d in zip(table.facts, table.digests, strict=True)]
                tables[name] = grown_table(name, base, table.facts, table.digests, uploads)
            else:
                tables[name] = self._table(name, table, uploads)
        self._grow_episode_facts(base, tables, uploads)
        manifest = Manifest(
            dataset_id=self.name.dataset_id,
            tables=tables,
            artifacts=artifacts,
            bindings=grown_bindings(base, self._bindings),
            created_at=_now(),
            metadata=grown_notes(base, self._metadata),
        )
        return manifest, uploads

    def _grown_artifact(
        self, name: str, staged: _StagedArtifact, base: Dataset, uploads: list[Upload]
    ) -> ArtifactPart:
        """An artifact of a version and what was added to it here."""
        if staged.kind in model.TAR_KINDS:
            return self._grown_tars(name, staged, base, uploads)
        if staged.kind == model.VECTOR_KIND == base.manifest.artifacts[name].kind:
            grown = grown_vectors(base.artifact(name), staged.shards)
            uploads += grown.uploads
            return grown.part
        if staged.kind == model.CORPUS_KIND:
            check_grown_corpus(name, base.manifest.artifacts[name], _corpus_record(staged.shards))
        return grown_artifact(name, base, staged.kind, self._shards(staged, uploads), uploads)

    def _grown_tars(
        self, name: str, staged: _StagedArtifact, base: Dataset, uploads: list[Upload]
    ) -> ArtifactPart:
        """The tar files of a version and those whose members are not all there."""
        fresh = new_members(name, base, staged.kind, list(staged.members.values()))
        used = sorted({member.shard for member in fresh})
        bindings = grown_bindings(base, self._bindings)
        if any(each.artifact == name and each.addressing == "range" for each in bindings):
            used = list(range(len(staged.shards)))  # references count the files
        shards = self._shards(replace(staged, shards=[staged.shards[number] for number in used]), uploads)
        return grown_tars(base.artifact(name), shards, used, fresh, uploads)

    def _grow_episode_facts(self, base: Dataset, tables: dict[str, TablePart], uploads: list[Upload]) -> None:
        """The table of all episodes with the new ones, unless the caller brought rows of his own."""
        if EPISODES_TABLE in self._tables:
            return
        rows = []
        for name in self._episode_artifacts():
            found = self._episode_rows(name)
            fresh = new_names(name, base, [row["blob"] for row in found])
            rows += [row for row in found if row["blob"] in fresh]
        staging = self._place("grown")
        if rows and EPISODES_TABLE in tables:
            tables[EPISODES_TABLE] = grown_episodes(base, rows, staging, uploads)
        elif rows and not any(a.kind == model.EPISODE_KIND for a in base.manifest.artifacts.values()):
            # Where older episodes have no table, one of the new ones alone would hide them.
            paths = list(sources.table_shards(episodes_table(rows), staging, ParquetOptions()))
            digests = digested(paths)
            facts = [_facts(each) for each in zip(paths, digests, strict=True)]
            tables[EPISODES_TABLE] = self._table(EPISODES_TABLE, _StagedTable(facts, digests), uploads)

    def _check_grown(self, binding: Binding, base: Dataset) -> None:
        """What is bound or added now must point at members that are there or come along."""
        staged, table = self._artifacts.get(binding.artifact), self._tables.get(binding.table)
        has_artifact = staged is not None or binding.artifact in base.artifacts
        if not has_artifact or (table is None and binding.table not in base.tables):
            known = {*self._tables, *base.tables} if has_artifact else {*self._artifacts, *base.artifacts}
            name = binding.table if has_artifact else binding.artifact
            fact = f"a binding names no part of this version: {binding.table} -> {binding.artifact}"
            raise DatasetError(f"{fact}.{nearest(name, known)}")
        values = (
            [base.table(binding.table).select([binding.column]).rows_together().column(0).combine_chunks()]
            if table is None
            else list(self._values(binding, table))
        )
        members = set() if staged is None else set(staged.members)
        sizes: list[int] = []
        if binding.addressing == "range":
            held = base.manifest.artifacts.get(binding.artifact)
            sizes = [shard.byte_size for shard in held.shards] if held else []
            sizes += [] if staged is None else _shard_sizes(staged)
        elif binding.artifact in base.artifacts:
            wanted = sorted(
                {str(v) for array in values for v in array.to_pylist() if v is not None} - members
            )
            has = base.artifact(binding.artifact).has(wanted)
            members |= {name for name, there in zip(wanted, has, strict=True) if there}
        check_binding(binding, values, members, sizes)

    def _episode_artifacts(self) -> list[str]:
        return [name for name, each in self._artifacts.items() if each.kind == model.EPISODE_KIND]

    def _episode_rows(self, name: str) -> list[dict[str, Any]]:
        """What is known of the episodes of an artifact, looked at once however often it is built upon."""
        if name not in self._rows:
            self._rows[name] = episode_rows(name, self._artifacts[name].shards)
        return self._rows[name]

    def _long_kept(self) -> list[_KeptTable | _KeptArtifact]:
        """Kept parts with long lists that are in this catalog."""
        kept: list[_KeptTable | _KeptArtifact] = [*self._kept_tables.values(), *self._kept_artifacts.values()]
        return [e for e in kept if isinstance(e.part.shards, LongList) and self._is_here(e.dataset)]

    def _long_bases(self) -> set[str]:
        """Manifests in this catalog of whose long lists something is kept: nobody removes the blobs they name."""
        return {each.dataset.name.version_key(each.dataset.version) for each in self._long_kept()}

    def _check_long_lists(self, access: Access, options: PublishOptions) -> None:
        """The blobs of long lists are not claimed one by one, but those that are damaged or gone are noticed."""
        store = writable_catalog(access).store
        assert store is not None
        blobs = {blob.hash: blob for each in self._long_kept() for blob in each.part.blobs()}
        here = [Upload(blob.hash, blob.byte_size) for blob in blobs.values() if not blob.is_elsewhere]
        send(store, here, repair=options.repair, workers=options.workers)

    def _is_here(self, dataset: Dataset) -> bool:
        return place_of(self.catalog, self._options.store) == dataset.catalog.place

    @contextlib.contextmanager
    def _episode_facts(self) -> Iterator[None]:
        """The table of all episodes, unless the caller brought one; it is of this moment, more of them may come."""
        rows = [row for name in self._episode_artifacts() for row in self._episode_rows(name)]
        if not rows or EPISODES_TABLE in {*self._tables, *self._kept_tables}:
            yield
            return
        try:
            self._set_table(EPISODES_TABLE, episodes_table(rows), ParquetOptions())
            yield
        finally:
            self._tables.pop(EPISODES_TABLE, None)

    def _all_bindings(self) -> list[Binding]:
        """The bindings that were made here, and the kept ones of other columns."""
        here = {(b.table, b.column) for b in self._bindings}
        kept = [b for b in self._kept_bindings if (b.table, b.column) not in here]
        for binding in kept:
            if binding.artifact not in {*self._artifacts, *self._kept_artifacts}:
                fact = f"{binding.table}.{binding.column} points into {binding.artifact!r}, which is not kept"
                hint = "Keep or add that artifact too, bind the column anew, or keep(..., bindings=False)."
                raise DatasetError(fact, hint=hint)
        return [*self._bindings, *kept]

    def _check(self, binding: Binding) -> None:
        """A binding whose table and artifact come out of one version held there already; others are looked at."""
        table = self._tables.get(binding.table) or self._kept_tables.get(binding.table)
        artifact = self._artifacts.get(binding.artifact) or self._kept_artifacts.get(binding.artifact)
        if table is None or artifact is None:
            name, known = (
                (binding.table, [*self._tables, *self._kept_tables])
                if table is None
                else (binding.artifact, [*self._artifacts, *self._kept_artifacts])
            )
            fact = f"a binding names no part of this version: {binding.table} -> {binding.artifact}"
            raise DatasetError(f"{fact}.{nearest(name, known)}")
        if (
            isinstance(table, _KeptTable)
            and isinstance(artifact, _KeptArtifact)
            and table.dataset.version == artifact.dataset.version
            and binding in table.dataset.manifest.bindings
        ):
            return
        columns = _column_names(table)
        if binding.column not in columns:
            fact = f"table {binding.table!r} has no column {binding.column!r}"
            raise DatasetError(f"{fact}.{nearest(binding.column, columns)}")
        members = (
            artifact.members if isinstance(artifact, _StagedArtifact) else _kept_members(binding, artifact)
        )
        check_binding(binding, self._values(binding, table), members, _shard_sizes(artifact))

    def _values(self, binding: Binding, table: _StagedTable | _KeptTable) -> Iterator[Any]:
        """The values of a bound column, as Arrow arrays."""
        if isinstance(table, _KeptTable):
            view = table.dataset.table(binding.table).select([binding.column])
            for batch in table.dataset.open_stream(view, StreamRequest(_CHECK_ROWS)):
                yield batch.column(0)
            return
        for facts, digest in zip(table.facts, table.digests, strict=True):
            if self._outbox.is_gone(facts.path):
                for batch in self._outbox.batches(digest, facts.tail, [binding.column]):
                    yield batch.column(0)
            else:
                yield from sources.column_values(facts.path, binding.column)

    def _batches(self, table: _StagedTable) -> Iterator[Any]:
        """The rows of a staged table, at least one batch."""
        for facts, digest in zip(table.facts, table.digests, strict=True):
            if self._outbox.is_gone(facts.path):
                yield from self._outbox.batches(digest, facts.tail)
            else:
                yield from sources.file_batches(facts.path)

    def _table(self, name: str, staged: _StagedTable, uploads: list[Upload]) -> TablePart:
        shards = []
        for facts, digest in zip(staged.facts, staged.digests, strict=True):
            uploads.append(self._upload(facts.path, digest))
            shards.append(TableShard(digest.sha256, digest.size, row_count=facts.rows))
        guide = pack_guide(
            [ShardGuide(d.page_sums, f.tail) for f, d in zip(staged.facts, staged.digests, strict=True)]
        )
        schema = staged.facts[0].schema.remove_metadata()
        return TablePart(
            self._packed(packed_shards(tuple(shards), table_shard_of), uploads),
            tuple(schema_fields(schema)),
            schema_to_base64(schema),
            self._written(f"guide-{name}", guide, uploads),
        )

    def _artifact(self, name: str, staged: _StagedArtifact, uploads: list[Upload]) -> ArtifactPart:
        listed = self._packed(packed_shards(self._shards(staged, uploads), blob_of), uploads)
        if staged.kind not in model.TAR_KINDS:
            return ArtifactPart(staged.kind, listed)
        members = list(staged.members.values())
        index = member_index(members, lambda data: self._written(f"index-{name}", data, uploads))
        return ArtifactPart(staged.kind, listed, (index,))

    def _shards(self, staged: _StagedArtifact, uploads: list[Upload]) -> tuple[BlobRef, ...]:
        uploads += [self._upload(shard.path, shard.digest) for shard in staged.shards]
        uploads += [Upload(blob.hash, blob.byte_size) for blob in staged.stored]
        here = (BlobRef(s.digest.sha256, s.digest.size, name=s.name) for s in staged.shards)
        return (*here, *staged.stored)

    @staticmethod
    def _packed(packed: Packed[_Shard], uploads: list[Upload]) -> Sequence[_Shard]:
        uploads += [upload_bytes(data) for data in packed.blobs.values()]
        return packed.shards

    def _written(self, name: str, data: bytes, uploads: list[Upload]) -> BlobRef:
        path = self._place(name)
        make_folders(path.parent)
        write_file(path, data, durable=False)
        digest = digest_file(path)
        uploads.append(self._upload(path, digest))
        return BlobRef(digest.sha256, digest.size)

    def _upload(self, path: Path, digest: FileDigest) -> Upload:
        """A file as it was when it was added; one that is another by now is refused, even if it is there already."""
        if self._outbox.is_gone(path):
            return Upload(digest.sha256, digest.size)
        is_staged = path.is_relative_to(self._staging)
        if not is_staged:
            check_unchanged(path, digest)
        return upload_file(path, digest, is_staged=is_staged)

    def _kept_uploads(self, kept: _KeptTable | _KeptArtifact) -> list[Upload]:
        """The blobs of a kept part: they must be in the catalog, or come from the one the part was published in."""
        dataset = kept.dataset
        is_here = self._is_here(dataset)
        found = []
        blobs = kept.part.blobs() if not (is_here and isinstance(kept.part.shards, LongList)) else []
        for blob in blobs:
            if is_here and not blob.is_elsewhere:
                found.append(Upload(blob.hash, blob.byte_size))
            else:
                found.append(upload_blob(*dataset.access.place(dataset.catalog, blob), blob))
        return found


def _corpus_record(shards: Sequence[PackedShard]) -> CorpusRecord | None:
    """What the corpus.json among files says."""
    found = next((shard for shard in shards if shard.name == CORPUS_JSON), None)
    if found is None:
        return None
    with DigestedFile(found.path, found.digest) as reader:
        return parse_corpus(bytes(reader.read(0, reader.size)), str(found.path))


def _whole_files(shards: Sequence[PackedShard]) -> dict[str, Member]:
    """Files that are members themselves."""
    return {s.name: Member(s.name, i, 0, s.digest.size, -1) for i, s in enumerate(shards) if s.name}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


_INLINE: dict[str, Any] = {"cls": lambda text: int(text.strip()), "txt": str, "json": str}
"""Extensions of webdataset whose content is a value of the table rather than a file."""


def _facts(added: tuple[Path, FileDigest]) -> ParquetFacts:
    """What a parquet file says about itself, out of the very bytes that were hashed."""
    path, digest = added
    return sources.parquet_facts(path, DigestedFile(path, digest))


def _names_of(kind: str, known: Mapping[str, Any], chosen: Iterable[str] | None) -> list[str]:
    names = list(known) if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
    for name in names:
        if name not in known:
            hint = f"It has: {', '.join(known) or 'none'}.{nearest(name, known)}"
            raise DatasetError(f"no {kind} {name!r} to keep", hint=hint)
    return names


_Part = TypeVar("_Part", TablePart, ArtifactPart)
_Shard = TypeVar("_Shard", bound=BlobRef)


def _without_places(part: _Part) -> _Part:
    """A kept part whose blobs are in the catalog it is kept in, wherever they came from."""
    shards: Any = part.shards
    if not isinstance(shards, LongList):  # which has no addresses
        shards = tuple(replace(shard, uri=None) for shard in shards)
    if isinstance(part, TablePart):
        return replace(part, shards=shards, guide=part.guide and replace(part.guide, uri=None))
    return replace(part, shards=shards, indexes=tuple(replace(each, uri=None) for each in part.indexes))


def _column_names(table: _StagedTable | _KeptTable) -> list[str]:
    if isinstance(table, _KeptTable):
        return [str(field["name"]) for field in table.part.fields]
    return list(table.facts[0].schema.names)


def _kept_members(binding: Binding, artifact: _KeptArtifact) -> Iterable[str]:
    return artifact.dataset.artifact(binding.artifact).members()


def _shard_sizes(artifact: _StagedArtifact | _KeptArtifact) -> list[int]:
    if isinstance(artifact, _KeptArtifact):
        return [shard.byte_size for shard in artifact.part.shards]
    return [*(s.digest.size for s in artifact.shards), *(blob.byte_size for blob in artifact.stored)]
