"""A published dataset, open for reading."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from warpdata.bytekit.io.ranges import Closing, RangeReader
from warpdata.bytekit.process.forks import cached_property
from warpdata.catalog.access import (
    Access,
    AccessOptions,
    Catalog,
    DatasetName,
    Staging,
    access_options,
    parse_name,
    parse_size,
)
from warpdata.catalog.manage.reports import DatasetDiff, diff_manifests
from warpdata.catalog.manage.versions import list_tags, list_versions
from warpdata.catalog.publish.pointers import Version
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.episodes import (
    EPISODES_TABLE,
    Lane,
    LanePlace,
    LaneReport,
    LaneStatus,
    PublishedSource,
    compare_lane,
    one_of_kind,
    open_corpus,
)
from warpdata.catalog.read.refs import REF_CLASSES, FileRef, RefGroup, RefType, bound_batch, recipe_of
from warpdata.catalog.read.resolve import Resolved, Resolver
from warpdata.catalog.table import (
    BatchStream,
    ChangedStream,
    Shard,
    StreamOpener,
    StreamOptions,
    StreamRequest,
    Table,
    TableFiles,
)
from warpdata.corpora.source import SourceKeywords, StoreShardSource
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Runner
from warpdata.errors import (
    DatasetError,
    FormatError,
    ManifestCorruptedError,
    StoreError,
    WarpError,
    nearest,
    require_kind,
    require_word,
)
from warpdata.formats.manifest import model
from warpdata.settings import Settings
from warpdata.sql.engine import SqlResult, run_sql
from warpdata.stores.blobstore import Listener, Spent
from warpdata.stores.pagecache import PageCache
from warpdata.timeline.cards import html_table, text, titled_card

if TYPE_CHECKING:
    from warpdata.catalog.build.episodes import LaneMade
    from warpdata.catalog.publish.publish import VersionKeywords
    from warpdata.sql.arrow_source import ArrowSource
    from warpdata.timeline.episode import Episode

_SHOWN_EPISODES = 3

Progress = Callable[[int, int], None]
TorchOpener = Callable[[Table, StreamRequest, str], Any]


@dataclass(frozen=True, slots=True)
class Streams:
    """Functions of higher packages that `_api` passes down: a dataset calls them and imports nothing upward."""

    batches: StreamOpener
    torch: TorchOpener
    plan: Callable[[Table, StreamRequest], ReadPlan]
    vectors: Callable[[RangeReader], Any]
    ray: Callable[[Table], Any]
    runner: Callable[[int, str | bool | None], Runner]
    """Runs work on many episodes: in so many processes, or on a cluster."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a pass will read."""

    rows: int
    row_groups: int
    requests: int
    bytes_to_read: int
    is_exact: bool = True
    """False if the cache has no room for the pass, or gets more (`hybrid`): then the bytes are a lower bound."""

    def __repr__(self) -> str:
        about, least = ("", "") if self.is_exact else ("about ", "at least ")
        rows = f"{self.rows} rows in {self.row_groups} row groups"
        return f"<ReadPlan: {rows}, {about}{self.requests} requests, {least}{self.bytes_to_read} bytes>"


@dataclass(frozen=True, slots=True)
class WarmReport:
    """Result of warming the cache."""

    shards: int
    bytes_fetched: int
    bytes_present: int
    shards_skipped: int


class Dataset(Closing):
    """One version of a dataset: an immutable manifest, and its tables and artifacts."""

    def __init__(self, name: DatasetName, resolved: Resolved, access: Access, streams: Streams) -> None:
        for value, kind in ((name, DatasetName), (resolved, Resolved), (access, Access), (streams, Streams)):
            require_kind("Dataset", value, kind, f"made by wd.dataset, of a {kind.__name__}")
        self.name = name
        self.manifest: model.Manifest = resolved.manifest
        self.id = self.manifest.dataset_id
        """workspace/name."""
        self.version = self.version_hash = self.manifest.version_hash
        """The hash that names this version for ever."""
        self.tables, self.artifacts = list(self.manifest.tables), list(self.manifest.artifacts)
        """The names of the tables, and of the artifacts."""
        self.catalog: Catalog = resolved.catalog
        self.is_remembered = resolved.is_remembered
        self.signature = resolved.signature
        """The signer of the version, if the signature was checked."""
        self.access = access
        self.streams = streams
        self._files = {n: TableFiles(self, n, part) for n, part in self.manifest.tables.items()}
        self._types: dict[str, RefType] = {}
        self._sources: dict[str, PublishedSource] = {}
        self._episodes: Episodes | None = None
        self._is_closed = False

    @cached_property
    def _artifacts(self) -> dict[str, Artifact]:
        parts = self.manifest.artifacts
        return {name: Artifact(name, part, self.access, self.catalog) for name, part in parts.items()}

    @property
    def spent(self) -> Spent:
        """Requests and bytes so far."""
        return self.access.meter.spent

    def table(self, name: str = "main") -> Table:
        """A table by name; nothing is read."""
        self._check_open()
        return Table(self, name)

    def files_of(self, name: str) -> TableFiles:
        """The files of a table, shared by its views."""
        files: TableFiles = self._part("table", self._files, name)
        return files

    def artifact(self, name: str) -> Artifact:
        """An artifact by name; nothing is read."""
        self._check_open()
        artifact: Artifact = self._part("artifact", self._artifacts, name)
        return artifact

    def _part(self, kind: str, parts: Mapping[str, Any], name: str) -> Any:
        if name not in parts:
            hint = f"It has: {', '.join(parts) or 'none'}.{nearest(name, parts)}"
            raise DatasetError(f"no {kind} {name!r} in {self.id}", hint=hint)
        return parts[name]

    def ref(self, artifact: str, member: str, ref_type: str = "file") -> FileRef:
        """A reference to one member of an artifact."""
        require_word("ref_type", ref_type, REF_CLASSES)
        recipe = recipe_of(artifact, ref_type, self.recipe)
        group = RefGroup(self.artifact(artifact), self.access.cache, [member], recipe)
        return REF_CLASSES[ref_type](group, 0)

    @property
    def episodes(self) -> Episodes:
        """All published episodes, each opened on first use; `where` queries the table `episodes`."""
        self._check_open()
        if self._episodes is None:
            sources = self.episode_sources()
            if not sources:
                one_of_kind(self._artifacts, model.EPISODE_KIND, None)  # raises, with the kinds there are
            self._episodes = functools.reduce(operator.add, map(Episodes, sources.values()))
        return self._episodes

    def episodes_of(self, artifact: str) -> Episodes:
        """The published episodes of one artifact."""
        return Episodes(self.episodes_source(artifact))

    def episode_sources(self) -> dict[str, PublishedSource]:
        """The sources of all artifacts of episodes, by name."""
        names = [name for name, part in self.manifest.artifacts.items() if part.kind == model.EPISODE_KIND]
        return {name: self.episodes_source(name) for name in names}

    def episodes_source(self, artifact: str) -> PublishedSource:
        """The source of the episodes of an artifact."""
        if artifact not in self._sources:
            shards = one_of_kind(self._artifacts, model.EPISODE_KIND, artifact)
            table = self.table(EPISODES_TABLE) if EPISODES_TABLE in self.tables else None
            if table is not None and not {"id", "artifact", "blob"} <= set(table.schema().names):
                table = None
            imported = self.manifest.metadata.get("source_metadata")
            imported = imported if isinstance(imported, dict) else None
            lanes = list(self.lanes.values())
            self._sources[artifact] = PublishedSource(shards, table, self.recipe, imported, lanes)
        return self._sources[artifact]

    @cached_property
    def lanes(self) -> dict[str, Lane]:
        """The prediction lanes by name; nothing is read."""
        lanes = [Lane(artifact) for artifact in self._artifacts.values() if artifact.kind == model.LANE_KIND]
        return {lane.name: lane for lane in lanes}

    def add_lane(
        self,
        name: str,
        function: Callable[[Episode], Any],
        *,
        of: str | Sequence[str],
        revision: str | None = None,
        jobs: int = 1,
        ray: str | bool | None = None,
        progress: Progress | None = None,
        **version: Unpack[VersionKeywords],
    ) -> LaneMade:
        """Compute predictions over all episodes and publish them beside these, as a part of a new version.

        `function(episode)` returns a prediction of the signal `of`: an array with one row per record of it, or a Signal
        with times of its own; if `of` names several, a dictionary of them. Episodes that have not changed keep their
        predictions while `revision` is the same: by default it is a hash of the code of the function, so give one if
        weights come from elsewhere. A run that was stopped is resumed. `jobs` processes compute; `ray` (True, or the
        address of a cluster) does it there instead; a class is made once in each process and then called. The version
        does not depend on where it was computed; further keywords are fields of PublishOptions.
        """
        # These modules import this one.
        from warpdata.catalog.build.episodes import make_lane
        from warpdata.catalog.publish.publish import PublishOptions

        self._check_open()
        given: VersionKeywords = {"retries": 20, **version}
        options = PublishOptions(**given)
        signals = (of,) if isinstance(of, str) else tuple(of)
        runner = self.streams.runner(jobs, ray)
        return make_lane(self, name, signals, revision, function, options, progress, runner)

    def lane_status(self, name: str) -> LaneStatus:
        """Which episodes a lane covers now, and for which it is stale."""
        sources = self.episode_sources().values()
        ids = [episode_id for source in sources for episode_id in source.ids]
        lane: Lane = self._part("lane", self.lanes, name)
        return lane.status(dict(zip(self.episode_places(), ids, strict=True)))

    def episode_places(self) -> list[LanePlace]:
        """The bytes of every episode, in order."""
        return [place for source in self.episode_sources().values() for place in source.places()]

    def compare_lane(self, name: str, *, worst: int = 5, progress: Progress | None = None) -> LaneReport:
        """The errors of the predictions of a lane: per signal, and the moments with the largest ones."""
        lane: Lane = self._part("lane", self.lanes, name)
        return compare_lane(lane, self.episodes, worst=worst, progress=progress)

    def corpus(self, artifact: str | None = None, **options: Unpack[SourceKeywords]) -> StoreShardSource:
        """The published activation corpus as a source of rows, read by range."""
        return open_corpus(one_of_kind(self._artifacts, model.CORPUS_KIND, artifact), **options)

    def vectors(self, artifact: str | None = None) -> Any:
        """The published vector file as a VectorStore, read by range."""
        held = one_of_kind(self._artifacts, model.VECTOR_KIND, artifact)
        return self.streams.vectors(held.member_reader(next(iter(model.vector_files(held.part.shards)))))

    def sql(self, query: str, *, extra: dict[str, Table] | None = None) -> SqlResult:
        """A query over the tables by name: `ds.sql("select … from main join labels using (id)")`."""
        self._check_open()
        require_kind("extra", extra, (Mapping, type(None)), "a dictionary of tables by name")
        for name, table in (extra or {}).items():
            require_kind(f"extra[{name!r}]", table, Table, "a table of a dataset")
        given = {name: table.source() for name, table in (extra or {}).items()}
        return run_sql(query, {**self.sources(), **given}, spill=self.spill)

    def sources(self) -> dict[str, ArrowSource]:
        """The tables as sources of the SQL engine."""
        return {name: self.table(name).source() for name in self.tables}

    @property
    def spill(self) -> type[Staging] | None:
        """Makes a folder for a query that needs more than memory; None if this disk may not be used."""
        return None if self.access.options.mode == "remote" else Staging

    def plan(
        self,
        table: str = "main",
        *,
        columns: str | Sequence[str] | None = None,
        batch_size: int = 1000,
        **options: Unpack[StreamOptions],
    ) -> ReadPlan:
        """What a pass with these options of `batches` will read."""
        view = self.table(table) if columns is None else self.table(table).select(columns)
        return self.streams.plan(view, StreamRequest.of(batch_size, options))

    def to_torch(
        self,
        batch_size: int = 1000,
        shard: Shard = "auto",
        prefetch: str | int | None = None,
        *,
        table: str = "main",
        **options: Any,
    ) -> Any:
        """A torch IterableDataset of a table's batches as tensors; options as in `Table.to_torch`."""
        return self.table(table).to_torch(batch_size, shard, prefetch, **options)

    def to_ray(
        self, table: str = "main", *, columns: str | Sequence[str] | None = None, where: str | None = None
    ) -> Any:
        """A Ray dataset of the rows of a table of this version; columns and condition are applied on reading.

        Bound columns hold the names of the members, as in the table. Needs `warpdata[ray]`.
        """
        view = self.table(table) if columns is None else self.table(table).select(columns)
        return self.streams.ray(view if where is None else view.filter(where))

    def warm(
        self,
        tables: Sequence[str] | None = None,
        *,
        artifacts: Sequence[str] | None = None,
        shards: slice | None = None,
        max_bytes: str | int | None = None,
        progress: Progress | None = None,
    ) -> WarmReport:
        """Fetch shards into the cache, whole and checked, up to `max_bytes`; by default everything."""
        limit = None if max_bytes is None else parse_size(max_bytes)
        blobs = self._blobs_to_warm(tables, artifacts, shards)
        readers = [self.access.reader(self.catalog, blob, label) for label, blob in blobs]
        total = sum(reader.size for reader in readers)
        done = fetched = 0
        kept = []
        for reader in readers:
            missing = reader.missing_bytes()
            if limit is not None and fetched + missing > limit:
                continue
            reader.load_whole()
            kept.append(reader)
            fetched, done = fetched + missing, done + reader.size
            if progress is not None:
                progress(done, total)
        gone = [reader for reader in kept if reader.missing_bytes()] if self.access.cache is not None else []
        if gone and self.access.cache is not None:  # a full disk, or one shard was evicted for the next
            fact = f"{len(gone)} of {len(kept)} blobs did not stay in the cache, the first is {gone[0].name}"
            hint = "Make room on its disk, raise WARP_CACHE_SIZE_GB, or warm fewer shards."
            raise StoreError(fact, path=self.access.cache.folder, hint=hint)
        return WarmReport(len(kept), fetched, done - fetched, len(readers) - len(kept))

    def _blobs_to_warm(
        self, tables: Sequence[str] | None, artifacts: Sequence[str] | None, shards: slice | None
    ) -> list[tuple[str, model.BlobRef]]:
        """Guides, indexes and parts first, because shards need them offline; then the chosen shards."""
        everything = tables is None and artifacts is None
        names = [[n] if isinstance(n, str) else list(n or []) for n in (tables, artifacts)]
        parts: dict[str, Any] = {n: self.table(n).part for n in (self.tables if everything else names[0])}
        parts |= {n: self.artifact(n).part for n in (self.artifacts if everything else names[1])}
        if shards is not None and not isinstance(shards, slice):
            raise TypeError(f"shards is a slice such as slice(0, 50), not {shards!r}")
        if not everything and not parts:
            raise ValueError("no table and no artifact is named; leave the names out for everything")
        chosen = {name: range(len(part.shards))[shards or slice(None)] for name, part in parts.items()}
        if shards is not None and not any(chosen.values()):
            bounds = ":".join("" if bound is None else str(bound) for bound in (shards.start, shards.stop))
            counts = ", ".join(f"{name} {len(part.shards)}" for name, part in parts.items())
            raise ValueError(
                f"shard range {bounds} is empty; numbers of shards: {counts or 'no tables, no artifacts'}"
            )
        small, large = [], []
        for name, part in parts.items():
            blobs = list(_labelled_blobs(name, part))
            small += blobs[len(part.shards) :]
            large += [blobs[number] for number in chosen[name]]
        return small + large

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Read every blob and compare it with its hash, and every footer with the manifest; the damage found."""
        blobs: list[tuple[str, model.BlobRef]] = []
        damaged: list[str] = []
        parts: dict[str, Any] = {**self.manifest.tables, **self.manifest.artifacts}
        for name, part in parts.items():
            try:
                blobs += _labelled_blobs(name, part)
            except (FormatError, StoreError, ManifestCorruptedError) as error:
                damaged.append(f"{part.what} {name!r}: {error}")
        total, done = sum(blob.byte_size for _, blob in blobs), 0
        for label, blob in blobs:
            try:
                self.access.reader(self.catalog, blob, label).verify()
            except (FormatError, StoreError) as error:
                damaged.append(str(error))
            done += blob.byte_size
            if progress is not None:
                progress(done, total)
        footers = [
            (files, number) for files in self._files.values() for number in range(len(files.part.shards))
        ]
        for files, number in footers if not damaged else ():
            try:
                _ = files.file(number).metadata
            except (FormatError, StoreError, ManifestCorruptedError) as error:
                damaged.append(str(error))
        return damaged

    def diff(self, other: Dataset | str) -> DatasetDiff:
        """What changed from this version to another one."""
        require_kind("the other version", other, (str, Dataset), "a dataset, or a name or a version of one")
        if isinstance(other, str):
            name = parse_name(other if "/" in other else f"{self.id}@{other}")
            return diff_manifests(self.manifest, Resolver(self.access).resolve(name).manifest)
        return diff_manifests(self.manifest, other.manifest)

    def versions(self, *, limit: int | None = None) -> list[Version]:
        """Every version of the dataset, newest first, or the newest `limit` of them."""
        return list_versions(self.access, self.catalog, self.name, limit=limit)

    def tags(self) -> dict[str, str]:
        """Tag -> version."""
        return list_tags(self.catalog, self.name)

    def close(self) -> None:
        """Close stores and cache; existing references can still be read."""
        self._is_closed = True
        for artifact in self.__dict__.get("_artifacts", {}).values():
            artifact.close()
        self.access.close()

    def open_stream(self, table: Table, request: StreamRequest, *, bound: bool = False) -> BatchStream:
        """A stream over a view of a table; `bound` turns bound columns into references."""
        self._check_open()
        table.files.check_row_counts(is_shuffled=bool(request.shuffle))
        stream = self.streams.batches(table, request)
        types = table.ref_types() if bound else {}
        return ChangedStream(stream, lambda batch: bound_batch(batch, types)) if types else stream

    def ref_type(self, storage: Any, recipe: str) -> RefType:
        """The type of a bound column, one for the life of the dataset."""
        key = f"{storage}|{recipe}"
        if key not in self._types:
            self._types[key] = RefType(storage, recipe, self.artifact_and_cache)
        return self._types[key]

    def artifact_and_cache(self, name: str) -> tuple[Artifact, PageCache | None]:
        """What a reference needs to read."""
        return self._artifacts[name], self.access.cache

    @property
    def recipe(self) -> dict[str, Any]:
        """How this version is opened again in another process; it holds no credentials."""
        options = self.access.options
        return {
            "name": f"{self.id}@{self.version}",
            "catalogs": list(options.catalogs),
            "mode": options.mode,
            "cache_dir": options.cache_dir,
            "cache_bytes": options.cache_bytes,
        }

    def _check_open(self) -> None:
        if self._is_closed:
            hint = "Read inside its `with` block, or open it again."
            raise DatasetError("the dataset is closed", path=self.id, hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        name = DatasetName(self.id, hash_prefix=self.version)
        return open_dataset, (name, self.access.options, self.streams)

    def _repr_html_(self) -> str:
        parts = [
            ["table", text(name), f"{part.row_count} rows"] for name, part in self.manifest.tables.items()
        ]
        parts += [["artifact", text(name), text(part.kind)] for name, part in self.manifest.artifacts.items()]
        episodes: tuple[str, ...] = ()
        if any(part.kind == model.EPISODE_KIND for part in self.manifest.artifacts.values()):
            try:
                episodes = self.episodes._html_rows(_SHOWN_EPISODES)
            except WarpError as error:  # not reachable, or closed
                episodes = (f"<p>{text(str(error))}</p>",)
        return titled_card(f"{self.id}@{self.version[:12]}", html_table(["", "name", ""], parts), *episodes)

    def __repr__(self) -> str:
        return f"<Dataset {self.id}@{self.version[:12]}: {', '.join(dict.fromkeys(self.tables + self.artifacts))}>"


def _labelled_blobs(name: str, part: Any) -> Iterator[tuple[str, model.BlobRef]]:
    """The blobs of a part and their labels: the shards, then guides, indexes and parts of the list."""
    label = f"{part.what} {name!r}"
    yield from ((f"{label} shard {shard.name or number}", shard) for number, shard in enumerate(part.shards))
    if isinstance(part, model.TablePart):
        guides = [(f"guide of {label} shard {i}", shard.guide) for i, shard in enumerate(part.shards)]
        guides.append((f"guide of {label}", part.guide))
        yield from ((guide_label, guide) for guide_label, guide in guides if guide is not None)
    else:
        yield from ((f"member index of {label}", index) for index in part.indexes)
    yield from ((f"a part of the manifest of {label}", ref) for ref in model.parts_of(part.shards))


def open_dataset(
    name: DatasetName, options: AccessOptions, streams: Streams, listener: Listener | None = None
) -> Dataset:
    """Resolve a name and open its manifest; no data is read."""
    access = Access(options, listener)
    try:
        return Dataset(name, Resolver(access).resolve(name), access, streams)
    except BaseException:
        access.close()
        raise


def open_version(access: Access, catalog: Catalog, name: DatasetName, version: str) -> Dataset:
    """A version through stores that are open already, for its tables and references only."""
    manifest = Resolver(access).manifest(catalog, name, version)
    return Dataset(name, Resolved(manifest, catalog), access, _NO_STREAMS)


def open_recipe(fields: dict[str, Any]) -> Dataset:
    """The dataset of a `recipe`, or of a name and catalogs; for its tables and references only."""
    given = {key: fields.get(key) for key in ("mode", "cache_dir", "cache_bytes")}
    options = access_options(Settings.from_env(), catalogs=tuple(fields["catalogs"]), **given)
    return open_dataset(parse_name(fields["name"]), options, _NO_STREAMS)


@functools.lru_cache(maxsize=8)
def reopen_dataset(recipe: str) -> Dataset:
    """A dataset of another process, for its tables and references only; opened once in this one."""
    return open_recipe(json.loads(recipe))


def _refuse_streams(*_: Any, **__: Any) -> Any:
    raise DatasetError("this dataset was opened for references only")


_NO_STREAMS = Streams(*[_refuse_streams] * 6)
