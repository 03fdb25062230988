"""Build a dataset version from data of this machine, then publish it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import Closing
from warpdata.bytekit.jsontext import dump_json, plain_json
from warpdata.bytekit.process.forks import NoPickle, OwnProcess, ThreadLock
from warpdata.catalog.access import (
    Access,
    AccessOptions,
    Staging,
    change_catalog,
    parse_name,
    parse_size,
    staging_for,
    writable_store,
)
from warpdata.catalog.build import parts
from warpdata.catalog.build.episodes import (
    CHUNK_BYTES,
    EpisodePacker,
    EpisodeStore,
    StoredEpisode,
    episode_rows,
    merge_stored,
)
from warpdata.catalog.build.tables import ParquetOptions, ParquetShard, stage_table
from warpdata.catalog.dataset import Dataset, open_version
from warpdata.catalog.publish.pointers import read_pointer
from warpdata.catalog.publish.publish import (
    Published,
    PublishKeywords,
    PublishOptions,
    Upload,
    Uploads,
    publish,
    upload_blob,
    utc_now,
)
from warpdata.catalog.read.episodes import EPISODES_TABLE
from warpdata.episodes.collection.facts import table_of
from warpdata.errors import (
    CorruptLayoutError,
    DatasetError,
    WriterClosedError,
    nearest,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.manifest import model
from warpdata.formats.manifest.layout import MAX_NOTE_LEVELS
from warpdata.formats.manifest.model import ArtifactPart, Binding, BlobRef, Manifest, PartedShards, TablePart
from warpdata.formats.tarshard.writer import PackOptions
from warpdata.stores.address import is_remote, place_of

if TYPE_CHECKING:
    from warpdata.episodes.collection.episodes import Episodes

_INLINE: dict[str, Any] = {"cls": lambda text: int(text.strip()), "txt": str, "json": str}
"""Extensions of webdataset whose content is a value of the table rather than a file."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of an existing version."""

    part: Any
    dataset: Dataset

    def uploads(self, place: str) -> list[Upload]:
        """Its blobs: they must be in the catalog at `place`, or are copied from the one it was published in."""
        dataset = self.dataset
        return [
            Upload(blob.hash, blob.byte_size)
            if place == dataset.catalog.place and not blob.is_elsewhere
            else upload_blob(*dataset.access.place(dataset.catalog, blob), blob)
            for blob in self.part.blobs()
        ]


class DatasetBuilder(NoPickle, Closing):
    """Tables, artifacts and the bindings between them; `publish` makes them a version of a dataset.

    Data that must be written first (tables in memory, packed folders) is staged on the disk of a local catalog and
    moved into place, else in the cache folder; `staging` names another folder. Packed episodes for a remote catalog
    are sent one by one.
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
        self._options = change_catalog(options, catalog)
        self.catalog = self._options.catalogs[0]
        """The address it publishes to."""
        self._chosen_staging = staging
        self._owned: Staging | None = None
        self._tables: dict[str, list[ParquetShard]] = {}
        self._artifacts: dict[str, parts.StagedArtifact] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._kept_tables: dict[str, _Kept] = {}
        self._kept_artifacts: dict[str, _Kept] = {}
        self._bindings: list[Binding] = []
        self._kept_bindings: list[Binding] = []
        self._metadata: dict[str, Any] = {}
        self._sent: list[Upload] = []
        self._extends = False
        self._adds_columns = False
        self._places = 0
        self._lock = ThreadLock()
        """Parts may be added by several threads."""
        self._own = OwnProcess()
        """Staged files, and publishing them, belong to the process that made the builder."""

    @property
    def _staging(self) -> Path:
        """The folder for staged files, made when it is needed."""
        self._check_ours()
        with self._lock:
            if self._owned is None:
                self._owned = staging_for(self.catalog, self._options.cache_dir, self._chosen_staging)
            return self._owned.path

    def _place(self, name: str) -> Path:
        """A new path in the staging folder: some disks do not distinguish names that differ in case only."""
        with self._lock:
            self._places += 1
            number = self._places
        return self._staging / str(number) / name

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
        self._tables[name] = stage_table(name, source, self._place(name), options, optimize=optimize)
        return self

    @suggests
    def add_artifact(
        self, name: str, source: Any, *, kind: str = "tar_shards", options: PackOptions | None = None
    ) -> DatasetBuilder:
        """Raw payload: a folder or tar files for tar kinds, plain files for every other kind.

        Recordings (episode directories, or whole roots with their edits) are packed for `wshard_episodes`.
        """
        require_kind("options", options, (PackOptions, type(None)), "a PackOptions")
        if kind == model.EPISODE_KIND:
            return self.add_episodes(name, source)
        self._new_part(name)
        if kind not in model.KINDS:
            near = nearest(kind, model.KINDS)
            raise ValueError(f"not a kind of artifact: {kind!r}; there are {', '.join(model.KINDS)}.{near}")
        self._artifacts[name] = parts.pack_artifact(source, kind, self._place(name), options)
        return self

    @suggests
    def add_episodes(self, name: str, source: Any, *, chunk_bytes: str | int = CHUNK_BYTES) -> DatasetBuilder:
        """Episodes: a root of recordings with its edits, directories, shards, folders of shards, or `Episodes`.

        Their ids are kept. The version gets a table `episodes` with the facts of each, and records the edits.
        An episode longer than `chunk_bytes` (1 GiB) is published as chunks, which open as one episode.
        """
        self._new_part(name)
        packer = EpisodePacker(self._place(name), parse_size(chunk_bytes))
        shards: list[parts.PackedShard | BlobRef] = []
        rows: list[dict[str, Any]] = []
        with contextlib.ExitStack() as stack:
            store: EpisodeStore | None = None
            for files, is_own in packer.pack(source):
                if not is_own or not is_remote(self.catalog):
                    packed = parts.whole_files(files, is_own=is_own)
                    shards += packed
                    rows += episode_rows(name, packed) if is_own else []
                    continue
                if store is None:
                    store = stack.enter_context(EpisodeStore(None, name, options=self._options))
                episode = store.store_files(files)
                shards += episode.blobs
                rows.append(dict(episode.facts))
                self._sent += [Upload(b.hash, b.byte_size) for b in episode.blobs if b.hash in episode.sent]
        staged = parts.StagedArtifact(model.EPISODE_KIND, shards)
        if len(staged.members) < len(shards):
            raise CorruptLayoutError(f"two files of artifact {name!r} have the same name")
        self._artifacts[name] = staged
        self._rows[name] = rows + episode_rows(name, [file for file in staged.files if not file.is_own])
        if packer.edits:
            self._metadata["edits"] = {**self._metadata.get("edits", {}), name: packer.edits}
        return self

    def add_stored_episodes(self, name: str, stored: Iterable[StoredEpisode]) -> DatasetBuilder:
        """Episodes that workers stored in this catalog already (`EpisodeStore`), in the order of their ids.

        The version does not depend on which worker stored what and when. The same episode may be given twice; the
        same id with other bytes is a ConflictError.
        """
        self._new_part(name)
        episodes = merge_stored(stored)
        blobs = tuple(blob for episode in episodes for blob in episode.blobs)
        self._artifacts[name] = parts.StagedArtifact(model.EPISODE_KIND, blobs)
        self._rows[name] = [{**episode.facts, "artifact": name} for episode in episodes]
        return self

    def add_webdataset(self, name: str, tars: Any, *, artifact: str | None = None) -> DatasetBuilder:
        """Existing webdataset tars as they are, and a table of their samples with a column per extension."""
        artifact = artifact or f"{name}_shards"
        self.add_artifact(artifact, tars, kind="webdataset_shards")
        staged = self._artifacts[artifact]
        extensions, rows = parts.webdataset_rows(staged.files)
        columns: dict[str, list[Any]] = {"__key__": [row["__key__"] for row in rows]}

        def content(member: str) -> str:
            place = staged.members[member]
            shard = staged.files[place.shard]
            with FileRangeReader(shard.path) as reader:
                return bytes(reader.read(*place.read_range)).decode()

        for extension in extensions:
            members = [row.get(extension) for row in rows]
            parse = _INLINE.get(extension)
            columns[extension] = members if parse is None else [m and parse(content(m)) for m in members]
        self.add_table(name, columns)
        for extension in extensions:
            if extension not in _INLINE:
                self.bind(
                    name, extension, artifact, parts.REF_TYPE_OF.get(extension.rpartition(".")[2], "file")
                )
        return self

    def bind(
        self, table: str, column: str, artifact: str, ref_type: str = "file", *, addressing: str = "member"
    ) -> DatasetBuilder:
        """Declare that a column points into an artifact; every value is checked before anything is published."""
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
        """Parts of an existing version as they are, with the bindings of its tables by default.

        Nothing of them is sent again if it is in the catalog; from another catalog it is copied at `publish`, and the
        dataset must stay open until then.
        """
        if self._extends:
            raise ValueError("extend() keeps the newest version by itself; keep() is for parts of others")
        require_kind("a kept dataset", dataset, Dataset, "a dataset (wd.dataset)")
        manifest = dataset.manifest
        chosen = _choose("table", manifest.tables, tables)
        for name in chosen:
            self._new_part(name)
            self._kept_tables[name] = _Kept(manifest.tables[name], dataset)
        for name in _choose("artifact", manifest.artifacts, artifacts):
            self._new_part(name)
            self._kept_artifacts[name] = _Kept(manifest.artifacts[name], dataset)
        if bindings:
            self._kept_bindings += [b for b in manifest.bindings if b.table in chosen]
        return self

    def extend(self, *, add_columns: bool = False) -> DatasetBuilder:
        """Build on the newest version at the time of publishing: everything in it stays.

        Episodes and files that are added to an artifact of that version join it, and so do rows that are added to a
        table; a name that is there already with other bytes is a ConflictError, but for a vector file that has more
        vectors by now, of which only the appended part is sent. Publishing costs what is added, not what is there;
        `publish(retries=…)` builds on the newer version if another publisher was faster. Rows of another schema are
        cast to that of their table if nothing is lost. `add_columns`: rows may have columns that the table lacks, or
        lack some; all rows of the table are then written again, with nulls in their place.
        """
        if self._kept_tables or self._kept_artifacts:
            raise ValueError("extend() keeps the newest version by itself; keep() is for parts of others")
        self._extends = True
        self._adds_columns = add_columns
        return self

    def revise(self, dataset: Dataset, episodes: Episodes) -> DatasetBuilder:
        """An existing version with other episodes in the place of its own; everything else is kept."""
        require_kind("a revised dataset", dataset, Dataset, "a dataset (wd.dataset)")
        manifest = dataset.manifest
        own = [name for name, part in manifest.artifacts.items() if part.kind == model.EPISODE_KIND]
        if len(own) != 1:
            fact = f"{dataset.id} has {len(own)} artifacts of episodes; only one can be revised at once"
            raise DatasetError(fact)
        self.keep(
            dataset,
            tables=[name for name in manifest.tables if name != EPISODES_TABLE],
            artifacts=[name for name in manifest.artifacts if name not in own],
        )
        return self.add_episodes(own[0], episodes)

    def manifest(self) -> Manifest:
        """The version as it would be published now."""
        if not self._extends:
            return self._build(None)[0]
        with contextlib.closing(Access(self._options)) as access:
            return self._build(self._newest(access))[0]

    def publish(self, **keywords: Unpack[PublishKeywords]) -> Published:
        """Send missing blobs, then the manifest, then move the pointers; running it again is harmless.

        But for rows that join a table (`extend`): every run adds them. Keywords are the fields of PublishOptions.

        `retries`: how often to move `latest` after all when another publisher moved it meanwhile (after `extend`: how
        often to build on the newer version instead); `expect_latest`: the version it must still point at, by its hash
        or the first digits; `repair`: read back blobs that are there already and replace damaged ones (after `extend`
        only of what is added: for the version it builds on there is `warp repair`).
        """
        self._check_ours()
        options = PublishOptions(**keywords)
        with contextlib.closing(Access(self._options)) as access:
            # The blobs that are needed whichever version this one is built on; of vector files the appended parts.
            early, base = Uploads(), self._newest(access) if self._extends else None
            for name, staged in self._artifacts.items() if self._extends else ():
                if staged.kind != model.VECTOR_KIND:
                    staged.blobs(early)
                elif base is not None and name in base.artifacts:
                    parts.grow_artifact(base.artifact(name), staged, by_number=False, uploads=early)
            once = None if self._extends else self._build(None)

            def build(latest: str | None) -> tuple[Manifest, Uploads]:
                return once or self._build(None if latest is None else self._open(access, latest))

            published = publish(writable_store(access), self.name, build, options, early)
        sent, self._sent = self._sent, []
        return published.with_sent(sent)

    def close(self) -> None:
        """Delete staged files."""
        if self._owned is not None:
            self._owned.close()

    def __repr__(self) -> str:
        tables = [*self._tables, *self._kept_tables]
        artifacts = [*self._artifacts, *self._kept_artifacts]
        return f"<DatasetBuilder {self.name}: tables {tables}, artifacts {artifacts}>"

    def _check_ours(self) -> None:
        if not self._own:
            fact = "this builder belongs to the process that made it"
            hint = "Make a DatasetBuilder in this process."
            raise WriterClosedError(fact, path=str(self.name), hint=hint)

    def _new_part(self, name: str) -> None:
        self._check_ours()
        if not model.PART_NAME.fullmatch(name):
            raise ValueError(f"invalid name of a table or artifact: {name!r}")
        if name in {*self._tables, *self._artifacts, *self._kept_tables, *self._kept_artifacts}:
            raise ValueError(f"there is a part called {name!r} already")

    def _newest(self, access: Access) -> Dataset | None:
        pointer = read_pointer(writable_store(access), self.name.latest_key).pointer
        return None if pointer is None else self._open(access, pointer.version)

    def _open(self, access: Access, version: str) -> Dataset:
        return open_version(access, access.catalogs[0], self.name, version)

    def _build(self, base: Dataset | None) -> tuple[Manifest, Uploads]:
        """The manifest and the blobs of the version, on top of `base` if there is one."""
        kept_tables, kept_artifacts = self._kept_tables, self._kept_artifacts
        if base is not None:
            kept_tables = {name: _Kept(part, base) for name, part in base.manifest.tables.items()}
            kept_artifacts = {name: _Kept(part, base) for name, part in base.manifest.artifacts.items()}
        if not (self._tables or self._artifacts or (base is None and (kept_tables or kept_artifacts))):
            raise DatasetError("there is nothing to publish", hint="Add a table or an artifact first.")
        bindings = self._all_bindings(base, {*self._artifacts, *kept_artifacts})
        for binding in bindings:
            self._check(binding, kept_tables, kept_artifacts)
        uploads = Uploads()

        in_place = _without_uris if base is None else lambda part: part
        tables: dict[str, TablePart] = {name: in_place(kept.part) for name, kept in kept_tables.items()}
        artifacts: dict[str, ArtifactPart] = {n: in_place(kept.part) for n, kept in kept_artifacts.items()}
        for name, staged in self._artifacts.items():
            if base is not None and name in artifacts:
                by_number = any(b.artifact == name and b.addressing == "range" for b in bindings)
                artifacts[name] = parts.grow_artifact(
                    base.artifact(name), staged, by_number=by_number, uploads=uploads
                )
            else:
                artifacts[name] = parts.new_artifact(staged, uploads)
        for name, files in self._tables.items():
            if base is not None and name in tables:
                place, wider = self._place("cast"), self._adds_columns
                tables[name] = parts.grow_table(name, base, files, place, uploads, add_columns=wider)
            else:
                tables[name] = parts.new_table(files, uploads)
        self._add_facts(base, tables, uploads)
        here = place_of(self.catalog, self._options.store)
        for kept in [*self._kept_tables.values(), *self._kept_artifacts.values()]:
            uploads += kept.uploads(here)
        manifest = Manifest(
            dataset_id=self.name.dataset_id,
            tables=tables,
            artifacts=artifacts,
            bindings=tuple(sorted(bindings, key=lambda b: (b.table, b.column))),
            created_at=utc_now(),
            metadata=self._metadata if base is None else {**parts.inherited_notes(base), **self._metadata},
        )
        return manifest, uploads

    def _add_facts(self, base: Dataset | None, tables: dict[str, TablePart], uploads: Uploads) -> None:
        """The table of all episodes, unless the caller has one."""
        if EPISODES_TABLE in self._tables or (base is None and EPISODES_TABLE in tables):
            return
        rows = []
        for name, facts in self._rows.items():
            if base is not None and name in base.artifacts:
                known = base.artifact(name).has([row["blob"] for row in facts])
                facts = [row for row, has in zip(facts, known, strict=True) if not has]
            rows += facts
        if rows and EPISODES_TABLE in tables:
            assert base is not None
            tables[EPISODES_TABLE] = parts.grow_episodes(base, rows, self._place("grown"), uploads)
            return
        held = [] if base is None else base.manifest.artifacts.values()
        # If older episodes have no table, one of the new ones alone would hide them.
        if rows and not any(part.kind == model.EPISODE_KIND for part in held):
            files = stage_table(EPISODES_TABLE, table_of(rows), self._place(EPISODES_TABLE), ParquetOptions())
            tables[EPISODES_TABLE] = parts.new_table(files, uploads)

    def _all_bindings(self, base: Dataset | None, artifacts: set[str]) -> list[Binding]:
        """The bindings that were made here, and the kept ones of other columns."""
        here = {(b.table, b.column) for b in self._bindings}
        others = self._kept_bindings if base is None else base.manifest.bindings
        kept = [b for b in others if (b.table, b.column) not in here]
        for binding in kept:
            if binding.artifact not in artifacts:
                fact = f"{binding.table}.{binding.column} points into {binding.artifact!r}, which is not kept"
                hint = "Keep or add that artifact too, bind the column again, or keep(..., bindings=False)."
                raise DatasetError(fact, hint=hint)
        return [*self._bindings, *kept]

    def _check(self, binding: Binding, tables: Mapping[str, _Kept], artifacts: Mapping[str, _Kept]) -> None:
        """Check the values of a bound column, unless table and artifact come from one version with the binding."""
        files, staged = self._tables.get(binding.table), self._artifacts.get(binding.artifact)
        table, artifact = tables.get(binding.table), artifacts.get(binding.artifact)
        for name, known in (
            (binding.table, {*self._tables, *tables}),
            (binding.artifact, {*self._artifacts, *artifacts}),
        ):
            if name not in known:
                fact = f"a binding names no part of this version: {binding.table} -> {binding.artifact}"
                raise DatasetError(f"{fact}.{nearest(name, known)}")
        if files is None and table is not None and artifact is not None:
            is_one_version = table.dataset.version == artifact.dataset.version
            if is_one_version and binding in table.dataset.manifest.bindings:
                return
        columns = (
            files[0].schema.names if files else [str(f["name"]) for f in tables[binding.table].part.fields]
        )
        if binding.column not in columns:
            fact = f"table {binding.table!r} has no column {binding.column!r}"
            raise DatasetError(f"{fact}.{nearest(binding.column, columns)}")
        is_range = binding.addressing == "range"
        sizes = [shard.byte_size for shard in artifact.part.shards] if artifact and is_range else []

        def has_members(names: Sequence[str]) -> list[bool]:
            flags = [staged is not None and name in staged.members for name in names]
            if artifact is None or all(flags):
                return flags
            kept = artifact.dataset.artifact(binding.artifact).has(names)
            return [here or there for here, there in zip(flags, kept, strict=True)]

        if files is not None:
            values = (batch.column(0) for file in files for batch in file.batches([binding.column]))
        else:
            kept_table = tables[binding.table].dataset.table(binding.table).select([binding.column])
            values = (chunk for rows in kept_table.row_groups() for chunk in rows.column(0).chunks)
        parts.check_binding(binding, values, has_members, [*sizes, *(staged.sizes if staged else ())])


def _choose(kind: str, known: Mapping[str, Any], chosen: Iterable[str] | None) -> list[str]:
    names = list(known) if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
    for name in names:
        if name not in known:
            hint = f"It has: {', '.join(known) or 'none'}.{nearest(name, known)}"
            raise DatasetError(f"no {kind} {name!r} to keep", hint=hint)
    return names


def _without_uris(part: Any) -> Any:
    """A part whose blobs are in the catalog it is kept in, wherever they came from."""
    shards = part.shards
    if not isinstance(shards, PartedShards):  # which has no addresses
        shards = tuple(replace(shard, uri=None) for shard in shards)
    if isinstance(part, TablePart):
        return replace(part, shards=shards, guide=part.guide and replace(part.guide, uri=None))
    return replace(part, shards=shards, indexes=tuple(replace(index, uri=None) for index in part.indexes))
